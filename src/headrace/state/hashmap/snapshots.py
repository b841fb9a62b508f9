"""The asynchronous part of a hashmap snapshot: frozen tables become bytes, a few milliseconds at a time.

It runs in the thread that writes the snapshot. Work is divided by entries, never by a clock: a chunk has as many entries
as the last ones suggest will make about a quarter of a megabyte, and a step ends when a chunk's worth of entries is
written, over as many key groups as that takes.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from headrace.checkpoint.handles import GroupTable, KeyedStateHandle, Payload, Segment, StateMeta, StateSlice
from headrace.records.key_groups import KeyGroupRange
from headrace.state.backend import INTERNAL_KINDS, SnapshotRun
from headrace.state.hashmap.codec import ChunkCodec
from headrace.state.hashmap.columns import Chunk, ColumnChanges, FrozenColumns, FrozenTable, HashMapTable, TableChanges
from headrace.state.hashmap.increments import SegmentCheckpoint
from headrace.state.hashmap.restoring import RestoredSlice
from headrace.state.hashmap.tables import Cursor, Table, newest_entries, view

_Entries: TypeAlias = tuple[list[Any], list[Any], list[Any]]  # addresses, their stored values, removed addresses

_MAX_ROWS = 4096
_MIN_ROWS = 16
_SMALL_CHUNK, _LARGE_CHUNK = 128 * 1024, 512 * 1024
_COLUMN_ROWS = 1 << 15
_ROWS_PER_GROUP = 4  # even an empty group is work


@dataclass(slots=True)
class FrozenState:
    """The frozen content of one state, and for an increment the changes since its base, newest first."""

    meta: StateMeta
    codec: ChunkCodec
    table: HashMapTable
    cursor: Cursor
    groups: KeyGroupRange
    frozen: FrozenTable
    changes: list[TableChanges] | None = None
    left: Callable[[Any], Any] | None = None  # gives the part of a stored value that is not expired, or None

    def chunks(self, group: int, rows: Callable[[], int]) -> Iterator[_Entries]:
        """Return the entries to write for a group, in chunks of about `rows()` rows."""
        if self.changes is not None:
            return self._mixed_chunks(newest_entries([tables[group] for tables in self.changes]), rows)
        table = self.frozen[group]
        if self.left is None and isinstance(table, dict) and not self._is_nested:
            return _plain_chunks(table, rows)
        return self._mixed_chunks(view(table), rows)

    def columns(self, group: int) -> Chunk | None:
        """Return the columns to write for a group; None if the state has none, or several layers must be merged."""
        if self.changes is None:
            return self.frozen.chunk(group) if isinstance(self.frozen, FrozenColumns) else None
        layers = self.changes
        return layers[0].chunk(group) if len(layers) == 1 and isinstance(layers[0], ColumnChanges) else None

    @property
    def _is_nested(self) -> bool:
        return self.meta.kind in {"list", "map"}

    def weight(self, stored: list[Any]) -> int:
        """Return the number of column rows of these values."""
        return sum(map(len, stored)) if self._is_nested else len(stored)

    def _mixed_chunks(self, entries: Iterator[tuple[Any, Any]], rows: Callable[[], int]) -> Iterator[_Entries]:
        while some := self._next(entries, rows()):
            if self.left is not None:
                left = self.left
                some = [(address, None if stored is None else left(stored)) for address, stored in some]
            live = [entry for entry in some if entry[1] is not None]
            removed = [] if self.changes is None else [address for address, stored in some if stored is None]
            yield [address for address, _ in live], [stored for _, stored in live], removed

    def _next(self, entries: Iterator[tuple[Any, Any]], rows: int) -> list[tuple[Any, Any]]:
        """Return the next entries; a list or map makes as many rows as it has elements."""
        if not self._is_nested:
            return list(islice(entries, rows))
        some = []
        for entry in entries:
            some.append(entry)
            rows -= 1 if entry[1] is None else len(entry[1])
            if rows <= 0:
                break
        return some


def _plain_chunks(table: Table, rows: Callable[[], int]) -> Iterator[_Entries]:
    """The fast path for most state: no object is made for an entry."""
    addresses, stored = iter(table), iter(table.values())
    while some := list(islice(addresses, rows())):
        yield some, list(islice(stored, len(some))), []


@dataclass(slots=True)
class _PayloadWriter:
    """The bytes of a snapshot's payload that were written, and those that the next step yields."""

    payload: str
    offset: int = 0
    crc32: int = 0
    slices: list[StateSlice] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)

    def write(self, data: bytes) -> None:
        self.pending += data
        self.offset += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def take(self) -> tuple[str, bytes]:
        data, self.pending = bytes(self.pending), bytearray()
        return self.payload, data


class HashMapSnapshot(SnapshotRun):
    """A running snapshot of a hashmap backend; `checkpoint` records it if later ones may build on it."""

    def __init__(
        self,
        states: list[FrozenState],
        restored: list[RestoredSlice],
        description: KeyedStateHandle,
        payload: str,
        base: SegmentCheckpoint | None,
        checkpoint: SegmentCheckpoint | None,
    ) -> None:
        super().__init__(description.checkpoint_id)
        self._states = states
        self._restored = restored
        self._description = description
        self._base = base
        self._checkpoint = checkpoint
        self._writer = _PayloadWriter(payload)
        self._rows = _MAX_ROWS // 4
        self._steps: Generator[tuple[str, bytes], None, None] = self._work()
        self._stepping = threading.Lock()

    def __next__(self) -> tuple[str, bytes]:
        try:
            with self._stepping:
                if self.status == "cancelled":
                    raise StopIteration
                return next(self._steps)
        except StopIteration:
            raise
        except BaseException:
            self.cancel()
            raise
        finally:
            self._release_cancelled()  # if another thread cancelled during this step

    def cancel(self) -> None:
        """Stop and release the tables; if another thread is in the middle of a step, that thread releases them."""
        if self.status == "running":
            self.status = "cancelled"
            self._release_cancelled()

    def _release_cancelled(self) -> None:
        if self.status == "cancelled" and self._stepping.acquire(blocking=False):
            with closing(self._steps):
                for state in self._states:
                    state.table.release(state.cursor)
                self._states = []
            self._stepping.release()

    def _work(self) -> Generator[tuple[str, bytes], None, None]:
        for state in self._states:
            yield from self._write_state(state)
            state.table.release(state.cursor)
        self._states = []  # a finished run keeps no state alive
        yield from self._write_restored()
        if self._writer.pending:
            yield self._writer.take()
        self._handle = self._make_handle()
        self.status = "done"

    def _write_state(self, state: FrozenState) -> Iterator[tuple[str, bytes]]:
        writer = self._writer
        table = GroupTable([], [], [], [])
        work = 0
        for group in state.groups:
            start, crc32 = writer.offset, 0
            for frame, rows in self._frames(state, group):
                crc32 = zlib.crc32(frame, crc32)
                writer.write(frame)
                work += rows
                if work >= self._rows or len(writer.pending) >= _LARGE_CHUNK:
                    work = 0
                    yield writer.take()
            if writer.offset > start:
                _add_row(table, group, start, writer.offset - start, crc32)
            state.cursor.at = group + 1
            work += _ROWS_PER_GROUP
            if work >= self._rows:
                work = 0
                yield writer.take()
        if table.groups or state.meta.kind not in INTERNAL_KINDS:
            writer.slices.append(StateSlice(state.meta, table))

    def _frames(self, state: FrozenState, group: int) -> Iterator[tuple[bytes, int]]:
        """Yield the bytes of a group, and the number of rows that count as work."""
        columns = state.columns(group)
        if columns is not None:
            keys, values, removed = columns
            for at in range(0, len(keys), _COLUMN_ROWS):
                some = slice(at, at + _COLUMN_ROWS)
                yield state.codec.encode_columns(keys[some], values[some], ()), 0
            if len(removed):
                yield state.codec.encode_columns(keys[:0], values[:0], removed), 0
            return
        for addresses, stored, gone in state.chunks(group, lambda: self._rows):
            frame = state.codec.encode(addresses, stored, gone) if addresses or gone else b""
            if len(frame) > _LARGE_CHUNK:
                self._rows = max(_MIN_ROWS, self._rows // 2)
            elif frame and len(frame) < _SMALL_CHUNK:
                self._rows = min(_MAX_ROWS, self._rows * 2)
            yield frame, state.weight(stored) + len(gone)

    def _write_restored(self) -> Iterator[tuple[str, bytes]]:
        """Write the bytes of restored state that was never opened (SPEC R1.10)."""
        writer = self._writer
        for restored in self._restored:
            table = GroupTable([], [], [], [])
            writer.slices.append(StateSlice(restored.meta, table))
            for group, data, crc32 in restored.sections:
                _add_row(table, group, writer.offset, len(data), crc32)
                writer.write(data)
                if len(writer.pending) >= _LARGE_CHUNK:
                    yield writer.take()

    def _make_handle(self) -> KeyedStateHandle | None:
        writer, base, description = self._writer, self._base, self._description
        segments = [] if base is None or base.segments is None else list(base.segments)
        if writer.offset or (base is None and writer.slices):
            payload = Payload(writer.payload, writer.offset, writer.crc32)
            groups = description.first_group, description.last_group
            segments.append(Segment(self.checkpoint_id, base is not None, *groups, payload, writer.slices))
        if self._checkpoint is not None:
            self._checkpoint.segments = segments
        return msgspec.structs.replace(description, segments=segments) if segments else None


def _add_row(table: GroupTable, group: int, offset: int, length: int, crc32: int) -> None:
    table.groups.append(group)
    table.offsets.append(offset)
    table.lengths.append(length)
    table.crcs.append(crc32)
