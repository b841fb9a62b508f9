"""Enumerators of sources on the driver: they find splits while the job runs (SPEC R9.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from headrace.api.durable import durable, to_text, unpack
from headrace.api.sources import DynamicSource
from headrace.checkpoint.plan import TaskId
from headrace.checkpoint.splits import Assignment, SplitAssigner
from headrace.control.messages import AssignSplits
from headrace.driver.services import DriverIo, JobPort
from headrace.errors import HeadraceError, UserCodeError
from headrace.graph.job_graph import ChainedOperator, JobGraph
from headrace.ids import OperatorId, VertexId


def dynamic_sources(graph: JobGraph) -> dict[int, ChainedOperator]:
    """The vertices whose sources have an enumerator."""
    return {vertex.id: vertex.head for vertex in graph.vertices if isinstance(vertex.head.spec.function, DynamicSource)}


@durable("splits-found-1")
class SplitsFound(msgspec.Struct, frozen=True):
    """A source's state on the driver in a checkpoint: its enumerator's state, and splits that no reader has."""

    state: str
    unassigned: list[str]
    complete: bool


class SourceSplits:
    """The enumerator of one source, and the splits that it has found and no reader has."""

    def __init__(self, operator: ChainedOperator, parallelism: int, restored: bytes | None) -> None:
        """`restored` is a `snapshot` from a checkpoint, whose file was checksummed by us."""
        self.operator = operator
        kept = SplitsFound(to_text(None), [], False) if restored is None else unpack(restored.decode())
        state, unassigned = unpack(kept.state), list(map(unpack, kept.unassigned))
        self.enumerator = operator.spec.function.enumerator(state)
        self.assigner: SplitAssigner[Any] = SplitAssigner(parallelism, self.enumerator.owner, unassigned, kept.complete)
        # Taken when a discovery is over: the next one may be under way, in another thread, when a checkpoint comes.
        self._state = state if restored is not None else self.enumerator.snapshot()
        # In rounds: the newest state whose splits are all read, now and at each checkpoint that may become complete.
        self._read: Any = None
        self._read_at: dict[int, Any] = {}

    @property
    def wants_discovery(self) -> bool:
        """Return True if it may look for splits now."""
        return not self.enumerator.in_rounds or self.assigner.idle

    def begin_discovery(self) -> None:
        """A discovery begins: in rounds, everything that was found before is read."""
        if self.enumerator.in_rounds:
            self._read = self._state

    def found(self, splits: list[Any]) -> list[Assignment[Any]]:
        """A discovery is over."""
        self._state = self.enumerator.snapshot()
        return self.assigner.add_splits(splits, self.enumerator.complete)

    def snapshot(self, checkpoint_id: int) -> bytes:
        """Return the enumerator's part of a checkpoint."""
        if self.enumerator.in_rounds:
            # A reader that has asked has emitted all it had: the barrier, which it gets later, is behind that.
            self._read_at[checkpoint_id] = self._state if self.assigner.idle else self._read
        splits = list(map(to_text, self.assigner.unassigned))
        return to_text(SplitsFound(to_text(self._state), splits, self.assigner.complete)).encode()

    def notify_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: what it has in front of its barriers will never be read again."""
        read = self._read_at.pop(checkpoint_id, None)
        self._read_at = {one: state for one, state in self._read_at.items() if one > checkpoint_id}
        if read is not None:
            self.enumerator.notify_complete(read)


class Splits:
    """The enumerators of a job. Called in the job's thread; only a discovery runs in the pool."""

    def __init__(self, graph: JobGraph, io: DriverIo, job: JobPort) -> None:
        self._graph, self._io, self._job = graph, io, job
        self._operators = dynamic_sources(graph)
        self.any = bool(self._operators)  # the job has such sources at all
        self._sources: dict[int, SourceSplits] = {}
        self._due: dict[int, int] = {}  # when to look for splits again
        # Subtasks that asked before all readers were connected; None from then on.
        self._early: list[TaskId] | None = []
        self._attempt = 0

    def replan(self, graph: JobGraph) -> None:
        """The next attempt runs another graph of the same program."""
        self._graph, self._operators = graph, dynamic_sources(graph)

    def start_attempt(self, restored: Mapping[OperatorId, bytes]) -> None:
        """New enumerators, from what the restored checkpoint has of them."""
        self._attempt += 1
        self._early = []
        self._due.clear()
        self.close()
        self._sources = {}
        for vertex, operator in self._operators.items():
            parallelism = self._graph.vertices[vertex].parallelism
            try:
                self._sources[vertex] = SourceSplits(operator, parallelism, restored.get(operator.id))
            except HeadraceError:
                raise
            except Exception as error:
                raise UserCodeError("HR-5007", _blame(operator, "cannot start its enumerator", error)) from error

    def close(self) -> None:
        """Release what the enumerators hold; an error of one changes nothing for the job."""
        for source in self._sources.values():
            try:
                source.enumerator.close()
            except Exception as error:
                self._io.warn(_blame(source.operator, "cannot close its enumerator", error))

    def job_running(self) -> None:
        """All readers are connected: begin. Early asks come first, since a reader that is dealt a split asks no more."""
        early, self._early = self._early or [], None
        for task in early:
            self.asked(task)
        for vertex, source in self._sources.items():
            self._assign(vertex, source.assigner.add_splits([], complete=False))
            if not source.assigner.complete:
                self._due[vertex] = self._io.now()
        self.tick()

    def asked(self, task: TaskId) -> None:
        """A reader has nothing left to read. An answer may concern all readers: it waits until they are connected."""
        if self._early is not None:
            self._early.append(task)
        elif task.vertex in self._sources:
            self._assign(task.vertex, self._sources[task.vertex].assigner.request_split(task.subtask))

    def snapshot(self, checkpoint_id: int) -> dict[OperatorId, bytes]:
        """Return the enumerators' part of a checkpoint."""
        return {source.operator.id: source.snapshot(checkpoint_id) for source in self._sources.values()}

    def notify_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: enumerators may confirm to the system they read from."""
        for source in self._sources.values():
            try:
                source.notify_complete(checkpoint_id)
            except Exception as error:
                self._job.fail(_blame(source.operator, "cannot confirm a checkpoint", error))

    def tick(self) -> None:
        """Look for splits where it is time."""
        now = self._io.now()
        for vertex in [
            vertex for vertex, at in self._due.items() if at <= now and self._sources[vertex].wants_discovery
        ]:
            del self._due[vertex]
            self._discover(vertex, self._sources[vertex])

    def next_alarm(self) -> int | None:
        """Return the time at which `tick` has work."""
        return min((at for vertex, at in self._due.items() if self._sources[vertex].wants_discovery), default=None)

    def _assign(self, vertex: int, assignments: list[Assignment[Any]]) -> None:
        for one in assignments:
            message = AssignSplits(list(map(to_text, one.splits)), one.no_more)
            self._job.send(TaskId(VertexId(vertex), one.subtask), message)

    def _discover(self, vertex: int, source: SourceSplits) -> None:
        attempt = self._attempt
        source.begin_discovery()

        def work() -> None:
            try:
                done: Callable[[], None] = partial(self._found, attempt, vertex, list(source.enumerator.discover()))
            except Exception as error:
                done = partial(self._failed, attempt, source.operator, error)
            self._job.call(done)

        self._io.discoveries.submit(work)

    def _found(self, attempt: int, vertex: int, splits: list[Any]) -> None:
        if attempt != self._attempt:
            return
        source = self._sources[vertex]
        self._assign(vertex, source.found(splits))
        if not source.assigner.complete:
            self._due[vertex] = self._io.now() + source.enumerator.interval

    def _failed(self, attempt: int, operator: ChainedOperator, error: Exception) -> None:
        if attempt == self._attempt:
            self._job.fail(_blame(operator, "cannot find its splits", error))


def _blame(operator: ChainedOperator, what: str, error: Exception) -> str:
    return f"source '{operator.name}' ({operator.call_site}) {what}: {type(error).__name__}: {error}"
