"""The contract of sinks: a writer in every subtask, and a committer that makes its work visible (SPEC R9.3).

    write       records go into something that readers do not see yet
    prepare     before the barrier: everything is made durable; *committables* describe what is left to do
    commit      when the checkpoint that holds the committables is complete: make it visible

A committable may be committed more than once, always under the same commit number: after a failure those of the restored
checkpoint are committed again, because a commit may or may not have taken place. Commit numbers only grow, while ids of
checkpoints are used again after a step back: a sink that stores the number with its output can recognise a repetition.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from headrace.errors import InvalidArgument
from headrace.graph.plan import TaskInfo
from headrace.records.types import PICKLED, TypeInformation

__all__ = [
    "CommitRequest",
    "Committer",
    "Epoch",
    "EpochCommitter",
    "EpochContext",
    "Sink",
    "SinkWriter",
    "WriterContext",
]

C = TypeVar("C")


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class WriterContext(TaskInfo):
    """The subtask in which a writer or committer runs.

    `epoch` grows with every driver of the job, `attempt` with every restart within an epoch. Workers of an older driver
    may run for a while beside those of a newer one.
    """

    staging: str | None = None  # a directory of the job on the checkpoint storage, for files that are not visible yet
    type: TypeInformation = PICKLED  # of the records
    epoch: int = 1
    clock: Callable[[], int] = _wall_clock  # milliseconds; virtual where the runtime's time is


class CommitRequest(Generic[C]):
    """One committable and the result of its commit: it counts as committed unless the committer says otherwise."""

    def __init__(self, committable: C, commit_number: int | None, tries: int = 0, recovered: bool = False) -> None:
        self.committable = committable
        self.commit_number = commit_number
        """The number of the checkpoint in the job log; None at the end of a job without checkpoints."""
        self.tries = tries
        """The number of earlier tries."""
        self.recovered = recovered
        """Whether it comes from a restored checkpoint, and so may have been committed before the failure."""
        self.retry = False
        self.dropped: str | None = None

    def retry_later(self) -> None:
        """The commit failed and is worth another try; there are `sink.committer.retries` of them."""
        self.retry = True

    def drop(self, reason: str) -> None:
        """The commit can never succeed, for a known reason: it is reported and skipped."""
        self.dropped = reason

    def __repr__(self) -> str:
        return f"CommitRequest({self.committable!r}, commit_number={self.commit_number}, tries={self.tries})"


class Committer(ABC, Generic[C]):
    """Makes the committables of a subtask visible."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Commit each request, the oldest first; one that was committed before is skipped. An exception fails the job."""

    def close(self) -> None:
        """Release resources."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The committables of one subtask for one checkpoint; checkpoints hold them until they are committed."""

    checkpoint_id: int
    committables: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Epoch(Generic[C]):
    """The committables of all subtasks for one checkpoint."""

    commit_number: int
    committables: Sequence[C]


@dataclass(frozen=True, slots=True)
class EpochContext:
    """The sink and job whose epochs are committed, on the driver."""

    operator: str
    operator_id: str
    job_id: str
    spark: Any  # the user's session; None where there is no Spark
    staging: str | None = None
    type: TypeInformation = PICKLED  # of the records


class EpochCommitter(ABC, Generic[C]):
    """Makes whole epochs visible, on the driver: in order, one at a time."""

    @abstractmethod
    def commit(self, epoch: Epoch[C]) -> None:
        """Commit an epoch; after a failure the same epoch is committed again, with the same number. An exception fails the job."""

    def close(self) -> None:
        """Release resources."""


class SinkWriter(ABC, Generic[C]):
    """Writes the records of one subtask."""

    batches = False
    """Whether the writer takes whole Arrow batches (`write_batch`); the stream must have a type then."""

    def write(self, value: Any) -> None:
        """Write one record."""
        raise NotImplementedError(f"{type(self).__name__} has neither write() nor batches = True and write_batch()")

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write a batch of records."""
        raise NotImplementedError(f"{type(self).__name__} sets batches = True, but has no write_batch()")

    @abstractmethod
    def prepare(self, end_of_input: bool) -> Sequence[C]:
        """Make everything durable and return what is to be committed; called before each barrier, and at the end."""

    def snapshot(self) -> list[Any]:
        """State of the writer beside its committables; a rescale redistributes the elements."""
        return []

    def close(self) -> None:
        """Release resources, and discard what was not prepared."""


class Sink(ABC, Generic[C]):
    """Describes a sink for `stream.sink_to(...)`; it is pickled and sent to the workers."""

    def check(self, stream_type: Any) -> None:
        """Raise InvalidArgument if records of this type cannot be written; called when the program is built."""

    @abstractmethod
    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[C]:
        """The writer of one subtask; `restored` holds elements of earlier `snapshot` calls."""

    def committer(self, context: WriterContext) -> Committer[C] | None:
        """The committer in the same subtask; None if the output of the writer is visible at once."""
        return None

    output_kind: str | None = None
    """What names the form of the committables and of the writers' state; None: the name of the class. A restore is refused
    if the sink under a uid has another kind than the one that prepared what the checkpoint holds."""

    commits_on_driver = False
    """Whether the committables of all subtasks are committed together, on the driver, by `epoch_committer`."""

    needs_staging = False
    """Whether writers put files below `WriterContext.staging`: checkpoints must have a directory then."""

    def epoch_committer(self, context: EpochContext) -> EpochCommitter[C]:
        """The committer on the driver, if `commits_on_driver` is set; it is never pickled."""
        raise NotImplementedError(f"{type(self).__name__} sets commits_on_driver, but has no epoch_committer()")


def sink_kind(sink: Sink[Any]) -> str:
    """Return the kind of a sink: sinks of different kinds cannot commit each other's output."""
    return sink.output_kind or type(sink).__name__


def check_sink(sink: Any) -> None:
    """InvalidArgument if `sink_to()` gets anything but a Sink.

    >>> check_sink(print)
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-1202] sink_to() needs a headrace Sink, got <built-in function print>; a SinkFunction goes to add_sink()
    """
    if not isinstance(sink, Sink):
        raise InvalidArgument(
            "HR-1202", f"sink_to() needs a headrace Sink, got {sink!r}; a SinkFunction goes to add_sink()"
        )
