"""The hashmap backend: keyed state as Python objects in dicts (SPEC R7.1).

Reading and writing is a dict access. A snapshot freezes the tables without copying (`tables.py`), the rest of it writes
them out in small steps (`hashmap_snapshot.py`), and with `incremental` it writes only what changed since the last
confirmed checkpoint (`increments.py`). Restored state stays bytes until somebody asks for it by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta, TypeMeta, checked_read, read_inline
from headgate.errors import IllegalState, InvalidArgument
from headgate.records.key_groups import KeyGroupRange
from headgate.records.types import PICKLED, TypeInformation, as_type
from headgate.state.api import State, StateDescriptor, ValueStateDescriptor
from headgate.state.backend import (
    BackendSetup,
    KeyedStateBackend,
    SnapshotKind,
    SnapshotRun,
    StateSpec,
    ValueTable,
    check_restorable,
)
from headgate.state.cells import Cell
from headgate.state.copying import copier
from headgate.state.hashmap.cells import (
    TableListCell,
    TableMapCell,
    TableTimerStore,
    TableValue,
    TableValueCell,
    TableValueTable,
    TtlValueTable,
    TypedTableValue,
)
from headgate.state.hashmap.codec import ChunkCodec, SectionReader
from headgate.state.hashmap.column_values import ColumnValue, ColumnValueTable, Packer
from headgate.state.hashmap.columns import ColumnTable
from headgate.state.hashmap.increments import Generation, History, Taken
from headgate.state.hashmap.snapshots import FrozenState, HashMapSnapshot, RestoredSection
from headgate.state.hashmap.tables import StateTable
from headgate.state.schema import Verdict, check_key_type, check_state
from headgate.state.timers import TIMERS, Timers
from headgate.state.ttl import Expiry, Pruning

__all__ = ["HashMapBackend"]

_RAW = "_raw"
_INTERNAL = {"timers", "raw"}
_MERGE_ENTRIES = 8_000  # folded after each batch, and as many again as it has records, up to the limit
_MERGE_LIMIT = 24_000  # with ten million keys about 25 ms, most of it cache misses
_IDLE_MERGE_ENTRIES = 2_000
_CLEANUP_ENTRIES = 10_000  # checked for expiry after each batch: about 3 ms


class _Store:
    """One state of the backend: its table and what belongs to it."""

    __slots__ = ("cleaner", "codec", "expiry", "key_type", "meta", "pruning", "table")

    def __init__(
        self,
        setup: BackendSetup,
        spec: StateSpec,
        key_type: TypeInformation,
        expiry: Expiry | None,
        table: ColumnTable | None = None,
    ) -> None:
        self.meta = spec.meta()
        self.key_type = key_type
        # Any: what snapshots need is the same in both; handles are made for the first kind only.
        held: Any = StateTable(setup.key_groups, setup.max_parallelism) if table is None else table
        self.table = held
        self.codec = ChunkCodec(setup.operator, self.meta, key_type)
        self.expiry = expiry
        self.pruning = None if expiry is None else Pruning(spec.kind, expiry)
        self.cleaner = None if self.pruning is None else _Cleaner(setup.key_groups, self.table, self.pruning)


class _Cleaner:
    """Walks through a state for ever, dropping what is expired (SPEC R2.5 c)."""

    __slots__ = ("_addresses", "_group", "_groups", "_pruning", "_table")

    def __init__(self, groups: KeyGroupRange, table: StateTable, pruning: Pruning) -> None:
        self._groups = groups
        self._table = table
        self._pruning = pruning
        self._group = groups.start
        self._addresses: Iterator[Any] = iter(())

    def step(self, budget: int, now: int) -> tuple[int, int]:
        """Check up to `budget` entries, none of them twice; how many were checked, and how many shrank."""
        checked = changed = 0
        rounds = len(self._groups) + 1
        while checked < budget and rounds:
            table, group = self._table, self._group
            for address in self._addresses:
                stored = table.get(group, address)
                if stored is not None:
                    checked += 1
                    left = self._pruning.left(stored, now)
                    if left is not stored:
                        changed += 1
                        if left is None:
                            table.remove(group, address)
                        else:
                            table.put(group, address, left)
                    if checked >= budget:
                        return checked, changed
            rounds -= 1
            self._group = self._group + 1 if self._group < self._groups.end else self._groups.start
            self._addresses = iter(self._table.addresses(self._group))
        return checked, changed


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
        self._runs: list[HashMapSnapshot] = []
        self._restored: dict[str, list[RestoredSection]] = {}
        self._restored_metas: dict[str, list[StateMeta]] = {}
        self._started = False
        self._batch = 0
        self._stores: dict[str, _Store] = {}
        self._column_values: list[ColumnValue] = []
        timers = StateSpec(TIMERS, "timers", as_type("bigint"))
        self._timer_store = _Store(setup, timers, setup.key_type, None)
        self._raw_store = _Store(setup, StateSpec(_RAW, "raw", as_type("binary")), PICKLED, None)
        addresses = lambda: self._all_addresses(self._timer_store)  # noqa: E731
        self._timers = Timers(TableTimerStore(self._timer_store.table, addresses))

    # --- states ---

    @property
    def timers(self) -> Timers:
        """The timers of this operator."""
        return self._timers

    def open_cell(self, spec: StateSpec) -> Cell:
        """Make the table of a state, with what was restored under its name."""
        self._started = True
        store = self._stores.get(spec.name)
        if store is None:
            columns = self._columns_for(spec)
            store = _Store(self.setup, spec, self.setup.key_type, self.expiry_of(spec), columns)
            self._adopt_restored(store)
            if self._history.tracking:
                store.table.track()
            self._stores[spec.name] = store
        cell = {"list": TableListCell, "map": TableMapCell}.get(spec.kind, TableValueCell)
        return cell(spec.name, store.table, self.context)

    def _adopt_restored(self, store: _Store) -> None:
        """Check and decode what was restored under a state's name."""
        now = self.setup.clock()
        readers: dict[int, SectionReader] = {}
        migrated = False
        for meta in self._restored_metas.get(store.meta.name, []):
            verdict = check_state(self.setup.operator, meta, store.meta, migrate_ttl=self.setup.migrate_ttl)
            migrated = migrated or verdict is not Verdict.AS_IS
            readers[id(meta)] = SectionReader(self.setup.operator, meta, store.key_type, store.meta, now)
        for section in self._restored.get(store.meta.name, []):
            self._load(store, readers[id(section.meta)], section)
        self._restored.pop(store.meta.name, None)
        self._restored_metas.pop(store.meta.name, None)
        if migrated:
            # The old segments are in the old form; the new form goes out whole (SPEC R7.3).
            self._forget_bases()

    def _load(self, store: _Store, reader: SectionReader, section: RestoredSection) -> None:
        if isinstance(store.table, ColumnTable):
            columns = reader.columns(section.data)
            if columns is not None:
                for keys, values, removed in columns:
                    store.table.load_columns(keys, values, removed, section.group)
                return
            entries = list(reader.read(section.data))
            if not all(type(address) is int for address, _ in entries):  # namespaces: columns have no place for them
                store.table = _in_tables(self.setup, store.table)
            store.table.load(entries, section.group)
        else:
            store.table.load(reader.read(section.data), section.group)

    def _columns_for(self, spec: StateSpec) -> ColumnTable | None:
        """Columns for numbers under integer keys; None for any other state."""
        if (
            spec.ttl is not None
            or spec.kind != "value"
            or not (_is_number(spec.value_type) and _is_int(self.setup.key_type))
        ):
            return None
        dtype = np.dtype(spec.value_type.arrow_type.to_pandas_dtype())
        return ColumnTable(self.setup.key_groups, self.setup.max_parallelism, dtype)

    def _column_value(self, spec: StateSpec, store: _Store, default: Any) -> ColumnValue:
        def demote() -> StateTable:
            table: StateTable = _in_tables(self.setup, store.table)
            store.table = table
            self._column_values.remove(handle)
            self._forget_bases()  # changes are known of the columns only: the next checkpoint is full
            return table

        handle = ColumnValue(spec.name, store.table, self.context, default, self._packer(spec), self._group_of, demote)
        self._column_values.append(handle)
        return handle

    def _packer(self, spec: StateSpec) -> Packer:
        where = f"operator '{self.setup.operator}', state '{spec.name}'"
        return Packer(where, spec.value_type, np.dtype(spec.value_type.arrow_type.to_pandas_dtype()))

    def _settle(self) -> None:
        """Write back what handles hold: somebody looks at the tables."""
        for handle in list(self._column_values):
            handle.flush()

    def make_handle(self, descriptor: StateDescriptor, spec: StateSpec, cell: Cell) -> State:
        """The handle of a state; value state without time to live skips the cell."""
        if spec.ttl is not None or not isinstance(descriptor, ValueStateDescriptor):
            return super().make_handle(descriptor, spec, cell)
        store = self._stores[spec.name]
        if isinstance(store.table, ColumnTable):
            return self._column_value(spec, store, descriptor.default)
        immutable = copier(spec.value_type, object_reuse=False) is None
        kind = TypedTableValue if immutable else TableValue
        table = self._stores[spec.name].table
        return kind(spec.name, table, self.context, descriptor.default, reuse=self.setup.object_reuse)

    def value_table(self, descriptor: ValueStateDescriptor) -> ValueTable:
        """A value state for many keys at once."""
        self.state(descriptor)
        store = self._stores[descriptor.name]
        if isinstance(store.table, ColumnTable):
            return ColumnValueTable(store.table, self._packer(StateSpec.of(descriptor)), self._settle)
        table = TableValueTable(store.table)
        return table if store.expiry is None else TtlValueTable(table, store.expiry)

    def column_table(self, descriptor: ValueStateDescriptor) -> ColumnTable | None:
        """Numbers under integer keys as columns, if that is what the state holds."""
        self._settle()
        self.open_cell(StateSpec.of(descriptor))
        table = self._stores[descriptor.name].table
        return table if isinstance(table, ColumnTable) else None

    def addresses(self, name: str) -> Iterator[tuple[int, Any]]:
        """(group, address) of every entry of a state."""
        self._settle()
        store = self._stores.get(name)
        return iter(()) if store is None else self._all_addresses(store)

    def _all_addresses(self, store: _Store) -> Iterator[tuple[int, Any]]:
        for group in self.setup.key_groups:
            for address in store.table.addresses(group):
                yield group, address

    def has_entry(self, name: str, group: int, address: Any) -> bool:
        """Whether a state has an entry at an address."""
        handle = self._handles.get(name)
        if handle is not None and isinstance(handle[1], ColumnValue) and handle[1] in self._column_values:
            return handle[1].has(group, address)
        return self._stores[name].table.get(group, address) is not None

    def entry_count(self, name: str) -> int:
        """How many entries a state has."""
        self._settle()
        store = self._stores.get(name)
        return 0 if store is None else len(store.table)

    def put_raw(self, group: int, data: bytes) -> None:
        """Store opaque bytes for a key group."""
        self.check_group(group, "(raw state)")
        self._started = True
        if data:
            self._raw_store.table.put(group, _RAW, bytes(data))
        else:
            self._raw_store.table.remove(group, _RAW)

    def raw(self, group: int) -> bytes | None:
        """The opaque bytes of a key group."""
        self.check_group(group, "(raw state)")
        data: bytes | None = self._raw_store.table.get(group, _RAW)
        return data

    def raw_groups(self) -> list[int]:
        """The key groups that have opaque bytes."""
        return [group for group, _ in self._all_addresses(self._raw_store)]

    # --- batches and upkeep ---

    def begin_batch(self, addresses: Sequence[Any], groups: Sequence[int]) -> None:
        """A batch follows; per-record cleanup is worked off at its end."""
        self._batch = len(addresses)
        for handle in list(self._column_values):  # one may leave the list
            handle.begin(addresses, groups)

    def end_batch(self) -> None:
        """One slice of cleanup and of merging."""
        self._started = True
        self._settle()
        for store in self._stores.values():
            if store.expiry is not None:
                self._clean(store, store.expiry.accesses, self._batch)
                store.expiry.accesses = 0
        self.maintain(min(_MERGE_ENTRIES + self._batch, _MERGE_LIMIT))
        self._batch = 0

    def key_selected(self) -> None:
        """One key was selected: cleanup per record."""
        self._started = True
        for store in self._stores.values():
            if store.expiry is not None:
                self._clean(store, 0, 1)

    def _clean(self, store: _Store, accesses: int, records: int) -> None:
        """Check the entries that accesses and records are owed (SPEC R2.5 c)."""
        assert store.expiry is not None
        assert store.cleaner is not None
        size = store.expiry.config.cleanup.incremental_size()
        if size is not None:
            entries, per_record = size
            owed = entries * (accesses + (records if per_record else 0))
            if owed:
                store.cleaner.step(min(owed, _CLEANUP_ENTRIES), store.expiry.clock())

    def background_cleanup(self, budget_entries: int) -> int:
        """Check entries of every state with background cleanup, without any access."""
        changed = 0
        for store in self._stores.values():
            if store.expiry is not None and store.expiry.config.cleanup.incremental_size() is not None:
                assert store.cleaner is not None
                checked, found = store.cleaner.step(budget_entries, store.expiry.clock())
                budget_entries -= checked
                changed += found
        return changed

    def maintain(self, budget_entries: int) -> bool:
        """Fold what snapshots left in overlays back into the tables."""
        left = budget_entries
        for store in self._all_stores():
            left = store.table.merge(left)
            if left <= 0:
                return True
        return False

    def _all_stores(self) -> list[_Store]:
        return [*self._stores.values(), self._timer_store, self._raw_store]

    # --- snapshots ---

    def snapshot(self, checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> SnapshotRun:
        """Freeze all tables; what is written from now on is not in the snapshot."""
        self._started = True
        self._settle()
        self.maintain(_IDLE_MERGE_ENTRIES)  # so that a job without records does not pile up layers
        history = self._history
        history.sequence += 1
        stores = self._all_stores()
        live_entries = sum(store.table.base_size() for store in stores)
        states = [self._freeze(store) for store in stores]
        if history.tracking:
            layers = {
                id(store): store.table.changes_in(state.frozen) for store, state in zip(stores, states, strict=True)
            }
            history.generations.append(Generation(history.sequence, layers))
        base = self._base_for(kind, live_entries)
        if base is not None:
            changes = history.changes_since(base)
            for store, state in zip(stores, states, strict=True):
                state.changes = [one.layers[id(store)] for one in changes if id(store) in one.layers]
        payload = f"{self.setup.instance}-{checkpoint_id}-{self.setup.key_groups.start}-{self.setup.key_groups.end}"
        if kind is not SnapshotKind.SAVEPOINT and history.outgrown(live_entries):
            history.forget()  # else aborted checkpoints would pile their changes up
        taken = self._remember(checkpoint_id, kind, base, payload)
        restored = [] if base is not None else [one for sections in self._restored.values() for one in sections]
        run = HashMapSnapshot(states, restored, self._describe(checkpoint_id), payload, base, taken)
        self._runs = [one for one in self._runs if one.status == "running"] + [run]
        return run

    def _freeze(self, store: _Store) -> FrozenState:
        frozen, cursor = store.table.freeze()
        groups = self.setup.key_groups
        state = FrozenState(store.meta, store.codec, store.table, cursor, range(groups.start, groups.end + 1), frozen)
        pruning, expiry = store.pruning, store.expiry
        if pruning is not None and expiry is not None and expiry.config.cleanup.full_snapshot:
            now = expiry.clock()
            state.left = lambda stored: pruning.in_snapshot(stored, now)
        return state

    def _base_for(self, kind: SnapshotKind, live_entries: int) -> Taken | None:
        if not self.setup.incremental or kind is not SnapshotKind.CHECKPOINT:
            return None
        return self._history.base_for(live_entries)

    def _remember(self, checkpoint_id: int, kind: SnapshotKind, base: Taken | None, payload: str) -> Taken | None:
        """Note a checkpoint that later ones may build on, and keep changes apart from now on."""
        if not self.setup.incremental or kind is SnapshotKind.SAVEPOINT:
            return None
        history = self._history
        if not history.tracking:
            for store in self._all_stores():
                store.table.tracking = True  # the freeze has put the overlays in place
        payloads = frozenset([payload]) | (frozenset() if base is None else base.payloads)
        return history.add(checkpoint_id, payloads)

    def _describe(self, checkpoint_id: int) -> KeyedStateHandle:
        setup = self.setup
        return KeyedStateHandle(
            self.name,
            checkpoint_id,
            setup.max_parallelism,
            setup.key_groups.start,
            setup.key_groups.end,
            TypeMeta.of(setup.key_type),
        )

    def notify_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is confirmed: changes up to it need not be kept."""
        self._history.confirm(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint is given up: its changes stay for the next one."""
        for run in self._runs:
            if run.checkpoint_id == checkpoint_id:
                run.cancel()
        self._runs = [run for run in self._runs if run.status == "running"]
        self._history.abort(checkpoint_id)
        if not self._history.tracking:
            self._forget_bases()

    def _forget_bases(self) -> None:
        self._history.forget()
        for store in self._all_stores():
            store.table.stop_tracking()

    # --- restore ---

    def restore(
        self, handles: Iterable[KeyedStateHandle], read: ReadPayload = read_inline, *, claim: bool = False
    ) -> None:
        """Take over what lies in this subtask's key groups; states are decoded when they are asked for."""
        if self._started:
            raise IllegalState(f"operator '{self.setup.operator}': restore() must come before the first use of state")
        self._started = True
        handles = list(handles)
        for handle in handles:
            check_restorable(self.setup, self.name, handle)
            check_key_type(self.setup.operator, handle.key_type.type_info(), self.setup.key_type)
            self._restore_handle(handle, read)
        self._timers.reload()
        if claim and handles and self.setup.incremental:
            self._claim(handles)

    def restored_metas(self) -> list[StateMeta]:
        """The states that were restored and not asked for yet."""
        return [metas[0] for metas in self._restored_metas.values()]

    def _restore_handle(self, handle: KeyedStateHandle, read: ReadPayload) -> None:
        wanted = KeyGroupRange(handle.first_group, handle.last_group).intersect(self.setup.key_groups)
        for segment in handle.segments:
            groups = KeyGroupRange(segment.first_group, segment.last_group).intersect(wanted)
            for part in segment.states:
                meta = part.meta
                for group, offset, length, crc32 in part.table:
                    if group in groups:
                        what = f"state '{meta.name}', key group {group} of checkpoint {segment.checkpoint_id}"
                        data = checked_read(read, segment.payload, offset, length, crc32, what)
                        self._restore_section(RestoredSection(meta, group, data, crc32))
                if meta.kind not in _INTERNAL:
                    self._restored_metas.setdefault(meta.name, []).append(meta)

    def _restore_section(self, section: RestoredSection) -> None:
        internal = {"timers": self._timer_store, "raw": self._raw_store}.get(section.meta.kind)
        if internal is None:
            self._restored.setdefault(section.meta.name, []).append(section)
            return
        meta = section.meta
        reader = SectionReader(self.setup.operator, meta, internal.key_type, internal.meta, 0)
        internal.table.load(reader.read(section.data), section.group)

    def _claim(self, handles: list[KeyedStateHandle]) -> None:
        ids = {handle.checkpoint_id for handle in handles}
        if len(ids) != 1:
            raise InvalidArgument(
                f"operator '{self.setup.operator}': cannot claim several checkpoints {sorted(ids)} at once"
            )
        self._history.adopt(handles, self.setup.key_groups)
        for store in self._all_stores():
            store.table.track()

    def dispose(self) -> None:
        """Drop all state."""
        for run in self._runs:
            run.cancel()
        self._runs.clear()
        self._forget_bases()
        for store in self._all_stores():
            store.table.clear()
        self._restored.clear()
        self.clear_current_key()


def _in_tables(setup: BackendSetup, columns: ColumnTable) -> Any:
    """The content of columns as dict tables."""
    table = StateTable(setup.key_groups, setup.max_parallelism)
    frozen, cursor = columns.freeze()
    for group in setup.key_groups:
        table.tables[group].update(frozen[group])
    columns.release(cursor)
    return table


def _is_number(type_info: TypeInformation) -> bool:
    if type_info.kind != "scalar":
        return False
    arrow = type_info.arrow_type
    return bool(pa.types.is_integer(arrow) or pa.types.is_float32(arrow) or pa.types.is_float64(arrow))


def _is_int(type_info: TypeInformation) -> bool:
    return type_info.kind == "scalar" and bool(pa.types.is_signed_integer(type_info.arrow_type))
