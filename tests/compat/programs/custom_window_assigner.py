"""A window assigner, a trigger and a window of the program itself.

Modelled on: PyFlink-UserBehaviorAnalysis, base_window (SlidingEventTimeWindows written anew).

Prints, in any order:
    ('a', -2, [1])
    ('a', 0, [1, 3])
    ('b', 2, [4])
    ('a', 2, [3])
    ('b', 4, [4])
    ('a', 4, [7])
    ('a', 6, [7])
"""

from collections.abc import Collection

from headrace.pyflink.common import Time, Types, TypeSerializer, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment, WindowAssigner
from headrace.pyflink.datastream.window import T, TimeWindow, TimeWindowSerializer, Trigger, TriggerResult

MIN_LONG_VALUE = -0x8000000000000000


class MyEventTimeTrigger(Trigger[T, TimeWindow]):
    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: "Trigger.TriggerContext"):
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: "Trigger.TriggerContext"):
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: "Trigger.TriggerContext"):
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, ctx: "Trigger.OnMergeContext") -> None:
        ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: "Trigger.TriggerContext") -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class MySlidingEventTimeWindows(WindowAssigner[T, TimeWindow]):
    def __init__(self, size: int, slide: int, offset: int):
        self._size = size
        self._slide = slide
        self._offset = offset

    @staticmethod
    def of(size: Time, slide: Time) -> "MySlidingEventTimeWindows":
        return MySlidingEventTimeWindows(size.to_milliseconds(), slide.to_milliseconds(), 0)

    def assign_windows(
        self, element: T, timestamp: int, context: "WindowAssigner.WindowAssignerContext"
    ) -> Collection[TimeWindow]:
        if timestamp <= MIN_LONG_VALUE:
            raise Exception("Record has no timestamp")
        last_start = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._slide)
        return [
            TimeWindow(start, start + self._size) for start in range(last_start, timestamp - self._size, -self._slide)
        ]

    def get_default_trigger(self, env) -> Trigger[T, TimeWindow]:
        return MyEventTimeTrigger()

    def get_window_serializer(self) -> TypeSerializer[TimeWindow]:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"MySlidingEventTimeWindows({self._size}, {self._slide}, {self._offset})"


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[1]


class Names(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, sorted(e[1] for e in elements)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([("a", 1), ("a", 3), ("b", 4), ("a", 7)]).assign_timestamps_and_watermarks(
    WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
).key_by(lambda x: x[0], Types.STRING()).window(
    MySlidingEventTimeWindows.of(Time.milliseconds(4), Time.milliseconds(2))
).process(Names()).print()
env.execute()
