"""The records and lines that a job sends to its driver: printed, or collected by the program."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from headrace import config
from headrace.config import Configuration
from headrace.graph.job_graph import KeySpec
from headrace.job_client import Job
from headrace.records.batch import Batch
from headrace.records.types import TypeInformation
from headrace.worker.keys import KeyReader
from headrace.worker.operators.sinks import decode_collected

OnOutput = Callable[[str, bytes, Callable[[], None]], None]


class Printer:
    """Printed lines on the driver's stdout, up to a number per second; the others are counted and dropped."""

    def __init__(self, configuration: Configuration) -> None:
        self._limit = configuration.get(config.PRINT_MAX_LINES)
        self._second = 0.0
        self._printed = 0
        self._dropped = 0

    def take(self, channel: str, payload: bytes, confirm: Callable[[], None]) -> None:
        lines = payload.decode("utf-8", "replace").split("\n")
        now = time.monotonic()
        if now - self._second >= 1:
            self.report_dropped()
            self._second, self._printed = now, 0
        shown = lines[: max(0, self._limit - self._printed)]
        self._printed += len(shown)
        self._dropped += len(lines) - len(shown)
        if shown:
            sys.stdout.write("\n".join(shown) + "\n")
            sys.stdout.flush()
        confirm()

    def report_dropped(self) -> None:
        """Print how many lines were not shown: after each second, and when the job has ended."""
        if self._dropped:
            sys.stdout.write(
                f"... {self._dropped} lines not shown (headrace.print.max-lines-per-second = {self._limit})\n"
            )
            self._dropped = 0


class Results(Iterator[Any], AbstractContextManager[Any]):
    """Records of one stream on the driver, until the job ends; a batch is confirmed when it is taken from the queue."""

    job: Job

    def __init__(self, type: TypeInformation, channel: str, otherwise: OnOutput) -> None:
        self._type, self._channel, self._otherwise = type, channel, otherwise
        self._batches: queue.SimpleQueue[tuple[bytes, Callable[[], None]]] = queue.SimpleQueue()
        self._rows = self._read()
        self._closed = False

    def take(self, channel: str, payload: bytes, confirm: Callable[[], None]) -> None:
        if channel == self._channel:
            self._batches.put((payload, confirm))
        else:
            self._otherwise(channel, payload, confirm)

    def __next__(self) -> Any:
        try:
            return next(self._rows)
        except KeyboardInterrupt:  # not caught in the loop: CPython does not cover its backward jumps
            self.close()
            raise

    next = __next__  # PyFlink's name

    def _read(self) -> Iterator[Any]:
        while True:
            ended = self.job.status.is_terminal
            try:
                payload, confirm = self._batches.get(timeout=0 if ended else 0.1)
            except queue.Empty:
                if ended:
                    break
                continue
            confirm()
            yield from decode_collected(payload, self._type)
        if not self._closed:
            self.job.raise_if_failed()

    def close(self) -> None:
        """Cancel the job if it still runs."""
        self._closed = True
        if not self.job.status.is_terminal:
            self.job.cancel()
            self.job.wait(30)

    def __exit__(self, *exc: object) -> None:
        self.close()


class WithKey:
    """Makes what is collected of a record of a keyed stream."""

    def __init__(self, key: KeySpec, type: TypeInformation, form: Callable[[Any, Any], Any] | None) -> None:
        self._key, self._type, self._form = key, type, form
        self._reader: KeyReader | None = None

    def __call__(self, record: Any) -> Any:
        self._reader = self._reader or KeyReader(self._key, 1)
        key = self._reader.keys(Batch.of_rows([record], self._type))[0]
        return record if self._form is None else self._form(key, record)
