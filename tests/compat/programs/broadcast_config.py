"""A stream without keys reads a broadcast configuration; records wait until it is there.

Modelled on: Apache Flink, pyflink's BroadcastProcessFunction docs.

Prints:
    over> 5
    over> 8
    config> limit=4
"""

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import BroadcastProcessFunction, OutputTag, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import MapStateDescriptor

map_state_desc = MapStateDescriptor("config", Types.STRING(), Types.INT())
tag = OutputTag("changes", Types.STRING())


class Threshold(BroadcastProcessFunction):
    def __init__(self):
        self.waiting = []

    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext):
        ro_broadcast_state = ctx.get_broadcast_state(map_state_desc)
        if not ro_broadcast_state.contains("limit"):
            self.waiting.append(value)
        elif value > ro_broadcast_state.get("limit"):
            yield value

    def process_broadcast_element(self, value, ctx: BroadcastProcessFunction.Context):
        ctx.get_broadcast_state(map_state_desc).put(value[0], value[1])
        yield tag, f"{value[0]}={value[1]}"
        for waiting in self.waiting:
            if waiting > value[1]:
                yield waiting
        self.waiting = []


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
ds = env.from_collection([1, 5, 8], type_info=Types.INT())
config = env.from_collection([("limit", 4)], type_info=Types.TUPLE([Types.STRING(), Types.INT()]))
result = ds.connect(config.broadcast(map_state_desc)).process(Threshold(), output_type=Types.INT())
result.print("over")
result.get_side_output(tag).print("config")
env.execute()
