"""What users of Flink expect of checkpoints and settings: defects that are known, and what holds already.

A test of a defect is an expected failure with the defect's name. Only an AssertionError counts as that failure, so an
error of the test itself is not taken for it.
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from edge_kit import (
    LedgerSink,
    Numbers,
    counted,
    eventually,
    hold_state_files,
    in_background,
    numbering,
    wait_running,
    wait_until,
)
from test_damaged import remember

from headrace import (
    CheckpointedFunction,
    Configuration,
    KeyedProcessFunction,
    ListStateDescriptor,
    SinkFunction,
    SourceFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from headrace.api.checkpoint_config import CheckpointConfig
from headrace.checkpoint.full_policy import AutomaticFull, CompletedSize
from headrace.checkpoint.settings import FullCheckpointPolicy
from headrace.errors import HeadraceError
from headrace.pyflink.datastream.checkpoint_storage import JobManagerCheckpointStorage
from headrace.pyflink.datastream.state_backend import (
    EmbeddedRocksDBStateBackend,
    FsStateBackend,
    MemoryStateBackend,
    RocksDBStateBackend,
)
from headrace.storage.log import JobLog
from headrace.storage.storage_settings import StorageSettings
from headrace.testing import run

RETAIN = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}

# --- G1: checkpoints in the memory of the driver ----------------------------------------------------------------------

G1 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="G1 memory storage drops what it is given: its directory and its size limit have no effect",
)


@G1
def test_checkpoints_in_the_memory_of_the_driver_outlive_a_cancel_if_a_directory_is_set(cluster):
    job = cluster.start(options={"execution.checkpointing.storage": "jobmanager", **RETAIN})
    job.feed(40)
    job.checkpoint()
    job.cancel()
    job.wait()
    assert list(cluster.checkpoints.rglob("_metadata")), "the checkpoint is gone with the driver"


class Large(KeyedProcessFunction):
    """Keeps a value of seven megabytes."""

    def open(self, runtime_context):
        self.value = runtime_context.get_state(ValueStateDescriptor("value", "binary"))

    def process_element(self, value, ctx):
        self.value.update(bytes(7 << 20))
        yield value


@G1
def test_the_size_limit_of_the_memory_storage_is_used(jobs, tap, ledger, tmp_path):
    def build(env: Any) -> None:
        JobManagerCheckpointStorage(max_state_size=50 << 20).apply_to(env.get_configuration())
        env.from_source(Numbers(tap.name)).key_by(lambda n: 0).process(Large()).sink_to(LedgerSink(ledger.name))

    client = wait_running(jobs.start(tmp_path / "checkpoints", build))
    tap.give(3)
    try:
        client.trigger_checkpoint(timeout=60)
    except HeadraceError as error:
        raise AssertionError(f"the checkpoint failed: {error}") from error


# --- G2: the limits of full checkpoints -------------------------------------------------------------------------------


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="G2 limits of full checkpoints: live state above a limit is written again after every cooldown, for ever",
)
@pytest.mark.parametrize(
    ("policy", "size"),
    [
        (FullCheckpointPolicy(max_size=8), CompletedSize(state_size=10, chain_length=2, shared_files={})),
        (FullCheckpointPolicy(max_files=8), CompletedSize(state_size=0, chain_length=2, shared_files={"a": 10})),
    ],
    ids=["bytes", "files"],
)
def test_state_that_has_outgrown_a_limit_is_not_written_in_full_for_ever(policy, size):
    full, taken = AutomaticFull(policy, None), 0
    for minute in range(24 * 60):
        now = minute * 60_000
        if full.due_at is not None and full.due_at <= now:
            full.take(now)
            full.completed_full(now, requested_here=True)
            taken += 1
        else:
            full.completed(now, size, earliest=now)
    assert taken <= 2


# --- G3: preferring checkpoints to savepoints -------------------------------------------------------------------------

G3 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="G3 prefer checkpoint for recovery: it has no effect, or repeats output that is visible",
)
PREFER = "headrace.resume.prefer-checkpoint"


def lines_after_a_driver_died_in_a_stop(cluster: Any, monkeypatch: Any, options: dict[str, str]) -> list[str]:
    """The visible lines of a job that goes on after its driver died between the savepoint of a stop and the end."""
    job = cluster.start(options=options)
    job.feed(50)
    job.checkpoint()
    job.feed(50)
    reached, go_on, end = threading.Event(), threading.Event(), JobLog.end

    def die(self, *args):
        reached.set()
        go_on.wait(30)
        raise OSError("the driver is dead")

    monkeypatch.setattr(JobLog, "end", die)
    in_background(lambda: job.stop(cluster.savepoints))
    if not reached.wait(30) or not cluster.comes_to_show(counted(range(100))):
        raise RuntimeError("the savepoint of the stop was not committed")
    job.kill_driver()
    go_on.set()
    monkeypatch.setattr(JobLog, "end", end)
    resumed = cluster.resume(options=options)
    if not resumed.running():
        raise RuntimeError(f"the job does not go on: {resumed.error}")
    resumed.feed_rest()
    if resumed.wait() != "FINISHED":
        raise RuntimeError(resumed.error)
    return cluster.visible()


OPTIONS = {"execution.checkpointing.num-retained": "3", **RETAIN}


@G3
def test_a_job_that_prefers_checkpoints_repeats_nothing(cluster, monkeypatch):
    lines = lines_after_a_driver_died_in_a_stop(cluster, monkeypatch, {PREFER: "true", **OPTIONS})
    assert lines == counted(range(400))


def test_a_job_goes_on_from_the_savepoint_of_a_stop_in_which_its_driver_died(cluster, monkeypatch):
    assert lines_after_a_driver_died_in_a_stop(cluster, monkeypatch, OPTIONS) == counted(range(400))


@G3
def test_preferring_checkpoints_warns_that_it_has_no_effect(caplog):
    with caplog.at_level(logging.WARNING):
        CheckpointConfig(Configuration()).set_prefer_checkpoint_for_recovery(True)
    assert any("savepoint" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("retained", ["1", "3"])
def test_a_stopped_job_goes_on_where_it_was(cluster, retained):
    options = {"execution.checkpointing.num-retained": retained, **RETAIN}
    job = cluster.start(options=options)
    job.feed(50)
    job.checkpoint()
    job.feed(50)
    job.stop(cluster.savepoints)
    resumed = cluster.resume(options=options)
    assert resumed.running(), resumed.error
    assert resumed.position == 100
    resumed.feed_rest()
    assert resumed.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


# --- G4: records while a snapshot is written --------------------------------------------------------------------------


def go_on_while_state_is_written(
    jobs: Any, tap: Any, ledger: Any, directory: Path, monkeypatch: Any, options: dict[str, str], seconds: float
) -> bool:
    """Return True if records are processed while a subtask waits for storage with its part of a checkpoint."""
    held = hold_state_files(monkeypatch, "chk-")
    jobs.at_end(held.release)
    client = wait_running(jobs.start(directory, numbering(tap, ledger), options))
    tap.give(10)
    in_background(client.trigger_checkpoint)
    assert held.reached.wait(30)
    tap.let(200)
    going = eventually(lambda: tap.given[0] >= 200, seconds)
    held.release()
    wait_until(lambda: client.job.stats.snapshot().counts.completed == 1)
    return going


def test_records_go_on_while_a_subtask_writes_its_state(jobs, tap, ledger, tmp_path, monkeypatch):  # SPEC R6.2
    assert go_on_while_state_is_written(jobs, tap, ledger, tmp_path / "checkpoints", monkeypatch, {}, 30)


def test_records_wait_while_state_is_written_if_snapshots_are_synchronous(jobs, tap, ledger, tmp_path, monkeypatch):
    options = {"state.backend.async": "false"}
    assert not go_on_while_state_is_written(jobs, tap, ledger, tmp_path / "checkpoints", monkeypatch, options, 1)


# --- G5: HDFS ---------------------------------------------------------------------------------------------------------


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="G5 HDFS: only WebHDFS without Kerberos works, hdfs:// and viewfs:// are refused",
)
@pytest.mark.parametrize(
    "path", ["hdfs://namenode:8020/checkpoints", "hdfs:///checkpoints", "viewfs://cluster/checkpoints"]
)
def test_checkpoints_can_be_kept_in_hdfs(path):
    try:
        settings = StorageSettings.of(Configuration({"execution.checkpointing.dir": path}))
    except HeadraceError as error:
        raise AssertionError(str(error)) from error
    assert str(settings.directory).startswith(path.partition(":")[0])


# --- G6: examples -----------------------------------------------------------------------------------------------------

G6 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="G6 examples do not show what they say: they take no checkpoint, and a sink keeps its last records",
)


@pytest.fixture
def example(monkeypatch):
    """Import an example by its name."""
    directory = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(directory))

    def load(name: str) -> Any:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    yield load
    for name in [
        name for name, module in sys.modules.items() if str(directory) in str(getattr(module, "__file__", ""))
    ]:
        del sys.modules[name]


sent: list[Any] = []


def send(group: list[Any]) -> None:
    sent.extend(group)


@G6
def test_the_buffering_sink_sends_all_records(example):
    module = example("buffering_sink")
    sent.clear()

    def program(env: Any) -> None:
        module.build(env, send)

    run(program)
    assert len(sent) == 10


@G6
@pytest.mark.parametrize("name", ["buffering_sink", "counter_source", "raw_state"])
def test_examples_of_state_take_checkpoints(example, name):
    module = example(name)
    env = StreamExecutionEnvironment.local()
    module.build(env)
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert env.get_checkpoint_config().is_checkpointing_enabled() or "enable_checkpointing(" in source


# --- G7: configurations of Flink 1.x ----------------------------------------------------------------------------------

G7 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="G7 configurations of Flink 1.x: refused without a word on what replaces them, or ignored in silence",
)


@G7
@pytest.mark.parametrize("value", ["filesystem", "jobmanager"])
def test_an_old_name_of_a_backend_is_taken_or_its_error_says_what_replaces_it(value):
    try:
        found = Configuration({"state.backend": value}).get("state.backend.type")
    except HeadraceError as error:
        found = str(error)
    assert found == "hashmap" or "execution.checkpointing" in found


@G7
@pytest.mark.parametrize(
    "make",
    [
        lambda: MemoryStateBackend("file:///checkpoints"),
        lambda: MemoryStateBackend("file:///checkpoints", None, 10_000_000, True),
        lambda: FsStateBackend("file:///checkpoints", 1024),
        lambda: FsStateBackend("file:///checkpoints", 1024, 4096, False),
        lambda: RocksDBStateBackend("file:///checkpoints", True, None),
    ],
    ids=["memory and path", "memory, all", "files and threshold", "files, all", "rocksdb, all"],
)
def test_old_backends_take_the_arguments_that_they_had(make):
    try:
        make()
    except TypeError as error:
        raise AssertionError(str(error)) from error


def test_the_number_of_transfer_threads_warns_that_it_has_no_effect(caplog):
    backend = EmbeddedRocksDBStateBackend()
    backend.set_number_of_transfer_threads(2)
    with caplog.at_level(logging.WARNING):
        backend.apply_to(Configuration())
    assert caplog.records


# --- a job that failed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "kept"),
    [("NO_EXTERNALIZED_CHECKPOINTS", False), ("DELETE_ON_CANCELLATION", True), ("RETAIN_ON_CANCELLATION", True)],
)
def test_another_job_goes_on_from_a_checkpoint_of_a_job_that_failed(cluster, policy, kept):  # SPEC R5.2
    retention = {"execution.checkpointing.externalized-checkpoint-retention": policy}
    job = cluster.start(options={"restart-strategy.type": "none", **retention})
    job.feed(100)
    job.checkpoint()
    assert cluster.comes_to_show(counted(range(100)))
    job.kill_worker()
    assert job.wait() == "FAILED"
    found = sorted(path.parent for path in cluster.checkpoints.glob("*/chk-*/_metadata"))
    assert bool(found) is kept
    if kept:
        again = cluster.start_from(found[0])
        assert again.running(), again.error
        again.feed_rest()
        assert again.wait() == "FINISHED"
        assert cluster.visible() == counted(range(400))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_workers_restore_from_local_copies_by_the_option_of_flink_1_alone(cluster, tmp_path, backend):
    copies = {
        "state.backend.type": backend,
        "execution.checkpointing.data-inline-threshold": "1 kb",
        "state.backend.local-recovery": "true",
        "execution.checkpointing.local-backup.dirs": str(tmp_path / "copies"),
    }
    job = cluster.start(remember, copies, total=6000)
    job.feed(5000)
    job.checkpoint()
    assert eventually(lambda: list((tmp_path / "copies").rglob("1/*")))
    for reads in job.storage.reads.values():
        reads.clear()
    job.kill_worker()
    job.feed_rest()
    assert job.wait() == "FINISHED", job.error
    assert job.storage.reads["workers"] == []


# --- programs of Flink's documentation --------------------------------------------------------------------------------


class BufferingSink(SinkFunction, CheckpointedFunction):
    def __init__(self, threshold):
        self.threshold, self.buffered = threshold, []

    def invoke(self, value, context):
        self.buffered.append(value)
        if len(self.buffered) >= self.threshold:
            sent.append(list(self.buffered))
            self.buffered.clear()

    def snapshot_state(self, context):
        self.checkpointed.update(self.buffered)

    def initialize_state(self, context):
        pair = Types.TUPLE([Types.STRING(), Types.LONG()])
        self.checkpointed = context.get_operator_state_store().get_list_state(ListStateDescriptor("buffered", pair))
        if context.is_restored():
            self.buffered = list(self.checkpointed.get())


def test_a_group_that_a_restart_cut_is_sent_whole():
    def program(env: Any) -> None:
        numbers = env.from_datagen(lambda n: ("a", n), count=7, rate=1.0).uid("numbers")
        numbers.add_sink(BufferingSink(3)).uid("sink")

    sent.clear()
    first = run(program, until=3500, snapshot=True)
    before = len(sent)
    run(program, start_time=3500, restore=first.snapshot)
    assert 0 < before < 2
    assert sent == [[("a", 0), ("a", 1), ("a", 2)], [("a", 3), ("a", 4), ("a", 5)]]


class CounterSource(SourceFunction, CheckpointedFunction):
    def __init__(self):
        self.offset, self.is_running = 0, True

    def run(self, ctx):
        while self.is_running:
            with ctx.get_checkpoint_lock():
                ctx.collect(self.offset)
                self.offset += 1

    def cancel(self):
        self.is_running = False

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("state", "bigint"))
        for offset in self.state.get():
            self.offset = offset

    def snapshot_state(self, context):
        self.state.update([self.offset])


def test_a_counter_goes_on_where_its_snapshot_was():
    def program(env: Any) -> Any:
        return env.add_source(CounterSource(), type_info="bigint").uid("counter").map(lambda n: n)

    first = run(program, until=lambda result: len(result.records) >= 10, snapshot=True)
    second = run(program, until=lambda result: len(result.records) >= 10, restore=first.snapshot)
    count = len(first.records)
    assert first.records == list(range(count))
    assert second.records[:10] == list(range(count, count + 10))
