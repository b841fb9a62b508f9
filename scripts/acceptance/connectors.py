"""Every source into Parquet files, every sink from the sequence source: a million records, twenty killed workers, each once.

Workers are killed at random times and at those that matter for a commit: when a checkpoint is complete and no subtask is
notified, when a subtask is notified and has not committed, and when it has committed and no later checkpoint is complete.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from acceptance.checkpoints import checkpointed, kill_worker
from acceptance.lines import Outcome, line, wait_until
from headrace import JobClient, StreamExecutionEnvironment
from headrace.api.sink import Sink
from headrace.api.sources import CollectionSource
from headrace.api.stream import DataStream
from headrace.connectors.delta import DeltaSink
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.spark.epochs import EpochSink
from headrace.connectors.spark.sink import PythonDataSink
from headrace.connectors.spark.source import PythonDataSource
from headrace.driver.checkpoint_service import CheckpointService
from headrace.records.types import as_type
from headrace.testing.kills import KillingSink, KillPoints

COUNT, KILLS, RATE = 1_000_000, 20, 22_000
PAIR = "id bigint, word string"
POINTS = ("random", "before-notification", "before-commit", "after-commit")

Make = Callable[[StreamExecutionEnvironment, str], DataStream]


# --- kills ------------------------------------------------------------------------------------------------------------


def watch_notifications(points: KillPoints) -> None:
    """Add the point between the completion of a checkpoint and its notification."""
    notify = CheckpointService._notify_complete  # noqa: SLF001

    def killing(self: CheckpointService, do: Any) -> None:
        points.kill_worker("before-notification")
        notify(self, do)

    CheckpointService._notify_complete = killing  # type: ignore[method-assign]  # noqa: SLF001


def kill(client: JobClient, points: KillPoints) -> dict[str, int]:
    """Kill worker after worker, at one point after the other; the number of kills at each."""
    job, done = client.job, dict.fromkeys(POINTS, 0)
    for _, point in zip(range(KILLS), cycle(POINTS), strict=False):
        if not job.wait_running(120):
            break
        time.sleep(0.4)
        before = job.restarts
        try:
            if point == "random":
                kill_worker(client)
            else:
                points.arm(point)
        except (LookupError, ProcessLookupError):
            continue
        wait_until(lambda before=before: job.restarts > before or job.status.is_terminal, 60, point)
        done[point] += job.restarts > before
    return done


def judged(ids: np.ndarray[Any, Any], count: int, kills: dict[str, int], seconds: float) -> Outcome:
    """Each id once?"""
    times = np.bincount(ids.astype(np.int64), minlength=count)
    lost, repeated = int((times[:count] == 0).sum()), int(np.maximum(times - 1, 0).sum())
    ok = lost == repeated == 0 and sum(kills.values()) == KILLS and len(times) == count
    shown = ", ".join(f"{number} {point}" for point, number in kills.items())
    return Outcome(ok, f"{len(ids):,} records, {lost} lost, {repeated} repeated; kills: {shown}; {seconds:.0f} s")


def run(make: Make, sink: Callable[[str], Sink[Any]], read: Callable[[str], np.ndarray[Any, Any]]) -> Outcome:
    """A job under kills, and what is there at its end."""
    with tempfile.TemporaryDirectory(prefix="headrace-once-", ignore_cleanup_errors=True) as directory:
        points = KillPoints(f"{directory}/points")
        watch_notifications(points)
        env = checkpointed(2, {"headrace.spark.reserved-slots": "2"}, directory)
        make(env, directory).sink_to(KillingSink(sink(directory), points))
        started = time.monotonic()
        client = env.execute_async("once")
        kills: list[dict[str, int]] = []
        killer = threading.Thread(target=lambda: kills.append(kill(client, points)), daemon=True)
        killer.start()
        if make is simple_source:  # it never ends by itself
            killer.join(600)
            wait_until(lambda: len(read(directory)) >= COUNT, 600, "all records")
            client.stop_with_savepoint(savepoint_directory=f"file://{directory}/savepoints")
        client.wait(900)
        killer.join(60)
        return judged(read(directory), COUNT, kills[0], time.monotonic() - started)


# --- sources ----------------------------------------------------------------------------------------------------------


def table(first: int, last: int) -> pa.Table:
    """Some of the records."""
    ids = np.arange(first, last)
    return pa.table({"id": ids, "word": [f"w{n % 7}" for n in ids]})


def files(format: str) -> Make:
    """A directory of files that is read at a rate."""

    def make(env: StreamExecutionEnvironment, directory: str) -> DataStream:
        inbox = Path(directory, "in")
        inbox.mkdir()
        for number in range(50):
            part = table(number * COUNT // 50, (number + 1) * COUNT // 50)
            if format == "parquet":
                pq.write_table(part, inbox / f"{number}.parquet", row_group_size=5000)
            elif format == "csv":
                pa.csv.write_csv(part, inbox / f"{number}.csv", pa.csv.WriteOptions(include_header=False))
            else:
                (inbox / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in part.to_pylist()))
        return env.from_source(
            FileSource(str(inbox), format, PAIR, split_bytes=1 << 20), source_name="files", rate=RATE
        )

    return make


def text(env: StreamExecutionEnvironment, directory: str) -> DataStream:
    """Lines of text."""
    Path(directory, "in.txt").write_text("".join(f"{n}\n" for n in range(COUNT)))
    lines = env.from_source(
        FileSource(f"{directory}/in.txt", "text", split_bytes=1 << 20), source_name="text", rate=RATE
    )
    return lines.map(lambda line: (int(line), "x"), output_type=PAIR)


def frame(env: StreamExecutionEnvironment, _: str) -> DataStream:
    """A Spark DataFrame."""
    from headrace.driver.session import get_session

    spark: SparkSession = get_session(None, env.get_configuration())
    rows = spark.range(0, COUNT, 1, 8).selectExpr("id", "concat('w', id % 7) as word")
    return env.from_dataframe(rows, rate=RATE)


class Numbers(DataSource):
    """The ids in partitions of 5,000, as a Python data source."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return PAIR

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return NumbersReader()


class NumbersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A round is 40,000 ids."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The ids are all there."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"at": min(COUNT, start["at"] + 40_000)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((at, min(end["at"], at + 5000))) for at in range(start["at"], end["at"], 5000)]

    def read(self, partition: InputPartition) -> Any:
        first, last = partition.value
        yield from ((n, f"w{n % 7}") for n in range(first, last))


class Letters(DataSource):
    """The ids from a simple stream reader, which knows nothing of partitions."""

    @classmethod
    def name(cls) -> str:
        return "letters"

    def schema(self) -> str:
        return PAIR

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
        return LettersReader()


class LettersReader(SimpleDataSourceStreamReader):
    """20,000 ids at a time."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def read(self, start: dict[str, int]) -> Any:
        end = {"at": min(COUNT, start["at"] + 20_000)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Any:  # noqa: N802
        return ((n, f"w{n % 7}") for n in range(start["at"], end["at"]))


def simple_source(env: StreamExecutionEnvironment, _: str) -> DataStream:
    """A Python data source with a simple reader: a stream without end, cut off behind the last id."""
    return env.from_source(PythonDataSource(Letters, poll_interval_ms=20), source_name="letters", rate=RATE).rebalance()


def collection(env: StreamExecutionEnvironment, _: str) -> DataStream:
    """A collection, in one subtask."""
    source = CollectionSource([(n, "x") for n in range(COUNT)], as_type(PAIR))
    return env.from_source(source, source_name="collection", rate=RATE).rebalance()


def datagen(env: StreamExecutionEnvironment, _: str) -> DataStream:
    """Records that are made at a rate."""
    return env.from_datagen(lambda n: (n, "x"), count=COUNT, rate=RATE, type_info=PAIR)


def python_source(env: StreamExecutionEnvironment, _: str) -> DataStream:
    """A Python data source."""
    source = PythonDataSource(Numbers, bounded=True)
    return env.from_source(source, source_name="numbers", rate=RATE)


def sequence(env: StreamExecutionEnvironment, _: str) -> DataStream:
    """The sequence source."""
    return env.from_sequence(0, COUNT - 1, rate=RATE).map_batches(_pairs, output_type=PAIR)


def _pairs(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(0), pa.array(["x"] * batch.num_rows)], names=["id", "word"])


# --- sinks ------------------------------------------------------------------------------------------------------------


def parquet(directory: str) -> FileSink:
    """Parquet files."""
    return FileSink(f"{directory}/out", "parquet")


def parquet_ids(directory: str) -> np.ndarray[Any, Any]:
    """The ids in all visible Parquet files."""
    found = [pq.ParquetFile(p).read(["id"]).column(0) for p in Path(directory, "out").rglob("*.parquet")]
    return np.concatenate([column.to_numpy() for column in found])


def json_ids(directory: str) -> np.ndarray[Any, Any]:
    """The ids in all visible files of lines."""
    paths = [p for p in Path(directory, "out").rglob("*") if p.is_file() and not p.name.startswith(".")]
    return np.array([json.loads(text)["id"] for p in paths if "/." not in str(p) for text in p.open()])


def delta_ids(directory: str) -> np.ndarray[Any, Any]:
    """The ids in the Delta table."""
    from deltalake import DeltaTable

    return DeltaTable(f"{directory}/out").to_pyarrow_table(columns=["id"]).column(0).to_numpy()  # type: ignore[no-any-return]


def epochs(directory: str) -> EpochSink:
    """A DataFrame for each epoch."""
    return EpochSink(lambda df, number: df.write.mode("overwrite").parquet(f"{directory}/out/epoch={number}"))


class Lines(DataSource):
    """Writes a file for each task and batch, and renames them in commit()."""

    @classmethod
    def name(cls) -> str:
        return "lines"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return LinesWriter(self.options["path"])


class LinesWriter(DataSourceStreamWriter):
    """Hidden files until they are committed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, iterator: Any) -> WriterCommitMessage:
        Path(self.path).mkdir(parents=True, exist_ok=True)
        name = f"{time.time_ns()}-{np.random.default_rng().integers(1 << 60)}"
        with Path(self.path, f".{name}").open("w") as file:
            file.writelines(json.dumps(row.asDict()) + "\n" for row in iterator)
        return Written(name)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        for message in messages:
            if (file := Path(self.path, f".{message.name}")).exists():
                file.rename(Path(self.path, f"{batchId}-{message.name}"))


class Written(WriterCommitMessage):
    """The file of one task."""

    def __init__(self, name: str) -> None:
        self.name = name


SOURCES: dict[str, Make] = {
    "collection": collection,
    "sequence": sequence,
    "datagen": datagen,
    "text": text,
    "csv": files("csv"),
    "json": files("json"),
    "parquet": files("parquet"),
    "dataframe": frame,
    "python-source": python_source,
    "simple-source": simple_source,
}
SINKS: dict[str, tuple[Callable[[str], Sink[Any]], Callable[[str], np.ndarray[Any, Any]]]] = {
    "json": (lambda directory: FileSink(f"{directory}/out", "json"), json_ids),
    "delta": (lambda directory: DeltaSink(f"{directory}/out"), delta_ids),
    "foreach-epoch": (epochs, parquet_ids),
    "python-writer": (lambda directory: PythonDataSink(Lines, {"path": f"{directory}/out"}), json_ids),
}


def enter(name: str, what: str, job: Callable[[], Outcome]) -> None:
    """A line of the table."""
    job.__doc__ = f"{what}: a million records, twenty killed workers, each record once."
    line(name, 1200)(job)


for _name, _make in SOURCES.items():
    enter(f"once-from-{_name}", f"{_name} into Parquet files", partial(run, _make, parquet, parquet_ids))
for _name, (_sink, _read) in SINKS.items():
    enter(f"once-to-{_name}", f"the sequence source into {_name}", partial(run, sequence, _sink, _read))


# --- with a broker ----------------------------------------------------------------------------------------------------


def with_broker(function: Callable[[Any], Outcome]) -> Outcome:
    """Run something with a Kafka broker of its own."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from kafka_broker import Broker

    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        broker = Broker(directory).start()
        stack.callback(broker.kill)
        return function(broker)


@line("once-from-kafka", 1200)
def from_kafka() -> Outcome:
    """A Kafka topic into Parquet files."""
    return with_broker(_from_kafka)


def _from_kafka(broker: Any) -> Outcome:
    from confluent_kafka import Producer

    from headrace.connectors.kafka import KafkaSource

    broker.create("in", 4)
    producer = Producer(
        {"bootstrap.servers": broker.address, "queue.buffering.max.messages": COUNT + 1, "log_level": 0}
    )
    for n in range(COUNT):
        producer.produce("in", b'{"id":%d,"word":"x"}' % n, partition=n % 4)
        if n % 10_000 == 0:
            producer.poll(0)
    producer.flush(300)

    def make(env: StreamExecutionEnvironment, _: str) -> DataStream:
        source = KafkaSource(broker.address, topics=["in"], value_format="json", type_info=PAIR, stop="latest")
        return env.from_source(source, source_name="kafka", rate=RATE)

    return run(make, parquet, parquet_ids)


@line("once-to-kafka", 1200)
def to_kafka() -> Outcome:
    """The sequence source into a Kafka topic, read back with read_committed."""
    return with_broker(_to_kafka)


def _to_kafka(broker: Any) -> Outcome:
    from headrace.connectors.kafka import KafkaSink
    from kafka_broker import read_all

    broker.create("out", 4)

    def read(_: str) -> np.ndarray[Any, Any]:
        return np.array([json.loads(value)["id"] for *_, value in read_all(broker.address, "out", seconds=300)])

    sink = KafkaSink(broker.address, "out", key="id", transactional_id_prefix="once")
    return run(sequence, lambda _: sink, read)
