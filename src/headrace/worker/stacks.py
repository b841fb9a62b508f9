"""Looks at what a thread is doing, some times in a row: the material of a flame graph.

It runs in a thread of its own; the thread that is looked at does not notice.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from types import FrameType

_DEEPEST = 200


def sample_stacks(thread: int, samples: int, interval: float) -> tuple[dict[str, int], dict[str, int]]:
    """Count the samples of each stack of a thread: while it computed, and while it waited or was blocked.

    A stack is its frames, one a line, the outermost first. On a busy machine, where a pause takes longer than asked for,
    there are fewer samples: the time is kept.
    """
    on_cpu: Counter[str] = Counter()
    off_cpu: Counter[str] = Counter()
    end = time.monotonic() + samples * interval
    for number in range(samples):
        frame = _frame_of(thread) if number == 0 or time.monotonic() < end else None
        if frame is None:  # the time is over, or the thread has ended
            break
        (off_cpu if _waits(frame) else on_cpu)["\n".join(_frames(frame))] += 1
        del frame  # it would keep the thread's local variables alive
        time.sleep(interval)
    return dict(on_cpu), dict(off_cpu)


def _frame_of(thread: int) -> FrameType | None:
    """The innermost frame of a thread, None if it has ended.

    The interpreter holds a lock while it collects the frames (python/cpython#106883): if the garbage collector ran meanwhile
    and met a `__del__`, all threads of the process would wait for each other for ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)  # noqa: SLF001 - what the interpreter offers for this
    finally:
        if enabled:
            gc.enable()


def _frames(innermost: FrameType) -> list[str]:
    found: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(found) < _DEEPEST:
        code = frame.f_code
        module = frame.f_globals.get("__name__", code.co_filename)
        found.append(f"{module}.{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return found[::-1]


def _waits(innermost: FrameType) -> bool:
    """Return True if the thread waits for input or for its readers: then Spark writes to a full socket."""
    return innermost.f_code.co_filename.endswith("threading.py") or "/pyspark/" in innermost.f_code.co_filename
