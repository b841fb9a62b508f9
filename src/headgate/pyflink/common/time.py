"""`pyflink.common.time`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from headgate.state.ttl_config import Time

__all__ = ["Duration", "Instant", "Time"]


class Duration(timedelta):
    """A length of time; Headgate takes a timedelta wherever PyFlink takes a Duration.

    >>> Duration.of_seconds(90) == timedelta(minutes=1, seconds=30)
    True
    """

    @staticmethod
    def of_days(days: int) -> timedelta:
        return timedelta(days=days)

    @staticmethod
    def of_hours(hours: int) -> timedelta:
        return timedelta(hours=hours)

    @staticmethod
    def of_minutes(minutes: int) -> timedelta:
        return timedelta(minutes=minutes)

    @staticmethod
    def of_seconds(seconds: int) -> timedelta:
        return timedelta(seconds=seconds)

    @staticmethod
    def of_millis(millis: int) -> timedelta:
        return timedelta(milliseconds=millis)

    @staticmethod
    def of_nanos(nanos: int) -> timedelta:
        """Rounded down to whole microseconds."""
        return timedelta(microseconds=nanos // 1000)


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time, as seconds and nanoseconds since 1970."""

    seconds: int
    nanos: int

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        return Instant(epoch_milli // 1000, epoch_milli % 1000 * 1_000_000)

    def to_epoch_milli(self) -> int:
        return self.seconds * 1000 + self.nanos // 1_000_000
