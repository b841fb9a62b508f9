"""The checkpoint settings of a program, in PyFlink's spelling: a face of the configuration's config."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any, Self

from headrace import config
from headrace.config import Configuration, Option

__all__ = ["CheckpointConfig", "CheckpointingMode", "ExternalizedCheckpointRetention"]


_MILLISECOND = timedelta(milliseconds=1)


class CheckpointingMode(Enum):
    """The guarantee for state after a failure: each record counts exactly once, or at least once."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class ExternalizedCheckpointRetention(Enum):
    """The treatment of retained checkpoints when the job ends (SPEC R5.2)."""

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"


class CheckpointConfig:
    """Reads and sets the options of `execution.checkpointing.*`.

    >>> settings = CheckpointConfig(Configuration()).set_checkpoint_interval(1000)
    >>> settings.get_checkpoint_interval(), settings.is_checkpointing_enabled()
    (1000, True)
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def _set(self, option: Option[Any], value: object) -> Self:
        self._configuration.set(option, value)
        return self

    def is_checkpointing_enabled(self) -> bool:
        """Return True if there are periodic checkpoints."""
        return self.get_checkpoint_interval() > 0

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """EXACTLY_ONCE unless set."""
        return CheckpointingMode(self._configuration.get(config.CHECKPOINT_MODE))

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> Self:
        """Align barriers (exactly once), or only count them (at least once)."""
        return self._set(config.CHECKPOINT_MODE, checkpointing_mode.value)

    def get_checkpoint_interval(self) -> int:
        """Milliseconds; -1 if there are no periodic checkpoints."""
        interval = self._configuration.get(config.CHECKPOINT_INTERVAL)
        return -1 if interval is None else interval

    def set_checkpoint_interval(self, checkpoint_interval: int) -> Self:
        """Milliseconds between two checkpoints."""
        return self._set(config.CHECKPOINT_INTERVAL, checkpoint_interval)

    def get_checkpoint_timeout(self) -> int:
        """Milliseconds."""
        return self._configuration.get(config.CHECKPOINT_TIMEOUT)

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> Self:
        """A checkpoint that takes longer is aborted."""
        return self._set(config.CHECKPOINT_TIMEOUT, checkpoint_timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        """Milliseconds."""
        return self._configuration.get(config.CHECKPOINT_MIN_PAUSE)

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> Self:
        """Milliseconds between the end of one checkpoint and the start of the next."""
        return self._set(config.CHECKPOINT_MIN_PAUSE, min_pause_between_checkpoints)

    def get_max_concurrent_checkpoints(self) -> int:
        """Return the number of checkpoints that may be under way at the same time."""
        return self._configuration.get(config.CHECKPOINT_MAX_CONCURRENT)

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> Self:
        """Set the number of checkpoints that may be under way at the same time."""
        return self._set(config.CHECKPOINT_MAX_CONCURRENT, max_concurrent_checkpoints)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """Return the number of checkpoints that may fail in a row."""
        return self._configuration.get(config.CHECKPOINT_TOLERABLE_FAILURES)

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> Self:
        """Set the number of checkpoints that may fail in a row before the job fails."""
        return self._set(config.CHECKPOINT_TOLERABLE_FAILURES, tolerable_checkpoint_failure_number)

    def set_prefer_checkpoint_for_recovery(self, prefer: bool) -> Self:
        """Let `--resume` take the newest checkpoint even if the job was stopped with a newer savepoint."""
        return self._set(config.RESUME_PREFERS_CHECKPOINT, prefer)

    def is_prefer_checkpoint_for_recovery(self) -> bool:
        """Return True if `--resume` ignores a newer savepoint."""
        return self._configuration.get(config.RESUME_PREFERS_CHECKPOINT)

    def set_externalized_checkpoint_retention(self, retention_mode: ExternalizedCheckpointRetention) -> Self:
        """Set the treatment of retained checkpoints when the job ends."""
        return self._set(config.CHECKPOINT_RETENTION, retention_mode.value)

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """Return the treatment of retained checkpoints when the job ends."""
        return ExternalizedCheckpointRetention(self._configuration.get(config.CHECKPOINT_RETENTION))

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Return True if checkpoints may outlive the job."""
        none = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        return self.get_externalized_checkpoint_retention() is not none

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Return True if barriers may overtake records."""
        return self._configuration.get(config.UNALIGNED)

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> Self:
        """Let barriers overtake records; what they overtake becomes part of the checkpoint."""
        return self._set(config.UNALIGNED, enabled)

    def disable_unaligned_checkpoints(self) -> Self:
        """Barriers wait for the records before them."""
        return self.enable_unaligned_checkpoints(False)

    def set_aligned_checkpoint_timeout(self, alignment_timeout: int | timedelta) -> Self:
        """An alignment that takes longer (milliseconds, or a timedelta) turns unaligned; 0 starts unaligned."""
        given = alignment_timeout
        return self._set(config.ALIGNED_TIMEOUT, given // _MILLISECOND if isinstance(given, timedelta) else given)

    def get_aligned_checkpoint_timeout(self) -> timedelta:
        """Return the time after which an alignment turns unaligned."""
        return self._configuration.get(config.ALIGNED_TIMEOUT) * _MILLISECOND

    def set_force_unaligned_checkpoints(self, force_unaligned_checkpoints: bool = True) -> Self:
        """Allow unaligned checkpoints also in jobs with partition_custom()."""
        return self._set(config.UNALIGNED_FORCED, force_unaligned_checkpoints)

    def is_force_unaligned_checkpoints(self) -> bool:
        """Return True if unaligned checkpoints are allowed also in jobs with partition_custom()."""
        return self._configuration.get(config.UNALIGNED_FORCED)

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> Self:
        """The directory for checkpoints: a path, or a URL (s3, gs, az, abfs, abfss, webhdfs, swebhdfs)."""
        return self._set(config.CHECKPOINT_DIR, checkpoint_path)

    def get_checkpoint_storage_dir(self) -> str | None:
        """The directory for checkpoints."""
        return self._configuration.get(config.CHECKPOINT_DIR)
