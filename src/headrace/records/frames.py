"""The format of rows between subtasks: one Spark row is a network buffer that holds frames for one target.

A frame is a batch of records or one event of a channel; a channel is (edge, writer subtask). Layout of a frame:

    kind u8 | flags u8 | edge u16 | writer u32 | length u64 | body, padded to 8 bytes

Bodies start at multiples of 8, so that Arrow columns are read without a copy. Rows between workers are inside the trust
boundary (they come over Spark's own shuffle), therefore untyped records may be pickles.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from enum import IntEnum
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle

HEADER = struct.Struct("<BBHIQ")
_PAD = b"\0" * 8


class FrameKind(IntEnum):
    """The kinds of frames."""

    ARROW = 1  # a batch of typed records
    PICKLE = 2  # a batch of untyped records
    WATERMARK = 3  # a timestamp; without one, whether the channel is idle
    BARRIER = 4
    CANCEL_MARKER = 5
    END_OF_DATA = 6  # no record follows on the channel (FLIP-147)
    END_OF_PARTITION = 7  # nothing follows on the channel
    END = 8  # nothing follows from this task; sent to every task of the next level


STAMPED = 1
"""Flag: event timestamps (int64 each) precede the batch."""

DRAIN = 2
"""Flag of END_OF_DATA: the job ends for good, so operators finish and timers fire."""


IDLE = 4
"""Flag of WATERMARK: no record comes on the channel for now, and its clock is not to be waited for."""


BY_VALUE = 8
"""Flag of PICKLE: classes of the program's own script are in the pickle, since no worker can import them."""


NARROWED = 16
"""Flag of ARROW: integer columns have fewer bytes than their type (`narrowing.py`)."""


NARROW_TIMES = 32
"""Flag of STAMPED batches: the timestamps have fewer bytes than eight (`narrowing.py`)."""


KNOWN_FLAGS: dict[int, int] = {
    FrameKind.ARROW: STAMPED | NARROWED | NARROW_TIMES,
    FrameKind.PICKLE: STAMPED | BY_VALUE | NARROW_TIMES,
}
"""Flags that a batch may have. Others would change how it is read, so it cannot be."""


class Frame(NamedTuple):
    """One frame of a row."""

    kind: int
    flags: int
    edge: int
    writer: int
    body: memoryview


def pack(kind: int, edge: int, writer: int, *body: bytes | memoryview, flags: int = 0) -> list[bytes | memoryview]:
    """Return the byte strings of a frame; a row is the concatenation of its frames.

    >>> row = b"".join(pack(FrameKind.WATERMARK, 3, 1, b"12345678"))
    >>> [(f.kind, f.edge, f.writer, bytes(f.body)) for f in read_frames(row)]
    [(3, 3, 1, b'12345678')]
    """
    length = sum(map(len, body))
    pieces = [HEADER.pack(kind, flags, edge, writer, length), *body]
    if length % 8:
        pieces.append(_PAD[length % 8 :])
    return pieces


def read_frames(row: bytes | memoryview) -> Iterator[Frame]:
    """Yield the frames of a row; ValueError if it is cut short."""
    view = memoryview(row)
    at, end = 0, len(view)
    while at < end:
        if at + HEADER.size > end:
            raise ValueError(f"row cut short: {end - at} bytes of a header at {at} in a row of {end}")
        kind, flags, edge, writer, length = HEADER.unpack_from(view, at)
        at += HEADER.size
        padded = length + (-length) % 8
        if at + padded > end:
            raise ValueError(f"row cut short: a frame of {length} bytes at {at} in a row of {end}")
        yield Frame(kind, flags, edge, writer, view[at : at + length])
        at += padded


def pickle_rows(rows: list[Any]) -> tuple[bytes, int]:
    """The body and the flags of a frame of untyped records; what pickle raises, if there is one that cannot travel."""
    try:
        return pickle.dumps(rows, 5), 0
    except (pickle.PicklingError, AttributeError):  # perhaps a class of the program's own script
        if any(isinstance(row, FunctionType) for row in rows):
            raise
        return bytes(cloudpickle.dumps(rows, 5)), BY_VALUE
