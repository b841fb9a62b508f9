"""Runs a two-phase sink: writer and committer of one subtask (SPEC R9.3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headgate.api.sink import CommitRequest, Committer, Prepared, Sink, SinkWriter, WriterContext
from headgate.checkpoint.commits import Commits
from headgate.errors import StorageError
from headgate.graph.job_graph import ChainedOperator
from headgate.records.batch import Batch
from headgate.state.api import ListStateDescriptor
from headgate.state.backend import SnapshotKind
from headgate.state.operator import OperatorStateBackend
from headgate.worker.operators.base import Operator, OperatorContext, OperatorSnapshot, Receiver

__all__ = ["TwoPhaseSink", "prepared_in"]

_LOG = logging.getLogger(__name__)

_WRITER = ListStateDescriptor("writer")
_COMMITTABLES = ListStateDescriptor("committables")
_Prepared = Prepared  # pickles in older checkpoints have this name


def prepared_in(state: OperatorStateBackend) -> list[Prepared]:
    """What an operator state holds for a commit, the oldest checkpoint first."""
    elements = state.get_list_state(_COMMITTABLES).get()
    # In older checkpoints an element is a single one.
    prepared = [one for kept in elements for one in ((kept,) if isinstance(kept, Prepared) else kept)]
    return sorted(prepared, key=lambda one: one.checkpoint_id)


class TwoPhaseSink(Operator):
    """Writer and committer in one operator: no committable travels between subtasks, so none can be missing."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        info = context.info
        self._where = WriterContext(
            operator.name,
            operator.id,
            info.job_id,
            info.subtask,
            info.parallelism,
            info.attempt,
            context.restored_id,
            context.staging,
            operator.spec.options["type"],
        )
        self._writer: SinkWriter[Any] | None = None
        self._committer: Committer[Any] | None = None
        self._prepared: list[Prepared] = []
        self._fresh: tuple[Any, ...] = ()  # prepared for the checkpoint whose barrier is about to leave
        self._ended = False

    @property
    def writer(self) -> SinkWriter[Any]:
        assert self._writer is not None, "the sink was not opened"
        return self._writer

    def open(self) -> None:
        """Commit again what the restored checkpoint holds, then start to write."""
        sink: Sink[Any] = self.function
        state = self.context.operator_state
        self._committer = self.guard(sink.committer, self._where)
        if sink.commits_on_driver:
            self._prepared = prepared_in(state)  # until the driver says that it is committed
        else:
            for kept in prepared_in(state):
                self._commit(kept.committables, self.context.restored_commits.number_for(kept.checkpoint_id))
        self._writer = self.guard(sink.writer, self._where, list(state.get_list_state(_WRITER).get()))

    def receiver(self, input: int) -> Receiver:
        def receive(batch: Batch) -> None:
            if self.writer.batches:
                self.guard(self.writer.write_batch, batch.arrow())
                return
            write, rows = self.writer.write, batch.rows()
            iterator = iter(rows)
            try:
                for row in iterator:
                    write(row)
            except Exception as error:
                raise self.failed_at(error, rows, iterator) from error

        return receive

    def before_barrier(self) -> None:
        """Everything in front of the barrier is durable before the barrier leaves."""
        if not self._ended:
            self._fresh = self._prepare(end_of_input=False)

    def finish(self) -> None:
        """The last records: committed with the final checkpoint, or at once if there are no checkpoints."""
        self._fresh = self._prepare(end_of_input=True)
        self._ended = True
        if not self.context.final_checkpoint:
            self._commit(self._fresh, None)
            self._fresh = ()

    def _prepare(self, end_of_input: bool) -> tuple[Any, ...]:
        return (*self._fresh, *self.guard(self.writer.prepare, end_of_input))

    def snapshot(self, checkpoint_id: int, timestamp: int, kind: SnapshotKind) -> OperatorSnapshot:
        state = self.context.operator_state
        if self._fresh:
            self._prepared.append(Prepared(checkpoint_id, self._fresh))
            self._fresh = ()
        # One element: a rescale deals out elements, and what one subtask prepared must stay together and in order.
        state.get_list_state(_COMMITTABLES).update([tuple(self._prepared)] if self._prepared else [])
        state.get_list_state(_WRITER).update(self.guard(self.writer.snapshot))
        return super().snapshot(checkpoint_id, timestamp, kind)

    def notify_complete(self, checkpoint_id: int, commits: Commits) -> None:
        """Commit what the checkpoint holds, the oldest first; on the driver that is none of a subtask's business."""
        while (
            not self.function.commits_on_driver and self._prepared and self._prepared[0].checkpoint_id <= checkpoint_id
        ):
            due = self._prepared.pop(0)
            self._commit(due.committables, commits.number_for(due.checkpoint_id))

    def epoch_committed(self, checkpoint_id: int) -> None:
        """The driver has committed everything up to a checkpoint: no later one needs to hold it."""
        self._prepared = [one for one in self._prepared if one.checkpoint_id > checkpoint_id]

    def _commit(self, committables: Sequence[Any], commit_number: int | None) -> None:
        if self._committer is None:
            return
        requests = [CommitRequest(committable, commit_number) for committable in committables]
        while requests:
            self.guard(self._committer.commit, requests)
            for request in requests:
                if request.dropped is not None:
                    self._report(request)
            requests = [self._again(request) for request in requests if request.retry and request.dropped is None]

    def _again(self, request: CommitRequest[Any]) -> CommitRequest[Any]:
        if request.tries >= self.context.committer_retries:
            raise self.failure(
                StorageError(
                    f"{request.committable!r} could not be committed in {request.tries + 1} tries; see what its sink writes to, "
                    "or allow more with sink.committer.retries: the job goes on from its newest checkpoint, which holds it"
                )
            )
        return CommitRequest(request.committable, request.commit_number, request.tries + 1)

    def _report(self, request: CommitRequest[Any]) -> None:
        _LOG.error("sink '%s': %r was DROPPED: %s", self.operator.name, request.committable, request.dropped)

    def close(self) -> None:
        for part in (self._writer, self._committer):
            if part is not None:
                self.guard(part.close)
