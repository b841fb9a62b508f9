"""Savepoints on Spark: stop with one, go on from it, also elsewhere and with another backend or parallelism."""

import shutil
from pathlib import Path

import duckdb
import pytest
from spark_kit import release, wait_until
from test_checkpoints import COUNT, KEYS, assert_exactly_once, build, checkpointed, completed, written

from headrace import RestartStrategies
from headrace.errors import HeadraceError, IllegalState, NotEnoughSlots
from headrace.job.status import JobStatus
from headrace.job_client import SavepointFormat
from headrace.storage.published_snapshots import load_snapshot
from headrace.storage.remote import open_store

FORMATS = [SavepointFormat.CANONICAL, SavepointFormat.NATIVE]


def started(env, tmp_path, name):
    """A job that runs until `release`; it has taken a checkpoint."""
    build(env, tmp_path)
    client = env.execute_async(name)
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) > 0, "a checkpoint")
    return client


def from_savepoint(make_env, parallelism, path, options=None):
    return make_env(parallelism, {"execution.state-recovery.path": str(path), **(options or {})})


@pytest.mark.parametrize("format", FORMATS)
def test_stop_with_a_savepoint_and_go_on_with_another_parallelism(make_env, workers, tmp_path, format):  # SPEC R8.3
    client = started(checkpointed(make_env(2), tmp_path), tmp_path, f"stop {format}")
    path = client.stop_with_savepoint(savepoint_directory=f"file://{tmp_path}/savepoints", format=format)
    assert client.wait(120) is not None
    assert client.get_job_status() is JobStatus.FINISHED
    before = len(written(tmp_path))
    assert 0 < before < COUNT  # what was prepared is committed
    moved = tmp_path / "elsewhere"
    shutil.move(path.removeprefix("file://"), moved)  # self-contained: it may be moved
    env = checkpointed(from_savepoint(make_env, 3, moved), tmp_path)
    release(tmp_path)
    build(env, tmp_path)
    env.execute_async("goes on").wait(120)
    assert_exactly_once(tmp_path)
    assert (moved / "_metadata").exists()  # it is the user's: nobody deletes it


@pytest.mark.parametrize(("old", "new"), [("hashmap", "rocksdb"), ("rocksdb", "hashmap")])
def test_another_backend_goes_on_from_a_canonical_savepoint(make_env, workers, tmp_path, old, new):  # SPEC R8.2
    env = checkpointed(make_env(2, {"state.backend.type": old}), tmp_path)
    client = started(env, tmp_path, f"{old} to {new}")
    path = client.stop_with_savepoint(savepoint_directory=f"file://{tmp_path}/savepoints")
    client.wait(120)
    env = checkpointed(from_savepoint(make_env, 2, path, {"state.backend.type": new}), tmp_path)
    release(tmp_path)
    build(env, tmp_path)
    env.execute_async("goes on").wait(120)
    assert_exactly_once(tmp_path)


def test_a_native_savepoint_keeps_its_backend(make_env, workers, tmp_path):  # SPEC R8.2
    client = started(checkpointed(make_env(2), tmp_path), tmp_path, "native")
    path = client.stop_with_savepoint(
        savepoint_directory=f"file://{tmp_path}/savepoints", format=SavepointFormat.NATIVE
    )
    client.wait(120)
    env = checkpointed(from_savepoint(make_env, 2, path, {"state.backend.type": "rocksdb"}), tmp_path)
    env.set_restart_strategy(RestartStrategies.no_restart())
    build(env, tmp_path)
    with pytest.raises(HeadraceError, match=r"holds hashmap state, the job runs rocksdb.*canonical savepoint"):
        env.execute_async("goes on").wait(120)


def test_drained(make_env, workers, tmp_path):  # SPEC R8.3
    client = started(checkpointed(make_env(2), tmp_path), tmp_path, "drain")
    path = client.stop_with_savepoint(True, f"file://{tmp_path}/savepoints")
    client.wait(120)
    assert client.get_job_status() is JobStatus.FINISHED
    assert (Path(path.removeprefix("file://")) / "_metadata").exists()
    rows = written(tmp_path)
    for key in range(KEYS):  # no gap, no double
        numbers = sorted(row["n"] for row in rows if row["k"] == key)
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_plain_savepoint_changes_nothing(spark, make_env, workers, tmp_path):  # SPEC R8.1
    client = started(checkpointed(make_env(2), tmp_path), tmp_path, "plain")
    path = client.trigger_savepoint(f"file://{tmp_path}/savepoints")
    release(tmp_path)
    client.wait(120)
    assert_exactly_once(tmp_path)
    manifest = load_snapshot(open_store(), path).manifest
    assert manifest.type.is_savepoint
    tables = sorted(
        str(p.relative_to(path.removeprefix("file://"))) for p in Path(path.removeprefix("file://")).rglob("*.parquet")
    )
    (count,) = {str(Path(t).parent) for t in tables if "/count/" in t}
    query = f"select count(*), sum(value), count(distinct key) from '{path.removeprefix('file://')}/{count}/*.parquet'"
    ((rows, total, keys),) = duckdb.sql(query).fetchall()
    assert rows == keys == KEYS
    assert 0 < total < COUNT
    read = spark.read.parquet(f"{path}/{count}")  # Spark needs nothing of ours for it
    assert read.selectExpr("count(*)", "sum(value)", "count(distinct key)").collect() == [(rows, total, keys)]
    rows_of = {one: spark.read.parquet(f"{path}/{one}").count() for one in {str(Path(t).parent) for t in tables}}
    assert [one for one, number in rows_of.items() if not number and not one.endswith("/writer")] == []  # of the sink


def test_without_a_directory_it_is_refused(make_env, workers, tmp_path):  # SPEC R8.1
    client = started(checkpointed(make_env(1), tmp_path), tmp_path, "no directory")
    with pytest.raises(HeadraceError, match=r"execution\.checkpointing\.savepoint-dir"):
        client.trigger_savepoint()
    with pytest.raises(HeadraceError, match=r"execution\.checkpointing\.savepoint-dir"):
        client.stop_with_savepoint()
    release(tmp_path)
    client.wait(120)  # the job went on
    assert_exactly_once(tmp_path)


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "rocksdb"])
def test_rescaled_in_place(make_env, workers, tmp_path, mode):
    options = {
        "aligned": {},
        "unaligned": {"execution.checkpointing.unaligned.enabled": "true"},
        "rocksdb": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"},
    }[mode]
    client = started(checkpointed(make_env(2, options), tmp_path), tmp_path, f"rescale {mode}")
    job = client.job
    for parallelism in (4, 1):
        client.rescale(parallelism)
        assert job.plan.graph.vertices[1].parallelism == parallelism
    release(tmp_path)
    client.wait(120)
    assert job.restarts == 0  # it is no failure
    assert_exactly_once(tmp_path)


def test_a_rescale_that_has_no_slots_is_refused_while_the_job_runs_on(make_env, workers, tmp_path):
    client = started(checkpointed(make_env(2), tmp_path), tmp_path, "no slots")
    workers_before = client.job.workers()
    with pytest.raises(NotEnoughSlots, match="the job needs 300 task slots"):
        client.rescale(100)
    with pytest.raises((IllegalState, HeadraceError)):
        client.rescale(0)
    assert client.job.workers() == workers_before
    release(tmp_path)
    client.wait(120)
    assert_exactly_once(tmp_path)
