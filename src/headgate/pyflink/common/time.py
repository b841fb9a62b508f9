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

    of_days = staticmethod(lambda days: timedelta(days=days))
    of_hours = staticmethod(lambda hours: timedelta(hours=hours))
    of_minutes = staticmethod(lambda minutes: timedelta(minutes=minutes))
    of_seconds = staticmethod(lambda seconds: timedelta(seconds=seconds))
    of_millis = staticmethod(lambda millis: timedelta(milliseconds=millis))
    of_nanos = staticmethod(lambda nanos: timedelta(microseconds=nanos // 1000))


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
