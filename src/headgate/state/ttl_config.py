"""Time to live of state: `Time`, `StateTtlConfig` and its builder, with PyFlink's names (SPEC R2.1)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from headgate.errors import InvalidArgument

MAX_TIMESTAMP = 2**63 - 1
_DEFAULT_INCREMENTAL = (5, False)


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
    raise InvalidArgument(f"{length!r} is not a duration: give Time.hours(1), a timedelta, or milliseconds as int")


def _positive(ttl: Time | timedelta | int) -> int:
    length = milliseconds_of(ttl)
    if length <= 0:
        raise InvalidArgument(f"time to live must be more than 0 ms, got {length} ms; to switch it off, leave it out")
    return length


@dataclass(frozen=True, slots=True)
class CompactFilter:
    """Arguments of `cleanup_in_rocksdb_compact_filter`; None: what the options of the job say."""

    query_entries: int | None = None
    compaction_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CleanupStrategies:
    """What removes expired state besides reading it (SPEC R2.5)."""

    full_snapshot: bool = False
    incremental: tuple[int, bool] | None = None
    compact_filter: CompactFilter | None = None
    background: bool = True

    def incremental_size(self) -> tuple[int, bool] | None:
        """Entries to check at each access, and whether also at each record; None: that cleanup is off."""
        if self.incremental is not None:
            return self.incremental
        return _DEFAULT_INCREMENTAL if self.background else None


@dataclass(frozen=True, slots=True, repr=False)
class StateTtlConfig:
    """How long state lives, which accesses renew it, and how expired state is removed.

    >>> config = (
    ...     StateTtlConfig.new_builder(Time.hours(1))
    ...     .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
    ...     .cleanup_incrementally(10, True)
    ...     .build()
    ... )
    >>> config.ttl, config.cleanup.incremental_size()
    (3600000, (10, True))
    """

    class UpdateType(enum.Enum):
        """Which accesses renew an entry."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(enum.Enum):
        """Whether a read may return an expired entry that is not removed yet."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(enum.Enum):
        """The clock of expiry: processing time only."""

        ProcessingTime = 0

    ttl: int
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    visibility: StateVisibility = StateVisibility.NeverReturnExpired
    cleanup: CleanupStrategies = CleanupStrategies()

    @staticmethod
    def new_builder(ttl: Time | timedelta | int) -> StateTtlConfig.Builder:
        """Start a configuration; `ttl` is a Time, a timedelta or milliseconds."""
        return StateTtlConfig.Builder(ttl)

    @property
    def is_enabled(self) -> bool:
        """Whether state expires at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    @property
    def renews_on_read(self) -> bool:
        """Whether a read renews an entry."""
        return self.update_type is StateTtlConfig.UpdateType.OnReadAndWrite

    @property
    def returns_expired(self) -> bool:
        """Whether a read may return an expired entry once."""
        return self.visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp

    def get_ttl(self) -> Time:
        """The time an entry lives."""
        return Time(self.ttl)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """Which accesses renew an entry."""
        return self.update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Whether a read may return expired entries."""
        return self.visibility

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """What removes expired state."""
        return self.cleanup

    def __repr__(self) -> str:
        return f"StateTtlConfig({self.ttl} ms, {self.update_type.name}, {self.visibility.name})"

    class Builder:
        def __init__(self, ttl: Time | timedelta | int) -> None:
            self._config = StateTtlConfig(_positive(ttl))

        def _set(self, **changes: Any) -> StateTtlConfig.Builder:
            self._config = replace(self._config, **changes)
            return self

        def _clean(self, **changes: Any) -> StateTtlConfig.Builder:
            return self._set(cleanup=replace(self._config.cleanup, **changes))

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Which accesses renew an entry; default: creating and writing it."""
            return self._set(update_type=update_type)

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Writes renew an entry (the default)."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Reads renew an entry too."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Whether a read may return expired entries; default: never."""
            return self._set(visibility=visibility)

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """A read may return an expired entry once."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """A read never returns an expired entry (the default)."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(self, clock: StateTtlConfig.TtlTimeCharacteristic) -> StateTtlConfig.Builder:
            """The clock of expiry: processing time only."""
            if clock is not StateTtlConfig.TtlTimeCharacteristic.ProcessingTime:
                raise InvalidArgument(f"time to live runs on processing time only, got {clock!r}")
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """The clock of expiry is processing time (the default, and the only one)."""
            return self

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leave expired entries out of snapshots; the running state keeps them."""
            return self._clean(full_snapshot=True)

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool
        ) -> StateTtlConfig.Builder:
            """Check `cleanup_size` entries at each state access, and optionally at each record (hashmap backend)."""
            if cleanup_size <= 0:
                raise InvalidArgument(f"cleanup_incrementally needs at least 1 entry per access, got {cleanup_size}")
            return self._clean(incremental=(cleanup_size, run_cleanup_for_every_record))

        def cleanup_in_rocksdb_compact_filter(
            self,
            query_time_after_num_entries: int | None = None,
            periodic_compaction_time: Time | timedelta | int | None = None,
        ) -> StateTtlConfig.Builder:
            """Remove expired entries from the disk (rocksdb backend), without any access.

            The clock is read after every `query_time_after_num_entries` entries. RocksDB rewrites a file that is older
            than `periodic_compaction_time`, so that it gives back the space of removed entries; 0: never. Unset values
            are those of state.backend.rocksdb.compaction.filter.*.
            """
            if query_time_after_num_entries is not None and query_time_after_num_entries <= 0:
                raise InvalidArgument(
                    f"cleanup_in_rocksdb_compact_filter needs at least 1 entry per reading of the clock, "
                    f"got {query_time_after_num_entries}"
                )
            compaction = None if periodic_compaction_time is None else milliseconds_of(periodic_compaction_time)
            if compaction is not None and compaction < 0:
                raise InvalidArgument(f"periodic_compaction_time must not be negative, got {compaction} ms")
            return self._clean(compact_filter=CompactFilter(query_time_after_num_entries, compaction))

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Clean in the background only with the strategies that are configured explicitly."""
            return self._clean(background=False)

        def set_ttl(self, ttl: Time | timedelta | int) -> StateTtlConfig.Builder:
            """Replace the time to live."""
            return self._set(ttl=_positive(ttl))

        def build(self) -> StateTtlConfig:
            """Make the configuration."""
            return self._config
