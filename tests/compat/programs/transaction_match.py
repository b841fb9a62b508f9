"""Payments and receipts are matched by two connected keyed streams; what has no partner goes to side outputs.

Modelled on: PyFlink-UserBehaviorAnalysis, OrderTimeoutDetect/TxMatch.

Prints, in any order:
    joined> (2, 'wechat')
    joined> (1, 'alipay')
    pay> (3,tx3,12)
    receipt> (tx4,card,13)
"""

from typing import Any

from headrace.pyflink.common import Types
from headrace.pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from headrace.pyflink.datastream import OutputTag, StreamExecutionEnvironment
from headrace.pyflink.datastream.functions import KeyedCoProcessFunction, RuntimeContext
from headrace.pyflink.datastream.state import ValueStateDescriptor

PAY = Types.TUPLE([Types.INT(), Types.STRING(), Types.LONG()])
RECEIPT = Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()])
unmatched_pays = OutputTag("unmatched-pays", Types.TUPLE([Types.INT(), Types.STRING(), Types.LONG()]))
unmatched_receipts = OutputTag("unmatched-receipts", Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()]))


class ThirdField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[2] * 1000


class TxMatchDetect(KeyedCoProcessFunction):
    def __init__(self):
        self.pay_event_state = None
        self.receipt_event_state = None

    def open(self, runtime_context: RuntimeContext):
        pay = Types.TUPLE([Types.INT(), Types.STRING(), Types.LONG()])
        self.pay_event_state = runtime_context.get_state(ValueStateDescriptor("pay", pay))
        receipt = Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()])
        self.receipt_event_state = runtime_context.get_state(ValueStateDescriptor("receipt", receipt))

    def process_element1(self, value, ctx: "KeyedCoProcessFunction.Context"):
        receipt = self.receipt_event_state.value()
        if receipt is not None:
            yield value[0], receipt[1]
            self.receipt_event_state.clear()
        else:
            self.pay_event_state.update(value)
            ctx.timer_service().register_event_time_timer(value[2] * 1000 + 5000)

    def process_element2(self, value, ctx: "KeyedCoProcessFunction.Context"):
        pay = self.pay_event_state.value()
        if pay is not None:
            yield pay[0], value[1]
            self.pay_event_state.clear()
        else:
            self.receipt_event_state.update(value)
            ctx.timer_service().register_event_time_timer(value[2] * 1000 + 3000)

    def on_timer(self, timestamp: int, ctx: "KeyedCoProcessFunction.OnTimerContext"):
        if self.pay_event_state.value() is not None:
            yield unmatched_pays, self.pay_event_state.value()
        if self.receipt_event_state.value() is not None:
            yield unmatched_receipts, self.receipt_event_state.value()
        self.pay_event_state.clear()
        self.receipt_event_state.clear()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(ThirdField())
orders = env.from_collection([(1, "tx1", 10), (2, "tx2", 11), (3, "tx3", 12)], type_info=PAY)
receipts = env.from_collection([("tx2", "wechat", 11), ("tx1", "alipay", 12), ("tx4", "card", 13)], type_info=RECEIPT)
matched = (
    orders.assign_timestamps_and_watermarks(strategy)
    .connect(receipts.assign_timestamps_and_watermarks(strategy))
    .key_by(lambda x: x[1], lambda x: x[0])
    .process(TxMatchDetect())
)
matched.print("joined")
matched.get_side_output(unmatched_pays).print("pay")
matched.get_side_output(unmatched_receipts).print("receipt")
env.execute("tx match join")
