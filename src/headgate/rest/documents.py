"""The documents that REST returns: Flink's field names, filled from the job (SPEC R10.1, R10.2)."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from msgspec.structs import asdict as to_document

from headgate import config
from headgate.checkpoint.settings import FullCheckpointPolicy, stored_in_files
from headgate.checkpoint.stats import CheckpointStats, StatsSnapshot, SummaryStatistics, Totals, VertexStats
from headgate.config import Configuration
from headgate.driver.job import SparkJob
from headgate.graph.job_graph import Vertex

Document = dict[str, Any]
_LATEST = ("completed", "savepoint", "failed")
_NONE = to_document(SummaryStatistics())


def vertex_id(vertex: Vertex) -> str:
    """What a vertex is called here: 32 hex digits, as in Flink."""
    return str(vertex.head.id)


# ---- jobs ----------------------------------------------------------------------------------------------------------


def job_overview(job: SparkJob) -> Document:
    """One line of the list of jobs."""
    begun, ended = job.begun_ms, job.ended_ms
    now = time.time_ns() // 1_000_000
    return {
        "jid": job.job_id,
        "name": job.plan.name,
        "state": job.status.value,
        "start-time": begun,
        "end-time": ended if ended is not None else -1,
        "duration": (ended if ended is not None else now) - begun,
        "last-modification": ended if ended is not None else begun,
        "restarts": job.restarts,
        "tasks": _task_counts(job),
    }


def _task_counts(job: SparkJob) -> Document:
    total = sum(vertex.parallelism for vertex in job.plan.graph.vertices)
    seen = sum(map(len, job.metrics_by_vertex().values()))
    return {"total": total, "running": 0 if job.status.is_terminal else min(total, seen)}


_METRICS = {
    "read-records": "records_in",
    "corrupt-records": "corrupt_records",
    "write-records": "records_out",
    "read-bytes": "bytes_in",
    "write-bytes": "bytes_out",
    "accumulated-busy-time": "busy_ms",
    "accumulated-backpressured-time": "back_pressured_ms",
    "accumulated-idle-time": "idle_ms",
}


def job_details(job: SparkJob) -> Document:
    """A job with its vertices."""
    metrics = job.metrics_by_vertex()
    vertices = [
        {
            "id": vertex_id(vertex),
            "name": vertex.name,
            "parallelism": vertex.parallelism,
            "maxParallelism": vertex.max_parallelism,
            "status": job.status.value,
            "metrics": {
                name: sum(getattr(one, field) for one in metrics.get(vertex.id, ())) for name, field in _METRICS.items()
            },
        }
        for vertex in job.plan.graph.vertices
    ]
    return {
        **job_overview(job),
        "isStoppable": True,
        "maxParallelism": max(vertex.max_parallelism for vertex in job.plan.graph.vertices),
        "vertices": vertices,
        "failures": list(job.failure_log),
    }


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def checkpoints(stats: StatsSnapshot) -> Document:
    """All that is remembered of a job's checkpoints."""
    latest = {kind: _one(stats.latest[kind]) if kind in stats.latest else None for kind in _LATEST}
    return {
        "counts": asdict(stats.counts),
        "summary": {"alignment_buffered": _NONE, **{name: to_document(one) for name, one in stats.summary.items()}},
        "latest": {**latest, "restored": stats.restored and to_document(stats.restored)},
        "history": [_one(one) for one in stats.history],
    }


def _one(stats: CheckpointStats) -> Document:
    totals = stats.totals
    unaligned = totals.unaligned and not stats.is_savepoint
    document: Document = {
        "className": stats.status.value.lower(),
        "status": stats.status.value,
        "savepointFormat": stats.savepoint_format,
        "alignment_buffered": 0,
        "checkpoint_type": "UNALIGNED_CHECKPOINT" if unaligned else stats.checkpoint_type,
        "tasks": {},
        **_fields(stats, "id is_savepoint trigger_timestamp trigger full full_reason chain_length"),
        "shared_files": sum(stats.shared_files.values()),
        "shared_files_by_operator": stats.shared_files,
        **to_document(totals),
    }
    if stats.failure_timestamp is not None:
        document |= _fields(stats, "failure_timestamp failure_message failure_reason")
    elif stats.completed_timestamp is not None:
        document |= _fields(stats, "external_path discarded")
    return document


def _fields(source: object, names: str) -> Document:
    """Fields whose names are the same here and in REST."""
    return {name: getattr(source, name) for name in names.split()}


def checkpoint_details(stats: CheckpointStats, names: dict[Any, str]) -> Document:
    """One checkpoint with its vertices; `names` are their ids here."""
    tasks = {names[id]: _task(stats, vertex, names[id]) for id, vertex in stats.vertices.items()}
    return {**_one(stats), "tasks": tasks}


def _task(stats: CheckpointStats, vertex: VertexStats, name: str) -> Document:
    totals = Totals.of([vertex], stats.trigger_timestamp)
    return {"id": name, "status": stats.status.value, "alignment_buffered": 0, **to_document(totals)}


def subtask_details(stats: CheckpointStats, vertex: VertexStats, name: str) -> Document:
    """One checkpoint at one vertex, subtask by subtask."""
    summary = {name: to_document(one) for name, one in vertex.summary(stats.trigger_timestamp).items()}
    return {
        **_task(stats, vertex, name),
        "summary": _measurements(summary, "checkpoint_duration", buffered=_NONE),
        "subtasks": [_subtask(stats, vertex, index) for index in range(vertex.parallelism)],
    }


def _subtask(stats: CheckpointStats, vertex: VertexStats, index: int) -> Document:
    if index not in vertex.subtasks:
        return {"index": index, "status": "pending_or_failed"}
    subtask = vertex.subtasks[index]
    duration = max(0, subtask.ack_timestamp - stats.trigger_timestamp)
    return {
        "index": index,
        "status": "completed" if subtask.completed else "pending_or_failed",
        "ack_timestamp": subtask.ack_timestamp,
        **_measurements({**to_document(subtask.metrics), "end_to_end_duration": duration}, "checkpoint", buffered=0),
        "unaligned_checkpoint": subtask.metrics.unaligned,
        "aborted": not subtask.completed,
    }


def _measurements(of: Document, durations: str, buffered: object) -> Document:
    """The measurements of a subtask, or their summaries, as Flink groups them."""
    return {
        **{name: of[name] for name in ("checkpointed_size", "state_size", "end_to_end_duration")},
        durations: {"sync": of["sync_ms"], "async": of["async_ms"]},
        "alignment": {
            "buffered": buffered,
            "processed": of["processed_bytes"],
            "persisted": of["persisted_bytes"],
            "duration": of["alignment_ms"],
        },
        "start_delay": of["start_delay_ms"],
    }


def checkpoint_config(conf: Configuration) -> Document:
    """How a job takes checkpoints."""
    retention = conf.get(config.CHECKPOINT_RETENTION)
    in_files = stored_in_files(conf)
    return {
        "mode": conf.get(config.CHECKPOINT_MODE).lower(),
        "interval": conf.get(config.CHECKPOINT_INTERVAL) or 0,
        "timeout": conf.get(config.CHECKPOINT_TIMEOUT),
        "min_pause": conf.get(config.CHECKPOINT_MIN_PAUSE),
        "max_concurrent": conf.get(config.CHECKPOINT_MAX_CONCURRENT),
        "externalization": {
            "enabled": retention != "NO_EXTERNALIZED_CHECKPOINTS",
            "delete_on_cancellation": retention != "RETAIN_ON_CANCELLATION",
        },
        "state_backend": conf.get(config.STATE_BACKEND),
        "checkpoint_storage": "filesystem" if in_files else "jobmanager",
        "checkpoint_directory": conf.get(config.CHECKPOINT_DIR),
        "incremental": conf.get(config.CHECKPOINT_INCREMENTAL) and in_files,
        "unaligned_checkpoints": conf.get(config.UNALIGNED),
        "tolerable_failed_checkpoints": conf.get(config.CHECKPOINT_TOLERABLE_FAILURES),
        "aligned_checkpoint_timeout": conf.get(config.ALIGNED_TIMEOUT),
        "checkpoints_after_tasks_finish": conf.get(config.CHECKPOINT_AFTER_FINISH),
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "",
        "full_checkpoint": {
            **asdict(FullCheckpointPolicy.from_configuration(conf)),
            "cron": conf.get(config.FULL_CRON),
        },
    }


# ---- operations ----------------------------------------------------------------------------------------------------


def operation(future: Future[Any], result_name: str, failure_name: str) -> Document:
    """The state of an operation: its result or why it failed, once it is done."""
    if not future.done():
        return {"status": {"id": "IN_PROGRESS"}, "operation": None}
    error = future.exception()
    if error is None:
        result = future.result()
        return {"status": {"id": "COMPLETED"}, "operation": {} if result is None else {result_name: result}}
    cause = {"class": type(error).__name__, "stack-trace": str(error)}
    return {"status": {"id": "COMPLETED"}, "operation": {failure_name: cause}}
