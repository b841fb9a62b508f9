"""Which tasks a checkpoint concerns, and what it says of those that have finished (SPEC R5.0, R4.5).

A plan is made anew for every checkpoint, from the state each task is in at that moment:

    trigger    tasks triggered by the coordinator: the sources, or running tasks with no running task upstream
    wait       tasks that must acknowledge, and are notified of its end: all running ones
    finished   tasks that ended before it began
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from headrace.checkpoint.assignment import FinishedState, Shapes, union_states_of_partly_finished
from headrace.ids import OperatorId, VertexId


class TaskId(NamedTuple):
    """A subtask of a vertex; as text `v1/0`."""

    vertex: VertexId
    subtask: int

    def __str__(self) -> str:
        return f"v{self.vertex}/{self.subtask}"


class TaskStatus(Enum):
    """As far as checkpoints care; a task that was lost or cancelled counts as FAILED."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PlanInput:
    """An edge into a vertex: the vertex that writes it, and for each reader the writers it has a channel from (None: all).

    >>> PlanInput(VertexId(0), writers=((0,), (1,))).reach(1, 2)
    (1,)
    """

    source: VertexId
    writers: tuple[tuple[int, ...], ...] | None = None

    def reach(self, reader: int, parallelism: int) -> tuple[int, ...] | range:
        """The subtasks of the source vertex, which has this parallelism, that write to a reader."""
        return range(parallelism) if self.writers is None else self.writers[reader]


@dataclass(frozen=True, slots=True)
class PlanVertex:
    """A vertex of the job graph; relays are not vertices and take no part in checkpoints."""

    id: VertexId
    parallelism: int
    inputs: tuple[PlanInput, ...] = ()
    operators: tuple[OperatorId, ...] = ()

    def tasks(self) -> Iterator[TaskId]:
        return (TaskId(self.id, subtask) for subtask in range(self.parallelism))


@dataclass(frozen=True, slots=True)
class Topology:
    """The vertices in topological order."""

    vertices: tuple[PlanVertex, ...]

    def tasks(self) -> Iterator[TaskId]:
        return (task for vertex in self.vertices for task in vertex.tasks())

    def parallelism(self) -> dict[VertexId, int]:
        return {vertex.id: vertex.parallelism for vertex in self.vertices}


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The task sets of one checkpoint."""

    trigger: tuple[TaskId, ...]
    wait: tuple[TaskId, ...]
    finished: tuple[TaskId, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there can be no checkpoint, or why one cannot be completed."""

    message: str


def plan_checkpoint(
    topology: Topology, statuses: Mapping[TaskId, TaskStatus], *, after_finish: bool = True
) -> CheckpointPlan | Refusal:
    """The plan of a checkpoint that starts now; `after_finish` allows it when some tasks have finished.

    >>> source, sink = PlanVertex(VertexId(0), 1), PlanVertex(VertexId(1), 1, (PlanInput(VertexId(0)),))
    >>> job = Topology((source, sink))
    >>> plan = plan_checkpoint(job, dict.fromkeys(job.tasks(), TaskStatus.RUNNING))
    >>> [str(task) for task in plan.trigger], [str(task) for task in plan.wait]
    (['v0/0'], ['v0/0', 'v1/0'])
    """
    finished = {task for task in topology.tasks() if statuses.get(task) is TaskStatus.FINISHED}
    refusal = _not_all_running(topology, statuses, finished, after_finish=after_finish)
    if refusal is not None:
        return refusal
    parallelism = topology.parallelism()
    trigger: list[TaskId] = []
    running: list[TaskId] = []
    for vertex in topology.vertices:
        for task in vertex.tasks():
            if task in finished:
                continue
            running.append(task)
            upstream = (
                TaskId(edge.source, writer)
                for edge in vertex.inputs
                for writer in edge.reach(task.subtask, parallelism[edge.source])
            )
            if all(writer in finished for writer in upstream):
                trigger.append(task)
    gone = tuple(task for task in topology.tasks() if task in finished)
    return CheckpointPlan(tuple(trigger), tuple(running), gone)


def _not_all_running(
    topology: Topology, statuses: Mapping[TaskId, TaskStatus], finished: set[TaskId], *, after_finish: bool
) -> Refusal | None:
    if finished and not after_finish:
        return Refusal(
            f"task {min(finished)} has finished, and execution.checkpointing.checkpoints-after-tasks-finish is off"
        )
    others = [task for task in topology.tasks() if task not in finished]
    if not others:
        return Refusal("all tasks have finished: nothing is left to take a checkpoint of")
    for task in others:
        status = statuses.get(task, TaskStatus.STARTING)
        if status is not TaskStatus.RUNNING:
            return Refusal(
                f"task {task} is {status.value}, and a checkpoint needs all of them: try again when all tasks run"
            )
    return None


# ---- when all have acknowledged ------------------------------------------------------------------------------------


class TaskReport(msgspec.Struct, frozen=True):
    """The part of an acknowledgement that describes operator states and the end of the task."""

    operator_states: Mapping[OperatorId, Shapes] = {}
    finished_operators: bool = False  # finish() was called: this checkpoint may be the task's last
    finished_on_restore: bool = False  # the vertex was restored as finished: it has no state and never ran


@dataclass(frozen=True, slots=True)
class VertexOutcome:
    """The progress of a vertex as the metadata records it, and its finished subtasks."""

    state: FinishedState
    finished: tuple[int, ...] = ()


def account_for_finished(
    topology: Topology, plan: CheckpointPlan, reports: Mapping[TaskId, TaskReport]
) -> dict[VertexId, VertexOutcome] | Refusal:
    """The outcome of every vertex, from the plan and from what the tasks acknowledged.

    Refused if a partly finished vertex has union state, which would be incomplete.

    >>> job = Topology((PlanVertex(VertexId(0), 2),))
    >>> first, second = job.tasks()
    >>> plan = CheckpointPlan((second,), (second,), finished=(first,))
    >>> account_for_finished(job, plan, {second: TaskReport()})
    {0: VertexOutcome(state=<FinishedState.PARTLY: 'partly finished'>, finished=(0,))}
    """
    gone = set(plan.finished)
    outcomes: dict[VertexId, VertexOutcome] = {}
    for vertex in topology.vertices:
        tasks = list(vertex.tasks())
        of_vertex = [reports.get(task) for task in tasks]
        finished = [task in gone for task in tasks]
        if all(finished) or any(report and report.finished_on_restore for report in of_vertex):
            outcomes[vertex.id] = VertexOutcome(FinishedState.FULLY, tuple(range(vertex.parallelism)))
            continue
        # A fast task that has called finish() must wait for the slow ones when they share union state: if it
        # ended, every later checkpoint would be refused because of its finished subtasks.
        closing = [bool(report and report.finished_operators) for report in of_vertex]
        for flags, what in ((finished, "have finished"), (closing, "have called finish()")):
            names = _union_states(of_vertex, flags)
            if names:
                return Refusal(
                    f"some subtasks of vertex {vertex.id} {what}, others still run, and its union list state "
                    f"{', '.join(map(repr, names))} would be incomplete"
                )
        state = FinishedState.PARTLY if any(finished) else FinishedState.RUNNING
        outcomes[vertex.id] = VertexOutcome(state, tuple(i for i, over in enumerate(finished) if over))
    return outcomes


def _union_states(reports: list[TaskReport | None], finished: list[bool]) -> list[str]:
    operators = dict.fromkeys(op for report in reports if report for op in report.operator_states)
    names: list[str] = []
    for operator in operators:
        shapes = [report.operator_states.get(operator) if report else None for report in reports]
        names += union_states_of_partly_finished(shapes, finished)
    return names
