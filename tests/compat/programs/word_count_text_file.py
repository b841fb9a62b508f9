"""Count words of a text file with the source of Flink 1.x.

Modelled on: pyflink-basic-introduction, wc/word_count_batch.

Not run on PyFlink: names of Flink 1.x.

Prints:
    (hello,3)
    (world,2)
    (flink,1)
"""

import tempfile
from pathlib import Path

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment


def word_count_batch(path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.set_parallelism(1)
    source = env.read_text_file(path)

    def split(line):
        yield from line.split(",")

    ds = (
        source.flat_map(split)
        .map(lambda x: (x, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda x: x[0])
        .reduce(lambda i, j: (i[0], i[1] + j[1]))
    )
    ds.print()
    env.execute("wordCountBatch")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "words.txt")
        file.write_text("hello,world\nhello,flink\nhello,world\n")
        word_count_batch(str(file))
