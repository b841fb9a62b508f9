"""Time to live: handles whose entries expire, and what decides which entries go (SPEC R2).

Every value, list element and map value is stored as `(value, stamp)`; the stamp is the clock in milliseconds at the
last write, or the last read too if the configuration says so. An entry is expired when stamp + ttl <= now.

The handles here stand on cells, so they serve every backend. `Pruning` is the pure part that backends use to drop
expired entries without a read: in the background, and while a snapshot is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from headgate.errors import InvalidArgument
from headgate.state.api import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ReducingState,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueState,
)
from headgate.state.cells import MISSING, ListCell, MapCell, ValueCell
from headgate.state.copying import copied
from headgate.state.keyed import Copy, MapHandle, Mergeable, checked_elements, result_of
from headgate.state.ttl_config import MAX_TIMESTAMP

__all__ = ["Expiry", "Pruning", "TtlAggregating", "TtlList", "TtlMap", "TtlReducing", "TtlValue"]

Stamped: TypeAlias = tuple[Any, int]


class Expiry:
    """The clock and the settings of one state, and a count of accesses that cleanup is owed for."""

    __slots__ = ("accesses", "clock", "config", "renews", "returns_expired", "ttl")

    def __init__(self, config: StateTtlConfig, clock: Callable[[], int]) -> None:
        self.config = config
        self.clock = clock
        self.ttl = config.ttl
        self.renews = config.renews_on_read
        self.returns_expired = config.returns_expired
        self.accesses = 0

    def is_expired(self, stamp: int, now: int) -> bool:
        """Whether an entry of that stamp is dead; the boundary is (SPEC R2.2)."""
        return min(stamp + self.ttl, MAX_TIMESTAMP) <= now

    def touch(self) -> int:
        """Count one access; the time it happens."""
        self.accesses += 1
        return self.clock()

    def usable(self, stored: Stamped | None, now: int) -> bool:
        """Whether folding may go on from this value: it lives, or may be seen dead (SPEC R2.4)."""
        return stored is not None and (self.returns_expired or not self.is_expired(stored[1], now))


def _read(expiry: Expiry, cell: ValueCell) -> Stamped | None:
    """A value cell's pair as a read shows it; removes a dead one, renews a live one (SPEC R2.3)."""
    now = expiry.touch()
    stored: Stamped | None = cell.get()
    if stored is None:
        return None
    if expiry.is_expired(stored[1], now):
        cell.remove()
        return stored if expiry.returns_expired else None
    if expiry.renews:
        cell.put((stored[0], now))
    return stored


class TtlValue(ValueState[Any]):
    """One value per key that expires; the descriptor's default is not used (SPEC R2.2)."""

    __slots__ = ("_cell", "_copy", "_expiry", "name")

    def __init__(self, name: str, cell: ValueCell, expiry: Expiry, copy: Copy) -> None:
        self.name = name
        self._cell = cell
        self._expiry = expiry
        self._copy = copy

    def value(self) -> Any:
        """The value of the current key, or None."""
        stored = _read(self._expiry, self._cell)
        if stored is None:
            return None
        return stored[0] if self._copy is None else self._copy(stored[0])

    def update(self, value: Any) -> None:
        """Store a value; None clears."""
        now = self._expiry.touch()
        if value is None:
            self._cell.remove()
        else:
            self._cell.put((value, now))

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._cell.remove()


class TtlList(ListState[Any], Mergeable):
    """A list per key; each element expires by itself (SPEC R2.4)."""

    __slots__ = ("_cell", "_copy", "_expiry", "name")

    def __init__(self, name: str, cell: ListCell, expiry: Expiry, copy: Copy) -> None:
        self.name = name
        self._cell = cell
        self._expiry = expiry
        self._copy = copy

    def get(self) -> list[Any]:
        """The elements that can be seen; a list whose elements are all dead is removed."""
        expiry = self._expiry
        now = expiry.touch()
        stored = self._cell.get()
        if stored is None:
            return []
        live = [pair for pair in stored if not expiry.is_expired(pair[1], now)]
        shown = stored if expiry.returns_expired else live
        values = [value for value, _ in shown] if self._copy is None else [self._copy(value) for value, _ in shown]
        if not live:
            self._cell.remove()
        elif expiry.renews:
            self._cell.replace([(value, now) for value, _ in live])
        return values

    def add(self, value: Any) -> None:
        """Append one element."""
        if value is None:
            raise InvalidArgument(f"list state '{self.name}': an element is None, which list state cannot hold")
        self._cell.append((value, self._expiry.touch()))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        elements = checked_elements(self.name, values)
        now = self._expiry.touch()
        if elements:
            self._cell.extend([(element, now) for element in elements])

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        elements = checked_elements(self.name, values)
        now = self._expiry.touch()
        if elements:
            self._cell.replace([(element, now) for element in elements])
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
        """Append the elements of each part that live; they keep their stamps."""
        expiry = self._expiry
        now = expiry.clock()
        live = [pair for part in parts for pair in part if not expiry.is_expired(pair[1], now)]
        if live:
            self._cell.extend(live)


class TtlMap(MapHandle):
    """A map per key; each entry expires by itself (SPEC R2.4). `is_empty` does not look at expiry."""

    __slots__ = ("_expiry",)

    def __init__(self, name: str, cell: MapCell, expiry: Expiry, copy: Copy) -> None:
        super().__init__(name, cell, copy)
        self._expiry = expiry

    def _check(self, map_key: Any, stored: Any, now: int) -> Stamped | None:
        """One entry as a read shows it; removes a dead one, renews a live one."""
        expiry = self._expiry
        if stored is MISSING:
            return None
        pair: Stamped = stored
        if expiry.is_expired(pair[1], now):
            self._cell.delete(map_key)
            return pair if expiry.returns_expired else None
        if expiry.renews:
            self._cell.put(map_key, (pair[0], now))
        return pair

    def get(self, key: Any) -> Any:
        """The value of an entry, or None."""
        map_key = self._map_key(key)
        pair = self._check(map_key, self._cell.get(map_key), self._expiry.touch())
        if pair is None:
            return None
        return pair[0] if self._copy is None else self._copy(pair[0])

    def put(self, key: Any, value: Any) -> None:
        """Add or replace one entry."""
        self._cell.put(self._map_key(key), (value, self._expiry.touch()))

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        """Add or replace several entries."""
        now = self._expiry.touch()
        if dict_value:
            self._cell.put_all({self._map_key(key): (value, now) for key, value in dict_value.items()})

    def contains(self, key: Any) -> bool:
        """Whether there is such an entry that can be seen."""
        map_key = self._map_key(key)
        return self._check(map_key, self._cell.get(map_key), self._expiry.touch()) is not None

    def _live(self) -> Iterator[tuple[Any, Any]]:
        now = self._expiry.touch()
        copy = self._copy
        for map_key, stored in self._cell.entries():
            pair = self._check(map_key, stored, now)
            if pair is not None:
                yield map_key, pair[0] if copy is None else copy(pair[0])


class TtlReducing(ReducingState[Any], Mergeable):
    """Values of a key combined into one that expires as a whole."""

    __slots__ = ("_cell", "_copy", "_expiry", "_reduce", "name")

    def __init__(self, descriptor: ReducingStateDescriptor, cell: ValueCell, expiry: Expiry, copy: Copy) -> None:
        self.name = descriptor.name
        self._reduce = descriptor.reduce
        self._cell = cell
        self._expiry = expiry
        self._copy = copy

    def get(self) -> Any:
        """The combined value, or None."""
        stored = _read(self._expiry, self._cell)
        if stored is None:
            return None
        return stored[0] if self._copy is None else self._copy(stored[0])

    def add(self, value: Any) -> None:
        """Combine one more value; onto a dead one only if dead ones may be seen."""
        now = self._expiry.touch()
        if value is None:
            self._cell.remove()
            return
        old = self._cell.get_owned()
        if self._expiry.usable(old, now):
            value = result_of(self.name, "reduce", self._reduce(old[0], value))
        else:
            value = copied(value)
        self._cell.put((value, now))

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._cell.remove()

    def take(self) -> Any:
        """The stored pair, which is removed."""
        stored = self._cell.get_owned()
        if stored is not None:
            self._cell.remove()
        return stored

    def absorb(self, parts: Sequence[Any]) -> None:
        """Combine the parts that count with what is stored; the result is written now."""
        now = self._expiry.clock()
        pairs = [pair for pair in (self._cell.get_owned(), *parts) if self._expiry.usable(pair, now)]
        if not pairs:
            self._cell.remove()
            return
        merged = pairs[0][0]
        for value, _ in pairs[1:]:
            merged = result_of(self.name, "reduce", self._reduce(merged, value))
        self._cell.put((merged, now))


class TtlAggregating(AggregatingState[Any, Any], Mergeable):
    """Values of a key folded into an accumulator that expires as a whole."""

    __slots__ = ("_cell", "_copy", "_expiry", "_function", "name")

    def __init__(self, descriptor: AggregatingStateDescriptor, cell: ValueCell, expiry: Expiry, copy: Copy) -> None:
        self.name = descriptor.name
        self._function = descriptor.function
        self._cell = cell
        self._expiry = expiry
        self._copy = copy

    def get(self) -> Any:
        """The result, or None."""
        stored = _read(self._expiry, self._cell)
        if stored is None:
            return None
        return self._function.get_result(stored[0] if self._copy is None else self._copy(stored[0]))

    def add(self, value: Any) -> None:
        """Fold one more value in; into a dead accumulator only if dead ones may be seen."""
        now = self._expiry.touch()
        if value is None:
            self._cell.remove()
            return
        old = self._cell.get_owned()
        accumulator = old[0] if self._expiry.usable(old, now) else self._function.create_accumulator()
        self._cell.put((result_of(self.name, "add", self._function.add(value, accumulator)), now))

    def clear(self) -> None:
        """Remove the accumulator of the current key."""
        self._cell.remove()

    def take(self) -> Any:
        """The stored pair, which is removed."""
        stored = self._cell.get_owned()
        if stored is not None:
            self._cell.remove()
        return stored

    def absorb(self, parts: Sequence[Any]) -> None:
        """Merge the parts that count into what is stored; the result is written now."""
        now = self._expiry.clock()
        pairs = [pair for pair in (self._cell.get_owned(), *parts) if self._expiry.usable(pair, now)]
        if not pairs:
            self._cell.remove()
            return
        merged = pairs[0][0]
        for accumulator, _ in pairs[1:]:
            merged = result_of(self.name, "merge", self._function.merge(merged, accumulator))
        self._cell.put((merged, now))


class Pruning:
    """What is left of a stored value, list or map once dead entries are dropped.

    >>> config = StateTtlConfig.new_builder(100).build()
    >>> Pruning("list", Expiry(config, lambda: 0)).left([("a", 0), ("b", 50)], now=120)
    [('b', 50)]
    """

    __slots__ = ("_expiry", "_kind")

    def __init__(self, kind: str, expiry: Expiry) -> None:
        self._kind = kind
        self._expiry = expiry

    def left(self, stored: Any, now: int) -> Any:
        """The stored object itself if nothing is dead, a smaller one, or None if all is dead."""
        expired = self._expiry.is_expired
        if self._kind == "list":
            live = [pair for pair in stored if not expired(pair[1], now)]
            return stored if len(live) == len(stored) else live or None
        if self._kind == "map":
            kept = {key: pair for key, pair in stored.items() if not expired(pair[1], now)}
            return stored if len(kept) == len(stored) else kept or None
        return None if expired(stored[1], now) else stored

    def in_snapshot(self, stored: Any, now: int) -> Any:
        """The same for what a snapshot writes: there a list only loses its dead head (SPEC R2.5 b)."""
        if self._kind != "list":
            return self.left(stored, now)
        for index, (_, stamp) in enumerate(stored):
            if not self._expiry.is_expired(stamp, now):
                return stored[index:] if index else stored
        return None
