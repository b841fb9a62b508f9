"""Reads Kafka: partitions are splits, and their offsets are in the checkpoint (SPEC R9.4)."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from headrace.api.durable import durable
from headrace.api.functions import OutputTag
from headrace.api.sources import DynamicSource, ReaderContext, SourceReader, SplitEnumerator
from headrace.connectors.kafka.client import UNKNOWN_TOPIC, KafkaClient, is_one_of, load
from headrace.connectors.values import CorruptRecord, CorruptRecords, Decoder, check_choice, decoder
from headrace.errors import ConfigError, HeadraceError, InvalidArgument, StorageError
from headrace.records.batch import Batch
from headrace.records.types import TypeInformation, as_type

__all__ = ["KafkaSource", "KafkaSplit"]

_LOG = logging.getLogger(__name__)

BEGINNING = -2
"""The position of a partition that is read from its first record, whatever its offset is by then."""

_METADATA: tuple[tuple[pa.Field, Callable[[Any], Any]], ...] = (
    (pa.field("topic", pa.string()), lambda message: message.topic()),
    (pa.field("partition", pa.int32()), lambda message: message.partition()),
    (pa.field("offset", pa.int64()), lambda message: message.offset()),
    (pa.field("timestamp", pa.int64()), lambda message: message.timestamp()[1]),
    (pa.field("key", pa.binary()), lambda message: message.key()),
)
_ANSWER_SECONDS = 30.0
_UNKNOWN = -1  # the end of a partition that was not fetched from yet
_MOST = 10_000  # records of one poll
_IDLE_MS = 5  # how long a reader without records is left alone

_PASSING = [
    "_TRANSPORT",
    "_TIMED_OUT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_WAIT_COORD",
    "REQUEST_TIMED_OUT",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
]
"""Errors of a partition that librdkafka gets over by itself, when brokers go and come."""

Place = tuple[str, int]
Offsets = Mapping[Place, int]
"""Offsets by (topic, partition)."""


@durable("kafka-split-1")
class KafkaSplit(msgspec.Struct, frozen=True):
    """A partition, the offset of the next record, and the offset to stop at (None: never)."""

    topic: str
    partition: int
    position: int
    stop: int | None

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


@durable("kafka-partitions-1")
class PartitionsFound(msgspec.Struct, frozen=True):
    """The state of the enumerator."""

    begun: bool
    known: frozenset[Place]


class KafkaSource(DynamicSource[KafkaSplit]):
    """The records of some topics.

    `topics` are names, or `pattern` is a regular expression that whole names match (Kafka's own, `__...`, never do), or
    `partitions` are pairs of topic and number. Topics and partitions that come later are found every
    `discovery_interval_ms` (None: never) and read from their beginning.

    `value_format` is `bytes`, `text`, `json` or `csv` (with `type_info`, DDL of the fields), a `Decoder` such as that of an
    `AvroFormat`, or a function of the bytes. With
    `with_metadata` a record has the fields of its value (or `value`), and `topic`, `partition`, `offset`, `timestamp`
    (milliseconds), `key` (bytes). A record's Kafka timestamp is its event timestamp.

    `start`, where no checkpoint says otherwise: `earliest`, `latest`, `committed` (by `group_id`; `start_fallback`, earliest,
    latest or fail, where nothing is committed), a time in milliseconds, or offsets by (topic, partition), where the
    partitions that are not named start at `start_fallback`. `stop`: None, `latest` (the end when the partition is found),
    `committed`, a time, or offsets; the job then ends.

    `on_corrupt`: `fail`, `skip`, or an OutputTag for records that cannot be decoded. `options` are librdkafka's.
    Offsets are in the checkpoints; with a `group_id` they are also committed to Kafka when a checkpoint is complete, so that
    lag can be watched, but never read again.

    >>> KafkaSource("broker:9092", topics=["orders"], value_format="json", type_info="id bigint, total double")
    KafkaSource('broker:9092', topics=['orders'])
    >>> KafkaSource("broker:9092")
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-4201] KafkaSource: give topics=['name', ...], pattern='...' or partitions=[('name', 0), ...], one of them
    """

    def __init__(
        self,
        brokers: str,
        *,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        partitions: Collection[Place] | None = None,
        value_format: str | Decoder | Callable[[bytes], Any] = "bytes",
        type_info: object = None,
        with_metadata: bool = False,
        start: str | int | Offsets = "earliest",
        start_fallback: str = "earliest",
        stop: str | int | Offsets | None = None,
        discovery_interval_ms: int | None = 60_000,
        group_id: str | None = None,
        on_corrupt: str | OutputTag = "fail",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = KafkaClient(brokers, options)
        if [bool(topics), bool(pattern), bool(partitions)].count(True) != 1 or isinstance(topics, str):
            raise InvalidArgument(
                "HR-4201",
                "KafkaSource: give topics=['name', ...], pattern='...' or partitions=[('name', 0), ...], one of them",
            )
        self.partitions = frozenset((topic, number) for topic, number in partitions or ())
        self.topics = list(topics or sorted({topic for topic, _ in self.partitions}))
        try:
            self.pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise InvalidArgument(
                "HR-4201", f"KafkaSource: pattern {pattern!r} is not a regular expression: {error}"
            ) from None
        self.start, self.stop = _checked("start", start), None if stop is None else _checked("stop", stop)
        self.bounded = stop is not None
        check_choice("KafkaSource: start_fallback", start_fallback, "earliest", "latest", "fail")
        for name, given in (("start", start), ("stop", stop)):
            if given == "committed" and not group_id:
                raise InvalidArgument(
                    "HR-4201", f"KafkaSource: {name}='committed' needs group_id=..., the group whose offsets are meant"
                )
        if discovery_interval_ms is not None and discovery_interval_ms < 1:
            raise InvalidArgument(
                "HR-4201", f"KafkaSource: discovery_interval_ms must be positive, got {discovery_interval_ms}"
            )
        self.start_fallback, self.interval, self.group_id = start_fallback, discovery_interval_ms, group_id
        CorruptRecords(on_corrupt, "KafkaSource")
        self.on_corrupt = on_corrupt
        self.side_outputs = (on_corrupt,) if isinstance(on_corrupt, OutputTag) else ()
        if isinstance(value_format, Decoder):
            self.decoder = value_format
        elif callable(value_format):
            self.decoder = _FunctionDecoder(value_format, as_type(type_info))
        else:
            self.decoder = decoder(value_format, type_info)
        self.with_metadata = with_metadata
        self.type = _with_metadata(self.decoder.type) if with_metadata else self.decoder.type

    def __repr__(self) -> str:
        what = f"pattern={self.pattern.pattern!r}" if self.pattern else f"topics={self.topics}"
        return f"KafkaSource({self.client.brokers!r}, {what})"

    def wants(self, topic: str, partition: int | None = None) -> bool:
        """Return True if the source reads a topic, or one of its partitions."""
        if self.pattern is None:
            return topic in self.topics and (
                partition is None or not self.partitions or (topic, partition) in self.partitions
            )
        return not topic.startswith("__") and self.pattern.fullmatch(topic) is not None

    def enumerator(self, restored: Any | None) -> SplitEnumerator[KafkaSplit]:
        """Make the enumerator, which finds partitions."""
        return KafkaEnumerator(self, restored)

    def reader(self, context: ReaderContext, splits: list[KafkaSplit]) -> SourceReader[KafkaSplit]:
        """Reads partitions; those of topics that the program no longer names are left out."""
        return KafkaReader(self, context, [split for split in splits if self.wants(*split.place)])


# --- what the user gave -----------------------------------------------------------------------------------------------


def _checked(name: str, given: Any) -> str | int | dict[Place, int]:
    words = ("earliest", "latest", "committed") if name == "start" else ("latest", "committed")
    number = Annotated[int, msgspec.Meta(ge=0)]
    offsets = Annotated[dict[Place, number], msgspec.Meta(min_length=1)]
    try:
        found: str | int | dict[Place, int] = msgspec.convert(given, Literal[words] | number | offsets)
        return found
    except msgspec.ValidationError:
        raise InvalidArgument(
            "HR-4201",
            f"KafkaSource: {name} must be {', '.join(map(repr, words))}, a time in milliseconds, or offsets such as "
            f"{{('orders', 0): 17}}, got {given!r}",
        ) from None


class _FunctionDecoder(Decoder):
    """Records by a function of the user's, one at a time."""

    def __init__(self, function: Callable[[bytes], Any], type: TypeInformation) -> None:
        super().__init__(type)
        self._function = function

    def decode(self, values: Sequence[bytes]) -> tuple[Batch, list[CorruptRecord]]:
        rows, bad = [], []
        for index, value in enumerate(values):
            try:
                rows.append(self._function(value))
            except Exception as error:
                bad.append(CorruptRecord(index, value, f"{type(error).__name__}: {error}"))
        return Batch.of_output(rows, self.type, None), bad

    def _all(self, values: Sequence[bytes]) -> Batch:
        return self.decode(values)[0]


def _with_metadata(value: TypeInformation) -> TypeInformation:
    if value.kind not in {"row", "scalar"}:
        raise InvalidArgument(
            "HR-1203",
            "KafkaSource: with_metadata needs records of a type; give type_info, for example 'id bigint, total double'",
        )
    assert value.schema is not None
    added = pa.schema([field for field, _ in _METADATA])
    if both := set(added.names) & set(value.schema.names):
        raise InvalidArgument(
            "HR-4201",
            f"KafkaSource: with_metadata adds the fields {', '.join(added.names)}, but the type has "
            f"{', '.join(sorted(both))} already; rename it",
        )
    return as_type(pa.schema([*value.schema, *added]))


# --- the driver's side ------------------------------------------------------------------------------------------------


class KafkaEnumerator(SplitEnumerator[KafkaSplit]):
    """Finds partitions, and where to start and stop; its snapshot is the partitions it has given."""

    def __init__(self, source: KafkaSource, restored: PartitionsFound | None) -> None:
        self._source = source
        self._begun, self._known = (False, set()) if restored is None else (restored.begun, set(restored.known))
        self._admin: Any = None
        self._refused: HeadraceError | None = None
        if source.interval is not None:
            self.interval = source.interval

    def discover(self) -> Sequence[KafkaSplit]:
        """The partitions that are new; brokers that do not answer are asked again later, but not at the start."""
        # A new one each time: between two discoveries there is nothing to close.
        self._admin = self._source.client.make(
            "AdminClient", self._source.client.conf({"client.id": "headrace"}, {"error_cb": self._trouble})
        )
        try:
            found = sorted(self._partitions() - self._known)
            splits = self._splits(found) if found else []
        except StorageError as error:
            if not self._begun:
                raise
            _LOG.warning("%s; the source goes on, and looks for new partitions later", error)
            return []
        finally:
            self._admin = None
        self._known.update(found)
        self._begun = True
        self.complete = self._source.stop is not None or self._source.interval is None
        return splits

    def _trouble(self, error: Any) -> None:
        self._refused = self._refused or self._source.client.refused(error)

    def snapshot(self) -> PartitionsFound:
        return PartitionsFound(self._begun, frozenset(self._known))

    def owner(self, split: KafkaSplit, parallelism: int) -> int:
        """Return the partitions of a topic go round, and each topic starts elsewhere.

        >>> source = KafkaSource("broker:9092", topics=["a"])
        >>> [source.enumerator(None).owner(KafkaSplit("a", p, 0, None), 3) for p in range(4)]
        [0, 1, 2, 0]
        """
        return (crc32(split.topic.encode()) + split.partition) % parallelism

    def _partitions(self) -> set[Place]:
        """All partitions of the topics that are wanted."""
        client = self._source.client
        topics = self._topics()
        wanted = {name: topic for name, topic in topics.items() if self._source.wants(name)}
        missing = [name for name in self._source.topics if name not in wanted]
        if missing and not self._begun:
            raise ConfigError(
                "HR-4204",
                f"Kafka: the brokers {client.brokers} have no topic {', '.join(map(repr, missing))}; create it, or correct topics=...",
            )
        for name, topic in wanted.items():
            if topic.error is not None:  # its partitions may not be all there
                raise StorageError(
                    "HR-4206",
                    f"Kafka: the brokers {client.brokers} cannot tell about '{name}': {client.say(topic.error)}",
                )
        found = {(name, partition) for name, topic in wanted.items() for partition in topic.partitions}
        gone = sorted(self._source.partitions - found)
        if gone and not self._begun:
            raise ConfigError(
                "HR-4204",
                f"Kafka: topic '{gone[0][0]}' on the brokers {client.brokers} has no partition {gone[0][1]}; correct partitions=...",
            )
        return {place for place in found if self._source.wants(*place)}

    def _topics(self) -> dict[str, Any]:
        """All topics; asked for in short steps, since a refused login shows only between them."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            left = deadline - time.monotonic()
            try:
                return self._admin.list_topics(timeout=min(2.0, left)).topics  # type: ignore[no-any-return]
            except load().KafkaException as error:
                self._admin.poll(0)
                if self._refused is not None:
                    raise self._refused from None
                if left <= 2.0:
                    client = self._source.client
                    raise StorageError(
                        "HR-4206",
                        f"Kafka: no broker of '{client.brokers}' answered in {_ANSWER_SECONDS:.0f} s ({client.say(error)}); check "
                        "brokers=..., that they run, and security.protocol in options=...",
                    ) from None

    def _splits(self, found: list[Place]) -> list[KafkaSplit]:
        source = self._source
        # A partition that comes later was empty when the source began: all its records are new.
        start = source.start if not self._begun else "earliest"
        stops = dict.fromkeys(found) if source.stop is None else self._offsets(found, source.stop, "stop")
        starts = self._offsets(found, start, "start")
        return [KafkaSplit(topic, part, starts[topic, part] or 0, stops[topic, part]) for topic, part in found]

    def _offsets(self, found: list[Place], mode: str | int | Mapping[Place, int], name: str) -> dict[Place, int | None]:
        """Return the offset of each partition that a start or stop means."""
        if isinstance(mode, Mapping):
            missing = [place for place in found if place not in mode]
            if missing and name == "stop":
                raise ConfigError(
                    "HR-4205", f"Kafka: stop has no offset for {missing[0]}; name every partition, or use stop='latest'"
                )
            rest = self._fallback(missing, "given") if missing else {}
            return {**{place: mode[place] for place in found if place in mode}, **rest}
        if mode == "earliest":
            return dict.fromkeys(found, BEGINNING)
        ends = self._listed(found, None)
        if mode == "latest":
            return ends
        # The ends were asked for first: a record that comes meanwhile is behind them, and read.
        exact = self._committed(found) if mode == "committed" else self._listed(found, int(mode))
        if mode == "committed" and name == "start" and self._source.start_fallback != "latest":
            ends |= self._fallback([place for place, offset in exact.items() if offset is None], "committed")
        return {place: ends[place] if offset is None else offset for place, offset in exact.items()}

    def _fallback(self, places: list[Place], what: str) -> dict[Place, int | None]:
        """Return the start offsets of partitions without an offset."""
        if places and self._source.start_fallback == "fail":
            topic, partition = places[0]
            raise ConfigError(
                "HR-4205",
                f"Kafka: no offset is {what} for partition {partition} of topic '{topic}'; set start_fallback='earliest' or 'latest'",
            )
        return self._offsets(places, self._source.start_fallback, "start") if places else {}

    def _listed(self, places: list[Place], stamp: int | None) -> dict[Place, int | None]:
        """End offsets, or the offsets of the first records from a time on (None: there is none)."""
        kafka, which = load(), load().admin.OffsetSpec
        spec = which.latest() if stamp is None else which.for_timestamp(stamp)
        asked = {kafka.TopicPartition(*place): spec for place in places}
        futures = self._asked(lambda: self._admin.list_offsets(asked, request_timeout=_ANSWER_SECONDS))
        found = {(tp.topic, tp.partition): self._asked(future.result).offset for tp, future in futures.items()}
        return {place: None if offset < 0 else offset for place, offset in found.items()}

    def _committed(self, places: list[Place]) -> dict[Place, int | None]:
        """Return the offsets of the group; None: nothing is committed."""
        kafka = load()
        partitions = [kafka.TopicPartition(*place) for place in places]
        question = kafka.ConsumerGroupTopicPartitions(self._source.group_id, partitions)
        futures = self._admin.list_consumer_group_offsets([question], request_timeout=_ANSWER_SECONDS)
        answers = [self._asked(future.result) for future in futures.values()]
        found = {(tp.topic, tp.partition): tp.offset for answer in answers for tp in answer.topic_partitions}
        return {place: None if found.get(place, -1) < 0 else found[place] for place in places}

    def _asked(self, question: Callable[[], Any]) -> Any:
        client = self._source.client
        try:
            return question()
        except load().KafkaException as error:
            raise client.refused(error.args[0]) or StorageError(
                "HR-4206",
                f"Kafka: the brokers {client.brokers} cannot tell offsets: {client.say(error)}; see whether all partitions have a leader",
            ) from None


# --- the worker's side ------------------------------------------------------------------------------------------------


class KafkaReader(SourceReader[KafkaSplit]):
    """Reads some partitions with one consumer."""

    def __init__(self, source: KafkaSource, context: ReaderContext, splits: list[KafkaSplit]) -> None:
        self._source, self._clock = source, context.clock
        self._splits: dict[Place, KafkaSplit] = {}
        self._next: dict[Place, int] = {}  # positions: beside the splits, since they change with every record
        # Of partitions with a backlog: where it ends, or _UNKNOWN before the first fetch.
        self._ends: dict[Place, int] = {}
        self._no_more = False
        self._idle_since: int | None = None
        self._error: HeadraceError | None = None
        self._places: list[Place] = []  # of the records that were returned last
        self._records = CorruptRecords(source.on_corrupt, repr(source))
        self._consumer = source.client.make("Consumer", self._conf())
        self.add_splits(splits)

    def _conf(self) -> dict[str, Any]:
        defaults = {
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 20,  # a full queue is looked at again soon: its reader is quick
            "client.id": "headrace",
        }
        fixed = {
            "group.id": self._source.group_id or "headrace",  # librdkafka wants one; nothing is committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": self._trouble,
        }
        return self._source.client.conf(defaults, fixed)

    def _trouble(self, error: Any) -> None:
        """Errors that belong to no partition: librdkafka goes on trying by itself."""
        self._error = self._error or self._source.client.refused(error)

    def add_splits(self, splits: list[KafkaSplit]) -> None:
        """Read these as well."""
        fresh = [s for s in splits if s.place not in self._splits and (s.stop is None or s.position < s.stop)]
        for split in fresh:
            self._splits[split.place] = split
            self._next[split.place] = split.position
            self._ends[split.place] = _UNKNOWN
        if fresh:
            partition = load().TopicPartition
            self.backlog = True
            self._consumer.incremental_assign([partition(s.topic, s.partition, s.position) for s in fresh])

    def no_more_splits(self) -> None:
        """Note that no more partitions will come."""
        self._no_more = True
        self.finished = not self._splits

    def poll(self, max_records: int) -> Batch | None:
        """Return the records that have arrived, of any partition."""
        try:
            messages = self._consumer.consume(min(max_records, _MOST), 0.0)
        except load().KafkaException as error:  # what librdkafka cannot go on after
            client = self._source.client
            raise StorageError("HR-4206", f"Kafka: {self._source!r} cannot go on: {client.say(error)}") from None
        if self._error is not None:
            raise self._error
        kept = self._accepted(messages)
        if self._ends:
            self._catch_up()
        self.finished = self._no_more and not self._splits
        batch = self._decoded(kept) if kept else None
        self._idle_since = None if kept else self._clock()
        return batch

    def _catch_up(self) -> None:
        """End a partition's backlog when the records that it had at the first fetch are read."""
        for place, end in list(self._ends.items()):
            if end == _UNKNOWN:
                _, high = self._consumer.get_watermark_offsets(load().TopicPartition(*place), cached=True)
                self._ends[place] = end = max(_UNKNOWN, high)
            if place not in self._next or 0 <= end <= self._next[place]:
                del self._ends[place]
        self.backlog = bool(self._ends)

    def _accepted(self, messages: list[Any]) -> list[Any]:
        """Return the records in front of the stops; positions move on."""
        kept, ahead = [], self._next
        for message in messages:
            place = (message.topic(), message.partition())
            if message.error() is not None:
                self._event(place, message)
                continue
            split = self._splits.get(place)
            if split is None:  # fetched before its partition came to its stop
                continue
            offset = message.offset()
            if split.stop is None or offset < split.stop:
                kept.append(message)
                ahead[place] = offset + 1
            if split.stop is not None and offset + 1 >= split.stop:
                self._stop(place)
        return kept

    def _event(self, place: Place, message: Any) -> None:
        error, split = message.error(), self._splits.get(place)
        if split is None:  # of a partition that is done, or of none
            self._trouble(error)
        elif not is_one_of(error, "_PARTITION_EOF"):
            if not is_one_of(error, *_PASSING):
                raise self._failure(place, error)
        else:
            self._ends.pop(place, None)
            # The offset is behind the last record and whatever else is there: marks of transactions, aborted records.
            if split.stop is not None and message.offset() >= split.stop:
                self._stop(place)

    def _failure(self, place: Place, error: Any) -> HeadraceError:
        client, (topic, partition) = self._source.client, place
        where = f"partition {partition} of topic '{topic}'"
        if refused := client.refused(error):
            return refused
        if is_one_of(error, "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            return StorageError(
                "HR-4205",
                f"Kafka: {where} has no offset {self._next.get(place)} any more, or not yet ({client.say(error)}): its records were "
                "deleted before they were read, or the topic was created again. Records are lost: lengthen retention.ms of the topic, "
                "and start without the checkpoint, with start='earliest' or other offsets",
            )
        if is_one_of(error, *UNKNOWN_TOPIC):
            return StorageError(
                "HR-4204",
                f"Kafka: {where} does not exist ({client.say(error)}): it was deleted, or the brokers {client.brokers} are others; "
                "correct topics=... or brokers=...",
            )
        return StorageError(
            "HR-4206", f"Kafka: {where} cannot be read at offset {self._next.get(place)}: {client.say(error)}"
        )

    def _stop(self, place: Place) -> None:
        del self._splits[place], self._next[place]
        self._consumer.incremental_unassign([load().TopicPartition(*place)])

    def _decoded(self, messages: list[Any]) -> Batch | None:
        source = self._source
        values = [message.value() for message in messages]
        if None in values and source.decoder.type.kind != "scalar":  # a record without a value has no fields
            tombstones = [
                CorruptRecord(i, b"", "it has no value (a tombstone)") for i, v in enumerate(values) if v is None
            ]
            messages = self._without(messages, tombstones)
            values = [message.value() for message in messages]
        if not values:
            return None
        batch, bad = source.decoder.decode(values)
        messages = self._without(messages, bad) if bad else messages
        if source.with_metadata:
            batch = self._described(batch, messages)
        self._places = [(message.topic(), message.partition()) for message in messages]
        batch.timestamps = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))
        return batch

    def _without(self, messages: list[Any], bad: list[CorruptRecord]) -> list[Any]:
        """Return the other messages."""
        for one in bad:
            message = messages[one.index]
            self._records.add(f"offset {message.offset()} of {message.topic()}-{message.partition()}", one)
        self.corrupt = self._records.count
        lost = {one.index for one in bad}
        return [message for index, message in enumerate(messages) if index not in lost]

    def _described(self, batch: Batch, messages: list[Any]) -> Batch:
        type = self._source.type
        arrays = [pa.array(list(map(read, messages)), field.type) for field, read in _METADATA]
        return Batch.of_arrow(pa.RecordBatch.from_arrays([*batch.arrow().columns, *arrays], schema=type.schema), type)

    def ordered_splits(self) -> Collection[Place]:
        return self._splits

    def split_of_each(self) -> list[Place]:
        return self._places

    def take_side(self) -> list[tuple[OutputTag, Any]]:
        """Return the records that could not be decoded."""
        return self._records.take()

    def ready_at(self) -> int | None:
        """A moment after nothing was there."""
        return None if self._idle_since is None else self._idle_since + _IDLE_MS

    def snapshot(self) -> list[KafkaSplit]:
        """Return the partitions at their next offsets."""
        return [replace(split, position=self._next[place]) for place, split in self._splits.items()]

    def notify_complete(self, splits: list[KafkaSplit]) -> None:
        """Commit the offsets of a complete checkpoint to Kafka, so that the lag of the group can be watched."""
        if self._source.group_id is None:
            return
        partition = load().TopicPartition
        known = [partition(s.topic, s.partition, s.position) for s in splits if s.position >= 0]
        if known:
            self._consumer.commit(offsets=known, asynchronous=True)

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()
