"""A function as a class, as a lambda and as a Python function.

Modelled on: Apache Flink, Python DataStream API, operators overview ("Functions").

Prints:
    30
    30
    50
"""

from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.datastream import FilterFunction, FlatMapFunction, MapFunction, StreamExecutionEnvironment


class MyMapFunction(MapFunction):
    def map(self, value):
        return value + 1


class Repeat(FlatMapFunction):
    def flat_map(self, value):
        for _ in range(value % 3):
            yield value


class Even(FilterFunction):
    def filter(self, value):
        return value % 2 == 0


def my_map_func(value):
    return value * 10


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
data_stream = env.from_collection([1, 2, 3, 4, 5], type_info=Types.INT())
data_stream.map(MyMapFunction(), output_type=Types.INT()).flat_map(Repeat(), output_type=Types.INT()).filter(
    Even()
).map(lambda x: x + 1, output_type=Types.INT()).map(my_map_func, output_type=Types.INT()).print()
env.execute()
