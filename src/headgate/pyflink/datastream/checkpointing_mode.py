"""`pyflink.datastream.checkpointing_mode`."""

from headgate.api.checkpoint_config import CheckpointingMode as CheckpointingMode
