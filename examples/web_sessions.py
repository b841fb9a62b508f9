"""Visits to a web site: the hits of a visitor are one session while no more than half an hour passes between two of them.

    headrace run examples/web_sessions.py

Hits come out of order. A session is computed when the watermark says that no hit of it can follow; what comes even later is
counted aside.
"""

from datetime import timedelta

from headrace import (
    AggregateFunction,
    DataStream,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)

MINUTE = 60_000
HIT = "visitor string, at bigint, path string"
SESSION = "visitor string, started bigint, ended bigint, hits bigint, landing string"
LATE = OutputTag("late", HIT)
HITS = [
    ("ann", 0 * MINUTE, "/"),
    ("bob", 3 * MINUTE, "/prices"),
    ("ann", 12 * MINUTE, "/prices"),
    ("ann", 5 * MINUTE, "/about"),  # out of order
    ("bob", 70 * MINUTE, "/"),
    ("ann", 95 * MINUTE, "/buy"),
]


class Visit(AggregateFunction):
    """The number of hits, and the path of the first one."""

    def create_accumulator(self):
        return 0, None, ""

    def add(self, value, accumulator):
        return self.merge(accumulator, (1, value.at, value.path))

    def merge(self, acc_a, acc_b):
        first = min((one for one in (acc_a, acc_b) if one[0]), key=lambda one: one[1])
        return acc_a[0] + acc_b[0], first[1], first[2]

    def get_result(self, accumulator):
        return accumulator


class WithVisitor(ProcessWindowFunction):
    """The visitor and the bounds of the session."""

    def process(self, key, context, elements):
        window = context.window()
        for hits, _, landing in elements:
            yield key, window.start, window.end - 30 * MINUTE, hits, landing


def build(env: StreamExecutionEnvironment, hits=HITS) -> DataStream:
    """The sessions; hits that come too late are its side output."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=10)).with_timestamp_assigner("at")
    stream = env.from_collection(hits, type_info=HIT).assign_timestamps_and_watermarks(strategy)
    sessions = stream.key_by("visitor").window(EventTimeSessionWindows.with_gap(timedelta(minutes=30)))
    return sessions.side_output_late_data(LATE).aggregate(Visit(), WithVisitor(), output_type=SESSION).uid("sessions")


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env).print()
    env.execute("web sessions")


if __name__ == "__main__":
    main()
