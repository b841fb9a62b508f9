"""Why a checkpoint failed: a closed list (SPEC R5.5), with what each reason means for the job (SPEC R5.6)."""

from __future__ import annotations

from enum import Enum


class FailureReason(Enum):
    """Why a checkpoint failed; the name appears in REST, the value is the text for users and travels in messages.

    >>> print(FailureReason.CHECKPOINT_EXPIRED)
    The checkpoint took longer than its timeout.
    """

    # Before any task was triggered
    TOO_MANY_CHECKPOINT_REQUESTS = "Too many checkpoint requests are waiting already."
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        "The minimum pause since the last checkpoint is not over; the checkpoint is triggered when it is."
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = "Not all tasks that the checkpoint needs are running."
    IO_EXCEPTION = "Reading or writing failed while the checkpoint was triggered."

    # In flight
    CHECKPOINT_ASYNC_EXCEPTION = "The asynchronous part of a task's snapshot failed."
    CHECKPOINT_EXPIRED = "The checkpoint took longer than its timeout."
    CHECKPOINT_SUBSUMED = "A newer checkpoint completed first."
    CHECKPOINT_DECLINED = "A task declined the checkpoint."
    CHECKPOINT_DECLINED_TASK_NOT_READY = "A task declined the checkpoint: it is not running yet."
    CHECKPOINT_DECLINED_TASK_CLOSING = "A task declined the checkpoint: it is closing."
    CHECKPOINT_DECLINED_SUBSUMED = "A task declined the checkpoint: a barrier of a newer one overtook it."
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "A task declined the checkpoint: one of its inputs cancelled it."
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = "A task declined the checkpoint: one of its inputs ended."
    CHECKPOINT_DECLINED_ALIGNMENT_LIMIT = (  # not in Flink: blocked channels spilled more than alignment.spill.max
        "A task declined the checkpoint: its blocked inputs held more data than the alignment limit."
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = "The checkpoint coordinator shut down."
    CHECKPOINT_COORDINATOR_SUSPEND = (
        "The checkpoint coordinator is suspended: the job, or a task of it, is not running."
    )
    FINALIZE_CHECKPOINT_FAILURE = "All tasks are done, but the checkpoint could not be written or stored."
    TRIGGER_CHECKPOINT_FAILURE = "The checkpoint could not be triggered."

    @property
    def preflight(self) -> bool:
        """Return True if no task was triggered before it happened, so that no task has anything to abort."""
        return self in _PREFLIGHT

    @property
    def counted(self) -> bool:
        """Return True if it counts towards the tolerable failures (SPEC R5.6)."""
        return self in _COUNTED

    def __str__(self) -> str:
        return self.value


_PREFLIGHT = {
    FailureReason.TOO_MANY_CHECKPOINT_REQUESTS,
    FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
    FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
    FailureReason.IO_EXCEPTION,
}
_COUNTED = {
    FailureReason.IO_EXCEPTION,
    FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
    FailureReason.CHECKPOINT_DECLINED,
    FailureReason.CHECKPOINT_EXPIRED,
    FailureReason.FINALIZE_CHECKPOINT_FAILURE,
}
