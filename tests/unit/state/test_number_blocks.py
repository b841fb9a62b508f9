"""States of numbers on rocksdb whose entries fit into the memory are in blocks (SPEC R7.2 - R7.4, R3.4, R8.2).

`tests/property/test_column_values.py` compares them with a dict; here is what that does not look at.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from unittest.mock import patch

import numpy as np
import pytest

from headrace.checkpoint.handles import decode_handle, encode_handle
from headrace.errors import IllegalState, LocalStateError, StateMigrationError
from headrace.records.key_groups import KeyGroupRange, KeyHasher
from headrace.records.types import Types
from headrace.state.addresses import VOID
from headrace.state.api import StateTtlConfig, Time, ValueStateDescriptor
from headrace.state.backend import BackendSetup, SnapshotKind
from headrace.state.rocksdb import MemoryBudget, RocksDBBackend, blocks, numbers
from headrace.state.rocksdb.numbers import NumberRows
from headrace.state.rocksdb.store import Store
from namespaces import select_namespace
from state_handles import detach

INT, LONG = ValueStateDescriptor("v", "int"), ValueStateDescriptor("v", "bigint")
GROUPS = KeyGroupRange(0, 31)
GROUP = KeyHasher(32)


class Rig:
    def __init__(self):
        self.opened, self.payloads = [], {}

    def open(self, *handles, **changes):
        setup = BackendSetup(
            "op", GROUPS, 32, lambda: 0, key_type=Types.LONG(), incremental=True, instance=f"i{len(self.opened)}"
        )
        backend = RocksDBBackend(replace(setup, **changes))
        self.opened.append(backend)
        if handles:
            backend.restore(list(handles), lambda payload, at, length: self.payloads[payload.id][at : at + length])
        return backend

    def snapshot(self, backend, number=1, kind=SnapshotKind.FULL):
        described, payloads = detach(backend.snapshot(number, kind).finish())
        self.payloads.update(payloads)
        backend.notify_complete(number)
        return decode_handle(encode_handle(described))


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    for backend in rig.opened:
        backend.dispose()


@pytest.fixture
def memory(monkeypatch):
    def configure(entries):
        monkeypatch.setattr(MemoryBudget, "_shared", MemoryBudget(cache_size=entries * numbers._ENTRY_BYTES))

    return configure


def batch(backend, descriptor, entries):
    """Store numbers as a batch does; None removes."""
    state = backend.state(descriptor)
    keys = [key for key in entries if GROUP.group(key) in backend.setup.key_groups]
    backend.begin_batch(keys, [GROUP.group(key) for key in keys])
    for key in keys:
        backend.set_current_key(key)
        state.update(entries[key])
    backend.clear_current_key()
    backend.end_batch()


def content(backend, descriptor):
    state, found = backend.state(descriptor), {}
    for key in list(backend.keys("v")):
        backend.set_current_key(key)
        found[key] = state.value()
    backend.clear_current_key()
    return found


def rows_of(backend):
    rows = backend._states["s:v"]
    assert isinstance(rows, NumberRows)
    return rows


def row_count(backend):
    return sum(1 for _ in backend._store.column("s:v").scan_keys(*backend._space.bounds()))


def entries_in_blocks(backend, live=None):
    form = rows_of(backend)._blocks._form
    stored = [data for _, data in backend._store.columns["blocks:s:v"].scan(*backend._space.bounds())]
    found = np.frombuffer(b"".join(stored), form)["live"]
    return len(found) if live is None else int(np.count_nonzero(found == live))


def test_changes_make_one_row_for_each_key_group(rig):
    backend = rig.open()
    batch(backend, LONG, {key: key for key in range(5000)})
    rig.snapshot(backend)
    stored = list(backend._store.columns["blocks:s:v"].scan(*backend._space.bounds()))
    assert (len(stored), row_count(backend)) == (32, 0)
    assert sum(len(data) for _, data in stored) == 5000 * (8 + 8 + 1)


def test_a_large_group_is_written_in_parts(rig, monkeypatch):
    monkeypatch.setattr(blocks, "_PART", 100)
    backend = rig.open()
    batch(backend, LONG, {key: -key for key in range(5000)})
    handle = rig.snapshot(backend)
    assert content(rig.open(handle), LONG) == {key: -key for key in range(5000)}


@pytest.mark.parametrize("value", ["smallint", "int", "bigint", "float", "double"])
def test_every_type_of_number(rig, value):
    descriptor = ValueStateDescriptor("v", value)
    backend = rig.open()
    entries = {-(2**63): 3, 2**63 - 1: -4, 0: 5, 1: 0}
    batch(backend, descriptor, entries)
    assert content(rig.open(rig.snapshot(backend)), descriptor) == entries


def test_blocks_are_written_anew_when_they_have_several_entries_for_each_key(rig):
    backend = rig.open()
    entries, sizes = {}, []
    for number in range(1, 60):
        changed = {key: number * key for key in range(number % 7, 6000, 3)}
        batch(backend, LONG, changed)
        entries |= changed
        handle = rig.snapshot(backend, number, SnapshotKind.CHECKPOINT)
        sizes.append(sum(file.payload.size for file in handle.files))
        assert entries_in_blocks(backend) == rows_of(backend)._blocks.entries <= 4 * 6000
    assert content(rig.open(handle), LONG) == entries
    assert max(sizes[20:]) < 3 * max(sizes[:20])


def test_few_entries_are_not_written_anew_with_each_checkpoint(rig):
    backend = rig.open()
    for number in range(1, 40):
        batch(backend, LONG, {1: number})
        rig.snapshot(backend, number, SnapshotKind.CHECKPOINT)
    assert rows_of(backend)._blocks.entries == 39


def test_removed_entries_leave_the_blocks_when_all_are_written_anew(rig, monkeypatch):
    monkeypatch.setattr(numbers, "_FEW_IN_BLOCKS", 0)
    backend, entries, removed = rig.open(), {}, 0
    for number in range(1, 60):
        changed = dict.fromkeys(range(0, 100, 1 + number % 5), number)
        changed |= dict.fromkeys(range(number % 3, 100, 2 + number % 7))
        batch(backend, LONG, changed)
        entries |= changed
        handle = rig.snapshot(backend, number)
        assert content(rig.open(handle), LONG) == {key: value for key, value in entries.items() if value is not None}
        assert entries_in_blocks(backend) == rows_of(backend)._blocks.entries
        removed += entries_in_blocks(backend, live=False) == 0
    assert 5 < removed < 50


def test_changes_after_a_restore_count_and_not_what_was_restored(rig):
    entries = dict.fromkeys(range(500), 0)
    backend = rig.open()
    batch(backend, LONG, entries)
    for number in range(1, 6):
        backend = rig.open(rig.snapshot(backend, number))
        changed = dict.fromkeys(range(number, 500, number), number) | {number: None}
        batch(backend, LONG, changed)
        entries |= changed
        assert content(backend, LONG) == {key: value for key, value in entries.items() if value is not None}


def test_entries_that_are_used_with_a_namespace_leave_the_blocks(rig):  # SPEC R1.9
    backend = rig.open()
    batch(backend, LONG, {key: key for key in range(100)})
    backend = rig.open(rig.snapshot(backend))
    batch(backend, LONG, {5: 6, 7: None})
    state = backend.state(LONG)
    backend.set_current_key(3)
    select_namespace(backend, "w")
    assert state.value() is None
    state.update(33)
    select_namespace(backend, VOID)
    assert state.value() == 3
    backend.clear_current_key()
    other = rig.open(rig.snapshot(backend))
    state = other.state(LONG)
    for namespace, expected in ((VOID, 3), ("w", 33)):
        other.set_current_key(3)
        select_namespace(other, namespace)
        assert state.value() == expected
    other.clear_current_key()
    assert set(other.keys("v")) == {key for key in range(100) if key != 7}


def test_too_many_entries_become_rows(rig, memory):
    memory(2000)
    backend = rig.open()
    entries = {key: key for key in range(1000)}
    batch(backend, LONG, entries)
    rig.snapshot(backend)
    assert rows_of(backend).in_blocks
    more = dict.fromkeys(range(500, 5000), 7)
    batch(backend, LONG, more)
    batch(backend, LONG, {})
    assert not rows_of(backend).in_blocks
    handle = rig.snapshot(backend, 2)
    assert row_count(backend) == 5000
    other = rig.open(handle)
    assert content(other, LONG) == entries | more
    assert not rows_of(other).in_blocks  # a state with rows keeps to them
    assert row_count(other) == 5000
    assert list(other._store.columns["blocks:s:v"].scan(*other._space.bounds())) == []


def test_a_snapshot_that_waits_while_entries_become_rows_has_what_was_there(rig, memory):
    memory(2000)
    backend = rig.open()
    batch(backend, LONG, {key: key for key in range(1000)})
    waiting = backend.snapshot(1, SnapshotKind.FULL)
    for first in range(1000, 9000, 500):
        batch(backend, LONG, dict.fromkeys(range(first, first + 500), -1))
    assert not rows_of(backend).in_blocks
    described, payloads = detach(waiting.finish())
    rig.payloads.update(payloads)
    assert content(rig.open(described), LONG) == {key: key for key in range(1000)}
    assert len(content(backend, LONG)) == 9000


@pytest.mark.parametrize("room", [900, 100_000])
def test_blocks_that_do_not_fit_into_the_memory_are_read_as_rows(rig, memory, room):
    backend = rig.open()
    entries = {key: key for key in range(1000)}
    batch(backend, LONG, entries)
    handle = rig.snapshot(backend)
    memory(room)
    other = rig.open(handle)
    assert content(other, LONG) == entries
    assert rows_of(other).in_blocks == (room > 1000)
    assert row_count(other) == (0 if room > 1000 else 1000)
    again = rig.open(rig.snapshot(other))
    assert content(again, LONG) == entries


def test_a_restored_state_that_is_not_used_stays_in_the_checkpoint(rig):
    backend = rig.open()
    batch(backend, LONG, {1: 5})
    other = rig.open(rig.snapshot(backend))
    batch(other, ValueStateDescriptor("other", "bigint"), {1: 6})
    assert content(rig.open(rig.snapshot(other)), LONG) == {1: 5}


def test_the_type_of_a_state_may_widen(rig):  # SPEC R7.3
    backend = rig.open()
    batch(backend, INT, {key: key for key in range(100)})
    handle = rig.snapshot(backend)
    other = rig.open(handle)
    batch(other, LONG, {1: 1 << 40})
    assert content(other, LONG) == {key: key for key in range(100)} | {1: 1 << 40}
    again = rig.open(rig.snapshot(other))
    assert content(again, LONG)[1] == 1 << 40
    with pytest.raises(StateMigrationError):
        rig.open(handle).state(ValueStateDescriptor("v", "string"))


def test_a_state_may_get_a_time_to_live(rig):  # SPEC R2.7
    backend = rig.open()
    batch(backend, LONG, {key: key for key in range(100)})
    fading = ValueStateDescriptor("v", "bigint")
    fading.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
    other = rig.open(rig.snapshot(backend), migrate_ttl=True)
    assert content(other, fading) == {key: key for key in range(100)}
    assert content(rig.open(rig.snapshot(other)), fading) == {key: key for key in range(100)}


def test_subtasks_may_have_stored_a_state_in_different_forms(rig):  # SPEC R3.4
    entries = {key: key for key in range(200)}
    handles = []
    for groups, descriptor in ((KeyGroupRange(0, 15), INT), (KeyGroupRange(16, 31), LONG)):
        backend = rig.open(key_groups=groups)
        batch(backend, descriptor, entries)
        handles.append(rig.snapshot(backend))
    for order in (handles, handles[::-1]):
        merged = rig.open(*order)
        assert content(merged, LONG) == entries
        assert not [name for name in merged._store.columns if "2" in name]
        assert content(rig.open(rig.snapshot(merged)), LONG) == entries


def test_blocks_and_rows_of_different_subtasks_are_read_together(rig):  # SPEC R3.4
    entries, handles = {key: key for key in range(200)}, []
    for groups in (KeyGroupRange(0, 9), KeyGroupRange(10, 20), KeyGroupRange(21, 31)):
        backend = rig.open(key_groups=groups)
        batch(backend, LONG, entries)
        if groups.start == 10:
            backend._write_as_rows(rows_of(backend))
        handles.append(rig.snapshot(backend))
    merged = rig.open(*handles)
    batch(merged, LONG, {3: 33, 4: None})
    assert content(merged, LONG) == {key: 33 if key == 3 else key for key in range(200) if key != 4}
    halves = [
        rig.open(rig.snapshot(merged), key_groups=groups) for groups in (KeyGroupRange(0, 4), KeyGroupRange(5, 31))
    ]
    assert sum(len(content(half, LONG)) for half in halves) == 199


def test_a_backend_that_is_only_read_takes_no_share_of_the_memory(rig, memory):
    """A canonical savepoint is written from such a backend, next to the job's own."""
    memory(2000)
    backend = rig.open()
    batch(backend, LONG, {key: key for key in range(1500)})
    reader = rig.open(rig.snapshot(backend))
    found = {key for _, (keys, _) in reader.number_groups(LONG.meta()) for key in keys.tolist()}
    batch(backend, LONG, {1: 1})
    assert found == set(range(1500))
    assert rows_of(backend).in_blocks
    assert "s:v" not in reader._states  # nor time to build an index


def test_numbers_are_given_in_the_order_of_groups_and_keys_with_what_is_not_written_yet(rig):  # SPEC R8.2
    backend = rig.open()
    batch(backend, LONG, dict.fromkeys(range(100), 1))
    other = rig.open(rig.snapshot(backend))
    batch(other, LONG, dict.fromkeys(range(-50, 50), 2) | {99: None})
    found = list(other.number_groups(LONG.meta()))
    assert [group for group, _ in found] == sorted({GROUP.group(key) for key in range(-50, 99)})
    assert all(keys.tolist() == sorted(keys.tolist()) for _, (keys, _) in found)
    pairs = {
        key: value for _, (keys, values) in found for key, value in zip(keys.tolist(), values.tolist(), strict=True)
    }
    assert pairs == {key: 2 if key < 50 else 1 for key in range(-50, 99)}


@pytest.mark.parametrize("room", [500, 100_000])
def test_loaded_numbers_that_do_not_fit_into_the_memory_become_rows(rig, memory, room, monkeypatch):  # SPEC R8.2
    memory(room)
    monkeypatch.setattr("headrace.state.rocksdb.writeback._MIN_ENTRIES", 10)
    backend = rig.open()
    for first in range(0, 2000, 100):
        keys = np.arange(first, first + 100)
        groups = np.array([GROUP.group(key) for key in keys.tolist()], np.int32)
        assert backend.load_numbers(LONG.meta(), (keys, 3 * keys), groups)
    assert content(rig.open(rig.snapshot(backend)), LONG) == {key: 3 * key for key in range(2000)}  # not yet opened
    backend.state(LONG)
    assert rows_of(backend).in_blocks == (room > 2000)
    assert row_count(backend) == (0 if room > 2000 else 2000)
    assert content(backend, LONG) == {key: 3 * key for key in range(2000)}
    assert content(rig.open(rig.snapshot(backend)), LONG) == {key: 3 * key for key in range(2000)}


def test_of_numbers_that_are_loaded_again_the_last_count(rig):  # SPEC R8.2
    """In any order, and with keys that come twice."""
    backend = rig.open()
    keys = np.array([5, -3, 5, 900, 7] * 50)
    for factor in (1, 2):
        groups = np.array([GROUP.group(key) for key in keys.tolist()], np.int32)
        assert backend.load_numbers(LONG.meta(), (keys, np.arange(len(keys)) * factor), groups)
    expected = {5: 2 * 247, -3: 2 * 246, 900: 2 * 248, 7: 2 * 249}
    assert {
        key: value
        for _, (some, values) in backend.number_groups(LONG.meta())
        for key, value in zip(some.tolist(), values.tolist(), strict=True)
    } == expected
    assert content(backend, LONG) == expected


def test_numbers_are_not_loaded_into_a_state_that_is_open(rig):  # SPEC R8.2
    backend = rig.open()
    batch(backend, LONG, {1: 2})
    assert not backend.load_numbers(LONG.meta(), (np.array([1]), np.array([3])), np.array([GROUP.group(1)], np.int32))
    assert content(backend, LONG) == {1: 2}


def test_numbers_are_not_loaded_over_restored_ones(rig):  # SPEC R8.2
    backend = rig.open()
    batch(backend, LONG, {1: 2, 5: 6})
    other = rig.open(rig.snapshot(backend))
    assert not other.load_numbers(LONG.meta(), (np.array([1]), np.array([3])), np.array([GROUP.group(1)], np.int32))
    assert content(other, LONG) == {1: 2, 5: 6}


def test_a_cancelled_snapshot_loses_no_block(rig):
    backend = rig.open()
    batch(backend, LONG, dict.fromkeys(range(1000), 1))
    run = backend.snapshot(1)
    list(islice(run, 1))
    run.cancel()
    batch(backend, LONG, {5: 2})
    assert content(rig.open(rig.snapshot(backend, 2)), LONG) == {key: 2 if key == 5 else 1 for key in range(1000)}


def test_a_checkpoint_before_the_first_batch_leaves_the_blocks_as_they_are(rig):
    backend = rig.open()
    batch(backend, LONG, {key: key for key in range(20_000)})
    other = rig.open(rig.snapshot(backend))
    other.state(LONG)
    rig.snapshot(other, 2, SnapshotKind.CHECKPOINT)
    assert rows_of(other).in_blocks
    assert row_count(other) == 0


def test_several_states_share_the_memory_when_they_are_restored(rig, memory):
    backend, names = rig.open(), ["a", "b", "c", "d"]
    for name in names:
        batch(backend, ValueStateDescriptor(name, "bigint"), {key: key for key in range(1000)})
    handle = rig.snapshot(backend)
    memory(2000)
    other = rig.open(handle)
    for name in names:
        other.state(ValueStateDescriptor(name, "bigint"))
    assert sum(rows.columns.count for rows in other._states.values()) <= 2000
    for name in names:
        assert sorted(other.keys(name)) == list(range(1000))


def test_a_state_that_cannot_be_opened_stays_in_checkpoints(rig, memory):
    backend = rig.open()
    batch(backend, LONG, {key: key for key in range(1000)})
    handle = rig.snapshot(backend)
    memory(100)
    other = rig.open(handle)
    full = patch.object(Store, "write", side_effect=LocalStateError("no space left on device"))
    with full, pytest.raises(LocalStateError):
        other.state(LONG)
    assert content(rig.open(rig.snapshot(other, 2)), LONG) == {key: key for key in range(1000)}
    assert content(other, LONG) == {key: key for key in range(1000)}


@pytest.mark.parametrize("opened", [(), (0,), (1,)])
def test_a_loaded_state_that_was_not_opened_is_rescaled(rig, opened):  # SPEC R3.4, R8.2
    """Its database has no column for rows."""
    handles = []
    for index, groups in enumerate((KeyGroupRange(0, 15), KeyGroupRange(16, 31))):
        backend = rig.open(key_groups=groups)
        keys = np.array([key for key in range(200) if GROUP.group(key) in groups])
        backend.load_numbers(LONG.meta(), (keys, 3 * keys), np.array([GROUP.group(key) for key in keys.tolist()]))
        if index in opened:
            batch(backend, LONG, {key: 3 * key for key in range(200)})
        handles.append(rig.snapshot(backend))
    whole = rig.open(*handles)
    again = rig.snapshot(whole)  # not opened either
    assert content(whole, LONG) == {key: 3 * key for key in range(200)}
    quarters = [rig.open(again, key_groups=KeyGroupRange(first, first + 7)) for first in (0, 8, 16, 24)]
    found = [content(quarter, LONG) for quarter in quarters]
    assert {key: value for some in found for key, value in some.items()} == {key: 3 * key for key in range(200)}
    assert sum(map(len, found)) == 200


def test_a_new_cut_counts_more_than_all_restored_ones(rig, monkeypatch):
    """The last key group has fewer cuts than the first one."""
    monkeypatch.setattr(numbers, "_FEW_IN_BLOCKS", 1 << 20)
    backend = rig.open()
    batch(backend, LONG, dict.fromkeys(range(200), 0))
    low = [key for key in range(200) if GROUP.group(key) == 0]
    for value in (1, 2, 3):
        batch(backend, LONG, dict.fromkeys(low, value))
        handle = rig.snapshot(backend, value)
    other = rig.open(handle)
    batch(other, LONG, dict.fromkeys(low, 4))
    found = content(rig.open(rig.snapshot(other)), LONG)
    assert {found[key] for key in low} == {4}


def test_blocks_and_rows_of_a_state_that_is_not_opened_are_both_given(rig):  # SPEC R3.4, R8.2
    handles = []
    for groups in (KeyGroupRange(0, 15), KeyGroupRange(16, 31)):
        backend = rig.open(key_groups=groups)
        batch(backend, LONG, {key: key for key in range(200)})
        if groups.start:
            backend._write_as_rows(rows_of(backend))
        handles.append(rig.snapshot(backend))
    merged = rig.open(*handles)
    found = [key for _, (keys, _) in merged.number_groups(LONG.meta()) for key in keys.tolist()]
    assert sorted(found) == list(range(200))


def test_nothing_is_restored_over_loaded_numbers(rig):  # SPEC R8.2
    source = rig.open()
    batch(source, LONG, {1: 2})
    handle = rig.snapshot(source)
    backend = rig.open()
    backend.load_numbers(LONG.meta(), (np.array([1]), np.array([3])), np.array([GROUP.group(1)], np.int32))
    with pytest.raises(IllegalState):
        backend.restore([handle], lambda payload, at, length: rig.payloads[payload.id][at : at + length])


def test_numbers_that_are_removed_after_a_rescale_stay_removed(rig, monkeypatch):  # SPEC R3.4
    monkeypatch.setattr(numbers, "_FEW_IN_BLOCKS", 0)
    monkeypatch.setattr(numbers, "_RENEW", 1)  # the blocks of a half are written anew, without what it has removed
    whole = rig.open()
    batch(whole, LONG, {key: key for key in range(300)})
    handle = rig.snapshot(whole)
    halves = [rig.open(handle, key_groups=groups) for groups in (KeyGroupRange(0, 15), KeyGroupRange(16, 31))]
    for half in halves:
        batch(half, LONG, dict.fromkeys(range(0, 300, 3)))
    again = rig.open(*[rig.snapshot(half, 2) for half in halves])
    assert content(again, LONG) == {key: key for key in range(300) if key % 3}
