"""Documents that many clients poll are made and encoded once, and served to all of them for a moment.

Those that take long are kept by what they are about, and are made in threads (`Cache`). All others are kept by the path and
the query of the request (`PolledAnswers`), which is answered before a route is looked for: the search costs more than most of
these answers.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.control.messages import escaped

REPEATS = "headrace.repeats"  # where the state of a scope has a weak reference to what the connection offers
_KEPT = 500
_KEPT_BYTES = 32 << 20
_POLLED_SECONDS = 10.0  # after which an answer is not polled any more


def to_json(document: object) -> bytes:
    """Return a document as JSON: NaN and infinity become null, text that UTF-8 cannot carry is escaped."""
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
        """Return the answer of this key as JSON, made anew if it is too old; what `make` raises is not kept."""
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


@dataclass(frozen=True, slots=True)
class _Polled:
    make: Callable[[], object]
    body: bytes
    made_at: float
    asked_at: float


class PolledAnswers:
    """In front of the routes: answers requests that were made a moment ago as well. It runs in the event loop only.

    An answer is made again when it is too old. If that fails, the request goes to its route, which says why.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._polled: OrderedDict[Hashable, _Polled] = OrderedDict()  # what was asked for longest ago comes first
        self._bytes = 0

    def find(self, scope: Scope) -> bytes | None:
        """Return the answer to this request as JSON; None: its route has to be asked."""
        key, now = (scope["path"], scope["query_string"]), self._clock()
        polled = self._polled.get(key) if scope["method"] == "GET" else None
        if polled is None:
            return None
        if now - polled.made_at < self._seconds:
            self._put(key, polled.make, polled.body, polled.made_at)
            return polled.body
        try:
            body = to_json(polled.make())
        except Exception:
            self._drop(key)
            return None
        self._put(key, polled.make, body, now)
        return body

    def keep(self, scope: Scope, make: Callable[[], object], body: bytes) -> None:
        """Answer this request like this from now on."""
        if self._seconds:
            self._put((scope["path"], scope["query_string"]), make, body, self._clock())

    def _put(self, key: Hashable, make: Callable[[], object], body: bytes, made_at: float) -> None:
        now = self._clock()
        self._drop(key)
        self._polled[key] = _Polled(make, body, made_at, now)
        self._bytes += len(body)
        while (
            len(self._polled) > _KEPT
            or self._bytes > _KEPT_BYTES
            or now - next(iter(self._polled.values())).asked_at > _POLLED_SECONDS
        ):
            self._drop(next(iter(self._polled)))
            if not self._polled:
                break

    def _drop(self, key: Hashable) -> None:
        if (dropped := self._polled.pop(key, None)) is not None:
            self._bytes -= len(dropped.body)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return the layer in front of the routes."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            body = self.find(scope) if scope["type"] == "http" else None
            if body is None:
                await app(scope, receive, send)
                return
            offered = scope.get("state", {}).get(REPEATS)
            if offered is not None and (repeats := offered()) is not None:
                repeats(partial(self.find, {key: scope[key] for key in ("method", "path", "query_string")}))
            headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        return answer


class PolledResponse(Response):
    """The response of a route, which `PolledAnswers` gives to requests that follow."""

    media_type = "application/json"

    def __init__(self, make: Callable[[], object], answers: PolledAnswers) -> None:
        super().__init__(to_json(make()))
        self._make, self._answers = make, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._answers.keep(scope, self._make, bytes(self.body))
        await super().__call__(scope, receive, send)
