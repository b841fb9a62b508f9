"""Checkpoints on Spark: a job goes on from the newest one, and nothing is lost or counted twice."""

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from spark_kit import Paced, release, wait_until

from headrace import (
    CheckpointedFunction,
    CheckpointingMode,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RestartStrategies,
    SourceFunction,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink
from headrace.errors import IllegalState, StorageError
from headrace.job.status import JobStatus
from headrace.pyflink.datastream.checkpoint_config import CheckpointConfig, ExternalizedCheckpointCleanup
from headrace.pyflink.datastream.state_backend import FsStateBackend
from headrace.rest import server
from headrace.rest.app import make_app

COUNT, KEYS = 12_000, 10
INPUT = "k bigint, v bigint"
OUTPUT = "k bigint, v bigint, n bigint"


class Numbering:
    """Numbers the records of each key: a record that is lost or repeated leaves a gap or a double."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value, ctx):
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield value.k, value.v, number


class Number(Numbering, KeyedProcessFunction):
    """Of one stream."""


def checkpointed(env, directory, interval=200):
    env.enable_checkpointing(interval)
    env.get_checkpoint_config().set_checkpoint_storage_dir(f"file://{directory}/checkpoints")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(20, 100))
    return env


def numbers(env, directory, count=COUNT):
    return env.from_source(Paced(directory, lambda n: (n % KEYS, n), count, INPUT))


def build(env, directory, count=COUNT):
    numbered = numbers(env, directory, count).key_by("k").process(Number(), output_type=OUTPUT)
    numbered.rebalance().sink_to(FileSink(f"{directory}/out", "json"))


def written(directory):
    files = [p for p in Path(directory, "out").iterdir() if not p.name.startswith(".")]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def assert_exactly_once(directory, count=COUNT, *, cancelled=False):
    rows = written(directory)
    assert Counter(row["v"] for row in rows) == Counter(range(count))
    for key in range(KEYS):
        assert sorted(row["n"] for row in rows if row["k"] == key) == list(range(1, count // KEYS + 1))
    # A job that is cancelled leaves the files of a checkpoint that was under way.
    assert cancelled or list(Path(directory, "out").glob(".*/*")) == []


def completed(job):
    return job.stats.snapshot().counts.completed


def kill_after_checkpoints(job, victims):
    """Kill one worker after another, each when a new checkpoint is complete."""
    for victim in victims:
        assert job.wait_running(120)
        before = completed(job)
        wait_until(lambda before=before: completed(job) > before or job.status.is_terminal, "a checkpoint")
        worker = job.workers().get(victim)
        if worker is None or job.status.is_terminal:
            return
        os.kill(worker.pid, signal.SIGKILL)
        attempt = job.restarts
        wait_until(lambda attempt=attempt: job.restarts > attempt or job.status.is_terminal, "the restart")


MODES = {
    "aligned": {},
    "unaligned": {"execution.checkpointing.unaligned.enabled": "true"},
    "rocksdb-incremental": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"},
    "hashmap-incremental": {"execution.checkpointing.incremental": "true"},
}


@pytest.mark.parametrize("mode", MODES)
def test_killed_workers_cost_no_record(make_env, workers, tmp_path, mode):  # SPEC R6.0, R9.2
    env = checkpointed(make_env(2, MODES[mode]), tmp_path)
    build(env, tmp_path)
    client = env.execute_async(f"kills {mode}")
    job = client.job
    kill_after_checkpoints(job, [(1, 0), (0, 1), (2, 1)])
    assert job.restarts >= 3, job.failure_log
    release(tmp_path)
    client.wait(120)
    assert_exactly_once(tmp_path)


LIMITS = {
    "max-size": ("1 b", "state_size", r"full size of {} bytes, limit 1"),
    "max-files": (3, "shared_files", r"{} shared files, limit 3"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_full_checkpoint_by_a_limit(make_env, workers, tmp_path, limit):  # SPEC R7.6, R10.1
    value, figure, reason = LIMITS[limit]
    options = MODES["rocksdb-incremental"] | {
        "execution.checkpointing.data-inline-threshold": "0 b",
        "web.checkpoints.history": 1000,
        f"headrace.full-checkpoint.{limit}": value,
    }
    env = checkpointed(make_env(2, options), tmp_path)
    build(env, tmp_path)
    client = env.execute_async(f"full by {limit}")
    http = TestClient(make_app(server._jobs, ["testserver"]))
    path = f"/jobs/{client.get_job_id()}/checkpoints"

    def history():
        """The checkpoints that are completed, oldest first."""
        found = http.get(path).json().get("history", [])
        return [one for one in reversed(found) if one["status"] == "COMPLETED"]

    wait_until(lambda: any(one["full"] for one in history()[:-1]), "a full checkpoint and one after it")
    release(tmp_path)
    client.wait(120)
    assert_exactly_once(tmp_path)

    place = next(i for i, one in enumerate(history()) if one["full"])
    before, full, after = history()[place - 1 : place + 2]
    assert full["full_reason"] in [reason.format(one[figure]) for one in history()[:place]]
    assert full["trigger"] == "automatic"
    assert (full["chain_length"], after["chain_length"]) == (1, 2)
    assert before["chain_length"] == place
    assert full["checkpointed_size"] == full["state_size"]
    assert sum(before["shared_files_by_operator"].values()) == before["shared_files"] > 0
    policy = http.get(f"{path}/config").json()["full_checkpoint"]
    assert policy[limit.replace("-", "_")] == (1 if limit == "max-size" else 3)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_restart_reads_the_copies_on_its_host(make_env, workers, tmp_path, backend):  # SPEC R7.7
    options = {
        "state.backend.type": backend,
        "execution.checkpointing.data-inline-threshold": "0 b",
        "execution.checkpointing.local-backup.enabled": "true",
        "execution.checkpointing.local-backup.dirs": f"{tmp_path}/copies-1, {tmp_path}/copies-2",
        "execution.state-recovery.from-local": "true",
    }
    env = checkpointed(make_env(2, options), tmp_path)
    build(env, tmp_path)
    client = env.execute_async(f"local copies {backend}")
    job = client.job
    kill_after_checkpoints(job, [(1, 0)])
    assert job.wait_running(120)
    wait_until(lambda: sum(m.restored_locally for m in job.metrics().values()) > 0, "state from local copies")
    release(tmp_path)
    client.wait(120)
    assert_exactly_once(tmp_path)
    assert not [path for path in Path(tmp_path).glob("copies-*/**/*") if path.is_file()]


class Rules(Numbering, KeyedBroadcastProcessFunction):
    """Of a stream beside a few rules."""

    def process_broadcast_element(self, value, ctx):
        return []


class CounterSource(SourceFunction, CheckpointedFunction):
    """The seeds' source, which counts up; slowly until the test releases it."""

    def __init__(self, limit, directory):
        self.limit, self.mark = limit, Path(directory, "released")
        self.offset, self.running = 0, True

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("state", "bigint"))
        for offset in self.state.get():
            self.offset = offset

    def snapshot_state(self, context):
        self.state.clear()
        self.state.add(self.offset)

    def cancel(self):
        self.running = False

    def run(self, ctx):
        lock = ctx.get_checkpoint_lock()
        while self.running and self.offset < self.limit:
            with lock:
                ctx.collect(self.offset)
                self.offset += 1
            if not self.mark.exists():
                time.sleep(0.002)


def test_parallel_source_functions_continue_after_a_kill(make_env, workers, tmp_path):  # SPEC R4.1
    env = checkpointed(make_env(2), tmp_path)
    numbers = env.add_source(CounterSource(4000, tmp_path), type_info="bigint").set_parallelism(2)
    numbers.map(lambda n: (n,), output_type="v bigint").sink_to(FileSink(f"{tmp_path}/out", "json"))
    client = env.execute_async("counters")
    kill_after_checkpoints(client.job, [(0, 1), (0, 0)])
    release(tmp_path)
    client.wait(120)
    assert client.job.restarts == 2
    assert Counter(row["v"] for row in written(tmp_path)) == Counter(list(range(4000)) * 2)


def test_a_short_source_behind_the_first_level_does_not_hold_checkpoints(make_env, workers, tmp_path):  # SPEC R4.5
    env = checkpointed(make_env(2), tmp_path, interval=100)
    same = numbers(env, tmp_path).rebalance().map(lambda row: row, output_type=INPUT).start_new_chain()
    rules = env.from_collection([1, 2, 3]).broadcast(MapStateDescriptor("rules"))
    numbered = same.key_by("k").connect(rules).process(Rules(), output_type=OUTPUT)
    numbered.rebalance().sink_to(FileSink(f"{tmp_path}/out", "json"))
    client = env.execute_async("short source")
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) >= 4, "checkpoints after the source has ended")
    release(tmp_path)
    client.wait(120)
    assert_exactly_once(tmp_path)


def test_a_bounded_job_commits_its_last_records(make_env, workers, tmp_path):  # SPEC R4.5
    env = checkpointed(make_env(2), tmp_path, interval=60_000)
    release(tmp_path)
    build(env, tmp_path, count=2000)
    env.execute_async("final checkpoint").wait(120)  # long before the first periodic checkpoint
    assert_exactly_once(tmp_path, 2000)


def test_checkpoints_that_are_not_retained_are_deleted(make_env, workers, tmp_path):  # SPEC R5.2
    env = checkpointed(make_env(1), tmp_path)
    build(env, tmp_path, count=3000)
    client = env.execute_async("cleanup")
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) >= 2, "two checkpoints")
    release(tmp_path)
    client.wait(120)
    assert list(Path(tmp_path, "checkpoints").glob("*/chk-*")) == []
    assert list(Path(tmp_path, "checkpoints").glob("*/shared/*")) == []


def test_a_cancelled_job_keeps_its_checkpoint_and_another_goes_on_from_it(
    make_env, workers, tmp_path
):  # SPEC R5.2, R8.4
    options = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    env = checkpointed(make_env(2, options), tmp_path)
    build(env, tmp_path)
    client = env.execute_async("first")
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) >= 3, "three checkpoints")
    assert client.cancel() is JobStatus.CANCELED
    (pointer,) = Path(tmp_path, "checkpoints").glob("*/chk-*")
    again = checkpointed(make_env(2, {"execution.state-recovery.path": str(pointer)}), tmp_path)
    release(tmp_path)
    build(again, tmp_path)
    again.execute_async("second").wait(120)
    assert_exactly_once(tmp_path, cancelled=True)


@pytest.mark.parametrize("file", ["_metadata", "*-v1-s0.state"], ids=["found by the driver", "found by a worker"])
def test_a_damaged_checkpoint_is_stepped_over(make_env, workers, tmp_path, caplog, file):  # SPEC S7, R5.11
    options = {"execution.checkpointing.num-retained": "3", "headrace.recovery.allow-repeated-output": "true"}
    env = checkpointed(make_env(1, options), tmp_path, interval=3_600_000)  # only those that the test asks for
    env.get_configuration().set("execution.checkpointing.data-inline-threshold", "0 kb")
    build(env, tmp_path)
    client = env.execute_async("damage")
    job = client.job
    assert job.wait_running(120)
    for _ in range(3):
        job.trigger_checkpoint(timeout=120)
    (damaged,) = Path(tmp_path, "checkpoints").glob(f"*/chk-3/{file}")
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(bytes(data))
    os.kill(job.workers()[1, 0].pid, signal.SIGKILL)
    release(tmp_path)
    client.wait(120)
    assert job.restarts >= 1
    assert re.search(r"checkpoint 3 .* is DAMAGED, stepping back to an older one", caplog.text)
    assert str(damaged) in caplog.text


def test_a_savepoint_is_taken_while_the_job_runs(make_env, workers, tmp_path):  # SPEC R8.1
    env = checkpointed(make_env(1), tmp_path)
    build(env, tmp_path)
    client = env.execute_async("savepoint")
    assert client.job.wait_running(120)
    done = client.job.trigger_savepoint(f"file://{tmp_path}/savepoints")
    client.cancel()
    assert Path(done.pointer.removeprefix("file://"), "_metadata").exists()
    with pytest.raises(IllegalState, match="has ended"):
        client.job.trigger_checkpoint()


def test_a_checkpoint_directory_that_cannot_be_written_fails_the_job(make_env, workers, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    env = make_env(1)
    env.enable_checkpointing(200)
    env.get_checkpoint_config().set_checkpoint_storage_dir(f"file://{blocked}/checkpoints")
    env.from_sequence(1, 10).print()
    with pytest.raises(StorageError, match="cannot create") as caught:
        env.execute_async("blocked").wait(120)
    assert str(blocked) in str(caught.value)


def seed_000(env):
    settings = CheckpointConfig(env.get_configuration())
    env.enable_checkpointing(1000)
    settings.set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)
    settings.set_min_pause_between_checkpoints(500)
    settings.set_checkpoint_timeout(60000)
    settings.set_max_concurrent_checkpoints(1)
    settings.enable_externalized_checkpoints(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION)
    settings.set_prefer_checkpoint_for_recovery(True)


def seed_004(env):
    settings = CheckpointConfig(env.get_configuration())
    env.enable_checkpointing(1000)
    settings.set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)
    settings.set_min_pause_between_checkpoints(500)
    settings.set_checkpoint_timeout(60000)
    settings.set_tolerable_checkpoint_failure_number(2)
    settings.set_max_concurrent_checkpoints(1)
    settings.set_externalized_checkpoint_cleanup(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION)
    settings.enable_unaligned_checkpoints()


@pytest.mark.parametrize("example", [seed_000, seed_004])
def test_the_configuration_examples_of_the_seeds_run_as_written(make_env, workers, tmp_path, example):
    env = make_env(1)
    example(env)
    env.set_state_backend(FsStateBackend(f"file://{tmp_path}/checkpoints"))
    build(env, tmp_path)
    client = env.execute_async(example.__name__)
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) >= 2, "two checkpoints")
    assert client.cancel() is JobStatus.CANCELED
    assert len(list(Path(tmp_path, "checkpoints").glob("*/chk-*/_metadata"))) == 1  # retained, as the examples say
