"""`pyflink.datastream.data_stream`."""

from headrace.api.stream import BroadcastStream as BroadcastStream
from headrace.api.stream import ConnectedStreams as ConnectedStreams
from headrace.api.stream import DataStream as DataStream
from headrace.api.stream import DataStreamSink as DataStreamSink
from headrace.api.stream import KeyedStream as KeyedStream
from headrace.api.stream import Records
from headrace.api.windowed_stream import AllWindowedStream as AllWindowedStream
from headrace.api.windowed_stream import WindowedStream as WindowedStream
from headrace.pyflink.common.execution_config import ExecutionConfig as ExecutionConfig
from headrace.pyflink.common.typeinfo import *
from headrace.pyflink.common.types import Row as Row
from headrace.pyflink.common.watermark_strategy import TimestampAssigner as TimestampAssigner
from headrace.pyflink.common.watermark_strategy import WatermarkStrategy as WatermarkStrategy
from headrace.pyflink.datastream.functions import *
from headrace.pyflink.datastream.output_tag import *
from headrace.pyflink.datastream.slot_sharing_group import SlotSharingGroup as SlotSharingGroup
from headrace.pyflink.datastream.state import *
from headrace.pyflink.datastream.window import *

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
