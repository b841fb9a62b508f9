"""Cells and handles of the rocksdb backend: state of the current key, through the write-back cache.

They run in the subtask's thread. The cache holds values in an immutable form, and a read returns an object of the user's
own (`codec.py`), so handles need not copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headgate.state.addresses import NO_KEY, KeyContext, NoKeySet
from headgate.state.api import ValueState
from headgate.state.cells import MISSING, ListCell, MapCell, ValueCell
from headgate.state.copying import ATOMS, copied
from headgate.state.rocksdb.codec import Packed
from headgate.state.rocksdb.lists_maps import ListRows, MapRows
from headgate.state.rocksdb.tables import ValueRows


class RowValue(ValueState[Any]):
    """A value state without time to live; on a cache hit there is no call between the user and the dict."""

    def __init__(self, name: str, rows: ValueRows, context: KeyContext, default: Any) -> None:
        self.name = name
        self._rows = rows
        self._tables = rows.tables
        self._plain = rows.codec.values.plain
        self._context = context
        self._default = default

    def value(self) -> Any:
        context = self._context
        try:
            stored = self._tables[context.group][context.address]
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        if stored is None:
            return copied(self._default)
        return self._rows.codec.open(stored) if type(stored) is Packed else stored

    def update(self, value: Any) -> None:
        if type(value) not in self._plain:
            if value is None:
                self.clear()
                return
            value = self._rows.codec.keep(value)
        context = self._context
        try:
            self._tables[context.group][context.address] = value
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")

    def clear(self) -> None:
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"value state '{self.name}'")
        self._rows.remove(context.group, context.address)


class ReusedValue(RowValue):
    """A value state with `object_reuse`: the user may change a value that was read in place, and so the state.

    So an object that is returned is put into the tables, where it counts as changed, and is encoded when it is written.
    """

    def value(self) -> Any:
        """The value of the current key; the same object until the next snapshot."""
        context = self._context
        try:
            table = self._tables[context.group]
            stored = table[context.address]
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        if stored is None:
            return copied(self._default)
        if type(stored) is Packed:
            stored = table[context.address] = self._rows.codec.open(stored)
        elif type(stored) not in ATOMS and context.address not in table:
            # An object below the tables belongs to a snapshot or equals the row in the database.
            stored = table[context.address] = copied(stored)
        return stored

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        context = self._context
        try:
            self._tables[context.group][context.address] = value
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")


class _RowCell:
    """Access to the rows of the current key."""

    def __init__(self, name: str, context: KeyContext, rows: Any) -> None:
        self.name = name
        self._context = context
        self._rows = rows

    def _place(self) -> tuple[int, Any]:
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"state '{self.name}'")
        return context.group, context.address


class RowValueCell(_RowCell, ValueCell):
    _rows: ValueRows

    def get(self) -> Any:
        group, address = self._place()
        stored = self._rows.tables[group][address]
        return None if stored is None else self._rows.codec.open(stored)

    get_owned = get

    def put(self, stored: Any) -> None:
        group, address = self._place()
        self._rows.tables[group][address] = self._rows.codec.keep(stored)

    def remove(self) -> None:
        self._rows.remove(*self._place())


class RowListCell(_RowCell, ListCell):
    _rows: ListRows

    def get(self) -> Sequence[Any] | None:
        found = self._rows.elements(*self._place())
        return list(map(self._rows.codec.open, found)) if found else None

    def extend(self, stored: Sequence[Any]) -> None:
        self._rows.append(*self._place(), list(map(self._rows.codec.keep, stored)))

    def replace(self, stored: Sequence[Any]) -> None:
        self._rows.replace(*self._place(), list(map(self._rows.codec.keep, stored)))

    def remove(self) -> None:
        self._rows.replace(*self._place(), [])


class RowMapCell(_RowCell, MapCell):
    _rows: MapRows

    def get(self, map_key: Any) -> Any:
        found = self._rows.get(*self._place(), map_key)
        return MISSING if found is MISSING else self._rows.codec.open(found)

    def put(self, map_key: Any, stored: Any) -> None:
        self._rows.put(*self._place(), map_key, self._rows.codec.keep(stored))

    def put_all(self, stored: Mapping[Any, Any]) -> None:
        place, keep = self._place(), self._rows.codec.keep
        kept = {map_key: keep(one) for map_key, one in stored.items()}  # all of them fit, or none is stored
        for map_key, one in kept.items():
            self._rows.put(*place, map_key, one)

    def delete(self, map_key: Any) -> None:
        self._rows.delete(*self._place(), map_key)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        found = self._rows.entries(*self._place())
        opened = self._rows.codec.open
        return ((map_key, opened(kept)) for map_key, kept in found)

    def is_empty(self) -> bool:
        return self._rows.is_empty(*self._place())

    def remove(self) -> None:
        self._rows.clear(*self._place())


class RowValueTable:
    """A `ValueTable` of rows."""

    def __init__(self, rows: ValueRows) -> None:
        self._rows = rows

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        rows, tables = self._rows, self._rows.tables
        rows.prefetch(addresses, groups)
        found = [tables[group][address] for address, group in zip(addresses, groups, strict=True)]
        opened = rows.codec.open
        return [None if stored is None else opened(stored) for stored in found]

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        rows, tables = self._rows, self._rows.tables
        keep = rows.codec.keep
        for address, group, value in zip(addresses, groups, values, strict=True):
            if value is None:
                rows.remove(group, address)
            else:
                tables[group][address] = keep(value)
