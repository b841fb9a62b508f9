"""`pyflink.datastream`."""

from headgate.pyflink.datastream.async_data_stream import *
from headgate.pyflink.datastream.checkpoint_config import *
from headgate.pyflink.datastream.checkpoint_storage import *
from headgate.pyflink.datastream.checkpointing_mode import *
from headgate.pyflink.datastream.data_stream import *
from headgate.pyflink.datastream.execution_mode import *
from headgate.pyflink.datastream.externalized_checkpoint_retention import *
from headgate.pyflink.datastream.functions import *
from headgate.pyflink.datastream.output_tag import *
from headgate.pyflink.datastream.slot_sharing_group import *
from headgate.pyflink.datastream.state_backend import *
from headgate.pyflink.datastream.stream_execution_environment import *
from headgate.pyflink.datastream.time_characteristic import *
from headgate.pyflink.datastream.time_domain import *
from headgate.pyflink.datastream.timerservice import *
from headgate.pyflink.datastream.window import CountWindow as CountWindow
from headgate.pyflink.datastream.window import GlobalWindow as GlobalWindow
from headgate.pyflink.datastream.window import MergingWindowAssigner as MergingWindowAssigner
from headgate.pyflink.datastream.window import TimeWindow as TimeWindow
from headgate.pyflink.datastream.window import Trigger as Trigger
from headgate.pyflink.datastream.window import TriggerResult as TriggerResult
from headgate.pyflink.datastream.window import Window as Window
from headgate.pyflink.datastream.window import WindowAssigner as WindowAssigner
