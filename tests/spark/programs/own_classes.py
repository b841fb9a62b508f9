"""Records, keys and state of classes of the program's own script, which no worker can import.

    python own_classes.py

Prints the records as JSON.
"""

import json
from dataclasses import dataclass

from headrace.config import Configuration, set_process_defaults
from headrace.pyflink.common import Types
from headrace.pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ValueStateDescriptor


@dataclass(frozen=True)
class Color:
    name: str


@dataclass
class Item:
    color: Color
    size: int

    def __add__(self, other):
        return Item(self.color, self.size + other.size)


class Largest(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.largest = runtime_context.get_state(ValueStateDescriptor("largest", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value, ctx):
        before = self.largest.value()
        if before is None or before.size < value.size:
            assert before is None or isinstance(before, Item)
            self.largest.update(value)
        yield self.largest.value()


if __name__ == "__main__":
    set_process_defaults(Configuration({"headrace.spark.master": "local[16]", "headrace.rest.enabled": False}))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    red, blue = Color("red"), Color("blue")
    items = env.from_collection([Item(red, 3), Item(blue, 1), Item(red, 2), Item(blue, 4)])
    keyed = items.rebalance().filter(lambda item: item.size > 0).key_by(lambda item: item.color)
    sums = keyed.reduce(lambda left, right: left + right).map(lambda item: ("sum", item)).set_parallelism(1)
    largest = keyed.process(Largest()).map(lambda item: ("largest", item)).set_parallelism(1)
    found = list(sums.union(largest).execute_and_collect())
    assert all(type(item) is Item for _, item in found)
    print(json.dumps(sorted([what, item.color.name, item.size] for what, item in found)))
