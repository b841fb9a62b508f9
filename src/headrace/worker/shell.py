"""A task in Spark's Python worker: threads, clocks and sockets around the stepped subtask.

One thread reads Spark's rows into a bounded queue. The main loop, in the thread that Spark calls, feeds the subtask
from it, handles control messages and timers, and yields the rows that are ready. When the queue is full nothing is
read, and Spark's back-pressure stops the writers.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
import pyarrow as pa

from headrace.control import messages
from headrace.control.deployment import ARCHIVE_PREFIX, ControlAddress, TaskDescriptor, process_mark
from headrace.control.worker_link import ControlClient
from headrace.errors import JobCancelled, WorkerLost
from headrace.graph.plan import Settings, ShippedArchive
from headrace.job.status import Status
from headrace.worker.failures import describe
from headrace.worker.inflow import Inflow, ReadAhead
from headrace.worker.mailbox import Mailbox
from headrace.worker.relay import Relay
from headrace.worker.slices import SliceLimit, preemptions
from headrace.worker.snapshots.local_state import local_state_cleaned
from headrace.worker.snapshots.restore import RestoreProgress
from headrace.worker.spark_rows import Row, as_batch, portions, read_batches
from headrace.worker.stacks import sample_stacks
from headrace.worker.subtask import Subtask
from headrace.worker.task import make_snapshot_writer, make_task

T = TypeVar("T")
_log = logging.getLogger("headrace.worker")
_SLICE_OBJECTS = 50_000
_LONGEST_WAIT = 1.0
_UPKEEP_SECONDS = 1.0
_PULSE_SECONDS = 1.0
_CANCEL_GRACE = 3.0
_FAILURE_GRACE = 8.0  # a plain pyspark waits up to 5 s for its own reading thread before it reports an exception


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector wait for the end of a slice, unless this makes a great many objects.

    Nearly all objects that a slice makes are its records, and are gone at its end: to look at each of them before takes
    a tenth of the time of a simple function. A threshold of 0, and any that is set meanwhile, is the user's.
    """
    usual = gc.get_threshold()[0]
    raised = max(usual, _SLICE_OBJECTS) if usual else 0
    gc.set_threshold(raised)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == raised:
            gc.set_threshold(usual)


class Shell:
    """Drives one subtask inside a Spark task; also its `SubtaskServices`."""

    lockstep = False
    client: ControlClient  # from `connect` on

    def __init__(self, settings: Settings, readers: int = 0) -> None:
        """`readers` is the number of tasks in the next level."""
        self._ahead = ReadAhead(settings.queue_size, settings.queue_ms / 1000)
        self.inflow = Inflow(self._ahead.half)
        self._readers, self._pulsed = readers, 0
        self._sent_at = 0.0
        self._settings = settings
        self._cancelled: str | None = None
        self._task: Subtask | Relay | None = None
        self._over = False
        self._unconfirmed = 0
        self.mailbox = Mailbox(lambda message: self.client.send(message))  # noqa: PLW0108 - not connected yet
        self._next_upkeep = time.monotonic() + _UPKEEP_SECONDS
        self._busy = self._back_pressured = self._idle = 0.0  # seconds
        self._without_input = 0.0  # of the idle ones, those in which there was nothing to process
        self.restore = RestoreProgress()
        self._may_start = self._reported_finished = False
        self._process = psutil.Process()
        self._slice = SliceLimit(settings.slice_ms / 1000)
        self._thread = threading.get_ident()  # that of the main loop
        self._showing = threading.Lock()

    # --- services of the subtask ------------------------------------------------------------------------------------

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def to_driver(self, channel: str, payload: bytes, records: int) -> None:
        self._unconfirmed += 1
        self.client.send(messages.Output(channel, payload, records))

    def wake(self) -> None:
        self.inflow.wake()

    # --- control ----------------------------------------------------------------------------------------------------

    def connect(self, address: ControlAddress, register: messages.Register, timeout: float) -> None:
        """Register with the driver."""
        self.client = ControlClient(address, register, timeout, self._on_message, self._metrics)

    def _on_message(self, message: messages.FromDriver) -> None:
        if isinstance(message, messages.Confirm):
            self._unconfirmed -= message.outputs
            self.wake()
        elif isinstance(message, messages.ToSubtask):
            self.mailbox.post(message)
            self.wake()
        elif isinstance(message, messages.SampleStacks | messages.SampleRecords):
            threading.Thread(target=self._answer, args=(message,), name="headrace-probe", daemon=True).start()
        elif isinstance(message, messages.StartProcessing):
            self._may_start = True
            self.wake()
        elif isinstance(message, messages.Cancel) and self._cancelled is None:
            self._cancelled = message.reason
            self.wake()
            self.end_process_in(_CANCEL_GRACE)

    def _answer(self, wanted: messages.Probe) -> None:
        """In a thread of its own, while the subtask works: records are shown by the user's `__repr__`, which may take long."""
        if isinstance(wanted, messages.SampleStacks):
            taken = sample_stacks(self._thread, wanted.samples, wanted.interval_ms / 1000)
            self.client.send(messages.StackSample(wanted.question, *taken))
        elif self._showing.acquire(blocking=False):  # else the last answer still takes its time
            task = self._task
            try:
                records = task.sample(wanted.count) if isinstance(task, Subtask) else []
            finally:
                self._showing.release()
            self.client.send(messages.RecordSample(wanted.question, records))

    def end_process_in(self, seconds: float) -> threading.Timer:
        """End the process after a grace period: the main thread may be blocked in user code or in a full socket."""
        timer = threading.Timer(seconds, lambda: self._over or os._exit(0))  # over: it may run another task by now
        timer.daemon = True
        timer.start()
        return timer

    def over(self) -> None:
        """The task has ended; Spark may run another task in this process now."""
        self._over = True
        self.client.close()

    def _check_cancelled(self) -> None:
        if self._cancelled is not None:
            raise JobCancelled(self._cancelled)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def read(self, rows: Iterator[pa.Buffer]) -> None:
        """Read Spark's rows into the queue; runs in the reading thread."""
        try:
            for row in rows:
                self.inflow.put(row)
            self.inflow.end(None)
        except Exception as error:
            self.inflow.end(error)

    def run(self, task: Subtask | Relay) -> Iterator[list[Row]]:
        """Restore, wait for the other tasks, work until the subtask is finished, read Spark's iterator to its end."""
        task.restore()
        self.client.send(messages.Restored())
        yield from self._pulse(self._readers)
        while not self._may_start:
            self.inflow.wait(_PULSE_SECONDS, for_rows=False)
            self._check_cancelled()
            yield from self._pulse(min(1, self._readers))
        task.open()
        self._task = task
        self._began = time.monotonic()
        self.client.send(messages.Running())
        while True:
            self._check_cancelled()
            for row in self.inflow.take(self._room(task)):
                task.receive(row)
            self._check_input(task)
            worked = self._work(task)
            self._look_ahead(task)
            self._serve(task)
            more = worked and self._has_more(task)  # else the next turn would only find out that it can wait
            if not more:
                task.flush_when_idle()
            yield from self._yield(task)
            if task.status is Status.FINISHED:
                self._report_finished()
                if self.inflow.exhausted and self.inflow.empty:
                    break
            if not more:
                if task.status is Status.RUNNING and time.monotonic() - self._sent_at >= _PULSE_SECONDS:
                    yield from self._pulse(min(1, self._readers))
                self._wait(task)
        self._check_input(task)
        task.close()
        self.client.send(self._metrics())

    def _serve(self, task: Subtask | Relay) -> None:
        """Exchange messages with the driver, and do background work from time to time."""
        if not isinstance(task, Subtask) or self._reported_finished:
            return
        self.mailbox.serve(task)
        if time.monotonic() >= self._next_upkeep:
            task.upkeep()
            self._next_upkeep = time.monotonic() + _UPKEEP_SECONDS

    def _has_more(self, task: Subtask | Relay) -> bool:
        """Return True if there is something to process now; a drained source has nothing until its pause is over."""
        return not self.inflow.empty or (task.has_work() and not self._held())

    def _report_finished(self) -> None:
        """Tell the driver once that checkpoints need not wait for this subtask any more.

        Its Spark task has to run until the level before ends, for example with a short source after the first level.
        """
        if not self._reported_finished:
            self._reported_finished = True
            self.mailbox.close(finished=True)
            self.client.send(messages.Finished())

    def _room(self, task: Subtask | Relay) -> int:
        """The number of bytes to read; what is queued inside the subtask counts too.

        While alignment waits for a barrier, all is read: it may come after rows of blocked channels.
        """
        if isinstance(task, Subtask) and task.needs_reading:
            return self._settings.queue_size
        return self._ahead.half - task.queued_bytes

    def _look_ahead(self, task: Subtask | Relay) -> None:
        """Adapt what is read ahead to the speed of the subtask."""
        self._ahead.observe(task.processed_bytes, time.monotonic() - self._began - self._without_input)
        self.inflow.limit = self._ahead.half

    def _work(self, task: Subtask | Relay) -> bool:
        """Fire due timers and process one slice of records; returns whether there was anything to do."""
        deadline = task.next_deadline()
        started = time.perf_counter()
        fired = deadline is not None and deadline <= self.now()
        if fired:
            task.on_time(self.now())
        if not task.has_work() or self._held():
            self._busy += time.perf_counter() - started
            return fired and task.next_deadline() != deadline
        pending = _pending(task)
        begun, cpu, interrupted, made = time.perf_counter(), time.thread_time(), preemptions(), task.bytes_out
        with rare_collections():
            count = task.step(self._slice.records)
        ended = time.perf_counter()
        self._busy += ended - started
        on_cpu, preempted = time.thread_time() - cpu, preemptions() != interrupted
        self._slice.observe(count, ended - begun, on_cpu, preempted, task.bytes_out - made)
        return count > 0 or pending

    def _held(self) -> bool:
        """Return True if too many outputs are unconfirmed by the driver, or a reader has requested a stop."""
        return self._unconfirmed >= self._settings.max_unconfirmed or self.mailbox.paused

    def _check_input(self, task: Subtask | Relay) -> None:
        """Raise WorkerLost if the iterator ended before the end frames of all writers: an upstream task died."""
        if self.inflow.exhausted and self.inflow.empty and not task.all_input_ended():
            cause = f": {self.inflow.error}" if self.inflow.error else ""
            raise WorkerLost(f"the input broke off before its end; a task of the level before died{cause}")

    def _wait(self, task: Subtask | Relay) -> None:
        if task.status is Status.FINISHED and self.inflow.exhausted:
            return
        if _pending(task) and not self._held():
            return
        seconds = _LONGEST_WAIT
        deadline = task.next_deadline()
        if deadline is not None:
            seconds = min(seconds, max(0.0, (deadline - self.now()) / 1000))
        if seconds > 0:
            started = time.perf_counter()
            aligning = isinstance(task, Subtask) and task.needs_reading
            starved = aligning or (self.inflow.empty and not task.queued_bytes)
            self.inflow.wait(seconds, for_rows=self._room(task) > 0)
            waited = time.perf_counter() - started
            self._idle += waited
            if starved:  # else it waits for the driver or for asynchronous calls, and is that much slower
                self._without_input += waited

    def _yield(self, task: Subtask | Relay) -> Iterator[list[Row]]:
        rows = task.take()
        if not rows:
            return
        started = time.perf_counter()
        yield from portions(rows)
        self._back_pressured += time.perf_counter() - started
        self._sent_at = time.monotonic()

    def _pulse(self, count: int) -> Iterator[list[Row]]:
        """Send empty rows to the next readers in turn, which keeps idle shuffle connections open."""
        if count:
            yield [((self._pulsed + i) % self._readers, [b""]) for i in range(count)]
            self._pulsed = (self._pulsed + count) % self._readers
        self._sent_at = time.monotonic()

    def _metrics(self) -> messages.Metrics:
        """The counters, once a second; called in the client's thread, also while the main thread is blocked."""
        task, restore = self._task, self.restore
        counted = messages.Metrics() if task is None else task.metrics()
        return msgspec.structs.replace(
            counted,
            queued_bytes=counted.queued_bytes + (0 if task is None else self.inflow.queued_bytes),
            busy_ms=int(self._busy * 1000),
            back_pressured_ms=int(self._back_pressured * 1000),
            idle_ms=int(self._idle * 1000),
            resident_bytes=self._process.memory_info().rss,
            restored_bytes=restore.done,
            restore_bytes=restore.total,
            restored_locally=restore.local,
        )


def _pending(task: Subtask | Relay) -> bool:
    """Return True if queued input can be processed; unlike `has_work`, this ignores a source that may have no data."""
    return isinstance(task, Subtask) and task.has_events()


@dataclass(frozen=True, slots=True)
class LevelTask:
    """The function of one level's Spark stage; a task is found by its partition."""

    tasks: bytes  # pickled list[TaskDescriptor]
    address: ControlAddress
    control_timeout: float
    path: tuple[str, ...] = ()  # where the driver finds modules, if workers see the same files
    archives: tuple[str, ...] = ()  # else: the names of the archives with the program's modules
    unpack: tuple[ShippedArchive, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task as the function of mapInArrow, which is all that a plain pyspark knows."""
        yield from self.run_in_spark(read_batches(batches), as_batch)

    def run_in_spark(self, rows: Iterator[pa.Buffer], form: Callable[[list[Row]], T]) -> Iterator[T]:
        """Run the one that Spark's context of this task names."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return self.run(rows, form, context.partitionId(), context.stageId())

    def run(
        self, rows: Iterator[pa.Buffer], form: Callable[[list[Row]], T], index: int, stage: int = -1
    ) -> Iterator[T]:
        """Run one task from registration to its end: the rows that it sends, in portions of that form."""
        sys.setswitchinterval(0.0005)  # three threads share the GIL; the default hands over only every 5 ms
        self._extend_path()
        descriptor: TaskDescriptor = pickle.loads(self.tasks)[index]
        job_id, attempt, level = descriptor.job_id, descriptor.attempt, descriptor.level
        shell = Shell(descriptor.settings, descriptor.next_width)
        register = messages.Register(level, index, attempt, socket.gethostname(), os.getpid(), stage)
        shell.connect(self.address, register, self.control_timeout)
        task: Subtask | Relay | None = None
        with (
            self._unpacked(descriptor.settings.tmp_dir),
            _marked(process_mark(job_id, attempt)),
            local_state_cleaned(descriptor.settings.tmp_dir),
        ):
            try:
                threading.Thread(target=shell.read, args=(rows,), name="headrace-reader", daemon=True).start()
                shell.mailbox.writer = make_snapshot_writer(descriptor, shell.client.send)
                task = make_task(descriptor, shell, progress=shell.restore)
                for portion in shell.run(task):
                    yield form(portion)
            except BaseException as error:
                stopped = isinstance(error, GeneratorExit | JobCancelled)  # by Spark or by the driver
                failure = describe(error, descriptor.name)
                if not stopped:
                    shell.client.send(failure)  # before close(), which may hang
                ending = shell.end_process_in(_CANCEL_GRACE if stopped else _FAILURE_GRACE)
                shell.mailbox.cancel()
                try:
                    if task is not None:
                        task.close()
                except Exception as second:  # it must not hide the failure
                    _log.warning("worker %d: close() failed as well: %s", os.getpid(), second)
                if not stopped:  # the driver may be slow: it has to hear why
                    ending.cancel()
                    shell.end_process_in(self.control_timeout + _FAILURE_GRACE)
                shell.client.close()
                if stopped:
                    raise
                raise RuntimeError(f"headrace: {failure.message}") from None
        shell.over()

    def _extend_path(self) -> None:
        """Search modules where the driver does and in the same order, so that a name means the same module.

        Spark may have run a task of another job in this process: what that job imported from its archives is not ours.
        """
        path = list(self.path)
        if self.archives:
            from pyspark import SparkFiles

            path += map(SparkFiles.get, self.archives)
        foreign = [entry for entry in sys.path if ARCHIVE_PREFIX in entry and entry not in path]
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path and entry not in foreign)]
        if foreign:
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__dict__", {}).get("__file__")).startswith(tuple(foreign)):
                    del sys.modules[name]

    @contextmanager
    def _unpacked(self, directory: str | None) -> Iterator[None]:
        """Work in a directory with the archives of the job, while the task runs."""
        if not self.unpack:
            yield
            return
        before = Path.cwd()
        with tempfile.TemporaryDirectory(prefix="headrace-", dir=directory, ignore_cleanup_errors=True) as place:
            for one in self.unpack:
                file = one.file
                if not Path(file).is_absolute():
                    from pyspark import SparkFiles

                    file = SparkFiles.get(file)
                shutil.unpack_archive(file, Path(place, one.directory))
                if one.importable:
                    sys.path.insert(0, str(Path(place, one.directory)))
            os.chdir(place)
            try:
                yield
            finally:
                os.chdir(before)
                sys.path[:] = [entry for entry in sys.path if not entry.startswith(place)]


@contextmanager
def _marked(name: str) -> Iterator[None]:
    """Rename this process while it runs a task; Linux only."""
    comm, before = Path("/proc/self/comm"), "python3"
    with suppress(OSError):
        before = comm.read_text().strip()
        comm.write_text(name)
    try:
        yield
    finally:
        with suppress(OSError):
            comm.write_text(before)
