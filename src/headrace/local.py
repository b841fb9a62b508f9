"""The local runtime: the subtasks of a job in one process and one thread, deterministic, with virtual time, no JVM.

It is for unit tests of programs and functions. Rows go directly from one subtask to the next; when no subtask has work,
the clock jumps to the next deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

import msgspec

from headrace.api.state_claims import taken_state
from headrace.checkpoint.assignment import describe_state, unclaimed_state
from headrace.checkpoint.types import Barrier
from headrace.control.deployment import VertexRestore, describe_tasks
from headrace.driver.enumerators import SourceSplits, dynamic_sources
from headrace.errors import HeadraceError, IllegalState, StateMigrationError
from headrace.graph.plan import JobPlan
from headrace.ids import JobId, VertexId
from headrace.job.status import JobStatus, Status
from headrace.storage.manifest import StatePiece, state_in
from headrace.worker.chain import close_all
from headrace.worker.failures import reported
from headrace.worker.relay import Relay
from headrace.worker.snapshots.snapshot_writer import snapshot_inline
from headrace.worker.snapshots.taken_snapshots import SnapshotInProgress
from headrace.worker.subtask import Subtask
from headrace.worker.task import SteppedServices, make_task

__all__ = ["LocalJob", "LocalRun"]


class _LocalSnapshot(msgspec.Struct, frozen=True):
    """The state of a run: for each operator what each subtask wrote; None for one that had finished."""

    checkpoint_id: int
    operators: dict[str, list[tuple[StatePiece, ...] | None]]
    driver_states: dict[str, bytes] = {}


class LocalRun:
    """One run of a job. With a seed, subtasks are stepped in a random order that the seed fixes."""

    def __init__(
        self,
        plan: JobPlan,
        on_output: Callable[[str, bytes], None],
        start_time: int = 0,
        seed: int | None = None,
        slice_records: int = 100,
        restore: bytes | None = None,
    ) -> None:
        """`restore` is a `snapshot` of the same program, at any parallelism."""
        self.time = start_time
        # It follows from the seed because it seeds shuffle() and rebalance().
        self.job_id = JobId(f"{Random(seed or 0).getrandbits(128):032x}")
        self._random = Random(seed) if seed is not None else None
        self._slice = slice_records
        taken = None if restore is None else msgspec.msgpack.decode(restore, type=_LocalSnapshot)
        restored = {} if taken is None else _restore_plan(plan, taken)
        self._splits = _LocalSplits(plan, {} if taken is None else taken.driver_states)
        services = SteppedServices(lambda: self.time, lambda channel, payload, _: on_output(channel, payload))
        self._tasks: list[list[Subtask | Relay]] = [
            [make_task(task, services) for task in describe_tasks(plan, level, self.job_id, 0, restored)]
            for level in range(len(plan.layout.levels))
        ]
        self._subtasks = {
            (slot.vertex, slot.subtask): task
            for slots, tasks in zip(plan.layout.levels, self._tasks, strict=True)
            for slot, task in zip(slots, tasks, strict=True)
            if isinstance(task, Subtask)
        }

    def run(
        self, until: int | None = None, stop: Callable[[], bool] | None = None, then: Callable[[], None] = lambda: None
    ) -> None:
        """Run until every subtask has finished, or all that is due at the virtual time `until` is done.

        The run also ends when `stop`, called after every round, returns true. `then` is called at the end, before the
        subtasks are closed, for example to take a snapshot.
        """
        try:
            with reported("a subtask"):
                for level in reversed(self._tasks):
                    for task in level:
                        task.open()
            while not self.finished and not (stop is not None and stop()):
                if self._round():
                    continue
                if until is not None and self.time >= until:
                    break
                self._advance(until)
            then()
        except BaseException:
            with suppress(Exception):  # it would hide the first error
                self._close()
            raise
        self._close()

    def _close(self) -> None:
        with reported("a subtask"):
            close_all(task for level in self._tasks for task in level)

    @property
    def finished(self) -> bool:
        """Return True if every subtask has finished."""
        return all(task.status is Status.FINISHED for level in self._tasks for task in level)

    def snapshot(self, checkpoint_id: int = 1) -> bytes:
        """The state of all subtasks when everything that was read has been processed."""
        barrier = Barrier(checkpoint_id, self.time)
        subtasks = [task for level in self._tasks for task in level if isinstance(task, Subtask)]
        while self._round(reading=False):
            pass
        for task in subtasks:
            if task.source is not None:
                with reported("a subtask"):
                    task.trigger(barrier)
        while self._round(reading=False):
            pass
        taken: dict[Subtask, list[SnapshotInProgress]] = {task: task.take_snapshots() for task in subtasks}
        while any(not taken[task] and task.status is not Status.FINISHED for task in subtasks):
            self._advance(None)  # a barrier waits behind records for which there is no room yet
            while self._round(reading=False):
                pass
            for task in subtasks:
                taken[task] += task.take_snapshots()
        left: dict[str, list[tuple[StatePiece, ...] | None]] = {}
        for task in subtasks:
            states = {op: pieces for s in taken[task] for op, pieces in snapshot_inline(s).items()}
            for operator in task.operators:
                left.setdefault(operator.operator.id, []).append(states.get(operator.operator.id))
        return msgspec.msgpack.encode(_LocalSnapshot(checkpoint_id, left, self._splits.snapshot(checkpoint_id)))

    def _round(self, reading: bool = True) -> bool:
        """One step of every subtask; returns whether anything happened. Without `reading`, sources are not polled."""
        order = [(level, task) for level, tasks in enumerate(self._tasks) for task in tasks]
        if self._random is not None:
            self._random.shuffle(order)
        happened = reading and self._splits.serve(self._subtasks, self.time)
        for level, task in order:
            before = task.status
            queued = task.queued_bytes
            ready = task.has_work() if reading else task.has_events()
            with reported("a subtask"):
                count = task.step(self._slice) if ready else 0
            # The clock does not advance while a source has records, so no buffer timeout would be reached.
            if not count or self._random is None or self._random.random() < 0.5:
                task.flush_when_idle()
            moved = self._deliver(level, task)
            happened = happened or bool(count) or moved or task.status is not before or task.queued_bytes != queued
        if reading and not happened:  # a reader may have reached the end of its split in this round
            happened = self._splits.serve(self._subtasks, self.time)
        return happened or any(isinstance(t, Subtask) and t.has_events() for level in self._tasks for t in level)

    def _deliver(self, level: int, task: Subtask | Relay) -> bool:
        rows = task.take()
        for destination, pieces in rows:
            self._tasks[level + 1][destination].receive(b"".join(pieces))
        return bool(rows)

    def _advance(self, until: int | None) -> None:
        """Move the clock to the next deadline."""
        deadlines = [t for level in self._tasks for task in level if (t := task.next_deadline()) is not None]
        if (alarm := self._splits.next_alarm()) is not None:
            deadlines.append(alarm)
        if not deadlines:
            if until is not None:
                self.time = until
                return
            if not self.finished:
                raise IllegalState("HR-6008", "the local run is stuck: no subtask has work, and none waits for a time")
            return
        self.time = max(self.time, min(deadlines if until is None else [until, *deadlines]))
        for number, level in enumerate(self._tasks):
            for task in level:
                with reported("a subtask"):
                    task.on_time(self.time)
                    if isinstance(task, Subtask):
                        task.upkeep()
                self._deliver(number, task)


class _LocalSplits:
    """The enumerators of a local run."""

    def __init__(self, plan: JobPlan, restored: dict[str, bytes]) -> None:
        graph = plan.graph
        self._sources = {
            vertex: SourceSplits(operator, graph.vertices[vertex].parallelism, restored.get(operator.id))
            for vertex, operator in dynamic_sources(graph).items()
        }
        self.due = {vertex: 0 for vertex, source in self._sources.items() if not source.assigner.complete}
        self._begun = False

    def serve(self, tasks: Mapping[tuple[VertexId, int], Subtask], now: int) -> bool:
        """Discover splits where it is due, and assign them to readers; returns whether any was assigned."""
        dealt = []
        for vertex, source in self._sources.items():
            assignments = [] if self._begun else source.assigner.add_splits([], complete=False)
            for (owner, subtask), task in tasks.items():  # before the discovery, whose splits may serve the readers
                if owner == vertex and task.wants_split:
                    assignments += source.assigner.request_split(subtask)
            if self.due.get(vertex, now + 1) <= now and source.wants_discovery:
                source.begin_discovery()
                assignments += source.found(list(source.enumerator.discover()))
                self.due.pop(vertex)
                if not source.assigner.complete:
                    self.due[vertex] = now + source.enumerator.interval
            dealt += [(vertex, one) for one in assignments]
        self._begun = True
        for vertex, one in dealt:
            tasks[VertexId(vertex), one.subtask].add_splits(one.splits, one.no_more)
        return bool(dealt)

    def next_alarm(self) -> int | None:
        """Return the time of the next discovery."""
        return min((at for vertex, at in self.due.items() if self._sources[vertex].wants_discovery), default=None)

    def snapshot(self, checkpoint_id: int) -> dict[str, bytes]:
        return {source.operator.id: source.snapshot(checkpoint_id) for source in self._sources.values()}


def _restore_plan(plan: JobPlan, taken: _LocalSnapshot) -> dict[VertexId, VertexRestore]:
    """Return the restored state of each vertex of this plan."""
    known = {operator.id for vertex in plan.graph.vertices for operator in vertex.operators}
    for operator_id, states in taken.operators.items():
        if operator_id not in known and any(states):
            raise IllegalState(
                "HR-2103",
                f"the snapshot has state of operator {operator_id}, which the program does not have: give operators a uid, "
                "so that they are found again after the program changed",
            )
    restored: dict[VertexId, VertexRestore] = {}
    for vertex in plan.graph.vertices:
        own = {str(op.id): taken.operators[op.id] for op in vertex.operators if op.id in taken.operators}
        if own:
            for operator in vertex.operators:
                left = state_in(piece for pieces in own.get(operator.id, []) for piece in pieces or ())
                unclaimed = unclaimed_state(left, taken_state(operator.spec))
                if unclaimed is not None:
                    raise StateMigrationError(
                        "HR-2104",
                        f"the snapshot has {describe_state(unclaimed)} for '{operator.name}' ({operator.call_site}), which cannot "
                        "take it: give the uid back to the operator that had it, and this one another uid",
                    )
            restored[vertex.id] = VertexRestore(
                taken.checkpoint_id, vertex.parallelism, vertex.max_parallelism, own, claim=False
            )
    return restored


class LocalJob:
    """A job of the local runtime; it runs in the constructor, in the calling thread."""

    def __init__(
        self,
        plan: JobPlan,
        on_output: Callable[[str, bytes, Callable[[], None]], None],
        until: int | None = None,
        **options: Any,
    ) -> None:
        self.error: HeadraceError | None = None
        run = LocalRun(plan, lambda channel, payload: on_output(channel, payload, lambda: None), **options)
        self.job_id = run.job_id
        try:
            run.run(until)
        except HeadraceError as error:
            self.error = error
        self.status = JobStatus.FINISHED if self.error is None else JobStatus.FAILED

    def cancel(self) -> None:
        """It has ended already."""

    def wait(self, timeout: float | None = None) -> JobStatus:
        return self.status

    def raise_if_failed(self) -> None:
        if self.error is not None:
            raise self.error
