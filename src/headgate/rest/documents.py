"""The answers of the REST interface: Flink's field names, filled from the job (SPEC R10.1, R10.2)."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from headgate import config
from headgate.checkpoint.stats import CheckpointStats, StatsSnapshot, SubtaskStats, SummaryStatistics, VertexStats
from headgate.config import Configuration
from headgate.driver.job import SparkJob
from headgate.graph.job_graph import Vertex

__all__ = [
    "checkpoint_config",
    "checkpoint_details",
    "checkpoints",
    "job_details",
    "job_overview",
    "operation",
    "subtask_details",
    "vertex_id",
]

Document = dict[str, Any]


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
    seen = len(job.metrics())
    return {"total": total, "running": min(total, seen) if not job.status.is_terminal else 0}


def job_details(job: SparkJob) -> Document:
    """A job with its vertices."""
    metrics = job.metrics()
    vertices = []
    for vertex in job.plan.graph.vertices:
        mine = [
            metrics[level, index]
            for level, slots in enumerate(job.plan.layout.levels)
            for index, slot in enumerate(slots)
            if slot.vertex == vertex.id and not slot.relay and (level, index) in metrics
        ]
        vertices.append(
            {
                "id": vertex_id(vertex),
                "name": vertex.name,
                "parallelism": vertex.parallelism,
                "maxParallelism": vertex.max_parallelism,
                "status": job.status.value,
                "metrics": {
                    "read-records": sum(one.records_in for one in mine),
                    "corrupt-records": sum(one.corrupt_records for one in mine),
                    "write-records": sum(one.records_out for one in mine),
                    "read-bytes": sum(one.bytes_in for one in mine),
                    "write-bytes": sum(one.bytes_out for one in mine),
                    "accumulated-busy-time": sum(one.busy_ms for one in mine),
                    "accumulated-backpressured-time": sum(one.back_pressured_ms for one in mine),
                    "accumulated-idle-time": sum(one.idle_ms for one in mine),
                },
            }
        )
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
    counts, restored = stats.counts, stats.restored
    return {
        "counts": {
            "restored": counts.restored,
            "total": counts.total,
            "in_progress": counts.in_progress,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "summary": {
            "checkpointed_size": _figures(stats.summary["checkpointed_size"]),
            "state_size": _figures(stats.summary["state_size"]),
            "end_to_end_duration": _figures(stats.summary["end_to_end_duration"]),
            "alignment_buffered": _figures(None),
            "processed_data": _figures(stats.summary["processed_data"]),
            "persisted_data": _figures(stats.summary["persisted_data"]),
            "objects_written": _figures(stats.summary["objects_written"]),
        },
        "latest": {
            "completed": _one(stats.latest_completed),
            "savepoint": _one(stats.latest_savepoint),
            "failed": _one(stats.latest_failed),
            "restored": None
            if restored is None
            else {
                "id": restored.checkpoint_id,
                "restore_timestamp": restored.timestamp,
                "is_savepoint": restored.is_savepoint,
                "external_path": restored.external_path,
                "state_size": restored.state_size,
            },
        },
        "history": [_one(one) for one in stats.history],
    }


def _figures(figures: SummaryStatistics | None) -> Document:
    names = ("min", "max", "avg", "p50", "p90", "p95", "p99", "p999")
    return dict.fromkeys(names, 0) if figures is None else {name: getattr(figures, name) for name in names}


def _type(stats: CheckpointStats) -> str:
    plain = not stats.is_savepoint
    return "UNALIGNED_CHECKPOINT" if plain and stats.unaligned else "CHECKPOINT" if plain else stats.checkpoint_type


def _one(stats: CheckpointStats | None) -> Document | None:
    if stats is None:
        return None
    document: Document = {
        "className": stats.status.value.lower(),
        "id": stats.id,
        "status": stats.status.value,
        "is_savepoint": stats.is_savepoint,
        "savepointFormat": stats.savepoint_format,
        "trigger_timestamp": stats.trigger_timestamp,
        "latest_ack_timestamp": stats.latest_ack_timestamp,
        "checkpointed_size": stats.checkpointed_size,
        "state_size": stats.state_size,
        "end_to_end_duration": stats.end_to_end_duration,
        "alignment_buffered": 0,
        "processed_data": stats.processed_data,
        "persisted_data": stats.persisted_data,
        "num_subtasks": stats.num_subtasks,
        "num_acknowledged_subtasks": stats.num_acknowledged_subtasks,
        "checkpoint_type": _type(stats),
        "trigger": stats.trigger,
        "full": stats.full,
        "full_reason": stats.full_reason,
        "objects_written": stats.objects_written,
        "tasks": {},
    }
    if stats.failure_timestamp is not None:
        document |= {
            "failure_timestamp": stats.failure_timestamp,
            "failure_message": stats.failure_message,
            "failure_reason": stats.failure_reason,
        }
    elif stats.completed_timestamp is not None:
        document |= {"external_path": stats.external_path, "discarded": stats.discarded}
    return document


def checkpoint_details(stats: CheckpointStats, names: dict[Any, str]) -> Document:
    """One checkpoint with its vertices; `names` are their ids here."""
    document = _one(stats)
    assert document is not None
    document["tasks"] = {names[id]: _task(stats, vertex, names[id]) for id, vertex in stats.vertices.items()}
    return document


def _task(stats: CheckpointStats, vertex: VertexStats, name: str) -> Document:
    latest = vertex.latest_ack_timestamp
    return {
        "id": name,
        "status": stats.status.value,
        "latest_ack_timestamp": latest,
        "checkpointed_size": vertex.total("checkpointed_size"),
        "state_size": vertex.total("state_size"),
        "end_to_end_duration": -1 if latest < 0 else max(0, latest - stats.trigger_timestamp),
        "alignment_buffered": 0,
        "processed_data": vertex.total("processed_bytes"),
        "persisted_data": vertex.total("persisted_bytes"),
        "num_subtasks": vertex.parallelism,
        "num_acknowledged_subtasks": vertex.acknowledged,
    }


def subtask_details(stats: CheckpointStats, vertex: VertexStats, name: str) -> Document:
    """One checkpoint at one vertex, subtask by subtask."""
    figures = vertex.summary(stats.trigger_timestamp)
    alignment = {
        "buffered": _figures(None),
        "processed": _figures(figures["processed_bytes"]),
        "persisted": _figures(figures["persisted_bytes"]),
        "duration": _figures(figures["alignment_ms"]),
    }
    return {
        **_task(stats, vertex, name),
        "summary": {
            "checkpointed_size": _figures(figures["checkpointed_size"]),
            "state_size": _figures(figures["state_size"]),
            "end_to_end_duration": _figures(figures["end_to_end_duration"]),
            "checkpoint_duration": {"sync": _figures(figures["sync_ms"]), "async": _figures(figures["async_ms"])},
            "alignment": alignment,
            "start_delay": _figures(figures["start_delay_ms"]),
        },
        "subtasks": [_subtask(stats, vertex.subtasks.get(i), i) for i in range(vertex.parallelism)],
    }


def _subtask(stats: CheckpointStats, subtask: SubtaskStats | None, index: int) -> Document:
    if subtask is None:
        return {"index": index, "status": "pending_or_failed"}
    metrics = subtask.metrics
    return {
        "index": index,
        "status": "completed" if subtask.completed else "pending_or_failed",
        "ack_timestamp": subtask.ack_timestamp,
        "end_to_end_duration": max(0, subtask.ack_timestamp - stats.trigger_timestamp),
        "checkpointed_size": metrics.checkpointed_size,
        "state_size": metrics.state_size,
        "checkpoint": {"sync": metrics.sync_ms, "async": metrics.async_ms},
        "alignment": {
            "buffered": 0,
            "processed": metrics.processed_bytes,
            "persisted": metrics.persisted_bytes,
            "duration": metrics.alignment_ms,
        },
        "start_delay": metrics.start_delay_ms,
        "unaligned_checkpoint": metrics.unaligned,
        "aborted": not subtask.completed,
    }


def checkpoint_config(conf: Configuration) -> Document:
    """How a job takes checkpoints."""
    retention = conf.get("execution.checkpointing.externalized-checkpoint-retention")
    storage = conf.get("execution.checkpointing.storage")
    directory = conf.get("execution.checkpointing.dir")
    return {
        "mode": conf.get("execution.checkpointing.mode").lower(),
        "interval": conf.get("execution.checkpointing.interval") or 0,
        "timeout": conf.get("execution.checkpointing.timeout"),
        "min_pause": conf.get("execution.checkpointing.min-pause"),
        "max_concurrent": conf.get("execution.checkpointing.max-concurrent-checkpoints"),
        "externalization": {
            "enabled": retention != "NO_EXTERNALIZED_CHECKPOINTS",
            "delete_on_cancellation": retention != "RETAIN_ON_CANCELLATION",
        },
        "state_backend": conf.get(config.STATE_BACKEND),
        "checkpoint_storage": storage or ("filesystem" if directory else "jobmanager"),
        "checkpoint_directory": directory,
        "incremental": conf.get("execution.checkpointing.incremental"),
        "unaligned_checkpoints": conf.get("execution.checkpointing.unaligned.enabled"),
        "tolerable_failed_checkpoints": conf.get("execution.checkpointing.tolerable-failed-checkpoints"),
        "aligned_checkpoint_timeout": conf.get("execution.checkpointing.aligned-checkpoint-timeout"),
        "checkpoints_after_tasks_finish": conf.get("execution.checkpointing.checkpoints-after-tasks-finish"),
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "",
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
