"""Operations that a request starts and a later request asks for: 202 and an id first, then a status (SPEC R10.1).

Each operation runs in a thread of its own, in the driver.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from headrace.errors import HeadraceError

_UNDER_WAY = 100  # each has a thread


class UnknownOperation(HeadraceError):
    """No operation of this id was started, or its result has expired."""

    class_code = "HR-7005"


class TooManyOperations(HeadraceError):
    """Too many operations are under way."""

    class_code = "HR-7006"


class _Key(NamedTuple):
    kind: str
    request_id: str  # a client may choose it, for each job anew
    job_id: str | None  # None if the operation is of no job


class Operations:
    """Operations by kind, id and job.

    >>> operations = Operations(store_seconds=300)
    >>> request = operations.start("savepoint", None, lambda: "/savepoints/1")
    >>> operations.find("savepoint", request).result()
    '/savepoints/1'
    """

    def __init__(self, store_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep, self._clock = store_seconds, clock
        self._lock = threading.Lock()
        self._running: dict[_Key, Future[Any]] = {}
        self._done_at: dict[_Key, float] = {}
        self._delivered: set[_Key] = set()  # whose results were read
        self._delivered_at = clock() - store_seconds
        self._changed = threading.Condition(self._lock)

    def start(self, kind: str, request_id: str | None, work: Callable[[], Any], job_id: str | None = None) -> str:
        """Run `work` in a thread of its own, unless the job's operation of this id was started before; the id."""
        request_id = request_id or secrets.token_hex(16)
        key = _Key(kind, request_id, job_id)
        with self._lock:
            self._forget_old()
            if key in self._running:
                return request_id
            under_way = len(self._running) - len(self._done_at)
            if under_way >= _UNDER_WAY:
                raise TooManyOperations(f"{under_way} operations are under way: wait until some of them have ended")
            answer = self._running[key] = Future()
        threading.Thread(target=self._run, args=(key, work, answer), name=f"headrace-{kind}", daemon=True).start()
        return request_id

    def find(self, kind: str, request_id: str, job_id: str | None = None) -> Future[Any]:
        key = _Key(kind, request_id, job_id)
        with self._lock:
            self._forget_old()
            found = self._running.get(key)
            if found is not None and found.done():
                self._delivered.add(key)
                self._delivered_at = self._clock()
                self._changed.notify_all()
        if found is None:
            raise UnknownOperation(
                f"there is no {kind} operation '{request_id}': it was never started, or it ended more than "
                f"{self._keep:.0f} s ago (rest.async.store-duration)"
            )
        return found

    def linger(self, seconds: float, answered: float = 1.0) -> None:
        """Wait at the end of the process until every result was read, and `answered` seconds for the last response.

        A result counts as read before its response has left: so the time since then counts also when all were read before.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._running.keys() <= self._delivered, seconds)
            self._delivered |= self._running.keys()  # wait once only
            left = self._delivered_at + answered - self._clock()
        if self._running and left > 0:
            time.sleep(left)

    def _run(self, key: _Key, work: Callable[[], Any], answer: Future[Any]) -> None:
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
            self._delivered.discard(key)
