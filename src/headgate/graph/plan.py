"""The plan of a job: the graph, its layout in levels, settings, and what each vertex's subtasks need, pickled once.

Made on the driver; the pickled `VertexPlan` is loaded by every subtask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cloudpickle

from headgate.errors import GraphError
from headgate.graph.job_graph import ChainedOperator, Edge, JobGraph, Partitioning, PartitioningKind, Vertex
from headgate.graph.levels import Layout
from headgate.ids import VertexId
from headgate.records.types import TypeInformation


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the job that subtasks use."""

    buffer_size: int
    buffer_timeout: int
    queue_size: int
    slice_ms: int
    max_unconfirmed: int
    object_reuse: bool = False
    state_backend: str = "hashmap"
    tmp_dir: str | None = None  # for working files of state; None: the system's
    rocksdb_memory: int = 64 << 20
    incremental: bool = False
    migrate_ttl: bool = False
    exactly_once: bool = True
    checkpoints_after_finish: bool = True
    alignment_memory: int = 16 << 20  # bytes of blocked channels that are kept in memory; the rest is spilled
    alignment_soft: int = 64 << 20  # from this many spilled bytes on, the writer of a blocked channel is stopped
    alignment_limit: int = 1 << 30  # with more bytes in blocked channels the checkpoint is declined
    copies_dirs: tuple[str, ...] = ()  # where second copies of keyed state are (SPEC R7.7)
    write_copies: bool = False
    restore_from_copies: bool = False
    ttl_query_entries: int = 1000  # rows that a sweep for expired state checks between two looks at the clock
    ttl_compaction_ms: int = 0  # how often RocksDB compacts every file of a state with a time to live; 0: never
    without_channel_state: int = -1  # the checkpoint whose in-flight data is not restored (SPEC R5.11)
    committer_retries: int = 10
    staging: str | None = None  # where sinks may put files on the checkpoints' storage; known when the job runs
    epoch: int = 1  # of the driver, by the job log; known when the job runs
    final_checkpoint: bool = False  # whether a finished subtask waits for one more complete checkpoint (SPEC R4.5)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Identifies the subtask that a function runs in."""

    task_name: str
    operator_id: str
    subtask: int
    parallelism: int
    max_parallelism: int
    attempt: int
    job_id: str


@dataclass(frozen=True, slots=True)
class InputEdge:
    """An edge into a vertex, as its readers see it."""

    id: int
    input: int
    type: TypeInformation
    writers_of: tuple[tuple[int, ...], ...]  # for each reader, the writers that have a channel to it
    partitioning: Partitioning  # how records choose their target

    @property
    def ship(self) -> PartitioningKind:
        return self.partitioning.kind


@dataclass(frozen=True, slots=True)
class OutputEdge:
    """An edge out of a vertex, as its writers see it."""

    edge: Edge
    readers: int
    reader_max_parallelism: int
    first_destination: int  # task of the next level that takes rows for reader 0; the others follow


@dataclass(slots=True)
class VertexPlan:
    """What all subtasks of a vertex share."""

    vertex: Vertex
    inputs: list[InputEdge]
    outputs: list[OutputEdge]

    def task_info(self, subtask: int, attempt: int, job_id: str) -> TaskInfo:
        vertex = self.vertex
        return TaskInfo(
            vertex.name, vertex.head.id, subtask, vertex.parallelism, vertex.max_parallelism, attempt, job_id
        )


@dataclass(slots=True)
class JobPlan:
    name: str
    graph: JobGraph
    layout: Layout
    settings: Settings
    vertices: dict[VertexId, bytes]  # pickled VertexPlan of each vertex
    relays: dict[tuple[int, VertexId], int]  # (level, target vertex) -> task of the next level for reader 0

    def width(self, level: int) -> int:
        """Tasks in a level; 0 outside the job."""
        levels = self.layout.levels
        return len(levels[level]) if 0 <= level < len(levels) else 0

    def worker_of(self, vertex: VertexId, subtask: int) -> tuple[int, int]:
        """The level of a subtask and its index in the level."""
        return next(
            (level, index)
            for level, slots in enumerate(self.layout.levels)
            for index, slot in enumerate(slots)
            if slot.vertex == vertex and slot.subtask == subtask and not slot.relay
        )

    def task_name(self, level: int, index: int) -> str:
        """The vertex and number of a task, for messages."""
        slot = self.layout.levels[level][index]
        vertex = self.graph.vertices[slot.vertex]
        kind = "relay to " if slot.relay else ""
        return f"{kind}{vertex.name} ({slot.subtask + 1}/{vertex.parallelism})"


def make_plan(graph: JobGraph, layout: Layout, settings: Settings) -> JobPlan:
    """Pickle what each vertex needs; a GraphError names an operator that cannot be pickled."""
    vertices = {vertex.id: _pickle(_vertex_plan(graph, layout, vertex)) for vertex in graph.vertices}
    relays = {
        (level, slot.vertex): layout.index(level + 1, slot.vertex, 0)
        for level, slots in enumerate(layout.levels)
        for slot in slots
        if slot.relay
    }
    return JobPlan(graph.name, graph, layout, settings, vertices, relays)


def _vertex_plan(graph: JobGraph, layout: Layout, vertex: Vertex) -> VertexPlan:
    inputs = []
    for edge in graph.inputs(vertex.id):
        writers = graph.vertices[edge.source].parallelism
        channels = [edge.partitioning.writers(r, writers, vertex.parallelism) for r in range(vertex.parallelism)]
        inputs.append(InputEdge(edge.id, edge.input, edge.type, tuple(map(tuple, channels)), edge.partitioning))
    outputs = []
    for edge in graph.outputs(vertex.id):
        reader = graph.vertices[edge.target]
        first = layout.index(layout.level_of[vertex.id] + 1, edge.target, 0)
        outputs.append(OutputEdge(edge, reader.parallelism, reader.max_parallelism, first))
    return VertexPlan(vertex, inputs, outputs)


def _pickle(plan: VertexPlan) -> bytes:
    try:
        return cloudpickle.dumps(plan)  # type: ignore[no-any-return]
    except Exception as error:
        raise GraphError(_explain_pickling(plan, error)) from error


def _explain_pickling(plan: VertexPlan, error: Exception) -> str:
    suspects: list[tuple[ChainedOperator, str, Any]] = [
        (op, "the function", op.spec.function) for op in plan.vertex.operators
    ] + [(plan.vertex.operators[-1], "the key selector or partitioner", out.edge.partitioning) for out in plan.outputs]
    for operator, what, thing in suspects:
        try:
            cloudpickle.dumps(thing)
        except Exception as reason:
            return (
                f"{what} of operator '{operator.name}', defined at {operator.call_site}, cannot be sent to the workers: {reason}. "
                "It refers to something that cannot be pickled (a lock, a connection, a file, a SparkSession): "
                "make that in open() instead"
            )
    return f"vertex '{plan.vertex.name}' cannot be sent to the workers: {error}"
