"""Snapshots, restore, rescale and schema (SPEC R3.4, R7.1, R7.3, R7.4, R8.6)."""

from __future__ import annotations

import random
import sys
import threading
import time
import types
from dataclasses import dataclass

import msgspec
import pytest
from lab import Lab

from headrace.checkpoint.handles import CorruptState
from headrace.errors import IllegalState, InvalidArgument, StateMigrationError
from headrace.records.key_groups import KeyGroupRange, key_group, key_group_range
from headrace.records.types import TypeMismatch, Types, as_type
from headrace.state.api import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from headrace.state.backend import SnapshotKind
from namespaces import entry_count
from state_handles import full_size, written_size

V = ValueStateDescriptor("v")


def put(lab, key, stored, descriptor=V):
    lab.key(key)
    lab.state(descriptor).update(stored)


def get(lab, key, descriptor=V):
    lab.key(key)
    return lab.state(descriptor).value()


def content(lab, handles, descriptor=V, **options):
    """All values of a state in a snapshot."""
    backend = lab.open(handles, **options)
    state = backend.state(descriptor)
    found = {}
    for key in backend.keys(descriptor.name):
        backend.set_current_key(key)
        found[key] = state.value()
    return found


# --- R7.1


def test_empty_state_checkpointing(lab):
    # SPEC R7.1 (testEmptyStateCheckpointing)
    assert lab.backend.snapshot(1).finish() is None
    lab.backend = lab.open([])
    assert lab.backend.snapshot(2).finish() is None
    assert get(lab, 1) is None


def test_state_that_is_empty_again(lab):
    put(lab, 1, "x")
    put(lab, 1, None)
    lab.pause()
    handles = lab.snapshot()
    assert content(lab, handles) == {}


def test_async_snapshot(any_lab):
    # SPEC R7.1 (testAsyncSnapshot, testValueStateRace): writes during a running snapshot are not in it
    lab = any_lab
    for key in range(500):
        put(lab, key, key)
    lab.pause()
    lab.state(V)
    put(lab, 250, 250)
    run = lab.backend.snapshot(100)
    parts = {}
    for step in range(100):
        put(lab, step, -1)
        put(lab, 499 - step, None)
        put(lab, f"new-{step}", 1)
        lab.backend.end_batch()
        for payload, data in [next(run, ("", b""))]:
            parts[payload] = parts.get(payload, b"") + data
    put(lab, 7, "late")
    lab.payloads.update(parts)
    assert content(lab, [run.handle]) == {key: key for key in range(500)}
    assert get(lab, 7) == "late"
    assert get(lab, 0) == -1
    assert get(lab, 499) is None
    assert get(lab, "new-0") == 1


def test_parallel_async_snapshots(any_lab):
    # SPEC R7.1 (testParallelAsyncSnapshots)
    lab = any_lab
    expected, runs = [], []
    model = {}
    for round_ in range(4):
        for key in range(100):
            put(lab, key * (round_ + 1), round_)
            model[key * (round_ + 1)] = round_
        put(lab, round_, None)
        model.pop(round_, None)
        runs.append(lab.backend.snapshot(100 + round_))
        expected.append(dict(model))
        lab.backend.end_batch()
    random.Random(5).shuffle(order := list(range(4)))
    for index in order:
        put(lab, "other", index)
        lab.backend.maintain(10)
        handle = lab.keep(runs[index].finish())
        assert content(lab, handle) == expected[index]
    while lab.backend.maintain(1000):
        pass
    assert {key: get(lab, key) for key in model} == model


def test_mutable_content_is_frozen_too(any_lab):
    lab = any_lab
    lists, maps = ListStateDescriptor("l"), MapStateDescriptor("m")
    reducing = ReducingStateDescriptor("r", lambda a, b: a.append(b[0]) or a)
    for key in range(10):
        lab.key(key)
        lab.state(lists).add_all([[1], [2]])
        lab.state(maps).put_all({"a": [1], "b": [2]})
        lab.state(reducing).add([1])
    lab.pause()
    for descriptor in (lists, maps, reducing):
        lab.state(descriptor)
    run = lab.backend.snapshot(100)
    for key in range(10):
        lab.key(key)
        lab.state(lists).add([3])
        lab.state(maps).put("c", [3])
        lab.state(maps).remove("a")
        lab.state(reducing).add([2])
    after = lab.backend.snapshot(101)
    for key in range(10):
        lab.key(key)
        lab.state(lists).clear()
        lab.state(maps).clear()
        lab.state(reducing).clear()
    first, second = lab.keep(run.finish()), lab.keep(after.finish())
    for handles, expected in (
        (first, ([[1], [2]], {"a": [1], "b": [2]}, [1])),
        (second, ([[1], [2], [3]], {"b": [2], "c": [3]}, [1, 2])),
    ):
        lab.backend = lab.open(handles)
        for key in range(10):
            lab.key(key)
            assert (lab.state(lists).get(), dict(lab.state(maps).items()), lab.state(reducing).get()) == expected


def test_a_cancelled_snapshot_leaves_no_trace(lab):
    for key in range(100):
        put(lab, key, key)
    run = lab.backend.snapshot(100)
    next(run)
    run.cancel()
    run.cancel()
    with pytest.raises(IllegalState, match="snapshot 100 is cancelled"):
        _ = run.handle
    assert list(run) == []
    put(lab, 1, "x")
    lab.backend.notify_aborted(100)
    assert content(lab, lab.snapshot()) == {**{key: key for key in range(100)}, 1: "x"}


def test_a_snapshot_may_be_cancelled_while_another_thread_writes_it(lab):
    """The stream's thread gives a checkpoint up; the one that writes is in the middle of a step."""
    for key in range(3000):
        put(lab, key, key)
    broken = []

    def write(run):
        try:
            broken.extend(type(part) for part in run if len(part) != 2)
        except IllegalState:
            pass
        except BaseException as error:
            broken.append(error)

    for attempt in range(20):
        run = lab.backend.snapshot(100 + attempt)
        writer = threading.Thread(target=write, args=(run,))
        writer.start()
        time.sleep(attempt / 5000)
        run.cancel()
        put(lab, attempt, "new")
        writer.join()
        lab.backend.notify_aborted(100 + attempt)
    assert broken == []
    assert content(lab, lab.snapshot()) == {key: "new" if key < 20 else key for key in range(3000)}


def test_the_handle_of_a_running_snapshot_is_refused(still_lab):
    put(still_lab, 1, 1)
    run = still_lab.backend.snapshot(7)
    with pytest.raises(IllegalState, match="snapshot 7 is running: iterate it to its end first"):
        _ = run.handle


def test_a_value_that_does_not_fit_its_type_is_named(lab):
    typed = ValueStateDescriptor("n", "bigint")
    put(lab, "good", 1, typed)
    put(lab, "bad", "text", typed)
    with pytest.raises(TypeMismatch, match="operator 'op', state 'n', key 'bad': expected bigint, got 'text'"):
        lab.snapshot()
    put(lab, "bad", 2, typed)  # and the backend goes on
    lab.backend.notify_aborted(lab.checkpoint)
    assert content(lab, lab.snapshot(), typed) == {"good": 1, "bad": 2}


def test_a_value_that_cannot_be_pickled_is_named(lab):
    put(lab, "k", (i for i in range(3)))
    with pytest.raises(InvalidArgument, match="operator 'op', state 'v': a value of type generator cannot be stored"):
        lab.snapshot()


def test_restore_comes_first(lab):
    put(lab, 1, 1)
    handles = lab.snapshot()
    backend = lab.open()
    backend.state(V)
    with pytest.raises(IllegalState, match=r"operator 'op': restore\(\) must come before the first use of state"):
        backend.restore(handles, lab.read)


# --- checksums


def test_damaged_bytes_are_refused(lab):
    put(lab, "hello", 1)
    handles = lab.snapshot()
    for name, data in list(lab.payloads.items()):
        broken = bytearray(data)
        broken[len(broken) // 2] ^= 1
        lab.payloads[name] = bytes(broken)
    with pytest.raises(CorruptState, match=r"is damaged: .* restore from an older checkpoint"):
        lab.open(handles)


def test_truncated_bytes_are_refused(lab):
    put(lab, "hello", 1)
    handles = lab.snapshot()
    lab.payloads = {name: data[:-1] for name, data in lab.payloads.items()}
    with pytest.raises(CorruptState):
        lab.open(handles)


# --- R3.4 rescale


def distribute(lab, parallelism, max_parallelism, handles=None, **options):
    return [
        lab.open(
            handles,
            key_groups=key_group_range(i, max_parallelism, parallelism),
            max_parallelism=max_parallelism,
            **options,
        )
        for i in range(parallelism)
    ]


def owner_of(backends, key):
    group = key_group(key, backends[0].setup.max_parallelism)
    return next(one for one in backends if group in one.setup.key_groups)


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (2, 2), (15, 77), (77, 15)])
def test_key_group_snapshot_restore(lab, old, new):
    # SPEC R3.4 (testKeyGroupSnapshotRestore*)
    keys = [f"key {i}" for i in range(120)] + list(range(120))
    before = distribute(lab, old, 128)
    for key in keys:
        backend = owner_of(before, key)
        backend.set_current_key(key)
        backend.state(V).update(f"value of {key}")
    handles = [handle for backend in before for handle in lab.snapshot(backend)]
    after = distribute(lab, new, 128, handles)
    for key in keys:
        for backend in after:
            group = key_group(key, 128)
            if group in backend.setup.key_groups:
                backend.set_current_key(key)
                assert backend.state(V).value() == f"value of {key}"
            else:
                with pytest.raises(IllegalState, match="but this subtask owns groups"):
                    backend.set_current_key(key)
    assert sum(entry_count(backend, "v") for backend in after) == len(keys)


@pytest.mark.parametrize(("first", "second"), [(3, 4), (4, 3)])
def test_rescale_and_go_on(lab, first, second):
    # SPEC R3.4 (RescaleCheckpointManuallyITCase), with 10 and 5 instead of 1000 and 500 elements per key
    keys = range(42)
    sums = ReducingStateDescriptor("sum", lambda a, b: a + b, "bigint")
    backends = distribute(lab, first, 13)

    def feed(times):
        for key in keys:
            backend = owner_of(backends, key)
            backend.set_current_key(key)
            for _ in range(times):
                backend.state(sums).add(key)

    feed(10)
    handles = [handle for backend in backends for handle in lab.snapshot(backend)]
    backends = distribute(lab, second, 13, handles)
    feed(5)
    found = set()
    for index, backend in enumerate(backends):
        for key in backend.keys("sum"):
            backend.set_current_key(key)
            found.add((index, backend.state(sums).get()))
    owners = {key: backends.index(owner_of(backends, key)) for key in keys}
    assert found == {(owners[key], key * 15) for key in keys}


def test_rescaled_chains_can_be_claimed_and_rescaled_again(backend_name, tmp_path):
    # R3.4 with increments: old segments hold groups that the new owner does not own any more
    lab = Lab(backend_name, tmp_path, "incremental")
    model = {}

    def write(backends, items):
        for key, stored in items:
            backend = owner_of(backends, key)
            backend.set_current_key(key)
            backend.state(V).update(stored)
            if stored is None:
                model.pop(key, None)
            else:
                model[key] = stored

    shared = []
    backends = distribute(lab, 2, 128)
    write(backends, [(key, "base") for key in range(200)])
    for parallelism in (3, 1, 4, 2):
        lab.checkpoint += 1
        handles = []
        for backend in backends:
            handles += lab.keep(backend.snapshot(lab.checkpoint).finish())
            backend.notify_complete(lab.checkpoint)
        shared += [full_size(handle) > written_size(handle) for handle in handles]
        backends = distribute(lab, parallelism, 128, handles, claim=True)
        assert sum(len(content(lab, handles, key_groups=one.setup.key_groups)) for one in backends) == len(model)
        write(backends, [(key, parallelism) for key in range(0, 200, 7)])
        write(backends, [(key, None) for key in range(parallelism, 200, 31)])
    lab.checkpoint += 1
    handles = [h for one in backends for h in lab.keep(one.snapshot(lab.checkpoint).finish())]
    assert any(shared)
    assert content(lab, handles) == model


def test_an_old_segment_does_not_speak_for_groups_that_moved_on(backend_name, tmp_path):
    # One half writes a new base, the other builds on the old one, which still holds the first half's groups
    lab = Lab(backend_name, tmp_path, "incremental")
    for key in range(200):
        put(lab, key, "base")
    handles = lab.snapshot()
    lab.backend.notify_complete(lab.checkpoint)
    halves = distribute(lab, 2, 128, handles, claim=True)
    lab.checkpoint += 1
    handles = []
    for backend, kind in zip(halves, (SnapshotKind.FULL, SnapshotKind.CHECKPOINT), strict=True):
        for key in backend.state(V) and backend.keys("v"):
            if key % 3 == 0:
                backend.set_current_key(key)
                backend.state(V).update("half")
        handles += lab.keep(backend.snapshot(lab.checkpoint, kind).finish())
    for order in (handles, handles[::-1]):
        lab.backend = lab.open(order, claim=True)
        put(lab, 1, "whole")
        expected = {key: "half" if key % 3 == 0 else "base" for key in range(200)} | {1: "whole"}
        assert content(lab, lab.snapshot()) == expected


def test_max_parallelism_must_be_the_same(lab):
    # SPEC R3.3
    put(lab, 1, 1)
    handles = lab.snapshot()
    with pytest.raises(
        IllegalState, match="max parallelism mismatch: the state was stored with 128, the program sets 64"
    ):
        lab.open(handles, max_parallelism=64, key_groups=KeyGroupRange(0, 63))


def test_state_of_another_backend_is_refused(lab):
    put(lab, 1, 1)
    handles = [msgspec.structs.replace(handle, backend="forst") for handle in lab.snapshot()]
    with pytest.raises(IllegalState, match=r"checkpoint 1 holds forst state.*start from a canonical savepoint"):
        lab.open(handles)


# --- R7.4 increments


def incremental_lab(backend_name, tmp_path):
    lab = Lab(backend_name, tmp_path, "incremental")
    for key in range(1000):
        put(lab, key, "base")
    return lab


def test_checkpoint_is_incremental(backend_name, tmp_path):
    # SPEC R7.4 (RocksIncrementalSnapshotStrategyTest#testCheckpointIsIncremental)
    lab = incremental_lab(backend_name, tmp_path)
    (first,) = lab.snapshot()
    lab.backend.notify_complete(1)
    lab.snapshot(kind=SnapshotKind.SAVEPOINT)
    lab.backend.notify_complete(2)  # a savepoint's: not ours
    put(lab, 3, "changed")
    put(lab, 4, None)
    (third,) = lab.snapshot()
    assert full_size(third) > written_size(third) > 0
    assert full_size(first) == written_size(first)
    expected = {**dict.fromkeys(range(1000), "base"), 3: "changed"}
    del expected[4]
    assert content(lab, [third]) == expected


def test_an_unconfirmed_checkpoint_is_no_base(backend_name, tmp_path):
    # SPEC R7.4
    lab = incremental_lab(backend_name, tmp_path)
    lab.snapshot()
    put(lab, 3, "changed")
    (second,) = lab.snapshot()
    assert full_size(second) == written_size(second)


def test_late_notification(backend_name, tmp_path):
    # SPEC R7.4 (testCheckpointIsIncrementalWithLateNotification): cp2 is full and undecided, so nothing can be re-used
    lab = incremental_lab(backend_name, tmp_path)
    lab.snapshot()
    lab.snapshot()
    lab.backend.notify_complete(1)
    put(lab, 3, "changed")
    (third,) = lab.snapshot()
    assert full_size(third) == written_size(third)
    lab.backend.notify_complete(2)
    lab.backend.notify_complete(3)
    put(lab, 5, "changed")
    (fourth,) = lab.snapshot()
    assert full_size(fourth) > written_size(fourth)
    assert content(lab, [fourth]) == {**dict.fromkeys(range(1000), "base"), 3: "changed", 5: "changed"}


def test_changes_of_an_aborted_checkpoint_are_in_the_next(backend_name, tmp_path):
    lab = incremental_lab(backend_name, tmp_path)
    lab.snapshot()
    lab.backend.notify_complete(1)
    put(lab, 3, "second")
    put(lab, 4, None)
    put(lab, 5, "second")
    lab.snapshot()
    lab.backend.end_batch()
    lab.backend.notify_aborted(2)
    put(lab, 5, "third")
    put(lab, 6, "third")
    (third,) = lab.snapshot()
    assert full_size(third) > written_size(third)
    expected = {**dict.fromkeys(range(1000), "base"), 3: "second", 5: "third", 6: "third"}
    del expected[4]
    assert content(lab, [third]) == expected


def test_full_cuts_the_chain(backend_name, tmp_path):
    # SPEC R7.6: FULL uses nothing old, and later ones build on it
    lab = incremental_lab(backend_name, tmp_path)
    lab.snapshot()
    lab.backend.notify_complete(1)
    put(lab, 3, "changed")
    (full,) = lab.snapshot(kind=SnapshotKind.FULL)
    assert full_size(full) == written_size(full)
    lab.backend.notify_complete(2)
    old = set(lab.payloads) - {payload.id for payload in full.payloads()}
    for name in old:
        del lab.payloads[name]
    put(lab, 4, "changed")
    (after,) = lab.snapshot()
    assert full_size(after) > written_size(after)
    assert content(lab, [after]) == {**dict.fromkeys(range(1000), "base"), 3: "changed", 4: "changed"}


def test_a_savepoint_stands_alone(backend_name, tmp_path):
    # SPEC R7.4: NO_SHARING
    lab = incremental_lab(backend_name, tmp_path)
    lab.snapshot()
    lab.backend.notify_complete(1)
    put(lab, 3, "changed")
    (savepoint,) = lab.snapshot(kind=SnapshotKind.SAVEPOINT)
    assert full_size(savepoint) == written_size(savepoint)
    for name in set(lab.payloads) - {payload.id for payload in savepoint.payloads()}:
        removed = lab.payloads.pop(name)
        assert content(lab, [savepoint])[3] == "changed"
        lab.payloads[name] = removed
    put(lab, 4, "changed")
    (third,) = lab.snapshot()
    assert full_size(third) > written_size(third)
    assert content(lab, [third]) == {**dict.fromkeys(range(1000), "base"), 3: "changed", 4: "changed"}


def test_a_claimed_checkpoint_is_a_base(backend_name, tmp_path):
    # SPEC R8.4: CLAIM may build on it, NO_CLAIM may not
    lab = incremental_lab(backend_name, tmp_path)
    handles = lab.snapshot()
    for claim in (True, False):
        lab.backend = lab.open(handles, claim=claim)
        put(lab, 3, "changed")
        (next_one,) = lab.snapshot()
        assert (full_size(next_one) > written_size(next_one)) is claim
        assert content(lab, [next_one]) == {**dict.fromkeys(range(1000), "base"), 3: "changed"}


def test_concurrent_checkpoints_never_lose_their_base(backend_name, tmp_path):
    # 2 and 3 build on 1; 2 is confirmed while 3 is open: 4 must not need what only 2 holds, because 3 may free it
    lab = incremental_lab(backend_name, tmp_path)
    (first,) = lab.snapshot()
    lab.backend.notify_complete(1)
    put(lab, 3, "second")
    (second,) = lab.snapshot()
    put(lab, 4, "third")
    (third,) = lab.snapshot()
    lab.backend.notify_complete(2)
    put(lab, 5, "fourth")
    (fourth,) = lab.snapshot()
    only_second = (
        {p.id for p in second.payloads()} - {p.id for p in first.payloads()} - {p.id for p in third.payloads()}
    )
    assert not only_second & {p.id for p in fourth.payloads()}
    expected = {**dict.fromkeys(range(1000), "base"), 3: "second", 4: "third"}
    assert content(lab, [third]) == expected
    assert content(lab, [fourth]) == {**expected, 5: "fourth"}


def test_a_checkpoint_aborted_after_an_older_one_was_confirmed(backend_name, tmp_path):
    # 3 is taken before 2 is confirmed, then aborted: its changes are not lost with the generations up to 2
    lab = incremental_lab(backend_name, tmp_path)
    lab.snapshot()
    lab.backend.notify_complete(1)
    put(lab, 3, "second")
    lab.snapshot()
    put(lab, 4, "third")
    lab.snapshot()
    lab.backend.notify_complete(2)
    lab.backend.notify_aborted(3)
    put(lab, 5, "fourth")
    (fourth,) = lab.snapshot()
    assert full_size(fourth) > written_size(fourth)
    assert content(lab, [fourth]) == {**dict.fromkeys(range(1000), "base"), 3: "second", 4: "third", 5: "fourth"}


def test_a_state_registered_after_the_base_is_in_the_increment(backend_name, tmp_path):
    lab = incremental_lab(backend_name, tmp_path)
    lab.snapshot()
    lab.backend.notify_complete(1)
    late = ValueStateDescriptor("late", "string")
    put(lab, 1, "x", late)
    handles = lab.snapshot()
    assert content(lab, handles, late) == {1: "x"}
    assert len(content(lab, handles)) == 1000


# --- R7.3, R8.6 schema


def restored_with(lab, old, new, stored, key=1):
    put(lab, key, stored, ValueStateDescriptor("s", old))
    handles = lab.snapshot()
    lab.backend.notify_complete(lab.checkpoint)
    lab.backend = lab.open(handles, claim=True)
    lab.key(key)
    return lab.state(ValueStateDescriptor("s", new)).value()


@pytest.mark.parametrize(
    ("old", "new", "stored", "expected"),
    [
        ("a bigint, b string", "b string, a bigint", (1, "x"), ("x", 1)),
        ("a bigint", "a bigint, b string", (1,), (1, None)),
        ("a bigint, b string", "a bigint", (1, "x"), (1,)),
        ("a int, b float", "c string, b double, a bigint", (1, 0.5), (None, 0.5, 1)),
        ("int", "bigint", 5, 5),
        ("smallint", "double", 5, 5.0),
        ("decimal(10,2)", "decimal(12,2)", None, None),
        (Types.TUPLE([Types.INT(), Types.STRING()]), Types.TUPLE([Types.LONG(), Types.STRING()]), (1, "x"), (1, "x")),
    ],
)
def test_compatible_schemas(lab, old, new, stored, expected):
    # SPEC R8.6
    assert restored_with(lab, old, new, stored) == expected
    lab.pause()
    lab.key(1)
    assert lab.state(ValueStateDescriptor("s", new)).value() == expected


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "a bigint",
            "a string",
            "field 'a' changed from int64 to string; stored as row<a bigint>, declared as row<a string>",
        ),
        ("bigint", "int", "field 'value' changed from int64 to int32"),
        ("a bigint", "a bigint, b string not null", "field 'b' is new and NOT NULL"),
        ("a double", "a float", "field 'a' changed from double to float"),
        ("a bigint", None, "pickled and typed state cannot be read as each other"),
        (None, "a bigint", "pickled and typed state cannot be read as each other"),
        ("a bigint", "bigint", "a row cannot become a scalar"),
        (
            Types.TUPLE([Types.LONG()]),
            Types.TUPLE([Types.LONG(), Types.LONG()]),
            "a tuple of 1 fields cannot become one of 2",
        ),
    ],
)
def test_incompatible_schemas(lab, old, new, reason):
    # SPEC R7.3 (test*RestoreWithWrongSerializers), R8.6
    stored = (1,) if old is None or as_type(old).kind != "scalar" else 1
    if old == "a double":
        stored = (1.0,)
    with pytest.raises(StateMigrationError) as caught:
        restored_with(lab, old, new, stored)
    assert "operator 'op', state 's'" in str(caught.value)
    assert reason in str(caught.value)


def test_keys_never_evolve(lab):
    # SPEC R7.3, R8.6
    lab.configure(key_type=as_type("int"))
    put(lab, 1, 1)
    handles = lab.snapshot()
    with pytest.raises(StateMigrationError, match="keys were stored as int and are now bigint; keys never evolve"):
        lab.open(handles, key_type=as_type("bigint"))
    lab.configure(key_type=as_type("int"))
    lab.key(1)
    lab.state(MapStateDescriptor("m", "int", "string")).put(1, "x")
    handles = lab.snapshot()
    lab.backend = lab.open(handles)
    with pytest.raises(StateMigrationError, match="state 'm': map keys were stored as int and are now bigint"):
        lab.state(MapStateDescriptor("m", "bigint", "string"))


def test_lists_and_maps_of_rows_evolve(lab):
    # SPEC R8.6
    lab.key(1)
    lab.state(ListStateDescriptor("l", "a int")).update([(1,), (2,)])
    lab.state(MapStateDescriptor("m", "string", "a int")).put_all({"x": (1,), "y": None})
    lab.restart()
    lab.key(1)
    assert lab.state(ListStateDescriptor("l", "a bigint, b string")).get() == [(1, None), (2, None)]
    found = dict(lab.state(MapStateDescriptor("m", "string", "a bigint, b string")).items())
    assert found == {"x": (1, None), "y": None}


@dataclass
class Point:
    x: int


def test_pickled_class_that_is_gone_is_named(lab):
    # SPEC R8.6
    module = types.ModuleType("vanishing")
    sys.modules["vanishing"] = module
    exec("class Thing:\n    def __init__(self): self.a = 1", module.__dict__)
    module.Thing.__module__ = "vanishing"
    put(lab, 1, module.Thing())
    put(lab, 2, Point(3), ValueStateDescriptor("other"))
    handles = lab.snapshot()
    del sys.modules["vanishing"]
    lab.backend = lab.open(handles)
    with pytest.raises(StateMigrationError, match=r"state 'v': stored values need class 'vanishing\.Thing'"):
        lab.state(V)
    assert get(lab, 2, ValueStateDescriptor("other")) == Point(3)


def test_the_other_states_of_a_snapshot_do_not_need_a_missing_class(lab):
    # R1.10: bytes that nobody asks for are passed on unread
    module = types.ModuleType("vanishing")
    sys.modules["vanishing"] = module
    exec("class Thing:\n    pass", module.__dict__)
    module.Thing.__module__ = "vanishing"
    put(lab, 1, module.Thing())
    handles = lab.snapshot()
    del sys.modules["vanishing"]
    lab.backend = lab.open(handles)
    put(lab, 1, 1, ValueStateDescriptor("other"))
    lab.restart()
    sys.modules["vanishing"] = module
    try:
        assert type(get(lab, 1)).__name__ == "Thing"
    finally:
        del sys.modules["vanishing"]
