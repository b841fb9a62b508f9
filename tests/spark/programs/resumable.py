"""resumable.py DIRECTORY [RATE]: a job that numbers records and writes them to files."""

import sys

from headrace import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.files import FileSink

COUNT, KEYS = 9_000, 10


class Number(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value, ctx):
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield value.k, value.v, number


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(200)
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else None
    source = env.from_datagen(lambda n: (n % KEYS, n), count=COUNT, rate=rate, type_info="k bigint, v bigint")
    numbered = source.key_by("k").process(Number(), output_type="k bigint, v bigint, n bigint")
    numbered.sink_to(FileSink(f"{sys.argv[1]}/out", "json"))
    env.execute("resumable")


if __name__ == "__main__":
    main()
