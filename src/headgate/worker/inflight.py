"""In-flight data of an unaligned checkpoint, shared out when the parallelism has changed (SPEC R6.7)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headgate.api.functions import callable_of
from headgate.checkpoint.assignment import assign_inflight, check_inflight_chain, edge_mapping
from headgate.errors import IllegalState
from headgate.graph.plan import InputEdge, VertexPlan
from headgate.records.batch import Batch
from headgate.records.frames import STAMPED, Kind
from headgate.records.key_groups import key_group_range
from headgate.worker.backlog import CapturedFrame
from headgate.worker.inputs import decode
from headgate.worker.keys import KeyReader

__all__ = ["share_of"]

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Keep = Callable[[Batch], Mask]


def share_of(
    plan: VertexPlan, subtask: int, stored: Mapping[str, Sequence[Sequence[CapturedFrame]]]
) -> tuple[CapturedFrame, ...]:
    """The frames that one new subtask processes first; `stored` has those of every old subtask, by operator.

    A frame that several new subtasks read is cut down to the records that are theirs: it must stay cut when another
    checkpoint stores it again.
    """
    vertex = plan.vertex
    check_inflight_chain(vertex.name, vertex.head.id, [op for op, old in stored.items() if any(old)])
    frames: list[CapturedFrame] = []
    for old in stored.values():
        by_edge = sorted({frame.edge for one in old for frame in one})
        for edge_id in by_edge:
            edge = _edge(plan, edge_id)
            shares = assign_inflight(edge_mapping(edge.ship), len(old), vertex.parallelism, vertex.max_parallelism)
            for part in shares[subtask]:
                own = [frame for frame in old[part.subtask] if frame.edge == edge_id]
                frames += _filtered(own, edge, _keep(plan, edge, subtask)) if part.filtered else own
    return tuple(frames)


def _edge(plan: VertexPlan, edge_id: int) -> InputEdge:
    for edge in plan.inputs:
        if edge.id == edge_id:
            return edge
    raise IllegalState(
        f"the checkpoint has in-flight data of edge {edge_id} in front of '{plan.vertex.name}', which the program does not have "
        "any more: the shape of the job has changed; restore from a savepoint, which has no in-flight data"
    )


def _keep(plan: VertexPlan, edge: InputEdge, subtask: int) -> Keep:
    """Which records of an edge belong to a subtask."""
    vertex, key = plan.vertex, edge.partitioning.key
    assert key is not None, "only edges with a key are filtered"
    keys = KeyReader(key, vertex.max_parallelism)
    if edge.ship == "hash":
        own = key_group_range(subtask, vertex.max_parallelism, vertex.parallelism)

        def in_range(batch: Batch) -> Mask:
            groups = keys.groups(batch)
            return (groups >= own.start) & (groups <= own.end)

        return in_range
    choose = callable_of(edge.partitioning.partitioner, "partition", "partition_custom()")
    return lambda batch: np.array([choose(key, vertex.parallelism) == subtask for key in keys.keys(batch)], bool)


def _filtered(frames: Iterable[CapturedFrame], edge: InputEdge, keep: Keep) -> list[CapturedFrame]:
    kept = []
    for frame in frames:
        batch = decode(frame, edge.type)
        batch = batch.slice(frame.skip, len(batch) - frame.skip)
        chosen = np.flatnonzero(keep(batch)) if len(batch) else np.array([], np.int64)
        if len(chosen):
            kept.append(_encoded(frame, batch.select(chosen)))
    return kept


def _encoded(frame: CapturedFrame, batch: Batch) -> CapturedFrame:
    body = batch.arrow().serialize().to_pybytes() if frame.kind == Kind.ARROW else pickle.dumps(batch.rows(), 5)
    if frame.flags & STAMPED:
        assert batch.timestamps is not None
        body = len(batch).to_bytes(8, "little") + batch.timestamps.tobytes() + body
    return CapturedFrame(frame.edge, frame.writer, frame.kind, frame.flags, 0, body)
