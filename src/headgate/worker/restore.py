"""What a new subtask starts from, read from storage: the way back of `snapshot_files`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate.checkpoint.commits import NO_COMMITS, Commits
from headgate.checkpoint.handles import Payload, decode_handle
from headgate.graph.plan import VertexPlan
from headgate.records.key_groups import key_group_range
from headgate.state.operator import OperatorStateSnapshot, rescale
from headgate.state.parquet.operator import StoredOperatorTables, read_operator_tables
from headgate.storage.handles import FileSegment, InlineBytes, Placeholder
from headgate.storage.manifest import PieceKind, StatePart, StatePiece
from headgate.storage.objects import ObjectStore
from headgate.storage.reader import SnapshotReader
from headgate.storage.remote import open_store
from headgate.worker.backlog import CapturedFrame
from headgate.worker.inflight import share_of
from headgate.worker.local_copies import LocalCopies
from headgate.worker.snapshot import OperatorRestore, SubtaskRestore

__all__ = ["Payloads", "RestoreProgress", "VertexRestore", "operator_state_of", "read_restore"]


@dataclass(frozen=True, slots=True)
class VertexRestore:
    """What the subtasks of a vertex start from: for each operator the pieces that each old subtask left."""

    checkpoint_id: int
    parallelism: int
    max_parallelism: int
    operators: Mapping[str, Sequence[tuple[StatePiece, ...] | None]]
    claim: bool  # later increments may build on the restored files
    finished: bool = False  # the vertex had finished: its subtasks only send their ends
    commits: Commits = NO_COMMITS  # up to the checkpoint


@dataclass(slots=True)
class RestoreProgress:
    """How far a subtask's restore is, in bytes; another thread may look."""

    total: int = 0
    done: int = 0
    local: int = 0  # of those done: read from copies on this host


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a payload comes from."""

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

    def add(self, part: StatePart, operator_id: str = "", subtask: int = 0, parallelism: int = 1) -> None:
        """A part that may be asked for; who wrote it is needed only to find its copy."""
        if not isinstance(part.handle, Placeholder):
            self._origins[part.id] = _Origin(part.handle, operator_id, subtask, parallelism)

    def read(self, payload: Payload, offset: int, length: int) -> bytes:
        """Some bytes of a payload."""
        origin = self._origins[payload.id]
        self._progress.done += length
        if isinstance(origin.handle, InlineBytes):
            return origin.handle.data[offset : offset + length]
        local = self._local_copy(payload.id, origin, origin.handle)
        if local is not None:
            with local.open("rb") as file:
                file.seek(offset)
                data = file.read(length)
            if len(data) == length:
                self._progress.local += length
                return data
        return self._store.read(origin.handle.path, origin.handle.offset + offset, length)

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
    own = key_group_range(subtask, restore.max_parallelism, restore.parallelism)
    unchanged = all(len(old) == restore.parallelism for old in restore.operators.values())
    inflight: dict[str, list[list[CapturedFrame]]] = {}
    for operator_id, old in restore.operators.items():
        left = [operator_state_of(reader, pieces) for pieces in old]
        keyed = []
        for index, pieces in enumerate(old):
            for piece in pieces or ():
                if piece.kind is PieceKind.KEYED and piece.key_groups is not None:
                    shared = len(piece.key_groups.intersect(own))
                    if shared:
                        for part in piece.parts:
                            payloads.add(part, operator_id, index, len(old))
                        progress.total += piece.size * shared // len(piece.key_groups)
                        keyed.append(decode_handle(piece.description))
                elif piece.kind is PieceKind.CHANNEL and (not unchanged or index == subtask):
                    inflight.setdefault(operator_id, [[] for _ in old])[index] += _frames(reader, piece)
        operators[operator_id] = OperatorRestore(rescale(left, restore.parallelism)[subtask], tuple(keyed))
    claim = restore.claim and unchanged
    frames = share_of(plan, subtask, inflight)
    return SubtaskRestore(
        restore.checkpoint_id, operators, payloads.read, claim, frames, restore.finished, restore.commits
    )


def operator_state_of(reader: SnapshotReader, pieces: tuple[StatePiece, ...] | None) -> OperatorStateSnapshot | None:
    """The operator state that a subtask left, if any."""
    for piece in pieces or ():
        if piece.kind is PieceKind.OPERATOR and piece.description:
            described = msgspec.msgpack.decode(piece.description, type=StoredOperatorTables)
            return read_operator_tables(described, {part.id: reader.read(part.handle) for part in piece.parts})
        if piece.kind is PieceKind.OPERATOR and piece.parts:
            return msgspec.msgpack.decode(reader.read(piece.parts[0].handle), type=OperatorStateSnapshot)
    return None


def _frames(reader: SnapshotReader, piece: StatePiece) -> list[CapturedFrame]:
    if not piece.parts:
        return []
    return msgspec.msgpack.decode(reader.read(piece.parts[0].handle), type=list[CapturedFrame])
