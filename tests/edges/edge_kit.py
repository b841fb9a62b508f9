"""Whole jobs in this process, from start to end, without a JVM: the only file here that knows the inside of Headrace.

The job, its checkpoints and its subtasks are those of production. In place of Spark there are two ways to run tasks:

- `Cluster`: one thread runs all subtasks of an attempt. The input of a job is the numbers 0, 1, 2 ..., and the test decides
  how many of them are there to be read; a checkpoint is taken when the test asks for one. So nothing depends on how fast
  the machine is.
- `Jobs`: each task is a thread with the shell and the control plane of production. A `Tap` says what its sources give, a
  `Ledger` what its sinks have written and made visible.
"""

from __future__ import annotations

import errno
import os
import queue
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Configuration, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace import environment as environment_module
from headrace.api.functions import TaskInfo
from headrace.api.sink import CommitRequest, Committer, Epoch, EpochCommitter, Sink, SinkWriter
from headrace.api.sources import Source, SourceReader
from headrace.checkpoint import steps as steps_module
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.plan import Refusal
from headrace.checkpoint.types import SavepointFormat
from headrace.connectors.files import FileSink
from headrace.control.messages import CheckpointComplete, Confirm
from headrace.driver import job as job_module
from headrace.driver import services as driver_services
from headrace.driver import spark as spark_internals
from headrace.driver.cluster import AttemptOver, WorkerMessage
from headrace.driver.job_master import Call
from headrace.driver.session import REQUIRED
from headrace.errors import HeadraceError, JobFailed, StorageError
from headrace.ids import JobId
from headrace.job.job_events import CauseFound
from headrace.job.machine import Phase, Timing
from headrace.job.status import Status
from headrace.launch import start as start_module
from headrace.records.batch import Batch
from headrace.rest import discovery
from headrace.state.local_directory import LocalDirectory
from headrace.storage.layout import JobLayout
from headrace.storage.local import LocalStore
from headrace.storage.log import read_log
from headrace.storage.objects import OutcomeUnknown, storage_error
from headrace.storage.published_snapshots import load_snapshot, require_intact
from headrace.storage.remote import RoutingStore, open_store
from headrace.testing.simulation import cluster as simulated
from headrace.worker import shell as worker_shell
from headrace.worker.failures import describe
from headrace.worker.snapshots.local_state import local_directory
from headrace.worker.spark_rows import as_batch, read_batches
from waiting import wait_until

WAIT = 60.0  # seconds that anything may take on a slow machine
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
    account, refusals = steps_module.account_for_finished, [Refusal("a task has finished just now")]
    monkeypatch.setattr(
        steps_module, "account_for_finished", lambda *args: refusals.pop() if refusals else account(*args)
    )


# --- input ------------------------------------------------------------------------------------------------------------


class _Feed:
    """How much of the input is there, and how much of it was read by the attempt that runs."""

    def __init__(self, total: int) -> None:
        self.total, self.there, self.read = total, 0, 0


_feeds: dict[str, _Feed] = {}
"""A source travels as bytes: its reader finds its feed here."""


class FeedNumbers(Source[int]):
    """The numbers from 0 on; a split is the next one."""

    single = True

    def __init__(self, feed: str) -> None:
        self._feed = feed

    def splits(self, parallelism):
        return [0]

    def reader(self, context, splits):
        return _FeedReader(_feeds[self._feed], splits[0])


class _FeedReader(SourceReader[int]):
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
        self._dead = False
        self._under_way = 0
        self._changed = threading.Condition()
        self.refused = 0
        self.reads: dict[str, list[str]] = {"driver": [], "workers": []}  # the files that were read, and by whom

    def fail_next_write(self, within: str) -> None:
        """The next file whose path contains this cannot be written."""
        self._fail = within

    @contextmanager
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

    def die(self) -> None:
        """The process that uses this was killed: what is under way is finished, and everything else is refused."""
        with self._changed:
            self._dead = True
            assert self._changed.wait_for(lambda: not self._under_way, WAIT), "the storage is still in use"

    @contextmanager
    def in_use(self, path: str) -> Iterator[None]:
        with self._changed:
            if self._dead:
                raise StorageError(f"cannot reach '{path}': the process was killed")
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

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
        with self._storage.in_use(path):
            return super().read(path, offset, length)

    def put(self, path, data):
        self._storage.before_write(path)
        with self._storage.in_use(path):
            super().put(path, data)

    def create_if_absent(self, path, data):
        self._storage.before_write(path)
        with self._storage.in_use(path):
            return super().create_if_absent(path, data)

    def delete(self, path):
        with self._storage.in_use(path):
            super().delete(path)

    def make_directory(self, directory):
        with self._storage.in_use(directory):
            return super().make_directory(directory)

    def remove_directory(self, directory):
        with self._storage.in_use(directory):
            super().remove_directory(directory)

    def writer(self, directory, label=""):
        with self._storage.in_use(directory):
            return super().writer(directory, label)


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
        self.lost_completions = 0  # the newest checkpoint that no worker is told of
        self._stopped = -1

    def open(self):
        """There is no connection to open."""

    def wait_for_slots(self, plan, given_up, timeout=None):
        """There are always enough."""

    def submit(self, submission):
        self._tasks = None
        threading.Thread(target=self._run, args=(submission,), daemon=True).start()

    def send(self, attempt, worker, message):
        if isinstance(message, CheckpointComplete) and message.checkpoint_id <= self.lost_completions:
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
        while not self.master.ended and not self.cluster.driver_is_dead.is_set():
            try:
                event = self._events.get(timeout=0.02)
            except queue.Empty:
                self.master.on_idle()
            else:
                self.master.handle(event)


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
        """Let it read this number of further records, and wait until it has."""
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
        except HeadraceError as error:
            if self.wait_briefly():
                error.add_note(f"the job is {self.status}: {self.error}")
            raise

    def has_cleaned_up(self) -> bool:
        """Wait until the files that no checkpoint needs any more are deleted; whether they are."""

        def idle() -> bool:
            """Asked in the job's thread, between two of its steps."""
            answer: Future[bool] = Future()
            self._job._events.put(Call(lambda: answer.set_result(self._job.service._io_under_way == 0)))
            return answer.result(WAIT)

        return eventually(idle)

    def checkpoint_without_notification(self) -> int:
        """A checkpoint that is complete; whatever happens next, nothing was committed with it."""
        self._job.cluster.lost_completions = sys.maxsize
        lost = self.checkpoint()
        self._job.cluster.lost_completions = lost  # its notification may not have been sent yet
        return lost

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

    def lose_worker_in_stop(self, directory: Path) -> BaseException | None:
        """Stop with a savepoint; a worker dies when that is complete and no subtask knows. The error of the stop."""
        before = self._job.service.newest_checkpoint
        self._job.cluster.lost_completions = sys.maxsize
        answer = self._requests.submit(self.client.stop_with_savepoint, False, str(directory), timeout=WAIT)
        assert eventually(lambda: self._job.service.newest_checkpoint is not before)
        self._job.cluster.lost_completions = 0
        self.kill_worker()
        return answer.exception(WAIT)

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
        self.storage.die()
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
        patch(start_module, "SparkJob", _JobHere)
        patch(environment_module, "get_session", lambda *_: None)
        patch(start_module, "register", lambda *_: None)
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
        (program or self.count_into_files)(env.from_source(FeedNumbers(name)).uid("numbers"))
        job = Job(env.execute_async("orders"), _feeds[name])
        self._jobs.append(job)
        return job

    def resume(self, program: Program | None = None, options: Mapping[str, str] | None = None, **more: Any) -> Job:
        """As `headrace run --resume` does."""
        return self.start(program, {"headrace.resume": "true"} | dict(options or {}), **more)

    def start_from(
        self, snapshot: Path, program: Program | None = None, options: Mapping[str, str] | None = None, **more: Any
    ) -> Job:
        """As `headrace run --from SNAPSHOT` does."""
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
    """All files and what they hold; a file that is deleted just then does not count."""
    found = {}
    for path in sorted(directory.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def in_background(action):
    """Do something in a thread; what comes of it is seen elsewhere."""

    def run():
        with suppress(Exception):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


# --- Spark --------------------------------------------------------------------------------------------------------------


class _Conf(dict):
    def set(self, key, value):
        self[key] = value


class _Context:
    master = "local[256]"

    def getConf(self):  # noqa: N802 - pyspark's name
        return _Conf(REQUIRED)

    def setJobGroup(self, group, description, interruptOnCancel=False):  # noqa: N802, N803 - pyspark's names
        _local.group = group


class _Session:
    """As much of a SparkSession as a job without Spark needs; `read.parquet` gives a table."""

    version = f"{spark_internals.SPARK_VERSION}.0"

    def __init__(self):
        self.sparkContext = _Context()
        self.conf = _Conf()
        self.read = self

    def newSession(self):  # noqa: N802 - pyspark's name
        return self

    def parquet(self, *paths):
        return pa.concat_tables(pq.read_table(path.removeprefix("file://")) for path in paths)


_local = threading.local()
_running = {}  # attempts by their job group
_holds: list[
    threading.Event
] = []  # while one is here, rows of sources are not taken; it is set when the first one waits


@contextmanager
def hold_rows_of_sources():
    """No row of a source is taken before the block is left, as if its readers were busy; the event says that one waits."""
    _holds.append(threading.Event())
    try:
        yield _holds[-1]
    finally:
        _holds.pop()


class _Dataflow:
    """All tasks of one attempt as threads, with queues between their levels in place of Spark's shuffle."""

    def __init__(self, widths, functions):
        self._widths, self._functions = widths, functions
        self.error = None
        self.stopped = threading.Event()
        self._queues = [[queue.SimpleQueue() for _ in range(width)] for width in widths]
        self._left = list(widths)
        self._lock = threading.Lock()

    def collect(self):
        _running[_local.group] = self
        for target in self._queues[0]:
            target.put(pa.RecordBatch.from_pydict({"id": [0]}))
            target.put(None)
        threads = [
            threading.Thread(target=self._task, args=(level, index), daemon=True)
            for level, width in enumerate(self._widths)
            for index in range(width)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not self.stopped.is_set():
                thread.join(0.02)
        if self.stopped.is_set():
            raise RuntimeError(self.error or "[SPARK_JOB_CANCELLED] the job was cancelled")

    def _task(self, level, index):
        rows = self._functions[level].run(read_batches(self._input(level, index)), as_batch, index)
        try:
            for batch in rows:
                if self.stopped.is_set():
                    rows.close()
                    return
                while level == 0 and _holds:
                    _holds[-1].set()
                    time.sleep(0.01)
                for target, payload in zip(batch.column(0), batch.column(1), strict=True):
                    row = pa.RecordBatch.from_arrays([pa.array([target]), pa.array([payload])], ["dst", "payload"])
                    self._queues[level + 1][target.as_py()].put(row)
        except BaseException as error:
            self.error = self.error or f"SparkException: a task failed: {error}"
            self.stopped.set()
            return
        with self._lock:
            self._left[level] -= 1
            if not self._left[level] and level + 1 < len(self._queues):
                for target in self._queues[level + 1]:
                    target.put(None)

    def _input(self, level, index):
        while not self.stopped.is_set():
            with suppress(queue.Empty):
                batch = self._queues[level][index].get(timeout=0.05)
                if batch is None:
                    return
                yield batch
        raise RuntimeError("the task before was stopped")


def _cancel_group(spark, group):
    if group in _running:
        _running[group].stopped.set()


@pytest.fixture
def jobs(monkeypatch):
    """Let jobs run on threads; what starts them."""
    monkeypatch.setattr(spark_internals, "build", lambda spark, widths, functions: _Dataflow(widths, functions))
    monkeypatch.setattr(spark_internals, "slots", lambda spark: 1000)
    monkeypatch.setattr(spark_internals, "is_stopped", lambda spark: False)
    monkeypatch.setattr(spark_internals, "cancel_group", _cancel_group)
    monkeypatch.setattr(spark_internals, "active_tasks", lambda spark, group: 0)
    unstarted = lambda self, seconds: threading.Timer(seconds, print)  # noqa: E731 - the process would be ours
    monkeypatch.setattr(worker_shell.Shell, "end_process_in", unstarted)
    started = Jobs()
    yield started
    started.close()


# --- jobs ---------------------------------------------------------------------------------------------------------------

DEFAULTS = {
    "execution.checkpointing.interval": "1 h",  # the test asks for each checkpoint
    "execution.checkpointing.data-inline-threshold": "0 b",
    "restart-strategy.type": "none",
    "headrace.rest.enabled": "false",
    "execution.buffer-timeout": "0 ms",
}


class Jobs:
    """Starts jobs, and cancels at the end of the test those that still run."""

    def __init__(self):
        self._clients = []
        self._at_end = []

    def environment(self, directory, options=None, parallelism=1, max_parallelism=32):
        """An environment whose jobs keep their checkpoints in `directory`."""
        chosen = DEFAULTS | {"execution.checkpointing.dir": str(directory)} | (options or {})
        env = StreamExecutionEnvironment.get_execution_environment(
            Configuration({key: value for key, value in chosen.items() if value is not None}), _Session()
        )
        env.set_parallelism(parallelism)
        if max_parallelism is not None:
            env.set_max_parallelism(max_parallelism)
        return env

    def start(self, directory, build, options=None, name="edge", **more):
        """Start the program that `build(env)` makes; its JobClient."""
        env = self.environment(directory, options, **more)
        build(env)
        client = env.execute_async(name)
        self._clients.append(client)
        return client

    def resume(self, directory, build, options=None, **more):
        """What `headrace run --resume` does."""
        return self.start(directory, build, (options or {}) | {"headrace.resume": "true"}, **more)

    def at_end(self, action):
        """Do this at the end of the test: let go what waits."""
        self._at_end.append(action)

    def close(self):
        for action in self._at_end:
            action()
        for client in self._clients:
            client.cancel(5)

    def crash(self, client, *directories):
        """The driver and its workers die: what is in the directories stays as it is now."""
        for directory in directories:
            wait_until(lambda d=directory: _copied(d), what=f"a copy of {directory} while no file is being deleted")
        for action in self._at_end:
            action()
        client.cancel(10)
        for directory in directories:
            shutil.rmtree(directory)
            Path(f"{directory}.crashed").rename(directory)


def _copied(directory):
    """Copy a directory that a job uses; False if something in it was deleted meanwhile."""
    copy = f"{directory}.crashed"
    shutil.rmtree(copy, ignore_errors=True)
    with suppress(shutil.Error):
        return bool(shutil.copytree(directory, copy, symlinks=True))
    return False


def wait_running(client):
    """Until all subtasks run."""
    wait_until(lambda: client.get_job_status().name == "RUNNING" or client.get_job_status().is_terminal)
    if client.get_job_status().is_terminal:
        client.wait(1)  # raises its error
    return client


def wait_ended(client, seconds=WAIT):
    """The status at the end, and the error if there is one."""
    wait_until(lambda: client.get_job_status().is_terminal, "the end of the job", seconds)
    return client.get_job_status().name, client.job.error


def finished_subtasks(client):
    """How many subtasks of the job have finished."""
    return len(client.job.machine._attempt.finished)


# --- storage ------------------------------------------------------------------------------------------------------------


def files(directory):
    """The files below a directory, relative to it, without the job logs."""
    found = (path.relative_to(directory) for path in Path(directory).rglob("*") if path.is_file())
    return sorted(str(path) for path in found if "log" not in path.parts)


def job_directory(directory):
    """The directory of the only job there."""
    (found,) = [path for path in Path(directory).iterdir() if len(path.name) == 32]
    return found


def checkpoints(directory):
    """The checkpoints of the only job in a directory that have files."""
    found = {Path(root).name for root, _, names in os.walk(job_directory(directory)) if names}
    found = {name for name in found if name.startswith("chk-")}
    return sorted(found, key=lambda name: int(name.removeprefix("chk-")))


def retained(directory):
    """The names of the snapshots that the job log says a restore may use, oldest first."""
    job = job_directory(directory)
    entry = read_log(open_store(), JobLayout.of(str(directory), JobId(job.name)))
    return [Path(ref.pointer).name for ref in entry.retained]


def log_entries(directory):
    """The files of the job log, oldest first."""
    return sorted((job_directory(directory) / "log").iterdir())


def check_whole(pointer):
    """An error says which file of a checkpoint or savepoint is damaged or missing."""
    store = open_store()
    require_intact(store, load_snapshot(store, str(pointer)))


def damage(path):
    """Flip a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


class Held:
    """Writes that wait: `reached` is set when the first one waits, `release()` lets all go on."""

    def __init__(self):
        self.reached, self._open = threading.Event(), threading.Event()

    def wait(self):
        self.reached.set()
        self._open.wait(WAIT)

    def release(self):
        self._open.set()


def hold_creation(monkeypatch, within):
    """Hold atomic creations of files whose path contains `within` (metadata, log entries)."""
    held, create = Held(), LocalStore.create_if_absent

    def wait_and_create(self, path, data):
        if within in path:
            held.wait()
        return create(self, path, data)

    monkeypatch.setattr(LocalStore, "create_if_absent", wait_and_create)
    return held


class Outage:
    """Storage that does not answer for some paths until `end()`; `reached` is set when it is met first."""

    def __init__(self):
        self.reached, self._over = threading.Event(), False

    def end(self):
        self._over = True

    def meet(self, path):
        if not self._over:
            self.reached.set()
            raise OutcomeUnknown(f"cannot reach '{path}': the storage does not answer")


def break_storage(monkeypatch, within):
    """Paths that contain `within` can be neither created nor read."""
    outage, create, read = Outage(), LocalStore.create_if_absent, LocalStore.read

    def try_to_create(self, path, data):
        if within in path:
            outage.meet(path)
        return create(self, path, data)

    def try_to_read(self, path, offset=0, length=None):
        if within in path:
            outage.meet(path)
        return read(self, path, offset, length)

    monkeypatch.setattr(LocalStore, "create_if_absent", try_to_create)
    monkeypatch.setattr(LocalStore, "read", try_to_read)
    return outage


def hold_state_files(monkeypatch, within):
    """Hold workers before they begin a state file in a directory whose path contains `within`."""
    held, writer = Held(), LocalStore.writer

    def wait_and_open(self, directory, label=""):
        if within in directory:
            held.wait()
        return writer(self, directory, label)

    monkeypatch.setattr(LocalStore, "writer", wait_and_open)
    return held


def fail_state_files(monkeypatch):
    """Workers cannot begin a state file until the outage ends."""
    outage, writer = Outage(), LocalStore.writer

    def try_to_open(self, directory, label=""):
        outage.meet(directory)
        return writer(self, directory, label)

    monkeypatch.setattr(LocalStore, "writer", try_to_open)
    return outage


def fail_one_delete(monkeypatch, within):
    """The first delete of a path that contains `within` fails; gives the list of paths for which one did."""
    failed, delete = [], LocalStore.delete

    def fail_once(self, path):
        if within in path and not failed:
            failed.append(path)
            raise storage_error("delete", path, OSError(5, "injected fault"))
        delete(self, path)

    monkeypatch.setattr(LocalStore, "delete", fail_once)
    return failed


def lose_reply(monkeypatch, within):
    """A file whose path contains `within` is created, but its writer gets no reply, and it cannot be read just then."""
    create, read, lost = LocalStore.create_if_absent, LocalStore.read, []

    def create_silently(self, path, data):
        made = create(self, path, data)
        if within in path and not lost:
            lost.append(path)
            raise OutcomeUnknown(f"cannot create '{path}': the reply was lost; it may have happened")
        return made

    def fail_once(self, path, offset=0, length=None):
        if lost == [path]:
            lost.append("read")
            raise storage_error("read", path, TimeoutError("the storage does not answer"))
        return read(self, path, offset, length)

    monkeypatch.setattr(LocalStore, "create_if_absent", create_silently)
    monkeypatch.setattr(LocalStore, "read", fail_once)
    return lost


# --- workers and REST ---------------------------------------------------------------------------------------------------


def set_worker_clock_ahead(monkeypatch, milliseconds):
    """The clocks of the workers' machines are ahead of the driver's."""
    monkeypatch.setattr(worker_shell.Shell, "now", lambda self: time.time_ns() // 1_000_000 + milliseconds)


def was_unaligned(client, checkpoint_id):
    """Whether any subtask took a checkpoint unaligned, as REST shows it."""
    return client.job.stats.snapshot().find(checkpoint_id).totals.unaligned


def use_local_state(job_id):
    """What a subtask of this user does with rocksdb, without io.tmp.dirs: take its directory on the local disk."""
    return LocalDirectory(local_directory(None, TaskInfo("count", "0" * 32, 0, 1, 128, 0, job_id), 1))


def local_state_directory(directory):
    """The directory of the only subtask that has rocksdb open below io.tmp.dirs."""
    (found,) = [path.parent for path in Path(directory).rglob("in-use")]
    return found


def announce_rest_server(url):
    """What a driver does so that this user's command line finds its REST server; the file it writes to."""
    discovery.announce(url)


def announcement():
    """The file in which this process says where its REST server is."""
    return discovery.directory() / f"{os.getpid()}.json"


# --- programs -----------------------------------------------------------------------------------------------------------


class Tap:
    """What a source gives: each of its splits the numbers below `limit`, and it is finished when closed."""

    def __init__(self):
        self._limits, self._closed = Counter(), set()
        self.given, self.ended = Counter(), set()
        self.failing = False

    def let(self, count, split=0):
        """Let a split give this number of records in all."""
        self._limits[split] = count

    def give(self, count, split=0):
        """The same, and wait until it did: the next checkpoint is behind them."""
        self.let(count, split)
        wait_until(lambda: self.given[split] >= count, what=f"number {count} of split {split}")

    def close(self, *splits):
        """These splits (all: none given) have nothing more to give than what they may."""
        self._closed |= set(splits or range(100))

    def end(self, split):
        """Close a split, and wait until its reader has noticed."""
        self.close(split)
        wait_until(lambda: split in self.ended, what=f"the end of split {split}")

    def state(self, split):
        return self._limits[split], split in self._closed

    def fail(self):
        """Let the subtask of split 0 fail once."""
        self.failing = True

    def check(self):
        if self.failing:
            self.failing = False
            raise RuntimeError("the test lets this subtask fail")


taps, ledgers = {}, {}  # functions travel as bytes: they find what they share with the test here, by name


def number(split, position):
    """The record at a place of a split."""
    return split * 1_000_000 + position


class Numbers(Source):
    """Numbers from a tap; one split for each subtask that the job starts with."""

    def __init__(self, tap, splits=1):
        self._tap, self._splits = tap, splits

    def splits(self, parallelism):
        return [(split, 0) for split in range(self._splits)]

    def reader(self, context, splits):
        return _NumbersReader(taps[self._tap], splits, context.clock)


class _NumbersReader(SourceReader):
    def __init__(self, tap, splits, clock):
        self._tap, self._positions, self._clock = tap, dict(splits), clock

    def poll(self, max_records):
        if 0 in self._positions:
            self._tap.check()
        for split, position in self._positions.items():
            limit, _ = self._tap.state(split)
            if position < limit:
                self._positions[split] = self._tap.given[split] = end = min(limit, position + max_records)
                return Batch.of_rows([number(split, place) for place in range(position, end)])
        self.finished = all(
            self._tap.state(split)[1] and position >= self._tap.state(split)[0]
            for split, position in self._positions.items()
        )
        if self.finished:
            self._tap.ended |= set(self._positions)
        return None

    def ready_at(self):
        return self._clock() + 5

    def snapshot(self):
        return list(self._positions.items())


class Ledger:
    """What a sink has written; committed batches are visible."""

    def __init__(self):
        self.prepared = {}
        self.commits = []  # (commit number, name of a batch), each call
        self.before_commit = lambda number: None
        self._lock = threading.Lock()

    def prepare(self, rows):
        with self._lock:
            name = f"batch-{len(self.prepared)}"
            self.prepared[name] = tuple(rows)
        return name

    def commit(self, number, names):
        self.before_commit(number)
        with self._lock:
            self.commits += [(number, name) for name in names]

    @property
    def visible(self):
        """The records that readers see: a batch counts once, however often it is committed."""
        return Counter(row for name in {name for _, name in self.commits} for row in self.prepared[name])

    @property
    def written(self):
        return sum(map(len, self.prepared.values()))


class LedgerSink(Sink):
    """Exactly once, committed by the subtasks."""

    def __init__(self, ledger):
        self._ledger = ledger

    def writer(self, context, restored):
        return _LedgerWriter(self._ledger)

    def committer(self, context):
        return _LedgerCommitter(self._ledger)


class EpochLedgerSink(LedgerSink):
    """Exactly once, committed as a whole on the driver."""

    commits_on_driver = True

    def epoch_committer(self, context):
        return _EpochLedgerCommitter(self._ledger)


class _LedgerWriter(SinkWriter):
    def __init__(self, ledger):
        self._ledger, self._rows = ledger, []

    def write(self, value):
        self._rows.append(value)

    def prepare(self, end_of_input):
        rows, self._rows = self._rows, []
        return [ledgers[self._ledger].prepare(rows)] if rows else []


class _LedgerCommitter(Committer):
    def __init__(self, ledger):
        self._ledger = ledger

    def commit(self, requests: list[CommitRequest]):
        for request in requests:
            ledgers[self._ledger].commit(request.commit_number, [request.committable])


class _EpochLedgerCommitter(EpochCommitter):
    def __init__(self, ledger):
        self._ledger = ledger

    def commit(self, epoch: Epoch):
        ledgers[self._ledger].commit(epoch.commit_number, epoch.committables)


@pytest.fixture
def tap(request):
    """The tap of this test: `Numbers(request.node.name)`."""
    taps[request.node.name] = made = Tap()
    made.name = request.node.name
    yield made
    del taps[request.node.name]


@pytest.fixture
def ledger(request):
    """The ledger of this test."""
    ledgers[request.node.name] = made = Ledger()
    made.name = request.node.name
    yield made
    del ledgers[request.node.name]


def record(count, split=0):
    """The first records of a split, each once."""
    return Counter(number(split, position) for position in range(count))


class Numbering(KeyedProcessFunction):
    """Numbers the records of each key: one that is lost or repeated leaves a gap or a double."""

    def open(self, runtime_context):
        self._count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value, ctx):
        self._count.update((self._count.value() or 0) + 1)
        yield value, self._count.value()


def numbering(tap, ledger, sink=LedgerSink):
    """A program with keyed state."""
    return lambda env: (
        env.from_source(Numbers(tap.name)).key_by(lambda n: n % 7).process(Numbering()).sink_to(sink(ledger.name))
    )


def numbered(count):
    """What it writes for the first records of split 0, each once."""
    return Counter((n, n // 7 + 1) for n in range(count))
