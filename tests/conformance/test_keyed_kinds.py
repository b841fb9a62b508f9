"""The five kinds of keyed state (SPEC R1.1 - R1.8)."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
from dataclasses import dataclass

import pytest

from headrace.errors import IllegalState, InvalidArgument
from headrace.pyflink.common import Types as FlinkTypes
from headrace.records.flink_values import Instant, MutableRow
from headrace.records.types import PICKLED, Row, Types
from headrace.state.addresses import VOID, NoKeySet
from headrace.state.api import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)


def add(a, b):
    return a + b


class Average:
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return [a[0] + b[0], a[1] + b[1]]


def value(name="v", type_info=None, default=None):
    return ValueStateDescriptor(name, type_info, default)


# --- R1.1 access


@pytest.mark.parametrize(
    "use",
    [
        lambda lab: lab.state(value()).value(),
        lambda lab: lab.state(value()).update(1),
        lambda lab: lab.state(value("typed", "bigint")).value(),
        lambda lab: lab.state(value()).clear(),
        lambda lab: lab.state(ListStateDescriptor("v")).get(),
        lambda lab: lab.state(ListStateDescriptor("v")).add(1),
        lambda lab: lab.state(MapStateDescriptor("v")).get(1),
        lambda lab: lab.state(MapStateDescriptor("v")).put(1, 2),
        lambda lab: list(lab.state(MapStateDescriptor("v")).items()),
        lambda lab: lab.state(MapStateDescriptor("v")).is_empty(),
        lambda lab: lab.state(ReducingStateDescriptor("v", add)).add(1),
        lambda lab: lab.state(ReducingStateDescriptor("v", add)).get(),
        lambda lab: lab.state(AggregatingStateDescriptor("v", Average())).add(1),
    ],
)
def test_no_key_set(any_lab, use):
    # SPEC R1.1 (CoBroadcastWithKeyedOperatorTest#testNoKeyedStateOnBroadcastSide)
    with pytest.raises(NoKeySet, match=r"No key set: .*state '(v|typed)' was used while no record"):
        use(any_lab)
    any_lab.key("a")
    any_lab.backend.clear_current_key()
    with pytest.raises(NoKeySet):
        use(any_lab)


def test_a_handle_follows_the_key(any_lab):
    # SPEC R1.1
    state = any_lab.state(value())
    for key in ("a", "b"):
        any_lab.key(key)
        state.update(key * 2)
    assert any_lab.state(value()) is state
    any_lab.key("a")
    assert state.value() == "aa"
    assert any_lab.backend.current_key() == "a"


# --- R1.2 descriptors


def test_multiple_value_states(any_lab):
    # SPEC R1.2 (StateBackendTestBase#testMultipleValueStates)
    any_lab.key(1)
    any_lab.state(value("a", "string")).update("one")
    any_lab.state(value("b", "bigint")).update(1)
    any_lab.key(2)
    any_lab.state(value("a", "string")).update("two")
    assert any_lab.state(value("b", "bigint")).value() is None
    any_lab.pause()
    any_lab.key(1)
    assert any_lab.state(value("a", "string")).value() == "one"
    assert any_lab.state(value("b", "bigint")).value() == 1
    any_lab.key(2)
    assert any_lab.state(value("a", "string")).value() == "two"
    assert any_lab.state(value("b", "bigint")).value() is None


def test_another_kind_under_the_same_name(lab):
    # SPEC R1.2
    lab.key(1)
    lab.state(value("x")).update(1)
    lab.pause()
    if lab.pause_kind == "running":
        lab.state(value("x"))
    with pytest.raises(IllegalState, match=r"Incompatible key/value state types: operator 'op', state 'x'"):
        lab.state(ListStateDescriptor("x"))


def test_null_key_and_null_namespace(still_lab):
    # SPEC R1.2, R3.1: an untyped key may be None; a map key may not
    still_lab.key(None)
    still_lab.state(value("x")).update(1)
    assert still_lab.backend.current_key() is None
    still_lab.key("a")
    assert still_lab.state(value("x")).value() is None
    with pytest.raises(InvalidArgument, match="map state 'm': key is None"):
        still_lab.state(MapStateDescriptor("m")).put(None, 1)
    with pytest.raises(InvalidArgument, match="namespace is None"):
        still_lab.backend.keys("x", None)


def test_a_key_of_another_subtask_is_refused(still_lab):
    from headrace.records.key_groups import KeyGroupRange

    still_lab.configure(key_groups=KeyGroupRange(0, 3))
    with pytest.raises(IllegalState, match="key 'hello' is of key group 35, but this subtask owns groups 0 to 3"):
        still_lab.key("hello")
    state = still_lab.state(value())
    still_lab.backend.context.address, still_lab.backend.context.group = "hello", 35
    with pytest.raises(IllegalState, match="another subtask owns"):
        state.update(1)


# --- R1.3 value


def test_value_state_null_update(lab):
    # SPEC R1.3 (testValueStateNullUpdate)
    descriptor = value("v", "bigint", 42)
    lab.key(1)
    state = lab.state(descriptor)
    assert state.value() == 42
    state.update(1)
    assert state.value() == 1
    lab.pause()
    state = lab.state(descriptor)
    lab.key(2)
    assert state.value() == 42
    lab.key(1)
    assert state.value() == 1
    state.clear()
    assert state.value() == 42
    state.update(17)
    assert state.value() == 17
    lab.pause()
    lab.key(1)
    state = lab.state(descriptor)
    state.update(None)
    assert state.value() == 42
    lab.pause()
    lab.key(1)
    assert lab.state(descriptor).value() == 42
    assert lab.count("v") == 0


def test_copy_default_value(lab):
    # SPEC R1.3 (testCopyDefaultValue)
    state = lab.state(value("v", None, [1]))
    lab.key(1)
    first = state.value()
    lab.key(2)
    second = state.value()
    assert first == second == [1]
    assert first is not second
    first.append(2)
    assert state.value() == [1]


def test_value_state_default_value(lab):
    # SPEC R1.3 (testValueStateDefaultValue)
    descriptor = value("v", "string", "Hello")
    lab.key(1)
    state = lab.state(descriptor)
    assert state.value() == "Hello"
    state.update("Ciao")
    assert state.value() == "Ciao"
    state.clear()
    assert state.value() == "Hello"
    lab.pause()
    lab.key(1)
    assert lab.state(descriptor).value() == "Hello"


def test_count_window_average(lab):
    # SPEC R1.3 (seed 004)
    descriptor = value("average", Types.TUPLE([Types.LONG(), Types.LONG()]))
    out = []
    for key, number in [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]:
        lab.key(key)
        state = lab.state(descriptor)
        count, total = state.value() or (0, 0)
        count, total = count + 1, total + number
        if count >= 2:
            out.append((key, total // count))
            state.clear()
        else:
            state.update((count, total))
        lab.pause()
    assert out == [(1, 4), (1, 5)]


def test_a_mutable_value_is_copied_on_read(any_lab):
    any_lab.key(1)
    state = any_lab.state(value())
    state.update({"a": [1]})
    state.value()["a"].append(2)
    assert state.value() == {"a": [1]}
    any_lab.pause()
    any_lab.key(1)
    assert any_lab.state(value()).value() == {"a": [1]}


def test_a_reused_value_is_the_stored_one_and_counts_as_changed(lab):
    lab.configure(object_reuse=True, incremental=True)
    lab.key(1)
    lab.state(value()).update([1])
    before = lab.snapshot()
    lab.backend.notify_complete(lab.checkpoint)
    lab.key(1)
    lab.state(value()).value().append(2)
    after = lab.snapshot()
    for handles, expected in ((before, [1]), (after, [1, 2])):
        lab.backend = lab.open(handles)
        lab.key(1)
        assert lab.state(value()).value() == expected


@pytest.mark.parametrize(
    "stored", [1, "a", 1.5, b"x", True, (1, ("a", None)), [1, [2]], {"k": (1, 2)}, {1, 2}, Row(a=1)]
)
def test_untyped_values_come_back_as_they_were(any_lab, stored):
    any_lab.key("k")
    any_lab.state(value()).update(stored)
    any_lab.pause()
    any_lab.key("k")
    found = any_lab.state(value()).value()
    assert found == stored
    assert type(found) is type(stored)


def test_typed_rows(any_lab):
    descriptor = value("row", "word string, n bigint, tags array<string>")
    any_lab.key("k")
    any_lab.state(descriptor).update(("a", 1, ["x"]))
    any_lab.pause()
    any_lab.key("k")
    found = any_lab.state(descriptor).value()
    assert found == ("a", 1, ["x"])
    found[2].append("y")
    assert any_lab.state(descriptor).value() == ("a", 1, ["x"])


# --- R1.4 list


def test_list_state_apis(any_lab):
    # SPEC R1.4 (testListStateAPIs)
    descriptor = ListStateDescriptor("l", "bigint")
    any_lab.key("g")
    assert any_lab.state(descriptor).get() == []
    any_lab.key("def")
    state = any_lab.state(descriptor)
    state.add(17)
    state.add(11)
    assert state.get() == [17, 11]
    state.update([])
    assert state.get() == []
    state.update([10, 16])
    any_lab.pause()
    any_lab.key("g")
    state = any_lab.state(descriptor)
    assert state.get() == []
    state.add_all([3, 4])
    state.add_all([])
    any_lab.pause()
    any_lab.key("g")
    state = any_lab.state(descriptor)
    state.add_all([5, 6])
    assert state.get() == [3, 4, 5, 6] == list(state)
    any_lab.key("def")
    assert state.get() == [10, 16]
    assert any_lab.count("l") == 2
    for key in ("g", "def"):
        any_lab.key(key)
        state.clear()
    assert any_lab.count("l") == 0
    any_lab.pause()
    any_lab.state(descriptor)
    assert any_lab.count("l") == 0


@pytest.mark.parametrize("call", [lambda s: s.add(None), lambda s: s.add_all(None), lambda s: s.update(None)])
def test_list_state_refuses_null(any_lab, call):
    # SPEC R1.4
    any_lab.key(1)
    state = any_lab.state(ListStateDescriptor("l"))
    with pytest.raises(InvalidArgument, match=r"list state 'l'.*None"):
        call(state)
    assert state.get() == []


def test_list_state_add_all_null_entries(any_lab):
    # SPEC R1.4 (testListStateAddAllNullEntries)
    any_lab.key(1)
    state = any_lab.state(ListStateDescriptor("l"))
    for call in (state.add_all, state.update):
        with pytest.raises(InvalidArgument, match="list state 'l': an element is None"):
            call([3, None, 5])
    assert state.get() == []


def test_what_get_returns_is_not_the_state(any_lab):
    any_lab.key(1)
    state = any_lab.state(ListStateDescriptor("l"))
    state.update([[1], [2]])
    got = state.get()
    got.append([3])
    got[0].append(9)
    assert state.get() == [[1], [2]]
    for element in state:
        state.add(element)
    assert state.get() == [[1], [2], [1], [2]]


# --- R1.5, R1.6 reducing and aggregating


def test_reducing_state_add_and_get(any_lab):
    # SPEC R1.5 (testReducingStateAddAndGet)
    descriptor = ReducingStateDescriptor("r", add, "bigint")
    any_lab.key("def")
    state = any_lab.state(descriptor)
    assert state.get() is None
    state.add(17)
    state.add(11)
    assert state.get() == 28
    any_lab.pause()
    any_lab.key("g")
    state = any_lab.state(descriptor)
    assert state.get() is None
    state.add(1)
    state.add(2)
    any_lab.pause()
    any_lab.key("def")
    state = any_lab.state(descriptor)
    assert state.get() == 28
    state.clear()
    assert state.get() is None
    any_lab.key("g")
    for number in (3, 2, 1):
        state.add(number)
    any_lab.pause()
    any_lab.key("g")
    state = any_lab.state(descriptor)
    assert state.get() == 9
    state.add(None)
    assert state.get() is None
    assert any_lab.count("r") == 0


def test_reducing_with_an_object_and_mutable_values(any_lab):
    class Extend:
        def reduce(self, a, b):
            a.extend(b)
            return a

    descriptor = ReducingStateDescriptor("r", Extend())
    first = [1]
    any_lab.key(1)
    any_lab.state(descriptor).add(first)
    any_lab.pause()
    any_lab.key(1)
    state = any_lab.state(descriptor)
    state.add([2])
    assert first == [1]  # what was added stays the caller's
    state.get().append(9)
    assert state.get() == [1, 2]


def test_aggregating_state(any_lab):
    # SPEC R1.6
    descriptor = AggregatingStateDescriptor("a", Average, None)
    any_lab.key("def")
    state = any_lab.state(descriptor)
    assert state.get() is None
    state.add(17)
    state.add(11)
    assert state.get() == 14.0
    any_lab.pause()
    any_lab.key("def")
    state = any_lab.state(descriptor)
    state.add(2)
    assert state.get() == 10.0
    any_lab.key("other")
    assert state.get() is None
    any_lab.key("def")
    state.add(None)
    assert state.get() is None
    assert any_lab.count("a") == 0


def test_a_function_that_returns_none_is_named(any_lab):
    any_lab.key(1)
    state = any_lab.state(ReducingStateDescriptor("r", lambda a, b: None))
    state.add(1)
    with pytest.raises(InvalidArgument, match=r"state 'r': reduce\(\) of its function returned None"):
        state.add(2)


# --- R1.7 map


def test_map_state(any_lab):
    # SPEC R1.7
    descriptor = MapStateDescriptor("m", "string", "bigint")
    any_lab.key(1)
    state = any_lab.state(descriptor)
    assert state.is_empty()
    assert list(state.items()) == list(state.keys()) == list(state.values()) == []
    assert state.get("a") is None
    state.put("a", 1)
    state["b"] = 2
    state.put_all({"c": 3, "d": 4})
    state.put_all({})
    any_lab.pause()
    any_lab.key(1)
    state = any_lab.state(descriptor)
    assert dict(state.items()) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert sorted(state) == sorted(state.keys()) == ["a", "b", "c", "d"]
    assert sorted(state.values()) == [1, 2, 3, 4]
    assert "a" in state
    assert state.contains("b")
    assert state["c"] == 3
    assert "x" not in state
    del state["a"]
    state.remove("x")
    any_lab.pause()
    any_lab.key(1)
    state = any_lab.state(descriptor)
    assert sorted(state.items()) == [("b", 2), ("c", 3), ("d", 4)]
    any_lab.key(2)
    assert state.is_empty()
    any_lab.key(1)
    state.clear()
    assert state.is_empty()
    assert any_lab.count("m") == 0


def test_map_state_is_empty(any_lab):
    # SPEC R1.7 (testMapStateIsEmpty)
    any_lab.key(1)
    state = any_lab.state(MapStateDescriptor("m"))
    assert state.is_empty()
    for i in range(1024):
        state.put(i, i * 2)
        assert not state.is_empty()
    any_lab.pause()
    any_lab.key(1)
    state = any_lab.state(MapStateDescriptor("m"))
    for i in range(1024):
        assert not state.is_empty()
        state.remove(i)
    assert state.is_empty()
    assert any_lab.count("m") == 0


def test_map_state_iterator_arbitrary_access(any_lab):
    # SPEC R1.7 (testMapStateIteratorArbitraryAccess)
    any_lab.key(1)
    state = any_lab.state(MapStateDescriptor("m"))
    for i in range(4096):
        state.put(i, i * 2)
    any_lab.pause()
    any_lab.key(1)
    state = any_lab.state(MapStateDescriptor("m"))
    entries = state.items()
    seen = 0
    while entries.has_next():
        key, number = next(entries)
        assert number == key * 2
        if seen % 3 == 0:
            entries.has_next()
            entries.remove()  # still the last one returned
            with pytest.raises(IllegalState, match=r"remove\(\) needs an entry"):
                entries.remove()
        seen += 1
    assert seen == 4096
    assert len(list(state.keys())) == 4096 - 1366
    with pytest.raises(IllegalState):
        state.items().remove()


def test_a_map_may_change_while_it_is_iterated(any_lab):
    any_lab.key(1)
    state = any_lab.state(MapStateDescriptor("m"))
    state.put_all({i: i for i in range(10)})
    for key in state:
        state.remove(key)
        state.put(key + 100, 0)
    assert sorted(state.keys()) == list(range(100, 110))


@pytest.mark.parametrize("types", [(None, None), ("string", "bigint"), ("string", "a bigint, b string")])
def test_map_values_may_be_null(any_lab, types):
    # SPEC R1.7
    descriptor = MapStateDescriptor("m", *types)
    some = (1, "x") if types[1] == "a bigint, b string" else 1
    any_lab.key(1)
    any_lab.state(descriptor).put_all({"a": None, "b": some, "c": None})
    any_lab.pause()
    any_lab.key(1)
    state = any_lab.state(descriptor)
    assert dict(state.items()) == {"a": None, "b": some, "c": None}
    assert state.contains("a")
    assert state.get("a") is None


def test_map_keys_of_different_types_stay_apart(any_lab):
    # SPEC R3.1, for map keys
    entries = [(1, "int"), (1.0, "float"), (True, "bool"), ((1, 1.0), "pair"), ((1.0, 1), "riap")]
    entries += [
        ([1], "list"),
        ({"a": 1}, "dict"),
        (MutableRow(a=1), "row"),
        (dt.date(2024, 1, 1), "date"),
        ((None,), "none"),
    ]
    any_lab.key(1)
    state = any_lab.state(MapStateDescriptor("m"))
    for key, text in entries:
        state.put(key, text)
    any_lab.pause()
    any_lab.key(1)
    state = any_lab.state(MapStateDescriptor("m"))
    found = list(state.items())
    assert sorted((repr(key), text) for key, text in found) == sorted((repr(key), text) for key, text in entries)
    state.remove(1)
    assert state.get(True) == "bool"
    assert state.get([1]) == "list"
    assert state.get(dt.date(2024, 1, 1)) == "date"
    with pytest.raises(
        InvalidArgument, match=r"map state 'm': key bytearray\(b'a'\) of type bytearray cannot be a key"
    ):
        state.put(bytearray(b"a"), 1)


class Day(enum.Enum):
    MONDAY = 1


@dataclass(frozen=True)
class Place:
    city: str
    since: dt.date


KEYS_OF_ALL_TYPES = [
    None,
    ("a", None),
    1 << 100,
    [1, [2.5]],
    {"a": None},
    {1, 2},
    frozenset([1]),
    MutableRow("a", 1),
    MutableRow(word="a", n=1),
    dt.date(2024, 1, 1),
    dt.datetime(2024, 1, 1, 12),  # noqa: DTZ001
    dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC),
    dt.time(12),
    dt.timedelta(1),
    decimal.Decimal("1.5"),
    Instant(1, 2),
    Day.MONDAY,
    Place("Basel", dt.date(2024, 1, 1)),
]


def test_keys_of_every_type(any_lab):
    # SPEC R3.1
    for number, key in enumerate(KEYS_OF_ALL_TYPES):
        any_lab.key(key)
        any_lab.state(value("v")).update(number)
    any_lab.pause()
    for number, key in enumerate(KEYS_OF_ALL_TYPES):
        any_lab.key(key)
        assert any_lab.state(value("v")).value() == number
        assert any_lab.backend.current_key() == key
    seen = []
    any_lab.backend.apply_to_all_keys(value("v"), VOID, lambda key, state: seen.append((state.value(), repr(key))))
    assert sorted(seen) == [(number, repr(key)) for number, key in enumerate(KEYS_OF_ALL_TYPES)]


@pytest.mark.parametrize("fields", [[Types.STRING(), Types.INT()], [Types.STRING(), Types.LIST(Types.INT())]])
def test_rows_that_can_be_changed_are_not_shared_with_the_state(any_lab, fields):
    # SPEC R7.2
    row = MutableRow("a", [1]) if len(fields) == 2 and fields[1] != Types.INT() else MutableRow("a", 1)
    kind = FlinkTypes.ROW_NAMED(["word", "n"], fields)
    expected = MutableRow(word=row[0], n=row[1])
    any_lab.key("k")
    state = any_lab.state(ValueStateDescriptor("r", kind))
    state.update(row)
    any_lab.pause()
    any_lab.key("k")
    state = any_lab.state(ValueStateDescriptor("r", kind))
    read = state.value()
    assert read == expected
    read[0] = "changed"
    assert state.value() == expected
    state.update(read)
    assert state.value().word == "changed"


# --- R1.8 clear


def test_clear_removes_only_the_current_key(any_lab):
    # SPEC R1.8
    descriptors = [
        value("v"),
        ListStateDescriptor("l"),
        MapStateDescriptor("m"),
        ReducingStateDescriptor("r", add),
        AggregatingStateDescriptor("a", Average()),
    ]
    for key in (1, 2):
        any_lab.key(key)
        any_lab.state(descriptors[0]).update(key)
        any_lab.state(descriptors[1]).add(key)
        any_lab.state(descriptors[2]).put(key, key)
        any_lab.state(descriptors[3]).add(key)
        any_lab.state(descriptors[4]).add(key)
    any_lab.pause()
    any_lab.key(1)
    for descriptor in descriptors:
        any_lab.state(descriptor).clear()
        any_lab.state(descriptor).clear()
        assert any_lab.count(descriptor.name) == 1
    any_lab.pause()
    any_lab.key(2)
    for descriptor in descriptors:
        state = any_lab.state(descriptor)
        found = (
            state.value() if descriptor.kind == "value" else state.get(2) if descriptor.kind == "map" else state.get()
        )
        assert found in (2, [2], 2.0)
        state.clear()
        assert any_lab.count(descriptor.name) == 0


# --- keys


KEYS = [
    1,
    1.0,
    True,
    0,
    False,
    0.0,
    "1",
    b"1",
    (1, "a"),
    (1.0, "a"),
    (True, "a"),
    (1, (2, 2.0)),
    -1,
    2**62,
    "ü€😀",
    math.inf,
]


def test_keys_of_different_types_stay_apart(any_lab):
    # SPEC R3.1: 1, 1.0 and True are three keys, also inside tuples
    for number, key in enumerate(KEYS):
        any_lab.key(key)
        any_lab.state(value()).update(number)
    any_lab.pause()
    state = any_lab.state(value())
    for number, key in enumerate(KEYS):
        any_lab.key(key)
        assert state.value() == number
    assert any_lab.count("v") == len(KEYS)
    found = any_lab.backend.keys("v")
    assert {(type(k), str(k)) for k in found} == {(type(k), str(k)) for k in KEYS}


def test_equal_floats_are_one_key(any_lab):
    # SPEC R3.1: -0.0 is 0.0, and there is one NaN
    any_lab.key(0.0)
    any_lab.state(value()).update("zero")
    any_lab.key(math.nan)
    any_lab.state(value()).update("nan")
    any_lab.pause()
    state = any_lab.state(value())
    any_lab.key(-0.0)
    assert state.value() == "zero"
    any_lab.key(float("nan") * -1)
    assert state.value() == "nan"
    assert any_lab.count("v") == 2


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        ("bigint", [1, -5, 2**40]),
        ("string", ["a", "", "ü"]),
        ("double", [1.5, 0.0, -3.0]),
        ("boolean", [True, False]),
        ("binary", [b"", b"xy"]),
        ("a string, b bigint", [("x", 1), ("y", 2)]),
        ("a string, b double", [("x", 1.0), ("y", 2.5)]),
        (Types.TUPLE([Types.STRING(), Types.BOOLEAN()]), [("x", True), ("x", False)]),
    ],
)
def test_typed_keys(any_lab, key_type, keys):
    from headrace.records.types import as_type

    any_lab.configure(key_type=as_type(key_type))
    for key in keys:
        any_lab.key(key)
        any_lab.state(value("v", "string")).update(repr(key))
    any_lab.pause()
    state = any_lab.state(value("v", "string"))
    for key in keys:
        any_lab.key(key)
        assert state.value() == repr(key)
    found = any_lab.backend.keys("v")
    assert sorted(found) == sorted(keys)
    if key_type == "a string, b double":
        assert {type(key).__name__ for key in found} == {"Row"}


def test_hot_path_with_batches(any_lab):
    keys = [1, 2, 1.0, "a", 1, True, 2]
    state = any_lab.state(value())
    for _ in range(3):
        backend = any_lab.backend
        addresses = backend.prepare_keys(keys)
        from headrace.records.key_groups import KeyHasher

        groups = KeyHasher(128).groups(keys)
        backend.begin_batch(addresses, groups)
        for address, group in zip(addresses, groups, strict=True):
            backend.context.address, backend.context.group = address, group
            state.update((state.value() or 0) + 1)
        backend.end_batch()
        any_lab.pause()
        state = any_lab.state(value())
    for key, expected in ((1, 6), (2, 6), (1.0, 3), ("a", 3), (True, 3)):
        any_lab.key(key)
        assert state.value() == expected


def test_value_table(any_lab):
    descriptor = value("v", "bigint")
    keys = ["a", "b", "c"]
    from headrace.records.key_groups import KeyHasher

    groups = KeyHasher(128).groups(keys)
    if any_lab.ttl is not None:
        descriptor.enable_time_to_live(any_lab.ttl)
    table = any_lab.backend.value_table(descriptor)
    assert table.get_many(keys, groups) == [None, None, None]
    table.put_many(keys, groups, [1, 2, 3])
    any_lab.pause()
    table = any_lab.backend.value_table(descriptor)
    assert table.get_many(keys, groups) == [1, 2, 3]
    table.put_many(keys[:2], groups[:2], [None, 20])
    assert table.get_many(keys, groups) == [None, 20, 3]
    any_lab.key("b")
    assert any_lab.state(descriptor).value() == 20
    assert any_lab.count("v") == 2


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (FlinkTypes.BIG_DEC(), decimal.Decimal("1000000000000000000.05999999999999999899999999999")),
        (FlinkTypes.BIG_INT(), 1 << 200),
        (FlinkTypes.INSTANT(), Instant(-1, 999_999_999)),
        (
            FlinkTypes.TUPLE([FlinkTypes.INT(), FlinkTypes.TUPLE([FlinkTypes.BIG_DEC()])]),
            (1, (decimal.Decimal("1.50"),)),
        ),
        (FlinkTypes.ROW_NAMED(["a", "b"], [PICKLED, FlinkTypes.INT()]), MutableRow(a={"any": {1, 2}}, b=1)),
        (FlinkTypes.MAP(FlinkTypes.STRING(), FlinkTypes.ROW([FlinkTypes.INT()])), {"a": MutableRow(f0=1)}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_values_of_pyflinks_types(any_lab, kind, stored):
    any_lab.key("k")
    any_lab.state(ValueStateDescriptor("v", kind)).update(stored)
    any_lab.state(ListStateDescriptor("l", kind)).add(stored)
    any_lab.pause()
    any_lab.key("k")
    assert any_lab.state(ValueStateDescriptor("v", kind)).value() == stored
    assert list(any_lab.state(ListStateDescriptor("l", kind)).get()) == [stored]
