"""`pyflink.common.completable_future`: what a job client answers with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Generic, TypeVar

__all__ = ["CompletableFuture"]

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """An answer that may still be on its way.

    >>> CompletableFuture(lambda: 5).result()
    5
    """

    def __init__(self, wait: Callable[[], T], is_done: Callable[[], bool] = lambda: True) -> None:
        self._wait, self._is_done = wait, is_done

    @classmethod
    def of(cls, work: Callable[[], T]) -> CompletableFuture[T]:
        """Begin some work in a thread of its own.

        >>> CompletableFuture.of(lambda: 5).result()
        5
        """
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=run, daemon=True).start()
        return cls(answer.result, answer.done)

    def done(self) -> bool:
        """Whether `result` answers at once."""
        return self._is_done()

    def result(self) -> T:
        """The answer; waits for it, and raises the error if there was one."""
        return self._wait()

    def exception(self) -> Exception | None:
        """The error, or None; waits for the answer."""
        try:
            self._wait()
        except Exception as error:
            return error
        return None
