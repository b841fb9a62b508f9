"""A state whose type has changed, in a job in which only some subtasks have opened it since. SPEC R8.6, R3.4

The others keep it as it was stored, so checkpoints and savepoints hold it in both forms.
"""

import itertools

import pytest

from headrace import StateTtlConfig, Time
from headrace.checkpoint.handles import decode_handle, encode_handle
from headrace.errors import IllegalState, StateMigrationError
from headrace.records.key_groups import KeyGroupRange, KeyHasher
from headrace.records.types import Types
from headrace.state.api import ListStateDescriptor, ValueStateDescriptor
from headrace.state.backend import BackendSetup, SnapshotKind
from headrace.state.hashmap.backend import HashMapBackend
from headrace.state.parquet.keyed import CanonicalRun, read_tables, restore
from headrace.state.rocksdb import RocksDBBackend
from state_handles import detach

MAKES = {"hashmap": HashMapBackend, "rocksdb": RocksDBBackend}
GROUP = KeyHasher(32)
KEYS = range(60)
ALL = KeyGroupRange(0, 31)
PARTS = KeyGroupRange(0, 15), KeyGroupRange(16, 31)
CHANGES = {  # what was stored, the type that it has now, a value that the old type cannot hold
    "int": ("int", 1, "bigint", 2**40 + 1),
    "smallint": ("smallint", 1, "int", 100_000),
    "double": ("int", 1, "double", 0.5),
    "float": ("float", 1.0, "double", 0.1),
    "row": ("a int", (1,), "a bigint", (2**40 + 1,)),
    "longer row": ("a int", (1,), "a int, b string", (1, "x")),
}


class Rig:
    def __init__(self, make, directory):
        self.make, self.directory = MAKES[make], directory
        self.opened, self.payloads, self.number = [], {}, itertools.count()

    def open(self, *handles, groups=ALL, migrate_ttl=False):
        where = self.directory / f"b{next(self.number)}"
        more = {"instance": where.name, "directory": where, "migrate_ttl": migrate_ttl}
        setup = BackendSetup("op", groups, 32, lambda: 0, key_type=Types.LONG(), **more)
        backend = self.make(setup)
        self.opened.append(backend)
        if handles:
            restore(backend, list(handles), lambda payload, at, length: self.payloads[payload.id][at : at + length])
        return backend

    def native(self, backend):
        described, payloads = detach(backend.snapshot(1, SnapshotKind.FULL).finish())
        self.payloads.update(payloads)
        return decode_handle(encode_handle(described))

    def canonical(self, backend):
        run = CanonicalRun(backend, 1, lambda state: f"{backend.setup.instance}/{state}.parquet")
        for name, data in run:
            self.payloads[name] = self.payloads.get(name, b"") + data
        return decode_handle(encode_handle(run.handle))


@pytest.fixture(params=MAKES)
def rig(request, tmp_path):
    rig = Rig(request.param, tmp_path)
    yield rig
    for backend in rig.opened:
        backend.dispose()


def put(backend, descriptor, value):
    state = backend.state(descriptor)
    for key in KEYS:
        if GROUP.group(key) in backend.setup.key_groups:
            backend.set_current_key(key)
            state.update(value)


def content(backend, descriptor):
    state, found = backend.state(descriptor), {}
    for key in list(backend.keys("v")):
        backend.set_current_key(key)
        value = state.value()
        found[key] = value if isinstance(value, int | float) else tuple(value)
    return found


@pytest.mark.parametrize("first", [0, 1], ids=["opened first", "opened last"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("forms", ["canonical", "native", "native then canonical"])
def test_each_entry_keeps_its_value(rig, change, first, forms):
    old, stored, new, value = CHANGES[change]
    before, now = ValueStateDescriptor("v", old), ValueStateDescriptor("v", new)
    whole = rig.open()
    put(whole, before, stored)
    savepoint = rig.canonical(whole)
    parts = [rig.open(savepoint, groups=groups) for groups in PARTS]
    put(parts[first], now, value)
    take = rig.canonical if forms == "canonical" else rig.native
    joined = rig.open(*map(take, parts))
    if forms == "native then canonical":  # before anything has opened the state
        joined = rig.open(rig.canonical(joined))
    wider = (stored[0], None) if change == "longer row" else stored
    assert content(joined, now) == {key: value if GROUP.group(key) in PARTS[first] else wider for key in KEYS}


def test_the_old_type_is_refused_once_a_subtask_has_the_new_one(rig):
    whole = rig.open()
    put(whole, ValueStateDescriptor("v", "int"), 1)
    savepoint = rig.canonical(whole)
    parts = [rig.open(savepoint, groups=groups) for groups in PARTS]
    put(parts[1], ValueStateDescriptor("v", "bigint"), 2**40)
    joined = rig.open(*map(rig.canonical, parts))
    with pytest.raises(StateMigrationError, match=r"state 'v'.*stored as bigint, declared as int"):
        joined.state(ValueStateDescriptor("v", "int"))
    assert len(content(joined, ValueStateDescriptor("v", "bigint"))) == len(KEYS)


def test_forms_of_which_each_lacks_a_field_of_the_other_are_not_made_one_without_the_program(rig):
    """A savepoint in one of the forms would lose the field of the other."""
    handles = []
    for groups, form in zip(PARTS, ("a int, b int", "a int, c int"), strict=True):
        part = rig.open(groups=groups)
        put(part, ValueStateDescriptor("v", form), (1, 2))
        handles.append(rig.native(part))
    joined = rig.open(*handles)
    with pytest.raises(IllegalState, match=r"state 'v': subtasks have stored it as .*b int.* and as .*c int.*NATIVE"):
        rig.canonical(joined)
    put(joined, ValueStateDescriptor("other", "int"), 3)
    alone = rig.open(rig.native(joined))
    assert [meta.name for meta, _ in read_tables(alone, "other")] == ["other"]  # as the reader of one state does
    again = rig.open(rig.native(joined))
    assert set(content(again, ValueStateDescriptor("v", "a int, c int")).values()) == {(1, None), (1, 2)}


def test_states_of_another_kind_are_told_apart(rig):
    handles = []
    for groups, make in zip(PARTS, (ValueStateDescriptor, ListStateDescriptor), strict=True):
        part = rig.open(groups=groups)
        state = part.state(make("v", "int"))
        part.set_current_key(next(key for key in KEYS if GROUP.group(key) in groups))
        state.update(1 if make is ValueStateDescriptor else [1])
        handles.append(rig.native(part))
    with pytest.raises(IllegalState, match="as value state of int and as list state of int, of which none holds"):
        rig.canonical(rig.open(*handles))


@pytest.mark.parametrize("first", [0, 1], ids=["opened first", "opened last"])
def test_a_time_to_live_that_only_some_subtasks_have_added(rig, first):
    """The option that allows this need not be on any longer when the savepoint is taken."""
    whole = rig.open()
    put(whole, ValueStateDescriptor("v", "int"), 1)
    savepoint = rig.canonical(whole)
    parts = [rig.open(savepoint, groups=groups, migrate_ttl=True) for groups in PARTS]
    now = ValueStateDescriptor("v", "int")
    now.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    put(parts[first], now, 2)
    joined = rig.open(*map(rig.native, parts))
    expected = {key: 2 if GROUP.group(key) in PARTS[first] else 1 for key in KEYS}
    assert content(rig.open(rig.canonical(joined)), now) == expected
    with pytest.raises(StateMigrationError, match="stored without a time to live"):
        rig.open(rig.native(joined)).state(now)
    assert content(rig.open(rig.native(joined), migrate_ttl=True), now) == expected
