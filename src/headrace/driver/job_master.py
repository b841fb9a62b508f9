"""The shell around the job machine: carries out its instructions and reports what came of them.

It runs in the driver's process. `handle` and `on_idle` are called by one thread, the job's; it never waits there: what
takes time runs in the pools of `DriverIo`, and its result is an event. The simulator calls the same methods.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.checkpoint.decider import RequestId
from headrace.checkpoint.events import RequestDone, StopRequested, UserRequest
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.plan import TaskId
from headrace.checkpoint.settings import EndStatus
from headrace.config import Configuration
from headrace.control import messages as msg
from headrace.driver.answers import Answers
from headrace.driver.checkpoint_service import CheckpointService, Choice
from headrace.driver.cluster import AttemptOver, Cluster, Submission, WorkerMessage
from headrace.driver.metrics_history import MetricsHistory
from headrace.driver.probes import Probes, Question
from headrace.driver.services import DriverIo, JobPort
from headrace.driver.spans import Spans
from headrace.errors import HeadraceError, IllegalState, JobFailed, NotEnoughSlots, StorageError, UserCodeError
from headrace.graph.plan import JobPlan
from headrace.ids import JobId, VertexId
from headrace.job import job_events as ev
from headrace.job.machine import JobMachine, Phase, Timing
from headrace.job.restart import RestartStrategy
from headrace.job.status import JobStatus
from headrace.storage.objects import MissingObject

_LOG = logging.getLogger(__name__)
_END_STATUS = {
    JobStatus.FINISHED: EndStatus.FINISHED,
    JobStatus.CANCELED: EndStatus.CANCELED,
    JobStatus.FAILED: EndStatus.FAILED,
}
"""The end of the job as retention distinguishes it."""

OnOutput = Callable[[str, bytes, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Call:
    """A function to be called in the job's thread."""

    function: Callable[[], None]


MasterEvent = ev.JobEvent | WorkerMessage | AttemptOver | Call


class JobMaster:
    """Runs one job on a cluster, from its start to its end, over any number of attempts.

    `post` hands an event to the job's thread, from any thread. `on_output(channel, payload, confirm)` gets printed lines
    and collected records; it calls confirm when it took them.
    """

    def __init__(
        self,
        plan: JobPlan,
        job_id: JobId,
        configuration: Configuration,
        restart: RestartStrategy,
        cluster: Cluster,
        post: Callable[[MasterEvent], None],
        *,
        io: DriverIo,
        timing: Timing | None = None,
        on_output: OnOutput | None = None,
        on_change: Callable[[], None] = lambda: None,
        spark: Any = None,
    ) -> None:
        """`on_change` is called when the status or the set of running subtasks has changed."""
        self.plan, self.job_id, self.configuration = plan, job_id, configuration
        self.machine = JobMachine(plan.name, plan.layout.slots, restart, timing)
        self.service: CheckpointService | None = None
        self._workers: dict[ev.Worker, msg.Register] = {}
        self.history = MetricsHistory()
        self.probes = Probes()
        # Called when all data is processed: nothing continues the job.
        self.when_finished: list[Callable[[], None]] = []
        self.closed = False
        self.stopped = False  # with a savepoint, from which the job may be continued
        self.cluster, self.io, self._post, self._spark = cluster, io, post, spark
        self._on_output, self._on_change = on_output, on_change
        self._failures: list[msg.Failed] = []
        self._cluster_error: BaseException | None = None
        self._pending: deque[ev.JobEvent] = deque()
        self._handling = False
        self._opened = False
        self._awaiting_commits = self._closing = self._end_recorded = False
        self._cleaning = 0
        self._rescales: dict[int, tuple[JobPlan, Future[None]]] = {}
        self._answers = Answers()

    # --- the job's thread -------------------------------------------------------------------------------------------

    def handle(self, event: MasterEvent) -> None:
        """Handle one event, and everything that follows from it at once."""
        try:
            self._dispatch(event)
            if self.service is not None:
                self.service.tick()
            self._check_answers()
        except Exception as error:  # the job cannot continue in this driver, and must not harm what is stored
            self._fail_driver(self._as_driver_error(error))

    def _fail_driver(self, failure: HeadraceError) -> None:
        self._handling = False
        self._pending.clear()
        try:
            self._tell(ev.DriverFailed(failure))
            self._check_answers()
        except Exception:  # not even that can be carried out: workers end when they lose the driver
            _LOG.exception("job '%s' ends at once: its driver failed while it stopped the job", self.plan.name)
            self.machine.abandon(failure)
            self._end()

    def on_idle(self) -> None:
        """Time has passed, and no event waits."""
        self.handle(ev.TimeElapsed())

    def next_alarm(self) -> int | None:
        """Return the time at which `on_idle` has an effect, if nothing happens before."""
        alarms = [self.machine.next_alarm(), None if self.service is None else self.service.next_alarm()]
        return min((at for at in alarms if at is not None), default=None)

    @property
    def ended(self) -> bool:
        return self.machine.phase is Phase.ENDED

    def _dispatch(self, event: MasterEvent) -> None:
        if isinstance(event, Call):
            event.function()
        elif isinstance(event, WorkerMessage):
            if event.attempt == self.machine.attempt:
                self._on_message(event)
        elif isinstance(event, AttemptOver):
            if event.attempt == self.machine.attempt:
                self._cluster_error = event.error
                self._tell(ev.AttemptEnded(event.attempt, event.error is not None))
        else:
            self._tell(event)

    def _tell(self, event: ev.JobEvent) -> None:
        """Hand an event to the machine, after those that wait."""
        self._pending.append(event)
        if self._handling:
            return
        self._handling = True
        while self._pending:
            for instruction in self.machine.handle(self._pending.popleft(), self.io.now()):
                self._carry_out(instruction)
        self._handling = False

    def _carry_out(self, do: ev.JobInstruction) -> None:
        match do:
            case ev.SetStatus():
                self._on_change()
            case ev.AwaitCommits():
                self._awaiting_commits = True
            case ev.StartAttempt(attempt):
                self._failures, self._cluster_error = [], None
                self._workers = {}
                self.history.clear()
                self.probes.release()
                self.io.starts.submit(self._prepare_attempt, attempt)
            case ev.StartTasks(attempt):
                for worker in self._workers:
                    self.cluster.send(attempt, worker, msg.StartProcessing())
            case ev.SetCheckpointing(running):
                if self.service is not None:
                    self.service.job_running(running)
                if running and (tracer := self.io.tracer) is not None:
                    story = self.machine.story
                    started = story.attempts[-1]
                    spans = Spans(tracer, self.job_id, self.plan.name)
                    self.io.spans.submit(spans.initialization, started, story.phases(started))
            case ev.StopAttempt(attempt, reason):
                self.cluster.stop(attempt, reason)
            case ev.CheckTasks(attempt):
                self._tell(ev.TasksLeft(attempt, *self.cluster.tasks_left(attempt)))
            case ev.CancelTasks(attempt):
                self.cluster.cancel_tasks(attempt)
            case ev.KillWorker(attempt, worker):
                if worker in self._workers:
                    self.cluster.kill(attempt, self._workers[worker])
            case ev.RecordLostWorker():
                self._record_lost_worker(do)
            case ev.FindCause():
                self._find_cause(do)
            case ev.ApplyRescale(request):
                self.plan, _ = self._rescales[request]
                if self.service is not None:
                    self.service.replan(self.plan)
            case ev.AnswerRescale(request, failure):
                answer = self._rescales[request][1]
                answer.set_result(None) if failure is None else answer.set_exception(failure)
            case ev.WarnUser(message):
                self.io.warn(f"job '{self.plan.name}': {message}")
            case ev.CloseCheckpoints(status, keep_all):
                if self.service is not None:
                    self.service.end(EndStatus.SUSPENDED if keep_all else _END_STATUS[status])
                self._closing = True
            case ev.EndJob():
                self._end()

    def _check_answers(self) -> None:
        """Events that are conditions rather than messages."""
        if self._awaiting_commits and (self.service is None or not self.service.commits_under_way):
            self._awaiting_commits = False
            self._tell(ev.CommitsAnswered())
        if self._closing and self.service is not None and self.service.end_recorded and not self._end_recorded:
            self._end_recorded = True
            self._clean_up_finished_job()
            self._tell(ev.EndRecorded())
        if self._closing and not self._cleaning and (self.service is None or self.service.ended):
            self._closing = False
            self._tell(ev.CheckpointsClosed())

    def _on_message(self, event: WorkerMessage) -> None:
        worker, message, attempt = event.worker, event.message, event.attempt
        slot = self.plan.layout.levels[worker[0]][worker[1]]
        if isinstance(message, msg.Register):
            self._workers[worker] = message
        if self.service is not None and not slot.relay:
            self.service.on_message(TaskId(slot.vertex, slot.subtask), message)
        match message:
            case msg.Output():
                self._tell(ev.WorkerHeard(attempt, worker))
                confirm = lambda: self.cluster.send(attempt, worker, msg.Confirm(1))  # noqa: E731 - one use
                if self._on_output is not None:
                    self._on_output(message.channel, message.payload, confirm)
            case msg.Metrics():
                self.history.add(worker, self.io.now(), message)
                self._tell(ev.WorkerHeard(attempt, worker))
            case msg.StackSample() | msg.RecordSample():
                self.probes.answered(worker, message)
                self._tell(ev.WorkerHeard(attempt, worker))
            case msg.Register():
                self._tell(ev.WorkerRegistered(attempt, worker))
            case msg.Restored():
                self._tell(ev.WorkerRestored(attempt, worker))
            case msg.Running():
                self._tell(ev.WorkerRunning(attempt, worker))
                self._on_change()
            case msg.Finished():
                self._tell(ev.WorkerFinished(attempt, worker))
            case msg.Failed():
                self._failures.append(msgspec.structs.replace(message, subtask=slot.subtask))
                self._tell(ev.TaskFailed(attempt, certain=message.kind in ("user", "damaged")))
            case _:
                self._tell(ev.WorkerHeard(attempt, worker))

    def _as_driver_error(self, error: BaseException) -> HeadraceError:
        if isinstance(error, HeadraceError):
            return error
        failed = JobFailed(f"job '{self.plan.name}' failed in the driver: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _prepare_attempt(self, number: int) -> None:
        """In a thread that may wait: open what is not open yet, wait for slots, choose what to restore."""
        try:
            if not self._opened:
                self.cluster.open()
                self._opened = True
            if not self.machine.is_starting(number):  # the job was cancelled meanwhile
                if self.closed:
                    self.cluster.close()
                return
            service = self.service
            if service is None:
                service = self._make_service()
                self._post(Call(lambda: self._adopt(service)))
            self.cluster.wait_for_slots(service.plan, lambda: not self.machine.is_starting(number))
            choice = service.choose()
            self._post(Call(lambda: self._submit(number, service, choice)))
        except HeadraceError as error:
            self._post(ev.AttemptRefused(number, error, _may_work_later(error, number)))
        except Exception as error:
            self._post(ev.DriverFailed(self._as_driver_error(error)))

    def _make_service(self) -> CheckpointService:
        port = JobPort(
            self._send,
            lambda function: self._post(Call(function)),
            self._fail_attempt,
            lambda message: self._tell(ev.DriverSuperseded(message)),
        )
        return CheckpointService(self.plan, self.job_id, self.configuration, port, self.io, self._spark)

    def _adopt(self, service: CheckpointService) -> None:
        """A resumed job has the id, and the number of key groups, of the job that it continues."""
        self.service, self.job_id, self.plan = service, service.job_id, service.plan

    def _submit(self, number: int, service: CheckpointService, choice: Choice) -> None:
        if not self.machine.is_starting(number):
            return
        try:
            restore = service.start_attempt(number, choice)
            submission = Submission(self.plan, self.job_id, number, restore, service.worker_storage())
            self.cluster.submit(submission)
        except HeadraceError as error:
            self._tell(ev.AttemptRefused(number, error, _may_work_later(error, number)))
            return
        self._tell(ev.AttemptSubmitted(number, None if choice.checkpoint is None else choice.checkpoint.id))

    def _send(self, task: TaskId, message: msg.FromDriver) -> None:
        """Send to a subtask. Between two attempts nothing is sent: the next one gets its messages when it runs."""
        if self.machine.phase not in (Phase.RUNNING, Phase.STOPPING):
            return
        worker = self.plan.worker_of(task.vertex, task.subtask)
        if worker not in self._workers:
            self._fail_attempt(
                f"{type(message).__name__} was sent to {self.plan.task_name(*worker)}, which has not connected yet; "
                "report this as a bug"
            )
            return
        self.cluster.send(self.machine.attempt, worker, message)

    def _fail_attempt(self, message: str) -> None:
        self._failures.append(msg.Failed(message, "", kind="runtime"))
        self._tell(ev.TaskFailed(self.machine.attempt))

    def _record_lost_worker(self, do: ev.RecordLostWorker) -> None:
        register, name = self._workers[do.worker], self.plan.task_name(*do.worker)
        process = f"(process {register.pid} on {register.host})"
        seconds = f"{self.machine.timing.silence / 1000:.0f} s"
        what = {
            "died": f"died {process}",
            "silent": f"was not heard for {seconds} {process}",
            "unheard": f"ended {process}, but the driver did not hear all that it sent",
        }[do.loss]
        subtask = self.plan.layout.levels[do.worker[0]][do.worker[1]].subtask
        lost = msg.Failed(f"the worker of {name} {what}", "", operator=name, kind="lost", subtask=subtask)
        self._failures.append(lost)

    def _find_cause(self, do: ev.FindCause) -> None:
        found = self.cluster.cause(do.attempt, self._failures, self._cluster_error, do.stopped)
        failure = next((one for one in self._failures if one.message == str(found.error)), None)
        if failure is not None:
            found = msgspec.structs.replace(
                found,
                location=failure.user_line,
                operator=failure.operator,
                subtask=failure.subtask,
                traceback=failure.traceback,
            )
        damage = next((failure.message for failure in self._failures if failure.kind == "damaged"), None)
        if damage is not None and self.machine.restoring and self.service is not None:
            try:
                found = msgspec.structs.replace(found, damaged=self.service.step_back(damage))
            except CorruptState as error:
                found = msgspec.structs.replace(found, error=error, damaged=True, final=True)
        self._tell(found)

    # --- what others see --------------------------------------------------------------------------------------------

    @property
    def workers(self) -> Mapping[ev.Worker, msg.Register]:
        """The workers of the attempt that runs, by level and number."""
        return self._workers

    @property
    def failure_log(self) -> list[str]:
        """The causes of failed attempts, the oldest first."""
        return [cause.message for cause in self.machine.story.failures()]

    # --- requests, from any thread ----------------------------------------------------------------------------------

    def probe(self, vertex: VertexId, make: Callable[[int], msg.Probe], subtask: int | None = None) -> Question:
        """Ask the subtasks of a vertex, or one of them, for a sample: `make` gets the number of the question.

        Those that do not answer, because they are blocked or just ending, are missing among the answers.
        """
        question = Question()

        def ask() -> None:
            numbers = range(self.plan.graph.vertices[vertex].parallelism) if subtask is None else [subtask]
            workers = {self.plan.worker_of(vertex, number): number for number in numbers}
            connected = {one: number for one, number in workers.items() if one in self._workers}
            message = make(self.probes.begin(question, connected))
            for worker in connected:
                self.cluster.send(self.machine.attempt, worker, message)

        self._post(Call(ask))
        return question

    def request(self, make: Callable[[RequestId], UserRequest]) -> Future[RequestDone]:
        """Ask for a checkpoint, a savepoint or a stop: `make` gets the id of the request and gives the event."""
        answer = self._new_answer()
        self._post(Call(lambda: self._forward(make(RequestId(secrets.token_hex(8))), answer)))
        return answer

    def _new_answer(self) -> Future[Any]:
        """Return an answer that comes at the latest when the job ends; IllegalState if it has ended."""
        answer = None if self.ended else self._answers.new()
        if answer is None:
            raise self._over()
        return answer

    def _forward(self, event: UserRequest, answer: Future[RequestDone]) -> None:
        if self.service is None:
            answer.set_exception(IllegalState("HR-3009", f"job '{self.plan.name}' has not started yet"))
        elif not answer.done():
            if isinstance(event, StopRequested):
                answer.add_done_callback(self._on_stop_answered)
            self.service.request(event, answer)

    def _on_stop_answered(self, answer: Future[RequestDone]) -> None:
        self.stopped = self.stopped or answer.exception() is None

    def require_slots(self, plan: JobPlan) -> None:
        """Raise NotEnoughSlots if the cluster is too small for a plan; the slots of the job itself count as free."""
        self.cluster.wait_for_slots(plan, lambda: False, timeout=0)

    def change_plan(self, plan: JobPlan) -> Future[None]:
        """Continue with another plan, from the newest checkpoint; answered when all its subtasks run."""
        answer = self._new_answer()

        def ask() -> None:
            request = max(self._rescales, default=0) + 1
            self._rescales[request] = (plan, answer)
            self._tell(ev.RescaleRequested(request, plan.layout.slots))

        self._post(Call(ask))
        return answer

    def _over(self) -> IllegalState:
        return IllegalState("HR-3009", f"job '{self.plan.name}' has ended")

    # --- the end ----------------------------------------------------------------------------------------------------

    def _clean_up_finished_job(self) -> None:
        """Nothing continues a job whose log says that it has finished, unless it was stopped with a savepoint."""
        if self.service is not None and self.service.finish_recorded and not self.stopped:
            for clean_up in self.when_finished:
                self._cleaning += 1
                self.io.pool.submit(self._clean_up, clean_up)

    def _clean_up(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(StorageError):
            function()
        self._post(Call(self._cleaned_up))

    def _cleaned_up(self) -> None:
        self._cleaning -= 1

    def _end(self) -> None:
        self._answers.refuse()
        for close in (() if self.service is None else (self.service.close,)) + (self.cluster.close, self.io.close):
            try:
                close()
            except Exception:  # of a user's enumerator or committer: the job has ended all the same
                _LOG.exception("job '%s' has ended, but a part of it cannot be closed", self.plan.name)
        self.closed = True
        self.probes.release()
        self._answers.close(self._over())
        self._on_change()


def _may_work_later(error: HeadraceError, attempt: int) -> bool:
    """Return True if starting again may help: storage that does not answer, slots that other jobs hold at a restart.

    Damaged or missing state, and a program that does not fit, stay as they are; so do missing permissions, a path or a
    scheme that cannot be used, but for a restart: the storage could be used before, and may come back.
    """
    if isinstance(error, NotEnoughSlots):
        return attempt > 0
    if isinstance(error, UserCodeError):  # for example an enumerator whose system does not answer
        return True
    if not isinstance(error, StorageError) or isinstance(error, CorruptState | MissingObject):
        return False
    if attempt > 0:
        return True
    cause = error.__cause__
    lasting = (PermissionError, NotADirectoryError, FileExistsError, FileNotFoundError, ValueError, ImportError)
    return not isinstance(cause, lasting) and "Credentials" not in type(cause).__name__
