"""`pyflink.datastream.checkpoint_config`."""

from headgate.api.checkpoint_config import CheckpointConfig, ExternalizedCheckpointRetention

__all__ = ["CheckpointConfig", "ExternalizedCheckpointCleanup"]

ExternalizedCheckpointCleanup = ExternalizedCheckpointRetention
