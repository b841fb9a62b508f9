"""Handles of keyed state: plain data that names the bytes of a snapshot and describes their layout.

A handle describes, a payload holds the bytes; the two travel apart. A checkpoint keeps handles in its metadata and
payloads in files, a test keeps both in memory (`attach`). A payload is one run of bytes with a checksum; a segment says
which part of it holds which state and key group, so a restore with other key-group ranges reads only what it needs.

    KeyedStateHandle
    └── segments          one for a full snapshot; base and increments, in order, for an incremental one
        ├── payload       id, size, checksum, perhaps the bytes
        └── states        name, kind and types, with the offset and length of every key group
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from headrace.errors import StorageError
from headrace.records.types import TypeInformation


class CorruptState(StorageError):
    """Bytes of a snapshot do not match their checksum."""

    class_code = "HR-3102"


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run of bytes that a snapshot wrote.

    `id` is unique in the job (it carries the instance that wrote it). `data` holds the bytes where they travel inside
    the handle, `path` names a local file that still has to be stored; both are None for bytes that live elsewhere.
    """

    id: str
    size: int
    crc32: int
    data: bytes | None = None
    path: str | None = None


class TypeMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored type: its kind, and for typed ones the serialised Arrow schema."""

    kind: str
    schema: bytes | None = None

    @classmethod
    def of(cls, type_info: TypeInformation) -> TypeMeta:
        schema = type_info.schema
        return cls(type_info.kind, None if schema is None else schema.serialize().to_pybytes())

    def type_info(self) -> TypeInformation:
        return TypeInformation(
            self.kind, None if self.schema is None else pa.ipc.read_schema(pa.py_buffer(self.schema))
        )


class StateMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored description of a state. TTL settings are not stored, only whether there are timestamps."""

    name: str
    kind: str
    value_type: TypeMeta
    map_key_type: TypeMeta | None = None
    ttl: bool = False


class GroupTable(msgspec.Struct, frozen=True):
    """The position of each key group in a payload: four columns of one length. A group may occur several times, in order."""

    groups: list[int]
    offsets: list[int]
    lengths: list[int]
    crcs: list[int]

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self.groups, self.offsets, self.lengths, self.crcs, strict=True)


class StateSlice(msgspec.Struct, frozen=True):
    """One state's share of a segment."""

    meta: StateMeta
    table: GroupTable


class Segment(msgspec.Struct, frozen=True):
    """The state that one snapshot wrote: everything, or the changes since the snapshots before it in the chain.

    Only the key groups from `first_group` to `last_group` count: after a rescale the payload of an older snapshot also
    holds groups that now belong to other subtasks, in an outdated state.
    """

    checkpoint_id: int
    increment: bool
    first_group: int
    last_group: int
    payload: Payload
    states: list[StateSlice]

    def clip(self, first_group: int, last_group: int) -> Segment | None:
        """The same for fewer key groups; None if none is left."""
        first, last = max(self.first_group, first_group), min(self.last_group, last_group)
        return msgspec.structs.replace(self, first_group=first, last_group=last) if first <= last else None


class FileRef(msgspec.Struct, frozen=True):
    """A file of a backend that snapshots whole files; `shared` ones are kept by name across checkpoints.

    `created_by` is the checkpoint that stored it; a later one may only refer to it.
    """

    name: str
    payload: Payload
    shared: bool
    created_by: int = 0


class KeyedStateHandle(msgspec.Struct, frozen=True, omit_defaults=True):
    """All keyed state of one operator in one subtask at one checkpoint.

    `segments` are read in order, later ones over earlier ones; `files` belong to backends that snapshot whole files,
    `extra` holds more data of such a backend.
    """

    backend: str
    checkpoint_id: int
    max_parallelism: int
    first_group: int
    last_group: int
    key_type: TypeMeta
    segments: list[Segment] = []
    files: list[FileRef] = []
    extra: dict[str, Any] = {}
    version: int = 1

    def payloads(self) -> list[Payload]:
        """Every payload that is needed to restore, once each."""
        found = [segment.payload for segment in self.segments] + [file.payload for file in self.files]
        by_id: dict[str, Payload] = {}
        for payload in found:
            # Of several references to one payload the one that brings the bytes counts.
            if payload.id not in by_id or by_id[payload.id].data is None:
                by_id[payload.id] = payload
        return list(by_id.values())


ReadPayload: TypeAlias = Callable[[Payload, int, int], bytes]
"""Reads `length` bytes of a payload from `offset` on."""


def read_inline(payload: Payload, offset: int, length: int) -> bytes:
    """The reader for payloads that travel inside their handle."""
    if payload.data is None:
        raise StorageError(
            "HR-9001",
            f"payload '{payload.id}' ({payload.size} bytes) is not attached to its handle; pass a reader to restore()",
        )
    return payload.data[offset : offset + length]


def checked_read(read: ReadPayload, payload: Payload, offset: int, length: int, crc32: int, what: str) -> bytes:
    """Read and verify one part; CorruptState names `what` it is."""
    data = read(payload, offset, length)
    if len(data) != length or zlib.crc32(data) != crc32:
        raise CorruptState(
            f"{what} is damaged: {length} bytes at {offset} of payload '{payload.id}' do not match their checksum; "
            "restore from an older checkpoint or savepoint"
        )
    return data


def attach(handle: KeyedStateHandle, payloads: Mapping[str, bytes]) -> KeyedStateHandle:
    """The handle with the bytes of these payloads inside; payloads that are not given stay as they are."""

    def filled(payload: Payload) -> Payload:
        return msgspec.structs.replace(payload, data=payloads.get(payload.id, payload.data))

    segments = [msgspec.structs.replace(segment, payload=filled(segment.payload)) for segment in handle.segments]
    files = [msgspec.structs.replace(file, payload=filled(file.payload)) for file in handle.files]
    return msgspec.structs.replace(handle, segments=segments, files=files)


encode_handle: Callable[[KeyedStateHandle], bytes] = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(KeyedStateHandle).decode


def decode_handle(data: bytes) -> KeyedStateHandle:
    """Decode a handle; StorageError if the bytes are not one."""
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        raise StorageError(
            "HR-3105", f"not a keyed state handle: {error}; the metadata is damaged or of a newer version"
        ) from None
