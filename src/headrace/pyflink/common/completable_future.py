"""`pyflink.common.completable_future`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Generic, TypeVar

__all__ = ["CompletableFuture"]

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """The result of a call of a job client; `wait` blocks until it is there."""

    def __init__(self, wait: Callable[[], T], is_done: Callable[[], bool] = lambda: True) -> None:
        self._wait, self._is_done = wait, is_done

    @classmethod
    def of(cls, work: Callable[[], T]) -> CompletableFuture[T]:
        """Run `work` in a thread of its own."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        Thread(target=run, daemon=True).start()
        return cls(future.result, future.done)

    def cancel(self) -> bool:
        """False: what was requested goes on."""
        return False

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return self._is_done()

    def result(self) -> T:
        """Wait for the result; raises the error if there was one."""
        return self._wait()

    def exception(self) -> Exception | None:
        """The error, or None; waits for the future."""
        try:
            self._wait()
        except Exception as error:
            return error
        return None
