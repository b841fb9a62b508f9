"""`pyflink.datastream.data_stream`."""

from headgate.api.stream import BroadcastStream as BroadcastStream
from headgate.api.stream import ConnectedStreams as ConnectedStreams
from headgate.api.stream import DataStream as DataStream
from headgate.api.stream import DataStreamSink as DataStreamSink
from headgate.api.stream import KeyedStream as KeyedStream
from headgate.api.stream import Records
from headgate.api.windowed_stream import AllWindowedStream as AllWindowedStream
from headgate.api.windowed_stream import WindowedStream as WindowedStream
from headgate.pyflink.common.execution_config import ExecutionConfig as ExecutionConfig
from headgate.pyflink.common.typeinfo import *
from headgate.pyflink.common.types import Row as Row
from headgate.pyflink.common.watermark_strategy import TimestampAssigner as TimestampAssigner
from headgate.pyflink.common.watermark_strategy import WatermarkStrategy as WatermarkStrategy
from headgate.pyflink.datastream.functions import *
from headgate.pyflink.datastream.output_tag import *
from headgate.pyflink.datastream.slot_sharing_group import SlotSharingGroup as SlotSharingGroup
from headgate.pyflink.datastream.state import *
from headgate.pyflink.datastream.window import *

BroadcastConnectedStream = ConnectedStreams
CloseableIterator = Records

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "WindowedStream",
]
