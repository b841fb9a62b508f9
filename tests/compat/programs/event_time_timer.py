"""An event-time timer after each record, with the watermark that it sees.

Modelled on: Apache Flink, pyflink/examples/datastream/event_time_timer.

Prints:
    ('Alice', 163.3, 3000)
    ('Bob', 102.5, 4000)
    ('Alice', 163.3, 5000)
    ('Bob', 102.5, 5000)
    ('Bob', 102.5, 6000)
    ('Alice', 163.3, 7000)
    ('Bob', 102.5, 9000)
    ('Alice', 163.3, 12000)
"""

from headrace.pyflink.common import Duration, WatermarkStrategy
from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ValueStateDescriptor


class Sum(KeyedProcessFunction):
    def __init__(self):
        self.state = None

    def open(self, runtime_context: RuntimeContext):
        state_descriptor = ValueStateDescriptor("state", Types.FLOAT())
        self.state = runtime_context.get_state(state_descriptor)

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        # retrieve the current sum
        current = self.state.value()
        if current is None:
            current = 0
        # update the state's sum
        current += value[2]
        self.state.update(current)
        # register an event time timer 2 seconds later
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        yield ctx.get_current_key(), self.state.value(), timestamp


class MyTimestampAssigner(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp: int) -> int:
        return int(value[0])


def event_timer_timer_demo():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    ds = env.from_collection(
        collection=[
            (1000, "Alice", 110.1),
            (4000, "Bob", 30.2),
            (3000, "Alice", 20.0),
            (2000, "Bob", 53.1),
            (5000, "Alice", 13.1),
            (3000, "Bob", 3.1),
            (7000, "Bob", 16.1),
            (10000, "Alice", 20.1),
        ],
        type_info=Types.TUPLE([Types.LONG(), Types.STRING(), Types.FLOAT()]),
    )
    ds = ds.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(2)).with_timestamp_assigner(
            MyTimestampAssigner()
        )
    )
    # apply the process function onto a keyed stream
    ds.key_by(lambda value: value[1]).process(Sum()).map(lambda r: (r[0], round(r[1], 1), r[2])).print()
    env.execute("event time timer demo")


if __name__ == "__main__":
    event_timer_timer_demo()
