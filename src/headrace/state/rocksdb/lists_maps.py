"""Lists and maps: one row per element or entry (SPEC R7.2; rocksdict has no merge operator).

Appending reads nothing: elements are numbered by one counter per backend, which snapshots store, so later ones sort after
earlier ones. Replacing or clearing deletes the old rows one by one when the change is written.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from headrace.checkpoint.handles import StateMeta
from headrace.state.rocksdb.codec import StoredCodec
from headrace.state.rocksdb.keys import decode_address, encode_address
from headrace.state.rocksdb.store import Column
from headrace.state.rocksdb.tables import SAMPLED, UPPER, Change, Layer, LayeredRows, RowSpace, WritePortion, size_of
from headrace.state.tables import MISSING, ListTable, MapTable

_number: Final = struct.Struct(">Q").pack
_NOTHING: Final = nullcontext()
BULK_ROWS: Final = 10_000
_CACHED_LIST: Final = 256  # longer lists are not cached
_MAP_BYTES: Final = 160  # the entry of a map in its table, and its edit


class _CollectionRows(LayeredRows):
    """Many rows per address."""

    def __init__(self, meta: StateMeta, column: Column, codec: StoredCodec, space: RowSpace) -> None:
        super().__init__(meta, column, codec, space)
        self._weight = 0
        self._clean: dict[Any, Any] = {}  # by address, what is in the database

    def forget(self, address: Any) -> None:
        self._clean.pop(address, None)

    def weight(self) -> int:
        return self._weight

    def freeze(self) -> Layer:
        self._weight = 0
        return super().freeze()

    def portion(self, table: dict[Any, Any], rows: int) -> WritePortion:
        found: list[tuple[Any, Any]] = []
        for address, edit in table.items():
            if len(edit) > rows:
                if found:
                    break
                first, rest = edit.split(rows)
                return WritePortion([(address, first)], {address: rest})
            found.append((address, edit))
            rows -= len(edit) + 1
            if rows <= 0:
                break
        return WritePortion(found)

    def _reading(self) -> AbstractContextManager[Any]:
        return self.guard if self.frozen else _NOTHING

    def _old_rows(self, base: bytes) -> list[bytes]:
        """The rows that a change replaces; very many are removed with one call, so that the batch stays small."""
        rows = list(islice(self.column.scan_keys(base, base + UPPER), BULK_ROWS + 1))
        if len(rows) <= BULK_ROWS:
            return rows
        self.column.delete_range(base, base + UPPER)
        return []


@dataclass(slots=True, eq=False)
class ListEdit:
    """A change to a list: elements that are appended, or with `whole` replace the old ones."""

    elements: list[Any]
    whole: bool = False

    def __len__(self) -> int:
        return len(self.elements)

    def split(self, rows: int) -> tuple[ListEdit, ListEdit]:
        """Return the change in two parts, the first with `rows` elements."""
        return ListEdit(self.elements[:rows], self.whole), ListEdit(self.elements[rows:])


class ListRows(_CollectionRows, ListTable):
    """Lists; short ones are cached, an empty one if there are no rows."""

    def _specimen(self, change: ListEdit) -> Any:
        return change.elements[0] if change.elements else None

    def extend(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        elements = list(map(self.codec.keep, stored))
        table = self.tables[group]
        edit = table.get(address)
        if edit is None:
            table[address] = ListEdit(elements)
        else:
            edit.elements.extend(elements)
        self._weight += len(elements)

    def replace(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        self.tables[group][address] = ListEdit(list(map(self.codec.keep, stored)), whole=True)
        self._weight += len(stored) + 1

    def remove(self, group: int, address: Any) -> None:
        self.replace(group, address, ())

    def get(self, group: int, address: Any) -> list[Any] | None:
        parts: list[list[Any]] = []
        with self._reading():
            for edit in self.edits(group, address):
                parts.append(edit.elements)
                if edit.whole:
                    break
            else:
                parts.append(self._stored(group, address))
        opened = self.codec.open
        return [opened(element) for part in reversed(parts) for element in part] or None

    def _stored(self, group: int, address: Any) -> list[Any]:
        found: list[Any] | None = self._clean.get(address)
        if found is None:
            base = self.keys.base(group, address)
            load = self.codec.load
            self.reads += 1
            found = [load(data) for _, data in self.column.scan(base, base + UPPER)]
            self._keep(address, found)
        return found

    def _keep(self, address: Any, elements: list[Any]) -> None:
        if len(elements) > _CACHED_LIST:
            self.forget(address)
            return
        if len(self._clean) >= max(1, self.limit // 8):
            self._clean.clear()
        self._clean[address] = elements

    def has(self, group: int, address: Any) -> bool:
        with self._reading():
            for edit in self.edits(group, address):
                if edit.elements or edit.whole:
                    return bool(edit.elements)
            return bool(self._stored(group, address))

    def changes(self, group: int, entries: Sequence[tuple[Any, Any]]) -> list[Change]:
        found: list[Change] = []
        for address, edit in entries:
            base = self.keys.base(group, address)
            if edit.whole and self._clean.get(address) != []:
                found.extend((key, None) for key in self._old_rows(base))
            rows = self.encode_all([address] * len(edit.elements), edit.elements)
            found.extend((base + _number(number), data) for number, data in enumerate(rows, self.space.sequence))
            self.space.sequence += len(rows)
        return found

    def settle(self, changes: dict[Any, Any]) -> None:
        for address, edit in changes.items():
            known = [] if edit.whole else self._clean.get(address)
            if known is None:
                continue
            self._keep(address, known + edit.elements)


GONE: Final = MISSING
"""In a map edit: the entry is removed."""


@dataclass(slots=True, eq=False)
class MapEdit:
    """A change to a map: entries that are put, or with `whole` replace the old ones."""

    entries: dict[Any, Any] = field(default_factory=dict)
    whole: bool = False
    witness: Any = MISSING  # a stored map key: unless it is removed, the map is not empty

    def __len__(self) -> int:
        return len(self.entries)

    def split(self, rows: int) -> tuple[MapEdit, MapEdit]:
        """Return the change in two parts, the first with `rows` entries."""
        entries = list(self.entries.items())
        return MapEdit(dict(entries[:rows]), self.whole), MapEdit(dict(entries[rows:]))


class MapRows(_CollectionRows, MapTable):
    """Maps; entries are cached one by one, as MISSING if there is no row, in two generations."""

    def __init__(self, meta: StateMeta, column: Column, codec: StoredCodec, space: RowSpace) -> None:
        super().__init__(meta, column, codec, space)
        self._older: dict[Any, dict[Any, Any]] = {}
        self._known = 0  # entries in the newer generation
        self._fresh: dict[Any, tuple[int, dict[Any, Any]]] = {}  # read in this batch: groups and entries by address
        self._fresh_count = 0
        self._plain = codec.values.plain  # types of values that are cached as they are

    def forget(self, address: Any) -> None:
        self._fresh.pop(address, None)  # the subtask's thread may add others meanwhile
        self._older.pop(address, None)
        self._known -= len(self._clean.pop(address, ()))

    def freeze(self) -> Layer:
        self.settle_reads()  # another thread may change these rows from now on
        return super().freeze()

    def settle_reads(self) -> None:
        """Cache what was read, but for entries that were changed after it: nothing looks for their old values."""
        with self._reading():
            fresh, self._fresh, self._fresh_count = self._fresh, {}, 0
            for address, (group, entries) in fresh.items():
                edit: MapEdit | None = self.tables[group].get(address)
                if edit is not None:
                    entries = {} if edit.whole else {k: kept for k, kept in entries.items() if k not in edit.entries}
                if entries:
                    known = self._known_of(address)
                    before = len(known)
                    known.update(entries)
                    self._count(len(known) - before)

    def entry_bytes(self) -> int:
        sample = self.sample()
        if sample:
            self.sampled_bytes = _entry_bytes([(address, edit.entries) for address, edit in sample])
        return self.sampled_bytes

    def clean_bytes(self) -> int:
        """A map's entries share what the map costs, so those of large maps take less each."""
        with self._reading():
            sample = list(islice(self._clean.items(), SAMPLED))
        return _entry_bytes(sample) if sample else self.sampled_bytes

    def edit(self, group: int, address: Any) -> MapEdit:
        """Return the change to the map at an address, which is created if there is none."""
        table = self.tables[group]
        found: MapEdit | None = table.get(address)
        if found is None:
            found = table[address] = MapEdit()
        return found

    def put(self, group: int, address: Any, map_key: Any, stored: Any) -> None:
        table = self.tables[group]
        edit: MapEdit | None = table.get(address)
        if edit is None:
            edit = table[address] = MapEdit()
        entries = edit.entries
        before = len(entries)
        entries[map_key] = stored if type(stored) in self._plain else self.codec.keep(stored)
        self._weight += len(entries) - before

    def put_all(self, group: int, address: Any, stored: Mapping[Any, Any]) -> None:
        keep = self.codec.keep
        kept = {map_key: keep(one) for map_key, one in stored.items()}  # all of them fit, or none is stored
        entries = self.edit(group, address).entries
        before = len(entries)
        entries.update(kept)
        self._weight += len(entries) - before

    def delete(self, group: int, address: Any, map_key: Any) -> None:
        self._weight += 1
        edit = self.edit(group, address)
        if edit.whole:
            edit.entries.pop(map_key, None)
        else:
            edit.entries[map_key] = GONE

    def remove(self, group: int, address: Any) -> None:
        self._weight += 1
        self.tables[group][address] = MapEdit(whole=True)

    def get(self, group: int, address: Any, map_key: Any) -> Any:
        edit: MapEdit | None = self.tables[group].get(address)
        kept = self if edit is None else edit.entries.get(map_key, self)  # self: not among the changes
        if kept is self:
            if edit is not None and edit.whole:
                return MISSING
            if self.frozen:
                with self.guard:
                    kept = self._below(group, address, map_key)
            else:
                kept = self._stored(group, address, map_key)
        return MISSING if kept is MISSING else self.codec.open(kept)

    def _below(self, group: int, address: Any, map_key: Any) -> Any:
        """Return an entry below the changes of the tables."""
        for layer in self.frozen:
            table = layer.get(group)
            edit: MapEdit | None = None if table is None else table.get(address)
            if edit is not None:
                kept = edit.entries.get(map_key, self)
                if kept is not self:
                    return kept
                if edit.whole:
                    return MISSING
        return self._stored(group, address, map_key)

    def _stored(self, group: int, address: Any, map_key: Any) -> Any:
        """Return an entry in the cache or in the database."""
        known: dict[Any, Any] | None = self._clean.get(address)
        if known is None and address in self._older:
            known = self._known_of(address)
        kept = self if known is None else known.get(map_key, self)
        if kept is not self:
            return kept
        fresh = self._fresh.get(address)
        if fresh is not None and (kept := fresh[1].get(map_key, self)) is not self:
            return kept
        self.reads += 1
        data = self.column.get(self.keys.base(group, address) + encode_address(map_key))
        kept = MISSING if data is None else self.codec.load(data)
        self._fresh.setdefault(address, (group, {}))[1][map_key] = kept
        self._fresh_count += 1
        if self._fresh_count > self.limit:
            self.settle_reads()
        return kept

    def _known_of(self, address: Any) -> dict[Any, Any]:
        """Return the cached entries of a map, in the newer generation."""
        known: dict[Any, Any] | None = self._clean.get(address)
        if known is None:
            known = self._clean[address] = self._older.pop(address, None) or {}
            self._count(len(known))
        return known

    def _count(self, entries: int) -> None:
        self._known += entries
        # Maps in use move from the older generation to the newer; the rest of the older one is dropped together.
        if self._known > self.limit:
            self._older, self._clean, self._known = self._clean, {}, 0

    def entries(self, group: int, address: Any) -> Iterator[tuple[Any, Any]]:
        """All entries, in the order of the serialised map keys (SPEC R1.7)."""
        base = self.keys.base(group, address)
        pending: dict[bytes, tuple[Any, Any]] = {}
        rows: Iterator[tuple[bytes, bytes]] = iter(())
        # The scan is a consistent view and the changes are copied, so both may change during the iteration.
        with self._reading():
            for edit in self.edits(group, address):
                for map_key, stored in edit.entries.items():
                    pending.setdefault(encode_address(map_key), (map_key, stored))
                if edit.whole:
                    break
            else:
                rows = self.column.scan(base, base + UPPER)
        return self._merge(sorted(pending.items(), key=itemgetter(0)) if pending else [], rows, len(base))

    def _merge(
        self, pending: list[tuple[bytes, tuple[Any, Any]]], rows: Iterator[tuple[bytes, bytes]], start: int
    ) -> Iterator[tuple[Any, Any]]:
        load, opened = self.codec.load, self.codec.open
        position = 0
        for row, data in rows:
            suffix = row[start:]
            while position < len(pending) and pending[position][0] < suffix:
                map_key, kept = pending[position][1]
                if kept is not GONE:
                    yield map_key, opened(kept)
                position += 1
            if position < len(pending) and pending[position][0] == suffix:
                continue
            yield decode_address(suffix)[0], opened(load(data))
        for _, (map_key, kept) in pending[position:]:
            if kept is not GONE:
                yield map_key, opened(kept)

    def is_empty(self, group: int, address: Any) -> bool:
        edit: MapEdit | None = self.tables[group].get(address)
        if edit is not None and edit.whole:
            return not edit.entries
        if edit is not None and edit.witness is not MISSING and edit.entries.get(edit.witness) is not GONE:
            return False
        first = next(self.entries(group, address), None)
        if first is not None and edit is not None:
            edit.witness = first[0]
        return first is None

    def has(self, group: int, address: Any) -> bool:
        return not self.is_empty(group, address)

    def changes(self, group: int, entries: Sequence[tuple[Any, Any]]) -> list[Change]:
        found: list[Change] = []
        keys: list[bytes] = []
        kept: list[Any] = []
        owners: list[Any] = []  # the address of each kept value
        for base, (address, edit) in zip(self.keys.bases(group, [one for one, _ in entries]), entries, strict=True):
            changed = {base + encode_address(map_key): stored for map_key, stored in edit.entries.items()}
            if edit.whole:
                found.extend((key, None) for key in self._old_rows(base) if key not in changed)
            for key, stored in changed.items():
                if stored is GONE:
                    found.append((key, None))
                else:
                    keys.append(key)
                    kept.append(stored)
                    owners.append(address)
        found.extend(zip(keys, self.encode_all(owners, kept), strict=True))
        return found

    def settle(self, changes: dict[Any, Any]) -> None:
        for address, edit in changes.items():
            if edit.whole:
                self.forget(address)
            known = self._known_of(address)
            before = len(known)
            known.update(edit.entries)
            self._count(len(known) - before)


def _entry_bytes(maps: Sequence[tuple[Any, dict[Any, Any]]]) -> int:
    """Estimate of the bytes of memory of an entry, of maps by address."""
    total = entries = 0
    for address, found in maps:
        first = next(iter(found.items()), ())
        total += _MAP_BYTES + size_of(address) + sys.getsizeof(found) + size_of(first) * len(found)
        entries += max(1, len(found))
    return total // entries
