"""Broadcast state: finds pairs of shapes of one colour that match rules, and the rules come as a stream too.

headrace run examples/pattern_matcher.py
"""

import time

from headrace import (
    DataStream,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    SourceFunction,
    StreamExecutionEnvironment,
)

RULES = MapStateDescriptor("RulesBroadcastState", "string", "name string, first string, second string")
ITEMS = [
    ("red", "rectangle"),
    ("blue", "triangle"),
    ("red", "triangle"),
    ("blue", "rectangle"),
    ("red", "rectangle"),
    ("blue", "triangle"),
]


class Items(SourceFunction):
    """The shapes, a moment after the rules: which comes first is not defined between two streams."""

    def __init__(self, delay):
        self.delay = delay

    def run(self, ctx):
        time.sleep(self.delay)
        for item in ITEMS:
            ctx.collect(item)

    def cancel(self):
        pass


class Match(KeyedBroadcastProcessFunction):
    """For each colour and rule the shapes that wait for the second half of their pattern."""

    def open(self, runtime_context):
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("items", "string"))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value.name, value)

    def process_element(self, value, ctx):
        colour, shape = value
        for name, rule in ctx.get_broadcast_state(RULES).items():
            stored = self.waiting.get(name) or []
            if shape == rule.second and stored:
                for first in stored:
                    yield f"MATCH: {colour} {first} - {shape}"
                stored = []
            if shape == rule.first:
                stored = [*stored, shape]
            if stored:
                self.waiting.put(name, stored)
            else:
                self.waiting.remove(name)


def build(env: StreamExecutionEnvironment, delay: float = 2.0) -> DataStream:
    rules = env.from_collection([("corner", "rectangle", "triangle")], "name string, first string, second string")
    shapes = env.add_source(Items(delay), type_info="colour string, shape string")
    return shapes.key_by("colour").connect(rules.broadcast(RULES)).process(Match(), output_type="string")


if __name__ == "__main__":
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(2)
    build(environment).print()
    environment.execute("pattern matcher")
