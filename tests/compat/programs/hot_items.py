"""The hottest items of each window: a window aggregate, then list state and a timer at the end of the window.

Modelled on: PyFlink-UserBehaviorAnalysis, HotItemsAnalysis/hot_items_aggregate.

Prints:
    hot> until 10000: NO1: item 7 2 views, NO2: item 8 1 views
    hot> until 20000: NO1: item 8 3 views, NO2: item 7 2 views
    hot> until 30000: NO1: item 8 2 views, NO2: item 9 2 views
    hot> until 40000: NO1: item 9 1 views
"""

from collections.abc import Iterable
from typing import Any

from headrace.pyflink.common import Duration, Time, Types
from headrace.pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.functions import (
    AggregateFunction,
    KeyedProcessFunction,
    RuntimeContext,
    WindowFunction,
)
from headrace.pyflink.datastream.state import ListStateDescriptor
from headrace.pyflink.datastream.window import SlidingEventTimeWindows, TimeWindow

BEHAVIOR = Types.ROW_NAMED(
    ["user_id", "item_id", "category_id", "behavior", "timestamp"],
    [Types.INT(), Types.INT(), Types.INT(), Types.STRING(), Types.INT()],
)
COUNTED = Types.TUPLE([Types.INT(), Types.LONG(), Types.LONG()])


class RowTimestampAssigner(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[4] * 1000


class CountAgg(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int):
        return acc_a + acc_b


class ItemViewWindowResult(WindowFunction[int, tuple, int, TimeWindow]):
    def apply(self, key: int, window: TimeWindow, inputs: Iterable[int]) -> Iterable[tuple]:
        return [(key, window.end, inputs.__iter__().__next__())]


class TopNHotItems(KeyedProcessFunction):
    def __init__(self, top_size):
        self.top_size = top_size
        self.item_count_list_state = None

    def open(self, runtime_context: RuntimeContext):
        self.item_count_list_state = runtime_context.get_list_state(
            ListStateDescriptor("items", Types.TUPLE([Types.INT(), Types.LONG(), Types.LONG()]))
        )

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.item_count_list_state.add(value)
        ctx.timer_service().register_event_time_timer(value[1] + 1)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        counts = [item for item in iter(self.item_count_list_state.get())]
        self.item_count_list_state.clear()
        counts.sort(key=lambda x: (-x[2], x[0]))
        lines = [f"NO{i + 1}: item {c[0]} {c[2]} views" for i, c in enumerate(counts[: self.top_size])]
        yield f"until {timestamp - 1}: " + ", ".join(lines)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
CLICKS = [(1, 7, 3), (2, 7, 5), (1, 8, 8), (3, 8, 11), (3, 9, 12), (2, 8, 13), (1, 9, 20)]
clicks = env.from_collection(
    [*[(user, item, 1, "pv", second) for user, item, second in CLICKS], (1, 7, 1, "buy", 21)], type_info=BEHAVIOR
)
agg_stream = (
    clicks.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
            RowTimestampAssigner()
        )
    )
    .filter(lambda x: x["behavior"] == "pv")
    .key_by(lambda x: x["item_id"])
    .window(SlidingEventTimeWindows.of(Time.seconds(20), Time.seconds(10)))
    .aggregate(CountAgg(), ItemViewWindowResult(), accumulator_type=Types.LONG(), output_type=COUNTED)
)
agg_stream.key_by(lambda x: x[1]).process(TopNHotItems(2)).print("hot")
env.execute("hot items")
