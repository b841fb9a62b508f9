"""A checkpoint between its trigger and its end. Part of the coordinator: pure, on the driver.

PREPARING      its directory is being made; no task knows of it
DRIVER_STATE   the state on the driver is being taken
RUNNING        barriers are on their way, tasks acknowledge
WRITING        all have acknowledged; the metadata is being written
WRITTEN        it waits for its turn to enter the job log
CLAIMING       its log entry is being claimed: from here on the coordinator cannot abort it
COMPLETED      it is complete
ABORTED        it will not be completed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headrace.checkpoint import events as ev
from headrace.checkpoint.decider import TriggerRequest
from headrace.checkpoint.plan import CheckpointPlan, TaskId, TaskReport, VertexOutcome
from headrace.checkpoint.settings import CheckpointProperties
from headrace.checkpoint.stats import CheckpointStats, SubtaskStats
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.checkpoint.types import Barrier
from headrace.ids import OperatorId, VertexId
from headrace.lifecycle import Lifecycle

_NAMED_TASKS = 5  # in a message


class Stage(IntEnum):
    PREPARING = 0
    DRIVER_STATE = 1
    RUNNING = 2
    WRITING = 3
    WRITTEN = 4
    CLAIMING = 5
    COMPLETED = 6
    ABORTED = 7


MOVES: Mapping[Stage, frozenset[Stage]] = {
    Stage.PREPARING: frozenset({Stage.DRIVER_STATE, Stage.ABORTED}),
    Stage.DRIVER_STATE: frozenset({Stage.RUNNING, Stage.ABORTED}),
    Stage.RUNNING: frozenset({Stage.WRITING, Stage.ABORTED}),
    Stage.WRITING: frozenset({Stage.WRITTEN, Stage.ABORTED}),
    Stage.WRITTEN: frozenset({Stage.CLAIMING, Stage.COMPLETED, Stage.ABORTED}),
    Stage.CLAIMING: frozenset({Stage.COMPLETED, Stage.ABORTED}),
    Stage.COMPLETED: frozenset(),
    Stage.ABORTED: frozenset(),
}
"""A plain savepoint is complete when it is written. A claim that fails aborts the checkpoint."""


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint that has an id and is not complete yet."""

    id: int
    request: TriggerRequest
    properties: CheckpointProperties
    plan: CheckpointPlan
    timestamp: int
    deadline: int
    stats: CheckpointStats
    attempt: int | None
    base: int | None  # the completed checkpoint whose files it may build on
    location: str | None = None
    barrier: Barrier | None = None
    announce_at: int | None = None
    metadata: ev.MetadataWritten | None = None
    driver_states: dict[OperatorId, Any] = field(default_factory=dict)
    states: dict[TaskId, Any] = field(default_factory=dict)
    reports: dict[TaskId, TaskReport] = field(default_factory=dict)
    life: Lifecycle[Stage] = field(init=False)

    def __post_init__(self) -> None:
        """Begin the story."""
        self.life = Lifecycle(f"checkpoint {self.id}", MOVES, Stage.PREPARING, self.timestamp)

    @property
    def stage(self) -> Stage:
        return self.life.state

    def advance(self, stage: Stage, now: int) -> None:
        """Move to another stage; IllegalState with the story of the checkpoint if the table has no such move."""
        acknowledged = f"{len(self.reports)} of {len(self.plan.wait)} tasks have acknowledged"
        self.life.move(stage, now, f"attempt {self.attempt}, {acknowledged}")

    @property
    def not_acknowledged(self) -> tuple[TaskId, ...]:
        return tuple(task for task in self.plan.wait if task not in self.reports)

    @property
    def missing(self) -> str:
        """The tasks or the step that it waits for, as text."""
        waiting = self.not_acknowledged
        if not waiting:
            return "acknowledged by all, but its metadata is not written"
        more = f" and {len(waiting) - _NAMED_TASKS} more" if len(waiting) > _NAMED_TASKS else ""
        return "not acknowledged by " + ", ".join(map(str, waiting[:_NAMED_TASKS])) + more

    def acknowledge(self, ack: ev.Acknowledged, now: int) -> bool:
        """Add a task's part; return False if it has come before."""
        if ack.task in self.reports:
            return False
        self.reports[ack.task] = ack.report
        self.states[ack.task] = ack.state
        of_all = self.stats.shared_files
        for operator, files in ack.shared_files.items():
            of_all[operator] = of_all.get(operator, 0) + files
        self.stats.report(ack.task, SubtaskStats(now, ack.metrics))
        return True

    def content(self, vertices: Mapping[VertexId, VertexOutcome]) -> ev.Content:
        """The content of its metadata."""
        states, driver_states = dict(self.states), dict(self.driver_states)
        location = self.location or ""
        return ev.Content(self.id, self.timestamp, self.properties, location, states, driver_states, vertices)

    def completed(self, metadata: ev.MetadataWritten, commit_number: int | None, now: int) -> CompletedCheckpoint:
        """The checkpoint that it becomes; its statistics are filled in."""
        stats = self.stats
        stats.external_path, stats.commit_number, stats.completed_timestamp = metadata.pointer, commit_number, now
        stats.metadata_size, stats.metadata_objects = metadata.size, metadata.objects
        return CompletedCheckpoint(
            self.id,
            self.timestamp,
            self.properties,
            self.location or "",
            metadata.pointer,
            commit_number,
            stats.totals.state_size,
            stats.chain_length,
        )
