"""The Kafka sink against librdkafka's mock cluster; what needs fencing and markers is in tests/spark/test_kafka_commits.py. SPEC R9.3"""

import pickle
import time

import cloudpickle
import pytest

from headrace import Row
from headrace.api.sink import CommitRequest, WriterContext
from headrace.connectors.kafka import KafkaSink
from headrace.connectors.kafka.client import load
from headrace.connectors.kafka.commit import (
    KafkaCommittable,
    Marker,
    TransactionCommitter,
    _TransactionalProducer,
)
from headrace.errors import InvalidArgument, StorageError
from headrace.records.types import PICKLED, as_type
from kafka_mock import MockCluster

TYPE = as_type("user bigint, word string")
WHERE = WriterContext("Sink", "cbc357cc" * 4, 0, 1, 128, 0, "0" * 32)


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture
def topic(cluster, request):
    name = request.node.name.translate(str.maketrans("[]", "--"))
    cluster.create(name)
    return name


def sink_of(cluster, topic, type=TYPE, **how):
    if how.get("delivery") != "at-least-once":
        how = {"transactional_id_prefix": topic, **how}
    sink = KafkaSink(cluster.address, topic, **how)
    sink.check(type)
    return pickle.loads(cloudpickle.dumps(sink))


def committed(sink, committables, number=7):
    committer = sink.committer(WHERE)
    requests = [CommitRequest(committable, number) for committable in committables]
    committer.commit(requests)
    committer.close()
    return [request.retry for request in requests]


def test_records_are_visible_when_they_are_committed(cluster, topic):
    sink = sink_of(cluster, topic, key="user")
    writer = sink.writer(WHERE, [])
    assert writer.batches
    writer.write_batch(TYPE.to_batch([(1, "a"), (2, "b")]))
    committables = pickle.loads(pickle.dumps(list(writer.prepare(False))))
    assert [(committable.transactional_id, committable.sequence) for committable in committables] == [
        (f"{topic}-cbc357cc-0", 1)
    ]
    assert list(writer.prepare(True)) == []  # a committable without records is none
    assert cluster.read(topic) == []
    assert committed(sink, committables) == [False]
    assert sorted(row[1:] for row in cluster.read(topic)) == [
        (b"1", b'{"user":1,"word":"a"}'),
        (b"2", b'{"user":2,"word":"b"}'),
    ]


def test_every_attempt_of_a_subtask_has_the_same_id_so_that_a_new_one_fences_an_old_one(cluster):
    sink = sink_of(cluster, "t", transactional_id_prefix="mine")
    ids = [
        sink.transactional_id(WriterContext("Sink", "cbc357cc" * 4, 1, 2, 128, attempt, "0" * 32)) for attempt in (0, 1)
    ]
    assert ids == ["mine-cbc357cc-1"] * 2


def test_a_committer_does_not_write_a_committable_twice(cluster, topic):
    sink = sink_of(cluster, topic)
    writer = sink.writer(WHERE, [])
    writer.write_batch(TYPE.to_batch([(1, "a")]))
    first = writer.prepare(False)[0]
    writer.write_batch(TYPE.to_batch([(2, "b")]))
    second = writer.prepare(False)[0]
    assert committed(sink, [first, first, second, first]) == [False] * 4
    assert len(cluster.read(topic)) == 2


def test_a_committable_larger_than_the_queue(cluster, topic):
    sink = sink_of(cluster, topic, options={"queue.buffering.max.messages": 100})
    writer = sink.writer(WHERE, [])
    writer.write_batch(TYPE.to_batch([(n, "x") for n in range(5000)]))
    assert committed(sink, writer.prepare(False)) == [False]
    assert len(cluster.read(topic)) == 5000


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_formats_and_keys_of_untyped_records(cluster, topic, delivery):
    sink = sink_of(
        cluster,
        topic,
        PICKLED,
        delivery=delivery,
        value_format=lambda row: None if row.word is None else row.word.encode(),
        key=lambda row: row.user,
    )
    writer = sink.writer(WHERE, [])
    assert not writer.batches
    writer.write(Row(user=1, word="a"))
    writer.write(Row(user=None, word=None))
    committables = writer.prepare(True)
    if delivery == "exactly-once":
        committed(sink, committables)
    else:
        assert list(committables) == []
        assert sink.committer(WHERE) is None
    writer.close()
    assert sorted((row[1:] for row in cluster.read(topic)), key=str) == [(None, None), (b"1", b"a")]


def test_records_of_a_key_go_where_java_puts_them(cluster, topic):
    sink = sink_of(cluster, topic, delivery="at-least-once", value_format="text", key="word")
    writer = sink.writer(WHERE, [])
    writer.write_batch(TYPE.to_batch([(n, word) for n in range(3) for word in ("foobar", "abc", "21")]))
    writer.prepare(False)
    writer.close()
    places = {(row[1], row[0]) for row in cluster.read(topic)}
    # Known values of Kafka's murmur2: 21 -> -973932308, foobar -> -790332482, abc -> 479470107: its last bits
    assert places == {(b"21", -973932308 & 3), (b"foobar", -790332482 & 3), (b"abc", 479470107 & 3)}


def test_what_at_least_once_cannot_deliver_fails_the_checkpoint(topic):
    options = {"message.timeout.ms": 300, "log_level": 0}
    sink = KafkaSink("127.0.0.1:9", topic, delivery="at-least-once", options=options)
    sink.check(TYPE)
    writer = sink.writer(WHERE, [])
    writer.write_batch(TYPE.to_batch([(1, "a")]))
    with pytest.raises(StorageError, match="1 records were not written, the first one because of _MSG_TIMED_OUT"):
        writer.prepare(False)
    writer.close()


def test_brokers_that_are_away_are_tried_again(topic, caplog):
    sink = KafkaSink(
        "127.0.0.1:9", topic, transactional_id_prefix="t", transaction_timeout_ms=1000, options={"log_level": 0}
    )
    committable = KafkaCommittable("t-Sink-0", topic, "ab", 1, int(time.time()), None, [b"secret record"])
    committer = sink.committer(WHERE)
    requests = [CommitRequest(committable, 1), CommitRequest(committable, 1)]
    committer.commit(requests)
    committer.close()
    assert [request.retry for request in requests] == [True, True]
    said = caplog.text
    assert "KafkaCommittable(t-Sink-0, ab:1, 1 records) is tried again: _TIMED_OUT" in said
    assert "secret" not in said + repr(requests)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_record_that_is_too_long_never_gets_into_a_checkpoint(cluster, topic, delivery):
    writer = sink_of(cluster, topic, delivery=delivery).writer(WHERE, [])
    with pytest.raises(InvalidArgument, match=r"a record has 1000020 bytes, and message.max.bytes allows 1000000"):
        writer.write_batch(TYPE.to_batch([(1, "a" * 1_000_000)]))
    writer.close()


def committer_of(cluster, topic, **how):
    return TransactionCommitter(sink_of(cluster, topic).client, 10_000, f"{topic}-Sink-0", **how)


def test_a_marker_that_is_lost(cluster, topic, caplog):
    now = int(time.time())
    follower = KafkaCommittable(f"{topic}-Sink-0", topic, "ab", 2, now, None, [b"follower"])
    old = KafkaCommittable(f"{topic}-Sink-0", topic, "cd", 1, now - 8 * 24 * 3600, None, [b"old"])
    for committable in (follower, old):
        with pytest.raises(StorageError, match=r"is not known any more: group .* on_lost_marker='write' or 'skip'"):
            committer_of(cluster, topic).commit([CommitRequest(committable, 1)])
    committer_of(cluster, topic, on_lost_marker="skip").commit([CommitRequest(follower, 1)])
    assert cluster.read(topic) == []
    committer_of(cluster, topic, on_lost_marker="write").commit([CommitRequest(follower, 1), CommitRequest(old, 1)])
    assert [row[2] for row in cluster.read(topic)] in ([b"follower", b"old"], [b"old", b"follower"])
    assert "on_lost_marker=write" in caplog.text


def test_a_marker_fits_into_the_metadata_of_an_offset():
    marker = Marker({})
    for number in range(500):
        marker = marker.after(f"{number:016x}", 10**11)
    assert len(marker.text) <= 4096
    assert Marker.read(marker.text).of(f"{499:016x}") == 10**11
    assert marker.of(f"{436:016x}") == 10**11
    assert marker.of(f"{435:016x}") == 0
    assert Marker.read(None).of("a") == 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "exactly-once needs transactional_id_prefix"),
        ({"delivery": "twice"}, "delivery must be 'exactly-once' or 'at-least-once', got 'twice'"),
        ({"topic": ""}, "topic must be a name"),
        ({"value_format": "xml", "delivery": "at-least-once"}, "unknown format 'xml'"),
        ({"delivery": "at-least-once", "transaction_timeout_ms": 1}, "at least 1000"),
        ({"delivery": "at-least-once", "on_lost_marker": "x"}, "on_lost_marker must be"),
        ({"delivery": "at-least-once", "options": {"transactional.id": "x"}}, "is set by transactional_id_prefix"),
    ],
)
def test_what_is_refused(how, message):
    with pytest.raises(InvalidArgument, match=message):
        KafkaSink("broker:9092", **{"topic": "t", **how})


def test_what_is_refused_of_a_stream():
    sink = KafkaSink("broker:9092", "t", delivery="at-least-once", key="name")
    with pytest.raises(InvalidArgument, match="have no field 'name', they are row<user bigint, word string>"):
        sink.check(TYPE)
    with pytest.raises(InvalidArgument, match=r"give key=function"):
        sink.check(PICKLED)
    sink = KafkaSink("broker:9092", "t", delivery="at-least-once")
    sink.check(TYPE)
    with pytest.raises(InvalidArgument, match="make another KafkaSink for the stream of bigint"):
        sink.check(as_type("bigint"))
    with pytest.raises(InvalidArgument, match="needs a type with fields"):
        KafkaSink("broker:9092", "t", "csv", delivery="at-least-once").check(PICKLED)


def test_a_function_that_gives_no_bytes(cluster, topic):
    writer = sink_of(cluster, topic, PICKLED, value_format=str).writer(WHERE, [])
    with pytest.raises(InvalidArgument, match="value_format gave str for 5; it must give bytes"):
        writer.write(5)


def test_secrets_stay_secret():
    sink = KafkaSink("broker:9092", "t", delivery="at-least-once", options={"sasl.password": "hunter2"})
    assert "hunter2" not in repr(sink) + repr(sink.client) + repr(vars(sink))


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_the_topic_by_a_function_of_the_record(cluster, topic, delivery):
    first, second = f"{topic}-a", f"{topic}-b"
    cluster.create(first)
    cluster.create(second)
    sink = sink_of(cluster, topic, delivery=delivery, key="user")
    sink.topic = lambda row: f"{topic}-{row.word}"
    writer = sink.writer(WHERE, [])
    writer.write_batch(TYPE.to_batch([(1, "a"), (2, "b"), (3, "a")]))
    prepared = list(writer.prepare(False))
    writer.write_batch(TYPE.to_batch([(4, "b")]))
    prepared += writer.prepare(False)
    if delivery == "exactly-once":
        assert [(one.transactional_id, one.topic, one.sequence) for one in prepared] == [
            (f"{topic}-cbc357cc-0-{first}", first, 1),
            (f"{topic}-cbc357cc-0-{second}", second, 1),
            (f"{topic}-cbc357cc-0-{second}", second, 2),
        ]
        assert committed(sink, prepared) == [False] * 3
    assert sorted(row[1] for row in cluster.read(first)) == [b"1", b"3"]
    assert sorted(row[1] for row in cluster.read(second)) == [b"2", b"4"]
    assert repr(sink) == f"KafkaSink('{cluster.address}', topics by a function, {delivery})"
    sink.topic = lambda row: None
    with pytest.raises(
        InvalidArgument, match=r"the function gave None for Row\(user=5, word='x'\), not a topic's name"
    ):
        sink.writer(WHERE, []).write_batch(TYPE.to_batch([(5, "x")]))


def test_behind_a_committable_that_must_wait_those_of_the_same_id_wait_too(cluster, topic, monkeypatch):
    sink = sink_of(cluster, topic)
    writer = sink.writer(WHERE, [])
    writer.write_batch(TYPE.to_batch([(1, "a")]))
    first = writer.prepare(False)[0]
    writer.write_batch(TYPE.to_batch([(2, "b")]))
    second = writer.prepare(False)[0]
    kafka = load()
    commit, failures = (
        _TransactionalProducer.commit,
        [kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TRANSPORT))],
    )

    def fail_once(self, committable, number):
        if failures:
            raise failures.pop()
        commit(self, committable, number)

    monkeypatch.setattr(_TransactionalProducer, "commit", fail_once)
    assert committed(sink, [first, second]) == [True, True]
    assert cluster.read(topic) == []
    assert committed(sink, [first, second]) == [False, False]
    assert len(cluster.read(topic)) == 2
