"""A value state of numbers under integer keys, as columns: operations work on whole batches of records.

A dict of ten million Python integers takes gigabytes, and every look-up several cache misses. Here keys, key groups and
values are numpy columns; an entry is a row number, its *slot*. An open-addressing index finds the slots of a whole batch
at once, in the subtask's thread:

    index      [ region of group 5 | region of group 6 | ... ]   slot + 1, or 0
    columns    key, group, value of slot 0, 1, 2, ...

Every key group has its own region of the index, a power of two long. A region that is half full is rebuilt at twice the
length, a few of them with each batch; only one that is nearly full is rebuilt at once. So growing never blocks for longer
than a few groups take. A key whose place is taken tries those 1, 3, 6, 10, ... places further on: all keys of a batch probe
together, so the longest search counts, and with growing steps none is long.

A removed entry keeps its slot and its place in the index, marked as dead. When most of a group is dead, its region is
rebuilt without them, and their slots are used again, but not while a snapshot reads the columns.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headgate.errors import IllegalState
from headgate.records.key_groups import KeyGroupRange
from headgate.state.addresses import FOREIGN_GROUP
from headgate.state.hashmap.tables import Cursor, FrozenLayers, LayerChanges, StateTable, Table

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]

_FIRST_REGION = 64
_HALF_FULL, _NEARLY_FULL = 0.5, 0.8
_FEW_DEAD = 32  # not worth rebuilding a region
_REBUILDS = 4  # in one call, of regions that could still wait
_SPREAD_INT = 0x9E3779B97F4A7C15  # golden ratio: neighbouring keys end up far apart
_SPREAD = np.uint64(_SPREAD_INT)
_64_BITS = (1 << 64) - 1


class ColumnTable:
    """Numbers by integer key: a table of the backend and the `NumberColumns` of aggregations.

    >>> table = ColumnTable(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    >>> slots = table.slots(np.array([7, 9, 7]), np.array([0, 1, 0]), 0)
    >>> np.add.at(table.values, slots, np.array([1, 2, 3]))
    >>> slots.tolist(), table.values[slots].tolist()
    ([0, 1, 0], [4, 2, 4])
    """

    def __init__(self, groups: KeyGroupRange, max_parallelism: int, dtype: np.dtype[Any]) -> None:
        self._groups = groups
        # The type of the numbers that are stored as they are.
        self._exact: type = {"i": int, "f": float}.get(dtype.kind, object) if dtype != np.float32 else object
        self.count = 0
        self.keys: Ints = np.empty(1024, np.int64)
        self.group_of: npt.NDArray[np.int32] = np.empty(1024, np.int32)
        self.values: Numbers = np.empty(1024, dtype)
        self.live: npt.NDArray[np.bool_] = np.zeros(1024, np.bool_)  # whether the slot has an entry
        self._changed: npt.NDArray[np.bool_] | None = None  # by slot, while changes are tracked
        self._place: npt.NDArray[np.uint16] = np.empty(0, np.uint16)  # by slot, of `first_places`
        self._dead: Ints = np.zeros(max_parallelism, np.int64)  # removed entries by group that still hold a slot
        self._free: list[int] = []  # slots to use again
        # Readers of the columns: snapshots, and changes that are not copied yet.
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._index: npt.NDArray[np.int32] = np.zeros(_FIRST_REGION * len(groups), np.int32)
        # Where a group's region starts; -1: of another subtask.
        self._region: Ints = np.full(max_parallelism, -1, np.int64)
        self._region[groups.start : groups.end + 1] = np.arange(len(groups)) * _FIRST_REGION
        self._mask: Ints = np.full(max_parallelism, _FIRST_REGION - 1, np.int64)
        self._filled: Ints = np.zeros(max_parallelism, np.int64)
        self._end = len(self._index)  # the index is free from here on
        self._grows = False  # whether a region may be half full

    # --- looking up -------------------------------------------------------------------------------------------------

    def slots(self, keys: Ints, groups: npt.NDArray[Any], neutral: Any) -> Ints:
        """The slot of every key; unknown keys get one, with the neutral value."""
        found = self.find(keys, groups)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            self._add(keys[missing], groups[missing], neutral)
            found[missing] = self.find(keys[missing], groups[missing])
        self._revive(found, neutral)
        return found

    def _revive(self, slots: Ints, neutral: Any) -> None:
        dead = slots[~self.live[slots]]
        if len(dead):
            dead = np.unique(dead)
            self.live[dead], self.values[dead] = True, neutral
            if self._changed is not None:
                self._changed[dead] = True
            self._dead -= np.bincount(self.group_of[dead], minlength=len(self._dead))

    def read(self, keys: Ints, groups: npt.NDArray[Any]) -> tuple[Ints, Numbers, list[Any]]:
        """The slots of keys, the column at these slots, and the values with None where there is no entry."""
        slots = self.find(keys, groups)
        column = self.values[slots]
        values: list[Any] = column.tolist()
        missing = slots < 0
        if self._dead.any():
            missing |= ~self.live[slots]
        for i in np.flatnonzero(missing).tolist():
            values[i] = None
        return slots, column, values

    def all_live(self, slots: Ints) -> bool:
        """Whether all of these, which `find` gave, have an entry."""
        if not len(slots):
            return True
        return bool(slots.min() >= 0) and (not self._dead.any() or bool(self.live[slots].all()))

    def first_places(self, slots: Ints) -> Ints:
        """Where each slot occurs for the first time, in order."""
        if len(slots) > 1 << 16:
            return np.sort(np.unique(slots, return_index=True)[1])
        places = np.arange(len(slots), dtype=np.uint16)
        if len(self._place) < len(self.keys):
            self._place = np.empty(len(self.keys), np.uint16)
        self._place[slots[::-1]] = places[::-1]  # of several, the one that is written last stays
        return np.flatnonzero(self._place[slots] == places)

    def put(self, slots: Ints, values: Numbers, before: Numbers | None = None) -> None:
        """Store values; where a slot occurs more than once, its values must be equal. `before` are the present values."""
        if self._changed is not None:
            differ = _bits(self.values[slots] if before is None else before) != _bits(values)
            self._changed[slots if differ.all() else slots[differ]] = True
        self.values[slots] = values

    def put_one(self, slot: int, value: Any) -> bool:
        """Store a number without the overhead of numpy calls; False if it is not exactly of the column's type."""
        if type(value) is not self._exact:
            return False
        before = self.values.item(slot)
        try:
            self.values[slot] = value
        except OverflowError:
            return False
        if self._changed is not None and (before != value or value == 0):  # 0.0 == -0.0
            self._changed[slot] = True
        return True

    def remove(self, slots: Ints) -> None:
        slots = np.unique(slots[self.live[slots]])
        if not len(slots):
            return
        self.live[slots] = False
        if self._changed is not None:
            self._changed[slots] = True
        groups = self.group_of[slots]
        self._dead += np.bincount(groups, minlength=len(self._dead))
        for group in np.unique(groups).tolist():
            if self._dead[group] > max(_FEW_DEAD, self._filled[group] // 2):
                self._remove_dead(group)

    def touch(self, slots: Ints) -> None:
        if self._changed is not None:
            self._changed[slots] = True

    def find(self, keys: Ints, groups: npt.NDArray[Any]) -> Ints:
        """The slot of every key, -1 where there is none; a slot may be dead."""
        start, mask = self._region.take(groups), self._mask.take(groups)
        if len(start) and start.min() < 0:
            raise IllegalState(FOREIGN_GROUP)
        step = _spread(keys) & mask
        result: Ints = self._index[start + step].astype(np.int64) - 1
        # Most are found at the first probe; the others continue, fewer each time.
        left = np.flatnonzero((result >= 0) & (self.keys[result] != keys))
        stride = 0
        while len(left):
            stride += 1
            step[left] = (step[left] + stride) & mask[left]
            slots = self._index[start[left] + step[left]].astype(np.int64) - 1
            result[left] = slots
            left = left[(slots >= 0) & (self.keys[slots] != keys[left])]
        return result

    def find_one(self, key: int, group: int) -> int:
        """The slot of one key without the overhead of numpy calls; -1 also for a dead slot."""
        start, mask = self._region.item(group), self._mask.item(group)
        if start < 0:
            raise IllegalState(FOREIGN_GROUP)
        step = ((key * _SPREAD_INT & _64_BITS) >> 32) & mask
        stride = 0
        while (slot := self._index.item(start + step) - 1) >= 0:
            if self.keys.item(slot) == key:
                return slot if self.live.item(slot) else -1
            stride += 1
            step = (step + stride) & mask
        return -1

    # --- growing ----------------------------------------------------------------------------------------------------

    def _add(self, keys: Ints, groups: npt.NDArray[Any], neutral: Any) -> None:
        distinct, first = np.unique(keys, return_index=True)
        first.sort()  # slots in the order of the keys
        new_keys, new_groups = keys[first], groups[first]
        slots = self._new_slots(len(distinct))
        self.keys[slots], self.group_of[slots], self.values[slots] = new_keys, new_groups, neutral
        self.live[slots] = True
        if self._changed is not None:
            self._changed[slots] = True
        self._filled += np.bincount(new_groups, minlength=len(self._filled))
        self._grow()
        self._enter(slots, new_keys, new_groups)

    def _new_slots(self, wanted: int) -> Ints:
        """Free slots if no snapshot reads the columns, then new ones."""
        again: list[int] = []
        if self._free and not self._holders:
            again, self._free = self._free[:wanted], self._free[wanted:]
        fresh = wanted - len(again)
        self._reserve(self.count + fresh)
        slots = np.concatenate([np.array(again, np.int64), np.arange(self.count, self.count + fresh, dtype=np.int64)])
        self.count += fresh
        return slots

    def _remove_dead(self, group: int) -> None:
        """Remove dead entries of a group from the index; those whose removal no snapshot has written yet stay."""
        region, slots = self._slots_in(group)
        gone = ~self.live[slots]
        if self._changed is not None:
            gone &= ~self._changed[slots]
        kept = slots[~gone]
        region[:] = 0
        self._enter(kept, self.keys[kept], self.group_of[kept])
        self._free += slots[gone].tolist()
        self._filled[group] -= int(np.count_nonzero(gone))
        self._dead[group] -= int(np.count_nonzero(gone))

    def _slots_in(self, group: int) -> tuple[npt.NDArray[np.int32], Ints]:
        """The region of a group in the index, and the slots in it."""
        start = int(self._region[group])
        region = self._index[start : start + int(self._mask[group]) + 1]
        return region, region[region != 0].astype(np.int64) - 1

    def _grow(self) -> None:
        """Rebuild the regions that must grow now, and a few of those that are half full, the fullest first."""
        load = self._filled / (self._mask + 1)
        must = np.flatnonzero(load > _NEARLY_FULL)
        soon = np.flatnonzero((load > _HALF_FULL) & (load <= _NEARLY_FULL))
        few = max(0, _REBUILDS - len(must))
        for group in [*must.tolist(), *soon[np.argsort(-load[soon])][:few].tolist()]:
            self._rebuild(group)
        self._grows = len(soon) > few

    def _reserve(self, size: int) -> None:
        if size > len(self.keys):
            room = max(size, 2 * len(self.keys))
            self.keys = _grown(self.keys, self.count, room)
            self.group_of = _grown(self.group_of, self.count, room)
            self.values = _grown(self.values, self.count, room)
            self.live = _grown(self.live, self.count, room)
        if self._changed is not None and len(self._changed) < len(self.keys):
            self._changed = _grown(self._changed, len(self._changed), len(self.keys))

    def _rebuild(self, group: int) -> None:
        """Move a group to a longer region at the end of the index."""
        region, slots = self._slots_in(group)
        size = 2 * len(region)
        while size < 3 * int(self._filled[group]):
            size *= 2
        if self._end + size > len(self._index):
            self._compact(size)
        self._region[group], self._mask[group] = self._end, size - 1
        self._end += size
        self._enter(slots, self.keys[slots], self.group_of[slots])

    def _compact(self, extra: int) -> None:
        """Copy the regions in use to a new index of twice the size that is needed."""
        live = sum(int(self._mask[group]) + 1 for group in self._groups)
        index = np.zeros(2 * (live + extra), np.int32)
        at = 0
        for group in self._groups:
            start, size = int(self._region[group]), int(self._mask[group]) + 1
            index[at : at + size] = self._index[start : start + size]
            self._region[group] = at
            at += size
        self._index, self._end = index, at

    def _enter(self, slots: Ints, keys: Ints, groups: npt.NDArray[Any]) -> None:
        """Put distinct new keys into the index; of several with one place, one gets it and the others probe on."""
        start, mask = self._region[groups], self._mask[groups]
        step = _spread(keys) & mask
        stride = 0
        while len(slots):
            place = start + step
            free = self._index[place] == 0
            self._index[place[free]] = (slots[free] + 1).astype(np.int32)
            left = self._index[place] != slots + 1
            stride += 1
            slots, start, mask, step = slots[left], start[left], mask[left], (step[left] + stride) & mask[left]

    # --- as a table of the hashmap backend --------------------------------------------------------------------------

    def track(self) -> None:
        self._changed = np.zeros(len(self.keys), np.bool_)

    def stop_tracking(self) -> None:
        self._changed = None

    def freeze(self) -> tuple[FrozenColumns, Cursor]:
        """A slot keeps its key, so keys are not copied."""
        changed = None if self._changed is None else np.flatnonzero(self._changed[: self.count])
        if self._changed is not None:
            self._changed[:] = False
        count = self.count
        columns = self.keys[:count], self.group_of[:count], self.values[:count].copy(), self.live[:count].copy()
        cursor = Cursor(self._groups.start)
        self._holders.add(cursor)
        return FrozenColumns(*columns, changed, self._holders), cursor

    def release(self, cursor: Cursor) -> None:
        self._holders.discard(cursor)

    def merge(self, budget: int) -> int:
        """Freezing leaves nothing behind; regions that are half full still grow when no key is new any more."""
        if self._grows:
            self._grow()
        return budget

    def base_size(self) -> int:
        return self.count

    def addresses(self, group: int) -> list[Any]:
        mine = self.live[: self.count] & (self.group_of[: self.count] == group)
        keys: list[Any] = self.keys[: self.count][mine].tolist()
        return keys

    def number_groups(self) -> Iterator[tuple[int, tuple[Ints, Numbers]]]:
        """The entries of each key group that has any, sorted by key."""
        for group in self._groups:
            _, slots = self._slots_in(group)
            slots = slots[self.live[slots]]
            if len(slots):
                keys = self.keys[slots]
                order = np.argsort(keys)
                yield group, (keys[order], self.values[slots[order]])

    def get(self, group: int, key: int) -> Any:
        slot = self.find_one(key, group)
        return None if slot < 0 else self.values.item(slot)

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

    def as_dicts(self) -> StateTable:
        """A copy of the content as dict tables."""
        table = StateTable(self._groups, len(self._region))
        frozen, cursor = self.freeze()
        for group in self._groups:
            table.tables[group].update(frozen[group])
        self.release(cursor)
        return table

    def clear(self) -> None:
        self.count = 0
        self._index[:] = 0
        self._filled[:] = 0
        self._dead[:] = 0
        self.live[:] = False
        self._free.clear()


HashMapTable: TypeAlias = StateTable | ColumnTable
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
        """The entries of a group, and with `removals` the keys of removed ones."""
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
        """A copy of some of the rows."""
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


def _grown(column: npt.NDArray[Any], used: int, room: int) -> npt.NDArray[Any]:
    larger = np.zeros(room, column.dtype)
    larger[:used] = column[:used]
    return larger


def _bits(values: Numbers) -> Numbers:
    """Numbers that are equal only where the numbers are the same: 0.0 and -0.0 differ, a NaN is itself."""
    return values.view(f"i{values.itemsize}") if values.dtype.kind == "f" else values


def _spread(keys: Ints) -> Ints:
    return ((keys.astype(np.uint64) * _SPREAD) >> np.uint64(32)).astype(np.int64)
