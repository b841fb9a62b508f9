"""Automatic full checkpoints: by policy after a completed checkpoint, or by a schedule (SPEC R7.6). Pure, on the driver.

A full checkpoint builds on nothing older, and later increments build on it: the files of the old chain can go. One at a
time; a failed one is tried again. Increments go on in between, so a full checkpoint that is too slow for the timeout
does not keep the job from making progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.checkpoint.settings import FullCheckpointPolicy
from headrace.ids import OperatorId


@dataclass(frozen=True, slots=True)
class CompletedSize:
    """The measures of a completed checkpoint that the policy compares."""

    state_size: int
    chain_length: int
    shared_files: Mapping[OperatorId, int]


def reason_for_full(policy: FullCheckpointPolicy, size: CompletedSize) -> str | None:
    """The first limit that a checkpoint exceeds, as text; None if it exceeds none.

    >>> reason_for_full(FullCheckpointPolicy(max_chain_length=10), CompletedSize(0, 11, {}))
    'chain of 11 checkpoints, limit 10'
    """
    if policy.max_size is not None and size.state_size > policy.max_size:
        return f"full size of {size.state_size} bytes, limit {policy.max_size}"
    total = sum(size.shared_files.values())
    if policy.max_files is not None and total > policy.max_files:
        return f"{total} shared files, limit {policy.max_files}"
    operator, most = max(size.shared_files.items(), key=lambda item: item[1], default=("", 0))
    if policy.max_files_per_operator is not None and most > policy.max_files_per_operator:
        return f"{most} shared files of operator {operator}, limit {policy.max_files_per_operator}"
    if policy.max_chain_length is not None and size.chain_length > policy.max_chain_length:
        return f"chain of {size.chain_length} checkpoints, limit {policy.max_chain_length}"
    return None


class AutomaticFull:
    """Decides when a full checkpoint is due, and why.

    `next_time` gives the first moment of the schedule after a moment; the coordinator has no calendar of its own.

    >>> full = AutomaticFull(FullCheckpointPolicy(max_chain_length=2), None)
    >>> full.completed(50, CompletedSize(0, 3, {}), earliest=60)
    >>> full.due_at, full.take(60)
    (60, 'chain of 3 checkpoints, limit 2')
    """

    def __init__(self, policy: FullCheckpointPolicy, next_time: Callable[[int], int | None] | None) -> None:
        self._policy, self._next_time = policy, next_time
        self._reason: str | None = None
        self._not_before = 0  # while there is a reason
        self._scheduled_at: int | None = None
        self._under_way = False
        self._failures = 0
        self._last_full: int | None = None

    @property
    def due_at(self) -> int | None:
        """The time at which to request a full checkpoint; None while there is no reason, or one is under way."""
        if self._under_way:
            return None
        by_policy = None if self._reason is None else self._not_before
        return min((at for at in (by_policy, self._scheduled_at) if at is not None), default=None)

    def start(self, now: int) -> None:
        """Start the schedule; a time that was missed while the job was down is still due."""
        if self._next_time is not None and self._scheduled_at is None:
            self._scheduled_at = self._next_time(now)

    def take(self, now: int) -> str:
        """Note that one is requested now; returns the reason."""
        self._under_way = True
        self._pass_schedule(now)
        self._reason = self._reason or "schedule"
        return self._reason

    def failed(self, now: int) -> None:
        """Try again later. The reason stays, unless another full checkpoint was completed in between."""
        self._under_way = False
        longest = max(self._policy.retry_ms, self._policy.cooldown_ms)
        self._not_before = now + min(self._policy.retry_ms * 2**self._failures, longest)
        self._failures = min(self._failures + 1, 30)

    def completed_full(self, now: int, *, requested_here: bool) -> None:
        """Note a completed full checkpoint, automatic or requested: there is no reason for another one."""
        self._last_full, self._reason, self._failures = now, None, 0
        self._pass_schedule(now)
        if requested_here:
            self._under_way = False

    def completed(self, now: int, size: CompletedSize, *, earliest: int) -> None:
        """Compare a completed increment with the limits; the next checkpoint may start at `earliest`."""
        cooling = self._last_full is not None and now < self._last_full + self._policy.cooldown_ms
        if self._reason is None and not cooling:
            self._reason = reason_for_full(self._policy, size)
            self._not_before = earliest

    def _pass_schedule(self, now: int) -> None:
        if self._next_time is not None and self._scheduled_at is not None and self._scheduled_at <= now:
            self._scheduled_at = self._next_time(now)
            assert self._scheduled_at is None or self._scheduled_at > now, "a schedule must go forward"
