"""The port between a job and what runs its tasks: Spark (`spark_cluster.py`), or the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.control.deployment import TaskDescriptor, VertexRestore, WorkerStorage, describe_tasks
from headrace.control.messages import Failed, FromDriver, FromWorker, Register
from headrace.graph.plan import JobPlan
from headrace.ids import JobId, VertexId
from headrace.job.job_events import CauseFound, Worker


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A message of a worker."""

    attempt: int
    worker: Worker
    message: FromWorker


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """The cluster has ended the tasks of an attempt; `error` says why if they did not all finish."""

    attempt: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Submission:
    """The parts from which the tasks of an attempt are made."""

    plan: JobPlan
    job_id: JobId
    attempt: int
    restore: Mapping[VertexId, VertexRestore]
    storage: WorkerStorage

    def tasks(self, level: int) -> list[TaskDescriptor]:
        return describe_tasks(self.plan, level, self.job_id, self.attempt, self.restore, self.storage)


class Cluster(Protocol):
    """Runs the tasks of one job, one attempt after the other.

    It reports `WorkerMessage`, `WorkerDisconnected` and `AttemptOver` through the function that its maker was given.
    All methods but `open` and `wait_for_slots` return at once.
    """

    def open(self) -> None:
        """Listen for workers. Called once, before anything else, in a thread that may wait."""

    def wait_for_slots(self, plan: JobPlan, given_up: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait until the plan can run, or `given_up`. Called in a thread that may wait.

        NotEnoughSlots after `timeout` seconds; None: after the time that the configuration allows.
        """

    def submit(self, submission: Submission) -> None:
        """Run the tasks of a new attempt."""

    def send(self, attempt: int, worker: Worker, message: FromDriver) -> None:
        """Send to a worker that has registered."""

    def stop(self, attempt: int, reason: str) -> None:
        """Tell the workers and the scheduler to stop."""

    def cancel_tasks(self, attempt: int) -> None:
        """Tell the workers that are connected that their attempt is over."""

    def tasks_left(self, attempt: int) -> tuple[tuple[Worker, ...], int]:
        """The workers that are connected, and the number of tasks that the scheduler still counts."""

    def kill(self, attempt: int, register: Register) -> None:
        """End the process of a worker that does not react, if it is on this machine."""

    def cause(self, attempt: int, failures: Sequence[Failed], error: BaseException | None, stopped: bool) -> CauseFound:
        """Find the cause of an attempt's end."""

    def close(self) -> None:
        """Release connections and threads."""
