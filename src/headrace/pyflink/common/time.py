"""`pyflink.common.time`."""

from __future__ import annotations

from datetime import timedelta

from headrace.api.durations import Time
from headrace.records.flink_values import Instant

__all__ = ["Duration", "Instant", "Time"]


class Duration(timedelta):
    """A length of time; Headrace takes a timedelta wherever PyFlink takes a Duration.

    >>> Duration.of_seconds(90) == timedelta(minutes=1, seconds=30)
    True
    """

    of_days = staticmethod(lambda days: timedelta(days=days))
    of_hours = staticmethod(lambda hours: timedelta(hours=hours))
    of_minutes = staticmethod(lambda minutes: timedelta(minutes=minutes))
    of_seconds = staticmethod(lambda seconds: timedelta(seconds=seconds))
    of_millis = staticmethod(lambda millis: timedelta(milliseconds=millis))
    of_nanos = staticmethod(lambda nanos: timedelta(microseconds=nanos // 1000))
