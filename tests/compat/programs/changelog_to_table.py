"""A stream of changes (insert, update, delete) is applied to keyed state, as for change data capture.

Modelled on: pyflink-basic-introduction, example/cdc_demo; change-data-capture-with-pyflink.

Prints:
    +I 1 ink
    +I 2 pen
    +U 3.5 -> 4.0
    -D 2 pen
"""

import json

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ValueStateDescriptor

CHANGES = [
    {"op": "c", "before": None, "after": {"id": 1, "name": "ink", "price": 3.5}},
    {"op": "c", "before": None, "after": {"id": 2, "name": "pen", "price": 1.25}},
    {"op": "u", "before": {"id": 1, "name": "ink", "price": 3.5}, "after": {"id": 1, "name": "ink", "price": 4.0}},
    {"op": "d", "before": {"id": 2, "name": "pen", "price": 1.25}, "after": None},
    {"op": "d", "before": {"id": 9, "name": "gone", "price": 0.0}, "after": None},
]


class Apply(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.current = runtime_context.get_state(
            ValueStateDescriptor("current", Types.MAP(Types.STRING(), Types.STRING()))
        )

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        before = self.current.value()
        if value["op"] == "d":
            if before is not None:
                yield f"-D {ctx.get_current_key()} {before['name']}"
            self.current.clear()
            return
        after = {name: str(field) for name, field in value["after"].items()}
        self.current.update(after)
        yield f"+I {after['id']} {after['name']}" if before is None else f"+U {before['price']} -> {after['price']}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([json.dumps(change) for change in CHANGES], type_info=Types.STRING()).map(json.loads).key_by(
    lambda change: (change["after"] or change["before"])["id"], key_type=Types.INT()
).process(Apply(), output_type=Types.STRING()).print()
env.execute("cdc")
