"""Reducing state for a sum, aggregating state for an average.

Modelled on: pyflink-basic-introduction, state/keyed_reducing_state and state/keyed_aggregating_state.

Prints:
    s1: sum=1 average=1.0
    s1: sum=5 average=2.5
    s2: sum=7 average=7.0
    s1: sum=9 average=3.0
"""

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from headrace.pyflink.datastream.state import AggregatingStateDescriptor, ReducingStateDescriptor


class Sum(ReduceFunction):
    def reduce(self, value1, value2):
        return value1 + value2


class Average(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return float(accumulator[0] / accumulator[1])

    def merge(self, acc_a, acc_b):
        return None


class SumAndAverage(KeyedProcessFunction):
    def __init__(self):
        self.vc_sum = None
        self.vc_avg = None

    def open(self, runtime_context: RuntimeContext):
        self.vc_sum = runtime_context.get_reducing_state(
            ReducingStateDescriptor(name="vc_sum", reduce_function=Sum(), type_info=Types.INT())
        )
        self.vc_avg = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor(
                name="vc_avg", agg_function=Average(), state_type_info=Types.TUPLE([Types.INT(), Types.INT()])
            )
        )

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.vc_sum.add(value[1])
        self.vc_avg.add(value[1])
        yield f"{value[0]}: sum={self.vc_sum.get()} average={self.vc_avg.get()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([("s1", 1), ("s1", 4), ("s2", 7), ("s1", 4)]).key_by(lambda sensor: sensor[0]).process(
    SumAndAverage()
).print()
env.execute()
