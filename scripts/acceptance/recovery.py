"""Recovery at scale: what the driver and the workers read when a job restarts."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from acceptance.checkpoints import checkpointed
from acceptance.dataflow import Endless
from acceptance.lines import Outcome, line, wait_until
from headrace import Configuration, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.checkpoint.handles import FileRef, KeyedStateHandle, Payload, TypeMeta, encode_handle
from headrace.checkpoint.types import SnapshotType
from headrace.driver.checkpoint_service import CheckpointService
from headrace.driver.cluster import Submission
from headrace.driver.services import DriverIo
from headrace.graph.plan import JobPlan
from headrace.ids import JobId
from headrace.records.key_groups import key_group_range
from headrace.records.types import PICKLED
from headrace.storage.byte_handles import FileSegment
from headrace.storage.layout import AttemptId, JobLayout, shared_file, subtask_owner
from headrace.storage.local import LocalStore
from headrace.storage.log import JobLog
from headrace.storage.manifest import Manifest, OperatorManifest, PieceKind, SnapshotPart, StatePiece, SubtaskManifest
from headrace.storage.published_snapshots import publish
from headrace.storage.remote import open_store

SUBTASKS, FILES = 100, 200_000
SIZE = 50 << 20  # bytes of a file, 10 TB in all: nothing reads them
JOB = JobId("0" * 31 + "1")


class Pass(KeyedProcessFunction):
    """The operator that has the state."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


def plan_of(configuration: Configuration) -> JobPlan:
    """A program with keyed state."""
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(SUBTASKS).set_max_parallelism(128)
    env.from_sequence(1, 9).key_by(lambda value: value).process(Pass()).print()
    return env._job_plan("large")  # noqa: SLF001


def subtask_of(layout: JobLayout, index: int) -> SubtaskManifest:
    """As rocksdb describes it: a payload and a part for each file."""
    groups = key_group_range(index, 128, SUBTASKS)
    files, parts = [], []
    for number in range(FILES // SUBTASKS):
        part = f"0000000-0-cbc357cc-{index}-{number:06d}-{number:08x}.sst"
        name = shared_file(AttemptId(1), 1, subtask_owner(1, index), f"{index:016x}{number:016x}")
        files.append(FileRef(f"{number:06d}.sst", Payload(part, SIZE, number), shared=True, created_by=1))
        parts.append(SnapshotPart(part, FileSegment(f"{layout.shared}/{name}", 0, SIZE, number), shared=True))
    handle = KeyedStateHandle("rocksdb", 1, 128, groups.start, groups.end, TypeMeta.of(PICKLED), [], files)
    return SubtaskManifest(index, (StatePiece(PieceKind.KEYED, tuple(parts), encode_handle(handle), groups),))


def complete_checkpoint(directory: Path, plan: JobPlan) -> None:
    """The metadata and the log of a job with one large checkpoint; its state files do not exist."""
    store, layout = open_store(), JobLayout.of(str(directory), JOB)
    log = JobLog.start(store, layout, plan.name, clock=lambda: 0)
    keyed = plan.graph.vertices[1]
    operators = tuple(
        OperatorManifest(op.id, op.name, SUBTASKS, 128, tuple(subtask_of(layout, i) for i in range(SUBTASKS)))
        for op in keyed.operators[:1]
    )
    store.make_directory(layout.checkpoint(1))
    manifest = Manifest(1, SnapshotType.CHECKPOINT, JOB, plan.name, AttemptId(1), 0, operators)
    log.complete(publish(store, manifest, layout.checkpoint(1)))


def start(service: CheckpointService, attempt: int) -> int:
    """What the driver does for an attempt until Spark has its tasks; their bytes."""
    restore = service.start_attempt(attempt, service.choose())
    submission = Submission(service.plan, service.job_id, attempt, restore, service.worker_storage())
    return sum(len(pickle.dumps(submission.tasks(level))) for level in range(len(service.plan.layout.levels)))


@line("recovery-200k-files", 300)
def recovery_200k_files() -> Outcome:
    """The driver's part of a resume, and of a restart, with 200,000 shared files: < 10 s each."""
    with tempfile.TemporaryDirectory() as name:
        options = {
            "execution.checkpointing.dir": name,
            "execution.checkpointing.incremental": "true",
            "headrace.resume": "true",
        }
        plan = plan_of(Configuration(options))
        complete_checkpoint(Path(name), plan)
        metadata = next(Path(name).glob("*/chk-1/_metadata")).stat().st_size
        port: Any = SimpleNamespace(send=None, call=None, fail=None, stand_down=None)
        began = time.perf_counter()
        service = CheckpointService(plan, JOB, Configuration(options), port, DriverIo())
        tasks = start(service, 0)
        resumed = time.perf_counter() - began
        began = time.perf_counter()
        start(service, 1)
        restarted = time.perf_counter() - began
    figure = (
        f"resume {resumed:.1f} s, restart {restarted:.1f} s, metadata {metadata >> 20} MiB, tasks {tasks >> 20} MiB"
    )
    return Outcome(max(resumed, restarted) < 10, figure)


KEYS = 10_000_000
YEAR = 365 * 24 * 3_600_000  # milliseconds


class Remember(KeyedProcessFunction):
    """State for every key; one of the numbered keys that comes again is an error."""

    def open(self, runtime_context: Any) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", "bigint"))

    def process_element(self, value: int, ctx: Any) -> Any:
        if value >= 0 and self._seen.value() is not None:
            raise ValueError(f"{value} comes again")
        self._seen.update(value)
        return []


def driver_reads(directory: Path) -> list[str]:
    """From now on: what the driver's process reads of the checkpoints; workers are other processes."""
    reads, read = [], LocalStore.read

    def counted(self: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path.startswith(str(directory)):
            reads.append(path.rpartition("/")[2])
        return read(self, path, offset, length)

    LocalStore.read = counted  # type: ignore[method-assign]
    return reads


@line("recovery-10m-keys-local", 1800)
def recovery_10m_keys_local() -> Outcome:
    """A worker dies with 10,000,000 keys and local copies: no byte of state is read from storage, which has none."""
    with tempfile.TemporaryDirectory() as name:
        checkpoints = Path(name, "checkpoints")
        options = {
            "execution.checkpointing.local-backup.enabled": "true",
            "execution.checkpointing.local-backup.dirs": f"{name}/copies",
            "execution.state-recovery.from-local": "true",
        }
        # Only the one that is requested: the first periodic one starts at a random moment of the interval, and then the
        # requested one subsumes it, so that the driver deletes files here while this program does.
        env = checkpointed(2, options, name).enable_checkpointing(YEAR)
        keep_running = env.add_source(Endless()).map(lambda n: -1 - n, output_type="bigint")
        env.from_sequence(0, KEYS - 1).union(keep_running).key_by(lambda n: n).process(Remember())
        client = env.execute_async("ten million keys")
        job = client.job
        job.wait_running(120)
        keyed = max(level for level, _ in job.workers())
        seen = lambda: sum(m.records_in for (level, _), m in job.metrics().items() if level == keyed)  # noqa: E731
        wait_until(lambda: seen() >= KEYS, 900, "all keys")
        job.trigger_checkpoint(timeout=600)
        for path in checkpoints.rglob("*.s*"):
            path.unlink()
        reads = driver_reads(checkpoints)
        began = time.monotonic()
        os.kill(job.workers()[keyed, 0].pid, signal.SIGKILL)
        wait_until(lambda: (job.restarts and job.wait_running(0)) or job.status.is_terminal, 600, "the restart")
        job.raise_if_failed()
        seconds = time.monotonic() - began
        new = lambda: [m for (level, _), m in job.metrics().items() if level == keyed and m.restored_bytes]  # noqa: E731
        metrics = wait_until(lambda: new() if len(new()) == 2 else None, 60, "metrics of the new workers")
        restored, local = sum(m.restored_bytes for m in metrics), sum(m.restored_locally for m in metrics)
        client.cancel()
    figure = (
        f"{local >> 20} of {restored >> 20} MiB from local copies in {seconds:.1f} s, driver read {sorted(set(reads))}"
    )
    return Outcome(restored == local > 0 and "_metadata" in reads and not any("." in one for one in reads), figure)
