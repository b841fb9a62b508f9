"""The story of a job: for each attempt when it started, what it restored, when it ran, why and when it ended.

The job machine writes it in the job's thread and hands over the time, so the simulator has one too. Other threads read it
while it grows: fields are only ever filled in, and attempts are only added (or, the oldest, dropped).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from headrace.job.status import JobStatus

_KEPT = 100  # attempts; a job that fails every minute for a year must not fill the memory


class AttemptOutcome(Enum):
    """The end of an attempt; OPEN while it runs."""

    OPEN = "OPEN"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    RESCALED = "RESCALED"


class Cause(msgspec.Struct, frozen=True):
    """Why an attempt failed; `location` is the user's file and line, None where it is not known."""

    message: str
    error: str  # the name of the exception's class
    location: str | None = None
    operator: str | None = None
    subtask: int | None = None
    traceback: str | None = None


@dataclass(slots=True)
class AttemptStory:
    """One attempt; times are milliseconds of the machine's clock."""

    number: int
    started: int
    deployed: int | None = None  # the last worker connected
    running: int | None = None  # every subtask took records
    stopping: int | None = None  # it failed, or was told to stop
    ended: int | None = None  # its last task left
    outcome: AttemptOutcome = AttemptOutcome.OPEN
    cause: Cause | None = None
    restored_checkpoint: int | None = None


class Phases(msgspec.Struct, frozen=True):
    """The durations of a restart's phases, in milliseconds; None where a phase has not ended, or there was none.

    `cancel` and `wait` belong to the end of the attempt before: its tasks leave, the restart strategy delays.
    """

    cancel: int | None = None
    wait: int | None = None
    schedule: int | None = None
    restore: int | None = None


@dataclass(slots=True)
class Story:
    """All attempts that are remembered, the oldest first; `dropped` older ones are not.

    >>> story = Story()
    >>> story.begin(0, now=100)
    >>> story.end(AttemptOutcome.FAILED, now=150)
    >>> story.begin(1, now=170)
    >>> story.phases(story.attempts[1]).wait
    20
    """

    attempts: deque[AttemptStory] = field(default_factory=lambda: deque(maxlen=_KEPT))
    statuses: dict[JobStatus, int] = field(default_factory=dict)  # when the job got each status last
    dropped: int = 0

    def begin(self, number: int, now: int) -> None:
        """An attempt starts, or starts again after it was refused."""
        self.dropped += len(self.attempts) == _KEPT
        self.attempts.append(AttemptStory(number, now))

    @property
    def _open(self) -> AttemptStory | None:
        newest = self.attempts[-1] if self.attempts else None
        return newest if newest is not None and newest.outcome is AttemptOutcome.OPEN else None

    def submitted(self, restored_checkpoint: int | None) -> None:
        if (attempt := self._open) is not None:
            attempt.restored_checkpoint = restored_checkpoint

    def deployed(self, now: int) -> None:
        if (attempt := self._open) is not None:
            attempt.deployed = now

    def running(self, now: int) -> None:
        if (attempt := self._open) is not None:
            attempt.running = now

    def stopping(self, now: int) -> None:
        """The first of all reasons to stop counts."""
        if (attempt := self._open) is not None and attempt.stopping is None:
            attempt.stopping = now

    def failed(self, cause: Cause) -> None:
        if (attempt := self._open) is not None:
            attempt.cause = cause

    def end(self, outcome: AttemptOutcome, now: int) -> None:
        if (attempt := self._open) is not None:
            attempt.ended, attempt.outcome = now, outcome

    def phases(self, attempt: AttemptStory) -> Phases:
        """Return the durations of the phases of the start."""
        remembered = list(self.attempts)
        at = remembered.index(attempt)
        before = remembered[at - 1] if at else None
        return Phases(
            cancel=None if before is None else _between(before.stopping, before.ended),
            wait=None if before is None else _between(before.ended, attempt.started),
            schedule=_between(attempt.started, attempt.deployed),
            restore=_between(attempt.deployed, attempt.running),
        )

    def failures(self) -> list[Cause]:
        """Why attempts failed, the oldest first."""
        return [attempt.cause for attempt in list(self.attempts) if attempt.cause is not None]


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start
