"""`pyflink.datastream.checkpointing_mode`."""

from headgate.checkpoint_config import CheckpointingMode

__all__ = ["CheckpointingMode"]
