"""The input side of a subtask: channels, their queues, which of them are blocked, and in-flight data.

A frame is *read* when it is put into its channel's queue and *reached* when it is taken out. Frames of a blocked channel
wait in its backlog until it is unblocked and the backlog is processed; the order within a channel never changes.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.checkpoint.types import Barrier
from headrace.errors import IllegalState
from headrace.records.batch import Batch
from headrace.records.frames import (
    BY_VALUE,
    KNOWN_FLAGS,
    NARROW_TIMES,
    NARROWED,
    STAMPED,
    Frame,
    FrameKind,
    read_frames,
)
from headrace.records.narrowing import widen, widen_times
from headrace.records.types import TypeInformation
from headrace.state.pickling import load_values
from headrace.worker.backlog import Backlog, Budget, CapturedFrame, Waiting

ChannelId = tuple[int, int]  # edge, writer subtask
DATA = (FrameKind.ARROW, FrameKind.PICKLE)


class Ends:
    """Counts the END frames: one from every task of the level before."""

    def __init__(self, writers: int) -> None:
        self._missing = set(range(writers))

    def add(self, writer: int) -> None:
        if writer not in self._missing:
            raise IllegalState(f"task {writer} of the level before sent its end twice, or does not exist")
        self._missing.discard(writer)

    @property
    def all(self) -> bool:
        return not self._missing


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
    restored: bool = False  # holds restored in-flight data and has no writer
    blocked: bool = False

    @property
    def id(self) -> ChannelId:
        return (-1 - self.edge, self.writer) if self.restored else (self.edge, self.writer)

    def check_order(self, frame: Frame) -> None:
        """Records come before END_OF_DATA, other events before END_OF_PARTITION, nothing after it."""
        if self.ended:
            raise IllegalState(f"a frame after the end of channel {self.edge}/{self.writer}")
        if frame.kind == FrameKind.END_OF_PARTITION:
            if not self.data_ended:
                raise IllegalState(f"channel {self.edge}/{self.writer} ended without END_OF_DATA")
            self.ended = True
        elif frame.kind in (*DATA, FrameKind.END_OF_DATA):
            if self.data_ended:
                raise IllegalState(f"a frame after the end of data of channel {self.edge}/{self.writer}")
            self.data_ended = frame.kind == FrameKind.END_OF_DATA


@dataclass(slots=True)
class _Capture:
    checkpoint_id: int
    channels: set[ChannelId]
    frames: list[CapturedFrame]


class Inputs:
    """All channels of a subtask."""

    def __init__(
        self, channels: Iterable[Channel], tasks_before: int, memory: int = 1 << 30, spill_directory: str | None = None
    ) -> None:
        """`memory` limits the bytes of blocked channels that are kept in memory; more is spilled to `spill_directory`."""
        self.channels = {channel.id: channel for channel in channels}
        self.ends = Ends(tasks_before)
        self.bytes_read = 0
        self.queued_bytes = 0
        self._queue: deque[tuple[Channel, Waiting]] = deque()  # of channels without a backlog, as they came
        self._backlogs: dict[ChannelId, Backlog] = {}  # of channels that are, or were, blocked
        self._budget = Budget(memory, spill_directory)
        self._capture: _Capture | None = None
        self._batch: tuple[Channel, Waiting, Batch] | None = None  # being processed, in slices
        self._at = 0  # the number of its records that were processed
        self._paused: set[ChannelId] = set()  # channels whose writers were asked to pause

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, row: bytes | memoryview) -> Iterator[tuple[Channel, Frame]]:
        """Put the frames of a row into their queues; yields each event when it is queued."""
        for frame in read_frames(row):
            if frame.kind == FrameKind.END:
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
        backlog = self._backlogs.get(channel.id)
        if backlog is None:
            self._queue.append((channel, frame))
        else:
            backlog.append(frame)
        capture = self._capture
        if capture is not None and frame.kind in DATA and channel.id in capture.channels:
            capture.frames.append(_captured(frame, 0))

    def restore(self, frames: Iterable[CapturedFrame]) -> list[Channel]:
        """Queue restored in-flight data before everything else; returns the channels that hold it.

        The parallelism may have changed, so its writers may not exist any more; its edge must.
        """
        of_edge = {channel.edge: channel for channel in self.channels.values()}
        channels: dict[ChannelId, Channel] = {}
        for frame in frames:
            like = of_edge.get(frame.edge)
            if like is None:
                raise IllegalState(f"restored in-flight data of edge {frame.edge}, which this subtask does not read")
            own = Channel(frame.edge, frame.writer, like.input, like.type, restored=True)
            channel = channels.setdefault(own.id, own)
            self._queue.append((channel, frame))
            self.queued_bytes += len(frame.body)
        for channel in channels.values():
            self._queue.append(
                (channel, Frame(FrameKind.END_OF_PARTITION, 0, channel.edge, channel.writer, memoryview(b"")))
            )
        self.channels |= channels
        return list(channels.values())

    # --- reaching ---------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return (
            self._batch is not None
            or bool(self._queue)
            or any(not self.channels[one].blocked for one in self._backlogs)
        )

    def next(self) -> tuple[Channel, Waiting] | None:
        """The next frame of a channel that is not blocked, oldest first."""
        reached = self._from_backlogs() if self._backlogs else None
        if reached is None:
            if not self._queue:
                return None
            reached = self._queue.popleft()
        self.queued_bytes -= len(reached[1].body)
        return reached

    def _from_backlogs(self) -> tuple[Channel, Waiting] | None:
        for one, backlog in self._backlogs.items():
            channel = self.channels[one]
            if not channel.blocked:
                frame = backlog.popleft()
                if not backlog:
                    del self._backlogs[one]
                return channel, frame
        return None

    @property
    def in_batch(self) -> bool:
        """True if a batch is being processed and its channel is not blocked."""
        return self._batch is not None and not self._batch[0].blocked

    def begin(self, channel: Channel, frame: Waiting) -> None:
        """Begin to process a batch of records."""
        self._batch, self._at = (channel, frame, decode(frame, channel.type)), skipped(frame)

    def slice(self, max_records: int) -> tuple[Channel, Batch]:
        """Return the next records of the batch that is being processed, and their channel."""
        assert self._batch is not None
        channel, _, batch = self._batch
        part = batch.slice(self._at, max_records)
        self._at += len(part)
        if self._at >= len(batch):
            self._batch = None
        return channel, part

    @property
    def processed_bytes(self) -> int:
        """Bytes of input that were processed; of a batch that is processed in slices, the share of its records."""
        done = self.bytes_read - self.queued_bytes
        if self._batch is None:
            return done
        _, frame, batch = self._batch
        return done - len(frame.body) * (len(batch) - self._at) // len(batch)

    def block(self, channel: ChannelId) -> None:
        """Process nothing more of the channel."""
        blocked = self.channels[channel]
        blocked.blocked = True
        if channel in self._backlogs:
            return
        backlog = self._backlogs[channel] = Backlog(self._budget)
        others: deque[tuple[Channel, Waiting]] = deque()
        for one, frame in self._queue:
            if one is blocked:
                backlog.append(frame)
            else:
                others.append((one, frame))
        self._queue = others

    def unblock(self, channels: Iterable[ChannelId]) -> None:
        """Continue with channels, first with their backlogs."""
        for one in channels:
            self.channels[one].blocked = False
            if one in self._backlogs and not self._backlogs[one]:
                del self._backlogs[one]

    @property
    def has_backlog(self) -> bool:
        """Return True if a channel is blocked, or has frames from the time when it was."""
        return bool(self._backlogs)

    @property
    def blocked_bytes(self) -> int:
        return sum(log.bytes for one, log in self._backlogs.items() if self.channels[one].blocked)

    def take_pauses(self, limit: int) -> list[tuple[ChannelId, bool]]:
        """Return channels whose writer is to pause, as more bytes than the limit are on disk, or (False) may continue."""
        if not self._paused and not self._backlogs:
            return []
        full = {one for one, log in self._backlogs.items() if log.spilled > limit and self.channels[one].blocked}
        over = {one for one in self._paused if not self.channels[one].blocked}
        changes = [(one, True) for one in sorted(full - self._paused)] + [(one, False) for one in sorted(over)]
        self._paused = (self._paused | full) - over
        return changes

    @property
    def bytes_on_disk(self) -> int:
        """Of all channels; may be called by any thread."""
        return sum(log.spilled for log in list(self._backlogs.values()))

    def close(self) -> None:
        """Close the files of backlogs."""
        for backlog in self._backlogs.values():
            backlog.close()

    # --- in-flight data ---------------------------------------------------------------------------------------------

    def start_capture(self, checkpoint_id: int, channels: Iterable[ChannelId]) -> None:
        """Capture in-flight data: the rest of the current batch, the queues up to the barrier, what is read next."""
        wanted = set(channels)
        frames: list[CapturedFrame] = []
        if self._batch is not None and self._batch[0].id in wanted:
            frames.append(_captured(self._batch[1], self._at))
        passed: set[ChannelId] = set()
        for channel, frame in self._waiting(wanted):
            if channel in passed:
                continue
            if frame.kind in DATA:
                frames.append(_captured(frame, skipped(frame)))
            elif frame.kind == FrameKind.BARRIER and Barrier.decode(frame.body).id >= checkpoint_id:
                passed.add(channel)
        self._capture = _Capture(checkpoint_id, wanted - passed, frames)

    def _waiting(self, wanted: set[ChannelId]) -> Iterator[tuple[ChannelId, Waiting]]:
        for one, backlog in self._backlogs.items():
            if one in wanted:
                yield from ((one, frame) for frame in backlog)
        yield from ((channel.id, frame) for channel, frame in self._queue if channel.id in wanted)

    def stop_capture(self, checkpoint_id: int, channels: Iterable[ChannelId]) -> None:
        """Capture nothing more of these channels."""
        if self._capture is not None and self._capture.checkpoint_id == checkpoint_id:
            self._capture.channels.difference_update(channels)

    def end_capture(self, checkpoint_id: int) -> list[CapturedFrame]:
        """All that was captured for the checkpoint."""
        capture = self._capture
        if capture is None or capture.checkpoint_id != checkpoint_id:
            return []
        self._capture = None
        return capture.frames


def skipped(frame: Waiting) -> int:
    """The number of records at the front of a frame that were processed before the checkpoint."""
    return frame.skip if isinstance(frame, CapturedFrame) else 0


def _captured(frame: Waiting, skip: int) -> CapturedFrame:
    return CapturedFrame(frame.edge, frame.writer, frame.kind, frame.flags, skip, bytes(frame.body))


def decode(frame: Waiting, type: TypeInformation) -> Batch:
    """The records of a data frame; ValueError if it is damaged."""
    if frame.flags & ~KNOWN_FLAGS[frame.kind]:
        raise ValueError(
            f"a batch of records has unknown flags ({frame.flags:#x}): it is damaged, or of a newer version"
        )
    body, stamps = memoryview(frame.body), None
    if frame.flags & NARROW_TIMES:
        stamps, body = widen_times(body)
    elif frame.flags & STAMPED:
        count = int.from_bytes(body[:8], "little")
        stamps = np.frombuffer(body[8 : 8 + 8 * count], np.int64)
        body = body[8 + 8 * count :]
    if frame.kind == FrameKind.ARROW:
        buffer = pa.py_buffer(body)
        narrowed = frame.flags & NARROWED
        arrow = widen(buffer, type.schema) if narrowed else pa.ipc.read_record_batch(buffer, type.schema)
        batch = Batch.of_arrow(arrow, type)
    else:
        # A class by value is the one of the same name that the program defines.
        by_value = frame.flags & BY_VALUE
        batch = Batch.of_rows(load_values(bytes(body), "a record") if by_value else pickle.loads(body), type)
    batch.timestamps = stamps
    return batch
