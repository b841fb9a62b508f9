"""Online learning: the parameters of a model are keyed state, and every labelled record improves them.

    headrace run examples/online_learning.py

Each device has a linear model of its temperature by load, which stochastic gradient descent fits while records come. Every
window of the stream tells the mean squared error of the predictions that were made before the model saw the record: it falls.
"""

import random

from headrace import (
    DataStream,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)

RATE = 0.05  # of learning
READING = "device string, at bigint, load double, temperature double"
ERROR = "device string, at bigint, error double"


class Learn(KeyedProcessFunction):
    """Predicts, tells the squared error, and learns."""

    def open(self, runtime_context):
        self.model = runtime_context.get_state(ValueStateDescriptor("model", "slope double, offset double"))

    def process_element(self, value, ctx):
        slope, offset = self.model.value() or (0.0, 0.0)
        wrong = slope * value.load + offset - value.temperature
        self.model.update((slope - RATE * wrong * value.load, offset - RATE * wrong))
        yield value.device, value.at, wrong * wrong


def readings(count: int = 2000) -> list[tuple[str, int, float, float]]:
    """Readings of two devices, one a second; the seed makes them the same in every run."""
    source, truth = random.Random(7), {"pump": (3.0, 20.0), "fan": (-1.0, 35.0)}
    rows = []
    for second in range(count):
        device, load = source.choice(list(truth)), source.random() * 2
        slope, offset = truth[device]
        rows.append((device, second * 1000, load, slope * load + offset + source.gauss(0, 0.1)))
    return rows


def build(env: StreamExecutionEnvironment) -> DataStream:
    """(device, window_start, window_end, mean squared error) of every 100 seconds."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    stream = env.from_collection(readings(), type_info=READING).assign_timestamps_and_watermarks(strategy)
    errors = stream.key_by("device").process(Learn(), output_type=ERROR).uid("learn")
    return errors.key_by("device").window(TumblingEventTimeWindows.of(100_000)).mean("error").uid("error")


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env).print()
    env.execute("online learning")


if __name__ == "__main__":
    main()
