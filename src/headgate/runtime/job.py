"""The driver's side of a job: runs attempts on Spark, listens to the workers, restarts or gives up.

`decide` what a failure means stands in `restart.py`; here is the shell that does it.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from headgate.config import Configuration
from headgate.errors import HeadgateError, JobCancelled, JobFailed, UserCodeError, WorkerLost
from headgate.ids import JobId
from headgate.levels import describe as describe_layout
from headgate.protocol.messages import Cancel, Confirm, Failed, Finished, FromWorker, Metrics, Output, Register, Running
from headgate.restart import RestartStrategy
from headgate.runtime import spark as spark_internals
from headgate.runtime.control import ControlServer, WorkerKey
from headgate.runtime.plan import JobPlan, task_part
from headgate.runtime.session import dataflow_session
from headgate.runtime.worker import LevelTask

__all__ = ["JobStatus", "SparkJob"]

_BETTER_CAUSE_SECONDS = 1.0  # the first report may be a victim; the culprit's own words come a moment later
_OLD_TASKS_SECONDS = 30.0


class JobStatus(Enum):
    """Flink's names."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    RESTARTING = "RESTARTING"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    FINISHED = "FINISHED"

    @property
    def is_terminal(self) -> bool:
        return self in (JobStatus.CANCELED, JobStatus.FAILED, JobStatus.FINISHED)


@dataclass(frozen=True, slots=True)
class _Message:
    worker: WorkerKey
    message: FromWorker


@dataclass(frozen=True, slots=True)
class _Lost:
    worker: WorkerKey


@dataclass(frozen=True, slots=True)
class _SparkEnded:
    attempt: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _CancelRequested:
    pass


Event = _Message | _Lost | _SparkEnded | _CancelRequested


@dataclass(slots=True)
class _Attempt:
    """What is known of the attempt that runs."""

    number: int
    group: str
    workers: dict[WorkerKey, Register] = field(default_factory=dict)
    running: set[WorkerKey] = field(default_factory=set)
    finished: set[WorkerKey] = field(default_factory=set)
    metrics: dict[WorkerKey, Metrics] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    failing_since: float | None = None
    spark_error: BaseException | None = None


class SparkJob:
    """One job, from `execute` to its end, over any number of attempts."""

    def __init__(
        self,
        plan: JobPlan,
        job_id: JobId,
        spark: SparkSession,
        configuration: Configuration,
        restart: RestartStrategy,
        on_output: Callable[[str, bytes, Callable[[], None]], None],
    ) -> None:
        """`on_output(channel, payload, confirm)` gets printed lines and records; it calls confirm when it took them."""
        self.plan, self.job_id = plan, job_id
        self._spark, self._configuration, self._restart = spark, configuration, restart
        self._on_output = on_output
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._status = JobStatus.CREATED
        self._changed = threading.Condition()
        self._error: HeadgateError | None = None
        self._cancel_requested = False
        self._attempt: _Attempt | None = None
        self.restarts = 0
        self.failure_log: list[str] = []
        self._thread = threading.Thread(target=self._run, name=f"headgate-job-{job_id[:8]}", daemon=True)

    # --- what others see --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run in a thread of its own."""
        self._thread.start()

    @property
    def status(self) -> JobStatus:
        return self._status

    @property
    def error(self) -> HeadgateError | None:
        return self._error

    def cancel(self) -> None:
        """Stop the job; returns at once."""
        self._events.put(_CancelRequested())

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Until the job has ended, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._status.is_terminal, timeout)
        return self._status

    def wait_running(self, timeout: float | None = None) -> bool:
        """Until all subtasks run (or the job has ended); whether they do."""
        with self._changed:
            self._changed.wait_for(lambda: self._all_running() or self._status.is_terminal, timeout)
            return self._all_running()

    def _all_running(self) -> bool:
        attempt = self._attempt
        return attempt is not None and len(attempt.running) == self.plan.layout.slots

    def workers(self) -> dict[tuple[int, int], Register]:
        """The workers of the attempt that runs, by level and number."""
        attempt = self._attempt
        return {(k.level, k.index): r for k, r in (attempt.workers if attempt else {}).items()}

    def metrics(self) -> dict[tuple[int, int], Metrics]:
        """The newest counters of every subtask."""
        attempt = self._attempt
        return {(k.level, k.index): m for k, m in dict(attempt.metrics if attempt else {}).items()}

    # --- the job's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        server: ControlServer | None = None
        try:
            server = self._server()
            self._run_attempts(server)
        except HeadgateError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(
                JobFailed(f"job '{self.plan.name}' failed in the driver: {type(error).__name__}: {error}"), error
            )
        finally:
            if server is not None:
                server.stop()

    def _server(self) -> ControlServer:
        conf = self._spark.sparkContext.getConf()
        local = (self._spark.sparkContext.master or "").startswith("local")
        host = "127.0.0.1" if local else conf.get("spark.driver.host") or "127.0.0.1"
        bind = self._configuration.get("headgate.control.host") or (
            "127.0.0.1" if local else conf.get("spark.driver.bindAddress") or host
        )
        port = self._configuration.get("headgate.control.port")
        return ControlServer(
            bind, host, port, lambda w, m: self._events.put(_Message(w, m)), lambda w: self._events.put(_Lost(w))
        )

    def _run_attempts(self, server: ControlServer) -> None:
        number = 0
        while True:
            attempt = _Attempt(number, f"headgate-{self.job_id}-{number}")
            self._attempt = attempt
            error = self._run_attempt(server, attempt)
            if self._cancel_requested:
                self._set(JobStatus.CANCELED)
                return
            if error is None:
                self._set(JobStatus.FINISHED)
                return
            self.failure_log.append(str(error))
            delay = self._restart.on_failure(time.time_ns() // 1_000_000)
            if delay is None:
                self._fail(self._final(error), error)
                return
            self._set(JobStatus.RESTARTING)
            self._warn(f"attempt {number + 1} failed, restarting in {delay:.1f} s: {error}")
            if self._sleep(delay):
                self._set(JobStatus.CANCELED)
                return
            number += 1
            self.restarts = number

    def _final(self, error: HeadgateError) -> JobFailed:
        tries = f" after {self.restarts} restarts" if self.restarts else ""
        return JobFailed(f"job '{self.plan.name}' failed{tries}: {error}")

    def _run_attempt(self, server: ControlServer, attempt: _Attempt) -> HeadgateError | None:
        """One attempt from its start until none of its tasks runs any more; what it failed of, if it did."""
        timeout = self._configuration.get("headgate.slots.timeout") / 1000
        reserved = self._configuration.get("headgate.spark.reserved-slots")
        explain = describe_layout(self.plan.graph, self.plan.layout)
        spark_internals.wait_for_slots(self._spark, self.plan.layout.slots, reserved, timeout, explain)
        server.begin_attempt(attempt.number)
        action = InheritableThread(target=self._action, args=(server, attempt), name="headgate-spark-action")
        action.daemon = True
        action.start()
        while not self._step(server, attempt):
            pass
        action.join()
        self._wait_for_old_tasks(server, attempt)
        failed = attempt.spark_error is not None or bool(attempt.failures)
        return self._cause(attempt) if failed else None

    def _action(self, server: ControlServer, attempt: _Attempt) -> None:
        """In a thread of its own: the Spark job, which runs as long as the dataflow."""
        error: BaseException | None = None
        try:
            session = dataflow_session(self._spark)
            context = session.sparkContext
            context.setJobGroup(attempt.group, f"Headgate {self.plan.name}, attempt {attempt.number + 1}", True)
            timeout = self._configuration.get("headgate.control.timeout") / 1000
            functions = [
                LevelTask(
                    level,
                    pickle.dumps(task_part(self.plan, level)),
                    server.address,
                    self.job_id,
                    attempt.number,
                    timeout,
                )
                for level in range(len(self.plan.layout.levels))
            ]
            widths = [len(level) for level in self.plan.layout.levels]
            spark_internals.build(session, widths, functions).collect()  # type: ignore[arg-type]
        except BaseException as caught:
            error = caught
        self._events.put(_SparkEnded(attempt.number, error))

    # --- events -----------------------------------------------------------------------------------------------------

    def _step(self, server: ControlServer, attempt: _Attempt) -> bool:
        """Handle one event; whether the attempt is over."""
        try:
            event = self._events.get(timeout=0.2)
        except queue.Empty:
            self._cancel_if_failing(server, attempt)
            return False
        if isinstance(event, _SparkEnded):
            if event.attempt != attempt.number:
                return False
            attempt.spark_error = event.error
            return True
        if isinstance(event, _CancelRequested):
            self._cancel_requested = True
            self._set(JobStatus.CANCELLING)
            server.broadcast(Cancel("the job was cancelled"))
            self._cancel_group(attempt)
        elif isinstance(event, _Message) and event.worker.attempt == attempt.number:
            self._on_message(server, attempt, event.worker, event.message)
        elif isinstance(event, _Lost) and event.worker.attempt == attempt.number:
            self._on_lost(attempt, event.worker)
        self._cancel_if_failing(server, attempt)
        return False

    def _on_message(self, server: ControlServer, attempt: _Attempt, worker: WorkerKey, message: FromWorker) -> None:
        if isinstance(message, Output):
            self._on_output(message.channel, message.payload, lambda: server.send(worker, Confirm(1)))
        elif isinstance(message, Metrics):
            attempt.metrics[worker] = message
        elif isinstance(message, Register):
            attempt.workers[worker] = message
        elif isinstance(message, Running):
            attempt.running.add(worker)
            if len(attempt.running) == self.plan.layout.slots:
                self._set(JobStatus.RUNNING)
        elif isinstance(message, Finished):
            attempt.finished.add(worker)
        elif isinstance(message, Failed):
            attempt.failures.append(message)
            self._failing(attempt)

    def _on_lost(self, attempt: _Attempt, worker: WorkerKey) -> None:
        if worker in attempt.finished or attempt.failing_since is not None or self._cancel_requested:
            return
        name = self.plan.task_name(worker.level, worker.index)
        register = attempt.workers[worker]
        attempt.failures.append(
            Failed(
                f"the worker of {name} died (process {register.pid} on {register.host})", "", operator=name, kind="lost"
            )
        )
        self._failing(attempt)

    def _failing(self, attempt: _Attempt) -> None:
        if attempt.failing_since is None:
            attempt.failing_since = time.monotonic()
            self._set(JobStatus.FAILING)

    def _cancel_if_failing(self, server: ControlServer, attempt: _Attempt) -> None:
        """Stop what still runs: at once when the user's code failed, else after a moment for a better cause."""
        if attempt.failing_since is None:
            return
        sure = any(failure.kind == "user" for failure in attempt.failures)
        if sure or time.monotonic() - attempt.failing_since > _BETTER_CAUSE_SECONDS:
            server.broadcast(Cancel("another subtask failed"))
            self._cancel_group(attempt)

    def _cancel_group(self, attempt: _Attempt) -> None:
        with contextlib.suppress(Exception):
            self._spark.sparkContext.cancelJobGroup(attempt.group)

    def _wait_for_old_tasks(self, server: ControlServer, attempt: _Attempt) -> None:
        """The next attempt starts when no task of this one is active on any executor, and no worker is connected."""
        deadline = time.monotonic() + _OLD_TASKS_SECONDS
        over = attempt.spark_error is not None or self._cancel_requested
        while time.monotonic() < deadline:
            self._drain(server, attempt)
            with contextlib.suppress(Exception):
                if not server.connected() and spark_internals.active_tasks(self._spark, attempt.group) == 0:
                    return
            if over:
                server.broadcast(Cancel("the attempt is over"))
            time.sleep(0.05)

    def _drain(self, server: ControlServer, attempt: _Attempt) -> None:
        """What workers said while Spark was already stopping: the culprit may be among it, and late output."""
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, _CancelRequested):
                self._cancel_requested = True
            elif isinstance(event, _Message) and isinstance(event.message, Failed | Output | Metrics | Finished):
                self._on_message(server, attempt, event.worker, event.message)

    # --- causes -----------------------------------------------------------------------------------------------------

    def _cause(self, attempt: _Attempt) -> HeadgateError:
        """One message: the user's own error before ours, ours before a lost worker, that before Spark's words."""
        for kind in ("user", "runtime", "lost"):
            for failure in attempt.failures:
                if failure.kind == kind and not (kind == "runtime" and "input broke off" in failure.message):
                    return _as_error(failure)
        if attempt.failures:
            return _as_error(attempt.failures[0])
        return WorkerLost(f"Spark ended the job: {_spark_reason(attempt.spark_error)}")

    # --- status -----------------------------------------------------------------------------------------------------

    def _set(self, status: JobStatus) -> None:
        with self._changed:
            if not self._status.is_terminal:
                self._status = status
            self._changed.notify_all()

    def _fail(self, error: HeadgateError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause
        self._error = error
        self._set(JobStatus.FAILED)

    def raise_if_failed(self) -> None:
        """The job's error, or JobCancelled, for whoever waits for its result."""
        if self._status is JobStatus.FAILED and self._error is not None:
            raise self._error
        if self._status is JobStatus.CANCELED:
            raise JobCancelled(f"job '{self.plan.name}' was cancelled")

    def _sleep(self, seconds: float) -> bool:
        """Wait between attempts; whether the job was cancelled meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(event, _CancelRequested):
                self._cancel_requested = True
                return True
        return False

    def _warn(self, text: str) -> None:
        sys.stderr.write(f"headgate: job '{self.plan.name}': {text}\n")
        sys.stderr.flush()


def _as_error(failure: Failed) -> HeadgateError:
    error: HeadgateError
    if failure.kind == "user":
        error = UserCodeError(failure.message)
    elif failure.kind == "lost":
        error = WorkerLost(failure.message)
    else:
        error = JobFailed(failure.message)
    if failure.traceback:
        error.add_note(failure.traceback)
    return error


def _spark_reason(error: BaseException | None) -> str:
    """Spark's own words without the JVM's trace."""
    text = str(error or "no reason given")
    for line in text.splitlines():
        if "failed 1 times" in line or "ExecutorLost" in line or "SparkException" in line:
            return line.strip()[:500]
    return (text.strip().splitlines() or [""])[0][:500]
