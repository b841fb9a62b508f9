"""List state: the three highest values of each sensor.

Modelled on: pyflink-basic-introduction, state/keyed_list_state.

Prints:
    s1: [5]
    s1: [9, 5]
    s2: [1]
    s1: [9, 7, 5]
    s1: [9, 8, 7]
    s1: [9, 8, 7]
"""

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ListStateDescriptor


class TopThree(KeyedProcessFunction):
    def __init__(self):
        self.vc_list_state = None

    def open(self, runtime_context: RuntimeContext):
        self.vc_list_state = runtime_context.get_list_state(ListStateDescriptor("vc_list_state", Types.INT()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.vc_list_state.add(value[1])
        vc_list = [vc for vc in self.vc_list_state.get()]
        vc_list.sort(reverse=True)
        if len(vc_list) > 3:
            vc_list.pop(3)
        yield f"{value[0]}: {vc_list}"
        self.vc_list_state.update(vc_list)
        self.vc_list_state.add_all([])


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([("s1", 5), ("s1", 9), ("s2", 1), ("s1", 7), ("s1", 8), ("s1", 1)]).key_by(
    lambda sensor: sensor[0]
).process(TopThree()).print()
env.execute("KeyedListState")
