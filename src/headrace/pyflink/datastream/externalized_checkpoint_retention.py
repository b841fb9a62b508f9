"""`pyflink.datastream.externalized_checkpoint_retention`."""

from headrace.api.checkpoint_config import ExternalizedCheckpointRetention as ExternalizedCheckpointRetention
