"""Operator state in a sink: records are written in groups, and a half-full group survives a restart.

headrace run examples/buffering_sink.py
"""

from headrace import CheckpointedFunction, ListStateDescriptor, SinkFunction, StreamExecutionEnvironment


class BufferingSink(SinkFunction, CheckpointedFunction):
    """Gathers `threshold` records before it sends them on."""

    def __init__(self, threshold, send=print):
        self.threshold = threshold
        self.send = send
        self.buffered = []

    def invoke(self, value, context):
        self.buffered.append(value)
        if len(self.buffered) >= self.threshold:
            self.send(self.buffered)
            self.buffered = []

    def snapshot_state(self, context):
        self.checkpointed.clear()
        self.checkpointed.add_all(self.buffered)

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.checkpointed = store.get_list_state(ListStateDescriptor("buffered-elements"))
        if context.is_restored():
            self.buffered = list(self.checkpointed.get())


def build(env: StreamExecutionEnvironment, send=print) -> None:
    env.from_collection([("a", n) for n in range(10)]).add_sink(BufferingSink(3, send))


if __name__ == "__main__":
    environment = StreamExecutionEnvironment.get_execution_environment()
    build(environment)
    environment.execute("buffering sink")
