"""Taxi rides are enriched with fares: two connected keyed streams, state for the one that arrives first.

Modelled on: Apache Flink training, rides and fares; pyflink-basic-introduction, combine/connect_key_by.

Prints, in any order:
    join> (1, 'a1') <=> (1, 'aa1', 1)
    join> (1, 'a2') <=> (1, 'aa1', 1)
    join> (2, 'b') <=> (2, 'bb', 1)
    ride> +I[1,ada,8.0]
    ride> +I[2,bob,12.5]
"""

from headrace.pyflink.common import Row, Types
from headrace.pyflink.datastream import CoFlatMapFunction, CoProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ValueStateDescriptor


class Enrichment(CoFlatMapFunction):
    def open(self, runtime_context: RuntimeContext):
        ride = Types.ROW_NAMED(["ride_id", "driver"], [Types.LONG(), Types.STRING()])
        fare = Types.ROW_NAMED(["ride_id", "total"], [Types.LONG(), Types.DOUBLE()])
        self.ride_state = runtime_context.get_state(ValueStateDescriptor("saved ride", ride))
        self.fare_state = runtime_context.get_state(ValueStateDescriptor("saved fare", fare))

    def flat_map1(self, ride):
        fare = self.fare_state.value()
        if fare is not None:
            self.fare_state.clear()
            yield Row(ride.ride_id, ride.driver, fare.total)
        else:
            self.ride_state.update(ride)

    def flat_map2(self, fare):
        ride = self.ride_state.value()
        if ride is not None:
            self.ride_state.clear()
            yield Row(ride.ride_id, ride.driver, fare.total)
        else:
            self.fare_state.update(fare)


class CrossJoin(CoProcessFunction):
    def __init__(self):
        self.left, self.right = {}, {}

    def process_element1(self, value, ctx: "CoProcessFunction.Context"):
        self.left.setdefault(value[0], []).append(value)
        for other in self.right.get(value[0], []):
            yield f"{value} <=> {other}"

    def process_element2(self, value, ctx: "CoProcessFunction.Context"):
        self.right.setdefault(value[0], []).append(value)
        for other in self.left.get(value[0], []):
            yield f"{other} <=> {value}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
RIDE = Types.ROW_NAMED(["ride_id", "driver"], [Types.LONG(), Types.STRING()])
FARE = Types.ROW_NAMED(["ride_id", "total"], [Types.LONG(), Types.DOUBLE()])
rides = env.from_collection([Row(1, "ada"), Row(2, "bob"), Row(3, "eve")], type_info=RIDE)
fares = env.from_collection([Row(2, 12.5), Row(1, 8.0)], type_info=FARE)
rides.key_by(lambda r: r.ride_id).connect(fares.key_by(lambda f: f.ride_id)).flat_map(
    Enrichment(), output_type=Types.ROW([Types.LONG(), Types.STRING(), Types.DOUBLE()])
).print("ride")

stream_1 = env.from_collection([(1, "a1"), (1, "a2"), (2, "b")])
stream_2 = env.from_collection([(1, "aa1", 1), (2, "bb", 1), (3, "cc", 1)])
stream_1.connect(stream_2).key_by(lambda s1: s1[0], lambda s2: s2[0]).process(CrossJoin()).print("join")
env.execute()
