"""`pyflink.datastream.connectors.kafka`: builders for Headrace's Kafka source and sink.

Properties are those of librdkafka, which has most of Java's; see `_properties` for the others.
"""

from __future__ import annotations

import logging
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from headrace.connectors.kafka import KafkaSink as _KafkaSink
from headrace.connectors.kafka import KafkaSource as _KafkaSource
from headrace.errors import InvalidArgument
from headrace.pyflink._without_effect import warn_without_effect
from headrace.pyflink.common.serialization import DeserializationSchema, SerializationSchema
from headrace.pyflink.datastream.connectors.base import DeliveryGuarantee, StreamTransformer, SupportsPreprocessing
from headrace.records.types import TypeInformation

__all__ = [
    "DeliveryGuarantee",
    "FlinkKafkaConsumer",
    "FlinkKafkaProducer",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
    "Semantic",
]

_LOG = logging.getLogger(__name__)
_POOL_SIZE = 5

_OF_JAVA_CLIENTS = {
    "key.deserializer",
    "value.deserializer",
    "key.serializer",
    "value.serializer",
    "max.poll.records",
    "register.consumer.metrics",
    "commit.offsets.on.checkpoint",
    "client.id.prefix",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "partition.assignment.strategy",
    "sasl.client.callback.handler.class",
    "ssl.truststore.type",
    "ssl.keystore.type",
    "acks",
}
"""Properties that decide nothing here: Headrace sets them, or has no such thing."""

_INSTEAD = {
    "ssl.truststore.location": "ssl.ca.location with a PEM file",
    "ssl.truststore.password": "ssl.ca.location with a PEM file",
    "ssl.keystore.location": "ssl.keystore.location with a PKCS#12 file, or ssl.certificate.location and ssl.key.location",
    "sasl.login.callback.handler.class": "sasl.oauthbearer.* of librdkafka",
    "interceptor.classes": "a map(...) before the sink",
}


def _properties(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Java's properties as those of librdkafka, and those that are arguments of Headrace's source and sink."""
    options: dict[str, str] = {}
    own: dict[str, str] = {}
    for key, value in given.items():
        if key in ("bootstrap.servers", "group.id", "auto.offset.reset", "partition.discovery.interval.ms") or (
            key in ("transactional.id", "transaction.timeout.ms", "enable.idempotence")
        ):
            own[key] = value
        elif key in _OF_JAVA_CLIENTS:
            _LOG.warning("Kafka: the property '%s' has no effect: it is one of Java's clients", key)
        elif key == "sasl.jaas.config":
            options |= _login(value)
        elif key in _INSTEAD:
            raise InvalidArgument(
                "HR-8001", f"Kafka: the property '{key}' is one of Java's clients; set {_INSTEAD[key]}"
            )
        else:
            options[key] = value
    return options, own


def _login(jaas: str) -> dict[str, str]:
    """User and password out of Java's way to write them."""
    found = dict(re.findall(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"', jaas))
    if set(found) != {"username", "password"}:
        raise InvalidArgument(
            "HR-4201",
            'Kafka: sasl.jaas.config has no username="..." and password="..."; set sasl.username and sasl.password, or for '
            "Kerberos sasl.kerberos.* of librdkafka",
        )
    return {"sasl.username": found["username"], "sasl.password": found["password"]}


# --- the source -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KafkaTopicPartition:
    """A partition of a topic."""

    topic: str
    partition: int


class KafkaOffsetResetStrategy(Enum):
    """The start in a partition without an offset; NONE fails the job."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


_FALLBACK = {
    KafkaOffsetResetStrategy.LATEST: "latest",
    KafkaOffsetResetStrategy.EARLIEST: "earliest",
    KafkaOffsetResetStrategy.NONE: "fail",
}


class KafkaOffsetsInitializer:
    """The offsets at which to start or to stop."""

    def __init__(self, place: str | int | dict[tuple[str, int], int], fallback: str = "earliest") -> None:
        self.place, self.fallback = place, fallback

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """At the offsets that the group has committed."""
        return KafkaOffsetsInitializer("committed", _FALLBACK[offset_reset_strategy])

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """At the first record from a time on, in milliseconds."""
        return KafkaOffsetsInitializer(timestamp, "latest")

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """At the first record."""
        return KafkaOffsetsInitializer("earliest")

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """Behind the last record."""
        return KafkaOffsetsInitializer("latest", "latest")

    @staticmethod
    def offsets(
        offsets: dict[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """At offsets of partitions."""
        places = {(one.topic, one.partition): offset for one, offset in offsets.items()}
        return KafkaOffsetsInitializer(places, _FALLBACK[offset_reset_strategy])


class KafkaSource(_KafkaSource):
    """Headrace's Kafka source; records that cannot be read fail the job, unless the schema ignores them."""

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        return KafkaSourceBuilder()


class KafkaSourceBuilder:
    """Builds a Kafka source: servers, topics and a deserializer are needed."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._what: dict[str, Any] = {}
        self._start = KafkaOffsetsInitializer.earliest()
        self._stop: KafkaOffsetsInitializer | None = None
        self._schema: DeserializationSchema | None = None

    def build(self) -> KafkaSource:
        options, own = _properties(self._properties)
        if "bootstrap.servers" not in own:
            raise InvalidArgument("HR-8003", "KafkaSource: call set_bootstrap_servers('host:port')")
        if self._schema is None:
            raise InvalidArgument(
                "HR-8003", "KafkaSource: call set_value_only_deserializer(schema), for example SimpleStringSchema()"
            )
        if self._stop is not None and self._stop.place == "earliest":
            raise InvalidArgument(
                "HR-4201", "KafkaSource: a source that stops at the earliest offset reads nothing; use latest()"
            )
        fallback = own.get("auto.offset.reset", self._start.fallback)
        found_later = int(own.get("partition.discovery.interval.ms", 5 * 60_000))
        return KafkaSource(
            own["bootstrap.servers"],
            **self._what,
            value_format=self._schema.decoder(),
            start=self._start.place,
            start_fallback=fallback if fallback in ("earliest", "latest") else "fail",
            stop=None if self._stop is None else self._stop.place,
            group_id=own.get("group.id"),
            discovery_interval_ms=found_later if found_later > 0 else None,
            on_corrupt="skip" if self._schema.ignores_errors else "fail",
            options=options,
        )

    def set_bootstrap_servers(self, bootstrap_servers: str) -> Self:
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> Self:
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str) -> Self:
        return self._read(topics=list(topics))

    def set_topic_pattern(self, topic_pattern: str) -> Self:
        return self._read(pattern=topic_pattern)

    def set_partitions(self, partitions: set[KafkaTopicPartition]) -> Self:
        return self._read(partitions=[(one.topic, one.partition) for one in partitions])

    def _read(self, **what: Any) -> Self:
        if self._what:
            raise InvalidArgument("HR-8003", "KafkaSource: set topics, a pattern or partitions, and only once")
        self._what = what
        return self

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer) -> Self:
        self._start = starting_offsets_initializer
        return self

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> Self:
        """Stop at offsets; the same as `set_bounded`, since jobs always stream."""
        return self.set_bounded(stopping_offsets_initializer)

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> Self:
        self._stop = stopping_offsets_initializer
        return self

    def set_value_only_deserializer(self, deserialization_schema: DeserializationSchema) -> Self:
        self._schema = deserialization_schema
        return self

    def set_client_id_prefix(self, prefix: str) -> Self:
        return self.set_property("client.id", prefix)

    def set_property(self, key: str, value: str) -> Self:
        self._properties[key] = value
        return self

    def set_properties(self, props: Mapping[str, str]) -> Self:
        self._properties |= props
        return self


class FlinkKafkaConsumer(_KafkaSource):
    """The Kafka source of Flink 1.x, for `add_source(...)`."""

    def __init__(
        self, topics: str | list[str], deserialization_schema: DeserializationSchema, properties: Mapping[str, str]
    ) -> None:
        warnings.warn("Deprecated in 1.16. Use KafkaSource instead.", DeprecationWarning, stacklevel=2)
        options, own = _properties(properties)
        group = own.get("group.id")
        super().__init__(
            own.get("bootstrap.servers", ""),
            topics=[topics] if isinstance(topics, str) else topics,
            value_format=deserialization_schema.decoder(),
            start="latest" if group is None else "committed",
            start_fallback=own.get("auto.offset.reset", "latest"),
            group_id=group,
            discovery_interval_ms=None,
            on_corrupt="skip" if deserialization_schema.ignores_errors else "fail",
            options=options,
        )
        self._group = group

    def set_commit_offsets_on_checkpoints(self, commit_on_checkpoints: bool) -> Self:
        """Commit the offsets of completed checkpoints to Kafka, or not."""
        if self.start == "committed" and not commit_on_checkpoints:
            raise InvalidArgument(
                "HR-8003", "FlinkKafkaConsumer: a group that commits nothing has no offsets to start from"
            )
        self.group_id = self._group if commit_on_checkpoints else None
        return self

    def set_start_from_earliest(self) -> Self:
        self.start = "earliest"
        return self

    def set_start_from_latest(self) -> Self:
        self.start = "latest"
        return self

    def set_start_from_timestamp(self, startup_offsets_timestamp: int) -> Self:
        self.start = startup_offsets_timestamp
        return self

    def set_start_from_group_offsets(self) -> Self:
        if self.group_id is None:
            raise InvalidArgument(
                "HR-8003", "FlinkKafkaConsumer: set_start_from_group_offsets() needs the property 'group.id'"
            )
        self.start = "committed"
        return self

    def disable_filter_restored_partitions_with_subscribed_topics(self) -> Self:
        """It is so always: partitions of a checkpoint are read further, also of topics that are no longer named."""
        return self

    def get_produced_type(self) -> TypeInformation:
        return self.type


# --- the sink ---------------------------------------------------------------------------------------------------------


class KafkaTopicSelector(ABC):
    """Chooses the topic of a record."""

    @abstractmethod
    def apply(self, data: Any) -> str:
        """The name of the topic."""


class KafkaRecordSerializationSchema(SerializationSchema):
    """Makes records of Kafka: topic, key and value."""

    def __init__(
        self, topic: str | Callable[[Any], str], key: SerializationSchema | None, value: SerializationSchema
    ) -> None:
        self.topic, self.key, self.value = topic, key, value

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        return KafkaRecordSerializationSchemaBuilder()

    def serialize(self, element: Any) -> bytes | None:
        """The value."""
        return self.value.serialize(element)


class KafkaRecordSerializationSchemaBuilder:
    """Builds a schema: a topic, or a selector, and a value are needed."""

    def __init__(self) -> None:
        self._topic: str | Callable[[Any], str] | None = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None

    def build(self) -> KafkaRecordSerializationSchema:
        if self._topic is None or self._value is None:
            raise InvalidArgument(
                "HR-8003",
                "KafkaRecordSerializationSchema: call set_topic(...) or set_topic_selector(...), and set_value_serialization_schema(...)",
            )
        return KafkaRecordSerializationSchema(self._topic, self._key, self._value)

    def set_topic(self, topic: str) -> Self:
        self._topic = topic
        return self

    def set_topic_selector(self, topic_selector: Callable[[Any], str] | KafkaTopicSelector) -> Self:
        if isinstance(topic_selector, KafkaTopicSelector):
            self._topic = topic_selector.apply
        elif callable(topic_selector):
            self._topic = topic_selector
        else:
            raise TypeError("topic_selector must be KafkaTopicSelector or a callable")
        return self

    def set_key_serialization_schema(self, key_serialization_schema: SerializationSchema) -> Self:
        self._key = key_serialization_schema
        return self

    def set_value_serialization_schema(self, value_serialization_schema: SerializationSchema) -> Self:
        self._value = value_serialization_schema
        return self


class KafkaSink(_KafkaSink, SupportsPreprocessing):
    """Headrace's Kafka sink."""

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        return KafkaSinkBuilder()

    def get_transformer(self) -> StreamTransformer | None:
        """None: a stream is written as it is."""
        return None


class KafkaSinkBuilder:
    """Builds a Kafka sink: servers and a serializer are needed. Without a guarantee it is AT_LEAST_ONCE."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._delivery = DeliveryGuarantee.NONE
        self._prefix = "kafka-sink"
        self._serializer: KafkaRecordSerializationSchema | None = None

    def build(self) -> KafkaSink:
        if self._serializer is None:
            raise InvalidArgument(
                "HR-8003", "KafkaSink: call set_record_serializer(KafkaRecordSerializationSchema.builder()...build())"
            )
        record = self._serializer
        return KafkaSink(*_sink_arguments(self._properties, record.topic, record.value), **self._how(record))

    def _how(self, record: KafkaRecordSerializationSchema) -> dict[str, Any]:
        options, own = _properties(self._properties)
        exactly_once = self._delivery is DeliveryGuarantee.EXACTLY_ONCE
        return {
            "key": None if record.key is None else record.key.serialize,
            "delivery": "exactly-once" if exactly_once else "at-least-once",
            "transactional_id_prefix": own.get("transactional.id", self._prefix) if exactly_once else None,
            "transaction_timeout_ms": int(own.get("transaction.timeout.ms", 60_000)),
            "options": options,
        }

    def set_bootstrap_servers(self, bootstrap_servers: str) -> Self:
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> Self:
        self._delivery = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> Self:
        self._prefix = transactional_id_prefix
        return self

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> Self:
        self._serializer = record_serializer
        return self

    def set_property(self, key: str, value: str) -> Self:
        self._properties[key] = value
        return self


def _sink_arguments(
    properties: Mapping[str, str], topic: str | Callable[[Any], str], value: SerializationSchema
) -> tuple[str, str | Callable[[Any], str], Callable[[Any], bytes | None]]:
    servers = properties.get("bootstrap.servers")
    if not servers:
        raise InvalidArgument(
            "HR-8003", "KafkaSink: call set_bootstrap_servers('host:port'), or set the property bootstrap.servers"
        )
    return servers, topic, value.serialize


class Semantic(Enum):
    """The guarantee of a FlinkKafkaProducer; NONE is the same as AT_LEAST_ONCE here."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2


class FlinkKafkaProducer(_KafkaSink):
    """The Kafka sink of Flink 1.x, for `add_sink(...)`."""

    def __init__(
        self,
        topic: str,
        serialization_schema: SerializationSchema,
        producer_config: Mapping[str, str],
        kafka_producer_pool_size: int = _POOL_SIZE,
        semantic: Semantic = Semantic.AT_LEAST_ONCE,
    ) -> None:
        if kafka_producer_pool_size != _POOL_SIZE:
            warn_without_effect("FlinkKafkaProducer(kafka_producer_pool_size)")
        options, own = _properties(producer_config)
        exactly_once = semantic is Semantic.EXACTLY_ONCE
        super().__init__(
            *_sink_arguments(producer_config, topic, serialization_schema),
            delivery="exactly-once" if exactly_once else "at-least-once",
            transactional_id_prefix=own.get("transactional.id", f"flink-{topic}") if exactly_once else None,
            transaction_timeout_ms=int(own.get("transaction.timeout.ms", 60_000)),
            options=options,
        )

    def set_flush_on_checkpoint(self, flush_on_checkpoint: bool) -> Self:
        """Checkpoints always wait until everything has arrived."""
        if not flush_on_checkpoint:
            warn_without_effect("FlinkKafkaProducer.set_flush_on_checkpoint")
        return self

    def ignore_failures_after_transaction_timeout(self) -> Self:
        """Skip records of which the brokers have forgotten whether they are written."""
        self.on_lost_marker = "skip"
        return self

    def set_log_failures_only(self, log_failures_only: bool) -> Self:
        """Records that are not written fail the job; only that is supported."""
        if log_failures_only:
            raise InvalidArgument(
                "HR-8002", "set_log_failures_only(True): records that cannot be written always fail the job"
            )
        return self

    def set_write_timestamp_to_kafka(self, write_timestamp_to_kafka: bool) -> Self:
        """Kafka's timestamp is the time of writing; only that is supported."""
        if write_timestamp_to_kafka:
            raise InvalidArgument(
                "HR-8002",
                "set_write_timestamp_to_kafka(True) is not supported: Kafka's timestamp is the time of writing; put the event time "
                "into the value",
            )
        return self
