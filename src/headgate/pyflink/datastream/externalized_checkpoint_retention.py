"""`pyflink.datastream.externalized_checkpoint_retention`."""

from headgate.api.checkpoint_config import ExternalizedCheckpointRetention as ExternalizedCheckpointRetention
