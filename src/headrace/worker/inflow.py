"""Reading ahead: the queue between the reading thread and the main loop, and its limit."""

from __future__ import annotations

import threading
from collections import deque

import pyarrow as pa

_LEAST = 256 << 10  # bytes, some rows; also at the start, when no speed is known
_LOOK = 0.05  # seconds of work from look to look


class ReadAhead:
    """The limit of queued input in bytes: as many as are processed in `seconds`, at most `most`.

    A barrier waits behind them, so a limit in bytes alone would be long where records are small or the function is slow.
    Half of them are in the queue between the threads, half in those of the subtask's channels.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._processed, self._worked = 0, 0.0  # at the last look
        self._speed: float | None = None  # bytes a second
        self.half = max(1, min(most, _LEAST) // 2)

    def observe(self, processed: int, worked: float) -> None:
        """Bytes that were processed, and seconds in which there was something to process, both since the start."""
        seconds = worked - self._worked
        if seconds < _LOOK:
            return
        speed = max(0, processed - self._processed) / seconds
        self._processed, self._worked = processed, worked
        self._speed = speed if self._speed is None else (self._speed + speed) / 2
        limit = min(self._most, max(_LEAST, int(self._speed * self._seconds)))
        self.half = max(1, limit // 2)


class Inflow:
    """The queue between the reading thread and the main loop; `limit` is in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rows: deque[pa.Buffer] = deque()
        self.queued_bytes = 0
        self._condition = threading.Condition()
        self._full = False  # whether the reading thread waits
        self._woken = False
        self.exhausted = False
        self.error: Exception | None = None

    def put(self, row: pa.Buffer) -> None:
        """Called by the reading thread; if the queue is full, waits until it is half empty.

        So it does not wake up for each row that is taken, to read one row.
        """
        with self._condition:
            self._full = self.queued_bytes >= self.limit
            while self._full:
                self._condition.wait()
            self._rows.append(row)
            self.queued_bytes += row.size
            self._condition.notify_all()

    def end(self, error: Exception | None) -> None:
        """The iterator has ended or failed."""
        self.error = error  # before the other: the main loop reads both
        self.exhausted = True
        self.wake()

    def wake(self) -> None:
        """End the wait without a row."""
        with self._condition:
            self._woken = True
            self._condition.notify_all()

    def take(self, max_bytes: int) -> list[pa.Buffer]:
        """The queued rows, up to about `max_bytes`."""
        if not self._rows:
            return []
        with self._condition:
            taken: list[pa.Buffer] = []
            size = 0
            while self._rows and size < max_bytes:
                row = self._rows.popleft()
                size += row.size
                taken.append(row)
            self.queued_bytes -= size
            if self._full and self.queued_bytes <= self.limit // 2:
                self._full = False
                self._condition.notify_all()
        return taken

    def wait(self, seconds: float, for_rows: bool = True) -> None:
        """Wait for a row (if `for_rows`) or a wake-up, at most `seconds`.

        The end of the iterator wakes once only: a source, which has no other input, still waits.
        """
        with self._condition:
            if not (for_rows and self._rows) and not self._woken:
                self._condition.wait(seconds)
            self._woken = False

    @property
    def empty(self) -> bool:
        return not self._rows
