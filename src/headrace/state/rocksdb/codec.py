"""Values as bytes in the database, and in the form that the write-back cache holds.

A value is encoded when it is written to the database, not when the user stores it. So the cache holds immutable values as
they are, and anything else as `Packed` bytes that become a new object at each read (SPEC R7.2: no shared references). The
subtask's thread and the threads of snapshots use it.

    typed, flat      MessagePack; rows and tuples as arrays: a fifth of pickle's time and a third of its bytes
    typed, nested    checked by Arrow, then pickled
    untyped          MessagePack for numbers and texts, else a pickle; the first byte tells which
"""

from __future__ import annotations

import pickle
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import InvalidArgument
from headrace.records.copying import ATOMS, is_immutable
from headrace.records.types import TypeInformation, TypeMismatch, form_of
from headrace.state.pickling import dump_values, load_values

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_decode_tuple: Final = msgspec.msgpack.Decoder(tuple).decode

_LIST_TAG: Final = 0xDD  # of a list with up to 2**32 elements
_LIST_HEAD: Final = struct.Struct(">BI").pack
STAMP_BYTES: Final = 8
_STAMP: Final = struct.Struct(">Q")
_HALF: Final = 1 << 63


def pack_stamp(stamp: int) -> bytes:
    """Return a time in milliseconds as bytes that sort like the times."""
    return _STAMP.pack(stamp + _HALF)


def unpack_stamp(data: bytes) -> int:
    """Return the time at the start of a row."""
    return int(_STAMP.unpack_from(data)[0]) - _HALF


class Packed:
    """The bytes of a mutable value."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class ValueCodec(ABC):
    """The forms of values of one type: the user's object, the cached form, the bytes in the database.

    Values of the types in `plain` are cached as they are. A value that does not fit its type is cached as it is, and
    refused with its key when it is written, as in the hashmap backend.
    """

    plain: frozenset[type] = frozenset()

    def __init__(self, type_info: TypeInformation, where: str) -> None:
        self.type = type_info
        self.where = where

    @abstractmethod
    def keep(self, value: Any) -> Any:
        """From the user's object to the cached form."""

    @abstractmethod
    def encode(self, kept: Any) -> bytes:
        """From the cached form to bytes; TypeMismatch or InvalidArgument if the value cannot be stored."""

    def encode_many(self, kept: Sequence[Any]) -> list[bytes]:
        encode = self.encode
        return [encode(value) for value in kept]

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """From bytes to a new object for the user."""

    def decode_many(self, rows: Sequence[bytes]) -> list[Any]:
        return [self.decode(data) for data in rows]

    def load(self, data: bytes) -> Any:
        """From bytes to the cached form."""
        return self.decode(data)

    def open(self, kept: Any) -> Any:
        """From the cached form to an object for the user."""
        return self.decode(kept.data) if type(kept) is Packed else kept

    def _through_arrow(self, value: Any) -> Any:
        """Return the value as Arrow converts it; TypeMismatch if it does not fit."""
        return self.type.to_rows(self.type.to_batch([value]))[0]

    def _converted(self, value: Any) -> Any:
        """Return the value as Arrow converts it, or unchanged if it does not fit."""
        try:
            return self._through_arrow(value)
        except TypeMismatch:
            return value


class _Scalars(ValueCodec):
    """Numbers, texts and bytes."""

    def __init__(self, type_info: TypeInformation, where: str, kind: type, limit: int | None) -> None:
        super().__init__(type_info, where)
        self.plain = frozenset([kind])
        self._kind = kind
        self._limit = limit

    def keep(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) is int and self._kind is float:
            value = float(value)
        return value if type(value) is self._kind else self._converted(value)

    def encode(self, kept: Any) -> bytes:
        return _encode(kept if type(kept) is self._kind and self._in_range(kept) else self._through_arrow(kept))

    def _in_range(self, number: Any) -> bool:
        return self._limit is None or -self._limit <= number < self._limit

    def encode_many(self, kept: Sequence[Any]) -> list[bytes]:
        if set(map(type, kept)) == self.plain and (
            self._limit is None or (self._in_range(min(kept)) and self._in_range(max(kept)))
        ):
            return list(map(_encode, kept))
        return super().encode_many(kept)

    def decode(self, data: bytes) -> Any:
        return _decode(data)

    def decode_many(self, rows: Sequence[bytes]) -> list[Any]:
        """All of them at once, as a list of MessagePack."""
        found: list[Any] = _decode(_LIST_HEAD(_LIST_TAG, len(rows)) + b"".join(rows))
        return found


class _Texts(_Scalars):
    """Texts are stored as UTF-8, without a MessagePack header."""

    def encode(self, kept: Any) -> bytes:
        try:
            return bytes(kept.encode())
        except (AttributeError, UnicodeEncodeError):
            return bytes(self._through_arrow(kept).encode())

    def encode_many(self, kept: Sequence[Any]) -> list[bytes]:
        return [self.encode(value) for value in kept]

    def decode(self, data: bytes) -> Any:
        return data.decode()

    def decode_many(self, rows: Sequence[bytes]) -> list[Any]:
        return [data.decode() for data in rows]


class _FlatRows(ValueCodec):
    """Rows and tuples of numbers, texts and bytes."""

    def __init__(self, type_info: TypeInformation, where: str) -> None:
        super().__init__(type_info, where)
        assert type_info.schema is not None
        self._width = len(type_info.schema)
        self._row = type_info.row
        self.plain = frozenset([tuple if type_info.row is None else type_info.row])

    def keep(self, value: Any) -> Any:
        if isinstance(value, tuple | list) and len(value) == self._width:
            return tuple(value) if self._row is None else tuple.__new__(self._row, value)
        return value

    def encode(self, kept: Any) -> bytes:
        return self.encode_many([kept])[0]

    def encode_many(self, kept: Sequence[Any]) -> list[bytes]:
        batch = self.type.to_batch(kept)  # this checks every field
        try:
            return list(map(_encode, kept))
        except (TypeError, OverflowError):  # a numpy number
            return list(map(_encode, self.type.to_rows(batch)))

    def decode(self, data: bytes) -> Any:
        fields = _decode_tuple(data)
        return fields if self._row is None else tuple.__new__(self._row, fields)


class _MutableRows(_FlatRows):
    """Rows that the user may change, of numbers, texts and bytes: the cache holds their fields."""

    def __init__(self, type_info: TypeInformation, where: str) -> None:
        super().__init__(type_info, where)
        self.plain = frozenset()

    def keep(self, value: Any) -> Any:
        try:
            return tuple(self.type.normalise([value])[0])
        except TypeMismatch:
            return value

    def decode(self, data: bytes) -> Any:
        return self.type.record(_decode_tuple(data))

    def load(self, data: bytes) -> Any:
        return _decode_tuple(data)

    def open(self, kept: Any) -> Any:
        return self.type.record(kept) if type(kept) is tuple else kept


class _Nested(ValueCodec):
    """Typed values with lists, maps, dates or decimals in them."""

    def keep(self, value: Any) -> Any:
        try:
            return Packed(self.encode(value))
        except TypeMismatch:
            return value

    def encode(self, kept: Any) -> bytes:
        if type(kept) is Packed:
            return kept.data
        return pickle.dumps(self._through_arrow(kept), protocol=5)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)

    def load(self, data: bytes) -> Any:
        return Packed(data)


_PICKLE, _PACK = b"\0", b"\1"
_PACKED_KINDS: Final = frozenset([int, float, str, bytes, bool])


class _Untyped(ValueCodec):
    """Any Python object."""

    plain = frozenset(cast("frozenset[type]", ATOMS) - {type(None)})

    def keep(self, value: Any) -> Any:
        if is_immutable(value):
            return value
        try:
            return Packed(self._dump(value))
        except InvalidArgument:
            return value

    def encode(self, kept: Any) -> bytes:
        if isinstance(kept, Packed):
            return kept.data
        kind = type(kept)
        if kind in _PACKED_KINDS:
            try:
                return _PACK + _encode(kept)
            except (OverflowError, UnicodeEncodeError):
                pass  # more than 64 bits, or a lone surrogate
        return self._dump(kept)

    def _dump(self, value: Any) -> bytes:
        return _PICKLE + dump_values([value], self.where)

    def decode(self, data: bytes) -> Any:
        if data[:1] == _PACK:
            return _decode(data[1:])
        if b"__main__" not in data:
            with suppress(Exception):  # load_values fails too, with an error that names the class
                return pickle.loads(data[1:])[0]
        return load_values(data[1:], self.where)[0]

    def load(self, data: bytes) -> Any:
        value = self.decode(data)
        return value if is_immutable(value) else Packed(data)


_SCALARS: dict[pa.DataType, tuple[type, int | None]] = {
    pa.bool_(): (bool, None),
    pa.int8(): (int, 1 << 7),
    pa.int16(): (int, 1 << 15),
    pa.int32(): (int, 1 << 31),
    pa.int64(): (int, 1 << 63),
    pa.float64(): (float, None),
    pa.string(): (str, None),
    pa.binary(): (bytes, None),
}


def codec_for(type_info: TypeInformation, where: str) -> ValueCodec:
    r"""Return the codec of a type; `where` names the operator and the state in errors.

    >>> from headrace.records.types import as_type
    >>> codec = codec_for(as_type("word string, n bigint"), "state 's'")
    >>> codec.encode(codec.keep(("a", 1))), codec.decode(b"\x92\xa1a\x01")
    (b'\x92\xa1a\x01', Row(word='a', n=1))
    """
    if type_info.schema is None:
        return _Untyped(type_info, where)
    if any(field.type not in _SCALARS or form_of(field) for field in type_info.schema):
        return _Nested(type_info, where)
    if type_info.mutable:
        return _MutableRows(type_info, where)
    if type_info.kind != "scalar":
        return _FlatRows(type_info, where)
    kind, limit = _SCALARS[type_info.schema.field(0).type]
    codec: Callable[..., ValueCodec] = _Texts if kind is str else _Scalars
    return codec(type_info, where, kind, limit)


_PRESENT, _NULL = b"\0", b"\1"


class StoredCodec:
    """The forms of what a state stores: a value, or with a time to live a (value, stamp) pair.

    In bytes the stamp comes before the value (SPEC R2.2); where a value may be None, a flag is between the two.
    """

    def __init__(self, values: ValueCodec, *, stamped: bool, nullable: bool) -> None:
        self.values = values
        self.stamped = stamped
        self._nullable = nullable
        bare = not stamped and not nullable  # the common case needs no second call
        self.load: Callable[[bytes], Any] = values.load if bare else self._load
        self.open: Callable[[Any], Any] = values.open if bare else self._open

    def keep(self, stored: Any) -> Any:
        """From the stored form of a table to the cached form."""
        value = stored[0] if self.stamped else stored
        if type(value) in self.values.plain or value is None:
            return stored
        kept = self.values.keep(value)
        return (kept, stored[1]) if self.stamped else kept

    def _open(self, kept: Any) -> Any:
        value = kept[0] if self.stamped else kept
        opened = None if value is None else self.values.open(value)
        if opened is value:
            return kept
        return (opened, kept[1]) if self.stamped else opened

    def encode(self, kept: Any) -> bytes:
        return self.encode_many([kept])[0]

    def _load(self, data: bytes) -> Any:
        start = STAMP_BYTES if self.stamped else 0
        value: Any = None
        if not self._nullable:
            value = self.values.load(data[start:])
        elif data[start : start + 1] == _PRESENT:
            value = self.values.load(data[start + 1 :])
        return (value, unpack_stamp(data)) if self.stamped else value

    def encode_many(self, kept: Sequence[Any]) -> list[bytes]:
        values = [one[0] for one in kept] if self.stamped else kept
        if self._nullable:
            present = iter(self.values.encode_many([value for value in values if value is not None]))
            rows = [_NULL if value is None else _PRESENT + next(present) for value in values]
        else:
            rows = self.values.encode_many(values)
        return [pack_stamp(one[1]) + row for one, row in zip(kept, rows, strict=True)] if self.stamped else rows
