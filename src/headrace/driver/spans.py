"""Spans of OpenTelemetry for each checkpoint and each start of an attempt (SPEC R10.3), if its API is installed.

Where they go is up to the program, which sets up OpenTelemetry's SDK; without that its API drops them. They are made in a thread
of the driver's pool, since an exporter may wait.
"""

from __future__ import annotations

from typing import Any

from headrace.checkpoint.stats import CheckpointStats
from headrace.job.story import AttemptStory, Phases

_NANOS = 1_000_000


def find_tracer() -> Any | None:
    """OpenTelemetry's tracer for this library; None if its API is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("headrace")


class Spans:
    """Makes the spans of one job; Flink's names."""

    def __init__(self, tracer: Any, job_id: str, job_name: str) -> None:
        self._tracer = tracer
        self._job = {"jobId": job_id, "jobName": job_name}

    def checkpoint(self, stats: CheckpointStats) -> None:
        """A checkpoint has been completed, or has failed."""
        totals = stats.totals
        ended = stats.completed_timestamp or stats.failure_timestamp or stats.trigger_timestamp
        attributes = {
            "checkpointId": stats.id,
            "checkpointStatus": stats.status.value,
            "checkpointType": stats.checkpoint_type,
            "checkpointedSize": totals.checkpointed_size,
            "fullSize": totals.state_size,
            "metadataSize": stats.metadata_size,
            "isUnaligned": totals.unaligned,
            "isFull": stats.full,
        }
        if stats.failure_message is not None:
            attributes["failureMessage"] = stats.failure_message
        self._emit("Checkpoint", stats.trigger_timestamp, ended, attributes)

    def initialization(self, attempt: AttemptStory, phases: Phases) -> None:
        """All subtasks of an attempt run."""
        attributes: dict[str, Any] = {"attempt": attempt.number}
        if attempt.restored_checkpoint is not None:
            attributes["checkpointId"] = attempt.restored_checkpoint
        for name in phases.__struct_fields__:
            if (milliseconds := getattr(phases, name)) is not None:
                attributes[f"{name}Ms"] = milliseconds
        self._emit("JobInitialization", attempt.started, attempt.running or attempt.started, attributes)

    def _emit(self, name: str, started: int, ended: int, attributes: dict[str, Any]) -> None:
        span = self._tracer.start_span(name, start_time=started * _NANOS, attributes=self._job | attributes)
        span.end(end_time=max(started, ended) * _NANOS)
