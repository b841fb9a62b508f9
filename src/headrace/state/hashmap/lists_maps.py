"""Lists and maps of the hashmap backend, each one object in a dict table.

An object that a snapshot may read is never changed in place: one in a frozen layer is copied before its first change, and
the copy goes into the dict that takes writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.state.hashmap.tables import StateTable
from headrace.state.tables import MISSING, ListTable, MapTable


class _ObjectTable:
    """One list or map per address."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def remove(self, group: int, address: Any) -> None:
        self._table.remove(group, address)


class TableLists(_ObjectTable, ListTable):
    def get(self, group: int, address: Any) -> Sequence[Any] | None:
        found: Sequence[Any] | None = self._table.tables[group].get(address)  # most are here, without a call
        return self._table.get(group, address) if found is None else found

    def extend(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        """Append elements; in place if no snapshot reads the list."""
        own = self._table.tables[group]
        found = own.get(address)
        if found is None:
            own[address] = [*(self._table.get(group, address) or ()), *stored]
        else:
            found.extend(stored)

    def replace(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        self._table.put(group, address, list(stored))


class TableMaps(_ObjectTable, MapTable):
    def get(self, group: int, address: Any, map_key: Any) -> Any:
        found = self._table.tables[group].get(address) or self._table.get(group, address)
        return MISSING if found is None else found.get(map_key, MISSING)

    def _own(self, group: int, address: Any) -> dict[Any, Any]:
        """Return the map in the dict that takes writes, so that it may be changed in place."""
        own = self._table.tables[group]
        found: dict[Any, Any] | None = own.get(address)
        if found is None:
            found = own[address] = dict(self._table.get(group, address) or ())
        return found

    def put(self, group: int, address: Any, map_key: Any, stored: Any) -> None:
        self._own(group, address)[map_key] = stored

    def put_all(self, group: int, address: Any, stored: Mapping[Any, Any]) -> None:
        self._own(group, address).update(stored)

    def delete(self, group: int, address: Any, map_key: Any) -> None:
        """Remove one entry; removing the last one removes the map."""
        found = self._table.get(group, address)
        if found is None or map_key not in found:
            return
        if len(found) == 1:
            self.remove(group, address)
        else:
            del self._own(group, address)[map_key]

    def entries(self, group: int, address: Any) -> Iterator[tuple[Any, Any]]:
        found = self._table.tables[group].get(address) or self._table.get(group, address) or {}
        return iter(list(found.items()))

    def is_empty(self, group: int, address: Any) -> bool:
        return self._table.get(group, address) is None
