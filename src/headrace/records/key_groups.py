"""Key groups: which group a key belongs to, and which subtask owns a group (SPEC R3).

key --hash32--> int32 --murmur, mod max parallelism--> key group --owner--> subtask

Routing and state restore call the same functions, so a key is always found where its state is.
The hashes are Java's, never Python's `hash()`, which is salted per process. `hash_column` gives for Arrow
columns what `hash32` gives for one key, except that an int8/16/32 column takes Java's int rule and a
Python int the long rule: these differ for negative numbers, so a keyed operator must stay with one.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from enum import Enum
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import InvalidArgument
from headrace.records.flink_values import Instant, MutableRow
from headrace.records.kernel import groups_of, hash_texts
from headrace.records.kernel.hashing import UTF16, murmur_bits, polynomial

_UPPER_BOUND = 32768
_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F  # of MurmurHash3 x64 128
_MAX_LONG = 0x7FFFFFFFFFFFFFFF
_NAN_BITS = 0x7FF8000000000000
_ALLOWED = "allowed are str, int, float, bool, bytes and tuples of these"  # of columns
_KEYS = (
    "allowed are None, numbers, texts, bytes, dates, times, UUIDs, members of an Enum, instances of dataclasses, and tuples, "
    "lists, dicts, sets and rows of these"
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

# Ids of Arrow types; the types themselves are slow to hash.
_INTS = {kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())}
_NUMBERS = {kind.id for kind in (pa.int64(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_())} | _INTS
_STRINGS = {pa.string().id, pa.large_string().id}
_LARGE = {pa.large_string().id, pa.large_binary().id}
_KINDS = {*_NUMBERS, *_STRINGS, *_LARGE, pa.binary().id}
_CACHED = {str: pa.large_string(), int: pa.int64(), bytes: pa.large_binary(), float: pa.float64(), bool: pa.bool_()}

_Ints: TypeAlias = NDArray[np.int32]
_AnyArray: TypeAlias = NDArray[Any]


def hash32(key: object) -> int:
    """Java's `hashCode` of a key, as a signed 32-bit int (SPEC R3.1); the empty tuple hashes to 1.

    >>> hash32("hello"), hash32(("a", 1)), hash32(True)
    (99162322, 3008, 1231)
    """
    rule = _RULES.get(type(key))
    return _hash_other(key) if rule is None else rule(key)


def hash32_int(value: int) -> int:
    """The hash of a value of an int32 column (SPEC R3.1, int rule): `hash32_int(-1) == -1`, but `hash32(-1) == 0`."""
    if not isinstance(value, int | np.integer) or not -0x80000000 <= value <= 0x7FFFFFFF:
        raise InvalidArgument("HR-1305", f"{value!r} is not a 32-bit int: use an int64 column for larger keys")
    return int(value)


def _signed(word: int) -> int:
    word &= _M32
    return word - 0x100000000 if word & 0x80000000 else word


def _hash_int(key: int) -> int:
    return _signed(key ^ key >> 32) if -_MAX_LONG - 1 <= key <= _MAX_LONG else _hash_long_int(key)


def _hash_long_int(key: int) -> int:
    """Java's BigInteger: a polynomial over the 32-bit words of the magnitude."""
    magnitude = abs(key)
    words = magnitude.to_bytes(-(-magnitude.bit_length() // 32) * 4, "big")
    h = _polynomial_of(struct.unpack(f">{len(words) // 4}I", words), 0)
    return _signed(-h if key < 0 else h)


def _hash_float(key: float) -> int:
    if math.isnan(key):
        return _NAN_BITS >> 32  # NaNs with other payloads are the same key
    bits: int = struct.unpack("<q", struct.pack("<d", key + 0.0))[0]  # adding 0.0 turns -0.0 into 0.0
    return _hash_int(bits)


def _hash_str(key: str) -> int:
    if key.isascii():
        return polynomial(key.encode(), 0)
    # Java strings may hold lone surrogates, and so may Python's.
    return polynomial(memoryview(key.encode(UTF16, "surrogatepass")).cast("H"), 0)


def _hash_tuple(key: tuple[object, ...]) -> int:
    if not key:
        return 1  # as Java's hash of an empty array
    return _polynomial_of(map(hash32, key[1:]), hash32(key[0]))


def _polynomial_of(units: Iterable[int], start: int) -> int:
    h = start
    for unit in units:
        h = 31 * h + unit & _M32
    return _signed(h)


def _hash_decimal(key: Decimal) -> int:
    """Java's BigDecimal without trailing zeros, so that equal numbers hash alike."""
    if not key.is_finite():
        return _hash_str(str(key))
    exact = Context(prec=len(key.as_tuple().digits) + 1, Emax=MAX_EMAX, Emin=MIN_EMIN)
    sign, digits, exponent = key.normalize(exact).as_tuple()
    assert isinstance(exponent, int)
    number = int(Decimal((sign, digits, 0)))
    return _signed(31 * _hash_long_int(number) - (exponent if number else 0))


def _hash_date(key: dt.date) -> int:
    return _signed(key.year & 0xFFFFF800 ^ (key.year << 11) + (key.month << 6) + key.day)


def _hash_seconds(seconds: int, nanos: int) -> int:
    """Java's Instant and Duration."""
    return _signed(_hash_int(seconds) + 51 * nanos)


def _hash_timedelta(key: dt.timedelta) -> int:
    return _hash_seconds(key.days * 86400 + key.seconds, key.microseconds * 1000)


def _hash_time(key: dt.time) -> int:
    offset = key.utcoffset() or dt.timedelta()
    micros = ((key.hour * 60 + key.minute) * 60 + key.second) * 1_000_000 + key.microsecond
    return _hash_int((micros - offset // dt.timedelta(microseconds=1)) * 1000)


def _hash_datetime(key: dt.datetime) -> int:
    if key.utcoffset() is not None:
        return _hash_timedelta(key - _EPOCH)  # Java's Instant: equal points in time are one key, whatever the zone
    return _signed(_hash_date(key) ^ _hash_time(key.time()))


# In the order in which they are tried: an aware or naive datetime is a date, too. All but Enum are Java's.
_OTHER_RULES: dict[type, Callable[[Any], int]] = {
    type(None): lambda _: 0,
    Decimal: _hash_decimal,
    dt.datetime: _hash_datetime,
    dt.date: _hash_date,
    dt.time: _hash_time,
    dt.timedelta: _hash_timedelta,
    Instant: lambda key: _hash_seconds(key.seconds, key.nanos),
    uuid.UUID: lambda key: _hash_int(_signed64((key.int >> 64 ^ key.int) & _M64)),
    Enum: lambda key: _hash_str(f"{type(key).__qualname__}.{key.name}"),
    list: lambda key: _polynomial_of(map(hash32, key), 1),
    dict: lambda key: _signed(sum(hash32(k) ^ hash32(v) for k, v in key.items())),
    frozenset: lambda key: _signed(sum(map(hash32, key))),
    set: lambda key: _signed(sum(map(hash32, key))),
    MutableRow: lambda key: _hash_tuple(tuple(key)),
}


def _signed64(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_RULES: dict[type, Callable[[Any], int]] = {
    str: _hash_str,
    bool: lambda key: 1231 if key else 1237,
    int: _hash_int,
    float: _hash_float,
    bytes: lambda key: polynomial(memoryview(key).cast("b"), 1),
    tuple: _hash_tuple,
}


def _hash_other(key: object) -> int:
    """Subclasses and numpy scalars hash as their plain type; all else is refused."""
    if isinstance(key, np.generic) and key.dtype.kind in "biufSU":
        key = key.item()
    for rules in (_RULES, _OTHER_RULES):
        for kind, rule in rules.items():
            if isinstance(key, kind):
                return rule(key)
    if is_dataclass(key) and not isinstance(key, type):
        return _hash_tuple(tuple(getattr(key, field.name) for field in fields(key)))
    raise InvalidArgument(
        "HR-1305",
        f"key of type {type(key).__module__}.{type(key).__qualname__} cannot be hashed: {_KEYS}; give the key as one of these",
    )


def murmur(code: int) -> int:
    """MurmurHash3-32 of one 4-byte int, made non-negative as in Flink (SPEC R3.1): `murmur(1) % 128 == 86`."""
    mixed: int = murmur_bits(code & _M32)
    return 0 if mixed == 0x80000000 else abs(_signed(mixed))  # -2**31 has no positive counterpart in 32 bits


def key_group(key: object, max_parallelism: int) -> int:
    """Return the key group of one key (SPEC R3.1): `key_group("hello", 128) == 35`."""
    check_max_parallelism(max_parallelism, 1)
    return murmur(hash32(key)) % max_parallelism


def owner(group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the index of the subtask that owns a key group (SPEC R3.1): `owner(4, 10, 3) == 1`."""
    check_max_parallelism(max_parallelism, parallelism)
    if not 0 <= group < max_parallelism:
        raise InvalidArgument("HR-1306", f"key group {group} is not in [0, {max_parallelism}), the max parallelism")
    return group * parallelism // max_parallelism


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """The key groups from `start` to `end`, both inclusive; `KeyGroupRange.EMPTY` has none.

    >>> 6 in KeyGroupRange(4, 6), len(KeyGroupRange(4, 6)), KeyGroupRange(4, 6).intersect(KeyGroupRange(6, 9))
    (True, 3, KeyGroupRange(start=6, end=6))
    """

    start: int
    end: int
    EMPTY: ClassVar[KeyGroupRange]

    def __post_init__(self) -> None:
        # One form only for "no groups", so that empty ranges are equal.
        if not 0 <= self.start <= self.end and (self.start, self.end) != (0, -1):
            raise InvalidArgument("HR-1306", f"{self} needs 0 <= start <= end; for no groups use KeyGroupRange.EMPTY")

    def __contains__(self, group: int) -> bool:
        return self.start <= group <= self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __len__(self) -> int:
        return self.end - self.start + 1

    def intersect(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the groups that lie in both ranges."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else KeyGroupRange.EMPTY


KeyGroupRange.EMPTY = KeyGroupRange(0, -1)


def key_group_range(index: int, max_parallelism: int, parallelism: int) -> KeyGroupRange:
    """Return the key groups that a subtask owns (SPEC R3.1): `key_group_range(1, 10, 3) == KeyGroupRange(4, 6)`."""
    check_max_parallelism(max_parallelism, parallelism)
    if not 0 <= index < parallelism:
        raise InvalidArgument("HR-1306", f"subtask index {index} is not in [0, {parallelism}), the parallelism")
    start = (index * max_parallelism + parallelism - 1) // parallelism
    return KeyGroupRange(start, ((index + 1) * max_parallelism - 1) // parallelism)


def default_max_parallelism(parallelism: int) -> int:
    """Return the max parallelism where none is set (SPEC R3.2): `default_max_parallelism(1000) == 2048`."""
    check_max_parallelism(_UPPER_BOUND, parallelism)
    power_of_two = 1 << (parallelism + parallelism // 2 - 1).bit_length()
    return min(max(power_of_two, 128), _UPPER_BOUND)


def check_max_parallelism(max_parallelism: int, parallelism: int, what: str = "job") -> None:
    """Raise InvalidArgument unless `parallelism` subtasks can share `max_parallelism` key groups (SPEC R3.2)."""
    if not 1 <= parallelism <= max_parallelism <= _UPPER_BOUND:
        raise InvalidArgument(
            "HR-1217",
            f"{what}: parallelism {parallelism} does not go with max parallelism {max_parallelism}: the latter "
            f"must be in [1, {_UPPER_BOUND}], the parallelism from 1 up to the max parallelism; "
            "change the parallelism or, as long as no state is stored, the max parallelism",
        )


def hash_column(array: pa.Array | pa.ChunkedArray) -> _Ints:
    """Return the hash of every value of a column (SPEC R3.1): `hash_column(pa.array(["a"])).tolist() == [97]`."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if array.type.id not in _KINDS:
        raise InvalidArgument(
            "HR-1305", f"key column of type {array.type} cannot be hashed: {_ALLOWED}; cast it, e.g. to string"
        )
    if nulls := array.null_count:
        raise InvalidArgument(
            "HR-1305", f"key column has {nulls} null(s), but each record needs a key: drop or fill them"
        )
    rule = _hash_numbers if array.type.id in _NUMBERS else _hash_texts
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    parts = [rule(chunk) for chunk in chunks if len(chunk)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int32), *parts])


def hash_columns(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> _Ints:
    """One column is a scalar key, more are a tuple: `hash_columns([pa.array(["a"]), pa.array([1])]) == [3008]`."""
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) != 1:
        raise InvalidArgument(
            "HR-1305", f"a key needs one or more columns, all of one length; got columns of lengths {lengths}"
        )
    result = hash_column(arrays[0]).view(np.uint32)
    for array in arrays[1:]:
        result = result * np.uint32(31) + hash_column(array).view(np.uint32)
    return result.view(np.int32)


def key_groups_of(hashes: _AnyArray, max_parallelism: int) -> _Ints:
    """The key group of every 32-bit hash (SPEC R3.1): `key_groups_of(np.array([0, 1]), 128).tolist() == [94, 86]`."""
    check_max_parallelism(max_parallelism, 1)
    return groups_of(hashes.astype(np.int32, copy=False), max_parallelism)


def owners_of(groups: _AnyArray, max_parallelism: int, parallelism: int) -> _Ints:
    """The subtask that owns each key group (SPEC R3.1): `owners_of(np.array([0, 4]), 10, 3).tolist() == [0, 1]`."""
    check_max_parallelism(max_parallelism, parallelism)
    # At most 32767 * 32768, so 32 bits hold the product.
    return groups.astype(np.int32, copy=False) * np.int32(parallelism) // np.int32(max_parallelism)


def _hash_numbers(chunk: pa.Array) -> _Ints:
    values: _AnyArray = chunk.to_numpy(zero_copy_only=False)
    if chunk.type.id in _INTS:
        return values.astype(np.int32)
    if values.dtype == np.bool_:
        return np.where(values, np.int32(1231), np.int32(1237))
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN, not news
            floats = values.astype(np.float64, copy=False) + 0.0
        values = floats.view(np.int64)
        values[np.isnan(floats)] = _NAN_BITS
    if values.dtype == np.uint64 and (top := values.max()) > _MAX_LONG:
        raise InvalidArgument(
            "HR-1305", f"key {top} of a uint64 column does not fit in 64 bits with a sign: cast it to string"
        )
    return np.asarray(values ^ values >> 32).astype(np.int32)


def _hash_texts(chunk: pa.Array) -> _Ints:
    width = np.int64 if chunk.type.id in _LARGE else np.int32
    _, bounds, values = chunk.buffers()
    offsets = np.frombuffer(bounds, width)[chunk.offset : chunk.offset + len(chunk) + 1]  # it may be a slice
    return hash_texts(offsets, np.frombuffer(values or b"", np.uint8), chunk.type.id in _STRINGS)


class KeyHasher:
    """Key groups of Python keys; a repeated key costs one look-up in a bounded cache.

    >>> hasher = KeyHasher(128)
    >>> hasher.group("hello"), hasher.groups([1, 1.5, True])
    (35, [86, 65, 77])
    """

    def __init__(self, max_parallelism: int, max_entries: int = 200_000) -> None:
        check_max_parallelism(max_parallelism, 1)
        self._max = max_parallelism
        self._limit = max_entries
        # One per exact type, since 1 == 1.0 == True; for flat tuples one per tuple of types.
        self._caches: dict[object, dict[Any, int]] = {kind: {} for kind in _CACHED}

    def group(self, key: object) -> int:
        """Return the key group of one key."""
        kind: object = type(key)
        if isinstance(key, tuple):
            key = tuple(key)
            kind = tuple(map(type, key))
        cache = self._caches.get(kind)
        found = None if cache is None else cache.get(key)
        if found is None:
            found = murmur(hash32(key)) % self._max
            if cache is not None:
                self._keep(cache, [key], [found])
            elif isinstance(kind, tuple) and _CACHED.keys() >= set(kind) and len(self._caches) < 16:
                self._caches[kind] = {key: found}
        return found

    def groups(self, keys: Sequence[object]) -> list[int]:
        """Return the key group of each key."""
        kinds = set(map(type, keys))
        kind = kinds.pop() if len(kinds) == 1 else type(None)
        cache = self._caches.get(kind)
        if cache is None:
            return [self.group(key) for key in keys]
        # A new key costs some twenty times a key in bulk, so the cache pays only where nearly all keys are known.
        if len(keys) >= 64 and not all(key in cache for key in keys[:32]):
            # Left to hash32: a lone surrogate, which Arrow cannot hold, and a too long int, for its error text.
            with suppress(ValueError, OverflowError):
                groups: list[int] = key_groups_of(hash_column(pa.array(keys, _CACHED[kind])), self._max).tolist()
                self._keep(cache, keys[:64], groups)
                return groups
        found = map(cache.get, keys)
        return [self.group(key) if group is None else group for key, group in zip(keys, found, strict=True)]

    def _keep(self, cache: dict[Any, int], keys: Sequence[Any], groups: list[int]) -> None:
        if len(cache) >= self._limit:
            cache.clear()
        cache.update(zip(keys, groups, strict=False))


def murmur3_128(data: bytes) -> bytes:
    """MurmurHash3 x64 128, seed 0, in Guava's byte order (SPEC R8.5): `murmur3_128(b"a").hex()[:8] == "897859f6"`."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 = (_rotl(h1 ^ _mix(k1, _C1, 31, _C2), 27) + h2) * 5 + 0x52DCE729 & _M64
        h2 = (_rotl(h2 ^ _mix(k2, _C2, 33, _C1), 31) + h1) * 5 + 0x38495AB5 & _M64
    # Zero bytes mix to zero, so padding the tail is the same as the reference's byte-wise switch.
    k1, k2 = struct.unpack("<QQ", data[whole:].ljust(16, b"\0"))
    h1 ^= _mix(k1, _C1, 31, _C2) ^ len(data)
    h2 ^= _mix(k2, _C2, 33, _C1) ^ len(data)
    h1 = h1 + h2 & _M64
    h1, h2 = _final(h1), _final(h2 + h1 & _M64)
    h1 = h1 + h2 & _M64
    return struct.pack("<QQ", h1, h2 + h1 & _M64)


def _rotl(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _M64


def _mix(word: int, before: int, bits: int, after: int) -> int:
    return _rotl(word * before & _M64, bits) * after & _M64


def _final(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _M64
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _M64
    return word ^ word >> 33
