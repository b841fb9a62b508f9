"""Slices: the number of records a subtask processes before it turns to timers and control messages again."""

from __future__ import annotations

import resource
from typing import Final

_BYTES: Final = 2 << 20  # that a slice emits
_MOST: Final = 1 << 16  # records
_SHARED: Final = 4  # times the target, for a thread that others keep from the CPU
_THREAD: Final = getattr(resource, "RUSAGE_THREAD", None)  # only Linux counts for a single thread


def preemptions() -> int:
    """Return the number of involuntary context switches of this thread; 0 where the system does not count them."""
    return 0 if _THREAD is None else resource.getrusage(_THREAD).ru_nivcsw


class SliceLimit:
    """The number of records in a slice, so that it takes about the target time and emits a bounded number of bytes.

    A barrier waits for what a slice has emitted: with a fast source and a slow reader that could be minutes. The first
    slice has one record, as nothing is known of the function yet.

    Where processes share CPUs, slices are interrupted. That one takes longer then says nothing of its records, and with
    fewer of them the fixed cost of a slice would be spent more often just where the CPU is short. So the time on the CPU
    counts for a slice that was interrupted, unless it takes very long: the function may have waited as well.
    """

    def __init__(self, target: float) -> None:
        self._target = target  # seconds
        self.records = 1

    def observe(self, count: int, seconds: float, on_cpu: float, preempted: bool, made: int) -> None:
        """A slice of `count` records took `seconds`, of these some on the CPU, and emitted `made` bytes."""
        if preempted:
            seconds = max(on_cpu, seconds / _SHARED)
        share = max(seconds / self._target, made / _BYTES)
        if share > 1 and count > 1:
            self.records = max(1, min(self.records, count) // 2)
        elif count >= self.records and share < 1 / 3:
            self.records = min(self.records * 2, _MOST)
