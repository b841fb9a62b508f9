"""The examples of event time and windows give what they promise."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace import StreamExecutionEnvironment

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield __import__
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", "").startswith(str(EXAMPLES)):
            del sys.modules[name]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_web_sessions(example, parallelism):
    sessions = example("web_sessions")
    env = StreamExecutionEnvironment.local().set_parallelism(parallelism)
    found = sorted(map(tuple, sessions.build(env).execute_and_collect()))
    minute = sessions.MINUTE
    assert found == [
        ("ann", 0, 12 * minute, 3, "/"),
        ("ann", 95 * minute, 95 * minute, 1, "/buy"),
        ("bob", 3 * minute, 3 * minute, 1, "/prices"),
        ("bob", 70 * minute, 70 * minute, 1, "/"),
    ]


def test_online_learning_is_better_at_the_end_than_at_the_start(example):
    env = StreamExecutionEnvironment.local().set_parallelism(2)
    rows = sorted(example("online_learning").build(env).execute_and_collect(), key=lambda row: row[1])
    for device in ("pump", "fan"):
        errors = [row[3] for row in rows if row[0] == device]
        assert errors[0] > 10
        assert errors[-1] < 0.05


@pytest.mark.parametrize("parallelism", [1, 2])
def test_patterns_follow_the_order_of_events_and_the_rules_of_their_time(example, parallelism):
    patterns = example("payment_patterns")
    env = StreamExecutionEnvironment.local().set_parallelism(parallelism)
    found = sorted(map(tuple, patterns.build(env).execute_and_collect()))
    assert found == [("drain", "ann", 60, 80), ("probe", "bob", 25, 40)]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_sales_by_minute(example, parallelism):
    sales = example("sales_by_minute")
    env = StreamExecutionEnvironment.local().set_parallelism(parallelism)
    found = {tuple(row[:2]): row[3] for row in sales.build(env, 5000).execute_and_collect()}
    expected = Counter()
    for shop, cents, at in zip(*sales.sales(np.arange(5000)).to_pydict().values(), strict=True):
        expected[shop, at // 60_000 * 60_000] += cents
    assert found == expected
