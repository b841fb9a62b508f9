from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import NamedTuple

import pytest

from headrace.records.copying import copied, copier, is_immutable
from headrace.records.types import Row, as_type


class Pair(NamedTuple):
    a: object
    b: object


class Thing:
    def __init__(self):
        self.items = [1]


@pytest.mark.parametrize(
    "value",
    [
        1,
        "a",
        1.5,
        True,
        b"x",
        None,
        (1, "a"),
        (1, (2, None)),
        frozenset([1]),
        Row(a=1),
        Pair(1, 2),
        dt.date(2020, 1, 1),
        Decimal(1),
    ],
)
def test_immutable_values_are_handed_out_as_they_are(value):
    assert is_immutable(value)
    assert copied(value) is value


@pytest.mark.parametrize(
    "value", [[1], [[1]], {"a": 1}, {"a": [1]}, {1}, (1, [2]), Row(a=[1]), Pair([1], 2), bytearray(b"x")]
)
def test_mutable_values_are_copied(value):
    found = copied(value)
    assert found == value
    assert type(found) is type(value)
    assert found is not value


def test_nothing_mutable_is_shared():
    value = {"a": [1, [2]], "b": ([3],)}
    found = copied(value)
    found["a"][1].append(9)
    found["b"][0].append(9)
    assert value == {"a": [1, [2]], "b": ([3],)}
    thing = Thing()
    copied(thing).items.append(2)
    assert thing.items == [1]


def test_typed_values_need_no_look():
    assert copier(as_type("bigint")) is None
    assert copier(as_type("a string, b double")) is None
    assert copier(as_type("a array<string>")) is copied
    assert copier(as_type("map<string,int>")) is copied
    assert copier(as_type(None)) is copied


class Plain:
    def __init__(self, n):
        self.n = n


class Special(Plain):
    def __setstate__(self, state):
        self.n = state["n"] + 1


def test_a_plain_object_is_copied_with_its_attributes():
    one = Plain(1)
    other = copied(one)
    other.n = 2
    assert (type(other), one.n) == (Plain, 1)
    nested = Plain([1])
    copied(nested).n.append(2)
    assert nested.n == [1]


def test_an_object_that_says_how_it_is_copied_is_copied_so():
    assert copied(Special(1)).n == 2
