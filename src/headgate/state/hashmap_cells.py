"""Cells and handles of the hashmap backend: state of the current key in dict tables.

A value that a snapshot may see is never changed in place: what lies below the topmost overlay is copied before its
first change, and the copy lies in the overlay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headgate.state.addresses import NO_KEY, KeyContext, NoKeySet
from headgate.state.api import ValueState
from headgate.state.backend import ValueTable
from headgate.state.cells import MISSING, ListCell, MapCell, ValueCell
from headgate.state.copying import ATOMS, copied
from headgate.state.tables import Overlay, StateTable, Table, remove_from
from headgate.state.timers import TimerStore
from headgate.state.ttl import Expiry

__all__ = [
    "TableListCell",
    "TableMapCell",
    "TableTimerStore",
    "TableValue",
    "TableValueCell",
    "TableValueTable",
    "TtlValueTable",
    "TypedTableValue",
]

_VALUES = ATOMS - {type(None)}


class TableValue(ValueState[Any]):
    """A value state without time to live, the hot path: no calls between the user and the dict."""

    __slots__ = ("_context", "_default", "_reuse", "_tables", "name")

    def __init__(self, name: str, table: StateTable, context: KeyContext, default: Any, *, reuse: bool) -> None:
        self.name = name
        self._tables = table.tables
        self._context = context
        self._default = default
        self._reuse = reuse

    def value(self) -> Any:
        """The value of the current key."""
        context = self._context
        try:
            stored = self._tables[context.group][context.address]
        except KeyError:
            return copied(self._default)
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        if type(stored) in _VALUES:
            return stored
        if stored is None:
            return copied(self._default)
        return self._reused(stored) if self._reuse else copied(stored)

    def _reused(self, stored: Any) -> Any:
        """The stored object itself; it may be changed in place, so it must not lie where a snapshot sees it."""
        table = self._tables[self._context.group]
        if type(table) is Overlay and self._context.address not in table:
            stored = table[self._context.address] = copied(stored)
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

    def clear(self) -> None:
        """Remove the value of the current key."""
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"value state '{self.name}'")
        remove_from(self._tables[context.group], context.address)


class TypedTableValue(TableValue):
    """The same for a type whose values are all immutable: what is stored needs no look."""

    __slots__ = ()

    def value(self) -> Any:
        """The value of the current key."""
        context = self._context
        try:
            stored = self._tables[context.group][context.address]
        except KeyError:
            return copied(self._default)
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        if stored is not None:
            return stored
        return copied(self._default)


class _TableCell:
    """What the cells share: finding the table of the current key."""

    __slots__ = ("_context", "_tables", "name")

    def __init__(self, name: str, table: StateTable, context: KeyContext) -> None:
        self.name = name
        self._tables = table.tables
        self._context = context

    def _table(self) -> Table:
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"state '{self.name}'")
        return self._tables[context.group]

    def remove(self) -> None:
        """Forget everything stored for the current key."""
        remove_from(self._table(), self._context.address)


def _seen(table: Table, address: Any) -> Any:
    """What the table shows at an address, through all layers; None if nothing."""
    return table[address] if type(table) is Overlay else table.get(address)


def _is_own(table: Table, address: Any) -> bool:
    """Whether what is stored lies in the topmost layer, so that no snapshot can see it."""
    return type(table) is not Overlay or address in table


class TableValueCell(_TableCell, ValueCell):
    """One stored value."""

    __slots__ = ()

    def get(self) -> Any:
        """What is stored, or None."""
        return _seen(self._table(), self._context.address)

    def get_owned(self) -> Any:
        """What is stored, safe to change in place."""
        table, address = self._table(), self._context.address
        stored = _seen(table, address)
        return stored if _is_own(table, address) else copied(stored)

    def put(self, stored: Any) -> None:
        """Store."""
        self._table()[self._context.address] = stored


class TableListCell(_TableCell, ListCell):
    """A stored list."""

    __slots__ = ()

    def get(self) -> Sequence[Any] | None:
        """The stored elements, or None."""
        found: Sequence[Any] | None = _seen(self._table(), self._context.address)
        return found

    def extend(self, stored: Sequence[Any]) -> None:
        """Append elements; in place if no snapshot can see the list."""
        table, address = self._table(), self._context.address
        found = _seen(table, address)
        if found is None:
            table[address] = list(stored)
        elif _is_own(table, address):
            found.extend(stored)
        else:
            table[address] = [*found, *stored]

    def replace(self, stored: Sequence[Any]) -> None:
        """Store other elements."""
        self._table()[self._context.address] = list(stored)


class TableMapCell(_TableCell, MapCell):
    """A stored map."""

    __slots__ = ()

    def get(self, map_key: Any) -> Any:
        """What is stored for a map key, or MISSING."""
        found = _seen(self._table(), self._context.address)
        return MISSING if found is None else found.get(map_key, MISSING)

    def put_all(self, stored: Mapping[Any, Any]) -> None:
        """Add or replace entries; in place if no snapshot can see the map."""
        table, address = self._table(), self._context.address
        found = _seen(table, address)
        if found is None:
            table[address] = dict(stored)
        elif _is_own(table, address):
            found.update(stored)
        else:
            table[address] = {**found, **stored}

    def put(self, map_key: Any, stored: Any) -> None:
        """Add or replace one entry."""
        table, address = self._table(), self._context.address
        found = _seen(table, address)
        if found is not None and _is_own(table, address):
            found[map_key] = stored
        else:
            self.put_all({map_key: stored})

    def delete(self, map_key: Any) -> None:
        """Remove one entry; the last one takes the map with it."""
        table, address = self._table(), self._context.address
        found = _seen(table, address)
        if found is None or map_key not in found:
            return
        if len(found) == 1:
            remove_from(table, address)
            return
        if not _is_own(table, address):
            found = table[address] = found.copy()
        del found[map_key]

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries, as they are now."""
        found = _seen(self._table(), self._context.address)
        return iter(()) if found is None else iter(list(found.items()))

    def is_empty(self) -> bool:
        """Whether there are no entries."""
        return _seen(self._table(), self._context.address) is None


class TableValueTable(ValueTable):
    """A value state for many keys at once."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._tables = table.tables

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        """The value of each key."""
        tables = self._tables
        pairs = zip(addresses, groups, strict=True)
        if self._table.layered:
            return [_seen(tables[group], address) for address, group in pairs]
        return [tables[group].get(address) for address, group in pairs]

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        """Store a value for each key; None removes."""
        tables = self._tables
        for address, group, value in zip(addresses, groups, values, strict=True):
            if value is None:
                remove_from(tables[group], address)
            else:
                tables[group][address] = value


class TtlValueTable(ValueTable):
    """The same with a time to live."""

    def __init__(self, table: ValueTable, expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        """The value of each key that can be seen; dead ones are removed."""
        expiry = self._expiry
        now = expiry.clock()
        expiry.accesses += len(addresses)
        stored = self._table.get_many(addresses, groups)
        dead = [i for i, pair in enumerate(stored) if pair is not None and expiry.is_expired(pair[1], now)]
        values = [None if pair is None else pair[0] for pair in stored]
        if dead:
            self._table.put_many([addresses[i] for i in dead], [groups[i] for i in dead], [None] * len(dead))
            if not expiry.returns_expired:
                for i in dead:
                    values[i] = None
        if expiry.renews:
            gone = set(dead)
            live = [i for i, pair in enumerate(stored) if pair is not None and i not in gone]
            renewed = [(stored[i][0], now) for i in live]
            self._table.put_many([addresses[i] for i in live], [groups[i] for i in live], renewed)
        return values

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        """Store a value for each key, written now; None removes."""
        now = self._expiry.clock()
        self._expiry.accesses += len(addresses)
        self._table.put_many(addresses, groups, [None if value is None else (value, now) for value in values])


class TableTimerStore(TimerStore):
    """Timers in the tables of the backend."""

    def __init__(self, table: StateTable, addresses: Callable[[], Iterator[tuple[int, Any]]]) -> None:
        self._tables = table.tables
        self._addresses = addresses

    def get(self, group: int, address: Any) -> int | None:
        """The number stored, or None."""
        found: int | None = _seen(self._tables[group], address)
        return found

    def put(self, group: int, address: Any, number: int) -> None:
        """Store a registration."""
        self._tables[group][address] = number

    def remove(self, group: int, address: Any) -> None:
        """Forget a registration."""
        remove_from(self._tables[group], address)

    def entries(self) -> Iterator[tuple[int, Any, int]]:
        """Every registration."""
        return ((group, address, _seen(self._tables[group], address)) for group, address in self._addresses())
