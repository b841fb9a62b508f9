"""Tables: the interface between the state handles that users hold and a backend's storage.

A table reads and writes what one state stores at an address (key and namespace, see `addresses.py`) of a key group. It
has no defaults, functions or expiry: handles (`api.py`) and expiring tables (`ttl.py`) are built on tables once for all
backends, and all of them run in the subtask's thread. The stored form is the user's value, or for state with a time to
live a `(value, stamp)` pair per value, element or entry.

Rules for implementers:
- An object that a table returns belongs to the backend: handles never change it, except what `get_owned` returned.
- Removing the last element or entry removes the state's entry at this address (SPEC R1.7).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeAlias


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The result of a map table where there is no entry; None is a value."""


class BatchTable(ABC):
    """A value state for many addresses at once: for built-in aggregations and batch functions."""

    @abstractmethod
    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        """Return the value at each address, None where there is none; mutable values are not copied."""

    @abstractmethod
    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        """Store a value at each address; None removes."""


class ValueTable(BatchTable):
    """One stored value per address, never None."""

    @abstractmethod
    def get(self, group: int, address: Any) -> Any:
        """Return the stored value, or None."""

    def get_owned(self, group: int, address: Any) -> Any:
        """Return the stored value in a form that may be changed in place before it is put back; or None."""
        return self.get(group, address)

    @abstractmethod
    def put(self, group: int, address: Any, stored: Any) -> None: ...

    @abstractmethod
    def remove(self, group: int, address: Any) -> None: ...

    def take(self, group: int, address: Any) -> Any:
        """Remove the value and return it for a merge with another namespace, or None."""
        stored = self.get_owned(group, address)
        self.remove(group, address)
        return stored


class DictTable(ValueTable):
    """A value table that takes writes in one dict per key group, which a handle may use without a call.

    Backends also keep their own entries (timers, raw streams) in such tables.
    """

    tables: list[dict[Any, Any]]
    plain: AbstractSet[Any]
    """The types of values that are stored and returned as they are."""
    keep: Callable[[Any], Any] | None = None
    """From the user's object to the form in the dicts; None: they are the same."""
    copy: Callable[[Any], Any]
    """From the form in the dicts to an object of the user's own."""

    def unpack(self, kept: Any) -> Any:
        """From the form in the dicts to an object that may be in them too."""
        return kept

    def put(self, group: int, address: Any, stored: Any) -> None:
        self.tables[group][address] = stored if self.keep is None else self.keep(stored)

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        tables, keep = self.tables, self.keep
        for address, group, value in zip(addresses, groups, values, strict=True):
            if value is None:
                self.remove(group, address)
            else:
                tables[group][address] = value if keep is None else keep(value)

    @abstractmethod
    def items(self) -> Iterator[tuple[int, Any, Any]]:
        """(group, address, stored) of every entry."""


class ListTable(ABC):
    """A sequence of stored elements per address, never empty."""

    @abstractmethod
    def get(self, group: int, address: Any) -> Sequence[Any] | None:
        """Return the stored elements in order, or None."""

    @abstractmethod
    def extend(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        """Append one or more elements."""

    @abstractmethod
    def replace(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        """Replace all elements by these, at least one."""

    @abstractmethod
    def remove(self, group: int, address: Any) -> None: ...

    def take(self, group: int, address: Any) -> list[Any] | None:
        """Remove the elements and return them in their stored form for a merge with another namespace, or None."""
        stored = self.get(group, address)
        if stored is None:
            return None
        taken = list(stored)
        self.remove(group, address)
        return taken

    def absorb(self, group: int, address: Any, taken: Sequence[Any]) -> None:
        """Append elements that `take` returned for another namespace."""
        if taken:
            self.extend(group, address, taken)


class MapTable(ABC):
    """Stored entries by map key per address; map keys are addresses (`address_of`)."""

    @abstractmethod
    def get(self, group: int, address: Any, map_key: Any) -> Any:
        """Return the stored value of a map key, or MISSING."""

    @abstractmethod
    def put(self, group: int, address: Any, map_key: Any, stored: Any) -> None: ...

    @abstractmethod
    def put_all(self, group: int, address: Any, stored: Mapping[Any, Any]) -> None: ...

    @abstractmethod
    def delete(self, group: int, address: Any, map_key: Any) -> None:
        """Remove one entry if it exists."""

    @abstractmethod
    def entries(self, group: int, address: Any) -> Iterator[tuple[Any, Any]]:
        """All entries; the map may be changed during the iteration, which may or may not show the change."""

    @abstractmethod
    def is_empty(self, group: int, address: Any) -> bool: ...

    @abstractmethod
    def remove(self, group: int, address: Any) -> None:
        """Remove all entries."""


AddressedTable: TypeAlias = BatchTable | ListTable | MapTable
