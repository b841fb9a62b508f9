"""The outside world of the driver's checkpoints: the job, clock, randomness, threads, storage."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from random import Random
from typing import Any

from headrace.checkpoint.plan import TaskId
from headrace.control.messages import FromDriver
from headrace.driver.spans import find_tracer
from headrace.storage.objects import ObjectStore
from headrace.storage.remote import open_store
from headrace.storage.storage_settings import StorageSettings

_LOG = logging.getLogger(__name__)
_THREADS = 4
_DISCOVERY_THREADS = 8
_EXIT_SECONDS = 5.0
_SLEW = 10  # a difference to the time of day is made up for in ten times its length

_Work = tuple["Future[Any]", Callable[[], Any]]


class DaemonPool(Executor):
    """A pool of daemon threads: a call that never returns cannot keep the process from ending.

    `ThreadPoolExecutor` joins its threads at exit, so a user's commit that hangs would hang the interpreter.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Condition()
        self._unfinished = 0
        self._closed = False
        _pools.add(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is shut down")
            self._unfinished += 1
            self._work.put((future, lambda: fn(*args, **kwargs)))
            if len(self._threads) < min(self._most, self._unfinished):
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            with self._lock:
                self._unfinished -= 1
                self._lock.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until all calls have returned; whether they have."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._unfinished, seconds)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        for thread in threads:
            ends_soon(thread)
            self._work.put(None)
        for thread in threads if wait else ():
            thread.join()


_pools: weakref.WeakSet[DaemonPool] = weakref.WeakSet()
_ending: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def ends_soon(thread: threading.Thread) -> None:
    """A daemon thread that has done its work: the process waits for its end.

    With it ends its connection to Spark's JVM, and py4j logs that. A thread that Python stops in the middle of it, when it
    finalizes, keeps the lock of the log's handler for ever, and the connection of the main thread is closed and logged next.
    """
    _ending.add(thread)


def wait_for_calls() -> bool:
    """Let calls that are under way return before the process ends, but not for long; whether they have.

    A thread that comes back from native code while Python finalizes may abort the process: pyarrow does, which an epoch's
    `toPandas()` uses to read from Spark.
    """
    deadline = time.monotonic() + _EXIT_SECONDS
    returned = all(pool.wait_until_idle(max(0.0, deadline - time.monotonic())) for pool in list(_pools))
    for thread in list(_ending):
        if thread.is_alive():
            thread.join(max(0.0, deadline - time.monotonic()))
    return returned


atexit.register(wait_for_calls)


@dataclass(frozen=True, slots=True)
class JobPort:
    """The calls that the parts of a driver make on their job."""

    send: Callable[[TaskId, FromDriver], None]  # to a subtask
    call: Callable[[Callable[[], None]], None]  # run a function in the job's thread; may be used in any thread
    fail: Callable[[str], None]  # fail the attempt
    stand_down: Callable[[str], None]  # end this driver, because another one has taken over the job


class SteadyClock:
    """Milliseconds since the epoch that never jump and never go back, and approach the time of day when that was set.

    A corrected clock must not let every checkpoint expire, and a machine that was suspended must not stay behind.
    """

    def __init__(self, wall: Callable[[], int] = time.time_ns, ticks: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall, self._ticks = wall, ticks
        self._lock = threading.Lock()
        self._shown, self._read = wall(), ticks()

    def now(self) -> int:
        with self._lock:
            ticks = self._ticks()
            passed, self._read = ticks - self._read, ticks
            apart = self._wall() - (self._shown + passed)
            self._shown += passed + max(-passed // _SLEW, min(apart, passed // _SLEW))
            return self._shown // 1_000_000


_CLOCK = SteadyClock()


def driver_time() -> int:
    """Milliseconds since the epoch, by a clock that does not jump."""
    return _CLOCK.now()


class DriverIo:
    """The real world."""

    tracer: Any | None = None  # of OpenTelemetry, if spans are made

    def __init__(self) -> None:
        self.random = Random()
        self.pool: Executor = DaemonPool(_THREADS, "headrace-checkpoints")
        self.log: Executor = DaemonPool(1, "headrace-log")  # entries are claimed in order
        self.epochs: Executor = DaemonPool(1, "headrace-epochs")  # epochs are committed in order
        self.starts: Executor = DaemonPool(1, "headrace-start")
        # A discovery is user code and may never return: it must not take a thread from checkpoints.
        self.discoveries: Executor = DaemonPool(_DISCOVERY_THREADS, "headrace-discovery")
        self.spans: Executor = DaemonPool(1, "headrace-spans")  # an exporter may hang
        self.tracer = find_tracer()

    def close(self) -> None:
        """Let the threads end when they have done what they were given; nothing waits for them."""
        for pool in (self.pool, self.log, self.epochs, self.starts, self.discoveries, self.spans):
            pool.shutdown(wait=False)

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return driver_time()

    def pause(self, seconds: float) -> None:
        """Wait before something is tried again."""
        time.sleep(seconds)

    def open_store(self, settings: StorageSettings) -> ObjectStore:
        """The storage that holds checkpoints."""
        return open_store(write_buffer=settings.write_buffer, private=settings.private)

    def warn(self, text: str) -> None:
        """Tell the user what they should know now."""
        _LOG.warning(text)
