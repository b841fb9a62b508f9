"""Cells and handles of the rocksdb backend: state of the current key, through the write-back cache.

What goes into the cache is kept in a form that nobody can change, and what comes out is the user's own (`values.py`). So
handles need not copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headgate.state.addresses import NO_KEY, KeyContext, NoKeySet
from headgate.state.api import ValueState
from headgate.state.backend import ValueTable
from headgate.state.cells import MISSING, ListCell, MapCell, ValueCell
from headgate.state.copying import ATOMS, copied
from headgate.state.rocksdb.lists_maps import ListRows, MapRows
from headgate.state.rocksdb.rows import ValueRows
from headgate.state.rocksdb.values import Packed
from headgate.state.timers import TimerStore

__all__ = ["ReusedValue", "RowListCell", "RowMapCell", "RowTimerStore", "RowValue", "RowValueCell", "RowValueTable"]


class RowValue(ValueState[Any]):
    """A value state without time to live, the hot path: on a hit no calls between the user and the dict."""

    __slots__ = ("_context", "_default", "_plain", "_rows", "_tables", "name")

    def __init__(self, name: str, rows: ValueRows, context: KeyContext, default: Any) -> None:
        self.name = name
        self._rows = rows
        self._tables = rows.tables
        self._plain = rows.codec.values.plain
        self._context = context
        self._default = default

    def value(self) -> Any:
        """The value of the current key."""
        context = self._context
        try:
            stored = self._tables[context.group][context.address]
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        if stored is None:
            return copied(self._default)
        return self._rows.codec.open(stored) if type(stored) is Packed else stored

    def update(self, value: Any) -> None:
        """Store a value; None clears."""
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
        """Remove the value of the current key."""
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"value state '{self.name}'")
        self._rows.remove(context.group, context.address)


class ReusedValue(RowValue):
    """The same with `object_reuse`: a value that was read may be changed in place, and is then changed in the state.

    So an object that is handed out lies in the tables, where it counts as changed, and is encoded when it is written.
    """

    __slots__ = ()

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
            # What lies below belongs to a snapshot, or is known to be what the database holds.
            stored = table[context.address] = copied(stored)
        return stored

    def update(self, value: Any) -> None:
        """Store a value; None clears."""
        if value is None:
            self.clear()
            return
        context = self._context
        try:
            self._tables[context.group][context.address] = value
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")


class _RowCell:
    """What the cells share: the place of the current key."""

    __slots__ = ("_context", "name")

    def __init__(self, name: str, context: KeyContext) -> None:
        self.name = name
        self._context = context

    def _place(self) -> tuple[int, Any]:
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"state '{self.name}'")
        return context.group, context.address


class RowValueCell(_RowCell, ValueCell):
    """One stored value."""

    __slots__ = ("_rows",)

    def __init__(self, name: str, context: KeyContext, rows: ValueRows) -> None:
        super().__init__(name, context)
        self._rows = rows

    def get(self) -> Any:
        """What is stored, or None."""
        group, address = self._place()
        stored = self._rows.tables[group][address]
        return None if stored is None else self._rows.codec.open(stored)

    def get_owned(self) -> Any:
        """What is stored, safe to change in place."""
        return self.get()

    def put(self, stored: Any) -> None:
        """Store."""
        group, address = self._place()
        self._rows.tables[group][address] = self._rows.codec.keep(stored)

    def remove(self) -> None:
        """Forget the value of the current key."""
        self._rows.remove(*self._place())


class RowListCell(_RowCell, ListCell):
    """A stored list."""

    __slots__ = ("_rows",)

    def __init__(self, name: str, context: KeyContext, rows: ListRows) -> None:
        super().__init__(name, context)
        self._rows = rows

    def get(self) -> Sequence[Any] | None:
        """The stored elements, or None."""
        found = self._rows.elements(*self._place())
        return list(map(self._rows.codec.open, found)) if found else None

    def extend(self, stored: Sequence[Any]) -> None:
        """Append elements."""
        self._rows.append(*self._place(), list(map(self._rows.codec.keep, stored)))

    def replace(self, stored: Sequence[Any]) -> None:
        """Store other elements."""
        self._rows.replace(*self._place(), list(map(self._rows.codec.keep, stored)))

    def remove(self) -> None:
        """Forget the list of the current key."""
        self._rows.replace(*self._place(), [])


class RowMapCell(_RowCell, MapCell):
    """A stored map."""

    __slots__ = ("_rows",)

    def __init__(self, name: str, context: KeyContext, rows: MapRows) -> None:
        super().__init__(name, context)
        self._rows = rows

    def get(self, map_key: Any) -> Any:
        """What is stored for a map key, or MISSING."""
        found = self._rows.get(*self._place(), map_key)
        return MISSING if found is MISSING else self._rows.codec.open(found)

    def put(self, map_key: Any, stored: Any) -> None:
        """Add or replace one entry."""
        self._rows.put(*self._place(), map_key, self._rows.codec.keep(stored))

    def put_all(self, stored: Mapping[Any, Any]) -> None:
        """Add or replace entries."""
        place, keep = self._place(), self._rows.codec.keep
        kept = {map_key: keep(one) for map_key, one in stored.items()}  # all of them fit, or none is stored
        for map_key, one in kept.items():
            self._rows.put(*place, map_key, one)

    def delete(self, map_key: Any) -> None:
        """Remove one entry if it is there."""
        self._rows.delete(*self._place(), map_key)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries."""
        found = self._rows.entries(*self._place())
        opened = self._rows.codec.open
        return ((map_key, opened(kept)) for map_key, kept in found)

    def is_empty(self) -> bool:
        """Whether there are no entries."""
        return self._rows.is_empty(*self._place())

    def remove(self) -> None:
        """Forget the map of the current key."""
        self._rows.clear(*self._place())


class RowValueTable(ValueTable):
    """A value state for many keys at once."""

    def __init__(self, rows: ValueRows) -> None:
        self._rows = rows

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        """What is stored for each key."""
        rows, tables = self._rows, self._rows.tables
        rows.prefetch(addresses, groups)
        found = [tables[group][address] for address, group in zip(addresses, groups, strict=True)]
        opened = rows.codec.open
        return [None if stored is None else opened(stored) for stored in found]

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        """Store for each key; None removes."""
        rows, tables = self._rows, self._rows.tables
        keep = rows.codec.keep
        for address, group, value in zip(addresses, groups, values, strict=True):
            if value is None:
                rows.remove(group, address)
            else:
                tables[group][address] = keep(value)


class RowTimerStore(TimerStore):
    """Timers as rows; these are asked for when the first timer comes."""

    def __init__(self, rows: Callable[[], ValueRows]) -> None:
        self._rows = rows

    def get(self, group: int, address: Any) -> int | None:
        """The number stored, or None."""
        found: int | None = self._rows().tables[group][address]
        return found

    def put(self, group: int, address: Any, number: int) -> None:
        """Store a registration."""
        self._rows().tables[group][address] = number

    def remove(self, group: int, address: Any) -> None:
        """Forget a registration."""
        self._rows().remove(group, address)

    def entries(self) -> Iterator[tuple[int, Any, int]]:
        """Every registration."""
        return self._rows().items()
