"""The descriptions that the driver sends to its workers with a job: tasks, the state to restore, the storage to write to.

They are pickled into the function that Spark ships; everything later travels as a message (`control/messages.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.graph.plan import JobPlan, Settings
from headrace.ids import OperatorId, VertexId
from headrace.storage.layout import AttemptId
from headrace.storage.local import DEFAULT_BUFFER
from headrace.storage.manifest import StatePiece

ARCHIVE_PREFIX: Final = "headrace-modules-"
"""The names of archives with the program's modules begin with it."""


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """The address of a driver, with the secret of the job; `repr` shows no secret."""

    host: str
    port: int
    secret: str = field(repr=False)
    certificate: bytes | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class WorkerStorage:
    """The places that a worker writes snapshots to, and how; part of the task's description."""

    attempt: AttemptId
    shared_directory: str | None
    inline_threshold: int
    asynchronous: bool = True  # otherwise records wait until a snapshot is written
    staging: str | None = None  # for files of sinks that are not visible yet
    write_buffer: int = DEFAULT_BUFFER
    private: bool = False  # files on local file systems are for this user only


@dataclass(frozen=True, slots=True)
class VertexRestore:
    """The state that the subtasks of a vertex restore: for each operator, the pieces of each old subtask."""

    checkpoint_id: int
    parallelism: int
    max_parallelism: int
    operators: Mapping[str, Sequence[tuple[StatePiece, ...] | None]]
    claim: bool  # later increments may build on the restored files
    finished: bool = False  # the vertex had finished: its subtasks only send their ends
    commits: Commits = NO_COMMITS  # up to the checkpoint


@dataclass(frozen=True, slots=True)
class TaskDescriptor:
    """Everything that one task needs to run: a subtask of a vertex, or a relay towards one."""

    job_id: str
    attempt: int
    level: int
    index: int  # in the level
    previous_width: int  # tasks in the level before
    next_width: int
    name: str
    settings: Settings
    vertex_id: VertexId
    subtask: int
    parallelism: int
    vertex: bytes | None = None  # pickled VertexPlan; None for a relay
    relay_to: int = 0  # the task of the next level that a relay passes rows to
    restore: VertexRestore | None = None
    storage: WorkerStorage | None = None
    operators: tuple[OperatorId, ...] = ()


def describe_tasks(
    plan: JobPlan,
    level: int,
    job_id: str,
    attempt: int,
    restore: Mapping[VertexId, VertexRestore] | None = None,
    storage: WorkerStorage | None = None,
) -> list[TaskDescriptor]:
    """Describe the tasks of one level; `restore` has the state of each vertex."""
    return [
        TaskDescriptor(
            job_id,
            attempt,
            level,
            index,
            plan.width(level - 1),
            plan.width(level + 1),
            plan.task_name(level, index),
            plan.settings,
            slot.vertex,
            slot.subtask,
            plan.graph.vertices[slot.vertex].parallelism,
            None if slot.relay else plan.vertices[slot.vertex],
            plan.relays[level, slot.vertex] + slot.subtask if slot.relay else 0,
            None if slot.relay or restore is None else restore.get(slot.vertex),
            storage,
            tuple(operator.id for operator in plan.graph.vertices[slot.vertex].operators),
        )
        for index, slot in enumerate(plan.layout.levels[level])
    ]


def process_mark(job_id: str, attempt: int) -> str:
    """Return the process name of a worker while it runs a task: shown by `ps` and `top`, and used to find orphaned workers.

    >>> process_mark("0123456789abcdef", 2)
    'hr-01234567-2'
    """
    return f"hr-{job_id[:8]}-{attempt}"[:15]
