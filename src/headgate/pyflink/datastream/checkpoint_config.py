"""`pyflink.datastream.checkpoint_config`."""

from headgate.api.checkpoint_config import CheckpointConfig

__all__ = ["CheckpointConfig"]
