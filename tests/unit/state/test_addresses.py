from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import pickle
import uuid
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidArgument
from headrace.records.flink_values import Instant, MutableRow
from headrace.records.key_groups import key_group
from headrace.state.addresses import (
    NO_KEY,
    VOID,
    NoKeySet,
    address_of,
    in_namespace,
    key_of,
    prepare_keys,
    split_address,
)
from headrace.state.rocksdb.keys import decode_address, encode_key


class Day(enum.Enum):
    MONDAY = 1


@dataclass(frozen=True)
class Place:
    city: str
    code: int


PRIMITIVES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(), st.booleans(), st.floats(allow_nan=False)
)
KEYS = st.recursive(PRIMITIVES, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=6)


def exact(key):
    """A form that tells 1, 1.0 and True apart."""
    return tuple(map(exact, key)) if isinstance(key, tuple) else (type(key).__name__, key)


@given(KEYS, KEYS)
def test_addresses_are_equal_exactly_if_the_keys_are(a, b):
    assert (address_of(a) == address_of(b)) == (exact(a) == exact(b))


@given(KEYS)
def test_the_key_comes_back(key):
    back = key_of(address_of(key))
    assert exact(back) == exact(key)


@given(KEYS, st.sampled_from([VOID, (0, 10), "w", 5]))
def test_a_namespace_comes_off_again(key, namespace):
    assert split_address(in_namespace(address_of(key), namespace)) == (address_of(key), namespace)


@pytest.mark.parametrize("keys", [["a", "b"], [1, 2], [b"x"], ["a", 1], [("a", 1), ("b", 2)], []])
def test_plain_keys_are_their_own_addresses(keys):
    assert prepare_keys(keys) is keys


def test_prepared_keys_are_the_addresses():
    keys = [1, 1.0, True, ("a", 1.0), "x"]
    assert prepare_keys(keys) == [address_of(key) for key in keys]
    assert len(set(prepare_keys(keys))) == 5


class Colour(enum.IntEnum):
    RED = 1


def test_what_hashes_alike_is_addressed_alike():
    # As keygroups does: subclasses and numpy scalars are their plain value
    for key, plain in (
        (np.int64(5), 5),
        (np.float64(1.5), 1.5),
        (np.str_("a"), "a"),
        (Colour.RED, 1),
        (np.bool_(1), True),
    ):
        assert address_of(key) == address_of(plain)
        assert key_group(key, 128) == key_group(plain, 128)


def test_zero_and_nan():
    assert address_of(-0.0) == address_of(0.0)
    assert math.copysign(1, key_of(address_of(-0.0))) == 1
    assert address_of(float("nan")) == address_of(-float("nan"))
    assert len({address_of(float("nan")), address_of(float("nan"))}) == 1


@dataclass
class Changing:
    n: int


def test_refused_keys():
    with pytest.raises(InvalidArgument, match=r"key .*Changing.* cannot be a key: it is not hashable; .* frozen=True"):
        address_of(Changing(1))


@pytest.mark.parametrize(
    "key",
    [
        None,
        ("a", None),
        [1, [True, 1.5]],
        {"a": [1], 2: {"b": None}},
        {1, 2},
        frozenset([1, 2]),
        MutableRow("a", 1),
        MutableRow(word="a", n=[1]),
        dt.date(2024, 1, 1),
        dt.datetime(2024, 1, 1, 12, 30),  # noqa: DTZ001
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        dt.time(12, 30, 15, 250),
        dt.timedelta(days=-1, microseconds=5),
        uuid.UUID(int=5),
        Instant(1, 2),
        decimal.Decimal("1.50"),
        1 << 200,
        -(1 << 64),
        Day.MONDAY,
        Place("Basel", 4051),
        (["a", {"k": (None, dt.date(2024, 1, 1))}], Day.MONDAY),
    ],
    ids=repr,
)
def test_a_key_of_any_type_comes_back_from_its_address_and_from_the_database(key):
    # SPEC R3.1, R7.2
    address = address_of(key)
    hash(address)
    assert key_of(address) == key
    assert type(key_of(address)) is type(key)
    data = encode_key(address)
    assert b"pickle" not in data
    assert data[:1] != bytes([15])  # no pickle
    decoded, end = decode_address(data)
    assert (decoded, end) == (address, len(data))
    assert key_of(decoded) == key


def test_equal_keys_have_one_address_and_equal_bytes():
    # SPEC R3.1
    zone = dt.timezone(dt.timedelta(hours=2))
    for one, other in [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2, 3}, {3, 2, 1}),
        (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 2, tzinfo=zone)),
    ]:
        assert address_of(one) == address_of(other)
        assert encode_key(address_of(one)) == encode_key(address_of(other))


def test_keys_of_different_types_have_different_addresses():
    keys = [[1, 2], (1, 2), {1, 2}, frozenset([1, 2]), MutableRow(1, 2), MutableRow(a=1, b=2), None, "", 0, False, 0.0]
    assert len(set(map(address_of, keys))) == len(keys)
    assert len({encode_key(address_of(key)) for key in keys}) == len(keys)


def test_the_bytes_of_keys_do_not_change():
    # SPEC R3.1
    for key, expected in {
        dt.date(2024, 1, 1): "150000000a323032342d30312d3031",
        dt.datetime(2024, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))): "17000000193230"
        "32342d30312d30315430303a30303a30302b30303a3030",
        decimal.Decimal("1.50"): "0d00000003312e35",
        (None, 1): "0a020c018000000000000001",
    }.items():
        assert encode_key(address_of(key)).hex() == expected
    assert encode_key(address_of([1])).hex() == "1000000001018000000000000001"
    assert encode_key(address_of({"b": 1, "a": None})).hex() == "11000000020301610c030162018000000000000001"


def test_no_key_refuses_every_table():
    for use in (lambda: {}.get(NO_KEY), lambda: {NO_KEY: 1}, lambda: {1: 1}.pop(NO_KEY)):
        with pytest.raises(NoKeySet, match=r"No key set: .*apply_to_keyed_state"):
            use()


def test_void_is_one_object():
    assert pickle.loads(pickle.dumps(VOID)) is VOID
