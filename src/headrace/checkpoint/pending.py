"""A checkpoint between its trigger and its end. Part of the coordinator: pure, on the driver.

PREPARING      its directory is being made; no task knows of it
DRIVER_STATE   the state on the driver is being taken
RUNNING        barriers are on their way, tasks acknowledge
WRITING        all have acknowledged; the metadata is being written
WRITTEN        it waits for its turn to enter the job log
CLAIMING       its log entry is being claimed: from here on the coordinator cannot abort it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headrace.checkpoint import events as ev
from headrace.checkpoint.decider import TriggerRequest
from headrace.checkpoint.plan import CheckpointPlan, TaskId, TaskReport
from headrace.checkpoint.settings import CheckpointProperties
from headrace.checkpoint.stats import CheckpointStats, SubtaskStats
from headrace.checkpoint.types import Barrier
from headrace.ids import OperatorId


class Stage(IntEnum):
    PREPARING = 0
    DRIVER_STATE = 1
    RUNNING = 2
    WRITING = 3
    WRITTEN = 4
    CLAIMING = 5


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
    stage: Stage = Stage.PREPARING
    location: str | None = None
    barrier: Barrier | None = None
    announce_at: int | None = None
    metadata: ev.MetadataWritten | None = None
    driver_states: dict[OperatorId, Any] = field(default_factory=dict)
    states: dict[TaskId, Any] = field(default_factory=dict)
    reports: dict[TaskId, TaskReport] = field(default_factory=dict)

    @property
    def not_acknowledged(self) -> tuple[TaskId, ...]:
        return tuple(task for task in self.plan.wait if task not in self.reports)

    def acknowledge(self, ack: ev.Acknowledged, now: int) -> bool:
        """Add a task's part; False if it has come before."""
        if ack.task in self.reports:
            return False
        self.reports[ack.task] = ack.report
        self.states[ack.task] = ack.state
        of_all = self.stats.shared_files
        for operator, files in ack.shared_files.items():
            of_all[operator] = of_all.get(operator, 0) + files
        self.stats.report(ack.task, SubtaskStats(now, ack.metrics))
        return True
