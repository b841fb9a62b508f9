"""The connectors of docs/connectors/write-your-own.md run as they stand there."""

import re
import sqlite3
from pathlib import Path

import pytest

from headrace import StreamExecutionEnvironment

PAGE = Path(__file__).parents[2] / "docs" / "connectors" / "write-your-own.md"


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "write_your_own"}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)), names)
    return names


def written(path):
    with sqlite3.connect(path) as connection:
        return sorted(int(value) for (value,) in connection.execute("select value from records"))


def test_the_source(page):
    env = StreamExecutionEnvironment.local().set_parallelism(2)
    rows = list(
        env.from_source(page["BookSource"]({"Emma": 30, "Persuasion": 12, "Sanditon": 0})).execute_and_collect()
    )
    assert sorted(rows) == [("Emma", n) for n in range(30)] + [("Persuasion", n) for n in range(12)]


def test_the_sink_survives_a_killed_worker(page, cluster, tmp_path):
    path = str(tmp_path / "records.db")
    job = cluster.start(lambda numbers: numbers.sink_to(page["SqliteSink"](path)))
    job.feed(100)
    job.checkpoint()
    job.feed(50)
    job.kill_worker()
    assert job.running()
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert written(path) == list(range(400))


def test_their_state_has_tags(page, cluster):
    job = cluster.start(lambda numbers: numbers.sink_to(page["SqliteSink"](":memory:")))
    job.feed(100)
    savepoint = job.savepoint(cluster.savepoints)
    data = b"".join(path.read_bytes() for path in savepoint.rglob("*") if path.is_file())
    assert b"write_your_own" not in data
    job.cancel()
