"""The Kafka sink's kill points and the source's ends, against a real broker: nothing is lost, nothing comes twice. SPEC R9.3, R9.4"""

import pickle
import time
from collections import Counter
from itertools import count

import pytest
from confluent_kafka import Producer

from headrace.api.sink import CommitRequest, WriterContext
from headrace.api.sources import ReaderContext
from headrace.checkpoint.commits import Commits
from headrace.connectors.kafka import KafkaSink, KafkaSource
from headrace.connectors.kafka.commit import KafkaCommittable, TransactionCommitter
from headrace.connectors.kafka.source import KafkaSplit
from headrace.environment import StreamExecutionEnvironment
from headrace.errors import ConfigError, StorageError
from headrace.records.types import as_type
from kafka_broker import read_all
from rig import restore_of, snapshot_of, subtask

pytestmark = pytest.mark.xdist_group("kafka")  # one broker

_names = count()


@pytest.fixture
def topic(kafka_broker):
    name = f"topic-{next(_names)}"
    kafka_broker.create(name, 2)
    return name


class Writer:
    """Portions of one writer."""

    def __init__(self, topic, origin="00aa", subtask=0):
        self.topic, self.origin, self.subtask, self.sequence = topic, origin, subtask, 0

    def committable(self, *values):
        self.sequence += 1
        ident = f"{self.topic}-Sink-{self.subtask}"
        return KafkaCommittable(ident, self.topic, self.origin, self.sequence, int(time.time()), None, list(values))


def committer(broker, topic, timeout_ms=10_000):
    client = KafkaSink(broker.address, topic, transactional_id_prefix=topic).client
    return TransactionCommitter(client, timeout_ms, f"{topic}-Sink-0")


def commit(committer, *committables, number=1):
    """Commit as the operator does, with up to 10 retries."""
    requests = [CommitRequest(pickle.loads(pickle.dumps(committable)), number) for committable in committables]
    for _ in range(10):
        committer.commit(requests)
        requests = [
            CommitRequest(request.committable, number, request.tries + 1) for request in requests if request.retry
        ]
        if not requests:
            return
    raise AssertionError(f"{requests} were not committed")


def values(broker, topic):
    return sorted(value for *_, value in read_all(broker.address, topic))


def test_a_crash_before_the_commit(kafka_broker, topic):
    committables = [Writer(topic).committable(b"a", b"b")]
    commit(committer(kafka_broker, topic), *committables)  # of the attempt after the crash
    assert values(kafka_broker, topic) == [b"a", b"b"]


def test_a_crash_after_the_commit_writes_nothing_twice(kafka_broker, topic):
    writer = Writer(topic)
    first, second = writer.committable(b"a"), writer.committable(b"b")
    commit(committer(kafka_broker, topic), first)
    commit(committer(kafka_broker, topic), first, second, number=1)
    commit(committer(kafka_broker, topic), second, number=1)  # a new job counts its commits anew
    after = Writer(topic, "00bb").committable(b"c")
    commit(committer(kafka_broker, topic), first, second, after)
    commit(committer(kafka_broker, topic), first, second, after)
    assert values(kafka_broker, topic) == [b"a", b"b", b"c"]


def test_a_crash_in_the_middle_of_a_transaction(kafka_broker, topic):
    writer = Writer(topic)
    zombie = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": f"{topic}-Sink-0"})
    zombie.init_transactions(30)
    zombie.begin_transaction()
    zombie.produce(topic, b"a")
    zombie.flush(60)
    commit(committer(kafka_broker, topic), writer.committable(b"a"))
    assert values(kafka_broker, topic) == [b"a"]


def test_a_zombie_is_fenced(kafka_broker, topic):
    writer, zombie = Writer(topic), committer(kafka_broker, topic)
    first, second = writer.committable(b"a"), writer.committable(b"b")
    commit(zombie, first)
    commit(committer(kafka_broker, topic), second)
    with pytest.raises(StorageError, match=f"another producer with transactional id '{topic}-Sink-0' has started"):
        commit(zombie, second)
    assert values(kafka_broker, topic) == [b"a", b"b"]


class Forgetful:
    """A producer that loses what went wrong, as confluent_kafka's does now and then."""

    def __init__(self, kafka):
        self._kafka = kafka

    def __getattr__(self, name):
        return getattr(self._kafka, name)

    def flush(self, seconds):
        try:
            return self._kafka.flush(seconds)
        except Exception:
            raise SystemError("flush returned NULL without setting an exception") from None


def test_a_zombie_is_fenced_even_if_its_client_loses_the_reason(kafka_broker, topic):
    writer, zombie = Writer(topic), committer(kafka_broker, topic)
    first, second = writer.committable(b"a"), writer.committable(b"b")
    commit(zombie, first)
    (transactions,) = zombie._open.values()
    transactions.kafka = Forgetful(transactions.kafka)
    commit(committer(kafka_broker, topic), second)
    with pytest.raises(StorageError, match=f"another producer with transactional id '{topic}-Sink-0' has started"):
        commit(zombie, second)


def test_a_zombie_that_comes_late_sees_the_marker(kafka_broker, topic):
    writer, alive = Writer(topic), committer(kafka_broker, topic)
    first, second = writer.committable(b"a"), writer.committable(b"b")
    commit(alive, first)
    commit(committer(kafka_broker, topic), first)  # it had not begun when it was replaced
    with pytest.raises(StorageError, match="another producer"):
        commit(alive, second)  # a restart, and its next attempt:
    commit(committer(kafka_broker, topic), first, second)
    assert values(kafka_broker, topic) == [b"a", b"b"]


def test_a_topic_that_does_not_exist(kafka_broker):
    committable = Writer("missing").committable(b"a")
    client = KafkaSink(
        kafka_broker.address,
        "missing",
        transactional_id_prefix="missing",
        options={"topic.metadata.propagation.max.ms": 500},
    ).client
    with pytest.raises(StorageError, match=r"topic 'missing' does not exist .*create it"):
        TransactionCommitter(client, 10_000, "missing-Sink-0").commit([CommitRequest(committable, 1)])


def test_a_topic_that_takes_only_short_records(kafka_broker):
    kafka_broker.create("short", 1, max_message_bytes="1000")
    committable = Writer("short").committable(b"a" * 5000)
    with pytest.raises(StorageError, match=r"topic 'short' takes no records as long as .*max.message.bytes"):
        committer(kafka_broker, "short").commit([CommitRequest(committable, 1)])


def test_brokers_that_are_killed_between(kafka_broker, topic):
    writer, attempt = Writer(topic), committer(kafka_broker, topic, 3000)
    commit(attempt, writer.committable(b"a"))
    committable = writer.committable(b"b")
    kafka_broker.kill()
    request = CommitRequest(committable, 1)
    attempt.commit([request])
    assert request.retry
    kafka_broker.start()
    commit(attempt, committable)
    assert values(kafka_broker, topic) == [b"a", b"b"]


# --- rescaling --------------------------------------------------------------------------------------------------------


def plan_of(broker, topic, parallelism):
    env = StreamExecutionEnvironment.local()
    sink = KafkaSink(broker.address, topic, "text", transactional_id_prefix=topic)
    env.set_parallelism(parallelism).from_sequence(1, 32).sink_to(sink)
    return env._job_plan()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_rescale(kafka_broker, topic, before, after):
    plan, states = plan_of(kafka_broker, topic, before), []
    tasks = [subtask(plan, "Sequence", index) for index in range(before)]
    for task in tasks:
        task.open()
        task.step(4)
        snapshot_of(task, 1)
        task.step(4)
        states.append(snapshot_of(task, 2))
    commits = Commits().add(1, 1).add(2, 2)
    tasks[0].notify_complete(1, commits)  # one is notified of one checkpoint, and then all are gone
    plan = plan_of(kafka_broker, topic, after)
    restore = restore_of(2, states, after, commits)
    again = [subtask(plan, "Sequence", index, attempt=1, restore=restore) for index in range(after)]
    for task in again:
        task.open()
    for task in again:
        while not task.data_finished:
            task.step(10)
        task.close()
    assert Counter(values(kafka_broker, topic)) == Counter(str(n).encode() for n in range(1, 33))


# --- the source -------------------------------------------------------------------------------------------------------


def transaction(broker, topic, partition, *batch, commit=True):
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in batch:
        producer.produce(topic, value, partition=partition)
    producer.flush(60)
    if commit is None:
        return producer
    producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    return None


def read_until_finished(source, seconds=120.0):
    reader = source.reader(ReaderContext(0, 1, lambda: 0), list(source.enumerator(None).discover()))
    reader.no_more_splits()
    rows, deadline = [], time.monotonic() + seconds
    while not reader.finished:
        assert time.monotonic() < deadline, rows
        batch = reader.poll(100)
        rows += [] if batch is None else batch.rows()
        time.sleep(0 if batch else 0.005)
    reader.close()
    return rows


def test_a_bounded_partition_ends_behind_marks_and_aborted_records(kafka_broker, topic):
    transaction(kafka_broker, topic, 0, b"a", b"b")
    transaction(kafka_broker, topic, 0, b"aborted", commit=False)
    transaction(kafka_broker, topic, 1, b"aborted too", commit=False)
    source = KafkaSource(kafka_broker.address, topics=[topic], value_format="text", stop="latest")
    assert sorted(read_until_finished(source)) == ["a", "b"]
    everything = KafkaSource(
        kafka_broker.address,
        topics=[topic],
        value_format="text",
        stop="latest",
        options={"isolation.level": "read_uncommitted"},
    )
    assert sorted(read_until_finished(everything)) == ["a", "aborted", "aborted too", "b"]


def test_a_bounded_partition_waits_for_an_open_transaction(kafka_broker, topic):
    transaction(kafka_broker, topic, 0, b"a")
    open_one = transaction(kafka_broker, topic, 0, b"b", commit=None)
    source = KafkaSource(kafka_broker.address, topics=[topic], value_format="text", stop="latest")
    reader = source.reader(ReaderContext(0, 1, lambda: 0), list(source.enumerator(None).discover()))
    reader.no_more_splits()
    rows, until = [], time.monotonic() + 120
    while time.monotonic() < until:
        batch = reader.poll(100)
        if batch is not None:
            rows, until = rows + batch.rows(), time.monotonic() + 2
    assert rows == ["a"]
    assert not reader.finished
    open_one.commit_transaction(30)
    deadline = time.monotonic() + 120
    while not reader.finished:
        assert time.monotonic() < deadline
        batch = reader.poll(100)
        rows += [] if batch is None else batch.rows()
    assert rows == ["a", "b"]
    reader.close()


def test_times_and_partitions_that_come_later(kafka_broker, topic):
    producer = Producer({"bootstrap.servers": kafka_broker.address})
    for stamp in range(1_700_000_000_000, 1_700_000_010_000, 1000):
        producer.produce(topic, str(stamp % 100_000).encode(), partition=0, timestamp=stamp)
    assert producer.flush(60) == 0
    where = {"topics": [topic], "value_format": "text"}
    source = KafkaSource(kafka_broker.address, start=1_700_000_003_500, stop=1_700_000_006_000, **where)
    assert read_until_finished(source) == ["4000", "5000"]
    after = KafkaSource(kafka_broker.address, start=1_800_000_000_000, **where)
    enumerator = after.enumerator(None)
    assert [split.position for split in enumerator.discover()] == [10, 0]
    kafka_broker.add_partitions(topic, 4)
    deadline, found = time.monotonic() + 120, []
    while not found:
        assert time.monotonic() < deadline
        found = list(enumerator.discover())
    assert [(split.partition, split.position) for split in found] == [(2, -2), (3, -2)]


def login(password):
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": password,
        "log_level": 0,
    }


def test_a_login(kafka_broker, topic):
    sink = KafkaSink(kafka_broker.login_address, topic, transactional_id_prefix="login", options=login("hunter2"))
    commit(TransactionCommitter(sink.client, 10_000, "login"), Writer(topic).committable(b"a"))
    source = KafkaSource(
        kafka_broker.login_address, topics=[topic], value_format="text", stop="latest", options=login("hunter2")
    )
    assert read_until_finished(source) == ["a"]


def for_seconds(seconds, step):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        step()
        time.sleep(0.02)


def test_a_login_that_is_refused(kafka_broker, topic):
    where, wrong = kafka_broker.login_address, login("hunter3")
    refused = "refuse the login: .*sasl.password and security.protocol in options="
    source = KafkaSource(where, topics=[topic], options=wrong)
    with pytest.raises(ConfigError, match=refused) as caught:
        source.enumerator(None).discover()
    assert "hunter3" not in str(caught.value)
    reader = source.reader(ReaderContext(0, 1, lambda: 0), [KafkaSplit(topic, 0, 0, None)])
    with pytest.raises(ConfigError, match=refused):
        for_seconds(20, lambda: reader.poll(10))
    reader.close()
    sink = KafkaSink(where, topic, transactional_id_prefix="login", options=wrong)
    with pytest.raises(ConfigError, match=refused):
        TransactionCommitter(sink.client, 2000, "login").commit([CommitRequest(Writer(topic).committable(b"a"), 1)])
    sink = KafkaSink(where, topic, "text", delivery="at-least-once", options=wrong)
    sink.check(as_type("string"))
    writer = sink.writer(WriterContext("Sink", "0" * 32, 0, 1, 128, 0, "0" * 32), [])
    with pytest.raises(ConfigError, match=refused):
        for_seconds(20, lambda: writer.write_batch(as_type("string").to_batch(["a"])))
    writer.close()
