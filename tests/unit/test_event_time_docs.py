"""The program texts of docs/event-time.md run, one after the other, on the local runtime."""

import re
from pathlib import Path

from headrace import (
    AggregateFunction,
    JoinFunction,
    OutputTag,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
)
from headrace.api.sources import CollectionSource
from headrace.records.types import as_type

DOCUMENT = Path(__file__).parents[2] / "docs" / "event-time.md"
MINUTE = 60_000


class CountHits(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class Match(JoinFunction):
    def join(self, first, second):
        return first.id, second.cents

    def process_element(self, left, right, ctx):
        yield left.id, right.cents


def test_the_programs_of_the_guide():
    texts = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(texts) >= 5
    env = StreamExecutionEnvironment.local()
    names = {
        "env": env,
        "source": CollectionSource([("/", MINUTE), ("/", 2 * MINUTE)], as_type("page string, at bigint")),
        "late": OutputTag("late", "page string, at bigint"),
        "CountHits": CountHits,
        "Match": Match,
        "windows": TumblingEventTimeWindows.of(MINUTE),
    }
    for text in texts:
        if "spark.read" in text:  # runs in tests/spark/test_windows.py
            continue
        if "orders" in text and "orders" not in names:
            names["orders"] = env.from_collection([(1, 10), (2, 20)], type_info="id bigint, at bigint")
            names["payments"] = env.from_collection([(1, 300, 30)], type_info="order bigint, cents bigint, at bigint")
            for name in ("orders", "payments"):
                strategy = names["strategy"].with_timestamp_assigner("at")
                names[name] = names[name].assign_timestamps_and_watermarks(strategy)
        exec(compile(text, DOCUMENT.name, "exec"), names)
    assert sorted(names["hits"].execute_and_collect()) == [1] * 2 + [2] * 9
    assert [tuple(row) for row in names["pairs"].execute_and_collect()] == [(1, 300)]
    assert [tuple(row) for row in names["close"].execute_and_collect()] == [(1, 300)]
    assert sorted(map(tuple, names["medians"].execute_and_collect())) == [("/", 1.5 * MINUTE)]
