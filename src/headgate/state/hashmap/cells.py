"""Cells and handles of the hashmap backend: state of the current key in dict tables.

A value that a snapshot may see is never changed in place: what lies in a frozen layer is copied before its first change,
and the copy lies on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headgate.state.addresses import NO_KEY, KeyContext, NoKeySet
from headgate.state.api import ValueState
from headgate.state.backend import ValueTable
from headgate.state.cells import MISSING, ListCell, MapCell, ValueCell
from headgate.state.copying import ATOMS, copied
from headgate.state.hashmap.tables import StateTable
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

    __slots__ = ("_context", "_default", "_reuse", "_table", "_tables", "name")

    def __init__(self, name: str, table: StateTable, context: KeyContext, default: Any, *, reuse: bool) -> None:
        self.name = name
        self._table = table
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
            stored = self._table.get(context.group, context.address)
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        if type(stored) in _VALUES:
            return stored
        if stored is None:
            return copied(self._default)
        return self._reused(stored) if self._reuse else copied(stored)

    def _reused(self, stored: Any) -> Any:
        """The stored object itself; it may be changed in place, so it must not lie where a snapshot sees it."""
        context = self._context
        if not self._table.is_own(context.group, context.address):
            stored = copied(stored)
            self._tables[context.group][context.address] = stored
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
        self._table.remove(context.group, context.address)


class TypedTableValue(TableValue):
    """The same for a type whose values are all immutable: what is stored needs no look."""

    __slots__ = ()

    def value(self) -> Any:
        """The value of the current key."""
        context = self._context
        try:
            stored = self._tables[context.group][context.address]
        except KeyError:
            stored = self._table.get(context.group, context.address)
        except NoKeySet:
            NO_KEY.refuse(f"value state '{self.name}'")
        if stored is not None:
            return stored
        return copied(self._default)


class _TableCell:
    """What the cells share: reaching the entry of the current key."""

    __slots__ = ("_context", "_table", "name")

    def __init__(self, name: str, table: StateTable, context: KeyContext) -> None:
        self.name = name
        self._table = table
        self._context = context

    def _stored(self) -> Any:
        """What is stored at the current address, or None."""
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"state '{self.name}'")
        return self._table.get(context.group, context.address)

    def _store(self, stored: Any) -> None:
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"state '{self.name}'")
        self._table.tables[context.group][context.address] = stored

    def _is_own(self) -> bool:
        return self._table.is_own(self._context.group, self._context.address)

    def remove(self) -> None:
        """Forget everything stored for the current key."""
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"state '{self.name}'")
        self._table.remove(context.group, context.address)


class TableValueCell(_TableCell, ValueCell):
    """One stored value."""

    __slots__ = ()

    def get(self) -> Any:
        """What is stored, or None."""
        return self._stored()

    def get_owned(self) -> Any:
        """What is stored, safe to change in place."""
        stored = self._stored()
        return stored if self._is_own() else copied(stored)

    def put(self, stored: Any) -> None:
        """Store."""
        self._store(stored)


class TableListCell(_TableCell, ListCell):
    """A stored list."""

    __slots__ = ()

    def get(self) -> Sequence[Any] | None:
        """The stored elements, or None."""
        found: Sequence[Any] | None = self._stored()
        return found

    def extend(self, stored: Sequence[Any]) -> None:
        """Append elements; in place if no snapshot can see the list."""
        found = self._stored()
        if found is None:
            self._store(list(stored))
        elif self._is_own():
            found.extend(stored)
        else:
            self._store([*found, *stored])

    def replace(self, stored: Sequence[Any]) -> None:
        """Store other elements."""
        self._store(list(stored))


class TableMapCell(_TableCell, MapCell):
    """A stored map."""

    __slots__ = ()

    def get(self, map_key: Any) -> Any:
        """What is stored for a map key, or MISSING."""
        found = self._stored()
        return MISSING if found is None else found.get(map_key, MISSING)

    def put_all(self, stored: Mapping[Any, Any]) -> None:
        """Add or replace entries; in place if no snapshot can see the map."""
        found = self._stored()
        if found is None:
            self._store(dict(stored))
        elif self._is_own():
            found.update(stored)
        else:
            self._store({**found, **stored})

    def put(self, map_key: Any, stored: Any) -> None:
        """Add or replace one entry."""
        found = self._stored()
        if found is not None and self._is_own():
            found[map_key] = stored
        else:
            self.put_all({map_key: stored})

    def delete(self, map_key: Any) -> None:
        """Remove one entry; the last one takes the map with it."""
        found = self._stored()
        if found is None or map_key not in found:
            return
        if len(found) == 1:
            self.remove()
            return
        if not self._is_own():
            found = found.copy()
            self._store(found)
        del found[map_key]

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries, as they are now."""
        found = self._stored()
        return iter(()) if found is None else iter(list(found.items()))

    def is_empty(self) -> bool:
        """Whether there are no entries."""
        return self._stored() is None


class TableValueTable(ValueTable):
    """A value state for many keys at once."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        """The value of each key."""
        table, tables = self._table, self._table.tables
        pairs = zip(addresses, groups, strict=True)
        if table.layered:
            return [table.get(group, address) for address, group in pairs]
        return [tables[group].get(address) for address, group in pairs]

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        """Store a value for each key; None removes."""
        tables = self._table.tables
        for address, group, value in zip(addresses, groups, values, strict=True):
            if value is None:
                self._table.remove(group, address)
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
        self._table = table
        self._addresses = addresses

    def get(self, group: int, address: Any) -> int | None:
        """The number stored, or None."""
        found: int | None = self._table.get(group, address)
        return found

    def put(self, group: int, address: Any, number: int) -> None:
        """Store a registration."""
        self._table.put(group, address, number)

    def remove(self, group: int, address: Any) -> None:
        """Forget a registration."""
        self._table.remove(group, address)

    def entries(self) -> Iterator[tuple[int, Any, int]]:
        """Every registration."""
        return ((group, address, self._table.get(group, address)) for group, address in self._addresses())
