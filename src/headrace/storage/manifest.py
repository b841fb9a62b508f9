"""The content of `_metadata`: everything that is needed to restore, except the state files it refers to.

    Manifest                    checkpoint id, type, job, attempt
    └── operators               id, uid, name, parallelism, state of its coordinator
        └── subtasks            index, whether it had finished
            └── pieces          kind, description for the state layer, key groups
                └── parts       id, handle: one for most pieces, several for incremental keyed state

The description of a piece is opaque here: the state layer writes and reads it. The file is msgpack inside the frame of
`sealed.py`; decoding is strict, and no pickle is ever read.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from headrace.checkpoint.assignment import TakenState
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.types import SnapshotType
from headrace.errors import IllegalState, StorageError
from headrace.ids import JobId, OperatorId
from headrace.records.key_groups import KeyGroupRange
from headrace.storage.byte_handles import FileSegment, Handle, Placeholder, size_of
from headrace.storage.layout import AttemptId, creator_of
from headrace.storage.sealed import seal, unseal

MAGIC: Final = b"\x89HRM"  # the first byte is not text, so that no tool mistakes the file for text
FORMAT_VERSION: Final = 1


class PieceKind(enum.Enum):
    """Which layer writes and reads a piece of state."""

    KEYED = "keyed"
    OPERATOR = "operator"
    CHANNEL = "channel"


class SnapshotPart(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A run of bytes of a piece; `id` is unique in the operator, and is the key of a placeholder.

    `shared`: later checkpoints may use it too, so the shared-file registry decides when its file is deleted.
    """

    id: str
    handle: Handle
    shared: bool = False


class StatePiece(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """State of one kind of one subtask.

    `own` says what an operator of Headrace keeps in operator state of its own accord, if there is any of it; see
    `headrace.checkpoint.assignment.TakenState`.
    """

    kind: PieceKind
    parts: tuple[SnapshotPart, ...] = ()
    description: bytes = b""
    key_groups: KeyGroupRange | None = None
    own: str | None = None

    @property
    def size(self) -> int:
        return sum(size_of(part.handle) for part in self.parts)


def state_in(pieces: Iterable[StatePiece]) -> TakenState:
    """Return the kinds of state in an operator's pieces besides those that its function declares."""
    keyed, own = False, None
    for piece in pieces:
        keyed = keyed or piece.kind is PieceKind.KEYED
        own = piece.own if own is None else own
    return TakenState(keyed, own)


class SubtaskManifest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state of one subtask of an operator; a subtask without state is not listed."""

    index: int
    pieces: tuple[StatePiece, ...] = ()
    finished: bool = False


class OperatorManifest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """State of one operator; `coordinator` is its state on the driver, such as a source's enumerator."""

    id: OperatorId
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: tuple[SubtaskManifest, ...] = ()
    uid: str | None = None
    coordinator: Handle | None = None

    @property
    def fully_finished(self) -> bool:
        """Return True if every subtask had finished: restored as finished, it does not run (SPEC R4.5)."""
        return sum(subtask.finished for subtask in self.subtasks) == self.parallelism

    @property
    def size(self) -> int:
        return sum(piece.size for subtask in self.subtasks for piece in subtask.pieces)


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A completed checkpoint or savepoint.

    >>> manifest = Manifest(7, SnapshotType.CHECKPOINT, JobId("a" * 32), "wordcount", AttemptId(1), 1000)
    >>> decode_manifest(encode_manifest(manifest), "chk-7") == manifest
    True
    """

    checkpoint_id: int
    type: SnapshotType
    job_id: JobId
    job_name: str
    attempt: AttemptId
    timestamp_ms: int
    operators: tuple[OperatorManifest, ...] = ()
    format: str | None = None  # of a savepoint: canonical or native
    commits: Commits = NO_COMMITS  # the last completions up to this one, which is expected to get its number


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Manifest, strict=True)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `_metadata`; IllegalState if the manifest contradicts itself or has a placeholder left."""
    if (fault := _fault(manifest)) is not None:
        raise IllegalState(f"checkpoint {manifest.checkpoint_id} cannot be stored: {fault}")
    return seal(MAGIC, FORMAT_VERSION, _ENCODER.encode(manifest))


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Decode a manifest; StorageError if the bytes are damaged, of a newer version, or not one. `where` names them."""
    payload = unseal(data, MAGIC, FORMAT_VERSION, f"the metadata '{where}'")
    try:
        manifest = _DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        raise StorageError(
            "HR-3105", f"the metadata '{where}' cannot be read: {error}; it was not written by Headrace"
        ) from None
    if (fault := _fault(manifest)) is not None:
        raise CorruptState(f"the metadata '{where}' is damaged: {fault}; use an older checkpoint or savepoint")
    return manifest


def handles_of(manifest: Manifest) -> Iterator[Handle]:
    """Every handle, coordinators' first."""
    for operator in manifest.operators:
        if operator.coordinator is not None:
            yield operator.coordinator
        for subtask in operator.subtasks:
            for piece in subtask.pieces:
                for part in piece.parts:
                    yield part.handle


def chain_length(manifest: Manifest) -> int:
    """Return the number of checkpoints whose files are needed, this one included."""
    files = {creator_of(handle.path) for handle in handles_of(manifest) if isinstance(handle, FileSegment)}
    return len(files - {None} | {manifest.checkpoint_id})


def map_handles(manifest: Manifest, change: Callable[[Handle], Handle]) -> Manifest:
    """Return the manifest with every handle changed."""
    replace = msgspec.structs.replace

    def piece_of(piece: StatePiece) -> StatePiece:
        return replace(piece, parts=tuple(replace(part, handle=change(part.handle)) for part in piece.parts))

    def subtask_of(subtask: SubtaskManifest) -> SubtaskManifest:
        return replace(subtask, pieces=tuple(map(piece_of, subtask.pieces)))

    def operator_of(operator: OperatorManifest) -> OperatorManifest:
        coordinator = None if operator.coordinator is None else change(operator.coordinator)
        return replace(operator, coordinator=coordinator, subtasks=tuple(map(subtask_of, operator.subtasks)))

    return replace(manifest, operators=tuple(map(operator_of, manifest.operators)))


def _fault(manifest: Manifest) -> str | None:
    """Return the first contradiction in a manifest; checked when it is written and when it is read."""
    if manifest.checkpoint_id < 0:
        return f"the checkpoint id is {manifest.checkpoint_id}"
    ids = [operator.id for operator in manifest.operators]
    if len(set(ids)) != len(ids):
        return "an operator is listed twice"
    for handle in handles_of(manifest):
        if isinstance(handle, Placeholder):
            return "a placeholder was not replaced by the file it stands for"
        if isinstance(handle, FileSegment) and (handle.offset < 0 or handle.length <= 0):
            return f"'{handle.path}' has a segment of {handle.length} bytes at {handle.offset}"
    for operator in manifest.operators:
        if (fault := _fault_of_operator(operator)) is not None:
            return f"operator '{operator.name}' ({operator.id}): {fault}"
    return None


def _fault_of_operator(operator: OperatorManifest) -> str | None:
    if not 1 <= operator.parallelism <= operator.max_parallelism:
        return f"parallelism {operator.parallelism} does not fit max parallelism {operator.max_parallelism}"
    indexes = [subtask.index for subtask in operator.subtasks]
    if len(set(indexes)) != len(indexes) or not all(0 <= index < operator.parallelism for index in indexes):
        return f"its subtasks are numbered {indexes}, but its parallelism is {operator.parallelism}"
    for subtask in operator.subtasks:
        for piece in subtask.pieces:
            groups = piece.key_groups
            if groups is not None and groups.end >= operator.max_parallelism:
                return (
                    f"subtask {subtask.index} has key groups {groups.start}..{groups.end}, beyond the max parallelism"
                )
    return None
