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

Integer keys are often numbers without large gaps. While they are, a table with a place for each number between the least and
the largest one gives their slots without any search (`_NearKeys`), in a quarter of the time.

A removed entry keeps its slot and its place in the index, marked as dead. When most of a group is dead, its region is
rebuilt without them, and their slots are used again, but not while a snapshot reads the columns.

The hashmap backend has all entries of a state in such columns, the rocksdb backend those in use.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import IllegalState
from headrace.records.key_groups import KeyGroupRange
from headrace.state.addresses import FOREIGN_GROUP

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]

_FIRST_REGION = 64
_HALF_FULL, _NEARLY_FULL = 0.5, 0.8
_FEW_DEAD = 32  # not worth rebuilding a region
_REBUILDS = 4  # in one call, of regions that could still wait
_SPREAD_INT = 0x9E3779B97F4A7C15  # golden ratio: neighbouring keys end up far apart
_SPREAD = np.uint64(_SPREAD_INT)
_FLAGS = 3  # bytes of an entry, at most
_NEAR_KEYS = 1024  # fewer are not worth a table
_NEAR_PLACES = 1 << 21  # for larger tables, memory is what a look-up waits for
_NEAR_GAPS = 8  # places for each key, at most
_64_BITS = (1 << 64) - 1
_LEAST, _LARGEST = -(1 << 63), (1 << 63) - 1


class ColumnTable:
    """Numbers by integer key; the `NumberColumns` of aggregations.

    >>> table = ColumnTable(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    >>> slots = table.slots(np.array([7, 9, 7]), np.array([0, 1, 0]), 0)
    >>> np.add.at(table.values, slots, np.array([1, 2, 3]))
    >>> slots.tolist(), table.values[slots].tolist()
    ([0, 1, 0], [4, 2, 4])
    """

    def __init__(self, groups: KeyGroupRange, max_parallelism: int, dtype: np.dtype[Any]) -> None:
        self._groups = groups
        self._max_parallelism = max_parallelism
        # The type of the numbers that are stored as they are.
        self._exact: type[Any] = {"i": int, "f": float}.get(dtype.kind, object) if dtype != np.float32 else object
        self._least: float = np.iinfo(dtype).min if dtype.kind == "i" else -math.inf
        self._most: float = np.iinfo(dtype).max if dtype.kind == "i" else math.inf
        self._allocate(dtype)

    def _allocate(self, dtype: np.dtype[Any]) -> None:
        """Make empty columns."""
        groups, max_parallelism = self._groups, self._max_parallelism
        self.count = 0
        self.keys: Ints = np.empty(1024, np.int64)
        self.group_of: npt.NDArray[np.uint16] = np.empty(1024, np.uint16)
        self.values: Numbers = np.empty(1024, dtype)
        self.live: npt.NDArray[np.bool_] = np.zeros(1024, np.bool_)  # whether the slot has an entry
        self._changed: npt.NDArray[np.bool_] | None = None  # by slot, while changes are tracked
        self._place: npt.NDArray[np.uint16] = np.empty(0, np.uint16)  # by slot, of `places`
        self._dead: Ints = np.zeros(max_parallelism, np.int64)  # removed entries by group that still hold a slot
        self._kept_dead: Ints = np.zeros(max_parallelism, np.int64)  # of those, what could not be given free
        self._free: list[int] = []  # slots to use again
        # Readers of the columns: snapshots, and changes that are not copied yet.
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._index: npt.NDArray[np.int32] = np.zeros(_FIRST_REGION * len(groups), np.int32)
        # Where a group's region starts; -1: of another subtask.
        self._region: Ints = np.full(max_parallelism, -1, np.int64)
        self._region[groups.start : groups.end + 1] = np.arange(len(groups)) * _FIRST_REGION
        self._mask: Ints = np.full(max_parallelism, _FIRST_REGION - 1, np.int64)
        self._shift: npt.NDArray[np.uint64] = np.full(max_parallelism, _shift_of(_FIRST_REGION), np.uint64)
        self._filled: Ints = np.zeros(max_parallelism, np.int64)
        self._end = len(self._index)  # the index is free from here on
        self._grows = False  # whether a region may be half full
        self._near: _NearKeys | None = None
        self._bounds: tuple[int, int] | None = None  # the least and the largest key so far
        self._near_at = _NEAR_KEYS  # number of keys from which on a table for near ones is tried

    # --- looking up -------------------------------------------------------------------------------------------------

    def slots(self, keys: Ints, groups: npt.NDArray[Any], neutral: Any) -> Ints:
        """Return the slot of every key; unknown keys get one, with the neutral value."""
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
        """Return the slots of keys, the column at these slots, and the values with None where there is no entry."""
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
        """Return True if all of these, which `find` gave, have an entry."""
        if not len(slots):
            return True
        return bool(slots.min() >= 0) and (not self._dead.any() or bool(self.live[slots].all()))

    def places(self, slots: Ints) -> Ints:
        """For each slot, where it occurs for the first time."""
        if len(slots) > 1 << 16:
            _, first, of_slot = np.unique(slots, return_index=True, return_inverse=True)
            return first[of_slot]
        places = np.arange(len(slots), dtype=np.uint16)
        if len(self._place) < len(self.keys):
            self._place = np.empty(len(self.keys), np.uint16)
        self._place[slots[::-1]] = places[::-1]  # of several, the one that is written last stays
        return self._place[slots].astype(np.int64)

    def put(self, slots: Ints, values: Numbers, before: Numbers | None = None) -> None:
        """Store values; where a slot occurs more than once, its values must be equal. `before` are the present values."""
        if self._changed is not None:
            differ = _bits(self.values[slots] if before is None else before) != _bits(values)
            self._changed[slots if differ.all() else slots[differ]] = True
        self.values[slots] = values

    def store_one(self, key: int, group: int, value: Any) -> bool:
        """Store the number of a key, or remove it with None, without the overhead of numpy calls.

        False, and nothing is stored, if the number is not exactly of the column's type.
        """
        slot = self.probe(key, group)
        if value is None:
            if slot >= 0 and self.live.item(slot):
                self.live[slot] = False
                self._changed_one(slot)
                self._dead[group] += 1
                self._remove_many_dead(group)
            return True
        if type(value) is not self._exact or not self._least <= value <= self._most:
            return False
        if slot < 0:
            slot = self._enter_one(key, group)
        elif self.live.item(slot):
            if self.values.item(slot) != value or value == 0:  # 0.0 == -0.0
                self._changed_one(slot)
            self.values[slot] = value
            return True
        else:
            self._dead[group] -= 1
        self.values[slot], self.live[slot] = value, True
        self._changed_one(slot)
        return True

    def _changed_one(self, slot: int) -> None:
        if self._changed is not None:
            self._changed[slot] = True

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
            self._remove_many_dead(group)

    def _remove_many_dead(self, group: int) -> None:
        """Remove the dead entries of a group if it has many."""
        dead = self._dead.item(group)
        if dead > max(_FEW_DEAD, self._filled.item(group) // 2) and dead >= 2 * self._kept_dead.item(group):
            self._remove_dead(group)
            self._kept_dead[group] = self._dead[group]

    def _changes_are_taken(self) -> None:
        """No change is tracked any more, so that removed entries can be given free."""
        if self._changed is not None:
            self._changed[:] = False
        self._kept_dead[:] = 0

    def touch(self, slots: Ints) -> None:
        if self._changed is not None:
            self._changed[slots] = True

    def find(self, keys: Ints, groups: npt.NDArray[Any]) -> Ints:
        """Return the slot of every key, -1 where there is none; a slot may be dead."""
        if self._near is not None and len(keys):
            found = self._near.find(keys)
            if found is not None:
                if groups.min() < self._groups.start or groups.max() > self._groups.end:
                    raise IllegalState("HR-2010", FOREIGN_GROUP)
                return found
        start, mask = self._region.take(groups), self._mask.take(groups)
        if len(start) and start.min() < 0:
            raise IllegalState("HR-2010", FOREIGN_GROUP)
        step = _spread(keys, self._shift.take(groups))
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
        """Return the slot of one key without the overhead of numpy calls; -1 also for a dead slot."""
        slot = self.probe(key, group)
        return slot if slot >= 0 and self.live.item(slot) else -1

    def probe(self, key: int, group: int) -> int:
        start, mask = self._region.item(group), self._mask.item(group)
        if start < 0:
            raise IllegalState("HR-2010", FOREIGN_GROUP)
        if self._near is not None and self._near.holds(key, key):
            return self._near.find_one(key)
        step = _spread_one(key, self._shift.item(group))
        stride = 0
        while (slot := self._index.item(start + step) - 1) >= 0:
            if self.keys.item(slot) == key:
                return slot
            stride += 1
            step = (step + stride) & mask
        return -1

    # --- growing ----------------------------------------------------------------------------------------------------

    def _add(self, keys: Ints, groups: npt.NDArray[Any], neutral: Any) -> None:
        first = np.unique(keys, return_index=True)[1]
        first.sort()  # slots in the order of the keys
        slots = self._enter_new(keys[first], groups[first])
        self.values[slots], self.live[slots] = neutral, True
        if self._changed is not None:
            self._changed[slots] = True

    def _enter_new(self, keys: Ints, groups: npt.NDArray[Any]) -> Ints:
        """Slots for distinct keys that have none; their values are the caller's to set."""
        slots = self._new_slots(len(keys))
        self.keys[slots], self.group_of[slots] = keys, groups
        self._filled += np.bincount(groups, minlength=len(self._filled))
        self._grow()
        self._enter(slots, keys, groups)
        if len(keys):
            self._enter_near(keys, slots, int(keys.min()), int(keys.max()))
        return slots

    def _enter_near(self, keys: Ints | int, slots: Ints | int, low: int, high: int) -> None:
        """Enter keys between two bounds into the table for near ones, which is made anew if they are beyond it."""
        if self._bounds is not None:
            low, high = min(low, self._bounds[0]), max(high, self._bounds[1])
        self._bounds = low, high
        if self._near is not None and self._near.holds(low, high):
            self._near.enter(keys, slots)
            return
        self._near = None
        if self.count < self._near_at:
            return
        self._near_at = self.count + self.count // 4
        if high - low < min(_NEAR_PLACES, _NEAR_GAPS * self.count):
            self._near = _NearKeys(low, high)
            for group in self._groups:
                used = self._slots_in(group)[1]
                self._near.enter(self.keys[used], used)

    def _enter_one(self, key: int, group: int) -> int:
        """`_enter_new` without the overhead of numpy calls."""
        slot = self._new_slot()
        self.keys[slot], self.group_of[slot] = key, group
        self._filled[group] += 1
        load = self._filled.item(group) / (self._mask.item(group) + 1)
        self._grows = self._grows or load > _HALF_FULL
        if load > _NEARLY_FULL:
            self._rebuild(group)
        start, mask = self._region.item(group), self._mask.item(group)
        step, stride = _spread_one(key, self._shift.item(group)), 0
        while self._index.item(start + (step & mask)):
            stride += 1
            step += stride
        self._index[start + (step & mask)] = slot + 1
        self._enter_near(key, slot, key, key)
        return slot

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

    def _new_slot(self) -> int:
        if self._free and not self._holders:
            return self._free.pop()
        slot = self.count
        self._reserve(slot + 1)
        self.count += 1
        return slot

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
        if self._near is not None:
            self._near.leave(self.keys[slots[gone]])
        self._filled[group] -= int(np.count_nonzero(gone))
        self._dead[group] -= int(np.count_nonzero(gone))

    def _slots_in(self, group: int) -> tuple[npt.NDArray[np.int32], Ints]:
        """Return the region of a group in the index, and the slots in it."""
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

    def grow(self) -> None:
        """Rebuild a few of the regions that are half full; without new keys nothing else does."""
        if self._grows:
            self._grow()

    def _reserve(self, size: int) -> None:
        if size > len(self.keys):
            room = max(size, 2 * len(self.keys))
            self.keys = grown(self.keys, self.count, room)
            self.group_of = grown(self.group_of, self.count, room)
            self.values = grown(self.values, self.count, room)
            self.live = grown(self.live, self.count, room)
        if self._changed is not None and len(self._changed) < len(self.keys):
            self._changed = grown(self._changed, len(self._changed), len(self.keys))

    def _rebuild(self, group: int) -> None:
        """Move a group to a longer region at the end of the index."""
        region, slots = self._slots_in(group)
        size = 2 * len(region)
        while size < 3 * int(self._filled[group]):
            size *= 2
        if self._end + size > len(self._index):
            self._compact(size)
        self._region[group], self._mask[group], self._shift[group] = self._end, size - 1, _shift_of(size)
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
        step = _spread(keys, self._shift[groups])
        stride = 0
        while len(slots):
            place = start + step
            free = self._index[place] == 0
            self._index[place[free]] = (slots[free] + 1).astype(np.int32)
            left = self._index[place] != slots + 1
            stride += 1
            slots, start, mask, step = slots[left], start[left], mask[left], (step[left] + stride) & mask[left]

    # --- as a whole ---------------------------------------------------------------------------------------------------

    def track(self) -> None:
        """Record which slots change."""
        self._changed = np.zeros(len(self.keys), np.bool_)

    def used_bytes(self) -> int:
        """Return the memory of the entries: columns, flags, and the index as far as it was used."""
        entry = self.keys.itemsize + self.group_of.itemsize + self.values.itemsize + self._place.itemsize + _FLAGS
        near = 0 if self._near is None else self._near.slots.nbytes
        return self.count * entry + self._end * self._index.itemsize + near

    def number_groups(self) -> Iterator[tuple[int, tuple[Ints, Numbers]]]:
        """Yield the entries of each key group that has any, sorted by key."""
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


class _NearKeys:
    """The slots of keys that are close to each other: a place for each number between two bounds."""

    def __init__(self, low: int, high: int) -> None:
        room = (high - low) // 4  # for keys that come later
        self.low, self.high = max(low - room, _LEAST), min(high + room, _LARGEST)
        self.slots: npt.NDArray[np.int32] = np.full(self.high - self.low + 1, -1, np.int32)

    def holds(self, low: int, high: int) -> bool:
        """Return True if there are places for all keys between two bounds."""
        return self.low <= low and high <= self.high

    def find(self, keys: Ints) -> Ints | None:
        """Return the slot of every key, -1 where there is none; None if there is no place for some key."""
        if keys.min() < self.low or keys.max() > self.high:
            return None
        return self.slots[keys - self.low].astype(np.int64)

    def find_one(self, key: int) -> int:
        return self.slots.item(key - self.low)

    def enter(self, keys: Ints | int, slots: Ints | int) -> None:
        self.slots[keys - self.low] = slots

    def leave(self, keys: Ints) -> None:
        self.slots[keys - self.low] = -1


def grown(column: npt.NDArray[Any], used: int, room: int) -> npt.NDArray[Any]:
    """Return a longer column with what was used of this one."""
    larger = np.zeros(room, column.dtype)
    larger[:used] = column[:used]
    return larger


def _bits(values: Numbers) -> Numbers:
    """Numbers that are equal only where the numbers are the same: 0.0 and -0.0 differ, a NaN is itself."""
    return values.view(f"i{values.itemsize}") if values.dtype.kind == "f" else values


def _shift_of(size: int) -> int:
    """By how much a product is shifted to be a place in a region of this size: its highest bits depend on all bits."""
    return 65 - size.bit_length()


def _spread(keys: Ints, shifts: npt.NDArray[np.uint64]) -> Ints:
    """Return the first slot to probe for each key."""
    return ((keys.astype(np.uint64) * _SPREAD) >> shifts).astype(np.int64)


def _spread_one(key: int, shift: int) -> int:
    return (key * _SPREAD_INT & _64_BITS) >> shift
