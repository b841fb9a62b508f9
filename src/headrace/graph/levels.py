"""Levels: the job graph laid out as one linear chain of Spark stages.

A stage can read pipelined input only one-to-one, so every subtask of every vertex of a level is a task of one stage,
and an edge that skips levels goes through relays: tasks that forward rows unchanged. There is one relay for each subtask
of the target, so each channel uses one relay and keeps its order. Runs on the driver.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headrace.graph.job_graph import ChainedOperator, Edge, JobGraph
from headrace.ids import VertexId


@dataclass(frozen=True, slots=True)
class Slot:
    """One task of a level: a subtask of a vertex, or a relay towards one."""

    vertex: VertexId
    subtask: int
    relay: bool = False


@dataclass(slots=True)
class Layout:
    """The tasks of each level."""

    levels: list[list[Slot]]
    level_of: dict[VertexId, int]

    @property
    def slots(self) -> int:
        """The number of task slots that the job needs."""
        return sum(len(level) for level in self.levels)

    def index(self, level: int, vertex: VertexId, subtask: int) -> int:
        """The task in `level` that receives rows for a subtask: the subtask itself, or its relay there."""
        return self.levels[level].index(Slot(vertex, subtask, relay=self.level_of[vertex] != level))


def lay_out(graph: JobGraph) -> Layout:
    """Place each vertex one level below its deepest input, and sources just above their first consumer.

    >>> from headrace.graph.job_graph import JobGraph
    >>> lay_out(JobGraph("empty", [], [])).slots
    0
    """
    level_of = _depths(graph)
    height = max(level_of.values(), default=-1) + 1
    levels: list[list[Slot]] = [[] for _ in range(height)]
    for vertex in graph.vertices:
        levels[level_of[vertex.id]] += [Slot(vertex.id, i) for i in range(vertex.parallelism)]
    for level, target in sorted({pair for edge in graph.edges for pair in _skipped(edge, level_of)}):
        levels[level] += [Slot(target, i, relay=True) for i in range(graph.vertices[target].parallelism)]
    return Layout(levels, level_of)


def _depths(graph: JobGraph) -> dict[VertexId, int]:
    depth: dict[VertexId, int] = {}
    for vertex in graph.vertices:  # in topological order
        depth[vertex.id] = 1 + max((depth[edge.source] for edge in graph.inputs(vertex.id)), default=-1)
    for vertex in graph.vertices:
        consumers = [depth[edge.target] for edge in graph.outputs(vertex.id)]
        if vertex.is_source and consumers:
            depth[vertex.id] = min(consumers) - 1
    return depth


def _skipped(edge: Edge, level_of: dict[VertexId, int]) -> list[tuple[int, VertexId]]:
    return [(level, edge.target) for level in range(level_of[edge.source] + 1, level_of[edge.target])]


def describe(graph: JobGraph, layout: Layout) -> str:
    """The plan as a text tree: levels, vertices with their chains, edges, slots."""
    lines = [f"{graph.name}: {len(graph.vertices)} vertices, {len(layout.levels)} levels, {layout.slots} slots"]
    for number, level in enumerate(layout.levels):
        lines.append(f"level {number} ({len(level)} slots)")
        for vertex in graph.vertices:
            if layout.level_of[vertex.id] == number:
                lines.append(f"  [{vertex.id}] {vertex.name}  x{vertex.parallelism}")
                for edge in graph.outputs(vertex.id):
                    side = f" side output '{edge.tag}'" if edge.tag else ""
                    target = graph.vertices[edge.target]
                    lines.append(f"        --{edge.partitioning.kind}{side}--> [{edge.target}] {target.head.name}")
        relays = {slot.vertex for slot in level if slot.relay}
        lines += [f"  relay to [{v}]  x{graph.vertices[v].parallelism}" for v in sorted(relays)]
    return "\n".join(lines)


def as_json(graph: JobGraph, layout: Layout) -> str:
    """The plan for tools: vertices with their chains, edges, levels, slots."""
    vertices = [
        _named(vertex, "id", "name", "parallelism", "max_parallelism")
        | {"level": layout.level_of[vertex.id], "operators": [_operator(operator) for operator in vertex.operators]}
        for vertex in graph.vertices
    ]
    edges = [
        _named(edge, "id", "source", "target", "input")
        | {"ship": edge.partitioning.kind, "type": str(edge.type), "side_output": edge.tag}
        for edge in graph.edges
    ]
    return json.dumps({"name": graph.name, "slots": layout.slots, "vertices": vertices, "edges": edges}, indent=2)


def _operator(operator: ChainedOperator) -> dict[str, Any]:
    values = {"kind": operator.spec.kind, "type": str(operator.type), "defined_at": operator.call_site}
    return _named(operator, "id", "name", "uid", "description") | values


def _named(thing: object, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}
