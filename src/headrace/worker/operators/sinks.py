"""Sinks in a subtask: writer and committer of a `Sink` (SPEC R9.3), sink functions, and output for the driver."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from headrace.api.durable import pack, unpack
from headrace.api.functions import callable_of
from headrace.api.sink import CommitRequest, Committer, Prepared, Sink, SinkWriter, WriterContext
from headrace.api.specs import CollectSpec, PrintSpec, SinkSpec
from headrace.checkpoint.commits import Commits
from headrace.control.operator_state import COMMITTABLES, prepared_in
from headrace.errors import StorageError
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.records.frames import pickle_rows
from headrace.records.types import PICKLED, TypeInformation
from headrace.state.api import ListStateDescriptor
from headrace.state.backend import SnapshotKind
from headrace.state.pickling import load_values
from headrace.worker.operators.base import ElementContext, Operator, OperatorContext, OperatorSnapshot, Receiver

_LOG = logging.getLogger(__name__)

_WRITER = ListStateDescriptor("writer")
OWN_STATES = (_WRITER.name, COMMITTABLES.name)


class SinkOperator(Operator):
    """Runs the writer and the committer of a `Sink`: committables never travel between subtasks, so none can be missing."""

    writer: SinkWriter[Any]  # when it is open

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        settings, type, clock = context.settings, SinkSpec.of(operator).input_type, context.services.now
        self._where = WriterContext(
            **asdict(context.info), staging=settings.staging, type=type, epoch=settings.epoch, clock=clock
        )
        self._committer: Committer[Any] | None = None
        self._prepared: list[Prepared] = []
        self._restored: list[Any] = []  # elements of the writer's state
        self._fresh: tuple[Any, ...] = ()  # prepared for the checkpoint whose barrier is about to leave
        self._ended = False
        self._commits = self._commit_ms = self._last_commit_ms = 0.0  # calls of the committer, and their time

    def open(self) -> None:
        state = self.context.operator_state
        self._prepared = prepared_in(state)
        self._restored = list(map(unpack, state.get_list_state(_WRITER).get()))

    def start(self) -> None:
        """Commit again what the restored checkpoint holds, unless the driver does, then start to write (SPEC R9.3)."""
        sink: Sink[Any] = self.function
        self._committer = self.guard(sink.committer, self._where)
        if not sink.commits_on_driver:
            self._commit(_requests(self._prepared, self.context.restored_commits, recovered=True))
            self._prepared = []
        self.writer = self.guard(sink.writer, self._where, self._restored)

    def receiver(self, input: int) -> Receiver:
        def receive(batch: Batch) -> None:
            if self.writer.batches:
                self.guard(self.writer.write_batch, batch.arrow())
                return
            write = self.writer.write

            def loop(rows: Iterator[Any]) -> None:
                for row in rows:
                    write(row)

            self.each(batch.rows(), loop)

        return receive

    def before_barrier(self) -> None:
        """Everything in front of the barrier is durable before the barrier leaves."""
        if not self._ended:
            self._fresh = self._prepare(end_of_input=False)

    def finish(self) -> None:
        """Commit the last records with the final checkpoint; if there is none, now.

        Without a final checkpoint the job does not wait for a checkpoint that is under way, and one that failed has no
        successor: what was prepared for them is committed as well.
        """
        self._fresh = self._prepare(end_of_input=True)
        self._ended = True
        if not self.context.settings.final_checkpoint and not self.function.commits_on_driver:
            earlier = [committable for one in self._prepared for committable in one.committables]
            self._commit([CommitRequest(committable, None) for committable in (*earlier, *self._fresh)])
            self._prepared, self._fresh = [], ()

    def _prepare(self, end_of_input: bool) -> tuple[Any, ...]:
        return (*self._fresh, *self.guard(self.writer.prepare, end_of_input))

    def snapshot(self, checkpoint_id: int, timestamp: int, kind: SnapshotKind) -> OperatorSnapshot:
        state = self.context.operator_state
        if self._fresh:
            self._prepared.append(Prepared(checkpoint_id, self._fresh))
            self._fresh = ()
        # One element: a rescale redistributes elements, and the committables of a subtask must stay together, in order.
        kept = tuple(
            (one.checkpoint_id, tuple(self.guard(pack, c) for c in one.committables)) for one in self._prepared
        )
        state.get_list_state(COMMITTABLES).update([kept] if kept else [])
        state.get_list_state(_WRITER).update([self.guard(pack, one) for one in self.guard(self.writer.snapshot)])
        return super().snapshot(checkpoint_id, timestamp, kind)

    def notify_complete(self, checkpoint_id: int, commits: Commits) -> None:
        """Commit what the checkpoint holds, the oldest first, unless the driver does."""
        if not self.function.commits_on_driver:
            due = [one for one in self._prepared if one.checkpoint_id <= checkpoint_id]
            self._commit(_requests(due, commits))
            self._prepared = self._prepared[len(due) :]

    @property
    def awaits_commit(self) -> bool:
        return bool(self.function.commits_on_driver and self._prepared)

    def epoch_committed(self, checkpoint_id: int) -> None:
        """The driver has committed everything up to a checkpoint: no later one needs to hold it."""
        self._prepared = [one for one in self._prepared if one.checkpoint_id > checkpoint_id]

    def _commit(self, requests: list[CommitRequest[Any]]) -> None:
        if self._committer is None:
            return
        while requests:
            started = time.perf_counter()
            self.guard(self._committer.commit, requests)
            self._last_commit_ms = (time.perf_counter() - started) * 1000
            self._commits += 1
            self._commit_ms += self._last_commit_ms
            for request in requests:
                if request.dropped is not None:
                    name, what, why = self.operator.name, request.committable, request.dropped
                    _LOG.error("sink '%s': %r was DROPPED: %s", name, what, why)
            requests = [self._again(request) for request in requests if request.retry and request.dropped is None]

    def own_metrics(self) -> dict[str, float]:
        if not self._commits:
            return {}
        return {"commits": self._commits, "commitTime": self._commit_ms, "lastCommitTime": self._last_commit_ms}

    def _again(self, request: CommitRequest[Any]) -> CommitRequest[Any]:
        if request.tries >= self.context.settings.committer_retries:
            raise self.failure(
                StorageError(
                    "HR-4601",
                    f"{request.committable!r} could not be committed in {request.tries + 1} tries; check the system that the sink "
                    "writes to, or allow more with sink.committer.retries: the job restarts from its newest checkpoint, "
                    "which holds it",
                )
            )
        return CommitRequest(request.committable, request.commit_number, request.tries + 1, request.recovered)

    def close(self) -> None:
        for part in (getattr(self, "writer", None), self._committer):
            if part is not None:
                self.guard(part.close)


def _requests(prepared: Sequence[Prepared], commits: Commits, recovered: bool = False) -> list[CommitRequest[Any]]:
    return [
        CommitRequest(committable, commits.number_for(one.checkpoint_id), recovered=recovered)
        for one in prepared
        for committable in one.committables
    ]


class FunctionSink(Operator):
    """Hands every record to a SinkFunction, with a context that has its timestamp, or to a plain function."""

    def receiver(self, input: int) -> Receiver:
        invoke = callable_of(self.function, "invoke", "add_sink()")
        context = ElementContext(self)

        def call(rows: Iterator[Any]) -> None:
            for row in rows:
                invoke(row)

        def call_with_context(rows: Iterator[Any]) -> None:
            for row in rows:
                invoke(row, context)

        loop = call_with_context if hasattr(self.function, "invoke") else call

        def receive(batch: Batch) -> None:
            if batch.timestamps is None:
                context.stamp = None
                self.each(batch.rows(), loop)
                return
            stamps = batch.timestamps.tolist()

            def stamped(rows: Iterator[Any]) -> Iterator[Any]:
                for row, context.stamp in zip(rows, stamps, strict=True):
                    yield row

            self.each(batch.rows(), lambda rows: loop(stamped(rows)))

        return receive

    def finish(self) -> None:
        finish = getattr(self.function, "finish", None)
        if finish is not None:
            self.guard(finish)


class PrintSink(Operator):
    """Sends lines to the driver."""

    def receiver(self, input: int) -> Receiver:
        info, spec = self.context.info, PrintSpec.of(self.operator)
        number = str(info.subtask + 1) if info.parallelism > 1 else ""
        prefix = ":".join(part for part in (spec.identifier, number) if part)
        prefix = f"{prefix}> " if prefix else ""

        def receive(batch: Batch) -> None:
            as_text = spec.text if batch.type.is_typed else str
            text = self.each(batch.rows(), lambda rows: "\n".join([f"{prefix}{as_text(row)}" for row in rows]))
            self.context.services.to_driver("", text.encode("utf-8", "replace"), len(batch))

        return receive


class CollectSink(Operator):
    """Sends records to the driver."""

    def receiver(self, input: int) -> Receiver:
        channel = CollectSpec.of(self.operator).channel

        def receive(batch: Batch) -> None:
            if batch.type.is_typed:
                payload = b"A" + memoryview(batch.arrow().serialize())
            else:
                body, by_value = self.guard(pickle_rows, batch.rows())
                payload = (b"V" if by_value else b"P") + body
            self.context.services.to_driver(channel, payload, len(batch))

        return receive


def decode_collected(payload: bytes, type: TypeInformation = PICKLED) -> list[Any]:
    """Records from a CollectSink. Pickles are loaded: give it only what came over the job's own control plane."""
    if payload[:1] == b"A":
        return type.to_rows(pa.ipc.read_record_batch(pa.py_buffer(payload[1:]), type.schema))
    if payload[:1] == b"V":  # with classes of the program's own script
        return load_values(payload[1:], "a collected record")
    return pickle.loads(payload[1:])  # type: ignore[no-any-return]
