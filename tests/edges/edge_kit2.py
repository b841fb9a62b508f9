"""Whole jobs in this process, without a JVM: public API above, real files below, Spark replaced by threads.

Only this file imports internals. Programs, sources and sinks use the public API, and tests look at storage, at what is
visible in a `Ledger`, and at what the JobClient says.
"""

import os
import queue
import shutil
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate import Configuration, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headgate.api.functions import TaskInfo
from headgate.api.sink import CommitRequest, Committer, Epoch, EpochCommitter, Sink, SinkWriter
from headgate.api.sources import Source, SourceReader
from headgate.connectors.spark.sink import PythonDataSink  # noqa: F401 - for tests
from headgate.driver import spark as spark_internals
from headgate.driver.session import REQUIRED
from headgate.ids import JobId
from headgate.records.batch import Batch
from headgate.rest import server as rest_server
from headgate.state.local_directory import LocalDirectory
from headgate.storage.checkpoints import load_snapshot, require_intact
from headgate.storage.layout import JobLayout
from headgate.storage.local import LocalStore
from headgate.storage.log import read_log
from headgate.storage.objects import OutcomeUnknown, storage_error
from headgate.storage.remote import open_store
from headgate.worker import shell as worker
from headgate.worker.local_state import local_directory

SECONDS = 15.0


def wait_until(condition, seconds=SECONDS, what="the condition"):
    """Poll until the condition gives something true; that."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
        time.sleep(0.01)
    return result


def give_time(condition, seconds=2.0):
    """Wait a moment for something that need not happen."""
    with suppress(AssertionError):
        wait_until(condition, seconds)


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
        rows = self._functions[level].run(self._input(level, index), index)
        try:
            for batch in rows:
                if self.stopped.is_set():
                    rows.close()
                    return
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
    monkeypatch.setattr(worker.Shell, "end_process_in", lambda self, seconds: None)  # it would be ours
    started = Jobs()
    yield started
    started.close()


# --- jobs ---------------------------------------------------------------------------------------------------------------

DEFAULTS = {
    "execution.checkpointing.interval": "1 h",  # the test asks for each checkpoint
    "execution.checkpointing.data-inline-threshold": "0 b",
    "restart-strategy.type": "none",
    "headgate.rest.enabled": "false",
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
        """What `headgate run --resume` does."""
        return self.start(directory, build, (options or {}) | {"headgate.resume": "true"}, **more)

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


def wait_ended(client, seconds=SECONDS):
    """The status at the end, and the error if there is one."""
    wait_until(lambda: client.get_job_status().is_terminal, seconds, "the end of the job")
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
        self._open.wait(SECONDS)

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
    monkeypatch.setattr(worker.Shell, "now", lambda self: time.time_ns() // 1_000_000 + milliseconds)


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
    rest_server._announce(url)


def announcement():
    """The file in which this process says where its REST server is."""
    return rest_server._directory() / f"{os.getpid()}.json"


# --- programs -----------------------------------------------------------------------------------------------------------


class Tap:
    """What a source gives: each of its splits the numbers below `limit`, and it is finished when closed."""

    def __init__(self):
        self._limits, self._closed = Counter(), set()
        self.given, self.ended = Counter(), set()
        self.failing = False

    def let(self, count, split=0):
        """Let a split give so many numbers in all."""
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


class Count(KeyedProcessFunction):
    """Numbers the records of each key: one that is lost or repeated leaves a gap or a double."""

    def open(self, runtime_context):
        self._count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value, ctx):
        self._count.update((self._count.value() or 0) + 1)
        yield value, self._count.value()


def counting(tap, ledger, sink=LedgerSink):
    """A program with keyed state."""
    return lambda env: (
        env.from_source(Numbers(tap.name)).key_by(lambda n: n % 7).process(Count()).sink_to(sink(ledger.name))
    )


def counted(count):
    """What it writes for the first records of split 0, each once."""
    return Counter((n, n // 7 + 1) for n in range(count))
