"""The keyed state handles that user functions hold, built on cells (SPEC R1.3 - R1.7).

They run in the subtask's thread. State with a time to live uses the same handles on expiring cells (`ttl.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from headgate.errors import IllegalState, InvalidArgument
from headgate.state.addresses import address_of, key_of
from headgate.state.api import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    MapEntries,
    MapState,
    ReducingState,
    ReducingStateDescriptor,
    State,
    ValueState,
)
from headgate.state.cells import MISSING, ListCell, MapCell, ValueCell
from headgate.state.copying import copied

__all__ = [
    "CellAggregatingState",
    "CellListState",
    "CellMapState",
    "CellReducingState",
    "CellValueState",
    "Mergeable",
]

Copy = Callable[[Any], Any] | None


class Mergeable(ABC):
    """State that can move from several namespaces into one, as merging windows need (SPEC R1.9)."""

    @abstractmethod
    def take(self) -> Any:
        """Remove what is stored at the current address and return it; None if there is nothing."""

    @abstractmethod
    def absorb(self, parts: Sequence[Any]) -> None:
        """Merge results of `take` for other namespaces, in order, into the current address."""


class _CellState(State):
    """A handle on one cell; `copy` makes what a read returns independent of the state, None: no copy is needed."""

    def __init__(self, name: str, cell: Any, copy: Copy) -> None:
        self.name = name
        self._cell = cell
        self._copy = copy

    def clear(self) -> None:
        self._cell.remove()


class CellValueState(_CellState, ValueState[Any]):
    _cell: ValueCell

    def __init__(self, name: str, cell: ValueCell, copy: Copy, default: Any) -> None:
        super().__init__(name, cell, copy)
        self._default = default

    def value(self) -> Any:
        stored = self._cell.get()
        if stored is None:
            return copied(self._default)
        return stored if self._copy is None else self._copy(stored)

    def update(self, value: Any) -> None:
        if value is None:
            self._cell.remove()
        else:
            self._cell.put(value)


class CellListState(_CellState, ListState[Any], Mergeable):
    _cell: ListCell

    @property
    def _where(self) -> str:
        return f"list state '{self.name}'"

    def get(self) -> list[Any]:
        stored = self._cell.get()
        if stored is None:
            return []
        return list(stored) if self._copy is None else list(map(self._copy, stored))

    def add(self, value: Any) -> None:
        if value is None:
            raise InvalidArgument(f"{self._where}: an element is None, which list state cannot hold")
        self._cell.extend((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        elements = self._checked(values)
        if elements:
            self._cell.extend(elements)

    def update(self, values: Iterable[Any]) -> None:
        elements = self._checked(values)
        if elements:
            self._cell.replace(elements)
        else:
            self._cell.remove()

    def _checked(self, values: Any) -> list[Any]:
        """The elements as a list; list state holds no None (SPEC R1.4)."""
        if values is None:
            raise InvalidArgument(f"{self._where}: the list of values is None; to remove all elements call clear()")
        if isinstance(values, str | bytes):
            raise InvalidArgument(f"{self._where}: {values!r} is one value; call add(), or pass a list")
        elements = list(values)
        if any(element is None for element in elements):
            raise InvalidArgument(f"{self._where}: an element is None, which list state cannot hold: {elements[:5]!r}")
        return elements

    def take(self) -> Any:
        return self._cell.take()

    def absorb(self, parts: Sequence[Any]) -> None:
        self._cell.absorb([element for part in parts for element in part])


class _Entries(MapEntries[Any]):
    """An iteration over a map's entries; `pick` makes the result of (map key, value)."""

    def __init__(
        self,
        source: Iterator[tuple[Any, Any]],
        pick: Callable[[Any, Any], Any],
        remove: Callable[[Any], None],
    ) -> None:
        self._source = source
        self._pick = pick
        self._remove = remove
        self._next: tuple[Any, Any] | None = None  # read by has_next()
        self._last: Any = MISSING

    def has_next(self) -> bool:
        if self._next is None:
            self._next = next(self._source, None)
        return self._next is not None

    def __next__(self) -> Any:
        entry = next(self._source) if self._next is None else self._next
        self._next = None
        self._last = entry[0]
        return self._pick(key_of(entry[0]), entry[1])

    def remove(self) -> None:
        if self._last is MISSING:
            raise IllegalState("remove() needs an entry: call it once after next(), not before and not twice")
        self._remove(self._last)
        self._last = MISSING


class CellMapState(_CellState, MapState[Any, Any]):
    _cell: MapCell

    def _map_key(self, key: Any) -> Any:
        try:
            return address_of(key)
        except InvalidArgument as error:
            raise InvalidArgument(f"map state '{self.name}': {error}") from None

    def get(self, key: Any) -> Any:
        stored = self._cell.get(self._map_key(key))
        if stored is MISSING:
            return None
        return stored if self._copy is None else self._copy(stored)

    def put(self, key: Any, value: Any) -> None:
        self._cell.put(self._map_key(key), value)

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        if dict_value:
            self._cell.put_all({self._map_key(key): value for key, value in dict_value.items()})

    def remove(self, key: Any) -> None:
        self._cell.delete(self._map_key(key))

    def contains(self, key: Any) -> bool:
        return self._cell.get(self._map_key(key)) is not MISSING

    def items(self) -> MapEntries[tuple[Any, Any]]:
        return self._iterate(lambda key, value: (key, value))

    def keys(self) -> MapEntries[Any]:
        return self._iterate(lambda key, _: key)

    def values(self) -> MapEntries[Any]:
        return self._iterate(lambda _, value: value)

    def _iterate(self, pick: Callable[[Any, Any], Any]) -> MapEntries[Any]:
        entries = self._cell.entries()
        if self._copy is not None:
            copy = self._copy
            entries = ((key, copy(value)) for key, value in entries)
        return _Entries(entries, pick, self._cell.delete)

    def is_empty(self) -> bool:
        return self._cell.is_empty()


class _FoldingState(_CellState, Mergeable):
    """Values folded into one stored value; the user's functions may change it in place, so `get_owned` reads it."""

    _cell: ValueCell
    _merge_method: ClassVar[str]

    def __init__(self, name: str, cell: ValueCell, copy: Copy, merge: Callable[[Any, Any], Any]) -> None:
        super().__init__(name, cell, copy)
        self._merge = merge

    def _result(self, method: str, value: Any) -> Any:
        """The result of a user's function; None would silently clear the state."""
        if value is None:
            raise InvalidArgument(
                f"state '{self.name}': {method}() of its function returned None; it must return the new value"
            )
        return value

    def take(self) -> Any:
        stored = self._cell.get_owned()
        self._cell.remove()
        return stored

    def absorb(self, parts: Sequence[Any]) -> None:
        merged = self._cell.get_owned()
        for part in parts:
            merged = part if merged is None else self._result(self._merge_method, self._merge(merged, part))
        self._cell.put(merged)


class CellReducingState(_FoldingState, ReducingState[Any]):
    _merge_method = "reduce"

    def __init__(self, descriptor: ReducingStateDescriptor, cell: ValueCell, copy: Copy) -> None:
        super().__init__(descriptor.name, cell, copy, descriptor.reduce)

    def get(self) -> Any:
        stored = self._cell.get()
        return stored if self._copy is None else self._copy(stored)

    def add(self, value: Any) -> None:
        if value is None:
            self._cell.remove()
            return
        old = self._cell.get_owned()
        self._cell.put(copied(value) if old is None else self._result("reduce", self._merge(old, value)))


class CellAggregatingState(_FoldingState, AggregatingState[Any, Any]):
    _merge_method = "merge"

    def __init__(self, descriptor: AggregatingStateDescriptor, cell: ValueCell, copy: Copy) -> None:
        super().__init__(descriptor.name, cell, copy, descriptor.function.merge)
        self._function = descriptor.function

    def get(self) -> Any:
        stored = self._cell.get()
        if stored is None:
            return None
        # get_result may return the accumulator itself.
        return self._function.get_result(stored if self._copy is None else self._copy(stored))

    def add(self, value: Any) -> None:
        if value is None:
            self._cell.remove()
            return
        accumulator = self._cell.get_owned()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._cell.put(self._result("add", self._function.add(value, accumulator)))
