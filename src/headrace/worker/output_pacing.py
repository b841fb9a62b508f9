"""Decisions of a subtask about time, without a clock: flushing its output, and polling its source.

A row costs a millisecond of CPU on its way, with one record or with a thousand: records of a slow stream are gathered for
a pause, well below the buffer timeout.
"""

from __future__ import annotations

MAX_PAUSE = 45  # ms


class OutputPacing:
    """The times at which a subtask flushes its output and polls its source; every time is given, in milliseconds."""

    __slots__ = (
        "_buffer_timeout",
        "_flushed_at",
        "_gathered",
        "_pause",
        "_read_at",
        "flush_at",
        "joins_polls",
        "poll_at",
    )

    def __init__(self, buffer_timeout: int, gathers: bool) -> None:
        """`buffer_timeout` is 0 to flush after every step, negative to flush full buffers only.

        Without `gathers`, where time is virtual, nothing waits for a pause to end.
        """
        self._buffer_timeout = buffer_timeout
        self._pause = _pause(buffer_timeout) if gathers else 0
        self.joins_polls = self._pause > 0  # a source may be polled several times in a step, to gather records
        self._flushed_at = 0
        self._gathered = False  # the source was read, which happens once in a pause: its records need not wait again
        self._read_at: int | None = None  # the first poll that gave records since the source last had none
        self.flush_at: int | None = None  # the deadline of the records that wait in buffers
        self.poll_at: int | None = None  # the source gathers records until then

    # --- output -----------------------------------------------------------------------------------------------------

    def flushes_after_step(self, now: int) -> bool:
        """Return True if the output is flushed after a step; otherwise it has a deadline from now on."""
        if self._buffer_timeout <= 0:
            return self._buffer_timeout == 0
        if self.flush_at is None:
            self.flush_at = now + self._buffer_timeout
            return False
        return not now < self.flush_at <= now + self._buffer_timeout  # later, or the clock was set back

    def flushes_when_idle(self, now: int) -> bool:
        """Return True if records that wait leave now, while there is nothing to do.

        They leave at once if none has left for a pause, or if their source has gathered them already; otherwise when the
        pause is over. If the clock was set back, they do not wait for it.
        """
        if self._buffer_timeout < 0:
            return False
        due = self._flushed_at + self._pause
        if self._gathered or not self._flushed_at <= now < due:
            return True
        self.flush_at = due if self.flush_at is None else min(due, self.flush_at)
        return False

    def is_flush_due(self, now: int) -> bool:
        """Return True if the deadline of the output has passed."""
        return self.flush_at is not None and now >= self.flush_at

    def flushed(self, now: int) -> None:
        """Note that all records have left."""
        self.flush_at, self._flushed_at, self._gathered = None, now, False

    def barrier_sent(self) -> None:
        """Note that all records have left in front of a barrier, which is not counted as a flush."""
        self.flush_at = None

    # --- input ------------------------------------------------------------------------------------------------------

    def may_poll(self, now: int) -> bool:
        """Return True if the source need not wait; a clock that was set back does not make it wait."""
        return self.poll_at is None or not 0 < self.poll_at - now <= self._pause

    def next_poll(self, ready_at: int | None) -> int | None:
        """Return the time of the next poll of a source that has records at `ready_at`; None: unknown."""
        return ready_at if self.poll_at is None else max(self.poll_at, ready_at or 0)

    def polled(self, now: int, records: int, drained: bool) -> None:
        """Note a poll that began at `now`; a source that is `drained` has no more records for now.

        The next poll is at the same times in all subtasks: the second row that a reader gets at once finds its code in
        the CPU's caches.
        """
        self.poll_at = None
        if records:
            self._gathered = True
            if self._read_at is None:
                self._read_at = now
        if drained and self._read_at is not None and self._pause:
            self.poll_at, self._read_at = (self._read_at // self._pause + 1) * self._pause, None


def _pause(buffer_timeout: int) -> int:
    """Return the time for which records are gathered: well below the buffer timeout, so that latency is too."""
    return MAX_PAUSE if buffer_timeout < 0 else min(MAX_PAUSE, buffer_timeout * 9 // 20)
