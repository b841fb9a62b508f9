"""A subtask's snapshot on its way to storage: the worker's side of a checkpoint (`restore_files` is the way back).

Writing runs in a thread of its own while records go on; the driver gets an acknowledgement when everything is durable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate.checkpoint.handles import KeyedStateHandle, Payload, encode_handle
from headgate.checkpoint.reasons import FailureReason
from headgate.checkpoint.types import SavepointFormat
from headgate.control.messages import AcknowledgeCheckpoint, DeclineCheckpoint
from headgate.errors import HeadgateError
from headgate.graph.table_paths import operator_table_file
from headgate.records.key_groups import KeyGroupRange
from headgate.state.backend import SnapshotRun
from headgate.state.operator import OperatorStateSnapshot
from headgate.state.parquet.operator import StoredOperatorTable, StoredOperatorTables, write_operator_tables
from headgate.storage.layout import AttemptId
from headgate.storage.manifest import PieceKind, StatePart, StatePiece
from headgate.storage.objects import ObjectStore
from headgate.storage.remote import open_store
from headgate.storage.writer import PartStream, Scope, SnapshotTarget, StateWriter
from headgate.worker.local_copies import CopyWriter, LocalCopies
from headgate.worker.operators.base import OperatorSnapshot
from headgate.worker.snapshot import SnapshotInProgress

__all__ = ["AckState", "SnapshotWriter", "WorkerStorage"]


class AckState(msgspec.Struct, frozen=True):
    """What one subtask says of its state: for each operator the pieces it wrote, and its operator states' shapes."""

    operators: dict[str, tuple[StatePiece, ...]]
    shapes: dict[str, dict[str, tuple[str, int]]] = {}  # by operator and state: mode and number of elements

    def encode(self) -> bytes:
        """For the acknowledgement."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> AckState:
        """From the acknowledgement."""
        return msgspec.msgpack.decode(data, type=AckState)


@dataclass(frozen=True, slots=True)
class WorkerStorage:
    """Where a worker writes: plain data that travels with the task."""

    attempt: AttemptId
    in_files: bool  # else state travels in the acknowledgement
    shared_directory: str | None
    inline_threshold: int
    asynchronous: bool = True  # else records wait until a snapshot is written
    staging: str | None = None  # for files of sinks that are not visible yet

    def target(self, progress: SnapshotInProgress) -> SnapshotTarget:
        """Where one checkpoint goes."""
        options = progress.barrier.options
        directory = options.location or None
        shared = None if options.type.is_savepoint else self.shared_directory
        return SnapshotTarget(progress.barrier.id, self.attempt, directory, shared, self.inline_threshold)


class SnapshotWriter:
    """Writes snapshots in the background, one at a time."""

    def __init__(
        self,
        storage: WorkerStorage,
        owner: str,
        send: Callable[[AcknowledgeCheckpoint | DeclineCheckpoint], None],
        store: ObjectStore | None = None,
        executor: Executor | None = None,
        copies: LocalCopies | None = None,
    ) -> None:
        """`copies` are second copies on this host, if those are wanted."""
        self._storage, self._owner, self._send, self.copies = storage, owner, send, copies
        self._store = store or open_store()
        self._pool = executor or ThreadPoolExecutor(1, thread_name_prefix="headgate-snapshot")
        self._captured = threading.Condition()

    def start(self, progress: SnapshotInProgress) -> None:
        """Write a snapshot whose synchronous part is done."""
        if self._storage.asynchronous or progress.capturing:  # what is in flight comes only while the loop goes on
            self._pool.submit(self._write, progress)
        else:
            self._write(progress)

    def wake(self) -> None:
        """The in-flight data of a snapshot may be whole now, or the snapshot is given up."""
        with self._captured:
            self._captured.notify_all()

    def confirmed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: copies of older ones can go."""
        if self.copies is not None:
            self._pool.submit(self.copies.confirmed, checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up: its copy can go."""
        if self.copies is not None:
            self._pool.submit(self.copies.aborted, checkpoint_id)

    def close(self, finished: bool = False) -> None:
        """Wait for what is being written; a subtask that has `finished` needs its copies no more."""
        self._pool.shutdown(wait=True)
        if finished and self.copies is not None:
            self.copies.remove()

    def _write(self, progress: SnapshotInProgress) -> None:
        started = time.monotonic()
        writer: StateWriter | None = None
        copied: list[CopyWriter] = []
        try:
            writer = StateWriter(self._store, self._storage.target(progress), self._owner)
            shapes: dict[str, dict[str, tuple[str, int]]] = {}
            operators = {
                op.operator_id: self._operator(op, writer, progress, shapes, copied) for op in progress.operators
            }
            self._channel_state(progress, operators, writer)
            if progress.cancelled:
                writer.abort()
                _abort_all(copied)
                return
            written = writer.close()
            for copy in copied:
                copy.commit()
            self._send(
                self._acknowledgement(
                    progress, AckState(operators, shapes), written.total_bytes, written.objects, started
                )
            )
        except Exception as error:
            given_up = progress.cancelled  # then reading on fails, and nobody waits for an answer
            progress.cancel()
            _abort_all(copied)
            if writer is not None:
                _abort_quietly(writer)
            if given_up:
                return
            reason = FailureReason.CHECKPOINT_ASYNC_EXCEPTION.name
            self._send(DeclineCheckpoint(progress.barrier.id, reason, f"{type(error).__name__}: {error}"))

    def _operator(
        self,
        operator: OperatorSnapshot,
        writer: StateWriter,
        progress: SnapshotInProgress,
        shapes: dict[str, dict[str, tuple[str, int]]],
        copied: list[CopyWriter],
    ) -> tuple[StatePiece, ...]:
        pieces = []
        state = operator.operator_state()
        shapes[operator.operator_id] = {n: (s.mode.value, s.elements) for n, s in state.shapes().items()}
        canonical = progress.barrier.options.format is SavepointFormat.CANONICAL
        if not state.is_empty and canonical:
            pieces.append(self._operator_tables(operator, state, writer))
        elif not state.is_empty:
            part = writer.write(f"{operator.operator_id}-operator", msgspec.msgpack.encode(state))
            pieces.append(StatePiece(PieceKind.OPERATOR, () if part is None else (part,)))
        if operator.keyed is not None:
            savepoint = progress.barrier.options.type.is_savepoint
            shared = self._storage.shared_directory is not None and not savepoint
            scope = Scope.TABLE if canonical else Scope.SHARED if shared else Scope.EXCLUSIVE
            copy = None
            if self.copies is not None and not savepoint:
                copied.append(copy := self.copies.begin(progress.barrier.id, operator.operator_id))
            piece = self._keyed(operator.keyed, writer, scope, copy)
            if piece is not None:
                pieces.append(piece)
        return tuple(pieces)

    def _operator_tables(
        self, operator: OperatorSnapshot, state: OperatorStateSnapshot, writer: StateWriter
    ) -> StatePiece:
        """Operator state of a canonical savepoint."""
        parts, tables = [], []
        for one, data, rows in write_operator_tables(state, operator.subtask):
            name = operator_table_file(operator.operator, one.name, operator.subtask)
            part = writer.write(name, data, Scope.TABLE)
            assert part is not None
            parts.append(part)
            tables.append(StoredOperatorTable(one.name, one.mode, one.types, name, rows))
        raw = None
        if state.raw is not None:
            raw = f"{operator.operator_id}-raw"
            kept = writer.write(raw, msgspec.msgpack.encode(state.raw))
            assert kept is not None
            parts.append(kept)
        described = msgspec.msgpack.encode(StoredOperatorTables(tuple(tables), raw))
        return StatePiece(PieceKind.OPERATOR, tuple(parts), described)

    def _keyed(self, run: SnapshotRun, writer: StateWriter, scope: Scope, copy: CopyWriter | None) -> StatePiece | None:
        """Write the payloads as they come, one after the other; name those that an earlier checkpoint has written."""
        parts: dict[str, StatePart] = {}
        stream: PartStream | None = None
        current = ""
        for name, data in run:
            if stream is None or name != current:
                _finish(stream, parts, current)
                stream, current = writer.open(name, scope), name
            stream.write(data)
            if copy is not None:
                copy.write(name, data)
        _finish(stream, parts, current)
        handle = run.handle
        if handle is None:
            return None
        for payload in handle.payloads():
            if payload.id not in parts and payload.size:
                parts[payload.id] = _stored(payload, writer, scope, copy)
        bare = encode_handle(_without_bytes(handle))
        groups = KeyGroupRange(handle.first_group, handle.last_group)
        return StatePiece(PieceKind.KEYED, tuple(parts.values()), bare, groups)

    def _channel_state(
        self, progress: SnapshotInProgress, operators: dict[str, tuple[StatePiece, ...]], writer: StateWriter
    ) -> None:
        """Wait until the in-flight data is whole, and write it with the head of the chain."""
        with self._captured:
            while progress.capturing and not progress.cancelled:
                self._captured.wait(0.2)
        if progress.captured and not progress.cancelled:
            head = progress.operators[0].operator_id
            part = writer.write(f"{head}-channels", msgspec.msgpack.encode(progress.captured))
            operators[head] += (StatePiece(PieceKind.CHANNEL, () if part is None else (part,)),)

    def _acknowledgement(
        self, progress: SnapshotInProgress, state: AckState, written: int, objects: int, started: float
    ) -> AcknowledgeCheckpoint:
        metrics = progress.metrics
        full = sum(piece.size for pieces in state.operators.values() for piece in pieces)
        return AcknowledgeCheckpoint(
            progress.barrier.id,
            state.encode(),
            finished=progress.finished,
            finished_on_restore=progress.finished_on_restore,
            checkpointed_size=written,
            state_size=full,
            sync_ms=progress.sync_ms,
            async_ms=int((time.monotonic() - started) * 1000),
            alignment_ms=metrics.alignment,
            start_delay_ms=metrics.start_delay,
            processed_bytes=metrics.processed_bytes,
            persisted_bytes=metrics.persisted_bytes,
            unaligned=progress.barrier.options.unaligned or bool(progress.captured),
            objects_written=objects,
        )


def _finish(stream: PartStream | None, parts: dict[str, StatePart], name: str) -> None:
    part = stream.finish() if stream is not None else None
    if part is not None:
        parts[name] = part


def _stored(payload: Payload, writer: StateWriter, scope: Scope, copy: CopyWriter | None) -> StatePart:
    """A payload that did not come as a stream: a local file to be copied, or what an earlier checkpoint wrote."""
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


def _abort_quietly(writer: StateWriter) -> None:
    try:
        writer.abort()
    except HeadgateError:
        return  # the first error is on its way; what is left behind, gc finds


def _abort_all(copied: list[CopyWriter]) -> None:
    for copy in copied:
        copy.abort()
