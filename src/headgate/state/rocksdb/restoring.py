"""From files of snapshots to a database with this subtask's key groups (SPEC R3.4, R7.3).

It runs in the subtask's thread, before the first record. The database of the snapshot that overlaps most is opened as it
is, and the rows of other key groups are deleted; of the other snapshots the rows of this subtask's key groups are copied.
Below a third of overlap, copying is faster than deleting.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.checkpoint.handles import KeyedStateHandle, ReadPayload, StateMeta
from headgate.records.key_groups import KeyGroupRange
from headgate.state.backend import INTERNAL_KINDS, BackendSetup
from headgate.state.local_directory import download
from headgate.state.rocksdb.codec import STAMP_BYTES, StoredCodec, pack_stamp
from headgate.state.rocksdb.increments import FIRST_STAMP, Files, Span
from headgate.state.rocksdb.keys import RowKeys
from headgate.state.rocksdb.store import Column, MemoryBudget, Store
from headgate.state.schema import migrate_batch

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


def column_name(meta: StateMeta) -> str:
    """The column family of a state; never RocksDB's own, whatever the state is called."""
    return f"{'i' if meta.kind in INTERNAL_KINDS else 's'}:{meta.name}"


class _Columns(msgspec.Struct, frozen=True):
    columns: list[StoredColumn]
    sequence: int
    time: int


def pack_columns(columns: list[StoredColumn], sequence: int, time: int) -> dict[str, Any]:
    """The `extra` of a handle; `sequence` is the next number of a list element."""
    built: dict[str, Any] = msgspec.to_builtins(_Columns(columns, sequence, time), builtin_types=(bytes,))
    return built


@dataclass(slots=True)
class RestoredStore:
    """A database made of snapshots."""

    store: Store
    columns: list[StoredColumn] = field(default_factory=list)
    sequence: int = 0
    time: int = FIRST_STAMP
    files: Files = field(default_factory=dict)  # those of a snapshot that are used unchanged

    def target(self, meta: StateMeta) -> str:
        """The column for rows of a state in one form; a state may have several until it is opened."""
        same = next((one.column for one in self.columns if one.meta == meta), None)
        if same is not None:
            return same
        names = {one.column for one in self.columns}
        name = column_name(meta)
        number = 1
        while name in names:
            number += 1
            name = f"{number}{column_name(meta)}"
        self.columns.append(StoredColumn(name, meta))
        return name


def restore_store(
    setup: BackendSetup, budget: MemoryBudget, directory: Path, handles: list[KeyedStateHandle], read: ReadPayload
) -> RestoredStore:
    """A database in `directory / "db"` with the rows of the setup's key groups."""
    groups = setup.key_groups
    overlapping = [handle for handle in handles if len(_range(handle).intersect(groups))]
    base = max(overlapping, key=lambda handle: _overlap(handle, groups), default=None)
    keys = RowKeys(setup.max_parallelism)
    if base is not None and _overlap(base, groups) >= _MIN_OVERLAP:
        _download(base, read, directory / "db")
        restored = _open(base, Store(directory / "db", budget))
        _delete_foreign(restored.store, keys, _range(base), groups)
        _remove_expired(restored, restored.columns, keys, _range(base).intersect(groups))
        restored.columns = [StoredColumn(one.column, one.meta) for one in restored.columns]
        restored.files = {file.name: file for file in base.files if file.shared}
        overlapping = [handle for handle in overlapping if handle is not base]
    else:
        restored = RestoredStore(Store(directory / "db", budget))
    for handle in overlapping:
        _copy(handle, read, directory, budget, keys, groups, restored)
    return restored


def _range(handle: KeyedStateHandle) -> KeyGroupRange:
    return KeyGroupRange(handle.first_group, handle.last_group)


def _overlap(handle: KeyedStateHandle, groups: KeyGroupRange) -> float:
    return len(_range(handle).intersect(groups)) / len(_range(handle))


def _open(handle: KeyedStateHandle, store: Store) -> RestoredStore:
    extra = msgspec.convert(handle.extra, _Columns)
    known = {one.column for one in extra.columns}
    for name in [name for name in store.columns if name not in known]:
        store.drop_column(name)  # created between the barrier and the checkpoint, and empty
    return RestoredStore(store, list(extra.columns), extra.sequence, extra.time)


def _delete_foreign(store: Store, keys: RowKeys, old: KeyGroupRange, new: KeyGroupRange) -> None:
    for column in store.columns.values():
        if old.start < new.start:
            column.drop_range(keys.prefix(old.start), keys.prefix(new.start))
        if old.end > new.end:
            column.drop_range(keys.prefix(new.end + 1), keys.prefix(old.end + 1))


def _copy(
    handle: KeyedStateHandle,
    read: ReadPayload,
    directory: Path,
    budget: MemoryBudget,
    keys: RowKeys,
    groups: KeyGroupRange,
    restored: RestoredStore,
) -> None:
    common = _range(handle).intersect(groups)
    scratch = directory / "restoring"
    _download(handle, read, scratch / "db")
    source = Store(scratch / "db", budget, read_only=True)
    extra = msgspec.convert(handle.extra, _Columns)
    restored.sequence = max(restored.sequence, extra.sequence)
    restored.time = max(restored.time, extra.time)
    for one in extra.columns:
        target = restored.store.column(restored.target(one.meta))
        target.import_range(
            source.columns[one.column], keys.prefix(common.start), keys.prefix(common.end + 1), scratch, budget
        )
    source.close()
    shutil.rmtree(scratch)
    _remove_expired(restored, extra.columns, keys, common)


def _remove_expired(restored: RestoredStore, columns: list[StoredColumn], keys: RowKeys, groups: KeyGroupRange) -> None:
    """Remove the rows that were expired in a snapshot; of a list only the expired head."""
    for one in columns:
        if not one.dead:
            continue
        column = restored.store.columns[restored.target(one.meta)]
        spans = [(pack_stamp(after), pack_stamp(last)) for after, last in one.dead]
        batch = column.batch()
        live = b""  # the list whose first live element was seen
        for key, data in column.scan(keys.prefix(groups.start), keys.prefix(groups.end + 1), keep=False):
            base = key[:-_SEQUENCE_BYTES] if one.meta.kind == "list" else key
            if not any(after < data[:STAMP_BYTES] <= last for after, last in spans):
                live = base
            elif base != live:
                batch.delete(key)
            if len(batch) >= _REWRITE_ROWS:
                restored.store.write(batch)
                batch = column.batch()
        restored.store.write(batch)


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
