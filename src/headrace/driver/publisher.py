"""The way of a checkpoint on the driver: its directory, its metadata, and the claim in the job log that completes it.

Called by the I/O threads of the driver; claims by one thread, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace import config
from headrace.checkpoint import events as ev
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.plan import TaskId
from headrace.checkpoint.settings import EndStatus
from headrace.checkpoint.types import SnapshotType
from headrace.config import Configuration
from headrace.control.deployment import WorkerStorage
from headrace.driver.resume import Start
from headrace.driver.services import DriverIo
from headrace.driver.shared_files import SharedFiles
from headrace.driver.snapshot_loader import SnapshotLoader
from headrace.errors import IllegalState, StorageError
from headrace.graph.plan import JobPlan
from headrace.storage import manifest as mf
from headrace.storage.byte_handles import InlineBytes
from headrace.storage.layout import make_savepoint_directory, savepoint_target
from headrace.storage.log import CommitNumber, SupersededError
from headrace.storage.objects import ObjectStore, OutcomeUnknown
from headrace.storage.published_snapshots import Snapshot, publish
from headrace.storage.storage_settings import StorageSettings

_TRIES = 5
_PAUSE_SECONDS = 0.5


class Publisher:
    """Publishes and completes the checkpoints of one job."""

    def __init__(
        self,
        plan: JobPlan,
        start: Start,
        configuration: Configuration,
        store: ObjectStore,
        io: DriverIo,
        shared: SharedFiles,
        loader: SnapshotLoader,
    ) -> None:
        self._plan, self._start, self._store, self._io = plan, start, store, io
        self._shared, self._loader = shared, loader
        self._settings = StorageSettings.of(configuration)
        self._asynchronous = configuration.get(config.ASYNC_SNAPSHOTS)
        self._attempt = start.log.attempt(0)

    def replan(self, plan: JobPlan) -> None:
        """The next attempt runs another plan of the same program."""
        self._plan = plan

    def start_attempt(self, restart: int, incremental: bool) -> WorkerStorage:
        """Publish for a new attempt from now on; return the places that its workers write to."""
        self._attempt = self._start.log.attempt(restart)
        layout, settings = self._start.layout, self._settings
        return WorkerStorage(
            self._attempt,
            layout.shared if layout is not None and incremental else None,
            settings.inline_threshold,
            self._asynchronous,
            self._start.staging,
            settings.write_buffer,
            settings.private,
        )

    # --- metadata ---------------------------------------------------------------------------------------------------

    def prepare(self, checkpoint_id: int, type: SnapshotType, target: str | None) -> str:
        """Make the directory of a snapshot; empty for a checkpoint of storage 'jobmanager'."""
        if type.is_savepoint:
            below = savepoint_target(target, self._settings.savepoint_directory)
            return make_savepoint_directory(self._store, below, self._start.job_id)
        layout = self._start.layout
        if layout is None:
            return ""
        layout.create_directories(self._store)
        directory = layout.checkpoint(checkpoint_id)
        self._store.make_directory(directory)
        return directory

    def publish(self, content: ev.Content) -> ev.MetadataWritten:
        """Write the metadata of a checkpoint, which can be restored from then on."""
        manifest = self._manifest(content)
        if content.location:
            snapshot = publish(self._store, manifest, content.location)
        else:
            snapshot = Snapshot(manifest, "", 0, 0)
        self._loader.add(snapshot)
        pointer = content.location or f"memory of the driver, checkpoint {content.checkpoint_id}"
        return ev.MetadataWritten(content.checkpoint_id, pointer, snapshot.size, snapshot=snapshot)

    def _manifest(self, content: ev.Content) -> mf.Manifest:
        operators = []
        states = {task: self._shared.register(content.checkpoint_id, state) for task, state in content.states.items()}
        for vertex in self._plan.graph.vertices:
            outcome = content.vertices.get(vertex.id)
            done = () if outcome is None else outcome.finished
            for operator in vertex.operators:
                subtasks = tuple(
                    mf.SubtaskManifest(i, states.get(TaskId(vertex.id, i), {}).get(operator.id, ()), finished=i in done)
                    for i in range(vertex.parallelism)
                )
                driver_state = content.driver_states.get(operator.id)
                operators.append(
                    mf.OperatorManifest(
                        operator.id,
                        operator.name,
                        vertex.parallelism,
                        vertex.max_parallelism,
                        subtasks,
                        operator.uid,
                        None if driver_state is None else InlineBytes(driver_state),
                    )
                )
        log = self._start.log
        return mf.Manifest(
            content.checkpoint_id,
            content.properties.type,
            self._start.job_id,
            self._plan.name,
            self._attempt,
            content.timestamp,
            tuple(operators),
            None if content.properties.format is None else content.properties.format.value.lower(),
            log.commits.including(content.checkpoint_id, log.next_number),
        )

    # --- claims in the job log --------------------------------------------------------------------------------------

    def claim(self, checkpoint_id: int, subsumed: Sequence[int]) -> ev.LogEntryClaimed | ev.StepFailed | ev.Superseded:
        """Complete a checkpoint: claim its entry in the job log, whose number is the commit number."""
        log, snapshot = self._start.log, self._loader.published(checkpoint_id)
        if snapshot.manifest.type is SnapshotType.SYNC_SAVEPOINT and snapshot.manifest.commits.last != log.next_number:
            raise IllegalState(
                "HR-3009", "an entry of the job log was claimed while the savepoint was written; stop the job again"
            )
        try:
            return ev.LogEntryClaimed(checkpoint_id, log.complete(snapshot, list(map(CommitNumber, subsumed))).commit)
        except SupersededError as error:
            return ev.Superseded(checkpoint_id, str(error))
        except OutcomeUnknown as error:
            return self._settle(checkpoint_id, error)

    def _settle(self, checkpoint_id: int, error: OutcomeUnknown) -> ev.LogEntryClaimed | ev.StepFailed | ev.Superseded:
        """Find out whether a claim whose reply was lost went through: ask until that is known, since nothing can continue before."""
        damaged = 0
        while True:
            try:
                ref = self._start.log.settle()
            except SupersededError as superseded:
                return ev.Superseded(checkpoint_id, str(superseded))
            except StorageError as failure:
                damaged += isinstance(failure.__cause__, CorruptState)
                if damaged >= _TRIES:  # no later try makes a damaged log whole
                    return ev.Superseded(checkpoint_id, f"the job log is damaged, the job cannot continue: {failure}")
                self._io.pause(_PAUSE_SECONDS)
                continue
            if ref is None:
                return ev.StepFailed(checkpoint_id, str(error))
            return ev.LogEntryClaimed(checkpoint_id, ref.commit)

    def claim_end(self, status: EndStatus, discarded: Sequence[int]) -> ev.Superseded | ev.JobEnded:
        """Record the end in the job log before anything is deleted; where that is not possible, nothing is deleted."""
        failure: StorageError | None = None
        for _ in range(_TRIES):
            try:
                self._start.log.end(status.name, discarded)
                return ev.JobEnded(status)
            except SupersededError as error:
                return ev.Superseded(0, str(error))
            except StorageError as error:
                failure = error
                self._io.pause(_PAUSE_SECONDS)
        self._io.warn(f"the end of job {self._start.job_id} cannot be recorded, so nothing is deleted: {failure}")
        return ev.JobEnded(EndStatus.SUSPENDED)
