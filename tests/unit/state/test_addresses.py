from __future__ import annotations

import enum
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidArgument
from headgate.records.key_groups import key_group
from headgate.state.addresses import (
    NO_KEY,
    VOID,
    NoKeySet,
    address_of,
    in_namespace,
    key_of,
    prepare_keys,
    split_address,
)

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


def test_refused_keys():
    with pytest.raises(InvalidArgument, match="key is None"):
        address_of(("a", None))
    with pytest.raises(InvalidArgument, match=r"key \[1\] of type list cannot be a key: it is not hashable"):
        address_of([1])


def test_no_key_refuses_every_table():
    for use in (lambda: {}.get(NO_KEY), lambda: {NO_KEY: 1}, lambda: {1: 1}.pop(NO_KEY)):
        with pytest.raises(NoKeySet, match=r"No key set: .*apply_to_keyed_state"):
            use()


def test_void_is_one_object():
    assert pickle.loads(pickle.dumps(VOID)) is VOID
