"""Sinks that commit with checkpoints: what they write is visible exactly once (SPEC R9.2).

A transaction collects what is written between two checkpoints. At the barrier it is pre-committed and stored in the
checkpoint; when the checkpoint is complete it is committed. After a failure, transactions of the restored checkpoint are
committed again (so committing twice must do no harm) and the open one is aborted.
"""

from __future__ import annotations

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import uuid4

from headgate.api.functions import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    RuntimeContext,
    SinkFunction,
)
from headgate.errors import InvalidArgument, StorageError
from headgate.records.types import Row
from headgate.state.api import ListStateDescriptor

__all__ = ["FileSink", "TwoPhaseCommitSinkFunction"]

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

_STATE = ListStateDescriptor("transactions")


@dataclass(frozen=True, slots=True)
class _Pending(Generic[T]):
    """A transaction that waits for its checkpoint."""

    checkpoint_id: int
    transaction: T
    started: float  # seconds since 1970


@dataclass(slots=True)
class _Transactions(Generic[T]):
    """What a subtask keeps in a checkpoint: the transaction that was open behind the barrier, and those to commit."""

    current: T | None
    pending: list[_Pending[T]] = field(default_factory=list)


class TwoPhaseCommitSinkFunction(SinkFunction, CheckpointedFunction, ABC, Generic[T]):
    """Base of sinks with transactions. A transaction is any value that can be pickled: a file name, an id."""

    transaction_timeout: float | None = None
    """Seconds after which the system behind the sink forgets a transaction. A commit that fails during recovery fails
    the job; one of a transaction older than this is given up, and said so, if `ignore_failures_after_timeout` is set."""

    ignore_failures_after_timeout = False

    clock: Callable[[], float] = staticmethod(time.time)

    def __init__(self) -> None:
        self._current: T | None = None
        self._started = 0.0
        self._pending: list[_Pending[T]] = []
        self._finished = False
        self._transactions: Any = None

    # --- what a sink brings -----------------------------------------------------------------------------------------

    @abstractmethod
    def begin_transaction(self) -> T:
        """Start a transaction."""

    @abstractmethod
    def write(self, transaction: T, value: Any) -> None:
        """Write a record into the open transaction."""

    @abstractmethod
    def pre_commit(self, transaction: T) -> None:
        """Make everything durable, still invisible; after this, commit must be possible whatever happens."""

    @abstractmethod
    def commit(self, transaction: T) -> None:
        """Make it visible; called again after a failure, so a second time must do no harm."""

    @abstractmethod
    def abort(self, transaction: T) -> None:
        """Forget it."""

    def recover_and_commit(self, transaction: T) -> None:
        """Commit a transaction of a restored checkpoint."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: T) -> None:
        """Abort the transaction that was open when the restored checkpoint was taken."""
        self.abort(transaction)

    # --- what the runtime calls -------------------------------------------------------------------------------------

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Settle what a restored checkpoint left, then start a transaction."""
        self._transactions = context.get_operator_state_store().get_list_state(_STATE)
        for kept in self._transactions.get():
            for pending in kept.pending:
                self._commit_again(pending)
            if kept.current is not None:
                self.recover_and_abort(kept.current)
        self._transactions.clear()

    def _commit_again(self, pending: _Pending[T]) -> None:
        try:
            self.recover_and_commit(pending.transaction)
        except Exception as error:
            age = self.clock() - pending.started
            timeout = self.transaction_timeout
            if not self.ignore_failures_after_timeout or timeout is None or age <= timeout:
                raise
            _LOG.error(
                "transaction %r of checkpoint %s is LOST: it is %.0f s old, and its timeout is %.0f s: %s",
                pending.transaction,
                pending.checkpoint_id,
                age,
                timeout,
                error,
            )

    def open(self, runtime_context: RuntimeContext) -> None:
        """Start the first transaction."""
        self._begin()

    def _begin(self) -> None:
        self._current, self._started = self.begin_transaction(), self.clock()

    def invoke(self, value: Any, context: Any) -> None:
        """Write a record."""
        assert self._current is not None, "the sink was not opened, or has finished"
        self.write(self._current, value)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """At the barrier: pre-commit, and start the next transaction; none after the last record."""
        if self._current is not None:
            self.pre_commit(self._current)
            self._pending.append(_Pending(context.checkpoint_id, self._current, self._started))
            self._current = None
            if not self._finished:
                self._begin()
        self._transactions.update([_Transactions(self._current, list(self._pending))])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit everything up to the checkpoint, in order; all are tried, the first error is raised at the end."""
        first: Exception | None = None
        kept: list[_Pending[T]] = []
        for pending in self._pending:
            if pending.checkpoint_id > checkpoint_id:
                kept.append(pending)
                continue
            try:
                self.commit(pending.transaction)
            except Exception as error:
                first = first or error
                kept.append(pending)
        self._pending = kept
        if first is not None:
            raise first

    def finish(self) -> None:
        """The last record has come; its transaction is committed with the final checkpoint."""
        self._finished = True

    def close(self) -> None:
        """Abort what is open; what is pre-committed stays for the next attempt."""
        if self._current is not None:
            transaction, self._current = self._current, None
            self.abort(transaction)


class FileSink(TwoPhaseCommitSinkFunction[str]):
    """Writes records to files of a local or mounted directory; a file is visible when its checkpoint is complete.

    `format` is `text` (one line a record, `str` of it) or `json` (one JSON object or value a line). In-progress files
    start with a dot; a commit is a rename.

    >>> FileSink("/data/out", "csv")
    Traceback (most recent call last):
    headgate.errors.InvalidArgument: FileSink: unknown format 'csv'; use text or json
    """

    def __init__(self, directory: str, format: str = "text") -> None:
        super().__init__()
        if format not in _FORMATS:
            raise InvalidArgument(f"FileSink: unknown format {format!r}; use {' or '.join(_FORMATS)}")
        self._directory = directory.removeprefix("file://")
        self._encode = _FORMATS[format]
        self._suffix = {"text": "txt", "json": "jsonl"}[format]
        self._subtask = 0
        self._file: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        """Make the directory."""
        self._subtask = runtime_context.get_index_of_this_subtask()
        try:
            Path(self._directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"FileSink: cannot use directory '{self._directory}': {error}") from error
        super().open(runtime_context)

    def begin_transaction(self) -> str:
        """A name for the next file; the file itself is made with its first record."""
        return f"part-{self._subtask}-{uuid4().hex}.{self._suffix}"

    def write(self, transaction: str, value: Any) -> None:
        """Append a line."""
        if self._file is None:
            self._file = self._hidden(transaction).open("w", encoding="utf-8")
        self._file.write(self._encode(value) + "\n")

    def pre_commit(self, transaction: str) -> None:
        """Flush to the disk and close."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def commit(self, transaction: str) -> None:
        """Give the file its name; a transaction without records has none."""
        with suppress(FileNotFoundError):  # committed before, or empty
            self._hidden(transaction).rename(Path(self._directory) / transaction)

    def abort(self, transaction: str) -> None:
        """Delete the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._hidden(transaction).unlink(missing_ok=True)

    def _hidden(self, transaction: str) -> Path:
        return Path(self._directory) / f".{transaction}.inprogress"


def _as_json(value: Any) -> str:
    return json.dumps(value.as_dict() if isinstance(value, Row) else value, ensure_ascii=False)


_FORMATS: dict[str, Callable[[Any], str]] = {"text": str, "json": _as_json}
