"""A checkpoint under way, the clock that starts them, and what goes out because of them.

The stages of a checkpoint:

    PREPARING      its directory is being made; no task knows of it
    DRIVER_STATE   the parts on the driver give their state
    RUNNING        barriers are on their way, tasks acknowledge
    WRITING        all have; the metadata is being written
    WRITTEN        waits for its turn to enter the job log
    CLAIMING       the entry is being claimed: from here on the outcome is not ours to decide
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from random import Random
from typing import Any, Protocol

from headgate.checkpoint import events as ev
from headgate.checkpoint.decider import TriggerRequest
from headgate.checkpoint.plan import CheckpointPlan, TaskId, TaskReport
from headgate.checkpoint.reasons import FailureReason
from headgate.checkpoint.settings import CheckpointProperties, CheckpointSettings
from headgate.checkpoint.stats import CheckpointStats, SubtaskStats
from headgate.checkpoint.types import Barrier
from headgate.ids import OperatorId

__all__ = ["AckResult", "Outbox", "Owner", "PendingCheckpoint", "PeriodicSchedule", "Stage"]


class Stage(IntEnum):
    """How far a pending checkpoint is."""

    PREPARING = 0
    DRIVER_STATE = 1
    RUNNING = 2
    WRITING = 3
    WRITTEN = 4
    CLAIMING = 5


class AckResult(Enum):
    """What an acknowledgement was worth."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"


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
    chain_length: int
    stage: Stage = Stage.PREPARING
    location: str | None = None
    barrier: Barrier | None = None
    announce_at: int | None = None
    metadata: ev.MetadataWritten | None = None
    driver_states: dict[OperatorId, Any] = field(default_factory=dict)
    states: dict[TaskId, Any] = field(default_factory=dict)
    reports: dict[TaskId, TaskReport] = field(default_factory=dict)
    shared_files: defaultdict[OperatorId, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def waiting_for(self) -> tuple[TaskId, ...]:
        """Tasks that have not acknowledged."""
        return tuple(task for task in self.plan.wait if task not in self.reports)

    @property
    def can_expire(self) -> bool:
        """Whether the timeout still applies; an entry that may be in the log cannot be taken back."""
        return self.stage <= Stage.WRITING

    @property
    def can_be_subsumed(self) -> bool:
        """Whether a newer checkpoint makes it superfluous; a savepoint never is."""
        return not self.properties.is_savepoint

    def acknowledge(self, ack: ev.Acknowledged, now: int) -> AckResult:
        """Take a task's part in."""
        if ack.task in self.reports:
            return AckResult.DUPLICATE
        if ack.task not in self.plan.wait:
            return AckResult.UNKNOWN
        self.reports[ack.task] = ack.report
        self.states[ack.task] = ack.state
        for operator, files in ack.shared_files.items():
            self.shared_files[operator] += files
        self.stats.report(ack.task, SubtaskStats(ack.task.subtask, now, ack.metrics))
        return AckResult.SUCCESS


class PeriodicSchedule:
    """When the next periodic checkpoint is due (SPEC R5.1, R5.4).

    The first delay is random between the pause and the interval, so that jobs do not checkpoint in step; after a
    restart it is the pause. From then on the times are fixed: a late checkpoint does not move the next one.

    >>> schedule = PeriodicSchedule(CheckpointSettings(interval_ms=10_000, min_pause_ms=100), Random(0))
    >>> schedule.start(now=0)
    >>> 100 <= schedule.next_at <= 10_000
    True
    """

    def __init__(self, settings: CheckpointSettings, rng: Random) -> None:
        self._settings = settings
        self._backlog: set[OperatorId] = set()
        self._delay = rng.randint(*settings.first_delay_bounds()) if settings.interval_ms is not None else None
        self.running = False
        self.next_at: int | None = None

    @property
    def interval(self) -> int | None:
        """The interval that applies now; None: no checkpoints."""
        return self._settings.interval(backlog=bool(self._backlog))

    def start(self, now: int) -> None:
        """The job runs; without an interval nothing happens."""
        if self._delay is None:
            return
        self.running = True
        self.next_at = now + self._delay
        self._delay = self._settings.min_pause_ms

    def stop(self) -> None:
        """The job does not run any more, or is about to stop."""
        self.running = False
        self.next_at = None

    def fire(self) -> None:
        """A checkpoint was due; sets the next time."""
        interval = self.interval
        assert self.next_at is not None
        self.next_at = None if interval is None else self.next_at + interval

    def ask_again(self, at: int) -> None:
        """The checkpoint that was due came too early for the pause."""
        if self.running:
            self.next_at = at

    def backlog(self, operator: OperatorId, now: int, *, processing: bool) -> None:
        """A source works off a backlog or not; a shorter interval applies at once."""
        (self._backlog.add if processing else self._backlog.discard)(operator)
        interval = self.interval
        if self.running and interval is not None and (self.next_at is None or now + interval < self.next_at):
            self.next_at = now + interval

    def clear_backlog(self) -> None:
        """A new attempt: the sources will say again."""
        self._backlog.clear()


class Outbox:
    """The time of the event at hand, and the instructions that it leads to.

    >>> outbox = Outbox()
    >>> outbox.open(7, "a test")
    >>> outbox.emit(ev.Warn("look"))
    >>> outbox.close()
    [Warn(cause='a test', message='look')]
    """

    def __init__(self) -> None:
        self.now = 0
        self._cause = ""
        self._instructions: list[ev.Instruction] = []

    def open(self, now: int, cause: str) -> None:
        """An event has come; time never goes back."""
        self.now, self._cause = max(self.now, now), cause

    def emit(self, instruction: ev.Instruction) -> None:
        """Something is to be done because of it."""
        self._instructions.append(replace(instruction, cause=self._cause))

    def close(self) -> list[ev.Instruction]:
        """All that is to be done."""
        done, self._instructions = self._instructions, []
        return done


class Owner(Protocol):
    """Whoever asked for a checkpoint hears of its end exactly once."""

    def on_request_failed(
        self, request: TriggerRequest, reason: FailureReason, message: str, checkpoint_id: int | None
    ) -> None:
        """It failed, or could not even begin."""

    def on_completed(self, pending: PendingCheckpoint, done: ev.RequestDone) -> None:
        """It is complete, stored, and on its way to be notified."""
