"""The snapshots of a job on storage, or in the driver's memory: made, published, restored from, deleted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from headrace import config
from headrace.api.sink import Prepared, Sink, sink_kind
from headrace.api.state_claims import taken_state
from headrace.checkpoint import events as ev
from headrace.checkpoint.assignment import (
    SPLITS,
    FinishedState,
    Predecessor,
    SavedOperator,
    TakenState,
    check_finished_graph,
    describe_state,
    restored_max_parallelism,
    unclaimed_state,
)
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.plan import TaskId
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings, ClaimMode, EndStatus
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.checkpoint.types import SnapshotType
from headrace.config import Configuration
from headrace.control.deployment import VertexRestore, WorkerStorage
from headrace.control.messages import TaskState
from headrace.control.operator_state import operator_state_of, prepared_in
from headrace.driver.services import DriverIo
from headrace.errors import IllegalState, StateMigrationError, StorageError
from headrace.graph.job_graph import ChainedOperator, Vertex
from headrace.graph.plan import JobPlan
from headrace.ids import JobId, OperatorId, VertexId
from headrace.state.operator import OperatorStateBackend, rescale
from headrace.storage import manifest as mf
from headrace.storage.checkpoints import (
    Snapshot,
    delete_each,
    discard_checkpoint,
    discard_claimed,
    discard_pending,
    load_snapshot,
    publish,
)
from headrace.storage.handles import FileSegment, InlineBytes, size_of
from headrace.storage.layout import (
    AttemptId,
    JobLayout,
    is_inside,
    make_savepoint_directory,
    resolve_ref,
    savepoint_target,
)
from headrace.storage.log import (
    CommitNumber,
    CompletedRef,
    JobEndClaimed,
    JobLog,
    LogEntry,
    LogMoved,
    SupersededError,
    load_completed,
    newest_job,
    numbers_of,
)
from headrace.storage.objects import MissingObject, ObjectStore, OutcomeUnknown
from headrace.storage.reader import SnapshotReader
from headrace.storage.remote import open_store
from headrace.storage.settings import StorageKind, StorageSettings
from headrace.storage.shared import SharedStateRegistry

_SETTLE_SECONDS = 0.5
_READ_TRIES = 5
_READ_PAUSE_SECONDS = 1.0
_CLAIM_TRIES = 20
_KEYED = {mf.PieceKind.KEYED, mf.PieceKind.CHANNEL}


class JobSnapshots:
    """Everything a job stores for its checkpoints. I/O methods are called from the service's pool."""

    def __init__(self, plan: JobPlan, job_id: JobId, configuration: Configuration, io: DriverIo) -> None:
        self._plan, self._configuration, self._io = plan, configuration, io
        self._settings = StorageSettings.of(configuration)
        self._store = io.open_store(self._settings)
        self._registry = SharedStateRegistry()
        self._lock = threading.Lock()
        self._restart = 0
        self._published: dict[int, Snapshot] = {}
        self._loaded: dict[int, Snapshot] = {}  # until the first attempt has chosen one
        self.damaged: dict[int, StorageError] = {}  # checkpoints that are not restored any more, and why
        self._undeleted: list[str] = []  # shared files that are not needed any more, but could not be deleted yet
        self._commits = Commits()  # of storage 'jobmanager', which has no log
        self._numbers_after = self._numbered = 0  # of the job that an imported snapshot is of; the last one
        self.job_id = job_id
        self._newest: CompletedRef | None = None  # in the log of a job that is resumed
        self._recovered: list[CompletedCheckpoint] = []  # that one and those before it, oldest first
        self._origin = configuration.get(config.RECOVERY_PATH)  # the snapshot of another job that the job began with
        self._layout: JobLayout | None = None
        self._named: Snapshot | None = None  # that snapshot, as long as the job has no checkpoint of its own
        self._log: JobLog | None = None
        if configuration.get(config.RESUME):
            self._resume()
        else:
            self._layout = self._settings.layout(job_id) if self._in_files else None
            self._load_named()
            self._log = self._start_log()

    @property
    def _in_files(self) -> bool:
        return self._settings.kind is StorageKind.FILESYSTEM

    def replan(self, plan: JobPlan) -> None:
        """The next attempt runs another plan of the same program."""
        self._plan = plan

    # --- starting ---------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Continue the newest job of this name: from its newest checkpoint, without one from what it began with.

        The log is claimed with the entry that the checkpoint was chosen from. As long as the driver that is replaced is faster,
        the choice is made again: what it completes meanwhile must not be dropped. Older checkpoints stay retained, a step back
        may need them.
        """
        directory = self._settings.directory
        if directory is None or not self._in_files:
            raise IllegalState(
                "--resume needs execution.checkpointing.dir, the directory of the job that is to be continued, and "
                "execution.checkpointing.storage=filesystem"
            )
        named = self._origin
        for tries_left in reversed(range(_CLAIM_TRIES)):
            entry = newest_job(self._store, directory, self._plan.name, self._io.warn)
            self._layout = self._settings.layout(entry.job_id)
            self.job_id, self._origin = entry.job_id, entry.origin or named
            self._newest = next(
                iter(entry.newest_first(self._configuration.get(config.RESUME_PREFERS_CHECKPOINT))), None
            )
            if self._newest is None and isinstance(entry.event, JobEndClaimed):
                raise IllegalState(
                    f"cannot resume: job '{entry.job_name}' ({entry.job_id}) is {entry.event.status} and has retained no "
                    "checkpoint; start it without --resume"
                )
            self._load_named()
            try:
                self._log = self._start_log(entry)
                break
            except LogMoved as error:
                if not tries_left:
                    raise IllegalState(
                        f"cannot resume: {error}, {_CLAIM_TRIES} times in a row; stop or cancel that driver first"
                    ) from error
        assert self._layout is not None
        if self._newest is not None:
            refs = entry.retained_up_to(self._newest.commit)
            self._recovered = [self._retained(self._layout, ref) for ref in refs]

    def _load_named(self) -> None:
        """Load the snapshot that the job begins with, unless it has a checkpoint of its own."""
        named = self._newest is None and self._origin is not None
        self._named = load_snapshot(self._store, str(self._origin)) if named else None
        if self._named is not None:
            self._commits, self._numbers_after = self._imported_numbers(self._named)
            self._numbered = self._numbers_after

    def _retained(self, layout: JobLayout, ref: CompletedRef) -> CompletedCheckpoint:
        """A checkpoint that the log names, with its metadata loaded unless they are damaged.

        Its shared files are registered. A savepoint belongs to the user: none of its files is, and no increment builds on it.
        """
        mode = ClaimMode.NO_CLAIM if ref.is_savepoint else ClaimMode.CLAIM
        size, chain_length = 0, 1
        try:
            snapshot = self._patiently(lambda: load_completed(self._store, layout, ref))
        except (CorruptState, MissingObject) as error:
            self._io.warn(f"checkpoint {ref.checkpoint_id} is DAMAGED and cannot be restored: {error}")
            self.damaged[ref.checkpoint_id] = error
        else:
            self._loaded[ref.checkpoint_id] = snapshot
            size, chain_length = _size(snapshot.manifest), mf.chain_length(snapshot.manifest)
            if mode is ClaimMode.CLAIM:
                self._registry.register_restored(snapshot.manifest, mode)
        retention = CheckpointSettings.from_configuration(self._configuration).retention
        properties = CheckpointProperties.for_restored(mode, retention)
        where = resolve_ref(ref.pointer, layout.job)
        return CompletedCheckpoint(
            ref.checkpoint_id, self._io.now(), properties, where, where, ref.commit, size, chain_length
        )

    def _start_log(self, resumed: LogEntry | None = None) -> JobLog | None:
        if self._layout is None:
            return None
        return JobLog.start(
            self._store,
            self._layout,
            self._plan.name,
            clock=self._io.now,
            resumed=resumed,
            restored=self._newest,
            origin=self._configuration.get(config.RECOVERY_PATH),
            commits=self._commits,
            numbers_after=self._numbers_after,
        )

    def recovered(self) -> tuple[Sequence[CompletedCheckpoint], int]:
        """The checkpoints a resumed job finds, and the next free id."""
        newest = max((checkpoint.id for checkpoint in self._recovered), default=0)
        next_id = newest + 1 if self._layout is None else self._layout.next_checkpoint_id(self._store, newest)
        return self._recovered, next_id

    @property
    def resumed(self) -> mf.Manifest | None:
        """The newest metadata that a resumed job has found."""
        found = (self._loaded.get(checkpoint.id) for checkpoint in reversed(self._recovered))
        return next((snapshot.manifest for snapshot in found if snapshot is not None), None)

    def _imported_numbers(self, snapshot: Snapshot) -> tuple[Commits, int]:
        job_id = snapshot.manifest.job_id
        beside = JobLayout(snapshot.directory.rpartition("/")[0], job_id, create_subdir=False)
        ours = self._settings.layout(job_id) if self._in_files else None
        return numbers_of(self._store, snapshot, [beside] if ours is None else [beside, ours])

    def import_named(self) -> ev.SnapshotImported | None:
        """The snapshot that the user names to start from, if any (SPEC R8.4)."""
        snapshot = self._named
        if snapshot is None:
            return None
        manifest = snapshot.manifest
        self._published[manifest.checkpoint_id] = self._loaded[manifest.checkpoint_id] = snapshot
        self._registry.register_restored(manifest, self._claim_mode)
        where, chain_length = snapshot.directory, mf.chain_length(manifest)
        return ev.SnapshotImported(
            manifest.checkpoint_id, where, where, self._claim_mode, _size(manifest), chain_length
        )

    @property
    def _claim_mode(self) -> ClaimMode:
        return ClaimMode(self._configuration.get(config.RECOVERY_CLAIM_MODE))

    def has_registered(self, manifest: mf.Manifest) -> bool:
        """Whether all keyed state of a snapshot is in the registry, so that increments may build on it."""
        with self._lock:
            return self._registry.has_keyed_parts(manifest)

    def worker_storage(self, restart: int, incremental: bool) -> WorkerStorage:
        """Where the workers of an attempt write."""
        self._restart = restart
        shared_directory = self._layout.shared if self._layout is not None and incremental else None
        asynchronous = self._configuration.get(config.ASYNC_SNAPSHOTS)
        return WorkerStorage(
            self._attempt(),
            shared_directory,
            self._settings.inline_threshold,
            asynchronous,
            self.staging,
            self._settings.write_buffer,
            self._settings.private,
        )

    @property
    def staging(self) -> str | None:
        """Where sinks may put files that are not visible yet; None without a directory for checkpoints."""
        return None if self._layout is None else self._layout.task_owned

    def _attempt(self, restart: int | None = None) -> AttemptId:
        restart = self._restart if restart is None else restart
        return AttemptId(1, restart) if self._log is None else self._log.attempt(restart)

    # --- a checkpoint's way -----------------------------------------------------------------------------------------

    def prepare(self, checkpoint_id: int, type: SnapshotType, target: str | None) -> str:
        """Make the directory; empty for storage 'jobmanager'."""
        if type.is_savepoint:
            below = savepoint_target(target, self._settings.savepoint_directory)
            return make_savepoint_directory(self._store, below, self.job_id)
        if self._layout is None:
            return ""
        self._layout.create_directories(self._store)
        directory = self._layout.checkpoint(checkpoint_id)
        self._store.make_directory(directory)
        return directory

    def register(self, checkpoint_id: int, state: TaskState) -> TaskState:
        """Note that a checkpoint uses the shared files of a part; gives the part with its placeholders replaced."""
        with self._lock:
            return {op: self._registry.register_pieces(op, pieces, checkpoint_id) for op, pieces in state.items()}

    def publish(self, content: ev.Content) -> ev.MetadataWritten:
        """Write the metadata: from here on the checkpoint can be restored from."""
        manifest = self._manifest(content)
        if content.location:
            snapshot = publish(self._store, manifest, content.location)
        else:
            snapshot = Snapshot(manifest, "", 0, 0)
        with self._lock:
            self._published[content.checkpoint_id] = snapshot
        pointer = content.location or f"memory of the driver, checkpoint {content.checkpoint_id}"
        return ev.MetadataWritten(content.checkpoint_id, pointer, snapshot.size, snapshot=snapshot)

    def _manifest(self, content: ev.Content) -> mf.Manifest:
        operators = []
        states = {task: self.register(content.checkpoint_id, state) for task, state in content.states.items()}
        for vertex in self._plan.graph.vertices:
            outcome = content.vertices.get(vertex.id)
            done = _finished(outcome, vertex.parallelism)
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
        return mf.Manifest(
            content.checkpoint_id,
            content.properties.type,
            self.job_id,
            self._plan.name,
            self._attempt(),
            content.timestamp,
            tuple(operators),
            None if content.properties.format is None else content.properties.format.value.lower(),
            self.commits.including(content.checkpoint_id, self._next_number),
        )

    @property
    def _next_number(self) -> int:
        return self._numbered + 1 if self._log is None else self._log.next_number

    def claim(self, checkpoint_id: int, subsumed: Sequence[int]) -> ev.LogEntryClaimed | ev.StepFailed | ev.Superseded:
        """Make a checkpoint complete: its entry in the job log, whose number is the commit number."""
        if self._log is None:
            self._numbered = self._next_number  # as in a log: never again, whatever is stepped back over
            self._commits = self._commits.add(checkpoint_id, self._numbered)
            return ev.LogEntryClaimed(checkpoint_id, self._numbered)
        commits = [CommitNumber(number) for number in subsumed]
        snapshot = self._published[checkpoint_id]
        if (
            snapshot.manifest.type is SnapshotType.SYNC_SAVEPOINT
            and snapshot.manifest.commits.last != self._next_number
        ):
            raise IllegalState(
                "an entry of the job log was claimed while the savepoint was written; stop the job again"
            )
        try:
            return ev.LogEntryClaimed(checkpoint_id, self._log.complete(snapshot, commits).commit)
        except SupersededError as error:
            return ev.Superseded(checkpoint_id, str(error))
        except OutcomeUnknown as error:
            return self._settle(checkpoint_id, error)

    def claim_end(self, status: EndStatus, discarded: Sequence[int]) -> ev.Superseded | ev.JobEnded:
        """Record the end in the job log before anything is deleted; where that is not possible nothing is."""
        failure: StorageError | None = None
        for _ in range(_READ_TRIES):
            try:
                if self._log is not None:
                    self._log.end(status.name, discarded)
                return ev.JobEnded(status)
            except SupersededError as error:
                return ev.Superseded(0, str(error))
            except StorageError as error:
                failure = error
                self._io.pause(_SETTLE_SECONDS)
        self._io.warn(f"the end of job {self.job_id} cannot be recorded, so nothing is deleted: {failure}")
        return ev.JobEnded(EndStatus.SUSPENDED)

    def _settle(self, checkpoint_id: int, error: OutcomeUnknown) -> ev.LogEntryClaimed | ev.StepFailed | ev.Superseded:
        """Whether a claim counts is not known: ask until it is, since nothing can continue before."""
        assert self._log is not None
        damaged = 0
        while True:
            try:
                ref = self._log.settle()
            except SupersededError as superseded:
                return ev.Superseded(checkpoint_id, str(superseded))
            except StorageError as failure:
                damaged += isinstance(failure.__cause__, CorruptState)
                if damaged >= _READ_TRIES:  # no later try makes a damaged log whole
                    return ev.Superseded(checkpoint_id, f"the job log is damaged, the job cannot continue: {failure}")
                self._io.pause(_SETTLE_SECONDS)
                continue
            if ref is None:
                return ev.StepFailed(checkpoint_id, str(error))
            return ev.LogEntryClaimed(checkpoint_id, ref.commit)

    @property
    def commits(self) -> Commits:
        """The completions that what was prepared by subtasks is committed under."""
        return self._commits if self._log is None else self._log.commits

    # --- restoring --------------------------------------------------------------------------------------------------

    def load(self, checkpoint: CompletedCheckpoint) -> Snapshot:
        """The metadata of a completed checkpoint; CorruptState or MissingObject if they, or files of it, are damaged.

        Files are not read here: a checkpoint may have hundreds of thousands of them. Workers verify what they restore.
        """
        loaded = self._loaded.get(checkpoint.id)
        self._loaded.clear()
        if checkpoint.id not in self.damaged:
            if loaded is not None:
                return loaded
            if not checkpoint.location:
                return self._published[checkpoint.id]
            try:
                return self._patiently(lambda: load_snapshot(self._store, checkpoint.pointer))
            except (CorruptState, MissingObject) as error:
                self.damaged[checkpoint.id] = error
        raise self.damaged[checkpoint.id]

    def look_up(self, checkpoint: CompletedCheckpoint) -> Snapshot:
        """The metadata of a completed checkpoint, for a look from another thread."""
        found = self._published.get(checkpoint.id)
        return load_snapshot(self._store, checkpoint.pointer) if found is None else found

    def step_back_to(self, checkpoint: CompletedCheckpoint) -> Commits:
        """The completions up to a checkpoint that is restored; later ones are history that did not happen.

        What a snapshot of another job holds is committed under the numbers of that job, whenever it is restored.
        """
        number = checkpoint.commit_number
        if self._log is None:
            self._commits = self._commits.up_to(self._numbers_after if number is None else number)
        else:
            self._log.step_back_to(number)
        return self.commits

    def driver_states(self, manifest: mf.Manifest) -> dict[OperatorId, bytes]:
        """What the parts of operators on the driver left."""
        reader = SnapshotReader(self._store)
        return {op.id: reader.read(op.coordinator) for op in manifest.operators if op.coordinator is not None}

    def published(self, checkpoint_id: int) -> mf.Manifest:
        """The metadata of a checkpoint that is complete."""
        return self._published[checkpoint_id].manifest

    def prepared(self, manifest: mf.Manifest, operator_id: str) -> list[Prepared]:
        """What the subtasks of a sink had prepared."""
        return prepared_of(self._store, manifest, operator_id)

    def _patiently(self, read: Callable[[], Snapshot]) -> Snapshot:
        """Storage that does not answer says nothing about a checkpoint: ask again before giving up."""
        for _ in range(_READ_TRIES - 1):
            try:
                return read()
            except (CorruptState, MissingObject):
                raise
            except StorageError:
                self._io.pause(_READ_PAUSE_SECONDS)
        return read()

    # --- deleting: SupersededError if another driver, which may need the files, has taken over -----------------------

    def check_leading(self) -> None:
        if self._log is not None:
            self._log.check_leading()

    def discard_part(self, state: TaskState) -> None:
        """Delete the private files of one subtask's part."""
        self.check_leading()
        parts = (part for pieces in state.values() for piece in pieces for part in piece.parts)
        private = (p.handle.path for p in parts if isinstance(p.handle, FileSegment) and not p.shared)
        delete_each(self._store, dict.fromkeys(private))

    def discard(self, do: ev.DiscardCheckpoint) -> ev.Discarded:
        """Delete a checkpoint, completed or not; shared files stay until they are released."""
        with self._lock:
            published = self._published.pop(do.checkpoint_id, None)
        if not do.location:
            return ev.Discarded(do.checkpoint_id)
        self.check_leading()
        if do.completed and self._layout is not None and do.location == self._layout.checkpoint(do.checkpoint_id):
            discard_checkpoint(self._store, self._layout, do.checkpoint_id)
        elif do.completed:
            discard_claimed(self._store, published or load_snapshot(self._store, do.location))
        else:
            attempt = None if do.type.is_savepoint else self._attempt(do.attempt)
            discard_pending(self._store, do.location, attempt, None if do.type.is_savepoint else do.snapshot)
        return ev.Discarded(do.checkpoint_id)

    def release(self, lowest: int | None) -> tuple[tuple[str, ...], frozenset[int]]:
        """What no retained checkpoint needs any more; files of other jobs stay unless CLAIM gave them to this one."""
        with self._lock:
            freed = self._registry.unregister_unused(1 << 62 if lowest is None else lowest)
            freed_paths = freed.delete
            if self._layout is not None and self._claim_mode is not ClaimMode.CLAIM:
                freed_paths = tuple(path for path in freed_paths if is_inside(path, self._layout.job))
            paths, self._undeleted = (*self._undeleted, *freed_paths), []
        return paths, freed.in_use

    def delete(self, paths: Sequence[str], in_use: frozenset[int]) -> frozenset[int]:
        """Delete shared files; gives `in_use` back. What cannot be deleted is tried again with the next release."""
        self.check_leading()
        failed = delete_each(self._store, paths)
        with self._lock:
            self._undeleted += failed
        return in_use


def prepared_of(store: ObjectStore, manifest: mf.Manifest, operator_id: str) -> list[Prepared]:
    """What the subtasks of a sink had prepared at a checkpoint, the oldest first."""
    reader = SnapshotReader(store)
    for operator in manifest.operators:
        if operator.id == operator_id:
            left = [operator_state_of(reader, subtask.pieces) for subtask in operator.subtasks]
            return prepared_in(OperatorStateBackend(operator.name, rescale(left, 1)[0]))
    return []


def _size(manifest: mf.Manifest) -> int:
    return sum(size_of(handle) for handle in mf.handles_of(manifest))


def _finished(outcome: object, parallelism: int) -> frozenset[int]:
    state = getattr(outcome, "state", None)
    if state is FinishedState.FULLY:
        return frozenset(range(parallelism))
    return frozenset(getattr(outcome, "finished", ()))


def named_manifest(configuration: Configuration) -> mf.Manifest | None:
    """The metadata of the snapshot that the user names to start from, if any."""
    pointer = configuration.get(config.RECOVERY_PATH)
    return None if pointer is None else load_snapshot(open_store(), pointer).manifest


def claimed_state(plan: JobPlan, manifest: mf.Manifest, *, ignore_unmatched: bool) -> mf.Manifest:
    """The manifest without state that no operator of the program takes (SPEC R8.5).

    StateMigrationError if there is such state, unless it may be dropped.
    """
    known = {operator.id: operator for vertex in plan.graph.vertices for operator in vertex.operators}
    lost = [op for op in manifest.operators if op.id not in known and any(s.pieces for s in op.subtasks)]
    refused = {op.id: left for op in manifest.operators if op.id in known and (left := unclaimed_of(op, known[op.id]))}
    if not ignore_unmatched:
        _refuse_lost(manifest.checkpoint_id, lost)
        _refuse_unclaimed(manifest, refused, known)
    operators = tuple(
        _without(op, refused[op.id]) if op.id in refused else op for op in manifest.operators if op.id in known
    )
    return msgspec.structs.replace(manifest, operators=operators)


def unclaimed_of(left: mf.OperatorManifest, operator: ChainedOperator) -> TakenState | None:
    """The state of running subtasks that the operator which has their uid now cannot take; None if it takes all."""
    state = mf.state_in(piece for subtask in left.subtasks if not subtask.finished for piece in subtask.pieces)
    if left.coordinator is not None and not left.fully_finished:
        state = TakenState(state.keyed, SPLITS)  # those that no reader has yet
    return unclaimed_state(state, taken_state(operator.spec))


def _label(operator: mf.OperatorManifest) -> str:
    return f"'{operator.name}'" + (f" (uid {operator.uid})" if operator.uid else "")


def _refuse_lost(checkpoint_id: int, lost: Sequence[mf.OperatorManifest]) -> None:
    if lost:
        names = ", ".join(map(_label, lost))
        raise StateMigrationError(
            f"checkpoint {checkpoint_id} has state of operators that the program does not have any more: {names}; "
            "give them their uids back, or set execution.state-recovery.ignore-unclaimed-state=true to drop that state"
        )


def _refuse_unclaimed(
    manifest: mf.Manifest, refused: Mapping[OperatorId, TakenState], known: Mapping[OperatorId, ChainedOperator]
) -> None:
    if refused:
        before = {op.id: op for op in manifest.operators}
        found = "; ".join(
            f"{_label(before[id])} has left {describe_state(left)}, and its place has {_taker(known[id])}"
            for id, left in refused.items()
        )
        raise StateMigrationError(
            f"checkpoint {manifest.checkpoint_id} has state that the operator under the same uid cannot take: {found}; give the "
            "uid back to the operator that had it, and the new one another uid, or set "
            "execution.state-recovery.ignore-unclaimed-state=true to drop that state"
        )


def _taker(operator: ChainedOperator) -> str:
    sink = operator.spec.function
    kind = f", a sink of kind '{sink_kind(sink)}' (its output_kind)" if isinstance(sink, Sink) else ""
    return f"'{operator.name}' ({operator.call_site}){kind}"


def _without(operator: mf.OperatorManifest, dropped: TakenState) -> mf.OperatorManifest:
    kinds = {mf.PieceKind.KEYED} if dropped.keyed else set()
    kinds |= {mf.PieceKind.OPERATOR} if dropped.own is not None else set()
    subtasks = tuple(
        msgspec.structs.replace(subtask, pieces=tuple(piece for piece in subtask.pieces if piece.kind not in kinds))
        for subtask in operator.subtasks
    )
    return msgspec.structs.replace(operator, subtasks=subtasks)


def restore_plan(
    plan: JobPlan, manifest: mf.Manifest, *, claim: bool, commits: Commits = NO_COMMITS
) -> dict[VertexId, VertexRestore]:
    """What each vertex starts from; `manifest` is a `claimed_state`."""
    by_id = {operator.id: operator for operator in manifest.operators}
    restore: dict[VertexId, VertexRestore] = {}
    finished: dict[VertexId, FinishedState] = {}
    for vertex in plan.graph.vertices:
        found = {op.id: by_id[op.id] for op in vertex.operators if op.id in by_id}
        if not found:
            continue
        saved = [op for op in saved_operators(found.values()).values() if op.keyed or vertex.max_parallelism_set]
        restored_max_parallelism(vertex.name, saved, vertex.parallelism, vertex.max_parallelism)
        dropped = plan.settings.without_channel_state == manifest.checkpoint_id
        operators = {str(op_id): _left(op, without_channel_state=dropped) for op_id, op in found.items()}
        finished[vertex.id] = _finished_before(vertex, found)
        restore[vertex.id] = VertexRestore(
            manifest.checkpoint_id,
            vertex.parallelism,
            vertex.max_parallelism,
            operators,
            claim,
            finished[vertex.id] is FinishedState.FULLY,
            commits,
        )
    often = Counter(vertex.name for vertex in plan.graph.vertices)
    labels = {v.id: v.name if often[v.name] == 1 else f"{v.name} ({v.id})" for v in plan.graph.vertices}
    check_finished_graph(
        {labels[vertex]: state for vertex, state in finished.items()},
        {
            labels[vertex.id]: [
                Predecessor(labels[edge.source], edge.partitioning.pointwise) for edge in plan.graph.inputs(vertex.id)
            ]
            for vertex in plan.graph.vertices
        },
    )
    return restore


def saved_operators(operators: Collection[mf.OperatorManifest]) -> dict[OperatorId, SavedOperator]:
    """The operators that left state; keyed are those whose state or in-flight data goes by key groups."""
    kinds = {op.id: {piece.kind for subtask in op.subtasks for piece in subtask.pieces} for op in operators}
    return {
        op.id: SavedOperator(op.name, op.max_parallelism, not kinds[op.id].isdisjoint(_KEYED))
        for op in operators
        if kinds[op.id]
    }


def _finished_before(vertex: Vertex, found: Mapping[OperatorId, mf.OperatorManifest]) -> FinishedState:
    """How far a vertex had come; an operator that is new in it has not finished."""
    if len(found) == len(vertex.operators) and all(op.fully_finished for op in found.values()):
        return FinishedState.FULLY
    some = any(subtask.finished for op in found.values() for subtask in op.subtasks)
    return FinishedState.PARTLY if some else FinishedState.RUNNING


def _left(operator: mf.OperatorManifest, *, without_channel_state: bool) -> list[tuple[mf.StatePiece, ...] | None]:
    left: list[tuple[mf.StatePiece, ...] | None] = [None] * operator.parallelism
    for subtask in operator.subtasks:
        if not subtask.finished:
            left[subtask.index] = tuple(
                piece for piece in subtask.pieces if not (without_channel_state and piece.kind is mf.PieceKind.CHANNEL)
            )
    return left
