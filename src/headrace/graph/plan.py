"""The plan of a job: the graph, its layout in levels, settings, and what each vertex's subtasks need, pickled once.

Made on the driver; the pickled `VertexPlan` is loaded by every subtask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import cloudpickle

from headrace import config
from headrace.checkpoint.settings import stored_in_files
from headrace.config import Configuration, Option
from headrace.errors import GraphError
from headrace.graph.job_graph import ChainedOperator, Edge, JobGraph, Partitioning, PartitioningKind, Vertex
from headrace.graph.levels import Layout
from headrace.html_tables import html_table
from headrace.ids import VertexId
from headrace.records.types import TypeInformation


def _option(option: Option[Any]) -> Any:
    """A field that has the value of an option."""
    return field(metadata={"option": option})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the job that subtasks use."""

    buffer_size: int = _option(config.BUFFER_SIZE)
    buffer_timeout: int = _option(config.BUFFER_TIMEOUT)
    queue_size: int = _option(config.INPUT_QUEUE_SIZE)
    queue_ms: int = _option(config.INPUT_QUEUE_TIME)
    slice_ms: int = _option(config.SLICE_TARGET)
    max_unconfirmed: int = _option(config.COLLECT_MAX_UNCONFIRMED)
    watermark_interval: int = _option(config.AUTO_WATERMARK_INTERVAL)
    object_reuse: bool = _option(config.OBJECT_REUSE)
    state_backend: str = _option(config.STATE_BACKEND)
    tmp_dir: str | None = _option(config.IO_TMP_DIRS)
    rocksdb_memory: int = _option(config.ROCKSDB_MEMORY)
    rocksdb_cache: int | None = _option(config.ROCKSDB_CACHE)
    incremental: bool
    migrate_ttl: bool = _option(config.TTL_MIGRATION)
    exactly_once: bool
    checkpoints_after_finish: bool = _option(config.CHECKPOINT_AFTER_FINISH)
    alignment_memory: int = _option(config.ALIGNMENT_MEMORY)
    alignment_soft: int = _option(config.ALIGNMENT_SOFT)
    alignment_limit: int = _option(config.ALIGNMENT_LIMIT)
    copies_dirs: tuple[str, ...]  # where second copies of keyed state are (SPEC R7.7)
    write_copies: bool = _option(config.LOCAL_BACKUP)
    restore_from_copies: bool = _option(config.RECOVERY_FROM_LOCAL)
    ttl_query_entries: int = _option(config.ROCKSDB_TTL_QUERY_ENTRIES)
    ttl_compaction_ms: int = _option(config.ROCKSDB_TTL_COMPACTION)
    without_channel_state: int = _option(config.RECOVERY_WITHOUT_CHANNEL_STATE)
    committer_retries: int = _option(config.COMMITTER_RETRIES)
    job_parameters: Mapping[str, str]
    batch: bool = False  # running aggregations emit one result for each key, at the end
    staging: str | None = None  # where sinks may put files on the checkpoints' storage; known when the job runs
    epoch: int = 1  # of the driver, by the job log; known when the job runs
    final_checkpoint: bool  # whether a finished subtask waits for one more complete checkpoint (SPEC R4.5)

    @staticmethod
    def of(configuration: Configuration, final_checkpoint: bool, batch: bool = False) -> Settings:
        get = configuration.get
        copies = get(config.LOCAL_BACKUP_DIRS) or get(config.IO_TMP_DIRS) or ""
        return Settings(
            **{field.name: get(field.metadata["option"]) for field in fields(Settings) if field.metadata},
            incremental=get(config.CHECKPOINT_INCREMENTAL) and stored_in_files(configuration),
            exactly_once=get(config.CHECKPOINT_MODE) == "EXACTLY_ONCE",
            copies_dirs=tuple(part.strip() for part in copies.split(",") if part.strip()),
            final_checkpoint=final_checkpoint,
            job_parameters=config.read_map(get(config.JOB_PARAMETERS)),
            batch=batch,
        )


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
    """The part of the plan that all subtasks of a vertex share."""

    vertex: Vertex
    inputs: list[InputEdge]
    outputs: list[OutputEdge]

    def task_info(self, subtask: int, attempt: int, job_id: str) -> TaskInfo:
        vertex = self.vertex
        return TaskInfo(
            vertex.name, vertex.head.id, subtask, vertex.parallelism, vertex.max_parallelism, attempt, job_id
        )


@dataclass(frozen=True, slots=True)
class ShippedArchive:
    """An archive that a worker unpacks into its working directory before a task of this job runs."""

    file: str
    directory: str  # relative to the working directory
    importable: bool = False  # whether modules are found in it


@dataclass(slots=True)
class JobPlan:
    name: str
    graph: JobGraph
    layout: Layout
    settings: Settings
    vertices: dict[VertexId, bytes]  # pickled VertexPlan of each vertex
    relays: dict[tuple[int, VertexId], int]  # (level, target vertex) -> task of the next level for reader 0
    python_files: tuple[str, ...]  # archives of modules, for this job only
    archives: tuple[ShippedArchive, ...] = ()

    def _repr_html_(self) -> str:
        """Return the plan as HTML for a notebook."""
        return graph_html(self.graph, f"plan of '{self.name}': {self.layout.slots} task slots")

    def width(self, level: int) -> int:
        """Tasks in a level; 0 outside the job."""
        levels = self.layout.levels
        return len(levels[level]) if 0 <= level < len(levels) else 0

    def worker_of(self, vertex: VertexId, subtask: int) -> tuple[int, int]:
        """The level of a subtask and its index in the level."""
        level = self.layout.level_of[vertex]
        return level, self.layout.index(level, vertex, subtask)

    def workers_of(self, vertex: VertexId) -> list[tuple[int, int]]:
        """The same for all subtasks of a vertex, which follow on each other in their level."""
        level, first = self.worker_of(vertex, 0)
        return [(level, first + subtask) for subtask in range(self.graph.vertices[vertex].parallelism)]

    def task_name(self, level: int, index: int) -> str:
        """The vertex and number of a task, for messages."""
        slot = self.layout.levels[level][index]
        vertex = self.graph.vertices[slot.vertex]
        kind = "relay to " if slot.relay else ""
        return f"{kind}{vertex.name} ({slot.subtask + 1}/{vertex.parallelism})"


def graph_html(graph: JobGraph, title: str) -> str:
    """The vertices of a program as a table, for notebooks."""
    rows = []
    for vertex in graph.vertices:
        inputs = [f"{graph.vertices[edge.source].name} ({edge.partitioning.kind})" for edge in graph.inputs(vertex.id)]
        keyed = "" if not any(any(one.spec.keys) for one in vertex.operators) else "keyed"
        lines = [operator.call_site for operator in vertex.operators]
        rows.append([vertex.name, vertex.parallelism, keyed, "; ".join(inputs), "; ".join(lines)])
    return html_table(title, ["vertex", "parallelism", "state", "reads from", "made at"], rows)


def make_plan(
    graph: JobGraph,
    layout: Layout,
    settings: Settings,
    python_files: tuple[str, ...] = (),
    archives: tuple[ShippedArchive, ...] = (),
) -> JobPlan:
    """Pickle what each vertex needs; a GraphError names an operator that cannot be pickled."""
    vertices = {vertex.id: _pickle(_vertex_plan(graph, layout, vertex)) for vertex in graph.vertices}
    relays = {
        (level, slot.vertex): layout.index(level + 1, slot.vertex, 0)
        for level, slots in enumerate(layout.levels)
        for slot in slots
        if slot.relay
    }
    return JobPlan(graph.name, graph, layout, settings, vertices, relays, python_files, archives)


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
        raise GraphError("HR-1221", _explain_pickling(plan, error)) from error


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
