"""The most frequent levels of a sliding window over all records.

Modelled on: pyflink-basic-introduction, process/process_all_window_topN.

Prints, in any order:
    sum> 37
    sum> 1
    top> (5000, [(5, 2), (6, 1)])
    top> (10000, [(7, 3), (5, 2)])
    top> (15000, [(7, 3), (1, 1)])
    top> (20000, [(1, 1)])
"""

from collections.abc import Iterable
from operator import itemgetter

from headrace.pyflink.common import Duration, Time, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.functions import AllWindowFunction, ProcessAllWindowFunction
from headrace.pyflink.datastream.window import SlidingEventTimeWindows, TimeWindow, TumblingEventTimeWindows


class SensorTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp: int) -> int:
        return value[2] * 1000


class TopN(ProcessAllWindowFunction):
    def process(self, context: "ProcessAllWindowFunction.Context", elements: Iterable[tuple]) -> Iterable[list]:
        counts = {}
        for element in elements:
            counts[element[1]] = counts.get(element[1], 0) + 1
        items = sorted(counts.items(), key=itemgetter(1, 0), reverse=True)
        yield context.window().end, items[0:2]


class MyAllWindowFunction(AllWindowFunction[tuple, int, TimeWindow]):
    def apply(self, window: TimeWindow, inputs: Iterable[tuple]) -> Iterable[int]:
        yield sum(i[1] for i in inputs)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
sensors = env.from_collection(
    [("s1", 5, 1), ("s2", 5, 2), ("s1", 6, 3), ("s3", 7, 6), ("s1", 7, 7), ("s1", 7, 8), ("s1", 1, 14)]
).assign_timestamps_and_watermarks(
    WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(3)).with_timestamp_assigner(SensorTime())
)
sensors.window_all(SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(5))).process(TopN()).print("top")
sensors.window_all(TumblingEventTimeWindows.of(Time.seconds(10))).apply(MyAllWindowFunction()).print("sum")
env.execute("ProcessAllWindowTopN")
