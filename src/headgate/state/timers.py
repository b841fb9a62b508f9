"""Timers: kept as keyed state, ordered in memory.

A timer is (domain, timestamp, key, namespace); registering one twice is registering it once. Each lives in the table of
an internal value state under the namespace `(domain, timestamp, namespace)` of its key, with the number of its
registration as value: so it is snapshotted, restored and rescaled like any state. A heap per domain gives the order
(timestamp, registration); it holds stale entries of deleted timers until they come up or outnumber the live ones.
"""

from __future__ import annotations

import enum
import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from headgate.errors import InvalidArgument
from headgate.state.addresses import NO_KEY, VOID, check_namespace, in_namespace, split_address

__all__ = ["TIMERS", "MemoryTimerStore", "TimeDomain", "Timer", "TimerStore", "Timers"]

TIMERS = "_timers"
"""The name of the internal state that timers are kept in."""


class TimeDomain(enum.IntEnum):
    """Which clock fires a timer."""

    PROCESSING = 0
    EVENT = 1
    PROCESSING_TIME = 0  # PyFlink's names for the same
    EVENT_TIME = 1


class Timer(NamedTuple):
    """A timer that is due: make `address` and `group` the current key, then call the user."""

    domain: TimeDomain
    timestamp: int
    address: Any
    group: int
    namespace: Any


class TimerStore(ABC):
    """Where registrations are kept: a table from (group, address) to the number of the registration."""

    @abstractmethod
    def get(self, group: int, address: Any) -> int | None:
        """The number stored, or None."""

    @abstractmethod
    def put(self, group: int, address: Any, number: int) -> None:
        """Store a registration."""

    @abstractmethod
    def remove(self, group: int, address: Any) -> None:
        """Forget a registration."""

    @abstractmethod
    def entries(self) -> Iterable[tuple[int, Any, int]]:
        """(group, address, number) of every registration."""


class Timers:
    """The timers of one operator in one subtask.

    >>> store = MemoryTimerStore()
    >>> timers = Timers(store)
    >>> timers.register(TimeDomain.EVENT, 20, "a", 0), timers.register(TimeDomain.EVENT, 20, "a", 0)
    (True, False)
    >>> timers.next_deadline(TimeDomain.EVENT), timers.pop_due(TimeDomain.EVENT, until=19)
    (20, None)
    >>> timers.pop_due(TimeDomain.EVENT, until=20).address
    'a'
    """

    def __init__(self, store: TimerStore) -> None:
        self._store = store
        self._heaps: list[list[tuple[int, int, int, Any]]] = [[], []]  # by domain: (timestamp, number, group, address)
        self._live = [0, 0]
        self._next_number = 0

    def register(self, domain: TimeDomain, timestamp: int, address: Any, group: int, namespace: Any = VOID) -> bool:
        """Add a timer for a key; False if it was there already. The namespace may come with the address."""
        place = self._place(domain, timestamp, address, namespace)
        if self._store.get(group, place) is not None:
            return False
        number = self._next_number
        self._next_number += 1
        self._store.put(group, place, number)
        heapq.heappush(self._heaps[domain], (timestamp, number, group, place))
        self._live[domain] += 1
        return True

    def delete(self, domain: TimeDomain, timestamp: int, address: Any, group: int, namespace: Any = VOID) -> bool:
        """Forget a timer; False if there was none."""
        place = self._place(domain, timestamp, address, namespace)
        if self._store.get(group, place) is None:
            return False
        self._store.remove(group, place)
        self._live[domain] -= 1
        if len(self._heaps[domain]) > 2 * self._live[domain] + 1024:
            self._compact(domain)
        return True

    def next_deadline(self, domain: TimeDomain) -> int | None:
        """The timestamp of the next timer of a domain, or None."""
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
        self._store.remove(group, place)
        self._live[domain] -= 1
        address, (_, _, namespace) = split_address(place)
        return Timer(domain, timestamp, address, group, namespace)

    def count(self, domain: TimeDomain) -> int:
        """How many timers of a domain wait."""
        return self._live[domain]

    def all(self) -> Iterator[Timer]:
        """Every timer, in no order."""
        for group, place, _ in self._store.entries():
            address, (domain, timestamp, namespace) = split_address(place)
            yield Timer(TimeDomain(domain), timestamp, address, group, namespace)

    def reload(self) -> None:
        """Build the order anew from the store, after a restore."""
        self._heaps = [[], []]
        for group, place, number in self._store.entries():
            domain, timestamp, _ = split_address(place)[1]
            self._heaps[domain].append((timestamp, number, group, place))
            self._next_number = max(self._next_number, number + 1)
        for domain, heap in enumerate(self._heaps):
            # Numbers of several old subtasks may be equal, but not within a group: the place is never compared.
            heapq.heapify(heap)
            self._live[domain] = len(heap)

    def _place(self, domain: TimeDomain, timestamp: int, address: Any, namespace: Any) -> Any:
        if not isinstance(timestamp, int) or isinstance(timestamp, bool):
            raise InvalidArgument(f"a timer's time is an int in milliseconds, got {timestamp!r}")
        check_namespace(namespace)
        if address is NO_KEY:
            NO_KEY.refuse("a timer")
        address, own = split_address(address)
        if namespace is VOID:
            namespace = own
        return in_namespace(address, (int(domain), timestamp, namespace))

    def _drop_stale(self, domain: TimeDomain) -> None:
        heap = self._heaps[domain]
        while heap and self._store.get(heap[0][2], heap[0][3]) != heap[0][1]:
            heapq.heappop(heap)

    def _compact(self, domain: TimeDomain) -> None:
        live = [entry for entry in self._heaps[domain] if self._store.get(entry[2], entry[3]) == entry[1]]
        heapq.heapify(live)
        self._heaps[domain] = live


class MemoryTimerStore(TimerStore):
    """Registrations in a dict: for tests, and for operators whose timers are not state."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Any], int] = {}

    def get(self, group: int, address: Any) -> int | None:
        """The number stored, or None."""
        return self._numbers.get((group, address))

    def put(self, group: int, address: Any, number: int) -> None:
        """Store a registration."""
        self._numbers[group, address] = number

    def remove(self, group: int, address: Any) -> None:
        """Forget a registration."""
        del self._numbers[group, address]

    def entries(self) -> Iterable[tuple[int, Any, int]]:
        """Every registration."""
        return [(group, address, number) for (group, address), number in self._numbers.items()]
