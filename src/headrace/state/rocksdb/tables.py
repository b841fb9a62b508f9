"""Tables of the rocksdb backend: rows in the database, and layers of changes on top that are not written yet.

    tables       changes since the last cut, one dict per key group; all writes go here
    frozen       changes up to earlier cuts, newest first, which are being written to the database
    clean        entries that were read or written recently and are equal in the database, in two generations
    column       the rows

A read searches these in order. A *cut* makes the tables a frozen layer (`writeback.py`): a snapshot holds what is below
its cut. Several writes to one key between two cuts cost one row; a row costs twenty times what a dict entry does.

Each kind has its own form of change: a value or None for values, `ListEdit` for lists, `MapEdit` for maps.

A snapshot's thread may write frozen layers while the subtask's thread processes records. Only the subtask's thread
freezes and fills tables. A change becomes clean first and leaves its layer afterwards, under `RowSpace.guard`; a value
that is read meanwhile is found in one of the two, so values need no lock. A list that is read meanwhile would show new
elements twice, or a map that is half written would miss entries: so these take the guard if there are frozen layers.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from rocksdict import WriteBatch

from headrace.checkpoint.handles import StateMeta
from headrace.records.key_groups import KeyGroupRange
from headrace.records.types import TypeMismatch
from headrace.state.addresses import FOREIGN_TABLE, VOID, key_of, split_address
from headrace.state.backend import KeysAndNumbers, NumberGroup
from headrace.state.rocksdb.codec import Packed, StoredCodec
from headrace.state.rocksdb.keys import RowKeys
from headrace.state.rocksdb.store import Column
from headrace.state.tables import MISSING, DictTable

Layer: TypeAlias = dict[int, dict[Any, Any]]
"""By key group: address -> change."""
Change: TypeAlias = tuple[bytes, bytes | None]
"""A row's new value; None removes the row."""

UPPER: Final = b"\xff"
"""A base with this suffix sorts after all rows of the base: no sequence number and no tag starts with this byte."""
_ENTRY_BYTES: Final = 160  # a dict entry and the objects' headers
SAMPLED: Final = 32  # entries whose sizes are looked at
_SAMPLED_OF_GROUP: Final = 4
_LARGE: Final = 64 * 1024  # bytes; larger values are not cached, since caches are bounded by the average size
_SMALL_TYPES: Final = frozenset([int, float, bool])
_FIRST: Final = itemgetter(0)
_NUMBERS: Final = 1 << 16  # rows that are read at once


@dataclass(slots=True)
class RowSpace:
    """The parts that all states of a backend share; the guard is held while rows and layers change together."""

    keys: RowKeys
    groups: KeyGroupRange
    guard: threading.RLock = field(default_factory=threading.RLock)
    sequence: int = 0  # the number of the next list element

    def bounds(self) -> tuple[bytes, bytes]:
        """Return the row keys of this subtask's key groups: from, and before."""
        return self.keys.prefix(self.groups.start), self.keys.prefix(self.groups.end + 1)


@dataclass(frozen=True, slots=True)
class WritePortion:
    """Changes that are written together; `rests` are the remainders of changes that are too large for that."""

    entries: Sequence[tuple[Any, Any]]
    rests: dict[Any, Any] = field(default_factory=dict)


class StateRows(ABC):
    """One state of one backend: its rows, and what is not written yet."""

    def __init__(self, meta: StateMeta, column: Column, codec: StoredCodec, space: RowSpace) -> None:
        self.meta = meta
        self.column = column
        self.codec = codec
        self.space = space
        self.keys = space.keys
        self.guard = space.guard
        self.limit = 10_000  # entries in each generation of clean ones
        self.reads = 0  # rows read from the database since the last batch

    @abstractmethod
    def weight(self) -> int:
        """Estimate of the rows that the changes since the last cut will make."""

    @abstractmethod
    def change_bytes(self) -> int:
        """Estimate of the bytes of memory that these changes take."""

    @abstractmethod
    def clean_bytes(self) -> int:
        """Estimate of the bytes of memory of a clean entry."""

    def is_full(self) -> bool:
        """Return True if a cut is needed, since only clean entries can be dropped."""
        return False

    def settle_reads(self) -> None:
        """Called between batches: what was read may be cached, and what is not in use dropped."""

    @abstractmethod
    def has(self, group: int, address: Any) -> bool: ...

    @abstractmethod
    def has_pending(self) -> bool:
        """Return True if there are unwritten changes."""

    @abstractmethod
    def _pending(self) -> dict[Any, int]:
        """Return the addresses with unwritten changes, and their groups."""

    def addresses(self) -> Iterator[tuple[int, Any]]:
        """(group, address) of every entry; concurrent changes may or may not be included."""
        with self.guard:
            rows = self.column.scan_keys(*self.space.bounds(), keep=False)
            pending = self._pending()
        for address, group in pending.items():
            if self.has(group, address):
                yield group, address
        base = b""
        for row in rows:
            if not base or not row.startswith(base):
                group, address, end = self.keys.split(row)
                base = row[:end]
                if address not in pending:
                    yield group, address

    def number_groups(self, dtype: np.dtype[Any]) -> Iterator[NumberGroup]:
        """The written entries by key group, some at a time: rows of integer keys are in the order of the keys."""
        for group in self.space.groups:
            rows = self.column.scan(self.keys.prefix(group), self.keys.prefix(group + 1), keep=False)
            while some := list(islice(rows, _NUMBERS)):
                keys = self.keys.integers([key for key, _ in some])
                values = self.codec.values.decode_many([data for _, data in some])
                if keys is None:
                    addresses = (self.keys.split(key)[1] for key, _ in some)
                    yield group, dict(zip(addresses, values, strict=True))
                else:
                    yield group, (keys, np.array(values, dtype))


def number_rows(
    column: Column, codec: StoredCodec, row_keys: RowKeys, entries: KeysAndNumbers, groups: npt.NDArray[Any]
) -> WriteBatch:
    """Return a batch with the rows of numbers under integer keys."""
    keys, numbers = entries
    batch = column.batch()
    for row, data in zip(row_keys.integer_rows(keys, groups), codec.encode_many(numbers.tolist()), strict=True):
        batch[row] = data
    return batch


class LayeredRows(StateRows):
    """A state whose changes are in dicts."""

    def __init__(self, meta: StateMeta, column: Column, codec: StoredCodec, space: RowSpace) -> None:
        super().__init__(meta, column, codec, space)
        # Handles hold on to this list, so it is only ever changed in place.
        self.tables: list[dict[Any, Any]] = [FOREIGN_TABLE] * self.keys.max_parallelism
        for group in space.groups:
            self.tables[group] = self._table(group)
        self.frozen: list[Layer] = []
        self.sampled_bytes = _ENTRY_BYTES

    def _table(self, group: int) -> dict[Any, Any]:
        """Return an empty table for changes."""
        return {}

    def own_tables(self) -> list[dict[Any, Any]]:
        """Return the tables of this subtask's key groups."""
        return self.tables[self.space.groups.start : self.space.groups.end + 1]

    # --- cuts and writing ---

    def entry_bytes(self) -> int:
        """Estimate of the bytes of memory of a change that makes one row, from a sample."""
        sample = self.sample()
        if sample:
            total = sum(size_of(address) + size_of(self._specimen(change)) for address, change in sample)
            self.sampled_bytes = _ENTRY_BYTES + total // len(sample)
        return self.sampled_bytes

    def sample(self) -> list[tuple[Any, Any]]:
        """Return some of the changes, by address."""
        tables = islice(filter(None, self.own_tables()), SAMPLED // _SAMPLED_OF_GROUP)
        return [entry for table in tables for entry in islice(table.items(), _SAMPLED_OF_GROUP)]

    def _specimen(self, change: Any) -> Any:
        """One row's worth of a change."""
        return change

    def change_bytes(self) -> int:
        return self.entry_bytes() * self.weight()

    def clean_bytes(self) -> int:
        return self.sampled_bytes

    def freeze(self) -> Layer:
        """Make the present changes a frozen layer and continue with empty tables."""
        self.entry_bytes()
        layer = {group: self.tables[group] for group in self.space.groups if self.tables[group]}
        with self.guard:
            if layer:
                self.frozen = [layer, *self.frozen]
            for group in layer:
                self.tables[group] = self._table(group)
        return layer

    def drop_replaced(self, layer: Layer, newer: Sequence[Layer], *, tables: bool) -> None:
        """Drop changes of a layer that newer layers, or the tables, replace as a whole."""

    def thaw(self, layer: Layer) -> None:
        """Drop a layer that is written."""
        with self.guard:
            self.frozen = [one for one in self.frozen if one is not layer]

    def portion(self, table: dict[Any, Any], rows: int) -> WritePortion:
        """Changes of a frozen table that make about `rows` rows."""
        return WritePortion(list(islice(table.items(), rows)))

    def write(self, batch: WriteBatch, group: int, entries: Sequence[tuple[Any, Any]]) -> int:
        """Put the rows of changed entries into a batch; returns the number of rows."""
        changes = self.changes(group, entries)
        changes.sort(key=_FIRST)  # RocksDB writes sorted rows in half the time
        for key, data in changes:
            if data is None:
                batch.delete(key)
            else:
                batch[key] = data
        return len(changes)

    @abstractmethod
    def changes(self, group: int, entries: Sequence[tuple[Any, Any]]) -> list[Change]:
        """Return the rows that changed entries of the oldest layer make."""

    @abstractmethod
    def settle(self, changes: dict[Any, Any]) -> None:
        """Make changes, by address, clean: they are in the database now."""

    def encode_all(self, addresses: Iterable[Any], stored: Sequence[Any]) -> list[bytes]:
        """Return the bytes of stored values; TypeMismatch names the key of a value that does not fit."""
        try:
            return self.codec.encode_many(stored) if stored else []
        except TypeMismatch:
            for address, one in zip(addresses, stored, strict=True):
                try:
                    self.codec.encode(one)
                except TypeMismatch as error:
                    key = key_of(split_address(address)[0])
                    raise TypeMismatch(f"{self.codec.values.where}, key {key!r}: {error}") from None
            raise

    # --- reading ---

    def layers_at(self, group: int) -> Iterator[dict[Any, Any]]:
        """Yield the frozen tables of a group, newest first."""
        for layer in self.frozen:
            table = layer.get(group)
            if table is not None:
                yield table

    def edits(self, group: int, address: Any) -> Iterator[Any]:
        """Yield the unwritten changes at an address, newest first; for kinds whose changes are never None."""
        change = self.tables[group].get(address)
        if change is not None:
            yield change
        for table in self.layers_at(group):
            change = table.get(address)
            if change is not None:
                yield change

    def is_pending(self, group: int, address: Any) -> bool:
        """Return True if an address has unwritten changes."""
        return address in self.tables[group] or any(address in table for table in self.layers_at(group))

    @abstractmethod
    def forget(self, address: Any) -> None:
        """Drop an address from the cache: its rows were changed in the database."""

    def has_pending(self) -> bool:
        return bool(self.frozen) or any(self.own_tables())

    def _pending(self) -> dict[Any, int]:
        layers = [{group: self.tables[group] for group in self.space.groups}, *self.frozen]
        return {address: group for layer in layers for group, table in layer.items() for address in table}


class _Writes(dict[Any, Any]):
    """The changes of values in one group; other entries are looked up below."""

    __slots__ = ("_group", "_rows")

    def __init__(self, rows: ValueRows, group: int) -> None:
        super().__init__()
        self._rows = rows
        self._group = group

    def __missing__(self, address: Any) -> Any:
        return self._rows.below(self._group, address)


class ValueRows(LayeredRows, DictTable):
    """One value per address: value, reducing and aggregating state, timers.

    A change is the value in its cached form (`codec.py`), or None for a removed one.
    """

    def __init__(self, meta: StateMeta, column: Column, codec: StoredCodec, space: RowSpace) -> None:
        super().__init__(meta, column, codec, space)
        self._clean: dict[Any, Any] = {}
        self._older: dict[Any, Any] = {}
        self._may_be_large = not codec.values.plain <= _SMALL_TYPES
        self.plain, self.keep, self.copy = codec.values.plain, codec.keep, codec.open

    def _table(self, group: int) -> dict[Any, Any]:
        return _Writes(self, group)

    def weight(self) -> int:
        return sum(map(len, self.own_tables()))

    def drop_replaced(self, layer: Layer, newer: Sequence[Layer], *, tables: bool) -> None:
        with self.guard:
            for group in list(layer):
                table = layer[group]
                above = [one[group] for one in newer if group in one]
                if tables:
                    above.append(self.tables[group])
                for address in [address for address in table if any(address in other for other in above)]:
                    del table[address]
                if not table:
                    del layer[group]

    def unpack(self, kept: Any) -> Any:
        return self.codec.open(kept)

    def get(self, group: int, address: Any) -> Any:
        kept = self.tables[group][address]
        return None if kept is None else self.codec.open(kept)

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        self.prefetch(addresses, groups)
        tables, opened = self.tables, self.codec.open
        found = [tables[group][address] for address, group in zip(addresses, groups, strict=True)]
        return [None if kept is None else opened(kept) for kept in found]

    def remove(self, group: int, address: Any) -> None:
        """Remove an entry; no tombstone is written if it is known that there is no row."""
        table = self.tables[group]
        if self._is_absent_below(group, address):
            table.pop(address, None)
        else:
            table[address] = None

    def _is_absent_below(self, group: int, address: Any) -> bool:
        for table in self.layers_at(group):
            if address in table:
                return table[address] is None
        generation = self._clean if address in self._clean else self._older
        return generation.get(address, self) is None

    def below(self, group: int, address: Any) -> Any:
        """Return the value below the tables at an address, or None."""
        for table in self.layers_at(group) if self.frozen else ():
            if address in table:
                return table[address]
        clean = self._clean
        if address in clean:
            return clean[address]
        stored = self._older.pop(address, MISSING)
        if stored is MISSING:
            self.reads += split_address(address)[1] is VOID  # prefetch could have read it
            data = self.column.get(self.keys.base(group, address))
            stored = None if data is None else self.codec.load(data)
        self._keep({address: stored})
        return stored

    def _keep(self, entries: dict[Any, Any]) -> None:
        if self.frozen:
            with self.guard:  # else one thread could restore a generation that the other has just replaced
                self._add(entries)
        else:
            self._add(entries)

    def _add(self, entries: dict[Any, Any]) -> None:
        if self._may_be_large:
            large = [address for address, stored in entries.items() if size_of(stored) > _LARGE]
            if large:
                entries = {address: entries[address] for address in entries.keys() - set(large)}
                for address in large:
                    self.forget(address)
        self._clean.update(entries)
        # Entries in use move from the older generation to the newer; the rest of the older one is dropped together.
        if len(self._clean) > self.limit and len(self._clean) + len(self._older) > 2 * self.limit:
            self._older, self._clean = self._clean, {}

    def prefetch(self, addresses: Sequence[Any], groups: Sequence[int]) -> None:
        """Read the values that are not cached with one call."""
        clean, older, tables = self._clean, self._older, self.tables
        wanted = {
            address: group
            for address, group in zip(addresses, groups, strict=True)
            if address not in clean and address not in older and address not in tables[group]
        }
        if self.frozen:
            wanted = {address: group for address, group in wanted.items() if not self.is_pending(group, address)}
        if not wanted:
            return
        base = self.keys.base
        rows = sorted([(base(group, address), address) for address, group in wanted.items()], key=_FIRST)
        self.reads += len(rows)
        found = self.column.get_many([key for key, _ in rows])
        load = self.codec.load
        self._keep(
            {address: None if data is None else load(data) for (_, address), data in zip(rows, found, strict=True)}
        )

    def has(self, group: int, address: Any) -> bool:
        return self.tables[group][address] is not None

    def forget(self, address: Any) -> None:
        self._clean.pop(address, None)
        self._older.pop(address, None)

    def items(self) -> Iterator[tuple[int, Any, Any]]:
        with self.guard:
            rows = self.column.scan(*self.space.bounds(), keep=False)
            pending = self._pending()
        for address, group in pending.items():
            stored = self.get(group, address)
            if stored is not None:
                yield group, address, stored
        for row, data in rows:
            group, address, _ = self.keys.split(row)
            if address not in pending:
                yield group, address, self.codec.open(self.codec.load(data))

    def changes(self, group: int, entries: Sequence[tuple[Any, Any]]) -> list[Change]:
        removed = [address for address, stored in entries if stored is None]
        kept = [entry for entry in entries if entry[1] is not None] if removed else entries
        addresses = [address for address, _ in kept]
        rows = self.encode_all(addresses, [stored for _, stored in kept])
        changes: list[Change] = list(zip(self.keys.bases(group, addresses), rows, strict=True))
        changes.extend((key, None) for key in self.keys.bases(group, removed))
        return changes

    def settle(self, changes: dict[Any, Any]) -> None:
        self._keep(changes)


def size_of(value: Any) -> int:
    """Estimate of the bytes of an object."""
    if type(value) is Packed:
        return len(value.data)
    if isinstance(value, tuple):
        return sum(map(size_of, value[:8]))
    return sys.getsizeof(value)
