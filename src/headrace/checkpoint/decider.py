"""Which request for a checkpoint starts, waits or is dropped (SPEC R5.3). Part of the coordinator: pure, on the driver.

Requests wait in a queue: savepoints first, then forced ones, then those of users, then by age.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.settings import CheckpointProperties

MAX_QUEUED = 1000

RequestId = NewType("RequestId", str)
"""Chosen by the caller who requests a checkpoint, unique in the job; the answer carries it."""


class RequestOrigin(Enum):
    """The origin of a request; statistics show the value."""

    PERIODIC = "periodic"
    USER = "user"
    AUTOMATIC = "automatic"  # a full checkpoint by policy or schedule
    END_OF_DATA = "end of data"  # the last one of a bounded job


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """A request for a checkpoint. Only those of users have an id, which is answered exactly once."""

    properties: CheckpointProperties
    trigger: RequestOrigin
    timestamp: int
    id: RequestId | None = None
    target: str | None = None  # directory of a savepoint
    full_reason: str | None = None

    @property
    def periodic(self) -> bool:
        """Return True if the scheduler made it: only then the pause between checkpoints applies."""
        return self.trigger is RequestOrigin.PERIODIC


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of the coordinator when the decision is made."""

    triggering: bool = False  # a checkpoint is being prepared, its tasks are not triggered yet
    pending: int = 0
    cleaning: int = 0  # old checkpoints whose files are still being deleted
    held: bool = False  # the consumers of completed checkpoints lag behind
    last_completion: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The request to start with, those to fail, and when the scheduler should ask again."""

    start: TriggerRequest | None = None
    dropped: tuple[tuple[TriggerRequest, FailureReason], ...] = ()
    reschedule_at: int | None = None


class RequestDecider:
    """Holds the queue and takes the decisions.

    >>> request = TriggerRequest(CheckpointProperties.for_savepoint(force=True), RequestOrigin.USER, timestamp=0)
    >>> decider = RequestDecider(max_concurrent=1, min_pause_ms=0)
    >>> decider.submit(request, now=0, activity=Activity(pending=1)).start is request
    True
    """

    def __init__(self, max_concurrent: int, min_pause_ms: int, max_queued: int = MAX_QUEUED) -> None:
        self._max_concurrent = max_concurrent
        self._min_pause_ms = min_pause_ms
        self._max_queued = max_queued
        self._queue: list[tuple[tuple[bool, bool, bool, int, int], TriggerRequest]] = []
        self._submitted = 0

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._queue)

    def submit(self, request: TriggerRequest, now: int, activity: Activity) -> Decision:
        """Add a request, and choose among all that wait."""
        full = len(self._queue) >= self._max_queued
        if full and not self._queue[-1][1].periodic:
            # Only requests of users wait: they keep their places.
            return Decision(dropped=((request, FailureReason.TOO_MANY_CHECKPOINT_REQUESTS),))
        self._submitted += 1
        bisect.insort(self._queue, (self._rank(request), request))
        dropped = ((self._queue.pop()[1], FailureReason.TOO_MANY_CHECKPOINT_REQUESTS),) if full else ()
        chosen = self.next(now, activity)
        return Decision(chosen.start, dropped + chosen.dropped, chosen.reschedule_at)

    def next(self, now: int, activity: Activity) -> Decision:
        """Choose among the requests that wait."""
        if activity.triggering or activity.held or not self._queue or activity.cleaning > self._max_concurrent:
            return Decision()
        head = self._queue[0][1]
        if activity.pending >= self._max_concurrent and not head.properties.force:
            return Decision()
        self._queue.pop(0)
        if head.periodic and not head.properties.force and activity.last_completion is not None:
            earliest = activity.last_completion + self._min_pause_ms
            if now < earliest:
                # Dropped, not kept: the scheduler asks again, so that at most one checkpoint follows the pause.
                dropped = ((head, FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS),)
                return Decision(dropped=dropped, reschedule_at=earliest)
        return Decision(head)

    def clear(self) -> list[TriggerRequest]:
        """Empty the queue; returns its requests in order."""
        waiting = [request for _, request in self._queue]
        self._queue.clear()
        return waiting

    def _rank(self, request: TriggerRequest) -> tuple[bool, bool, bool, int, int]:
        properties = request.properties
        # The number of submission is unique, so two requests are never compared themselves.
        return (not properties.is_savepoint, not properties.force, request.periodic, request.timestamp, self._submitted)
