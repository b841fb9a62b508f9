"""A simulated cluster: production subtasks, snapshot writers and the checkpoint service, one action at a time.

Nothing here has a thread or a clock. Rows, control messages and I/O wait in queues; the run draws which of them moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from random import Random
from typing import Any

from headrace.checkpoint.plan import TaskId
from headrace.checkpoint.settings import EndStatus
from headrace.config import Configuration
from headrace.control.deployment import TaskDescriptor, VertexRestore, WorkerStorage, describe_tasks
from headrace.control.messages import (
    Failed,
    Finished,
    FromDriver,
    FromWorker,
    Output,
    Register,
    Restored,
    Running,
    StartProcessing,
)
from headrace.driver.cluster import AttemptOver, Submission, WorkerMessage
from headrace.driver.job_master import JobMaster, MasterEvent
from headrace.driver.services import DriverIo
from headrace.errors import HeadraceError, JobFailed, StorageError, WorkerLost
from headrace.graph.plan import JobPlan
from headrace.ids import JobId, VertexId
from headrace.job.job_events import CancelRequested, CauseFound, StartRequested
from headrace.job.machine import Timing
from headrace.job.restart import FixedDelay
from headrace.job.status import Status
from headrace.storage.objects import ObjectStore
from headrace.storage.storage_settings import StorageSettings
from headrace.testing.simulation.world import Violation
from headrace.worker.failures import describe
from headrace.worker.mailbox import Mailbox
from headrace.worker.relay import Relay
from headrace.worker.snapshots.taken_snapshots import SnapshotInProgress
from headrace.worker.subtask import Subtask
from headrace.worker.task import SteppedServices, make_snapshot_writer, make_task

Print = Callable[[tuple[int, int], Output], None]


class QueuedExecutor(Executor):
    """An executor whose jobs wait until `run` is called."""

    def __init__(self) -> None:
        self.waiting: deque[partial[Any]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Let it wait."""
        self.waiting.append(partial(fn, *args, **kwargs))
        return Future()

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **options: Any) -> Iterator[Any]:
        """At once: the caller waits for the results."""
        return iter([fn(*items) for items in zip(*iterables, strict=False)])

    def run(self, index: int = 0) -> None:
        """Run one of those that wait."""
        self.waiting.rotate(-index)
        job = self.waiting.popleft()
        self.waiting.rotate(index)
        job()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Run all that wait."""
        while wait and self.waiting:
            self.run()


class Writes(QueuedExecutor):
    """Snapshots that wait to be written by one worker, in order."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Let a snapshot wait; what is done with local copies is done at once."""
        if isinstance(args[0], SnapshotInProgress):
            return super().submit(fn, *args, **kwargs)
        fn(*args, **kwargs)
        return Future()

    def ready(self) -> bool:
        """Return True if the oldest write does not wait for in-flight data."""
        progress: SnapshotInProgress | None = self.waiting[0].args[0] if self.waiting else None
        return progress is not None and (not progress.capturing or progress.cancelled)


class SimulatedIo(DriverIo):
    """The world of a simulated driver."""

    def __init__(self, clock: Callable[[], int], store: ObjectStore, random: Random, pause: Callable[[], None]) -> None:
        self.random = random
        self.jobs = (QueuedExecutor(), QueuedExecutor(), QueuedExecutor(), QueuedExecutor())
        self.pool, self.log, self.epochs, self.starts = self.jobs
        self.discoveries = self.pool
        self._clock, self._store, self._pause = clock, store, pause

    def close(self) -> None:
        """Drop all waiting work: the driver's process has ended."""

    def now(self) -> int:
        """Virtual milliseconds."""
        return self._clock()

    def pause(self, seconds: float) -> None:
        """Virtual time passes."""
        self._pause()

    def open_store(self, settings: StorageSettings) -> ObjectStore:
        """Return the store of the run."""
        return self._store

    def warn(self, text: str) -> None:
        """Record a warning that names a bug as a finding."""
        if "report this as a bug" in text:
            raise Violation(text)


class Worker:
    """One task of an attempt: messages to the driver wait in `messages`, those from the driver in `inbox`."""

    task: Subtask | Relay

    def __init__(self, descriptor: TaskDescriptor, store: ObjectStore) -> None:
        self.descriptor, self._store = descriptor, store
        self.key = (descriptor.level, descriptor.index)
        self.id = None if descriptor.vertex is None else TaskId(descriptor.vertex_id, descriptor.subtask)
        self.rows: deque[tuple[int, bytes]] = deque()  # (writer, row) on their way here, by writer in order
        self.inbox: deque[FromDriver] = deque()
        self.messages: deque[FromWorker] = deque()
        self.mailbox = Mailbox(self.messages.append)
        self.writes = Writes()
        self.mailbox.writer = make_snapshot_writer(descriptor, self.messages.append, store, self.writes)
        self.connected = False
        self.said_finished = False

    def restore(self, clock: Callable[[], int], output: Print) -> None:
        """Connect, read and verify state; it waits for `StartProcessing` then."""
        self.messages.append(Register(*self.key, self.descriptor.attempt, "simulated", 0))
        services = SteppedServices(clock, lambda *printed: output(self.key, Output(*printed)))
        self.task = make_task(self.descriptor, services, self._store)
        self.task.restore()
        self.messages.append(Restored())

    def open(self) -> None:
        """Every task has restored its state."""
        self.task.open()
        self.messages.append(Running())

    def serve(self) -> None:
        """Do the work of a worker's loop between two steps."""
        if isinstance(self.task, Subtask):
            self.mailbox.serve(self.task)
        if self.task.status is Status.FINISHED and not self.said_finished and not self.writes.waiting:
            self.said_finished = True
            self.messages.append(Finished())

    def hear(self) -> None:
        """Take the next message of the driver."""
        message = self.inbox.popleft()
        if isinstance(message, StartProcessing):
            self.open()
        else:
            self.mailbox.post(message)  # type: ignore[arg-type]
        self.serve()


class Attempt:
    """All tasks of one attempt, and the rows between them."""

    def __init__(
        self,
        plan: JobPlan,
        job_id: JobId,
        number: int,
        restore: Mapping[VertexId, VertexRestore],
        storage: WorkerStorage | None,
        store: ObjectStore,
        clock: Callable[[], int],
        output: Print = lambda key, message: None,  # noqa: ARG005 - dropped
    ) -> None:
        """`output` gets what a task prints or collects, with its level and index."""
        self.plan, self.number = plan, number
        self._clock, self._output = clock, output
        self.levels = [
            [Worker(task, store) for task in describe_tasks(plan, level, job_id, number, restore, storage)]
            for level in range(len(plan.layout.levels))
        ]
        self.workers = [worker for level in self.levels for worker in level]

    def restore(self) -> None:
        """Let all tasks restore their state, readers first: sinks are ready when damage is found before them."""
        for worker in reversed(self.workers):
            worker.restore(self._clock, self._output)

    def open(self) -> None:
        """Open the same, and let them start at once."""
        self.restore()
        for worker in reversed(self.workers):
            worker.open()

    def send_rows(self, worker: Worker) -> None:
        """Put what a task has ready on the way to its readers."""
        level, index = worker.key
        for destination, pieces in worker.task.take():
            self.levels[level + 1][destination].rows.append((index, b"".join(pieces)))

    def step(self, worker: Worker, records: int) -> None:
        """Let a task process up to this number of records, or one event."""
        worker.task.step(records)
        if not worker.task.has_events():
            worker.task.flush_when_idle()
        worker.serve()
        self.send_rows(worker)

    def deliver(self, worker: Worker, random: Random) -> None:
        """Hand a row over: the oldest one of a writer that is drawn."""
        writer = random.choice(sorted({w for w, _ in worker.rows}))
        at = next(i for i, (w, _) in enumerate(worker.rows) if w == writer)
        _, row = worker.rows[at]
        del worker.rows[at]
        worker.task.receive(row)
        worker.serve()
        self.send_rows(worker)

    def pass_time(self, now: int) -> None:
        """Let all tasks do what is due."""
        for worker in self.workers:
            deadline = worker.task.next_deadline()
            if deadline is not None and deadline <= now:
                worker.task.on_time(now)
                worker.serve()
                self.send_rows(worker)

    def close(self) -> None:
        """Give back what the tasks hold; their errors are not the run's."""
        for worker in self.workers:
            if hasattr(worker, "task"):  # else another one could not restore its state before
                worker.task.close()

    @property
    def finished(self) -> bool:
        """Return True if every task has finished."""
        return all(worker.task.status is Status.FINISHED for worker in self.workers)


class SimulatedCluster:
    """Runs the tasks of one driver; nothing here waits, and the scheduler knows at once what became of them."""

    def __init__(self, store: ObjectStore, clock: Callable[[], int], report: Callable[[Any], None]) -> None:
        self._store, self._clock, self._report = store, clock, report
        self.attempt: Attempt | None = None
        self.abandoned: list[Attempt] = []  # their tasks may not know yet that they are dead

    def open(self) -> None:
        """There is nothing to connect to."""

    def wait_for_slots(self, plan: JobPlan, given_up: Callable[[], bool], timeout: float | None = None) -> None:
        """There are always enough."""

    def submit(self, submission: Submission) -> None:
        plan, job_id, number = submission.plan, submission.job_id, submission.attempt
        try:
            attempt = Attempt(plan, job_id, number, submission.restore, submission.storage, self._store, self._clock)
            attempt.restore()
        except StorageError as error:  # a worker cannot read its state
            self._report(WorkerMessage(number, (0, 0), describe(error, "a task")))
            self._report(AttemptOver(number, error))
            return
        self.attempt = attempt

    def send(self, attempt: int, worker: tuple[int, int], message: FromDriver) -> None:
        if self.attempt is not None and self.attempt.number == attempt:
            self.attempt.levels[worker[0]][worker[1]].inbox.append(message)

    def stop(self, attempt: int, reason: str) -> None:
        self.end(WorkerLost(reason))

    def end(self, error: HeadraceError | None) -> None:
        """End the attempt as the scheduler does, if one runs."""
        if self.attempt is not None:
            attempt, self.attempt = self.attempt, None
            if error is not None:
                self.abandoned.append(attempt)
            self._report(AttemptOver(attempt.number, error))

    def end_if_finished(self) -> None:
        """All tasks have finished, and the driver has all their messages."""
        workers = [] if self.attempt is None else self.attempt.workers
        if workers and all(worker.said_finished and not worker.messages for worker in workers):
            self.end(None)

    def cancel_tasks(self, attempt: int) -> None:
        """`stop` has ended them."""

    def tasks_left(self, attempt: int) -> tuple[tuple[tuple[int, int], ...], int]:
        return (), 0

    def kill(self, attempt: int, register: Register) -> None:
        raise AssertionError("no task is left, so none has to be killed")

    def cause(self, attempt: int, failures: Sequence[Failed], error: BaseException | None, stopped: bool) -> CauseFound:
        return CauseFound(attempt, JobFailed(failures[0].message if failures else str(error)))

    def close(self) -> None:
        self.end(WorkerLost("the job has ended"))


_NEVER = 1 << 40


class Driver(JobMaster):
    """One incarnation of the driver: the production job master, on a simulated cluster."""

    cluster: SimulatedCluster
    io: SimulatedIo

    def __init__(
        self, plan: JobPlan, job_id: JobId, configuration: Configuration, io: SimulatedIo, store: ObjectStore
    ) -> None:
        self.events: deque[MasterEvent] = deque([StartRequested()])
        cluster = SimulatedCluster(store, io.now, self.events.append)
        self.strategy = FixedDelay(_NEVER, io.random.choice([0, 5, 50]))
        timing = Timing(silence=_NEVER)
        super().__init__(plan, job_id, configuration, self.strategy, cluster, self.events.append, io=io, timing=timing)

    def _as_driver_error(self, error: BaseException) -> HeadraceError:
        raise error  # a bug of the driver is a finding, not an end of the job or of an attempt

    def _fail_attempt(self, message: str) -> None:
        if "report this as a bug" in message:
            raise Violation(message)
        super()._fail_attempt(message)

    @property
    def attempt(self) -> Attempt | None:
        return self.cluster.attempt

    def take_event(self) -> None:
        """Handle the next event in the job's thread."""
        self.handle(self.events.popleft())

    def hear(self, worker: Worker) -> None:
        """Take the next message of a worker."""
        assert self.attempt is not None
        message = worker.messages.popleft()
        worker.connected |= isinstance(message, Register)
        self.handle(WorkerMessage(self.attempt.number, worker.key, message))

    @property
    def completed(self) -> tuple[int, ...]:
        """The checkpoints that are complete and kept, oldest first."""
        kept = [] if self.service is None else self.service.coordinator.store.checkpoints
        return tuple(checkpoint.id for checkpoint in kept)

    def advance(self) -> bool:
        """Do the next thing that waits on the driver; whether there was one."""
        if self.events:
            self.take_event()
            return True
        for jobs in self.io.jobs:
            if jobs.waiting:
                jobs.run()
                return True
        return False

    def end(self, status: EndStatus) -> None:
        """Let the job end this way, whatever its tasks are doing."""
        self.strategy.attempts = 0
        if status is EndStatus.CANCELED:
            self.events.append(CancelRequested())
        else:
            if status is EndStatus.FINISHED and self.attempt is not None:
                number = self.attempt.number
                self.events += [WorkerMessage(number, worker.key, Finished()) for worker in self.attempt.workers]
            self.cluster.end(None if status is EndStatus.FINISHED else WorkerLost("the tasks died"))
        while not self.ended:
            if not self.advance():
                raise Violation(f"the driver does not end as {status.name}")
