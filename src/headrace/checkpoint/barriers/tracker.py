"""Barriers for at-least-once: they are counted, no channel is ever blocked (SPEC R6.3).

The snapshot is taken at the *last* barrier, so it holds every record before the barriers, and of the faster channels
some behind them too: those are processed again after a restore. Several checkpoints may be under way; one that a newer
one overtakes is dropped without a decline, because the coordinator subsumes it when the newer one completes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.checkpoint.barriers import instructions as do
from headrace.checkpoint.barriers.gate import InputGate
from headrace.checkpoint.barriers.instructions import ChannelId, Instruction
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.types import Barrier

_MAX_TRACKED = 50
"""Checkpoints under way at once; the coordinator has long aborted those of a writer so far behind."""


@dataclass(slots=True)
class _BarrierCount:
    """A checkpoint whose barriers are being counted; an aborted one is counted too, so that late ones are known.

    `dropped`: aborted by the coordinator, which expects no decline; the readers downstream expect a cancel marker.
    """

    id: int
    barrier: Barrier | None  # None: it began with a cancel marker
    waiting: dict[ChannelId, None]
    started: int
    processed_before: int
    aborted: bool = False
    dropped: bool = False


class BarrierTracker(InputGate):
    """The gate of at-least-once mode.

    >>> gate = BarrierTracker(["a", "b"])
    >>> gate.on_barrier("a", Barrier(1, 0), now=5)
    []
    >>> [type(instruction).__name__ for instruction in gate.on_barrier("b", Barrier(1, 0), now=9)]
    ['TakeSnapshot']
    """

    def __init__(
        self, channels: Iterable[ChannelId], *, restored: Iterable[ChannelId] = (), after_finish: bool = True
    ) -> None:
        super().__init__(channels, restored=restored, after_finish=after_finish)
        self._counts: dict[int, _BarrierCount] = {}  # oldest first: only one newer than all before is added

    @property
    def pending(self) -> tuple[int, ...]:
        """The checkpoints being counted, aborted ones included."""
        return tuple(self._counts)

    def trigger(self, barrier: Barrier, now: int) -> list[Instruction]:
        """Snapshot at once; with open channels, at the last of their ends."""
        if barrier.id <= self.latest:
            return []
        count = self._start(barrier, now)
        return [] if count.waiting else self._complete(count, now)

    def on_barrier(self, channel: ChannelId, barrier: Barrier, now: int) -> list[Instruction]:
        """Snapshot at the last one of its checkpoint; a late one of a dropped checkpoint is ignored."""
        self._check_writer(channel, f"a barrier of checkpoint {barrier.id}")
        if barrier.id > self.latest:
            self._start(barrier, now)
        out = self._mark(barrier.id, channel, now)
        if len(self._counts) > _MAX_TRACKED:
            del self._counts[min(self._counts)]
        return out

    def on_cancel_marker(self, channel: ChannelId, checkpoint_id: int, now: int) -> list[Instruction]:
        """Ends its checkpoint and all older ones."""
        self._check_writer(channel, f"a cancel marker of checkpoint {checkpoint_id}")
        out: list[Instruction] = []
        reason = FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
        for older in [count for count in self._counts.values() if count.id < checkpoint_id]:
            out += self._abort(older, reason)
            del self._counts[older.id]
        if checkpoint_id > self.latest:
            if not self._mark_latest(checkpoint_id):
                out.append(do.Decline(checkpoint_id, reason))
            out.append(do.SendCancelMarker(checkpoint_id))
            self._counts[checkpoint_id] = _BarrierCount(
                checkpoint_id, None, dict(self._open), now, self._processed, aborted=True
            )
        elif (count := self._counts.get(checkpoint_id)) is not None:
            out += self._abort(count, reason)
        return out + self._mark(checkpoint_id, channel, now)

    def on_end_of_partition(self, channel: ChannelId, now: int) -> list[Instruction]:
        """Counts like a barrier for all checkpoints under way; the newest that is complete is taken."""
        self._close_channel(channel)
        if self._ends_checkpoints(channel):
            counts, self._counts = self._counts, {}
            reason = FailureReason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM
            return [instruction for count in counts.values() for instruction in self._abort(count, reason)]
        for count in reversed(list(self._counts.values())):  # the newest that is complete drops the older ones
            if out := self._mark(count.id, channel, now):
                return out
        return []

    def on_aborted(self, checkpoint_id: int) -> list[Instruction]:
        """Ends the checkpoint without a decline, or drops its barriers when they come."""
        count = self._counts.get(checkpoint_id)
        if count is None:
            self._remember_aborted(checkpoint_id)
        else:
            count.dropped = True  # the cancel marker is sent later: it must not overtake an older barrier
        return []

    def close(self) -> None:
        """Forget what is being counted."""
        super().close()
        self._counts.clear()

    # --- moves ---------------------------------------------------------------------------------------------------------

    def _start(self, barrier: Barrier, now: int) -> _BarrierCount:
        dropped = self._mark_latest(barrier.id)
        count = _BarrierCount(barrier.id, barrier, dict(self._open), now, self._processed, dropped=dropped)
        self._counts[barrier.id] = count
        return count

    def _mark(self, checkpoint_id: int, channel: ChannelId, now: int) -> list[Instruction]:
        """Stop waiting for the channel."""
        count = self._counts.get(checkpoint_id)
        if count is None or channel not in count.waiting:
            return []
        del count.waiting[channel]
        return [] if count.waiting else self._complete(count, now)

    def _complete(self, count: _BarrierCount, now: int) -> list[Instruction]:
        for older in [other for other in self._counts if other <= count.id]:
            del self._counts[older]
        if count.aborted:
            return []
        if count.dropped:
            return [do.SendCancelMarker(count.id)]
        assert count.barrier is not None
        delay = max(0, count.started - count.barrier.timestamp)  # two clocks: never below 0
        metrics = do.AlignmentMetrics(delay, now - count.started, self._processed - count.processed_before)
        return [do.TakeSnapshot(count.barrier, unaligned=False, metrics=metrics)]

    @staticmethod
    def _abort(count: _BarrierCount, reason: FailureReason) -> list[Instruction]:
        """End a checkpoint, if it has not ended."""
        if count.aborted:
            return []
        count.aborted = True
        marker = do.SendCancelMarker(count.id)
        return [marker] if count.dropped else [do.Decline(count.id, reason), marker]
