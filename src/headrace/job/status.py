"""The status of a task, and the status of a job with the moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Status(Enum):
    """The status of a task."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


class ExecutionState(Enum):
    """The state of a task as the driver sees it; Flink's names, of which DEPLOYING is the way to its worker."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    RECONCILING = "RECONCILING"


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
        """Return True if the job has ended."""
        return not LEGAL_MOVES[self]

    def is_terminal_state(self) -> bool:
        """PyFlink's name for it."""
        return self.is_terminal

    is_globally_terminal_state = is_terminal_state


_J = JobStatus

LEGAL_MOVES: Mapping[JobStatus, frozenset[JobStatus]] = {
    _J.CREATED: frozenset({_J.RUNNING, _J.FAILING, _J.RESTARTING, _J.CANCELLING, _J.FINISHED}),
    _J.RUNNING: frozenset({_J.FAILING, _J.RESTARTING, _J.CANCELLING, _J.FINISHED}),
    _J.FAILING: frozenset({_J.RESTARTING, _J.CANCELLING, _J.FAILED}),
    _J.RESTARTING: frozenset({_J.RUNNING, _J.FAILING, _J.CANCELLING, _J.FINISHED}),
    _J.CANCELLING: frozenset({_J.CANCELED, _J.FAILING, _J.FINISHED}),
    _J.CANCELED: frozenset(),
    _J.FAILED: frozenset(),
    _J.FINISHED: frozenset(),
}
"""A job that has not run in full yet may finish: its last task ended before all of them were seen running."""
