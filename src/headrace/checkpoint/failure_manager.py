"""The limit of failed checkpoints after which the job fails (SPEC R5.6). Part of the coordinator: pure, on the driver.

Only five reasons count, each checkpoint at most once, and a newer success resets the count. Failures on the driver
and failures that a task reported are distinguished, because savepoints are treated differently:

                        failure on the driver    failure that a task reported
    checkpoint          counts                   counts
    savepoint           never counts             counts
    stop-with-savepoint never counts             fails the job at once: tasks wait for a completion that never comes
    with drain, begun   fails the job at once    fails the job at once: sources have ended, only a restore reads the rest
"""

from __future__ import annotations

from headrace import config
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.settings import CheckpointProperties


class FailureManager:
    """Counts the failures of one job.

    >>> from headrace.checkpoint.settings import RetentionPolicy
    >>> checkpoint = CheckpointProperties.for_checkpoint(RetentionPolicy.RETAIN_ON_FAILURE)
    >>> manager = FailureManager(tolerable=1)
    >>> manager.failure(FailureReason.CHECKPOINT_EXPIRED, checkpoint, 1) is None
    True
    >>> manager.failure(FailureReason.CHECKPOINT_EXPIRED, checkpoint, 2) is None
    False
    """

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._failures = 0
        self._counted: set[int] = set()
        self._last_success: int | None = None

    def failure(
        self,
        reason: FailureReason,
        properties: CheckpointProperties,
        checkpoint_id: int,
        *,
        by_task: bool = False,
        drained: bool = False,
        detail: str = "",
    ) -> str | None:
        """Count a failure; returns the message to fail the job with, or None.

        `drained`: sources may have ended because of this savepoint.
        """
        why = detail or reason.value
        reported = by_task and not reason.preflight
        if properties.is_synchronous and (drained or reported):
            return f"stop-with-savepoint failed (checkpoint {checkpoint_id}): {why}"
        if properties.is_savepoint and not reported:
            return None
        return self._count(reason, checkpoint_id, why)

    def success(self, checkpoint_id: int) -> None:
        """A checkpoint or savepoint was completed."""
        if self._last_success is None or checkpoint_id > self._last_success:
            self._last_success = checkpoint_id
            self._reset()

    def _count(self, reason: FailureReason, checkpoint_id: int, why: str) -> str | None:
        past = self._last_success is not None and checkpoint_id <= self._last_success
        if past or checkpoint_id in self._counted or not reason.counted:
            return None
        self._counted.add(checkpoint_id)
        self._failures += 1
        if self._failures <= self._tolerable:
            return None
        failures = self._failures
        self._reset()
        return (
            f"{failures} checkpoint{'s' * (failures > 1)} failed in a row, {self._tolerable} are tolerated "
            f"({config.CHECKPOINT_TOLERABLE_FAILURES.key}); the last one, checkpoint {checkpoint_id}: {why}"
        )

    def _reset(self) -> None:
        self._failures = 0
        self._counted.clear()
