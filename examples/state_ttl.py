"""State that expires: remembers a visitor for a second, and says whether a visit is the first of late.

headrace run examples/state_ttl.py
"""

import time

from headrace import (
    DataStream,
    KeyedProcessFunction,
    SourceFunction,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
)

TTL = (
    StateTtlConfig.new_builder(Time.seconds(1))
    .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
    .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
    .cleanup_incrementally(10, True)
    .build()
)


class Visits(SourceFunction):
    """ann, ann again at once, and ann after her last visit was forgotten."""

    def __init__(self, away):
        self.away = away  # seconds
        self.running = True

    def run(self, ctx):
        for name, pause in (("ann", 0.0), ("ann", 0.0), ("ann", self.away)):
            time.sleep(pause)
            if self.running:
                ctx.collect(name)

    def cancel(self):
        self.running = False


class Greet(KeyedProcessFunction):
    def open(self, runtime_context):
        descriptor = ValueStateDescriptor("text state", "string")
        descriptor.enable_time_to_live(TTL)
        self.seen = runtime_context.get_state(descriptor)

    def process_element(self, value, ctx):
        yield f"{value}: {'welcome back' if self.seen.value() else 'hello'}"
        self.seen.update("seen")


def build(env: StreamExecutionEnvironment, away: float = 1.5) -> DataStream:
    visits = env.add_source(Visits(away), type_info="string")
    return visits.key_by(lambda name: name).process(Greet(), output_type="string")


if __name__ == "__main__":
    environment = StreamExecutionEnvironment.get_execution_environment()
    build(environment).print()
    environment.execute("state with a time to live")
