"""PyFlink's builders of connectors: they make Headrace's sources and sinks, with PyFlink's names and defaults."""

import asyncio
import datetime as dt
import logging
import pickle
import re

import cloudpickle
import pytest

from headrace.connectors.files import FileSink as HeadraceFileSink
from headrace.connectors.files import FileSource as HeadraceFileSource
from headrace.connectors.kafka import KafkaSink as HeadraceKafkaSink
from headrace.connectors.kafka import KafkaSource as HeadraceKafkaSource
from headrace.errors import InvalidArgument
from headrace.pyflink.common import Duration, Encoder, SimpleStringSchema, Time, Types, WatermarkStrategy
from headrace.pyflink.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment
from headrace.pyflink.datastream.async_retry_predicates import (
    empty_result_predicate,
    exception_type_predicate,
    has_exception_predicate,
)
from headrace.pyflink.datastream.async_retry_strategies import NO_RETRY_STRATEGY, FixedDelayRetryStrategy
from headrace.pyflink.datastream.connectors import DeliveryGuarantee
from headrace.pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileCompactor,
    FileCompactStrategy,
    FileEnumeratorProvider,
    FileSink,
    FileSource,
    FileSplitAssignerProvider,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
    StreamingFileSink,
    strftime_pattern,
)
from headrace.pyflink.datastream.connectors.kafka import (
    FlinkKafkaConsumer,
    FlinkKafkaProducer,
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaTopicPartition,
    KafkaTopicSelector,
    Semantic,
)
from headrace.pyflink.datastream.connectors.number_seq import NumberSequenceSource
from headrace.pyflink.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from headrace.testing import local_runtime
from kafka_mock import MockCluster

NAMES = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])


@pytest.fixture
def env():
    with local_runtime():
        return StreamExecutionEnvironment.get_execution_environment()


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_source():
    paths = ["/data/1.txt", "/data/2.txt"]
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *paths)
    source = (
        builder.monitor_continuously(Duration.of_days(1))
        .set_file_enumerator(FileEnumeratorProvider.default_splittable_file_enumerator())
        .set_split_assigner(FileSplitAssignerProvider.locality_aware_split_assigner())
        .build()
    )
    assert isinstance(source, HeadraceFileSource)
    assert (list(source.paths), source.watch_ms, source.split_bytes) == (paths, 86_400_000, 32 << 20)
    assert source.type == Types.STRING()
    assert builder.process_static_file_set().build().watch_ms is None


def test_a_file_sink():
    sink = (
        FileSink.for_row_format("/data/out", Encoder.simple_string_encoder())
        .with_bucket_check_interval(1000)
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(
            RollingPolicy.default_rolling_policy(part_size=7, rollover_interval=8, inactivity_interval=9)
        )
        .with_output_file_config(OutputFileConfig.builder().with_part_prefix("pre").with_part_suffix(".suf").build())
        .disable_compact()
        .build()
    )
    assert isinstance(pickle.loads(cloudpickle.dumps(sink)), HeadraceFileSink)
    assert (sink.roll_bytes, sink.roll_ms, sink.idle_ms) == (7, 8, 9)
    assert (sink.prefix, sink.suffix, sink.bucket, sink.get_transformer()) == ("pre", ".suf", None, None)
    plain = FileSink.for_row_format("/data/out", Encoder.simple_string_encoder())
    plain.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
    assert plain.build().bucket.pattern == "%Y-%m-%d--%H"  # by the hour, as in Flink
    assert plain.build().roll_ms is None


def test_what_file_sinks_refuse():
    bulk = FileSink.for_bulk_format(
        "/data/out", pytest.importorskip("headrace.pyflink.common.serialization").BulkWriterFactory("json")
    )
    with pytest.raises(ValueError, match="rolling_policy must be OnCheckpointRollingPolicy for bulk format"):
        bulk.with_rolling_policy(RollingPolicy.default_rolling_policy())
    strategy = FileCompactStrategy.builder().enable_compaction_on_checkpoint(3).set_size_threshold(1024)
    with pytest.raises(InvalidArgument, match=r"enable_compact\(\): files are not compacted; set a longer interval"):
        bulk.enable_compact(strategy.set_num_compact_threads(2).build(), FileCompactor.concat_file_compactor(b"\n"))
    with pytest.raises(InvalidArgument, match="needs a policy of RollingPolicy, got 7"):
        FileSink.for_row_format("/x", Encoder.simple_string_encoder()).with_rolling_policy(7)


@pytest.mark.parametrize(
    ("java", "time"),
    [
        ("yyyy-MM-dd--HH", "2026-11-16--09"),
        ("'dt='yyyyMMdd/'h'=HH", "dt=20261116/h=09"),
        ("yy.MMM.EEEE hh:mm:ss a", "26.Nov.Monday 09:05:07 AM"),
        ("100% ''HH''", "100% '09'"),
    ],
)
def test_patterns_of_dates(java, time):
    assert dt.datetime(2026, 11, 16, 9, 5, 7).strftime(strftime_pattern(java)) == time  # noqa: DTZ001


def test_patterns_that_are_refused():
    with pytest.raises(InvalidArgument, match="the pattern 'yyyy-QQ' has 'QQ', which is not supported; use yyyy"):
        BucketAssigner.date_time_bucket_assigner("yyyy-QQ")


def test_words_from_files_to_files(env, tmp_path):
    """The shape of PyFlink's word count."""
    (tmp_path / "in.txt").write_text("to be\nor not to be\n")
    env.set_parallelism(1)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "in.txt"))
    lines = env.from_source(
        source=source.process_static_file_set().build(),
        watermark_strategy=WatermarkStrategy.for_monotonous_timestamps(),
        source_name="file_source",
    )
    counts = (
        lines.flat_map(lambda line: line.split())
        .map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda pair: pair[0])
        .reduce(lambda one, other: (one[0], one[1] + other[1]))
    )
    counts.sink_to(
        sink=FileSink.for_row_format(base_path=str(tmp_path / "out"), encoder=Encoder.simple_string_encoder())
        .with_output_file_config(OutputFileConfig.builder().with_part_prefix("prefix").with_part_suffix(".ext").build())
        .with_rolling_policy(RollingPolicy.default_rolling_policy())
        .build()
    )
    env.execute()
    (file,) = (tmp_path / "out").glob("*/prefix-*.ext")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d--\d\d", file.parent.name)  # the virtual clock's hour
    assert sorted(file.read_text().split()) == ["(be,1)", "(be,2)", "(not,1)", "(or,1)", "(to,1)", "(to,2)"]


def test_the_file_sink_of_flink_1(env, tmp_path):
    builder = StreamingFileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())
    builder.with_rolling_policy(RollingPolicy.default_rolling_policy(1 << 30, 900_000, 300_000))
    builder.with_output_file_config(OutputFileConfig.OutputFileConfigBuilder().with_part_suffix("suffix").build())
    with pytest.warns(DeprecationWarning, match="Use FileSink instead"):
        sink = builder.build()
    env.from_collection(["ab", "c"], Types.STRING()).add_sink(sink)
    env.execute()
    (file,) = tmp_path.glob("*/part-*suffix")
    assert file.read_text() == "ab\nc\n"


def test_a_sequence_of_numbers(env):
    stream = env.from_source(
        NumberSequenceSource(1, 10), WatermarkStrategy.for_monotonous_timestamps(), "seq", Types.LONG()
    )
    assert sorted(stream.execute_and_collect()) == list(range(1, 11))


# --- Kafka ------------------------------------------------------------------------------------------------------------


def source_builder():
    return KafkaSource.builder().set_bootstrap_servers("b:9092").set_value_only_deserializer(SimpleStringSchema())


def test_a_kafka_source():
    source = (
        source_builder()
        .set_group_id("g")
        .set_topics("a", "b")
        .set_client_id_prefix("me")
        .set_property("partition.discovery.interval.ms", "1000")
        .set_properties({"security.protocol": "SASL_SSL", "sasl.jaas.config": _JAAS})
        .build()
    )
    assert isinstance(pickle.loads(cloudpickle.dumps(source)), HeadraceKafkaSource)
    assert (source.topics, source.group_id, source.start, source.stop, source.interval) == (
        ["a", "b"],
        "g",
        "earliest",
        None,
        1000,
    )
    assert source.client.option("client.id", "") == "me"
    assert source.client.option("security.protocol", "") == "SASL_SSL"
    assert [source.client.option(f"sasl.{what}", "") for what in ("username", "password")] == ["user", "secret"]
    assert source.type == Types.STRING()
    assert source_builder().set_topic_pattern("x.*").build().pattern.pattern == "x.*"
    some = source_builder().set_partitions({KafkaTopicPartition("a", 1)}).build()
    assert some.partitions == {("a", 1)}
    never = source_builder().set_topics("a").set_property("partition.discovery.interval.ms", "-1").build()
    assert never.interval is None


_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="user" password="secret";'


@pytest.mark.parametrize(
    ("offsets", "start", "fallback"),
    [
        (KafkaOffsetsInitializer.earliest(), "earliest", "earliest"),
        (KafkaOffsetsInitializer.latest(), "latest", "latest"),
        (KafkaOffsetsInitializer.timestamp(17), 17, "latest"),
        (KafkaOffsetsInitializer.committed_offsets(), "committed", "fail"),
        (KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.LATEST), "committed", "latest"),
        (KafkaOffsetsInitializer.offsets({KafkaTopicPartition("a", 0): 5}), {("a", 0): 5}, "earliest"),
        (
            KafkaOffsetsInitializer.offsets({KafkaTopicPartition("a", 0): 5}, KafkaOffsetResetStrategy.NONE),
            {("a", 0): 5},
            "fail",
        ),
    ],
)
def test_where_a_kafka_source_starts_and_stops(offsets, start, fallback):
    builder = source_builder().set_topics("a").set_group_id("g")
    source = builder.set_starting_offsets(offsets).build()
    assert (source.start, source.start_fallback) == (start, fallback)
    if start != "earliest":
        assert source_builder().set_topics("a").set_group_id("g").set_bounded(offsets).build().stop == start
    reset = source_builder().set_topics("a").set_group_id("g").set_starting_offsets(offsets)
    assert reset.set_property("auto.offset.reset", "latest").build().start_fallback == "latest"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KafkaSource.builder().set_topics("a").build(), r"call set_bootstrap_servers\('host:port'\)"),
        (
            lambda: KafkaSource.builder().set_bootstrap_servers("b").set_topics("a").build(),
            "call set_value_only_deserializer",
        ),
        (lambda: source_builder().build(), r"give topics=\['name', ...\]"),
        (
            lambda: source_builder().set_topics("a").set_topic_pattern("b"),
            "set topics, a pattern or partitions, and only once",
        ),
        (
            lambda: source_builder().set_topics("a").set_bounded(KafkaOffsetsInitializer.earliest()).build(),
            "stops at the earliest offset reads nothing",
        ),
        (
            lambda: source_builder().set_topics("a").set_property("ssl.truststore.location", "x.jks").build(),
            "'ssl.truststore.location' is one of Java's clients; set ssl.ca.location with a PEM file",
        ),
        (
            lambda: source_builder().set_topics("a").set_property("sasl.jaas.config", "Krb5 required;").build(),
            "sasl.jaas.config has no username=",
        ),
        (lambda: KafkaSink.builder().set_bootstrap_servers("b").build(), "call set_record_serializer"),
        (lambda: KafkaRecordSerializationSchema.builder().set_topic("a").build(), "and set_value_serialization_schema"),
        (lambda: sink_builder({}).build(), r"call set_bootstrap_servers\('host:port'\)"),
    ],
)
def test_what_kafka_builders_refuse(build, message):
    with pytest.raises(InvalidArgument, match=message):
        build()


def test_properties_of_java_clients_have_no_effect(caplog):
    with caplog.at_level(logging.WARNING):
        source_builder().set_topics("a").set_property("max.poll.records", "7").build()
    assert "the property 'max.poll.records' has no effect: it is one of Java's clients" in caplog.text


def record(**how):
    builder = KafkaRecordSerializationSchema.builder().set_value_serialization_schema(SimpleStringSchema())
    return builder.set_topic("t") if not how else builder


def sink_builder(properties):
    builder = KafkaSink.builder().set_record_serializer(record().build())
    for key, value in properties.items():
        builder.set_property(key, value)
    return builder


def test_a_kafka_sink():
    builder = sink_builder({"bootstrap.servers": "b:9092", "group.id": "ignored", "linger.ms": "5"})
    sink = builder.build()
    assert isinstance(pickle.loads(cloudpickle.dumps(sink)), HeadraceKafkaSink)
    assert (sink.delivery, sink.prefix, sink.topic, sink.key) == ("at-least-once", None, "t", None)
    assert sink.client.option("linger.ms", "") == "5"
    sink = builder.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).build()
    assert (sink.delivery, sink.prefix) == ("exactly-once", "kafka-sink")
    assert builder.set_transactional_id_prefix("mine").build().prefix == "mine"
    assert (
        sink_builder({"bootstrap.servers": "b", "transaction.timeout.ms": "9000"}).build().transaction_timeout_ms
        == 9000
    )


def test_topics_by_a_selector():
    class ByName(KafkaTopicSelector):
        def apply(self, data):
            return f"topic-{data}"

    for selector in (ByName(), lambda data: f"topic-{data}"):
        made = (
            record(topic=None).set_topic_selector(selector).set_key_serialization_schema(SimpleStringSchema()).build()
        )
        assert made.topic("x") == "topic-x"
        assert (made.key.serialize("k"), made.serialize("v")) == (b"k", b"v")
    with pytest.raises(TypeError, match="topic_selector must be KafkaTopicSelector or a callable"):
        record().set_topic_selector("x")


def test_the_connectors_of_flink_1():
    with pytest.warns(DeprecationWarning, match="Use KafkaSource instead"):
        consumer = FlinkKafkaConsumer("a", SimpleStringSchema(), {"bootstrap.servers": "b:9092", "group.id": "g"})
    assert (consumer.topics, consumer.start, consumer.group_id) == (["a"], "committed", "g")
    assert consumer.get_produced_type() == Types.STRING()
    assert consumer.set_start_from_earliest().start == "earliest"
    assert consumer.set_start_from_latest().start == "latest"
    assert consumer.set_start_from_timestamp(7).start == 7
    assert consumer.set_commit_offsets_on_checkpoints(False).group_id is None
    with pytest.raises(InvalidArgument, match=r"set_start_from_group_offsets\(\) needs the property 'group.id'"):
        consumer.set_start_from_group_offsets()
    producer = FlinkKafkaProducer(
        "t", SimpleStringSchema(), {"bootstrap.servers": "b:9092"}, semantic=Semantic.EXACTLY_ONCE
    )
    assert (producer.delivery, producer.prefix) == ("exactly-once", "flink-t")
    assert producer.ignore_failures_after_transaction_timeout().on_lost_marker == "skip"
    assert FlinkKafkaProducer("t", SimpleStringSchema(), {"bootstrap.servers": "b"}).delivery == "at-least-once"


def test_rows_through_kafka(env):
    """The shape of PyFlink's Kafka examples, against a mock cluster."""
    cluster = MockCluster()
    cluster.create("rows")
    rows = env.from_collection([(1, "hi"), (2, "hello")], type_info=NAMES)
    serializer = KafkaRecordSerializationSchema.builder().set_topic("rows")
    serializer.set_value_serialization_schema(JsonRowSerializationSchema.Builder().with_type_info(NAMES).build())
    sink = KafkaSink.builder().set_record_serializer(serializer.build()).set_bootstrap_servers(cluster.address)
    rows.sink_to(sink.set_property("group.id", "test_group").build())
    env.execute()
    assert sorted(value for *_, value in cluster.read("rows")) == [b'{"id":1,"name":"hi"}', b'{"id":2,"name":"hello"}']
    source = (
        KafkaSource.builder()
        .set_topics("rows")
        .set_value_only_deserializer(JsonRowDeserializationSchema.Builder().type_info(NAMES).build())
        .set_properties({"bootstrap.servers": cluster.address, "group.id": "test_group_1"})
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_bounded(KafkaOffsetsInitializer.latest())
        .build()
    )
    stream = env.from_source(source, watermark_strategy=WatermarkStrategy.no_watermarks(), source_name="kafka source")
    assert sorted((row["id"], row["name"]) for row in stream.execute_and_collect()) == [(1, "hi"), (2, "hello")]


# --- asynchronous functions -------------------------------------------------------------------------------------------


class Look(AsyncFunction):
    """Takes longer for small numbers; the first call for a number gives nothing."""

    def __init__(self, flaky=False):
        self.flaky = flaky

    def open(self, runtime_context):
        self.seen = set()

    async def async_invoke(self, value):
        await asyncio.sleep(1 / (value + 1))
        if self.flaky and value not in self.seen:
            self.seen.add(value)
            return []
        return [value, value * 10]

    def timeout(self, value):
        return [value, -1]


def asynchronous(env, wait, *how, **more):
    stream = env.from_collection([0, 1, 2], Types.INT())
    return list(wait(stream, *how, **more).execute_and_collect())


def test_ordered_and_unordered(env):
    env.set_parallelism(1)
    more = {"output_type": Types.INT()}
    assert asynchronous(env, AsyncDataStream.ordered_wait, Look(), Time.seconds(5), 2, **more) == [0, 0, 1, 10, 2, 20]
    assert asynchronous(env, AsyncDataStream.unordered_wait, Look(), Time.seconds(5), **more) == [2, 20, 1, 10, 0, 0]
    late = asynchronous(env, AsyncDataStream.ordered_wait, Look(), Time.milliseconds(600), capacity=5)
    assert late == [0, -1, 1, 10, 2, 20]


def test_with_retry(env):
    env.set_parallelism(1)
    again = FixedDelayRetryStrategy(2, 100, empty_result_predicate, has_exception_predicate)
    how = (Look(flaky=True), Time.seconds(5), again, 10, Types.INT())
    assert asynchronous(env, AsyncDataStream.ordered_wait_with_retry, *how) == [0, 0, 1, 10, 2, 20]
    assert asynchronous(env, AsyncDataStream.unordered_wait_with_retry, *how) == [2, 20, 1, 10, 0, 0]
    plain = (Look(), Time.seconds(5), NO_RETRY_STRATEGY)
    assert asynchronous(env, AsyncDataStream.ordered_wait_with_retry, *plain) == [0, 0, 1, 10, 2, 20]


def test_predicates():
    assert empty_result_predicate([])
    assert empty_result_predicate(None)
    assert not empty_result_predicate([0])
    assert has_exception_predicate(ValueError())
    assert not has_exception_predicate(None)
    assert exception_type_predicate(KeyError(), LookupError)
    assert not exception_type_predicate(KeyError(), ValueError)
