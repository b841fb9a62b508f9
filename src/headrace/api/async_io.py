"""Functions that wait for something outside without blocking the subtask, and when they are called again.

`stream.map_async(...)` takes them. What is in flight is in every checkpoint and called again after a restore, so a call
may be made more than once for a record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, Generic, TypeVar

from headrace.api.functions import Function
from headrace.errors import InvalidArgument

__all__ = [
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
]

IN = TypeVar("IN")
OUT = TypeVar("OUT")

ResultPredicate = Callable[[list[Any]], bool] | None
ErrorPredicate = Callable[[Exception], bool] | None


class AsyncFunction(Function, ABC, Generic[IN, OUT]):
    """A coroutine for each record; its event loop runs in a thread of its own, `open` and `close` do not."""

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """The records that take the place of `value`: a list, which may be empty. An exception fails the job."""

    def timeout(self, value: IN) -> list[OUT]:
        """The records in place of those of a call that took too long; an exception, as here, fails the job."""
        raise TimeoutError(f"the asynchronous call for {str(value)[:200]} took too long")


class AsyncRetryPredicate(ABC, Generic[OUT]):
    """Decides whether a call is made again."""

    @abstractmethod
    def result_predicate(self) -> Callable[[list[OUT]], bool] | None:
        """A function of the result; None: a result is always taken."""

    @abstractmethod
    def exception_predicate(self) -> Callable[[Exception], bool] | None:
        """A function of the exception; None: an exception always fails the job."""


class AsyncRetryStrategy(ABC, Generic[OUT]):
    """The number of retries of a call, and their delays."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Return True if another call is allowed after this number of calls."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """The pause before the next call."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        """After which results and exceptions there is another call."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy[Any]:
        """One call for each record."""
        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate = None,
        exception_predicate: ErrorPredicate = None,
    ) -> AsyncRetryStrategy[Any]:
        """A `FixedDelayRetryStrategy`."""
        return FixedDelayRetryStrategy(max_attempts, backoff_time_millis, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate = None,
        exception_predicate: ErrorPredicate = None,
    ) -> AsyncRetryStrategy[Any]:
        """An `ExponentialBackoffDelayRetryStrategy`."""
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class RetryPredicate(AsyncRetryPredicate[Any]):
    """Two functions, or one of them."""

    def __init__(self, result_predicate: ResultPredicate, exception_predicate: ErrorPredicate) -> None:
        self._of_result, self._of_exception = result_predicate, exception_predicate

    def result_predicate(self) -> ResultPredicate:
        return self._of_result

    def exception_predicate(self) -> ErrorPredicate:
        return self._of_exception


class NoRetryStrategy(AsyncRetryStrategy[Any]):
    """One call for each record."""

    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate[Any]:
        return RetryPredicate(None, None)


class FixedDelayRetryStrategy(AsyncRetryStrategy[Any]):
    """At most `max_attempts` more calls, with the same pause before each.

    >>> FixedDelayRetryStrategy(3, 0)
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-1201] FixedDelayRetryStrategy: backoff_time_millis must be positive, got 0
    """

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate = None,
        exception_predicate: ErrorPredicate = None,
    ) -> None:
        _positive("FixedDelayRetryStrategy", max_attempts=max_attempts, backoff_time_millis=backoff_time_millis)
        self._attempts, self._pause = max_attempts, backoff_time_millis
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return self._pause

    def get_retry_predicate(self) -> AsyncRetryPredicate[Any]:
        return self._predicate


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy[Any]):
    """At most `max_attempts` more calls, with a pause that grows.

    >>> pauses = ExponentialBackoffDelayRetryStrategy(5, 100, 1000, 3.0)
    >>> [pauses.get_backoff_time_millis(attempts) for attempts in range(1, 5)]
    [100, 300, 900, 1000]
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate = None,
        exception_predicate: ErrorPredicate = None,
    ) -> None:
        given = {"max_attempts": max_attempts, "initial_delay": initial_delay, "max_retry_delay": max_retry_delay}
        _positive("ExponentialBackoffDelayRetryStrategy", **given, multiplier=multiplier)
        self._attempts, self._first, self._longest, self._factor = (
            max_attempts,
            initial_delay,
            max_retry_delay,
            multiplier,
        )
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self._attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return int(min(self._first * self._factor ** max(0, current_attempts - 1), self._longest))

    def get_retry_predicate(self) -> AsyncRetryPredicate[Any]:
        return self._predicate


def _positive(what: str, **given: float) -> None:
    for name, value in given.items():
        if value <= 0:
            raise InvalidArgument("HR-1201", f"{what}: {name} must be positive, got {value}")


class OneResult(AsyncFunction[Any, Any]):
    """Makes an AsyncFunction of a coroutine function with one result."""

    def __init__(self, function: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        self._function = function

    async def async_invoke(self, value: Any) -> list[Any]:
        return [await self._function(value)]


def as_async_function(given: Any, call: str) -> AsyncFunction[Any, Any]:
    """An AsyncFunction of what a user gave: one, or a coroutine function.

    >>> as_async_function(print, "map_async()")
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-1202] map_async() needs an `async def` function or an AsyncFunction, got <built-in function print>
    """
    invoke = getattr(given, "async_invoke", None)
    if invoke is not None:
        if not iscoroutinefunction(invoke):
            raise InvalidArgument(
                "HR-1202",
                f"{call}: 'async_invoke' of {type(given).__name__} must be declared as 'async def', and return a list",
            )
        return given  # type: ignore[no-any-return]
    if not iscoroutinefunction(given):
        raise InvalidArgument("HR-1202", f"{call} needs an `async def` function or an AsyncFunction, got {given!r}")
    return OneResult(given)
