"""Orders joined with shipments up to 4 seconds later, by hand with map state and timers.

Modelled on: Apache Flink, Joining ("Interval join"), which the Python API does not have.

Prints:
    ('k', 'o1', 's1')
    ('k', 'o2', 's2')
"""

from headrace.pyflink.common import Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import KeyedCoProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import MapStateDescriptor

UPPER = 4000


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[1]


class IntervalJoin(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.orders = runtime_context.get_map_state(
            MapStateDescriptor("orders", Types.LONG(), Types.LIST(Types.STRING()))
        )
        self.shipments = runtime_context.get_map_state(
            MapStateDescriptor("shipments", Types.LONG(), Types.LIST(Types.STRING()))
        )

    def process_element1(self, value, ctx: "KeyedCoProcessFunction.Context"):
        ts = ctx.timestamp()
        self.orders.put(ts, [*(self.orders.get(ts) or []), value[2]])
        for at, shipped in self.shipments.items():
            if ts <= at <= ts + UPPER:
                for one in shipped:
                    yield value[0], value[2], one
        ctx.timer_service().register_event_time_timer(ts + UPPER)

    def process_element2(self, value, ctx: "KeyedCoProcessFunction.Context"):
        ts = ctx.timestamp()
        self.shipments.put(ts, [*(self.shipments.get(ts) or []), value[2]])
        for at, ordered in self.orders.items():
            if at <= ts <= at + UPPER:
                for one in ordered:
                    yield value[0], one, value[2]
        ctx.timer_service().register_event_time_timer(ts)

    def on_timer(self, timestamp: int, ctx: "KeyedCoProcessFunction.OnTimerContext"):
        self.shipments.remove(timestamp)
        if self.orders.contains(timestamp - UPPER):
            self.orders.remove(timestamp - UPPER)
        return []


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
orders = env.from_collection([("k", 1000, "o1"), ("k", 3000, "o2"), ("j", 3000, "o3")])
shipments = env.from_collection([("k", 2000, "s1"), ("k", 6000, "s2"), ("j", 9000, "s3")])
orders.assign_timestamps_and_watermarks(strategy).connect(shipments.assign_timestamps_and_watermarks(strategy)).key_by(
    lambda x: x[0], lambda x: x[0]
).process(IntervalJoin()).print()
env.execute()
