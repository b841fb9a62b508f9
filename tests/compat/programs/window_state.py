"""State of a window function: global for the key, and of one window only.

Modelled on: building-pyflink-apps, s20_manage_state; Apache Flink, Windows ("Using per-window state").

Prints:
    ada@x 55 2 1
    bob@x 10 1 1
    ada@x 125 3 1
"""

from collections.abc import Iterable

from headrace.pyflink.common import Row, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.functions import ProcessWindowFunction, RuntimeContext
from headrace.pyflink.datastream.state import ValueStateDescriptor
from headrace.pyflink.datastream.window import Time, TumblingEventTimeWindows

STATS = Types.ROW_NAMED(["email", "duration", "flights"], [Types.STRING(), Types.INT(), Types.INT()])


class ProcessUserStatisticsFunction(ProcessWindowFunction):
    def __init__(self):
        self.state_descriptor = None

    def open(self, context: RuntimeContext):
        self.state_descriptor = ValueStateDescriptor("User Statistics", Types.PICKLED_BYTE_ARRAY())
        self.fired = ValueStateDescriptor("fired", Types.INT())

    def process(self, key: str, context: "ProcessWindowFunction.Context", elements: Iterable[Row]) -> Iterable:
        state = context.global_state().get_state(self.state_descriptor)
        fired = context.window_state().get_state(self.fired)
        fired.update((fired.value() or 0) + 1)
        accumulated = state.value()
        for stats in elements:
            if accumulated is None:
                accumulated = stats
            else:
                accumulated = Row(
                    email=key,
                    duration=accumulated["duration"] + stats["duration"],
                    flights=accumulated["flights"] + stats["flights"],
                )
        state.update(accumulated)
        yield f"{accumulated['email']} {accumulated['duration']} {accumulated['flights']} {fired.value()}"

    def clear(self, context: "ProcessWindowFunction.Context"):
        context.window_state().get_state(self.fired).clear()


class DurationAsTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value["duration"] * 1000


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection(
    [Row("ada@x", 5, 1), Row("bob@x", 10, 1), Row("ada@x", 50, 1), Row("ada@x", 70, 1)], STATS
).assign_timestamps_and_watermarks(
    WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(DurationAsTime())
).key_by(lambda s: s["email"]).window(TumblingEventTimeWindows.of(Time.minutes(1))).process(
    ProcessUserStatisticsFunction()
).print()
env.execute("user_statistics")
