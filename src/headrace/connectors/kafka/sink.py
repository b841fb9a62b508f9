"""Writes Kafka, each record exactly once: records go through the checkpoint, and then through one transaction.

librdkafka cannot resume a prepared transaction after a crash, as a two-phase commit would need. So the encoded records are
the committable, and the checkpoint holds them. When it is complete they are produced in one transaction, which also stores
a *marker*: the offset of a group named like the transactional id, whose metadata say how far each writer is. After a
failure the marker tells what was written; by then `init_transactions` has ended open transactions and fenced their
producers.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from headrace.api.sink import Committer, Sink, SinkWriter, WriterContext
from headrace.connectors.kafka.client import KafkaClient, RecordProducer, load, reason_of
from headrace.connectors.kafka.commit import KafkaCommittable, TransactionCommitter, own_transactions
from headrace.connectors.values import check_choice, encoder
from headrace.errors import InvalidArgument, StorageError
from headrace.records.batch import Batch
from headrace.records.types import TypeInformation

__all__ = ["KafkaSink"]

_FLUSH_SECONDS = 300.0

Encode = Callable[[Batch], Sequence[bytes | None]]
Key = str | Callable[[Any], Any] | None


class KafkaSink(Sink[KafkaCommittable]):
    """Writes records to a topic, which must exist, or to the one that a function of the record names.

    `value_format` is `json`, `text`, `bytes`, `csv`, or a function that makes bytes of a record (None: a tombstone). `key` is the
    name of a field or a function of the record, whose bytes or text become the key; records of a key go to one partition,
    the same as Java's clients choose.

    `delivery`: with `exactly-once` records become visible when their checkpoint is complete, each once, to consumers with
    `isolation.level=read_committed`. It needs a `transactional_id_prefix` that no other job uses at the same time. Where the brokers have forgotten whether an old checkpoint's records are written (`offsets.retention.minutes`), the
    job fails, or writes or skips them: `on_lost_marker`. With `at-least-once` records are visible at once, and some again after a failure.

    >>> KafkaSink("broker:9092", "totals", key="user", transactional_id_prefix="totals")
    KafkaSink('broker:9092', 'totals', exactly-once)
    >>> KafkaSink("broker:9092", "totals")
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-4201] KafkaSink: exactly-once needs transactional_id_prefix=..., a name that no other job uses at the same time
    """

    output_kind = "kafka"

    def __init__(
        self,
        brokers: str,
        topic: str | Callable[[Any], str],
        value_format: str | Callable[[Any], bytes | None] = "json",
        *,
        key: Key = None,
        delivery: str = "exactly-once",
        transactional_id_prefix: str | None = None,
        transaction_timeout_ms: int = 60_000,
        on_lost_marker: str = "fail",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = KafkaClient(brokers, options)
        if not topic or not (isinstance(topic, str) or callable(topic)):
            raise InvalidArgument(
                "HR-4201", f"KafkaSink: topic must be a name or a function of the record, got {topic!r}"
            )
        check_choice("KafkaSink: delivery", delivery, "exactly-once", "at-least-once")
        if delivery == "exactly-once" and not transactional_id_prefix:
            raise InvalidArgument(
                "HR-4201",
                "KafkaSink: exactly-once needs transactional_id_prefix=..., a name that no other job uses at the same time",
            )
        check_choice("KafkaSink: on_lost_marker", on_lost_marker, "fail", "write", "skip")
        if transaction_timeout_ms < 1000:
            raise InvalidArgument(
                "HR-4201", f"KafkaSink: transaction_timeout_ms must be at least 1000, got {transaction_timeout_ms}"
            )
        if not callable(value_format) and value_format != "csv":
            encoder(value_format)
        self.topic, self.delivery, self.prefix = topic, delivery, transactional_id_prefix
        self.transaction_timeout_ms = transaction_timeout_ms
        self.value_format, self.key, self.on_lost_marker = value_format, key, on_lost_marker
        self.type: TypeInformation | None = None

    def __repr__(self) -> str:
        topic = repr(self.topic) if isinstance(self.topic, str) else "topics by a function"
        return f"KafkaSink({self.client.brokers!r}, {topic}, {self.delivery})"

    def check(self, stream_type: TypeInformation) -> None:
        """Learn the type of the records; a key must be one of their fields."""
        if self.type is not None and self.type != stream_type:
            raise InvalidArgument(
                "HR-4201",
                f"{self!r} writes a stream of {self.type} already; make another KafkaSink for the stream of {stream_type}",
            )
        if isinstance(self.key, str) and (stream_type.kind != "row" or self.key not in stream_type.get_field_names()):
            raise InvalidArgument(
                "HR-1206",
                f"{self!r}: the records have no field '{self.key}', they are {stream_type}; name a field of theirs, or give "
                "key=function",
            )
        if not callable(self.value_format):
            encoder(self.value_format, stream_type)
        self.type = stream_type

    def encode(self) -> Encode:
        """Return the encoder of a batch's records."""
        given = self.value_format
        if callable(given):
            return lambda batch: [_checked(given(row), row) for row in batch.rows()]
        return encoder(given, self.type)

    def transactional_id(self, context: WriterContext) -> str:
        """Return the same for every attempt of a subtask, so that a new one fences an old one."""
        return f"{self.prefix}-{context.operator_id[:8]}-{context.subtask}"

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[KafkaCommittable]:
        """Make the writer, which collects the records of a committable or hands them to a producer."""
        if self.delivery == "exactly-once":
            return TransactionWriter(self, self.transactional_id(context))
        return DirectWriter(self)

    def committer(self, context: WriterContext) -> Committer[KafkaCommittable] | None:
        """Make the committer, which produces committables."""
        if self.delivery != "exactly-once":
            return None
        own = self.transactional_id(context)
        return TransactionCommitter(self.client, self.transaction_timeout_ms, own, self.on_lost_marker)


def _checked(value: Any, row: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    raise InvalidArgument(
        "HR-4207",
        f"KafkaSink: value_format gave {type(value).__name__} for {str(row)[:200]}; it must give bytes, or None for a tombstone",
    )


def _key_bytes(key: Any) -> bytes | None:
    return key if key is None or isinstance(key, bytes) else str(key).encode()


class _KafkaWriter(SinkWriter[KafkaCommittable]):
    """Makes key and value of records; too long ones are refused here, before a checkpoint holds them."""

    def __init__(self, sink: KafkaSink) -> None:
        self.sink = sink
        self.batches = sink.type is not None and sink.type.is_typed
        self._encode = sink.encode()
        self._most = int(sink.client.option("message.max.bytes", 1_000_000)) - 512  # the record's frame

    def write(self, value: Any) -> None:
        """Write a record of an untyped stream."""
        self._take(Batch.of_rows([value]))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the records of a typed stream."""
        assert self.sink.type is not None
        self._take(Batch.of_arrow(batch, self.sink.type))

    def _take(self, batch: Batch) -> None:
        topic = self.sink.topic
        if not isinstance(topic, str):
            self._take_by_topic(batch, topic)
            return
        self._encoded(topic, batch)

    def _take_by_topic(self, batch: Batch, topic_of: Callable[[Any], str]) -> None:
        places: dict[str, list[int]] = {}
        for place, row in enumerate(batch.rows()):
            topic = topic_of(row)
            if not isinstance(topic, str) or not topic:
                raise InvalidArgument(
                    "HR-4207", f"{self.sink!r}: the function gave {topic!r} for {str(row)[:200]}, not a topic's name"
                )
            places.setdefault(topic, []).append(place)
        for topic, own in places.items():
            self._encoded(topic, batch.select(np.array(own)))

    def _encoded(self, topic: str, batch: Batch) -> None:
        keys, values = self._keys(batch), self._encode(batch)
        longest = max((len(value) for value in values if value), default=0)
        if longest + max((len(key) for key in keys or () if key), default=0) > self._most:
            raise InvalidArgument(
                "HR-4207",
                f"{self.sink!r}: a record has {longest} bytes, and message.max.bytes allows {self._most + 512} with its frame; "
                "raise it in options=... and max.message.bytes of the topic, or write smaller records",
            )
        self.put(topic, keys, values)

    def _keys(self, batch: Batch) -> list[bytes | None] | None:
        key = self.sink.key
        if key is None:
            return None
        if callable(key):
            return [_key_bytes(key(row)) for row in batch.rows()]
        return [_key_bytes(one) for one in batch.arrow().column(key).to_pylist()]

    @abstractmethod
    def put(self, topic: str, keys: list[bytes | None] | None, values: Sequence[bytes | None]) -> None:
        """Take encoded records for a topic; no keys: none has one."""


class TransactionWriter(_KafkaWriter):
    """Keeps the records of a committable for the checkpoint."""

    def __init__(self, sink: KafkaSink, transactional_id: str) -> None:
        super().__init__(sink)
        self._id = transactional_id
        self._origin = uuid4().hex[:16]
        self._sequences: dict[str, int] = {}
        self._kept: dict[str, tuple[list[bytes | None], list[bytes | None]]] = {}

    def put(self, topic: str, keys: list[bytes | None] | None, values: Sequence[bytes | None]) -> None:
        """Keep them."""
        kept = self._kept.setdefault(topic, ([], []))
        kept[0].extend(keys or ())
        kept[1].extend(values)

    def prepare(self, end_of_input: bool) -> Sequence[KafkaCommittable]:
        """Return the committable of each topic that has records."""
        kept, self._kept = self._kept, {}
        now, prepared = int(time.time()), []
        for topic, (keys, values) in kept.items():
            sequence = self._sequences[topic] = self._sequences.get(topic, 0) + 1
            # Each topic of several has transactions of its own, which a marker on that topic belongs to.
            own = self._id if isinstance(self.sink.topic, str) else own_transactions(self._id, topic)
            prepared.append(KafkaCommittable(own, topic, self._origin, sequence, now, keys or None, values))
        return prepared


class DirectWriter(_KafkaWriter):
    """Produces at once; a checkpoint waits until everything has arrived."""

    def __init__(self, sink: KafkaSink) -> None:
        super().__init__(sink)
        self._records = RecordProducer(sink.client, {}, {"enable.idempotence": True})

    def put(self, topic: str, keys: list[bytes | None] | None, values: Sequence[bytes | None]) -> None:
        """Produce them."""
        self._guarded(lambda: self._records.produce(topic, keys, values, self._raise))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call to the producer; its errors, and those of records, are raised."""
        result = None
        try:
            result = call()
        except (load().KafkaException, SystemError) as error:
            self._records.failed.append(reason_of(error))
        self._raise()
        return result

    def prepare(self, end_of_input: bool) -> Sequence[KafkaCommittable]:
        """Wait until everything has arrived."""
        left = self._guarded(lambda: self._records.kafka.flush(_FLUSH_SECONDS))
        if left:
            raise StorageError(
                "HR-4208",
                f"{self.sink!r}: {left} records did not arrive in {_FLUSH_SECONDS:.0f} s; see whether the brokers run",
            )
        return []

    def _raise(self) -> None:
        failed, client = self._records.failed, self.sink.client
        if self._records.refused is not None:
            raise self._records.refused
        if failed:
            raise client.refused(failed[0]) or StorageError(
                "HR-4208",
                f"{self.sink!r}: {len(failed)} records were not written, the first one because of {client.say(failed[0])}",
            )

    def close(self) -> None:
        self._records.close(1)
