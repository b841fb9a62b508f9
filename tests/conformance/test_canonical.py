"""Keyed state as Parquet tables: any backend writes them, any reads them, other tools too. SPEC R8.2"""

import datetime as dt
import io
import struct
from dataclasses import replace
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from headrace.errors import IllegalState, StateMigrationError
from headrace.pyflink.common import Types as FlinkTypes
from headrace.records.flink_values import MutableRow
from headrace.records.key_groups import KeyGroupRange
from headrace.records.types import as_type
from headrace.state.backend import BackendSetup
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.parquet import keyed
from headrace.state.parquet.keyed import CANONICAL, CanonicalRun, restore
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.timers import TimeDomain
from namespaces import select_namespace

MAKES = {"hashmap": HashMapBackend, "rocksdb": RocksDBBackend}
KEYS = range(300)
TTL = StateTtlConfig.new_builder(Time.hours(1)).build()
STATES = {
    "count": ValueStateDescriptor("count", Types.LONG()),
    "name": ValueStateDescriptor("name", Types.STRING()),
    "pair": ValueStateDescriptor("pair", "word string, n bigint"),
    "thing": ValueStateDescriptor("thing"),
    "seen": ListStateDescriptor("seen", Types.LONG()),
    "things": ListStateDescriptor("things"),
    "by name": MapStateDescriptor("by name", Types.STRING(), Types.LONG()),
    "by thing": MapStateDescriptor("by thing"),
    "total": ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG()),
    "fading": ValueStateDescriptor("fading", Types.LONG()),
    "fading list": ListStateDescriptor("fading list", Types.LONG()),
    "fading map": MapStateDescriptor("fading map", Types.STRING(), Types.LONG()),
}
for name, descriptor in STATES.items():
    if name.startswith("fading"):
        descriptor.enable_time_to_live(TTL)


LONG = Types.LONG()


def setup_for(tmp_path, name, key_type=LONG, groups=(0, 127), **more):
    return BackendSetup(
        operator="op",
        key_groups=KeyGroupRange(*groups),
        max_parallelism=128,
        clock=lambda: 1000,
        key_type=key_type,
        instance=name,
        directory=tmp_path / name,
        **more,
    )


def fill(backend, keys=KEYS):
    states = {name: backend.state(descriptor) for name, descriptor in STATES.items()}
    for key in keys:
        backend.set_current_key(key)
        states["count"].update(key)
        states["name"].update(f"n{key}")
        states["pair"].update((f"w{key}", key))
        states["thing"].update({"k": key})
        states["seen"].add_all([key, 7, key + 1])
        states["things"].add_all([(key,), "x"])
        states["by name"].put_all({"b": key, "a": 1})
        states["by thing"].put((key, "t"), None)
        states["total"].add(key)
        states["total"].add(1)
        states["fading"].update(key)
        states["fading list"].add_all([key, key])
        states["fading map"].put("k", key)
        backend.timers.register(TimeDomain.PROCESSING, 5000 + key, key, backend.context.group)
    backend.put_raw_stream(3, b"raw bytes")


def check(backend, keys=KEYS, timers=True):
    states = {name: backend.state(descriptor) for name, descriptor in STATES.items()}
    for key in keys:
        backend.set_current_key(key)
        assert states["count"].value() == key
        assert states["name"].value() == f"n{key}"
        assert tuple(states["pair"].value()) == (f"w{key}", key)
        assert states["thing"].value() == {"k": key}
        assert list(states["seen"].get()) == [key, 7, key + 1]
        assert list(states["things"].get()) == [(key,), "x"]
        assert dict(states["by name"].items()) == {"b": key, "a": 1}
        assert dict(states["by thing"].items()) == {(key, "t"): None}
        assert states["total"].get() == key + 1
        assert states["fading"].value() == key
        assert list(states["fading list"].get()) == [key, key]
        assert dict(states["fading map"].items()) == {"k": key}
    if timers:
        assert sorted(timer.timestamp for timer in backend.timers.all()) == [5000 + key for key in keys]


def taken(backend):
    run = CanonicalRun(backend, 9, lambda state: f"op/{state}/part-0.parquet")
    files = {}
    for name, data in run:
        files[name] = files.get(name, b"") + data
    return run.handle, files


def reader(files):
    return lambda payload, offset, length: files[payload.id][offset : offset + length]


def restored(make, setup, handles, files):
    backend = make(setup)
    restore(backend, handles, reader(files))
    return backend


@pytest.mark.parametrize("new", MAKES)
@pytest.mark.parametrize("old", MAKES)
def test_any_backend_reads_what_any_has_written(tmp_path, old, new):
    first = MAKES[old](setup_for(tmp_path, "first"))
    fill(first)
    handle, files = taken(first)
    assert handle.backend == CANONICAL
    second = restored(MAKES[new], setup_for(tmp_path, "second"), [handle], files)
    check(second)
    assert second.raw_streams() == {3: b"raw bytes"}
    first.dispose()
    second.dispose()


@pytest.mark.parametrize("make", MAKES)
def test_state_that_was_never_touched_is_written_too(tmp_path, make):  # SPEC R1.10
    first = MAKES[make](setup_for(tmp_path, "first"))
    fill(first)
    handle, files = taken(first)
    second = restored(MAKES[make], setup_for(tmp_path, "second"), [handle], files)
    again, more = taken(second)
    third = restored(MAKES[make], setup_for(tmp_path, "third"), [again], more)
    check(third)
    for backend in (first, second, third):
        backend.dispose()


def test_small_key_groups_are_read_at_once_but_never_many_large_ones(tmp_path, monkeypatch):  # SPEC R8.2
    monkeypatch.setattr(keyed, "_READ_ROWS", 50)
    first = HashMapBackend(setup_for(tmp_path, "first"))
    elements = {key: [key] * (1000 if key < 10 else 1) for key in range(500)}
    seen = first.state(STATES["seen"])
    for key, some in elements.items():
        first.set_current_key(key)
        seen.add_all(some)
    handle, files = taken(first)
    reads = []
    read = pq.ParquetFile.read_row_groups

    def noted(self, groups):
        reads.append([self.metadata.row_group(group).num_rows for group in groups])
        return read(self, groups)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    second = restored(HashMapBackend, setup_for(tmp_path, "second"), [handle], files)
    again = second.state(STATES["seen"])
    for key, some in elements.items():
        second.set_current_key(key)
        assert list(again.get()) == some
    assert all(sum(sizes) - max(sizes) < 50 for sizes in reads)
    assert len(reads) < sum(map(len, reads)) / 4
    first.dispose()
    second.dispose()


def noted_reads(monkeypatch):
    """The bytes in memory of each row group, for each read of several."""
    reads = []
    read = pq.ParquetFile.read_row_groups

    def noted(self, groups):
        reads.append([self.read_row_group(group).nbytes for group in groups])
        return read(self, groups)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    return reads


def with_values(tmp_path, name, values, groups=(0, 127)):
    backend = HashMapBackend(setup_for(tmp_path, name, groups=groups))
    state = backend.state(STATES["name"])
    for key, value in values.items():
        backend.set_current_key(key)
        state.update(value)
    return backend


def values_in(backend, keys):
    state, found = backend.state(STATES["name"]), {}
    for key in keys:
        backend.set_current_key(key)
        found[key] = state.value()
    return found


def test_large_values_are_read_a_few_at_a_time_though_they_compress_well(tmp_path, monkeypatch):  # SPEC R8.2
    monkeypatch.setattr(keyed, "_BYTES", 200_000)
    values = {key: "x" * 50_000 if key % 2 else "y" for key in range(40)}
    first = with_values(tmp_path, "first", values)
    handle, files = taken(first)
    (table,) = keyed.stored_tables(handle)
    assert sum(table.sizes) > 5 * len(files[table.file])
    reads = noted_reads(monkeypatch)
    second = restored(HashMapBackend, setup_for(tmp_path, "second"), [handle], files)
    assert values_in(second, values) == values
    assert all(sum(sizes) <= 200_000 for sizes in reads)
    assert len(reads) < sum(map(len, reads)) / 2
    first.dispose()
    second.dispose()


def test_savepoints_without_sizes_are_read_one_row_group_at_a_time(tmp_path, monkeypatch):  # SPEC R8.2
    values = {key: f"n{key}" for key in range(20)}
    first = with_values(tmp_path, "first", values)
    handle, files = taken(first)
    for table in handle.extra["tables"]:
        del table["sizes"]
    reads = noted_reads(monkeypatch)
    second = restored(HashMapBackend, setup_for(tmp_path, "second"), [handle], files)
    assert values_in(second, values) == values
    assert {len(sizes) for sizes in reads} == {1}
    first.dispose()
    second.dispose()


@pytest.mark.parametrize("make", MAKES)
def test_a_key_group_of_any_size_is_written_in_small_row_groups(tmp_path, monkeypatch, make):  # SPEC R8.2
    monkeypatch.setattr(keyed, "_BYTES", 10_000)
    monkeypatch.setattr(keyed, "_ROWS", 40)
    first = MAKES[make](setup_for(tmp_path, "first"))
    word = "ä" * 500
    things = [(number, word) for number in range(30)]
    names = {f"{word}{number}": number for number in range(30)}
    for key in (1, 2):
        first.set_current_key(key, 5)
        first.state(STATES["name"]).update(word * 30)  # more than the limit
        first.state(STATES["pair"]).update((word, key))
        first.state(STATES["seen"]).add_all(range(100))
        first.state(STATES["things"]).add_all(things)
        first.state(STATES["by name"]).put_all(names)
        for ts in range(100):
            first.timers.register(TimeDomain.EVENT, ts, key, 5)
    handle, files = taken(first)
    for table in keyed.stored_tables(handle):
        parquet = pq.ParquetFile(io.BytesIO(files[table.file]))
        parts = [parquet.read_row_group(index) for index in range(parquet.num_row_groups)]
        assert table.groups == [5] * len(parts)
        assert all(part.num_rows == 1 or (part.nbytes <= 10_000 and part.num_rows <= 40) for part in parts)
        assert table.rows == sum(part.num_rows for part in parts)
        assert len(parts) == 1 if table.meta.name == "pair" else len(parts) > 1
    second = restored(MAKES[make], setup_for(tmp_path, "second"), [handle], files)
    for key in (1, 2):
        second.set_current_key(key, 5)
        assert second.state(STATES["name"]).value() == word * 30
        assert list(second.state(STATES["seen"]).get()) == list(range(100))
        assert list(second.state(STATES["things"]).get()) == things
        assert dict(second.state(STATES["by name"]).items()) == names
    assert len(list(second.timers.all())) == 200
    first.dispose()
    second.dispose()


def test_states_may_be_called_like_internal_ones(tmp_path):  # SPEC R8.2
    first = HashMapBackend(setup_for(tmp_path, "first"))
    names = ["_timers", "_raw"]
    first.set_current_key(1, 5)
    for name in names:
        first.state(ValueStateDescriptor(name, Types.STRING())).update(name)
    first.timers.register(TimeDomain.EVENT, 7, 1, 5)
    first.put_raw_stream(5, b"raw bytes")
    handle, files = taken(first)
    assert len(files) == 4
    second = restored(HashMapBackend, setup_for(tmp_path, "second"), [handle], files)
    second.set_current_key(1, 5)
    assert [second.state(ValueStateDescriptor(name, Types.STRING())).value() for name in names] == names
    assert [timer.timestamp for timer in second.timers.all()] == [7]
    assert second.raw_streams() == {5: b"raw bytes"}
    first.dispose()
    second.dispose()


def test_a_value_that_arrow_cannot_hold_is_refused(tmp_path, monkeypatch):  # SPEC R8.2
    monkeypatch.setattr(keyed, "_LARGEST", 1000)
    monkeypatch.setattr(keyed, "_BYTES", 500)
    backend = with_values(tmp_path, "one", {1: "a", 2: "b", 7: "ä" * 500})
    with pytest.raises(IllegalState) as caught:
        taken(backend)
    assert str(caught.value) == (
        "[HR-2202] operator 'op', state 'name', key 7: a value of 1024 bytes is too large for a canonical savepoint, where it can "
        "have 1000: take a savepoint with --format NATIVE, or divide the value, for example into a map state"
    )
    backend.dispose()


@pytest.mark.parametrize("make", MAKES)
def test_rescaled(tmp_path, make):  # SPEC R3.4
    whole = MAKES[make](setup_for(tmp_path, "whole"))
    fill(whole)
    handle, files = taken(whole)
    parts = []
    for index, groups in enumerate([(0, 40), (41, 127)]):
        setup = setup_for(tmp_path, f"part-{index}", groups=groups)
        parts.append(restored(MAKES[make], setup, [handle], files))
    found = [sorted(part.keys("count")) if part.state(STATES["count"]) else [] for part in parts]
    assert sorted(found[0] + found[1]) == list(KEYS)
    for part, keys in zip(parts, found, strict=True):
        check(part, keys)
    halves = [taken(part) for part in parts]
    everything = halves[0][1] | {f"2-{name}": data for name, data in halves[1][1].items()}
    # two files of one name, as two subtasks write them, lie under different names in a savepoint
    other = halves[1][0]
    import msgspec

    files2 = [
        msgspec.structs.replace(f, payload=msgspec.structs.replace(f.payload, id=f"2-{f.name}")) for f in other.files
    ]
    other = msgspec.structs.replace(other, files=files2)
    joined = restored(MAKES[make], setup_for(tmp_path, "joined"), [halves[0][0], other], everything)
    check(joined)
    for backend in (whole, *parts, joined):
        backend.dispose()


def test_other_tools_read_the_tables(tmp_path):
    backend = HashMapBackend(setup_for(tmp_path, "one"))
    fill(backend)
    _, files = taken(backend)
    count = pd.read_parquet(io.BytesIO(files["op/count/part-0.parquet"]))
    assert list(count.columns) == ["key_group", "key", "namespace", "value"]
    assert dict(zip(count["key"], count["value"], strict=True)) == {key: key for key in KEYS}
    rows = list(zip(count["key_group"], count["key"], strict=True))
    assert rows == sorted(rows)
    parquet = pq.ParquetFile(io.BytesIO(files["op/count/part-0.parquet"]))
    for index in range(parquet.num_row_groups):
        assert len(set(parquet.read_row_group(index).column("key_group").to_pylist())) == 1
    pair = pq.read_table(io.BytesIO(files["op/pair/part-0.parquet"]))
    assert pair.schema.field("value").type == pa.struct([("word", pa.string()), ("n", pa.int64())])
    thing = pd.read_parquet(io.BytesIO(files["op/thing/part-0.parquet"]))
    assert "{'k': 5}" in set(thing["value_text"])
    seen = pd.read_parquet(io.BytesIO(files["op/seen/part-0.parquet"]))
    assert seen[seen["key"] == 4].sort_values("pos")["value"].tolist() == [4, 7, 5]
    fading = pd.read_parquet(io.BytesIO(files["op/fading/part-0.parquet"]))
    assert set(fading["ttl_ts"]) == {1000}
    timers = pd.read_parquet(io.BytesIO(files["op/_timers/part-0.parquet"]))
    assert set(timers["domain"]) == {"processing"}
    backend.dispose()


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        (Types.STRING(), ["a", "b", "ä"]),
        (Types.TUPLE([Types.STRING(), Types.LONG()]), [("a", 1), ("b", 2)]),
        (Types.PICKLED_BYTE_ARRAY(), [1, "a", (2, True), 1.5, b"x"]),
        (
            Types.PICKLED_BYTE_ARRAY(),
            [
                None,
                ("a", None),
                dt.date(2024, 1, 1),
                Decimal("1.5"),
                [1],
                {"a": [1]},
                frozenset([1]),
                MutableRow(a=1),
                1 << 90,
            ],
        ),
        (FlinkTypes.BIG_DEC(), [Decimal("1.50"), Decimal(-2)]),
        (FlinkTypes.SQL_DATE(), [dt.date(2024, 1, 1)]),
        (FlinkTypes.LIST(FlinkTypes.INT()), [[1], [2, 3]]),
    ],
)
def test_keys_of_any_type(tmp_path, make, key_type, keys):
    first = MAKES[make](setup_for(tmp_path, "first", key_type))
    state = first.state(STATES["count"])
    for number, key in enumerate(keys):
        first.set_current_key(key)
        state.update(number)
    handle, files = taken(first)
    second = restored(MAKES[make], setup_for(tmp_path, "second", key_type), [handle], files)
    state = second.state(STATES["count"])
    for number, key in enumerate(keys):
        second.set_current_key(key)
        assert state.value() == number
    first.dispose()
    second.dispose()


@pytest.mark.parametrize("make", MAKES)
def test_namespaces(tmp_path, make):  # SPEC R1.9
    first = MAKES[make](setup_for(tmp_path, "first"))
    count, seen = first.state(STATES["count"]), first.state(STATES["seen"])
    for key in KEYS:
        first.set_current_key(key)
        count.update(1)
        select_namespace(first, ("window", key % 3))
        count.update(key)
        seen.add(key)
    handle, files = taken(first)
    second = restored(MAKES[make], setup_for(tmp_path, "second"), [handle], files)
    count, seen = second.state(STATES["count"]), second.state(STATES["seen"])
    for key in KEYS:
        second.set_current_key(key)
        assert count.value() == 1
        select_namespace(second, ("window", key % 3))
        assert count.value() == key
        assert list(seen.get()) == [key]
    first.dispose()
    second.dispose()


@pytest.mark.parametrize("make", MAKES)
def test_a_schema_that_grew(tmp_path, make):  # SPEC R8.6
    first = MAKES[make](setup_for(tmp_path, "first"))
    fill(first)
    handle, files = taken(first)
    second = restored(MAKES[make], setup_for(tmp_path, "second"), [handle], files)
    wider = second.state(ValueStateDescriptor("pair", "word string, n bigint, city string"))
    second.set_current_key(5)
    assert tuple(wider.value()) == ("w5", 5, None)
    third = restored(MAKES[make], setup_for(tmp_path, "third"), [handle], files)
    with pytest.raises(StateMigrationError, match=r"state 'pair'.*n"):
        third.state(ValueStateDescriptor("pair", "word string, n string"))
    for backend in (first, second, third):
        backend.dispose()


@pytest.mark.parametrize("make", MAKES)
def test_another_max_parallelism_is_refused(tmp_path, make):  # SPEC R3.3
    first = MAKES[make](setup_for(tmp_path, "first"))
    fill(first, range(5))
    handle, files = taken(first)
    setup = replace(setup_for(tmp_path, "second"), max_parallelism=64, key_groups=KeyGroupRange(0, 63))
    with pytest.raises(IllegalState, match="max parallelism mismatch"):
        restored(MAKES[make], setup, [handle], files)
    first.dispose()


@pytest.mark.parametrize("make", MAKES)
def test_nothing_at_all(tmp_path, make):
    backend = MAKES[make](setup_for(tmp_path, "first"))
    assert taken(backend) == (None, {})
    backend.dispose()


# --- numbers under integer keys are written and read as columns ---

NUMBERS = {
    "bigint": ("bigint", [0, -1, 1, 2**63 - 1, -(2**63), 7]),
    "small": ("smallint", [-(2**15), 2**15 - 1, 0, 5, -5, 1]),
    "double": ("double", [0.0, -0.0, float("inf"), 1e-300, float("-inf"), 0.1]),
    "float": ("float", [0.0, 0.5, -0.5, float("inf"), 2.0**-100, 1.0]),
}
INTEGER_KEYS = {
    "bigint": [-(2**63), -7, 0, 1, 300, 2**63 - 1],
    "int": [-(2**31), -1, 0, 1, 300, 2**31 - 1],
    "tinyint": [-128, -1, 0, 1, 2, 127],
}


def with_numbers(backend, descriptor, entries):
    state = backend.state(descriptor)
    for key, value in entries:
        backend.set_current_key(key)
        state.update(value)


def bits(value):
    return struct.pack(">d", value) if isinstance(value, float) else value


def entry_by_entry(monkeypatch):
    """As any other state is written and read."""
    for make in MAKES.values():
        monkeypatch.setattr(make, "number_groups", lambda self, meta: None)
        monkeypatch.setattr(make, "load_numbers", lambda self, meta, columns, groups: False)


@pytest.mark.parametrize("key_type", INTEGER_KEYS)
@pytest.mark.parametrize("value_type", NUMBERS)
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("max_parallelism", [128, 1000])
def test_columns_of_numbers_are_the_same_as_rows(  # SPEC R8.2
    tmp_path, monkeypatch, make, value_type, key_type, max_parallelism
):
    monkeypatch.setattr(keyed, "_ROWS", 4)
    descriptor = ValueStateDescriptor("n", NUMBERS[value_type][0])
    groups = (0, max_parallelism - 1)

    def setup(name):
        return replace(setup_for(tmp_path, name, as_type(key_type), groups), max_parallelism=max_parallelism)

    first = MAKES[make](setup("first"))
    keys = INTEGER_KEYS[key_type]
    entries = list(zip(keys, NUMBERS[value_type][1], strict=True))
    with_numbers(first, descriptor, [*entries, (keys[0], NUMBERS[value_type][1][5])])
    first.set_current_key(keys[1])
    first.state(descriptor).clear()
    handle, files = taken(first)
    expected = {**dict(entries), keys[0]: NUMBERS[value_type][1][5]}
    del expected[keys[1]]

    second = restored(MAKES[make], setup("second"), [handle], files)
    state = second.state(descriptor)
    found = {}
    for key in keys:
        second.set_current_key(key)
        found[key] = bits(state.value())
    assert found == {key: bits(expected.get(key)) for key in keys}

    with monkeypatch.context() as patched:
        entry_by_entry(patched)
        slow_handle, slow_files = taken(first)
        third = restored(MAKES[make], setup("third"), [handle], files)
        again = third.state(descriptor)
        for key in keys:
            third.set_current_key(key)
            assert bits(again.value()) == found[key]
    (name,) = files
    assert pq.read_table(io.BytesIO(files[name])).equals(pq.read_table(io.BytesIO(slow_files[name])))
    assert keyed.stored_tables(handle)[0].groups == keyed.stored_tables(slow_handle)[0].groups
    for backend in (first, second, third):
        backend.dispose()


@pytest.mark.parametrize("new", MAKES)
@pytest.mark.parametrize("old", MAKES)
def test_numbers_with_and_without_namespaces(tmp_path, monkeypatch, old, new):  # SPEC R1.9, R8.2
    monkeypatch.setattr("headrace.state.rocksdb.tables._NUMBERS", 8)
    first = MAKES[old](setup_for(tmp_path, "first", groups=(0, 3)))
    descriptor = ValueStateDescriptor("n", "bigint")
    state = first.state(descriptor)
    keys = [key for key in range(4000) if first.key_group_of(key) < 4]
    for key in keys:
        first.set_current_key(key)
        state.update(key)
        if key % 50 == 0:
            select_namespace(first, (key, key + 10))
            state.update(-key)
    handle, files = taken(first)
    second = restored(MAKES[new], setup_for(tmp_path, "second", groups=(0, 3)), [handle], files)
    again = second.state(descriptor)
    for key in keys:
        second.set_current_key(key)
        assert again.value() == key
        select_namespace(second, (key, key + 10))
        assert again.value() == (-key if key % 50 == 0 else None)
    (data,) = files.values()
    rows = pq.read_table(io.BytesIO(data)).select(["key_group", "key"]).to_pylist()
    assert [(row["key_group"], row["key"]) for row in rows] == sorted((row["key_group"], row["key"]) for row in rows)
    first.dispose()
    second.dispose()


@pytest.mark.parametrize("make", MAKES)
def test_numbers_of_a_key_group_of_any_size(tmp_path, monkeypatch, make):  # SPEC R8.2
    monkeypatch.setattr(keyed, "_ROWS", 16)
    first = MAKES[make](setup_for(tmp_path, "first", as_type("bigint"), groups=(0, 3)))
    descriptor = ValueStateDescriptor("n", "bigint")
    keys = [key for key in range(5000) if first.key_group_of(key) < 4]
    with_numbers(first, descriptor, [(key, -key) for key in keys])
    handle, files = taken(first)
    second = restored(MAKES[make], setup_for(tmp_path, "second", as_type("bigint"), groups=(0, 3)), [handle], files)
    state = second.state(descriptor)
    assert sorted(second.keys("n")) == keys
    for key in keys:
        second.set_current_key(key)
        assert state.value() == -key
    first.dispose()
    second.dispose()
