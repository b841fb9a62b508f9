"""Numbers under integer keys are held as columns: whatever a program does, they answer as a dict does. SPEC R1.3, R7.1

On rocksdb the columns have all entries, and the database has blocks; or the columns have the entries in use, here a few, so
that most are read from rows, dropped and read again.
"""

from contextlib import contextmanager
from itertools import islice
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from headrace import Types, ValueStateDescriptor
from headrace.errors import LocalStateError
from headrace.records.key_groups import KeyGroupRange, KeyHasher
from headrace.records.types import TypeMismatch
from headrace.state import column_values, columns
from headrace.state.addresses import NO_KEY, VOID
from headrace.state.backend import BackendSetup, SnapshotKind
from headrace.state.batch_values import BatchStates
from headrace.state.column_values import ColumnValue
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.hashmap.columns import HashMapColumns
from headrace.state.rocksdb import MemoryBudget, RocksDBBackend, blocks, numbers, writeback
from headrace.state.rocksdb import backend as rocksdb
from headrace.state.rocksdb.numbers import CachedColumns
from headrace.state.rocksdb.store import Store
from namespaces import entry_count, select_namespace

TOTAL = ValueStateDescriptor("total", Types.LONG())
GROUP = KeyHasher(8)
ALL_GROUPS = KeyGroupRange(0, 7)


def make(incremental, backend=HashMapBackend, groups=ALL_GROUPS):
    setup = BackendSetup(
        operator="sum",
        key_groups=groups,
        max_parallelism=8,
        clock=lambda: 0,
        key_type=Types.LONG(),
        incremental=incremental,
        instance="i",
    )
    return backend(setup)


@contextmanager
def few_entries(few, in_use=4, rows=3):
    """Keys one by one or at once; rocksdb with this number of entries in use, and rows that are written in a step."""
    budget = MemoryBudget(cache_size=1 if in_use < 10_000 else 1 << 20)
    with (
        patch.object(column_values, "_FEW", few),
        patch.object(MemoryBudget, "_shared", budget),
        patch.object(writeback, "_MIN_ENTRIES", in_use),
        patch.object(writeback, "BATCH_ROWS", rows),
        patch.object(rocksdb, "BATCH_ROWS", rows),
        patch.object(columns, "_FEW_DEAD", 1),
        patch.object(columns, "_NEAR_KEYS", 2),
        patch.object(blocks, "_PART", rows),
        patch.object(blocks, "_ROWS", rows),
        patch.object(numbers, "_FEW_IN_BLOCKS", 10),
        patch.object(numbers, "_RENEW", 2),
    ):
        yield


keys = st.integers(0, 60) | st.integers(-(2**63), 2**63 - 1)
values = st.sampled_from([0, 0, 1]) | st.integers(-(2**63), 2**63 - 1)
access = st.tuples(st.sampled_from(["read", "write", "clear", "add"]), keys, values)
actions = st.one_of(
    st.tuples(st.just("batch"), st.lists(access, max_size=30)),
    st.tuples(st.just("strays"), st.tuples(st.lists(keys, max_size=10), st.lists(access, max_size=10))),
    st.tuples(st.just("apply"), st.integers(0, 5)),
    st.tuples(st.just("single"), st.lists(access, max_size=5)),
    st.tuples(st.just("clear many"), st.integers(0, 60)),
    st.tuples(st.just("checkpoint"), st.sampled_from(["confirm", "abort", "leave", "full"])),
    st.tuples(st.just("columns"), st.lists(st.tuples(keys, values), max_size=30)),
    st.tuples(st.just("begin snapshot"), st.sampled_from(["confirm", "abort", "leave", "full"])),
    st.tuples(st.just("continue snapshots"), st.integers(0, 9)),
    st.tuples(st.just("idle"), st.integers(1, 9)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("rescale"), st.tuples(st.integers(0, 6), st.booleans())),
    st.tuples(st.just("canonical"), st.booleans()),
    st.tuples(st.just("as rows"), st.none()),
)
namespaced = actions | st.tuples(st.just("namespace"), keys)


def use_rows(backend):
    """Have rocksdb's state in rows, as if there had been too many entries."""
    rows = getattr(backend, "_states", {}).get("s:total")
    if getattr(rows, "in_blocks", False):
        backend._write_as_rows(rows)


class Pair:
    """A backend and the dict that it must equal."""

    def __init__(self, incremental, kind=HashMapBackend):
        self.incremental, self.kind = incremental, kind
        self.backend, self.model = make(incremental, kind), {}
        self.state = self.backend.state(TOTAL)
        self.payloads, self.taken, self.handles = {}, 0, []
        self.running = []

    def access(self, kind, key, value):
        if kind == "read":
            assert self.state.value() == self.model.get(key)
        elif kind == "write":
            self.state.update(value)
            self.model[key] = value
        elif kind == "add":
            total = ((self.state.value() or 0) + 1) % 1000
            assert total == (self.model.get(key, 0) + 1) % 1000
            self.state.update(total)
            self.model[key] = total
        else:
            self.state.clear()
            self.model.pop(key, None)

    def batch(self, accesses):
        self.strays(([key for _, key, _ in accesses], accesses))

    def strays(self, batch_and_accesses):
        """A batch of some keys in which others are used as well, as a function that selects keys itself would."""
        batch, accesses = batch_and_accesses
        backend = self.backend
        addresses = backend.prepare_keys(batch)
        groups = [GROUP.group(key) for key in addresses]
        arrays = (np.array(addresses, np.int64), np.array(groups, np.int32)) if len(accesses) % 2 else None
        backend.begin_batch(addresses, groups, arrays)
        places = {key: place for place, key in enumerate(batch)}
        for kind, key, value in accesses:
            # As a loop does for records of the batch; for others the position stays where it was.
            backend.context.position = places.get(key, backend.context.position)
            backend.context.address = addresses[places[key]] if key in places else key
            backend.context.group = GROUP.group(key)
            self.access(kind, key, value)
        backend.context.address = NO_KEY
        backend.end_batch()

    def single(self, accesses):
        for kind, key, value in accesses:
            self.backend.set_current_key(key)
            self.access(kind, key, value)
        self.backend.clear_current_key()

    def apply(self, every):
        """Change or clear state from outside, as the broadcast side of an operator does."""

        def change(key, state):
            assert state.value() == self.model[key]
            if every and key % every == 0:
                state.clear()
                del self.model[key]
            else:
                state.update(key % 7)
                self.model[key] = key % 7

        self.backend.apply_to_all_keys(TOTAL, VOID, change)

    def clear_many(self, below):
        self.batch([("clear", key, 0) for key in list(self.model) if key % 61 < below])

    def namespace(self, key):
        self.backend.set_current_key(key)
        select_namespace(self.backend, "w")
        self.state.update(7)
        assert self.state.value() == 7
        self.state.clear()
        self.backend.clear_current_key()

    def columns(self, pairs):
        """A batch of a function over columns: every third key is removed."""
        found = dict(pairs)
        addresses = self.backend.prepare_keys(list(found))
        groups = np.array([GROUP.group(key) for key in addresses], np.int32)
        handle = BatchStates(self.backend).state(TOTAL)
        self.backend.begin_batch((), ())
        handle.begin(np.array(addresses, np.int64), addresses, groups)
        assert handle.get_many(-1).tolist() == [self.model.get(key, -1) for key in addresses]
        if addresses:
            handle.put_many(np.array(list(found.values()), np.int64))
            handle.remove_many([place % 3 == 2 for place in range(len(addresses))])
        handle.end()
        self.backend.end_batch()
        self.model |= found
        for key in addresses[2::3]:
            del self.model[key]

    def checkpoint(self, what):
        self.begin_snapshot(what)
        self.continue_snapshots(None)

    def begin_snapshot(self, what):
        self.taken += 1
        kind = SnapshotKind.FULL if what == "full" else SnapshotKind.CHECKPOINT
        self.running.append((self.taken, what, self.backend.snapshot(self.taken, kind), dict(self.model)))

    def continue_snapshots(self, steps):
        """Run the oldest snapshot some steps further, or all of them to their ends."""
        while self.running:
            number, what, run, expected = self.running[0]
            for name, data in islice(run, steps):
                self.payloads[name] = self.payloads.get(name, b"") + data
            if run.status != "done":
                return
            del self.running[0]
            if what == "abort":
                self.backend.notify_aborted(number)
                continue
            if what != "leave":
                self.backend.notify_complete(number)
            check(run.handle, self.payloads, expected, self.kind)

    def idle(self, entries):
        self.backend.maintain(entries)

    def restart(self, _):
        """Continue from a snapshot in another backend."""
        self.continue_snapshots(None)
        self.taken += 1
        self.continue_from(self.finish(self.backend))

    def rescale(self, last_and_rows):
        """Continue in two backends, of which one may have rows, and then again in one."""
        last, as_rows = last_and_rows
        self.restart(None)
        whole = self.handles[-1:] if self.handles else []
        parts = [KeyGroupRange(0, last), KeyGroupRange(last + 1, 7)]
        handles = []
        for number, groups in enumerate(parts):
            backend = make(self.incremental, self.kind, groups)
            backend.restore(whole, self.read)
            state = backend.state(TOTAL)
            for key in [key for key in self.model if GROUP.group(key) in groups][:3]:
                backend.set_current_key(key)
                state.update(state.value() // 2)
                self.model[key] //= 2
            backend.clear_current_key()
            if as_rows and number == 0:
                use_rows(backend)
            self.taken += 1
            handles += self.finish(backend)
        self.backend.dispose()
        self.continue_from(handles)

    def canonical(self, as_rows):
        """Continue from the columns of a restored backend, as with a canonical savepoint."""
        self.restart(None)
        if as_rows:
            use_rows(self.backend)
            self.restart(None)
        reader = make(self.incremental, self.kind)
        reader.restore(self.handles[-1:], self.read)
        other = make(self.incremental, self.kind)
        for group, found in reader.number_groups(TOTAL.meta()) or ():
            if isinstance(found, dict):
                found = np.array(list(found), np.int64), np.array(list(found.values()), np.int64)
            for start in range(0, len(found[0]), 5):
                some = found[0][start : start + 5], found[1][start : start + 5]
                assert other.load_numbers(TOTAL.meta(), some, np.full(len(some[0]), group, np.int32))
        reader.dispose()
        if list(other.keys("total")) or not self.model:
            self.backend.dispose()
            self.backend, self.state = other, other.state(TOTAL)

    def as_rows(self, _):
        use_rows(self.backend)

    def finish(self, backend):
        """The handle of a snapshot that refers to nothing else, in a list that is empty if there is no state."""
        run = backend.snapshot(self.taken, SnapshotKind.FULL)
        for name, data in run:
            self.payloads[name] = self.payloads.get(name, b"") + data
        backend.dispose()
        return [] if run.handle is None else [run.handle]

    def continue_from(self, handles):
        self.backend, self.handles = make(self.incremental, self.kind), handles
        if handles:
            self.backend.restore(handles, self.read)
        self.state = self.backend.state(TOTAL)

    def read(self, payload, offset, length):
        return self.payloads[payload.id][offset : offset + length]

    def check(self):
        assert set(self.backend.keys("total")) == set(self.model)
        assert entry_count(self.backend, "total") == len(self.model)
        for key, value in self.model.items():
            self.backend.set_current_key(key)
            assert self.state.value() == value
        self.backend.clear_current_key()
        self.continue_snapshots(None)


def check(handle, payloads, expected, kind=HashMapBackend):
    """A restore of the snapshot shows what was there when it was taken."""
    other = make(incremental=False, backend=kind)
    if handle is not None:
        other.restore([handle], lambda payload, offset, length: payloads[payload.id][offset : offset + length])
    state = other.state(TOTAL)
    assert set(other.keys("total")) == set(expected)
    for key, value in expected.items():
        other.set_current_key(key)
        assert state.value() == value
    other.dispose()


@pytest.mark.parametrize("few", [0, 8, 64], ids=["at once", "both", "one by one"])
@pytest.mark.parametrize(
    ("kind", "in_use"),
    [(HashMapBackend, 4), (RocksDBBackend, 4), (RocksDBBackend, 10_000)],
    ids=["hashmap", "rocksdb", "blocks"],
)
@settings(max_examples=examples(80), deadline=None)
@given(incremental=st.booleans(), script=st.lists(actions, max_size=25) | st.lists(namespaced, max_size=25))
def test_columns_answer_as_a_dict(kind, in_use, few, incremental, script):
    with few_entries(few, in_use):
        pair = Pair(incremental, kind)
        assert isinstance(pair.state, ColumnValue)
        for name, argument in script:
            getattr(pair, name.replace(" ", "_"))(argument)
        pair.check()
        pair.backend.dispose()


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize(
    ("type", "value"), [(Types.LONG(), "x"), (Types.LONG(), 1 << 63), (Types.INT(), 1 << 31), (Types.DOUBLE(), "x")]
)
def test_a_value_that_does_not_fit_is_refused_with_its_key(few, type, value):
    with patch.object(column_values, "_FEW", few):
        backend = make(incremental=True)
        state = backend.state(ValueStateDescriptor("v", type))
        for stored in (1 if type != Types.DOUBLE() else 1.0, value):
            backend.begin_batch([3], [GROUP.group(3)], None)
            backend.context.address, backend.context.group = 3, GROUP.group(3)
            state.value()
            state.update(stored)
            backend.context.address = NO_KEY
            if stored is value:
                with pytest.raises(TypeMismatch, match="operator 'sum', state 'v', key 3"):
                    backend.end_batch()
            else:
                backend.end_batch()


@pytest.mark.parametrize("few", [0, 64])
def test_a_key_that_comes_back_with_zero_is_in_the_next_increment(few):  # SPEC R7.4
    with patch.object(column_values, "_FEW", few):
        pair = Pair(incremental=True)
        for accesses in ([("write", key, 5) for key in range(200)], [("clear", 7, 0)], [("write", 7, 0)]):
            pair.batch(accesses)
            pair.checkpoint("confirm")


@pytest.mark.parametrize("few", [0, 64, 1000])
def test_a_change_of_the_sign_of_zero_is_in_the_next_increment(few):  # SPEC R7.4
    with patch.object(column_values, "_FEW", few):
        backend, ratio = make(incremental=True), ValueStateDescriptor("ratio", Types.DOUBLE())
        state, payloads = backend.state(ratio), {}
        for number, value in enumerate((0.0, -0.0), 1):
            backend.begin_batch(list(range(100)), [GROUP.group(key) for key in range(100)], None)
            for key in range(100):
                backend.context.address, backend.context.group = key, GROUP.group(key)
                state.value()
                state.update(value)
            backend.context.address = NO_KEY
            backend.end_batch()
            run = backend.snapshot(number, SnapshotKind.CHECKPOINT)
            for name, data in run:
                payloads[name] = payloads.get(name, b"") + data
            backend.notify_complete(number)
        other = make(incremental=False)
        other.restore([run.handle], lambda payload, offset, length: payloads[payload.id][offset : offset + length])
        other.set_current_key(7)
        assert str(other.state(ratio).value()) == "-0.0"


@pytest.mark.parametrize("method", ["batch", "single"])
@pytest.mark.parametrize("kind", [HashMapBackend, RocksDBBackend], ids=["hashmap", "rocksdb"])
def test_a_key_of_more_than_64_bits_moves_the_state_out_of_the_columns(kind, method):
    pair = Pair(incremental=False, kind=kind)
    pair.batch([("write", 1, 10)])
    pair.checkpoint("confirm")
    for key in (1 << 63, -(1 << 63) - 1, 1 << 70):
        for access in ("read", "write", "add", "clear", "add"):
            getattr(pair, method)([(access, key, 5)] * 2)
    assert {key: pair.model[key] for key in (1, 1 << 63)} == {1: 10, 1 << 63: 2}
    pair.single([("read", key, 0) for key in pair.model])
    pair.backend.dispose()


def test_a_batch_of_more_records_than_16_bits_count():
    pair = Pair(incremental=True)
    pair.batch([("add", n % 70_001, 0) for n in range(140_000)])
    pair.check()
    pair.batch([("add", n % 70_001, 0) for n in range(140_000)])
    pair.check()


@pytest.mark.parametrize("batch", [1000, 20], ids=["at once", "one by one"])
@pytest.mark.parametrize("kind", [HashMapBackend, RocksDBBackend], ids=["hashmap", "rocksdb"])
def test_slots_of_removed_keys_are_used_again(kind, batch):
    pair = Pair(incremental=False, kind=kind)
    for first in range(0, 50_000, batch):
        pair.batch([("write", i, i) for i in range(first, first + batch)])
        pair.batch([("clear", i, 0) for i in range(first, first + batch)])
    pair.check()
    assert pair.backend.column_table(TOTAL).count < 5000
    pair.backend.dispose()


@pytest.mark.parametrize("batch", [3000, 20], ids=["at once", "one by one"])
def test_slots_are_not_used_again_while_a_snapshot_reads_them(batch):
    pair = Pair(incremental=False)
    pair.batch([("write", i, i) for i in range(3000)])
    expected = dict(pair.model)
    run = pair.backend.snapshot(1)
    pair.clear_many(61)
    for first in range(10_000, 13_000, batch):
        pair.batch([("write", i, -1) for i in range(first, first + batch)])
    payloads = {}
    for name, data in run:
        payloads[name] = payloads.get(name, b"") + data
    check(run.handle, payloads, expected)
    pair.check()


def writes(keys, value=1):
    return [("write", key, value) for key in keys]


def test_entries_whose_rows_are_not_written_yet_stay_in_use():  # SPEC R7.2
    with few_entries(few=0):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        pair.batch(writes(range(100)))
        pair.begin_snapshot("confirm")  # newer changes wait for it
        for first in range(100, 1000, 20):
            pair.batch(writes(range(first, first + 20)))
            pair.batch([("read", key, 0) for key in range(first - 100, first + 20)])
        pair.check()
        pair.backend.dispose()


class StoredRows(dict):
    """Rows of a database, by key; what is frozen is written at once."""

    def read(self, keys, groups):
        found = [self.get(key) for key in keys.tolist()]
        return np.array([value or 0 for value in found]), np.array([value is not None for value in found])

    def read_one(self, key, group):
        return self.get(key)

    def has_frozen(self):
        return False


def cached(rows):
    return CachedColumns(KeyGroupRange(0, 0), 1, np.dtype(np.int64), rows)


def test_a_removed_entry_is_not_found_among_older_ones():  # SPEC R7.2
    rows = StoredRows()
    table = cached(rows)
    keys, groups = np.arange(100), np.zeros(100, np.int32)
    table.put(table.slots(keys, groups, 0), keys)
    table.take_changes()
    rows |= {key: key for key in range(100)}
    table.rotate()
    slots = table.find(keys, groups)
    assert table.values[slots].tolist() == keys.tolist()
    table.remove(slots[:60])
    table.take_changes()
    for key in range(60):
        del rows[key]
    table.remove(table.find(keys[60:], groups[60:]))
    assert not table.live[table.find(keys, groups)].any()
    assert all(table.find_one(key, 0) < 0 for key in range(100))


def test_a_key_that_is_looked_up_alone_is_known_as_one_of_a_batch_is():  # SPEC R7.2
    table = cached(StoredRows({1: 10}))
    table.complete = False
    assert table.find_one(2, 0) < 0
    assert table.read(np.array([1, 2, 3]), np.zeros(3, np.int32))[2] == [10, None, None]
    other = cached(StoredRows({1: 10}))
    other.complete = False
    other.remove(np.array([other.find_one(1, 0)]))
    assert len(other.take_changes()) == 1  # its row has to be deleted
    older = cached(StoredRows({1: 10}))
    older.complete = False
    assert older.find_one(1, 0) >= 0
    older.rotate()
    older.remove(np.array([older.find_one(1, 0)]))
    assert len(older.take_changes()) == 1


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("kind", [HashMapColumns, CachedColumns])
def test_removing_many_keys_in_small_batches_does_not_look_at_all_of_them_again(kind, stored):
    """Removed entries stay until a checkpoint has their removal."""
    rows = StoredRows()
    count = 4000
    keys, groups = np.arange(count), np.zeros(count, np.int32)
    table = cached(rows) if kind is CachedColumns else HashMapColumns(KeyGroupRange(0, 0), 1, np.dtype(np.int64))
    table.track()
    table.put(table.slots(keys, groups, 0), keys)
    if stored and kind is CachedColumns:
        table.take_changes()
        rows |= dict.fromkeys(range(count), 1)
    looked_at = 0
    inside = table._slots_in

    def counted(group):
        nonlocal looked_at
        found = inside(group)
        looked_at += len(found[1])
        return found

    with patch.object(table, "_slots_in", counted):
        for at in range(0, count, 10):
            table.remove(table.find(keys[at : at + 10], groups[at : at + 10]))
    assert looked_at < 10 * count
    assert not table.live[: table.count].any()


@pytest.mark.parametrize("as_rows", [True, False])
def test_a_removed_entry_stays_known_until_its_row_is_deleted(as_rows):  # SPEC R7.2
    with few_entries(few=0, in_use=10_000):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        pair.batch(writes(range(200)))
        if as_rows:
            use_rows(pair.backend)
        pair.restart(None)  # the entries are in the database
        pair.begin_snapshot("confirm")
        pair.batch([("clear", key, 0) for key in range(100)])
        pair.begin_snapshot("confirm")  # waits for the first, and the rows of the removed keys with it
        pair.batch([("clear", key, 0) for key in range(100, 150)])
        pair.batch([("read", key, 0) for key in range(200)])
        pair.check()
        pair.backend.dispose()


def test_no_row_is_deleted_that_never_was():
    """Entries that come and go between two checkpoints cost the database nothing."""
    with few_entries(few=0, in_use=10_000):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        pair.batch(writes(range(100)))
        pair.batch([("clear", key, 0) for key in range(100)])
        rows = pair.backend._states["s:total"]
        assert rows.freeze() is None
        pair.batch(writes(range(100)))
        assert len(rows.freeze()) == 100
        pair.backend.dispose()


def test_memory_for_entries_in_use_is_bounded():  # SPEC R7.2
    budget = MemoryBudget(cache_size=2 << 20)
    with patch.object(MemoryBudget, "_shared", budget), patch.object(writeback, "BATCH_ROWS", 4096):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        used = []
        for first in range(0, 200_000, 5_000):
            pair.batch(writes(range(first, first + 5_000)))
            found = pair.backend.column_table(TOTAL)
            used.append(found.used_bytes() + (0 if found._older is None else found._older.used_bytes()))
        assert max(used) < 2 * budget.cache_size
        assert max(used) > budget.cache_size // 2  # it is used
        pair.check()
        pair.backend.dispose()


def test_numbers_that_were_loaded_as_columns_are_read():  # SPEC R8.2
    with few_entries(few=0):
        backend = make(incremental=True, backend=RocksDBBackend)
        keys = np.arange(50, dtype=np.int64)
        groups = np.array([GROUP.group(key) for key in range(50)], np.int32)
        assert backend.load_numbers(TOTAL.meta(), (keys, 2 * keys), groups)
        state = backend.state(TOTAL)
        for key in range(50):
            backend.set_current_key(key)
            assert state.value() == 2 * key
            state.update(7)
        assert not backend.load_numbers(TOTAL.meta(), (keys, 3 * keys), groups)  # newer ones would be lost
        assert sorted(backend.keys("total")) == list(range(50))
        assert state.value() == 7
        backend.dispose()


def test_entries_that_are_used_one_by_one_are_dropped_too():  # SPEC R7.2
    """As timers do, and programs that select keys themselves."""
    with few_entries(few=64, in_use=500, rows=1000):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        for key in range(20_000):
            pair.single([("write", key, key)])
        table = pair.backend.column_table(TOTAL)
        assert table.count < 5000
        for key in range(20_000):
            pair.single([("read", key, 0)])
        assert table.count < 5000
        pair.backend.dispose()


@pytest.mark.parametrize("as_rows", [True, False])
def test_rows_whose_writing_failed_are_written_by_the_next_call(as_rows):  # SPEC R7.2
    with few_entries(few=0, in_use=10_000, rows=7):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        if as_rows:
            use_rows(pair.backend)
        pair.batch(writes(range(100)))
        run = pair.backend.snapshot(1)
        calls, write = [], Store.write

        def fails(self, batch):
            calls.append(batch)
            if len(calls) % 3 == 0:
                raise LocalStateError("no space left on device")
            write(self, batch)

        with patch.object(Store, "write", fails):
            for _ in range(30):
                try:
                    pair.backend.maintain(1000)
                except LocalStateError:
                    continue
        assert len(calls) > 6
        for name, data in run:
            pair.payloads[name] = pair.payloads.get(name, b"") + data
        check(run.handle, pair.payloads, pair.model, RocksDBBackend)
        pair.backend.dispose()


@pytest.mark.parametrize("kind", [HashMapBackend, RocksDBBackend])
def test_restored_entries_with_a_namespace_are_found_before_any_is_used(kind):  # SPEC R1.9
    first = make(incremental=False, backend=kind)
    state = first.state(TOTAL)
    for key in range(5):
        first.set_current_key(key)
        select_namespace(first, "w")
        state.update(key)
    payloads = {}
    run = first.snapshot(1)
    for name, data in run:
        payloads[name] = payloads.get(name, b"") + data
    second = make(incremental=False, backend=kind)
    second.restore([run.handle], lambda payload, offset, length: payloads[payload.id][offset : offset + length])
    found = []
    second.apply_to_all_keys(TOTAL, "w", lambda key, state: found.append((key, state.value())))
    assert sorted(found) == [(key, key) for key in range(5)]
    second.apply_to_all_keys(TOTAL, VOID, lambda key, state: found.append(key))
    assert len(found) == 5
    for backend in (first, second):
        backend.dispose()


@pytest.mark.parametrize("as_rows", [True, False])
def test_a_namespace_while_changes_are_being_written(as_rows):  # SPEC R1.9, R7.2
    with few_entries(few=0, in_use=10_000):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        if as_rows:
            use_rows(pair.backend)
        pair.batch(writes(range(100)))
        pair.begin_snapshot("confirm")
        pair.batch(writes(range(50), 2))
        pair.batch([("clear", key, 0) for key in range(50, 70)])
        pair.begin_snapshot("confirm")  # waits for the first
        pair.batch([("clear", key, 0) for key in range(70, 80)])
        pair.namespace(3)
        pair.check()
        pair.backend.dispose()


@pytest.mark.parametrize("as_rows", [True, False])
def test_a_state_stays_as_it_is_if_changes_cannot_be_written_before_a_namespace_is_used(as_rows):
    with few_entries(few=0, in_use=10_000):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        if as_rows:
            use_rows(pair.backend)
        pair.batch(writes(range(100)))
        pair.begin_snapshot("confirm")
        pair.backend.set_current_key(3)
        select_namespace(pair.backend, "w")
        full = patch.object(Store, "write", side_effect=LocalStateError("no space left on device"))
        with full, pytest.raises(LocalStateError):
            pair.state.value()
        pair.backend.clear_current_key()
        pair.batch(writes(range(50, 150), 2))
        pair.check()
        pair.backend.dispose()


def test_columns_are_given_only_when_all_changes_are_rows():  # SPEC R8.2
    with few_entries(few=0, in_use=10_000):
        pair = Pair(incremental=True, kind=RocksDBBackend)
        pair.as_rows(None)
        pair.batch(writes(range(10)))
        assert pair.backend.number_groups(TOTAL.meta()) is None
        pair.backend.set_current_key(3)
        assert pair.backend.has_entry("total", GROUP.group(3), 3)
        pair.state.clear()
        assert not pair.backend.has_entry("total", GROUP.group(3), 3)
        del pair.model[3]
        pair.checkpoint("confirm")
        groups = pair.backend.number_groups(TOTAL.meta())
        assert sorted(key for _, (keys, _) in groups for key in keys.tolist()) == [*range(3), *range(4, 10)]
        pair.backend.dispose()


@pytest.mark.parametrize("kind", [HashMapBackend, RocksDBBackend])
def test_a_value_written_before_the_batch_is_loaded_is_stored(kind):  # SPEC R1.3
    """And nothing is written after that."""
    with few_entries(few=0, in_use=10_000):
        pair = Pair(incremental=True, kind=kind)
        pair.batch([("write", 1, 5), ("read", 2, 0)])
        pair.check()
        pair.backend.dispose()


@pytest.mark.parametrize("kind", [HashMapBackend, RocksDBBackend])
@pytest.mark.parametrize("action", ["write", "clear"])
def test_a_loaded_key_that_is_selected_without_its_position_is_stored(kind, action):  # SPEC R1.3
    """As by a function that selects keys of the batch itself."""
    with few_entries(few=0, in_use=10_000):
        pair = Pair(incremental=True, kind=kind)
        first, second = 10**6, 2 * 10**6
        pair.batch([("write", first, 5), ("write", second, 6)])
        backend = pair.backend
        backend.begin_batch([first, second], [GROUP.group(first), GROUP.group(second)])
        backend.context.position, backend.context.address = 0, int(str(second))  # another object than that of the batch
        backend.context.group = GROUP.group(second)
        pair.access("read", second, 0)
        pair.access(action, second, 9)
        pair.access("read", second, 0)
        backend.context.address = NO_KEY
        backend.end_batch()
        pair.check()
        backend.dispose()
