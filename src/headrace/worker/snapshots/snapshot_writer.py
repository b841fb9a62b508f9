"""Write the snapshots of a subtask, and acknowledge each one to the driver when everything is durable.

`SnapshotWriter` has a thread of its own, so that records are processed while a snapshot is written.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec

from headrace.checkpoint.assignment import StateShape
from headrace.checkpoint.handles import KeyedStateHandle, Payload, encode_handle
from headrace.checkpoint.plan import TaskReport
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.stats import SubtaskMetrics
from headrace.checkpoint.types import SavepointFormat
from headrace.control import messages
from headrace.control.deployment import WorkerStorage
from headrace.errors import HeadraceError, LocalStateError
from headrace.ids import OperatorId
from headrace.records.key_groups import KeyGroupRange
from headrace.state.backend import SnapshotRun
from headrace.state.operator import OperatorStateSnapshot
from headrace.state.parquet.operator import StoredOperatorTable, StoredOperatorTables, write_operator_tables
from headrace.storage.layout import AttemptId, table_directory, table_file
from headrace.storage.manifest import PieceKind, SnapshotPart, StatePiece
from headrace.storage.objects import ObjectStore
from headrace.storage.remote import open_store
from headrace.storage.writer import Scope, SnapshotTarget, StateWriter
from headrace.worker.failures import error_text
from headrace.worker.operators.base import OperatorSnapshot
from headrace.worker.operators.registry import own_state
from headrace.worker.snapshots.local_copies import CopyWriter, LocalCopies
from headrace.worker.snapshots.taken_snapshots import SnapshotInProgress


class SnapshotWriter:
    """Writes snapshots in the background, one at a time."""

    def __init__(
        self,
        storage: WorkerStorage,
        owner: str,
        send: Callable[[messages.AcknowledgeCheckpoint | messages.DeclineCheckpoint], None],
        store: ObjectStore | None = None,
        executor: Executor | None = None,
        copies: LocalCopies | None = None,
    ) -> None:
        """`copies`: where second copies of keyed state are written (SPEC R7.7)."""
        self._storage, self._owner, self._send, self.copies = storage, owner, send, copies
        self._store = store or open_store(write_buffer=storage.write_buffer, private=storage.private)
        self._pool = executor or ThreadPoolExecutor(1, thread_name_prefix="headrace-snapshot")
        self._captured = threading.Condition()
        self._broken: LocalStateError | None = None  # what the task fails with
        self._under_way: dict[int, SnapshotInProgress] = {}  # by checkpoint

    def start(self, progress: SnapshotInProgress) -> None:
        """Write a snapshot whose synchronous part is done."""
        self._under_way[progress.barrier.id] = progress
        progress.queued = time.monotonic()
        if self._storage.asynchronous or progress.capturing:  # in-flight data arrives only while the main loop runs
            self._pool.submit(self._write, progress)
        else:
            self._write(progress)

    def wake(self) -> None:
        """Look again at snapshots that wait for in-flight data, or that were cancelled.

        Raise the LocalStateError after which no snapshot can succeed: the task fails with it.
        """
        with self._captured:
            self._captured.notify_all()
        if self._broken is not None:
            raise self._broken

    def confirmed(self, checkpoint_id: int) -> None:
        """Remove the local copies of checkpoints older than this complete one."""
        if self.copies is not None:
            self._pool.submit(self.copies.confirmed, checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """Remove the local copy of an aborted checkpoint."""
        if self.copies is not None:
            self._pool.submit(self.copies.aborted, checkpoint_id)

    def close(self, finished: bool = False) -> None:
        """Wait until started snapshots are written; a subtask that has `finished` does not need its local copies."""
        self._pool.shutdown(wait=True)
        if finished and self.copies is not None:
            self.copies.remove()

    def cancel(self) -> None:
        """Delete the files of snapshots that cannot be acknowledged: the task has failed and its connection is closed."""
        with self._captured:
            for progress in list(self._under_way.values()):
                progress.cancel()
            self._captured.notify_all()

    def _write(self, progress: SnapshotInProgress) -> None:
        started = time.monotonic()
        writer: StateWriter | None = None
        copied: list[CopyWriter] = []
        try:
            target = _target(self._storage, progress)
            writer = StateWriter(self._store, target, self._owner)
            shared = target.shared_directory is not None
            state, shapes = _write_operators(progress, writer, shared, self.copies, copied)
            self._wait_for_capture(progress)
            _write_captured(progress, writer, state)
            if progress.cancelled:
                _abort(writer, copied)
                return
            written = writer.close()
            for copy in copied:
                copy.commit()
            aligned = progress.metrics
            metrics = SubtaskMetrics(
                checkpointed_size=written.total_bytes,
                state_size=sum(piece.size for pieces in state.values() for piece in pieces),
                sync_ms=progress.sync_ms,
                async_ms=int((time.monotonic() - started) * 1000),
                alignment_ms=aligned.alignment,
                start_delay_ms=aligned.start_delay,
                processed_bytes=aligned.processed_bytes,
                persisted_bytes=aligned.persisted_bytes,
                unaligned=progress.barrier.options.unaligned or bool(progress.captured),
                objects_written=written.objects,
                sync_started=progress.started,
                written=progress.started + progress.sync_ms + int((time.monotonic() - progress.queued) * 1000),
            )
            report = TaskReport(shapes, progress.finished, progress.finished_on_restore)
            if not self._acknowledge(
                progress, messages.AcknowledgeCheckpoint(progress.barrier.id, state, report, metrics)
            ):
                writer.abort()
        except Exception as error:
            was_cancelled = progress.cancelled  # then reading its state fails, and no answer is expected
            progress.cancel()
            with suppress(HeadraceError):  # the first error is reported; `headrace gc` finds files that are left
                _abort(writer, copied)
            if was_cancelled:
                return
            reason = FailureReason.CHECKPOINT_ASYNC_EXCEPTION
            self._send(messages.DeclineCheckpoint(progress.barrier.id, reason, error_text(error)))
            if isinstance(error, LocalStateError):
                self._broken = error  # RocksDB refuses all work after an error
        finally:
            self._under_way.pop(progress.barrier.id, None)

    def _acknowledge(self, progress: SnapshotInProgress, message: messages.AcknowledgeCheckpoint) -> bool:
        """Send it, unless `cancel` came first: the connection may be closed, and the driver would not know the files."""
        with self._captured:
            if not progress.cancelled:
                self._send(message)
            return not progress.cancelled

    def _wait_for_capture(self, progress: SnapshotInProgress) -> None:
        with self._captured:
            while progress.capturing and not progress.cancelled:
                self._captured.wait(0.2)


def snapshot_inline(progress: SnapshotInProgress) -> messages.TaskState:
    """Write a snapshot at once and keep its bytes inside the handles: for the local runtime and the harness."""
    target = SnapshotTarget(progress.barrier.id, AttemptId(1), max_inline_state=sys.maxsize)
    writer = StateWriter(open_store(), target, "local")
    state, _ = _write_operators(progress, writer, False, None, [])
    _write_captured(progress, writer, state)
    writer.close()
    return state


def _target(storage: WorkerStorage, progress: SnapshotInProgress) -> SnapshotTarget:
    """Return the place of one snapshot."""
    options = progress.barrier.options
    directory = options.location or None
    shared = None if options.type.is_savepoint else storage.shared_directory
    return SnapshotTarget(progress.barrier.id, storage.attempt, directory, shared, storage.inline_threshold)


def _write_operators(
    progress: SnapshotInProgress,
    writer: StateWriter,
    shared: bool,
    copies: LocalCopies | None,
    copied: list[CopyWriter],
) -> tuple[messages.TaskState, dict[OperatorId, dict[str, StateShape]]]:
    """Write the state of all operators; the second copies that were begun are added to `copied`."""
    options = progress.barrier.options
    canonical = options.format is SavepointFormat.CANONICAL
    scope = Scope.TABLE if canonical else Scope.SHARED if shared else Scope.EXCLUSIVE
    written: messages.TaskState = {}
    shapes: dict[OperatorId, dict[str, StateShape]] = {}
    for operator in progress.operators:
        pieces: list[StatePiece] = []
        state = operator.operator_state()
        own = own_state(operator.operator.spec, state.shapes())
        if not state.is_empty and canonical:
            pieces.append(msgspec.structs.replace(_write_operator_tables(operator, state, writer), own=own))
        elif not state.is_empty:
            part = writer.write(f"{operator.operator.id}-operator", msgspec.msgpack.encode(state))
            pieces.append(StatePiece(PieceKind.OPERATOR, () if part is None else (part,), own=own))
        if operator.keyed is not None:
            copy = None
            if copies is not None and not options.type.is_savepoint:
                copied.append(copy := copies.begin(progress.barrier.id, operator.operator.id))
            piece = _write_keyed(operator.keyed, writer, scope, copy)
            if piece is not None:
                pieces.append(piece)
        written[operator.operator.id] = tuple(pieces)
        shapes[operator.operator.id] = state.shapes()
    return written, shapes


def _write_captured(progress: SnapshotInProgress, writer: StateWriter, state: messages.TaskState) -> None:
    """Write captured in-flight data with the head of the chain."""
    if progress.captured and not progress.cancelled:
        head = progress.operators[0].operator.id
        part = writer.write(f"{head}-channels", msgspec.msgpack.encode(progress.captured))
        state[head] += (StatePiece(PieceKind.CHANNEL, () if part is None else (part,)),)


def _write_operator_tables(operator: OperatorSnapshot, state: OperatorStateSnapshot, writer: StateWriter) -> StatePiece:
    """Operator state of a canonical savepoint."""
    directory = table_directory(operator.operator.label, operator.operator.id)
    parts, tables = [], []
    for one, data, rows in write_operator_tables(state, operator.subtask):
        name = table_file(directory, one.name, operator.subtask, keyed=False)
        part = writer.write(name, data, Scope.TABLE)
        assert part is not None
        parts.append(part)
        tables.append(StoredOperatorTable(one.name, one.mode, one.types, name, rows))
    raw = None
    if state.raw is not None:
        raw = f"{operator.operator.id}-raw"
        kept = writer.write(raw, msgspec.msgpack.encode(state.raw))
        assert kept is not None
        parts.append(kept)
    description = msgspec.msgpack.encode(StoredOperatorTables(tuple(tables), raw))
    return StatePiece(PieceKind.OPERATOR, tuple(parts), description)


def _write_keyed(run: SnapshotRun, writer: StateWriter, scope: Scope, copy: CopyWriter | None) -> StatePiece | None:
    """Write the payloads in the order in which they come; refer to those that an earlier checkpoint has written."""
    parts: dict[str, SnapshotPart] = {}
    for name, payloads in groupby(run, itemgetter(0)):
        part = writer.write(name, _copied(payloads, copy), scope)
        if part is not None:
            parts[name] = part
    handle = run.handle
    if handle is None:
        return None
    for payload in handle.payloads():
        if payload.id not in parts and payload.size:
            parts[payload.id] = _stored(payload, writer, scope, copy)
    groups = KeyGroupRange(handle.first_group, handle.last_group)
    return StatePiece(PieceKind.KEYED, tuple(parts.values()), encode_handle(_without_bytes(handle)), groups)


def _copied(payloads: Iterable[tuple[str, bytes]], copy: CopyWriter | None) -> Iterator[bytes]:
    for name, data in payloads:
        if copy is not None:
            copy.write(name, data)
        yield data


def _stored(payload: Payload, writer: StateWriter, scope: Scope, copy: CopyWriter | None) -> SnapshotPart:
    """Write a payload that did not come as a stream: a local file, or one that an earlier checkpoint has written."""
    if payload.path is not None:
        if copy is not None:
            copy.add(payload.id, Path(payload.path))
        part = writer.write_file(payload.id, Path(payload.path), scope)
        assert part is not None
        return part
    if copy is not None:
        copy.reuse(payload.id)
    return writer.reuse(payload.id, payload.size)


def _without_bytes(handle: KeyedStateHandle) -> KeyedStateHandle:
    replace = msgspec.structs.replace
    segments = [replace(s, payload=replace(s.payload, data=None, path=None)) for s in handle.segments]
    files = [replace(f, payload=replace(f.payload, data=None, path=None)) for f in handle.files]
    return replace(handle, segments=segments, files=files)


def _abort(writer: StateWriter | None, copied: list[CopyWriter]) -> None:
    for copy in copied:
        copy.abort()
    if writer is not None:
        writer.abort()
