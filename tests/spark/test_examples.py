"""The programs of the source documents, on Spark, with the output they promise (SPEC R1.3, R2, R4)."""

import ast
import json
import sys
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from spark_kit import wait_until

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
        "look_back",
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

    # Time is that of the function, and a busy machine may hold the second visit up for longer than the source paused.
    env = make_env(1, {"state.backend.type": backend})
    found = list(state_ttl.build(env, away=8.0).execute_and_collect())
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


def test_look_back(make_env, spark, tmp_path):  # SPEC R8.1
    import look_back

    env = make_env(
        2, {"execution.checkpointing.interval": "200 ms", "execution.checkpointing.dir": f"file://{tmp_path}/c"}
    )
    readings = env.from_datagen(
        lambda n: look_back.READINGS[n % len(look_back.READINGS)], rate=100, type_info=look_back.READING
    )
    seen = tmp_path / "seen"

    def see(row):
        if tuple(row) == ("south", 3, 1):  # the last reading has been seen
            seen.touch()

    look_back.build(env, readings.uid("readings"), 50).add_sink(see)
    client = env.execute_async("look back")
    client.job.wait_running()  # the subtask that has seen the last reading may run before the other one
    wait_until(seen.exists, "the last reading")
    path = client.stop_with_savepoint(savepoint_directory=f"file://{tmp_path}/savepoints")
    client.wait(120)
    assert [tuple(row) for row in look_back.by_day(spark, path).collect()] == [(1, 55, 30), (2, 45, 70), (3, None, 42)]
    options = {"execution.state-recovery.path": path, "execution.state-recovery.ignore-unclaimed-state": "true"}
    env = make_env(1, options)
    again = env.from_collection([("north", 9, 0), ("south", 9, 0)], type_info=look_back.READING).uid("others")
    found = sorted(map(tuple, look_back.build(env, again, 40).execute_and_collect()))
    assert found == [("north", 9, 2), ("south", 9, 2)]


def test_the_notebook(spark):
    """Its cells run one after the other; what the last line of a cell gives can be shown as HTML."""
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    names, shown = {"__name__": "__main__"}, []
    for cell in cells:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "notebook", "exec"), names)
            if last is not None:
                shown.append(eval(compile(ast.Expression(last.value), "notebook", "eval"), names))
    env, client, checkpoints, savepoint, table = shown
    for one in (env, client, checkpoints, savepoint):
        assert "<td" in one._repr_html_()
    assert len(table) == 5
    wait_until(lambda: client.get_job_status().name == "FINISHED")  # the savepoint was complete before
