"""The schedule of periodic checkpoints (SPEC R5.1, R5.4). Part of the coordinator: pure, on the driver."""

from __future__ import annotations

from random import Random

from headrace.checkpoint.settings import CheckpointSettings
from headrace.ids import OperatorId


class PeriodicSchedule:
    """The times of periodic checkpoints.

    The first delay is random between the pause and the interval, so that jobs do not checkpoint in step; after a
    restart it is the pause. From then on the times are fixed: a late checkpoint does not move the next one.
    """

    def __init__(self, settings: CheckpointSettings, rng: Random) -> None:
        self._settings = settings
        self._backlog: set[OperatorId] = set()
        interval, pause = settings.interval_ms, settings.min_pause_ms
        self._delay = None if interval is None else rng.randint(pause, interval)
        self._running = False
        self.next_at: int | None = None

    @property
    def interval(self) -> int | None:
        """The interval that applies now; None: no checkpoints."""
        return self._settings.interval(backlog=bool(self._backlog))

    def start(self, now: int) -> None:
        """Begin when the job runs; without an interval nothing happens."""
        if self._delay is not None:
            self._running = True
            self.next_at = now + self._delay
            self._delay = self._settings.min_pause_ms

    def stop(self) -> None:
        self._running = False
        self.next_at = None

    def fire(self) -> None:
        """Set the time that follows the one that has come."""
        interval = self.interval
        assert self.next_at is not None
        self.next_at = None if interval is None else self.next_at + interval

    def postpone(self, at: int) -> None:
        """Try the checkpoint that was due again at this time: it came too early for the pause."""
        if self._running:
            self.next_at = at

    def backlog(self, operator: OperatorId, now: int, *, processing: bool) -> None:
        """Note whether a source processes a backlog; a shorter interval applies at once."""
        (self._backlog.add if processing else self._backlog.discard)(operator)
        interval = self.interval
        if self._running and interval is not None and (self.next_at is None or now + interval < self.next_at):
            self.next_at = now + interval

    def clear_backlog(self) -> None:
        """Forget the backlogs of the last attempt: the sources of the new one report theirs."""
        self._backlog.clear()
