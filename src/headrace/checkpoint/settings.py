"""Settings of checkpoints: properties, retention, and the options of a job (SPEC R5.2, R5.4, 11).

`CheckpointProperties` belong to one checkpoint, `CheckpointSettings` to a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from headrace import config
from headrace.checkpoint.types import AlignmentKind, CheckpointOptions, SavepointFormat, SnapshotType
from headrace.config import Configuration
from headrace.errors import InvalidArgument

_YEAR_MS = 365 * 24 * 60 * 60 * 1000
_LONG_MAX = 2**63 - 1
"""Flink's 'no timeout', still found in configuration files."""


# ---- one checkpoint ------------------------------------------------------------------------------------------------


class EndStatus(Enum):
    """The end of a job, for retention; SUSPENDED is not an end: another driver may resume the job."""

    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    SUSPENDED = "SUSPENDED"

    @property
    def is_terminal(self) -> bool:
        """Return True if no driver will resume the job."""
        return self is not EndStatus.SUSPENDED


class RetentionPolicy(Enum):
    """Which completed checkpoints outlive their job; the values are those of externalized-checkpoint-retention."""

    NEVER_RETAIN_AFTER_TERMINATION = "NO_EXTERNALIZED_CHECKPOINTS"
    RETAIN_ON_FAILURE = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"

    @property
    def discard_at(self) -> frozenset[EndStatus]:
        """The ends of a job that delete its checkpoints (SPEC R5.2); SUSPENDED is no end and deletes nothing."""
        kept = {
            RetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION: frozenset[EndStatus](),
            RetentionPolicy.RETAIN_ON_FAILURE: {EndStatus.FAILED},
            RetentionPolicy.RETAIN_ON_CANCELLATION: {EndStatus.FAILED, EndStatus.CANCELED},
        }[self]
        return frozenset({EndStatus.FINISHED, EndStatus.CANCELED, EndStatus.FAILED} - kept)


class ClaimMode(Enum):
    """The owner of the files of the snapshot that a job starts from (SPEC R8.4)."""

    NO_CLAIM = "NO_CLAIM"  # the user: never deleted, and the first checkpoint uses none of them
    CLAIM = "CLAIM"  # the job: deleted once subsumed and unused
    LEGACY = "LEGACY"  # the user, but checkpoints may depend on them


@dataclass(frozen=True, slots=True)
class CheckpointProperties:
    """The properties of a checkpoint, fixed when it is requested.

    `force`: may exceed the number of concurrent checkpoints and skips the pause. `discard_subsumed`, `discard_at`: its
    files are deleted when it is subsumed, or when the job ends so. `unclaimed`: a snapshot of the user that the job was
    restored from.
    """

    type: SnapshotType
    force: bool = False
    discard_subsumed: bool = False
    discard_at: frozenset[EndStatus] = frozenset()
    unclaimed: bool = False
    format: SavepointFormat | None = None
    drain: bool = False

    @classmethod
    def for_checkpoint(cls, policy: RetentionPolicy) -> CheckpointProperties:
        """A checkpoint of the job."""
        return cls(SnapshotType.CHECKPOINT, discard_subsumed=True, discard_at=policy.discard_at)

    @classmethod
    def for_savepoint(cls, force: bool, format: SavepointFormat = SavepointFormat.CANONICAL) -> CheckpointProperties:
        """A savepoint: it belongs to the user and is never deleted by the job."""
        return cls(SnapshotType.SAVEPOINT, force, format=format)

    @classmethod
    def for_stop(
        cls, force: bool, drain: bool, format: SavepointFormat = SavepointFormat.CANONICAL
    ) -> CheckpointProperties:
        """The savepoint that a job stops with; `drain`: it ends for good."""
        return cls(SnapshotType.SYNC_SAVEPOINT, force, format=format, drain=drain)

    @classmethod
    def for_restored(cls, mode: ClaimMode, policy: RetentionPolicy) -> CheckpointProperties:
        """The snapshot that a job starts from.

        >>> CheckpointProperties.for_restored(ClaimMode.NO_CLAIM, RetentionPolicy.RETAIN_ON_FAILURE).unclaimed
        True
        """
        if mode is ClaimMode.CLAIM:
            return cls.for_checkpoint(policy)
        if mode is ClaimMode.LEGACY:
            return cls.for_savepoint(force=False)
        return cls(SnapshotType.SAVEPOINT, unclaimed=True, format=SavepointFormat.NATIVE)

    @property
    def is_savepoint(self) -> bool:
        """Return True if it is a savepoint, plain or to stop with."""
        return self.type.is_savepoint

    @property
    def is_synchronous(self) -> bool:
        """Return True if the job stops with it."""
        return self.type is SnapshotType.SYNC_SAVEPOINT

    @property
    def is_plain_savepoint(self) -> bool:
        """Return True if it has no effect on the job: not kept for recovery, not notified, nothing committed (R8.1)."""
        return self.type is SnapshotType.SAVEPOINT

    def as_full(self) -> CheckpointProperties:
        """The same checkpoint, written from scratch; a savepoint always is."""
        return self if self.is_savepoint else replace(self, type=SnapshotType.FULL_CHECKPOINT)


# ---- one job -------------------------------------------------------------------------------------------------------


def stored_in_files(configuration: Configuration) -> bool:
    """Return True if checkpoints are files; unset, they are if there is a directory. Else they are in driver memory."""
    chosen = configuration.get(config.CHECKPOINT_STORAGE)
    return chosen == "filesystem" if chosen else bool(configuration.get(config.CHECKPOINT_DIR))


@dataclass(frozen=True, slots=True)
class FullCheckpointPolicy:
    """The limits beyond which an automatic full checkpoint ends a chain of increments (SPEC R7.6); None: never.

    Checked after each completed checkpoint: its full size in bytes, its shared files in total or of one operator, and
    the number of checkpoints it builds on. `cooldown_ms` passes between a full checkpoint and the next one for such a
    reason; a full one that failed is tried again after `retry_ms`, then twice as long, and so on up to the cooldown.
    """

    max_size: int | None = None
    max_files: int | None = None
    max_files_per_operator: int | None = None
    max_chain_length: int | None = None
    cooldown_ms: int = 60 * 60 * 1000
    retry_ms: int = 60 * 1000

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> FullCheckpointPolicy:
        """The policy that the options set.

        >>> options = Configuration({"headrace.full-checkpoint.max-chain-length": 20})
        >>> FullCheckpointPolicy.from_configuration(options).max_chain_length
        20
        """
        get = configuration.get
        size, files = get(config.FULL_MAX_SIZE), get(config.FULL_MAX_FILES)
        of_operator, chain = get(config.FULL_MAX_FILES_PER_OPERATOR), get(config.FULL_MAX_CHAIN)
        return cls(size, files, of_operator, chain, get(config.FULL_COOLDOWN), get(config.FULL_RETRY))


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The settings of a job's coordinator, with Flink's defaults and bounds; times are milliseconds.

    Values that Flink corrects silently are corrected here too; `warnings` says so, and what else looks wrong.

    >>> CheckpointSettings(interval_ms=12, min_pause_ms=50).interval_ms
    50
    """

    interval_ms: int | None = None  # None: no periodic checkpoints
    interval_during_backlog_ms: int | None = None  # None: as interval_ms; 0: none while a source has a backlog
    exactly_once: bool = True
    timeout_ms: int = config.CHECKPOINT_TIMEOUT.default
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    retention: RetentionPolicy = RetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
    num_retained: int = 1
    unaligned: bool = False
    aligned_timeout_ms: int = 0
    after_tasks_finish: bool = True
    incremental: bool = False
    savepoint_dir: str | None = None
    history_size: int = config.CHECKPOINT_HISTORY.default
    full: FullCheckpointPolicy = FullCheckpointPolicy()
    warnings: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        """Correct what Flink corrects (SPEC R5.4, R6.4); the bounds of single values are those of their options."""
        self._check_backlog_interval()
        warnings: list[str] = []
        pause = min(self.min_pause_ms, _YEAR_MS)
        corrected: dict[str, Any] = {"unaligned": self.unaligned and self.exactly_once, "min_pause_ms": pause}
        if self.interval_ms is not None:
            corrected["interval_ms"] = max(self.interval_ms, pause)
        if self.num_retained < 1:
            corrected["num_retained"] = 1
            warnings.append(
                f"{config.CHECKPOINT_NUM_RETAINED.key} is {self.num_retained}: at least one completed checkpoint is "
                "needed for recovery, so one is kept"
            )
        if self.min_pause_ms > 0 and self.max_concurrent > 1:
            warnings.append(
                f"{config.CHECKPOINT_MIN_PAUSE.key} counts from the last completed checkpoint: with "
                f"{config.CHECKPOINT_MAX_CONCURRENT.key} = {self.max_concurrent} checkpoints may still overlap; set it "
                "to 1 to have a pause after each"
            )
        if self.unaligned and not self.exactly_once:
            warnings.append(
                f"{config.UNALIGNED.key} needs {config.CHECKPOINT_MODE.key} = EXACTLY_ONCE and is ignored: in "
                "AT_LEAST_ONCE mode barriers never wait for data anyway"
            )
        elif self.unaligned and self.max_concurrent != 1:
            raise InvalidArgument(
                "HR-1006",
                f"unaligned checkpoints run one at a time, but {config.CHECKPOINT_MAX_CONCURRENT.key} is "
                f"{self.max_concurrent}: set it to 1, or {config.UNALIGNED.key} to false",
            )
        for name, value in (corrected | {"warnings": tuple(warnings)}).items():
            object.__setattr__(self, name, value)

    def _check_backlog_interval(self) -> None:
        backlog = self.interval_during_backlog_ms
        key = config.CHECKPOINT_INTERVAL_BACKLOG.key
        if backlog is None or (backlog == 0 and self.interval_ms is not None):
            return
        if self.interval_ms is None:
            raise InvalidArgument("HR-1006", f"{key} is set, but {config.CHECKPOINT_INTERVAL.key} is not: set it too")
        if backlog < self.interval_ms:
            raise InvalidArgument(
                "HR-1006",
                f"{key} must be at least {config.CHECKPOINT_INTERVAL.key} ({self.interval_ms} ms), or 0 for no "
                f"checkpoints during a backlog; got {backlog} ms",
            )

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> CheckpointSettings:
        """The settings that the options set.

        >>> options = Configuration({"execution.checkpointing.interval": "10 s"})
        >>> CheckpointSettings.from_configuration(options).interval_ms
        10000
        """
        get = configuration.get
        return cls(
            interval_ms=get(config.CHECKPOINT_INTERVAL),
            interval_during_backlog_ms=get(config.CHECKPOINT_INTERVAL_BACKLOG),
            exactly_once=get(config.CHECKPOINT_MODE) == "EXACTLY_ONCE",
            timeout_ms=get(config.CHECKPOINT_TIMEOUT),
            min_pause_ms=get(config.CHECKPOINT_MIN_PAUSE),
            max_concurrent=get(config.CHECKPOINT_MAX_CONCURRENT),
            tolerable_failures=get(config.CHECKPOINT_TOLERABLE_FAILURES),
            retention=RetentionPolicy(get(config.CHECKPOINT_RETENTION)),
            num_retained=get(config.CHECKPOINT_NUM_RETAINED),
            unaligned=get(config.UNALIGNED),
            aligned_timeout_ms=get(config.ALIGNED_TIMEOUT),
            after_tasks_finish=get(config.CHECKPOINT_AFTER_FINISH),
            incremental=get(config.CHECKPOINT_INCREMENTAL) and stored_in_files(configuration),
            savepoint_dir=get(config.SAVEPOINT_DIR),
            history_size=get(config.CHECKPOINT_HISTORY),
            full=FullCheckpointPolicy.from_configuration(configuration),
        )

    def interval(self, *, backlog: bool) -> int | None:
        """The time between two checkpoints while sources have a backlog or not; None: no checkpoints.

        >>> CheckpointSettings(interval_ms=1000, interval_during_backlog_ms=0).interval(backlog=True)
        """
        if backlog and self.interval_during_backlog_ms is not None:
            return self.interval_during_backlog_ms or None
        return self.interval_ms

    def options_for(self, properties: CheckpointProperties, location: str) -> CheckpointOptions:
        """Return the options with which subtasks take such a checkpoint (SPEC R6.4)."""
        timeout = None
        if not self.exactly_once:
            kind = AlignmentKind.AT_LEAST_ONCE
        elif properties.is_savepoint or not self.unaligned:
            kind = AlignmentKind.ALIGNED
        elif self.aligned_timeout_ms in {0, _LONG_MAX}:
            kind = AlignmentKind.UNALIGNED
        else:
            kind, timeout = AlignmentKind.ALIGNED_WITH_TIMEOUT, self.aligned_timeout_ms
        return CheckpointOptions(properties.type, kind, timeout, location, properties.format, properties.drain)
