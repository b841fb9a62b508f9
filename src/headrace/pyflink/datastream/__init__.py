"""`pyflink.datastream`."""

from headrace.pyflink.datastream.async_data_stream import *
from headrace.pyflink.datastream.checkpoint_config import *
from headrace.pyflink.datastream.checkpoint_storage import *
from headrace.pyflink.datastream.checkpointing_mode import *
from headrace.pyflink.datastream.data_stream import *
from headrace.pyflink.datastream.execution_mode import *
from headrace.pyflink.datastream.externalized_checkpoint_retention import *
from headrace.pyflink.datastream.functions import *
from headrace.pyflink.datastream.output_tag import *
from headrace.pyflink.datastream.slot_sharing_group import *
from headrace.pyflink.datastream.state_backend import *
from headrace.pyflink.datastream.stream_execution_environment import *
from headrace.pyflink.datastream.time_characteristic import *
from headrace.pyflink.datastream.time_domain import *
from headrace.pyflink.datastream.timerservice import *
from headrace.pyflink.datastream.window import CountWindow as CountWindow
from headrace.pyflink.datastream.window import GlobalWindow as GlobalWindow
from headrace.pyflink.datastream.window import MergingWindowAssigner as MergingWindowAssigner
from headrace.pyflink.datastream.window import TimeWindow as TimeWindow
from headrace.pyflink.datastream.window import Trigger as Trigger
from headrace.pyflink.datastream.window import TriggerResult as TriggerResult
from headrace.pyflink.datastream.window import Window as Window
from headrace.pyflink.datastream.window import WindowAssigner as WindowAssigner
