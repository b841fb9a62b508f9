"""Time to live: tables whose entries expire (SPEC R2).

Every value, list element and map value is stored as `(value, stamp)`; the stamp is the clock in milliseconds at the
last write, or the last read too if the configuration says so. An entry is expired when stamp + ttl <= now.

The tables here wrap the tables of any backend and run in the subtask's thread. Backends drop expired entries without a
read: in the background (their `cleanup.py`), and while a snapshot is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.state.tables import MISSING, AddressedTable, ListTable, MapTable, ValueTable
from headrace.state.ttl_config import MAX_TIMESTAMP, StateTtlConfig


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
        """Return True if an entry with this stamp is expired; it is at the boundary (SPEC R2.2)."""
        return min(stamp + self.ttl, MAX_TIMESTAMP) <= now

    def touch(self) -> int:
        """Count one access and return its time."""
        self.accesses += 1
        return self.clock()


class _Expiring:
    """A table of values on a table of (value, stamp) pairs."""

    def __init__(self, table: Any, expiry: Expiry) -> None:
        self._table = table
        self._expiry = expiry

    def remove(self, group: int, address: Any) -> None:
        self._expiry.accesses += 1
        self._table.remove(group, address)


class _ExpiringValues(_Expiring, ValueTable):
    """A read removes an expired value and may renew a live one (SPEC R2.3)."""

    def get(self, group: int, address: Any) -> Any:
        expiry = self._expiry
        now = expiry.touch()
        stored = self._table.get(group, address)
        if stored is None:
            return None
        if expiry.is_expired(stored[1], now):
            self._table.remove(group, address)
            return stored[0] if expiry.returns_expired else None
        if expiry.renews:
            self._table.put(group, address, (stored[0], now))
        return stored[0]

    def get_owned(self, group: int, address: Any) -> Any:
        """The value that folding continues from: a live one, or an expired one that may be returned (SPEC R2.4)."""
        stored = self._table.get_owned(group, address)
        expiry = self._expiry
        if stored is None or (not expiry.returns_expired and expiry.is_expired(stored[1], expiry.clock())):
            return None
        return stored[0]

    def put(self, group: int, address: Any, stored: Any) -> None:
        expiry = self._expiry
        expiry.accesses += 1  # `touch` without the call: this is on the path of every update
        self._table.put(group, address, (stored, expiry.clock()))

    def get_many(self, addresses: Sequence[Any], groups: Sequence[int]) -> list[Any]:
        expiry = self._expiry
        now = expiry.clock()
        expiry.accesses += len(addresses)
        stored = self._table.get_many(addresses, groups)
        values = [None if pair is None else pair[0] for pair in stored]
        changed: list[tuple[Any, int, Any]] = []  # expired ones that are removed, and live ones that are renewed
        for i, pair in enumerate(stored):
            if pair is not None:
                expired = expiry.is_expired(pair[1], now)
                if expired or expiry.renews:
                    changed.append((addresses[i], groups[i], None if expired else (pair[0], now)))
                if expired and not expiry.returns_expired:
                    values[i] = None
        if changed:
            self._table.put_many(*zip(*changed, strict=True))
        return values

    def put_many(self, addresses: Sequence[Any], groups: Sequence[int], values: Sequence[Any]) -> None:
        now = self._expiry.clock()
        self._expiry.accesses += len(addresses)
        self._table.put_many(addresses, groups, [None if value is None else (value, now) for value in values])


class _ExpiringLists(_Expiring, ListTable):
    """Each element expires by itself (SPEC R2.4); a list whose elements are all expired is removed."""

    def get(self, group: int, address: Any) -> Sequence[Any] | None:
        expiry = self._expiry
        now = expiry.touch()
        stored = self._table.get(group, address)
        if stored is None:
            return None
        live = [pair for pair in stored if not expiry.is_expired(pair[1], now)]
        values = [value for value, _ in (stored if expiry.returns_expired else live)]
        if not live:
            self._table.remove(group, address)
        elif expiry.renews:
            self._table.replace(group, address, [(value, now) for value, _ in live])
        return values

    def extend(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        now = self._expiry.touch()
        self._table.extend(group, address, [(element, now) for element in stored])

    def replace(self, group: int, address: Any, stored: Sequence[Any]) -> None:
        now = self._expiry.touch()
        self._table.replace(group, address, [(element, now) for element in stored])

    def take(self, group: int, address: Any) -> list[Any] | None:
        taken: list[Any] | None = self._table.take(group, address)
        return taken

    def absorb(self, group: int, address: Any, taken: Sequence[Any]) -> None:
        """Elements keep their stamps."""
        now = self._expiry.clock()
        self._table.absorb(group, address, [pair for pair in taken if not self._expiry.is_expired(pair[1], now)])


class _ExpiringMaps(_Expiring, MapTable):
    """Each entry expires by itself (SPEC R2.4); `is_empty` does not check expiry."""

    def _read(self, group: int, address: Any, map_key: Any, stored: Any, now: int) -> Any:
        expiry = self._expiry
        if stored is MISSING:
            return MISSING
        value, stamp = stored
        if expiry.is_expired(stamp, now):
            self._table.delete(group, address, map_key)
            return value if expiry.returns_expired else MISSING
        if expiry.renews:
            self._table.put(group, address, map_key, (value, now))
        return value

    def get(self, group: int, address: Any, map_key: Any) -> Any:
        stored = self._table.get(group, address, map_key)
        return self._read(group, address, map_key, stored, self._expiry.touch())

    def put(self, group: int, address: Any, map_key: Any, stored: Any) -> None:
        self._table.put(group, address, map_key, (stored, self._expiry.touch()))

    def put_all(self, group: int, address: Any, stored: Mapping[Any, Any]) -> None:
        now = self._expiry.touch()
        self._table.put_all(group, address, {map_key: (value, now) for map_key, value in stored.items()})

    def delete(self, group: int, address: Any, map_key: Any) -> None:
        self._table.delete(group, address, map_key)

    def entries(self, group: int, address: Any) -> Iterator[tuple[Any, Any]]:
        now = self._expiry.touch()
        for map_key, stored in self._table.entries(group, address):
            value = self._read(group, address, map_key, stored, now)
            if value is not MISSING:
                yield map_key, value

    def is_empty(self, group: int, address: Any) -> bool:
        return bool(self._table.is_empty(group, address))


def expiring(table: AddressedTable, expiry: Expiry) -> AddressedTable:
    """Return a table of values on a table of (value, stamp) pairs."""
    if isinstance(table, ListTable):
        return _ExpiringLists(table, expiry)
    return (_ExpiringMaps if isinstance(table, MapTable) else _ExpiringValues)(table, expiry)
