"""Operator state in a source: after a restore it goes on where the checkpoint was, with no gap and no repeat.

headrace run examples/counter_source.py
"""

from headrace import CheckpointedFunction, DataStream, ListStateDescriptor, SourceFunction, StreamExecutionEnvironment


class CounterSource(SourceFunction, CheckpointedFunction):
    """Counts up; emitting a number and stepping on is one step under the checkpoint lock."""

    def __init__(self, limit):
        self.limit = limit
        self.offset = 0
        self.running = True

    def run(self, ctx):
        lock = ctx.get_checkpoint_lock()
        while self.running and self.offset < self.limit:
            with lock:
                ctx.collect(self.offset)
                self.offset += 1

    def cancel(self):
        self.running = False

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("state", "bigint"))
        for offset in self.state.get():
            self.offset = offset

    def snapshot_state(self, context):
        self.state.clear()
        self.state.add(self.offset)


def build(env: StreamExecutionEnvironment) -> DataStream:
    return env.add_source(CounterSource(20), type_info="bigint").map(lambda n: n * n, output_type="bigint")


if __name__ == "__main__":
    environment = StreamExecutionEnvironment.get_execution_environment()
    build(environment).print()
    environment.execute("counter source")
