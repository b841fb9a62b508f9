"""A value state of numbers under integer keys, as columns: for built-in aggregations that work on whole batches.

A dict of ten million Python integers costs gigabytes, and every look-up a handful of cache misses. Here keys, key groups
and values are numpy columns; an entry is a row number, its *slot*. An open-addressing index finds the slots of a whole
batch at once:

    index      [ region of group 5 | region of group 6 | ... ]   slot + 1, or 0
    columns    key, group, value of slot 0, 1, 2, ...

Every key group has its own region of the index, a power of two long. A region that is half full is built anew at twice
the length, a few of them with each batch; only one that is nearly full cannot wait. So growing never stops the work for
longer than a few groups take. Entries are never removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.keygroups import KeyGroupRange
from headgate.state.tables import Cursor, Table

__all__ = ["ColumnChanges", "ColumnTable", "FrozenColumns"]

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]

_FIRST_REGION = 64
_HALF_FULL, _NEARLY_FULL = 0.5, 0.8
_REBUILDS = 4  # in one call, of regions that could still wait
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # golden ratio: neighbouring keys end up far apart


class ColumnTable:
    """Numbers by integer key.

    >>> table = ColumnTable(KeyGroupRange(0, 127), 128, np.dtype(np.int64))
    >>> slots = table.slots(np.array([7, 9, 7]), np.array([0, 1, 0]), 0)
    >>> np.add.at(table.values, slots, np.array([1, 2, 3]))
    >>> slots.tolist(), table.values[slots].tolist()
    ([0, 1, 0], [4, 2, 4])
    """

    def __init__(self, groups: KeyGroupRange, max_parallelism: int, dtype: np.dtype[Any]) -> None:
        self._groups = groups
        self.count = 0
        self.keys: Ints = np.empty(1024, np.int64)
        self.group_of: npt.NDArray[np.int32] = np.empty(1024, np.int32)
        self.values: Numbers = np.empty(1024, dtype)
        self._changed: npt.NDArray[np.bool_] | None = None  # by slot, while changes are tracked
        self._index: npt.NDArray[np.int32] = np.zeros(_FIRST_REGION * len(groups), np.int32)
        self._region: Ints = np.full(max_parallelism, -1, np.int64)  # where a group's region starts; -1: not ours
        self._region[groups.start : groups.end + 1] = np.arange(len(groups)) * _FIRST_REGION
        self._mask: Ints = np.full(max_parallelism, _FIRST_REGION - 1, np.int64)
        self._filled: Ints = np.zeros(max_parallelism, np.int64)
        self._end = len(self._index)  # what lies behind is free

    def __len__(self) -> int:
        return self.count

    # --- looking up -------------------------------------------------------------------------------------------------

    def slots(self, keys: Ints, groups: npt.NDArray[Any], neutral: Any) -> Ints:
        """The slot of every key; unknown keys get one, with the neutral value."""
        found = self._find(keys, groups)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            self._add(keys[missing], groups[missing], neutral)
            found[missing] = self._find(keys[missing], groups[missing])
        return found

    def touch(self, slots: Ints) -> None:
        """The values of these slots were changed."""
        if self._changed is not None:
            self._changed[slots] = True

    def _find(self, keys: Ints, groups: npt.NDArray[Any]) -> Ints:
        """The slot of every key, -1 where there is none."""
        start, mask = self._region[groups], self._mask[groups]
        step = _spread(keys) & mask
        result: Ints = self._index[start + step].astype(np.int64) - 1
        # Most are found at the first look; the others go on, fewer each time.
        left = np.flatnonzero((result >= 0) & (self.keys[result] != keys))
        while len(left):
            step[left] = (step[left] + 1) & mask[left]
            result[left] = self._index[start[left] + step[left]].astype(np.int64) - 1
            slots = result[left]
            left = left[(slots >= 0) & (self.keys[slots] != keys[left])]
        return result

    # --- growing ----------------------------------------------------------------------------------------------------

    def _add(self, keys: Ints, groups: npt.NDArray[Any], neutral: Any) -> None:
        distinct, first = np.unique(keys, return_index=True)
        first.sort()  # slots in the order in which keys came
        new_keys, new_groups = keys[first], groups[first]
        slots = np.arange(self.count, self.count + len(distinct), dtype=np.int64)
        self._reserve(self.count + len(distinct))
        self.keys[slots], self.group_of[slots], self.values[slots] = new_keys, new_groups, neutral
        self.count += len(distinct)
        self._filled += np.bincount(new_groups, minlength=len(self._filled))
        for group in self._crowded():
            self._rebuild(group)
        self._enter(slots, new_keys, new_groups)

    def _crowded(self) -> list[int]:
        """Groups whose region must grow now, and a few of those that will have to soon."""
        load = self._filled / (self._mask + 1)
        must = np.flatnonzero(load > _NEARLY_FULL)
        soon = np.flatnonzero((load > _HALF_FULL) & (load <= _NEARLY_FULL))
        return [*must.tolist(), *soon[np.argsort(-load[soon])][: max(0, _REBUILDS - len(must))].tolist()]

    def _reserve(self, size: int) -> None:
        if size > len(self.keys):
            room = max(size, 2 * len(self.keys))
            self.keys = _grown(self.keys, self.count, room)
            self.group_of = _grown(self.group_of, self.count, room)
            self.values = _grown(self.values, self.count, room)
        if self._changed is not None and len(self._changed) < len(self.keys):
            self._changed = _grown(self._changed, len(self._changed), len(self.keys))

    def _rebuild(self, group: int) -> None:
        """Give a group a longer region at the end of the index, and enter there what the old one has."""
        old = int(self._region[group]), int(self._mask[group]) + 1
        entries = self._index[old[0] : old[0] + old[1]]
        slots = entries[entries != 0].astype(np.int64) - 1
        size = 2 * old[1]
        while size < 3 * int(self._filled[group]):
            size *= 2
        if self._end + size > len(self._index):
            self._compact(size)
        self._region[group], self._mask[group] = self._end, size - 1
        self._end += size
        self._enter(slots, self.keys[slots], self.group_of[slots])

    def _compact(self, extra: int) -> None:
        """Make room: drop regions that were left behind, and double what is needed."""
        own = [g for g in self._groups if self._region[g] >= 0]
        live = sum(int(self._mask[g]) + 1 for g in own)
        index = np.zeros(2 * (live + extra), np.int32)
        at = 0
        for group in own:
            start, size = int(self._region[group]), int(self._mask[group]) + 1
            index[at : at + size] = self._index[start : start + size]
            self._region[group] = at
            at += size
        self._index, self._end = index, at

    def _enter(self, slots: Ints, keys: Ints, groups: npt.NDArray[Any]) -> None:
        """Put distinct new keys into the index; where several want one place, one gets it and the others go on."""
        start, mask = self._region[groups], self._mask[groups]
        step = _spread(keys) & mask
        while len(slots):
            place = start + step
            free = self._index[place] == 0
            self._index[place[free]] = (slots[free] + 1).astype(np.int32)
            left = self._index[place] != slots + 1
            slots, start, mask, step = slots[left], start[left], mask[left], (step[left] + 1) & mask[left]

    # --- as a table of the hashmap backend --------------------------------------------------------------------------

    @property
    def tracking(self) -> bool:
        """Whether changes are remembered."""
        return self._changed is not None

    @tracking.setter
    def tracking(self, wanted: bool) -> None:
        self._changed = np.zeros(len(self.keys), np.bool_) if wanted else None

    def track(self) -> None:
        """Remember from now on which entries change."""
        self.tracking = True

    def stop_tracking(self) -> None:
        """Changes need not be remembered any more."""
        self.tracking = False

    def freeze(self) -> tuple[FrozenColumns, Cursor]:
        """The present content, and what changed since the last freeze. Keys only grow, so only values are copied."""
        changed = None if self._changed is None else np.flatnonzero(self._changed[: self.count])
        if self._changed is not None:
            self._changed[:] = False
        count = self.count
        frozen = FrozenColumns(self.keys[:count], self.group_of[:count], self.values[:count].copy(), changed)
        return frozen, Cursor(self._groups.start)

    def changes_in(self, frozen: FrozenColumns) -> ColumnChanges:
        """By group, what changed between the freeze that gave `frozen` and the one before."""
        return frozen.changes()

    def release(self, cursor: Cursor) -> None:
        """A snapshot is done; it held copies."""

    def merge(self, budget: int) -> int:
        """Nothing is left behind by a freeze."""
        return budget

    def base_size(self) -> int:
        """How many entries there are."""
        return self.count

    def addresses(self, group: int) -> list[Any]:
        """The keys of a group."""
        keys: list[Any] = self.keys[: self.count][self.group_of[: self.count] == group].tolist()
        return keys

    def get(self, group: int, key: int) -> Any:
        """The value of one key, or None."""
        slot = int(self._find(np.array([key], np.int64), np.array([group]))[0])
        return None if slot < 0 else self.values[slot].item()

    def load(self, entries: Iterable[tuple[int, Any]], group: int) -> None:
        """Take over entries of one group; later ones count."""
        pairs = dict(entries)
        if pairs:
            keys = np.fromiter(pairs, np.int64, len(pairs))
            slots = self.slots(keys, np.full(len(keys), group, np.int32), 0)
            self.values[slots] = np.array(list(pairs.values()), self.values.dtype)

    def clear(self) -> None:
        """Drop everything."""
        self.count = 0
        self._index[:] = 0
        self._filled[:] = 0


class FrozenColumns:
    """Entries as a snapshot sees them; a group becomes a dict when the snapshot comes to it."""

    def __init__(self, keys: Ints, groups: npt.NDArray[Any], values: Numbers, changed: Ints | None) -> None:
        self._keys, self._groups, self._values = keys, groups, values
        self._changed = changed

    def __getitem__(self, group: int) -> Table:
        rows = np.flatnonzero(self._groups == group)
        return dict(zip(self._keys[rows].tolist(), self._values[rows].tolist(), strict=True))

    def changes(self) -> ColumnChanges:
        """What changed since the freeze before."""
        rows = np.arange(len(self._keys)) if self._changed is None else self._changed
        return ColumnChanges(self._keys[rows], self._groups[rows], self._values[rows])


class ColumnChanges:
    """Entries that changed between two freezes."""

    def __init__(self, keys: Ints, groups: npt.NDArray[Any], values: Numbers) -> None:
        self._columns = FrozenColumns(keys, groups, values, None)
        self._size = len(keys)

    def __getitem__(self, group: int) -> Table:
        return self._columns[group]

    def __iter__(self) -> Iterator[range]:
        return iter([range(self._size)])  # one part, as long as all of them: only sizes are asked for


def _grown(column: npt.NDArray[Any], used: int, room: int) -> npt.NDArray[Any]:
    larger = np.zeros(room, column.dtype)
    larger[:used] = column[:used]
    return larger


def _spread(keys: Ints) -> Ints:
    return ((keys.astype(np.uint64) * _SPREAD) >> np.uint64(32)).astype(np.int64)
