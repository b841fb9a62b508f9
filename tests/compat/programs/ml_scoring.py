"""A model from a file is loaded in open(), and scores features that keyed state keeps.

Modelled on: Apache Flink, operators ("Load resources"); pyflink-fraud-detection-streaming.

Prints:
    (ada,0.35,low)
    (bob,0.35,low)
    (ada,0.5,low)
    (ada,2.345,high)
"""

import json
import pickle
import tempfile
from pathlib import Path

from headrace.pyflink.common import Types
from headrace.pyflink.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.state import ValueStateDescriptor


class Features(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.profile = runtime_context.get_state(ValueStateDescriptor("profile", Types.STRING()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        transaction = json.loads(value)
        profile = json.loads(self.profile.value() or '{"count": 0, "total": 0.0}')
        mean = profile["total"] / profile["count"] if profile["count"] else transaction["amount"]
        profile["count"] += 1
        profile["total"] += transaction["amount"]
        self.profile.update(json.dumps(profile))
        yield transaction["user"], [transaction["amount"] / mean, float(profile["count"])]


class Predict(MapFunction):
    def __init__(self, path):
        self.path = path

    def open(self, runtime_context: RuntimeContext):
        with open(self.path, "rb") as file:
            self.weights = pickle.load(file)

    def map(self, value):
        score = sum(weight * feature for weight, feature in zip(self.weights, value[1], strict=True))
        return value[0], round(score, 3), "high" if score > 1.0 else "low"


def main(model_path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    transactions = [("ada", 10.0), ("bob", 5.0), ("ada", 12.0), ("ada", 90.0)]
    source = env.from_collection([json.dumps({"user": u, "amount": a}) for u, a in transactions], Types.STRING())
    source.key_by(lambda raw: json.loads(raw)["user"]).process(
        Features(), output_type=Types.TUPLE([Types.STRING(), Types.LIST(Types.DOUBLE())])
    ).map(Predict(model_path), output_type=Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.STRING()])).print()
    env.execute("scoring")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory, "model.pkl")
        model.write_bytes(pickle.dumps([0.25, 0.1]))
        main(str(model))
