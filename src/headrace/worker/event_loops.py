"""Event loops for the coroutines of asynchronous calls: one in a thread of its own, one with virtual time that is stepped.

All methods of a loop are called in the subtask's thread. Calls that are done are taken from it, in the order in which they
became so.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from headrace.api.async_io import AsyncFunction
from headrace.errors import UserCodeError
from headrace.records.kernel import detached
from headrace.worker.operators.base import SubtaskServices

_CLOSE_SECONDS = 5.0
_RESOLUTION = 1e-9  # of an event loop's timers, in seconds


class AsyncCall(Protocol):
    """A record for which a coroutine runs."""

    value: Any
    attempts: int
    """The number of coroutines that were started for it; only the result of the newest counts."""
    task: Any
    """Set by the loop while a coroutine runs; None: nothing runs for it, or it was cancelled."""


C = TypeVar("C", bound=AsyncCall)


class EventLoop(ABC, Generic[C]):
    """Runs coroutines for calls."""

    def __init__(self) -> None:
        self._done: deque[tuple[C, Any, Exception | None]] = deque()

    @abstractmethod
    def run(self, calls: list[tuple[AsyncFunction[Any, Any], C]]) -> None:
        """Begin some calls."""

    def take(self, deadline: Callable[[], int | None]) -> list[tuple[C, Any, Exception | None]]:
        """The calls that are done; `deadline` says when something else is due."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def has_results(self) -> bool:
        """Return True if calls are done that were not taken."""
        return bool(self._done)

    def next_time(self) -> int | None:
        """Return the time at which a coroutine wants to continue, if the loop does not do that by itself."""
        return None

    @abstractmethod
    def cancel(self, call: C) -> None:
        """Stop a call; it will not be done."""

    @abstractmethod
    def close(self) -> None:
        """Stop all calls."""

    async def _guarded(self, function: AsyncFunction[Any, Any], call: C, attempt: int) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = await function.async_invoke(detached(call.value))  # a checkpoint stores the value as it came
        except asyncio.CancelledError as raised:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the runtime ends it
                raise
            error = UserCodeError("async_invoke, or what it waited for, was cancelled").with_traceback(
                raised.__traceback__
            )
        except Exception as raised:
            error = raised
        except BaseException as raised:  # sys.exit() would end the loop, and the job would wait without end
            error = UserCodeError(f"async_invoke ended with {raised!r}").with_traceback(raised.__traceback__)
        if call.attempts == attempt:
            self._finished((call, result, error))

    def _finished(self, done: tuple[C, Any, Exception | None]) -> None:
        self._done.append(done)


class ThreadLoop(EventLoop[C]):
    """A loop in a thread of its own; `wake` is called when a call is done."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-async", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with suppress(Exception):
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def run(self, calls: list[tuple[AsyncFunction[Any, Any], C]]) -> None:
        for _, call in calls:
            call.task = True  # until its task is there
        self._loop.call_soon_threadsafe(self._start, calls)

    def _start(self, calls: list[tuple[AsyncFunction[Any, Any], C]]) -> None:
        for function, call in calls:
            if call.task is not None:
                call.task = self._loop.create_task(self._guarded(function, call, call.attempts))

    def _finished(self, done: tuple[C, Any, Exception | None]) -> None:
        super()._finished(done)
        self._wake()

    def cancel(self, call: C) -> None:
        task = call.task
        if isinstance(task, asyncio.Task):
            self._loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_SECONDS)


class SteppedLoop(EventLoop[C]):
    """A loop that is stepped, with the clock of the runtime: `asyncio.sleep` waits for virtual time.

    Threads and sockets are not virtual: while a coroutine waits for one, the clock stands still until it is ready, or as
    long as the virtual time to the next deadline would last.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__()
        self._loop = _VirtualLoop(clock)
        self._clock = clock

    def run(self, calls: list[tuple[AsyncFunction[Any, Any], C]]) -> None:
        for function, call in calls:
            call.task = self._loop.create_task(self._guarded(function, call, call.attempts))
        self._loop.step(0)  # up to where they wait

    def take(self, deadline: Callable[[], int | None]) -> list[tuple[C, Any, Exception | None]]:
        self._loop.step(0)
        while not self._done and self._loop.waits_outside():
            due = deadline()
            seconds = None if due is None else (due - self._clock()) / 1000
            if not self._loop.step(seconds):
                break
        return super().take(deadline)

    def next_time(self) -> int | None:
        return self._loop.next_time()

    def cancel(self, call: C) -> None:
        if call.task is not None:  # else it waits to be made again
            call.task.cancel()

    def close(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.step(0)
        self._loop.close()


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a clock of ours."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._selecting = selectors.DefaultSelector()
        super().__init__(self._selecting)
        self._ms = clock
        self._own = len(self._selecting.get_map())  # what the loop listens to for itself
        self._calls = 0
        self._threads = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self._ms() / 1000

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        self._calls += 1
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        self._calls += 1
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._calls += 1
        heapq.heappush(self._timers, (when, self._calls, handle))
        return handle

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: Any) -> None:
        self._threads -= 1

    # A worker that dies in the simulator closes nothing.

    def __del__(self) -> None:
        self.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not context["message"].startswith("Task was destroyed"):
            super().call_exception_handler(context)

    def waits_outside(self) -> bool:
        """Return True if a coroutine may wait for a thread or a socket."""
        return self._threads > 0 or len(self._selecting.get_map()) > self._own

    def next_time(self) -> int | None:
        """Return the time of the next timer, in milliseconds."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return None if not self._timers else math.ceil(round(self._timers[0][0] * 1000, 6))

    def step(self, seconds: float | None) -> bool:
        """Run all that is ready, after waiting for something outside (None: as long as it takes); whether anything ran."""
        if seconds is None or seconds > 0:
            ready = self._selecting.select(seconds)
            if not ready:
                return False
        ran = False
        while True:
            self._calls = 0
            super().call_soon(self.stop)
            self.run_forever()
            if not self._calls:
                break
            ran = True
        while self._timers and self._timers[0][0] <= self.time() + _RESOLUTION:  # they have run
            heapq.heappop(self._timers)
        return ran or seconds is None or seconds > 0


def make_loop(services: SubtaskServices) -> EventLoop[Any]:
    """Return the loop for a runtime: stepped where time is virtual."""
    return SteppedLoop(services.now) if services.lockstep else ThreadLoop(services.wake)
