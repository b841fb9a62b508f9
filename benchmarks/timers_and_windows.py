"""Many timers and open windows at once, in one subtask, without Spark.

    python benchmarks/timers_and_windows.py [COUNT]

For both backends: the memory that COUNT (1,000,000) timers or windows take, how long a checkpoint and a restore of them
take, and how many fire in a second. Times are of the processor, so that other work on the machine does not count. Prints one
JSON line for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import psutil

from headrace import Configuration, KeyedProcessFunction, TumblingEventTimeWindows
from headrace.testing import OneInputHarness

BATCH = 10_000
RECORD = "key bigint, value bigint"


class OneTimer(KeyedProcessFunction):
    """Each key has a timer."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(1_000_000 + value.key)

    def on_timer(self, timestamp, ctx):
        yield timestamp, 1


CASES = {
    "timers": lambda stream: stream.key_by("key").process(OneTimer(), output_type=RECORD),
    "windows, built-in sum": lambda stream: (
        stream.key_by("key").window(TumblingEventTimeWindows.of(1_000_000)).sum("value")
    ),
    "windows, reduce": lambda stream: (
        stream.key_by("key")
        .window(TumblingEventTimeWindows.of(1_000_000))
        .reduce(lambda a, b: (a.key, a.value + b.value), output_type=RECORD)
    ),
}


def measure(case: str, backend: str, count: int) -> dict[str, Any]:
    """Fill, take a checkpoint, restore it elsewhere, fire everything there."""
    options: dict[str, Any] = {
        "input_type": RECORD,
        "configuration": Configuration({"state.backend.type": backend}),
    }
    process = psutil.Process()
    with OneInputHarness.of(CASES[case], **options) as harness:
        harness.process_elements([(0, 0)], [0])
        before = process.memory_info().rss
        started = time.process_time()
        for first in range(1, count, BATCH):
            keys = range(first, min(first + BATCH, count))
            harness.process_elements([(key, key) for key in keys], [0] * len(keys))
        filled = time.process_time() - started
        memory = process.memory_info().rss - before
        started = time.process_time()
        snapshot = harness.snapshot()
        checkpoint = time.process_time() - started
    started = time.process_time()
    with OneInputHarness.of(CASES[case], restore=snapshot, **options) as harness:
        restore = time.process_time() - started
        started = time.process_time()
        harness.process_watermark(10_000_000)
        fired = time.process_time() - started
        assert len(harness.take()) == count
    return {
        "case": case,
        "backend": backend,
        "count": count,
        "filled_per_second": round(count / filled),
        "bytes_each": round(memory / count),
        "checkpoint_s": round(checkpoint, 2),
        "checkpoint_bytes": len(snapshot),
        "restore_s": round(restore, 2),
        "fired_per_second": round(count / fired),
    }


def main() -> None:
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
        return
    count = sys.argv[1] if len(sys.argv) > 1 else "1000000"
    for case in CASES:
        for backend in ("hashmap", "rocksdb"):  # each in a process of its own, for its memory
            subprocess.run([sys.executable, __file__, case, backend, count], check=True)


if __name__ == "__main__":
    main()
