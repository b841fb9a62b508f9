"""Single tasks of a real program, with a clock that only moves when it is told to."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.types import Barrier
from headrace.control.deployment import TaskDescriptor, VertexRestore, describe_tasks
from headrace.control.messages import TaskState
from headrace.environment import StreamExecutionEnvironment
from headrace.graph.plan import JobPlan, VertexPlan
from headrace.records.batch import Batch
from headrace.records.frames import DRAIN, Frame, FrameKind, pack, read_frames
from headrace.worker.operators.sinks import decode_collected
from headrace.worker.relay import Relay
from headrace.worker.snapshots.snapshot_writer import snapshot_inline
from headrace.worker.subtask import Subtask
from headrace.worker.task import make_task


class Services:
    """What a subtask needs of the world, under the test's control."""

    def __init__(self, lockstep: bool = True) -> None:
        self.lockstep = lockstep
        self.time = 0
        self.sent: list[tuple[str, bytes]] = []
        self.woken = 0

    def now(self) -> int:
        return self.time

    def to_driver(self, channel: str, payload: bytes, records: int) -> None:
        self.sent.append((channel, payload))

    def wake(self) -> None:
        self.woken += 1

    def collected(self, channel: str = "out") -> list[Any]:
        """Records that a `collect_into` sent, and forget them."""
        found = [row for name, payload in self.sent if name == channel for row in decode_collected(payload)]
        self.sent = [(name, payload) for name, payload in self.sent if name != channel]
        return found


def plan_of(program: Callable[[StreamExecutionEnvironment], object], **conf: Any) -> JobPlan:
    env = StreamExecutionEnvironment.local()
    for key, value in conf.items():
        env.get_configuration().set(key.replace("__", "-").replace("_", "."), value)
    program(env)
    return env._job_plan()


def vertex_plan(plan: JobPlan, name: str) -> VertexPlan:
    """The plan of the one vertex whose name contains this."""
    (vertex,) = [v for v in plan.graph.vertices if name in v.name]
    return pickle.loads(plan.vertices[vertex.id])


def descriptor(plan: JobPlan, name: str, index: int = 0, **changes: Any) -> TaskDescriptor:
    """What a worker gets for one subtask of the one vertex whose name contains this."""
    (vertex,) = [v for v in plan.graph.vertices if name in v.name]
    tasks = describe_tasks(plan, plan.layout.level_of[vertex.id], "0" * 32, 0)
    (found,) = [t for t in tasks if t.vertex_id == vertex.id and t.subtask == index and t.vertex is not None]
    return replace(found, **changes)


def subtask(plan: JobPlan, name: str, index: int = 0, services: Services | None = None, **changes: Any) -> Subtask:
    """The subtask of a vertex, not yet opened."""
    task = make_task(descriptor(plan, name, index, **changes), services or Services())
    assert isinstance(task, Subtask)
    return task


def relay(plan: JobPlan, level: int, index: int) -> Relay:
    task = make_task(describe_tasks(plan, level, "0" * 32, 0)[index], Services())
    assert isinstance(task, Relay)
    return task


def snapshot_of(task: Subtask, number: int) -> TaskState:
    """Trigger a checkpoint at a source: what it writes, by operator."""
    task.trigger(Barrier(number, 0))
    return snapshot_inline(task.take_snapshots()[0])


def restore_of(
    number: int, states: list[TaskState], parallelism: int = 1, commits: Commits = NO_COMMITS
) -> VertexRestore:
    """What a vertex starts from, given what each of its old subtasks has written."""
    operators = {operator: [state[operator] for state in states] for operator in states[0]}
    return VertexRestore(number, parallelism, 128, operators, claim=False, commits=commits)


def data(*values: Any, edge: int = 0, writer: int = 0) -> bytes:
    """A row with one frame of untyped records."""
    return b"".join(pack(FrameKind.PICKLE, edge, writer, pickle.dumps(list(values))))


def event(kind: FrameKind, edge: int = 0, writer: int = 0, body: bytes = b"", flags: int | None = None) -> bytes:
    """A row with one event; the end of data is that of a source that has come to its end."""
    drain = DRAIN if kind == FrameKind.END_OF_DATA else 0
    return b"".join(pack(kind, edge, writer, body, flags=drain if flags is None else flags))


def taken(task: Subtask | Relay) -> list[tuple[int, list[Frame]]]:
    """The rows that leave a task: (target, frames)."""
    return [(target, list(read_frames(b"".join(pieces)))) for target, pieces in task.take()]


def frames_to(rows: list[tuple[int, list[Frame]]], target: int) -> list[tuple[FrameKind, Any]]:
    """What one target gets: kind, and the records of batches."""
    return [
        (FrameKind(f.kind), pickle.loads(f.body) if f.kind == FrameKind.PICKLE else None)
        for to, frames in rows
        for f in frames
        if to == target
    ]


def work_off(task: Subtask, max_records: int = 100) -> int:
    """Step until there is nothing to do; the number of records."""
    total = 0
    while task.has_events():
        total += task.step(max_records)
    return total


__all__ = [
    "Batch",
    "Services",
    "data",
    "descriptor",
    "event",
    "frames_to",
    "plan_of",
    "relay",
    "restore_of",
    "snapshot_of",
    "subtask",
    "taken",
    "vertex_plan",
    "work_off",
]
