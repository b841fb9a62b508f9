"""Work that a request starts and others ask for later: 202 and a request id now, a status then (SPEC R10.1)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headgate.errors import HeadgateError

__all__ = ["Operations", "UnknownOperation"]


class UnknownOperation(HeadgateError):
    """Nobody started an operation of this id, or its result was kept long enough."""


class Operations:
    """Operations by kind and id.

    >>> operations = Operations(store_seconds=300)
    >>> request = operations.start("savepoint", None, lambda: "/savepoints/1")
    >>> operations.wait("savepoint", request)
    '/savepoints/1'
    """

    def __init__(self, store_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep, self._clock = store_seconds, clock
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], Future[Any]] = {}
        self._done_at: dict[tuple[str, str], float] = {}
        self._heard: set[tuple[str, str]] = set()  # whose results were asked for when they were there
        self._changed = threading.Condition(self._lock)

    def start(self, kind: str, request_id: str | None, work: Callable[[], Any]) -> str:
        """Begin some work in a thread of its own; the same id a second time does not begin it again."""
        request_id = request_id or secrets.token_hex(16)
        key = kind, request_id
        with self._lock:
            self._forget_old()
            if key in self._running:
                return request_id
            answer = self._running[key] = Future()
        threading.Thread(target=self._run, args=(key, work, answer), name=f"headgate-{kind}", daemon=True).start()
        return request_id

    def find(self, kind: str, request_id: str) -> Future[Any]:
        """The operation; UnknownOperation if there is none."""
        with self._lock:
            self._forget_old()
            found = self._running.get((kind, request_id))
            if found is not None and found.done():
                self._heard.add((kind, request_id))
                self._changed.notify_all()
        if found is None:
            raise UnknownOperation(
                f"there is no {kind} operation '{request_id}': it was never started, or it ended more than "
                f"{self._keep:.0f} s ago (rest.async.store-duration)"
            )
        return found

    def wait(self, kind: str, request_id: str, timeout: float | None = None) -> Any:
        """Until it is done; its result or error."""
        return self.find(kind, request_id).result(timeout)

    def linger(self, seconds: float, answered: float = 0.2) -> None:
        """Before the process ends: give who waits for a result the time to hear it, and `answered` for the answer itself."""
        with self._changed:
            if self._running.keys() <= self._heard:
                return
            self._changed.wait_for(lambda: self._running.keys() <= self._heard, seconds)
            self._heard |= self._running.keys()  # nobody is waited for twice
        time.sleep(answered)

    def _run(self, key: tuple[str, str], work: Callable[[], Any], answer: Future[Any]) -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)
        with self._lock:
            self._done_at[key] = self._clock()

    def _forget_old(self) -> None:
        now = self._clock()
        for key in [key for key, at in self._done_at.items() if now - at > self._keep]:
            del self._done_at[key], self._running[key]
            self._heard.discard(key)
