"""Two streams of dicts in one union, joined by keyed state.

Modelled on: deep-bi pyflink-workshop, chapter 3.

Prints:
    {'sex': 'male', 'id': 1, 'mean': 2.5}
    {'sex': 'male', 'id': 3, 'mean': 2.5}
    {'sex': 'female', 'id': 2, 'mean': 4.0}
"""

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor


class Join(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.stats = runtime_context.get_state(ValueStateDescriptor("stats", Types.PICKLED_BYTE_ARRAY()))
        self.events = runtime_context.get_list_state(ListStateDescriptor("events", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        if "mean" in value:
            self.stats.update(value["mean"])
            for event in list(self.events.get()):
                event["mean"] = value["mean"]
                yield event
            self.events.clear()
        elif self.stats.value() is None:
            self.events.add(value)
        else:
            value["mean"] = self.stats.value()
            yield value


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    events = env.from_collection([{"sex": "male", "id": 1}, {"sex": "female", "id": 2}, {"sex": "male", "id": 3}])
    stats = env.from_collection([("male", 2.5), ("female", 4.0)])
    events.union(stats.map(lambda s: {"sex": s[0], "mean": s[1]})).key_by(lambda e: e["sex"]).process(Join()).print()
    env.execute("Chapter 3")


if __name__ == "__main__":
    main()
