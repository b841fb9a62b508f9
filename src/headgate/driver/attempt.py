"""What happens to a job, one event after the other, and what is known of the attempt that runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from headgate.control.channel import WorkerKey
from headgate.control.messages import Failed, FromWorker, Metrics, Register
from headgate.graph.plan import JobPlan

__all__ = ["Attempt", "Call", "CancelRequested", "Event", "Lost", "Message", "Rescale", "SparkEnded"]


@dataclass(frozen=True, slots=True)
class Message:
    """A worker said something."""

    worker: WorkerKey
    message: FromWorker


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker's connection ended."""

    worker: WorkerKey


@dataclass(frozen=True, slots=True)
class SparkEnded:
    """Spark's job is over."""

    attempt: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Call:
    """Something to be done in the job's thread."""

    function: Callable[[], None]


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants the job to stop."""


Event = Message | Lost | SparkEnded | CancelRequested | Call


@dataclass(slots=True)
class Attempt:
    """What is known of the attempt that runs."""

    number: int
    group: str
    workers: dict[WorkerKey, Register] = field(default_factory=dict)
    running: set[WorkerKey] = field(default_factory=set)
    finished: set[WorkerKey] = field(default_factory=set)
    metrics: dict[WorkerKey, Metrics] = field(default_factory=dict)
    heard: dict[WorkerKey, float] = field(default_factory=dict)  # when each worker last said something
    failures: list[Failed] = field(default_factory=list)
    failing_since: float | None = None
    stopped_at: float | None = None  # when we last told Spark and the workers to stop
    over_at: float = 0.0  # when Spark's job ended
    ended_by_us: bool = False  # Spark ended the job because we told it to
    checked_at: float = 0.0
    rescaled: bool = False  # it ends because another plan takes its place
    spark_error: BaseException | None = None

    @property
    def ending(self) -> bool:
        """Whether it fails, is stopped or makes room for another plan: whoever starts to run now changes nothing."""
        return self.failing_since is not None or self.stopped_at is not None or self.rescaled


@dataclass(slots=True)
class Rescale:
    """A change of parallelism on its way; the answer comes when all subtasks of the new plan run."""

    plan: JobPlan
    answer: Future[None]
