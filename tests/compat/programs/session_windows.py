"""Session windows with a fixed gap and with a gap of each record.

Modelled on: Apache Flink, pyflink/examples/datastream/windowing/session_with_gap_window and session_with_dynamic_gap_window.

Prints, in any order:
    dynamic> (hi,1,30,7)
    gap 5> (hi,1,14,6)
    gap 5> (hi,15,20,1)
    gap 3> (hi,1,7,4)
    gap 3> (hi,8,12,2)
    gap 3> (hi,15,18,1)
"""

from collections.abc import Iterable

from headrace.pyflink.common import Time, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from headrace.pyflink.datastream.window import EventTimeSessionWindows, SessionWindowTimeGapExtractor, TimeWindow


class MyTimestampAssigner(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class MySessionWindowTimeGapExtractor(SessionWindowTimeGapExtractor):
    def extract(self, element: tuple) -> int:
        return element[1]


class CountWindowProcessFunction(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(self, key, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]):
        return [(key, context.window().start, context.window().end, len([e for e in elements]))]


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    data_stream = env.from_collection(
        [("hi", 1), ("hi", 2), ("hi", 3), ("hi", 4), ("hi", 8), ("hi", 9), ("hi", 15)],
        type_info=Types.TUPLE([Types.STRING(), Types.INT()]),
    )
    keyed = data_stream.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(MyTimestampAssigner())
    ).key_by(lambda x: x[0], key_type=Types.STRING())
    result_type = Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()])
    keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).process(
        CountWindowProcessFunction(), result_type
    ).print("gap 5")
    keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(3))).process(
        CountWindowProcessFunction(), result_type
    ).print("gap 3")
    keyed.window(EventTimeSessionWindows.with_dynamic_gap(MySessionWindowTimeGapExtractor())).process(
        CountWindowProcessFunction(), result_type
    ).print("dynamic")
    env.execute()
