"""The life of a job as a pure state machine: events in, instructions out; no clock, no thread, no Spark.

    CREATED --> AWAITING_COMMITS --> STARTING --> RUNNING --> COMMITTING --> CLOSING --> ENDED
                       ^                |            |                          ^
                       |                |        STOPPING                       |
                       |                |            |                          |
                       |                +----+       v                          |
                       +----- WAITING <------+--- LEAVING ----------------------+

    AWAITING_COMMITS  claims in the job log and commits on the driver, of the attempt before, are answered
    STARTING          slots are found, a checkpoint is chosen, the tasks are submitted
    RUNNING           the cluster runs the attempt: `StartTasks` when all tasks have restored their state,
                      `SetCheckpointing` when all run
    STOPPING          the attempt was told to stop: it failed, is cancelled, or makes room for another plan
    LEAVING           the cluster has ended the attempt; its tasks leave, and the cause of a failure is found
    WAITING           the restart strategy asked for a delay
    COMMITTING        all tasks have finished; the last output is being committed on the driver
    CLOSING           checkpoints are closed: what is not retained is deleted

`MOVES` has every legal move; any other raises IllegalState with the phases before it. The caller (`driver/job_master.py`,
and the simulator through it) carries out the instructions and reports what came of them. A job that never ran deletes nothing when it ends, and neither does one whose driver failed or was superseded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.errors import HeadraceError, IllegalState, JobCancelled, JobFailed
from headrace.job import job_events as ev
from headrace.job.restart import RestartStrategy
from headrace.job.status import LEGAL_MOVES, ExecutionState, JobStatus
from headrace.job.story import AttemptOutcome, Cause, Story
from headrace.lifecycle import Lifecycle


class Phase(Enum):
    CREATED = auto()
    AWAITING_COMMITS = auto()
    STARTING = auto()
    RUNNING = auto()
    STOPPING = auto()
    LEAVING = auto()
    WAITING = auto()
    COMMITTING = auto()
    CLOSING = auto()
    ENDED = auto()


_P = Phase

MOVES: Mapping[Phase, frozenset[Phase]] = {
    _P.CREATED: frozenset({_P.AWAITING_COMMITS, _P.CLOSING, _P.ENDED}),
    _P.AWAITING_COMMITS: frozenset({_P.STARTING, _P.CLOSING, _P.ENDED}),
    _P.STARTING: frozenset({_P.RUNNING, _P.WAITING, _P.CLOSING, _P.ENDED}),
    _P.RUNNING: frozenset({_P.STOPPING, _P.LEAVING, _P.COMMITTING, _P.ENDED}),
    _P.STOPPING: frozenset({_P.LEAVING, _P.COMMITTING, _P.ENDED}),
    _P.LEAVING: frozenset({_P.WAITING, _P.AWAITING_COMMITS, _P.CLOSING, _P.ENDED}),
    _P.WAITING: frozenset({_P.AWAITING_COMMITS, _P.CLOSING, _P.ENDED}),
    _P.COMMITTING: frozenset({_P.CLOSING, _P.LEAVING, _P.ENDED}),
    _P.CLOSING: frozenset({_P.ENDED}),
    _P.ENDED: frozenset(),
}
"""Every phase may end at once, since the caller may `abandon` the job. A job that was told to stop may finish all the same,
and the last commit of one that has finished may fail."""


class _Next(Enum):
    """The step that follows when the tasks of an attempt have left."""

    RESTART = auto()
    RESCALE = auto()
    CANCELED = auto()
    FAILED = auto()


_STATES = {
    Phase.CREATED: ExecutionState.CREATED,
    Phase.AWAITING_COMMITS: ExecutionState.CREATED,
    Phase.STARTING: ExecutionState.SCHEDULED,
    Phase.STOPPING: ExecutionState.CANCELING,
    Phase.COMMITTING: ExecutionState.FINISHED,
}
"""The state of every task that has not finished, in phases in which it is the same for all."""

_OUTCOMES = {
    _Next.RESTART: AttemptOutcome.FAILED,
    _Next.RESCALE: AttemptOutcome.RESCALED,
    _Next.CANCELED: AttemptOutcome.CANCELED,
    _Next.FAILED: AttemptOutcome.FAILED,
}


_ENDS = {
    JobStatus.FINISHED: AttemptOutcome.FINISHED,
    JobStatus.CANCELED: AttemptOutcome.CANCELED,
    JobStatus.FAILED: AttemptOutcome.FAILED,
}
"""The outcome of the last attempt, by the status that the job ends with."""


def _cause(found: ev.CauseFound) -> Cause:
    return Cause(
        str(found.error),
        type(found.error).__name__,
        found.location or None,
        found.operator or None,
        found.subtask,
        found.traceback or None,
    )


def _failure_of(job: str, restarts: int, error: HeadraceError) -> JobFailed:
    tries = f" after {restarts} restarts" if restarts else ""
    failed = JobFailed(f"job '{job}' failed{tries}: {error}")
    failed.__cause__ = error
    return failed


@dataclass(frozen=True, slots=True)
class Timing:
    """The waiting times of the machine, in milliseconds."""

    better_cause: int = 1_000  # the first report may come from a victim; the culprit's own follows a moment later
    stop_again: int = 200  # a task may register, or the job be submitted, after it was told to stop
    poll_tasks: int = 50
    tasks_leave: int = 30_000
    kill: int = 6_000  # after that a worker that was told to leave is killed
    cancel_commits: int = 1_000  # how long a cancelled job waits for the last commits
    record_end: int = 60_000  # how long an ended job waits for claims in the job log
    record_cancelled_end: int = 5_000
    delete: int = 600_000
    silence: int = 20_000  # a worker that is not heard for this long is lost
    late: int = 1_000  # a driver that notices silence this much too late stood still


@dataclass(slots=True)
class _Attempt:
    number: int
    tasks: int
    registered: dict[ev.Worker, int] = field(default_factory=dict)  # when; so for the next ones
    restored: dict[ev.Worker, int] = field(default_factory=dict)
    running: dict[ev.Worker, int] = field(default_factory=dict)
    finished: dict[ev.Worker, int] = field(default_factory=dict)
    heard: dict[ev.Worker, int] = field(default_factory=dict)
    failing_since: int | None = None
    stop_reason: str | None = None
    ended_at: int = 0
    next: _Next | None = None
    all_ran: bool = False

    def times(self, worker: ev.Worker) -> dict[ExecutionState, int]:
        """Return the time at which the task entered each of its states."""
        seen = {
            ExecutionState.INITIALIZING: self.registered.get(worker),
            ExecutionState.RUNNING: self.running.get(worker),
            ExecutionState.FINISHED: self.finished.get(worker),
        }
        return {state: at for state, at in seen.items() if at is not None}

    def silent(self, now: int, timing: Timing) -> list[ev.Worker]:
        """The workers that were not heard for too long.

        If the driver itself stood still, its workers may have stood still with it: they have their time again.
        """
        if self.heard and now > min(self.heard.values()) + timing.silence + timing.late:
            self.heard.update(dict.fromkeys(self.heard, now))
        return [worker for worker, at in self.heard.items() if now - at > timing.silence]


class JobMachine:
    """Decides what happens next in the life of one job."""

    def __init__(self, name: str, tasks: int, restart: RestartStrategy, timing: Timing | None = None) -> None:
        self.name = name
        self.status = JobStatus.CREATED
        self._life = Lifecycle(f"job '{name}'", MOVES, Phase.CREATED, now=0)
        self.restarts = 0
        self.error: HeadraceError | None = None
        self.timing = timing or Timing()
        self.story = Story()
        self._tasks, self._restart = tasks, restart
        self._attempt = _Attempt(0, tasks)
        self._alarm: int | None = None
        self._rescale: ev.RescaleRequested | None = None
        self._ever_ran = self._cancelled = self._must_keep = self._rescaled = False
        self._restart_at = 0
        self._final = JobStatus.FINISHED
        self._now = 0
        self._out: list[ev.JobInstruction] = []

    # --- what the caller reads --------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """May be read by any thread."""
        return self._life.state

    @property
    def attempt(self) -> int:
        return self._attempt.number

    @property
    def all_running(self) -> bool:
        return self.phase is Phase.RUNNING and self._attempt.all_ran and self._attempt.failing_since is None

    @property
    def restoring(self) -> bool:
        """Return True if some task of the attempt has not restored its state yet."""
        return len(self._attempt.restored) < self._attempt.tasks

    def task_state(self, worker: ev.Worker) -> ExecutionState:
        """The state of a task; may be called by any thread."""
        attempt, phase = self._attempt, self.phase
        if worker in attempt.finished:
            return ExecutionState.FINISHED
        if phase in _STATES:
            return _STATES[phase]
        if phase in (Phase.LEAVING, Phase.WAITING, Phase.CLOSING, Phase.ENDED):
            ended = self.status is JobStatus.CANCELED or self.status is JobStatus.CANCELLING
            return ExecutionState.CANCELED if ended or attempt.next is _Next.RESCALE else ExecutionState.FAILED
        if worker in attempt.running:
            return ExecutionState.RUNNING
        return ExecutionState.INITIALIZING if worker in attempt.registered else ExecutionState.DEPLOYING

    def task_times(self, worker: ev.Worker) -> dict[ExecutionState, int]:
        """Return the time at which a task entered each of its states; may be called by any thread."""
        return self._attempt.times(worker)

    def is_starting(self, attempt: int) -> bool:
        return self.phase is Phase.STARTING and self._attempt.number == attempt

    def next_alarm(self) -> int | None:
        """Return the time at which `TimeElapsed` has an effect, if nothing happens before."""
        alarms = [] if self._alarm is None else [self._alarm]
        if self.phase is Phase.RUNNING and self._attempt.heard:
            alarms.append(min(self._attempt.heard.values()) + self.timing.silence + 1)
        return min(alarms, default=None)

    # --- events -----------------------------------------------------------------------------------------------------

    def handle(self, event: ev.JobEvent, now: int) -> list[ev.JobInstruction]:
        """Process one event; return the instructions to carry out, in order."""
        self._now, self._out = now, []
        late = isinstance(event, ev.AttemptEvent) and event.attempt != self._attempt.number
        if self.phase is not Phase.ENDED and not late:
            self._dispatch(event)
            if self._alarm is not None and now >= self._alarm:
                self._alarm = None
                self._on_alarm()
        return self._out

    def _dispatch(self, event: ev.JobEvent) -> None:
        match event:
            case ev.StartRequested():
                self.story.statuses[self.status] = self._now
                self._await_commits()
            case ev.CommitsAnswered():
                self._on_commits_answered()
            case ev.AttemptSubmitted(_, restored_checkpoint) if self.phase is Phase.STARTING:
                self._enter(Phase.RUNNING)
                self.story.submitted(restored_checkpoint)
            case ev.AttemptRefused(_, error, retry):
                self._on_refused(error, retry)
            case ev.WorkerRegistered(_, worker):
                self._attempt.heard[worker] = self._attempt.registered[worker] = self._now
                if len(self._attempt.registered) == self._attempt.tasks:
                    self.story.deployed(self._now)
            case ev.WorkerRestored(_, worker):
                self._on_restored(worker)
            case ev.WorkerRunning(_, worker):
                self._on_running(worker)
            case ev.WorkerFinished(_, worker):
                self._attempt.finished[worker] = self._now
                self._attempt.heard.pop(worker, None)
            case ev.WorkerHeard(_, worker) if worker in self._attempt.heard:
                self._attempt.heard[worker] = self._now
            case ev.WorkerDisconnected(_, worker):
                self._attempt.heard.pop(worker, None)
                if self.phase is Phase.RUNNING and worker not in self._attempt.finished:
                    self._lose(worker, "died")
            case ev.TaskFailed(_, certain):
                self._on_failed(certain)
            case ev.AttemptEnded(_, failed):
                self._on_attempt_ended(failed)
            case ev.TasksLeft(_, workers, active):
                self._on_tasks_left(workers, active)
            case ev.CauseFound():
                self._on_cause(event)
            case ev.CancelRequested():
                self._on_cancel()
            case ev.RescaleRequested():
                self._on_rescale(event)
            case ev.DriverSuperseded(message):
                self._on_superseded(JobFailed(message))
            case ev.DriverFailed(error):
                self._stop_for_good(error)
            case ev.EndRecorded() if self.phase is Phase.CLOSING:
                self._alarm = self._now + self.timing.delete
            case ev.CheckpointsClosed() if self.phase is Phase.CLOSING:
                self._end()
            case ev.TimeElapsed():
                self._check_silence()

    # --- starting ---------------------------------------------------------------------------------------------------

    def _await_commits(self) -> None:
        self._enter(Phase.AWAITING_COMMITS)
        self.story.begin(self._attempt.number, self._now)
        self._emit(ev.AwaitCommits())

    def _on_commits_answered(self) -> None:
        if self.phase is Phase.AWAITING_COMMITS:
            self._enter(Phase.STARTING)
            self._emit(ev.StartAttempt(self._attempt.number))
        elif self.phase is Phase.COMMITTING:
            self._close(JobStatus.FINISHED)

    def _next_attempt(self) -> None:
        self._attempt = _Attempt(self._attempt.number + 1, self._tasks)
        self._await_commits()

    def _on_refused(self, error: HeadraceError, retry: bool) -> None:
        """Starting is retried as failing is; nothing was changed, so nothing has to be stopped."""
        if self.phase is not Phase.STARTING:
            return
        self._decide_restart(ev.CauseFound(self._attempt.number, error, final=not retry))
        self._must_keep = self._attempt.next is _Next.FAILED  # what could not be restored now may be restored later
        self._proceed()

    def _on_restored(self, worker: ev.Worker) -> None:
        """Nothing may be committed before all state is verified: the attempt may step back to an older checkpoint."""
        attempt = self._attempt
        attempt.restored[worker] = self._now
        if self.phase is Phase.RUNNING and attempt.failing_since is None and not self.restoring:
            self._emit(ev.StartTasks(attempt.number))

    def _on_running(self, worker: ev.Worker) -> None:
        attempt = self._attempt
        attempt.running.setdefault(worker, self._now)
        if self.phase is not Phase.RUNNING or attempt.failing_since is not None or attempt.all_ran:
            return
        if len(attempt.running) == attempt.tasks:
            attempt.all_ran = self._ever_ran = True
            self.story.running(self._now)
            self._set_status(JobStatus.RUNNING)
            self._emit(ev.SetCheckpointing(True))
            if self._rescale is not None and self._rescaled:
                self._answer_rescale(None)

    # --- failing and stopping ---------------------------------------------------------------------------------------

    def _check_silence(self) -> None:
        """A worker that hangs keeps its connection but sends nothing. Judged only when no event waits."""
        if self.phase is Phase.RUNNING:
            for worker in self._attempt.silent(self._now, self.timing):
                del self._attempt.heard[worker]
                self._lose(worker, "silent")

    def _lose(self, worker: ev.Worker, loss: ev.Loss) -> None:
        self._emit(ev.RecordLostWorker(self._attempt.number, worker, loss))
        self._on_failed(certain=False)

    def _on_failed(self, certain: bool) -> None:
        if self.phase is Phase.COMMITTING:  # the last commit failed: the restored checkpoint holds its output
            self._fail_status()
            self._leave()
        elif self.phase is Phase.RUNNING:
            if self._attempt.failing_since is None:
                self._attempt.failing_since = self._now
                self._fail_status()
                self._alarm = self._now + self.timing.better_cause
            if certain:
                self._stop("another subtask failed")

    def _fail_status(self) -> None:
        self.story.stopping(self._now)
        self._set_status(JobStatus.FAILING)
        self._emit(ev.SetCheckpointing(False))

    def _stop(self, reason: str) -> None:
        self._enter(Phase.STOPPING)
        self.story.stopping(self._now)
        self._attempt.stop_reason = reason
        self._on_alarm()

    def _on_attempt_ended(self, failed: bool) -> None:
        """An attempt that ended well counts only if the driver has heard it from each worker: results come before that."""
        if self.phase not in (Phase.RUNNING, Phase.STOPPING):
            return
        attempt = self._attempt
        if not failed and attempt.failing_since is None and self.phase is Phase.RUNNING:
            for worker in attempt.registered:
                if worker not in attempt.finished:
                    self._emit(ev.RecordLostWorker(attempt.number, worker, "unheard"))
        unheard = len(attempt.finished) < attempt.tasks
        if failed or unheard or attempt.failing_since is not None or self._must_keep:
            if self.status is JobStatus.RUNNING or self.status is JobStatus.CREATED:
                self._fail_status()
            self._leave()
            return
        self._enter(Phase.COMMITTING)
        if self._cancelled:
            self._alarm = self._now + self.timing.cancel_commits
        self._emit(ev.AwaitCommits())

    def _leave(self) -> None:
        self._enter(Phase.LEAVING)
        self.story.stopping(self._now)
        self._attempt.ended_at = self._now
        self._alarm = self._now + self.timing.poll_tasks  # also if the answer to the first question is lost
        self._emit(ev.CheckTasks(self._attempt.number))

    def _on_tasks_left(self, workers: tuple[ev.Worker, ...], active: int) -> None:
        if self.phase is not Phase.LEAVING:
            return
        attempt, timing = self._attempt, self.timing
        gone, waited = not workers and active == 0, self._now - attempt.ended_at
        if attempt.next is None and (gone or waited >= timing.better_cause):
            self._emit(ev.FindCause(attempt.number, attempt.stop_reason is not None))
        if not gone:
            self._emit(ev.CancelTasks(attempt.number))
            if waited > timing.kill:
                for worker in workers:
                    self._emit(ev.KillWorker(attempt.number, worker))
        if attempt.next is not None:
            if waited > timing.tasks_leave and not gone:
                self._warn(f"attempt {attempt.number + 1} is over, but some of its tasks still run; they are ignored")
            if gone or waited > timing.tasks_leave:
                self._proceed()
                return
        self._alarm = self._now + timing.poll_tasks

    def _on_cause(self, event: ev.CauseFound) -> None:
        if self.phase is not Phase.LEAVING or self._attempt.next is not None:
            return
        if self._must_keep:
            self._attempt.next = _Next.FAILED
        elif self._cancelled or event.cancelled:
            self.error = event.error if event.cancelled else None  # says who did it, if it was not the user of this job
            self._cancelled = True
            self._set_status(JobStatus.CANCELLING)
            self._attempt.next = _Next.CANCELED
        elif self._rescale is not None and not self._rescaled and not event.final:
            self._set_status(JobStatus.RESTARTING)
            self._attempt.next = _Next.RESCALE
        elif event.damaged and not event.final:
            self._set_status(JobStatus.RESTARTING)
            self.story.failed(_cause(event))
            self._restart_at, self._attempt.next = self._now, _Next.RESTART
        else:
            self._decide_restart(event)
            self._must_keep = event.damaged  # what cannot be restored now may be restored when it is repaired
        self._emit(ev.CheckTasks(self._attempt.number))

    def _decide_restart(self, found: ev.CauseFound) -> None:
        """Ask the restart strategy, which counts the failure."""
        attempt, error, final = self._attempt, found.error, found.final
        self.story.failed(_cause(found))
        delay = None if final else self._restart.on_failure(self._now)
        if delay is None:
            began = bool(self._ever_ran or self.restarts or not final)
            self.error = _failure_of(self.name, self.restarts, error) if began else error
            attempt.next = _Next.FAILED
        else:
            self._set_status(JobStatus.RESTARTING)
            self._warn(f"attempt {attempt.number + 1} failed, restarting in {delay:.1f} s: {error}")
            self._restart_at = self._now + round(delay * 1000)
            attempt.next = _Next.RESTART

    def _proceed(self) -> None:
        """All tasks of the attempt have left."""
        self.story.end(_OUTCOMES[self._attempt.next or _Next.RESTART], self._now)
        match self._attempt.next:
            case _Next.CANCELED:
                self._close(JobStatus.CANCELED)
            case _Next.FAILED:
                self._close(JobStatus.FAILED)
            case _Next.RESCALE if self._rescale is not None:
                self._rescaled = True
                self._tasks = self._rescale.tasks
                self._emit(ev.ApplyRescale(self._rescale.request))
                self._next_attempt()
            case _:
                self._enter(Phase.WAITING)
                self._alarm = max(self._restart_at, self._now)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _on_cancel(self) -> None:
        if self._cancelled or self._must_keep:
            return
        self._cancelled = True
        match self.phase:
            case Phase.CREATED | Phase.AWAITING_COMMITS | Phase.STARTING | Phase.WAITING:
                self._close(JobStatus.CANCELED)
            case Phase.RUNNING:
                self._set_status(JobStatus.CANCELLING)
                self._emit(ev.SetCheckpointing(False))
                self._stop("the job was cancelled")
            case Phase.STOPPING:
                self._set_status(JobStatus.CANCELLING)
            case Phase.LEAVING:
                if self._attempt.next is not _Next.FAILED:
                    self._set_status(JobStatus.CANCELLING)
                    self._attempt.next = self._attempt.next and _Next.CANCELED
            case Phase.COMMITTING:
                self._alarm = self._now + self.timing.cancel_commits
            case Phase.CLOSING:
                limit = self._now + self.timing.record_cancelled_end
                self._alarm = limit if self._alarm is None else min(self._alarm, limit)

    def _on_rescale(self, event: ev.RescaleRequested) -> None:
        if not self.all_running or self._rescale is not None:
            text = f"job '{self.name}' is restarting, or is being rescaled already: try again when it runs"
            self._emit(ev.AnswerRescale(event.request, IllegalState("HR-3009", text)))
            return
        self._rescale, self._rescaled = event, False
        self._set_status(JobStatus.RESTARTING)
        self._emit(ev.SetCheckpointing(False))
        self._stop("the job continues with another parallelism")

    def _answer_rescale(self, error: HeadraceError | None) -> None:
        if self._rescale is not None:
            self._emit(ev.AnswerRescale(self._rescale.request, error))
            self._rescale = None

    def _on_superseded(self, error: HeadraceError) -> None:
        """Another driver runs the job; a job that this driver saw finish has not finished if its end was not recorded."""
        if self.phase is Phase.CLOSING and self._final is JobStatus.FINISHED:
            self._final, self.error = JobStatus.FAILED, error
            self._set_status(JobStatus.FAILING)
        self._stop_for_good(error)

    def _stop_for_good(self, error: HeadraceError) -> None:
        """This driver must not continue the job, and must not delete anything of it."""
        if self._must_keep or self.phase is Phase.CLOSING:
            self._must_keep = True
            return
        self._must_keep, self.error = True, error
        self.story.failed(_cause(ev.CauseFound(self._attempt.number, error)))
        if self.phase is Phase.RUNNING:
            self._fail_status()
            self._stop("the driver stopped")
        elif self.phase is Phase.LEAVING:
            self._attempt.next = _Next.FAILED
            self._alarm = self._now + self.timing.poll_tasks
        elif self.phase is not Phase.STOPPING:
            self._close(JobStatus.FAILED)

    def abandon(self, error: HeadraceError) -> None:
        """End at once, whatever the phase: the caller cannot carry out instructions any more."""
        if self.phase is not Phase.ENDED:
            self._enter(Phase.ENDED)
        self.status, self.error = JobStatus.FAILED, error
        self.story.failed(_cause(ev.CauseFound(self._attempt.number, error)))
        self.story.end(AttemptOutcome.FAILED, self._now)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _close(self, status: JobStatus) -> None:
        if status is JobStatus.CANCELED:
            self._set_status(JobStatus.CANCELLING)
            self.error = self.error or JobCancelled(f"job '{self.name}' was cancelled")
        elif status is JobStatus.FAILED:
            self._set_status(JobStatus.FAILING)
        self._final = status
        self._enter(Phase.CLOSING)
        self.story.end(_ENDS[status], self._now)
        self._answer_rescale(IllegalState("HR-3009", f"job '{self.name}' has ended"))
        keep_all = self._must_keep or (status is not JobStatus.FINISHED and not self._ever_ran)
        self._emit(ev.CloseCheckpoints(status, keep_all))
        wait = self.timing.record_cancelled_end if self._cancelled else self.timing.record_end
        self._alarm = self._now + wait

    def _end(self) -> None:
        self._enter(Phase.ENDED)
        self._set_status(self._final)
        self._emit(ev.EndJob(self._final, self.error))

    # --- time -------------------------------------------------------------------------------------------------------

    def _on_alarm(self) -> None:
        match self.phase:
            case Phase.RUNNING:  # no better cause was reported
                self._stop("another subtask failed")
            case Phase.STOPPING:
                assert self._attempt.stop_reason is not None
                self._emit(ev.StopAttempt(self._attempt.number, self._attempt.stop_reason))
                self._alarm = self._now + self.timing.stop_again
            case Phase.LEAVING:
                self._emit(ev.CheckTasks(self._attempt.number))
            case Phase.WAITING:
                self.restarts += 1
                self._next_attempt()
            case Phase.COMMITTING:
                self._close(JobStatus.CANCELED)
            case Phase.CLOSING:
                self._warn("the job has ended, but its checkpoints are not closed: `headrace gc` finds files left over")
                self._end()

    def _enter(self, phase: Phase) -> None:
        self._life.move(phase, self._now, f"attempt {self._attempt.number}, status {self.status.value}")
        self._alarm = None

    def _set_status(self, status: JobStatus) -> None:
        if status is self.status:
            return
        if status not in LEGAL_MOVES[self.status]:
            move = f"job '{self.name}' cannot move from {self.status.value} to {status.value} at {self._now}"
            raise IllegalState(f"{move}; its story: {self._life.story}")
        self.status = status
        self.story.statuses[status] = self._now
        self._emit(ev.SetStatus(status))

    def _warn(self, message: str) -> None:
        self._emit(ev.WarnUser(message))

    def _emit(self, instruction: ev.JobInstruction) -> None:
        self._out.append(instruction)
