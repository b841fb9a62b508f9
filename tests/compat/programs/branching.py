"""Union, connect, splitting by filters, and side outputs; several jobs of one environment.

Modelled on: building-pyflink-apps, s15_branching.

Prints, in any order:
    union> 1
    union> 2
    union> 3
    union> 4
    co process> 2
    co process> 9
    co process> 4
    co process> 12
    co map> (2, 'data streaming')
    co map> (2, 'pyflink')
    co flat map> ('hello', 5)
    co flat map> ('flink', 5)
    co flat map> ('TABLE', 5)
    co flat map> ('API', 3)
    co flat map> ('streaming', 9)
    co flat map> ('SQL', 3)
    odd> 1
    odd> 3
    odd> 5
    both> 1
    both> 3
    both> 5
    both> 4
    both> 8
    0
    1
    2
    sideoutput-0
    sideoutput-1
    sideoutput-2
"""

from headrace.pyflink.common import Row, Types
from headrace.pyflink.datastream import OutputTag, StreamExecutionEnvironment
from headrace.pyflink.datastream.functions import CoFlatMapFunction, CoMapFunction, CoProcessFunction, ProcessFunction

if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)

    ds1 = env.from_collection(collection=[1, 2])
    ds2 = env.from_collection(collection=[3, 4])
    ds1.union(ds2).print("union")
    env.execute()

    class MyCoProcessFunction(CoProcessFunction):
        def process_element1(self, value, ctx: "CoProcessFunction.Context"):
            return Row(value * 2)

        def process_element2(self, value, ctx: "CoProcessFunction.Context"):
            return Row(value * 3)

    ds1 = env.from_collection(collection=[1, 2])
    ds2 = env.from_collection(collection=[3, 4])
    ds1.connect(ds2).process(MyCoProcessFunction()).print("co process")
    env.execute()

    class MyCoMapFunction(CoMapFunction):
        def map1(self, value):
            return value[0] + 1, value[1]

        def map2(self, value):
            return value[0], value[1] + "flink"

    ds1 = env.from_collection(collection=[(1, "data streaming")])
    ds2 = env.from_collection(collection=[(2, "py")])
    ds1.connect(ds2).map(MyCoMapFunction()).print("co map")
    env.execute()

    class MyCoFlatMapFunction(CoFlatMapFunction):
        def flat_map1(self, value):
            for sp in value.split(" "):
                yield sp, len(sp)

        def flat_map2(self, value):
            for sp in value.split(" "):
                yield sp.upper(), len(sp)

    ds1 = env.from_collection(collection=["hello flink", "streaming"])
    ds2 = env.from_collection(collection=["table api", "sql"])
    ds1.connect(ds2).flat_map(MyCoFlatMapFunction()).print("co flat map")
    env.execute()

    ds = env.from_collection(collection=range(6))
    filter1 = ds.filter(lambda e: e > 0 and e % 2 == 0)
    filter2 = ds.filter(lambda e: e % 2 != 0)
    doubled = filter1.map(lambda e: e * 2)
    filter2.print("odd")
    doubled.union(filter2).print("both")
    env.execute()

    output_tag = OutputTag("side-output", Types.STRING())

    class MyProcessFunction(ProcessFunction):
        def process_element(self, value, ctx: "ProcessFunction.Context"):
            yield value
            yield output_tag, "sideoutput-" + str(value)

    ds = env.from_collection(collection=range(3))
    main_data_stream = ds.process(MyProcessFunction(), Types.INT())
    side_output_stream = main_data_stream.get_side_output(output_tag)
    main_data_stream.print()
    env.execute()
    side_output_stream.print()
    env.execute()
