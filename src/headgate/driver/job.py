"""The driver's side of a job: runs attempts on Spark, listens to the workers, restarts or gives up.

`decide` what a failure means stands in `restart.py`; here is the shell that does it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from headgate.checkpoint.assignment import SavedOperator
from headgate.checkpoint.settings import EndStatus
from headgate.config import Configuration
from headgate.control.channel import ControlServer, WorkerKey
from headgate.control.messages import Cancel, Confirm, Failed, Finished, FromWorker, Metrics, Output, Register, Running
from headgate.driver import spark as spark_internals
from headgate.driver.attempt import Attempt, Call, CancelRequested, Event, Lost, Message, Rescale, SparkEnded
from headgate.driver.failure_cause import choose_cause
from headgate.driver.job_checkpoints import JobCheckpoints
from headgate.driver.replan import with_key_groups
from headgate.driver.session import dataflow_session
from headgate.driver.shipping import search_path, write_archive
from headgate.errors import HeadgateError, IllegalState, JobCancelled, JobFailed, NotEnoughSlots, StorageError
from headgate.graph.levels import describe as describe_layout
from headgate.graph.plan import JobPlan, task_part
from headgate.ids import JobId, VertexId
from headgate.job.restart import RestartStrategy
from headgate.job.status import JobStatus
from headgate.worker.restore import VertexRestore
from headgate.worker.shell import LevelTask, process_mark

__all__ = ["JobStatus", "SparkJob"]

_BETTER_CAUSE_SECONDS = 1.0  # the first report may be a victim; the culprit's own words come a moment later
_OLD_TASKS_SECONDS = 30.0
_KILL_SECONDS = 6.0  # after that a worker that was told to stop is ended from outside
_RETRY_SECONDS = 0.5


_POLL_SECONDS = 0.2


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
        replan: Callable[[int], JobPlan] | None = None,
    ) -> None:
        """`on_output(channel, payload, confirm)` gets printed lines and records; it calls confirm when it took them.

        `replan` gives the plan for another parallelism.
        """
        self.begun_ms = time.time_ns() // 1_000_000
        self.ended_ms: int | None = None
        self._replan = replan
        self._rescaling: Rescale | None = None
        self.plan, self.job_id = plan, job_id
        self._spark, self._configuration, self._restart = spark, configuration, restart
        self._on_output = on_output
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._status = JobStatus.CREATED
        self._changed = threading.Condition()
        self._error: HeadgateError | None = None
        self._cancel_requested = threading.Event()
        self._attempt: Attempt | None = None
        self.restarts = 0
        self.when_finished: list[
            Callable[[], None]
        ] = []  # called when all data is processed: nobody will go on with it
        self.failure_log: list[str] = []
        self._checkpoints: JobCheckpoints | None = None
        self._superseded = False
        self._restore: Mapping[VertexId, VertexRestore] = {}
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

    @property
    def configuration(self) -> Configuration:
        """What the job was started with."""
        return self._configuration

    def cancel(self) -> None:
        """Stop the job; returns at once."""
        self._cancel_requested.set()
        self._events.put(CancelRequested())

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Until the job has ended, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._status.is_terminal, timeout)
        return self._status

    @property
    def checkpoints(self) -> JobCheckpoints | None:
        """The job's checkpoints and savepoints; None before the job's thread runs."""
        return self._checkpoints

    def wait_running(self, timeout: float | None = None) -> bool:
        """Until all subtasks run (or the job has ended); whether they do."""
        with self._changed:
            self._changed.wait_for(lambda: self._all_running() or self._status.is_terminal, timeout)
            return self._all_running()

    def _all_running(self) -> bool:
        attempt = self._attempt
        return attempt is not None and not attempt.ending and len(attempt.running) == self.plan.layout.slots

    def rescale(self, parallelism: int, timeout: float = 600.0) -> None:
        """Go on with another parallelism, from a checkpoint that is taken now; called from any other thread.

        (1) Everything that can be refused is refused while the job runs on, (2) a checkpoint, (3) a new attempt.
        """
        if self._replan is None or self._checkpoints is None:
            raise IllegalState(f"job '{self.plan.name}' cannot be rescaled: it has not started yet")
        groups = {
            op.id: SavedOperator(op.name, v.max_parallelism, keyed=True)
            for v in self.plan.graph.vertices
            for op in v.operators
        }
        plan = with_key_groups(self._replan(parallelism), groups)  # (1)
        reserved = self._configuration.get("headgate.spark.reserved-slots")
        spark_internals.wait_for_slots(
            self._spark, plan.layout.slots, reserved, 0, describe_layout(plan.graph, plan.layout), lambda: False
        )
        deadline = time.monotonic() + timeout
        self._checkpoints.trigger_checkpoint(timeout=timeout)  # (2)
        change = Rescale(plan, Future())
        self._post(lambda: self._begin_rescale(change))  # (3)
        change.answer.result(max(0.0, deadline - time.monotonic()))

    def _begin_rescale(self, change: Rescale) -> None:
        attempt = self._attempt
        if attempt is None or attempt.failing_since is not None or self._rescaling is not None:
            message = f"job '{self.plan.name}' is restarting, or is being rescaled already: try again when it runs"
            change.answer.set_exception(IllegalState(message))
            return
        self._rescaling = change
        attempt.rescaled = True
        if self._checkpoints is not None:
            self._checkpoints.job_running(False)

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
        given = self._configuration.get("headgate.control.host")
        if (self._spark.sparkContext.master or "").startswith("local"):
            bind = host = given or "127.0.0.1"
        else:
            host = given or conf.get("spark.driver.host") or "127.0.0.1"
            bind = conf.get("spark.driver.bindAddress") or host
        return ControlServer(
            bind,
            host,
            self._configuration.get("headgate.control.port"),
            lambda w, m: self._events.put(Message(w, m)),
            lambda w: self._events.put(Lost(w)),
            self._control_timeout,
        )

    @property
    def _control_timeout(self) -> float:
        return float(self._configuration.get("headgate.control.timeout")) / 1000

    def _run_attempts(self, server: ControlServer) -> None:
        number = 0
        self._checkpoints = JobCheckpoints(
            self.plan,
            self.job_id,
            self._configuration,
            server,
            self._post,
            self._pump,
            self._fail_attempt,
            self._stand_down,
            self._spark,
        )
        self.job_id, self.plan = self._checkpoints.job_id, self._checkpoints.plan
        while True:
            attempt = Attempt(number, f"headgate-{self.job_id}-{number}")
            self._attempt = attempt
            error = self._run_attempt(server, attempt)
            if error is None:
                self._checkpoints.settle_epochs()  # the last output counts only when it is committed
                error = JobFailed(attempt.failures[0].message) if attempt.failures else None
            if isinstance(error, NotEnoughSlots) and number == 0:
                raise error  # it never ran: to try again would not help
            if error is None or self._cancel_requested.is_set() or isinstance(error, JobCancelled):
                self._wait_for_old_tasks(server, attempt, _OLD_TASKS_SECONDS)
                self._end(error)
                return
            if attempt.rescaled and self._rescaling is not None:
                self._wait_for_old_tasks(server, attempt, _OLD_TASKS_SECONDS)
                self.plan = self._rescaling.plan
                self._checkpoints.replan(self.plan)
                number += 1
                continue
            self.failure_log.append(str(error))
            delay = self._restart.on_failure(time.time_ns() // 1_000_000)
            if delay is None or self._superseded or spark_internals.is_stopped(self._spark):
                self._fail(self._final(error), error)  # the user need not wait until the last worker is gone
                self._wait_for_old_tasks(server, attempt, _OLD_TASKS_SECONDS)
                return
            self._set(JobStatus.RESTARTING)
            self._warn(f"attempt {number + 1} failed, restarting in {delay:.1f} s: {error}")
            self._wait_for_old_tasks(server, attempt, _OLD_TASKS_SECONDS)
            if self._cancel_requested.wait(delay):
                self._end(JobCancelled(f"job '{self.plan.name}' was cancelled"))
                return
            number += 1
            self.restarts += 1

    def _final(self, error: HeadgateError) -> JobFailed:
        tries = f" after {self.restarts} restarts" if self.restarts else ""
        return JobFailed(f"job '{self.plan.name}' failed{tries}: {error}")

    def _run_attempt(self, server: ControlServer, attempt: Attempt) -> HeadgateError | None:
        """One attempt from its start to the end of Spark's job; what it failed of, if it did.

        Workers of a failed attempt may still be on their way out.
        """
        timeout = self._configuration.get("headgate.slots.timeout") / 1000
        reserved = self._configuration.get("headgate.spark.reserved-slots")
        try:
            spark_internals.wait_for_slots(
                self._spark, self.plan.layout.slots, reserved, timeout, self._explain(), self._cancel_requested.is_set
            )
        except NotEnoughSlots as error:
            return error
        assert self._checkpoints is not None
        self._restore = self._checkpoints.start_attempt(attempt.number)
        server.begin_attempt(attempt.number)
        action = InheritableThread(target=self._action, args=(server, attempt, timeout), name="headgate-spark-action")
        action.daemon = True
        action.start()
        try:
            while not self._step(server, attempt):
                pass
        except BaseException:  # for example standard output is closed: nothing may go on running
            self._stop(server, attempt, "the driver failed")
            raise
        action.join()
        attempt.over_at = time.monotonic()
        if attempt.spark_error is None and not attempt.failures:
            return None
        self._wait_for_old_tasks(server, attempt, _BETTER_CAUSE_SECONDS)
        return choose_cause(
            self.plan, self._spark, attempt.group, attempt.failures, attempt.spark_error, attempt.ended_by_us
        )

    def _explain(self) -> str:
        return describe_layout(self.plan.graph, self.plan.layout)

    def _action(self, server: ControlServer, attempt: Attempt, timeout: float) -> None:
        """In a thread of its own: the Spark job, which runs as long as the dataflow."""
        error: BaseException | None = None
        deadline = time.monotonic() + timeout
        try:
            session = dataflow_session(self._spark)
            session.sparkContext.setJobGroup(
                attempt.group, f"Headgate {self.plan.name}, attempt {attempt.number + 1}", interruptOnCancel=True
            )
            functions = self._functions(server, attempt)
            widths = [len(level) for level in self.plan.layout.levels]
            while not self._cancel_requested.is_set():
                try:
                    spark_internals.build(session, widths, functions).collect()  # type: ignore[arg-type]
                    break
                except Exception as caught:
                    free = spark_internals.lacked_slots(caught)
                    if free is None:
                        raise
                    if time.monotonic() > deadline:
                        reserved = self._configuration.get("headgate.spark.reserved-slots")
                        needed = self.plan.layout.slots
                        raise spark_internals.slots_error(
                            self._spark, needed, reserved, free, self._explain()
                        ) from None
                self._cancel_requested.wait(_RETRY_SECONDS)  # other jobs hold the slots: they may end
        except BaseException as caught:
            error = caught
        if error is None and self._cancel_requested.is_set() and not attempt.workers:
            error = JobCancelled(f"job '{self.plan.name}' was cancelled")
        self._events.put(SparkEnded(attempt.number, error))

    def _functions(self, server: ControlServer, attempt: Attempt) -> list[LevelTask]:
        assert self._checkpoints is not None
        storage = self._checkpoints.worker_storage()
        context = self._spark.sparkContext
        path: tuple[str, ...] = ()
        archive = None
        if (context.master or "").startswith("local"):
            path = search_path()
        elif (file := write_archive()) is not None:
            context.addFile(str(file))  # named after its content: sending it again changes nothing
            archive = file.name
        return [
            LevelTask(
                level,
                pickle.dumps(task_part(self.plan, level, self._restore, storage)),
                server.address,
                self.job_id,
                attempt.number,
                self._control_timeout,
                path,
                archive,
            )
            for level in range(len(self.plan.layout.levels))
        ]

    # --- events -----------------------------------------------------------------------------------------------------

    def _step(self, server: ControlServer, attempt: Attempt) -> bool:
        """Handle one event; whether the attempt is over."""
        try:
            event: Event | None = self._events.get(timeout=self._patience())
        except queue.Empty:
            event = None
        if isinstance(event, SparkEnded):
            if event.attempt != attempt.number:
                return False
            attempt.spark_error = event.error
            attempt.ended_by_us = attempt.stopped_at is not None
            return True
        if self._checkpoints is not None:
            self._checkpoints.tick()
        if isinstance(event, Call):
            event.function()
        elif isinstance(event, Message) and event.worker.attempt == attempt.number:
            self._on_message(server, attempt, event.worker, event.message)
        elif isinstance(event, Lost) and event.worker.attempt == attempt.number:
            self._on_lost(attempt, event.worker)
        self._check_heard(attempt)
        if self._cancel_requested.is_set():
            self._set(JobStatus.CANCELLING)
            self._stop(server, attempt, "the job was cancelled")
        elif self._is_sure(attempt):
            self._stop(server, attempt, "another subtask failed")
        elif attempt.rescaled:
            self._stop(server, attempt, "the job goes on with another parallelism")
        return False

    def _patience(self) -> float:
        """How long to wait for an event: not past the coordinator's next alarm."""
        alarm = None if self._checkpoints is None else self._checkpoints.seconds_to_alarm()
        return _POLL_SECONDS if alarm is None else min(_POLL_SECONDS, alarm)

    def _on_message(self, server: ControlServer, attempt: Attempt, worker: WorkerKey, message: FromWorker) -> None:
        attempt.heard[worker] = time.monotonic()
        if self._checkpoints is not None:
            self._checkpoints.on_message(worker, message)
        if isinstance(message, Output):
            self._on_output(message.channel, message.payload, lambda: server.send(worker, Confirm(1)))
        elif isinstance(message, Metrics):
            attempt.metrics[worker] = message
        elif isinstance(message, Register):
            attempt.workers[worker] = message
        elif isinstance(message, Running):
            attempt.running.add(worker)
            if len(attempt.running) == self.plan.layout.slots and not attempt.ending:
                self._set(JobStatus.RUNNING)
                if self._checkpoints is not None:
                    self._checkpoints.job_running(True)
                if self._rescaling is not None:
                    change, self._rescaling = self._rescaling, None
                    change.answer.set_result(None)
        elif isinstance(message, Finished):
            attempt.finished.add(worker)
        elif isinstance(message, Failed):
            attempt.failures.append(message)
            self._failing(attempt)

    def _on_lost(self, attempt: Attempt, worker: WorkerKey) -> None:
        if worker in attempt.finished or attempt.stopped_at is not None:
            return
        register = attempt.workers[worker]
        self._lost(attempt, worker, f"died (process {register.pid} on {register.host})")

    def _check_heard(self, attempt: Attempt) -> None:
        """The driver's watchdog: a worker that hangs keeps its connection, but says nothing any more."""
        now = time.monotonic()
        if attempt.stopped_at is not None or now - attempt.checked_at < 0.5 or not self._events.empty():
            return
        attempt.checked_at = now
        for worker, at in list(attempt.heard.items()):
            if now - at > self._control_timeout and worker not in attempt.finished:
                register = attempt.workers[worker]
                seconds = f"{self._control_timeout:.0f} s"
                self._lost(attempt, worker, f"was not heard for {seconds} (process {register.pid} on {register.host})")

    def _lost(self, attempt: Attempt, worker: WorkerKey, what: str) -> None:
        name = self.plan.task_name(worker.level, worker.index)
        attempt.heard.pop(worker, None)
        attempt.failures.append(Failed(f"the worker of {name} {what}", "", operator=name, kind="lost"))
        self._failing(attempt)

    def _post(self, function: Callable[[], None]) -> None:
        """Run something in the job's thread."""
        self._events.put(Call(function))

    def _pump(self) -> None:
        """Wait for the next function of the job's thread, between attempts: workers have nothing to say then."""
        event = self._events.get()
        if isinstance(event, Call):
            event.function()

    def _stand_down(self, message: str) -> None:
        """Another driver goes on with the job: this one ends, and restarts nothing."""
        self._superseded = True
        self._fail_attempt(message)

    def _fail_attempt(self, message: str) -> None:
        """Checkpoints failed so that the job must, or another driver has taken it over."""
        if self._attempt is not None:
            self._attempt.failures.append(Failed(message, "", kind="runtime"))
            self._failing(self._attempt)

    def _failing(self, attempt: Attempt) -> None:
        if attempt.failing_since is None:
            attempt.failing_since = time.monotonic()
            self._set(JobStatus.FAILING)
            if self._checkpoints is not None:
                self._checkpoints.job_running(False)

    def _is_sure(self, attempt: Attempt) -> bool:
        """Whether to stop what still runs: at once when the user's code failed, else after a moment for a better cause."""
        if attempt.failing_since is None:
            return False
        if any(failure.kind == "user" for failure in attempt.failures):
            return True
        return time.monotonic() - attempt.failing_since > _BETTER_CAUSE_SECONDS

    def _stop(self, server: ControlServer, attempt: Attempt, reason: str) -> None:
        """Called again and again until Spark has ended the job: a task may register, or the job be submitted, late."""
        now = time.monotonic()
        if attempt.stopped_at is not None and now - attempt.stopped_at < 0.2:
            return
        attempt.stopped_at = now
        server.broadcast(Cancel(reason))
        with contextlib.suppress(Exception):
            spark_internals.cancel_group(self._spark, attempt.group)

    def _wait_for_old_tasks(self, server: ControlServer, attempt: Attempt, seconds: float) -> None:
        """The next attempt starts when no task of this one is active on any executor, and no worker is connected."""
        deadline = time.monotonic() + seconds
        stopping = attempt.spark_error is not None or bool(attempt.failures) or self._cancel_requested.is_set()
        while True:
            self._drain(server, attempt)
            connected = server.connected()
            if not connected and self._active_tasks(attempt) == 0:
                self._drain(server, attempt)
                return
            if time.monotonic() > deadline:
                break
            if stopping:
                attempt.stopped_at = time.monotonic()
                server.broadcast(Cancel("the attempt is over"))
                if attempt.stopped_at - attempt.over_at > _KILL_SECONDS:
                    for worker in connected:
                        self._kill(attempt, worker)
            time.sleep(0.05)
        if seconds >= _OLD_TASKS_SECONDS:
            self._warn(f"attempt {attempt.number + 1} is over, but some of its tasks still run; nobody listens to them")

    def _active_tasks(self, attempt: Attempt) -> int:
        if spark_internals.is_stopped(self._spark):
            return 0
        with contextlib.suppress(Exception):
            return spark_internals.active_tasks(self._spark, attempt.group)
        return 0

    def _kill(self, attempt: Attempt, worker: WorkerKey) -> None:
        """A worker on this machine that does not even react to its own timer: some C code holds the interpreter."""
        register = attempt.workers.get(worker)
        if register is not None:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{register.pid}/comm").read_text().strip() == process_mark(self.job_id, attempt.number):
                    os.kill(register.pid, signal.SIGKILL)

    def _drain(self, server: ControlServer, attempt: Attempt) -> None:
        """What workers said while Spark was already stopping: the culprit may be among it, and late output."""
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, Call):
                event.function()
            elif isinstance(event, Message) and event.worker.attempt == attempt.number:
                self._on_message(server, attempt, event.worker, event.message)
            elif isinstance(event, Lost) and event.worker.attempt == attempt.number:
                self._on_lost(attempt, event.worker)

    # --- status -----------------------------------------------------------------------------------------------------

    def _set(self, status: JobStatus) -> None:
        if status.is_terminal and self._rescaling is not None and not self._rescaling.answer.done():
            self._rescaling.answer.set_exception(IllegalState(f"job '{self.plan.name}' has ended"))
        if status.is_terminal and self._checkpoints is not None:
            self._checkpoints.job_ended(EndStatus[status.name])
        with self._changed:
            if not self._status.is_terminal:
                self._status = status
                self.ended_ms = time.time_ns() // 1_000_000 if status.is_terminal else None
            self._changed.notify_all()

    def _fail(self, error: HeadgateError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause
        self._error = error
        self._set(JobStatus.FAILED)

    def _end(self, error: HeadgateError | None) -> None:
        """The job has finished, or was cancelled; a cancel that comes too late changes nothing."""
        if isinstance(error, JobCancelled):
            self._error = error  # says who did it, if it was not the user of this job
        if error is None and self._checkpoints is not None and not self._checkpoints.stopped:
            for clean_up in self.when_finished:
                with contextlib.suppress(StorageError):
                    clean_up()
        self._set(JobStatus.FINISHED if error is None else JobStatus.CANCELED)

    def raise_if_failed(self) -> None:
        """The job's error, or JobCancelled, for whoever waits for its result."""
        if self._status is JobStatus.FAILED and self._error is not None:
            raise self._error
        if self._status is JobStatus.CANCELED:
            raise self._error or JobCancelled(f"job '{self.plan.name}' was cancelled")

    def _warn(self, text: str) -> None:
        sys.stderr.write(f"headgate: job '{self.plan.name}': {text}\n")
        sys.stderr.flush()
