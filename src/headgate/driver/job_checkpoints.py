"""Checkpoints as the job sees them: messages of workers go in, wishes of users are answered."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from headgate.checkpoint.events import RequestDone
from headgate.checkpoint.plan import TaskId
from headgate.checkpoint.settings import EndStatus
from headgate.checkpoint.stats import StatsTracker
from headgate.checkpoint.types import SavepointFormat
from headgate.config import Configuration
from headgate.control.channel import ControlServer, WorkerKey
from headgate.control.messages import FromDriver, FromWorker, Register
from headgate.driver.checkpoints import CheckpointService
from headgate.errors import IllegalState
from headgate.graph.plan import JobPlan
from headgate.ids import JobId, VertexId
from headgate.worker.restore import VertexRestore
from headgate.worker.snapshot_writer import WorkerStorage

__all__ = ["JobCheckpoints"]

Ask = Callable[[str, "Future[RequestDone]"], None]


class JobCheckpoints:
    """Joins the job, its workers and the checkpoint service. All but the wishes are called in the job's thread."""

    def __init__(
        self,
        plan: JobPlan,
        job_id: JobId,
        configuration: Configuration,
        server: ControlServer,
        post: Callable[[Callable[[], None]], None],
        pump: Callable[[], None],
        fail: Callable[[str], None],
        stand_down: Callable[[str], None],
        spark: Any = None,
    ) -> None:
        """`post` runs a function in the job's thread, `pump` waits there for the next one; see CheckpointService."""
        self._plan, self._server, self._post, self._fail = plan, server, post, fail
        self._attempt = 0
        self._registered: set[WorkerKey] | None = None  # workers of the attempt; None: between two attempts
        self._ended = False
        self.stopped = False  # with a savepoint, that somebody may go on from
        self._lock = threading.Lock()
        self._unanswered: set[Future[RequestDone]] = set()
        self._index = _index(plan)
        self._service = CheckpointService(
            plan,
            job_id,
            configuration,
            send=self._send,
            call=post,
            pump=pump,
            fail=fail,
            stand_down=stand_down,
            spark=spark,
        )
        self._plan = self._service.plan

    # --- the job ----------------------------------------------------------------------------------------------------

    @property
    def job_id(self) -> JobId:
        """The job's id: that of the job which is continued, if one is."""
        return self._service.job_id

    @property
    def plan(self) -> JobPlan:
        """The plan that runs: with the max parallelism of the state that a job is resumed with."""
        return self._plan

    @property
    def stats(self) -> StatsTracker:
        """What is remembered of the job's checkpoints."""
        return self._service.coordinator.stats

    def replan(self, plan: JobPlan) -> None:
        """The next attempt runs another plan of the same program."""
        self._plan, self._index = plan, _index(plan)
        self._service.replan(plan)

    def start_attempt(self, number: int) -> Mapping[VertexId, VertexRestore]:
        """What the subtasks of a new attempt start from."""
        self._attempt = number
        self._registered = None
        restore = self._service.start_attempt(number)
        self._registered = set()
        return restore

    def worker_storage(self) -> WorkerStorage:
        """Where the workers of the attempt write."""
        return self._service.worker_storage()

    def job_running(self, running: bool) -> None:
        """All subtasks run, or the attempt is failing."""
        self._service.job_running(running)

    def settle_epochs(self) -> None:
        """Wait until sinks have committed on the driver what is due."""
        self._service.settle_epochs()

    def job_ended(self, status: EndStatus) -> None:
        """The job is over."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._service.job_ended(status)
        for answer in list(self._unanswered):
            if not answer.done():
                answer.set_exception(self._over())

    def tick(self) -> None:
        """Time has passed."""
        self._service.tick()

    def seconds_to_alarm(self) -> float | None:
        """How long until `tick` has work."""
        return self._service.seconds_to_alarm()

    def on_message(self, worker: WorkerKey, message: FromWorker) -> None:
        """A worker said something; what does not concern checkpoints is passed over."""
        if isinstance(message, Register) and self._registered is not None:
            self._registered.add(worker)
        slot = self._plan.layout.levels[worker.level][worker.index]
        if slot.relay:
            return
        self._service.on_message(TaskId(slot.vertex, slot.subtask), message)

    def _send(self, task: TaskId, message: FromDriver) -> None:
        """Send to a worker that is connected, or was; a message that nobody could receive fails the attempt.

        Between two attempts there is nobody to tell: the next one is told when it runs.
        """
        if self._registered is None:
            return
        worker = WorkerKey(self._attempt, *self._index[task])
        if worker not in self._registered:
            name = self._plan.task_name(worker.level, worker.index)
            self._fail(
                f"{type(message).__name__} was sent to {name}, which has not connected yet; report this as a bug"
            )
            return
        self._server.send(worker, message)

    # --- wishes, from any thread ------------------------------------------------------------------------------------

    def trigger_checkpoint(self, full: bool = False, timeout: float = 600.0) -> RequestDone:
        """Take a checkpoint now and wait for it; its error if it failed."""
        return self._ask(lambda name, answer: self._service.request_checkpoint(name, full, answer), timeout)

    def trigger_savepoint(
        self, target: str | None = None, format: SavepointFormat = SavepointFormat.CANONICAL, timeout: float = 600.0
    ) -> RequestDone:
        """Take a savepoint now and wait for it; its error if it failed."""
        return self._ask(lambda name, answer: self._service.request_savepoint(name, target, format, answer), timeout)

    def stop_with_savepoint(
        self,
        target: str | None = None,
        drain: bool = False,
        format: SavepointFormat = SavepointFormat.CANONICAL,
        timeout: float = 600.0,
    ) -> RequestDone:
        """Take a savepoint and stop; answered when all tasks have finished. Its error if the job goes on."""

        def ask(name: str, answer: Future[RequestDone]) -> None:
            self.stopped = True
            self._service.request_stop(name, target, drain, format, answer)

        return self._ask(ask, timeout)

    def _ask(self, ask: Ask, timeout: float) -> RequestDone:
        answer: Future[RequestDone] = Future()
        with self._lock:  # either it is among the unanswered when the job ends, or it is refused
            if self._ended:
                raise self._over()
            self._unanswered.add(answer)
        self._post(lambda: None if self._ended else ask(secrets.token_hex(8), answer))
        try:
            return answer.result(timeout)
        finally:
            self._unanswered.discard(answer)

    def _over(self) -> IllegalState:
        return IllegalState(f"job '{self._plan.name}' has ended")


def _index(plan: JobPlan) -> dict[TaskId, tuple[int, int]]:
    """Level and place of every subtask."""
    return {
        TaskId(slot.vertex, slot.subtask): (level, index)
        for level, slots in enumerate(plan.layout.levels)
        for index, slot in enumerate(slots)
        if not slot.relay
    }
