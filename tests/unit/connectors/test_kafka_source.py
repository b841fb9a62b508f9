"""The Kafka source against librdkafka's mock cluster: where it starts and stops, what a checkpoint keeps. SPEC R9.4"""

import time

import pytest

from headrace import OutputTag, StreamExecutionEnvironment
from headrace.api.durable import to_text, unpack
from headrace.api.sources import ReaderContext
from headrace.connectors.avro import AvroFormat
from headrace.connectors.kafka import KafkaSource
from headrace.connectors.kafka.source import BEGINNING, KafkaSplit, PartitionsFound
from headrace.connectors.values import CORRUPT_TYPE
from headrace.errors import ConfigError, HeadraceError, InvalidArgument, StorageError
from headrace.local import LocalRun
from kafka_mock import MockCluster
from waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture
def topic(cluster, request):
    name = request.node.name.translate(str.maketrans("[]", "--"))
    cluster.create(name)
    return name


def source_of(cluster, topic, **how):
    return KafkaSource(cluster.address, topics=[topic], **how)


def reader_of(source, splits):
    return source.reader(ReaderContext(0, 1, lambda: int(time.time() * 1000)), splits)


def polled(reader, count, seconds=120.0):
    """The first so many records of a reader; all there are until it is finished if count is None."""
    rows, deadline = [], time.monotonic() + seconds
    while not reader.finished and (count is None or len(rows) < count):
        assert time.monotonic() < deadline, f"{rows} in {seconds} s"
        batch = reader.poll(100)
        if batch is not None:
            assert len(batch.timestamps) == len(batch)
            rows += batch.rows()
        else:
            time.sleep(0.005)
    return rows


def discovered(source, restored=None):
    enumerator = source.enumerator(restored)
    return enumerator, list(enumerator.discover())


def test_partitions_are_splits(cluster, topic):
    source = source_of(cluster, topic, value_format="text")
    enumerator, splits = discovered(source)
    assert splits == [KafkaSplit(topic, partition, BEGINNING, None) for partition in range(4)]
    assert list(enumerator.discover()) == []
    assert not enumerator.complete
    assert enumerator.interval == 60_000
    again = source.enumerator(unpack(to_text(enumerator.snapshot())))
    assert list(again.discover()) == []
    owners = [enumerator.owner(split, 2) for split in splits]
    assert owners in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_positions_move_with_the_records(cluster, topic):
    cluster.produce(topic, 0, b"a", b"b", b"c")
    cluster.produce(topic, 2, b"d")
    source = source_of(cluster, topic, value_format="text")
    reader = reader_of(source, discovered(source)[1])
    assert sorted(polled(reader, 4)) == ["a", "b", "c", "d"]
    assert {split.partition: split.position for split in reader.snapshot()} == {0: 3, 1: BEGINNING, 2: 1, 3: BEGINNING}
    kept = [unpack(to_text(split)) for split in reader.snapshot()]
    reader.close()
    cluster.produce(topic, 0, b"e")
    cluster.produce(topic, 1, b"f")
    again = reader_of(source, kept)
    assert sorted(polled(again, 2)) == ["e", "f"]
    assert again.poll(100) is None
    assert again.ready_at() > 0
    again.close()


def test_what_is_there_at_the_start_is_a_backlog(cluster, topic):  # SPEC R5.4
    cluster.produce(topic, 0, *(b"%d" % n for n in range(50)))
    source = source_of(cluster, topic, value_format="text")
    reader = reader_of(source, discovered(source)[1])
    assert reader.backlog
    count, deadline = 0, time.monotonic() + 120
    while count < 50:
        assert reader.backlog
        assert time.monotonic() < deadline
        batch = reader.poll(7)
        count += 0 if batch is None else len(batch)
    while reader.backlog and time.monotonic() < deadline:  # the ends of the empty partitions come by themselves
        reader.poll(7)
    assert not reader.backlog
    cluster.produce(topic, 0, b"new")
    assert polled(reader, 1) == ["new"]
    assert not reader.backlog
    reader.close()


def test_partitions_are_added_while_others_are_read(cluster, topic):
    cluster.produce(topic, 0, b"a")
    cluster.produce(topic, 1, b"b")
    source = source_of(cluster, topic, value_format="text")
    splits = discovered(source)[1]
    reader = reader_of(source, splits[:1])
    assert polled(reader, 1) == ["a"]
    reader.add_splits(splits[1:])
    assert polled(reader, 1) == ["b"]
    cluster.produce(topic, 0, b"c")
    assert polled(reader, 1) == ["c"]
    reader.close()


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [BEGINNING] * 4), ("latest", [3, 0, 0, 0]), ("committed", [2, 1, BEGINNING, BEGINNING])],
)
def test_where_it_starts(cluster, topic, start, expected):
    cluster.produce(topic, 0, b"a", b"b", b"c")
    cluster.commit(f"group-{topic}", {(topic, 0): 2, (topic, 1): 1})
    source = source_of(cluster, topic, start=start, group_id=f"group-{topic}")
    assert [split.position for split in discovered(source)[1]] == expected


def test_it_starts_at_offsets_and_elsewhere_at_the_fallback(cluster, topic):
    cluster.produce(topic, 1, b"a", b"b")
    source = source_of(cluster, topic, start={(topic, 0): 7}, start_fallback="latest")
    assert [split.position for split in discovered(source)[1]] == [7, 2, 0, 0]


def test_what_is_found_later_starts_at_its_beginning(cluster, topic):
    source = source_of(cluster, topic, start="latest")
    known = PartitionsFound(True, frozenset({(topic, 0), (topic, 1)}))
    assert [(s.partition, s.position) for s in discovered(source, known)[1]] == [(2, BEGINNING), (3, BEGINNING)]


def test_a_bounded_source_ends(cluster, topic):
    cluster.produce(topic, 0, *[b"%d" % n for n in range(250)])
    cluster.produce(topic, 3, b"last")
    source = source_of(cluster, topic, value_format="text", stop="latest")
    enumerator, splits = discovered(source)
    assert [split.stop for split in splits] == [250, 0, 0, 1]
    assert enumerator.complete
    cluster.produce(topic, 0, b"too late")
    reader = reader_of(source, splits)
    reader.no_more_splits()
    assert sorted(polled(reader, None)) == sorted([str(n) for n in range(250)] + ["last"])
    assert reader.finished
    assert reader.snapshot() == []
    reader.close()


def test_a_bounded_source_stops_at_offsets(cluster, topic):
    cluster.produce(topic, 0, b"a", b"b", b"c")
    stop = {(topic, partition): 2 if partition == 0 else 0 for partition in range(4)}
    source = source_of(cluster, topic, value_format="text", stop=stop)
    reader = reader_of(source, discovered(source)[1])
    reader.no_more_splits()
    assert polled(reader, None) == ["a", "b"]
    reader.close()
    with pytest.raises(ConfigError, match=r"stop has no offset for \('.*', 1\); name every partition"):
        discovered(source_of(cluster, topic, stop={(topic, 0): 2}))


def test_a_program_reads_all_partitions(cluster, topic):
    for partition in range(4):
        cluster.produce(topic, partition, *[b'{"n": %d}' % (partition * 100 + n) for n in range(50)])
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    source = source_of(cluster, topic, value_format="json", type_info="n bigint", stop="latest")
    env.from_source(source).map(lambda row: row.n).print()
    lines = []
    LocalRun(env._job_plan("kafka"), lambda channel, payload: lines.extend(payload.decode().splitlines()), seed=1).run()
    assert sorted(int(line.split("> ")[-1]) for line in lines) == sorted(
        p * 100 + n for p in range(4) for n in range(50)
    )


def test_metadata_beside_the_value(cluster, topic):
    cluster.produce(topic, 1, b'{"n": 5}', key=b"k", timestamp=1_700_000_000_000)
    source = source_of(cluster, topic, value_format="json", type_info="n bigint", with_metadata=True)
    reader = reader_of(source, discovered(source)[1])
    assert polled(reader, 1) == [(5, topic, 1, 0, 1_700_000_000_000, b"k")]
    assert source.type.schema.names == ["n", "topic", "partition", "offset", "timestamp", "key"]
    reader.close()
    plain = source_of(cluster, topic, value_format="bytes", with_metadata=True)
    assert plain.type.schema.names[0] == "value"


def test_a_function_decodes(cluster, topic):
    cluster.produce(topic, 0, b"1,2", b"x")
    source = source_of(cluster, topic, value_format=lambda data: tuple(map(int, data.split(b","))), on_corrupt="skip")
    reader = reader_of(source, discovered(source)[1])
    assert polled(reader, 1) == [(1, 2)]
    wait_until(lambda: reader.poll(100) is None and reader.corrupt == 1)
    reader.close()


def test_corrupt_records(cluster, topic):
    cluster.produce(topic, 0, b'{"n": 1}', b"oops", None, b'{"n": 2}')
    fails = source_of(cluster, topic, value_format="json", type_info="n bigint")
    reader = reader_of(fails, discovered(fails)[1])
    with pytest.raises(HeadraceError, match=rf"offset [12] of {topic}-0 cannot be read: .*on_corrupt='skip'"):
        polled(reader, 2)
    reader.close()
    tag = OutputTag("corrupt", CORRUPT_TYPE)
    aside = source_of(cluster, topic, value_format="json", type_info="n bigint", on_corrupt=tag, with_metadata=True)
    reader = reader_of(aside, discovered(aside)[1])
    assert [(row.n, row.offset) for row in polled(reader, 2)] == [(1, 0), (2, 3)]
    assert [row.place for _, row in reader.take_side()] == [f"offset 2 of {topic}-0", f"offset 1 of {topic}-0"]
    assert reader.corrupt == 2
    assert aside.side_outputs == (tag,)
    reader.close()


@pytest.mark.parametrize("value", [None, b"oops"])
def test_nothing_but_a_corrupt_record(cluster, topic, value):
    cluster.produce(topic, 0, value)
    format = {"value_format": "json", "type_info": "n bigint", "with_metadata": True}
    source = source_of(cluster, topic, **format, on_corrupt="skip", stop="latest")
    reader = reader_of(source, discovered(source)[1])
    reader.no_more_splits()
    assert polled(reader, None) == []
    assert reader.corrupt == 1
    reader.close()
    text = source_of(cluster, topic, value_format="text", stop="latest")
    reader = reader_of(text, discovered(text)[1])
    reader.no_more_splits()
    assert polled(reader, None) == [value and value.decode()]
    reader.close()


def test_a_split_that_starts_behind_its_stop_is_done(cluster, topic):
    source = source_of(cluster, topic, stop="latest")
    reader = reader_of(source, [KafkaSplit(topic, 0, 9, 5)])
    reader.no_more_splits()
    assert reader.finished
    reader.close()


def test_an_offset_that_is_gone_is_an_error(cluster, topic):
    cluster.produce(topic, 0, b"a")
    source = source_of(cluster, topic)
    reader = reader_of(source, [KafkaSplit(topic, 0, 99, None)])
    with pytest.raises(
        StorageError, match=f"partition 0 of topic '{topic}' has no offset 99 any more.*start='earliest'"
    ):
        polled(reader, 1)
    reader.close()


def test_a_checkpoint_tells_the_group(cluster, topic):
    cluster.produce(topic, 0, b"a", b"b")
    source = source_of(cluster, topic, value_format="text", group_id=f"watch-{topic}")
    reader = reader_of(source, discovered(source)[1])
    polled(reader, 2)
    reader.notify_complete(reader.snapshot())
    deadline = time.monotonic() + 120
    while cluster.committed(f"watch-{topic}", topic) != {0: 2}:
        assert time.monotonic() < deadline
        reader.poll(10)
    reader.close()


def test_topics_that_do_not_exist_and_brokers_that_do_not_answer(cluster, topic, monkeypatch, caplog):
    with pytest.raises(ConfigError, match=r"have no topic 'nowhere'; create it, or correct topics="):
        discovered(KafkaSource(cluster.address, topics=["nowhere"]))
    monkeypatch.setattr("headrace.connectors.kafka.source._ANSWER_SECONDS", 0.3)
    deaf = KafkaSource("127.0.0.1:9", topics=[topic], options={"log_level": 0})
    with pytest.raises(StorageError, match=r"no broker of '127.0.0.1:9' answered in 0 s .*check brokers="):
        discovered(deaf)
    assert discovered(deaf, PartitionsFound(True, frozenset({(topic, 0)})))[1] == []  # once it runs, it goes on
    assert "looks for new partitions later" in caplog.text


def test_a_topic_that_the_program_no_longer_names_is_left_out(cluster, topic):
    source = source_of(cluster, topic)
    reader = reader_of(source, [KafkaSplit(topic, 0, 0, None), KafkaSplit("former", 0, 3, None)])
    assert [split.topic for split in reader.snapshot()] == [topic]
    reader.close()


def test_patterns(cluster):
    for name in ("pattern-a", "pattern-b", "other-pattern", "__consumer_offsets"):
        cluster.create(name)
    assert not KafkaSource(cluster.address, pattern=".*").wants("__consumer_offsets")
    found = discovered(KafkaSource(cluster.address, pattern="pattern-.*"))[1]
    assert {split.topic for split in found} == {"pattern-a", "pattern-b"}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "give topics="),
        ({"topics": ["a"], "pattern": "b"}, "one of them"),
        ({"pattern": "("}, "is not a regular expression"),
        ({"topics": ["a"], "start": "first"}, r"start must be 'earliest', 'latest', 'committed', a time .*got 'first'"),
        ({"topics": ["a"], "start": {"a": 1}}, "start must be"),
        ({"topics": ["a"], "stop": "earliest"}, "stop must be 'latest'"),
        ({"topics": ["a"], "start": "committed"}, "needs group_id"),
        ({"topics": ["a"], "start_fallback": "x"}, "start_fallback must be"),
        ({"topics": ["a"], "discovery_interval_ms": 0}, "discovery_interval_ms must be positive"),
        ({"topics": ["a"], "value_format": "xml"}, "unknown format 'xml'"),
        ({"topics": ["a"], "on_corrupt": "x"}, "on_corrupt must be"),
        ({"topics": ["a"], "options": {"auto.offset.reset": "earliest"}}, "'auto.offset.reset' is set by start="),
        ({"topics": ["a"], "value_format": "json", "with_metadata": True}, "with_metadata needs records of a type"),
        (
            {"topics": ["a"], "value_format": "json", "type_info": "key string", "with_metadata": True},
            "the type has key already",
        ),
    ],
)
def test_what_is_refused(how, message):
    with pytest.raises(InvalidArgument, match=message):
        KafkaSource("broker:9092", **how)


def test_secrets_stay_secret(cluster):
    source = KafkaSource(
        cluster.address, topics=["a"], options={"sasl.password": "hunter2", "no.such.option": "hunter2"}
    )
    assert "hunter2" not in repr(source) + repr(source.client)
    with pytest.raises(InvalidArgument, match="No such configuration property") as caught:
        reader_of(source, [])
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="No such configuration property"):
        discovered(source)


def test_only_some_partitions(cluster, topic):
    for partition in range(4):
        cluster.produce(topic, partition, f"{partition}".encode())
    source = KafkaSource(cluster.address, partitions=[(topic, 1), (topic, 3)], value_format="text", stop="latest")
    _, splits = discovered(source)
    assert [split.partition for split in splits] == [1, 3]
    more = [KafkaSplit(topic, 0, 0, None)]  # of a checkpoint of a program that read it
    assert sorted(polled(reader_of(source, splits + more), 2)) == ["1", "3"]
    with pytest.raises(ConfigError, match=f"topic '{topic}' on the brokers .* has no partition 9; correct partitions="):
        discovered(KafkaSource(cluster.address, partitions=[(topic, 9)]))


def test_where_nothing_is_committed_it_may_fail(cluster, topic):
    cluster.produce(topic, 0, b"a", b"b")
    cluster.commit("group-of-one", {(topic, 0): 1})
    partial = source_of(cluster, topic, start="committed", start_fallback="fail", group_id="group-of-one")
    with pytest.raises(ConfigError, match=r"no offset is committed for partition 1 of topic .*; set start_fallback="):
        discovered(partial)
    one = KafkaSource(
        cluster.address, partitions=[(topic, 0)], start="committed", start_fallback="fail", group_id="group-of-one"
    )
    assert [split.position for split in discovered(one)[1]] == [1]
    given = source_of(cluster, topic, start={(topic, 0): 1}, start_fallback="fail")
    with pytest.raises(ConfigError, match="no offset is given for partition 1"):
        discovered(given)


def test_it_stops_at_what_is_committed(cluster, topic):
    cluster.produce(topic, 0, b"a", b"b", b"c")
    cluster.commit("group-that-stops", {(topic, 0): 2})
    source = KafkaSource(
        cluster.address, partitions=[(topic, 0)], stop="committed", group_id="group-that-stops", value_format="text"
    )
    assert [split.stop for split in discovered(source)[1]] == [2]
    with pytest.raises(InvalidArgument, match="stop='committed' needs group_id"):
        KafkaSource(cluster.address, topics=[topic], stop="committed")


def test_a_decoder_of_ones_own(cluster, topic):
    format = AvroFormat({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
    cluster.produce(topic, 0, format.codec.encode((1,)), format.codec.encode((2,)))
    source = source_of(cluster, topic, value_format=format.decoder(), stop="latest")
    assert source.type == format.type
    assert polled(reader_of(source, discovered(source)[1]), 2) == [(1,), (2,)]
