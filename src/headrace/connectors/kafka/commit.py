"""Commits committables to Kafka: one transaction each, with a marker of what is done. See kafka_sink for the reasons."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from headrace.api.durable import durable
from headrace.api.sink import CommitRequest, Committer
from headrace.connectors.kafka.client import UNKNOWN_TOPIC, KafkaClient, RecordProducer, is_one_of, load, reason_of
from headrace.errors import ConfigError, StorageError

__all__ = ["KafkaCommittable", "Marker", "TransactionCommitter", "own_transactions"]

_LOG = logging.getLogger(__name__)

_ORIGINS = 64  # writers remembered in a marker: at most 36 bytes each, and a broker takes 4096
_TRY_SECONDS = 30.0
_POLL_EVERY = 1000
_OLD_SECONDS = 6 * 24 * 3600  # brokers delete offsets after offsets.retention.minutes, 7 days by default


@durable("kafka-records-1", binary=True)
class KafkaCommittable(msgspec.Struct, frozen=True):
    """The records of one writer between two barriers, encoded; `sequence` counts the committables of an `origin` from 1 on.

    >>> KafkaCommittable("totals-cbc357cc-0", "totals", "ab12", 3, 0, None, [b"{}"])
    KafkaCommittable(totals-cbc357cc-0, ab12:3, 1 records)
    """

    transactional_id: str
    topic: str
    origin: str
    sequence: int
    written: int  # seconds since 1970
    keys: list[bytes | None] | None
    values: list[bytes | None]

    def __repr__(self) -> str:
        return f"KafkaCommittable({self.transactional_id}, {self.origin}:{self.sequence}, {len(self.values)} records)"


def own_transactions(transactional_id: str, topic: str) -> str:
    """Return the transactional id of a subtask for one topic of several."""
    return f"{transactional_id}-{topic}"


class Marker(dict[str, int]):
    """The newest committed sequence of each writer (origin), the newest writers last.

    >>> marker = Marker.read('{"a1":3}')
    >>> marker.of("a1"), marker.of("b2"), marker.after("b2", 1).text
    (3, 0, '{"a1":3,"b2":1}')
    """

    @classmethod
    def read(cls, text: str | None) -> Marker:
        """From the metadata of an offset."""
        return cls(json.loads(text) if text else {})

    @property
    def text(self) -> str:
        """For the metadata of an offset."""
        return json.dumps(self, separators=(",", ":"))

    def of(self, origin: str) -> int:
        """Return the last committable of a writer that is committed; 0: none that is known."""
        return self.get(origin, 0)

    def after(self, origin: str, sequence: int) -> Marker:
        """Return the marker after one more committable."""
        others = [(name, last) for name, last in self.items() if name != origin]
        return Marker([*others[1 - _ORIGINS :], (origin, sequence)])


class _TransactionalProducer(RecordProducer):
    """One transactional id: its producer, and its marker, which is read when older producers are fenced."""

    def __init__(self, client: KafkaClient, transactional_id: str, topic: str, timeout_ms: int) -> None:
        self.topic, self._seconds = topic, min(_TRY_SECONDS, timeout_ms / 1000)
        fixed = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        # All records are there from the start: large batches, and a queue that takes most committables at once.
        super().__init__(client, {"linger.ms": 20, "queue.buffering.max.messages": 1_000_000}, fixed)
        # A group of its own for the marker, without members.
        alone = {"group.id": transactional_id, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._group = client.make("Consumer", client.conf({"client.id": "headrace"}, alone))
        self.marker = Marker()

    def open(self) -> None:
        """Fence older producers, wait for their transactions to end, then read the marker that they left."""
        self.kafka.init_transactions(self._seconds)
        place = load().TopicPartition(self.topic, 0)
        (found,) = self._group.committed([place], self._seconds)
        if found.error is not None:
            raise load().KafkaException(found.error)
        self.marker = Marker.read(found.metadata if found.offset >= 0 else None)

    def commit(self, committable: KafkaCommittable, number: int) -> None:
        """Produce the records, and store the marker, in one transaction."""
        try:
            self._transact(committable, number)
        except SystemError as error:
            if error.__cause__ is None:  # confluent_kafka may lose a fatal error if several callbacks are due
                self.kafka.abort_transaction(self._seconds)  # and raises it here
            raise

    def _transact(self, committable: KafkaCommittable, number: int) -> None:
        marker = self.marker.after(committable.origin, committable.sequence)
        self.kafka.begin_transaction()
        self._produce(committable)
        self.kafka.flush(self._seconds)
        if self.failed:  # commit_transaction would only say that some have
            raise load().KafkaException(self.failed[0])
        place = load().TopicPartition(self.topic, 0, number, marker.text)
        self.kafka.send_offsets_to_transaction([place], self._group.consumer_group_metadata(), self._seconds)
        self.kafka.commit_transaction(self._seconds)
        self.marker = marker

    def _produce(self, committable: KafkaCommittable) -> None:
        deadline, kafka = 0.0, load()

        def full() -> None:
            if time.monotonic() > deadline:
                raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError.REQUEST_TIMED_OUT))

        for start in range(0, len(committable.values), _POLL_EVERY):
            deadline = time.monotonic() + self._seconds  # for each step: it moves
            part = slice(start, start + _POLL_EVERY)
            self.produce(self.topic, committable.keys and committable.keys[part], committable.values[part], full)

    def abandon(self) -> None:
        """Abort the open transaction, so that consumers need not wait for its timeout, and disconnect."""
        with suppress(
            load().KafkaException, RuntimeError, SystemError
        ):  # else init_transactions of the next one does it
            self.kafka.abort_transaction(5)
        self.close()

    def close(self, seconds: float = 0) -> None:
        super().close(seconds)
        self._group.close()


class TransactionCommitter(Committer[KafkaCommittable]):
    """Commits the committables of a subtask, and after a rescale those of others, each under the id it was written for."""

    def __init__(self, client: KafkaClient, timeout_ms: int, own_id: str, on_lost_marker: str = "fail") -> None:
        self._client, self._timeout_ms, self._own_id = client, timeout_ms, own_id
        self._on_lost_marker = on_lost_marker
        self._open: dict[tuple[str, str], _TransactionalProducer] = {}

    def commit(self, requests: Sequence[CommitRequest[KafkaCommittable]]) -> None:
        """Commit each that is not there yet; behind one that must wait, those of the same id wait as well."""
        waiting: set[str] = set()
        for request in requests:
            committable = request.committable
            if committable.transactional_id in waiting:
                request.retry_later()
            elif not self._commit(committable, request.commit_number, request.tries):
                waiting.add(committable.transactional_id)
                request.retry_later()
        for key in [key for key in self._open if key[0] not in (self._own_id, own_transactions(self._own_id, key[1]))]:
            self._open.pop(key).close()  # the subtask that has the id now will need it

    def _commit(self, committable: KafkaCommittable, number: int | None, tries: int) -> bool:
        """Commit once more; return True if the committable is visible now."""
        key = committable.transactional_id, committable.topic
        transactions = self._open.get(key)
        try:
            if transactions is None:
                transactions = self._open[key] = _TransactionalProducer(self._client, *key, self._timeout_ms)
                transactions.open()
            if transactions.marker.of(committable.origin) >= committable.sequence:
                return True
            if self._marker_lost(committable, transactions.marker) and self._on_lost_marker == "skip":
                return True
            transactions.commit(committable, number or 0)
            return True
        except (load().KafkaException, SystemError) as error:
            reason = reason_of(error)
            assert transactions is not None, "an error of librdkafka, but no client"
            del self._open[key]
            transactions.abandon()
            self._raise_if_final(committable, transactions, reason)
            _LOG.warning("Kafka: %r is tried again: %s", committable, self._client.say(reason))
            time.sleep(min(0.1 * 2**tries, 5.0))
            return False

    def _marker_lost(self, committable: KafkaCommittable, marker: Marker) -> bool:
        """Return True if the committable's predecessor is unknown, so that nothing says if it was committed."""
        known = marker.of(committable.origin)
        forgotten = known == 0 and time.time() - committable.written > _OLD_SECONDS
        if known == committable.sequence - 1 and not forgotten:
            return False
        message = (
            f"Kafka: whether {committable!r} was written before is not known any more: group '{committable.transactional_id}' has no offset with "
            f"its marker (brokers keep it for offsets.retention.minutes, and delete it with topic '{committable.topic}')"
        )
        if self._on_lost_marker == "fail":
            raise StorageError(
                "HR-4209",
                f"{message}. See whether the topic has records of that time, and set on_lost_marker='write' or 'skip' for one start",
            )
        _LOG.warning("%s; on_lost_marker=%s", message, self._on_lost_marker)
        return True

    def _raise_if_final(self, committable: KafkaCommittable, transactions: _TransactionalProducer, error: Any) -> None:
        """Raise an error that a retry does not fix."""
        client = self._client
        if refused := transactions.refused or client.refused(error):
            raise refused
        if is_one_of(error, "_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"):
            raise StorageError(
                "HR-4209",
                f"Kafka: another producer with transactional id '{committable.transactional_id}' has started, so this one may not commit "
                f"({client.say(error)}). After a restart that is how an old attempt ends, and a commit that took longer than "
                "transaction_timeout_ms ends so too; if it keeps happening, another job has the same transactional_id_prefix",
            )
        for cause in (error, *transactions.failed):
            said = f"({client.say(cause)})"
            if is_one_of(cause, "MSG_SIZE_TOO_LARGE"):
                raise StorageError(
                    "HR-4207",
                    f"Kafka: topic '{committable.topic}' takes no records as long as one of {committable!r} {said}; raise "
                    "max.message.bytes of the topic, the records are in the checkpoint",
                )
            if is_one_of(cause, *UNKNOWN_TOPIC):
                raise StorageError(
                    "HR-4204",
                    f"Kafka: topic '{committable.topic}' does not exist {said}; create it, the records are in the checkpoint",
                )
            if is_one_of(cause, "INVALID_TRANSACTION_TIMEOUT"):
                raise ConfigError(
                    "HR-4210",
                    f"Kafka: the brokers refuse transaction_timeout_ms={self._timeout_ms} {said}; lower it, or raise "
                    "transaction.max.timeout.ms of the brokers",
                )

    def close(self) -> None:
        for transactions in self._open.values():
            transactions.close()
        self._open.clear()
