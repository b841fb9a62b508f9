"""`pyflink.datastream.connectors`: Headrace's own connectors with PyFlink's builders. They need no jars."""

from __future__ import annotations

from headrace.pyflink.datastream.connectors.base import DeliveryGuarantee as DeliveryGuarantee
from headrace.pyflink.datastream.connectors.base import Sink as Sink
from headrace.pyflink.datastream.connectors.base import Source as Source
from headrace.pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileEnumeratorProvider,
    FileSink,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
    StreamingFileSink,
)
from headrace.pyflink.datastream.connectors.kafka import (
    FlinkKafkaConsumer,
    FlinkKafkaProducer,
    KafkaSource,
    Semantic,
)
from headrace.pyflink.datastream.connectors.number_seq import NumberSequenceSource

__all__ = [
    "BucketAssigner",
    "DeliveryGuarantee",
    "FileEnumeratorProvider",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "FileSplitAssignerProvider",
    "FlinkKafkaConsumer",
    "FlinkKafkaProducer",
    "KafkaSource",
    "NumberSequenceSource",
    "OutputFileConfig",
    "RollingPolicy",
    "Semantic",
    "Sink",
    "Source",
    "StreamFormat",
    "StreamingFileSink",
]
