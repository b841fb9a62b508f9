"""`pyflink.datastream.checkpointing_mode`."""

from headrace.api.checkpoint_config import CheckpointingMode as CheckpointingMode
