"""SPEC R3: key groups, and the 128-bit murmur of R8.5."""

import ast
import datetime as dt
import decimal
import enum
import inspect
import math
import random
import re
import struct
import subprocess
import sys
import uuid
import zoneinfo
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidArgument
from headrace.records import key_groups as keygroups
from headrace.records.flink_values import Instant, MutableRow
from headrace.records.key_groups import (
    KeyGroupRange,
    KeyHasher,
    check_max_parallelism,
    default_max_parallelism,
    hash32,
    hash32_int,
    hash_column,
    hash_columns,
    key_group,
    key_group_range,
    key_groups_of,
    murmur,
    murmur3_128,
    owner,
    owners_of,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324])
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("ab\x00\x7f\x80é€\uffff\U00010000😀", max_size=80)
BYTES = st.binary(max_size=100)
SCALARS = st.one_of(INT64, FLOATS, st.booleans(), TEXTS, BYTES)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)

COLUMNS = [
    (pa.int64(), INT64),
    (pa.uint8(), st.integers(0, 2**8 - 1)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.uint64(), st.integers(0, 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), FLOATS),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), BYTES),
    (pa.large_binary(), BYTES),
]
COLUMN_IDS = [str(kind) for kind, _ in COLUMNS]


def java_string_hash(text):
    """The rule as Java states it, one UTF-16 unit after the other."""
    h = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", data):
        h = (31 * h + unit) % 2**32
    return h - 2**32 if h >= 2**31 else h


# ---- hash32 ----------------------------------------------------------------------------------------------------------


# SPEC R3.1
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("é", 0xE9),
        ("😀", 0xD83D * 31 + 0xDE00),
        ("\ud83d", 0xD83D),
        (0, 0),
        (1, 1),
        (-1, 0),
        (-2, 1),
        (2**31, -(2**31)),
        (2**32, 1),
        (2**63 - 1, -(2**31)),
        (-(2**63), -(2**31)),
        (True, 1231),
        (False, 1237),
        (0.0, 0),
        (-0.0, 0),
        (1.0, 1072693248),
        (1.5, 1073217536),
        (math.nan, 2146959360),
        (math.inf, 2146435072),
        (-math.inf, -1048576),
        (b"", 1),
        (b"abc", 126145),
        (b"\xff", 30),
        (b"\x80", -97),
        (("a", 1), 3008),
        (("a",), 97),
        ((), 1),
        (((),), 1),
        (("a", ("b", 1)), 97 * 31 + 98 * 31 + 1),
    ],
)
def test_hash32_vectors(key, expected):
    assert hash32(key) == expected


# SPEC R3.1
@pytest.mark.parametrize(
    ("key", "group"),
    [
        (0, 94),
        (1, 86),
        (2, 127),
        (3, 113),
        (42, 29),
        (-1, 94),
        ("hello", 35),
        ("world", 66),
        ("flink", 98),
        ("a", 81),
        (("a", 1), 29),
        (b"abc", 28),
        (1.5, 65),
        (True, 77),
    ],
)
def test_key_group_vectors(key, group):
    assert key_group(key, 128) == group
    assert KeyHasher(128).group(key) == group
    assert KeyHasher(128).groups([key] * 100) == [group] * 100


# SPEC R3.1: an int32 column takes the int rule
@pytest.mark.parametrize(("value", "group"), [(0, 94), (1, 86), (2, 127), (3, 113), (42, 29), (-1, 80)])
def test_int_rule_vectors(value, group):
    assert murmur(hash32_int(value)) % 128 == group
    for kind in (pa.int8(), pa.int16(), pa.int32()):
        assert key_groups_of(hash_column(pa.array([value], kind)), 128).tolist() == [group]


def test_int_rule_limits():
    assert hash32_int(-(2**31)) == -(2**31)
    assert hash32_int(np.int16(-5)) == -5
    assert type(hash32_int(np.int16(-5))) is int
    for bad in (2**31, -(2**31) - 1, 1.5, "1"):
        with pytest.raises(InvalidArgument, match="is not a 32-bit int: use an int64 column"):
            hash32_int(bad)


# SPEC R3.1: one NaN
def test_every_nan_is_one_key():
    quiet = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0123))[0]
    signalling = struct.unpack("<d", struct.pack("<Q", 0xFFF0_0000_0000_0001))[0]
    assert hash32(quiet) == hash32(signalling) == hash32(math.nan)
    bits = np.array([0x7FF8_0000_0000_0123, 0xFFF0_0000_0000_0001], np.uint64)
    assert hash_column(pa.array(bits.view(np.float64))).tolist() == [hash32(math.nan)] * 2
    single = np.array([0x7F80_0001, 0xFFC0_0001], np.uint32).view(np.float32)
    assert hash_column(pa.array(single)).tolist() == [hash32(math.nan)] * 2


@given(st.text(st.characters(), max_size=120))
def test_string_rule_is_over_utf16_units(text):
    assert hash32(text) == java_string_hash(text)


@given(BYTES)
def test_bytes_rule(data):
    h = 1
    for byte in struct.unpack(f"{len(data)}b", data):
        h = 31 * h + byte
    assert hash32(data) % 2**32 == h % 2**32


@given(st.lists(SCALARS, min_size=1, max_size=5))
def test_tuple_rule(fields):
    h = hash32(fields[0])
    for field in fields[1:]:
        h = 31 * h + hash32(field)
    assert hash32(tuple(fields)) % 2**32 == h % 2**32


@given(KEYS)
def test_hash32_is_a_signed_32_bit_int(key):
    assert type(hash32(key)) is int
    assert -(2**31) <= hash32(key) < 2**31
    assert 0 <= key_group(key, 32768) < 32768


@pytest.mark.parametrize("size", [31, 32, 33, 32767, 32768, 32769, 70000])
def test_long_keys(size):
    rng = random.Random(size)
    text = "".join(rng.choices("abcé€😀", k=size))
    ascii_text = "".join(rng.choices("abcdef", k=size))
    data = rng.randbytes(size)
    assert hash32(text) == java_string_hash(text)
    assert hash32(ascii_text) == java_string_hash(ascii_text)
    # long rows alone, and with short and empty ones on both sides
    texts = ["", "x", "", text, "é", ascii_text, "", "yz", ""]
    assert hash_column(pa.array(texts)).tolist() == [java_string_hash(t) for t in texts]
    blobs = [b"", b"\xff", data, b"", data[::-1], b"ab", b""]
    assert hash_column(pa.array(blobs)).tolist() == [hash32(b) for b in blobs]


class Colour(str, enum.Enum):  # noqa: UP042 - its str() is 'Colour.RED', which must not be the key
    RED = "red"


class Level(enum.IntEnum):
    HIGH = -7


class Pair(NamedTuple):
    name: str
    number: int


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, -7),
        (Pair("a", 1), ("a", 1)),
        (np.int8(-3), -3),
        (np.int32(-1), -1),
        (np.int64(-(2**63)), -(2**63)),
        (np.uint64(5), 5),
        (np.bool_(True), True),
        (np.bool_(False), False),
        (np.float16(1.5), 1.5),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(-0.0), 0.0),
        (np.str_("é"), "é"),
        (np.bytes_(b"\xff"), b"\xff"),
        ((np.int64(1), np.str_("a")), (1, "a")),
    ],
)
def test_subclasses_and_numpy_scalars_act_as_the_plain_type(key, plain):
    assert hash32(key) == hash32(plain)
    assert KeyHasher(128).group(key) == key_group(plain, 128)
    assert KeyHasher(128).groups([key] * 70) == [key_group(plain, 128)] * 70


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Place:
    city: str
    since: dt.date


UTC = zoneinfo.ZoneInfo("UTC")
# SPEC R3.1: Java's hashCode of the value, where Java has one; the key group is of 128.
GOLDEN = [
    (None, 0, 94),
    (("a", None), 3007, 12),
    (2**63, -2147483648, 108),
    (-(2**63) - 1, 2147483647, 62),
    (1 << 200, -432324352, 12),
    (decimal.Decimal("1.50"), 466, 28),
    (decimal.Decimal("-1E+3"), -34, 101),
    (decimal.Decimal("0.00"), 0, 94),
    (decimal.Decimal("NaN"), 78043, 0),
    (dt.date(2024, 1, 1), 4145217, 100),
    (dt.datetime(2024, 1, 1), 4145217, 100),  # noqa: DTZ001
    (dt.datetime(2024, 1, 1, 12, 30, 15, 250), -551150047, 89),  # noqa: DTZ001
    (dt.datetime(2024, 1, 1, tzinfo=UTC), 1704067200, 24),
    (dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 1704067200, 24),
    (dt.time(12), 1218946890, 83),
    (dt.timedelta(seconds=90), 90, 84),
    (uuid.UUID("00000000-0000-0001-0000-000000000003"), 2, 127),
    (Instant(1, 2), 103, 55),
    (Colour.RED, -910493329, 97),
    ([], 1, 86),
    (["a", "b"], 4066, 60),
    ({"a": "b"}, 3, 113),
    (frozenset(["a", "b"]), 195, 88),
    ({"b", "a"}, 195, 88),
    (MutableRow("a", 1), 3008, 29),
    (MutableRow(word="a", n=1), 3008, 29),
    (Place("Basel", dt.date(2024, 1, 1)), 1986777094, 114),
    ((["a", {"k": (None, dt.date(2024, 1, 1))}],), 4149162, 100),
]


def _id(value):
    """The same in every process: the order of a set depends on the hash seed."""
    return type(value).__name__ if isinstance(value, set | frozenset) else repr(value)[:30]


@pytest.mark.parametrize(("key", "hashed", "group"), GOLDEN, ids=_id)
def test_golden_hashes_of_other_keys(key, hashed, group):
    # SPEC R3.1
    assert (hash32(key), key_group(key, 128)) == (hashed, group)
    assert KeyHasher(128).group(key) == group
    assert KeyHasher(128).groups([key] * 70) == [group] * 70


def test_equal_keys_hash_alike():
    # SPEC R3.1
    zone = zoneinfo.ZoneInfo("Europe/Zurich")
    for one, other in [
        (decimal.Decimal("1.0"), decimal.Decimal("1.000")),
        (decimal.Decimal("-0"), decimal.Decimal(0)),
        (dt.datetime(2024, 7, 1, 12, tzinfo=UTC), dt.datetime(2024, 7, 1, 14, tzinfo=zone)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2, 3}, {3, 1, 2}),
    ]:
        assert one == other
        assert hash32(one) == hash32(other)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (bytearray(b"a"), "builtins.bytearray"),
        (1j, "builtins.complex"),
        (np.datetime64(1, "ns"), "numpy.datetime64"),
        (np.timedelta64(1, "ns"), "numpy.timedelta64"),
        (np.longdouble(1), "numpy.longdouble"),
        (np.array([1]), "numpy.ndarray"),
        (("a", [1j]), "builtins.complex"),
        (Place, "builtins.type"),
    ],
)
def test_other_types_are_refused(key, name):
    for call in (hash32, KeyHasher(128).group, lambda bad: KeyHasher(128).groups([bad])):
        with pytest.raises(InvalidArgument) as caught:
            call(key)
        assert str(caught.value) == (
            f"[HR-1305] key of type {name} cannot be hashed: allowed are None, numbers, texts, bytes, dates, times, UUIDs, members of an "
            "Enum, instances of dataclasses, and tuples, lists, dicts, sets and rows of these; give the key as one of these"
        )


# SPEC R3.1: never Python's hash(), which is salted
def test_groups_do_not_depend_on_the_hash_seed():
    code = (
        "import datetime, decimal; from headrace.records.key_groups import *; "
        "other = [{'a': {'x', 'y', 'z'}, 'b': None}, frozenset('abcdef'), decimal.Decimal('1.5'), datetime.date(2024, 1, 1)];"
        "print(key_group(('user', b'1', 1.5), 128), KeyHasher(128).groups(['a']), KeyHasher(128).groups(other))"
    )
    other = [{"a": {"x", "y", "z"}, "b": None}, frozenset("abcdef"), decimal.Decimal("1.5"), dt.date(2024, 1, 1)]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert outputs == {f"{key_group(('user', b'1', 1.5), 128)} [81] {KeyHasher(128).groups(other)}\n"}


# ---- murmur ----------------------------------------------------------------------------------------------------------


def murmur3_32(data):
    """The published algorithm for whole 4-byte blocks, seed 0."""
    h = 0
    for (k,) in struct.iter_unpack("<I", data):
        k = k * 0xCC9E2D51 % 2**32
        k = (k << 15 | k >> 17) % 2**32
        h ^= k * 0x1B873593 % 2**32
        h = (h << 13 | h >> 19) % 2**32
        h = (h * 5 + 0xE6546B64) % 2**32
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def unmurmur3_32(h):
    """The int whose hash is h: every step of the algorithm can be undone."""
    h ^= h >> 16
    h = h * pow(0xC2B2AE35, -1, 2**32) % 2**32
    h ^= h >> 13 ^ h >> 26
    h = h * pow(0x85EBCA6B, -1, 2**32) % 2**32
    h ^= h >> 16 ^ 4
    h = (h - 0xE6546B64) * pow(5, -1, 2**32) % 2**32
    h = (h >> 13 | h << 19) % 2**32
    h = h * pow(0x1B873593, -1, 2**32) % 2**32
    h = (h >> 15 | h << 17) % 2**32
    return h * pow(0xCC9E2D51, -1, 2**32) % 2**32


@given(INT32)
def test_murmur_is_the_absolute_value_of_murmur3_32(code):
    h = murmur3_32(struct.pack("<i", code))
    assert murmur(code) == min(h, 2**32 - h)


# SPEC R3.1: MIN -> 0
def test_murmur_of_the_one_code_without_absolute_value():
    code = unmurmur3_32(2**31)
    assert murmur3_32(struct.pack("<I", code)) == 2**31
    signed = code - 2**32 if code >= 2**31 else code
    assert murmur(signed) == 0
    assert key_groups_of(np.array([signed, 1], np.int32), 128).tolist() == [0, 86]


# SPEC R8.5
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0000000000000000 0000000000000000"),
        (b"a", "85555565f6597889 e6b53a48510e895a"),
        (b"hello", "cbd8a7b341bd9b02 5b1e906a48ae1d19"),
        (b"hello, world", "342fac623a5ebc8e 4cdcbc079642414d"),
        (b"19 Jan 2038 at 3:14:07 AM", "b89e5988b737affc 664fc2950231b2cb"),
        (b"The quick brown fox jumps over the lazy dog.", "cd99481f9ee902c9 695da1a38987b6e7"),
        (b"The quick brown fox jumps over the lazy dog", "e34bbc7bbc071b6c 7a433ca9c49a9347"),
    ],
)
def test_murmur3_128_vectors(data, words):
    assert murmur3_128(data) == b"".join(int(word, 16).to_bytes(8, "little") for word in words.split())


def test_murmur3_128_of_every_tail_length_differs():
    hashes = {murmur3_128(b"\0" * size) for size in range(50)}
    assert len(hashes) == 50
    assert all(len(value) == 16 for value in hashes)


# ---- groups and owners -----------------------------------------------------------------------------------------------


# SPEC R3.1
@pytest.mark.parametrize(
    ("max_parallelism", "parallelism", "ranges"),
    [
        (13, 2, [(0, 6), (7, 12)]),
        (10, 3, [(0, 3), (4, 6), (7, 9)]),
        (128, 3, [(0, 42), (43, 85), (86, 127)]),
        (4, 3, [(0, 1), (2, 2), (3, 3)]),
    ],
)
def test_range_vectors(max_parallelism, parallelism, ranges):
    actual = [key_group_range(index, max_parallelism, parallelism) for index in range(parallelism)]
    assert actual == [KeyGroupRange(start, end) for start, end in ranges]


def check_every_group_is_in_the_range_of_its_owner(max_parallelism, parallelism):
    covered = []
    for index in range(parallelism):
        groups = list(key_group_range(index, max_parallelism, parallelism))
        assert groups
        assert owners_of(np.array(groups), max_parallelism, parallelism).tolist() == [index] * len(groups)
        assert [owner(groups[end], max_parallelism, parallelism) for end in (0, -1)] == [index] * 2
        covered += groups
    assert covered == list(range(max_parallelism))


# SPEC R3.1 (CheckpointCoordinatorTest#testCreateKeyGroupPartitions)
@pytest.mark.parametrize(
    ("max_parallelism", "parallelism"),
    [(1, 1), (13, 1), (13, 2), (32767, 13), (32767, 32767), (32768, 32768), (32768, 32767)],
)
def test_every_group_is_in_exactly_the_range_of_its_owner(max_parallelism, parallelism):
    check_every_group_is_in_the_range_of_its_owner(max_parallelism, parallelism)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_every_group_is_in_exactly_the_range_of_its_owner_at_random(data):
    max_parallelism = data.draw(st.integers(1, 2048) | st.integers(1, 32768))
    parallelism = data.draw(st.integers(1, min(max_parallelism, 300)))
    check_every_group_is_in_the_range_of_its_owner(max_parallelism, parallelism)


def test_key_group_range_is_a_collection():
    groups = KeyGroupRange(4, 6)
    assert list(groups) == [4, 5, 6]
    assert len(groups) == 3
    assert [group in groups for group in (3, 4, 6, 7)] == [False, True, True, False]
    assert np.int32(5) in groups
    assert len({groups, KeyGroupRange(4, 6)}) == 1
    assert not hasattr(groups, "__dict__")
    with pytest.raises(AttributeError):
        groups.start = 1


def test_empty_range():
    empty = KeyGroupRange.EMPTY
    assert list(empty) == []
    assert len(empty) == 0
    assert not empty
    assert 0 not in empty
    assert -1 not in empty
    assert empty == KeyGroupRange(0, -1)
    assert empty.intersect(KeyGroupRange(0, 5)) == KeyGroupRange(0, 5).intersect(empty) == empty


@given(*[st.integers(0, 40)] * 4)
def test_intersect(start, size, other_start, other_size):
    one = KeyGroupRange(start, start + size)
    other = KeyGroupRange(other_start, other_start + other_size)
    assert list(one.intersect(other)) == sorted(set(one) & set(other))
    assert one.intersect(other) == other.intersect(one)


# SPEC R3.4: each new subtask gets every old handle intersected with its new range
@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (2, 2), (15, 77), (77, 15)])
def test_rescale_hands_every_group_to_one_new_subtask(old, new):
    for index in range(new):
        mine = key_group_range(index, 128, new)
        parts = [mine.intersect(key_group_range(former, 128, old)) for former in range(old)]
        assert [group for part in parts for group in part] == list(mine)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (5, 4), (3, -1), (-2, -1)])
def test_wrong_ranges_are_refused(start, end):
    with pytest.raises(InvalidArgument, match=r"needs 0 <= start <= end; for no groups use KeyGroupRange\.EMPTY"):
        KeyGroupRange(start, end)


def test_indexes_outside_are_refused():
    with pytest.raises(InvalidArgument, match=r"key group 128 is not in \[0, 128\)"):
        owner(128, 128, 2)
    with pytest.raises(InvalidArgument, match=r"key group -1 is not in \[0, 128\)"):
        owner(-1, 128, 2)
    with pytest.raises(InvalidArgument, match=r"subtask index 2 is not in \[0, 2\)"):
        key_group_range(2, 128, 2)


# SPEC R3.2
@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128),
        (85, 128),
        (86, 256),
        (171, 256),
        (172, 512),
        (1000, 2048),
        (10923, 16384),
        (10924, 32768),
        (32768, 32768),
    ],
)
def test_default_max_parallelism(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected


# SPEC R3.2
@pytest.mark.parametrize(("max_parallelism", "parallelism"), [(1, 1), (32768, 1), (32768, 32768), (128, 128)])
def test_good_max_parallelism(max_parallelism, parallelism):
    check_max_parallelism(max_parallelism, parallelism)


@pytest.mark.parametrize(
    ("max_parallelism", "parallelism"), [(0, 1), (-1, 4), (32769, 4), (127, 128), (128, 0), (40000, 40000)]
)
def test_wrong_max_parallelism(max_parallelism, parallelism):
    expected = (
        f"[HR-1217] operator 'count': parallelism {parallelism} does not go with max parallelism {max_parallelism}: the latter "
        "must be in [1, 32768], the parallelism from 1 up to the max parallelism; "
        "change the parallelism or, as long as no state is stored, the max parallelism"
    )
    with pytest.raises(InvalidArgument) as caught:
        check_max_parallelism(max_parallelism, parallelism, "operator 'count'")
    assert str(caught.value) == expected


def test_max_parallelism_is_checked_wherever_it_is_given():
    calls = [
        lambda: key_group("a", 0),
        lambda: KeyHasher(32769),
        lambda: key_groups_of(np.array([1]), 0),
        lambda: owners_of(np.array([1]), 4, 5),
        lambda: owner(0, 4, 5),
        lambda: key_group_range(0, 4, 5),
        lambda: default_max_parallelism(0),
        lambda: default_max_parallelism(32769),
    ]
    for call in calls:
        with pytest.raises(
            InvalidArgument, match=r"^\[HR-1217\] job: parallelism \d+ does not go with max parallelism \d+"
        ):
            call()


# ---- columns ---------------------------------------------------------------------------------------------------------


# SPEC R3.1: routing (columns) and state (single keys) must use the same functions
@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=COLUMN_IDS)
@given(data=st.data())
def test_columns_hash_as_single_keys(kind, values, data):
    keys = data.draw(st.lists(values, max_size=30))
    skip = data.draw(st.integers(0, len(keys)))
    length = data.draw(st.integers(0, len(keys) - skip))
    expected = [hash32(key) for key in keys]
    array = pa.array(keys, kind)
    hashes = hash_column(array)
    assert hashes.dtype == np.int32
    assert hashes.tolist() == expected
    assert hash_column(array.slice(skip, length)).tolist() == expected[skip : skip + length]
    chunked = pa.chunked_array([array.slice(0, skip), array.slice(skip)])
    assert hash_column(chunked).tolist() == expected
    assert hash_column(array.slice(skip, length).dictionary_encode()).tolist() == expected[skip : skip + length]
    assert hash_column(chunked.dictionary_encode().slice(skip, length)).tolist() == expected[skip : skip + length]
    assert key_groups_of(hashes, 100).tolist() == [key_group(key, 100) for key in keys]


@given(st.lists(INT32), st.sampled_from([1, 2, 100, 128, 32767, 32768]))
def test_int32_columns_take_the_int_rule(values, max_parallelism):
    hashes = hash_column(pa.array(values, pa.int32()))
    assert hashes.tolist() == [hash32_int(value) for value in values]
    groups = key_groups_of(hashes, max_parallelism)
    assert groups.dtype == np.int32
    assert groups.tolist() == [murmur(value) % max_parallelism for value in values]


@given(st.lists(st.tuples(INT64, TEXTS, FLOATS, st.booleans(), BYTES), max_size=20))
def test_several_columns_hash_as_tuples(rows):
    kinds = [pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.binary()]
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    for count in range(2, 6):
        assert hash_columns(columns[:count]).tolist() == [hash32(row[:count]) for row in rows]
    assert hash_columns(columns[1:2]).tolist() == [hash32(row[1]) for row in rows]


# More rows and bytes than one block, ASCII blocks and others
def test_large_string_column():
    rng = random.Random(7)
    keys = [f"key-{rng.randrange(10 ** rng.randrange(1, 15))}" for _ in range(20_000)]
    keys[9000:9100] = ["é😀" * (i % 7) for i in range(100)]
    for kind in (pa.string(), pa.large_string()):
        assert hash_column(pa.array(keys, kind)).tolist() == [java_string_hash(key) for key in keys]
    blobs = [key.encode() for key in keys]
    assert hash_column(pa.array(blobs)).tolist() == [hash32(blob) for blob in blobs]
    groups = key_groups_of(hash_column(pa.array(range(100_000))), 128)
    assert groups.tolist() == [murmur(hash32(key)) % 128 for key in range(100_000)]


def test_owners_of():
    owners = owners_of(np.arange(32768, dtype=np.int32), 32768, 32767)
    assert owners.dtype == np.int32
    assert owners.tolist() == [owner(group, 32768, 32767) for group in range(32768)]


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=COLUMN_IDS)
def test_columns_without_rows(kind, values):
    for array in (pa.array([], kind), pa.chunked_array([], kind), pa.array([None], kind).slice(1)):
        assert hash_column(array).tolist() == []
        assert hash_column(array).dtype == np.int32


def test_column_of_empty_strings_only():
    assert hash_column(pa.array(["", ""])).tolist() == [0, 0]
    assert hash_column(pa.array([b"", b""])).tolist() == [1, 1]


def test_hashing_leaves_the_column_unchanged():
    array = pa.array(np.array([-0.0, math.nan, 1.0]))
    before = array.buffers()[1].to_pybytes()
    hash_column(array)
    assert array.buffers()[1].to_pybytes() == before


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None]),
        pa.array(["a", None]),
        pa.array([None, True]),
        pa.chunked_array([[1.0], [None]]),
        pa.array(["a", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])),
    ],
)
def test_null_keys_are_refused(array):
    # SPEC R3.1: None -> error
    with pytest.raises(
        InvalidArgument, match=r"^\[HR-1305\] key column has 1 null\(s\), but each record needs a key: drop"
    ):
        hash_column(array)


def test_nulls_that_no_row_uses_are_no_keys():
    assert hash_column(pa.array([None, "a", None]).slice(1, 1)).tolist() == [97]
    assert hash_column(pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["a", None]))).tolist() == [97]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.decimal128(5, 2), pa.list_(pa.int8()), pa.null()])
def test_other_columns_are_refused(kind):
    text = f"[HR-1305] key column of type {kind} cannot be hashed: allowed are str, int, float, bool, bytes and tuples of these; "
    with pytest.raises(InvalidArgument, match=re.escape(text) + "cast it, e.g. to string"):
        hash_column(pa.array([], kind))


def test_uint64_beyond_a_long_is_refused():
    with pytest.raises(InvalidArgument, match="key 9223372036854775808 of a uint64 column does not fit in 64 bits"):
        hash_column(pa.array([1, 2**63], pa.uint64()))


def test_wrong_sets_of_columns_are_refused():
    with pytest.raises(InvalidArgument, match=r"one or more columns, all of one length; got columns of lengths \[\]"):
        hash_columns([])
    with pytest.raises(InvalidArgument, match=r"got columns of lengths \[1, 2\]"):
        hash_columns([pa.array([1]), pa.array([1, 2])])


# ---- KeyHasher -------------------------------------------------------------------------------------------------------


@given(st.lists(KEYS), st.integers(1, 32768))
def test_hasher_of_mixed_keys(keys, max_parallelism):
    hasher = KeyHasher(max_parallelism)
    expected = [key_group(key, max_parallelism) for key in keys]
    assert hasher.groups(keys) == expected
    assert hasher.groups(keys) == expected
    assert [hasher.group(key) for key in keys] == expected


@given(st.sampled_from([INT64, TEXTS, FLOATS, BYTES, st.booleans()]).flatmap(lambda kind: st.lists(kind, min_size=1)))
def test_hasher_of_keys_of_one_type(keys):
    hasher = KeyHasher(128, max_entries=50)
    for part in (keys[:1], keys * 70, keys[::-1], keys * 2):
        groups = hasher.groups(part)
        assert groups == [key_group(key, 128) for key in part]
        assert {type(group) for group in groups} == {int}


# SPEC R3.1: 1, 1.0 and True stay apart
def test_equal_keys_of_different_types_stay_apart():
    ones = [1, 1.0, True]
    keys = [
        *ones,
        0,
        0.0,
        -0.0,
        False,
        *[(one,) for one in ones],
        *[(0, one) for one in ones],
        *[((one,),) for one in ones],
    ]
    hasher = KeyHasher(32768)
    for order in (keys, keys[::-1], keys):
        assert [hasher.group(key) for key in order] == [key_group(key, 32768) for key in order]
        assert hasher.groups(order) == [key_group(key, 32768) for key in order]


def test_lone_surrogates_go_where_arrow_cannot():
    keys = ["\ud83d", "\ude00"] * 50
    assert KeyHasher(128).groups(keys) == [key_group(key, 128) for key in keys]


def test_repeated_keys_are_not_hashed_again(monkeypatch):
    hasher = KeyHasher(128)
    keys = ["a", 1, b"b", 1.5, True, ("a", 1), Pair("a", 2)]
    many = [f"key-{i}" for i in range(50)] * 2
    expected = hasher.groups(keys), hasher.groups(many)
    monkeypatch.setattr(keygroups, "murmur", None)
    monkeypatch.setattr(keygroups, "key_groups_of", None)
    assert (hasher.groups(keys), hasher.groups(many)) == expected


def test_new_keys_among_known_ones():
    hasher = KeyHasher(128)
    known = [f"key-{i}" for i in range(40)]
    for size in (0, 50):
        keys = known * 2 + [f"new-{i}" for i in range(size)]
        assert hasher.groups(keys) == [key_group(key, 128) for key in keys]


def test_caches_are_bounded():
    hasher = KeyHasher(128, max_entries=100)
    for low in range(0, 1000, 70):
        keys = list(range(low, low + 70))
        assert hasher.groups(keys) == [key_group(key, 128) for key in keys]
        assert [hasher.group((key, "a")) for key in keys] == [key_group((key, "a"), 128) for key in keys]
        assert all(len(cache) < 100 + 64 for cache in hasher._caches.values())
        assert len(hasher._caches[int, str]) <= 100
    assert hasher.groups(range(1000)) == [key_group(key, 128) for key in range(1000)]
    for size in range(100):
        assert hasher.group(("a",) * size) == key_group(("a",) * size, 128)
    assert len(hasher._caches) <= 16


def test_hasher_of_no_keys():
    assert KeyHasher(128).groups([]) == []


# ---- the examples in the docstrings ----------------------------------------------------------------------------------


def test_one_line_examples_hold():
    checked = 0
    own = [f for _, f in inspect.getmembers(keygroups, inspect.isfunction) if f.__module__ == keygroups.__name__]
    for function in own:
        for example in re.findall(r"`([^`]* == [^`]*)`", inspect.getdoc(function) or ""):
            ast.parse(example, mode="eval")
            assert eval(example, vars(keygroups)), example
            checked += 1
    assert checked >= 10
