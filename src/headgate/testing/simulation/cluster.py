"""A simulated cluster: production subtasks, snapshot writers and the checkpoint service, one action at a time.

Nothing here has a thread or a clock. Rows, control messages and I/O wait in queues; the run draws which of them moves.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

from headgate.checkpoint.plan import TaskId
from headgate.checkpoint.settings import EndStatus
from headgate.config import Configuration
from headgate.control.messages import Finished, FromDriver, FromWorker, Register, Running
from headgate.driver.checkpoints import CheckpointService
from headgate.driver.services import DriverIo
from headgate.graph.plan import JobPlan, VertexPlan
from headgate.ids import JobId, VertexId
from headgate.storage.layout import subtask_owner
from headgate.storage.objects import ObjectStore
from headgate.testing.simulation.world import Violation
from headgate.worker.coordinator_link import CheckpointLink
from headgate.worker.restore import VertexRestore, read_restore
from headgate.worker.snapshot import SnapshotInProgress
from headgate.worker.snapshot_writer import SnapshotWriter, WorkerStorage
from headgate.worker.subtask import Relay, Status, Subtask

__all__ = ["Attempt", "Driver", "Jobs", "SimulatedIo", "Worker"]


class Jobs(Executor):
    """An executor whose jobs wait until somebody runs them."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Let it wait."""
        self.waiting.append(lambda: fn(*args, **kwargs))
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


class Writes(Jobs):
    """Snapshots that wait to be written by one worker, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: deque[SnapshotInProgress] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Let the snapshot wait."""
        self._progress.append(args[0])
        return super().submit(fn, *args, **kwargs)

    def run(self, index: int = 0) -> None:
        """Write the oldest one."""
        self._progress.popleft()
        super().run()

    def ready(self) -> bool:
        """Whether the oldest one does not wait for in-flight data."""
        return bool(self._progress) and (not self._progress[0].capturing or self._progress[0].cancelled)


class SimulatedIo(DriverIo):
    """The world of a simulated driver."""

    def __init__(self, clock: Callable[[], int], store: ObjectStore, random: Random, pause: Callable[[], None]) -> None:
        self.random = random
        self.jobs = (Jobs(), Jobs(), Jobs())
        self.pool, self.log, self.epochs = self.jobs
        self.warnings: list[str] = []
        self._clock, self._store, self._pause = clock, store, pause

    def now(self) -> int:
        """Virtual milliseconds."""
        return self._clock()

    def pause(self, seconds: float) -> None:
        """Virtual time passes."""
        self._pause()

    def open_store(self, write_buffer: int) -> ObjectStore:
        """The store of the run."""
        return self._store

    def warn(self, text: str) -> None:
        """Keep it for who looks at the run."""
        self.warnings.append(text)


class _Services:
    """Clock and way out of a simulated subtask."""

    lockstep = True

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now = clock

    def to_driver(self, channel: str, payload: bytes, records: int) -> None:
        raise AssertionError("simulated programs print and collect nothing")

    def wake(self) -> None:
        """Nobody sleeps here."""


class Worker:
    """One task of an attempt: what it has to say waits in `messages`, what it is told in `inbox`."""

    def __init__(self, task: Subtask | Relay, key: tuple[int, int], id: TaskId | None) -> None:
        self.task, self.key, self.id = task, key, id
        self.rows: deque[tuple[int, bytes]] = deque()  # (writer, row) on their way here, by writer in order
        self.inbox: deque[FromDriver] = deque()
        self.messages: deque[FromWorker] = deque()
        self.link = CheckpointLink(self.messages.append)
        self.writes = Writes()
        self.connected = False
        self.said_finished = False

    def open(self, attempt: int) -> None:
        """Connect, and open the operators."""
        self.messages.append(Register(*self.key, attempt, "simulated", 0))
        self.task.open()
        self.messages.append(Running())

    def serve(self) -> None:
        """What the worker's loop does between two steps."""
        if isinstance(self.task, Subtask):
            self.link.serve(self.task)
        if self.task.status is Status.FINISHED and not self.said_finished and not self.writes.waiting:
            self.said_finished = True
            self.messages.append(Finished())

    def hear(self) -> None:
        """Take the next message of the driver."""
        self.link.post(self.inbox.popleft())  # type: ignore[arg-type]
        self.serve()


class Attempt:
    """All tasks of one attempt, and the rows between them."""

    def __init__(
        self,
        plan: JobPlan,
        job_id: JobId,
        number: int,
        restore: dict[VertexId, VertexRestore],
        storage: WorkerStorage | None,
        store: ObjectStore,
        clock: Callable[[], int],
    ) -> None:
        self.plan, self.number = plan, number
        self._job_id, self._restore, self._storage, self._store, self._clock = job_id, restore, storage, store, clock
        widths = range(len(plan.layout.levels))
        self.levels = [[self._worker(level, i) for i in range(plan.width(level))] for level in widths]
        self.workers = [worker for level in self.levels for worker in level]

    def _worker(self, level: int, index: int) -> Worker:
        plan = self.plan
        slot = plan.layout.levels[level][index]
        numbers = (index, plan.width(level - 1), plan.width(level + 1))
        if slot.relay:
            relay = Relay(plan.relays[level, slot.vertex] + slot.subtask, numbers, plan.settings.buffer_size)
            return Worker(relay, (level, index), None)
        vertex_plan: VertexPlan = pickle.loads(plan.vertices[slot.vertex])
        vertex = vertex_plan.vertex
        info = vertex_plan.task_info(slot.subtask, self.number, self._job_id)
        given = self._restore.get(vertex.id)
        restore = None if given is None else read_restore(given, slot.subtask, vertex_plan, self._store)
        task = Subtask(vertex_plan, slot.subtask, plan.settings, _Services(self._clock), info, numbers, restore)
        worker = Worker(task, (level, index), TaskId(vertex.id, slot.subtask))
        if self._storage is not None:
            owner = subtask_owner(vertex.id, slot.subtask)
            worker.link.writer = SnapshotWriter(
                self._storage, owner, worker.messages.append, self._store, worker.writes
            )
        return worker

    def open(self) -> None:
        """Open all tasks, readers first."""
        for worker in reversed(self.workers):
            worker.open(self.number)

    def send_rows(self, worker: Worker) -> None:
        """Put what a task has ready on the way to its readers."""
        level, index = worker.key
        for destination, pieces in worker.task.take():
            self.levels[level + 1][destination].rows.append((index, b"".join(pieces)))

    def step(self, worker: Worker, records: int) -> None:
        """Let a task work off so many records or one event."""
        worker.task.step(records)
        if not worker.task.has_events():
            worker.task.flush()
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
            worker.task.close()

    @property
    def finished(self) -> bool:
        """Whether every task has ended well."""
        return all(worker.task.status is Status.FINISHED for worker in self.workers)


class Driver:
    """One incarnation of the driver: the production checkpoint service and the attempt it runs."""

    def __init__(
        self, plan: JobPlan, job_id: JobId, configuration: Configuration, io: SimulatedIo, store: ObjectStore
    ) -> None:
        self.io = io
        self._store = store
        self.calls: deque[Callable[[], None]] = deque()
        self.attempt: Attempt | None = None
        self.failed: str | None = None
        self.superseded = False
        self.number = -1
        self._running = 0
        self.service = CheckpointService(
            plan,
            job_id,
            configuration,
            send=self._send,
            call=self.calls.append,
            pump=self.pump,
            fail=self._fail,
            stand_down=self._stand_down,
            io=io,
        )
        self.plan = self.service.plan

    def _send(self, task: TaskId, message: FromDriver) -> None:
        if self.attempt is not None:
            worker = next(worker for worker in self.attempt.workers if worker.id == task)
            if not worker.connected:
                raise Violation(f"{type(message).__name__} was sent to {task}, which has not connected yet")
            worker.inbox.append(message)

    def _fail(self, message: str) -> None:
        self.failed = message

    def _stand_down(self, message: str) -> None:
        self.failed, self.superseded = message, True

    def pump(self) -> None:
        """Wait for the next call: do I/O until there is one."""
        while not self.calls:
            next(jobs for jobs in self.io.jobs if jobs.waiting).run()
        self.take_call()

    def take_call(self) -> None:
        """Do the next thing in the job's thread."""
        self.calls.popleft()()

    def start_attempt(self) -> Attempt:
        """Begin the next attempt, from the newest completed checkpoint."""
        self.service.job_running(False)
        self.number += 1
        self.failed = None
        self.attempt = None
        restore = self.service.start_attempt(self.number)
        storage = self.service.worker_storage()
        self.attempt = Attempt(self.plan, self.service.job_id, self.number, restore, storage, self._store, self.io.now)
        self._running = 0
        self.attempt.open()
        return self.attempt

    def hear(self, worker: Worker) -> None:
        """Take the next message of a worker."""
        message, task = worker.messages.popleft(), worker.id
        worker.connected |= isinstance(message, Register)
        if isinstance(message, Running):
            self._running += 1
            if self.attempt is not None and self._running == len(self.attempt.workers):
                self.service.job_running(True)
        if task is not None:
            self.service.on_message(task, message)

    @property
    def alarm(self) -> int | None:
        """When `service.tick` has work."""
        seconds = self.service.seconds_to_alarm()
        return None if seconds is None else self.io.now() + round(seconds * 1000)

    @property
    def completed(self) -> tuple[int, ...]:
        """The checkpoints that are complete and kept, oldest first."""
        return tuple(checkpoint.id for checkpoint in self.service.coordinator.store.checkpoints)

    def end(self, status: EndStatus) -> None:
        """The job is over."""
        self.service.job_ended(status)
