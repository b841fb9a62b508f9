"""The input gate of a subtask: what every event on its channels means for its checkpoints.

A gate is a pure state machine. It has no clock (times are arguments), holds no record, and is called from one thread.
Events go in, instructions come out; the caller carries them out at once, in order, before its next call.

**Read and reached.** A row is *read* when it comes out of Spark into its channel's queue, and *reached* when all rows
before it in that queue are processed. The caller reports a barrier, a cancel marker and an end both times, first with
`on_..._read`, then with `on_barrier`, `on_cancel_marker`, `on_end_of_partition`: an aligned checkpoint waits for
barriers to be reached, an unaligned one overtakes the queue and only waits for them to be read. A caller without queues
may leave the first report out.

**Who calls what.** A source, and a subtask whose writers have all finished, is started by `trigger`. Everything else is
started by its first barrier, or by `on_announced` when the coordinator says on the control plane that a checkpoint is
unaligned (a barrier cannot overtake inside Spark). `on_aborted` is the coordinator's abort: the caller discards what it
holds for the checkpoint itself, the gate ends its alignment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from headrace.checkpoint.barriers.instructions import ChannelId, Decline, Instruction, SendCancelMarker
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.types import Barrier
from headrace.errors import IllegalState, InvalidArgument

_MAX_ABORTED = 128
"""Aborted checkpoints remembered, as in Flink: barriers of older ones have long been overtaken by newer ones."""


class InputGate(ABC):
    """The common part of both gates: channels, aborted checkpoints, counters.

    `restored` names those channels that hold restored in-flight rows: they have no writer, so no barrier comes; the
    caller processes them before any new row and reports their end when they are empty. `after_finish` is the option
    checkpoints-after-tasks-finish: if it is off, the end of an input aborts the checkpoint under way.
    """

    def __init__(
        self,
        channels: Iterable[ChannelId],
        *,
        restored: Iterable[ChannelId] = (),
        after_finish: bool = True,
    ) -> None:
        self._open = dict.fromkeys(channels)
        self._restored = frozenset(restored)
        if not self._restored <= self._open.keys():
            raise InvalidArgument("HR-9001", "a restored channel must be one of the channels")
        self._after_finish = after_finish
        self._aborted: set[int] = set()
        self.latest = -1  # the newest checkpoint that was started, cancelled or declined here
        self._processed = 0

    # --- views ---------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def pending(self) -> tuple[int, ...]:
        """The checkpoints that wait for barriers here, oldest first."""

    @property
    def needs_reading(self) -> bool:
        """Return True if the caller must read on with full queues: a barrier that is waited for is not read yet."""
        return False

    # --- data ----------------------------------------------------------------------------------------------------------

    def on_data(self, channel: ChannelId, nbytes: int) -> None:
        """Count the bytes of a processed batch."""
        self._processed += nbytes

    # --- events --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def trigger(self, barrier: Barrier, now: int) -> list[Instruction]:
        """The coordinator starts a checkpoint at this subtask, which has no running writer.

        Channels that are still open are waited for: their ends are on the way, and records before them count.
        """

    @abstractmethod
    def on_barrier(self, channel: ChannelId, barrier: Barrier, now: int) -> list[Instruction]:
        """A barrier was reached."""

    def on_barrier_read(self, channel: ChannelId, barrier: Barrier, now: int) -> list[Instruction]:
        """A barrier was read into its channel's queue; it is not reached yet."""
        return []

    @abstractmethod
    def on_cancel_marker(self, channel: ChannelId, checkpoint_id: int, now: int) -> list[Instruction]:
        """A cancel marker was reached."""

    def on_cancel_marker_read(self, channel: ChannelId, checkpoint_id: int, now: int) -> list[Instruction]:
        """A cancel marker was read into its channel's queue; it is not reached yet."""
        return []

    @abstractmethod
    def on_end_of_partition(self, channel: ChannelId, now: int) -> list[Instruction]:
        """The end of a channel was reached, or a restored channel is empty."""

    def on_end_of_partition_read(self, channel: ChannelId, now: int) -> list[Instruction]:
        """The end of a channel was read into its queue; it is not reached yet."""
        return []

    def on_announced(self, barrier: Barrier, now: int) -> list[Instruction]:
        """The coordinator says that a checkpoint is unaligned, or that its aligned timeout has passed."""
        return []

    @abstractmethod
    def on_aborted(self, checkpoint_id: int) -> list[Instruction]:
        """The coordinator aborted a checkpoint; if its barriers are still to come, they will be dropped (SPEC R5.7)."""

    def on_limit_exceeded(self) -> list[Instruction]:
        """The blocked channels hold more than `alignment.spill.max`."""
        return []

    def next_deadline(self) -> int | None:
        """The next time at which `on_time` has work."""
        return None

    def on_time(self, now: int) -> list[Instruction]:
        """Time has passed."""
        return []

    def not_ready(self, checkpoint_id: int) -> list[Instruction]:
        """Decline a checkpoint that the coordinator starts before the subtask runs (SPEC R6.1)."""
        if checkpoint_id <= self.latest:
            return []
        self._mark_latest(checkpoint_id)
        reason = FailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
        return [Decline(checkpoint_id, reason), SendCancelMarker(checkpoint_id)]

    def close(self) -> None:
        """Drop everything under way: no deadline and no instruction follows."""
        self._open.clear()

    # --- for the gates -------------------------------------------------------------------------------------------------

    def _mark_latest(self, checkpoint_id: int) -> bool:
        """Make it the latest one; returns whether the coordinator has aborted it already."""
        aborted = checkpoint_id in self._aborted
        self.latest = checkpoint_id
        if self._aborted:  # barriers of older ones are dropped anyway
            self._aborted = {other for other in self._aborted if other > checkpoint_id}
        return aborted

    def _remember_aborted(self, checkpoint_id: int) -> None:
        if checkpoint_id > self.latest:
            self._aborted.add(checkpoint_id)
            if len(self._aborted) > _MAX_ABORTED:
                self._aborted.remove(min(self._aborted))

    def _ends_checkpoints(self, channel: ChannelId) -> bool:
        """Return True if the channel's end aborts checkpoints under way; a restored channel has no writer that ended."""
        return not self._after_finish and channel not in self._restored

    def _check_writer(self, channel: ChannelId, what: str) -> None:
        if channel not in self._open or channel in self._restored:
            raise IllegalState(f"{what} on channel {channel}, which has ended or has no writer")

    def _close_channel(self, channel: ChannelId) -> None:
        if channel not in self._open:
            raise IllegalState(f"channel {channel} ended twice, or does not exist")
        del self._open[channel]
