"""From files of snapshots to a database with this subtask's key groups (SPEC R3.4, R7.3).

It runs in the subtask's thread, before the first record. The database of the snapshot that overlaps most is opened as it
is, and the rows of other key groups are deleted; of the other snapshots the rows of this subtask's key groups are copied.
Below a third of overlap, copying is faster than deleting.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta
from headrace.records.key_groups import KeyGroupRange
from headrace.state.backend import BackendSetup, table_name
from headrace.state.local_directory import download
from headrace.state.rocksdb.blocks import blocks_name
from headrace.state.rocksdb.codec import STAMP_BYTES, StoredCodec, pack_stamp
from headrace.state.rocksdb.increments import FIRST_STAMP, Files, Span
from headrace.state.rocksdb.keys import RowKeys
from headrace.state.rocksdb.store import Column, MemoryBudget, Store
from headrace.state.schema import migrate_batch

_REWRITE_ROWS: Final = 2048
_SEQUENCE_BYTES: Final = 8
_MIN_OVERLAP: Final = 1 / 3


class StoredColumn(msgspec.Struct, frozen=True):
    """A column family of a snapshot, and the form of its rows.

    Rows with a stamp in a span of `dead` were expired when the snapshot was taken, and are not part of it (R2.5 b).
    """

    column: str
    meta: StateMeta
    dead: list[Span] = []


class _Columns(msgspec.Struct, frozen=True):
    columns: list[StoredColumn]
    sequence: int
    time: int


def pack_columns(columns: list[StoredColumn], sequence: int, time: int) -> dict[str, Any]:
    """Return the `extra` of a handle; `sequence` is the next number of a list element."""
    built: dict[str, Any] = msgspec.to_builtins(_Columns(columns, sequence, time), builtin_types=(bytes,))
    return built


class RestoredStore:
    """A database in `directory / "db"` with the rows of the setup's key groups, made of snapshots."""

    def __init__(
        self,
        setup: BackendSetup,
        budget: MemoryBudget,
        directory: Path,
        handles: list[KeyedStateHandle],
        read: ReadPayload,
    ) -> None:
        self._budget, self._directory, self._read = budget, directory, read
        self._keys, self._groups = RowKeys(setup.max_parallelism), setup.key_groups
        self.columns: list[StoredColumn] = []
        self.sequence, self.time = 0, FIRST_STAMP
        self.files: Files = {}  # those of a snapshot that are used unchanged
        overlapping = [handle for handle in handles if self._overlap(handle)]
        base = max(overlapping, key=self._overlap, default=None)
        if base is not None and self._overlap(base) < _MIN_OVERLAP:
            base = None
        if base is not None:
            _download(base, read, directory / "db")
        self.store = Store(directory / "db", budget)
        if base is not None:
            self._adopt(base)
        for handle in overlapping:
            if handle is not base:
                self._copy(handle)

    def _overlap(self, handle: KeyedStateHandle) -> float:
        return len(_range(handle).intersect(self._groups)) / len(_range(handle))

    def _adopt(self, handle: KeyedStateHandle) -> None:
        """Make the downloaded database of a snapshot the one of this subtask."""
        extra = msgspec.convert(handle.extra, _Columns)
        self.columns, self.sequence, self.time = extra.columns, extra.sequence, extra.time
        known = {name for one in extra.columns for name in (one.column, blocks_name(one.column))}
        for name in [name for name in self.store.columns if name not in known]:
            self.store.drop_column(name)  # created between the barrier and the checkpoint, and empty
        prefix, old, new = self._keys.prefix, _range(handle), self._groups
        for column in self.store.columns.values():
            column.drop_range(prefix(old.start), prefix(new.start))
            column.drop_range(prefix(new.end + 1), prefix(old.end + 1))
        self._remove_expired(extra.columns, old.intersect(new))
        self.columns = [StoredColumn(one.column, one.meta) for one in extra.columns]
        self.files = {file.name: file for file in handle.files if file.shared}

    def _copy(self, handle: KeyedStateHandle) -> None:
        common = _range(handle).intersect(self._groups)
        bounds = self._keys.prefix(common.start), self._keys.prefix(common.end + 1)
        scratch = self._directory / "restoring"
        _download(handle, self._read, scratch / "db")
        source = Store(scratch / "db", self._budget, read_only=True)
        extra = msgspec.convert(handle.extra, _Columns)
        self.sequence, self.time = max(self.sequence, extra.sequence), max(self.time, extra.time)
        for one in extra.columns:
            target = self._target(one.meta)
            # A state in blocks that was restored and not opened since has no column for rows.
            for name, into in ((one.column, target), (blocks_name(one.column), blocks_name(target))):
                if name in source.columns:
                    self.store.column(into).import_range(source.columns[name], *bounds, scratch, self._budget)
        source.close()
        shutil.rmtree(scratch)
        self._remove_expired(extra.columns, common)

    def _target(self, meta: StateMeta) -> str:
        """Return the column for rows of a state in one form; a state may have several until it is opened."""
        same = next((one.column for one in self.columns if one.meta == meta), None)
        if same is not None:
            return same
        names = {one.column for one in self.columns}
        forms = chain([""], count(2))
        name = next(name for form in forms if (name := f"{form}{table_name(meta)}") not in names)
        self.columns.append(StoredColumn(name, meta))
        return name

    def _remove_expired(self, columns: list[StoredColumn], groups: KeyGroupRange) -> None:
        """Remove the rows that were expired in a snapshot; of a list only the expired head."""
        bounds = self._keys.prefix(groups.start), self._keys.prefix(groups.end + 1)
        for one in columns:
            if not one.dead:
                continue
            column = self.store.columns[self._target(one.meta)]
            spans = [(pack_stamp(after), pack_stamp(last)) for after, last in one.dead]
            batch = column.batch()
            live = b""  # the list whose first live element was seen
            for key, data in column.scan(*bounds, keep=False):
                base = key[:-_SEQUENCE_BYTES] if one.meta.kind == "list" else key
                if not any(after < data[:STAMP_BYTES] <= last for after, last in spans):
                    live = base
                elif base != live:
                    batch.delete(key)
                if len(batch) >= _REWRITE_ROWS:
                    self.store.write(batch)
                    batch = column.batch()
            self.store.write(batch)


def _range(handle: KeyedStateHandle) -> KeyGroupRange:
    return KeyGroupRange(handle.first_group, handle.last_group)


def _download(handle: KeyedStateHandle, read: ReadPayload, target: Path) -> None:
    target.mkdir(parents=True)
    for file in handle.files:
        assert Path(file.name).name == file.name, f"{file.name} is not the name of a file"
        what = f"file '{file.name}' of checkpoint {handle.checkpoint_id}"
        download(read, file.payload, target / file.name, what)


def rewrite(
    store: Store,
    source: Column,
    target: Column,
    old: StoredCodec,
    new: StoredCodec,
    bounds: tuple[bytes, bytes],
    now: int,
) -> None:
    """Convert the rows of a state to the form of its present descriptor (SPEC R7.3, R2.7).

    A time to live that is new starts now; one that was dropped leaves all values, expired ones too.
    """
    rows = source.scan(*bounds, keep=False)
    while chunk := list(islice(rows, _REWRITE_ROWS)):
        stored = [old.open(old.load(data)) for _, data in chunk]
        stamps = [one[1] for one in stored] if old.stamped else [now] * len(stored)
        values = [one[0] for one in stored] if old.stamped else stored
        values = _migrate(values, old, new)
        batch = target.batch()
        for (key, _), value, stamp in zip(chunk, values, stamps, strict=True):
            batch[key] = new.encode(new.keep((value, stamp) if new.stamped else value))
        store.write(batch)


def _migrate(values: list[Any], old: StoredCodec, new: StoredCodec) -> list[Any]:
    before, after = old.values.type, new.values.type
    if before == after or before.schema is None:
        return values
    present = [value for value in values if value is not None]  # only map entries may be None
    migrated: Iterator[Any] = iter(after.to_rows(migrate_batch(before.to_batch(present), after)) if present else [])
    return [None if value is None else next(migrated) for value in values]
