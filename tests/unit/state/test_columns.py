"""Numbers under integer keys as columns: the table, and aggregations on it."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import StreamExecutionEnvironment
from headrace.errors import IllegalState
from headrace.records.key_groups import KeyGroupRange, hash_column, key_groups_of
from headrace.records.types import as_type
from headrace.state.api import ValueStateDescriptor
from headrace.state.backend import BackendSetup, SnapshotKind
from headrace.state.columns import _shift_of, _spread, _spread_one
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.hashmap.columns import HashMapColumns


def groups_of(keys):
    return key_groups_of(hash_column(pa.array(keys)), 128)


@given(st.lists(st.lists(st.tuples(st.integers(-50, 5000), st.integers(-9, 9)), max_size=200), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_table_is_a_dict_of_sums(batches):
    table, model = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64)), {}
    for batch in batches:
        keys = np.array([k for k, _ in batch], np.int64)
        values = np.array([v for _, v in batch], np.int64)
        slots = table.slots(keys, groups_of(keys), 0)
        np.add.at(table.values, slots, values)
        for key, value in batch:
            model[key] = model.get(key, 0) + value
    assert np.count_nonzero(table.live) == len(model)
    assert all(table.get(int(groups_of(np.array([k]))[0]), k) == v for k, v in model.items())


def test_a_table_grows_past_many_regions():
    table = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    keys = np.arange(200_000, dtype=np.int64) * 7919
    for part in np.array_split(keys, 50):
        slots = table.slots(part, groups_of(part), 0)
        table.values[slots] = part + 1
    slots = table.slots(keys, groups_of(keys), 0)
    assert np.count_nonzero(table.live) == len(keys)
    assert (table.values[slots] == keys + 1).all()


def test_regions_that_are_half_full_grow_when_no_key_is_new_any_more():
    table = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    keys = np.arange(128 * 45, dtype=np.int64)
    table.slots(keys, groups_of(keys), 0)
    load = table._filled / (table._mask + 1)
    assert load.max() > 0.5
    for _ in range(64):
        assert table.merge(100) == 100
    load = table._filled / (table._mask + 1)
    assert load.max() <= 0.5
    slots = table.find(keys, groups_of(keys))
    assert (table.keys[slots] == keys).all()


@given(st.lists(st.integers(0, 40), max_size=100))
def test_places_are_those_of_the_first_record_with_the_key(keys):
    table = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    numbers = np.array(keys, np.int64)
    slots = table.slots(numbers, groups_of(numbers), 0)
    assert table.places(slots).tolist() == [keys.index(key) for key in keys]


def test_places_of_many_and_after_growing():
    table = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    for count in (100, 5_000, 70_000):
        keys = np.concatenate([np.arange(count), np.arange(count)[::-1]])
        slots = table.slots(keys, groups_of(keys), 0)
        assert table.places(slots).tolist() == [*range(count), *range(count - 1, -1, -1)]


def test_slots_are_live_until_one_is_removed_or_missing():
    table = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    keys = np.arange(10)
    slots = table.slots(keys, groups_of(keys), 0)
    assert table.all_live(slots)
    assert table.all_live(slots[:0])
    assert not table.all_live(np.array([0, -1]))
    table.remove(slots[3:4])
    assert not table.all_live(slots)
    assert table.all_live(slots[4:])
    assert table.read(keys, groups_of(keys))[2] == [0, 0, 0, None, 0, 0, 0, 0, 0, 0]


def backend(first=0, last=127, incremental=True):
    setup = BackendSetup(
        "sum", KeyGroupRange(first, last), 128, clock=lambda: 0, key_type=as_type("bigint"), incremental=incremental
    )
    return HashMapBackend(setup)


DESCRIPTOR = ValueStateDescriptor("running", "bigint")


def put(table, pairs):
    keys = np.array(list(pairs), np.int64)
    slots = table.slots(keys, groups_of(keys), 0)
    table.values[slots] = np.array(list(pairs.values()))
    table.touch(slots)


BYTES = {}


def done(run):
    for payload, data in run:
        BYTES[payload] = BYTES.get(payload, b"") + data
    return run.handle


def read(payload, offset, length):
    return BYTES[payload.id][offset : offset + length]


@pytest.fixture(autouse=True)
def _no_bytes():
    BYTES.clear()


def content(one):
    table = one.column_table(DESCRIPTOR)
    return {key: table.get(group, key) for group in one.setup.key_groups for key in table.addresses(group)}


def test_full_and_incremental_snapshots_restore_and_rescale():  # SPEC R3.4, R7.4
    old = backend()
    table = old.column_table(DESCRIPTOR)
    put(table, {n: n for n in range(1000)})
    first = done(old.snapshot(1))
    old.notify_complete(1)
    put(table, {n: -n for n in range(10)} | {5000: 1})
    second = done(old.snapshot(2))
    assert [segment.increment for segment in second.segments] == [False, True]
    assert second.segments[1].payload.size < first.segments[0].payload.size / 10
    expected = {n: n for n in range(1000)} | {n: -n for n in range(10)} | {5000: 1}
    found = {}
    for first_group, last_group in ((0, 41), (42, 127)):
        part = backend(first_group, last_group)
        part.restore([second], read)
        found |= content(part)
    assert found == expected


def test_what_is_written_during_a_snapshot_is_not_in_it():  # SPEC R7.1
    old = backend()
    table = old.column_table(DESCRIPTOR)
    put(table, {1: 1, 2: 2})
    run = old.snapshot(1)
    put(table, {1: 99, 3: 3})
    new = backend()
    new.restore([done(run)], read)
    assert content(new) == {1: 1, 2: 2}
    assert content(old) == {1: 99, 2: 2, 3: 3}


def test_an_aborted_checkpoint_gives_its_changes_to_the_next():  # SPEC R7.4
    old = backend()
    table = old.column_table(DESCRIPTOR)
    put(table, {n: n for n in range(100)})
    done(old.snapshot(1))
    old.notify_complete(1)
    put(table, {1: -1})
    old.snapshot(2)
    old.notify_aborted(2)
    put(table, {2: -2})
    third = done(old.snapshot(3))
    new = backend()
    new.restore([third], read)
    assert content(new) == {n: n for n in range(100)} | {1: -1, 2: -2}
    full = done(old.snapshot(4, SnapshotKind.FULL))
    assert [segment.increment for segment in full.segments] == [False]


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("emit", ["record", "batch"])
@pytest.mark.parametrize("types", ["k bigint, v bigint", "k int, v int", "k bigint, v double", "k string, v bigint"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_aggregations_agree_with_a_loop(how, emit, types, parallelism):
    rng = np.random.default_rng(7)
    name = (lambda k: f"key-{k}") if "string" in types else int
    rows = [(name(k), int(v)) for k, v in zip(rng.integers(0, 40, 2000), rng.integers(-50, 50, 2000), strict=True)]
    env = StreamExecutionEnvironment.local(slice_records=64)
    env.set_parallelism(parallelism)
    stream = env.from_collection(rows, types).key_by("k")
    found = [tuple(row) for row in getattr(stream, how)("v", emit=emit).execute_and_collect()]
    combine = {"sum": lambda a, b: a + b, "min": min, "max": max}[how]
    running, expected = {}, []
    for key, value in rows:
        running[key] = value if key not in running else combine(running[key], value)
        expected.append((key, running[key]))
    last = {row[0]: row[1] for row in found}
    assert last == running
    if emit == "record":
        by_key = {key: [v for k, v in expected if k == key] for key in running}
        assert {key: [v for k, v in found if k == key] for key in running} == by_key
    else:
        assert len(found) < len(rows)


LEAST, LARGEST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize("first", [LEAST, -5000, 0, 10**12, LARGEST - 9999])
def test_keys_without_large_gaps_are_found_without_a_search(first):
    table = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    keys = np.arange(10_000, dtype=np.int64) + first
    for at in range(0, 10_000, 500):  # numbers that are given one after the other
        part = keys[at : at + 500]
        table.put(table.slots(part, groups_of(part), 0), part)
    assert table._near is not None
    near = table.find(keys, groups_of(keys))
    table._near = None
    assert near.tolist() == table.find(keys, groups_of(keys)).tolist()


def test_keys_that_grow_for_a_long_time_stay_near():
    """The room for later keys must not add up."""
    table = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    for at in range(0, 1_000_000, 20_000):
        keys = np.arange(at, at + 20_000, 4, dtype=np.int64)
        table.slots(keys, groups_of(keys), 0)
    keys = np.arange(1_000_000, 1_500_000, 4, dtype=np.int64)
    table.slots(keys, groups_of(keys), 0)
    assert table._near is not None
    assert len(table._near.slots) <= 1.5 * 1_500_000


def test_a_key_far_from_the_others_is_found_too():
    table, model = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64)), {}
    near = np.arange(3000, dtype=np.int64)
    for keys in (near, np.array([1 << 62, 7]), near + 3000, np.array([LEAST, LARGEST]), near - 3000):
        slots = table.slots(keys, groups_of(keys), 0)
        table.put(slots, keys)
        model |= {key: key for key in keys.tolist()}
        every = np.array(list(model), np.int64)
        assert table.values[table.find(every, groups_of(every))].tolist() == list(model)
        absent = np.array([99_999, 1 << 61, -(1 << 61)])
        assert table.find(absent, groups_of(absent)).tolist() == [-1, -1, -1]


def test_removed_keys_leave_the_table_for_near_ones():
    table = HashMapColumns(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    keys, others = np.arange(20_000, dtype=np.int64), np.arange(20_000, 22_000, dtype=np.int64)
    table.slots(keys, groups_of(keys), 0)
    assert table._near is not None
    table.remove(table.find(keys, groups_of(keys)))
    table.put(table.slots(others, groups_of(others), 0), others)  # in slots of removed ones
    slots = table.find(keys, groups_of(keys))
    assert not table.live[slots[slots >= 0]].any()
    assert table.values[table.find(others, groups_of(others))].tolist() == others.tolist()


def test_a_key_of_another_subtask_is_refused_also_among_near_ones():
    table = HashMapColumns(KeyGroupRange(0, 63), 128, np.dtype(np.int64))
    keys = np.arange(4000, dtype=np.int64)
    own = keys[groups_of(keys) < 64]
    table.slots(own, groups_of(own), 0)
    assert table._near is not None
    with pytest.raises(IllegalState, match="key group"):
        table.find(own[:2], np.array([5, 64], np.int32))


@pytest.mark.parametrize("shift", [0, 1, 8, 16, 22, 32, 40, 44, 47, 48, 52])
def test_keys_that_differ_in_few_bits_are_spread_over_the_index(shift):
    """Else a look-up would try thousands of places: such keys are composed of a number and a constant part."""
    numbers = np.arange(min(100_000, 1 << (63 - shift)), dtype=np.int64) << shift
    for keys in (numbers, numbers | 5, -numbers):
        for bits in (8, 10, 11):
            part = keys[: 1 << bits]
            shifts = np.full(len(part), _shift_of(2 << bits), np.uint64)
            places = _spread(part, shifts)
            assert places.max() < 2 << bits
            assert np.bincount(places).max() <= 24, (shift, bits)
            assert [_spread_one(key, _shift_of(2 << bits)) for key in part[:50].tolist()] == places[:50].tolist()
