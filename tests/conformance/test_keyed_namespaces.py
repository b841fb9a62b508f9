"""Namespaces, iteration over keys, untouched and raw state (SPEC R1.9 - R1.11)."""

from __future__ import annotations

import pytest

from headrace.errors import IllegalState, InvalidArgument
from headrace.records.key_groups import KeyGroupRange
from headrace.state.addresses import VOID, NoKeySet
from headrace.state.api import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from namespaces import select_namespace

W1, W2, W3 = (0, 10), (10, 20), (20, 30)


class Sum:
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return f"={accumulator}"

    def merge(self, a, b):
        return a + b


def at(lab, key, namespace):
    lab.key(key)
    select_namespace(lab.backend, namespace)


def test_state_is_addressed_by_key_and_namespace(any_lab):
    # SPEC R1.9
    descriptor = ValueStateDescriptor("v")
    for key in ("a", (1, "b"), 1.5):
        for namespace in (W1, W2, "w"):
            at(any_lab, key, namespace)
            any_lab.state(descriptor).update((key, namespace))
        any_lab.key(key)
        any_lab.state(descriptor).update(key)
    any_lab.pause()
    state = any_lab.state(descriptor)
    for key in ("a", (1, "b"), 1.5):
        any_lab.key(key)
        assert state.value() == key
        for namespace in (W1, W2, "w"):
            select_namespace(any_lab.backend, namespace)
            assert state.value() == (key, namespace)
            assert any_lab.backend.current_key() == key
        select_namespace(any_lab.backend, VOID)
        assert state.value() == key
    assert any_lab.count("v") == 12
    at(any_lab, "a", W1)
    state.clear()
    any_lab.key("a")
    assert state.value() == "a"
    assert any_lab.count("v") == 11


def test_selecting_a_key_ends_the_namespace(still_lab):
    state = still_lab.state(ValueStateDescriptor("v"))
    at(still_lab, "a", W1)
    state.update(1)
    still_lab.key("a")
    assert state.value() is None
    still_lab.backend.clear_current_key()
    with pytest.raises(NoKeySet):
        state.value()


def test_keys_of_a_namespace(any_lab):
    # SPEC R1.9 (getKeys)
    descriptor = ValueStateDescriptor("v")
    for number in range(20):
        at(any_lab, number, W1 if number % 2 else W2)
        any_lab.state(descriptor).update(number)
    any_lab.pause()
    any_lab.state(descriptor)
    backend = any_lab.backend
    assert sorted(backend.keys("v", W1)) == list(range(1, 20, 2))
    assert sorted(backend.keys("v", W2)) == list(range(0, 20, 2))
    assert backend.keys("v") == backend.keys("v", W3) == backend.keys("unknown") == []


def test_concurrent_modification_with_apply_to_all_keys(any_lab):
    # SPEC R1.9 (testConcurrentModificationWithApplyToAllKeys)
    descriptor = ListStateDescriptor("l")
    for number in range(100):
        any_lab.key(number)
        any_lab.state(descriptor).add(number)
    any_lab.pause()
    any_lab.state(descriptor)
    any_lab.key(5)
    seen = []

    def visit(key, state):
        seen.append(key)
        assert state.get() == [key]
        assert any_lab.backend.current_key() == key
        if key % 2:
            state.clear()
        else:
            state.add(-1)
        any_lab.backend.set_current_key(key + 1000)
        state.add(0)

    any_lab.backend.apply_to_all_keys(descriptor, VOID, visit)
    assert sorted(seen) == list(range(100))
    assert any_lab.backend.current_key() == 5  # as before
    assert any_lab.count("l") == 150


def test_apply_to_all_keys_skips_what_was_removed_meanwhile(still_lab):
    descriptor = ValueStateDescriptor("v")
    state = still_lab.state(descriptor)
    for number in range(10):
        still_lab.key(number)
        state.update(number)
    seen = []

    def visit(key, handle):
        seen.append(key)
        for number in range(10):
            still_lab.backend.set_current_key(number)
            handle.clear()

    still_lab.backend.clear_current_key()
    still_lab.backend.apply_to_all_keys(descriptor, VOID, visit)
    assert len(seen) == 1
    with pytest.raises(NoKeySet):
        state.value()


@pytest.mark.parametrize("sources", [[W2, W3], [W1, W2, W3]])
def test_merge_namespaces(any_lab, sources):
    # SPEC R1.9 (mergeNamespaces)
    descriptors = {
        "l": (ListStateDescriptor("l", "bigint"), [1, 2, 3]),
        "r": (ReducingStateDescriptor("r", lambda a, b: a + b, "bigint"), 6),
        "a": (AggregatingStateDescriptor("a", Sum(), "bigint"), "=6"),
    }
    for namespace, number in ((W1, 1), (W2, 2), (W3, 3)):
        at(any_lab, "k", namespace)
        for descriptor, _ in descriptors.values():
            any_lab.state(descriptor).add(number)
    any_lab.pause()
    any_lab.key("k")
    for name, (descriptor, expected) in descriptors.items():
        state = any_lab.state(descriptor)
        any_lab.backend.merge_namespaces(descriptor, W1, sources)
        at(any_lab, "k", W1)
        assert state.get() == expected
        assert any_lab.count(name) == 1
        any_lab.backend.merge_namespaces(descriptor, (7, 8), [W1])  # into a window that is new
        at(any_lab, "k", (7, 8))
        assert state.get() == expected
        any_lab.backend.merge_namespaces(descriptor, (9, 9), [(5, 5)])  # nothing there
        assert any_lab.backend.keys(name, (9, 9)) == []
        assert any_lab.count(name) == 1


def test_value_and_map_state_cannot_be_merged(still_lab):
    still_lab.key("k")
    for descriptor in (ValueStateDescriptor("v"), MapStateDescriptor("m")):
        with pytest.raises(InvalidArgument, match="cannot be merged; merging windows need list"):
            still_lab.backend.merge_namespaces(descriptor, W1, [W2])


def test_snapshot_of_non_accessed_state(lab):
    # SPEC R1.10 (testSnapshotNonAccessedState)
    descriptor = MapStateDescriptor("m", "bigint", "string")
    stored = {1: {11: "foo"}, 2: {8: "bar"}, 3: {91: "hello world"}}
    for key, entries in stored.items():
        lab.key(key)
        lab.state(descriptor).put_all(entries)
    for _ in range(3):
        lab.restart()
    for _ in range(3):
        lab.pause()
    for key, entries in stored.items():
        lab.key(key)
        assert dict(lab.state(descriptor).items()) == entries


def test_untouched_state_survives_next_to_a_touched_one(lab):
    # SPEC R1.10
    lab.key(1)
    lab.state(ValueStateDescriptor("old")).update("x")
    lab.state(ValueStateDescriptor("used")).update(0)
    for number in range(1, 5):
        lab.restart() if number % 2 else lab.pause()
        lab.key(1)
        state = lab.state(ValueStateDescriptor("used"))
        assert state.value() == number - 1
        state.update(number)
    lab.pause()
    lab.key(1)
    assert lab.state(ValueStateDescriptor("old")).value() == "x"


def test_raw_keyed_state(lab):
    # SPEC R1.11
    backend = lab.backend
    assert backend.raw_streams() == {}
    backend.put_raw_stream(3, b"three")
    backend.put_raw_stream(100, b"hundred")
    lab.pause()
    assert lab.backend.raw_streams() == {3: b"three", 100: b"hundred"}
    lab.backend.clear_raw_streams()
    assert lab.backend.raw_streams() == {}
    lab.backend.put_raw_stream(100, b"hundred")
    lab.backend.put_raw_stream(4, b"")
    handles = lab.snapshot()
    lower = lab.open(handles, key_groups=KeyGroupRange(0, 63))
    upper = lab.open(handles, key_groups=KeyGroupRange(64, 127))
    assert (lower.raw_streams(), upper.raw_streams()) == ({4: b""}, {100: b"hundred"})
    with pytest.raises(IllegalState, match="is of key group 3, but this subtask owns groups 64 to 127"):
        upper.put_raw_stream(3, b"three")
