"""Where a task is in its life, and where a job."""

from __future__ import annotations

from enum import Enum

__all__ = ["JobStatus", "Status"]


class Status(Enum):
    """Where a task is in its life."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


class JobStatus(Enum):
    """Flink's names."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    RESTARTING = "RESTARTING"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    FINISHED = "FINISHED"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self in (JobStatus.CANCELED, JobStatus.FAILED, JobStatus.FINISHED)

    def is_terminal_state(self) -> bool:
        """PyFlink's name for it."""
        return self.is_terminal

    is_globally_terminal_state = is_terminal_state
