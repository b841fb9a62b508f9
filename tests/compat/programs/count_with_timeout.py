"""Count per key, emitted when a key was silent for a minute; the state is a row that is changed in place.

Modelled on: Apache Flink, Process function ("Example"), with a collection as the source.

Prints:
    ('b', 1)
    ('a', 3)
    ('c', 1)
"""

import datetime

from headrace.pyflink.common import Row, WatermarkStrategy
from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from headrace.pyflink.datastream.state import ValueStateDescriptor


class CountWithTimeoutFunction(KeyedProcessFunction):
    def __init__(self):
        self.state = None

    def open(self, runtime_context: RuntimeContext):
        self.state = runtime_context.get_state(ValueStateDescriptor("my_state", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        # retrieve the current count
        current = self.state.value()
        if current is None:
            current = Row(value.f1, 0, 0)
        # update the state's count
        current[1] += 1
        # set the state's timestamp to the record's assigned event time timestamp
        current[2] = ctx.timestamp()
        # write the state back
        self.state.update(current)
        # schedule the next timer 60 seconds from the current event time
        ctx.timer_service().register_event_time_timer(current[2] + 60000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        # get the state for the key that scheduled the timer
        result = self.state.value()
        # check if this is an outdated timer or the latest timer
        if timestamp == result[2] + 60000:
            # emit the state on timeout
            yield result[0], result[1]


class MyTimestampAssigner(TimestampAssigner):
    def __init__(self):
        self.epoch = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)

    def extract_timestamp(self, value, record_timestamp) -> int:
        return int((value[0] - self.epoch).total_seconds() * 1000)


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    noon = datetime.datetime(2024, 5, 1, 12)
    seconds = [(0, "a"), (10, "b"), (20, "a"), (200, "a"), (210, "c")]
    stream = env.from_collection(
        [Row(noon + datetime.timedelta(seconds=s), key, "text") for s, key in seconds],
        type_info=Types.ROW([Types.SQL_TIMESTAMP(), Types.STRING(), Types.STRING()]),
    )
    watermarked_stream = stream.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(MyTimestampAssigner())
    )
    watermarked_stream.key_by(lambda value: value[1]).process(CountWithTimeoutFunction()).print()
    env.execute()
