"""Orders that are not paid within 15 minutes go to a side output; timers are deleted when the payment arrives.

Modelled on: PyFlink-UserBehaviorAnalysis, OrderTimeoutDetect/OrderPayTimeoutWithoutCEP.

Prints:
    paid> (1,paid)
    timeout> (3,paid but not created)
    timeout> (2,timeout)
    timeout> (4,timeout)
    timeout> (5,timeout)
"""

from headrace.pyflink.common import Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import KeyedProcessFunction, OutputTag, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ValueStateDescriptor

timeout_tag = OutputTag("timeout", Types.TUPLE([Types.INT(), Types.STRING()]))


class OrderTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp: int) -> int:
        return value[2] * 1000


class OrderPay(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.created = runtime_context.get_state(ValueStateDescriptor("is-created", Types.BOOLEAN()))
        self.paid = runtime_context.get_state(ValueStateDescriptor("is-paid", Types.BOOLEAN()))
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer-ts", Types.LONG()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        if value[1] == "create":
            if self.paid.value():
                yield value[0], "paid"
                ctx.timer_service().delete_event_time_timer(self.timer.value())
                self.clear()
            else:
                ts = value[2] * 1000 + 15 * 60 * 1000
                ctx.timer_service().register_event_time_timer(ts)
                self.timer.update(ts)
                self.created.update(True)
        elif value[1] == "pay":
            if self.created.value():
                if value[2] * 1000 < self.timer.value():
                    yield value[0], "paid"
                else:
                    yield timeout_tag, (value[0], "paid too late")
                ctx.timer_service().delete_event_time_timer(self.timer.value())
                self.clear()
            else:
                ctx.timer_service().register_event_time_timer(value[2] * 1000)
                self.timer.update(value[2] * 1000)
                self.paid.update(True)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        if self.paid.value():
            yield timeout_tag, (ctx.get_current_key(), "paid but not created")
        else:
            yield timeout_tag, (ctx.get_current_key(), "timeout")
        self.clear()

    def clear(self):
        self.created.clear()
        self.paid.clear()
        self.timer.clear()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
orders = env.from_collection(
    [(1, "create", 0), (2, "create", 10), (1, "pay", 60), (3, "pay", 100), (4, "create", 5000), (5, "create", 5001)],
    type_info=Types.TUPLE([Types.INT(), Types.STRING(), Types.LONG()]),
)
result = (
    orders.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(OrderTime())
    )
    .key_by(lambda x: x[0])
    .process(OrderPay(), output_type=Types.TUPLE([Types.INT(), Types.STRING()]))
)
result.print("paid")
result.get_side_output(timeout_tag).print("timeout")
env.execute("order timeout")
