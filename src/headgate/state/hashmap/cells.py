"""Cells and handles of the hashmap backend: state of the current key in dict tables, in the subtask's thread.

A value that a snapshot may read is never changed in place: an object in a frozen layer is copied before its first change,
and the copy goes into the top dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headgate.state.addresses import NO_KEY, KeyContext, NoKeySet
from headgate.state.api import ValueState
from headgate.state.cells import MISSING, ListCell, MapCell, ValueCell
from headgate.state.copying import ATOMS, copied
from headgate.state.hashmap.tables import StateTable

_VALUES = ATOMS - {type(None)}


class TableValue(ValueState[Any]):
    """A value state without time to live; on the hot path there is no call between the user and the dict."""

    def __init__(self, name: str, table: StateTable, context: KeyContext, default: Any, *, reuse: bool) -> None:
        self.name = name
        self._table = table
        self._tables = table.tables
        self._context = context
        self._default = default
        self._reuse = reuse

    def value(self) -> Any:
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
        """The stored object itself; the user may change it in place, so a snapshot must not read it."""
        context = self._context
        if not self._table.is_own(context.group, context.address):
            stored = copied(stored)
            self._tables[context.group][context.address] = stored
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

    def clear(self) -> None:
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"value state '{self.name}'")
        self._table.remove(context.group, context.address)


class TypedTableValue(TableValue):
    """A value state of a type whose values are all immutable: a stored value is returned without a check."""

    def value(self) -> Any:
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
    """Access to the entry of the current key."""

    def __init__(self, name: str, table: StateTable, context: KeyContext) -> None:
        self.name = name
        self._table = table
        self._context = context

    def _stored(self) -> Any:
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
        context = self._context
        if context.address is NO_KEY:
            NO_KEY.refuse(f"state '{self.name}'")
        self._table.remove(context.group, context.address)


class TableValueCell(_TableCell, ValueCell):
    def get(self) -> Any:
        return self._stored()

    def get_owned(self) -> Any:
        stored = self._stored()
        return stored if self._is_own() else copied(stored)

    def put(self, stored: Any) -> None:
        self._store(stored)


class TableListCell(_TableCell, ListCell):
    def get(self) -> Sequence[Any] | None:
        found: Sequence[Any] | None = self._stored()
        return found

    def extend(self, stored: Sequence[Any]) -> None:
        """Append elements; in place if no snapshot reads the list."""
        found = self._stored()
        if found is None:
            self._store(list(stored))
        elif self._is_own():
            found.extend(stored)
        else:
            self._store([*found, *stored])

    def replace(self, stored: Sequence[Any]) -> None:
        self._store(list(stored))


class TableMapCell(_TableCell, MapCell):
    def get(self, map_key: Any) -> Any:
        found = self._stored()
        return MISSING if found is None else found.get(map_key, MISSING)

    def put_all(self, stored: Mapping[Any, Any]) -> None:
        """Add or replace entries; in place if no snapshot reads the map."""
        found = self._stored()
        if found is None:
            self._store(dict(stored))
        elif self._is_own():
            found.update(stored)
        else:
            self._store({**found, **stored})

    def put(self, map_key: Any, stored: Any) -> None:
        found = self._stored()
        if found is not None and self._is_own():
            found[map_key] = stored
        else:
            self.put_all({map_key: stored})

    def delete(self, map_key: Any) -> None:
        """Remove one entry; removing the last one removes the map."""
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
        found = self._stored()
        return iter(()) if found is None else iter(list(found.items()))

    def is_empty(self) -> bool:
        return self._stored() is None


class TableValueTable:
    """A `ValueTable` in dict tables."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        table, tables = self._table, self._table.tables
        pairs = zip(addresses, groups, strict=True)
        if table.layered:
            return [table.get(group, address) for address, group in pairs]
        return [tables[group].get(address) for address, group in pairs]

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        tables = self._table.tables
        for address, group, value in zip(addresses, groups, values, strict=True):
            if value is None:
                self._table.remove(group, address)
            else:
                tables[group][address] = value
