"""No stored byte names a module of Headrace: snapshots stay readable when code moves (user values aside)."""

import io
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from edge_kit import Cluster, eventually, files_below, key_of
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from rocksdict import DBCompressionType

import headrace
from headrace import (
    CheckpointedFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    Types,
    ValueStateDescriptor,
)
from headrace.api.sources import SequenceSource
from headrace.api.two_phase_commit import TwoPhaseCommitSinkFunction
from headrace.checkpoint.types import SavepointFormat
from headrace.connectors.delta import DeltaSink
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.kafka import KafkaSource
from headrace.connectors.spark.sink import PythonDataSink
from headrace.connectors.spark.source import PythonDataSource
from headrace.state.rocksdb import store as rocksdb_store
from kafka_mock import MockCluster

TOP = "|".join(module.name for module in pkgutil.iter_modules(headrace.__path__))
PATH_OF_OURS = re.compile(rf"headrace[./](?:{TOP})\b[\w.]*".encode())


class EveryState(KeyedProcessFunction):
    """Typed, untyped and with rows of ours inside, and a timer."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all"))
        self.by_row = runtime_context.get_map_state(MapStateDescriptor("by row"))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        self.last.update(Row(word="w", n=value))
        self.all.add(Row(value, "unnamed"))
        self.by_row.put(Row(k=value), {value: Row(n=value)})
        ctx.timer_service().register_processing_time_timer(4_000_000_000_000)
        yield Row(n=value)


class Remembers(FlatMapFunction, CheckpointedFunction):
    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split"))
        self.union = store.get_union_list_state(ListStateDescriptor("union", "n bigint"))
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules"))

    def snapshot_state(self, context):
        self.split.update([Row(n=1), {"row": Row(2)}])
        self.union.update([(3,)])
        self.rules.put(Row(n=1), Row(n=2))

    def flat_map(self, value):
        yield value


class Transactions(TwoPhaseCommitSinkFunction[str]):
    def begin_transaction(self):
        return "a transaction"

    def write(self, transaction, value):
        pass

    pre_commit = commit = abort = lambda self, transaction: None


class Ticks(DataSourceStreamReader):
    def initialOffset(self):  # noqa: N802
        return {"n": 0}

    def latestOffset(self):  # noqa: N802
        return {"n": 5}

    def partitions(self, start, end):
        return [InputPartition(start["n"])]

    def read(self, partition):
        yield (1,)


@dataclass
class Written(WriterCommitMessage):
    rows: int


class TickWriter(DataSourceStreamWriter):
    def write(self, rows):
        return Written(len(list(rows)))

    def commit(self, messages, batchId):  # noqa: N803
        pass


class Tick(DataSource):
    @classmethod
    def name(cls):
        return "tick"

    def schema(self):
        return "n bigint"

    def streamReader(self, schema):  # noqa: N802
        return Ticks()

    def streamWriter(self, schema, overwrite):  # noqa: N802
        return TickWriter()


@pytest.fixture(scope="module")
def kafka():
    cluster = MockCluster()
    cluster.create("in")
    cluster.produce("in", 0, b'{"n":1}')
    return cluster


def every_connector(directory, kafka):
    """All sources and sinks that need no JVM; each source has something left to read."""
    inbox = directory / "inbox"
    inbox.mkdir()
    (inbox / "a.json").write_text('{"n":1}\n' * 1000)

    def program(numbers):
        env = numbers._executor
        counted = numbers.key_by(key_of).process(EveryState()).rebalance().flat_map(Remembers())
        counted.add_sink(Transactions())
        typed = counted.map(lambda row: (row.n,), output_type="n bigint")
        typed.sink_to(FileSink(str(directory / "output"), "json"))
        typed.sink_to(DeltaSink(str(directory / "delta")))
        typed.sink_to(PythonDataSink(Tick))
        sources = [
            env.from_source(FileSource(str(inbox), "json", "n bigint", watch_ms=50), source_name="files", rate=1),
            env.from_source(
                KafkaSource(kafka.address, topics=["in"], value_format="json", type_info="n bigint"),
                source_name="kafka",
            ),
            env.from_source(PythonDataSource(Tick, {}), source_name="ticks"),
            env.from_source(SequenceSource(1, 1 << 40, Types.LONG()), source_name="sequence", rate=10),
            env.from_datagen(lambda n: n, rate=1),
            env.from_collection([Row(n=1), Row(n=2)]),
        ]
        for source in sources:
            source.rebalance().add_sink(lambda row: None)

    return program


def stored(directory: Path):
    """The files of a directory; of Parquet the columns, since its pages are compressed."""
    for path, data in files_below(directory).items():
        yield path, data
        if path.endswith(".parquet"):
            table = pq.read_table(io.BytesIO(data))
            yield f"rows of {path}", repr(table.to_pylist()).encode()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_no_stored_byte_names_a_module_of_ours(tmp_path, kafka, backend, monkeypatch):
    monkeypatch.setattr(rocksdb_store.rocksdict, "DBCompressionType", SimpleNamespace(lz4=DBCompressionType.none))
    options = {"state.backend.type": backend}
    with Cluster(tmp_path) as cluster:
        job = cluster.start(every_connector(tmp_path, kafka), options)
        job.feed(100)
        job.checkpoint()
        kept = {f"checkpoint {path}": data for path, data in files_below(cluster.checkpoints).items()}
        for format in SavepointFormat:
            job.feed(50)
            job.client.trigger_savepoint(str(cluster.savepoints / format.value), format, timeout=30)
        kept |= dict(stored(cluster.savepoints))
        assert eventually(lambda: job.position == 200)
        job.cancel()
    tags = b"".join(kept.values())
    for tag in ("stride-1", "number-range-1", "file-split-1", "kafka-split-1", "splits-found-1", "prepared-file-1"):
        assert tag.encode() in tags, f"the test does not reach {tag}"
    found = {path: PATH_OF_OURS.findall(data) for path, data in kept.items()}
    assert {path: names for path, names in found.items() if names} == {}
