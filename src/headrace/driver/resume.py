"""The start of a job's checkpoints: a new job, one that begins with the snapshot of another, or one that is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace import config
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings, ClaimMode
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.config import Configuration
from headrace.driver.services import DriverIo
from headrace.driver.snapshot_loader import load_patiently
from headrace.errors import IllegalState, StorageError
from headrace.ids import JobId
from headrace.storage import manifest as mf
from headrace.storage.byte_handles import size_of
from headrace.storage.layout import JobLayout, resolve_ref
from headrace.storage.log import (
    CompletedRef,
    JobEndClaimed,
    JobLog,
    LogEntry,
    LogMoved,
    load_completed,
    newest_job,
    numbers_of,
)
from headrace.storage.memory_log import MemoryLog
from headrace.storage.objects import MissingObject, ObjectStore
from headrace.storage.published_snapshots import Snapshot, load_snapshot
from headrace.storage.remote import open_store
from headrace.storage.storage_settings import StorageKind, StorageSettings

_CLAIM_TRIES = 20


@dataclass(frozen=True, slots=True)
class RetainedCheckpoint:
    """A checkpoint of the job that is resumed: its metadata, or the damage that keeps it from being restored."""

    checkpoint: CompletedCheckpoint
    loaded: Snapshot | StorageError

    @property
    def claimed(self) -> bool:
        """True for a checkpoint of the job; a savepoint belongs to the user."""
        return not self.checkpoint.properties.unclaimed


@dataclass(frozen=True, slots=True)
class Start:
    """The state on storage that a job begins with."""

    job_id: JobId
    layout: JobLayout | None
    """The paths of the job's files; None if nothing is stored in files."""
    log: JobLog | MemoryLog
    next_id: int
    """The next free id of a checkpoint."""
    imported: Snapshot | None = None
    """The snapshot that the job begins with, as long as it has no checkpoint of its own."""
    retained: Sequence[RetainedCheckpoint] = ()
    """The checkpoints of the job that is resumed, oldest first."""

    @property
    def staging(self) -> str | None:
        """The directory where sinks may put files that are not visible yet; None without one for checkpoints."""
        return None if self.layout is None else self.layout.task_owned

    @property
    def newest_manifest(self) -> mf.Manifest | None:
        """The newest undamaged metadata of the job that is resumed."""
        found = (one.loaded for one in reversed(self.retained))
        return next((loaded.manifest for loaded in found if isinstance(loaded, Snapshot)), None)


class JobStarter:
    """Starts the log of one job, after it has found what the job continues."""

    def __init__(self, job_name: str, configuration: Configuration, store: ObjectStore, io: DriverIo) -> None:
        self._job_name, self._configuration, self._store, self._io = job_name, configuration, store, io
        self._settings = StorageSettings.of(configuration)
        self._in_files = self._settings.kind is StorageKind.FILESYSTEM

    def start(self, job_id: JobId) -> Start:
        """Start a new job under this id, or resume the newest one of the same name."""
        if self._configuration.get(config.RESUME):
            return self._resume()
        layout = self._settings.layout(job_id) if self._in_files else None
        pointer = self._configuration.get(config.RECOVERY_PATH)
        imported = None if pointer is None else load_snapshot(self._store, pointer)
        commits, numbers_after = (NO_COMMITS, 0) if imported is None else self._imported_numbers(imported)
        if layout is None:
            return Start(job_id, None, MemoryLog(commits, numbers_after), 1, imported)
        log = self._start_log(layout, None, None, imported)
        return Start(job_id, layout, log, layout.next_checkpoint_id(self._store, 0), imported)

    def _resume(self) -> Start:
        """Continue the newest job of this name: from its newest checkpoint, without one from the snapshot it began with.

        The log is claimed with the entry that the checkpoint was chosen from. As long as the driver that is replaced is
        faster, the choice is made again: what it completes meanwhile must not be dropped. Older checkpoints stay retained,
        a step back may need them.
        """
        directory = self._settings.directory
        if directory is None or not self._in_files:
            raise IllegalState(
                "HR-1006",
                "--resume needs execution.checkpointing.dir, the directory of the job that is to be continued, and "
                "execution.checkpointing.storage=filesystem",
            )
        for _ in range(_CLAIM_TRIES):
            entry = newest_job(self._store, directory, self._job_name, self._io.warn)
            layout = self._settings.layout(entry.job_id)
            assert layout is not None
            try:
                return self._resume_from(entry, layout)
            except LogMoved as error:
                moved = error
        raise IllegalState(
            "HR-3003", f"cannot resume: {moved}, {_CLAIM_TRIES} times in a row; stop or cancel that driver first"
        ) from moved

    def _resume_from(self, entry: LogEntry, layout: JobLayout) -> Start:
        """Continue a job from the newest entry of its log; LogMoved if its driver has written another one."""
        newest = next(iter(entry.newest_first(self._configuration.get(config.RESUME_PREFERS_CHECKPOINT))), None)
        if newest is None and isinstance(entry.event, JobEndClaimed):
            raise IllegalState(
                "HR-3001",
                f"cannot resume: job '{entry.job_name}' ({entry.job_id}) is {entry.event.status} and has retained no "
                "checkpoint; start it without --resume",
            )
        origin = entry.origin or self._configuration.get(config.RECOVERY_PATH)
        imported = load_snapshot(self._store, origin) if newest is None and origin is not None else None
        log = self._start_log(layout, entry, newest, imported)
        refs = () if newest is None else entry.retained_up_to(newest.commit)
        retained = [self._retained(layout, ref) for ref in refs]
        highest = max((one.checkpoint.id for one in retained), default=0)
        next_id = layout.next_checkpoint_id(self._store, highest)
        return Start(entry.job_id, layout, log, next_id, imported, retained)

    def _start_log(
        self, layout: JobLayout, resumed: LogEntry | None, newest: CompletedRef | None, imported: Snapshot | None
    ) -> JobLog:
        commits, numbers_after = (NO_COMMITS, 0) if imported is None else self._imported_numbers(imported)
        return JobLog.start(
            self._store,
            layout,
            self._job_name,
            clock=self._io.now,
            resumed=resumed,
            restored=newest,
            origin=self._configuration.get(config.RECOVERY_PATH),
            commits=commits,
            numbers_after=numbers_after,
        )

    def _imported_numbers(self, snapshot: Snapshot) -> tuple[Commits, int]:
        """Return the completions of the job that an imported snapshot is from, and the highest number of that job."""
        job_id = snapshot.manifest.job_id
        beside = JobLayout(snapshot.directory.rpartition("/")[0], job_id, create_subdir=False)
        ours = self._settings.layout(job_id) if self._in_files else None
        return numbers_of(self._store, snapshot, [beside] if ours is None else [beside, ours])

    def _retained(self, layout: JobLayout, ref: CompletedRef) -> RetainedCheckpoint:
        """Load the metadata of a checkpoint that the log names, unless they are damaged.

        A savepoint belongs to the user: no increment builds on it.
        """
        mode = ClaimMode.NO_CLAIM if ref.is_savepoint else ClaimMode.CLAIM
        loaded: Snapshot | StorageError
        size, chain_length = 0, 1
        try:
            loaded = load_patiently(lambda: load_completed(self._store, layout, ref), self._io)
            size, chain_length = size_of_state(loaded.manifest), mf.chain_length(loaded.manifest)
        except (CorruptState, MissingObject) as error:
            self._io.warn(f"checkpoint {ref.checkpoint_id} is DAMAGED and cannot be restored: {error}")
            loaded = error
        retention = CheckpointSettings.from_configuration(self._configuration).retention
        properties = CheckpointProperties.for_restored(mode, retention)
        where = resolve_ref(ref.pointer, layout.job)
        checkpoint = CompletedCheckpoint(
            ref.checkpoint_id, self._io.now(), properties, where, where, ref.commit, size, chain_length
        )
        return RetainedCheckpoint(checkpoint, loaded)


def size_of_state(manifest: mf.Manifest) -> int:
    """Return the bytes of all state in a snapshot."""
    return sum(size_of(handle) for handle in mf.handles_of(manifest))


def named_manifest(configuration: Configuration) -> mf.Manifest | None:
    """Load the metadata of the snapshot that the user names to start from, if any."""
    pointer = configuration.get(config.RECOVERY_PATH)
    return None if pointer is None else load_snapshot(open_store(), pointer).manifest
