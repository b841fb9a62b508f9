"""Windows on Spark: open ones are a table, and go on elsewhere."""

from collections import Counter
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from spark_kit import wait_until
from test_checkpoints import checkpointed, completed, written

from headrace import EventTimeSessionWindows, TumblingEventTimeWindows, WatermarkStrategy
from headrace.connectors.files import FileSink

COUNT, KEYS, SIZE = 6000, 7, 10_000
RATE = 200  # records a second: on a busy machine, too, the job is there when it is stopped
RECORD = "k bigint, v bigint, at bigint"
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=500)).with_timestamp_assigner("at")


def records(numbers):
    at = numbers * 10 - numbers * 7919 % 500 + 1000
    return pa.RecordBatch.from_arrays([numbers % KEYS, numbers % 13, at], ["k", "v", "at"])


def built_in(keyed):
    return keyed.window(TumblingEventTimeWindows.of(SIZE)).sum("v")


def reduced(keyed):
    windows = keyed.window(TumblingEventTimeWindows.of(SIZE))
    return windows.reduce(lambda a, b: (a.k, a.v + b.v, min(a.at, b.at)), output_type=RECORD)


def build(env, directory, windows, rate):
    stream = env.from_datagen(records, COUNT, rate, RECORD, vectorised=True).uid("records")
    keyed = stream.assign_timestamps_and_watermarks(STRATEGY).key_by("k")
    windows(keyed).uid("windows").sink_to(FileSink(f"{directory}/out", "json")).uid("out")


MOVES = [("hashmap", "rocksdb"), ("rocksdb", "hashmap")]


@pytest.mark.parametrize(
    ("windows", "backends"),
    [
        (built_in, MOVES[0]),
        (reduced, MOVES[1]),
        pytest.param(built_in, MOVES[1], marks=pytest.mark.long),
        pytest.param(reduced, MOVES[0], marks=pytest.mark.long),
    ],
)
def test_open_windows_are_a_table_and_go_on_elsewhere(
    make_env, workers, spark, tmp_path, windows, backends
):  # SPEC R1.9
    env = checkpointed(make_env(2, {"state.backend.type": backends[0]}), tmp_path)
    build(env, tmp_path, windows, RATE)
    client = env.execute_async("open windows")
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) > 2, "checkpoints")
    path = client.stop_with_savepoint(savepoint_directory=f"file://{tmp_path}/savepoints")
    client.wait(120)
    table = (
        spark.read.format("headrace-state").option("operator", "windows").option("state", "window-contents").load(path)
    )
    rows = table.selectExpr("key", "from_json(namespace, 'array<bigint>') AS window").collect()
    assert {row["key"] for row in rows} <= set(range(KEYS))
    assert len(rows) >= KEYS
    for row in rows:
        start, end = row["window"]
        assert start % SIZE == 0
        assert end == start + SIZE
    env = checkpointed(
        make_env(3, {"state.backend.type": backends[1], "execution.state-recovery.path": path}), tmp_path
    )
    build(env, tmp_path, windows, None)
    env.execute_async("go on").wait(120)
    expected = Counter()
    for key, value, at in zip(*records(np.arange(COUNT)).to_pydict().values(), strict=True):
        expected[key, at // SIZE] += value
    found = [list(row.values()) for row in written(tmp_path)]
    if windows is built_in:
        found = [(key, total, start) for key, start, _, total in found]
    assert sorted(((key, at // SIZE), total) for key, total, at in found) == sorted(expected.items())


GAP = 60


def sessions(keyed):
    return keyed.window(EventTimeSessionWindows.with_gap(GAP)).sum("v")


def expected_sessions():
    found = []
    for key in range(KEYS):
        numbers = np.arange(key, COUNT, KEYS)
        batch = records(numbers)
        of_key = sorted(zip(batch["at"].to_pylist(), batch["v"].to_pylist(), strict=True))
        start, end, total = of_key[0][0], of_key[0][0], 0
        for at, value in of_key:
            if at > end:
                found.append((key, start, end, total))
                start, total = at, 0
            end, total = at + GAP, total + value
        found.append((key, start, end, total))
    return found


@pytest.mark.parametrize("backends", [MOVES[0], pytest.param(MOVES[1], marks=pytest.mark.long)])
def test_sessions_merge_across_a_savepoint(make_env, workers, tmp_path, backends):  # SPEC R13.10
    """Records come up to 500 ms late, so that open sessions of the savepoint are joined by records behind it."""
    env = checkpointed(make_env(2, {"state.backend.type": backends[0]}), tmp_path)
    build(env, tmp_path, sessions, RATE)
    client = env.execute_async("sessions")
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) > 2, "checkpoints")
    path = client.stop_with_savepoint(savepoint_directory=f"file://{tmp_path}/savepoints")
    client.wait(120)
    env = checkpointed(
        make_env(3, {"state.backend.type": backends[1], "execution.state-recovery.path": path}), tmp_path
    )
    build(env, tmp_path, sessions, None)
    env.execute_async("go on").wait(120)
    expected = expected_sessions()
    assert len(expected) > 10 * KEYS
    assert sorted(tuple(row.values()) for row in written(tmp_path)) == sorted(expected)
