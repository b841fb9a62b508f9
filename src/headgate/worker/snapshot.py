"""Snapshots of a subtask: what its operators left, and what a new subtask starts from.

The synchronous part (`SnapshotInProgress`) is made by the subtask between two records; the rest, serialising and
writing, is done by whoever drives the subtask, while records go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headgate.checkpoint.assignment import assign_keyed, check_max_parallelism
from headgate.checkpoint.barriers.instructions import AlignmentMetrics
from headgate.checkpoint.commits import NO_COMMITS, Commits
from headgate.checkpoint.handles import KeyedStateHandle, ReadPayload, read_inline
from headgate.checkpoint.types import Barrier
from headgate.records.key_groups import KeyGroupRange
from headgate.state.operator import OperatorStateSnapshot, RestoredOperatorState, rescale
from headgate.worker.backlog import CapturedFrame
from headgate.worker.operators.base import OperatorSnapshot

__all__ = ["OperatorRestore", "OperatorState", "SnapshotInProgress", "SubtaskRestore", "SubtaskState", "assign_state"]


class OperatorState(msgspec.Struct, frozen=True):
    """What one operator left in one subtask."""

    operator_id: str
    operator: OperatorStateSnapshot
    keyed: KeyedStateHandle | None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to restore."""
        return self.keyed is None and self.operator.is_empty


class SubtaskState(msgspec.Struct, frozen=True):
    """What one subtask left at one checkpoint."""

    checkpoint_id: int
    operators: tuple[OperatorState, ...]


@dataclass(slots=True)
class SnapshotInProgress:
    """A snapshot whose synchronous part is done; of an unaligned one, in-flight data is still being captured."""

    barrier: Barrier
    operators: list[OperatorSnapshot]
    metrics: AlignmentMetrics
    finished: bool = False  # the subtask had seen its last record
    finished_on_restore: bool = False  # it was restored as finished: it has no state and never ran
    sync_ms: int = 0
    capturing: bool = False
    captured: list[CapturedFrame] = field(default_factory=list)
    cancelled: bool = False

    def capture_complete(self, frames: list[CapturedFrame], metrics: AlignmentMetrics) -> None:
        """The in-flight data is whole."""
        self.captured, self.capturing = frames, False
        stored = sum(len(frame.body) for frame in frames)
        self.metrics = msgspec.structs.replace(metrics, persisted_bytes=stored)

    def finish(self) -> SubtaskState:
        """Do the rest at once and keep all bytes in memory: for the local runtime and tests."""
        done = [
            OperatorState(op.operator_id, op.operator_state(), None if op.keyed is None else op.keyed.finish())
            for op in self.operators
        ]
        return SubtaskState(self.barrier.id, tuple(done))

    def cancel(self) -> None:
        """Give up; what the snapshot holds is released."""
        self.cancelled = True
        for operator in self.operators:
            if operator.keyed is not None:
                operator.keyed.cancel()


@dataclass(frozen=True, slots=True)
class OperatorRestore:
    """What one operator of one new subtask starts from."""

    operator: RestoredOperatorState
    keyed: tuple[KeyedStateHandle, ...] = ()


@dataclass(frozen=True, slots=True)
class SubtaskRestore:
    """What one new subtask starts from."""

    checkpoint_id: int
    operators: Mapping[str, OperatorRestore] = field(default_factory=dict)
    read: ReadPayload = read_inline
    claim: bool = False  # later increments may build on the restored files
    frames: tuple[CapturedFrame, ...] = ()  # in-flight data, to be processed before any new row
    finished: bool = False  # the subtask had finished: it only sends its ends
    commits: Commits = NO_COMMITS  # up to the checkpoint


def assign_state(
    old: Mapping[str, Sequence[OperatorState | None]],
    max_parallelism: Mapping[str, int],
    parallelism: int,
    checkpoint_id: int,
) -> list[SubtaskRestore]:
    """Spread the state of a vertex's operators over its new subtasks.

    `old` has, for each operator, what each of its old subtasks left (None: nothing); the operators may come from
    different old vertices, so their old parallelism may differ.
    """
    shares: list[dict[str, OperatorRestore]] = [{} for _ in range(parallelism)]
    for operator_id, left in old.items():
        operator_parts = rescale([None if state is None else state.operator for state in left], parallelism)
        keyed_parts = _keyed_parts(left, max_parallelism[operator_id], parallelism)
        for share, operator, keyed in zip(shares, operator_parts, keyed_parts, strict=True):
            share[operator_id] = OperatorRestore(operator, tuple(keyed))
    return [SubtaskRestore(checkpoint_id, share) for share in shares]


def _keyed_parts(
    left: Sequence[OperatorState | None], max_parallelism: int, parallelism: int
) -> list[list[KeyedStateHandle]]:
    handles = [None if state is None else state.keyed for state in left]
    for handle in handles:
        if handle is not None:
            check_max_parallelism("keyed state", handle.max_parallelism, max_parallelism)
    ranges = [None if h is None else [KeyGroupRange(h.first_group, h.last_group)] for h in handles]
    assigned = assign_keyed(ranges, max_parallelism, parallelism)
    return [[handle for part in parts if (handle := handles[part.subtask]) is not None] for parts in assigned]
