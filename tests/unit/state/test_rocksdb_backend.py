"""What only the rocksdb backend has: files, cuts, a local directory, a memory budget (SPEC R7.2 - R7.4, R3.4)."""

from __future__ import annotations

import gc
import math
import os
import time
import tracemalloc
from dataclasses import replace
from itertools import groupby
from unittest.mock import patch

import pytest

from headrace.checkpoint.handles import CorruptState, decode_handle, encode_handle
from headrace.errors import IllegalState, InvalidArgument, LocalStateError, StorageError
from headrace.records.key_groups import KeyGroupRange, key_group, key_group_range
from headrace.records.types import TypeMismatch
from headrace.state.addresses import VOID
from headrace.state.api import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from headrace.state.backend import BackendSetup, SnapshotKind
from headrace.state.rocksdb import MemoryBudget, RocksDBBackend, writeback
from headrace.state.rocksdb.lists_maps import BULK_ROWS
from headrace.state.rocksdb.store import Store
from headrace.state.timers import TimeDomain
from namespaces import entry_count, select_namespace
from state_handles import detach, full_size, written_size

V = ValueStateDescriptor("v", "bigint")
GROUPS = KeyGroupRange(0, 127)


class Rig:
    """Backends that are closed at the end, and a place for payloads."""

    def __init__(self, path):
        self.path = path
        self.opened = []
        self.payloads = {}
        self.now = 0

    def open(self, handles=(), claim=False, **changes):
        setup = BackendSetup("op", GROUPS, 128, lambda: self.now, incremental=True)
        setup = replace(setup, instance=f"i{len(self.opened)}", directory=self.path / str(len(self.opened)), **changes)
        backend = RocksDBBackend(setup)
        self.opened.append(backend)
        if handles:
            backend.restore(list(handles), self.read, claim=claim)
        return backend

    def read(self, payload, offset, length):
        return self.payloads[payload.id][offset : offset + length]

    def keep(self, handle):
        described, payloads = detach(handle)
        self.payloads.update(payloads)
        return decode_handle(encode_handle(described))

    def snapshot(self, backend, checkpoint, kind=SnapshotKind.CHECKPOINT):
        return self.keep(backend.snapshot(checkpoint, kind).finish())


@pytest.fixture
def rig(tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryBudget, "_shared", None)  # backends of other tests have their own
    found = Rig(tmp_path)
    yield found
    for backend in found.opened:
        backend.dispose()


def row_bytes(backend):
    return sum(int(file["size"]) for file in backend._store._database.live_files())


def put(backend, key, value, descriptor=V):
    backend.set_current_key(key)
    backend.state(descriptor).update(value)


def get(backend, key, descriptor=V):
    backend.set_current_key(key)
    return backend.state(descriptor).value()


def files(handle):
    return {file.name: file for file in handle.files if file.shared}


# --- the local directory


def test_leftovers_of_a_dead_attempt_are_removed(rig):
    path = rig.path / "0" / "db"
    path.mkdir(parents=True)
    (path / "000123.sst").write_bytes(b"garbage")
    (path / "CURRENT").write_text("MANIFEST-000001\n")
    (rig.path / "0" / "snapshot-1").mkdir()
    backend = rig.open()
    put(backend, 1, 1)
    assert get(backend, 1) == 1
    assert not (rig.path / "0" / "snapshot-1").exists()
    assert not (path / "000123.sst").exists()


def test_two_backends_never_share_a_directory(rig):
    backend = rig.open()
    with pytest.raises(IllegalState, match="is in use by another backend; give each operator and attempt its own"):
        RocksDBBackend(replace(backend.setup))
    backend.dispose()
    RocksDBBackend(replace(backend.setup)).dispose()


def test_dispose_removes_the_directory_and_ends_everything(rig):
    backend = rig.open()
    put(backend, 1, 1)
    run = backend.snapshot(1)
    next(run)
    backend.dispose()
    backend.dispose()
    assert not (rig.path / "0").exists()
    with pytest.raises(IllegalState):
        backend.state(ListStateDescriptor("new"))


def test_without_a_directory_a_temporary_one_is_used():
    backend = RocksDBBackend(BackendSetup("op", GROUPS, 128, lambda: 0))
    put(backend, 1, 1)
    path = backend._directory.path
    assert path.exists()
    backend.dispose()
    assert not path.exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used for local state"):
        RocksDBBackend(BackendSetup("op", GROUPS, 128, lambda: 0, directory=tmp_path / "file" / "sub"))


@pytest.mark.parametrize("link", [False, True])
def test_a_file_in_place_of_the_directory_is_named(tmp_path, link):
    place = tmp_path / "place"
    place.symlink_to("nowhere") if link else place.write_text("")
    with pytest.raises(StorageError, match=f"directory {place} cannot be used for local state: .*File exists"):
        RocksDBBackend(BackendSetup("op", GROUPS, 128, lambda: 0, directory=place))


def test_a_directory_that_another_task_removes_while_it_is_made(tmp_path, monkeypatch):
    """Tasks on the same host remove directories that no process has locked: before mkdir() looks what is there, too."""
    place, mkdir = tmp_path / "place", os.mkdir

    def removed_after_mkdir_found_it(path, mode=0o777):
        if path == place:
            monkeypatch.undo()
            raise FileExistsError(17, "File exists", str(path))
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", removed_after_mkdir_found_it)
    backend = RocksDBBackend(BackendSetup("op", GROUPS, 128, lambda: 0, directory=place))
    put(backend, 1, 1)
    backend.dispose()


def test_snapshots_leave_no_directories(rig):
    backend = rig.open()
    put(backend, 1, 1)
    rig.snapshot(backend, 1)
    cancelled = backend.snapshot(2)
    next(cancelled)
    cancelled.cancel()
    aborted = backend.snapshot(3)
    aborted_steps = [next(aborted) for _ in range(2)]
    assert aborted_steps
    backend.notify_aborted(3)
    assert aborted.status == "cancelled"
    assert sorted(path.name for path in (rig.path / "0").iterdir()) == ["db", "in-use"]


# --- snapshots and files (R7.4)


def test_checkpoint_is_incremental(rig):
    # SPEC R7.4 (RocksIncrementalSnapshotStrategyTest#testCheckpointIsIncremental)
    backend = rig.open()
    for key in range(1000):
        put(backend, key, key)
    first = rig.snapshot(backend, 1)
    backend.notify_complete(1)
    rig.snapshot(backend, 2, SnapshotKind.SAVEPOINT)
    backend.notify_complete(2)
    put(backend, 1, -1)
    third = rig.snapshot(backend, 3)
    assert full_size(third) > written_size(third)
    shared = set(files(first)) & set(files(third))
    assert shared
    assert all(files(first)[name] == files(third)[name] for name in shared)
    assert all(files(third)[name].created_by == 1 for name in shared)


def test_checkpoint_is_incremental_with_late_notification(rig):
    # SPEC R7.4 (testCheckpointIsIncrementalWithLateNotification)
    backend = rig.open()
    put(backend, 1, 1)
    rig.snapshot(backend, 1)
    put(backend, 2, 2)
    rig.snapshot(backend, 2)
    backend.notify_complete(1)
    put(backend, 3, 3)
    third = rig.snapshot(backend, 3)
    assert full_size(third) == written_size(third)


def test_a_full_checkpoint_stores_everything_under_new_names(rig):
    # SPEC R7.6
    backend = rig.open()
    put(backend, 1, 1)
    first = rig.snapshot(backend, 1)
    backend.notify_complete(1)
    full = rig.snapshot(backend, 2, SnapshotKind.FULL)
    assert not {p.id for p in first.payloads()} & {p.id for p in full.payloads()}
    assert full_size(full) == written_size(full)
    backend.notify_complete(2)
    third = rig.snapshot(backend, 3)
    assert {file.created_by for file in files(third).values()} == {2}


def test_payload_ids_carry_instance_and_content(rig):
    # R7.4: another attempt with the same file names must not meet the files of this one
    handles = []
    for _ in range(2):
        backend = rig.open()
        put(backend, 1, len(handles))
        handles.append(rig.snapshot(backend, 1))
    ids = [{payload.id for payload in handle.payloads()} for handle in handles]
    assert not ids[0] & ids[1]
    for handle in handles:
        for file in files(handle).values():
            assert f"{file.payload.crc32:08x}" in file.payload.id


def test_without_incremental_nothing_is_shared(rig):
    backend = rig.open(incremental=False)
    put(backend, 1, 1)
    rig.snapshot(backend, 1)
    backend.notify_complete(1)
    second = rig.snapshot(backend, 2)
    assert full_size(second) == written_size(second)
    assert not any(file.shared for file in second.files)


def test_chunks_are_bounded(rig):
    backend = rig.open()
    blob = ValueStateDescriptor("blob", "binary")
    for key in range(300):
        put(backend, key, bytes([key % 251]) * 5000 + key.to_bytes(4, "big") * 2000, blob)
    run = backend.snapshot(1)
    steps = list(run)
    sizes = [len(data) for _, data in steps]
    assert max(sizes) <= 1 << 20
    assert written_size(run.handle) == sum(sizes)
    # Each payload comes in one piece, so that a writer need not keep several open.
    names = [name for name, _ in groupby(steps, key=lambda step: step[0])]
    assert len(names) == len(set(names)) == len(run.handle.payloads())


def test_the_barrier_writes_nothing_and_the_snapshot_is_exact(rig):
    # What is written after the barrier stays out, although the rows of before are written later still
    backend = rig.open()
    for key in range(5000):
        put(backend, key, 1)
    run = backend.snapshot(1)
    assert not backend._store.in_memory()
    for key in range(5000):
        put(backend, key, 2)
    for _ in range(3):
        backend.end_batch()
        backend.maintain(1000)
    handle = rig.keep(run.finish())
    restored = rig.open([handle])
    assert {get(restored, key) for key in (0, 17, 4999)} == {1}
    assert get(backend, 17) == 2


def test_many_changes_force_a_waiting_snapshot(rig, monkeypatch):
    # Newer changes than the memory holds cannot wait for the snapshot: its native checkpoint is made at once
    monkeypatch.setattr(MemoryBudget.shared(), "cache_share", lambda: 400_000)
    backend = rig.open()
    put(backend, "a", 1)
    run = backend.snapshot(1)
    for round_ in range(8):
        for key in range(round_ * 2000, (round_ + 1) * 2000):
            put(backend, key, 5)
        put(backend, "a", 100 + round_)
        backend.end_batch()
    assert (rig.path / "0" / "snapshot-1").exists()
    handle = rig.keep(run.finish())
    restored = rig.open([handle])
    assert get(restored, "a") == 1
    assert entry_count(restored, "v") == 1
    assert entry_count(backend, "v") == 16_001


def test_several_snapshots_at_once(rig):
    backend = rig.open()
    runs = []
    for number in range(6):
        put(backend, "k", number)
        put(backend, number, number)
        runs.append(backend.snapshot(number))
    for number, run in reversed(list(enumerate(runs))):
        restored = rig.open([rig.keep(run.finish())])
        assert get(restored, "k") == number
        assert entry_count(restored, "v") == number + 2


def test_a_cancelled_snapshot_loses_nothing(rig):
    backend = rig.open()
    for key in range(9000):
        put(backend, key, key)
    run = backend.snapshot(1)
    next(run)
    run.cancel()
    put(backend, 1, -1)
    restored = rig.open([rig.snapshot(backend, 2)])
    assert get(restored, 1) == -1
    assert get(restored, 8999) == 8999
    assert entry_count(restored, "v") == 9000


def test_a_value_that_does_not_fit_can_be_replaced(rig):
    backend = rig.open()
    put(backend, "a", "text")
    put(backend, "b", 1)
    with pytest.raises(TypeMismatch, match="operator 'op', state 'v', key 'a': expected bigint, got 'text'"):
        backend.snapshot(1).finish()
    put(backend, "a", 5)
    restored = rig.open([rig.snapshot(backend, 2)])
    assert (get(restored, "a"), get(restored, "b")) == (5, 1)


# --- restore and rescale (R3.4)


def test_what_a_snapshot_waits_for_is_not_replaced_by_what_came_after_its_barrier(rig):  # SPEC R7.2
    """A cut that could not be written is written later, without changes that do not count any more."""
    text = ValueStateDescriptor("v", "string")
    backend = rig.open()
    put(backend, "a", "old", text)
    put(backend, "b", "removed later", text)
    rig.snapshot(backend, 1)
    put(backend, "a", "new", text)
    put(backend, "b", None, text)
    run = backend.snapshot(2)
    with patch.object(Store, "write", side_effect=LocalStateError("no space left")), pytest.raises(LocalStateError):
        run.finish()
    backend.notify_aborted(2)
    run = backend.snapshot(3)
    put(backend, "a", "newest", text)
    put(backend, "b", "again", text)
    other = rig.open([rig.keep(run.finish())])
    assert (get(other, "a", text), get(other, "b", text)) == ("new", None)
    assert (get(backend, "a", text), get(backend, "b", text)) == ("newest", "again")


@pytest.mark.parametrize(("old", "new"), [(1, 1), (4, 2), (2, 4), (2, 2), (3, 5), (15, 77), (77, 15)])
def test_rescale(rig, old, new):
    # SPEC R3.4 (testKeyGroupSnapshotRestore*)
    keys = list(range(300))
    lists = ListStateDescriptor("l", "bigint")
    handles = []
    for index in range(old):
        backend = rig.open(key_groups=key_group_range(index, 128, old))
        for key in keys:
            if key_group(key, 128) in backend.setup.key_groups:
                put(backend, key, key)
                backend.state(lists).add_all([key, key + 1])
                backend.timers.register(TimeDomain.EVENT, key, key, backend.context.group)
        handle = backend.snapshot(1).finish()
        if handle is not None:
            handles.append(rig.keep(handle))
        backend.dispose()
    found = []
    for index in range(new):
        backend = rig.open(handles, key_groups=key_group_range(index, 128, new))
        backend.state(lists)
        own = [key for key in keys if key_group(key, 128) in backend.setup.key_groups]
        assert [get(backend, key) for key in own] == own
        for key in own:
            backend.set_current_key(key)
            backend.state(lists).add(-1)
            assert backend.state(lists).get() == [key, key + 1, -1]
        assert sorted(backend.keys("v")) == own
        assert backend.timers.count(TimeDomain.EVENT) == len(own)
        found += own
        # What was cut off is gone from the files too, and stays out of the next snapshot.
        handle = backend.snapshot(2).finish()
        assert handle is None or (handle.first_group, handle.last_group) == (
            backend.setup.key_groups.start,
            backend.setup.key_groups.end,
        )
        backend.dispose()
    assert sorted(found) == keys


def test_a_claimed_checkpoint_is_referred_to_after_a_rescale(rig):
    first, second = key_group_range(0, 128, 2), key_group_range(1, 128, 2)
    handles = []
    for groups in (first, second):
        backend = rig.open(key_groups=groups)
        for key in range(400):
            if key_group(key, 128) in groups:
                put(backend, key, key)
        handles.append(rig.snapshot(backend, 7))
    merged = rig.open(handles, claim=True)
    assert [get(merged, key) for key in range(400)] == list(range(400))
    after = rig.snapshot(merged, 8)
    assert any(file.created_by == 7 for file in after.files)
    assert any(file.created_by == 8 and file.shared for file in after.files)
    again = rig.open([after])
    assert [get(again, key) for key in range(400)] == list(range(400))


def test_claiming_several_checkpoints_is_refused(rig):
    backend = rig.open()
    put(backend, 1, 1)
    handles = [rig.snapshot(backend, 1), rig.snapshot(backend, 2)]
    with pytest.raises(InvalidArgument, match=r"cannot claim several checkpoints \[1, 2\] at once"):
        rig.open(handles, claim=True)


def test_a_damaged_file_is_named(rig):
    backend = rig.open()
    put(backend, 1, 1)
    handle = rig.snapshot(backend, 1)
    name = next(file.payload.id for file in files(handle).values())
    rig.payloads[name] = rig.payloads[name][:-1] + b"?"
    with pytest.raises(CorruptState, match=r"file '\d+\.sst' of checkpoint 1 is damaged"):
        rig.open([handle])


def test_subtasks_may_have_stored_a_state_in_different_forms(rig):
    # One subtask had asked for the state in its new form, the other had not: both are read in a third
    narrow = ValueStateDescriptor("v", "int")
    wide = ValueStateDescriptor("v", "bigint")
    halves = [key_group_range(index, 128, 2) for index in range(2)]
    handles = []
    for groups in halves:
        backend = rig.open(key_groups=groups)
        for key in range(100):
            if key_group(key, 128) in groups:
                put(backend, key, key, narrow)
        handles.append(rig.snapshot(backend, 1))
    migrated = rig.open(handles[:1], key_groups=halves[0])
    migrated.state(wide)
    untouched = rig.open(handles[1:], key_groups=halves[1])
    mixed = [rig.snapshot(migrated, 2), rig.snapshot(untouched, 2)]
    carried = rig.open(mixed)
    again = rig.open([rig.snapshot(carried, 3)])
    assert [get(again, key, wide) for key in range(100)] == list(range(100))
    assert entry_count(again, "v") == 100
    assert [one.column for one in again._restored] == []
    assert list(again._store.columns) == ["s:v"]


def test_states_with_unusual_names_stay_apart(rig):
    names = ["default", "_timers", "_raw", " x", "v#2", "2s:v", "ü/\\.."]
    backend = rig.open()
    for number, name in enumerate(names):
        put(backend, 1, number, ValueStateDescriptor(name, "bigint"))
    backend.timers.register(TimeDomain.EVENT, 5, 1, backend.context.group)
    backend.put_raw_stream(3, b"raw")
    restored = rig.open([rig.snapshot(backend, 1)])
    assert restored.timers.count(TimeDomain.EVENT) == 1
    assert restored.raw_streams() == {3: b"raw"}
    for number, name in enumerate(names):
        assert get(restored, 1, ValueStateDescriptor(name, "bigint")) == number


def test_max_parallelism_above_128_takes_two_bytes(rig):
    backend = rig.open(key_groups=KeyGroupRange(0, 4095), max_parallelism=4096)
    for key in range(200):
        put(backend, key, key)
    handle = rig.snapshot(backend, 1)
    half = rig.open([handle], key_groups=KeyGroupRange(1000, 3000), max_parallelism=4096)
    own = [key for key in range(200) if 1000 <= key_group(key, 4096) <= 3000]
    assert [get(half, key) for key in own] == own
    assert sorted(half.keys("v")) == own


# --- the write-back cache


def test_cached_values_follow_writes_removals_and_cuts(rig):
    backend = rig.open()
    for round_ in range(4):
        for key in range(50):
            before = get(backend, key)
            assert before == (None if round_ == 0 or (key + round_ - 1) % 5 == 0 else round_ - 1)
            put(backend, key, None if (key + round_) % 5 == 0 else round_)
        backend._writeback.cut(backend._store, list(backend._states.values()))
        while backend.maintain(7):
            assert get(backend, 1) == (None if (1 + round_) % 5 == 0 else round_)


def test_a_small_cache_is_only_slower(rig, monkeypatch):
    monkeypatch.setattr(MemoryBudget.shared(), "cache_share", lambda: 1)
    monkeypatch.setattr(writeback, "_MIN_ENTRIES", 4)
    backend = rig.open()
    expected = {}
    for number in range(6000):
        key = number * 7919 % 1000
        expected[key] = expected.get(key, 0) + number
        put(backend, key, (get(backend, key) or 0) + number)
        if number % 50 == 0:
            keys = list(range(key, min(1000, key + 20)))
            backend.begin_batch(keys, [key_group(one, 128) for one in keys])
            backend.end_batch()
    assert {key: get(backend, key) for key in expected} == expected
    assert entry_count(backend, "v") == len(expected)


def test_prefetch_reads_what_a_batch_needs_with_one_call(rig):
    backend = rig.open()
    for key in range(100):
        put(backend, key, key)
    fresh = rig.open([rig.snapshot(backend, 1)])
    state = fresh.state(V)
    keys = list(range(-50, 100))
    groups = [key_group(key, 128) for key in keys]
    for _ in range(2):
        fresh.begin_batch(keys, groups)
        for fresh.context.address, fresh.context.group in zip(keys, groups, strict=True):
            assert state.value() == (fresh.context.address if fresh.context.address >= 0 else None)
        fresh.end_batch()
    rows = fresh._states["s:v"]
    rows.forget(keys[0])
    rows._clean.clear()
    rows._older.clear()
    rows.reads = 100
    fresh.begin_batch(keys, groups)
    rows.column = None  # everything is at hand: nothing more is read
    for fresh.context.address, fresh.context.group in zip(keys, groups, strict=True):
        assert state.value() == (fresh.context.address if fresh.context.address >= 0 else None)


def test_a_removed_entry_that_never_was_a_row_makes_no_tombstone(rig):
    backend = rig.open()
    assert get(backend, "a") is None
    put(backend, "a", 1)
    put(backend, "a", None)
    assert backend._states["s:v"].weight() == 0


def test_large_lists_and_maps_are_written_in_parts(rig):
    backend = rig.open()
    lists, maps = ListStateDescriptor("l", "bigint"), MapStateDescriptor("m", "bigint", "bigint")
    count = 3 * writeback.BATCH_ROWS + 5
    backend.set_current_key("k")
    backend.state(lists).add(-1)
    backend.state(maps).put(-1, -1)
    rig.snapshot(backend, 1)
    backend.state(lists).update(range(count))
    backend.state(maps).clear()
    backend.state(maps).put_all({n: n for n in range(count)})
    run = backend.snapshot(2)
    backend.state(lists).add(count)
    for _ in range(4):  # half-way, nothing is seen twice and nothing is missing
        next(run)
        assert backend.state(lists).get() == list(range(count + 1))
        assert len(dict(backend.state(maps).items())) == count
    restored = rig.open([rig.keep(run.finish())])
    restored.set_current_key("k")
    assert restored.state(lists).get() == list(range(count))
    assert list(restored.state(maps).items()) == [(n, n) for n in range(count)]


def test_a_very_large_map_is_cleared_at_once(rig):
    backend = rig.open()
    maps = MapStateDescriptor("m", "bigint", "bigint")
    backend.set_current_key("k")
    backend.state(maps).put_all({n: n for n in range(BULK_ROWS + 10)})
    rig.snapshot(backend, 1)
    backend.state(maps).clear()
    assert backend.state(maps).is_empty()
    backend.state(maps).put(3, 4)
    restored = rig.open([rig.snapshot(backend, 2)])
    restored.set_current_key("k")
    assert dict(restored.state(maps).items()) == {3: 4}


def test_map_iteration_is_in_the_order_of_keys(rig):
    # SPEC R1.7: RocksDB iterates in serialised key order, rows and pending changes together
    backend = rig.open()
    state = backend.state(MapStateDescriptor("m", "bigint", "bigint"))
    backend.set_current_key("k")
    state.put_all(dict.fromkeys(range(-10, 10, 2), 0))
    rig.snapshot(backend, 1)
    state.put_all(dict.fromkeys(range(-9, 10, 2), 1))
    state.remove(4)
    state.put(6, 2)
    assert list(state.keys()) == [n for n in range(-10, 10) if n != 4]
    assert state.get(6) == 2


def test_a_nan_key_found_by_iteration_is_the_same_key(rig):
    backend = rig.open()
    put(backend, math.nan, 7)
    restored = rig.open([rig.snapshot(backend, 1)])
    seen = []
    restored.apply_to_all_keys(V, VOID, lambda key, state: seen.append((key, state.value())))
    restored.apply_to_all_keys(V, VOID, lambda key, state: state.update(8))
    assert [value for _, value in seen] == [7]
    assert get(restored, math.nan) == 8
    assert entry_count(restored, "v") == 1


def test_large_values_are_written_in_small_batches_and_not_cached(rig):
    backend = rig.open()
    blob = ValueStateDescriptor("blob", "binary")
    for key in range(40):
        put(backend, key, bytes([key]) * 300_000, blob)
        put(backend, f"small-{key}", b"x", blob)
    rows = backend._states["s:blob"]
    assert rows.entry_bytes() > 100_000
    cut = backend._writeback.cut(backend._store, [rows])
    steps = 0
    while not cut.written:
        cut.write(1)
        steps += 1
    assert steps >= 3
    assert get(backend, 7, blob) == bytes([7]) * 300_000
    assert 7 not in rows._clean
    assert rows._clean["small-7"] == b"x"
    put(backend, "small-7", b"y" * 100_000, blob)
    rig.snapshot(backend, 1)
    assert get(backend, "small-7", blob) == b"y" * 100_000


def map_at(backend, key):
    backend.set_current_key(key)
    return backend.state(MapStateDescriptor("m", "bigint", "bigint"))


def test_a_changed_entry_of_a_map_counts_once(rig):
    backend = rig.open()
    state = map_at(backend, "k")
    for number in range(100):
        state.put(number & 1, number)
    state.put_all({0: 1, 1: 2, 2: 3})
    assert backend._states["s:m"].weight() == 3


@pytest.mark.parametrize("entries", [1, 8, 200])
def test_the_estimated_size_of_maps_is_close_to_the_real_one(rig, entries):
    # caches are bounded by it: too low takes memory that is not ours, too high reads rows again and again
    backend = rig.open()
    map_at(backend, 0)
    rows = backend._states["s:m"]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for key in range(1000, 1000 + 4000 // entries):
            state = map_at(backend, key)
            for number in range(entries):
                state.put(number + 1000, number + 1000)
        changed = tracemalloc.get_traced_memory()[0] - before
        assert 0.7 < rows.entry_bytes() * rows.weight() / changed < 2.5
        rig.snapshot(backend, 1)
        gc.collect()
        clean = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert rows._known == 4000
    assert 0.7 < rows.clean_bytes() * rows._known / clean < 2.5


@pytest.fixture
def maps_of_disk(rig):
    """A backend with the maps {0: key, 1: key} of 100 keys, of which it has read nothing yet."""
    backend = rig.open()
    for key in range(100):
        map_at(backend, key).put_all({0: key, 1: key})
    restored = rig.open([rig.snapshot(backend, 1)])
    map_at(restored, 0)
    return restored, restored._states["s:m"]


def test_an_entry_of_a_map_that_is_read_and_changed_is_held_once(maps_of_disk):
    backend, rows = maps_of_disk
    for key in range(100):
        state = map_at(backend, key)
        state.put(0, state.get(0) + 1)
    assert state.get(1) == 99  # only read
    backend.end_batch()
    assert rows.weight() == 100
    assert rows._clean == {99: {1: 99}}
    assert rows._known == 1
    rows.column = None  # it is cached
    assert state.get(1) == 99


def test_an_entry_of_a_map_is_read_once_in_a_batch(maps_of_disk):
    backend, rows = maps_of_disk
    state = map_at(backend, 7)
    assert (state.get(1), state.get(2)) == (7, None)
    rows.column = None
    assert (state.get(1), state.get(2)) == (7, None)


def test_an_entry_that_is_changed_and_written_after_it_was_read_is_not_cached_with_its_old_value(rig, maps_of_disk):
    backend, _ = maps_of_disk
    state = map_at(backend, 7)
    assert (state.get(0), state.get(1)) == (7, 7)
    state.put(0, 8)
    rig.snapshot(backend, 2)  # freezes and writes
    backend.end_batch()
    assert (state.get(0), state.get(1)) == (8, 7)


def test_an_entry_that_was_read_is_forgotten_with_its_map(maps_of_disk):
    backend, rows = maps_of_disk
    state = map_at(backend, 7)
    assert state.get(0) == 7
    rows.forget(7)
    assert not rows._fresh
    backend.end_batch()
    assert not rows._clean


def test_reads_outside_of_batches_take_bounded_memory(maps_of_disk):
    backend, rows = maps_of_disk
    rows.limit = 50
    for number in range(1000):
        assert map_at(backend, 7).get(number) == (7 if number < 2 else None)
        assert len(rows._fresh) + rows._known <= 2 * 51


def test_windows_do_not_cause_useless_prefetches(rig):
    backend = rig.open()
    state = backend.state(V)
    keys = list(range(50))
    groups = [key_group(key, 128) for key in keys]
    for window in range(3):
        backend.begin_batch(keys, groups)
        assert 7 not in backend._states["s:v"]._clean
        for backend.context.address, backend.context.group in zip(keys, groups, strict=True):
            select_namespace(backend, window)
            assert state.value() is None
            state.update(1)
        backend.end_batch()


# --- time to live


def test_expired_state_leaves_the_disk_without_being_read(rig):
    # SPEC R2.5 d, issue 3: written once, never read, and yet the files shrink
    ttl = StateTtlConfig.new_builder(1000).build()
    descriptor = ValueStateDescriptor("v", "binary")
    descriptor.enable_time_to_live(ttl)
    backend = rig.open()
    for key in range(20_000):
        put(backend, key, key.to_bytes(4, "big") * 25, descriptor)
    rig.now = 900
    for key in range(20_000, 21_000):
        put(backend, key, b"young", descriptor)
    rig.snapshot(backend, 1)
    before = row_bytes(backend)
    rig.now = 1500
    removed = 0
    while found := backend.background_cleanup(5000):
        removed += found
    assert removed == 20_000
    deadline = time.monotonic() + 30
    while row_bytes(backend) > before // 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert row_bytes(backend) <= before // 5
    assert entry_count(backend, "v") == 1000
    assert get(backend, 20_500, descriptor) == b"young"


def test_a_sweep_never_removes_what_was_just_renewed(rig):
    ttl = StateTtlConfig.new_builder(100).build()
    descriptor = ValueStateDescriptor("v", "bigint")
    descriptor.enable_time_to_live(ttl)
    backend = rig.open()
    for key in range(200):
        put(backend, key, key, descriptor)
    rig.snapshot(backend, 1)
    rig.now = 120
    assert backend.background_cleanup(50) == 50  # a pass has begun
    for key in range(200):
        put(backend, key, key, descriptor)
    for _ in range(10):
        backend.background_cleanup(50)
    assert entry_count(backend, "v") == 200
    assert get(backend, 7, descriptor) == 7
    rig.now = 300
    removed = sum(backend.background_cleanup(1000) for _ in range(3))
    assert removed >= 199
    assert get(backend, 9, descriptor) is None


def test_a_sweep_waits_until_something_can_be_dead(rig):
    ttl = StateTtlConfig.new_builder(800).build()
    descriptor = ValueStateDescriptor("v", "bigint")
    descriptor.enable_time_to_live(ttl)
    backend = rig.open()
    put(backend, "a", 1, descriptor)
    rig.now = 100
    put(backend, "b", 1, descriptor)
    assert backend.background_cleanup(10) == 0
    sweeper = backend._sweepers[0]
    assert sweeper._due == 800
    rig.now = 799
    assert not sweeper.begins(rig.now)
    rig.now = 800
    assert backend.background_cleanup(10) == 1
    assert sweeper._due == 900


@pytest.mark.parametrize(("entries", "looks"), [(10, 21), (100, 3)])
def test_a_sweep_looks_at_the_clock_after_so_many_entries(rig, entries, looks):  # SPEC R2.5 d
    ttl = StateTtlConfig.new_builder(1000).disable_cleanup_in_background().cleanup_in_rocksdb_compact_filter(entries)
    descriptor = ValueStateDescriptor("v", "bigint")
    descriptor.enable_time_to_live(ttl.build())
    times = []

    def clock():
        times.append(rig.now)
        return rig.now

    backend = rig.open(clock=clock)
    for key in range(200):
        put(backend, key, key, descriptor)
    rig.snapshot(backend, 1)
    times.clear()
    rig.now = 500
    assert backend.background_cleanup(200) == 0
    assert looks <= len(times) <= looks + 2


def test_the_time_of_a_sweep_is_an_option(rig):
    descriptor = ValueStateDescriptor("v", "bigint")
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(1000).build())
    backend = rig.open(ttl_query_entries=7)
    put(backend, "a", 1, descriptor)
    assert backend._sweepers[0]._step_rows == 7


@pytest.mark.parametrize(("period", "option", "seconds"), [(None, 90_000, 90), (60_000, 90_000, 60), (0, 90_000, 0)])
def test_rocksdb_compacts_state_that_expires_periodically(rig, period, option, seconds):  # SPEC R2.5 d
    ttl = StateTtlConfig.new_builder(1000).cleanup_in_rocksdb_compact_filter(None, period).build()
    descriptor = ValueStateDescriptor("v", "bigint")
    descriptor.enable_time_to_live(ttl)
    backend = rig.open(ttl_compaction_ms=option)
    put(backend, "a", 1, descriptor)
    newest = max(backend._store.path.glob("OPTIONS-*"))
    found = [line.strip() for line in newest.read_text().splitlines() if "periodic_compaction_seconds" in line]
    assert found[-1] == f"periodic_compaction_seconds={seconds}"


# --- memory


def test_one_budget_for_all_backends_of_a_process(rig):
    first, second = rig.open(), rig.open()
    assert first._budget is second._budget is MemoryBudget.shared()
    whole = MemoryBudget.shared().cache_size
    for backend in (first, second):
        backend.begin_batch((), ())
        backend.end_batch()
    assert MemoryBudget.shared().cache_share() <= whole // 2
    used = [MemoryBudget.shared().usage()[1]]
    for backend in (first, second):
        put(backend, 1, 1)
        backend._writeback.cut(backend._store, list(backend._states.values()))
        while backend.maintain(10_000):
            pass
        used.append(MemoryBudget.shared().usage()[1])
    assert used[0] < used[1] < used[2]  # the memtables of both are charged to it


def test_the_budget_can_be_set(monkeypatch):
    monkeypatch.setattr(MemoryBudget, "_shared", None)
    assert MemoryBudget.shared().size == MemoryBudget.MANAGED_SIZE
    changed = MemoryBudget.configure(32 << 20)
    assert MemoryBudget.shared() is changed
    assert MemoryBudget.configure(32 << 20) is changed
    with pytest.raises(InvalidArgument, match="at least 8 MiB"):
        MemoryBudget.configure(1000)


def test_memory_is_given_back(rig):
    budget = MemoryBudget.shared()
    backend = rig.open()
    state = backend.state(V)
    for key in range(20_000):
        put(backend, key, key)
    rig.snapshot(backend, 1)
    for key in range(20_000):
        put(backend, key, -key)
    backend._writeback.cut(backend._store, list(backend._states.values()))
    while backend.maintain(10_000):
        pass
    used = budget.usage()[1]
    backend.dispose()
    gc.collect()
    assert budget.usage()[1] < used
    assert state is not None  # a handle that somebody keeps holds no memory of the database
