"""Looking back over history: the state of a job is a table by day, and other code can go on from an older savepoint.

    headrace run examples/look_back.py                                  until you stop it with a savepoint
    headrace run -s SAVEPOINT examples/look_back.py -- --threshold 40   what would have been, with another threshold

The job keeps for each sensor the highest value of every day, and reports values above a threshold. The threshold is in the
code and not in the state, so the same savepoint answers for any.
"""

import sys

from headrace import DataStream, KeyedProcessFunction, MapStateDescriptor, StreamExecutionEnvironment

READING = "sensor string, day bigint, value bigint"
READINGS = [
    ("north", 1, 20),
    ("north", 1, 55),
    ("south", 1, 30),
    ("north", 2, 45),
    ("south", 2, 70),
    ("south", 3, 42),
]


class Highest(KeyedProcessFunction):
    """The highest value of each day, and alarms."""

    def __init__(self, threshold):
        self.threshold = threshold

    def open(self, runtime_context):
        self.days = runtime_context.get_map_state(MapStateDescriptor("days", "bigint", "bigint"))

    def process_element(self, value, ctx):
        highest = self.days.get(value.day)
        if highest is None or value.value > highest:
            self.days.put(value.day, value.value)
        # All days so far count, also those that another version of this code has seen.
        alarms = sorted(day for day, found in self.days.items() if found > self.threshold)
        yield value.sensor, value.day, len(alarms)


def build(env: StreamExecutionEnvironment, source: DataStream, threshold: int) -> DataStream:
    """(sensor, day, days so far with an alarm)."""
    alarms = source.key_by("sensor").process(Highest(threshold), output_type="sensor string, day bigint, alarms bigint")
    return alarms.uid("highest")


def by_day(spark, path: str):
    """The state of a savepoint or checkpoint as a table: a row for each day, a column for each sensor."""
    state = spark.read.format("headrace-state").option("operator", "highest").option("state", "days").load(path)
    return state.groupBy("map_key").pivot("key").max("value").orderBy("map_key")


def main() -> None:
    threshold = int(sys.argv[sys.argv.index("--threshold") + 1]) if "--threshold" in sys.argv else 50
    env = StreamExecutionEnvironment.get_execution_environment()
    source = env.from_datagen(lambda n: READINGS[n % len(READINGS)], rate=2, type_info=READING).uid("readings")
    build(env, source, threshold).print()
    env.execute("look back")


if __name__ == "__main__":
    main()
