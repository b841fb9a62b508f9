"""Runs the tasks of a job on Spark: one Spark job for each attempt, and the control server that its workers connect to.

The Spark job runs as long as the dataflow, so the action that starts it waits in a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from headrace import config
from headrace.config import Configuration
from headrace.control.control_server import ControlServer, WorkerKey
from headrace.control.deployment import process_mark
from headrace.control.messages import Cancel, Failed, FromDriver, FromWorker, Register
from headrace.driver import spark as spark_internals
from headrace.driver.cluster import AttemptOver, Submission, WorkerMessage
from headrace.driver.failure_cause import choose_cause
from headrace.driver.services import ends_soon
from headrace.driver.session import dataflow_session
from headrace.driver.shipping import search_path, write_archive
from headrace.errors import JobCancelled, NotEnoughSlots, WorkerLost
from headrace.graph.levels import describe as describe_layout
from headrace.graph.plan import JobPlan
from headrace.job.job_events import CauseFound, Worker, WorkerDisconnected
from headrace.worker.shell import LevelTask

_RETRY_SECONDS = 0.5

Report = Callable[[WorkerMessage | WorkerDisconnected | AttemptOver], None]


class SparkCluster:
    """The user's Spark session as a `Cluster`."""

    def __init__(self, spark: SparkSession, configuration: Configuration, report: Report) -> None:
        self._spark, self._configuration, self._report = spark, configuration, report
        self._server: ControlServer | None = None
        self._submission: Submission | None = None
        self._registered = -1  # the newest attempt of which a worker has connected
        self._stopped = threading.Event()  # the attempt that runs was told to stop, or the job has ended

    def _seconds(self, option: config.Option[int]) -> float:
        return self._configuration.get(option) / 1000

    def open(self) -> None:
        conf = self._spark.sparkContext.getConf()
        given = self._configuration.get(config.CONTROL_HOST)
        if (self._spark.sparkContext.master or "").startswith("local"):
            bind = host = given or "127.0.0.1"
        else:
            host = given or conf.get("spark.driver.host") or "127.0.0.1"
            bind = conf.get("spark.driver.bindAddress") or host
        self._server = ControlServer(
            bind,
            host,
            self._configuration.get(config.CONTROL_PORT),
            self._on_message,
            lambda key: self._report(WorkerDisconnected(key.attempt, (key.level, key.index))),
            self._seconds(config.CONTROL_TIMEOUT),
        )

    def _on_message(self, key: WorkerKey, message: FromWorker) -> None:
        if isinstance(message, Register):
            self._registered = key.attempt
        self._report(WorkerMessage(key.attempt, (key.level, key.index), message))

    # --- an attempt -------------------------------------------------------------------------------------------------

    def wait_for_slots(self, plan: JobPlan, given_up: Callable[[], bool], timeout: float | None = None) -> None:
        seconds = self._seconds(config.SLOTS_TIMEOUT) if timeout is None else timeout
        reserved = self._configuration.get(config.RESERVED_SLOTS)
        spark_internals.wait_for_slots(self._spark, plan.layout.slots, reserved, seconds, _explain(plan), given_up)

    def submit(self, submission: Submission) -> None:
        assert self._server is not None, "the cluster is not open"
        self._stopped.clear()
        self._submission = submission
        self._server.begin_attempt(submission.attempt)
        action = InheritableThread(target=self._run, args=(submission,), name="headrace-spark-action")
        action.daemon = True
        action.start()

    def _run(self, submission: Submission) -> None:
        """In a thread of its own: the Spark job."""
        error: BaseException | None = None
        try:
            self._collect(submission)
            if self._stopped.is_set() and submission.attempt != self._registered:
                error = WorkerLost(f"the attempt of job '{submission.plan.name}' was stopped before its tasks ran")
        except BaseException as caught:
            error = caught
        ends_soon(threading.current_thread())
        self._report(AttemptOver(submission.attempt, error))

    def _collect(self, submission: Submission) -> None:
        plan, attempt = submission.plan, submission.attempt
        session = dataflow_session(self._spark)
        title = f"Headrace {plan.name}, attempt {attempt + 1}"
        session.sparkContext.setJobGroup(_group(submission), title, interruptOnCancel=True)
        functions = self._functions(submission)
        widths = [len(level) for level in plan.layout.levels]
        deadline = time.monotonic() + self._seconds(config.SLOTS_TIMEOUT)
        while not self._stopped.is_set():
            try:
                spark_internals.build(session, widths, functions).collect()  # type: ignore[arg-type]
                return
            except Exception as caught:
                free = spark_internals.lacked_slots(caught)
                if free is None:
                    raise
                if time.monotonic() > deadline:
                    reserved = self._configuration.get(config.RESERVED_SLOTS)
                    raise spark_internals.slots_error(
                        self._spark, plan.layout.slots, reserved, free, _explain(plan)
                    ) from None
            self._stopped.wait(_RETRY_SECONDS)  # other jobs hold the slots: they may end

    def _functions(self, submission: Submission) -> list[LevelTask]:
        assert self._server is not None
        context = self._spark.sparkContext
        added = submission.plan.python_files
        path: tuple[str, ...] = ()
        archives: list[str] = []
        if (context.master or "").startswith("local"):
            path = (*added, *search_path())
        else:
            for file in (*added, write_archive()):
                if file is not None:
                    context.addFile(file)  # named after its content: sending it again changes nothing
                    archives.append(Path(file).name)
        unpack = submission.plan.archives
        if not path:
            for one in unpack:
                context.addFile(one.file)
            unpack = tuple(replace(one, file=Path(one.file).name) for one in unpack)
        address, timeout = self._server.address, self._seconds(config.CONTROL_TIMEOUT)
        return [
            LevelTask(pickle.dumps(submission.tasks(level)), address, timeout, path, tuple(archives), unpack)
            for level in range(len(submission.plan.layout.levels))
        ]

    def send(self, attempt: int, worker: Worker, message: FromDriver) -> None:
        if self._server is not None:
            self._server.send(WorkerKey(attempt, *worker), message)

    def stop(self, attempt: int, reason: str) -> None:
        self._stopped.set()
        assert self._server is not None
        assert self._submission is not None
        self._server.send(None, Cancel(reason))
        with contextlib.suppress(Exception):
            spark_internals.cancel_group(self._spark, _group(self._submission))

    def cancel_tasks(self, attempt: int) -> None:
        if self._server is not None:
            self._server.send(None, Cancel("the attempt is over"))

    def tasks_left(self, attempt: int) -> tuple[tuple[Worker, ...], int]:
        connected = () if self._server is None else tuple((key.level, key.index) for key in self._server.connected())
        active = 0
        if self._submission is not None and not spark_internals.is_stopped(self._spark):
            with contextlib.suppress(Exception):
                active = spark_internals.active_tasks(self._spark, _group(self._submission))
        return connected, active

    def kill(self, attempt: int, register: Register) -> None:
        """Some C code holds the interpreter of the worker: it does not even react to its own timer."""
        assert self._submission is not None
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{register.pid}/comm").read_text().strip()
            if name == process_mark(self._submission.job_id, attempt):
                os.kill(register.pid, signal.SIGKILL)

    def cause(self, attempt: int, failures: Sequence[Failed], error: BaseException | None, stopped: bool) -> CauseFound:
        assert self._submission is not None
        found = choose_cause(
            self._submission.plan, self._spark, _group(self._submission), failures, error, ended_by_us=stopped
        )
        # A job that never had its slots does not get them by trying again.
        final = spark_internals.is_stopped(self._spark) or (isinstance(found, NotEnoughSlots) and attempt == 0)
        return CauseFound(attempt, found, isinstance(found, JobCancelled), final)

    def close(self) -> None:
        self._stopped.set()
        if self._server is not None:
            self._server.stop()


def _group(submission: Submission) -> str:
    return f"headrace-{submission.job_id}-{submission.attempt}"


def _explain(plan: JobPlan) -> str:
    return describe_layout(plan.graph, plan.layout)
