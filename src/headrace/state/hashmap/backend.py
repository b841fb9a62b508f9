"""The hashmap backend: keyed state as Python objects in dicts (SPEC R7.1).

tables.py                    a state as dicts: reading and writing is a dict access, freezing copies nothing
columns.py                   a state of numbers under integer keys as numpy columns
lists_maps.py                lists and maps in dict tables
codec.py, snapshots.py       entries as bytes; the asynchronous part of a snapshot
increments.py                what changed since the last confirmed checkpoint
restoring.py                 restored state stays bytes until a state of its name is opened
cleanup.py                   expired entries are dropped
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt

from headrace.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta
from headrace.records.copying import copier
from headrace.records.types import PICKLED, TypeInformation
from headrace.state.api import DirectValueState, RowValueState, State, ValueStateDescriptor
from headrace.state.backend import (
    RAW_STREAMS,
    BackendSetup,
    KeyArrays,
    KeyedStateBackend,
    KeysAndNumbers,
    NumberGroup,
    SnapshotKind,
    SnapshotRun,
    number_type,
    table_name,
)
from headrace.state.column_values import ColumnValue, ColumnValues
from headrace.state.hashmap.cleanup import Cleaner
from headrace.state.hashmap.codec import ChunkCodec, SectionReader
from headrace.state.hashmap.columns import HashMapColumns, HashMapTable
from headrace.state.hashmap.increments import Generation, History
from headrace.state.hashmap.lists_maps import TableLists, TableMaps
from headrace.state.hashmap.restoring import RestoredSlice, load_slice, number_sections, read_slices
from headrace.state.hashmap.snapshots import FrozenState, HashMapSnapshot
from headrace.state.hashmap.tables import StateTable
from headrace.state.schema import TypeChange, check_state
from headrace.state.tables import AddressedTable
from headrace.state.ttl import Expiry

_MERGE_ENTRIES = 8_000  # folded after each batch, plus one per record, up to the limit
_MERGE_LIMIT = 24_000  # with ten million keys about 25 ms, most of it cache misses
_IDLE_MERGE_ENTRIES = 2_000


class _Store:
    """One state of the backend: its table, the access to it, and what snapshots and cleanup need."""

    def __init__(self, setup: BackendSetup, meta: StateMeta, key_type: TypeInformation, table: HashMapTable) -> None:
        self.meta = meta
        self.key_type = key_type
        self.table = table
        self.access: AddressedTable
        self.codec = ChunkCodec(setup.operator, meta, key_type)
        self.cleaner: Cleaner | None = None

    @property
    def dicts(self) -> StateTable:
        assert isinstance(self.table, StateTable)
        return self.table


class HashMapBackend(KeyedStateBackend):
    """Keyed state in memory.

    >>> from headrace.records.key_groups import KeyGroupRange
    >>> backend = HashMapBackend(BackendSetup("count", KeyGroupRange(0, 127), 128, clock=lambda: 0))
    >>> count = backend.state(ValueStateDescriptor("count", "bigint"))
    >>> backend.set_current_key("a")
    >>> count.update(1)
    >>> handle = backend.snapshot(1).finish()
    >>> handle.segments[0].states[0].table.groups
    [81]
    """

    name = "hashmap"
    returns_stored_objects = True

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self._history = History()
        self._restored: dict[str, list[RestoredSlice]] = {}
        self._batch = 0
        self._stores: dict[str, _Store] = {}  # by name of the table
        self._column_values = ColumnValues()

    # --- states ---

    def open_table(self, meta: StateMeta, expiry: Expiry | None = None) -> AddressedTable:
        self._started = True
        setup, name = self.setup, table_name(meta)
        store = self._stores.get(name)
        if store is None:
            key_type = PICKLED if meta.kind == RAW_STREAMS.kind else setup.key_type
            table = self._columns_for(meta) or StateTable(setup.key_groups, setup.max_parallelism)
            store = _Store(setup, meta, key_type, table)
            self._load_restored(store)
            store.access = self._access(store)
            if expiry is not None:
                store.cleaner = Cleaner(setup.key_groups, store.dicts, meta.kind, expiry)
            if self._history.tracking:
                store.table.track()
            self._stores[name] = store
        return store.access

    def _load_restored(self, store: _Store) -> None:
        """Check and decode what was restored under a state's name."""
        setup, name = self.setup, table_name(store.meta)
        slices = self._restored.get(name, [])
        changes = [check_state(setup.operator, one.meta, store.meta, migrate_ttl=setup.migrate_ttl) for one in slices]
        for one in slices:
            reader = SectionReader(setup.operator, one.meta, store.key_type, store.meta, setup.clock())
            store.table = load_slice(store.table, one, reader)
        self._restored.pop(name, None)
        if any(change is not TypeChange.AS_IS for change in changes):
            self._forget_bases()  # the old segments are in the old form; the new form is written in full (SPEC R7.3)

    def _columns_for(self, meta: StateMeta) -> HashMapColumns | None:
        """Columns for numbers under integer keys; None for any other state."""
        dtype = number_type(meta, self.setup.key_type)
        if dtype is None:
            return None
        return HashMapColumns(self.setup.key_groups, self.setup.max_parallelism, dtype)

    def _access(self, store: _Store) -> AddressedTable:
        meta, table = store.meta, store.table
        if isinstance(table, StateTable):
            if meta.kind == "list":
                return TableLists(table)
            return TableMaps(table) if meta.kind == "map" else table

        def use_dicts(handle: ColumnValue) -> StateTable:
            dicts = store.table = table.as_dicts()
            self._column_values.remove(handle)
            self._forget_bases()  # changes are recorded for the columns only: the next checkpoint is full
            return dicts

        where, value_type = f"operator '{self.setup.operator}', state '{meta.name}'", meta.value_type.type_info()
        handle = ColumnValue(meta.name, where, value_type, table, self.context, self.key_group_of, use_dicts)
        self._column_values.add(handle)
        return handle

    def value_handle(self, descriptor: ValueStateDescriptor, table: AddressedTable) -> State:
        if isinstance(table, ColumnValue):
            table.default = descriptor.default
            return table
        assert isinstance(table, StateTable)
        kind = RowValueState if descriptor.type.mutable else DirectValueState
        immutable = not descriptor.type.mutable and copier(descriptor.type) is None
        return kind(descriptor, self.context, table, reuse=self.setup.object_reuse, immutable=immutable)

    def column_table(self, descriptor: ValueStateDescriptor) -> HashMapColumns | None:
        self._column_values.flush()
        self.open_table(descriptor.meta())
        table = self._stores[f"s:{descriptor.name}"].table
        return table if isinstance(table, HashMapColumns) else None

    def addresses(self, name: str) -> Iterator[tuple[int, Any]]:
        self._column_values.flush()
        store = self._stores.get(f"s:{name}")
        if store is not None:
            for group in self.setup.key_groups:
                for address in store.table.addresses(group):
                    yield group, address

    def number_groups(self, meta: StateMeta) -> Iterator[NumberGroup] | None:
        slices = self._restored.get(table_name(meta), [])
        if len(slices) == 1 and number_type(meta, self.setup.key_type) is not None:
            reader = SectionReader(self.setup.operator, slices[0].meta, self.setup.key_type, meta, self.setup.clock())
            restored = number_sections(slices[0], reader)
            if restored is not None:
                return restored
        table = self._numbers(meta)
        return None if table is None else table.number_groups()

    def load_numbers(self, meta: StateMeta, columns: KeysAndNumbers, groups: npt.NDArray[Any]) -> bool:
        table = self._numbers(meta)
        if table is None:
            return False
        keys, values = columns
        table.put(table.slots(keys, groups, 0), values)
        return True

    def _numbers(self, meta: StateMeta) -> HashMapColumns | None:
        self.open_table(meta)
        self._column_values.flush()
        table = self._stores[table_name(meta)].table
        return table if isinstance(table, HashMapColumns) else None

    def has_entry(self, name: str, group: int, address: Any) -> bool:
        store = self._stores[f"s:{name}"]
        if isinstance(store.access, ColumnValue):
            return store.access.has(group, address)
        return store.dicts.get(group, address) is not None

    # --- batches and maintenance ---

    def begin_batch(self, addresses: Sequence[Any], groups: Sequence[int], arrays: KeyArrays | None = None) -> None:
        self._batch = len(addresses)
        self._column_values.begin(addresses, groups, arrays)

    def end_batch(self) -> None:
        self._started = True
        self._column_values.flush()
        for cleaner in self._cleaners():
            cleaner.clean(cleaner.expiry.accesses, self._batch)
            cleaner.expiry.accesses = 0
        self.maintain(min(_MERGE_ENTRIES + self._batch, _MERGE_LIMIT))
        self._batch = 0

    def key_selected(self) -> None:
        self._started = True
        for cleaner in self._cleaners():
            cleaner.clean(0, 1)

    def _cleaners(self) -> Iterator[Cleaner]:
        return (store.cleaner for store in self._stores.values() if store.cleaner is not None)

    def background_cleanup(self, budget_entries: int) -> int:
        changed = 0
        for cleaner in self._cleaners():
            if cleaner.enabled:
                checked, found = cleaner.step(budget_entries)
                budget_entries -= checked
                changed += found
        return changed

    def figures(self) -> dict[str, float]:
        sizes = [store.table.base_size() for store in list(self._stores.values())]
        return {"stateEntries": max(sizes)} if sizes else {}

    def maintain(self, budget_entries: int) -> bool:
        """Fold the layers that snapshots left behind into the tables."""
        left = budget_entries
        for store in self._stores.values():
            left = store.table.merge(left)
            if left <= 0:
                return True
        return False

    # --- snapshots ---

    def snapshot(self, checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> SnapshotRun:
        self._started = True
        self._column_values.flush()
        self.maintain(_IDLE_MERGE_ENTRIES)  # so that layers do not pile up in a job without records
        history = self._history
        history.sequence += 1
        stores = list(self._stores.values())
        live_entries = sum(store.table.base_size() for store in stores)
        states = [self._freeze(store) for store in stores]
        if history.tracking:
            layers = {id(store): state.frozen.changes() for store, state in zip(stores, states, strict=True)}
            history.generations.append(Generation(history.sequence, layers))
        shared = self.setup.incremental and kind is not SnapshotKind.SAVEPOINT
        base = history.base_for(live_entries) if shared and kind is SnapshotKind.CHECKPOINT else None
        if base is not None:
            changes = [one for one in reversed(history.generations) if one.sequence > base.sequence]
            for store, state in zip(stores, states, strict=True):
                state.changes = [one.layers[id(store)] for one in changes if id(store) in one.layers]
        payload = self._payload_name(checkpoint_id)
        if kind is not SnapshotKind.SAVEPOINT and history.outgrown(live_entries):
            history.forget()  # else the changes of aborted checkpoints would pile up
        checkpoint = None
        if shared:  # later ones may build on it
            if not history.tracking:
                self._track()
            payloads = frozenset([payload]) | (frozenset() if base is None else base.payloads)
            checkpoint = history.add(checkpoint_id, payloads)
        restored = [] if base is not None else [one for slices in self._restored.values() for one in slices]
        run = HashMapSnapshot(states, restored, self._describe(checkpoint_id), payload, base, checkpoint)
        return self._add_run(run)

    def _freeze(self, store: _Store) -> FrozenState:
        frozen, cursor = store.table.freeze()
        state = FrozenState(store.meta, store.codec, store.table, cursor, self.setup.key_groups, frozen)
        cleaner = store.cleaner
        if cleaner is not None and cleaner.expiry.config.cleanup.full_snapshot:
            state.left = partial(cleaner.in_snapshot, now=self.setup.clock())
        return state

    def _track(self) -> None:
        for store in self._stores.values():
            store.table.track()

    def notify_complete(self, checkpoint_id: int) -> None:
        self._history.confirm(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        super().notify_aborted(checkpoint_id)
        self._history.abort(checkpoint_id)
        if not self._history.tracking:
            self._forget_bases()

    def _forget_bases(self) -> None:
        self._history.forget()
        for store in self._stores.values():
            store.table.stop_tracking()

    # --- restore ---

    def restore_handles(self, handles: list[KeyedStateHandle], read: ReadPayload, *, claim: bool) -> None:
        for handle in handles:
            for one in read_slices(handle, self.setup.key_groups, read):
                self._restored.setdefault(table_name(one.meta), []).append(one)
        if claim:
            self._history.adopt(handles, self.setup.key_groups)
            self._track()

    def restored_forms(self) -> list[list[StateMeta]]:
        return [[one.meta for one in slices] for slices in self._restored.values()]

    def dispose(self) -> None:
        super().dispose()
        self._forget_bases()
        for store in self._stores.values():
            store.table.clear()
        self._restored.clear()
