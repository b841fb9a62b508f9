"""`pyflink.datastream.checkpoint_config`."""

from headgate.checkpoint_config import CheckpointConfig

__all__ = ["CheckpointConfig"]
