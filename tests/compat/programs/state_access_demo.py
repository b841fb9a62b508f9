"""Keyed state in a map function, from a sequence of numbers to files.

Modelled on: Apache Flink, Intro to the Python DataStream API ("Common structure").

Prints:
    ['(0,1)', '(0,2)', '(1,1)', '(1,2)', '(2,1)', '(2,2)', '(3,1)', '(3,2)'] 23 2
    True
"""

import tempfile
from pathlib import Path

from headrace.pyflink.common import Row, WatermarkStrategy
from headrace.pyflink.common.serialization import Encoder
from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.connectors.file_system import FileSink, OutputFileConfig
from headrace.pyflink.datastream.connectors.number_seq import NumberSequenceSource
from headrace.pyflink.datastream.functions import MapFunction, RuntimeContext
from headrace.pyflink.datastream.state import ValueStateDescriptor


class MyMapFunction(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        state_desc = ValueStateDescriptor("cnt", Types.PICKLED_BYTE_ARRAY())
        self.cnt_state = runtime_context.get_state(state_desc)

    def map(self, value):
        cnt = self.cnt_state.value()
        if cnt is None or cnt < 2:
            self.cnt_state.update(1 if cnt is None else cnt + 1)
            return value[0], value[1] + 1
        return value[0], value[1]


def state_access_demo(output_path):
    # 1. create a StreamExecutionEnvironment
    env = StreamExecutionEnvironment.get_execution_environment()

    # 2. create source DataStream
    seq_num_source = NumberSequenceSource(1, 100)
    ds = env.from_source(
        source=seq_num_source,
        watermark_strategy=WatermarkStrategy.for_monotonous_timestamps(),
        source_name="seq_num_source",
        type_info=Types.LONG(),
    )

    # 3. define the execution logic
    ds = (
        ds.map(lambda a: Row(a % 4, 1), output_type=Types.ROW([Types.LONG(), Types.LONG()]))
        .key_by(lambda a: a[0])
        .map(MyMapFunction(), output_type=Types.TUPLE([Types.LONG(), Types.LONG()]))
    )

    # 4. create sink and emit result to sink
    file_sink = (
        FileSink.for_row_format(output_path, Encoder.simple_string_encoder())
        .with_output_file_config(OutputFileConfig.builder().with_part_prefix("pre").with_part_suffix("suf").build())
        .build()
    )
    ds.sink_to(file_sink)

    # 5. execute the job
    env.execute("state_access_demo")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        state_access_demo(directory)
        files = [path for path in Path(directory).rglob("*") if path.is_file()]
        lines = sorted(line for path in files for line in path.read_text().splitlines())
        print(sorted(set(lines)), lines.count("(0,1)"), lines.count("(0,2)"))
        print(all(path.name.startswith("pre") and path.name.endswith("suf") for path in files))
