"""Why a checkpoint failed: a closed list (SPEC R5.5), with what each reason means for the job (SPEC R5.6)."""

from __future__ import annotations

from enum import Enum
from typing import Self

__all__ = ["FailureReason"]


class FailureReason(Enum):
    """Why a checkpoint failed.

    The value is the name itself, so that a reason travels in messages and stands in REST answers as it is written here.

    >>> FailureReason.CHECKPOINT_EXPIRED.counted, FailureReason.CHECKPOINT_EXPIRED.preflight
    (True, False)
    >>> print(FailureReason.CHECKPOINT_EXPIRED)
    The checkpoint took longer than its timeout.
    """

    text: str
    """A sentence for logs, REST and the user."""
    preflight: bool
    """Whether it happened before any task heard of the checkpoint, so that no task has anything to abort."""
    counted: bool
    """Whether it counts towards the tolerable failures (SPEC R5.6: these five only)."""

    def __new__(cls, name: str, text: str, preflight: bool, counted: bool) -> Self:
        """A member is written as (name, text, preflight, counted)."""
        member = object.__new__(cls)
        member._value_ = name
        member.text, member.preflight, member.counted = text, preflight, counted
        return member

    # --- before any task heard of it ---

    PERIODIC_SCHEDULER_SHUTDOWN = (
        "PERIODIC_SCHEDULER_SHUTDOWN",
        "The periodic checkpoint scheduler is shut down.",
        True,
        False,
    )
    TOO_MANY_CHECKPOINT_REQUESTS = (
        "TOO_MANY_CHECKPOINT_REQUESTS",
        "Too many checkpoint requests are waiting already.",
        True,
        False,
    )
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        "MINIMUM_TIME_BETWEEN_CHECKPOINTS",
        "The minimum pause since the last checkpoint is not over; the checkpoint is triggered when it is.",
        True,
        False,
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = (
        "NOT_ALL_REQUIRED_TASKS_RUNNING",
        "Not all tasks that the checkpoint needs are running.",
        True,
        False,
    )
    IO_EXCEPTION = (
        "IO_EXCEPTION",
        "Reading or writing failed while the checkpoint was triggered.",
        True,
        True,
    )
    BLOCKING_OUTPUT_EXIST = (
        "BLOCKING_OUTPUT_EXIST",
        "A running task has a blocking output.",
        True,
        False,
    )

    # --- in flight ---

    CHECKPOINT_ASYNC_EXCEPTION = (
        "CHECKPOINT_ASYNC_EXCEPTION",
        "The asynchronous part of a task's snapshot failed.",
        False,
        True,
    )
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (
        "CHANNEL_STATE_SHARED_STREAM_EXCEPTION",
        "Another subtask that shares the file of in-flight data failed.",
        False,
        False,
    )
    CHECKPOINT_EXPIRED = (
        "CHECKPOINT_EXPIRED",
        "The checkpoint took longer than its timeout.",
        False,
        True,
    )
    CHECKPOINT_SUBSUMED = (
        "CHECKPOINT_SUBSUMED",
        "A newer checkpoint completed first.",
        False,
        False,
    )
    CHECKPOINT_DECLINED = (
        "CHECKPOINT_DECLINED",
        "A task declined the checkpoint.",
        False,
        True,
    )
    CHECKPOINT_DECLINED_TASK_NOT_READY = (
        "CHECKPOINT_DECLINED_TASK_NOT_READY",
        "A task declined the checkpoint: it is not running yet.",
        False,
        False,
    )
    CHECKPOINT_DECLINED_TASK_CLOSING = (
        "CHECKPOINT_DECLINED_TASK_CLOSING",
        "A task declined the checkpoint: it is closing.",
        False,
        False,
    )
    CHECKPOINT_DECLINED_SUBSUMED = (
        "CHECKPOINT_DECLINED_SUBSUMED",
        "A task declined the checkpoint: a barrier of a newer one overtook it.",
        False,
        False,
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = (
        "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER",
        "A task declined the checkpoint: one of its inputs cancelled it.",
        False,
        False,
    )
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = (
        "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM",
        "A task declined the checkpoint: one of its inputs ended.",
        False,
        False,
    )
    CHECKPOINT_DECLINED_ALIGNMENT_LIMIT = (  # not in Flink: blocked channels spilled more than alignment.spill.max
        "CHECKPOINT_DECLINED_ALIGNMENT_LIMIT",
        "A task declined the checkpoint: its blocked inputs held more data than the alignment limit.",
        False,
        False,
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = (
        "CHECKPOINT_COORDINATOR_SHUTDOWN",
        "The checkpoint coordinator shut down.",
        False,
        False,
    )
    CHECKPOINT_COORDINATOR_SUSPEND = (
        "CHECKPOINT_COORDINATOR_SUSPEND",
        "The checkpoint coordinator is suspended: the job, or a task of it, is not running.",
        False,
        False,
    )
    JOB_FAILOVER_REGION = (
        "JOB_FAILOVER_REGION",
        "The job is restarting.",
        False,
        False,
    )
    TASK_FAILURE = (
        "TASK_FAILURE",
        "A task failed.",
        False,
        False,
    )
    TASK_CHECKPOINT_FAILURE = (
        "TASK_CHECKPOINT_FAILURE",
        "A task failed while it took its part of the checkpoint.",
        False,
        False,
    )
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = (
        "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE",
        "A task that should be notified of the checkpoint is not known.",
        False,
        False,
    )
    FINALIZE_CHECKPOINT_FAILURE = (
        "FINALIZE_CHECKPOINT_FAILURE",
        "All tasks are done, but the checkpoint could not be written or stored.",
        False,
        True,
    )
    TRIGGER_CHECKPOINT_FAILURE = (
        "TRIGGER_CHECKPOINT_FAILURE",
        "The checkpoint could not be triggered.",
        False,
        False,
    )

    def __str__(self) -> str:
        return self.text
