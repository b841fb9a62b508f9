"""REST documents of vertices and subtasks: states, counters, rates, back-pressure, watermarks, flame graphs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.api.watermarks import MAX_WATERMARK
from headrace.control.messages import Register, StackSample
from headrace.driver.job import SparkJob
from headrace.driver.metrics_history import SubtaskMeasures
from headrace.driver.services import driver_time
from headrace.graph.job_graph import Vertex
from headrace.job.job_events import Worker
from headrace.job.status import ExecutionState, JobStatus

Document = dict[str, Any]
Measures = Mapping[int, SubtaskMeasures]
"""Of the subtasks of a vertex, by number; those that have not reported yet are missing."""

_COUNTERS = {
    "read-bytes": "bytes_in",
    "write-bytes": "bytes_out",
    "read-records": "records_in",
    "write-records": "records_out",
    "accumulated-busy-time": "busy_ms",
    "accumulated-idle-time": "idle_ms",
    "accumulated-backpressured-time": "back_pressured_ms",
    "queued-bytes": "queued_bytes",
    "spilled-bytes": "spilled_bytes",
    "corrupt-records": "corrupt_records",
    "late-records": "late_records",
}
_RATES = {
    "read-records-per-second": "records_in",
    "write-records-per-second": "records_out",
    "read-bytes-per-second": "bytes_in",
    "write-bytes-per-second": "bytes_out",
}
_RATIOS = {"busy-ratio": "busy_ms", "backpressured-ratio": "back_pressured_ms", "idle-ratio": "idle_ms"}
# By severity: the state of a vertex is the first of these that one of its subtasks has, as in Flink.
_STATES = [ExecutionState[name] for name in ["FAILED", "CANCELING", "CANCELED", "INITIALIZING", "RUNNING"]]
_LOW, _HIGH = 0.1, 0.5  # of back-pressure, as in Flink


def vertex_id(vertex: Vertex) -> str:
    """Return the id of a vertex in REST: 32 hex digits, as in Flink."""
    return str(vertex.head.id)


# ---- states --------------------------------------------------------------------------------------------------------


def _states_of(job: SparkJob, vertex: Vertex) -> list[ExecutionState]:
    return [job.machine.task_state(worker) for worker in job.plan.workers_of(vertex.id)]


def _summary(states: Sequence[ExecutionState]) -> ExecutionState:
    if all(state is ExecutionState.FINISHED for state in states):
        return ExecutionState.FINISHED
    found = next((state for state in _STATES if state in states), None)
    return found or min(states, key=list(ExecutionState).index)


def _span(times: Iterable[Mapping[ExecutionState, int]], done: bool) -> Document:
    """From the first connection of a worker to the last end, or to now."""
    seen = list(times)
    starts = [min(one.values()) for one in seen if one]
    if not starts:
        return {"start-time": -1, "end-time": -1, "duration": -1}
    ends = [one[ExecutionState.FINISHED] for one in seen if ExecutionState.FINISHED in one]
    end = max(ends) if done and ends else -1
    return {"start-time": min(starts), "end-time": end, "duration": (end if end >= 0 else driver_time()) - min(starts)}


# ---- counters ------------------------------------------------------------------------------------------------------


def io_metrics(measures: Measures, subtasks: int) -> Document:
    """Counters, rates and ratios over these subtasks, of which there are this many."""
    all_here = len(measures) == subtasks
    found: Document = {
        name: sum(getattr(one.metrics, field) for one in measures.values()) for name, field in _COUNTERS.items()
    }
    found |= {f"{name}-complete": all_here for name in list(_COUNTERS)[:4]}
    found |= {
        name: round(sum(getattr(one.rates, field) for one in measures.values()), 3) for name, field in _RATES.items()
    }
    for name, field in _RATIOS.items():
        shares = [min(1.0, getattr(one.rates, field) / 1000) for one in measures.values()]
        found[name] = round(sum(shares) / len(shares), 4) if shares else 0.0
        if name != "idle-ratio":
            found[f"{name}-max"] = round(max(shares, default=0.0), 4)
    return found | _watermark([one.metrics.watermark for one in measures.values()])


def _watermark(clocks: Sequence[int | None]) -> Document:
    """The least clock of the subtasks, and by how much it is behind the time of day; None before the first watermark."""
    known = [clock for clock in clocks if clock is not None]
    if not known or len(known) < len(clocks):
        return {"current-watermark": None, "watermark-lag": None}
    lag = 0 if min(known) == MAX_WATERMARK else driver_time() - min(known)
    return {"current-watermark": min(known), "watermark-lag": lag}


# ---- vertices ------------------------------------------------------------------------------------------------------


def job_vertices(job: SparkJob) -> list[Document]:
    """Return the vertices of a job, sources first."""
    measures = job.subtasks()
    return [_job_vertex(job, vertex, measures.get(vertex.id, {})) for vertex in job.plan.graph.vertices]


def _job_vertex(job: SparkJob, vertex: Vertex, measures: Measures) -> Document:
    states = _states_of(job, vertex)
    counts = Counter(states)
    status = _summary(states)
    return {
        "id": vertex_id(vertex),
        "slotSharingGroupId": "0" * 32,
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": status.value,
        **_span(_times_of(job, vertex), status is ExecutionState.FINISHED),
        "tasks": {state.value: counts[state] for state in ExecutionState},
        "metrics": io_metrics(measures, vertex.parallelism),
        "spark-stage": job.spark_stage(vertex.id),
    }


def _times_of(job: SparkJob, vertex: Vertex) -> list[dict[ExecutionState, int]]:
    return [job.machine.task_times(worker) for worker in job.plan.workers_of(vertex.id)]


def subtask(job: SparkJob, vertex: Vertex, index: int, measures: Measures) -> Document:
    """One subtask in its present attempt."""
    return _subtask(job, index, job.plan.workers_of(vertex.id)[index], measures, job.workers())


def _subtask(
    job: SparkJob, index: int, worker: Worker, measures: Measures, workers: Mapping[Worker, Register]
) -> Document:
    state, times, host = job.machine.task_state(worker), job.machine.task_times(worker), _host(worker, workers)
    mine = {index: measures[index]} if index in measures else {}
    return {
        "subtask": index,
        "status": state.value,
        "attempt": job.machine.attempt,
        "endpoint": host,
        **_span([times], state is ExecutionState.FINISHED),
        "metrics": io_metrics(mine, 1),
        "taskmanager-id": host,
        "status-duration": _status_durations(times),
    }


def _status_durations(times: Mapping[ExecutionState, int]) -> Document:
    durations = dict.fromkeys((state.value for state in ExecutionState), -1)
    ordered = sorted(times.items(), key=lambda item: item[1])  # empty before its worker has connected
    for (state, at), after in zip(ordered, [*(at for _, at in ordered[1:]), driver_time()], strict=False):
        durations[state.value] = after - at
    return durations


def _host(worker: Worker, workers: Mapping[Worker, Register]) -> str:
    register = workers.get(worker)
    return "(unassigned)" if register is None else f"{register.host}:{register.pid}"


def vertex_details(job: SparkJob, vertex: Vertex) -> Document:
    """Return a vertex with its subtasks, and how its counters are spread over them."""
    measures = job.subtasks().get(vertex.id, {})
    workers = job.workers()
    places = enumerate(job.plan.workers_of(vertex.id))
    subtasks = [_subtask(job, index, worker, measures, workers) for index, worker in places]
    numbers = [name for name, value in subtasks[0]["metrics"].items() if type(value) in (int, float)]
    return {
        "id": vertex_id(vertex),
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "now": driver_time(),
        "subtasks": subtasks,
        "aggregated": {
            "metrics": {name: _spread([one["metrics"][name] for one in subtasks]) for name in numbers},
            "status-duration": {
                state.value: _spread([one["status-duration"][state.value] for one in subtasks])
                for state in ExecutionState
            },
        },
    }


def _spread(values: Sequence[float | None]) -> Document:
    known = [value for value in values if value is not None]
    return {
        "min": min(known),
        "max": max(known),
        "avg": sum(known) / len(known),
        "sum": sum(known),
        "median": statistics.median(known),
    }


def subtask_times(job: SparkJob, vertex: Vertex) -> Document:
    """Return the time at which each subtask entered each of its states."""
    subtasks, workers = [], job.workers()
    for index, worker in enumerate(job.plan.workers_of(vertex.id)):
        times = job.machine.task_times(worker)
        span = _span([times], ExecutionState.FINISHED in times)
        subtasks.append(
            {
                "subtask": index,
                "endpoint": _host(worker, workers),
                "duration": span["duration"],
                "timestamps": {state.value: times.get(state, 0) for state in ExecutionState},
            }
        )
    return {"id": vertex_id(vertex), "name": vertex.name, "now": driver_time(), "subtasks": subtasks}


def hosts(job: SparkJob, vertex: Vertex) -> Document:
    """Return the subtasks of a vertex by the host that runs them."""
    measures = job.subtasks().get(vertex.id, {})
    by_host: dict[str, list[int]] = {}
    workers, places = job.workers(), job.plan.workers_of(vertex.id)
    for index, worker in enumerate(places):
        register = workers.get(worker)
        by_host.setdefault("(unassigned)" if register is None else register.host, []).append(index)
    found = []
    for host, numbers in by_host.items():
        of_host = [places[index] for index in numbers]
        states = [job.machine.task_state(worker) for worker in of_host]
        counts, times = Counter(states), [job.machine.task_times(worker) for worker in of_host]
        found.append(
            {
                "endpoint": host,
                "taskmanager-id": host,
                "status": _summary(states).value,
                **_span(times, _summary(states) is ExecutionState.FINISHED),
                "metrics": io_metrics({i: measures[i] for i in numbers if i in measures}, len(numbers)),
                "status-counts": {state.value: counts[state] for state in ExecutionState},
            }
        )
    return {"id": vertex_id(vertex), "name": vertex.name, "now": driver_time(), "taskmanagers": found}


# ---- back-pressure and time ----------------------------------------------------------------------------------------


def back_pressure(job: SparkJob, vertex: Vertex) -> Document:
    """Return the shares of the last seconds in which each subtask was back-pressured, busy and idle."""
    measures = job.subtasks().get(vertex.id, {})
    subtasks = []
    for index, one in sorted(measures.items()):
        ratios = [round(min(1.0, getattr(one.rates, field) / 1000), 4) for field in _RATIOS.values()]
        busy, ratio, idle = ratios
        subtasks.append(
            {
                "subtask": index,
                "attempt-number": job.machine.attempt,
                "backpressureLevel": _level(ratio),
                "ratio": ratio,
                "idleRatio": idle,
                "busyRatio": busy,
            }
        )
    worst = max((one["ratio"] for one in subtasks), default=0.0)
    status = "ok" if subtasks and job.status is not JobStatus.CREATED else "deprecated"
    return {"status": status, "backpressureLevel": _level(worst), "end-timestamp": driver_time(), "subtasks": subtasks}


def _level(ratio: float) -> str:
    return "ok" if ratio <= _LOW else "low" if ratio <= _HIGH else "high"


def watermarks(job: SparkJob, vertex: Vertex) -> list[Document]:
    """The event-time clock of each subtask, when all have reported; those whose clock has not moved yet are left out."""
    measures = job.subtasks().get(vertex.id, {})
    return [
        {"id": f"{index}.currentInputWatermark", "value": str(one.metrics.watermark)}
        for index, one in sorted(measures.items())
        if one.metrics.watermark is not None and len(measures) == vertex.parallelism
    ]


# ---- flame graphs --------------------------------------------------------------------------------------------------


def flame_graph(samples: Iterable[StackSample], kind: str) -> Document:
    """Return the stacks as a tree; a node's value is how often it was seen."""
    root: Document = {"name": "root", "value": 0, "children": {}}
    for sample in samples:
        stacks: Counter[str] = Counter()
        if kind != "OFF_CPU":
            stacks.update(sample.on_cpu)
        if kind != "ON_CPU":
            stacks.update(sample.off_cpu)
        for stack, count in stacks.items():
            node = root
            node["value"] += count
            for frame in stack.split("\n"):
                node = node["children"].setdefault(frame, {"name": frame, "value": 0, "children": {}})
                node["value"] += count
    return {"endTimestamp": driver_time(), "data": _listed(root)}


def _listed(node: Document) -> Document:
    return {**node, "children": [_listed(child) for child in node["children"].values()]}
