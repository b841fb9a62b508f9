"""Early results of a window by a continuous trigger.

Modelled on: Apache Flink, pyflink/examples/datastream/windowing/tumbling_time_window_with_continuous_trigger.

Prints:
    [('hi', 0, 10, 6), ('hi', 10, 20, 1)]
"""

from collections.abc import Iterable

from headrace.pyflink.common import Time, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from headrace.pyflink.datastream.window import ContinuousEventTimeTrigger, TimeWindow, TumblingEventTimeWindows


class MyTimestampAssigner(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


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
    ds = (
        data_stream.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(MyTimestampAssigner())
        )
        .key_by(lambda x: x[0], key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        .trigger(ContinuousEventTimeTrigger.of(Time.milliseconds(2)))
        .process(CountWindowProcessFunction(), Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()]))
    )
    # How often a window fires depends on when watermarks arrive.
    print(sorted(set(ds.execute_and_collect("continuous"))))
