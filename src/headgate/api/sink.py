"""The contract of sinks that write in two phases: a writer in every subtask, and a committer (SPEC R9.3).

    write       records go into something that nobody sees yet
    prepare     before the barrier: everything is made durable; what is left to do is described by *committables*
    commit      when the checkpoint that holds the committables is complete: make it visible

A committable may be committed more than once, always under the same commit number: after a failure the restored
checkpoint's are committed again, since nobody knows whether they were. Commit numbers grow for ever, while the ids of
checkpoints come again after a step back: a sink that keeps a number with what it wrote can tell what is there already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from headgate.errors import InvalidArgument
from headgate.records.types import PICKLED, TypeInformation

__all__ = [
    "CommitRequest",
    "Committer",
    "Epoch",
    "EpochCommitter",
    "EpochContext",
    "Prepared",
    "Sink",
    "SinkWriter",
    "WriterContext",
]

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Where a writer or committer runs.

    >>> WriterContext("orders", "cbc357cc", "0" * 32, 0, 2, 1, None).subtask
    0
    """

    operator: str
    operator_id: str
    job_id: str
    subtask: int
    parallelism: int
    attempt: int  # grows with every restart of the job's tasks
    restored_checkpoint: int | None  # the checkpoint that the task goes on from
    staging: str | None = None  # a directory of the job on the checkpoints' storage, for files that are not visible yet
    type: TypeInformation = PICKLED  # of the records


class CommitRequest(Generic[C]):
    """One committable and what came of it; done unless the committer says otherwise."""

    def __init__(self, committable: C, commit_number: int | None, tries: int = 0) -> None:
        self.committable = committable
        self.commit_number = commit_number
        """The number of the checkpoint in the job log; None at the end of a job without checkpoints."""
        self.tries = tries
        """How often it was tried before."""
        self.retry = False
        self.dropped: str | None = None

    def retry_later(self) -> None:
        """It did not work now, and may work soon: `sink.committer.retries` times."""
        self.retry = True

    def drop(self, why: str) -> None:
        """It can never work, for a reason that is known: it is reported and forgotten."""
        self.dropped = why

    def __repr__(self) -> str:
        return f"CommitRequest({self.committable!r}, commit_number={self.commit_number}, tries={self.tries})"


class Committer(ABC, Generic[C]):
    """Makes visible what writers prepared."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Commit each; one that was committed before is done already. An exception fails the job."""

    def close(self) -> None:
        """Give back what it holds."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one subtask prepared for one checkpoint; checkpoints hold it until it is committed.

    >>> Prepared(3, ("part-0",)).checkpoint_id
    3
    """

    checkpoint_id: int
    committables: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Epoch(Generic[C]):
    """What all subtasks prepared for one checkpoint.

    >>> Epoch(7, ["a", "b"]).commit_number
    7
    """

    commit_number: int
    committables: Sequence[C]


@dataclass(frozen=True, slots=True)
class EpochContext:
    """Where epochs are committed: on the driver."""

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
        """Commit; after a failure the same epoch comes again, with the same number. An exception fails the job."""

    def close(self) -> None:
        """Give back what it holds."""


class SinkWriter(ABC, Generic[C]):
    """Writes the records of one subtask."""

    batches = False
    """Whether it takes whole Arrow batches (`write_batch`); the stream must have a type then."""

    def write(self, value: Any) -> None:
        """Take a record."""
        raise NotImplementedError(f"{type(self).__name__} has neither write() nor batches = True and write_batch()")

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Take a batch of records."""
        raise NotImplementedError(f"{type(self).__name__} says that it takes batches, but has no write_batch()")

    @abstractmethod
    def prepare(self, end_of_input: bool) -> Sequence[C]:
        """Make everything durable, and say what is to be committed; called before each barrier, and at the end."""

    def snapshot(self) -> list[Any]:
        """What a new writer needs beside the committables; the elements are dealt out anew after a rescale."""
        return []

    def close(self) -> None:
        """Give back what it holds, and forget what was not prepared."""


class Sink(ABC, Generic[C]):
    """Describes a sink; travels to the workers. Use it with `stream.sink_to(...)`."""

    def check(self, stream_type: Any) -> None:
        """Raise InvalidArgument if records of this type cannot be written; called when the program is built."""

    @abstractmethod
    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[C]:
        """The writer of one subtask; `restored` is what `snapshot` gave."""

    def committer(self, context: WriterContext) -> Committer[C] | None:
        """What commits, in the same subtask; None if a writer's work is visible at once."""
        return None

    commits_on_driver = False
    """Whether what all subtasks prepared is committed together, on the driver, by `epoch_committer`."""

    @property
    def commits(self) -> bool:
        """Whether output becomes visible by commits: here, or on the driver."""
        return self.commits_on_driver or type(self).committer is not Sink.committer

    needs_staging = False
    """Whether writers put files below `WriterContext.staging`: checkpoints must have a directory then."""

    def epoch_committer(self, context: EpochContext) -> EpochCommitter[C]:
        """What commits on the driver, if `commits_on_driver` is set; it stays there, and needs not travel."""
        raise NotImplementedError(
            f"{type(self).__name__} says that it commits on the driver, but has no epoch_committer()"
        )


def check_sink(sink: Any) -> None:
    """InvalidArgument if something else than a Sink is given to sink_to().

    >>> check_sink(print)
    Traceback (most recent call last):
    headgate.errors.InvalidArgument: sink_to() needs a headgate Sink, got <built-in function print>; a SinkFunction goes to add_sink()
    """
    if not isinstance(sink, Sink):
        raise InvalidArgument(f"sink_to() needs a headgate Sink, got {sink!r}; a SinkFunction goes to add_sink()")
