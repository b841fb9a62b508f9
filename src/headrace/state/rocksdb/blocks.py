"""Numbers under integer keys in blocks: the changes of a cut make one row for each key group.

A row for each entry costs a microsecond or two, mostly for finding its place among the others; an entry of a block costs a
twentieth of that. Entries of blocks cannot be read one by one, so these are for states that are all in memory.

    row     key group, number of the cut, number of the part -> array of (key, value, whether the entry is live)

Of several entries of a key the one of the latest cut counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.state.backend import KeysAndNumbers, NumberGroup
from headrace.state.columns import Ints, Numbers
from headrace.state.rocksdb.codec import StoredCodec
from headrace.state.rocksdb.store import Column, Store
from headrace.state.rocksdb.tables import RowSpace, number_rows

Entries = tuple[Ints, npt.NDArray[np.uint16], Numbers, npt.NDArray[np.bool_]]
"""Keys, key groups, values, and whether the entries are live."""

_PART: Final = 1 << 16  # entries that are written at once: about a MiB
_NUMBERS: Final = struct.Struct(">QI")
_ROWS: Final = 4096  # rows that are written at once


def part_of(entries: Entries, start: int, count: int) -> Entries:
    keys, groups, values, live = entries
    part = slice(start, start + count)
    return keys[part], groups[part], values[part], live[part]


def blocks_name(column: str) -> str:
    """Return the column family for the blocks of a state whose rows are in this one."""
    return f"blocks:{column}"


class Blocks:
    """The blocks of one state; `entries` counts what is in them once they were read, replaced entries too."""

    def __init__(self, store: Store, column: str, dtype: np.dtype[Any], space: RowSpace) -> None:
        self._store, self._name, self._space = store, blocks_name(column), space
        self._form = np.dtype([("key", "<i8"), ("value", dtype.newbyteorder("<")), ("live", "?")])
        self._fields = ("key", np.dtype(np.int64)), ("value", dtype), ("live", np.dtype(np.bool_))
        self.entries = self._next = 0

    @property
    def _column(self) -> Column:
        return self._store.column(self._name)

    def is_empty(self) -> bool:
        if self._name not in self._store.columns:
            return True
        return next(self._column.scan_keys(*self._space.bounds(), keep=False), None) is None

    def next_number(self) -> int:
        """Return the number of a new cut."""
        self._next += 1
        return self._next - 1

    def write(self, number: int, entries: Entries, start: int) -> Iterator[int]:
        """Write entries of a cut, sorted by key group, from `start` on; yields how many each step has written."""
        size, prefix = self._form.itemsize, self._space.keys.prefix
        while start < len(entries[0]):
            keys, groups, values, live = part_of(entries, start, _PART)
            packed = np.empty(len(keys), self._form)
            packed["key"], packed["value"], packed["live"] = keys, values, live
            data = packed.tobytes()
            batch = self._column.batch()
            changes = np.flatnonzero(groups[1:] != groups[:-1]) + 1
            for first, end in pairwise([0, *changes.tolist(), len(keys)]):
                batch[prefix(groups.item(first)) + _NUMBERS.pack(number, start // _PART)] = data[
                    first * size : end * size
                ]
            self._store.write(batch)
            start += len(keys)
            yield len(keys)

    def read(self) -> Iterator[NumberGroup]:
        """Yield the live entries of each key group that has any, sorted by key."""
        self.entries = 0
        if self.is_empty():
            return
        prefix, width = self._space.keys.prefix, self._space.keys.width
        for group in self._space.groups:
            rows = list(self._column.scan(prefix(group), prefix(group + 1), keep=False))
            entries = np.frombuffer(b"".join([data for _, data in rows]), self._form)
            self.entries += len(entries)
            self._next = max([self._next, *(_NUMBERS.unpack_from(row, width)[0] + 1 for row, _ in rows)])
            keys, values, live = (entries[name].astype(form) for name, form in self._fields)
            order = _latest(keys)
            if order is not None:
                keys, values, live = keys[order], values[order], live[order]
            if not live.all():
                keys, values = keys[live], values[live]
            if len(keys):
                yield group, (keys, values)

    def load(self, columns: KeysAndNumbers, groups: npt.NDArray[Any]) -> None:
        """Write entries as a cut of their own, at once."""
        keys, values = columns
        if not (groups[1:] >= groups[:-1]).all():
            order = np.argsort(groups, kind="stable")
            keys, values, groups = keys[order], values[order], groups[order]
        entries = keys, groups.astype(np.uint16), values, np.ones(len(keys), np.bool_)
        for _ in self.write(self.next_number(), entries, 0):
            pass  # all steps at once

    def to_rows(self, column: Column, codec: StoredCodec) -> None:
        """Make all entries rows of the state's column."""
        for group, (keys, values) in self.read():
            for start in range(0, len(keys), _ROWS):
                some = keys[start : start + _ROWS], values[start : start + _ROWS]
                spots = np.full(len(some[0]), group, np.uint16)
                self._store.write(number_rows(column, codec, self._space.keys, some, spots))
        self.clear()
        self.entries = 0

    def clear(self) -> None:
        """Remove all blocks; `entries` is the caller's to change, since cuts may wait that are not written yet."""
        if self._name in self._store.columns:
            self._column.delete_range(*self._space.bounds())


def _latest(keys: Ints) -> Ints | None:
    """Return the position of each key's last entry, in key order; None if the keys are in order already."""
    if (keys[1:] > keys[:-1]).all():
        return None
    order = np.argsort(keys)  # several times as fast as one that keeps the order of equal keys
    found = keys[order]
    if not (found[1:] == found[:-1]).any():
        return order
    order = np.argsort(keys, kind="stable")
    found = keys[order]
    latest: Ints = order[np.append(found[1:] != found[:-1], True)]
    return latest
