"""The rocksdb backend: keyed state in a local RocksDB, larger than memory (SPEC R7.2 - R7.4).

keys.py, values.py           bytes of rows
store.py                     the database; one memory budget for all of a process
rows.py, lists_maps.py       a state: rows, and changes that are not written yet
writeback.py                 when and how changes become rows
snapshots.py, restoring.py   files out and in
cleanup.py                   expired rows leave the disk
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from headgate.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta, TypeMeta, read_inline
from headgate.errors import IllegalState, InvalidArgument
from headgate.records.types import as_type
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
from headgate.state.hashmap.cells import TtlValueTable
from headgate.state.rocksdb.cells import (
    ReusedValue,
    RowListCell,
    RowMapCell,
    RowTimerStore,
    RowValue,
    RowValueCell,
    RowValueTable,
)
from headgate.state.rocksdb.cleanup import Sweeper
from headgate.state.rocksdb.directory import LocalDirectory
from headgate.state.rocksdb.keys import RowKeys
from headgate.state.rocksdb.lists_maps import ListRows, MapRows, Sequencer
from headgate.state.rocksdb.restoring import INTERNAL, StoredColumn, column_name, pack_extra, restore_store, rewrite
from headgate.state.rocksdb.rows import Ground, StateRows, ValueRows
from headgate.state.rocksdb.snapshots import FIRST_STAMP, RocksDBSnapshot, Span, Taken, Uploads
from headgate.state.rocksdb.store import Column, MemoryBudget, Store
from headgate.state.rocksdb.values import StoredCodec, codec_for
from headgate.state.rocksdb.writeback import BATCH_ROWS, WriteBack
from headgate.state.schema import Verdict, check_key_type, check_state
from headgate.state.timers import TIMERS, TimeDomain, Timers
from headgate.state.ttl_config import CompactFilter

__all__ = ["RocksDBBackend"]

_RAW = "_raw"
_UPKEEP_SELECTIONS = 1024  # keys selected one by one, as timers do, between looks at the memory
_WIDE_RANGE = 1024  # key groups from which on counting changes takes too long for each batch
_WIDE_BATCHES = 16
_PROBED_ROWS = 100
_SWEEP_CHANGES = 20_000  # changes that a sweep may write at once before it begins: about 30 ms


class RocksDBBackend(KeyedStateBackend):
    """Keyed state in a local database.

    >>> from headgate.records.key_groups import KeyGroupRange
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

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self._directory = LocalDirectory(setup.directory)
        self._budget = MemoryBudget.shared()
        self._budget.enter(self)
        self._opened: Store | None = None
        self._disposed = False
        self._ground = Ground(RowKeys(setup.max_parallelism), setup.key_groups)
        self._sequencer = Sequencer()
        self._writeback = WriteBack(self._budget)
        self._uploads = Uploads()
        self._runs: list[RocksDBSnapshot] = []
        self._snapshots = 0
        self._states: dict[str, StateRows] = {}  # by name of the column
        self._sweepers: list[Sweeper] = []
        self._restored: list[StoredColumn] = []  # columns that nobody has asked for yet
        self._started = False
        self._batch = self._batches = self._selections = 0
        self._timers = Timers(RowTimerStore(self._timer_rows))

    @property
    def _store(self) -> Store:
        """The database, made when it is first needed."""
        if self._opened is None:
            if self._disposed:
                raise IllegalState(f"operator '{self.setup.operator}': the state backend was disposed of")
            self._opened = Store(self._directory.path / "db", self._budget)
        return self._opened

    # --- states ---

    @property
    def timers(self) -> Timers:
        """The timers of this operator."""
        return self._timers

    def _timer_rows(self) -> ValueRows:
        return self._internal(StateSpec(TIMERS, "timers", as_type("bigint")))

    def _raw_rows(self) -> ValueRows:
        return self._internal(StateSpec(_RAW, "raw", as_type("binary")))

    def _internal(self, spec: StateSpec) -> ValueRows:
        found = self._states.get(f"i:{spec.name}")
        if found is None:
            found = self._open_rows(spec)
        assert isinstance(found, ValueRows)
        return found

    def open_cell(self, spec: StateSpec) -> Cell:
        """Make the rows of a state, or adopt what was restored under its name."""
        rows = self._states.get(f"s:{spec.name}")
        if rows is None:
            rows = self._open_rows(spec)
            expiry = self.expiry_of(spec)
            if expiry is not None:
                asked = expiry.config.cleanup.compact_filter or CompactFilter()
                self._sweepers.append(Sweeper(rows, expiry, asked.query_entries or self.setup.ttl_query_entries))
                period = self.setup.ttl_compaction_ms if asked.compaction_ms is None else asked.compaction_ms
                if period:
                    rows.column.compact_periodically(period)
        if isinstance(rows, ListRows):
            return RowListCell(spec.name, self.context, rows)
        if isinstance(rows, MapRows):
            return RowMapCell(spec.name, self.context, rows)
        assert isinstance(rows, ValueRows)
        return RowValueCell(spec.name, self.context, rows)

    def _open_rows(self, spec: StateSpec) -> StateRows:
        self._started = True
        meta = spec.meta()
        codec = self._codec(meta)
        self._adopt(meta, codec)
        column = self._store.column(column_name(meta))
        rows: StateRows
        if spec.kind == "list":
            rows = ListRows(meta, column, codec, self._ground, self._sequencer)
        elif spec.kind == "map":
            rows = MapRows(meta, column, codec, self._ground)
        else:
            rows = ValueRows(meta, column, codec, self._ground)
        self._states[column.name] = rows
        return rows

    def _codec(self, meta: StateMeta) -> StoredCodec:
        where = f"operator '{self.setup.operator}', state '{meta.name}'"
        values = codec_for(meta.value_type.type_info(), where)
        return StoredCodec(values, stamped=meta.ttl, nullable=meta.kind == "map")

    def _adopt(self, meta: StateMeta, codec: StoredCodec) -> None:
        """Check what was restored under a state's name, and bring it into the form that is asked for now."""
        main = column_name(meta)
        found = [one for one in self._restored if column_name(one.meta) == main]
        verdicts = [
            check_state(self.setup.operator, one.meta, meta, migrate_ttl=self.setup.migrate_ttl) for one in found
        ]
        for one, verdict in zip(found, verdicts, strict=True):
            if verdict is not Verdict.AS_IS or one.column != main:
                self._writeback.finish_all()  # a snapshot on its way holds the old form
                source, target = self._store.column(one.column), self._store.column(main)
                rewrite(self._store, source, target, self._codec(one.meta), codec, self._bounds(), self.setup.clock())
                if source is not target:
                    self._store.drop_column(one.column)
            else:
                self._probe(self._store.column(main), codec)
        self._restored = [one for one in self._restored if one not in found]

    def _probe(self, column: Column, codec: StoredCodec) -> None:
        """Read a few rows, so that a class that is gone is found now and not in the middle of the stream."""
        for _, data in islice(column.scan(*self._bounds(), keep=False), _PROBED_ROWS):
            codec.open(codec.load(data))

    def _bounds(self) -> tuple[bytes, bytes]:
        keys, groups = self._ground.keys, self._ground.groups
        return keys.prefix(groups.start), keys.prefix(groups.end + 1)

    def make_handle(self, descriptor: StateDescriptor, spec: StateSpec, cell: Cell) -> State:
        """The handle of a state; value state without time to live skips the cell."""
        if spec.ttl is None and isinstance(descriptor, ValueStateDescriptor):
            rows = self._states[f"s:{spec.name}"]
            assert isinstance(rows, ValueRows)
            mutable = copier(spec.value_type, object_reuse=False) is not None
            kind = ReusedValue if self.setup.object_reuse and mutable else RowValue
            return kind(spec.name, rows, self.context, descriptor.default)
        # Cells hand out what is the caller's alone: with a type that needs no copies, the handle makes none.
        return super().make_handle(descriptor, replace(spec, value_type=as_type("bigint")), cell)

    def value_table(self, descriptor: ValueStateDescriptor) -> ValueTable:
        """A value state for many keys at once."""
        self.state(descriptor)
        rows = self._states[f"s:{descriptor.name}"]
        assert isinstance(rows, ValueRows)
        table = RowValueTable(rows)
        expiry = self._expiries.get(descriptor.name)
        return table if expiry is None else TtlValueTable(table, expiry)

    def addresses(self, name: str) -> Iterator[tuple[int, Any]]:
        """(group, address) of every entry of a state."""
        rows = self._states.get(f"s:{name}")
        return iter(()) if rows is None else rows.addresses()

    def has_entry(self, name: str, group: int, address: Any) -> bool:
        """Whether a state has an entry at an address."""
        return self._states[f"s:{name}"].has(group, address)

    def entry_count(self, name: str) -> int:
        """How many entries a state has; this reads all row keys."""
        return sum(1 for _ in self.addresses(name))

    def put_raw(self, group: int, data: bytes) -> None:
        """Store opaque bytes for a key group."""
        self.check_group(group, "(raw state)")
        rows = self._raw_rows()
        if data:
            rows.tables[group][group] = bytes(data)  # an address belongs to one group, so the group is the address
        else:
            rows.remove(group, group)

    def raw(self, group: int) -> bytes | None:
        """The opaque bytes of a key group."""
        self.check_group(group, "(raw state)")
        data: bytes | None = self._raw_rows().tables[group][group] if self._has_raw() else None
        return data

    def raw_groups(self) -> list[int]:
        """The key groups that have opaque bytes."""
        return sorted(group for group, _ in self._raw_rows().addresses()) if self._has_raw() else []

    def _has_raw(self) -> bool:
        return f"i:{_RAW}" in self._states or any(one.column == f"i:{_RAW}" for one in self._restored)

    # --- batches and upkeep ---

    def begin_batch(self, addresses: Sequence[Any], groups: Sequence[int]) -> None:
        """Read what the batch will ask for, if the one before had to read much."""
        self._batch = len(addresses)
        for rows in self._states.values():
            often, rows.reads = rows.reads * 16 > self._batch, 0
            if often and isinstance(rows, ValueRows):
                rows.prefetch(addresses, groups)

    def end_batch(self) -> None:
        """Write changes back if they are many, and a slice of those that were cut off before."""
        self._started = True
        self._upkeep(self._batch)
        self._batch = 0

    def key_selected(self) -> None:
        """One key was selected; cleanup per record is for the hashmap backend only (SPEC R2.5 c)."""
        self._started = True
        self._selections += 1
        if self._selections % _UPKEEP_SELECTIONS == 0:
            self._upkeep(_UPKEEP_SELECTIONS)

    def _upkeep(self, records: int) -> None:
        self._batches += 1
        wide = len(self.setup.key_groups) > _WIDE_RANGE
        states = list(self._states.values())
        if (not wide or self._batches % _WIDE_BATCHES == 0) and self._writeback.adjust(states):
            self._writeback.cut(self._store, states)
        if self._writeback.pending:
            # Quicker than records make new changes, so that cuts do not pile up.
            self._writeback.step(max(BATCH_ROWS, 2 * records))

    def background_cleanup(self, budget_entries: int) -> int:
        """Sweep rows of states with background cleanup, without any access."""
        now = self.setup.clock()
        active = [sweeper for sweeper in self._sweepers if sweeper.enabled]
        written = False
        if any(sweeper.begins(now) for sweeper in active):
            written = self._write_for_sweep()
        if self._writeback.held:
            return 0  # what is removed now must not be missing in a snapshot of before
        changed = 0
        for sweeper in active:
            checked, found = sweeper.step(self._store, budget_entries, self.setup.clock, written=written)
            budget_entries -= checked
            changed += found
            if budget_entries <= 0:
                break
        self._sweepers = self._sweepers[1:] + self._sweepers[:1]  # so that a large state does not keep others waiting
        return changed

    def _write_for_sweep(self) -> bool:
        """Bring changes into the database before a sweep begins; whether all are there."""
        states = list(self._states.values())
        self._writeback.finish_all()
        if sum(rows.weight() for rows in states) <= _SWEEP_CHANGES:
            self._writeback.cut(self._store, states)
            self._writeback.step(2 * _SWEEP_CHANGES)
        return not self._writeback.pending and not any(rows.weight() for rows in states)

    def maintain(self, budget_entries: int) -> bool:
        """Write changes that were cut off."""
        return self._writeback.step(budget_entries)

    # --- snapshots ---

    def snapshot(self, checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> SnapshotRun:
        """Freeze all changes; what is written from now on is not in the snapshot."""
        self._started = True
        self._snapshots += 1
        setup, groups = self.setup, self.setup.key_groups
        shared = setup.incremental and kind is not SnapshotKind.SAVEPOINT
        base = self._uploads.base() if shared and kind is SnapshotKind.CHECKPOINT else None
        time = setup.clock()
        columns = self._stored_columns(time, base)
        dead = {one.column: one.dead for one in columns if one.dead}
        describe = KeyedStateHandle(
            self.name, checkpoint_id, setup.max_parallelism, groups.start, groups.end, TypeMeta.of(setup.key_type)
        )
        run = RocksDBSnapshot(
            describe if columns else None,
            checkpoint_id,
            f"{setup.instance}-{checkpoint_id}-{groups.start}-{groups.end}",
            {} if base is None else base.files,
            (lambda files: self._uploads.add(checkpoint_id, Taken(time, files, dead))) if shared else None,
        )
        if columns:
            cut = self._writeback.cut(self._store, list(self._states.values()), run.materialise)
            directory = self._directory.path / f"snapshot-{self._snapshots}"
            extra = lambda: pack_extra(columns, self._sequencer.next, time)  # noqa: E731
            run.start(self._store, self._writeback, cut, directory, extra)
        self._runs = [one for one in self._runs if one.status == "running"] + [run]
        return run

    def _stored_columns(self, time: int, base: Taken | None) -> list[StoredColumn]:
        """What a snapshot holds: states that were asked for, those that were only restored, and timers if there are any."""
        columns = list(self._restored)
        for name, rows in self._states.items():
            if rows.meta.kind in INTERNAL and self._is_empty(rows):
                continue
            expiry = self._expiries.get(rows.meta.name) if rows.meta.ttl else None
            dead: list[Span] = []
            if expiry is not None and expiry.config.cleanup.full_snapshot:
                cutoff = max(FIRST_STAMP, time - expiry.ttl)
                dead = [(FIRST_STAMP, cutoff)] if base is None else base.spans(name, cutoff)
            columns.append(StoredColumn(name, rows.meta, dead))
        return columns

    def _is_empty(self, rows: StateRows) -> bool:
        if rows.meta.name == TIMERS:
            return not any(self._timers.count(domain) for domain in TimeDomain)  # known without reading them
        return next(rows.addresses(), None) is None

    def notify_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is confirmed: its files may be referred to."""
        self._uploads.complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint is given up: its files are forgotten."""
        for run in self._runs:
            if run.checkpoint_id == checkpoint_id:
                run.cancel()
        self._uploads.abort(checkpoint_id)

    # --- restore ---

    def restore(
        self, handles: Iterable[KeyedStateHandle], read: ReadPayload = read_inline, *, claim: bool = False
    ) -> None:
        """Take over what lies in this subtask's key groups; states are checked when they are asked for."""
        if self._started:
            raise IllegalState(f"operator '{self.setup.operator}': restore() must come before the first use of state")
        self._started = True
        handles = list(handles)
        for handle in handles:
            check_restorable(self.setup, self.name, handle)
            check_key_type(self.setup.operator, handle.key_type.type_info(), self.setup.key_type)
        ids = {handle.checkpoint_id for handle in handles}
        if claim and len(ids) > 1:
            raise InvalidArgument(
                f"operator '{self.setup.operator}': cannot claim several checkpoints {sorted(ids)} at once"
            )
        if not handles:
            return
        restored = restore_store(self.setup, self._budget, self._directory.path, handles, read)
        self._opened = restored.store
        self._restored = restored.columns
        self._sequencer.next = restored.sequence
        if claim and self.setup.incremental:
            self._uploads.add(handles[0].checkpoint_id, Taken(restored.time, restored.files))
            self._uploads.complete(handles[0].checkpoint_id)
        if any(one.meta.kind in INTERNAL and one.meta.name == TIMERS for one in self._restored):
            self._timers.reload()

    def restored_metas(self) -> list[StateMeta]:
        """The states that were restored and not asked for yet."""
        return list({one.meta.name: one.meta for one in self._restored if one.meta.kind not in INTERNAL}.values())

    def dispose(self) -> None:
        """Close the database and remove the local directory."""
        if self._disposed:
            return
        self._disposed = True
        for run in self._runs:
            run.cancel()
        self._runs.clear()
        self._states.clear()
        self._sweepers.clear()
        self.clear_current_key()
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self._budget.leave(self)
        self._directory.remove()
