"""`/metrics/prometheus`: the metrics of all jobs in Prometheus' text format.

What Flink has too carries the name that Flink's reporter gives it, so that dashboards for Flink work; the rest begins with
`headrace_`. `deploy/` has a Grafana dashboard and alert rules made of these names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.checkpoint.stats import StatsSnapshot
from headrace.driver.job import SparkJob
from headrace.driver.services import driver_time
from headrace.graph.job_graph import Vertex
from headrace.job.status import JobStatus
from headrace.rest.metric_documents import COUNTERS, newest_parts, subtask_metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JOB, _TASK, _OPERATOR = "flink_jobmanager_job_", "flink_taskmanager_job_task_", "flink_taskmanager_job_task_operator_"
_OURS = frozenset(
    [
        "inputQueueBytes",
        "spilledBytes",
        "residentBytes",
        "restoredBytes",
        "restoreBytes",
        "restoredLocallyBytes",
        "watermarkLag",
        "checkpointSyncDuration",
        "checkpointAsyncDuration",
    ]
)
_COMMITS = {
    "commits": "headrace_sink_commits",
    "commitTime": "headrace_sink_commit_milliseconds",
    "lastCommitTime": "headrace_sink_last_commit_milliseconds",
}
_HELP = {
    "flink_jobmanager_job_numRestarts": "Restarts of the job, rescales not counted.",
    "flink_jobmanager_job_uptime": "Milliseconds since all subtasks run without interruption; -1 while they do not.",
    "headrace_job_status": "1 for the present status of the job, 0 for the others.",
    "headrace_task_watermarkLag": "Milliseconds by which the event-time clock is behind the time of day.",
    "headrace_sink_commit_milliseconds": "Time spent in commits.",
    "headrace_checkpoint_chain_length": "Checkpoints that a restore of the newest one needs files of.",
    "headrace_checkpoint_shared_files": "Shared files that the newest completed checkpoint uses.",
    "headrace_checkpoint_duration_milliseconds": "Parts of the newest completed checkpoint, the longest of its subtasks.",
}


@dataclass(slots=True)
class _Family:
    kind: str
    samples: dict[str, str] = field(default_factory=dict)  # labels -> value


class _Exposition:
    """The families of metrics in the order in which they come; one family's lines must stand together."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(self, name: str, labels: Mapping[str, str], value: float, *, counter: bool = False) -> None:
        name = _metric_name(name)
        family = self._families.setdefault(name, _Family("counter" if counter else "gauge"))
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        # Names that differ in other characters only, such as `a.b` and `a_b`, become one: the first of them is told.
        family.samples.setdefault(shown, _value(value))

    def text(self) -> str:
        lines = []
        for name, family in self._families.items():
            if name in _HELP:
                lines.append(f"# HELP {name} {_HELP[name]}")
            lines.append(f"# TYPE {name} {family.kind}")
            lines += [f"{name}{{{labels}}} {value}" for labels, value in family.samples.items()]
        return "\n".join(lines) + "\n" if lines else ""


def _metric_name(name: str) -> str:
    """Return a name that Prometheus accepts; other characters become underscores, as in Flink's reporter.

    >>> _metric_name("rocksdb.block-cache-usage")
    'rocksdb_block_cache_usage'
    """
    return re.sub(r"[^a-zA-Z0-9_:]", "_", name)


def _value(value: float) -> str:
    """Return a number without loss: a counter that grows by less than it shows would have no rate.

    >>> [_value(one) for one in (12345678901.0, 0.1, float("nan"), float("-inf"))]
    ['12345678901', '0.1', 'NaN', '-Inf']
    """
    if value != value:  # noqa: PLR0124 - NaN
        return "NaN"
    if abs(value) == float("inf"):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 63 else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def exposition(jobs: Iterable[tuple[SparkJob, StatsSnapshot | None]]) -> str:
    """Return the metrics of these jobs; of a job that has ended only its status."""
    out = _Exposition()
    for job, stats in jobs:
        labels = {"job_id": job.job_id, "job_name": job.plan.name}
        for status in JobStatus:
            out.add("headrace_job_status", {**labels, "status": status.value}, int(job.status is status))
        out.add(f"{_JOB}numRestarts", labels, job.restarts, counter=True)
        if job.status.is_terminal:
            continue
        out.add(f"{_JOB}uptime", labels, _uptime(job))
        if stats is not None and job.stats is not None:
            _add_checkpoints(out, job, stats, labels)
        _add_tasks(out, job, stats, labels)
        for operator_id, figures in job.commit_figures().items():
            name = next((op.name for v in job.plan.graph.vertices for op in v.operators if op.id == operator_id), "")
            _add_commits(
                out, {**labels, "operator_id": operator_id, "operator_name": name, "subtask_index": ""}, figures
            )
    return out.text()


def _uptime(job: SparkJob) -> int:
    attempts = job.machine.story.attempts
    running = attempts[-1].running if attempts else None
    if running is None or job.status is not JobStatus.RUNNING:
        return -1
    return max(0, driver_time() - running)


def _add_checkpoints(out: _Exposition, job: SparkJob, stats: StatsSnapshot, labels: Mapping[str, str]) -> None:
    assert job.stats is not None
    for name, value in job.stats.gauges().items():
        if not isinstance(value, str):
            out.add(_JOB + name, labels, value)
    newest = stats.latest.get("completed")
    if newest is None:
        return
    out.add("headrace_checkpoint_chain_length", labels, newest.chain_length)
    out.add("headrace_checkpoint_objects_written", labels, newest.totals.objects_written)
    for operator, files in newest.shared_files.items():
        out.add("headrace_checkpoint_shared_files", {**labels, "operator_id": operator}, files)
    subtasks = [subtask.metrics for vertex in newest.vertices.values() for subtask in vertex.subtasks.values()]
    for part in ("start_delay", "alignment", "sync", "async"):
        longest = max((getattr(one, f"{part}_ms") for one in subtasks), default=0)
        out.add("headrace_checkpoint_duration_milliseconds", {**labels, "part": part}, max(0, longest))


def _add_tasks(out: _Exposition, job: SparkJob, stats: StatsSnapshot | None, labels: Mapping[str, str]) -> None:
    workers, measured = job.workers(), job.subtasks()
    for vertex in job.plan.graph.vertices:
        parts, places = newest_parts(stats, vertex), job.plan.workers_of(vertex.id)
        for index, measures in measured.get(vertex.id, {}).items():
            register = workers.get(places[index])
            mine = {
                **labels,
                "task_id": str(vertex.head.id),
                "task_name": vertex.name,
                "subtask_index": str(index),
                "host": "" if register is None else register.host,
                "tm_id": "" if register is None else f"{register.host}:{register.pid}",
            }
            for name, value in subtask_metrics(measures, parts.get(index)).items():
                full = f"headrace_task_{name}" if name in _OURS else _TASK + name
                out.add(full, mine, value, counter=name in COUNTERS)
            _add_operators(out, vertex, measures.metrics.operators, measures.metrics.user, mine)


def _add_operators(
    out: _Exposition,
    vertex: Vertex,
    figures: Mapping[str, Mapping[str, float]],
    user: Mapping[str, float],
    labels: Mapping[str, str],
) -> None:
    for operator in vertex.operators:
        mine = {**labels, "operator_id": str(operator.id), "operator_name": operator.name}
        of_operator = figures.get(operator.id, {})
        _add_commits(out, mine, of_operator)
        for name, value in of_operator.items():
            if name not in _COMMITS:
                out.add(_OPERATOR + name, mine, value, counter=name.startswith("num") and "rocksdb" not in name)
    for name, value in user.items():
        # `operator.group.name`; names of operators may have points too.
        owners = [one for one in vertex.operators if name.startswith(f"{one.name}.")]
        owner = max(owners, key=lambda one: len(one.name), default=None)
        own = "" if owner is None else f"{owner.name}."
        mine = {**labels} if owner is None else {**labels, "operator_id": str(owner.id), "operator_name": owner.name}
        out.add(_OPERATOR + name.removeprefix(own), mine, value)


def _add_commits(out: _Exposition, labels: Mapping[str, str], figures: Mapping[str, float]) -> None:
    for name, full in _COMMITS.items():
        if name in figures:
            out.add(full, labels, figures[name], counter=name != "lastCommitTime")
