"""The frames of a blocked channel: in memory up to a budget, the rest in a file of the worker.

Spark merges all writers into one stream, so a channel cannot be paused: while alignment waits for the barrier of another
channel, rows of blocked ones keep coming. The order within a channel never changes.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import msgspec

from headrace.errors import StorageError
from headrace.records.frames import Frame

_HEAD = Struct("<BBIIII")  # kind, flags, edge, writer, records to skip, size


class CapturedFrame(msgspec.Struct, frozen=True):
    """In-flight data of a channel: a batch, of which the first `skip` records were processed already."""

    edge: int
    writer: int
    kind: int
    flags: int
    skip: int
    body: bytes


Waiting = Frame | CapturedFrame


class Budget:
    """Memory that the backlogs of a subtask share."""

    def __init__(self, limit: int, directory: str | None) -> None:
        self.left = limit
        self.directory = directory


class Backlog:
    """The frames of one channel, first in first out. Once something is in the file, all that follows goes there."""

    def __init__(self, budget: Budget) -> None:
        self.bytes = 0  # of all frames
        self.spilled = 0  # of those in the file
        self._budget = budget
        self._memory: deque[Waiting] = deque()
        self._file: BinaryIO | None = None
        self._read_at = self._write_at = 0

    def __bool__(self) -> bool:
        return bool(self._memory) or self._read_at < self._write_at

    def append(self, frame: Waiting) -> None:
        size = len(frame.body)
        self.bytes += size
        if self._read_at < self._write_at or size > self._budget.left:
            self._spill(frame)
            return
        self._budget.left -= size
        self._memory.append(frame)

    def popleft(self) -> Waiting:
        if self._memory:
            frame = self._memory.popleft()
            self._budget.left += len(frame.body)
        else:
            frame, self._read_at = self._load(self._read_at)
            self.spilled -= len(frame.body)
            if self._read_at == self._write_at:
                self.close()
        self.bytes -= len(frame.body)
        return frame

    def __iter__(self) -> Iterator[Waiting]:
        """All frames in order, without removing them."""
        yield from self._memory
        at = self._read_at
        while at < self._write_at:
            frame, at = self._load(at)
            yield frame

    def _spill(self, frame: Waiting) -> None:
        skip = frame.skip if isinstance(frame, CapturedFrame) else 0
        head = _HEAD.pack(frame.kind, frame.flags, frame.edge, frame.writer, skip, len(frame.body))
        try:
            if self._file is None:
                self._file = _anonymous_file(self._budget.directory)
            row = head + bytes(frame.body)
            written = os.pwrite(self._file.fileno(), row, self._write_at)
            if written < len(row):  # the disk is nearly full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            where = self._budget.directory or tempfile.gettempdir()
            raise StorageError(
                "HR-2203",
                f"cannot spill rows of a blocked channel to '{where}': {error}; free some space there, set io.tmp.dirs to "
                "another directory, or lower headrace.alignment.spill.max so that the checkpoint is declined instead",
            ) from error
        self._write_at += len(row)
        self.spilled += len(frame.body)

    def _load(self, at: int) -> tuple[CapturedFrame, int]:
        assert self._file is not None
        number = self._file.fileno()
        kind, flags, edge, writer, skip, size = _HEAD.unpack(os.pread(number, _HEAD.size, at))
        body = os.pread(number, size, at + _HEAD.size)
        return CapturedFrame(edge, writer, kind, flags, skip, body), at + _HEAD.size + size

    def close(self) -> None:
        """Drop the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._read_at = self._write_at = 0


def _anonymous_file(directory: str | None) -> BinaryIO:
    """A file without a name: the operating system removes it when the process ends."""
    if directory is not None:
        Path(directory).mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=directory, prefix="headrace-spill-")
