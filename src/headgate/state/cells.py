"""Cells: the narrow interface between the handles that users hold and a backend's storage.

A cell reaches what one state stores for the current key and namespace (`KeyContext.address`, `.group`). It knows
nothing of defaults, functions or expiry: handles (`keyed.py`, `ttl.py`) are built on cells once for all backends. What
is stored is the user's value, or for state with a time to live a `(value, stamp)` pair per value, element or entry.

Rules for implementers:
- Without a current key every method raises NoKeySet.
- What a cell hands out belongs to the backend: handles never change it, except what `get_owned` returned.
- Removing the last element or entry removes the state's entry of this key (SPEC R1.7).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["MISSING", "Cell", "ListCell", "MapCell", "ValueCell"]


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""What a map cell answers where there is no entry; None is a value."""


class Cell(ABC):
    """Storage of one state, at the current key."""

    __slots__ = ()

    @abstractmethod
    def remove(self) -> None:
        """Forget everything stored for the current key."""


class ValueCell(Cell):
    """One stored value, never None."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> Any:
        """What is stored, or None."""

    @abstractmethod
    def get_owned(self) -> Any:
        """What is stored, in a form that may be changed in place before it is put back; or None."""

    @abstractmethod
    def put(self, stored: Any) -> None:
        """Store; never None."""


class ListCell(Cell):
    """A sequence of stored elements, never empty."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> Sequence[Any] | None:
        """The stored elements in order, or None."""

    @abstractmethod
    def extend(self, stored: Sequence[Any]) -> None:
        """Append one or more elements."""

    @abstractmethod
    def replace(self, stored: Sequence[Any]) -> None:
        """Store these elements, at least one, in place of the old ones."""

    def append(self, stored: Any) -> None:
        """Append one element."""
        self.extend([stored])


class MapCell(Cell):
    """Stored entries by map key; map keys are addresses (`address_of`)."""

    __slots__ = ()

    @abstractmethod
    def get(self, map_key: Any) -> Any:
        """What is stored for a map key, or MISSING."""

    @abstractmethod
    def put_all(self, stored: Mapping[Any, Any]) -> None:
        """Add or replace entries."""

    @abstractmethod
    def delete(self, map_key: Any) -> None:
        """Remove one entry if it is there."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries; the map may be changed during the iteration, which then may or may not show the change."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there are no entries."""

    def put(self, map_key: Any, stored: Any) -> None:
        """Add or replace one entry."""
        self.put_all({map_key: stored})
