"""The snapshots of a subtask whose synchronous part is done, until they are written; and the checkpoints it has declined."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from headrace.checkpoint.barriers import instructions as do
from headrace.checkpoint.types import Barrier
from headrace.worker.backlog import CapturedFrame
from headrace.worker.operators.base import OperatorSnapshot


@dataclass(slots=True)
class SnapshotInProgress:
    """A snapshot whose synchronous part is done; of an unaligned one, in-flight data is still being captured.

    The rest, serialising and writing, is done outside the subtask, while records are processed.
    """

    barrier: Barrier
    operators: list[OperatorSnapshot]
    metrics: do.AlignmentMetrics
    finished: bool = False  # the subtask had seen its last record
    finished_on_restore: bool = False  # it was restored as finished: it has no state and never ran
    started: int = 0  # when the synchronous part began; ms since the epoch
    sync_ms: int = 0
    queued: float = 0.0  # when the rest was queued; seconds of the monotonic clock
    capturing: bool = False
    captured: list[CapturedFrame] = field(default_factory=list)
    cancelled: bool = False

    def capture_complete(self, frames: list[CapturedFrame], metrics: do.AlignmentMetrics) -> None:
        """Take the in-flight data, which is whole now."""
        self.captured, self.capturing = frames, False
        stored = sum(len(frame.body) for frame in frames)
        self.metrics = msgspec.structs.replace(metrics, persisted_bytes=stored)

    def cancel(self) -> None:
        """Release what the snapshot keeps alive."""
        self.cancelled = True
        for operator in self.operators:
            if operator.keyed is not None:
                operator.keyed.cancel()


class TakenSnapshots:
    """Snapshots that were taken since the last look, and the one whose in-flight data is being captured."""

    def __init__(self) -> None:
        self._taken: list[SnapshotInProgress] = []
        self._capturing: SnapshotInProgress | None = None
        self._declines: list[do.Decline] = []

    def add(self, snapshot: SnapshotInProgress) -> None:
        """Take a snapshot; if it is `capturing`, `capture_complete` follows."""
        self._taken.append(snapshot)
        if snapshot.capturing:
            self._capturing = snapshot

    def capture_complete(self, checkpoint_id: int, frames: list[CapturedFrame], metrics: do.AlignmentMetrics) -> None:
        """Add the in-flight data to its snapshot."""
        assert self._capturing is not None
        assert self._capturing.barrier.id == checkpoint_id
        self._capturing.capture_complete(frames, metrics)
        self._capturing = None

    def decline(self, decline: do.Decline) -> None:
        """Decline a checkpoint and release its snapshot."""
        self.drop(decline.checkpoint_id)
        self._declines.append(decline)

    def drop(self, checkpoint_id: int) -> None:
        """Release the snapshot of an aborted checkpoint if its in-flight data is still being captured."""
        if self._capturing is not None and self._capturing.barrier.id == checkpoint_id:
            self._capturing.cancel()
            self._capturing = None

    def take(self) -> list[SnapshotInProgress]:
        """Return the snapshots that are to be written, each once."""
        taken, self._taken = self._taken, []
        return taken

    def take_declines(self) -> list[do.Decline]:
        """Return the declined checkpoints, each once."""
        taken, self._declines = self._declines, []
        return taken
