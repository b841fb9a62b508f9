"""Bytes of rows: keys and values of the rocksdb backend (SPEC R7.2)."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidArgument
from headrace.records.types import TypeMismatch, Types, as_type
from headrace.state.addresses import VOID, address_of, in_namespace
from headrace.state.rocksdb.codec import Packed, StoredCodec, codec_for, pack_stamp, unpack_stamp
from headrace.state.rocksdb.keys import RowKeys, decode_address, encode_address

SCALARS = st.one_of(
    st.integers(),
    st.text(),
    st.binary(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.text(st.characters(), min_size=255),
)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6)


class Window(NamedTuple):
    start: int
    end: int


class Color(enum.Enum):
    RED = 1


@given(KEYS)
def test_an_address_comes_back_from_its_bytes(key):
    address = address_of(key)
    assert decode_address(encode_address(address)) == (address, len(encode_address(address)))


@given(KEYS, KEYS)
def test_no_key_is_the_beginning_of_another(first, second):
    first, second = address_of(first), address_of(second)
    if first != second:
        assert not encode_address(first).startswith(encode_address(second))


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_numbers_sort_as_numbers(first, second):
    assert (encode_address(first) < encode_address(second)) == (first < second)


@pytest.mark.parametrize(
    "key",
    [
        math.nan,
        2**70,
        "\ud800",
        "x" * 300,
        b"y" * 300,
        tuple(range(300)),
        decimal.Decimal("1.50"),
        dt.date(2024, 2, 29),
        uuid.UUID(int=7),
        frozenset([1, 2]),
        Color.RED,
        (1, 1.0, True),
    ],
)
def test_unusual_map_keys(key):
    address = address_of(key)
    data = encode_address(address)
    found = decode_address(data)[0]
    assert encode_address(found) == data
    assert key != key or found == address  # noqa: PLR0124 - NaN


def test_equal_keys_have_equal_bytes():
    assert encode_address(address_of(decimal.Decimal("1.0"))) == encode_address(address_of(decimal.Decimal("1.00")))
    assert encode_address(address_of(frozenset("abc"))) == encode_address(address_of(frozenset("cba")))
    text = "ab"
    once, twice = (dt.date(2024, 1, 1), text, text), (dt.date(2024, 1, 1), str(b"ab", "ascii"), str(b"ab", "ascii"))
    assert encode_address(address_of(once)) == encode_address(address_of(twice))


def test_a_key_that_cannot_be_stored_is_named():
    with pytest.raises(InvalidArgument, match="a map key or namespace of type function cannot be stored"):
        encode_address(address_of(lambda: 0))


@pytest.mark.parametrize("namespace", [VOID, 7, "w", (1, 2.5, None), Window(0, 10), (1, 20, VOID)])
@pytest.mark.parametrize("groups", [128, 129])
def test_rows_split_into_group_and_address(namespace, groups):
    keys = RowKeys(groups)
    for key in ("hello", 1, 1.5, ("a", True)):
        address = in_namespace(address_of(key), namespace)
        base = keys.base(groups - 1, address)
        assert keys.split(base + b"rest") == (groups - 1, address, len(base))
        assert type(keys.split(base)[1]) is type(address)
        assert keys.bases(3, [address, address]) == [keys.base(3, address)] * 2


def test_the_group_takes_two_bytes_above_128_groups():
    # SPEC R7.2
    assert RowKeys(128).base(127, "a")[:2] == b"\x7f\x03"
    assert RowKeys(129).base(127, "a")[:3] == b"\x00\x7f\x03"
    assert RowKeys(128).prefix(128) > RowKeys(128).base(127, "zzz")


@pytest.mark.parametrize(
    ("type_info", "values"),
    [
        ("bigint", [0, -1, 2**63 - 1, -(2**63)]),
        ("int", [2**31 - 1]),
        ("double", [1.5, math.inf]),
        ("boolean", [True, False]),
        ("string", ["", "ü", "x" * 1000]),
        ("binary", [b"", b"\0\xff"]),
        ("word string, n bigint", [("a", 1), ("b", None)]),
        (Types.TUPLE([Types.LONG(), Types.DOUBLE()]), [(1, 2.5)]),
        ("float", [0.5]),
        ("date", [dt.date(2024, 2, 29)]),
        ("timestamp_ntz", [dt.datetime(2024, 1, 1, 12)]),  # noqa: DTZ001
        ("decimal(10,2)", [decimal.Decimal("1.50")]),
        ("array<string>", [["a", None]]),
        ("map<string,bigint>", [{"a": 1}]),
        ("a bigint, s struct<x: int, y: string>", [(1, (2, "z"))]),
        (
            None,
            [1, 2**70, "x", "\ud800", b"y", 1.5, True, (1, ("a", None)), [1], {"a": [1]}, {1, 2}, dt.date(2024, 1, 1)],
        ),
    ],
)
def test_values_come_back(type_info, values):
    codec = codec_for(as_type(type_info), "state 's'")
    for value in values:
        kept = codec.keep(value) if type(value) not in codec.plain else value
        data = codec.encode(kept)
        assert codec.decode(data) == value
        assert codec.open(codec.load(data)) == value == codec.open(kept)
    kept = [codec.keep(value) for value in values]
    assert codec.encode_many(kept) == [codec.encode(one) for one in kept]


def test_what_can_be_changed_is_never_kept_as_an_object():
    codec = codec_for(as_type(None), "state 's'")
    value = {"a": [1]}
    kept = codec.keep(value)
    value["a"].append(2)
    assert isinstance(kept, Packed)
    assert codec.open(kept) == {"a": [1]}
    assert codec.open(kept) is not codec.open(kept)
    assert isinstance(codec.load(codec.encode(kept)), Packed)


@pytest.mark.parametrize(
    ("type_info", "value", "text"),
    [
        ("bigint", "x", "'x' is not bigint"),
        ("bigint", 2**63, "is not bigint"),
        ("tinyint", 200, "200 is not tinyint"),
        ("string", 1, "1 is not string"),
        ("a bigint, b string", (1, 2), "2 is not string for field 'b'"),
        ("a bigint, b string", (1,), "1 fields instead of 2"),
        ("array<bigint>", ["x"], "is not"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_when_it_is_written(type_info, value, text):
    codec = codec_for(as_type(type_info), "state 's'")
    with pytest.raises(TypeMismatch, match=text):
        codec.encode(codec.keep(value))


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("nullable", [True, False])
def test_stamps_and_nulls(stamped, nullable):
    codec = StoredCodec(codec_for(as_type("bigint"), "state 's'"), stamped=stamped, nullable=nullable)
    values = [5, None] if nullable else [5]
    stored = [(value, 1000) for value in values] if stamped else values
    rows = codec.encode_many(stored)
    assert rows == [codec.encode(one) for one in stored]
    assert [codec.open(codec.load(row)) for row in rows] == stored


def test_stamps_sort_as_times():
    stamps = [-(2**63), -1, 0, 1, 2**63 - 1]
    assert sorted(map(pack_stamp, stamps)) == list(map(pack_stamp, stamps))
    assert [unpack_stamp(pack_stamp(stamp) + b"value") for stamp in stamps] == stamps
