"""What the job machine is told, and what it asks for.

Times are milliseconds of the clock that the caller hands to `JobMachine.handle`. A worker is named by its level and its
index in the level. Events of an attempt carry its number, so that a late one is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.errors import HeadgateError
from headgate.job.status import JobStatus

__all__ = [
    "AnswerRescale",
    "ApplyRescale",
    "AttemptEnded",
    "AttemptRefused",
    "AttemptSubmitted",
    "AwaitSettled",
    "CancelRequested",
    "CancelTasks",
    "CauseFound",
    "CheckTasks",
    "CheckpointsClosed",
    "CloseCheckpoints",
    "DriverFailed",
    "DriverSuperseded",
    "EndJob",
    "EndRecorded",
    "FindCause",
    "JobEvent",
    "JobInstruction",
    "KillWorker",
    "RecordFailure",
    "RecordLostWorker",
    "RescaleRequested",
    "SetCheckpointing",
    "SetStatus",
    "Settled",
    "StartAttempt",
    "StartRequested",
    "StopAttempt",
    "TaskFailed",
    "TasksLeft",
    "TimeElapsed",
    "WarnUser",
    "Worker",
    "WorkerDisconnected",
    "WorkerFinished",
    "WorkerHeard",
    "WorkerRegistered",
    "WorkerRunning",
]

Worker = tuple[int, int]


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRequested:
    """The job begins."""


@dataclass(frozen=True, slots=True)
class Settled:
    """No claim in the job log and no commit on the driver is under way any more."""


@dataclass(frozen=True, slots=True)
class AttemptSubmitted:
    """The cluster runs the tasks of an attempt, or is about to."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptRefused:
    """An attempt could not be started.

    `retry`: the cluster or the storage may answer next time; else the program or its configuration does not fit.
    """

    attempt: int
    error: HeadgateError
    retry: bool


@dataclass(frozen=True, slots=True)
class WorkerRegistered:
    attempt: int
    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerRunning:
    attempt: int
    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    attempt: int
    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerHeard:
    """A worker sent something else: it is alive."""

    attempt: int
    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerDisconnected:
    attempt: int
    worker: Worker


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task, or a part of the job on the driver, reported a failure.

    `certain`: no later report can name a better cause, as when the user's code raised.
    """

    attempt: int
    certain: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The cluster runs no task of the attempt any more. `failed`: not because all of them finished."""

    attempt: int
    failed: bool


@dataclass(frozen=True, slots=True)
class CauseFound:
    """The answer to `FindCause`.

    `cancelled`: the attempt was cancelled in the cluster. `final`: another attempt cannot run, for example because the
    Spark session was stopped.
    """

    attempt: int
    error: HeadgateError
    cancelled: bool = False
    final: bool = False


@dataclass(frozen=True, slots=True)
class TasksLeft:
    """The answer to `CheckTasks`: workers that are connected, and the number of tasks that the cluster still runs."""

    attempt: int
    workers: tuple[Worker, ...]
    active: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    pass


@dataclass(frozen=True, slots=True)
class RescaleRequested:
    """Continue with another plan, of `tasks` tasks, from the newest checkpoint."""

    request: int
    tasks: int


@dataclass(frozen=True, slots=True)
class DriverSuperseded:
    """Another driver has taken over the job: this one must stop, and change nothing."""

    message: str


@dataclass(frozen=True, slots=True)
class DriverFailed:
    """An error inside the driver: the job cannot continue in this process."""

    error: HeadgateError


@dataclass(frozen=True, slots=True)
class EndRecorded:
    """The job log says that the job is over; what is not retained is being deleted."""


@dataclass(frozen=True, slots=True)
class CheckpointsClosed:
    """The answer to `CloseCheckpoints`."""


@dataclass(frozen=True, slots=True)
class TimeElapsed:
    """Nothing happened until now; no event waits."""


JobEvent = (
    StartRequested
    | Settled
    | AttemptSubmitted
    | AttemptRefused
    | WorkerRegistered
    | WorkerRunning
    | WorkerFinished
    | WorkerHeard
    | WorkerDisconnected
    | TaskFailed
    | AttemptEnded
    | CauseFound
    | TasksLeft
    | CancelRequested
    | RescaleRequested
    | DriverSuperseded
    | DriverFailed
    | EndRecorded
    | CheckpointsClosed
    | TimeElapsed
)


# --- instructions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetStatus:
    status: JobStatus


@dataclass(frozen=True, slots=True)
class AwaitSettled:
    """Send `Settled` as soon as it is true."""


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Wait for slots, choose the checkpoint to restore, submit the tasks.

    Answered by `AttemptSubmitted` or `AttemptRefused`.
    """

    attempt: int


@dataclass(frozen=True, slots=True)
class SetCheckpointing:
    """All subtasks run, so checkpoints may be taken; or they may not any more."""

    running: bool


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Tell the workers and the cluster to stop; repeated until `AttemptEnded`."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckTasks:
    """Answer with `TasksLeft`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class CancelTasks:
    """Tell workers that are still connected that their attempt is over."""

    attempt: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker's process from outside, where that is possible: it does not react."""

    attempt: int
    worker: Worker


@dataclass(frozen=True, slots=True)
class RecordLostWorker:
    """Note as a failure of the attempt that a worker died, or (`silent`) that nothing was heard from it."""

    attempt: int
    worker: Worker
    silent: bool


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Remember why an attempt failed, for the user."""

    error: HeadgateError


@dataclass(frozen=True, slots=True)
class FindCause:
    """Answer with `CauseFound`. `stopped`: the attempt ended because it was told to."""

    attempt: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class ApplyRescale:
    """The next attempt runs the plan of this request."""

    request: int


@dataclass(frozen=True, slots=True)
class AnswerRescale:
    request: int
    error: HeadgateError | None = None


@dataclass(frozen=True, slots=True)
class WarnUser:
    message: str


@dataclass(frozen=True, slots=True)
class CloseCheckpoints:
    """The job is over: delete what is not retained, then answer with `CheckpointsClosed`.

    With `keep_all` nothing durable is deleted.
    """

    status: JobStatus
    keep_all: bool


@dataclass(frozen=True, slots=True)
class EndJob:
    """The status is final; nothing follows."""

    status: JobStatus
    error: HeadgateError | None


JobInstruction = (
    SetStatus
    | AwaitSettled
    | StartAttempt
    | SetCheckpointing
    | StopAttempt
    | CheckTasks
    | CancelTasks
    | KillWorker
    | RecordLostWorker
    | RecordFailure
    | FindCause
    | ApplyRescale
    | AnswerRescale
    | WarnUser
    | CloseCheckpoints
    | EndJob
)
