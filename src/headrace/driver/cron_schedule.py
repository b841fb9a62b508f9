"""Times of day: when a schedule is due next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from croniter import croniter

from headrace.config import FULL_CRON
from headrace.errors import ConfigError


def cron(expression: str | None) -> Callable[[int], int | None] | None:
    """The next moment (ms) of a cron expression after a moment, in local time; None: there is no schedule.

    >>> cron(None)
    >>> cron("61 * * * *")
    Traceback (most recent call last):
    headrace.errors.ConfigError: [HR-1001] headrace.full-checkpoint.cron: '61 * * * *' is no schedule; write minute hour day month weekday, for example '0 3 * * *'
    """
    if expression is None:
        return None
    if not croniter.is_valid(expression):
        raise ConfigError(
            "HR-1001",
            f"{FULL_CRON.key}: {expression!r} is no schedule; write minute hour day month weekday, for example '0 3 * * *'",
        )

    def next_time(now: int) -> int:
        start = datetime.fromtimestamp(now / 1000).astimezone()
        return int(croniter(expression, start).get_next(datetime).timestamp() * 1000)

    return next_time
