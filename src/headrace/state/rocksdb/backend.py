"""The rocksdb backend: keyed state in a local RocksDB, larger than memory (SPEC R7.2 - R7.4).

keys.py, codec.py            bytes of row keys and values
store.py                     the database; one memory budget for all backends of a process
tables.py, lists_maps.py     a state: rows, and changes that are not written yet
numbers.py                   a state of numbers under integer keys: blocks or rows, and columns of entries in use
blocks.py                    entries that are written together and read together
writeback.py                 when and how changes become rows
snapshots.py, increments.py  files of a snapshot, and those that need not be stored again
restoring.py                 a database from files of snapshots
cleanup.py                   expired rows are deleted
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta
from headrace.errors import IllegalState
from headrace.records.copying import copier
from headrace.state.api import DirectValueState, State, ValueStateDescriptor
from headrace.state.backend import (
    INTERNAL_KINDS,
    TIMER_TABLE,
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
from headrace.state.local_directory import LocalDirectory
from headrace.state.rocksdb.blocks import Blocks, blocks_name
from headrace.state.rocksdb.cleanup import Sweeper
from headrace.state.rocksdb.codec import StoredCodec, codec_for
from headrace.state.rocksdb.increments import FIRST_STAMP, FileCheckpoint, Span, Uploads
from headrace.state.rocksdb.keys import RowKeys
from headrace.state.rocksdb.lists_maps import ListRows, MapRows
from headrace.state.rocksdb.numbers import CachedColumns, NumberRows
from headrace.state.rocksdb.restoring import RestoredStore, StoredColumn, pack_columns, rewrite
from headrace.state.rocksdb.snapshots import RocksDBSnapshot
from headrace.state.rocksdb.store import Column, MemoryBudget, Store
from headrace.state.rocksdb.tables import RowSpace, StateRows, ValueRows
from headrace.state.rocksdb.writeback import BATCH_ROWS, WriteBack
from headrace.state.schema import TypeChange, check_state
from headrace.state.tables import AddressedTable
from headrace.state.timers import TimeDomain
from headrace.state.ttl import Expiry
from headrace.state.ttl_config import CompactFilter

_UPKEEP_SELECTIONS = 1024  # keys selected one by one, as timers do, between checks of the memory
_WIDE_RANGE = 1024  # with more key groups, counting changes takes too long for each batch
_WIDE_BATCHES = 16
_PROBED_ROWS = 100
_ROWS: dict[str, type[ListRows | MapRows]] = {"list": ListRows, "map": MapRows}
_SWEEP_CHANGES = 20_000  # changes that may be written before a sweep begins: about 30 ms


class RocksDBBackend(KeyedStateBackend):
    """Keyed state in a local database.

    >>> from headrace.records.key_groups import KeyGroupRange
    >>> backend = RocksDBBackend(BackendSetup("count", KeyGroupRange(0, 127), 128, clock=lambda: 0))
    >>> count = backend.state(ValueStateDescriptor("count", "bigint"))
    >>> backend.set_current_key("a")
    >>> count.update(1)
    >>> handle = backend.snapshot(1).finish()
    >>> sorted(file.name.rpartition(".")[2][:8] for file in handle.files)
    ['CURRENT', 'MANIFEST', 'sst']
    >>> backend.dispose()
    """

    name = "rocksdb"
    returns_stored_objects = False

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self._directory = LocalDirectory(setup.directory)
        self._budget = MemoryBudget.shared()
        self._opened: Store | None = None
        self._disposed = False
        self._space = RowSpace(RowKeys(setup.max_parallelism), setup.key_groups)
        self._writeback = WriteBack(self._budget)
        self._uploads = Uploads()
        self._snapshots = 0
        self._states: dict[str, ValueRows | ListRows | MapRows | NumberRows] = {}  # by name of the column
        self._values: dict[str, ColumnValue] = {}  # the handles of numbers, by name of the column
        self._column_values = ColumnValues()
        self._sweepers: list[Sweeper] = []
        self._restored: list[StoredColumn] = []  # columns of states that are not opened yet
        self._loaded: dict[str, Blocks] = {}  # those of `load_numbers`, by name of the column
        self._batch = self._batches = self._selections = 0
        self._in_batch = False

    @property
    def _store(self) -> Store:
        """The database, which is opened when it is first needed."""
        if self._opened is None:
            if self._disposed:
                raise IllegalState(f"operator '{self.setup.operator}': the state backend was disposed of")
            self._opened = Store(self._directory.path / "db", self._budget)
        return self._opened

    # --- states ---

    def open_table(self, meta: StateMeta, expiry: Expiry | None = None) -> ValueRows | ListRows | MapRows | ColumnValue:
        name = table_name(meta)
        if name not in self._states:
            self._open_rows(meta, expiry)
        rows = self._states[name]
        if name in self._values:
            return self._values[name]
        assert not isinstance(rows, NumberRows)
        return rows

    def _open_rows(self, meta: StateMeta, expiry: Expiry | None) -> None:
        self._started = True
        codec = self._codec(meta)
        self._load_restored(meta, codec)
        column = self._store.column(table_name(meta))
        dtype = number_type(meta, self.setup.key_type)
        if dtype is None:
            self._open_entries(meta, column, codec, expiry)
        else:
            blocks = Blocks(self._store, column.name, dtype, self._space)
            self._open_numbers(NumberRows(meta, column, codec, self._space, dtype, blocks, self._share_of_state()))
        # Not before: if this fails, the state stays in checkpoints.
        self._restored = [one for one in self._restored if table_name(one.meta) != column.name]
        self._writeback.adjust(list(self._states.values()))

    def _share_of_state(self) -> int:
        """Return the memory for the entries of one more state, in bytes."""
        users, states = {*self._budget.users, self}, {*self._states, *(table_name(one.meta) for one in self._restored)}
        return self._budget.cache_size // len(users) // max(1, len(states))

    def _open_entries(self, meta: StateMeta, column: Column, codec: StoredCodec, expiry: Expiry | None) -> None:
        rows = _ROWS.get(meta.kind, ValueRows)(meta, column, codec, self._space)
        self._states[column.name] = rows
        if expiry is not None:
            requested = expiry.config.cleanup.compact_filter or CompactFilter()
            self._sweepers.append(Sweeper(rows, expiry, requested.query_entries or self.setup.ttl_query_entries))
            period = self.setup.ttl_compaction_ms if requested.compaction_ms is None else requested.compaction_ms
            if period:
                column.compact_periodically(period)

    def _open_numbers(self, rows: NumberRows) -> None:
        meta, name = rows.meta, rows.column.name

        def use_entries(handle: ColumnValue) -> ValueRows:
            self._writeback.finish_all()  # may fail, and the state is as it was then
            if rows.in_blocks:
                self._write_as_rows(rows)
            self._column_values.remove(handle)
            entries = ValueRows(meta, rows.column, rows.codec, self._space)
            rows.move_to(entries)
            self._states[name] = entries
            return entries

        where, value_type = f"operator '{self.setup.operator}', state '{meta.name}'", meta.value_type.type_info()
        handle = ColumnValue(meta.name, where, value_type, rows.columns, self.context, self.key_group_of, use_entries)
        self._states[name], self._values[name] = rows, handle
        self._column_values.add(handle)

    def _write_as_rows(self, rows: NumberRows) -> None:
        """Write all entries of a state in blocks as rows, now."""
        rows.leave_blocks()
        self._writeback.cut(self._store, [rows])
        self._writeback.finish_all()

    def _codec(self, meta: StateMeta) -> StoredCodec:
        where = f"operator '{self.setup.operator}', state '{meta.name}'"
        values = codec_for(meta.value_type.type_info(), where)
        return StoredCodec(values, stamped=meta.ttl, nullable=meta.kind == "map")

    def _load_restored(self, meta: StateMeta, codec: StoredCodec) -> None:
        """Check what was restored under a state's name, and convert it to the present form."""
        main = table_name(meta)
        found = [one for one in self._restored if table_name(one.meta) == main]
        changes = [
            check_state(self.setup.operator, one.meta, meta, migrate_ttl=self.setup.migrate_ttl) for one in found
        ]
        for one, change in zip(found, changes, strict=True):
            if change is not TypeChange.AS_IS or one.column != main:
                self._writeback.finish_all()  # a running snapshot holds the old form
                self._blocks_to_rows(one)
                source, target = self._store.column(one.column), self._store.column(main)
                rewrite(
                    self._store, source, target, self._codec(one.meta), codec, self._space.bounds(), self.setup.clock()
                )
                if source is not target:
                    self._store.drop_column(one.column)
                    if blocks_name(one.column) in self._store.columns:
                        self._store.drop_column(blocks_name(one.column))
                kept = [other for other in self._restored if other is not one and other.column != main]
                self._restored = [*kept, StoredColumn(main, meta)]
            else:
                self._probe(self._store.column(main), codec)

    def _blocks_to_rows(self, one: StoredColumn) -> None:
        """Make blocks of a restored state rows of its column, in the form in which they were stored."""
        dtype = number_type(one.meta, self.setup.key_type)
        if dtype is not None:
            blocks = Blocks(self._store, one.column, dtype, self._space)
            blocks.to_rows(self._store.column(one.column), self._codec(one.meta))

    def _probe(self, column: Column, codec: StoredCodec) -> None:
        """Read a few rows, so that a missing class is an error now and not in the middle of the stream."""
        for _, data in islice(column.scan(*self._space.bounds(), keep=False), _PROBED_ROWS):
            codec.open(codec.load(data))

    def value_handle(self, descriptor: ValueStateDescriptor, table: AddressedTable) -> State:
        if isinstance(table, ColumnValue):
            table.default = descriptor.default
            return table
        assert isinstance(table, ValueRows)
        reuse = self.setup.object_reuse and copier(descriptor.type) is not None
        # Typed values of plain types are cached as they are, any other as bytes.
        immutable = descriptor.type.is_typed and bool(table.plain)
        return DirectValueState(descriptor, self.context, table, reuse=reuse, immutable=immutable)

    def column_table(self, descriptor: ValueStateDescriptor) -> CachedColumns | None:
        self._column_values.flush()
        self.open_table(descriptor.meta())
        rows = self._states[f"s:{descriptor.name}"]
        return rows.columns if isinstance(rows, NumberRows) else None

    def addresses(self, name: str) -> Iterator[tuple[int, Any]]:
        self._column_values.flush()
        rows = self._states.get(f"s:{name}")
        return iter(()) if rows is None else rows.addresses()

    def number_groups(self, meta: StateMeta) -> Iterator[NumberGroup] | None:
        dtype = number_type(meta, self.setup.key_type)
        if dtype is None:
            return None
        blocks = self._restored_blocks(meta, dtype)
        if blocks is not None:
            return blocks.read()
        self.open_table(meta)
        self._column_values.flush()
        rows = self._states[table_name(meta)]
        return None if rows.has_pending() else rows.number_groups(dtype)

    def _restored_blocks(self, meta: StateMeta, dtype: np.dtype[Any]) -> Blocks | None:
        """The blocks of a state that is not opened, if it has nothing else, so that they can be read without opening it."""
        found = [one for one in self._restored if table_name(one.meta) == table_name(meta)]
        if [one.meta for one in found] != [meta]:
            return None
        blocks = Blocks(self._store, found[0].column, dtype, self._space)
        rows = self._store.column(found[0].column).scan_keys(*self._space.bounds(), keep=False)
        return blocks if not blocks.is_empty() and next(rows, None) is None else None

    def load_numbers(self, meta: StateMeta, columns: KeysAndNumbers, groups: npt.NDArray[Any]) -> bool:
        name, dtype = table_name(meta), number_type(meta, self.setup.key_type)
        if dtype is None or name in self._states:
            return False
        if name not in self._loaded:
            if name in [table_name(one.meta) for one in self._restored]:
                return False
            # As if it had been restored so: nothing is in memory before the state is opened.
            self._loaded[name] = Blocks(self._store, name, dtype, self._space)
            self._restored.append(StoredColumn(name, meta))
            self._started = True
        self._loaded[name].load(columns, groups)
        return True

    def has_entry(self, name: str, group: int, address: Any) -> bool:
        handle, rows = self._values.get(f"s:{name}"), self._states[f"s:{name}"]
        if isinstance(rows, NumberRows) and type(address) is not int:
            return rows.has_row(group, address)
        return rows.has(group, address) if handle is None else handle.has(group, address)

    # --- batches and maintenance ---

    def begin_batch(self, addresses: Sequence[Any], groups: Sequence[int], arrays: KeyArrays | None = None) -> None:
        """Read the values of the batch's keys, if the batch before had to read many rows."""
        self._batch, self._in_batch = len(addresses), True
        self._column_values.begin(addresses, groups, arrays)
        for rows in self._states.values():
            often, rows.reads = rows.reads * 16 > self._batch, 0
            if often and isinstance(rows, ValueRows):
                rows.prefetch(addresses, groups)

    def end_batch(self) -> None:
        """Write changes back if there are many, and a slice of earlier cuts."""
        self._started = True
        self._column_values.flush()
        self._upkeep(self._batch)
        self._batch, self._in_batch = 0, False

    def key_selected(self) -> None:
        """Cleanup per record is for the hashmap backend only (SPEC R2.5 c)."""
        self._started = True
        self._selections += 1
        if self._selections % _UPKEEP_SELECTIONS == 0 and not self._in_batch:
            self._column_values.flush()
            self._upkeep(_UPKEEP_SELECTIONS)

    def _upkeep(self, records: int) -> None:
        self._batches += 1
        wide = len(self.setup.key_groups) > _WIDE_RANGE
        states = list(self._states.values())
        for rows in states:
            rows.settle_reads()
        if (not wide or self._batches % _WIDE_BATCHES == 0) and self._adjust():
            self._writeback.cut(self._store, states)
        if self._writeback.pending:
            # Faster than records make new changes, so that cuts do not pile up.
            self._writeback.step(max(BATCH_ROWS, 2 * records))

    def _adjust(self) -> bool:
        """Fit the states into this backend's share of the memory; returns whether a cut is due."""
        self._budget.users.add(self)  # not one that is only opened to be read
        return self._writeback.adjust(list(self._states.values()))

    def background_cleanup(self, budget_entries: int) -> int:
        now = self.setup.clock()
        active = [sweeper for sweeper in self._sweepers if sweeper.enabled]
        written = False
        if any(sweeper.begins(now) for sweeper in active):
            written = self._write_for_sweep()
        if self._writeback.held:
            return 0  # an earlier snapshot must not miss what is removed now
        changed = 0
        for sweeper in active:
            checked, found = sweeper.step(self._store, budget_entries, self.setup.clock, written=written)
            budget_entries -= checked
            changed += found
            if budget_entries <= 0:
                break
        self._sweepers = self._sweepers[1:] + self._sweepers[:1]  # so that a large state does not delay others
        return changed

    def _write_for_sweep(self) -> bool:
        """Write changes to the database before a sweep begins; returns whether all are written."""
        states = list(self._states.values())
        self._writeback.finish_all()
        if sum(rows.weight() for rows in states) <= _SWEEP_CHANGES:
            self._writeback.cut(self._store, states)
            self._writeback.step(2 * _SWEEP_CHANGES)
        return not self._writeback.pending and not any(rows.weight() for rows in states)

    def maintain(self, budget_entries: int) -> bool:
        return self._writeback.step(budget_entries)

    def figures(self) -> dict[str, float]:
        return {} if self._opened is None else self._opened.figures()

    # --- snapshots ---

    def snapshot(self, checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> SnapshotRun:
        self._started = True
        self._column_values.flush()
        self._snapshots += 1
        setup = self.setup
        shared = setup.incremental and kind is not SnapshotKind.SAVEPOINT
        base = self._uploads.base() if shared and kind is SnapshotKind.CHECKPOINT else None
        time = setup.clock()
        columns = self._stored_columns(time, base)
        if not columns:
            return self._add_run(SnapshotRun(checkpoint_id))
        dead = {one.column: one.dead for one in columns if one.dead}
        if shared:
            self._uploads.begin(checkpoint_id, base)
        run = RocksDBSnapshot(
            self._describe(checkpoint_id),
            self._payload_name(checkpoint_id),
            {} if base is None else base.files,
            (lambda files: self._uploads.add(checkpoint_id, FileCheckpoint(time, files, dead))) if shared else None,
            lambda: pack_columns(columns, self._space.sequence, time),
            self._directory.path / f"snapshot-{self._snapshots}",
            self._store,
            self._writeback,
            list(self._states.values()),
        )
        return self._add_run(run)

    def _stored_columns(self, time: int, base: FileCheckpoint | None) -> list[StoredColumn]:
        """The columns of a snapshot: open states, those that were only restored, and internal ones with entries."""
        columns = list(self._restored)
        for name, rows in self._states.items():
            if rows.meta.kind in INTERNAL_KINDS and self._is_empty(rows):
                continue
            expiry = self._expiries.get(rows.meta.name) if rows.meta.ttl else None
            dead: list[Span] = []
            if expiry is not None and expiry.config.cleanup.full_snapshot:
                cutoff = max(FIRST_STAMP, time - expiry.ttl)
                dead = [(FIRST_STAMP, cutoff)] if base is None else base.spans(name, cutoff)
            columns.append(StoredColumn(name, rows.meta, dead))
        return columns

    def _is_empty(self, rows: StateRows) -> bool:
        if rows.meta.kind == TIMER_TABLE.kind:
            return not any(self.timers.count(domain) for domain in TimeDomain)  # known without reading them
        return next(rows.addresses(), None) is None

    def notify_complete(self, checkpoint_id: int) -> None:
        """Later checkpoints may refer to the files of this one."""
        self._uploads.complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        super().notify_aborted(checkpoint_id)
        self._uploads.abort(checkpoint_id)

    # --- restore ---

    def restore_handles(self, handles: list[KeyedStateHandle], read: ReadPayload, *, claim: bool) -> None:
        restored = RestoredStore(self.setup, self._budget, self._directory.path, handles, read)
        self._opened = restored.store
        self._restored = restored.columns
        self._space.sequence = restored.sequence
        if claim:
            self._uploads.add(handles[0].checkpoint_id, FileCheckpoint(restored.time, restored.files))
            self._uploads.complete(handles[0].checkpoint_id)

    def restored_forms(self) -> list[list[StateMeta]]:
        forms: dict[str, list[StateMeta]] = {}
        for one in self._restored:
            forms.setdefault(table_name(one.meta), []).append(one.meta)
        return list(forms.values())

    def dispose(self) -> None:
        if self._disposed:
            return
        self._disposed = True
        super().dispose()
        self._states.clear()
        self._sweepers.clear()
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self._budget.users.discard(self)
        self._directory.remove()
