"""A value state of numbers under integer keys: blocks or rows in the database, and columns of the entries in use.

An entry takes about 50 bytes in columns, and 200 as Python objects; batches are read and stored at once, with one call of the
database for all keys that are not in the columns. All changes are made in the columns:

    columns      entries that were used lately, and which of them changed since the last cut
    older        entries that were used before those; dropped when the columns have too many entries
    frozen       copies of changes up to earlier cuts, which are being written to the database

While all entries fit into the memory the columns are *complete*, and the database has blocks of changes, which are cheap to
write but cannot be read one by one (`blocks.py`). When blocks have several entries for each key, all are written anew.

Once there are too many entries, all of them become rows, and the blocks are removed. Then a key that is neither in the columns
nor in the older ones has no unwritten change, so its row is what counts: entries are dropped only when everything frozen is
written, and a removed one stays until its row is deleted. A state with rows at the start keeps to rows.

The subtask's thread changes and freezes columns; it or the thread of a snapshot writes what is frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from headrace.checkpoint.handles import StateMeta
from headrace.records.key_groups import KeyGroupRange
from headrace.state.backend import NumberGroup
from headrace.state.columns import ColumnTable, Ints, Numbers, grown
from headrace.state.rocksdb.blocks import Blocks, Entries, part_of
from headrace.state.rocksdb.codec import StoredCodec
from headrace.state.rocksdb.store import Column, Store
from headrace.state.rocksdb.tables import RowSpace, StateRows, ValueRows

_FEW: Final = 10_000  # entries, whose memory says nothing about that of many
_ENTRY_BYTES: Final = 50
_DRAIN_AT: Final = 7 / 8  # of the memory: entries are added while changes are written
_RENEW: Final = 4  # entries in blocks for each entry of the state, at most
_FEW_IN_BLOCKS: Final = 10_000  # not worth writing all entries anew
_ENTRIES_OF_ROW: Final = 16  # which cost in a block what one costs as a row


class Rows(Protocol):
    """The access to database rows that the columns need."""

    def read(self, keys: Ints, groups: npt.NDArray[Any]) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return the numbers of keys, and which of the keys have one."""
        ...

    def read_one(self, key: int, group: int) -> Any:
        """Return the number of a key, or None."""
        ...

    def has_frozen(self) -> bool:
        """Return True if there are frozen changes that are not written yet."""
        ...


class CachedColumns(ColumnTable):
    """The entries in use; others are read from the database when they are looked up."""

    def __init__(self, groups: KeyGroupRange, max_parallelism: int, dtype: np.dtype[Any], rows: Rows) -> None:
        self._rows = rows
        self._older: CachedColumns | None = None
        self.complete = True
        super().__init__(groups, max_parallelism, dtype)

    def _allocate(self, dtype: np.dtype[Any]) -> None:
        super()._allocate(dtype)
        # By slot, whether the database has the entry, or will have it when everything frozen is written.
        self.stored: npt.NDArray[np.bool_] = np.zeros(len(self.keys), np.bool_)
        self.track()

    @property
    def changed(self) -> Ints:
        """The slots that changed since `take_changes`."""
        assert self._changed is not None
        return np.flatnonzero(self._changed[: self.count])

    @property
    def older_count(self) -> int:
        return 0 if self._older is None else self._older.count

    def find(self, keys: Ints, groups: npt.NDArray[Any]) -> Ints:
        found = super().find(keys, groups)
        if not self.complete:
            missing = np.flatnonzero(found < 0)
            if len(missing):
                self._fetch(keys[missing], groups[missing])
                found[missing] = super().find(keys[missing], groups[missing])
        return found

    def probe(self, key: int, group: int) -> int:
        slot = super().probe(key, group)
        return self._fetch_one(key, group) if slot < 0 and not self.complete else slot

    def _fetch_one(self, key: int, group: int) -> int:
        """`_fetch` without the overhead of numpy calls."""
        older = self._older
        known = -1 if older is None else older.probe(key, group)
        if older is not None and known >= 0:
            value, live, stored = older.values.item(known), older.live.item(known), older.stored.item(known)
        else:
            found = self._rows.read_one(key, group)
            value, live = (0, False) if found is None else (found, True)
            stored = live
        slot = self._enter_one(key, group)
        self.values[slot], self.live[slot], self.stored[slot] = value, live, stored
        self._dead[group] += not live
        return slot

    def _fetch(self, keys: Ints, groups: npt.NDArray[Any]) -> None:
        """Make slots for keys that have none, with what the older columns or the database have."""
        keys, first = np.unique(keys, return_index=True)
        groups = groups[first]
        older = self._older
        if older is not None:
            slots = older.find(keys, groups)
            known = slots >= 0
            self._copy(older, slots[known])
            keys, groups = keys[~known], groups[~known]
        if len(keys):
            values, there = self._rows.read(keys, groups)
            self._set(self._enter_new(keys, groups), values, there, there)

    def _copy(self, older: CachedColumns, slots: Ints) -> Ints:
        new = self._enter_new(older.keys[slots], older.group_of[slots])
        self._set(new, older.values[slots], older.live[slots], older.stored[slots])
        return new

    def _set(self, slots: Ints, values: Numbers, live: npt.NDArray[np.bool_], stored: npt.NDArray[np.bool_]) -> None:
        self.values[slots], self.live[slots], self.stored[slots] = values, live, stored
        dead = self.group_of[slots[~live]]
        if len(dead):
            self._dead += np.bincount(dead, minlength=len(self._dead))

    def _new_slots(self, wanted: int) -> Ints:
        slots = super()._new_slots(wanted)
        self.stored[slots] = False
        return slots

    def _new_slot(self) -> int:
        slot = super()._new_slot()
        self.stored[slot] = False
        return slot

    def _reserve(self, size: int) -> None:
        super()._reserve(size)
        if len(self.stored) < len(self.keys):
            self.stored = grown(self.stored, len(self.stored), len(self.keys))

    def _remove_dead(self, group: int) -> None:
        # Else a row that is not deleted yet, or an older entry, would be found instead of a removed entry.
        if not self._rows.has_frozen() and self._older is None:
            assert self._changed is not None
            slots = self._slots_in(group)[1]
            self._changed[slots[~self.live[slots] & ~self.stored[slots]]] = False  # there is nothing to be deleted
            super()._remove_dead(group)

    def take_changes(self) -> ColumnLayer | None:
        """Return a copy of the changes since the last call; None if there are none that the database has to know."""
        slots = self.changed
        self._changes_are_taken()
        live = self.live[slots]
        needed = live | self.stored[slots]
        self.stored[slots] = live
        slots, live = slots[needed], live[needed]
        return ColumnLayer(self.keys[slots], self.group_of[slots], self.values[slots], live) if len(slots) else None

    def take_all(self) -> ColumnLayer:
        """Return a copy of all entries; the columns must be complete."""
        slots = np.flatnonzero(self.live[: self.count])
        self._changes_are_taken()
        self.stored[: self.count] = self.live[: self.count]
        return ColumnLayer(self.keys[slots], self.group_of[slots], self.values[slots], self.live[slots])

    def load(self, keys: Ints, groups: npt.NDArray[Any], values: Numbers) -> None:
        """Enter keys that the database has, and the columns do not have."""
        there = np.ones(len(keys), np.bool_)
        self._set(self._enter_new(keys, groups), values, there, there)

    def drop_older(self) -> None:
        """Forget the older entries; all their changes are in these columns."""
        self._older = None

    def rotate(self) -> None:
        """Make all entries older ones, in place of those that are now; changes stay."""
        self.drop_older()
        older = copy.copy(self)
        older.complete = True
        self._allocate(self.values.dtype)
        self._older, self.complete = older, False
        slots = self._copy(older, older.changed)
        assert self._changed is not None
        self._changed[slots] = True


class ColumnLayer:
    """Changes that are being written to the database; `written` of them are.

    `number` is that of the cut if they are written as blocks. With `all` they are all entries, in place of all blocks.
    """

    def __init__(
        self, keys: Ints, groups: npt.NDArray[np.uint16], values: Numbers, live: npt.NDArray[np.bool_]
    ) -> None:
        self.written = 0
        self.number: int | None = None
        self.all = False
        self._sorted = False
        self._entries: Entries = keys, groups, values, live

    def __len__(self) -> int:
        return len(self._entries[0])

    @property
    def keys_and_groups(self) -> tuple[Ints, npt.NDArray[np.uint16]]:
        return self._entries[:2]

    def entries(self) -> Entries:
        """Return the changes in the order in which they are written."""
        if not self._sorted:  # not where the subtask waits for it
            keys, groups, values, live = self._entries
            order = _row_order(keys, groups) if self.number is None else np.argsort(groups, kind="stable")
            self._entries, self._sorted = (keys[order], groups[order], values[order], live[order]), True
        return self._entries


class NumberRows(StateRows):
    """One number per key."""

    def __init__(
        self,
        meta: StateMeta,
        column: Column,
        codec: StoredCodec,
        space: RowSpace,
        dtype: np.dtype[Any],
        blocks: Blocks,
        memory: int,
    ) -> None:
        super().__init__(meta, column, codec, space)
        self.columns = CachedColumns(space.groups, space.keys.max_parallelism, dtype, self)
        self.frozen: list[ColumnLayer] = []
        self._drains = False  # whether entries are dropped as soon as everything frozen is written
        self._leaves_blocks = False
        self._blocks = blocks
        has_rows = next(column.scan_keys(*space.bounds(), keep=False), None) is not None
        self.in_blocks = not has_rows and self._load(memory // _ENTRY_BYTES)
        if not self.in_blocks:
            blocks.to_rows(column, codec)
            self.columns.complete = False

    def _load(self, room: int) -> bool:
        """Read all blocks into the columns; False, and the columns are empty, if there are more entries than that."""
        for group, (keys, values) in self._blocks.read():
            room -= len(keys)
            if room < 0:
                self.forget()
                return False
            self.columns.load(keys, np.full(len(keys), group, np.uint16), values)
        return True

    def read(self, keys: Ints, groups: npt.NDArray[Any]) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        order = _row_order(keys, groups)
        rows = self.column.get_many(self.keys.integer_rows(keys[order], groups[order]))
        there = np.array([data is not None for data in rows], np.bool_)
        numbers = np.zeros(len(rows), self.columns.values.dtype)
        numbers[there] = self.codec.values.decode_many([data for data in rows if data is not None])
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return numbers[back], there[back]

    def read_one(self, key: int, group: int) -> Any:
        data = self.column.get(self.keys.base(group, key))
        return None if data is None else self.codec.values.decode(data)

    # --- memory ---

    def change_bytes(self) -> int:
        """Changes take no more memory than other entries."""
        return 0

    def clean_bytes(self) -> int:
        count = self.columns.count
        return _ENTRY_BYTES if count < _FEW else 1 + self.columns.used_bytes() // count

    def is_full(self) -> bool:
        """Return True if there are too many entries, and nothing is done about it yet."""
        count, limit = self.columns.count, _DRAIN_AT * self.limit
        return not self._drains and count > limit and count + self.columns.older_count > 2 * limit

    def settle_reads(self) -> None:
        """Drop entries if there are too many; slots from before are not valid any more."""
        if self._drains and not self.frozen:
            self.columns.rotate()
            self._drains = False
        self.columns.grow()

    # --- cuts and writing ---

    def weight(self) -> int:
        return len(self.columns.changed)

    def freeze(self) -> ColumnLayer | None:
        if self.is_full():
            self._drains = True
            self.columns.drop_older()
        layer = self._take()
        if layer is not None:
            with self.guard:
                self.frozen = [layer, *self.frozen]
        return layer

    def _take(self) -> ColumnLayer | None:
        """Return the changes in the form in which they are written."""
        blocks = self._blocks
        if not self.in_blocks:
            return self.columns.take_changes()
        if self._drains or self._leaves_blocks:
            self.in_blocks, blocks.entries = False, 0
            every = self.columns.take_all()
            every.all = True
            return every
        whole = blocks.entries + self.weight() > max(_FEW_IN_BLOCKS, _RENEW * self.columns.count)
        layer = self.columns.take_all() if whole else self.columns.take_changes()
        if layer is not None:
            layer.number, layer.all = blocks.next_number(), whole
            blocks.entries = len(layer) if whole else blocks.entries + len(layer)
        return layer

    def leave_blocks(self) -> None:
        """Make all entries rows with the next cut."""
        self._leaves_blocks = True

    def forget(self) -> None:
        """Drop the entries from the memory; all of them must be written as rows."""
        self.columns.rotate()
        self.columns.drop_older()

    def write_layer(self, store: Store, layer: ColumnLayer, rows: int) -> Iterator[int]:
        """Write a layer, some rows for each step; if a step fails, the next call continues there."""
        entries = layer.entries()
        if layer.number is not None:
            if layer.all and not layer.written:
                self._blocks.clear()
            for count in self._blocks.write(layer.number, entries, layer.written):
                layer.written += count
                yield 1 + count // _ENTRIES_OF_ROW
        else:
            while layer.written < len(layer):
                keys, groups, values, live = part_of(entries, layer.written, rows)
                self._write(store, self.keys.integer_rows(keys, groups), values, live)
                layer.written += len(keys)
                yield len(keys)
            if layer.all:
                self._blocks.clear()
        self.thaw(layer)

    def _write(self, store: Store, rows: list[bytes], values: Numbers, live: npt.NDArray[np.bool_]) -> None:
        batch = self.column.batch()
        if live.all():
            for key, value in zip(rows, self.codec.encode_many(values.tolist()), strict=True):
                batch[key] = value
        else:
            encoded = iter(self.codec.encode_many(values[live].tolist()))
            for key, there in zip(rows, live.tolist(), strict=True):
                if there:
                    batch[key] = next(encoded)
                else:
                    batch.delete(key)
        store.write(batch)

    def thaw(self, layer: ColumnLayer) -> None:
        with self.guard:
            self.frozen = [one for one in self.frozen if one is not layer]

    # --- reading ---

    def has(self, group: int, address: Any) -> bool:
        return self.columns.find_one(address, group) >= 0

    def has_frozen(self) -> bool:
        return bool(self.frozen)

    def has_row(self, group: int, address: Any) -> bool:
        """Return True if there is an entry under an address that columns cannot hold, such as one with a namespace."""
        return self.column.get(self.keys.base(group, address)) is not None

    def has_pending(self) -> bool:
        return not self.in_blocks and (bool(self.frozen) or self.weight() > 0)

    def addresses(self) -> Iterator[tuple[int, Any]]:
        if not self.in_blocks:
            return super().addresses()
        slots = np.flatnonzero(self.columns.live[: self.columns.count])
        slots = slots[np.argsort(self.columns.group_of[slots], kind="stable")]
        return zip(self.columns.group_of[slots].tolist(), self.columns.keys[slots].tolist(), strict=True)

    def number_groups(self, dtype: np.dtype[Any]) -> Iterator[NumberGroup]:
        return self.columns.number_groups() if self.in_blocks else super().number_groups(dtype)

    def _pending(self) -> dict[Any, int]:
        changed = self.columns.changed
        found = dict(zip(self.columns.keys[changed].tolist(), self.columns.group_of[changed].tolist(), strict=True))
        for layer in self.frozen:
            keys, groups = layer.keys_and_groups
            found.update(zip(keys.tolist(), groups.tolist(), strict=True))
        return found

    def move_to(self, rows: ValueRows) -> None:
        """Give unwritten changes to a table of entries for the same rows; everything frozen must be written."""
        columns, slots = self.columns, self.columns.changed
        kept = zip(slots.tolist(), columns.group_of[slots].tolist(), columns.keys[slots].tolist(), strict=True)
        for slot, group, key in kept:
            rows.tables[group][key] = columns.values.item(slot) if columns.live.item(slot) else None


def _row_order(keys: Ints, groups: npt.NDArray[Any]) -> Ints:
    """Return the order of the rows of distinct keys; three times as fast as `lexsort`."""
    order = np.argsort(keys)
    return order[np.argsort(groups[order].astype(np.uint16, copy=False), kind="stable")]
