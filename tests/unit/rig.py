"""Single tasks of a real program, with a clock that only moves when it is told to."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from headgate.environment import StreamExecutionEnvironment
from headgate.graph.plan import JobPlan, VertexPlan
from headgate.graph.task_info import TaskInfo
from headgate.records.batch import Batch
from headgate.records.frames import DRAIN, Frame, Kind, pack, read_frames
from headgate.worker.operators.sinks import decode_collected
from headgate.worker.subtask import Relay, Subtask


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


def subtask(plan: JobPlan, name: str, index: int = 0, services: Services | None = None) -> Subtask:
    """The subtask of a vertex, not yet opened."""
    part = vertex_plan(plan, name)
    vertex = part.vertex
    level = plan.layout.level_of[vertex.id]
    info = TaskInfo(vertex.name, vertex.head.id, index, vertex.parallelism, vertex.max_parallelism, 0, "0" * 32)
    numbers = (plan.layout.index(level, vertex.id, index), plan.width(level - 1), plan.width(level + 1))
    return Subtask(part, index, plan.settings, services or Services(), info, numbers)


def relay(plan: JobPlan, level: int, index: int) -> Relay:
    slot = plan.layout.levels[level][index]
    assert slot.relay
    numbers = (index, plan.width(level - 1), plan.width(level + 1))
    return Relay(plan.relays[level, slot.vertex] + slot.subtask, numbers, plan.settings.buffer_size)


def data(*values: Any, edge: int = 0, writer: int = 0) -> bytes:
    """A row with one frame of untyped records."""
    return b"".join(pack(Kind.PICKLE, edge, writer, pickle.dumps(list(values))))


def event(kind: Kind, edge: int = 0, writer: int = 0, body: bytes = b"", flags: int | None = None) -> bytes:
    """A row with one event; the end of data is that of a source that has come to its end."""
    drain = DRAIN if kind == Kind.END_OF_DATA else 0
    return b"".join(pack(kind, edge, writer, body, flags=drain if flags is None else flags))


def taken(task: Subtask | Relay) -> list[tuple[int, list[Frame]]]:
    """The rows that leave a task: (target, frames)."""
    return [(target, list(read_frames(b"".join(pieces)))) for target, pieces in task.take()]


def frames_to(rows: list[tuple[int, list[Frame]]], target: int) -> list[tuple[Kind, Any]]:
    """What one target gets: kind, and the records of batches."""
    return [
        (Kind(f.kind), pickle.loads(f.body) if f.kind == Kind.PICKLE else None)
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
    "event",
    "frames_to",
    "plan_of",
    "relay",
    "subtask",
    "taken",
    "vertex_plan",
    "work_off",
]
