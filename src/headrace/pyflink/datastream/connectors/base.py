"""`pyflink.datastream.connectors.base`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from headrace.api.sink import Sink as Sink
from headrace.api.sources import Source as Source
from headrace.api.stream import DataStream

__all__ = ["DeliveryGuarantee", "Sink", "Source", "StreamTransformer", "SupportsPreprocessing"]


class DeliveryGuarantee(Enum):
    """The guarantee of a sink; NONE is the same as AT_LEAST_ONCE here."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2


class StreamTransformer(ABC):
    """Changes a stream before a sink."""

    @abstractmethod
    def apply(self, ds: DataStream) -> DataStream:
        """The stream that the sink writes."""


class SupportsPreprocessing(ABC):
    """A sink whose stream is changed before it."""

    @abstractmethod
    def get_transformer(self) -> StreamTransformer | None:
        """Return the transformer of the stream, if there is one."""
