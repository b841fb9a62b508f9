"""wide_driver.py DIRECTORY: a driver with a wide job, whose workers are simulated: they answer at once.

The driver, its checkpoint coordinator and REST are those of production. The job has 20 operators with 64 subtasks each;
every subtask sends its metrics once a second and acknowledges a checkpoint every two seconds. It runs until it is killed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace import StreamExecutionEnvironment, environment
from headrace.checkpoint.stats import SubtaskMetrics
from headrace.checkpoint.types import Barrier
from headrace.control.messages import (
    AcknowledgeCheckpoint,
    Failed,
    FromDriver,
    FromWorker,
    Metrics,
    Register,
    Restored,
    Running,
    StartProcessing,
    TriggerCheckpoint,
)
from headrace.driver import job as job_module
from headrace.driver.cluster import AttemptOver, Submission, WorkerMessage
from headrace.errors import JobFailed
from headrace.job.job_events import CauseFound, Worker

OPERATORS, PARALLELISM = 20, 64


class AnsweringCluster:
    """Workers that do nothing but answer."""

    def __init__(self, report: Callable[[Any], None]) -> None:
        self._report = report
        self._workers: list[Worker] = []
        self._over = threading.Event()
        self._acknowledged = 0

    def open(self) -> None:
        """There is no connection to open."""

    def wait_for_slots(self, plan: Any, given_up: Callable[[], bool], timeout: float | None = None) -> None:
        """There are always enough."""

    def submit(self, submission: Submission) -> None:
        levels = submission.plan.layout.levels
        self._workers = [(level, index) for level, slots in enumerate(levels) for index in range(len(slots))]
        for level, index in self._workers:
            self._tell(submission.attempt, (level, index), Register(level, index, submission.attempt, "localhost", 0))
            self._tell(submission.attempt, (level, index), Restored())
        threading.Thread(target=self._send_metrics, args=(submission.attempt,), daemon=True).start()

    def _tell(self, attempt: int, worker: Worker, message: FromWorker) -> None:
        self._report(WorkerMessage(attempt, worker, message))

    def _send_metrics(self, attempt: int) -> None:
        records = 0
        while not self._over.wait(1.0):
            records += 1_000
            for worker in self._workers:
                busy = random.randrange(1_000)
                self._tell(attempt, worker, Metrics(records, records, records * 8, records * 8, busy, 0, 1_000 - busy))

    def send(self, attempt: int, worker: Worker, message: FromDriver) -> None:
        if isinstance(message, StartProcessing):
            self._tell(attempt, worker, Running())
        elif isinstance(message, TriggerCheckpoint):
            number = Barrier.decode(message.barrier).id
            if number > self._acknowledged:  # of the first source that is told
                self._acknowledged = number
                for one in self._workers:
                    self._tell(attempt, one, self._acknowledgement(number))

    def _acknowledgement(self, number: int) -> AcknowledgeCheckpoint:
        now = time.time_ns() // 1_000_000
        measured = SubtaskMetrics(10_000, 50_000, 2, random.randrange(500), 3, 4, 5_000, sync_started=now, written=now)
        return AcknowledgeCheckpoint(number, {}, metrics=measured)

    def stop(self, attempt: int, reason: str) -> None:
        self._over.set()
        self._report(AttemptOver(attempt, JobFailed(reason)))

    def cancel_tasks(self, attempt: int) -> None:
        """No task is left."""

    def tasks_left(self, attempt: int) -> tuple[tuple[Worker, ...], int]:
        return (), 0

    def kill(self, attempt: int, register: Register) -> None:
        """There is no process."""

    def cause(self, attempt: int, failures: Sequence[Failed], error: BaseException | None, stopped: bool) -> CauseFound:
        return CauseFound(attempt, JobFailed(failures[0].message if failures else str(error)))

    def close(self) -> None:
        """There is no connection to close."""


class WideJob(job_module.SparkJob):
    """A job of production on such workers."""

    def _make_cluster(self, spark: Any, configuration: Any) -> Any:
        return AnsweringCluster(self._events.put)


def main() -> None:
    environment.SparkJob = WideJob  # type: ignore[misc]
    environment.get_session = lambda *_: None  # type: ignore[assignment]
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(2_000)
    env.set_parallelism(PARALLELISM)
    env.get_configuration().set("execution.checkpointing.dir", f"file://{sys.argv[1]}/checkpoints")
    env.get_configuration().set("web.checkpoints.history", "200")
    env.get_configuration().set("rest.port", "0")
    stream = env.from_sequence(0, 1 << 40)
    for number in range(OPERATORS - 1):
        stream = stream.rebalance().map(lambda value: value).name(f"map {number}").uid(f"map {number}")
    stream.print()
    env.execute("wide")


if __name__ == "__main__":
    main()
