"""`pyflink.datastream.checkpoint_config`, with the methods that programs for Flink 1.x call."""

from __future__ import annotations

from typing import Self

from headrace import config
from headrace.api.checkpoint_config import CheckpointConfig as _CheckpointConfig
from headrace.api.checkpoint_config import CheckpointingMode as CheckpointingMode
from headrace.api.checkpoint_config import ExternalizedCheckpointRetention
from headrace.pyflink._without_effect import warn_without_effect
from headrace.pyflink.common.time import Duration as Duration
from headrace.pyflink.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)

__all__ = ["CheckpointConfig", "ExternalizedCheckpointCleanup"]

ExternalizedCheckpointCleanup = ExternalizedCheckpointRetention


class CheckpointConfig(_CheckpointConfig):
    """Headrace's settings of checkpoints, and what Flink 1.x had besides."""

    DEFAULT_TIMEOUT = 600_000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = 1

    enable_externalized_checkpoints = _CheckpointConfig.set_externalized_checkpoint_retention
    set_externalized_checkpoint_cleanup = _CheckpointConfig.set_externalized_checkpoint_retention
    set_alignment_timeout = _CheckpointConfig.set_aligned_checkpoint_timeout
    get_alignment_timeout = _CheckpointConfig.get_aligned_checkpoint_timeout

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> Self:
        """False tolerates any number of failed checkpoints, True none."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else 2**31 - 1)

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Return True if the first failed checkpoint fails the job."""
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> Self:
        """Set the storage of checkpoints."""
        storage.apply_to(self._configuration)
        return self

    def get_checkpoint_storage(self) -> CheckpointStorage | None:
        """Return the storage of checkpoints; None: as the options say."""
        path = self.get_checkpoint_storage_dir()
        match self._configuration.get(config.CHECKPOINT_STORAGE):
            case "filesystem" if path is not None:
                return FileSystemCheckpointStorage(path)
            case "jobmanager":
                return JobManagerCheckpointStorage(path)
        return None

    def set_force_checkpointing(self, force: bool) -> Self:
        """Do nothing: the setting is for jobs with iterations (SPEC S8)."""
        warn_without_effect("CheckpointConfig.set_force_checkpointing")
        return self
