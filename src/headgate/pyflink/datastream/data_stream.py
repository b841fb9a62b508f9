"""`pyflink.datastream.data_stream`."""

from headgate.api.stream import BroadcastStream as BroadcastStream
from headgate.api.stream import ConnectedStreams as ConnectedStreams
from headgate.api.stream import DataStream as DataStream
from headgate.api.stream import DataStreamSink as DataStreamSink
from headgate.api.stream import KeyedStream as KeyedStream

BroadcastConnectedStream = ConnectedStreams
