"""endless.py DIRECTORY [fast]: a job that runs until it is stopped: event time, state under four keys, files in DIRECTORY.

With `fast` it processes as many records as it can, writes none, and tells in DIRECTORY/progress how many it has read: a time
and a number in each line.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from headrace import MapFunction, RuntimeContext, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.files import FileSink


def slowly(number: int) -> tuple[int, int]:
    """A key and the time, a thousand times a second."""
    time.sleep(0.001)
    return number % 4, time.time_ns() // 1_000_000


class Quickly(MapFunction):
    """The same without a pause."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/progress"
        self._count = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self._file = Path(f"{self._path}-{os.getpid()}").open("a", buffering=1)  # noqa: SIM115 - until the job ends

    def map(self, value: int) -> tuple[int, int]:
        self._count += 1
        if not self._count & 0x3FFF:
            self._file.write(f"{time.monotonic()} {self._count}\n")
        return value % 4, value


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(2_000)
    env.get_configuration().set("execution.checkpointing.dir", f"file://{sys.argv[1]}/checkpoints")
    env.get_configuration().set("execution.checkpointing.savepoint-dir", f"file://{sys.argv[1]}/savepoints")
    fast = sys.argv[2:] == ["fast"]
    numbers = env.from_sequence(0, 1 << 40)
    now = numbers.map(Quickly(sys.argv[1]) if fast else slowly, output_type="key bigint, at bigint").uid("now")
    stamped = now.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    )
    newest = stamped.key_by("key").reduce(lambda _, new: new).name("newest").uid("newest")
    if fast:
        newest.filter(lambda row: False).print()
    else:
        newest.sink_to(FileSink(f"{sys.argv[1]}/out", "json"))
    env.execute("endless")
