"""Timers: stored as keyed state, ordered in memory; used in the subtask's thread.

A timer is (domain, timestamp, key, namespace); registering one twice is registering it once. Each is an entry of an
internal table under the namespace `(domain, timestamp, namespace)` of its key, with the number of its registration as
value: so it is snapshotted, restored and rescaled like any state. A heap per domain gives the order (timestamp,
registration); it holds stale entries of deleted timers until they reach the top or outnumber the live ones.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from headrace.errors import InvalidArgument
from headrace.state.addresses import NO_KEY, VOID, check_namespace, in_namespace, split_address
from headrace.state.tables import DictTable

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1

TIMERS = "_timers"
"""The name of the internal table of timers."""


class TimeDomain(enum.IntEnum):
    """Which clock fires a timer."""

    PROCESSING = 0
    EVENT = 1
    PROCESSING_TIME = 0  # PyFlink's names for the same
    EVENT_TIME = 1


class Timer(NamedTuple):
    """A due timer: the caller selects `address` and `group` as the current key, then calls the user's function."""

    domain: TimeDomain
    timestamp: int
    address: Any
    group: int
    namespace: Any


class Timers:
    """The timers of one operator in one subtask; `table` opens their table, which maps a place to a number."""

    def __init__(self, table: Callable[[], DictTable]) -> None:
        self._open = table
        self._heaps: list[list[tuple[int, int, int, Any]]] = [[], []]  # by domain: (timestamp, number, group, place)
        self._live = [0, 0]
        self._next_number = 0

    @cached_property
    def _table(self) -> DictTable:
        return self._open()

    def register(self, domain: TimeDomain, timestamp: int, address: Any, group: int, namespace: Any = VOID) -> bool:
        """Add a timer for a key; False if it was there already. The namespace may come with the address."""
        place = self._place(domain, timestamp, address, namespace)
        if self._table.get(group, place) is not None:
            return False
        number = self._next_number
        self._next_number += 1
        self._table.put(group, place, number)
        heapq.heappush(self._heaps[domain], (timestamp, number, group, place))
        self._live[domain] += 1
        return True

    def delete(self, domain: TimeDomain, timestamp: int, address: Any, group: int, namespace: Any = VOID) -> bool:
        """Delete a timer; False if there was none."""
        place = self._place(domain, timestamp, address, namespace)
        if self._table.get(group, place) is None:
            return False
        self._table.remove(group, place)
        self._live[domain] -= 1
        if len(self._heaps[domain]) > 2 * self._live[domain] + 1024:
            self._compact(domain)
        return True

    def next_deadline(self, domain: TimeDomain) -> int | None:
        """Return the timestamp of the next timer of a domain, or None."""
        self._drop_stale(domain)
        heap = self._heaps[domain]
        return heap[0][0] if heap else None

    def pop_due(self, domain: TimeDomain, until: int) -> Timer | None:
        """Take the first timer whose time is at most `until`; None if there is none.

        One at a time, so that what a timer's callback registers or deletes counts for the next call.
        """
        self._drop_stale(domain)
        heap = self._heaps[domain]
        if not heap or heap[0][0] > until:
            return None
        timestamp, _, group, place = heapq.heappop(heap)
        self._table.remove(group, place)
        self._live[domain] -= 1
        address, (_, _, namespace) = split_address(place)
        return Timer(domain, timestamp, address, group, namespace)

    def count(self, domain: TimeDomain) -> int:
        """Return the number of pending timers of a domain."""
        return self._live[domain]

    def all(self) -> Iterator[Timer]:
        """Every timer, in no order."""
        for group, place, _ in self._table.items():
            address, (domain, timestamp, namespace) = split_address(place)
            yield Timer(TimeDomain(domain), timestamp, address, group, namespace)

    def reload(self) -> None:
        """Rebuild the heaps from the table, after a restore."""
        self._heaps = [[], []]
        for group, place, number in self._table.items():
            domain, timestamp, _ = split_address(place)[1]
            self._heaps[domain].append((timestamp, number, group, place))
            self._next_number = max(self._next_number, number + 1)
        for domain, heap in enumerate(self._heaps):
            # Numbers of several old subtasks may be equal, but not within a group, so places are never compared.
            heapq.heapify(heap)
            self._live[domain] = len(heap)

    def _place(self, domain: TimeDomain, timestamp: int, address: Any, namespace: Any) -> Any:
        if not isinstance(timestamp, int) or isinstance(timestamp, bool) or not _LEAST <= timestamp <= _GREATEST:
            raise InvalidArgument("HR-1407", f"a timer's time is an int of 64 bits in milliseconds, got {timestamp!r}")
        check_namespace(namespace)
        if address is NO_KEY:
            NO_KEY.refuse("a timer")
        address, own = split_address(address)
        if namespace is VOID:
            namespace = own
        return in_namespace(address, (int(domain), timestamp, namespace))

    def _drop_stale(self, domain: TimeDomain) -> None:
        heap = self._heaps[domain]
        while heap and self._table.get(heap[0][2], heap[0][3]) != heap[0][1]:
            heapq.heappop(heap)

    def _compact(self, domain: TimeDomain) -> None:
        live = [entry for entry in self._heaps[domain] if self._table.get(entry[2], entry[3]) == entry[1]]
        heapq.heapify(live)
        self._heaps[domain] = live
