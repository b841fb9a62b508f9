"""How long state lives: `Time`, `StateTtlConfig` and its builder, in PyFlink's spelling (SPEC R2.1)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta

from headgate.errors import InvalidArgument

__all__ = ["MAX_TIMESTAMP", "CleanupStrategies", "StateTtlConfig", "Time", "milliseconds_of"]

MAX_TIMESTAMP = 2**63 - 1
_DEFAULT_INCREMENTAL = (5, False)


class Time:
    """A length of time, as PyFlink's `Time`.

    >>> Time.hours(1).to_milliseconds(), Time.seconds(2) == Time.milliseconds(2000)
    (3600000, True)
    """

    __slots__ = ("_milliseconds",)

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    @classmethod
    def milliseconds(cls, milliseconds: int) -> Time:
        """That many milliseconds."""
        return cls(milliseconds)

    @classmethod
    def seconds(cls, seconds: int) -> Time:
        """That many seconds."""
        return cls(seconds * 1000)

    @classmethod
    def minutes(cls, minutes: int) -> Time:
        """That many minutes."""
        return cls(minutes * 60_000)

    @classmethod
    def hours(cls, hours: int) -> Time:
        """That many hours."""
        return cls(hours * 3_600_000)

    @classmethod
    def days(cls, days: int) -> Time:
        """That many days."""
        return cls(days * 86_400_000)

    def to_milliseconds(self) -> int:
        """The length in milliseconds."""
        return self._milliseconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Time) and other._milliseconds == self._milliseconds

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __repr__(self) -> str:
        return f"Time.milliseconds({self._milliseconds})"


def milliseconds_of(length: Time | timedelta | int) -> int:
    """A length of time in whole milliseconds; a plain int is milliseconds already.

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
        f"{length!r} is not a length of time: give Time.hours(1), a timedelta, or milliseconds as int"
    )


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
    """What frees expired state besides reading it (SPEC R2.5)."""

    full_snapshot: bool = False
    incremental: tuple[int, bool] | None = None
    compact_filter: CompactFilter | None = None
    background: bool = True

    def incremental_size(self) -> tuple[int, bool] | None:
        """Entries to check at each access, and whether also at each record; None: that cleanup is off."""
        if self.incremental is not None:
            return self.incremental
        return _DEFAULT_INCREMENTAL if self.background else None


class StateTtlConfig:
    """How long state lives, what renews it, and how expired state goes.

    >>> config = (
    ...     StateTtlConfig.new_builder(Time.hours(1))
    ...     .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
    ...     .cleanup_incrementally(10, True)
    ...     .build()
    ... )
    >>> config.ttl, config.cleanup.incremental_size()
    (3600000, (10, True))
    """

    __slots__ = ("cleanup", "ttl", "update_type", "visibility")

    class UpdateType(enum.Enum):
        """Which accesses renew an entry."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(enum.Enum):
        """Whether a read may still see an expired entry that nobody has removed yet."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(enum.Enum):
        """The clock of expiry; there is only one."""

        ProcessingTime = 0

    def __init__(
        self,
        ttl: int,
        update_type: StateTtlConfig.UpdateType,
        visibility: StateTtlConfig.StateVisibility,
        cleanup: CleanupStrategies,
    ) -> None:
        self.ttl = ttl
        self.update_type = update_type
        self.visibility = visibility
        self.cleanup = cleanup

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
        """Whether a read starts the time anew."""
        return self.update_type is StateTtlConfig.UpdateType.OnReadAndWrite

    @property
    def returns_expired(self) -> bool:
        """Whether a read may see an expired entry once."""
        return self.visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp

    def get_ttl(self) -> Time:
        """The time an entry lives."""
        return Time(self.ttl)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """Which accesses renew an entry."""
        return self.update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Whether expired entries can be seen."""
        return self.visibility

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """What frees expired state."""
        return self.cleanup

    def __repr__(self) -> str:
        return f"StateTtlConfig({self.ttl} ms, {self.update_type.name}, {self.visibility.name})"

    class Builder:
        """Collects the settings of a StateTtlConfig."""

        def __init__(self, ttl: Time | timedelta | int) -> None:
            self._ttl = milliseconds_of(ttl)
            if self._ttl <= 0:
                raise InvalidArgument(
                    f"time to live must be more than 0 ms, got {self._ttl} ms; to switch it off, leave it out"
                )
            self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
            self._visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
            self._full_snapshot = False
            self._incremental: tuple[int, bool] | None = None
            self._compact_filter: CompactFilter | None = None
            self._background = True

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Which accesses renew an entry; default: creating and writing it."""
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Writes renew an entry (the default)."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Reads renew an entry too."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Whether expired entries can be seen; default: never."""
            self._visibility = visibility
            return self

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """A read may see an expired entry once."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """A read never sees an expired entry (the default)."""
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
            """Leave expired entries out of snapshots; the running state is not touched."""
            self._full_snapshot = True
            return self

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool
        ) -> StateTtlConfig.Builder:
            """Check `cleanup_size` entries at each state access, and if asked at each record (hashmap backend)."""
            if cleanup_size <= 0:
                raise InvalidArgument(f"cleanup_incrementally needs at least 1 entry per access, got {cleanup_size}")
            self._incremental = (cleanup_size, run_cleanup_for_every_record)
            return self

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
                    f"cleanup_in_rocksdb_compact_filter needs at least 1 entry per look at the clock, "
                    f"got {query_time_after_num_entries}"
                )
            compaction = None if periodic_compaction_time is None else milliseconds_of(periodic_compaction_time)
            if compaction is not None and compaction < 0:
                raise InvalidArgument(f"periodic_compaction_time must not be negative, got {compaction} ms")
            self._compact_filter = CompactFilter(query_time_after_num_entries, compaction)
            return self

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Only clean in the background what is configured explicitly."""
            self._background = False
            return self

        def set_ttl(self, ttl: Time | timedelta | int) -> StateTtlConfig.Builder:
            """Another time to live."""
            self._ttl = _positive(ttl)
            return self

        def build(self) -> StateTtlConfig:
            """The configuration."""
            cleanup = CleanupStrategies(self._full_snapshot, self._incremental, self._compact_filter, self._background)
            return StateTtlConfig(self._ttl, self._update_type, self._visibility, cleanup)
