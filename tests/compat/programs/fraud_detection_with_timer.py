"""The fraud detector that forgets a small transaction after one minute, by an event-time timer.

Modelled on: Apache Flink, Fraud detection with the DataStream API ("State + time").

Prints:
    alert for 1 at 3000
    alert for 2 at 70001
"""

from headrace.pyflink.common import Duration, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ValueStateDescriptor

ONE_MINUTE = 60 * 1000


class FraudDetector(KeyedProcessFunction):
    def __init__(self):
        self.flag_state = None
        self.timer_state = None

    def open(self, runtime_context: RuntimeContext):
        self.flag_state = runtime_context.get_state(ValueStateDescriptor("flag", Types.BOOLEAN()))
        self.timer_state = runtime_context.get_state(ValueStateDescriptor("timer-state", Types.LONG()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        if self.flag_state.value() is not None:
            if value[2] > 500.0:
                yield f"alert for {value[0]} at {ctx.timestamp()}"
            self.clean_up(ctx)
        if value[2] < 1.0:
            self.flag_state.update(True)
            timer = ctx.timestamp() + ONE_MINUTE
            ctx.timer_service().register_event_time_timer(timer)
            self.timer_state.update(timer)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        yield f"no large transaction of {ctx.get_current_key()} until {timestamp} {ctx.time_domain()}"
        self.timer_state.clear()
        self.flag_state.clear()

    def clean_up(self, ctx):
        timer = self.timer_state.value()
        ctx.timer_service().delete_event_time_timer(timer)
        self.timer_state.clear()
        self.flag_state.clear()


class TransactionTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[1]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection(
    [(1, 1000, 0.5), (1, 3000, 900.0), (2, 5000, 0.1), (3, 70000, 20.0), (2, 70001, 700.0)],
    type_info=Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE()]),
).assign_timestamps_and_watermarks(
    WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1)).with_timestamp_assigner(TransactionTime())
).key_by(lambda t: t[0]).process(FraudDetector()).print()
env.execute()
