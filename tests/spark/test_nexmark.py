"""Nexmark on Spark's pipelined shuffle gives what Spark's batch SQL gives over the same events."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from nexmark_sql import KEYS, SQL
from test_checkpoints import checkpointed, kill_after_checkpoints, written

from headrace.connectors.files import FileSink

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import nexmark

COUNT = 12_000
SHORT = [("q5", "rocksdb"), ("q9", "hashmap"), ("q11", "hashmap")]


@pytest.fixture(scope="module")
def tables(spark):
    """All events as tables of Spark."""
    for generate, share in ((nexmark.persons, 1), (nexmark.auctions, 3), (nexmark.bids, 46)):
        batch = generate(np.arange(COUNT // 50 * share))
        spark.createDataFrame(pa.Table.from_batches([batch])).createOrReplaceTempView(generate.__name__)
    return spark


def rounded(row):
    return tuple(round(value, 6) if isinstance(value, float) else value for value in row)


def expected_of(tables, name):
    expected = sorted(rounded(row) for row in tables.sql(SQL[name]).collect())
    assert len(expected) > 3
    return expected


@pytest.mark.parametrize("name", nexmark.QUERIES)
def test_a_query_gives_what_sql_gives(make_env, tables, name):  # SPEC R13
    found = [rounded(row) for row in nexmark.QUERIES[name](nexmark.Events(make_env(2), COUNT)).execute_and_collect()]
    if key := KEYS.get(name):
        found = list({row[:key]: row for row in found}.values())
    assert sorted(found) == expected_of(tables, name)


KILLED = [
    pytest.param(name, backend, id=f"{name} {backend}", marks=[] if (name, backend) in SHORT else [pytest.mark.long])
    for name in ("q5", "q7", "q8", "q9", "q11")  # sliding windows, windows of all, co-groups, timers, sessions
    for backend in ("hashmap", "rocksdb")
]


@pytest.mark.parametrize(("name", "backend"), KILLED)
def test_kills_change_nothing(make_env, workers, tables, tmp_path, name, backend):  # SPEC R6.0, R13
    env = checkpointed(make_env(2, {"state.backend.type": backend}), tmp_path)
    results = nexmark.QUERIES[name](nexmark.Events(env, COUNT, rate=2400))
    results.sink_to(FileSink(f"{tmp_path}/out", "json"))
    client = env.execute_async(f"{name} with kills")
    kill_after_checkpoints(client.job, [(1, 0), (0, 1)])
    assert client.job.restarts >= 2, client.job.failure_log
    client.wait(120)
    assert sorted(rounded(row.values()) for row in written(tmp_path)) == expected_of(tables, name)
