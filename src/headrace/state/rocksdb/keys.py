"""Row keys: key group, key, namespace, and the suffix of a list element or map entry (SPEC R7.2).

    row       group (1 or 2 bytes), key, namespace, then nothing | sequence number (8 bytes) | map key
    part      tag (1 byte), then content whose length follows from the tag or is written before it

Tag and length delimit every part, so no row key is a prefix of another key's, and rows of one key group, one key and one
namespace are adjacent. Equal keys give equal bytes, by their content and never by a pickle (SPEC R3.1): dates and times as
ISO text, members of an Enum and dataclasses with the name of their class, dicts and sets in the order of their bytes. Map
keys and namespaces of such types are pickles without back references. Any thread of the worker may call these functions.
"""

from __future__ import annotations

import datetime as dt
import io
import pickle
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from decimal import Context, Decimal
from enum import Enum
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cloudpickle import cloudpickle as cloud

from headrace.errors import InvalidArgument, StateMigrationError
from headrace.records.flink_values import Instant, MutableRow
from headrace.state.addresses import VOID, address_of, in_namespace, key_of, split_address

_VOID, _INT, _BIG_INT, _STR, _LONG_STR, _BYTES, _LONG_BYTES, _FLOAT = range(8)
_FALSE, _TRUE, _TUPLE, _LONG_TUPLE, _NONE, _DECIMAL, _SET, _OTHER = range(8, 16)
_LIST, _DICT, _ROW, _CLASS, _ENUM, _DATE, _TIME, _DATETIME = range(16, 24)
_DELTA, _UUID, _INSTANT, _CHANGING_SET, _KEY_SET = range(24, 29)
_UNHASHABLE: Final = frozenset([list, set, dict, MutableRow])

_CONSTANTS: Final = {_VOID: VOID, _FALSE: False, _TRUE: True, _NONE: None}
_LONG_FORMS: Final = {_BYTES: _LONG_BYTES, _TUPLE: _LONG_TUPLE}
_NO_NAMESPACE: Final = bytes([_VOID])
_SHORT: Final = 256
_STR_HEADS: Final = [bytes([_STR, size]) for size in range(_SHORT)]
_STRINGS: Final = {str}
_INTS: Final = {int}
_HALF: Final = 1 << 63  # added to a number, so that bytes sort as numbers do
_pack_int: Final = struct.Struct(">BQ").pack
_pack_float: Final = struct.Struct(">Bd").pack
_pack_long: Final = struct.Struct(">BI").pack
_unpack_int: Final = struct.Struct(">Q").unpack_from
_unpack_float: Final = struct.Struct(">d").unpack_from
_unpack_long: Final = struct.Struct(">I").unpack_from


# --- writing --------------------------------------------------------------------------------------------------------


def encode_address(address: Any) -> bytes:
    r"""Return the bytes of an address without namespace.

    >>> encode_address("a"), encode_address(1) < encode_address(2)
    (b'\x03\x01a', True)
    """
    kind = type(address)
    if kind is str:
        return _text(address)
    if kind is int:
        return _int(address)
    if isinstance(address, tuple):
        if len(address) == 2 and isinstance(address[0], type):
            return _tagged_key(*address) if address[0] in _UNHASHABLE else _plain(address[1])
        return _sequence(address, encode_address)
    return _plain(address)


def encode_key(address: Any) -> bytes:
    """Return the bytes of the address of a key, without namespace."""
    kind = type(address)
    if kind is str:
        return _text(address)
    if kind is int:
        return _int(address)
    if isinstance(address, tuple):
        if len(address) == 2 and isinstance(address[0], type):
            return _tagged_key(*address)
        return _sequence(address, encode_key)
    return _plain(address)


def _tagged_key(kind: type, held: Any) -> bytes:
    if kind is list:
        return _counted(_LIST, map(encode_key, held))
    if kind is set:
        return _counted(_CHANGING_SET, sorted(map(encode_key, held)))
    if kind is frozenset:
        return _counted(_KEY_SET, sorted(encode_key(address_of(item)) for item in held))
    if kind is dict:
        return _counted(_DICT, sorted(encode_key(k) + encode_key(v) for k, v in held))
    if kind is MutableRow:
        names, values = held
        return _counted(_ROW, [_plain(names), _sequence(values, encode_key)])
    for one, (tag, text, _) in _TEXTS.items():
        if isinstance(held, one):
            data = text(held).encode()
            return _pack_long(tag, len(data)) + data
    if is_dataclass(held):
        own = tuple(address_of(getattr(held, field.name)) for field in fields(held))
        return _counted(_CLASS, [_text(_class_path(type(held))), _sequence(own, encode_key)])
    return _plain(held)


def _counted(tag: int, parts: Iterable[bytes]) -> bytes:
    found = list(parts)
    return _pack_long(tag, len(found)) + b"".join(found)


def _utc_text(value: dt.datetime) -> str:
    return (value if value.utcoffset() is None else value.astimezone(dt.UTC)).isoformat()


def _class_path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_at(path: str) -> Any:
    """Return the class that a stored key names."""
    module, _, name = path.partition(":")
    if module == "__main__":
        return _class_of_program(name)
    try:
        found: Any = sys.modules.get(module) or import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise StateMigrationError(
            "HR-2102",
            f"a stored key is of class '{name}' of module '{module}', which cannot be found: {error}; keep the class importable "
            "under its old name",
        ) from error
    return found


def _enum_member(text: str) -> Any:
    path, _, name = text.rpartition(".")
    return _class_at(path)[name]


def _instant(text: str) -> Instant:
    seconds, nanos = map(int, text.split("."))
    return Instant(seconds, nanos)


def _delta(text: str) -> dt.timedelta:
    days, seconds, micros = map(int, text.split(","))
    return dt.timedelta(days, seconds, micros)


# Keys that are stored as text: tag, value -> text, text -> value; a datetime is a date, so it comes first.
_TEXTS: Final[dict[type, tuple[int, Callable[[Any], str], Callable[[str], Any]]]] = {
    dt.datetime: (_DATETIME, _utc_text, dt.datetime.fromisoformat),
    dt.date: (_DATE, dt.date.isoformat, dt.date.fromisoformat),
    dt.time: (_TIME, dt.time.isoformat, dt.time.fromisoformat),
    dt.timedelta: (_DELTA, lambda value: f"{value.days},{value.seconds},{value.microseconds}", _delta),
    uuid.UUID: (_UUID, str, uuid.UUID),
    Instant: (_INSTANT, lambda value: f"{value.seconds}.{value.nanos}", _instant),
    Enum: (_ENUM, lambda value: f"{_class_path(type(value))}.{value.name}", _enum_member),
}
_FROM_TEXT: Final = {tag: read for tag, _, read in _TEXTS.values()}


def _plain(value: Any) -> bytes:
    """Return the bytes of a value that is not an address, such as a namespace."""
    for kind, encode in _ENCODERS.items():
        if isinstance(value, kind):
            return encode(value)
    return _other(value)


def _text(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        data = value.encode("utf-8", "surrogatepass")
    size = len(data)
    return (_STR_HEADS[size] if size < _SHORT else _pack_long(_LONG_STR, size)) + data


def _int(value: int) -> bytes:
    try:
        return _pack_int(_INT, value + _HALF)
    except struct.error:
        data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        return _pack_long(_BIG_INT, len(data)) + data


def _head(tag: int, size: int) -> bytes:
    return bytes([tag, size]) if size < _SHORT else _pack_long(_LONG_FORMS[tag], size)


def _sequence(values: tuple[Any, ...], encode: Callable[[Any], bytes]) -> bytes:
    return _head(_TUPLE, len(values)) + b"".join(map(encode, values))


def _tuple(value: tuple[Any, ...]) -> bytes:
    # A named tuple or a window must keep its type.
    return _sequence(value, _plain) if type(value) is tuple else _other(value)


def _set(value: frozenset[Any]) -> bytes:
    return _pack_long(_SET, len(value)) + b"".join(sorted(map(_plain, value)))


def _decimal(value: Decimal) -> bytes:
    exact = Context(prec=len(value.as_tuple().digits) + 1)
    data = str(value.normalize(exact)).encode()  # 1.0 and 1.00 are one key
    return _pack_long(_DECIMAL, len(data)) + data


def _other(value: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = _KeyPickler(buffer, protocol=4)
    pickler.fast = True  # no back references: they depend on which objects happen to be the same one
    try:
        pickler.dump(value)
    except Exception as error:
        raise InvalidArgument(
            "HR-2004",
            f"a map key or namespace of type {type(value).__qualname__} cannot be stored: {error}; "
            "use a str, int, bytes, float, bool, or a tuple of these",
        ) from error
    data = buffer.getvalue()
    return _pack_long(_OTHER, len(data)) + data


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: _text,
    bool: lambda value: bytes([_TRUE if value else _FALSE]),
    int: lambda value: _int(int(value)),
    bytes: lambda value: _head(_BYTES, len(value)) + value,
    float: lambda value: _pack_float(_FLOAT, value + 0.0),  # -0.0 and 0.0 are one key
    tuple: _tuple,
    type(VOID): lambda _: _NO_NAMESPACE,
    type(None): lambda _: bytes([_NONE]),
    Decimal: _decimal,
    frozenset: _set,
}


class _KeyPickler(pickle.Pickler):
    """Stores classes of the program's own script by name instead of by value, so that equal keys give equal bytes."""

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__":
            return obj.__qualname__
        return None


class _KeyUnpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return _class_of_program(str(pid))


def _class_of_program(name: str) -> Any:
    """Return a class of the program's own script."""
    found: Any = sys.modules.get("__main__")
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        # A worker received the program's classes by value; cloudpickle keeps track of them.
        trackers = cloud._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001
        found = next((kind for kind in trackers if kind.__qualname__ == name and kind.__module__ == "__main__"), None)
    if found is None:
        raise StateMigrationError(
            "HR-2102", f"a stored key, map key or namespace is of class '{name}', which the program does not define"
        )
    return found


# --- reading --------------------------------------------------------------------------------------------------------


def decode_address(data: bytes, position: int = 0, *, tagged: bool = True) -> tuple[Any, int]:
    """Return the address that starts at a position, and where it ends; `tagged=False` reads a namespace.

    >>> decode_address(encode_address(("a", 1)))
    (('a', 1), 14)
    """
    tag = data[position]
    position += 1
    if tag == _STR:
        end = position + 1 + data[position]
        return str(data[position + 1 : end], "utf-8", "surrogatepass"), end
    if tag == _INT:
        return _unpack_int(data, position)[0] - _HALF, position + 8
    if tag == _FLOAT:
        number = _unpack_float(data, position)[0]
        return (address_of(number) if tagged else number), position + 8  # there is one NaN only
    if tag in _CONSTANTS:
        value = _CONSTANTS[tag]
        return (value if value is VOID else _tagged(value, tagged)), position
    if tag in _LONG_FORMS:
        size, position, tag = data[position], position + 1, _LONG_FORMS[tag]
    else:
        size, position = _unpack_long(data, position)[0], position + 4
    if tag == _LONG_TUPLE:
        return _decode_fields(data, position, size, tagged)
    if tag in _CONTAINERS:
        return _decode_container(tag, data, position, size)
    if tag == _SET:
        fields, end = _decode_fields(data, position, size, tagged=False)
        return _tagged(frozenset(fields), tagged), end
    end = position + size
    content = data[position:end]
    if tag == _LONG_STR:
        return content.decode("utf-8", "surrogatepass"), end
    if tag == _LONG_BYTES:
        return content, end
    if tag == _BIG_INT:
        return int.from_bytes(content, "big", signed=True), end
    if tag == _DECIMAL:
        return _tagged(Decimal(content.decode()), tagged), end
    if tag in _FROM_TEXT:
        value = _FROM_TEXT[tag](content.decode())
        return (type(value), value), end
    assert tag == _OTHER, f"unknown tag {tag} in a row key"
    return _tagged(_KeyUnpickler(io.BytesIO(content)).load(), tagged), end


_CONTAINERS: Final = frozenset([_LIST, _DICT, _ROW, _CLASS, _CHANGING_SET, _KEY_SET])


def _decode_container(tag: int, data: bytes, position: int, count: int) -> tuple[Any, int]:
    """Return the address of a list, a dict, a set, a row or an instance of a dataclass."""
    if tag == _ROW:
        names, position = decode_address(data, position, tagged=False)
        values, position = decode_address(data, position)
        return (MutableRow, (names, values)), position
    held, position = _decode_fields(data, position, 2 * count if tag == _DICT else count, tagged=True)
    if tag == _CLASS:
        path, own = held
        kind = _class_at(path)
        return (kind, kind(*map(key_of, own))), position
    if tag == _DICT:
        return (dict, frozenset(zip(held[::2], held[1::2], strict=True))), position
    if tag == _KEY_SET:
        return (frozenset, frozenset(map(key_of, held))), position
    return ((set, frozenset(held)) if tag == _CHANGING_SET else (list, held)), position


def _tagged(value: Any, tagged: bool) -> Any:
    return (type(value), value) if tagged else value


def _decode_fields(data: bytes, position: int, count: int, tagged: bool) -> tuple[tuple[Any, ...], int]:
    fields = []
    for _ in range(count):
        field, position = decode_address(data, position, tagged=tagged)
        fields.append(field)
    return tuple(fields), position


class RowKeys:
    r"""Row keys of one operator.

    >>> keys = RowKeys(128)
    >>> base = keys.base(35, "hello")
    >>> base, keys.split(base)
    (b'#\x03\x05hello\x00', (35, 'hello', 9))
    """

    def __init__(self, max_parallelism: int) -> None:
        self.max_parallelism = max_parallelism
        self.width = 1 if max_parallelism <= 128 else 2
        self._prefixes = [group.to_bytes(self.width, "big") for group in range(max_parallelism)]

    def prefix(self, group: int) -> bytes:
        """Return the prefix of all rows of a key group; `prefix(last + 1)` sorts after all rows of the group `last`."""
        return self._prefixes[group] if group < len(self._prefixes) else group.to_bytes(self.width, "big")

    def base(self, group: int, address: Any) -> bytes:
        """Return the row key of an address, or the prefix of the row keys of its elements or entries."""
        kind = type(address)
        if kind is str:
            return self._prefixes[group] + _text(address) + _NO_NAMESPACE
        if kind is int:
            return self._prefixes[group] + _int(address) + _NO_NAMESPACE
        key, namespace = split_address(address)
        return self._prefixes[group] + encode_key(key) + _plain(namespace)

    def bases(self, group: int, addresses: Sequence[Any]) -> list[bytes]:
        """Return the bases of many addresses of a group."""
        kinds = set(map(type, addresses))
        prefix = self._prefixes[group]
        if kinds == _STRINGS:
            with suppress(UnicodeEncodeError, IndexError):  # a lone surrogate, or a long text
                heads = _STR_HEADS
                return [prefix + heads[len(data)] + data + _NO_NAMESPACE for data in map(str.encode, addresses)]
        if kinds == _INTS:
            with suppress(struct.error):  # a large one
                return [prefix + _pack_int(_INT, number + _HALF) + _NO_NAMESPACE for number in addresses]
        base = self.base
        return [base(group, address) for address in addresses]

    def integers(self, rows: Sequence[bytes]) -> npt.NDArray[np.int64] | None:
        """The keys of rows, if all are integers of 64 bits without a namespace and without a suffix; else None."""
        size, start = self.width + 10, self.width + 1
        if set(map(len, rows)) != {size}:
            return None
        parts = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, size)
        if (parts[:, start - 1] != _INT).any() or (parts[:, -1] != _VOID).any():
            return None
        numbers = np.ascontiguousarray(parts[:, start : start + 8]).view(">u8").ravel().astype(np.uint64)
        return (numbers ^ np.uint64(_HALF)).view(np.int64)

    def integer_rows(self, keys: npt.NDArray[np.int64], groups: npt.NDArray[Any]) -> list[bytes]:
        """Return the rows of integer keys without a namespace."""
        size = self.width + 10
        parts = np.empty((len(keys), size), np.uint8)
        for byte in range(self.width):
            parts[:, byte] = groups >> 8 * (self.width - 1 - byte)
        parts[:, self.width], parts[:, -1] = _INT, _VOID
        parts[:, self.width + 1 : -1] = (
            (keys.view(np.uint64) ^ np.uint64(_HALF)).astype(">u8").view(np.uint8).reshape(-1, 8)
        )
        rows: list[bytes] = parts.view(f"V{size}").ravel().tolist()
        return rows

    def split(self, row: bytes) -> tuple[int, Any, int]:
        """Key group and address of a row, and the length of its base."""
        group = int.from_bytes(row[: self.width], "big")
        key, position = decode_address(row, self.width)
        namespace, position = decode_address(row, position, tagged=False)
        return group, in_namespace(key, namespace), position
