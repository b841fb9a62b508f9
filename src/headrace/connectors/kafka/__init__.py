"""Kafka: a source that reads partitions from a checkpoint's offsets on, and a sink that writes each record exactly once.

Needs the extra `kafka` (confluent-kafka). What it costs and what brokers must allow is in docs/connectors/kafka.md.
"""

from __future__ import annotations

from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.kafka.source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource"]
