"""REST documents of checkpoints: Flink's field names (SPEC R10.1, R10.2), and a timeline of each subtask."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import asdict as to_document

from headrace import config
from headrace.checkpoint.settings import FullCheckpointPolicy, stored_in_files
from headrace.checkpoint.stats import (
    CheckpointStats,
    CheckpointStatus,
    StatsSnapshot,
    SubtaskStats,
    SummaryStatistics,
    Totals,
    VertexStats,
)
from headrace.config import Configuration
from headrace.graph.job_graph import JobGraph
from headrace.rest.cache import to_json

Document = dict[str, Any]
_LATEST = ("completed", "savepoint", "failed")
_NONE = to_document(SummaryStatistics())
_ENCODED: WeakKeyDictionary[CheckpointStats, msgspec.Raw] = WeakKeyDictionary()
_LIMITS = ("max_size", "max_files", "max_files_per_operator", "max_chain_length")


def checkpoints(stats: StatsSnapshot) -> Document:
    """All that is remembered of a job's checkpoints."""
    latest = {kind: checkpoint(stats.latest[kind]) if kind in stats.latest else None for kind in _LATEST}
    return {
        "counts": asdict(stats.counts),
        "summary": {"alignment_buffered": _NONE, **{name: to_document(one) for name, one in stats.summary.items()}},
        "latest": {**latest, "restored": stats.restored and to_document(stats.restored)},
        "history": [_encoded(one) for one in stats.history],
    }


def _encoded(stats: CheckpointStats) -> Document | msgspec.Raw:
    """One checkpoint without its vertices, encoded once if it does not change any more: a history may be long."""
    found = _ENCODED.get(stats)
    if found is None:
        if stats.final_totals is None:
            return checkpoint(stats)
        found = _ENCODED[stats] = msgspec.Raw(to_json(checkpoint(stats)))
    return found


def checkpoint(stats: CheckpointStats) -> Document:
    """One checkpoint without its vertices."""
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


def by_head(stats: CheckpointStats) -> dict[str, VertexStats]:
    """The vertices that the job had at a checkpoint, by the id of their first operator, as everywhere in REST."""
    return {str(vertex.operators[0]): vertex for vertex in stats.vertices.values() if vertex.operators}


def checkpoint_details(stats: CheckpointStats) -> Document:
    """One checkpoint with its vertices."""
    tasks = {head: _task(stats, vertex, head) for head, vertex in by_head(stats).items()}
    return {**checkpoint(stats), "tasks": tasks}


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
    """Return the measurements of a subtask, or their summaries, as Flink groups them."""
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
    """Return the checkpoint configuration of a job."""
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


# ---- beyond Flink --------------------------------------------------------------------------------------------------


def timeline(stats: CheckpointStats, graph: JobGraph) -> Document:
    """Return the times of each subtask's first and last barrier, and of the end of each part of its work."""
    names = {str(operator.id): operator.name for vertex in graph.vertices for operator in vertex.operators}
    names |= {str(vertex.head.id): vertex.name for vertex in graph.vertices}
    subtasks = [
        {
            "vertex": head,
            "vertex-name": names.get(head, head),
            "index": index,
            **_moments(stats.trigger_timestamp, of_vertex.subtasks.get(index)),
        }
        for head, of_vertex in by_head(stats).items()
        for index in range(of_vertex.parallelism)
    ]
    return {**_fields(stats, "id trigger_timestamp completed_timestamp"), "subtasks": subtasks}


def _moments(triggered: int, subtask: SubtaskStats | None) -> Document:
    moments = dict.fromkeys(
        [
            "first_barrier",
            "last_barrier",
            "sync_start",
            "sync_end",
            "async_end",
            "ack_timestamp",
            "unaligned",
            "state_size",
            "checkpointed_size",
        ]
    )
    if subtask is None:
        return moments
    metrics = subtask.metrics
    known = {**_fields(metrics, "unaligned state_size checkpointed_size"), "ack_timestamp": subtask.ack_timestamp}
    if metrics.sync_started >= 0:  # else it had finished before the checkpoint, and acknowledged nothing itself
        # Clocks of hosts differ: the least shift puts all between the trigger and the acknowledgement.
        aligned = 0 if metrics.unaligned else metrics.alignment_ms
        apart = min(0, subtask.ack_timestamp - metrics.written)
        if metrics.sync_started + apart < triggered:
            apart = triggered + aligned - metrics.sync_started
        started = metrics.sync_started + apart
        first = min(triggered + max(0, metrics.start_delay_ms + min(0, apart)), started)
        last = first + metrics.alignment_ms
        by_driver = {
            "first_barrier": first,
            "last_barrier": last if metrics.unaligned else min(last, started),
            "sync_start": started,
            "sync_end": started + metrics.sync_ms,
            "async_end": metrics.written + apart,
        }
        # The driver's clock may also run slower than a worker's for some time.
        known |= {name: max(triggered, min(at, subtask.ack_timestamp)) for name, at in by_driver.items()}
    return {**moments, **known}


def state_files(stats: StatsSnapshot, conf: Configuration, graph: JobGraph) -> Document:
    """Return the figures that the policy for full checkpoints compares, over time, and its limits; the oldest first."""
    completed = [one for one in reversed(stats.history) if one.status is CheckpointStatus.COMPLETED]
    newest = max((one for one in completed if not one.is_savepoint), key=lambda one: one.id, default=None)
    return {
        "limits": _fields(FullCheckpointPolicy.from_configuration(conf), " ".join(_LIMITS)),
        "points": [_point(one) for one in completed if not one.is_savepoint],
        "operators": [] if newest is None else _operator_files(newest, graph),
    }


def _point(stats: CheckpointStats) -> Document:
    totals = stats.totals
    started = stats.chain_started
    return {
        "checkpoint": stats.id,
        "timestamp": stats.trigger_timestamp,
        **_fields(totals, "state_size checkpointed_size objects_written"),
        "shared_files": sum(stats.shared_files.values()),
        "oldest_file_age": None if started is None else stats.trigger_timestamp - started,
        **_fields(stats, "chain_length full full_reason"),
    }


def _operator_files(stats: CheckpointStats, graph: JobGraph) -> list[Document]:
    """Sizes are known for each vertex: they stand with the first of its operators that has files, or with its head."""
    found, taken = [], by_head(stats)
    for vertex in graph.vertices:
        head = str(vertex.head.id)
        size = Totals.of([taken[head]], 0).state_size if head in taken else 0
        with_files = [operator for operator in vertex.operators if stats.shared_files.get(operator.id)]
        for operator in with_files or ([vertex.head] if size else []):
            files = stats.shared_files.get(operator.id, 0)
            found.append({"id": operator.id, "name": operator.name, "shared_files": files, "state_size": size})
            size = 0
    return found
