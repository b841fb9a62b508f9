"""Unique visitors per page and minute: an accumulator that is a set, a session of web clicks, and a trigger by count.

Modelled on: PyFlink-UserBehaviorAnalysis, NetworkFlowAnalysis/UvWithBloom; Flink training, web sessions.

Prints, in any order:
    visitors> 2
    visitors> 1
    visitors> 1
    at two> 2
    session> bob: 1 clicks, home to home, 30 s
    session> ada: 2 clicks, home to cart, 49 s
    session> ada: 1 clicks, home to home, 30 s
    session> bob: 1 clicks, pay to pay, 30 s
"""

from headrace.pyflink.common import Time, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import AggregateFunction, ProcessWindowFunction, StreamExecutionEnvironment
from headrace.pyflink.datastream.window import CountTrigger, EventTimeSessionWindows, TumblingEventTimeWindows


class ClickTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value["ts"] * 1000


class Visitors(AggregateFunction):
    def create_accumulator(self):
        return set()

    def add(self, value, accumulator):
        accumulator.add(value["user"])
        return accumulator

    def get_result(self, accumulator):
        return len(accumulator)

    def merge(self, acc_a, acc_b):
        return acc_a | acc_b


class Session(ProcessWindowFunction):
    def process(self, key, context, elements):
        pages = [click["page"] for click in elements]
        window = context.window()
        yield f"{key}: {len(pages)} clicks, {pages[0]} to {pages[-1]}, {(window.end - window.start) // 1000} s"


CLICKS = [("ada", "home", 1), ("bob", "home", 5), ("ada", "cart", 20), ("ada", "home", 58), ("bob", "pay", 90)]
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
clicks = env.from_collection(
    [{"user": u, "page": p, "ts": ts} for u, p, ts in CLICKS]
).assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(ClickTime()))
clicks.key_by(lambda c: c["page"]).window(TumblingEventTimeWindows.of(Time.minutes(1))).aggregate(
    Visitors(), accumulator_type=Types.PICKLED_BYTE_ARRAY(), output_type=Types.INT()
).print("visitors")
clicks.key_by(lambda c: c["user"]).window(EventTimeSessionWindows.with_gap(Time.seconds(30))).process(Session()).print(
    "session"
)
clicks.key_by(lambda c: c["page"]).window(TumblingEventTimeWindows.of(Time.minutes(1))).trigger(
    CountTrigger.of(2)
).aggregate(Visitors()).print("at two")
env.execute()
