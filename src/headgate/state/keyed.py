"""The handles of state without a time to live, built on cells (SPEC R1.3 - R1.7)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

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
    ValueState,
)
from headgate.state.cells import MISSING, ListCell, MapCell, ValueCell
from headgate.state.copying import copied

__all__ = [
    "Entries",
    "KeyedAggregating",
    "KeyedList",
    "KeyedMap",
    "KeyedReducing",
    "KeyedValue",
    "MapHandle",
    "Mergeable",
    "checked_elements",
    "result_of",
]

Copy = Callable[[Any], Any] | None


class Mergeable(ABC):
    """State that can move from several namespaces into one, as windows merge (SPEC R1.9)."""

    __slots__ = ()

    @abstractmethod
    def take(self) -> Any:
        """What is stored at the current address, which is cleared; None if there is nothing."""

    @abstractmethod
    def absorb(self, parts: Sequence[Any]) -> None:
        """Merge what `take` gave elsewhere, in order, into the current address."""


def checked_elements(name: str, values: Any) -> list[Any]:
    """The elements as a list; list state holds no None (SPEC R1.4)."""
    if values is None:
        raise InvalidArgument(f"list state '{name}': the list of values is None; to remove all elements call clear()")
    if isinstance(values, str | bytes):
        raise InvalidArgument(f"list state '{name}': {values!r} is one value; call add(), or pass a list")
    elements = list(values)
    if any(element is None for element in elements):
        raise InvalidArgument(
            f"list state '{name}': an element is None, which list state cannot hold: {elements[:5]!r}"
        )
    return elements


class KeyedValue(ValueState[Any]):
    """One value per key."""

    __slots__ = ("_cell", "_copy", "_default", "name")

    def __init__(self, name: str, cell: ValueCell, default: Any, copy: Copy) -> None:
        self.name = name
        self._cell = cell
        self._default = default
        self._copy = copy

    def value(self) -> Any:
        """The value of the current key."""
        stored = self._cell.get()
        if stored is None:
            return copied(self._default)
        return stored if self._copy is None else self._copy(stored)

    def update(self, value: Any) -> None:
        """Store a value; None clears."""
        if value is None:
            self._cell.remove()
        else:
            self._cell.put(value)

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._cell.remove()


class KeyedList(ListState[Any], Mergeable):
    """A list per key."""

    __slots__ = ("_cell", "_copy", "name")

    def __init__(self, name: str, cell: ListCell, copy: Copy) -> None:
        self.name = name
        self._cell = cell
        self._copy = copy

    def get(self) -> list[Any]:
        """The elements."""
        stored = self._cell.get()
        if stored is None:
            return []
        return list(stored) if self._copy is None else list(map(self._copy, stored))

    def add(self, value: Any) -> None:
        """Append one element."""
        if value is None:
            raise InvalidArgument(f"list state '{self.name}': an element is None, which list state cannot hold")
        self._cell.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        elements = checked_elements(self.name, values)
        if elements:
            self._cell.extend(elements)

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        elements = checked_elements(self.name, values)
        if elements:
            self._cell.replace(elements)
        else:
            self._cell.remove()

    def clear(self) -> None:
        """Remove all elements of the current key."""
        self._cell.remove()

    def take(self) -> Any:
        """The stored elements, which are removed."""
        stored = self._cell.get()
        if stored is None:
            return None
        taken = list(stored)
        self._cell.remove()
        return taken

    def absorb(self, parts: Sequence[Any]) -> None:
        """Append the elements of each part."""
        self._cell.extend([element for part in parts for element in part])


class Entries(MapEntries[Any]):
    """An iteration over a map's entries that can remove the last one returned."""

    __slots__ = ("_ahead", "_last", "_pick", "_remove", "_source")

    def __init__(
        self,
        source: Iterator[tuple[Any, Any]],
        pick: Callable[[Any, Any], Any],
        remove: Callable[[Any], None],
    ) -> None:
        self._source = source
        self._pick = pick
        self._remove = remove
        self._ahead: list[tuple[Any, Any]] = []
        self._last: Any = MISSING

    def has_next(self) -> bool:
        """Whether another entry follows."""
        if not self._ahead:
            self._ahead.extend([entry for entry in [next(self._source, None)] if entry is not None])
        return bool(self._ahead)

    def __next__(self) -> Any:
        if self._ahead:
            map_key, value = self._ahead.pop()
        else:
            map_key, value = next(self._source)
        self._last = map_key
        return self._pick(key_of(map_key), value)

    def remove(self) -> None:
        """Delete the entry returned last."""
        if self._last is MISSING:
            raise IllegalState("remove() needs an entry: call it once after next(), not before and not twice")
        self._remove(self._last)
        self._last = MISSING


def _pair(key: Any, value: Any) -> Any:
    return key, value


def _first(key: Any, _: Any) -> Any:
    return key


def _second(_: Any, value: Any) -> Any:
    return value


class MapHandle(MapState[Any, Any]):
    """What map handles share: tagged map keys and iteration."""

    __slots__ = ("_cell", "_copy", "name")

    def __init__(self, name: str, cell: MapCell, copy: Copy) -> None:
        self.name = name
        self._cell = cell
        self._copy = copy

    @abstractmethod
    def _live(self) -> Iterator[tuple[Any, Any]]:
        """The entries an iteration shows, with values that are safe to hand out."""

    def _map_key(self, key: Any) -> Any:
        try:
            return address_of(key)
        except InvalidArgument as error:
            raise InvalidArgument(f"map state '{self.name}': {error}") from None

    def remove(self, key: Any) -> None:
        """Remove one entry, if it is there."""
        self._cell.delete(self._map_key(key))

    def items(self) -> MapEntries[tuple[Any, Any]]:
        """All entries."""
        return Entries(self._live(), _pair, self._cell.delete)

    def keys(self) -> MapEntries[Any]:
        """The keys of all entries."""
        return Entries(self._live(), _first, self._cell.delete)

    def values(self) -> MapEntries[Any]:
        """The values of all entries."""
        return Entries(self._live(), _second, self._cell.delete)

    def is_empty(self) -> bool:
        """Whether there are no entries."""
        return self._cell.is_empty()

    def clear(self) -> None:
        """Remove all entries of the current key."""
        self._cell.remove()


class KeyedMap(MapHandle):
    """A map per key."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        """The value of an entry, or None."""
        stored = self._cell.get(self._map_key(key))
        if stored is MISSING:
            return None
        return stored if self._copy is None else self._copy(stored)

    def put(self, key: Any, value: Any) -> None:
        """Add or replace one entry."""
        self._cell.put(self._map_key(key), value)

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        """Add or replace several entries."""
        if dict_value:
            self._cell.put_all({self._map_key(key): value for key, value in dict_value.items()})

    def contains(self, key: Any) -> bool:
        """Whether there is such an entry."""
        return self._cell.get(self._map_key(key)) is not MISSING

    def _live(self) -> Iterator[tuple[Any, Any]]:
        if self._copy is None:
            return self._cell.entries()
        copy = self._copy
        return ((key, copy(value)) for key, value in self._cell.entries())


class KeyedReducing(ReducingState[Any], Mergeable):
    """Values of a key combined into one."""

    __slots__ = ("_cell", "_copy", "_reduce", "name")

    def __init__(self, descriptor: ReducingStateDescriptor, cell: ValueCell, copy: Copy) -> None:
        self.name = descriptor.name
        self._reduce = descriptor.reduce
        self._cell = cell
        self._copy = copy

    def get(self) -> Any:
        """The combined value, or None."""
        stored = self._cell.get()
        return stored if self._copy is None else self._copy(stored)

    def add(self, value: Any) -> None:
        """Combine one more value; None clears."""
        if value is None:
            self._cell.remove()
            return
        # The function may change its first argument in place, so the stored value must be ours alone.
        old = self._cell.get_owned()
        self._cell.put(copied(value) if old is None else result_of(self.name, "reduce", self._reduce(old, value)))

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._cell.remove()

    def take(self) -> Any:
        """The stored value, which is removed."""
        stored = self._cell.get_owned()
        if stored is not None:
            self._cell.remove()
        return stored

    def absorb(self, parts: Sequence[Any]) -> None:
        """Combine each part with what is stored."""
        merged = self._cell.get_owned()
        for part in parts:
            merged = part if merged is None else result_of(self.name, "reduce", self._reduce(merged, part))
        self._cell.put(merged)


class KeyedAggregating(AggregatingState[Any, Any], Mergeable):
    """Values of a key folded into an accumulator."""

    __slots__ = ("_cell", "_copy", "_function", "name")

    def __init__(self, descriptor: AggregatingStateDescriptor, cell: ValueCell, copy: Copy) -> None:
        self.name = descriptor.name
        self._function = descriptor.function
        self._cell = cell
        self._copy = copy

    def get(self) -> Any:
        """The result, or None."""
        stored = self._cell.get()
        if stored is None:
            return None
        # get_result may hand the accumulator itself out.
        return self._function.get_result(stored if self._copy is None else self._copy(stored))

    def add(self, value: Any) -> None:
        """Fold one more value in; None clears."""
        if value is None:
            self._cell.remove()
            return
        accumulator = self._cell.get_owned()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._cell.put(result_of(self.name, "add", self._function.add(value, accumulator)))

    def clear(self) -> None:
        """Remove the accumulator of the current key."""
        self._cell.remove()

    def take(self) -> Any:
        """The stored accumulator, which is removed."""
        stored = self._cell.get_owned()
        if stored is not None:
            self._cell.remove()
        return stored

    def absorb(self, parts: Sequence[Any]) -> None:
        """Merge each part into what is stored."""
        merged = self._cell.get_owned()
        for part in parts:
            merged = part if merged is None else result_of(self.name, "merge", self._function.merge(merged, part))
        self._cell.put(merged)


def result_of(name: str, method: str, value: Any) -> Any:
    """The result of a user's function; None would silently empty the state."""
    if value is None:
        raise InvalidArgument(f"state '{name}': {method}() of its function returned None; it must return the new value")
    return value
