"""The answers that a job owes to callers in other threads."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any


class Answers:
    """Futures that are answered at the latest when the job ends. May be called by any thread.

    >>> answers = Answers()
    >>> early = answers.new()
    >>> answers.close(RuntimeError("over"))
    >>> early.exception(), answers.new()
    (RuntimeError('over'), None)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._closed = False

    def new(self) -> Future[Any] | None:
        """Return a new answer; None if the job has ended."""
        answer: Future[Any] = Future()
        with self._lock:  # an answer is either among those that `close` answers, or refused
            if self._closed:
                return None
            self._open.add(answer)
        answer.add_done_callback(self._open.discard)
        return answer

    def refuse(self) -> None:
        """Give no answer from now on: the job has ended."""
        with self._lock:
            self._closed = True

    def close(self, error: Exception) -> None:
        """Answer all that are open with an error, and give no new one."""
        self.refuse()
        for answer in list(self._open):
            if not answer.done():
                answer.set_exception(error)
