"""Which shared files are still in use, by the last checkpoint that used them (SPEC R7.5). Pure, on the driver.

register            on every ack, late ones too; the result replaces placeholders
register_restored   for every retained checkpoint after a restore, oldest first
unregister_unused   when checkpoints are subsumed; the result is what to delete

There are no reference counts: an entry whose last use is older than every retained checkpoint is unreachable. That
stays true when acks arrive late, twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from headrace.checkpoint.settings import ClaimMode
from headrace.errors import IllegalState
from headrace.ids import OperatorId
from headrace.storage.byte_handles import FileSegment, Handle, InlineBytes, Placeholder
from headrace.storage.manifest import Manifest, PieceKind, SnapshotPart, StatePiece


@dataclass(slots=True)
class SharedEntry:
    """One stored part: where it is, the checkpoint that registered it first, and the last one that used it."""

    handle: FileSegment | InlineBytes
    created_by: int
    last_used: int


class Unregistered(msgspec.Struct, frozen=True):
    """The files that may be deleted now, and the restored snapshots whose directory must stay."""

    delete: tuple[str, ...]
    in_use: frozenset[int]


def shared_key(operator: OperatorId, part_id: str) -> str:
    """Return the key of a part: part ids are unique in their operator only.

    >>> shared_key(OperatorId("ab"), "000012.sst")
    'ab/000012.sst'
    """
    return f"{operator}/{part_id}"


class SharedStateRegistry:
    """The registry of shared state.

    >>> registry = SharedStateRegistry()
    >>> file = FileSegment("/shared/a", 0, 9, 0)
    >>> registry.register("op/a", file, 1) == registry.register("op/a", Placeholder(9), 2) == file
    True
    >>> registry.unregister_unused(2).delete, registry.unregister_unused(3).delete
    ((), ('/shared/a',))
    """

    def __init__(self) -> None:
        self._entries: dict[str, SharedEntry] = {}
        self._highest_not_claimed = -1
        self._claimed_savepoints: set[int] = set()
        self._not_ours: set[str] = set()  # paths of dropped entries that belong to an unclaimed snapshot

    @property
    def entries(self) -> Mapping[str, SharedEntry]:
        return self._entries

    def register(self, key: str, handle: Handle, checkpoint_id: int) -> FileSegment | InlineBytes:
        """Note that a checkpoint uses a part; returns its real handle."""
        entry = self._entries.get(key)
        if entry is None:
            if isinstance(handle, Placeholder):
                raise IllegalState(
                    f"checkpoint {checkpoint_id} builds on shared state '{key}', which is not known: the task used an "
                    "unconfirmed or subsumed checkpoint as its base"
                )
            self._entries[key] = SharedEntry(handle, checkpoint_id, checkpoint_id)
            return handle
        if not isinstance(handle, Placeholder) and handle != entry.handle:
            raise IllegalState(
                f"checkpoint {checkpoint_id} stored shared state '{key}' a second time, in another place: "
                f"{_where(entry.handle)} and {_where(handle)}; a part that is written again needs a new id"
            )
        entry.last_used = max(entry.last_used, checkpoint_id)
        return entry.handle

    def register_pieces(
        self, operator: OperatorId, pieces: Iterable[StatePiece], checkpoint_id: int
    ) -> tuple[StatePiece, ...]:
        """Register the shared parts of an ack and replace its placeholders. Not for savepoints: they share nothing."""

        def part_of(part: SnapshotPart) -> SnapshotPart:
            if not part.shared:
                return part
            handle = self.register(shared_key(operator, part.id), part.handle, checkpoint_id)
            return msgspec.structs.replace(part, handle=handle)

        return tuple(msgspec.structs.replace(piece, parts=tuple(map(part_of, piece.parts))) for piece in pieces)

    def has_keyed_parts(self, manifest: Manifest) -> bool:
        """Return True if every part of keyed state is known, so that an increment on this snapshot can refer to it."""
        return all(
            shared_key(operator.id, part.id) in self._entries
            for operator in manifest.operators
            for subtask in operator.subtasks
            for piece in subtask.pieces
            if piece.kind is PieceKind.KEYED
            for part in piece.parts
        )

    def register_restored(self, manifest: Manifest, mode: ClaimMode) -> None:
        """Register a retained checkpoint, or the snapshot the job starts from.

        A savepoint shares nothing when it is taken; once it is restored, an increment may build on its keyed state.
        """
        savepoint = manifest.type.is_savepoint
        for operator in manifest.operators:
            for subtask in operator.subtasks:
                for piece in subtask.pieces:
                    for part in piece.parts:
                        if part.shared or (savepoint and piece.kind is PieceKind.KEYED):
                            self.register(shared_key(operator.id, part.id), part.handle, manifest.checkpoint_id)
        if mode is not ClaimMode.CLAIM:
            self._highest_not_claimed = max(self._highest_not_claimed, manifest.checkpoint_id)
        elif savepoint:
            self._claimed_savepoints.add(manifest.checkpoint_id)

    def unregister_unused(self, lowest_retained: int) -> Unregistered:
        """Drop what no retained checkpoint uses; returns what to delete, and which claimed savepoints are still needed.

        A file is deleted only when no other part in it is in use: parts with the same content are one file, and a savepoint
        packs the parts of a subtask into one.
        """
        unused = [key for key, entry in self._entries.items() if entry.last_used < lowest_retained]
        freed: dict[str, None] = {}
        for key in unused:
            entry = self._entries.pop(key)
            if not isinstance(entry.handle, FileSegment):
                continue
            if entry.created_by <= self._highest_not_claimed:
                self._not_ours.add(entry.handle.path)
            freed[entry.handle.path] = None
        live = {entry.handle.path for entry in self._entries.values() if isinstance(entry.handle, FileSegment)}
        in_use = {entry.created_by for entry in self._entries.values()} & self._claimed_savepoints
        return Unregistered(
            tuple(path for path in freed if path not in live and path not in self._not_ours), frozenset(in_use)
        )


def _where(handle: FileSegment | InlineBytes) -> str:
    return f"'{handle.path}'" if isinstance(handle, FileSegment) else f"{len(handle.data)} bytes inline"
