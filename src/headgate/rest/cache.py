"""Documents that many clients poll are made and encoded once, and served to all of them for a moment."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

import msgspec

from headgate.control.messages import escaped

_KEPT = 500


def to_json(document: object) -> bytes:
    """A document as JSON: NaN and infinity become null, text that UTF-8 cannot carry is escaped."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(escaped(document))


class Cache:
    """Encoded answers, each good for some time. Threads that ask for the same at once may both make it.

    >>> cache, made = Cache(seconds=60), []
    >>> for _ in range(2):
    ...     body = cache.get("jobs", lambda: made.append(1) or {"jobs": len(made)})
    >>> body, len(made)
    (b'{"jobs":1}', 1)
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._bodies: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], object]) -> bytes:
        """The answer of this key as JSON, made anew if it is too old; what `make` raises is not kept."""
        now = self._clock()
        with self._lock:
            found = self._bodies.get(key)
        if found is not None and now - found[0] < self._seconds:
            return found[1]
        body = to_json(make())
        with self._lock:
            now = self._clock()
            self._bodies[key] = now, body
            self._bodies.move_to_end(key)
            # The oldest come first. Pages of a state are large: none stays in memory longer than it is of use.
            while len(self._bodies) > _KEPT or now - next(iter(self._bodies.values()))[0] > self._seconds:
                self._bodies.popitem(last=False)
        return body
