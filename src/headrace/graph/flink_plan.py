"""The plan of a program as Flink's plan visualizer reads it: one node for each operator, chained or not."""

from __future__ import annotations

import json
from typing import Any, Final

from headrace.graph.job_graph import Node, Partitioning, Pipeline, settled_nodes

_SINKS: Final = ("sink", "sink_to", "print", "collect")


def as_flink_json(pipeline: Pipeline, parallelism: int) -> str:
    """Nodes with their predecessors; there are no nulls, so that Python can read it, too.

    >>> as_flink_json(Pipeline(), 1)
    '{"nodes": []}'
    """
    return json.dumps({"nodes": [_node(*found) for found in settled_nodes(pipeline, parallelism)]})


def _node(node: Node, partitionings: list[Partitioning]) -> dict[str, Any]:
    kind = node.operator.kind
    pact, name = "Operator", node.name
    if kind == "source":
        pact, name = "Data Source", f"Source: {node.name}"
    elif kind in _SINKS:
        pact, name = "Data Sink", f"Sink: {node.name}"
    found: dict[str, Any] = {
        "id": node.id + 1,
        "type": name,
        "pact": pact,
        "contents": node.description or name,
        "parallelism": node.parallelism,
    }
    if node.slot_sharing_group is not None:
        found["slot_sharing_group"] = node.slot_sharing_group
    if node.inputs:
        found["predecessors"] = [
            {"id": one.node + 1, "ship_strategy": ship.kind.upper(), "side": "second" if one.input == 0 else "first"}
            for one, ship in zip(node.inputs, partitionings, strict=True)
        ]
    return found
