"""The events and instructions of the job machine.

Times are milliseconds of the clock that the caller hands to `JobMachine.handle`. A worker is named by its level and its
index in the level. Events of an attempt carry its number, so that a late one is recognised.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.errors import HeadraceError
from headrace.job.status import JobStatus

Worker = tuple[int, int]


class JobEvent(msgspec.Struct, frozen=True):
    """Something happened to the job."""


class AttemptEvent(JobEvent, frozen=True):
    """Something happened to an attempt."""

    attempt: int


class StartRequested(JobEvent, frozen=True):
    """The job begins."""


class CommitsAnswered(JobEvent, frozen=True):
    """No claim in the job log and no commit on the driver is under way any more."""


class AttemptSubmitted(AttemptEvent, frozen=True):
    """The cluster runs the tasks of an attempt, or is about to; they restore this checkpoint, or None."""

    restored_checkpoint: int | None = None


class AttemptRefused(AttemptEvent, frozen=True):
    """An attempt could not be started.

    `retry`: the cluster or the storage may answer next time; else the program or its configuration does not fit.
    """

    error: HeadraceError
    retry: bool


class WorkerEvent(AttemptEvent, frozen=True):
    worker: Worker


class WorkerRegistered(WorkerEvent, frozen=True):
    """A worker has connected."""


class WorkerRestored(WorkerEvent, frozen=True):
    """A worker has read and verified the state that it starts from."""


class WorkerRunning(WorkerEvent, frozen=True):
    """The subtask of a worker takes records."""


class WorkerFinished(WorkerEvent, frozen=True):
    """The subtask of a worker has finished."""


class WorkerHeard(WorkerEvent, frozen=True):
    """A worker sent something else: it is alive."""


class WorkerDisconnected(WorkerEvent, frozen=True):
    """The connection to a worker has ended."""


class TaskFailed(AttemptEvent, frozen=True):
    """A task, or a part of the job on the driver, reported a failure.

    `certain`: no later report can name a better cause, as when the user's code raised.
    """

    certain: bool = False


class AttemptEnded(AttemptEvent, frozen=True):
    """The cluster runs no task of the attempt any more. `failed`: not because all of them finished."""

    failed: bool


class CauseFound(AttemptEvent, frozen=True):
    """The answer to `FindCause`.

    `cancelled`: the attempt was cancelled in the cluster. `final`: another attempt cannot run, for example because the
    Spark session was stopped. `damaged`: a worker found damage in its checkpoint; the next attempt restores another one, and
    the restart strategy is not asked, or (`final`) there is no other one. `location` (the user's file and line), `operator`
    and `subtask` say where, as far as that is known.
    """

    error: HeadraceError
    cancelled: bool = False
    final: bool = False
    damaged: bool = False
    location: str = ""
    operator: str = ""
    subtask: int | None = None
    traceback: str = ""


class TasksLeft(AttemptEvent, frozen=True):
    """The answer to `CheckTasks`: workers that are connected, and the number of tasks that the cluster still runs."""

    workers: tuple[Worker, ...]
    active: int


class CancelRequested(JobEvent, frozen=True):
    pass


class RescaleRequested(JobEvent, frozen=True):
    """Continue with another plan, of `tasks` tasks, from the newest checkpoint."""

    request: int
    tasks: int


class DriverSuperseded(JobEvent, frozen=True):
    """Another driver has taken over the job: this one must stop, and change nothing."""

    message: str


class DriverFailed(JobEvent, frozen=True):
    """An error inside the driver: the job cannot continue in this process."""

    error: HeadraceError


class EndRecorded(JobEvent, frozen=True):
    """The job log says that the job is over; what is not retained is being deleted."""


class CheckpointsClosed(JobEvent, frozen=True):
    """The answer to `CloseCheckpoints`."""


class TimeElapsed(JobEvent, frozen=True):
    """Nothing happened until now; no event waits."""


class JobInstruction(msgspec.Struct, frozen=True):
    """Something is to be done for the job."""


class AttemptInstruction(JobInstruction, frozen=True):
    attempt: int


class SetStatus(JobInstruction, frozen=True):
    status: JobStatus


class AwaitCommits(JobInstruction, frozen=True):
    """Send `CommitsAnswered` as soon as it is true."""


class StartAttempt(AttemptInstruction, frozen=True):
    """Wait for slots, choose the checkpoint to restore, submit the tasks.

    Answered by `AttemptSubmitted` or `AttemptRefused`.
    """


class StartTasks(JobInstruction, frozen=True):
    """All tasks have restored their state: let them commit what the checkpoint holds, and take records."""

    attempt: int


class SetCheckpointing(JobInstruction, frozen=True):
    """All subtasks run, so checkpoints may be taken; or they may not any more."""

    running: bool


class StopAttempt(AttemptInstruction, frozen=True):
    """Tell the workers and the cluster to stop; repeated until `AttemptEnded`."""

    reason: str


class CheckTasks(AttemptInstruction, frozen=True):
    """Answer with `TasksLeft`."""


class CancelTasks(AttemptInstruction, frozen=True):
    """Tell workers that are still connected that their attempt is over."""


class KillWorker(AttemptInstruction, frozen=True):
    """End a worker's process from outside, where that is possible: it does not react."""

    worker: Worker


Loss = Literal["died", "silent", "unheard"]
"""A worker died, nothing was heard from it for too long, or it ended well, but the driver did not hear all that it sent."""


class RecordLostWorker(AttemptInstruction, frozen=True):
    """Note as a failure of the attempt that a worker was lost."""

    worker: Worker
    loss: Loss


class FindCause(AttemptInstruction, frozen=True):
    """Answer with `CauseFound`. `stopped`: the attempt ended because it was stopped."""

    stopped: bool


class ApplyRescale(JobInstruction, frozen=True):
    """The next attempt runs the plan of this request."""

    request: int


class AnswerRescale(JobInstruction, frozen=True):
    request: int
    error: HeadraceError | None = None


class WarnUser(JobInstruction, frozen=True):
    message: str


class CloseCheckpoints(JobInstruction, frozen=True):
    """The job is over: delete what is not retained, then answer with `CheckpointsClosed`.

    With `keep_all` nothing durable is deleted.
    """

    status: JobStatus
    keep_all: bool


class EndJob(JobInstruction, frozen=True):
    """The status is final; nothing follows."""

    status: JobStatus
    error: HeadraceError | None
