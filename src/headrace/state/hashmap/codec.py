"""Bytes of the hashmap backend's snapshots: entries of one key group, in chunks.

The thread that writes a snapshot encodes; the subtask's thread decodes when a restored state is opened.

    section of a group:  frame, frame, ...          frame = length (4 bytes), chunk
    chunk:               columns of up to a few thousand entries, and the addresses of removed ones

Typed columns are Arrow record batches (the schema is in the handle), untyped ones are pickled lists. A list or map state
is flattened: counts per entry, then all elements in one column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.checkpoint.handles import StateMeta
from headrace.records.types import PICKLED, TypeInformation, TypeMismatch
from headrace.state.addresses import VOID, address_of, in_namespace, keys_of, prepare_keys, split_address
from headrace.state.pickling import dump_values, load_values
from headrace.state.schema import migrate_batch

_LENGTH = struct.Struct("<I")
_PLAIN, _MASKED = b"\0", b"\1"


class _Chunk(msgspec.Struct, array_like=True):
    rows: int
    keys: bytes
    namespaces: bytes | None
    counts: bytes | None
    map_keys: bytes | None
    values: bytes
    stamps: bytes | None
    removed: int
    removed_keys: bytes
    removed_namespaces: bytes | None


def _encode_column(values: Sequence[Any], type_info: TypeInformation, where: str) -> bytes:
    if type_info.schema is None:
        return dump_values(list(values), where)
    if type_info.kind == "scalar" or None not in values:
        return _PLAIN + bytes(type_info.to_batch(values).serialize())
    # Rows and tuples cannot be null: a mask marks the missing ones, and only the others are written.
    mask = np.packbits([value is None for value in values]).tobytes()
    present = [value for value in values if value is not None]
    return _MASKED + _LENGTH.pack(len(mask)) + mask + bytes(type_info.to_batch(present).serialize())


def _decode_column(data: bytes, rows: int, old: TypeInformation, new: TypeInformation, where: str) -> list[Any]:
    if old.schema is None:
        return load_values(data, where)
    if data[:1] == _PLAIN:
        return _decode_batch(data, 1, old, new)
    (size,) = _LENGTH.unpack_from(data, 1)
    start = 1 + _LENGTH.size
    mask = np.unpackbits(np.frombuffer(data, np.uint8, size, start), count=rows).tolist()
    present = iter(_decode_batch(data, start + size, old, new))
    return [None if absent else next(present) for absent in mask]


def _decode_batch(data: bytes, start: int, old: TypeInformation, new: TypeInformation) -> list[Any]:
    batch = pa.ipc.read_record_batch(pa.py_buffer(data).slice(start), old.schema)
    return new.to_rows(batch if old == new else migrate_batch(batch, new))


def _split(addresses: Sequence[Any]) -> tuple[list[Any], list[Any] | None]:
    """Keys and namespaces; None if no address has a namespace."""
    if tuple not in set(map(type, addresses)):
        return keys_of(addresses), None
    pairs = [split_address(address) for address in addresses]
    namespaces = [namespace for _, namespace in pairs]
    keys = keys_of([address for address, _ in pairs])
    return keys, None if all(namespace is VOID for namespace in namespaces) else namespaces


class _StoredForm:
    """The form of the entries of one state."""

    def __init__(self, operator: str, meta: StateMeta, key_type: TypeInformation) -> None:
        self._where = f"operator '{operator}', state '{meta.name}'"
        self._meta = meta
        self._key_type = key_type
        self._value_type = meta.value_type.type_info()
        self._map_key_type = PICKLED if meta.map_key_type is None else meta.map_key_type.type_info()


class ChunkCodec(_StoredForm):
    """Writes the entries of one state."""

    def encode(self, addresses: list[Any], stored: list[Any], removed: list[Any]) -> bytes:
        """One frame with entries and the addresses of removed ones."""
        keys, namespaces = _split(addresses)
        counts, map_keys, values = self._flatten(stored)
        stamps = None
        if self._meta.ttl:
            stamps = np.fromiter((stamp for _, stamp in values), np.int64, len(values)).tobytes()
            values = [value for value, _ in values]
        return _frame(
            _Chunk(
                len(addresses),
                self._keys(keys),
                self._namespaces(namespaces),
                None if counts is None else np.array(counts, np.uint32).tobytes(),
                None if map_keys is None else self._encoded(map_keys, self._map_key_type, lambda _: ": map key"),
                self._encoded(values, self._value_type, lambda index: f", key {keys[_entry(counts, index)]!r}"),
                stamps,
                len(removed),
                *self._removed(removed),
            )
        )

    def encode_columns(self, keys: Any, values: Any, removed: Any) -> bytes:
        """One frame of a value state whose keys and values are numpy columns."""
        gone = self._column(removed, self._key_type) if len(removed) else b""
        columns = self._column(keys, self._key_type), self._column(values, self._value_type)
        return _frame(_Chunk(len(keys), columns[0], None, None, None, columns[1], None, len(removed), gone, None))

    def _column(self, values: Any, type_info: TypeInformation) -> bytes:
        array = pa.array(values)
        if array.type != type_info.arrow_type:
            array = array.cast(type_info.arrow_type)
        return _PLAIN + bytes(pa.RecordBatch.from_arrays([array], schema=type_info.schema).serialize())

    def _flatten(self, stored: list[Any]) -> tuple[list[int] | None, list[Any] | None, list[Any]]:
        if self._meta.kind == "list":
            return list(map(len, stored)), None, list(chain.from_iterable(stored))
        if self._meta.kind == "map":
            map_keys = list(chain.from_iterable(stored))
            values = list(chain.from_iterable(entries.values() for entries in stored))
            return list(map(len, stored)), keys_of(map_keys), values
        return None, None, stored

    def _encoded(self, values: list[Any], type_info: TypeInformation, place: Callable[[int], str]) -> bytes:
        """Return a column; TypeMismatch names the place of the first value that does not fit."""
        try:
            return _encode_column(values, type_info, self._where)
        except TypeMismatch as error:
            raise TypeMismatch(f"{self._where}{place(error.index)}: {error}") from None

    def _keys(self, keys: list[Any]) -> bytes:
        return self._encoded(keys, self._key_type, lambda index: f": key {keys[index]!r}")

    def _namespaces(self, namespaces: list[Any] | None) -> bytes | None:
        return None if namespaces is None else dump_values(namespaces, f"{self._where}: namespace")

    def _removed(self, removed: list[Any]) -> tuple[bytes, bytes | None]:
        if not removed:
            return b"", None
        keys, namespaces = _split(removed)
        return self._keys(keys), self._namespaces(namespaces)


def _entry(counts: list[int] | None, index: int) -> int:
    """Return the entry that an element belongs to, if entries are flattened."""
    return index if counts is None else int(np.searchsorted(np.cumsum(counts), index, "right"))


def _frame(chunk: _Chunk) -> bytes:
    data = msgspec.msgpack.encode(chunk)
    return _LENGTH.pack(len(data)) + data


class SectionReader(_StoredForm):
    """Reads the entries of a state that was stored as `meta` describes into the form that `now` describes."""

    def __init__(self, operator: str, meta: StateMeta, key_type: TypeInformation, now: StateMeta, stamp: int) -> None:
        super().__init__(operator, meta, key_type)
        self._types = self._value_type, now.value_type.type_info()
        self._strip = meta.ttl and not now.ttl
        self._wrap = now.ttl and not meta.ttl
        self._stamp = stamp

    def read(self, section: bytes) -> Iterator[tuple[Any, Any]]:
        """(address, stored) of each entry in order; None stands for a removed one."""
        for chunk in _chunks(section):
            for address in self._addresses(chunk.removed, chunk.removed_keys, chunk.removed_namespaces):
                yield address, None
            addresses = self._addresses(chunk.rows, chunk.keys, chunk.namespaces)
            yield from zip(addresses, self._stored(chunk), strict=True)

    def columns(self, section: bytes) -> Iterator[tuple[Any, Any, Any]] | None:
        """Keys, values and removed keys as numpy columns, frame by frame; None if the section has another form."""
        old, new = self._types
        if old != new or self._strip or self._wrap or self._meta.ttl or self._meta.kind != "value":
            return None
        frames = list(_chunks(section))
        for chunk in frames:
            parts = (chunk.keys, chunk.values) if chunk.rows else ()
            removed = (chunk.removed_keys,) if chunk.removed else ()
            if chunk.namespaces is not None or chunk.removed_namespaces is not None:
                return None
            if any(part[:1] != _PLAIN for part in (*parts, *removed)):
                return None
        return (self._as_columns(chunk) for chunk in frames)

    def _as_columns(self, chunk: _Chunk) -> tuple[Any, Any, Any]:
        empty = np.empty(0, np.int64)
        keys = _numbers(chunk.keys, self._key_type).astype(np.int64, copy=False) if chunk.rows else empty
        values = _numbers(chunk.values, self._types[0]) if chunk.rows else empty
        removed = _numbers(chunk.removed_keys, self._key_type).astype(np.int64) if chunk.removed else empty
        return keys, values, removed

    def _addresses(self, rows: int, keys: bytes, namespaces: bytes | None) -> list[Any]:
        if not rows:
            return []
        found = prepare_keys(_decode_column(keys, rows, self._key_type, self._key_type, self._where))
        if namespaces is None:
            return found
        spaces = load_values(namespaces, f"{self._where}: namespace")
        return [in_namespace(address, namespace) for address, namespace in zip(found, spaces, strict=True)]

    def _stored(self, chunk: _Chunk) -> list[Any]:
        counts = None if chunk.counts is None else np.frombuffer(chunk.counts, np.uint32).tolist()
        rows = chunk.rows if counts is None else sum(counts)
        if not chunk.rows:
            return []
        values = _decode_column(chunk.values, rows, *self._types, self._where)
        if self._wrap:
            values = [(value, self._stamp) for value in values]
        elif chunk.stamps is not None and not self._strip:
            values = list(zip(values, np.frombuffer(chunk.stamps, np.int64).tolist(), strict=True))
        if counts is None:
            return values
        elements = iter(values)
        if chunk.map_keys is None:
            return [list(islice(elements, count)) for count in counts]
        keys = _decode_column(chunk.map_keys, rows, self._map_key_type, self._map_key_type, self._where)
        entries = zip(map(address_of, keys), elements, strict=True)
        return [dict(islice(entries, count)) for count in counts]


_decode_chunk = msgspec.msgpack.Decoder(_Chunk).decode


def _chunks(section: bytes) -> Iterator[_Chunk]:
    position = 0
    while position < len(section):
        (size,) = _LENGTH.unpack_from(section, position)
        position += _LENGTH.size
        yield _decode_chunk(section[position : position + size])
        position += size


def _numbers(data: bytes, type_info: TypeInformation) -> Any:
    return pa.ipc.read_record_batch(pa.py_buffer(data).slice(1), type_info.schema).column(0).to_numpy()
