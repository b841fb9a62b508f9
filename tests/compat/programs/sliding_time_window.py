"""Sliding windows of event time, with an offset, reduced and aggregated.

Modelled on: Apache Flink, pyflink/examples/datastream/windowing/sliding_time_window; Windows ("Sliding windows").

Prints, in any order:
    average> 2.0
    average> 2.5
    average> 6.5
    average> 10.0
    average> 11.0
    sum> (hi,3)
    sum> (hi,10)
    sum> (hi,9)
    sum> (hi,4)
    sum> (hi,9)
    sum> (hi,20)
    sum> (hi,11)
"""

from headrace.pyflink.common import Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import AggregateFunction, StreamExecutionEnvironment
from headrace.pyflink.datastream.window import SlidingEventTimeWindows, Time


class MyTimestampAssigner(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class AverageAggregate(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
data_stream = env.from_collection(
    [("hi", 1), ("hi", 2), ("hi", 3), ("hi", 4), ("hi", 9), ("hi", 11)],
    type_info=Types.TUPLE([Types.STRING(), Types.INT()]),
)
keyed = data_stream.assign_timestamps_and_watermarks(
    WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(MyTimestampAssigner())
).key_by(lambda x: x[0], key_type=Types.STRING())
keyed.window(SlidingEventTimeWindows.of(Time.milliseconds(5), Time.milliseconds(2))).reduce(
    lambda v1, v2: (v1[0], v1[1] + v2[1])
).print("sum")
keyed.window(SlidingEventTimeWindows.of(Time.milliseconds(6), Time.milliseconds(3), Time.milliseconds(1))).aggregate(
    AverageAggregate(), accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()]), output_type=Types.DOUBLE()
).print("average")
env.execute()
