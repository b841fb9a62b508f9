"""A module that is shipped with the job.

Modelled on: Apache Flink, Python dependency management.

Prints:
    2
    4
"""

import sys
import tempfile
from pathlib import Path

from headrace.pyflink.datastream import StreamExecutionEnvironment


def double(value):
    from my_util_of_the_program import twice

    return twice(value)


with tempfile.TemporaryDirectory() as directory:
    module = Path(directory, "my_util_of_the_program.py")
    module.write_text("def twice(value):\n    return value * 2\n")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.add_python_file(str(module))
    env.set_python_executable(sys.executable)
    env.from_collection([1, 2]).map(double).print()
    env.execute()
