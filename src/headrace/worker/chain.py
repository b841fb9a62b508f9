"""The operators of a subtask as one chain: creation, wiring, life cycle, snapshots and timers. Runs in the subtask's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.api.metrics import MetricReader
from headrace.checkpoint.commits import NO_COMMITS
from headrace.graph.job_graph import Vertex
from headrace.graph.plan import Settings, TaskInfo
from headrace.records.batch import Batch
from headrace.records.kernel import detached
from headrace.state.backend import SnapshotKind
from headrace.state.operator import OperatorStateBackend
from headrace.worker.failures import OperatorFailure
from headrace.worker.operators.async_wait import AsyncWait
from headrace.worker.operators.base import (
    Operator,
    OperatorContext,
    OperatorSnapshot,
    Receiver,
    SubtaskServices,
)
from headrace.worker.operators.registry import make_operator
from headrace.worker.output import EdgeWriter
from headrace.worker.snapshots.local_state import open_backend
from headrace.worker.snapshots.restore import SubtaskRestore


class OperatorChain:
    """The operators of a vertex in one subtask, in the order in which records pass them."""

    def __init__(
        self,
        vertex: Vertex,
        info: TaskInfo,
        settings: Settings,
        services: SubtaskServices,
        edges: Mapping[int, EdgeWriter],
        restore: SubtaskRestore | None,
    ) -> None:
        self._vertex, self._info, self._settings, self._services = vertex, info, settings, services
        self._restore = restore
        self.operators = [self._operator(position) for position in range(len(vertex.operators))]
        # Operators that had finished before the restored checkpoint are never opened, called or closed (SPEC R4.5).
        self.living = [] if restore is not None and restore.finished else self.operators
        self._waiting = [operator for operator in self.living if isinstance(operator, AsyncWait)]
        self._metrics = MetricReader()
        self._wire(edges)

    # --- making -----------------------------------------------------------------------------------------------------

    def _operator(self, position: int) -> Operator:
        chained, info, services = self._vertex.operators[position], self._info, self._services
        own = replace(info, task_name=chained.name, operator_id=chained.id)
        restored = self._restore.operators.get(chained.id) if self._restore else None
        context = OperatorContext(
            own,
            services,
            self._settings,
            OperatorStateBackend(chained.name, restored.operator if restored else None),
            partial(open_backend, own, self._settings, services.now, self._restore),
            self._restore.checkpoint_id if self._restore else None,
            self._restore.commits if self._restore else NO_COMMITS,
            frozenset() if restored is None else None if restored.finished else restored.names,
        )
        return make_operator(chained, context)

    def _wire(self, edges: Mapping[int, EdgeWriter]) -> None:
        """Connect the operators, last first."""
        for operator in reversed(self.operators):
            by_tag: dict[str | None, _Receivers] = {}
            for output in operator.operator.outputs:
                receivers = by_tag.setdefault(output.tag, _Receivers())
                if output.edge is not None:
                    writer = edges[output.edge]
                    receivers.add(_guarded(writer.emit, operator), chained=False)
                    operator.behind.append(writer)
                else:
                    assert output.operator is not None
                    chained = self.operators[output.operator]
                    receivers.add(chained.receiver(output.input), chained=True)
                    operator.behind.append(chained)
            for tag, receivers in by_tag.items():
                receiver = receivers.as_one(not self._settings.object_reuse and operator.has_mutable_output(tag))
                if tag is None:
                    operator.emit = receiver
                else:
                    operator.side[tag] = receiver

    # --- life -------------------------------------------------------------------------------------------------------

    def user_metrics(self) -> dict[str, float]:
        """The metrics that the users' functions registered."""
        found: dict[str, float] = {}
        for operator in self.operators:
            found |= self._metrics.read(operator.metrics)
        return found

    def open(self) -> None:
        """Open the operators, the last of the chain first."""
        for operator in reversed(self.living):
            operator.open()

    def start(self) -> None:
        for operator in reversed(self.living):
            operator.start()

    def close(self) -> None:
        close_all(self.living)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def snapshot(
        self, checkpoint_id: int, timestamp: int, kind: SnapshotKind, send_barrier: Callable[[], None]
    ) -> list[OperatorSnapshot]:
        """Atomic for records, timers and a source's thread (SPEC R6.1).

        (1) emit what must precede the barrier, (2) send the barrier, (3) take the synchronous part of the snapshot.
        """
        with ExitStack() as locks:
            for operator in self.living:
                locks.enter_context(operator.checkpoint_lock())
            for operator in self.living:  # (1)
                operator.before_barrier()
            send_barrier()  # (2)
            return [operator.snapshot(checkpoint_id, timestamp, kind) for operator in self.living]  # (3)

    @property
    def full(self) -> bool:
        """Return True if one of the operators takes no more records for now."""
        return any(operator.full for operator in self._waiting)

    # --- time -------------------------------------------------------------------------------------------------------

    def on_time(self, now: int) -> bool:
        """Fire what is due; whether there was anything."""
        fired = False
        for operator in self.living:
            deadline = operator.next_deadline()
            if deadline is not None and deadline <= now:
                operator.on_time(now)
                fired = True
        return fired


def close_all(parts: Iterable[Any]) -> None:
    """Close every one; the first error is raised when all are closed."""
    first: Exception | None = None
    for part in parts:
        try:
            part.close()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


class _Receivers:
    """The receivers of the records of one output: operators of the chain, which may change them, and writers, which do not."""

    def __init__(self) -> None:
        self._all: list[Receiver] = []
        self._chained: list[Receiver] = []

    def add(self, receiver: Receiver, *, chained: bool) -> None:
        self._all.append(receiver)
        if chained:
            self._chained.append(receiver)

    def as_one(self, copies: bool) -> Receiver:
        """One receiver that stands for all; with `copies` none sees what another one changes."""
        if len(self._all) == 1:
            return self._all[0]
        # Writers keep records until a buffer is full. Without a writer one operator may have the records themselves.
        own = self._chained if len(self._chained) < len(self._all) else self._chained[:-1]
        receivers = [(receiver, copies and receiver in own) for receiver in self._all]

        def fan_out(batch: Batch) -> None:
            for receiver, copy in receivers:
                receiver(batch.copied(detached) if copy else batch)

        return fan_out


def _guarded(emit: Receiver, operator: Operator) -> Receiver:
    """Errors of key selectors and partitioners, which run at the writer, name the operator before the edge."""

    def guarded(batch: Batch) -> None:
        try:
            emit(batch)
        except OperatorFailure:
            raise
        except Exception as error:
            if getattr(error, "origin", None) is not None:  # a record that does not fit its type names its operator
                raise
            raise operator.failure(error) from error

    return guarded
