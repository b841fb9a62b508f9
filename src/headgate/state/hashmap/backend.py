"""The hashmap backend: keyed state as Python objects in dicts (SPEC R7.1).

tables.py                    a state as dicts: reading and writing is a dict access, freezing copies nothing
columns.py, column_values.py a state of numbers under integer keys as numpy columns
cells.py                     handles and cells on dict tables
codec.py, snapshots.py       entries as bytes; the asynchronous part of a snapshot
increments.py                what changed since the last confirmed checkpoint
restoring.py                 restored state stays bytes until a state of its name is opened
cleanup.py                   expired entries are dropped
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta
from headgate.records.types import PICKLED, TypeInformation
from headgate.state.api import State, StateDescriptor, ValueStateDescriptor
from headgate.state.backend import (
    RAW_STREAMS,
    TIMER_TABLE,
    BackendSetup,
    KeyedStateBackend,
    SnapshotKind,
    SnapshotRun,
    StateSpec,
)
from headgate.state.cells import Cell, InternalTable, ValueTable
from headgate.state.copying import copier
from headgate.state.hashmap.cells import (
    TableListCell,
    TableMapCell,
    TableValue,
    TableValueCell,
    TableValueTable,
    TypedTableValue,
)
from headgate.state.hashmap.cleanup import Cleaner
from headgate.state.hashmap.codec import ChunkCodec, SectionReader
from headgate.state.hashmap.column_values import ColumnValue, ColumnValueTable, Packer
from headgate.state.hashmap.columns import ColumnTable
from headgate.state.hashmap.increments import Generation, History, SegmentCheckpoint
from headgate.state.hashmap.restoring import RestoredSlice, load_slice, read_slices
from headgate.state.hashmap.snapshots import FrozenState, HashMapSnapshot
from headgate.state.hashmap.tables import HashMapTable, StateTable
from headgate.state.schema import TypeChange, check_state

_MERGE_ENTRIES = 8_000  # folded after each batch, plus one per record, up to the limit
_MERGE_LIMIT = 24_000  # with ten million keys about 25 ms, most of it cache misses
_IDLE_MERGE_ENTRIES = 2_000


class _Store:
    """One state of the backend: its table, and what snapshots and cleanup need."""

    def __init__(self, setup: BackendSetup, spec: StateSpec, key_type: TypeInformation, table: HashMapTable) -> None:
        self.meta = spec.meta()
        self.key_type = key_type
        self.table = table
        self.codec = ChunkCodec(setup.operator, self.meta, key_type)
        self.cleaner: Cleaner | None = None

    @property
    def dicts(self) -> StateTable:
        assert isinstance(self.table, StateTable)
        return self.table


class HashMapBackend(KeyedStateBackend):
    """Keyed state in memory.

    >>> from headgate.records.key_groups import KeyGroupRange
    >>> backend = HashMapBackend(BackendSetup("count", KeyGroupRange(0, 127), 128, clock=lambda: 0))
    >>> count = backend.state(ValueStateDescriptor("count", "bigint"))
    >>> backend.set_current_key("a")
    >>> count.update(1)
    >>> handle = backend.snapshot(1).finish()
    >>> handle.segments[0].states[0].table.groups
    [81]
    """

    name = "hashmap"

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self._history = History()
        self._restored: dict[str, list[RestoredSlice]] = {}
        self._batch = 0
        self._stores: dict[str, _Store] = {}
        self._internal = {
            spec.kind: _Store(setup, spec, key_type, self._new_table())
            for spec, key_type in ((TIMER_TABLE, setup.key_type), (RAW_STREAMS, PICKLED))
        }
        self._column_values: list[ColumnValue] = []

    def _new_table(self) -> StateTable:
        return StateTable(self.setup.key_groups, self.setup.max_parallelism)

    # --- states ---

    def internal_table(self, spec: StateSpec) -> InternalTable:
        return self._internal[spec.kind].dicts

    def open_cell(self, spec: StateSpec) -> Cell:
        self._started = True
        store = self._stores.get(spec.name) or self._open_store(spec)
        cell = {"list": TableListCell, "map": TableMapCell}.get(spec.kind, TableValueCell)
        # The cell of a state in columns is never used: its handle is a ColumnValue.
        return cell(spec.name, store.table, self.context)  # type: ignore[arg-type]

    def _open_store(self, spec: StateSpec) -> _Store:
        columns = self._columns_for(spec)
        table = self._new_table() if columns is None else columns
        store = _Store(self.setup, spec, self.setup.key_type, table)
        self._load_restored(store)
        expiry = self.expiry_of(spec)
        if expiry is not None:
            store.cleaner = Cleaner(self.setup.key_groups, store.dicts, spec.kind, expiry)
        if self._history.tracking:
            store.table.track()
        self._stores[spec.name] = store
        return store

    def _load_restored(self, store: _Store) -> None:
        """Check and decode what was restored under a state's name."""
        setup, name = self.setup, store.meta.name
        slices = self._restored.get(name, [])
        changes = [check_state(setup.operator, one.meta, store.meta, migrate_ttl=setup.migrate_ttl) for one in slices]
        for one in slices:
            reader = SectionReader(setup.operator, one.meta, store.key_type, store.meta, setup.clock())
            store.table = load_slice(store.table, one, reader)
        self._restored.pop(name, None)
        if any(change is not TypeChange.AS_IS for change in changes):
            self._forget_bases()  # the old segments are in the old form; the new form is written in full (SPEC R7.3)

    def _columns_for(self, spec: StateSpec) -> ColumnTable | None:
        """Columns for numbers under integer keys; None for any other state."""
        if spec.ttl is not None or spec.kind != "value":
            return None
        if not (_is_number(spec.value_type) and _is_int(self.setup.key_type)):
            return None
        return ColumnTable(self.setup.key_groups, self.setup.max_parallelism, _dtype(spec))

    def _column_value(self, spec: StateSpec, store: _Store, columns: ColumnTable, default: Any) -> ColumnValue:
        def use_dicts() -> StateTable:
            table = store.table = columns.as_dicts()
            self._column_values.remove(handle)
            self._forget_bases()  # changes are recorded for the columns only: the next checkpoint is full
            return table

        handle = ColumnValue(
            spec.name, columns, self.context, default, self._packer(spec), self.key_group_of, use_dicts
        )
        self._column_values.append(handle)
        return handle

    def _packer(self, spec: StateSpec) -> Packer:
        return Packer(f"operator '{self.setup.operator}', state '{spec.name}'", spec.value_type, _dtype(spec))

    def _flush_columns(self) -> None:
        """Write back what handles hold, before the tables are read."""
        for handle in list(self._column_values):
            handle.flush()

    def make_handle(self, descriptor: StateDescriptor, spec: StateSpec, cell: Cell) -> State:
        """The handle of a state; value state without time to live uses no cell."""
        if spec.ttl is not None or not isinstance(descriptor, ValueStateDescriptor):
            return super().make_handle(descriptor, spec, cell)
        store = self._stores[spec.name]
        if isinstance(store.table, ColumnTable):
            return self._column_value(spec, store, store.table, descriptor.default)
        immutable = copier(spec.value_type, object_reuse=False) is None
        kind = TypedTableValue if immutable else TableValue
        return kind(spec.name, store.dicts, self.context, descriptor.default, reuse=self.setup.object_reuse)

    def stored_values(self, spec: StateSpec) -> ValueTable:
        store = self._stores[spec.name]
        if isinstance(store.table, ColumnTable):
            return ColumnValueTable(store.table, self._packer(spec), self._flush_columns)
        return TableValueTable(store.dicts)

    def column_table(self, descriptor: ValueStateDescriptor) -> ColumnTable | None:
        self._flush_columns()
        self.open_cell(StateSpec.of(descriptor))
        table = self._stores[descriptor.name].table
        return table if isinstance(table, ColumnTable) else None

    def addresses(self, name: str) -> Iterator[tuple[int, Any]]:
        self._flush_columns()
        store = self._stores.get(name)
        if store is not None:
            for group in self.setup.key_groups:
                for address in store.table.addresses(group):
                    yield group, address

    def has_entry(self, name: str, group: int, address: Any) -> bool:
        handle = self._handles.get(name)
        if handle is not None and isinstance(handle[1], ColumnValue) and handle[1] in self._column_values:
            return handle[1].has(group, address)
        return self._stores[name].table.get(group, address) is not None

    # --- batches and maintenance ---

    def begin_batch(self, addresses: Sequence[Any], groups: Sequence[int]) -> None:
        self._batch = len(addresses)
        for handle in list(self._column_values):  # one may leave the list
            handle.begin(addresses, groups)

    def end_batch(self) -> None:
        self._started = True
        self._flush_columns()
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

    def maintain(self, budget_entries: int) -> bool:
        """Fold the layers that snapshots left behind into the tables."""
        left = budget_entries
        for store in self._all_stores():
            left = store.table.merge(left)
            if left <= 0:
                return True
        return False

    def _all_stores(self) -> list[_Store]:
        return [*self._stores.values(), *self._internal.values()]

    # --- snapshots ---

    def snapshot(self, checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> SnapshotRun:
        self._started = True
        self._flush_columns()
        self.maintain(_IDLE_MERGE_ENTRIES)  # so that layers do not pile up in a job without records
        history = self._history
        history.sequence += 1
        stores = self._all_stores()
        live_entries = sum(store.table.base_size() for store in stores)
        states = [self._freeze(store) for store in stores]
        if history.tracking:
            layers = {id(store): state.frozen.changes() for store, state in zip(stores, states, strict=True)}
            history.generations.append(Generation(history.sequence, layers))
        base = self._base_for(kind, live_entries)
        if base is not None:
            changes = history.changes_since(base)
            for store, state in zip(stores, states, strict=True):
                state.changes = [one.layers[id(store)] for one in changes if id(store) in one.layers]
        payload = self._payload_name(checkpoint_id)
        if kind is not SnapshotKind.SAVEPOINT and history.outgrown(live_entries):
            history.forget()  # else the changes of aborted checkpoints would pile up
        checkpoint = self._record(checkpoint_id, kind, base, payload)
        restored = [] if base is not None else [one for slices in self._restored.values() for one in slices]
        run = HashMapSnapshot(states, restored, self._describe(checkpoint_id), payload, base, checkpoint)
        self._add_run(run)
        return run

    def _freeze(self, store: _Store) -> FrozenState:
        frozen, cursor = store.table.freeze()
        groups = self.setup.key_groups
        state = FrozenState(store.meta, store.codec, store.table, cursor, range(groups.start, groups.end + 1), frozen)
        cleaner = store.cleaner
        if cleaner is not None and cleaner.expiry.config.cleanup.full_snapshot:
            pruning, now = cleaner.pruning, self.setup.clock()
            state.left = lambda stored: pruning.in_snapshot(stored, now)
        return state

    def _base_for(self, kind: SnapshotKind, live_entries: int) -> SegmentCheckpoint | None:
        if not self.setup.incremental or kind is not SnapshotKind.CHECKPOINT:
            return None
        return self._history.base_for(live_entries)

    def _record(
        self, checkpoint_id: int, kind: SnapshotKind, base: SegmentCheckpoint | None, payload: str
    ) -> SegmentCheckpoint | None:
        """Record a checkpoint that later ones may build on, and track changes from now on."""
        if not self.setup.incremental or kind is SnapshotKind.SAVEPOINT:
            return None
        history = self._history
        if not history.tracking:
            for store in self._all_stores():
                store.table.track()
        payloads = frozenset([payload]) | (frozenset() if base is None else base.payloads)
        return history.add(checkpoint_id, payloads)

    def notify_complete(self, checkpoint_id: int) -> None:
        self._history.confirm(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        super().notify_aborted(checkpoint_id)
        self._history.abort(checkpoint_id)
        if not self._history.tracking:
            self._forget_bases()

    def _forget_bases(self) -> None:
        self._history.forget()
        for store in self._all_stores():
            store.table.stop_tracking()

    # --- restore ---

    def restore_handles(self, handles: list[KeyedStateHandle], read: ReadPayload, *, claim: bool) -> None:
        setup = self.setup
        for handle in handles:
            for one in read_slices(handle, setup.key_groups, read):
                internal = self._internal.get(one.meta.kind)
                if internal is None:
                    self._restored.setdefault(one.meta.name, []).append(one)
                else:
                    reader = SectionReader(setup.operator, one.meta, internal.key_type, internal.meta, 0)
                    load_slice(internal.table, one, reader)
        self._has_raw_streams = any(True for _ in self.internal_table(RAW_STREAMS).items())
        self.timers.reload()
        if claim:
            self._history.adopt(handles, setup.key_groups)
            for store in self._all_stores():
                store.table.track()

    def restored_metas(self) -> list[StateMeta]:
        return [slices[0].meta for slices in self._restored.values()]

    def dispose(self) -> None:
        super().dispose()
        self._forget_bases()
        for store in self._all_stores():
            store.table.clear()
        self._restored.clear()


def _dtype(spec: StateSpec) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(spec.value_type.arrow_type.to_pandas_dtype())
    return dtype


def _is_number(type_info: TypeInformation) -> bool:
    if type_info.kind != "scalar":
        return False
    arrow = type_info.arrow_type
    return bool(pa.types.is_integer(arrow) or pa.types.is_float32(arrow) or pa.types.is_float64(arrow))


def _is_int(type_info: TypeInformation) -> bool:
    return type_info.kind == "scalar" and bool(pa.types.is_signed_integer(type_info.arrow_type))
