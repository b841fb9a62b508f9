"""The programs of the source documents, on Spark, with the output they promise (SPEC R1.3, R2, R4)."""

import sys
from collections import Counter
from pathlib import Path

import duckdb
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in (
        "count_window_average",
        "state_ttl",
        "buffering_sink",
        "counter_source",
        "pattern_matcher",
        "access_log",
    ):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_count_window_average(make_env, backend):  # SPEC R1.3
    import count_window_average

    env = make_env(2, {"state.backend.type": backend})
    assert list(count_window_average.build(env).execute_and_collect()) == [(1, 4), (1, 5)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_state_with_a_time_to_live(make_env, backend):  # SPEC R2.3
    import state_ttl

    found = list(state_ttl.build(make_env(1, {"state.backend.type": backend})).execute_and_collect())
    assert found == ["ann: hello", "ann: welcome back", "ann: hello"]


def test_counter_source(make_env):  # SPEC R4.1
    import counter_source

    assert sorted(counter_source.build(make_env(2)).execute_and_collect()) == [n * n for n in range(20)]


def test_pattern_matcher(make_env):  # SPEC R4.4
    import pattern_matcher

    found = sorted(pattern_matcher.build(make_env(2), delay=1.0).execute_and_collect())
    assert found == ["MATCH: blue rectangle - triangle", "MATCH: red rectangle - triangle"]


def test_buffering_sink(make_env, tmp_path):  # SPEC R4.1
    import buffering_sink

    out = tmp_path / "groups"

    def send(group):
        with out.open("a") as file:
            file.write(f"{len(group)}\n")

    env = make_env(1)
    buffering_sink.build(env, send)
    env.execute("buffering sink")
    assert out.read_text().split() == ["3", "3", "3"]


def test_access_log(make_env, tmp_path):  # SPEC R9.1
    import access_log
    import make_access_log

    (tmp_path / "logs").mkdir()
    expected, damaged = Counter(), 0
    for number in range(3):
        lines = list(make_access_log.lines(2000, number, damaged=0.01))
        (tmp_path / "logs" / f"{number}.log").write_text("\n".join(lines))
        found = [access_log.LINE.fullmatch(line) for line in lines]
        expected.update(one.group(5) for one in found if one is not None)
        damaged += found.count(None)
    env = make_env(2)
    env.enable_checkpointing(500)
    access_log.build(env, f"{tmp_path}/logs", f"{tmp_path}/out")
    env.execute("access log")
    query = f"select path, max(hits) from read_parquet('{tmp_path}/out/figures/*/*.parquet') group by path"
    assert dict(duckdb.sql(query).fetchall()) == expected
    assert damaged > 20
    assert sum(len(path.read_text().splitlines()) for path in (tmp_path / "out/damaged").glob("part-*")) == damaged
