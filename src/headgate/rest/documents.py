"""The documents that REST returns: Flink's field names, filled from the job (SPEC R10.1, R10.2)."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from headgate import config
from headgate.checkpoint.settings import stored_in_files
from headgate.checkpoint.stats import CheckpointStats, StatsSnapshot, SubtaskStats, SummaryStatistics, VertexStats
from headgate.config import Configuration
from headgate.driver.job import SparkJob
from headgate.graph.job_graph import Vertex

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
                "metrics": {name: sum(getattr(one, field) for one in mine) for name, field in _METRICS.items()},
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


_SUMMARY = (
    "checkpointed_size",
    "state_size",
    "end_to_end_duration",
    "alignment_buffered",
    "processed_data",
    "persisted_data",
    "objects_written",
)


def _fields(source: object, names: str) -> Document:
    """Fields whose names are the same here and in REST."""
    return {name: getattr(source, name) for name in names.split()}


def checkpoints(stats: StatsSnapshot) -> Document:
    """All that is remembered of a job's checkpoints."""
    restored = stats.restored
    return {
        "counts": _fields(stats.counts, "restored total in_progress completed failed"),
        "summary": {name: _figures(stats.summary.get(name)) for name in _SUMMARY},
        "latest": {
            "completed": _one(stats.latest_completed),
            "savepoint": _one(stats.latest_savepoint),
            "failed": _one(stats.latest_failed),
            "restored": None
            if restored is None
            else {
                "id": restored.checkpoint_id,
                "restore_timestamp": restored.timestamp,
                **_fields(restored, "is_savepoint external_path state_size"),
            },
        },
        "history": [_one(one) for one in stats.history],
    }


def _figures(figures: SummaryStatistics | None) -> Document:
    names = "min max avg p50 p90 p95 p99 p999"
    return dict.fromkeys(names.split(), 0) if figures is None else _fields(figures, names)


def _type(stats: CheckpointStats) -> str:
    plain = not stats.is_savepoint
    return "UNALIGNED_CHECKPOINT" if plain and stats.unaligned else "CHECKPOINT" if plain else stats.checkpoint_type


def _one(stats: CheckpointStats | None) -> Document | None:
    if stats is None:
        return None
    document: Document = {
        "className": stats.status.value.lower(),
        "status": stats.status.value,
        "savepointFormat": stats.savepoint_format,
        "alignment_buffered": 0,
        "checkpoint_type": _type(stats),
        "tasks": {},
        **_fields(stats, "id is_savepoint trigger_timestamp latest_ack_timestamp checkpointed_size state_size"),
        **_fields(stats, "end_to_end_duration processed_data persisted_data num_subtasks num_acknowledged_subtasks"),
        **_fields(stats, "trigger full full_reason objects_written"),
    }
    if stats.failure_timestamp is not None:
        document |= _fields(stats, "failure_timestamp failure_message failure_reason")
    elif stats.completed_timestamp is not None:
        document |= _fields(stats, "external_path discarded")
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
    found = {name: _figures(figures) for name, figures in vertex.summary(stats.trigger_timestamp).items()}
    alignment = {
        "buffered": _figures(None),
        "processed": found["processed_bytes"],
        "persisted": found["persisted_bytes"],
        "duration": found["alignment_ms"],
    }
    return {
        **_task(stats, vertex, name),
        "summary": {
            **{one: found[one] for one in ("checkpointed_size", "state_size", "end_to_end_duration")},
            "checkpoint_duration": {"sync": found["sync_ms"], "async": found["async_ms"]},
            "alignment": alignment,
            "start_delay": found["start_delay_ms"],
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
