"""Cells: the interface between the state handles that users hold and a backend's storage.

A cell reads and writes what one state stores for the current key and namespace (`KeyContext.address`, `.group`). It has
no defaults, functions or expiry: handles (`keyed.py`) and expiring cells (`ttl.py`) are built on cells once for all
backends. The stored form is the user's value, or for state with a time to live a `(value, stamp)` pair per value,
element or entry.

Rules for implementers:
- Without a current key every method raises NoKeySet.
- An object that a cell returns belongs to the backend: handles never change it, except what `get_owned` returned.
- Removing the last element or entry removes the state's entry of this key (SPEC R1.7).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The result of a map cell where there is no entry; None is a value."""


class Cell(ABC):
    """Storage of one state, at the current key."""

    @abstractmethod
    def remove(self) -> None:
        """Remove everything stored for the current key."""


class ValueCell(Cell):
    """One stored value, never None."""

    @abstractmethod
    def get(self) -> Any:
        """The stored value, or None."""

    @abstractmethod
    def get_owned(self) -> Any:
        """The stored value in a form that may be changed in place before it is put back; or None."""

    @abstractmethod
    def put(self, stored: Any) -> None: ...

    def take(self) -> Any:
        """Remove the value and return it for a merge with another namespace, or None."""
        stored = self.get_owned()
        self.remove()
        return stored


class ListCell(Cell):
    """A sequence of stored elements, never empty."""

    @abstractmethod
    def get(self) -> Sequence[Any] | None:
        """The stored elements in order, or None."""

    @abstractmethod
    def extend(self, stored: Sequence[Any]) -> None:
        """Append one or more elements."""

    @abstractmethod
    def replace(self, stored: Sequence[Any]) -> None:
        """Replace all elements by these, at least one."""

    def take(self) -> list[Any] | None:
        """Remove the elements and return them in their stored form for a merge with another namespace, or None."""
        stored = self.get()
        if stored is None:
            return None
        taken = list(stored)
        self.remove()
        return taken

    def absorb(self, taken: Sequence[Any]) -> None:
        """Append elements that `take` returned for another namespace."""
        if taken:
            self.extend(taken)


class MapCell(Cell):
    """Stored entries by map key; map keys are addresses (`address_of`)."""

    @abstractmethod
    def get(self, map_key: Any) -> Any:
        """The stored value of a map key, or MISSING."""

    @abstractmethod
    def put(self, map_key: Any, stored: Any) -> None: ...

    @abstractmethod
    def put_all(self, stored: Mapping[Any, Any]) -> None: ...

    @abstractmethod
    def delete(self, map_key: Any) -> None:
        """Remove one entry if it exists."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries; the map may be changed during the iteration, which may or may not show the change."""

    @abstractmethod
    def is_empty(self) -> bool: ...


class ValueTable(Protocol):
    """A value state for many keys at once: for built-in aggregations and batch functions."""

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        """The value of each key, None where there is none; mutable values are not copied."""
        ...

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        """Store a value for each key; None removes."""
        ...


class InternalTable(Protocol):
    """A table for the backend's own use (timers, raw streams), snapshotted with the states of the user."""

    def get(self, group: int, address: Any) -> Any:
        """The stored value, or None."""
        ...

    def put(self, group: int, address: Any, stored: Any) -> None: ...

    def remove(self, group: int, address: Any) -> None: ...

    def items(self) -> Iterator[tuple[int, Any, Any]]:
        """(group, address, stored) of every entry."""
        ...
