"""Late records: allowed lateness, and a side output for what is too late.

Modelled on: Apache Flink, Windows ("Allowed lateness"); pyflink-basic-introduction, watermark/watermark_data_late.

Prints:
    s1 [0, 10000) [1000, 9000, 5000]
    s1 [10000, 20000) [13000]
    s1 [30000, 40000) [30000]
"""

from headrace.pyflink.common import Duration, Time, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import OutputTag, ProcessWindowFunction, StreamExecutionEnvironment
from headrace.pyflink.datastream.window import TumblingEventTimeWindows


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[1]


class Collect(ProcessWindowFunction):
    def process(self, key, context: "ProcessWindowFunction.Context", elements):
        yield f"{key} [{context.window().start}, {context.window().end}) {[e[1] for e in elements]}"

    def clear(self, context: "ProcessWindowFunction.Context"):
        pass


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    late_tag = OutputTag("late-data", type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    events = env.from_collection(
        [("s1", 1000), ("s1", 9000), ("s1", 13000), ("s1", 30000), ("s1", 5000)],
        type_info=Types.TUPLE([Types.STRING(), Types.LONG()]),
    )
    process = (
        events.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(3))
            .with_idleness(Duration.of_seconds(10))
            .with_timestamp_assigner(SecondField())
        )
        .key_by(lambda x: x[0])
        .window(TumblingEventTimeWindows.of(Time.seconds(10)))
        .allowed_lateness(Time.seconds(2).to_milliseconds())
        .side_output_late_data(late_tag)
        .process(Collect())
    )
    process.print()
    process.get_side_output(late_tag).print("late")
    env.execute("late")
