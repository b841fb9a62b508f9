"""Incremental cleanup: each access and each record pays for checking a few entries for expiry (SPEC R2.5 c).

It runs in the subtask's thread, after each batch and when the subtask is idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.records.key_groups import KeyGroupRange
from headrace.state.hashmap.tables import StateTable
from headrace.state.ttl import Expiry

_CLEANUP_ENTRIES = 10_000  # checked for expiry after each batch: about 3 ms


class Cleaner:
    """Iterates over the entries of a state, again and again, and drops what is expired."""

    def __init__(self, groups: KeyGroupRange, table: StateTable, kind: str, expiry: Expiry) -> None:
        self.expiry = expiry
        self._kind = kind
        self._groups = groups
        self._table = table
        self._group = groups.start
        self._addresses: Iterator[Any] = iter(())

    @property
    def enabled(self) -> bool:
        return self.expiry.config.cleanup.incremental_size() is not None

    def clean(self, accesses: int, records: int) -> None:
        """Check the entries that are due for a number of accesses and records."""
        size = self.expiry.config.cleanup.incremental_size()
        if size is not None:
            entries, per_record = size
            due = entries * (accesses + (records if per_record else 0))
            if due:
                self.step(min(due, _CLEANUP_ENTRIES))

    def step(self, budget: int) -> tuple[int, int]:
        """Check up to `budget` entries, none of them twice; returns how many were checked, and how many shrank."""
        checked = changed = 0
        rounds = len(self._groups) + 1
        now = self.expiry.clock()
        while checked < budget and rounds:
            table, group = self._table, self._group
            for address in self._addresses:
                stored = table.get(group, address)
                if stored is not None:
                    checked += 1
                    left = self.left(stored, now)
                    if left is None:
                        table.remove(group, address)
                    elif left is not stored:
                        table.put(group, address, left)
                    changed += left is not stored
                    if checked >= budget:
                        return checked, changed
            rounds -= 1
            self._group = self._group + 1 if self._group < self._groups.end else self._groups.start
            self._addresses = iter(self._table.addresses(self._group))
        return checked, changed

    def left(self, stored: Any, now: int) -> Any:
        """Return the stored object itself if nothing is expired, a smaller one, or None if all of it is expired."""
        expired = self.expiry.is_expired
        if self._kind == "list":
            live = [pair for pair in stored if not expired(pair[1], now)]
            return stored if len(live) == len(stored) else live or None
        if self._kind == "map":
            kept = {key: pair for key, pair in stored.items() if not expired(pair[1], now)}
            return stored if len(kept) == len(stored) else kept or None
        return None if expired(stored[1], now) else stored

    def in_snapshot(self, stored: Any, now: int) -> Any:
        """Return the part that a snapshot writes: a list loses only its expired head (SPEC R2.5 b)."""
        if self._kind != "list":
            return self.left(stored, now)
        for index, (_, stamp) in enumerate(stored):
            if not self.expiry.is_expired(stamp, now):
                return stored[index:] if index else stored
        return None
