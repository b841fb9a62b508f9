"""`pyflink.datastream.externalized_checkpoint_retention`."""

from headgate.checkpoint_config import ExternalizedCheckpointRetention

__all__ = ["ExternalizedCheckpointRetention"]
