"""Map state: how often each value of a sensor occurred, with every method of a map state.

Modelled on: pyflink-basic-introduction, state/keyed_map_state.

Prints:
    s1: [(5, 1)] 1 True False
    s1: [(5, 2)] 1 True False
    s2: [(5, 1)] 1 True False
    s1: [(5, 2), (6, 1)] 2 True False
    s1: [(5, 2), (6, 1), (7, 1)] 3 True False
    [0, 1] False
    True
    s1: [(7, 1)] 1 True False
"""

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import MapStateDescriptor


class Counts(KeyedProcessFunction):
    def __init__(self):
        self.counts = None

    def open(self, runtime_context: RuntimeContext):
        self.counts = runtime_context.get_map_state(
            MapStateDescriptor(name="vc_count_map_state", key_type_info=Types.INT(), value_type_info=Types.INT())
        )

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        vc = value[1]
        if vc in self.counts.keys():
            self.counts[vc] = self.counts.get(vc) + 1
        else:
            self.counts[vc] = 1
        items = [(k, v) for k, v in self.counts.items()]
        yield f"{value[0]}: {items} {len(list(self.counts))} {vc in self.counts} {self.counts.contains(99)}"
        if len(items) == 3:
            self.counts.remove(vc)
            del self.counts[items[0][0]]
            self.counts.put_all({0: 0}.items())
            yield f"{sorted(self.counts.values())} {self.counts.is_empty()}"
            self.counts.clear()
            yield f"{self.counts.is_empty()}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([("s1", 5), ("s1", 5), ("s2", 5), ("s1", 6), ("s1", 7), ("s1", 7)]).key_by(
    lambda sensor: sensor[0]
).process(Counts()).print()
env.execute("KeyedMapState")
