"""The mailbox of a subtask: messages of the driver reach it between two steps, and the driver learns what has changed.

It is served in the thread of the subtask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.api.durable import unpack
from headrace.checkpoint.commits import Commits
from headrace.checkpoint.types import Barrier
from headrace.control import messages
from headrace.worker.operators.sources import SourceOperator
from headrace.worker.snapshots.snapshot_writer import SnapshotWriter
from headrace.worker.subtask import Subtask


class Mailbox:
    """Connects a subtask with the driver; only `post` may be called from another thread."""

    def __init__(self, send: Callable[[messages.FromWorker], None]) -> None:
        self._send = send
        self._messages: deque[messages.ToSubtask] = deque()  # safe to use from two threads
        self._sent_end_of_data = self._sent_backlog = self._requested_split = False
        self._sent_watermark: int | None = None
        self._next_watermark = 0
        self.writer: SnapshotWriter | None = None
        self._pause_requesters: set[str] = set()

    @property
    def paused(self) -> bool:
        """True while this subtask must emit no record: a reader's disk fills up, or its source is too far ahead."""
        return bool(self._pause_requesters)

    def post(self, message: messages.ToSubtask) -> None:
        """Queue a message of the driver for the next `serve`."""
        self._messages.append(message)

    def serve(self, task: Subtask) -> None:
        """Handle queued messages, start to write new snapshots, and report changes of the subtask."""
        while self._messages:
            self._handle(task, self._messages.popleft())
        for snapshot in task.take_snapshots():
            assert self.writer is not None
            self.writer.start(snapshot)
        for pause in task.take_pauses():
            self._send(pause)
        for decline in task.take_declines():
            self._send(messages.DeclineCheckpoint(decline.checkpoint_id, decline.reason, str(decline.reason)))
        if task.source is not None:
            self._report_source(task, task.source)
        if task.wants_split and not self._requested_split:
            self._requested_split = True
            self._send(messages.AskForSplit())
        if task.data_finished and not self._sent_end_of_data:
            self._sent_end_of_data = True
            self._send(messages.DataFinished())
        if self.writer is not None:
            self.writer.wake()

    def _report_source(self, task: Subtask, source: SourceOperator) -> None:
        """Report the backlog of a source, and the watermark of one that is aligned with others."""
        backlog = source.reader.backlog and not task.data_finished
        if backlog != self._sent_backlog:
            self._sent_backlog = backlog
            self._send(messages.SourceBacklog(backlog))
        if source.alignment is not None and (now := task.now()) >= self._next_watermark:
            self._next_watermark = now + source.alignment.update_interval
            watermark = None if task.data_finished or source.idle else source.watermark
            if watermark != self._sent_watermark:
                self._sent_watermark = watermark
                self._send(messages.SourceWatermark(watermark))

    def _handle(self, task: Subtask, message: messages.ToSubtask) -> None:
        if isinstance(message, messages.TriggerCheckpoint):
            task.trigger(Barrier.decode(message.barrier))
        elif isinstance(message, messages.AnnounceCheckpoint):
            task.announce(Barrier.decode(message.barrier))
        elif isinstance(message, messages.CheckpointComplete):
            self._complete(task, message.checkpoint_id, message.commits)
        elif isinstance(message, messages.AssignSplits):
            self._requested_split = False
            task.add_splits(list(map(unpack, message.splits)), message.no_more)
        elif isinstance(message, messages.EpochCommitted):
            task.epoch_committed(message.operator_id, message.checkpoint_id)
        elif isinstance(message, messages.Pause):
            (self._pause_requesters.add if message.paused else self._pause_requesters.discard)(message.requester)
            task.pause(self.paused)
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
        """Wait until started snapshots are written; a subtask that has `finished` does not need its local copies."""
        if self.writer is not None:
            self.writer.close(finished)

    def cancel(self) -> None:
        """Acknowledge nothing more: the task has failed."""
        if self.writer is not None:
            self.writer.cancel()
