"""Operator state: list handles, registration, snapshot, restore and rescale (SPEC R4.1-R4.4, R1.11)."""

from __future__ import annotations

import re
import threading
import uuid
from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.checkpoint.assignment import Mode
from headrace.errors import IllegalState, InvalidArgument, StateMigrationError, StorageError
from headrace.records.types import Row, Types
from headrace.state.api import ListState, ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from headrace.state.operator import (
    OperatorStateBackend,
    OperatorStateSnapshot,
    RestoredOperatorState,
    RestoredState,
    StateSnapshot,
    rescale,
)

list_of = ListStateDescriptor
map_of = MapStateDescriptor


def through_bytes(snapshot):
    """What a file would do to it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=OperatorStateSnapshot)


def restart(backends, parallelism=None):
    """Snapshot all subtasks (None: finished) and restore, at another parallelism if one is given."""
    old = [None if backend is None else through_bytes(backend.snapshot()()) for backend in backends]
    return [OperatorStateBackend("sink", part) for part in rescale(old, parallelism or len(old))]


def filled(*lists, name="a", union=False):
    backends = []
    for elements in lists:
        backend = OperatorStateBackend("sink")
        get = backend.get_union_list_state if union else backend.get_list_state
        get(list_of(name)).add_all(elements)
        backends.append(backend)
    return backends


class Color(Enum):
    RED = 1


@dataclass
class Event:
    word: str
    tags: list


Point = namedtuple("Point", "x y")  # noqa: PYI024 - the untyped kind, as user programs have it


# ---- the list handle -----------------------------------------------------------------------------------------------


def test_list_handle():
    # SPEC R4.1: get() on empty is an empty list
    state = OperatorStateBackend("sink").get_list_state(list_of("buffer"))
    assert state.get() == []
    state.add(1)
    state.add_all([2, 3])
    state.add_all([])
    state.add_all(iter([4]))
    assert state.get() == list(state) == [1, 2, 3, 4]
    assert isinstance(state, ListState)
    state.update([5])
    assert state.get() == [5]
    state.update([])
    assert state.get() == []
    state.add(6)
    state.clear()
    assert state.get() == []


def test_list_handed_out_is_the_callers():
    state = OperatorStateBackend("sink").get_list_state(list_of("buffer"))
    given = [1]
    state.update(given)
    given.append(2)
    state.get().append(3)
    assert state.get() == [1]


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda s: s.add(None), ""),
        (lambda s: s.add_all([2, None]), ": [2, None]"),
        (lambda s: s.update([None]), ": [None]"),
    ],
)
def test_no_none_elements(call, shown):
    # SPEC R4.1
    state = OperatorStateBackend("sink").get_list_state(list_of("buffer"))
    state.add(1)
    with pytest.raises(InvalidArgument) as caught:
        call(state)
    assert str(caught.value) == (
        f"[HR-2003] operator 'sink', split list state 'buffer': an element is None, which list state cannot hold{shown}"
    )
    assert state.get() == [1]


@pytest.mark.parametrize("method", ["add_all", "update"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "the list of values is None; to remove all elements call clear()"),
        ("ab", "'ab' is one value; call add(), or pass a list"),
    ],
)
def test_no_list(method, given, text):
    # SPEC R4.1
    state = OperatorStateBackend("sink").get_union_list_state(list_of("buffer"))
    with pytest.raises(InvalidArgument) as caught:
        getattr(state, method)(given)
    assert str(caught.value) == f"[HR-2003] operator 'sink', union list state 'buffer': {text}"


# ---- registration --------------------------------------------------------------------------------------------------

GETTERS = {
    "split list": lambda backend: backend.get_list_state(list_of("s")),
    "union list": lambda backend: backend.get_union_list_state(list_of("s")),
    "broadcast map": lambda backend: backend.get_broadcast_state(map_of("s")),
}


@pytest.mark.parametrize("mode", GETTERS)
def test_same_name_same_handle(mode):
    # SPEC R4.1: OperatorStateBackendTest
    backend = OperatorStateBackend("sink")
    assert GETTERS[mode](backend) is GETTERS[mode](backend)
    assert backend.names == ["s"]


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (
            lambda b: b.get_list_state(map_of("m")),
            "MapStateDescriptor('m', pickled, pickled) is not a ListStateDescriptor",
        ),
        (lambda b: b.get_union_list_state(ValueStateDescriptor("v")), "is not a ListStateDescriptor"),
        (
            lambda b: b.get_broadcast_state(list_of("l")),
            "ListStateDescriptor('l', pickled) is not a MapStateDescriptor",
        ),
    ],
)
def test_descriptor_of_another_kind(ask, text):
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        ask(OperatorStateBackend("sink"))


def test_no_time_to_live():
    descriptor = list_of("l")
    descriptor.enable_time_to_live(1000)
    with pytest.raises(InvalidArgument) as caught:
        OperatorStateBackend("sink").get_list_state(descriptor)
    assert str(caught.value) == (
        "[HR-2006] operator 'sink': operator state 'l' cannot have a time to live, as only keyed state expires; "
        "drop the TTL, or remove old elements yourself"
    )


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(("first", "second"), [(a, b) for a in GETTERS for b in GETTERS if a != b])
def test_one_mode_per_name(first, second, restored):
    # SPEC R4.1
    backend = OperatorStateBackend("sink")
    GETTERS[first](backend)
    if restored:
        [backend] = restart([backend])
    with pytest.raises(IllegalState) as caught:
        GETTERS[second](backend)
    assert str(caught.value) == (
        f"[HR-2007] operator 'sink': Incompatible state assignment modes: state 's' is a {first}, but is requested as a "
        f"{second}; request it in the same mode everywhere, or use another name"
    )
    GETTERS[first](backend)  # nothing was lost by asking


@pytest.mark.parametrize("restored", [False, True])
def test_one_type_per_name(restored):
    # SPEC R4.1: incompatible serializer -> StateMigrationException
    backend = OperatorStateBackend("sink")
    backend.get_list_state(list_of("l", "bigint")).add(1)
    backend.get_broadcast_state(map_of("m", "string", "bigint")).put("a", 1)
    if restored:
        [backend] = restart([backend])
    with pytest.raises(StateMigrationError) as caught:
        backend.get_list_state(list_of("l", "string"))
    assert str(caught.value) == (
        "[HR-2101] operator 'sink', split list state 'l' holds bigint, but is requested as string; "
        "declare the type it has, or use another name"
    )
    with pytest.raises(StateMigrationError) as caught:
        backend.get_broadcast_state(map_of("m", "string"))
    assert str(caught.value) == (
        "[HR-2101] operator 'sink', broadcast map state 'm' holds string -> bigint, but is requested as string -> pickled; "
        "declare the type it has, or use another name"
    )
    assert backend.get_list_state(list_of("l", "bigint")).get() == [1]
    assert backend.get_broadcast_state(map_of("m", "string", "bigint")).get("a") == 1


# ---- snapshot and restore ------------------------------------------------------------------------------------------


def test_buffering_sink():
    # SPEC R4.1 (seed): 3 buffered, snapshot, restore -> 3 buffered; clear and re-add at each checkpoint
    buffered = [("a", 1), ("b", 2), ("c", 3)]
    backend = OperatorStateBackend("sink")
    for _ in range(2):
        state = backend.get_list_state(list_of("buffered-elements", Types.TUPLE([Types.STRING(), Types.INT()])))
        state.clear()
        for element in buffered:
            state.add(element)
        [backend] = restart([backend])
    state = backend.get_list_state(list_of("buffered-elements", Types.TUPLE([Types.STRING(), Types.INT()])))
    assert state.get() == buffered


VALUES = [
    1, 2.5, "x", b"y", True, Decimal("1.50"), datetime(2024, 1, 2, tzinfo=UTC), uuid.UUID(int=5), 1j,
    (1, ("a", 2)), frozenset({1}), Row(word="a", n=1), Row(1, 2), Point(1, 2), Color.RED,
    [1, [2]], {"a": {"b": 1}}, {1, 2}, bytearray(b"z"), Event("w", ["t"]), (1, [2]), Point([1], 2),
]  # fmt: skip


@pytest.mark.parametrize("mode", GETTERS)
def test_values_of_any_type_survive(mode):
    backend = OperatorStateBackend("sink")
    state = GETTERS[mode](backend)
    if mode == "broadcast map":
        state.put_all(dict(enumerate(VALUES)))
        state.put("none", None)
    else:
        state.add_all(VALUES)
    [backend] = restart([backend])
    state = GETTERS[mode](backend)
    if mode == "broadcast map":
        assert dict(state.items()) == {**dict(enumerate(VALUES)), "none": None}
    got = [state.get(i) for i in range(len(VALUES))] if mode == "broadcast map" else state.get()
    assert got == VALUES
    assert [type(value) for value in got] == [type(value) for value in VALUES]


@pytest.mark.parametrize(
    ("declared", "given", "back"),
    [
        ("bigint", [1, 2], [1, 2]),
        ("word string, n bigint", [("a", 1), ["b", None]], [Row(word="a", n=1), Row(word="b", n=None)]),
        (Types.TUPLE([Types.STRING(), Types.LIST(Types.LONG())]), [("a", [1, 2])], [("a", [1, 2])]),
        ("map<string, bigint>", [{"a": 1}], [{"a": 1}]),
        ("p struct<x: int>, q array<struct<y: int>>", [((1,), [(2,)])], [Row(p=Row(x=1), q=[Row(y=2)])]),
    ],
)
def test_typed_values_come_back_as_their_type_has_them(declared, given, back):
    backend = OperatorStateBackend("sink")
    backend.get_list_state(list_of("l", declared)).add_all(given)
    backend.get_broadcast_state(map_of("m", "bigint", declared)).put_all({**dict(enumerate(given)), -1: None})
    [backend] = restart([backend])
    got = backend.get_list_state(list_of("l", declared)).get()
    assert got == back
    assert [type(value) for value in got] == [type(value) for value in back]
    entries = dict(backend.get_broadcast_state(map_of("m", "bigint", declared)).items())
    assert entries == {**dict(enumerate(back)), -1: None}


def test_typed_row_has_its_names_again():
    backend = OperatorStateBackend("sink")
    backend.get_list_state(list_of("l", "word string, n bigint")).add(("a", 1))
    [backend] = restart([backend])
    [row] = backend.get_list_state(list_of("l", "word string, n bigint")).get()
    assert (row.word, row.n) == ("a", 1)


@pytest.mark.parametrize("value", ["x", ["x"]])
def test_value_that_does_not_fit_its_type(value):
    backend = OperatorStateBackend("sink")
    backend.get_list_state(list_of("l", "bigint")).add_all([1, value])
    with pytest.raises(InvalidArgument) as caught:
        backend.snapshot()()
    assert str(caught.value) == (
        f"[HR-2003] operator 'sink', split list state 'l': expected bigint, got {value!r}: {value!r} is not bigint; "
        "change the value, or declare the type that the state really holds"
    )


def test_synchronous_part_takes_a_deep_copy():
    # SPEC R4.1: sync phase deep-copies, async writes
    backend = OperatorStateBackend("sink")
    split = backend.get_list_state(list_of("split"))
    typed = backend.get_list_state(list_of("typed", "array<int>"))
    rules = backend.get_broadcast_state(map_of("rules"))
    event, numbers, value = Event("w", ["t"]), [1], {"limit": 1}
    split.add_all([1, event, (2, [3])])
    typed.add(numbers)
    rules.put("a", value)

    serialise = backend.snapshot()
    event.tags.append("later")
    split.get()[2][1].append("later")
    split.add("later")
    typed.clear()
    numbers.append(2)
    value["limit"] = 2
    rules.put("later", 2)

    [restored] = [OperatorStateBackend("sink", part) for part in rescale([serialise()], 1)]
    assert restored.get_list_state(list_of("split")).get() == [1, Event("w", ["t"]), (2, [3])]
    assert restored.get_list_state(list_of("typed", "array<int>")).get() == [[1]]
    assert dict(restored.get_broadcast_state(map_of("rules")).items()) == {"a": {"limit": 1}}


def test_asynchronous_part_runs_on_any_thread_and_again():
    [backend] = filled(range(1000))
    serialise = backend.snapshot()
    results = []
    threads = [threading.Thread(target=lambda: results.append(serialise())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1] == serialise()


def test_snapshot_is_plain_data_with_an_offset_per_element():
    # SPEC R4.3
    backend = OperatorStateBackend("sink")
    backend.get_list_state(list_of("b", "string")).add_all(["x", "yy"])
    backend.get_union_list_state(list_of("a"))
    snapshot = backend.snapshot()()
    assert [state.name for state in snapshot.states] == ["a", "b"]
    assert snapshot.shapes() == {"a": snapshot.states[0].shape, "b": snapshot.states[1].shape}
    assert [(s.mode, s.elements) for s in snapshot.shapes().values()] == [(Mode.UNION, 0), (Mode.SPLIT, 2)]
    state = snapshot.states[1]
    assert [len(state.offsets), len(state.checksums), state.offsets[0]] == [2, 2, 0]
    assert b"".join(state.elements()) == state.data
    assert through_bytes(snapshot) == snapshot
    assert not snapshot.is_empty


def test_backend_without_state_leaves_nothing():
    snapshot = OperatorStateBackend("sink").snapshot()()
    assert snapshot.is_empty
    assert snapshot.shapes() == snapshot.raw_shapes() == {}


def test_classes_of_a_script_travel_by_value():
    class Local:
        def __init__(self, n):
            self.n = n

    [backend] = filled([Local(7), lambda: 8])
    [backend] = restart([backend])
    first, second = backend.get_list_state(list_of("a")).get()
    assert (first.n, second()) == (7, 8)


def test_value_that_cannot_be_pickled():
    [backend] = filled([1, threading.Lock()])
    with pytest.raises(InvalidArgument) as caught:
        backend.snapshot()
    assert str(caught.value) == (
        "[HR-2004] operator 'sink', split list state 'a': element 1, a lock, cannot be pickled (TypeError: cannot pickle "
        "'_thread.lock' object); keep plain data in state, and make connections, locks and files in open()"
    )


def test_class_that_is_gone():
    # SPEC R8.6
    data = b"\x80\x05\x8c\x0bgone.module\x8c\x05Event\x93)\x81."
    snapshot = StateSnapshot.of("a", Mode.SPLIT, filled([])[0].snapshot()().states[0].types, [data])
    backend = OperatorStateBackend("sink", RestoredOperatorState((RestoredState(snapshot),)))
    with pytest.raises(StateMigrationError) as caught:
        backend.get_list_state(list_of("a"))
    assert str(caught.value) == (
        "[HR-2102] operator 'sink', split list state 'a': element 0 of 1 cannot be unpickled (ModuleNotFoundError: No module "
        "named 'gone'); its class must stay importable under the name it had when the state was written"
    )


def exploding():
    class Bomb:
        def __reduce__(self):
            return (print, ("unpickled a damaged element",))

    return Bomb()


def test_damaged_element_is_found_before_it_is_unpickled(capsys):
    [backend] = filled(["first", exploding()])
    snapshot = backend.snapshot()()
    [state] = snapshot.states
    flipped = bytearray(state.data)
    flipped[-3] ^= 1
    damaged = msgspec.structs.replace(state, data=bytes(flipped))
    for union in (False, True):
        mode = Mode.UNION if union else Mode.SPLIT
        old = [OperatorStateSnapshot((msgspec.structs.replace(damaged, mode=mode),))]
        [part] = rescale(old, 1)
        with pytest.raises(StorageError) as caught:
            OperatorStateBackend("sink", part)
        assert str(caught.value) == (
            f"[HR-3102] operator 'sink', {mode} state 'a': element 1 of 2 is damaged (its checksum does not match); "
            "restore from another checkpoint"
        )
    # a subtask that got only the sound element can go on; the other one cannot
    sound, bad = rescale([OperatorStateSnapshot((damaged,))], 2)
    assert OperatorStateBackend("sink", sound).get_list_state(list_of("a")).get() == ["first"]
    with pytest.raises(StorageError, match="element 0 of 1 is damaged"):
        OperatorStateBackend("sink", bad)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("offsets", [(0, 99), (3, 0), (1, 2), (0,)])
def test_damaged_offsets(offsets):
    [state] = filled(["x", "y"])[0].snapshot()().states
    part = RestoredOperatorState((RestoredState(msgspec.structs.replace(state, offsets=offsets)),))
    with pytest.raises(StorageError) as caught:
        OperatorStateBackend("sink", part)
    assert str(caught.value) == (
        "[HR-3102] operator 'sink', split list state 'a': the element offsets of the snapshot are damaged; "
        "restore from another checkpoint"
    )


# ---- state that the program does not touch -------------------------------------------------------------------------


def test_untouched_state_is_carried_on():
    # SPEC R1.10
    backend = OperatorStateBackend("sink")
    backend.get_list_state(list_of("split", "string")).add("a")
    backend.get_union_list_state(list_of("union")).add([1])
    backend.get_broadcast_state(map_of("rules")).put("k", "v")
    backends = [backend]
    for parallelism in (1, 3, 2, 2, 1):
        backends = restart(backends, parallelism)
        assert [backend.names for backend in backends] == [[]] * parallelism
    [backend] = backends
    assert backend.get_list_state(list_of("split", "string")).get() == ["a"]
    assert backend.get_union_list_state(list_of("union")).get() == [[1]]
    assert dict(backend.get_broadcast_state(map_of("rules")).items()) == {"k": "v"}


def test_untouched_union_state_does_not_grow():
    backends = filled(["a", "b"], ["c"], [], ["d", "e", "f"], union=True)
    for parallelism in (4, 3, 7, 1, 5, 5):
        backends = restart(backends, parallelism)
    for backend in backends:
        assert backend.get_union_list_state(list_of("a")).get() == list("abcdef")


# ---- rescale -------------------------------------------------------------------------------------------------------


def lists(backends, name="a"):
    return [backend.get_list_state(list_of(name)).get() for backend in backends]


def test_split_lists_are_dealt_out():
    # SPEC R4.2
    assert lists(restart(filled(["e1", "e2"]), 2)) == [["e1"], ["e2"]]
    assert lists(restart(filled(range(3), range(3, 7)), 3)) == [[0, 1, 2], [3, 4], [5, 6]]
    assert lists(restart(filled([1, 2]), 4)) == [[1], [2], [], []]
    assert lists(restart(filled([1, 2, 3, 4], []))) == [[1, 2, 3, 4], []]


def test_split_start_rolls_over_the_names():
    # SPEC R4.2
    backend = OperatorStateBackend("sink")
    backend.get_list_state(list_of("b")).add_all([5, 6, 7, 8])
    backend.get_list_state(list_of("a")).add_all([1, 2, 3, 4])
    backends = restart([backend], 3)
    assert lists(backends, "a") == [[1, 2], [3], [4]]
    assert lists(backends, "b") == [[8], [5, 6], [7]]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_union_lists_go_to_everyone(parallelism):
    # SPEC R4.3: also when the parallelism is unchanged
    for backend in restart(filled([1, 2], [3], union=True), parallelism):
        assert backend.get_union_list_state(list_of("a")).get() == [1, 2, 3]


@pytest.mark.parametrize("new", [1, 2, 3])
def test_broadcast_scale_up_and_down(new):
    # SPEC R4.4: CoBroadcastWithKeyedOperatorTest#testScaleUp, #testScaleDown
    old = []
    for _ in range(2):
        backend = OperatorStateBackend("join")
        backend.get_broadcast_state(map_of("rules", "string", "bigint")).put_all({"test1": 3, "test2": 3, "test3": 3})
        old.append(backend)
    for backend in restart(old, new):
        state = backend.get_broadcast_state(map_of("rules", "string", "bigint"))
        assert list(state.items()) == [("test1", 3), ("test2", 3), ("test3", 3)]


def test_broadcast_keeps_its_own_copy_unless_some_finished():
    # SPEC R4.4, R4.5
    def copies(backends):
        return [backend.get_broadcast_state(map_of("m")).get("from") for backend in backends]

    old = []
    for subtask in range(3):
        backend = OperatorStateBackend("join")
        backend.get_broadcast_state(map_of("m")).put("from", subtask)
        old.append(backend)
    assert copies(restart(old)) == [0, 1, 2]
    assert copies(restart([None, *old[1:]])) == [1, 2, 1]
    assert copies(restart(old, 5)) == [0, 1, 2, 0, 1]


def test_finished_subtasks():
    # SPEC R4.5: the finished subtask's part is dropped, the rest is rescaled
    first, _, third = filled([1, 2], [3], [4, 5])
    assert lists(restart([first, None, third], 2)) == [[1, 2], [4, 5]]
    assert lists(restart([first, None, third])) == [[1, 2], [], [4, 5]]


# ---- raw streams ---------------------------------------------------------------------------------------------------


def test_raw_streams_are_split():
    # SPEC R1.11
    old = []
    for streams in ([b"one", b""], [b"three"], []):
        backend = OperatorStateBackend("custom")
        for stream in streams:
            backend.write_raw_stream(stream)
        old.append(backend)
    snapshots = [backend.snapshot()() for backend in old]
    assert [len(snapshot.raw_shapes()) for snapshot in snapshots] == [1, 1, 0]
    assert not snapshots[0].is_empty
    streams = [OperatorStateBackend("custom", part).raw_streams() for part in rescale(snapshots, 2)]
    assert streams == [[b"one", b""], [b"three"]]
    streams = [OperatorStateBackend("custom", part).raw_streams() for part in rescale(snapshots, 3)]
    assert streams == [[b"one", b""], [b"three"], []]


def test_raw_streams_go_into_one_snapshot():
    # SPEC R1.11: opaque, so the operator writes them anew each time
    backend = OperatorStateBackend("custom")
    buffer = bytearray(b"one")
    backend.write_raw_stream(buffer)
    buffer[:] = b"two"
    first = backend.snapshot()
    second = backend.snapshot()
    assert bytes(first().raw.data) == b"one"
    assert second().raw is None


def test_damaged_raw_stream():
    backend = OperatorStateBackend("custom")
    backend.write_raw_stream(b"one")
    snapshot = backend.snapshot()()
    damaged = msgspec.structs.replace(snapshot, raw=msgspec.structs.replace(snapshot.raw, data=b"onf"))
    [part] = rescale([damaged], 1)
    with pytest.raises(StorageError) as caught:
        OperatorStateBackend("custom", part)
    assert str(caught.value) == (
        "[HR-3102] operator 'custom', raw operator state: element 0 of 1 is damaged (its checksum does not match); "
        "restore from another checkpoint"
    )


# ---- properties ----------------------------------------------------------------------------------------------------


values = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@given(st.lists(st.lists(values, max_size=6), min_size=1, max_size=4), st.lists(st.integers(1, 6), max_size=3))
def test_no_element_is_lost_or_repeated_over_several_rescales(old, steps):
    # SPEC R4.2, R4.3
    everything = [element for elements in old for element in elements]
    split, union = filled(*old), filled(*old, union=True)
    for parallelism in steps:
        split, union = restart(split, parallelism), restart(union, parallelism)
    dealt = lists(split)
    if len(steps) == 1 and steps != [len(old)]:
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        # one name begins at subtask 0: the old order is kept
        assert [element for elements in dealt for element in elements] == everything
    assert sorted(map(repr, (element for elements in dealt for element in elements))) == sorted(map(repr, everything))
    if steps:
        for backend in union:
            assert backend.get_union_list_state(list_of("a")).get() == everything


@given(st.lists(st.binary(max_size=6), max_size=6), st.data())
def test_cuts_are_exact_and_any_changed_byte_is_found(streams, data):
    snapshot = StateSnapshot.of("a", Mode.SPLIT, (), streams)
    snapshot.verify("here")
    assert [bytes(element) for element in snapshot.elements()] == streams
    start = data.draw(st.integers(0, len(streams)))
    stop = data.draw(st.integers(start, len(streams)))
    part = snapshot.cut(start, stop)
    part.verify("here")
    assert [bytes(element) for element in part.elements()] == streams[start:stop]
    if snapshot.data:
        at = data.draw(st.integers(0, len(snapshot.data) - 1))
        flipped = bytearray(snapshot.data)
        flipped[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(StorageError, match=r"^\[HR-3102\] here: element \d of \d is damaged"):
            msgspec.structs.replace(snapshot, data=bytes(flipped)).verify("here")


class OperatorStateMachine(RuleBasedStateMachine):
    """Several subtasks under random calls, checkpoints, restores and rescales, against plain lists and dicts."""

    def __init__(self):
        super().__init__()
        self.backends = [OperatorStateBackend("op")]
        self.split = [[]]
        self.rules = {}
        self.saved = ([None], [[]], {})

    @rule(subtask=st.integers(0, 9), value=values)
    def add(self, subtask, value):
        subtask %= len(self.backends)
        self.backends[subtask].get_list_state(list_of("split")).add(value)
        self.split[subtask].append(value)

    @rule(subtask=st.integers(0, 9), new=st.lists(values, max_size=4))
    def update(self, subtask, new):
        subtask %= len(self.backends)
        self.backends[subtask].get_list_state(list_of("split")).update(new)
        self.split[subtask] = list(new)

    @rule(key=st.integers(0, 4), value=st.none() | values)
    def broadcast(self, key, value):
        for backend in self.backends:
            backend.get_broadcast_state(map_of("rules")).put(key, value)
        self.rules[key] = value

    @rule()
    def checkpoint(self):
        self.saved = (
            [through_bytes(backend.snapshot()()) for backend in self.backends],
            [list(elements) for elements in self.split],
            dict(self.rules),
        )

    @rule(parallelism=st.integers(1, 5))
    def restore(self, parallelism):
        snapshots, split, self.rules = self.saved[0], self.saved[1], dict(self.saved[2])
        self.backends = [OperatorStateBackend("op", part) for part in rescale(snapshots, parallelism)]
        if parallelism == len(split):
            self.split = [list(elements) for elements in split]
            return
        everything = [element for elements in split for element in elements]
        base, extra = divmod(len(everything), parallelism)
        bounds = [i * base + min(i, extra) for i in range(parallelism + 1)]
        self.split = [everything[bounds[i] : bounds[i + 1]] for i in range(parallelism)]

    @invariant()
    def agrees(self):
        for backend, elements in zip(self.backends, self.split, strict=True):
            # looking must not be what keeps the state: a state is asked for only if the rules have done so before
            if "split" in backend.names:
                assert backend.get_list_state(list_of("split")).get() == elements
            if "rules" in backend.names:
                assert dict(backend.get_broadcast_state(map_of("rules")).items()) == self.rules

    def teardown(self):
        assert lists(self.backends, "split") == self.split
        for backend in self.backends:
            assert dict(backend.get_broadcast_state(map_of("rules")).items()) == self.rules


TestOperatorStateMachine = OperatorStateMachine.TestCase
TestOperatorStateMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
