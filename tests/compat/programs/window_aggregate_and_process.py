"""An incremental aggregate with a window function that adds the window; a reduce with one.

Modelled on: pyflink-basic-introduction, windows/window_aggregate_and_process; Apache Flink, Windows.

Prints, in any order:
    apply> ('s1', 9, [10])
    apply> ('s2', 9, [1])
    apply> ('s1', 19, [7])
    reduce> s1 [0,10) ('s1', 5, 6)
    reduce> s2 [0,10) ('s2', 6, 1)
    reduce> s1 [10,20) ('s1', 12, 7)
    plain> 10
    plain> 1
    plain> 7
    aggregate> s1 [0,10) 10
    aggregate> s2 [0,10) 1
    aggregate> s1 [10,20) 7
"""

from collections.abc import Iterable

from headrace.pyflink.common import Time, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import (
    AggregateFunction,
    ProcessWindowFunction,
    ReduceFunction,
    StreamExecutionEnvironment,
    WindowFunction,
)
from headrace.pyflink.datastream.functions import IN, KEY, OUT, W
from headrace.pyflink.datastream.window import TumblingEventTimeWindows


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[1]


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value[2]

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class Highest(ReduceFunction):
    def reduce(self, value1, value2):
        return value1 if value1[2] >= value2[2] else value2


class WithWindow(ProcessWindowFunction):
    def process(self, key: str, context: "ProcessWindowFunction.Context", elements: Iterable[int]) -> Iterable[str]:
        yield f"{key} [{context.window().start},{context.window().end}) {next(iter(elements))}"


class OfKey(WindowFunction):
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        return [(key, window.max_timestamp(), list(inputs))]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
window = (
    env.from_collection([("s1", 1, 4), ("s1", 5, 6), ("s2", 6, 1), ("s1", 12, 7)])
    .assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    )
    .key_by(lambda sensor: sensor[0])
    .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
)
window.aggregate(Sum(), WithWindow(), accumulator_type=Types.INT(), output_type=Types.STRING()).print("aggregate")
window.aggregate(Sum(), window_function=OfKey()).print("apply")
window.reduce(Highest(), WithWindow(), output_type=Types.STRING()).print("reduce")
window.aggregate(Sum()).print("plain")
env.execute()
