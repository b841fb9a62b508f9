"""The state of a new subtask, read from a snapshot: its key groups, its operator state, in-flight data.

Runs in the worker, before the operators are opened; keyed state is read later, when a backend asks for it. The bytes
are files on storage, or inside the handles (storage `jobmanager`, and snapshots of the local runtime and the harness).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.api.functions import callable_of
from headrace.checkpoint.assignment import assign_inflight, assign_keyed, check_inflight_chain, edge_mapping
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.handles import KeyedStateHandle, Payload, ReadPayload, decode_handle, read_inline
from headrace.control.deployment import VertexRestore
from headrace.control.operator_state import operator_state_of
from headrace.errors import IllegalState
from headrace.graph.plan import InputEdge, VertexPlan
from headrace.records.batch import Batch
from headrace.records.frames import STAMPED, FrameKind, pickle_rows
from headrace.records.key_groups import key_group_range
from headrace.state.operator import RestoredOperatorState, rescale
from headrace.storage.byte_handles import FileSegment, InlineBytes, Placeholder
from headrace.storage.manifest import PieceKind, SnapshotPart, StatePiece
from headrace.storage.objects import MissingObject, ObjectStore
from headrace.storage.reader import SnapshotReader, missing
from headrace.storage.remote import open_store
from headrace.worker.backlog import CapturedFrame
from headrace.worker.inputs import decode
from headrace.worker.keys import KeyReader
from headrace.worker.snapshots.local_copies import LocalCopies

# Made once: threads that use a type for the first time at once, without a decoder, crash the process.
_decode_frames = msgspec.msgpack.Decoder(list[CapturedFrame]).decode

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Keep = Callable[[Batch], Mask]


@dataclass(frozen=True, slots=True)
class OperatorRestore:
    """The restored state of one operator of a new subtask."""

    operator: RestoredOperatorState
    keyed: tuple[KeyedStateHandle, ...] = ()
    names: frozenset[str] = (
        frozenset()
    )  # of the operator states that any old subtask left, of which this share may have none
    finished: bool = False  # all old subtasks had finished


@dataclass(frozen=True, slots=True)
class SubtaskRestore:
    """The restored state of a new subtask."""

    checkpoint_id: int
    operators: Mapping[str, OperatorRestore] = field(default_factory=dict)
    read: ReadPayload = read_inline
    file: Callable[[], str] = lambda: ""  # the one that was read last
    claim: bool = False  # later increments may build on the restored files
    frames: tuple[CapturedFrame, ...] = ()  # in-flight data, to be processed before any new row
    finished: bool = False  # the subtask had finished: it only sends its ends
    commits: Commits = NO_COMMITS  # up to the checkpoint


@dataclass(slots=True)
class RestoreProgress:
    """The progress of a subtask's restore in bytes; the metrics thread reads it."""

    total: int = 0
    done: int = 0
    local: int = 0  # of those done: read from copies on this host


@dataclass(frozen=True, slots=True)
class _Origin:
    handle: FileSegment | InlineBytes
    operator_id: str
    subtask: int
    parallelism: int


class Payloads:
    """Reads keyed state when a backend asks for it: a copy on this host if it is whole, else storage (SPEC R7.7)."""

    def __init__(
        self,
        store: ObjectStore,
        checkpoint_id: int = 0,
        copies: LocalCopies | None = None,
        progress: RestoreProgress | None = None,
    ) -> None:
        self._store, self._id, self._copies = store, checkpoint_id, copies
        self._progress = progress or RestoreProgress()
        self._origins: dict[str, _Origin] = {}
        self._local: dict[str, Path | None] = {}
        self.file = ""  # the one that was read last

    def add(self, part: SnapshotPart, operator_id: str = "", subtask: int = 0, parallelism: int = 1) -> None:
        """Make a part readable; the operator and subtask that wrote it are needed only to find its copy."""
        if not isinstance(part.handle, Placeholder):
            self._origins[part.id] = _Origin(part.handle, operator_id, subtask, parallelism)

    def read(self, payload: Payload, offset: int, length: int) -> bytes:
        """Some bytes of a payload."""
        origin = self._origins[payload.id]
        self._progress.done += length
        if isinstance(origin.handle, InlineBytes):
            return origin.handle.data[offset : offset + length]
        self.file = origin.handle.path
        local = self._local_copy(payload.id, origin, origin.handle)
        if local is not None:
            with local.open("rb") as file:
                file.seek(offset)
                data = file.read(length)
            if len(data) == length:
                self._progress.local += length
                return data
        try:
            return self._store.read(self.file, origin.handle.offset + offset, length)
        except MissingObject as error:
            raise missing(origin.handle) from error

    def _local_copy(self, payload: str, origin: _Origin, segment: FileSegment) -> Path | None:
        if self._copies is None:
            return None
        if payload not in self._local:
            self._local[payload] = self._copies.find(
                self._id, origin.operator_id, origin.subtask, origin.parallelism, payload, segment
            )
        return self._local[payload]


def read_restore(
    restore: VertexRestore,
    subtask: int,
    plan: VertexPlan,
    store: ObjectStore | None = None,
    copies: LocalCopies | None = None,
    progress: RestoreProgress | None = None,
) -> SubtaskRestore:
    """Read one subtask's share from storage; keyed state is read when the backend asks for it."""
    store = store or open_store()
    progress = progress or RestoreProgress()
    reader = SnapshotReader(store)
    payloads = Payloads(store, restore.checkpoint_id, copies, progress)
    operators: dict[str, OperatorRestore] = {}
    unchanged = all(len(old) == restore.parallelism for old in restore.operators.values())
    inflight: dict[str, list[list[CapturedFrame]]] = {}
    for operator_id, old in restore.operators.items():
        keyed = _keyed_share(restore, subtask, operator_id, payloads, progress)
        left = [operator_state_of(reader, pieces) for pieces in old]
        names = frozenset(name for one in left if one is not None for name in one.shapes())
        share, finished = rescale(left, restore.parallelism)[subtask], all(pieces is None for pieces in old)
        operators[operator_id] = OperatorRestore(share, keyed, names, finished)
        for index, pieces in enumerate(old):
            if not unchanged or index == subtask:
                for piece in _of_kind(pieces, PieceKind.CHANNEL):
                    inflight.setdefault(operator_id, [[] for _ in old])[index] += _frames(reader, piece)
    return SubtaskRestore(
        restore.checkpoint_id,
        operators,
        payloads.read,
        lambda: payloads.file,
        restore.claim and unchanged,
        inflight_share(plan, subtask, inflight),
        restore.finished,
        restore.commits,
    )


def _keyed_share(
    restore: VertexRestore, subtask: int, operator_id: str, payloads: Payloads, progress: RestoreProgress
) -> tuple[KeyedStateHandle, ...]:
    """The handles that hold key groups of one new subtask (SPEC R3.4); their payloads can be read from now on."""
    old = [
        [(piece, piece.key_groups) for piece in _of_kind(pieces, PieceKind.KEYED) if piece.key_groups is not None]
        for pieces in restore.operators[operator_id]
    ]
    ranges = [[groups for _, groups in pieces] for pieces in old]
    handles = []
    for part in assign_keyed(ranges, restore.max_parallelism, restore.parallelism)[subtask]:
        piece, groups = old[part.subtask][part.handle]
        for stored in piece.parts:
            payloads.add(stored, operator_id, part.subtask, len(old))
        progress.total += piece.size * len(part.key_groups) // len(groups)
        handles.append(decode_handle(piece.description))
    return tuple(handles)


def _of_kind(pieces: tuple[StatePiece, ...] | None, kind: PieceKind) -> list[StatePiece]:
    return [piece for piece in pieces or () if piece.kind is kind]


def _frames(reader: SnapshotReader, piece: StatePiece) -> list[CapturedFrame]:
    if not piece.parts:
        return []
    return _decode_frames(reader.read(piece.parts[0].handle))


# ---- in-flight data -----------------------------------------------------------------------------------------------


def inflight_share(
    plan: VertexPlan, subtask: int, stored: Mapping[str, Sequence[Sequence[CapturedFrame]]]
) -> tuple[CapturedFrame, ...]:
    """The frames that one new subtask processes first (SPEC R6.7); `stored` has those of every old subtask, by operator.

    A frame that several new subtasks read is cut down to the records that are theirs: it must stay cut when another
    checkpoint stores it again.
    """
    vertex = plan.vertex
    check_inflight_chain(vertex.name, vertex.head.id, [op for op, old in stored.items() if any(old)])
    frames: list[CapturedFrame] = []
    for old in stored.values():
        by_edge = sorted({frame.edge for one in old for frame in one})
        for edge_id in by_edge:
            edge = _edge(plan, edge_id)
            shares = assign_inflight(edge_mapping(edge.ship), len(old), vertex.parallelism, vertex.max_parallelism)
            for part in shares[subtask]:
                own = [frame for frame in old[part.subtask] if frame.edge == edge_id]
                frames += _filtered(own, edge, _keep(plan, edge, subtask)) if part.filtered else own
    return tuple(frames)


def _edge(plan: VertexPlan, edge_id: int) -> InputEdge:
    for edge in plan.inputs:
        if edge.id == edge_id:
            return edge
    raise IllegalState(
        "HR-2106",
        f"the checkpoint has in-flight data of edge {edge_id} in front of '{plan.vertex.name}', which the program does not have "
        "any more: the shape of the job has changed; restore from a savepoint, which has no in-flight data",
    )


def _keep(plan: VertexPlan, edge: InputEdge, subtask: int) -> Keep:
    """Selects the records of an edge that belong to a subtask."""
    vertex, key = plan.vertex, edge.partitioning.key
    assert key is not None, "only edges with a key are filtered"
    keys = KeyReader(key, vertex.max_parallelism)
    if edge.ship == "hash":
        own = key_group_range(subtask, vertex.max_parallelism, vertex.parallelism)

        def in_range(batch: Batch) -> Mask:
            groups = keys.groups(batch)
            return (groups >= own.start) & (groups <= own.end)

        return in_range
    choose = callable_of(edge.partitioning.partitioner, "partition", "partition_custom()")
    return lambda batch: np.array([choose(key, vertex.parallelism) == subtask for key in keys.keys(batch)], bool)


def _filtered(frames: Iterable[CapturedFrame], edge: InputEdge, keep: Keep) -> list[CapturedFrame]:
    kept = []
    for frame in frames:
        batch = decode(frame, edge.type)
        batch = batch.slice(frame.skip, len(batch) - frame.skip)
        chosen = np.flatnonzero(keep(batch)) if len(batch) else np.array([], np.int64)
        if len(chosen):
            kept.append(_encoded(frame, batch.select(chosen)))
    return kept


def _encoded(frame: CapturedFrame, batch: Batch) -> CapturedFrame:
    flags = frame.flags & STAMPED
    if frame.kind == FrameKind.ARROW:
        body = batch.arrow().serialize().to_pybytes()
    else:
        body, by_value = pickle_rows(batch.rows())
        flags |= by_value
    if flags & STAMPED:
        assert batch.timestamps is not None
        body = len(batch).to_bytes(8, "little") + batch.timestamps.tobytes() + body
    return CapturedFrame(frame.edge, frame.writer, frame.kind, flags, 0, body)
