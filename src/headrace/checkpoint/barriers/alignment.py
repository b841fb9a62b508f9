"""Barriers for exactly-once: aligned, unaligned, and aligned until a timeout (SPEC R6.2, R6.5, R6.6).

One rule covers all kinds. A checkpoint *waits* for the barrier of every channel that was open when it started. A channel
whose barrier is reached is blocked. The snapshot is taken

- when no channel is waited for any more: the channels are empty at the cut, only state is stored; or
- when the checkpoint is unaligned (from the start, by announcement, by a writer that became unaligned, or by the
  timeout) and no *forced-aligned* channel is waited for any more: then the rows before the barriers that are still
  missing are in-flight data; they are captured, and the checkpoint is complete when the last of these barriers is read.

Either way the state plus what is captured is exactly the records before each channel's barrier (SPEC R6.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.checkpoint.barriers import instructions as do
from headrace.checkpoint.barriers.gate import InputGate
from headrace.checkpoint.barriers.instructions import ChannelId, Instruction
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.types import Barrier
from headrace.errors import IllegalState, InvalidArgument

_SUBSUMED = FailureReason.CHECKPOINT_DECLINED_SUBSUMED
_CANCELLED = FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
_ENDED = FailureReason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM
_LIMIT = FailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT


@dataclass(slots=True)
class _QueuedEvents:
    """The events in the queue of a channel: read, but not reached."""

    barriers: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    ended: bool = False

    def reached(self, checkpoint_id: int) -> None:
        """Remove an event of the checkpoint, and what stood before it, from the queue."""
        if self.barriers or self.cancelled:
            self.barriers = [other for other in self.barriers if other > checkpoint_id]
            self.cancelled = [other for other in self.cancelled if other > checkpoint_id]

    def is_skipped(self, checkpoint_id: int) -> bool:
        """Return True if the writer went on to a newer checkpoint without a barrier of this one: it will not come."""
        return any(other > checkpoint_id for other in (*self.barriers, *self.cancelled))


@dataclass(slots=True)
class _Alignment:
    """The checkpoint under way."""

    barrier: Barrier
    waiting: dict[ChannelId, None]  # before the snapshot: not reached; behind it: being captured
    started: int
    processed_before: int
    blocked: dict[ChannelId, None] = field(default_factory=dict)
    taken: bool = False

    @property
    def id(self) -> int:
        return self.barrier.id

    @property
    def unaligned(self) -> bool:
        return self.barrier.options.unaligned

    def make_unaligned(self) -> None:
        self.barrier = self.barrier.as_unaligned()  # forwarded like this, so that readers become unaligned too

    def metrics(self, now: int, processed: int) -> do.AlignmentMetrics:
        delay = max(0, self.started - self.barrier.timestamp)  # two clocks: never below 0
        return do.AlignmentMetrics(delay, now - self.started, processed - self.processed_before)


class BarrierHandler(InputGate):
    """The gate of exactly-once mode. One checkpoint at a time: a newer one overtakes the one under way.

    `forced_aligned` names the channels of edges whose rows cannot be stored (SPEC R6.4). With `deadlines` off only the
    coordinator's announcement ends an alignment early, whatever this host's clock says.

    >>> gate = BarrierHandler(["a", "b"])
    >>> gate.on_barrier("a", Barrier(1, 0), now=5)
    [Block(channel='a')]
    >>> [type(instruction).__name__ for instruction in gate.on_barrier("b", Barrier(1, 0), now=9)]
    ['TakeSnapshot', 'Unblock']
    """

    def __init__(
        self,
        channels: Iterable[ChannelId],
        *,
        forced_aligned: Iterable[ChannelId] = (),
        restored: Iterable[ChannelId] = (),
        after_finish: bool = True,
        deadlines: bool = True,
    ) -> None:
        super().__init__(channels, restored=restored, after_finish=after_finish)
        self._forced = frozenset(forced_aligned)
        if not self._forced <= self._open.keys() - self._restored:
            raise InvalidArgument(
                "HR-9001", "a forced-aligned channel must be one of the channels, and not a restored one"
            )
        self._deadlines = deadlines
        self._queued = {channel: _QueuedEvents() for channel in self._open}
        self._at: _Alignment | None = None
        self._timed: Barrier | None = None  # its deadline ends the alignment under way, or the one about to start

    # --- views ---------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> tuple[int, ...]:
        """The checkpoint under way, if any."""
        return () if self._at is None else (self._at.id,)

    @property
    def needs_reading(self) -> bool:
        """Return True if a barrier of the checkpoint under way, or the end of its channel, is not in its queue yet."""
        at = self._at
        return at is not None and any(not self._all_read(channel, at.id) for channel in at.waiting)

    def next_deadline(self) -> int | None:
        """Return the time at which the aligned timeout of the newest known checkpoint passes."""
        barrier, at = self._timed, self._at
        if barrier is None or self._over(barrier.id) or (at is not None and at.id == barrier.id and at.unaligned):
            self._timed = None
            return None
        return barrier.deadline

    # --- starts --------------------------------------------------------------------------------------------------------

    def trigger(self, barrier: Barrier, now: int) -> list[Instruction]:
        """Start at once; with open channels, align on (or capture up to) their ends."""
        if barrier.id <= self.latest:
            return []
        self._note_deadline(barrier)
        return self._start(barrier, now) + self._advance(now)

    def on_announced(self, barrier: Barrier, now: int) -> list[Instruction]:
        """Start if need be, and become unaligned; the announcement of an aligned checkpoint changes nothing."""
        if not barrier.options.unaligned or self._over(barrier.id):
            return []
        return self._go_unaligned(barrier, now)

    def on_time(self, now: int) -> list[Instruction]:
        """Become unaligned if the aligned timeout has passed, even if no barrier has been reached yet."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        assert self._timed is not None
        return self._go_unaligned(self._timed, now)

    def not_ready(self, checkpoint_id: int) -> list[Instruction]:
        """Decline, and end what is under way as a newer barrier would."""
        if checkpoint_id <= self.latest:
            return []
        return self._abort(_SUBSUMED) + super().not_ready(checkpoint_id)

    # --- barriers ------------------------------------------------------------------------------------------------------

    def on_barrier_read(self, channel: ChannelId, barrier: Barrier, now: int) -> list[Instruction]:
        """Ends the capture of its channel; starts an unaligned checkpoint; else only its deadline counts."""
        self._check_barrier(channel, barrier)
        self._queued[channel].barriers.append(barrier.id)
        out: list[Instruction] = []
        at = self._at
        if at is not None and at.taken and channel in at.waiting and barrier.id >= at.id:
            if barrier.id == at.id:
                return self._captured(at, [channel], now)
            out = self._abort(_SUBSUMED)  # the writer skipped the barrier that the capture waits for
        if self._over(barrier.id):
            return out
        if barrier.options.unaligned or self._late(barrier, now):
            return out + self._go_unaligned(barrier, now)
        self._note_deadline(barrier)
        return out

    def on_barrier(self, channel: ChannelId, barrier: Barrier, now: int) -> list[Instruction]:
        """Blocks its channel until the snapshot; a barrier of a checkpoint that is over is ignored."""
        self._check_barrier(channel, barrier)
        self._queued[channel].reached(barrier.id)
        if self._over(barrier.id):
            return []
        out = self._start(barrier, now) if barrier.id > self.latest else []
        at = self._at
        if at is None or channel not in at.waiting:  # aborted before it came, or counted when it was read
            return out
        if at.taken:
            return out + self._captured(at, [channel], now)
        del at.waiting[channel]
        self._note_deadline(barrier)
        if barrier.options.unaligned or (at.waiting and self._late(barrier, now)):
            at.make_unaligned()
        out += self._advance(now)
        if self._at is at and not at.taken:
            at.blocked[channel] = None
            out.append(do.Block(channel))
        return out

    # --- cancellation --------------------------------------------------------------------------------------------------

    def on_cancel_marker_read(self, channel: ChannelId, checkpoint_id: int, now: int) -> list[Instruction]:
        """Ends the checkpoint under way early: the barrier of this channel is not going to come."""
        self._check_writer(channel, f"a cancel marker of checkpoint {checkpoint_id}")
        self._queued[channel].cancelled.append(checkpoint_id)
        at = self._at
        if at is None:
            return []
        if checkpoint_id == at.id:
            return self._abort(_CANCELLED)
        if checkpoint_id > at.id and at.taken and channel in at.waiting:
            return self._abort(_SUBSUMED)  # the writer skipped the barrier that the capture waits for
        return []

    def on_cancel_marker(self, channel: ChannelId, checkpoint_id: int, now: int) -> list[Instruction]:
        """Ends the checkpoint under way, or one that has not begun: its barriers will be ignored."""
        self._check_writer(channel, f"a cancel marker of checkpoint {checkpoint_id}")
        self._queued[channel].reached(checkpoint_id)
        if self._over(checkpoint_id):
            return []
        if checkpoint_id == self.latest:
            return self._abort(_CANCELLED)
        out = self._abort(_SUBSUMED)
        if not self._mark_latest(checkpoint_id):  # otherwise the coordinator aborted it and expects no decline
            out.append(do.Decline(checkpoint_id, _CANCELLED))
        out.append(do.SendCancelMarker(checkpoint_id))
        return out

    def on_aborted(self, checkpoint_id: int) -> list[Instruction]:
        """Ends the checkpoint under way without a decline, or drops its barriers when they come."""
        if self._at is not None and self._at.id == checkpoint_id:
            return self._abort(None)
        self._remember_aborted(checkpoint_id)
        return []

    def on_limit_exceeded(self) -> list[Instruction]:
        """Declines the checkpoint that keeps channels blocked, and unblocks them."""
        if self._at is None or not self._at.blocked:
            return []
        return self._abort(_LIMIT)

    # --- ends ----------------------------------------------------------------------------------------------------------

    def on_end_of_partition_read(self, channel: ChannelId, now: int) -> list[Instruction]:
        """Ends the capture of its channel: what is in the queue is all."""
        self._check_writer(channel, "an end")
        self._queued[channel].ended = True
        at = self._at
        if at is None or not at.taken or channel not in at.waiting:
            return []
        if self._ends_checkpoints(channel):
            return self._abort(_ENDED)
        return self._captured(at, [channel], now)

    def on_end_of_partition(self, channel: ChannelId, now: int) -> list[Instruction]:
        """Counts like a barrier for the checkpoint under way; later ones do not wait for the channel."""
        self._close_channel(channel)
        del self._queued[channel]
        at = self._at
        if at is None:
            return []
        at.blocked.pop(channel, None)
        if self._ends_checkpoints(channel):
            return self._abort(_ENDED)
        if channel not in at.waiting:
            return []
        if at.taken:
            return self._captured(at, [channel], now)
        del at.waiting[channel]
        if at.waiting and self._late(at.barrier, now):
            at.make_unaligned()
        return self._advance(now)

    def close(self) -> None:
        """Forget the checkpoint under way and its deadline."""
        super().close()
        self._at = self._timed = None

    # --- moves ---------------------------------------------------------------------------------------------------------

    def _start(self, barrier: Barrier, now: int) -> list[Instruction]:
        """A checkpoint newer than all before begins; what is under way ends."""
        out = self._abort(_SUBSUMED)
        if self._mark_latest(barrier.id):
            return [*out, do.SendCancelMarker(barrier.id)]
        self._at = _Alignment(barrier, dict(self._open), now, self._processed)
        return out

    def _go_unaligned(self, barrier: Barrier, now: int) -> list[Instruction]:
        """Take the checkpoint as soon as the forced-aligned channels allow."""
        out = self._start(barrier, now) if barrier.id > self.latest else []
        at = self._at
        if at is None or at.id != barrier.id or at.taken:
            return out
        at.make_unaligned()
        return out + self._advance(now)

    def _advance(self, now: int) -> list[Instruction]:
        """Take the snapshot if all that it needs is there."""
        at = self._at
        if at is None or at.taken:
            return []
        if not at.waiting:
            return self._take(at, now)
        if at.unaligned and at.waiting.keys().isdisjoint(self._forced):
            reason = self._cannot_complete(at)
            return self._take(at, now) if reason is None else self._abort(reason)
        return []

    def _take(self, at: _Alignment, now: int) -> list[Instruction]:
        """The cut: what is still waited for is in-flight data."""
        out: list[Instruction] = []
        at.taken = True
        if at.waiting:
            out.append(do.StartCapture(at.id, tuple(at.waiting)))
        out.append(do.TakeSnapshot(at.barrier, at.unaligned, at.metrics(now, self._processed)))
        if at.blocked:
            out.append(do.Unblock(tuple(at.blocked)))
            at.blocked.clear()
        if not at.unaligned:
            self._at = None
            return out
        return out + self._captured(at, [channel for channel in at.waiting if self._all_read(channel, at.id)], now)

    def _captured(self, at: _Alignment, channels: list[ChannelId], now: int) -> list[Instruction]:
        """The in-flight data of these channels is whole."""
        out: list[Instruction] = []
        if channels:
            out.append(do.StopCapture(at.id, tuple(channels)))
            for channel in channels:
                del at.waiting[channel]
        if not at.waiting:
            out.append(do.CaptureComplete(at.id, at.metrics(now, self._processed)))
            self._at = None
        return out

    def _abort(self, reason: FailureReason | None) -> list[Instruction]:
        """End the checkpoint under way, if any; without a reason no decline is sent."""
        at = self._at
        if at is None:
            return []
        self._at = None
        out: list[Instruction] = []
        if at.blocked:
            out.append(do.Unblock(tuple(at.blocked)))
        if at.taken and at.waiting:
            out.append(do.StopCapture(at.id, tuple(at.waiting)))
        if reason is not None:
            out.append(do.Decline(at.id, reason))
        out.append(do.SendCancelMarker(at.id))
        return out

    # --- facts ---------------------------------------------------------------------------------------------------------

    def _over(self, checkpoint_id: int) -> bool:
        """Return True if nothing can happen for the checkpoint any more."""
        return checkpoint_id < self.latest or (checkpoint_id == self.latest and self._at is None)

    def _late(self, barrier: Barrier, now: int) -> bool:
        return self._deadlines and barrier.deadline is not None and now >= barrier.deadline

    def _note_deadline(self, barrier: Barrier) -> None:
        if self._deadlines and barrier.deadline is not None and self.next_deadline() is None:
            self._timed = barrier

    def _all_read(self, channel: ChannelId, checkpoint_id: int) -> bool:
        """Return True if all that stands before the channel's barrier is in its queue."""
        queued = self._queued[channel]
        return channel in self._restored or queued.ended or checkpoint_id in queued.barriers

    def _cannot_complete(self, at: _Alignment) -> FailureReason | None:
        """Why an unaligned checkpoint cannot complete, if something in the queues says so."""
        for channel in at.waiting:
            queued = self._queued[channel]
            if at.id in queued.cancelled:
                return _CANCELLED
            if at.id in queued.barriers:
                continue
            if queued.is_skipped(at.id):
                return _SUBSUMED
            if queued.ended and self._ends_checkpoints(channel):
                return _ENDED
        return None

    def _check_barrier(self, channel: ChannelId, barrier: Barrier) -> None:
        self._check_writer(channel, f"a barrier of checkpoint {barrier.id}")
        if not barrier.options.exactly_once:
            raise IllegalState(f"checkpoint {barrier.id} is at-least-once, but this job runs exactly-once")
