"""Event time: where the timestamps of records come from, and how far time has come at least (watermarks).

A watermark t says that no record with a timestamp of t or less is expected any more. The strategy of a stream runs in the
subtask of its source, or of `assign_timestamps_and_watermarks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from headrace.api.durations import Time, milliseconds_of
from headrace.api.functions import callable_of
from headrace.errors import InvalidArgument

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "TimestampAssigner",
    "Watermark",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
]

MIN_WATERMARK = -(1 << 63)
"""The event-time clock before the first watermark."""

MAX_WATERMARK = (1 << 63) - 1
"""The watermark at the end of the data: everything is due."""


@dataclass(frozen=True, slots=True, order=True)
class Watermark:
    """No record with this timestamp (milliseconds) or an earlier one is expected any more."""

    timestamp: int


class TimestampAssigner(ABC):
    """Gives the event timestamp of a record."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Milliseconds since the epoch; `record_timestamp` is the one that the record has, or `MIN_WATERMARK`."""


class WatermarkOutput(Protocol):
    """Takes what a generator says."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Time has come this far; a watermark that is not greater than the last one has no effect."""

    def mark_idle(self) -> None:
        """No record comes for now: other streams go on without waiting for this one, until its next record."""

    def mark_active(self) -> None:
        """Records come again."""


class WatermarkGenerator(ABC):
    """Says how far time has come, from the records that it sees; there is one for each subtask or split."""

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Called for each record."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called every `pipeline.auto-watermark-interval`."""


@dataclass(frozen=True, slots=True)
class WatermarkAlignment:
    """Sources of one group: one whose watermark is further ahead of the slowest than `max_drift` ms pauses."""

    group: str
    max_drift: int
    update_interval: int


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """The timestamps and watermarks of a stream.

    >>> WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5)).out_of_orderness
    5000
    """

    out_of_orderness: int | None = None  # of the built-in generator, which works on whole batches
    generator: Callable[[], WatermarkGenerator] | None = None
    assigner: Callable[[Any, int], int] | str | None = None  # a str is a column of the records
    idle_after: int | None = None
    alignment: WatermarkAlignment | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Timestamps only grow, within a subtask or split."""
        return WatermarkStrategy(out_of_orderness=0)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Time | timedelta | int) -> WatermarkStrategy:
        """A record comes at most this much later than one with a greater timestamp."""
        lateness = milliseconds_of(max_out_of_orderness)
        if lateness < 0:
            raise InvalidArgument("HR-1402", f"the out-of-orderness must not be negative, got {lateness} ms")
        return WatermarkStrategy(out_of_orderness=lateness)

    @staticmethod
    def for_generator(generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """A generator of your own: a class, or a function that makes one."""
        if not callable(generator):
            raise InvalidArgument(
                "HR-1202", f"for_generator() needs a class or a function that makes a generator, got {generator!r}"
            )
        return WatermarkStrategy(generator=generator)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Time does not move before the end of the data."""
        return WatermarkStrategy()

    def with_timestamp_assigner(self, timestamp_assigner: Any) -> WatermarkStrategy:
        """Take timestamps from a TimestampAssigner, from a callable (value, record_timestamp), or from a column by name."""
        if isinstance(timestamp_assigner, str):
            return replace(self, assigner=timestamp_assigner)
        call = callable_of(timestamp_assigner, "extract_timestamp", "with_timestamp_assigner()")
        return replace(self, assigner=call)

    def with_idleness(self, idle_timeout: Time | timedelta | int) -> WatermarkStrategy:
        """A subtask or split without a record for so long holds nothing up any more, until its next record."""
        timeout = milliseconds_of(idle_timeout)
        if timeout <= 0:
            raise InvalidArgument("HR-1402", f"the idle timeout must be positive, got {timeout} ms")
        return replace(self, idle_after=timeout)

    def with_watermark_alignment(
        self,
        watermark_group: str,
        max_allowed_watermark_drift: Time | timedelta | int,
        update_interval: Time | timedelta | int = 1000,
    ) -> WatermarkStrategy:
        """Let a source pause while its watermark is further ahead of the slowest one of the group than the drift."""
        drift, interval = milliseconds_of(max_allowed_watermark_drift), milliseconds_of(update_interval)
        if drift < 0 or interval <= 0:
            raise InvalidArgument(
                "HR-1402", f"the drift must not be negative and the interval positive, got {drift} and {interval} ms"
            )
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift, interval))
