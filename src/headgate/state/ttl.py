"""Time to live: cells whose entries expire, and the rules that decide which entries are dropped (SPEC R2).

Every value, list element and map value is stored as `(value, stamp)`; the stamp is the clock in milliseconds at the
last write, or the last read too if the configuration says so. An entry is expired when stamp + ttl <= now.

The cells here wrap the cells of any backend and run in the subtask's thread. Backends use `Pruning` to drop expired
entries without a read: in the background, and while a snapshot is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headgate.state.cells import MISSING, Cell, ListCell, MapCell, ValueCell, ValueTable
from headgate.state.ttl_config import MAX_TIMESTAMP, StateTtlConfig


class Expiry:
    """The clock and the settings of one state, and the number of accesses since the last incremental cleanup."""

    def __init__(self, config: StateTtlConfig, clock: Callable[[], int]) -> None:
        self.config = config
        self.clock = clock
        self.ttl = config.ttl
        self.renews = config.renews_on_read
        self.returns_expired = config.returns_expired
        self.accesses = 0

    def is_expired(self, stamp: int, now: int) -> bool:
        """Whether an entry with this stamp is expired; it is at the boundary (SPEC R2.2)."""
        return min(stamp + self.ttl, MAX_TIMESTAMP) <= now

    def touch(self) -> int:
        """Count one access and return its time."""
        self.accesses += 1
        return self.clock()


def expiring(cell: Cell, expiry: Expiry) -> Cell:
    """A cell of values on a cell of (value, stamp) pairs."""
    if isinstance(cell, ListCell):
        return _TtlListCell(cell, expiry)
    if isinstance(cell, MapCell):
        return _TtlMapCell(cell, expiry)
    assert isinstance(cell, ValueCell)
    return _TtlValueCell(cell, expiry)


class _TtlCell(Cell):
    def __init__(self, cell: Any, expiry: Expiry) -> None:
        self._cell = cell
        self._expiry = expiry

    def remove(self) -> None:
        self._expiry.accesses += 1
        self._cell.remove()


class _TtlValueCell(_TtlCell, ValueCell):
    """A read removes an expired value and may renew a live one (SPEC R2.3)."""

    def get(self) -> Any:
        expiry = self._expiry
        now = expiry.touch()
        stored = self._cell.get()
        if stored is None:
            return None
        if expiry.is_expired(stored[1], now):
            self._cell.remove()
            return stored[0] if expiry.returns_expired else None
        if expiry.renews:
            self._cell.put((stored[0], now))
        return stored[0]

    def get_owned(self) -> Any:
        """The value that folding continues from: a live one, or an expired one that may be returned (SPEC R2.4)."""
        stored = self._cell.get_owned()
        expiry = self._expiry
        if stored is None or (not expiry.returns_expired and expiry.is_expired(stored[1], expiry.clock())):
            return None
        return stored[0]

    def put(self, stored: Any) -> None:
        expiry = self._expiry
        expiry.accesses += 1  # `touch` without the call: this is on the path of every update
        self._cell.put((stored, expiry.clock()))


class _TtlListCell(_TtlCell, ListCell):
    """Each element expires by itself (SPEC R2.4); a list whose elements are all expired is removed."""

    def get(self) -> Sequence[Any] | None:
        expiry = self._expiry
        now = expiry.touch()
        stored = self._cell.get()
        if stored is None:
            return None
        live = [pair for pair in stored if not expiry.is_expired(pair[1], now)]
        values = [value for value, _ in (stored if expiry.returns_expired else live)]
        if not live:
            self._cell.remove()
        elif expiry.renews:
            self._cell.replace([(value, now) for value, _ in live])
        return values

    def extend(self, stored: Sequence[Any]) -> None:
        now = self._expiry.touch()
        self._cell.extend([(element, now) for element in stored])

    def replace(self, stored: Sequence[Any]) -> None:
        now = self._expiry.touch()
        self._cell.replace([(element, now) for element in stored])

    def take(self) -> list[Any] | None:
        taken: list[Any] | None = self._cell.take()
        return taken

    def absorb(self, taken: Sequence[Any]) -> None:
        """Elements keep their stamps."""
        now = self._expiry.clock()
        live = [pair for pair in taken if not self._expiry.is_expired(pair[1], now)]
        if live:
            self._cell.extend(live)


class _TtlMapCell(_TtlCell, MapCell):
    """Each entry expires by itself (SPEC R2.4); `is_empty` does not check expiry."""

    def _read(self, map_key: Any, stored: Any, now: int) -> Any:
        expiry = self._expiry
        if stored is MISSING:
            return MISSING
        value, stamp = stored
        if expiry.is_expired(stamp, now):
            self._cell.delete(map_key)
            return value if expiry.returns_expired else MISSING
        if expiry.renews:
            self._cell.put(map_key, (value, now))
        return value

    def get(self, map_key: Any) -> Any:
        return self._read(map_key, self._cell.get(map_key), self._expiry.touch())

    def put(self, map_key: Any, stored: Any) -> None:
        self._cell.put(map_key, (stored, self._expiry.touch()))

    def put_all(self, stored: Mapping[Any, Any]) -> None:
        now = self._expiry.touch()
        self._cell.put_all({map_key: (value, now) for map_key, value in stored.items()})

    def delete(self, map_key: Any) -> None:
        self._cell.delete(map_key)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        now = self._expiry.touch()
        for map_key, stored in self._cell.entries():
            value = self._read(map_key, stored, now)
            if value is not MISSING:
                yield map_key, value

    def is_empty(self) -> bool:
        return bool(self._cell.is_empty())


class TtlValueTable:
    """A value state with a time to live for many keys at once: a `ValueTable` of values on one of pairs."""

    def __init__(self, table: ValueTable, expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        expiry = self._expiry
        now = expiry.clock()
        expiry.accesses += len(addresses)
        stored = self._table.get_many(addresses, groups)
        values = [None if pair is None else pair[0] for pair in stored]
        live: list[int] = []
        expired: list[int] = []
        for i, pair in enumerate(stored):
            if pair is not None:
                (expired if expiry.is_expired(pair[1], now) else live).append(i)
        if expired:
            self._table.put_many([addresses[i] for i in expired], [groups[i] for i in expired], [None] * len(expired))
            if not expiry.returns_expired:
                for i in expired:
                    values[i] = None
        if expiry.renews:
            renewed = [(stored[i][0], now) for i in live]
            self._table.put_many([addresses[i] for i in live], [groups[i] for i in live], renewed)
        return values

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        now = self._expiry.clock()
        self._expiry.accesses += len(addresses)
        self._table.put_many(addresses, groups, [None if value is None else (value, now) for value in values])


class Pruning:
    """Drops the expired part of a stored value, list or map, outside of any read."""

    def __init__(self, kind: str, expiry: Expiry) -> None:
        self._kind = kind
        self._expiry = expiry

    def left(self, stored: Any, now: int) -> Any:
        """The stored object itself if nothing is expired, a smaller one, or None if all of it is expired."""
        expired = self._expiry.is_expired
        if self._kind == "list":
            live = [pair for pair in stored if not expired(pair[1], now)]
            return stored if len(live) == len(stored) else live or None
        if self._kind == "map":
            kept = {key: pair for key, pair in stored.items() if not expired(pair[1], now)}
            return stored if len(kept) == len(stored) else kept or None
        return None if expired(stored[1], now) else stored

    def in_snapshot(self, stored: Any, now: int) -> Any:
        """The part that a snapshot writes: a list loses only its expired head (SPEC R2.5 b)."""
        if self._kind != "list":
            return self.left(stored, now)
        for index, (_, stamp) in enumerate(stored):
            if not self._expiry.is_expired(stamp, now):
                return stored[index:] if index else stored
        return None
