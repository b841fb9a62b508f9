"""`pyflink.datastream`."""

from headgate.pyflink.datastream import (
    checkpoint_config,
    checkpointing_mode,
    data_stream,
    execution_mode,
    externalized_checkpoint_retention,
    functions,
    output_tag,
    state_backend,
    stream_execution_environment,
    time_domain,
)
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

__all__: list[str] = []
__all__ += checkpoint_config.__all__
__all__ += checkpointing_mode.__all__
__all__ += data_stream.__all__
__all__ += execution_mode.__all__
__all__ += externalized_checkpoint_retention.__all__
__all__ += functions.__all__
__all__ += output_tag.__all__
__all__ += state_backend.__all__
__all__ += stream_execution_environment.__all__
__all__ += time_domain.__all__
