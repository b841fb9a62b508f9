"""Time to live of state: `StateTtlConfig` and its builder, with PyFlink's names (SPEC R2.1)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

from headrace.api.durations import Time, milliseconds_of
from headrace.errors import InvalidArgument

MAX_TIMESTAMP = 2**63 - 1
_DEFAULT_INCREMENTAL = (5, False)


def _positive(ttl: Time | timedelta | int) -> int:
    length = milliseconds_of(ttl)
    if length <= 0:
        raise InvalidArgument(
            "HR-2006", f"time to live must be more than 0 ms, got {length} ms; to switch it off, leave it out"
        )
    return length


@dataclass(frozen=True, slots=True)
class CompactFilter:
    """Arguments of `cleanup_in_rocksdb_compact_filter`; None: what the options of the job say."""

    query_entries: int | None = None
    compaction_ms: int | None = None

    def get_query_time_after_num_entries(self) -> int | None:
        """Entries between two looks at the clock."""
        return self.query_entries

    def get_periodic_compaction_time(self) -> timedelta | None:
        """Files that are older are rewritten."""
        return None if self.compaction_ms is None else timedelta(milliseconds=self.compaction_ms)


class IncrementalCleanup(NamedTuple):
    """Arguments of `cleanup_incrementally`."""

    cleanup_size: int
    every_record: bool

    def get_cleanup_size(self) -> int:
        """Entries to check at each access."""
        return self.cleanup_size

    def run_cleanup_for_every_record(self) -> bool:
        """Return True if entries are checked at each record, too."""
        return self.every_record


@dataclass(frozen=True, slots=True)
class CleanupStrategies:
    """The ways to remove expired state besides reading it (SPEC R2.5)."""

    class Strategies(enum.Enum):
        """The ways to remove expired state."""

        FULL_STATE_SCAN_SNAPSHOT = 0
        INCREMENTAL_CLEANUP = 1
        ROCKSDB_COMPACTION_FILTER = 2

    IncrementalCleanupStrategy = IncrementalCleanup
    RocksdbCompactFilterCleanupStrategy = CompactFilter

    full_snapshot: bool = False
    incremental: IncrementalCleanup | None = None
    compact_filter: CompactFilter | None = None
    background: bool = True

    def is_cleanup_in_background(self) -> bool:
        """Return True if expired state is removed in the background by default."""
        return self.background

    def in_full_snapshot(self) -> bool:
        """Return True if snapshots leave out expired state."""
        return self.full_snapshot

    def in_rocksdb_compact_filter(self) -> bool:
        """Return True if expired state is removed from RocksDB's files without an access."""
        return self.compact_filter is not None or self.background

    def get_incremental_cleanup_strategy(self) -> IncrementalCleanup | None:
        """Return the settings of the cleanup at accesses; None: it is off."""
        found = self.incremental_size()
        return None if found is None else IncrementalCleanup(*found)

    def get_rocksdb_compact_filter_cleanup_strategy(self) -> CompactFilter | None:
        """Return the settings of the cleanup in RocksDB's files; None: it is off."""
        return self.compact_filter or (CompactFilter() if self.background else None)

    def incremental_size(self) -> tuple[int, bool] | None:
        """Entries to check at each access, and whether also at each record; None: that cleanup is off."""
        if self.incremental is not None:
            return self.incremental.cleanup_size, self.incremental.every_record
        return _DEFAULT_INCREMENTAL if self.background else None


@dataclass(frozen=True, slots=True, repr=False)
class StateTtlConfig:
    """The time to live of a state: its length, the accesses that renew it, and the removal of expired entries.

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
        """The visibility of expired entries that are not removed yet."""

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

    def is_enabled(self) -> bool:
        """Return True if state expires at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    @property
    def renews_on_read(self) -> bool:
        """Return True if a read renews an entry."""
        return self.update_type is StateTtlConfig.UpdateType.OnReadAndWrite

    @property
    def returns_expired(self) -> bool:
        """Return True if a read may return an expired entry once."""
        return self.visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp

    def get_ttl(self) -> Time:
        """Return the time an entry lives."""
        return Time(self.ttl)

    def get_ttl_time_characteristic(self) -> StateTtlConfig.TtlTimeCharacteristic:
        """Return the clock of expiry."""
        return StateTtlConfig.TtlTimeCharacteristic.ProcessingTime

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """Which accesses renew an entry."""
        return self.update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Return the visibility of expired entries."""
        return self.visibility

    def get_cleanup_strategies(self) -> CleanupStrategies:
        """Return the ways in which expired state is removed."""
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
            """Renew an entry at writes (the default)."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Renew an entry at reads too."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Set the visibility of expired entries; default: a read never returns them."""
            return self._set(visibility=state_visibility)

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Let a read return an expired entry once."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Never return an expired entry (the default)."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Return the clock of expiry: processing time only."""
            if ttl_time_characteristic is not StateTtlConfig.TtlTimeCharacteristic.ProcessingTime:
                raise InvalidArgument(
                    "HR-2006", f"time to live runs on processing time only, got {ttl_time_characteristic!r}"
                )
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Expire by processing time (the default, and the only clock)."""
            return self

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leave expired entries out of snapshots; the running state keeps them."""
            return self._clean(full_snapshot=True)

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool
        ) -> StateTtlConfig.Builder:
            """Check `cleanup_size` entries at each state access, and optionally at each record (hashmap backend)."""
            if cleanup_size <= 0:
                raise InvalidArgument(
                    "HR-2006", f"cleanup_incrementally needs at least 1 entry per access, got {cleanup_size}"
                )
            return self._clean(incremental=IncrementalCleanup(cleanup_size, run_cleanup_for_every_record))

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
                    "HR-2006",
                    f"cleanup_in_rocksdb_compact_filter needs at least 1 entry per reading of the clock, "
                    f"got {query_time_after_num_entries}",
                )
            compaction = None if periodic_compaction_time is None else milliseconds_of(periodic_compaction_time)
            if compaction is not None and compaction < 0:
                raise InvalidArgument("HR-2006", f"periodic_compaction_time must not be negative, got {compaction} ms")
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


StateTtlConfig.CleanupStrategies = CleanupStrategies  # type: ignore[attr-defined]  # as PyFlink nests it
