"""Whole jobs in this process, from start to end, without a JVM: the only file here that knows the inside of Headgate.

The job, its checkpoints and its subtasks are those of production. In place of Spark one thread runs all subtasks of an
attempt. The input of a job is the numbers 0, 1, 2 ..., and the test decides how many of them are there to be read; a
checkpoint is taken when the test asks for one. So nothing depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from headgate import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headgate import environment as environment_module
from headgate.api.sources import Source, SourceReader
from headgate.checkpoint import coordinator as coordinator_module
from headgate.checkpoint.handles import CorruptState
from headgate.checkpoint.plan import Refusal
from headgate.checkpoint.types import SavepointFormat
from headgate.config import Configuration
from headgate.connectors.files import FileSink
from headgate.control.messages import CheckpointComplete, Confirm
from headgate.driver import job as job_module
from headgate.driver import services as driver_services
from headgate.driver.cluster import AttemptOver, WorkerMessage
from headgate.errors import HeadgateError, JobFailed, StorageError
from headgate.job.events import CauseFound
from headgate.job.machine import Phase, Timing
from headgate.job.status import Status
from headgate.records.batch import Batch
from headgate.storage.local import LocalStore
from headgate.storage.objects import storage_error
from headgate.storage.remote import RoutingStore
from headgate.testing.simulation import cluster as simulated
from headgate.worker.failures import describe

__all__ = ["Cluster", "Count", "Job", "counted", "eventually", "files_below", "key_of", "refuse_once"]

WAIT = 20.0  # seconds that anything may take on a slow machine
FAR_AWAY = "300 d"  # no checkpoint is taken that the test does not ask for, except the final one


def eventually(condition: Callable[[], Any], seconds: float = WAIT) -> bool:
    """Wait until something holds; whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def refuse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next checkpoint that all tasks acknowledge is aborted, as if one of them had finished just then."""
    settle, refusals = coordinator_module.settle_finished, [Refusal("a task has finished just now")]
    monkeypatch.setattr(
        coordinator_module, "settle_finished", lambda *args: refusals.pop() if refusals else settle(*args)
    )


# --- input ------------------------------------------------------------------------------------------------------------


class _Feed:
    """How much of the input is there, and how much of it was read by the attempt that runs."""

    def __init__(self, total: int) -> None:
        self.total, self.there, self.read = total, 0, 0


_feeds: dict[str, _Feed] = {}
"""A source travels as bytes: its reader finds its feed here."""


class Numbers(Source[int]):
    """The numbers from 0 on; a split is the next one."""

    single = True

    def __init__(self, feed: str) -> None:
        self._feed = feed

    def splits(self, parallelism):
        return [0]

    def reader(self, context, splits):
        return _NumbersReader(_feeds[self._feed], splits[0])


class _NumbersReader(SourceReader[int]):
    def __init__(self, feed: _Feed, position: int) -> None:
        self._feed, self._position = feed, position
        feed.read, feed.there = position, max(position, feed.there)

    def poll(self, max_records):
        end = min(self._position + max_records, self._feed.there)
        numbers = list(range(self._position, end))
        self._position = self._feed.read = max(self._position, end)
        self.finished = self._position >= self._feed.total
        return Batch.of_rows(numbers) if numbers else None

    def snapshot(self):
        return [self._position]


class Count(KeyedProcessFunction):
    """Keeps a number for each key: how many records it has seen."""

    def open(self, runtime_context):
        self._count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))

    def process_element(self, value, ctx):
        self._count.update(self._count.value() + 1)
        yield f"{value} is record {self._count.value()} of key {value % 4}"


def key_of(value: int) -> int:
    return value % 4


def counted(numbers: range) -> list[str]:
    """What `Count` says when it sees the numbers from 0 on, each of them once."""
    return [f"{n} is record {n // 4 + 1} of key {n % 4}" for n in numbers]


# --- storage ----------------------------------------------------------------------------------------------------------


class Storage:
    """What one driver meets when it uses the storage of its checkpoints."""

    def __init__(self) -> None:
        self._fail: str | None = None
        self._hold: str | None = None
        self._released = threading.Event()
        self.held = 0
        self._down = False
        self.refused = 0
        self.reads: dict[str, list[str]] = {"driver": [], "workers": []}  # the files that were read, and by whom

    def fail_next_write(self, within: str) -> None:
        """The next file whose path contains this cannot be written."""
        self._fail = within

    @contextlib.contextmanager
    def hold_writes(self, within: str) -> Iterator[None]:
        """Files whose path contains this are not written before the block is left; `held` counts them."""
        self._hold, self.held = within, 0
        self._released.clear()
        try:
            yield
        finally:
            self._hold = None
            self._released.set()

    def go_down(self) -> None:
        """From now on reads are not answered."""
        self._down = True

    def come_back(self) -> None:
        """Reads are answered again."""
        self._down = False

    def before_read(self, reader: str, path: str) -> None:
        self.reads[reader].append(path)
        if self._down:
            self.refused += 1
            raise StorageError(f"cannot read '{path}': TimeoutError: the storage does not answer")

    def before_write(self, path: str) -> None:
        if self._fail is not None and self._fail in path:
            self._fail = None
            raise storage_error("create", path, OSError(errno.EIO, "the disk is broken"))
        if self._hold is not None and self._hold in path:
            self.held += 1
            self._released.wait(WAIT)


class _Disk(LocalStore):
    def __init__(self, storage: Storage, reader: str) -> None:
        super().__init__()
        self._storage, self._reader = storage, reader

    def read(self, path, offset=0, length=None):
        self._storage.before_read(self._reader, path)
        return super().read(path, offset, length)

    def put(self, path, data):
        self._storage.before_write(path)
        super().put(path, data)

    def create_if_absent(self, path, data):
        self._storage.before_write(path)
        return super().create_if_absent(path, data)


class _Io(driver_services.DriverIo):
    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage

    def open_store(self, settings):
        return RoutingStore(lambda _: _Disk(self._storage, "driver"))

    def pause(self, seconds):
        time.sleep(min(seconds, 0.01))


# --- Spark ------------------------------------------------------------------------------------------------------------


class _WorkerDied(Exception):
    """A worker process was killed."""


class _ThreadCluster:
    """In place of Spark: one thread runs all tasks of an attempt."""

    def __init__(self, storage: Storage, report: Callable[[Any], None]) -> None:
        self._storage, self._report = storage, report
        self._tasks: simulated.Attempt | None = None
        self.kill_worker_now = threading.Event()
        self.driver_is_dead = threading.Event()
        self.completions_are_lost = False
        self._stopped = -1

    def open(self):
        """There is no connection to open."""

    def wait_for_slots(self, plan, given_up):
        """There are always enough."""

    def submit(self, submission):
        self._tasks = None
        threading.Thread(target=self._run, args=(submission,), daemon=True).start()

    def send(self, attempt, worker, message):
        if isinstance(message, CheckpointComplete) and self.completions_are_lost:
            return
        if self._tasks is not None and self._tasks.number == attempt and not isinstance(message, Confirm):
            self._tasks.levels[worker[0]][worker[1]].inbox.append(message)

    def stop(self, attempt, reason):
        self._stopped = attempt

    def cancel_tasks(self, attempt):
        """No task is left."""

    def tasks_left(self, attempt):
        return (), 0

    def kill(self, attempt, register):
        """No task is left."""

    def cause(self, attempt, failures, error, stopped):
        return CauseFound(attempt, JobFailed(failures[0].message if failures else str(error)))

    def close(self):
        """There is no connection to close."""

    def _run(self, submission: Any) -> None:
        error = None
        try:
            self._run_tasks(submission)
        except BaseException as caught:
            error = caught
            if isinstance(caught, CorruptState):
                self._report(WorkerMessage(submission.attempt, (0, 0), describe(caught, "a task")))
        self._report(AttemptOver(submission.attempt, error))

    def _run_tasks(self, job: Any) -> None:
        def tell(worker: simulated.Worker, message: Any) -> None:
            self._report(WorkerMessage(job.attempt, worker.key, message))

        store = RoutingStore(lambda _: _Disk(self._storage, "workers"))
        clock = driver_services.DriverIo().now
        tasks = simulated.Attempt(
            job.plan,
            job.job_id,
            job.attempt,
            job.restore,
            job.storage,
            store,
            clock,
            lambda key, printed: self._report(WorkerMessage(job.attempt, key, printed)),
        )
        self._tasks = tasks
        try:
            tasks.restore()
            while not all(worker.said_finished and not worker.messages for worker in tasks.workers):
                if self._stopped == job.attempt or self.driver_is_dead.is_set():
                    raise _WorkerDied("the worker was told to stop")
                if self.kill_worker_now.is_set():
                    self.kill_worker_now.clear()
                    raise _WorkerDied("a worker died")
                if not _one_round(tasks, tell, clock()):
                    time.sleep(0.002)
        finally:
            tasks.close()


class _JobHere(job_module.SparkJob):
    """A job of production whose tasks run in a thread of this process."""

    def __init__(self, *args: Any) -> None:
        self.storage = Storage()
        super().__init__(*args)

    def _make_io(self):
        return _Io(self.storage)

    def _make_cluster(self, spark, configuration):
        self.cluster = _ThreadCluster(self.storage, self._events.put)
        return self.cluster

    def _run(self) -> None:
        while not self.ended and not self.cluster.driver_is_dead.is_set():
            try:
                event = self._events.get(timeout=0.02)
            except queue.Empty:
                self.on_idle()
            else:
                self.handle(event)


def _one_round(tasks: simulated.Attempt, tell: Callable[[simulated.Worker, Any], None], now: int) -> bool:
    """Let every task do one thing of each kind; whether anything was there to do."""
    busy = False
    for worker in tasks.workers:
        while worker.inbox:
            worker.hear()
            tasks.send_rows(worker)
            busy = True
        while worker.rows and worker.task.status is not Status.CREATED:
            tasks.deliver(worker, _FIRST)
            busy = True
        if worker.task.has_work():
            before = worker.task.records_in
            tasks.step(worker, 100)
            busy |= worker.task.records_in != before
        while worker.writes.ready():
            worker.writes.run()
            worker.serve()
        while worker.messages:
            tell(worker, worker.messages.popleft())
            busy = True
    tasks.pass_time(now)
    return busy


_FIRST: Any = SimpleNamespace(choice=lambda some: some[0])


# --- what tests use ---------------------------------------------------------------------------------------------------

Program = Callable[[Any], object]  # gets the stream of numbers


class Job:
    """A job that was started: what its user can do, and what can happen to its processes."""

    def __init__(self, client: Any, feed: _Feed) -> None:
        self.client = client
        self._job: _JobHere = client.job
        self._feed = feed
        self._requests = ThreadPoolExecutor(2)

    @property
    def storage(self) -> Storage:
        return self._job.storage

    @property
    def status(self) -> str:
        return self.client.get_job_status().name

    @property
    def error(self) -> str:
        return str(self._job.error or "")

    @property
    def restarts(self) -> int:
        return self._job.restarts

    @property
    def ended(self) -> bool:
        return self.client.get_job_status().is_terminal

    def running(self) -> bool:
        """Wait until all subtasks run; whether they do."""
        return eventually(lambda: self.ended or self._all_run()) and not self.ended

    def _all_run(self) -> bool:
        return self._job.machine.all_running

    def feed(self, count: int) -> None:
        """Let it read so many more numbers, and wait until it has."""
        assert self.running(), self.error
        self._feed.there = min(self._feed.there + count, self._feed.total)
        assert eventually(lambda: self._feed.read >= self._feed.there or self.ended)

    def feed_rest(self) -> None:
        """Let it read to the end of its input."""
        self.feed(self._feed.total)

    @property
    def position(self) -> int:
        """The next number that it reads."""
        return self._feed.read

    def checkpoint(self) -> int:
        assert self.running(), self.error
        try:
            return self.client.trigger_checkpoint(timeout=WAIT)
        except HeadgateError as error:
            if self.wait_briefly():
                error.add_note(f"the job is {self.status}: {self.error}")
            raise

    def checkpoint_that_no_sink_hears_of(self) -> int:
        """A checkpoint that is complete; whatever happens next, nothing was committed with it."""
        self._job.cluster.completions_are_lost = True
        try:
            return self.checkpoint()
        finally:
            self._job.cluster.completions_are_lost = False

    def checkpoint_later(self) -> Future[int]:
        """Ask for a checkpoint, and do not wait for it."""
        assert self.running(), self.error
        return self._requests.submit(self.client.trigger_checkpoint, timeout=WAIT)

    def savepoint(self, directory: Path) -> Path:
        assert self.running(), self.error
        return Path(self.client.trigger_savepoint(str(directory), timeout=WAIT))

    def stop(self, directory: Path, *, drain: bool = False, format: str = "CANONICAL") -> Path:
        """Stop with a savepoint; where it is."""
        assert self.running(), self.error
        pointer = self.client.stop_with_savepoint(drain, str(directory), SavepointFormat(format), WAIT)
        self.wait()
        return Path(pointer)

    def cancel(self) -> None:
        self.client.cancel(WAIT)

    def wait(self) -> str:
        """Wait for the end; the status."""
        self._job.wait(WAIT)
        return self.status

    def wait_briefly(self) -> bool:
        """Whether the job ends in the next moment."""
        return self._job.wait(0.5).is_terminal

    def tasks_are_finished(self) -> bool:
        """Whether all subtasks have said that they have finished."""
        attempt = self._job.machine._attempt
        return len(attempt.finished) == attempt.tasks

    def kill_worker(self) -> None:
        """Kill a worker process, and wait until the job has noticed."""
        machine = self._job.machine
        before = machine.attempt
        self._job.cluster.kill_worker_now.set()
        assert eventually(lambda: self.ended or machine.attempt > before or machine.phase is Phase.LEAVING)

    def kill_driver(self) -> None:
        """The driver is gone, and its workers with it; it can do nothing any more."""
        self._job.cluster.driver_is_dead.set()
        self._job._thread.join(WAIT)
        self._requests.shutdown(wait=False)


class Cluster:
    """Starts jobs; everything they store is below one directory. Leave it to end whatever still runs."""

    def __init__(self, directory: Path) -> None:
        self.checkpoints, self.savepoints = directory / "checkpoints", directory / "savepoints"
        self.output = directory / "output"
        self._jobs: list[Job] = []
        self._patches = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        patch = self._patches.setattr
        patch(environment_module, "SparkJob", _JobHere)
        patch(environment_module, "get_session", lambda *_: None)
        patch(environment_module, "register", lambda *_: None)
        patch(job_module, "Timing", partial(Timing, better_cause=50))
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs:
            job.storage.come_back()
            if not job.ended:
                job.kill_driver()
        self._patches.undo()

    def count_into_files(self, numbers: Any) -> None:
        """A program with keyed state, and files that show each record once."""
        numbers.key_by(key_of).process(Count()).uid("count").sink_to(FileSink(str(self.output), "text")).uid("files")

    def start(
        self,
        program: Program | None = None,
        options: Mapping[str, str] | None = None,
        *,
        total: int = 400,
        max_parallelism: int = 32,
    ) -> Job:
        """Start a job that reads `total` numbers; by default it counts them into files."""
        defaults = {
            "execution.checkpointing.dir": str(self.checkpoints),
            "execution.checkpointing.interval": FAR_AWAY,
            "execution.checkpointing.min-pause": FAR_AWAY,
            "execution.checkpointing.data-inline-threshold": "0 b",
            "execution.checkpointing.tolerable-failed-checkpoints": "100",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1000",
            "restart-strategy.fixed-delay.delay": "10 ms",
        }
        chosen = {key: value for key, value in (defaults | dict(options or {})).items() if value}
        env = StreamExecutionEnvironment.get_execution_environment(Configuration(chosen))
        env.set_parallelism(1).set_max_parallelism(max_parallelism)
        name = f"feed-{len(_feeds)}"
        _feeds[name] = _Feed(total)
        (program or self.count_into_files)(env.from_source(Numbers(name)).uid("numbers"))
        job = Job(env.execute_async("orders"), _feeds[name])
        self._jobs.append(job)
        return job

    def resume(self, program: Program | None = None, options: Mapping[str, str] | None = None, **more: Any) -> Job:
        """As `headgate run --resume` does."""
        return self.start(program, {"headgate.resume": "true"} | dict(options or {}), **more)

    def start_from(
        self, snapshot: Path, program: Program | None = None, options: Mapping[str, str] | None = None, **more: Any
    ) -> Job:
        """As `headgate run --from SNAPSHOT` does."""
        return self.start(program, {"execution.state-recovery.path": str(snapshot)} | dict(options or {}), **more)

    def visible(self) -> list[str]:
        """The lines of all files that readers of the output see, sorted by number."""
        lines = [line for path in self.output.glob("part-*") for line in path.read_text().splitlines()]
        return sorted(lines, key=lambda line: int(line.split()[0]))

    def comes_to_show(self, lines: list[str]) -> bool:
        """Wait until readers of the output see these lines and no others; whether they do."""
        return eventually(lambda: self.visible() == lines, 5.0)

    def checkpoint_files(self) -> dict[str, bytes]:
        """What is stored for checkpoints, the job log aside."""
        found = files_below(self.checkpoints)
        return {path: data for path, data in found.items() if "/log/" not in path}


def files_below(directory: Path) -> dict[str, bytes]:
    """All files and what they hold."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}
