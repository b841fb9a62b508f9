"""Lengths of time as users give them: `Time`, a timedelta, or milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from headrace.errors import InvalidArgument

__all__ = ["Time", "milliseconds_of"]


@dataclass(frozen=True, slots=True, repr=False)
class Time:
    """A duration, as PyFlink's `Time`.

    >>> Time.hours(1).to_milliseconds(), Time.seconds(2) == Time.milliseconds(2000)
    (3600000, True)
    """

    _milliseconds: int

    @classmethod
    def milliseconds(cls, milliseconds: int) -> Time:
        """A duration in milliseconds."""
        return cls(milliseconds)

    @classmethod
    def seconds(cls, seconds: int) -> Time:
        """A duration in seconds."""
        return cls(seconds * 1000)

    @classmethod
    def minutes(cls, minutes: int) -> Time:
        """A duration in minutes."""
        return cls(minutes * 60_000)

    @classmethod
    def hours(cls, hours: int) -> Time:
        """A duration in hours."""
        return cls(hours * 3_600_000)

    @classmethod
    def days(cls, days: int) -> Time:
        """A duration in days."""
        return cls(days * 86_400_000)

    def to_milliseconds(self) -> int:
        """The duration in milliseconds."""
        return self._milliseconds

    def __repr__(self) -> str:
        return f"Time.milliseconds({self._milliseconds})"


def milliseconds_of(length: Time | timedelta | int) -> int:
    """A duration in whole milliseconds; a plain int is milliseconds already.

    >>> milliseconds_of(timedelta(seconds=1))
    1000
    """
    if isinstance(length, Time):
        return length.to_milliseconds()
    if isinstance(length, timedelta):
        return length // timedelta(milliseconds=1)
    if isinstance(length, int) and not isinstance(length, bool):
        return length
    raise InvalidArgument(
        "HR-1401", f"{length!r} is not a duration: give Time.hours(1), a timedelta, or milliseconds as int"
    )
