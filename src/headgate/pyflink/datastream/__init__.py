"""`pyflink.datastream`."""

from headgate.pyflink.datastream.checkpoint_config import *
from headgate.pyflink.datastream.checkpointing_mode import *
from headgate.pyflink.datastream.data_stream import *
from headgate.pyflink.datastream.execution_mode import *
from headgate.pyflink.datastream.externalized_checkpoint_retention import *
from headgate.pyflink.datastream.functions import *
from headgate.pyflink.datastream.output_tag import *
from headgate.pyflink.datastream.state_backend import *
from headgate.pyflink.datastream.stream_execution_environment import *
from headgate.pyflink.datastream.time_domain import *
