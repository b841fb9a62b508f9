"""What only the hashmap backend promises: bounded steps, bounded memory, reading no more than needed."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from headrace import Types
from headrace.records.key_groups import KeyGroupRange, KeyHasher
from headrace.state.addresses import NO_KEY
from headrace.state.api import ListStateDescriptor, ValueStateDescriptor
from headrace.state.backend import BackendSetup, SnapshotKind
from headrace.state.hashmap.backend import HashMapBackend
from namespaces import entry_count
from state_handles import full_size, written_size

V = ValueStateDescriptor("v", "bigint")


def make(**options):
    options = {"key_groups": KeyGroupRange(0, 127), "max_parallelism": 128, "clock": lambda: 0, **options}
    return HashMapBackend(BackendSetup("op", **options))


def write(backend, keys, value=1, descriptor=V):
    keys = list(keys)
    groups = KeyHasher(128).groups(keys)
    state, context = backend.state(descriptor), backend.context
    backend.begin_batch(keys, groups)
    for address, group in zip(keys, groups, strict=True):
        context.address, context.group = address, group
        state.update(value)
    backend.end_batch()


def test_a_step_writes_a_bounded_number_of_entries():
    backend = make()
    write(backend, range(100_000))
    run = backend.snapshot(1)
    sizes = [len(data) for _, data in run]
    assert len(sizes) > 12
    assert max(sizes) < 400_000
    assert sum(sizes) == full_size(run.handle)


def test_large_values_make_smaller_steps():
    backend = make()
    write(backend, range(2000), "x" * 10_000, ValueStateDescriptor("big", "string"))
    sizes = [len(data) for _, data in backend.snapshot(1)]
    assert len(sizes) > 10
    assert max(sizes) < 12_000_000


def test_many_empty_groups_are_cut_too():
    backend = make(key_groups=KeyGroupRange(0, 32767), max_parallelism=32768)
    backend.state(V)
    assert len(list(backend.snapshot(1))) >= 8


def test_long_lists_weigh_by_their_elements():
    backend = make()
    for key in range(100):
        backend.set_current_key(key)
        backend.state(ListStateDescriptor("l", "bigint")).update(range(2000))
    assert len(list(backend.snapshot(1))) > 25


def test_the_tables_are_plain_again_after_a_snapshot():
    backend = make()
    write(backend, range(1000))
    run = backend.snapshot(1)
    write(backend, range(500, 1500))
    run.finish()
    write(backend, range(10))
    assert not backend._stores["s:v"].table.layered
    assert entry_count(backend, "v") == 1500


def test_snapshots_of_an_idle_job_do_not_pile_up_layers():
    backend = make(incremental=True)
    write(backend, range(1000))
    for checkpoint in range(1, 50):
        backend.snapshot(checkpoint).finish()
        backend.notify_complete(checkpoint)
    layer, depth = backend._stores["s:v"].table.below[0], 0
    while layer is not None:
        layer, depth = layer.below, depth + 1
    assert depth <= 3


def test_aborted_checkpoints_do_not_pile_up_changes():
    backend = make(incremental=True)
    write(backend, range(1000))
    backend.snapshot(1).finish()
    backend.notify_complete(1)
    for checkpoint in range(2, 40):
        write(backend, range(400), checkpoint)
        backend.snapshot(checkpoint).finish()
        backend.notify_aborted(checkpoint)
        assert sum(one.size() for one in backend._history.generations) <= 1400
    write(backend, range(5), 99)
    handle = backend.snapshot(100).finish()
    fresh = make()
    fresh.restore([handle])
    fresh.set_current_key(7)
    assert fresh.state(V).value() == 39


def test_without_incremental_nothing_is_tracked():
    backend = make()
    write(backend, range(100))
    for checkpoint in (1, 2, 3):
        handle = backend.snapshot(checkpoint).finish()
        backend.notify_complete(checkpoint)
        write(backend, range(50))
        assert len(handle.segments) == 1
    assert backend._history.generations == []
    assert not backend._history.tracking


def test_unchanged_state_writes_nothing():
    backend = make(incremental=True)
    write(backend, range(100))
    first = backend.snapshot(1).finish()
    backend.notify_complete(1)
    second = backend.snapshot(2).finish()
    assert written_size(second) == 0
    assert [one.payload.id for one in second.segments] == [one.payload.id for one in first.segments]


def test_a_restore_reads_only_its_own_groups():
    backend = make()
    write(backend, range(5000))
    handle = backend.snapshot(1).finish()
    read = []

    def reader(payload, offset, length):
        read.append(length)
        return payload.data[offset : offset + length]

    make(key_groups=KeyGroupRange(0, 15)).restore([handle], reader)
    assert len(read) == 16
    assert sum(read) < full_size(handle) / 6


def test_payload_ids_carry_the_instance():
    backend = make(instance="3-1", key_groups=KeyGroupRange(0, 127))
    write(backend, [1])
    assert [payload.id for payload in backend.snapshot(7, SnapshotKind.FULL).finish().payloads()] == ["3-1-7-0-127"]


def test_plain_entries_are_no_work_for_the_garbage_collector():
    backend = make()
    gc.collect()
    before = len(gc.get_objects())
    write(backend, range(10_000))
    gc.collect()
    assert len(gc.get_objects()) - before < 2000


def test_nor_while_changes_are_tracked():
    backend = make(incremental=True)
    write(backend, range(10_000))
    backend.snapshot(1).finish()
    backend.notify_complete(1)
    write(backend, range(10_000))
    gc.collect()
    assert not any(gc.is_tracked(one) for one in backend._stores["s:v"].table.tables if len(one))


def test_dispose_frees_the_entries():
    backend = make(incremental=True)
    value = "a string of its own".replace("a", "b")
    write(backend, range(10), value, ValueStateDescriptor("s"))
    run = backend.snapshot(1)
    next(run)
    backend.dispose()
    assert sys.getrefcount(value) <= 3
    assert list(run) == []


class Held:
    """A value whose pickling waits: the thread that writes it is in the middle of a step."""

    writing, go_on = threading.Event(), threading.Event()

    def __reduce__(self):
        Held.writing.set()
        assert Held.go_on.wait(300)
        return Held, ()


def test_a_snapshot_cancelled_in_the_middle_of_a_step_releases_its_tables():
    backend = make()
    write(backend, [1], Held(), ValueStateDescriptor("held"))
    run = backend.snapshot(1)
    left = []
    writer = threading.Thread(target=lambda: left.extend(run))
    writer.start()
    assert Held.writing.wait(120)
    run.cancel()  # not from the thread that is inside
    table = backend._stores["s:held"].table
    assert table.cursors  # the writer still reads
    Held.go_on.set()
    writer.join()
    assert not table.cursors
    assert len(left) <= 1
    assert run.status == "cancelled"


def test_a_key_outside_the_batch_counts_though_it_was_written_before_the_batch_was_read():
    backend = make(key_type=Types.LONG())
    groups = KeyHasher(128).groups([1, 2])
    state, context = backend.state(V), backend.context
    backend.begin_batch([1], groups[:1])
    context.address, context.group = 2, groups[1]
    state.update(22)
    context.address, context.group = 1, groups[0]
    assert state.value() is None  # brings the values of the batch
    state.update(11)
    backend.end_batch()
    backend.set_current_key(2)
    assert state.value() == 22
    handle = backend.snapshot(1, SnapshotKind.FULL).finish()
    restored = make(key_type=Types.LONG())
    restored.restore([handle])
    found = restored.state(V)
    for key, value in ((1, 11), (2, 22)):
        restored.set_current_key(key)
        assert found.value() == value


@pytest.mark.parametrize("other", ["5", True, 5.0, 2**70])
def test_a_key_of_another_type_does_not_share_the_state_of_an_integer(other):
    """Two keyed inputs may have keys of different types."""
    backend = make(key_type=Types.LONG())
    addresses = backend.prepare_keys([7, other, int(other)])
    groups = KeyHasher(128).groups([7, other, int(other)])
    state, context = backend.state(V), backend.context
    for _ in range(2):
        backend.begin_batch(addresses, groups)
        for context.address, context.group in zip(addresses, groups, strict=True):
            state.update((state.value() or 0) + 1)
        context.address = NO_KEY
        backend.end_batch()
    shared = addresses[1] == addresses[2]  # the same key, in two records of a batch
    for address, group, expected in zip(addresses, groups, (2, 4, 4) if shared else (2, 2, 2), strict=True):
        context.address, context.group = address, group
        assert state.value() == expected
