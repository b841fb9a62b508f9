"""Value state: the average of every two values of a key.

Modelled on: Apache Flink, Working with state ("Using keyed state").

Prints:
    (1, 4)
    (1, 5)
"""

from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.datastream import FlatMapFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ValueStateDescriptor


class CountWindowAverage(FlatMapFunction):
    def __init__(self):
        self.sum = None

    def open(self, runtime_context: RuntimeContext):
        descriptor = ValueStateDescriptor(
            "average",  # the state name
            Types.PICKLED_BYTE_ARRAY(),  # type information
        )
        self.sum = runtime_context.get_state(descriptor)

    def flat_map(self, value):
        current_sum = self.sum.value()
        if current_sum is None:
            current_sum = (0, 0)
        current_sum = (current_sum[0] + 1, current_sum[1] + value[1])
        self.sum.update(current_sum)
        if current_sum[0] >= 2:
            self.sum.clear()
            yield value[0], int(current_sum[1] / current_sum[0])


env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]).key_by(lambda row: row[0]).flat_map(
    CountWindowAverage()
).print().set_parallelism(1)
env.execute()
