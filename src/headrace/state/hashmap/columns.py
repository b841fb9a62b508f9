"""Columns of numbers as a table of the hashmap backend: what snapshots freeze, and what changed between two of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.state.columns import ColumnTable, Ints, Numbers
from headrace.state.hashmap.tables import Cursor, FrozenLayers, LayerChanges, StateTable, Table


class HashMapColumns(ColumnTable):
    """All entries of a state of numbers."""

    def stop_tracking(self) -> None:
        self._changes_are_taken()
        self._changed = None

    def freeze(self) -> tuple[FrozenColumns, Cursor]:
        """A slot keeps its key, so keys are not copied."""
        changed = None if self._changed is None else np.flatnonzero(self._changed[: self.count])
        self._changes_are_taken()
        count = self.count
        columns = self.keys[:count], self.group_of[:count], self.values[:count].copy(), self.live[:count].copy()
        cursor = Cursor(self._groups.start)
        self._holders.add(cursor)
        return FrozenColumns(*columns, changed, self._holders), cursor

    def release(self, cursor: Cursor) -> None:
        self._holders.discard(cursor)

    def merge(self, budget: int) -> int:
        """Freezing leaves nothing behind."""
        self.grow()
        return budget

    def base_size(self) -> int:
        return self.count

    def load(self, entries: Iterable[tuple[int, Any]], group: int) -> None:
        pairs = dict(entries)
        stored = {key: value for key, value in pairs.items() if value is not None}
        removed = [key for key, value in pairs.items() if value is None]
        keys = np.fromiter(stored, np.int64, len(stored))
        self.load_columns(keys, np.array(list(stored.values()), self.values.dtype), np.array(removed, np.int64), group)

    def load_columns(self, keys: Ints, values: Numbers, removed: Ints, group: int) -> None:
        """Add restored entries of one group; removals are applied first."""
        if len(removed):
            slots = self.find(removed, np.full(len(removed), group, np.int32))
            self.remove(slots[slots >= 0])
        if len(keys):
            slots = self.slots(keys, np.full(len(keys), group, np.int32), 0)  # may replace the columns
            self.values[slots] = values

    def addresses(self, group: int) -> list[Any]:
        mine = self.live[: self.count] & (self.group_of[: self.count] == group)
        keys: list[Any] = self.keys[: self.count][mine].tolist()
        return keys

    def as_dicts(self) -> StateTable:
        """Return a copy of the content as dict tables."""
        table = StateTable(self._groups, len(self._region))
        frozen, cursor = self.freeze()
        for group in self._groups:
            table.tables[group].update(frozen[group])
        self.release(cursor)
        return table

    def clear(self) -> None:
        self._allocate(self.values.dtype)


HashMapTable: TypeAlias = StateTable | HashMapColumns
Chunk: TypeAlias = tuple[Ints, Numbers, Ints]  # keys and values of entries, keys of removed ones


@dataclass(eq=False)
class FrozenColumns:
    """Entries at the moment of a freeze, by group; `changed` are the slots that changed since the freeze before."""

    keys: Ints
    groups: npt.NDArray[Any]
    values: Numbers
    live: npt.NDArray[np.bool_]
    changed: Ints | None
    holders: weakref.WeakSet[Any]
    _order: Ints | None = None
    _starts: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def chunk(self, group: int, removals: bool = False) -> Chunk:
        """Return the entries of a group, and with `removals` the keys of removed ones."""
        rows = self._rows(group)
        live = self.live[rows]
        there = rows[live]
        gone = self.keys[rows[~live]] if removals else np.empty(0, np.int64)
        return self.keys[there], self.values[there], gone

    def _rows(self, group: int) -> Ints:
        if self._order is None:  # sorted once: there are many groups
            small = self.groups.astype(np.uint16)
            self._order = np.argsort(small, kind="stable")
            self._starts = np.searchsorted(small[self._order], np.arange(int(small.max(initial=0)) + 2))
        if group + 1 >= len(self._starts):
            return np.empty(0, np.int64)
        return self._order[self._starts[group] : self._starts[group + 1]]

    def __getitem__(self, group: int) -> Table:
        keys, values, _ = self.chunk(group)
        return dict(zip(keys.tolist(), values.tolist(), strict=True))

    def changes(self) -> ColumnChanges:
        changes = ColumnChanges(self, np.arange(len(self.keys)) if self.changed is None else self.changed)
        self.holders.add(changes)  # until they are copied or dropped no slot is used again
        return changes

    def select(self, rows: Ints) -> FrozenColumns:
        """Return a copy of some of the rows."""
        columns = self.keys[rows], self.groups[rows], self.values[rows], self.live[rows]
        return FrozenColumns(*columns, None, self.holders)


class ColumnChanges:
    """Entries that changed between two freezes; they are copied at the first use, outside the subtask's thread."""

    def __init__(self, frozen: FrozenColumns, rows: Ints) -> None:
        self._frozen: FrozenColumns | None = frozen
        self._rows = rows
        self._copied: FrozenColumns | None = None

    def chunk(self, group: int) -> Chunk:
        if self._copied is None:
            assert self._frozen is not None
            self._copied = self._frozen.select(self._rows)
            self._frozen.holders.discard(self)
            self._frozen = None
        return self._copied.chunk(group, removals=True)

    def __getitem__(self, group: int) -> Table:
        keys, values, gone = self.chunk(group)
        return dict(zip(keys.tolist(), values.tolist(), strict=True)) | dict.fromkeys(gone.tolist())

    def size(self) -> int:
        return len(self._rows)


FrozenTable: TypeAlias = FrozenLayers | FrozenColumns
TableChanges: TypeAlias = LayerChanges | ColumnChanges
