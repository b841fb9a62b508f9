"""`pyflink.datastream.checkpoint_config`, with the methods that programs for Flink 1.x call."""

from __future__ import annotations

import logging
from typing import Self

from headgate.api.checkpoint_config import CheckpointConfig as _CheckpointConfig
from headgate.api.checkpoint_config import ExternalizedCheckpointRetention

__all__ = ["CheckpointConfig", "ExternalizedCheckpointCleanup"]

ExternalizedCheckpointCleanup = ExternalizedCheckpointRetention


class CheckpointConfig(_CheckpointConfig):
    """Headgate's settings of checkpoints, and what Flink 1.x had besides."""

    DEFAULT_TIMEOUT = 600_000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = 1

    enable_externalized_checkpoints = _CheckpointConfig.set_externalized_checkpoint_retention
    set_externalized_checkpoint_cleanup = _CheckpointConfig.set_externalized_checkpoint_retention

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> Self:
        """False tolerates any number of failed checkpoints, True none."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else 2**31 - 1)

    def set_force_checkpointing(self, force: bool) -> Self:
        """Checkpoints of jobs with iterations, which Headgate does not have: no effect (SPEC S8)."""
        logging.getLogger(__name__).warning("set_force_checkpointing(%s) has no effect: there are no iterations", force)
        return self
