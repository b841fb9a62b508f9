"""Sinks written as transactions (SPEC R9.2): an adapter to the contract in `sink.py`, which runs in the subtask's thread."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from headrace.api.functions import Function, NoState, RuntimeContext
from headrace.api.sink import CommitRequest, Committer, Sink, SinkWriter, WriterContext

__all__ = ["TwoPhaseCommitSinkFunction"]

T = TypeVar("T")


class TwoPhaseCommitSinkFunction(Sink[tuple[T, float]], Function, ABC, Generic[T]):
    """Base class of sinks with transactions; a transaction is any value that can be pickled: a file name, an id.

    A transaction takes the records between two barriers. It is pre-committed before the barrier, committed when the
    checkpoint is complete, and committed again when that checkpoint is restored.
    """

    transaction_timeout: float | None = None
    """Seconds after which the external system drops a transaction. A commit that fails during recovery fails the job,
    unless `ignore_failures_after_timeout` is set and the transaction is older than this: then it is reported as lost."""

    ignore_failures_after_timeout = False

    clock: Callable[[], float] = staticmethod(time.time)

    @abstractmethod
    def begin_transaction(self) -> T:
        """Start a transaction."""

    @abstractmethod
    def write(self, transaction: T, value: Any) -> None:
        """Write a record into the open transaction."""

    @abstractmethod
    def pre_commit(self, transaction: T) -> None:
        """Make the transaction durable, still invisible; `commit` must succeed after this, also after a failure."""

    @abstractmethod
    def commit(self, transaction: T) -> None:
        """Make the transaction visible; it must be idempotent, because a restore calls it again."""

    @abstractmethod
    def abort(self, transaction: T) -> None:
        """Discard the transaction."""

    def recover_and_commit(self, transaction: T) -> None:
        """Commit a transaction of a restored checkpoint."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: T) -> None:
        """Abort the transaction that was open when the restored checkpoint was taken."""
        self.abort(transaction)

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[tuple[T, float]]:
        """Part of the sink contract: abort what was open, then start the first transaction."""
        for transaction in restored:
            self.recover_and_abort(transaction)
        self.open(RuntimeContext(context, NoState(context.task_name)))
        return _TransactionWriter(self)

    def committer(self, context: WriterContext) -> Committer[tuple[T, float]]:
        """Part of the sink contract."""
        return _TransactionCommitter(self)


class _TransactionWriter(SinkWriter[tuple[T, float]]):
    def __init__(self, function: TwoPhaseCommitSinkFunction[T]) -> None:
        self._function = function
        self._open = [self._begin()]  # empty after the last record

    def _begin(self) -> tuple[T, float]:
        return self._function.begin_transaction(), self._function.clock()

    def write(self, value: Any) -> None:
        self._function.write(self._open[0][0], value)

    def prepare(self, end_of_input: bool) -> Sequence[tuple[T, float]]:
        prepared = self._open
        for transaction, _ in prepared:
            self._function.pre_commit(transaction)
        self._open = [] if end_of_input else [self._begin()]
        return prepared

    def snapshot(self) -> list[Any]:
        return [transaction for transaction, _ in self._open]

    def close(self) -> None:
        for transaction, _ in self._open:
            self._function.abort(transaction)
        self._function.close()


class _TransactionCommitter(Committer[tuple[T, float]]):
    def __init__(self, function: TwoPhaseCommitSinkFunction[T]) -> None:
        self._function = function

    def commit(self, requests: Sequence[CommitRequest[tuple[T, float]]]) -> None:
        """Try all; raise the first error at the end."""
        function, errors = self._function, []
        for request in requests:
            transaction, started = request.committable
            try:
                (function.recover_and_commit if request.recovered else function.commit)(transaction)
            except Exception as error:
                age, timeout = function.clock() - started, function.transaction_timeout or math.inf
                if request.recovered and function.ignore_failures_after_timeout and age > timeout:
                    request.drop(f"it is {age:.0f} s old, and its timeout is {timeout:.0f} s: {error}")
                else:
                    errors.append(error)
        if errors:
            raise errors[0]
