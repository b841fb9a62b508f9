"""What the driver's checkpoints touch of the world: clock, chance, threads, storage. The simulator brings its own."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from random import Random

from headgate.storage.objects import ObjectStore
from headgate.storage.remote import open_store

__all__ = ["DriverIo"]

_LOG = logging.getLogger(__name__)
_THREADS = 4
_EPOCH_MS = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000


class DriverIo:
    """The real world."""

    def __init__(self) -> None:
        self.random = Random()
        self.pool: Executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="headgate-checkpoints")
        self.log: Executor = ThreadPoolExecutor(1, thread_name_prefix="headgate-log")  # entries are claimed in order
        self.epochs: Executor = ThreadPoolExecutor(1, thread_name_prefix="headgate-epochs")  # and committed in order

    def now(self) -> int:
        """Milliseconds since the epoch that never jump: a corrected clock must not let every checkpoint expire."""
        return _EPOCH_MS + time.monotonic_ns() // 1_000_000

    def pause(self, seconds: float) -> None:
        """Wait before something is tried again."""
        time.sleep(seconds)

    def open_store(self, write_buffer: int) -> ObjectStore:
        """The storage that holds checkpoints."""
        return open_store(write_buffer=write_buffer)

    def warn(self, text: str) -> None:
        """Tell the user what they should know now."""
        _LOG.warning(text)
