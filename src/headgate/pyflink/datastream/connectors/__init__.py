"""`pyflink.datastream.connectors`: Headgate's own connectors with PyFlink's builders. They need no jars."""

from __future__ import annotations

from headgate.pyflink.datastream.connectors.base import DeliveryGuarantee as DeliveryGuarantee
from headgate.pyflink.datastream.connectors.base import Sink as Sink
from headgate.pyflink.datastream.connectors.base import Source as Source
from headgate.pyflink.datastream.connectors.file_system import (
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
from headgate.pyflink.datastream.connectors.kafka import (
    FlinkKafkaConsumer,
    FlinkKafkaProducer,
    KafkaSource,
    Semantic,
)
from headgate.pyflink.datastream.connectors.number_seq import NumberSequenceSource

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
