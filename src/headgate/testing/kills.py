"""Kills workers at chosen moments of a sink's commits, on a real cluster: what a sink must survive is tried, not argued.

    tickets = Tickets(directory)
    stream.sink_to(Deadly(sink, tickets))
    tickets.issue("before-commit")      # the next subtask that is about to commit dies, by SIGKILL

Moments: `before-commit` (the checkpoint is complete, and the subtask has heard of it), `after-commit` (it is committed, and
no later checkpoint is complete). Of a sink that commits on the driver one of its workers dies at these moments.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.api.sink import (
    CommitRequest,
    Committer,
    Epoch,
    EpochCommitter,
    EpochContext,
    Sink,
    SinkWriter,
    WriterContext,
)

__all__ = ["MOMENTS", "Deadly", "Tickets"]

MOMENTS = ("before-commit", "after-commit")


class Tickets:
    """Says who dies when: files of a directory that all workers see. Each ticket is used once.

    >>> import tempfile
    >>> tickets = Tickets(tempfile.mkdtemp())
    >>> tickets.issue("before-commit")
    >>> tickets.take("before-commit"), tickets.take("before-commit")
    (True, False)
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        Path(directory).mkdir(parents=True, exist_ok=True)

    def issue(self, moment: str) -> None:
        """Somebody dies at the next such moment."""
        (Path(self.directory) / moment).touch()

    def take(self, moment: str) -> bool:
        """Whether there is a ticket; it is used up."""
        try:
            (Path(self.directory) / moment).unlink()
        except FileNotFoundError:
            return False
        return True

    def used(self, moment: str) -> bool:
        """Whether the ticket was used."""
        return not (Path(self.directory) / moment).exists()

    def enter(self, subtask: int) -> None:
        """A worker says which process it is."""
        (Path(self.directory) / f"pid-{subtask}").write_text(str(os.getpid()))

    def kill_one(self, moment: str) -> None:
        """If there is a ticket, kill the worker that entered last; the ticket stays if nobody is there to die."""
        entered = sorted(Path(self.directory).glob("pid-*"), key=lambda path: path.stat().st_mtime_ns)
        if entered and self.take(moment):
            try:
                os.kill(int(entered[-1].read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                self.issue(moment)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Sink[Any]):
    """Another sink whose workers die when there is a ticket.

    >>> Deadly.__name__
    'Deadly'
    """

    def __init__(self, sink: Sink[Any], tickets: Tickets) -> None:
        self._sink, self._tickets = sink, tickets
        self.commits_on_driver, self.needs_staging = sink.commits_on_driver, sink.needs_staging

    def check(self, stream_type: Any) -> None:
        """That of the sink."""
        self._sink.check(stream_type)

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[Any]:
        """That of the sink."""
        self._tickets.enter(context.subtask)
        return _Watched(self._sink.writer(context, restored))

    def committer(self, context: WriterContext) -> Committer[Any] | None:
        """That of the sink, with two places to die."""
        committer = self._sink.committer(context)
        return None if committer is None else _DeadlyCommitter(committer, self._tickets)

    def epoch_committer(self, context: EpochContext) -> EpochCommitter[Any]:
        """That of the sink, with two moments at which a worker dies."""
        return _DeadlyEpochs(self._sink.epoch_committer(context), self._tickets)


class _Watched(SinkWriter[Any]):
    def __init__(self, writer: SinkWriter[Any]) -> None:
        self._writer, self.batches = writer, writer.batches

    def write(self, value: Any) -> None:
        self._writer.write(value)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def prepare(self, end_of_input: bool) -> Sequence[Any]:
        return self._writer.prepare(end_of_input)

    def snapshot(self) -> list[Any]:
        return self._writer.snapshot()

    def close(self) -> None:
        self._writer.close()


class _DeadlyCommitter(Committer[Any]):
    def __init__(self, committer: Committer[Any], tickets: Tickets) -> None:
        self._committer, self._tickets = committer, tickets

    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        if requests and self._tickets.take("before-commit"):
            _die()
        self._committer.commit(requests)
        if requests and self._tickets.take("after-commit"):
            _die()

    def close(self) -> None:
        self._committer.close()


class _DeadlyEpochs(EpochCommitter[Any]):
    def __init__(self, committer: EpochCommitter[Any], tickets: Tickets) -> None:
        self._committer, self._tickets = committer, tickets

    def commit(self, epoch: Epoch[Any]) -> None:
        self._tickets.kill_one("before-commit")
        self._committer.commit(epoch)
        self._tickets.kill_one("after-commit")

    def close(self) -> None:
        self._committer.close()
