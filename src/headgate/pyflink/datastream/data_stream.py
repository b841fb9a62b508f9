"""`pyflink.datastream.data_stream`."""

from headgate.api.stream import BroadcastStream, ConnectedStreams, DataStream, DataStreamSink, KeyedStream

BroadcastConnectedStream = ConnectedStreams

__all__ = [
    "BroadcastConnectedStream",
    "BroadcastStream",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
]
