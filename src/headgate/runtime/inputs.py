"""The input side of a subtask: channels, their queues, which of them are blocked, and in-flight data.

A frame is *read* when it is put into its channel's queue and *reached* when it is taken out. Frames of a blocked channel
are set aside until it is unblocked; the order within a channel is never changed.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from headgate.batch import Batch
from headgate.errors import IllegalState
from headgate.protocol.checkpoint_types import Barrier
from headgate.protocol.frames import STAMPED, Frame, Kind, read_frames
from headgate.types import TypeInformation

__all__ = ["CapturedFrame", "Channel", "ChannelId", "Ends", "Inputs", "decode"]

ChannelId = tuple[int, int]  # edge, writer subtask
DATA = (Kind.ARROW, Kind.PICKLE)


class Ends:
    """Counts the physical ends: one from every task of the level before."""

    def __init__(self, writers: int) -> None:
        self._missing = set(range(writers))

    def add(self, writer: int) -> None:
        """A task's end has come."""
        if writer not in self._missing:
            raise IllegalState(f"task {writer} of the level before sent its end twice, or does not exist")
        self._missing.discard(writer)

    @property
    def all(self) -> bool:
        """Whether every task has sent its end."""
        return not self._missing


class CapturedFrame(msgspec.Struct, frozen=True):
    """In-flight data of a channel: a batch, of which the first `skip` records were processed already."""

    edge: int
    writer: int
    kind: int
    flags: int
    skip: int
    body: bytes


@dataclass(slots=True)
class Channel:
    """Records and events of one writer on one edge."""

    edge: int
    writer: int
    input: int
    type: TypeInformation
    forced_aligned: bool = False  # its rows cannot be stored as in-flight data (SPEC R6.4)
    data_ended: bool = False  # END_OF_DATA was read
    ended: bool = False  # END_OF_PARTITION was read
    restored: bool = False  # holds restored in-flight data; nobody writes to it
    blocked: bool = False
    aside: deque[Frame | CapturedFrame] = field(default_factory=deque)  # reached while the channel was blocked

    @property
    def id(self) -> ChannelId:
        """How the barrier gate names it."""
        return (-1 - self.edge, self.writer) if self.restored else (self.edge, self.writer)

    def check_order(self, frame: Frame) -> None:
        """Records before END_OF_DATA, other events before END_OF_PARTITION, nothing behind it."""
        if self.ended:
            raise IllegalState(f"a frame behind the end of channel {self.edge}/{self.writer}")
        if frame.kind == Kind.END_OF_PARTITION:
            if not self.data_ended:
                raise IllegalState(f"channel {self.edge}/{self.writer} ended without END_OF_DATA")
            self.ended = True
        elif frame.kind in (*DATA, Kind.END_OF_DATA):
            if self.data_ended:
                raise IllegalState(f"a frame behind the end of data of channel {self.edge}/{self.writer}")
            self.data_ended = frame.kind == Kind.END_OF_DATA


@dataclass(slots=True)
class _Capture:
    checkpoint_id: int
    channels: set[ChannelId]
    frames: list[CapturedFrame]


class Inputs:
    """All channels of a subtask."""

    def __init__(self, channels: Iterable[Channel], tasks_before: int) -> None:
        self.channels = {channel.id: channel for channel in channels}
        self.ends = Ends(tasks_before)
        self.bytes_read = 0
        self.queued_bytes = 0
        self._queue: deque[tuple[Channel, Frame | CapturedFrame]] = deque()
        self._capture: _Capture | None = None

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, row: bytes | memoryview) -> Iterator[tuple[Channel, Frame]]:
        """Put the frames of a row into their queues; gives each event, once it is in its queue."""
        for frame in read_frames(row):
            if frame.kind == Kind.END:
                self.ends.add(frame.writer)
                continue
            channel = self.channels.get((frame.edge, frame.writer))
            if channel is None:
                raise IllegalState(f"a frame for channel {frame.edge}/{frame.writer}, which this subtask does not have")
            channel.check_order(frame)
            self._put(channel, frame)
            if frame.kind not in DATA:
                yield channel, frame

    def _put(self, channel: Channel, frame: Frame) -> None:
        size = len(frame.body)
        self.bytes_read += size
        self.queued_bytes += size
        self._queue.append((channel, frame))
        capture = self._capture
        if capture is not None and frame.kind in DATA and channel.id in capture.channels:
            capture.frames.append(_captured(frame, 0))

    def restore(self, frames: Iterable[CapturedFrame]) -> list[Channel]:
        """Put restored in-flight data in front of everything; the channels that hold it."""
        channels: dict[ChannelId, Channel] = {}
        for frame in frames:
            writer = self.channels.get((frame.edge, frame.writer))
            if writer is None:
                raise IllegalState(
                    f"restored in-flight data of channel {frame.edge}/{frame.writer}, which does not exist"
                )
            own = Channel(writer.edge, writer.writer, writer.input, writer.type, restored=True)
            channel = channels.setdefault(own.id, own)
            self._queue.append((channel, frame))
            self.queued_bytes += len(frame.body)
        for channel in channels.values():
            self._queue.append(
                (channel, Frame(Kind.END_OF_PARTITION, 0, channel.edge, channel.writer, memoryview(b"")))
            )
        self.channels |= channels
        return list(channels.values())

    # --- reaching ---------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return any(not channel.blocked for channel, _ in self._queue)

    def next(self) -> tuple[Channel, Frame | CapturedFrame] | None:
        """The next frame of a channel that is not blocked."""
        while self._queue:
            channel, frame = self._queue.popleft()
            if channel.blocked:
                channel.aside.append(frame)
                continue
            self.queued_bytes -= len(frame.body)
            return channel, frame
        return None

    def block(self, channel: ChannelId) -> None:
        """Reach nothing more of the channel."""
        self.channels[channel].blocked = True

    def unblock(self, channels: Iterable[ChannelId]) -> None:
        """Go on with channels, first with what was set aside."""
        for one in channels:
            channel = self.channels[one]
            channel.blocked = False
            self._queue.extendleft((channel, frame) for frame in reversed(channel.aside))
            channel.aside.clear()

    @property
    def blocked_bytes(self) -> int:
        """What waits in blocked channels."""
        return sum(len(frame.body) for channel in self.channels.values() for frame in channel.aside)

    # --- in-flight data ---------------------------------------------------------------------------------------------

    def start_capture(
        self,
        checkpoint_id: int,
        channels: Iterable[ChannelId],
        current: tuple[Channel, Frame | CapturedFrame, int] | None,
    ) -> None:
        """Store what is in flight: the rest of the batch at hand, the queues up to the barrier, what is read next."""
        wanted = set(channels)
        frames: list[CapturedFrame] = []
        if current is not None and current[0].id in wanted:
            frames.append(_captured(current[1], current[2]))
        passed: set[ChannelId] = set()
        for channel, frame in self._queue:
            if channel.id not in wanted or channel.id in passed:
                continue
            if frame.kind in DATA:
                frames.append(_captured(frame, skipped(frame)))
            elif frame.kind == Kind.BARRIER and Barrier.decode(frame.body).id >= checkpoint_id:
                passed.add(channel.id)
        self._capture = _Capture(checkpoint_id, wanted - passed, frames)

    def stop_capture(self, checkpoint_id: int, channels: Iterable[ChannelId]) -> None:
        """Store nothing more of these channels."""
        if self._capture is not None and self._capture.checkpoint_id == checkpoint_id:
            self._capture.channels.difference_update(channels)

    def end_capture(self, checkpoint_id: int) -> list[CapturedFrame]:
        """All that was stored for the checkpoint."""
        capture = self._capture
        if capture is None or capture.checkpoint_id != checkpoint_id:
            return []
        self._capture = None
        return capture.frames


def skipped(frame: Frame | CapturedFrame) -> int:
    """How many records at the front of a frame were processed before the failure."""
    return frame.skip if isinstance(frame, CapturedFrame) else 0


def _captured(frame: Frame | CapturedFrame, skip: int) -> CapturedFrame:
    return CapturedFrame(frame.edge, frame.writer, frame.kind, frame.flags, skip, bytes(frame.body))


def decode(frame: Frame | CapturedFrame, type: TypeInformation) -> Batch:
    """The records of a data frame."""
    body, stamps = memoryview(frame.body), None
    if frame.flags & STAMPED:
        count = int.from_bytes(body[:8], "little")
        stamps = np.frombuffer(body[8 : 8 + 8 * count], np.int64)
        body = body[8 + 8 * count :]
    if frame.kind == Kind.ARROW:
        batch = Batch.of_arrow(pa.ipc.read_record_batch(pa.py_buffer(body), type.schema), type)
    else:
        batch = Batch.of_rows(pickle.loads(body), type)
    batch.timestamps = stamps
    return batch
