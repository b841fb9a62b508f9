"""The asynchronous part of a hashmap snapshot: frozen tables become bytes, a few milliseconds at a time.

Work is cut by entries, never by a clock: a chunk has as many entries as the last ones suggest will make about a quarter
of a megabyte, and a step ends when a chunk's worth of entries is written, over as many key groups as that takes.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from headgate.checkpoint.handles import GroupTable, KeyedStateHandle, Payload, Segment, StateMeta, StateSlice
from headgate.errors import IllegalState
from headgate.state.backend import SnapshotRun
from headgate.state.hashmap.codec import ChunkCodec
from headgate.state.hashmap.columns import Chunk, ColumnChanges, FrozenColumns
from headgate.state.hashmap.increments import Taken, changed_entries
from headgate.state.hashmap.tables import Cursor, StateTable, Table, view

__all__ = ["FrozenState", "HashMapSnapshot", "RestoredSection"]

_Rows: TypeAlias = tuple[list[Any], list[Any], list[Any]]  # addresses, what they store, removed addresses

_MAX_ROWS = 4096
_MIN_ROWS = 16
_SMALL_CHUNK, _LARGE_CHUNK = 128 * 1024, 512 * 1024
_COLUMN_ROWS = 1 << 15
_ROWS_PER_GROUP = 4  # even an empty group is work


@dataclass(frozen=True, slots=True)
class RestoredSection:
    """Bytes of a restored state that nobody has asked for yet: one key group of one old segment."""

    meta: StateMeta
    group: int
    data: bytes
    crc32: int


@dataclass(slots=True)
class FrozenState:
    """One state as a snapshot sees it: the frozen tables, or the layers of changes, newest first."""

    meta: StateMeta
    codec: ChunkCodec
    table: StateTable
    cursor: Cursor
    groups: range
    frozen: list[Table] | FrozenColumns
    changes: list[list[Table] | ColumnChanges] | None = None
    left: Callable[[Any], Any] | None = None  # what of a stored value is written; None: it is expired

    def chunks(self, group: int, rows: Callable[[], int]) -> Iterator[_Rows]:
        """What to write for a group, in chunks of about as many rows as `rows()` says."""
        if self.changes is not None:
            return self._mixed_chunks(changed_entries([tables[group] for tables in self.changes]), rows)
        table = self.frozen[group]
        if self.left is None and type(table) is dict and not self._is_nested:
            return _plain_chunks(table, rows)
        return self._mixed_chunks(view(table), rows)

    def columns(self, group: int) -> Chunk | None:
        """What to write for a group as columns; None if the state is no columns, or several layers must be merged."""
        if self.changes is None:
            return self.frozen.chunk(group) if isinstance(self.frozen, FrozenColumns) else None
        layers = self.changes
        return layers[0].chunk(group) if len(layers) == 1 and isinstance(layers[0], ColumnChanges) else None

    @property
    def _is_nested(self) -> bool:
        return self.meta.kind in {"list", "map"}

    def weight(self, stored: list[Any]) -> int:
        """How many rows of a column these make."""
        return sum(map(len, stored)) if self._is_nested else len(stored)

    def _mixed_chunks(self, entries: Iterator[tuple[Any, Any]], rows: Callable[[], int]) -> Iterator[_Rows]:
        while taken := self._take(entries, rows()):
            if self.left is not None:
                left = self.left
                taken = [(address, None if stored is None else left(stored)) for address, stored in taken]
            live = [entry for entry in taken if entry[1] is not None]
            removed = [] if self.changes is None else [address for address, stored in taken if stored is None]
            yield [address for address, _ in live], [stored for _, stored in live], removed

    def _take(self, entries: Iterator[tuple[Any, Any]], rows: int) -> list[tuple[Any, Any]]:
        """The next entries; a list or map makes as many rows as it has elements."""
        if not self._is_nested:
            return list(islice(entries, rows))
        taken = []
        for entry in entries:
            taken.append(entry)
            rows -= 1 if entry[1] is None else len(entry[1])
            if rows <= 0:
                break
        return taken


def _plain_chunks(table: Table, rows: Callable[[], int]) -> Iterator[_Rows]:
    """The quick way for most state: no object is made for an entry."""
    addresses, stored = iter(table), iter(table.values())
    while taken := list(islice(addresses, rows())):
        yield taken, list(islice(stored, len(taken))), []


@dataclass(slots=True)
class _Writer:
    """Where the bytes of a snapshot go, and what has been written."""

    payload: str
    offset: int = 0
    taken: int = 0
    crc32: int = 0
    slices: list[StateSlice] = field(default_factory=list)
    pending: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.pending.append(data)
        self.offset += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def is_large(self) -> bool:
        return self.offset - self.taken >= _LARGE_CHUNK

    def take(self) -> tuple[str, bytes]:
        data = b"".join(self.pending)
        self.pending.clear()
        self.taken = self.offset
        return self.payload, data


class HashMapSnapshot(SnapshotRun):
    """A running snapshot of a hashmap backend."""

    def __init__(
        self,
        states: list[FrozenState],
        restored: list[RestoredSection],
        describe: KeyedStateHandle,
        payload: str,
        base: Taken | None,
        taken: Taken | None,
    ) -> None:
        self.checkpoint_id = describe.checkpoint_id
        self._states = states
        self._restored = restored
        self._describe = describe
        self._base = base
        self._taken = taken
        self._writer = _Writer(payload)
        self._rows = _MAX_ROWS // 4
        self._steps = self._work()
        self._handle: KeyedStateHandle | None = None
        self._stepping = threading.Lock()
        self.status = "running"

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
            self._release_cancelled()  # by another thread, which could not while this one took its step

    @property
    def handle(self) -> KeyedStateHandle | None:
        """What the snapshot left; None if there is no state at all."""
        if self.status != "done":
            raise IllegalState(f"snapshot {self.checkpoint_id} is {self.status}: iterate it to its end first")
        return self._handle

    def cancel(self) -> None:
        """Stop, and release the tables; another thread may be in the middle of a step, then it does."""
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
        self._states = []  # a run that is done keeps no state alive
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
            columns = state.columns(group)
            if columns is not None:
                for frame in _frames(state.codec, columns):
                    crc32 = zlib.crc32(frame, crc32)
                    writer.write(frame)
                    if writer.is_large():
                        yield writer.take()
            for addresses, stored, removed in () if columns is not None else state.chunks(group, lambda: self._rows):
                if addresses or removed:
                    frame = self._encode(state, addresses, stored, removed)
                    crc32 = zlib.crc32(frame, crc32)
                    writer.write(frame)
                work += state.weight(stored) + len(removed)
                if work >= self._rows or writer.is_large():
                    work = 0
                    yield writer.take()
            if writer.offset > start:
                _add_row(table, group, start, writer.offset - start, crc32)
            state.cursor.at = group + 1
            work += _ROWS_PER_GROUP
            if work >= self._rows:
                work = 0
                yield writer.take()
        if table.groups or state.meta.kind not in {"timers", "raw"}:
            writer.slices.append(StateSlice(state.meta, table))

    def _encode(self, state: FrozenState, addresses: list[Any], stored: list[Any], removed: list[Any]) -> bytes:
        frame = state.codec.encode(addresses, stored, removed)
        if len(frame) > _LARGE_CHUNK:
            self._rows = max(_MIN_ROWS, self._rows // 2)
        elif len(frame) < _SMALL_CHUNK:
            self._rows = min(_MAX_ROWS, self._rows * 2)
        return frame

    def _write_restored(self) -> Iterator[tuple[str, bytes]]:
        """Pass on, as it is, what was restored and never asked for (SPEC R1.10)."""
        writer = self._writer
        tables: dict[int, GroupTable] = {}
        for section in self._restored:
            if id(section.meta) not in tables:
                tables[id(section.meta)] = GroupTable([], [], [], [])
                writer.slices.append(StateSlice(section.meta, tables[id(section.meta)]))
            _add_row(tables[id(section.meta)], section.group, writer.offset, len(section.data), section.crc32)
            writer.write(section.data)
            if writer.is_large():
                yield writer.take()

    def _make_handle(self) -> KeyedStateHandle | None:
        writer, base = self._writer, self._base
        segments = [] if base is None or base.segments is None else list(base.segments)
        if writer.offset or (base is None and writer.slices):
            payload = Payload(writer.payload, writer.offset, writer.crc32)
            first, last = self._describe.first_group, self._describe.last_group
            segments.append(Segment(self.checkpoint_id, base is not None, first, last, payload, writer.slices))
        if self._taken is not None:
            self._taken.segments = segments
        return replace_segments(self._describe, segments) if segments else None


def _frames(codec: ChunkCodec, columns: Chunk) -> Iterator[bytes]:
    keys, values, removed = columns
    for at in range(0, len(keys), _COLUMN_ROWS):
        yield codec.encode_columns(keys[at : at + _COLUMN_ROWS], values[at : at + _COLUMN_ROWS], ())
    if len(removed):
        yield codec.encode_columns(keys[:0], values[:0], removed)


def replace_segments(describe: KeyedStateHandle, segments: list[Segment]) -> KeyedStateHandle:
    """The same description with these segments."""
    return KeyedStateHandle(
        describe.backend,
        describe.checkpoint_id,
        describe.max_parallelism,
        describe.first_group,
        describe.last_group,
        describe.key_type,
        segments,
    )


def _add_row(table: GroupTable, group: int, offset: int, length: int, crc32: int) -> None:
    table.groups.append(group)
    table.offsets.append(offset)
    table.lengths.append(length)
    table.crcs.append(crc32)
