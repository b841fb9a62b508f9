"""Joins a subtask to the coordinator: its words go in, snapshots and declines go out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headgate.api.durable import from_text
from headgate.checkpoint.commits import Commits
from headgate.checkpoint.types import Barrier
from headgate.control.messages import (
    AnnounceCheckpoint,
    AskForSplit,
    AssignSplits,
    CheckpointAborted,
    CheckpointComplete,
    DataFinished,
    DeclineCheckpoint,
    EpochCommitted,
    FromWorker,
    Hold,
    SourceBacklog,
    TriggerCheckpoint,
)
from headgate.worker.snapshot_writer import SnapshotWriter
from headgate.worker.subtask import Subtask

__all__ = ["CheckpointLink", "CheckpointMessage"]

CheckpointMessage = (
    TriggerCheckpoint
    | AnnounceCheckpoint
    | CheckpointComplete
    | CheckpointAborted
    | Hold
    | AssignSplits
    | EpochCommitted
)


class CheckpointLink:
    """The checkpoint part of a worker's loop; only `post` may be called from another thread."""

    def __init__(self, send: Callable[[FromWorker], None]) -> None:
        self._send = send
        self._mailbox: deque[CheckpointMessage] = deque()  # safe to use from two threads
        self._told_end_of_data = self._told_backlog = self._asked = False
        self.writer: SnapshotWriter | None = None
        self._holders: set[str] = set()

    @property
    def held(self) -> bool:
        """Whether a reader wants this subtask to make no more records: its disk fills up behind a barrier."""
        return bool(self._holders)

    def post(self, message: CheckpointMessage) -> None:
        """The coordinator said something; it is heard at the next `serve`."""
        self._mailbox.append(message)

    def serve(self, task: Subtask) -> None:
        """Hand over what the coordinator said, and start writing what the subtask has snapshotted."""
        while self._mailbox:
            self._hear(task, self._mailbox.popleft())
        for snapshot in task.take_snapshots():
            assert self.writer is not None
            self.writer.start(snapshot)
        for hold in task.take_holds():
            self._send(hold)
        for decline in task.take_declines():
            self._send(DeclineCheckpoint(decline.checkpoint_id, decline.reason.name, str(decline.reason)))
        if task.backlog != self._told_backlog:
            self._told_backlog = task.backlog
            self._send(SourceBacklog(task.backlog))
        if task.wants_split and not self._asked:
            self._asked = True
            self._send(AskForSplit())
        if task.data_finished and not self._told_end_of_data:
            self._told_end_of_data = True
            self._send(DataFinished())
        if self.writer is not None:
            self.writer.wake()

    def _hear(self, task: Subtask, message: CheckpointMessage) -> None:
        if isinstance(message, TriggerCheckpoint):
            task.trigger(Barrier.decode(message.barrier))
        elif isinstance(message, AnnounceCheckpoint):
            task.announce(Barrier.decode(message.barrier))
        elif isinstance(message, CheckpointComplete):
            self._complete(task, message.checkpoint_id, message.commits)
        elif isinstance(message, AssignSplits):
            self._asked = False
            task.add_splits(list(map(from_text, message.splits)), message.no_more)
        elif isinstance(message, EpochCommitted):
            task.epoch_committed(message.operator_id, message.checkpoint_id)
        elif isinstance(message, Hold):
            (self._holders.add if message.hold else self._holders.discard)(message.reader)
        else:
            if message.latest_completed is not None:
                self._complete(task, message.latest_completed, message.commits)
            task.notify_aborted(message.checkpoint_id)
            if self.writer is not None:
                self.writer.aborted(message.checkpoint_id)

    def _complete(self, task: Subtask, checkpoint_id: int, commits: Commits) -> None:
        task.notify_complete(checkpoint_id, commits)
        if self.writer is not None:
            self.writer.confirmed(checkpoint_id)

    def close(self, finished: bool = False) -> None:
        """Wait for what is being written; a subtask that has `finished` needs its copies no more."""
        if self.writer is not None:
            self.writer.close(finished)
