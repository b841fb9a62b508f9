"""The metrics of jobs and subtasks under Flink's names (SPEC R10.3): for `/metrics` resources and Prometheus alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.api.watermarks import MAX_WATERMARK
from headrace.checkpoint.stats import StatsSnapshot, SubtaskStats
from headrace.driver.job import SparkJob
from headrace.driver.metrics_history import SubtaskMeasures
from headrace.driver.services import driver_time
from headrace.graph.job_graph import Vertex
from headrace.rest.checkpoint_documents import by_head

Document = dict[str, Any]

_COUNTERS = {
    "numRecordsIn": "records_in",
    "numRecordsOut": "records_out",
    "numBytesIn": "bytes_in",
    "numBytesOut": "bytes_out",
    "numRecordsInErrors": "corrupt_records",
    "numLateRecordsDropped": "late_records",
    "accumulateBusyTimeMs": "busy_ms",
    "accumulateBackPressuredTimeMs": "back_pressured_ms",
    "accumulateIdleTimeMs": "idle_ms",
}
_GAUGES = {
    "inputQueueBytes": "queued_bytes",
    "spilledBytes": "spilled_bytes",
    "residentBytes": "resident_bytes",
    "restoredBytes": "restored_bytes",
    "restoreBytes": "restore_bytes",
    "restoredLocallyBytes": "restored_locally",
}
_RATES = {
    "numRecordsInPerSecond": "records_in",
    "numRecordsOutPerSecond": "records_out",
    "numBytesInPerSecond": "bytes_in",
    "numBytesOutPerSecond": "bytes_out",
    "busyTimeMsPerSecond": "busy_ms",
    "backPressuredTimeMsPerSecond": "back_pressured_ms",
    "idleTimeMsPerSecond": "idle_ms",
}
COUNTERS = frozenset(_COUNTERS)
"""Metrics that only grow while an attempt runs."""


def subtask_metrics(measures: SubtaskMeasures, checkpointed: SubtaskStats | None) -> dict[str, float]:
    """Return the metrics of a subtask; `checkpointed` is its part of the newest completed checkpoint."""
    found: dict[str, float] = {name: getattr(measures.metrics, field) for name, field in (_COUNTERS | _GAUGES).items()}
    found |= {name: round(getattr(measures.rates, field), 3) for name, field in _RATES.items()}
    if (watermark := measures.metrics.watermark) is not None:
        found["currentInputWatermark"] = watermark
        found["watermarkLag"] = 0 if watermark == MAX_WATERMARK else driver_time() - watermark
    if checkpointed is not None:
        metrics = checkpointed.metrics
        found["checkpointStartDelayNanos"] = max(0, metrics.start_delay_ms) * 1_000_000
        found["checkpointAlignmentTime"] = max(0, metrics.alignment_ms) * 1_000_000
        found["checkpointSyncDuration"] = metrics.sync_ms
        found["checkpointAsyncDuration"] = metrics.async_ms
    return found


def newest_parts(stats: StatsSnapshot | None, vertex: Vertex) -> Mapping[int, SubtaskStats]:
    """Return the subtasks of a vertex at the newest completed checkpoint."""
    newest = None if stats is None else stats.latest.get("completed")
    of_vertex = None if newest is None else by_head(newest).get(str(vertex.head.id))
    return {} if of_vertex is None else of_vertex.subtasks


def vertex_metrics(job: SparkJob, vertex: Vertex, stats: StatsSnapshot | None) -> dict[int, dict[str, float]]:
    """Return the metrics of the subtasks of a vertex; those of operators begin with the operator's name."""
    parts = newest_parts(stats, vertex)
    found = {}
    for index, measures in job.subtasks().get(vertex.id, {}).items():
        mine = subtask_metrics(measures, parts.get(index))
        for operator in vertex.operators:
            of_operator = measures.metrics.operators.get(operator.id, {})
            mine |= {f"{operator.name}.{name}": value for name, value in of_operator.items()}
        found[index] = mine | measures.metrics.user
    return found


def selected(metrics: Mapping[str, object], get: str | None) -> list[Document]:
    """Return the names of metrics, or the values of those that `get` names; unknown ones are left out."""
    if get is None:
        return [{"id": name} for name in metrics]
    return [{"id": name, "value": str(metrics[name])} for name in get.split(",") if name in metrics]


def numbered(by_subtask: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """All metrics of a vertex, each with the number of its subtask before it, as in Flink."""
    return {f"{index}.{name}": value for index, mine in sorted(by_subtask.items()) for name, value in mine.items()}


_AGGREGATES = ("min", "max", "avg", "sum")


def aggregated(parts: Iterable[Mapping[str, float]], get: str | None, agg: str | None) -> list[Document]:
    """Each metric over some subtasks: least, greatest, mean and sum, or those of them that `agg` names."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    if get is None:
        return [{"id": name} for name in values]
    wanted = _AGGREGATES if agg is None else [one for one in _AGGREGATES if one in agg.lower().split(",")]
    return [
        {"id": name, **{how: _aggregate(how, values[name]) for how in wanted}}
        for name in get.split(",")
        if name in values
    ]


def _aggregate(how: str, values: Sequence[float]) -> float:
    match how:
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "sum":
            return sum(values)
        case _:
            return sum(values) / len(values)
