"""Rules are broadcast; items of one color are matched against them when time has passed.

Modelled on: Apache Flink, The broadcast state pattern.

Prints:
    MATCH: red r1 at 1000
"""

from dataclasses import dataclass

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.functions import KeyedBroadcastProcessFunction
from headrace.pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor


@dataclass
class Rule:
    name: str
    first: str
    second: str


@dataclass
class Item:
    color: str
    shape: str

    def get_shape(self):
        return self.shape


# a map descriptor to store the name of the rule (string) and the rule (Python object) itself.
rule_state_descriptor = MapStateDescriptor("RulesBroadcastState", Types.STRING(), Types.PICKLED_BYTE_ARRAY())


class MyKeyedBroadcastProcessFunction(KeyedBroadcastProcessFunction):
    def __init__(self):
        self._item_state_desc = ListStateDescriptor("item", Types.PICKLED_BYTE_ARRAY())
        self._items = None

    def open(self, ctx: RuntimeContext):
        self._items = ctx.get_list_state(self._item_state_desc)

    def process_broadcast_element(self, value: Rule, ctx: KeyedBroadcastProcessFunction.Context):
        ctx.get_broadcast_state(rule_state_descriptor).put(value.name, value)

    def process_element(self, value: Item, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext):
        self._items.add(value)
        ctx.timer_service().register_event_time_timer(1000)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext):
        shapes = [item.get_shape() for item in self._items.get()]
        for rule_name, rule in ctx.get_broadcast_state(rule_state_descriptor).items():
            if rule.first in shapes and rule.second in shapes[shapes.index(rule.first) :]:
                yield f"MATCH: {ctx.get_current_key()} {rule_name} at {timestamp}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
item_stream = env.from_collection([Item("red", "square"), Item("blue", "circle"), Item("red", "triangle")])
rule_stream = env.from_collection([Rule("r1", "square", "triangle"), Rule("r2", "circle", "square")])

# key the items by color
color_partitioned_stream = item_stream.key_by(lambda item: item.color, key_type=Types.STRING())
# broadcast the rules and create the broadcast state
rule_broadcast_stream = rule_stream.broadcast(rule_state_descriptor)
color_partitioned_stream.connect(rule_broadcast_stream).process(
    MyKeyedBroadcastProcessFunction(), Types.STRING()
).print()
env.execute()
