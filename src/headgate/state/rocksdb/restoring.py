"""From files of snapshots to a database with this subtask's key groups (SPEC R3.4, R7.3).

The database of the snapshot that overlaps most is opened as it is, and what does not belong here is cut off; of the others
the rows that belong here are copied. Below a third of overlap, copying is quicker than cutting off.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.checkpoint.handles import CorruptState, KeyedStateHandle, ReadPayload, StateMeta
from headgate.records.key_groups import KeyGroupRange
from headgate.state.backend import BackendSetup
from headgate.state.rocksdb.keys import RowKeys
from headgate.state.rocksdb.snapshots import FIRST_STAMP, Files, Span
from headgate.state.rocksdb.store import Column, MemoryBudget, Store
from headgate.state.rocksdb.values import STAMP_BYTES, StoredCodec, pack_stamp
from headgate.state.schema import migrate_batch

__all__ = ["INTERNAL", "Restored", "StoredColumn", "column_name", "pack_extra", "restore_store", "rewrite"]

_READ_BYTES: Final = 4 << 20
_REWRITE_ROWS: Final = 2048
_SEQUENCE_BYTES: Final = 8
_WORTH_CUTTING: Final = 1 / 3


class StoredColumn(msgspec.Struct, frozen=True):
    """A column family of a snapshot, and the form its rows have.

    Rows whose stamp lies in a span of `dead` were expired when the snapshot was taken, and are not part of it (R2.5 b).
    """

    column: str
    meta: StateMeta
    dead: list[Span] = []


INTERNAL: Final = frozenset(["timers", "raw"])
"""Kinds of state that no descriptor can name."""


def column_name(meta: StateMeta) -> str:
    """The column family of a state; never RocksDB's own, whatever the state is called."""
    return f"{'i' if meta.kind in INTERNAL else 's'}:{meta.name}"


class _Extra(msgspec.Struct, frozen=True):
    columns: list[StoredColumn]
    sequence: int
    time: int


def pack_extra(columns: list[StoredColumn], sequence: int, time: int) -> dict[str, Any]:
    """What a handle remembers: what the columns hold, the next number of a list element, the time of the snapshot."""
    built: dict[str, Any] = msgspec.to_builtins(_Extra(columns, sequence, time), builtin_types=(bytes,))
    return built


@dataclass(slots=True)
class Restored:
    """A database made of snapshots."""

    store: Store
    columns: list[StoredColumn] = field(default_factory=list)
    sequence: int = 0
    time: int = FIRST_STAMP
    files: Files = field(default_factory=dict)  # those of a snapshot that are in use as they are

    def target(self, meta: StateMeta) -> str:
        """The column for rows of a state in one form; states may come in several, until they are asked for."""
        same = next((one.column for one in self.columns if one.meta == meta), None)
        if same is not None:
            return same
        taken = {one.column for one in self.columns}
        name = column_name(meta)
        number = 1
        while name in taken:
            number += 1
            name = f"{number}{column_name(meta)}"
        self.columns.append(StoredColumn(name, meta))
        return name


def restore_store(
    setup: BackendSetup, budget: MemoryBudget, directory: Path, handles: list[KeyedStateHandle], read: ReadPayload
) -> Restored:
    """A database in `directory / "db"` with what the handles hold of the setup's key groups."""
    groups = setup.key_groups
    overlapping = [handle for handle in handles if len(_range(handle).intersect(groups))]
    base = max(overlapping, key=lambda handle: _overlap(handle, groups), default=None)
    keys = RowKeys(setup.max_parallelism)
    if base is not None and _overlap(base, groups) >= _WORTH_CUTTING:
        _download(base, read, directory / "db")
        restored = _open(base, Store(directory / "db", budget))
        _cut_off(restored.store, keys, _range(base), groups)
        _leave_out(restored, restored.columns, keys, _range(base).intersect(groups))
        restored.columns = [StoredColumn(one.column, one.meta) for one in restored.columns]
        restored.files = {file.name: file for file in base.files if file.shared}
        overlapping = [handle for handle in overlapping if handle is not base]
    else:
        restored = Restored(Store(directory / "db", budget))
    for handle in overlapping:
        _copy(handle, read, directory, budget, keys, groups, restored)
    return restored


def _range(handle: KeyedStateHandle) -> KeyGroupRange:
    return KeyGroupRange(handle.first_group, handle.last_group)


def _overlap(handle: KeyedStateHandle, groups: KeyGroupRange) -> float:
    return len(_range(handle).intersect(groups)) / len(_range(handle))


def _open(handle: KeyedStateHandle, store: Store) -> Restored:
    extra = msgspec.convert(handle.extra, _Extra)
    known = {one.column for one in extra.columns}
    for name in [name for name in store.columns if name not in known]:
        store.drop_column(name)  # made between the barrier and the checkpoint, and empty
    return Restored(store, list(extra.columns), extra.sequence, extra.time)


def _cut_off(store: Store, keys: RowKeys, old: KeyGroupRange, new: KeyGroupRange) -> None:
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
    restored: Restored,
) -> None:
    common = _range(handle).intersect(groups)
    scratch = directory / "restoring"
    _download(handle, read, scratch / "db")
    source = Store(scratch / "db", budget, read_only=True)
    extra = msgspec.convert(handle.extra, _Extra)
    restored.sequence = max(restored.sequence, extra.sequence)
    restored.time = max(restored.time, extra.time)
    for one in extra.columns:
        target = restored.store.column(restored.target(one.meta))
        target.import_range(
            source.columns[one.column], keys.prefix(common.start), keys.prefix(common.end + 1), scratch, budget
        )
    source.close()
    shutil.rmtree(scratch)
    _leave_out(restored, extra.columns, keys, common)


def _leave_out(restored: Restored, columns: list[StoredColumn], keys: RowKeys, groups: KeyGroupRange) -> None:
    """Remove what was expired in a snapshot; of a list only the dead head."""
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
        payload = file.payload
        assert Path(file.name).name == file.name, f"{file.name} is not the name of a file"
        crc32 = size = 0
        with (target / file.name).open("wb") as out:
            while size < payload.size and (data := read(payload, size, min(_READ_BYTES, payload.size - size))):
                out.write(data)
                size += len(data)
                crc32 = zlib.crc32(data, crc32)
        if size != payload.size or crc32 != payload.crc32:
            raise CorruptState(
                f"file '{file.name}' of checkpoint {handle.checkpoint_id} is damaged: payload '{payload.id}' does not match "
                "its checksum; restore from an older checkpoint or savepoint"
            )


def rewrite(
    store: Store,
    source: Column,
    target: Column,
    old: StoredCodec,
    new: StoredCodec,
    bounds: tuple[bytes, bytes],
    now: int,
) -> None:
    """Bring the rows of a state into the form that its descriptor asks for now (SPEC R7.3, R2.7).

    A time to live that is new starts now; one that is gone leaves all values, dead ones too.
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
