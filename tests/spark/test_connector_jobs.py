"""Connectors on Spark: whatever dies, what they read and write is there exactly once. SPEC R9.1, R9.3, R9.4"""

import datetime as dt
import json
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from spark_kit import Paced, release, run_program, wait_until
from test_checkpoints import checkpointed, completed, kill_after_checkpoints

import s3_server
from headrace import OutputTag, RestartStrategies
from headrace.connectors.delta import DeltaSink
from headrace.connectors.files import CORRUPT_TYPE, FileSink, FileSource
from headrace.connectors.spark.epochs import EpochSink
from headrace.connectors.spark.sink import PythonDataSink
from headrace.errors import ConfigError, HeadraceError, InvalidArgument
from headrace.testing.kills import KILL_POINTS, KillingSink, KillPoints

COUNT = 8_000
PAIR = "id bigint, word string"


def numbers(env, directory, count=COUNT):
    return env.from_source(Paced(directory, lambda n: (n, f"w{n % 7}"), count, PAIR))


def parquet_ids(directory):
    files = [path for path in Path(directory).rglob("*.parquet") if "/." not in str(path)]
    return Counter(n for path in files for n in pq.ParquetFile(path).read().column("id").to_pylist())


def run_with_kills(env, name, directory, points=None, victims=((0, 0),)):
    """Run to the end; workers are killed one after the other: at the points of a commit, and at a checkpoint."""
    client = env.execute_async(name)
    job, armed = client.job, KILL_POINTS if points is not None else ()
    for point in armed:
        assert job.wait_running(120)
        points.arm(point)
        restarts = job.restarts
        wait_until(lambda restarts=restarts: job.restarts > restarts or job.status.is_terminal, point)
    kill_after_checkpoints(job, victims)
    assert job.restarts >= len(armed) + len(victims), job.failure_log
    release(directory)
    client.wait(150)
    return job


# --- sinks ------------------------------------------------------------------------------------------------------------


def test_parquet_files(make_env, workers, tmp_path):
    env, points = checkpointed(make_env(2), tmp_path), KillPoints(f"{tmp_path}/points")
    numbers(env, tmp_path).sink_to(KillingSink(FileSink(f"{tmp_path}/out", "parquet", partition_by="word"), points))
    run_with_kills(env, "parquet", tmp_path, points)
    assert parquet_ids(f"{tmp_path}/out") == Counter(range(COUNT))
    assert list(Path(tmp_path, "out").glob(".headrace-*/*")) == []
    assert len(list(Path(tmp_path, "out").glob("word=*"))) == 7


def test_a_delta_table(make_env, workers, tmp_path):
    env, points = checkpointed(make_env(2), tmp_path), KillPoints(f"{tmp_path}/points")
    sink = DeltaSink(f"{tmp_path}/table", partition_by="word")
    numbers(env, tmp_path).sink_to(KillingSink(sink, points))
    job = run_with_kills(env, "delta", tmp_path, points)
    table = DeltaTable(f"{tmp_path}/table")
    rows = table.to_pyarrow_table()
    assert Counter(rows.column("id").to_pylist()) == Counter(range(COUNT))
    assert {(i, w) for i, w in zip(*rows.to_pydict().values(), strict=True)} == {(i, f"w{i % 7}") for i in range(COUNT)}
    assert len(table.history()) <= completed(job) + 1  # one commit a checkpoint, and the table itself


class Wrong(Exception):
    """What the function of an epoch raises."""


def test_each_epoch_as_a_data_frame(make_env, spark, workers, tmp_path):
    env, points = checkpointed(make_env(2), tmp_path), KillPoints(f"{tmp_path}/points")
    seen, fails = [], [2, 5]

    def write(frame, number):
        seen.append((number, frame.count()))
        frame.write.mode("overwrite").parquet(f"{tmp_path}/out/epoch={number}")
        if len(seen) in fails:
            raise Wrong("after it was written")

    env.get_configuration().set("headrace.spark.reserved-slots", 1)
    numbers(env, tmp_path).sink_to(KillingSink(EpochSink(write), points))
    job = run_with_kills(env, "epochs", tmp_path, points)
    assert any("cannot commit: Wrong: after it was written" in failure for failure in job.failure_log)
    assert spark.read.parquet(f"{tmp_path}/out").count() == COUNT
    assert parquet_ids(f"{tmp_path}/out") == Counter(range(COUNT))
    counts = {}
    for number, count in seen:
        assert counts.setdefault(number, count) == count  # again the same rows under the same number
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)
    assert not list(Path(tmp_path, "checkpoints").rglob("epochs-*"))


class Lines(DataSource):
    """Writes a file for each task, and renames them in commit()."""

    @classmethod
    def name(cls):
        return "lines"

    def streamWriter(self, schema, overwrite):  # noqa: N802
        return (ArrowLines if self.options["kind"] == "arrow" else RowLines)(self.options["path"])


class RowLines(DataSourceStreamWriter):
    def __init__(self, path):
        self.path = path

    def write(self, iterator):
        return self.finish([row.asDict() for row in iterator])

    def finish(self, rows):
        name = f"{time.time_ns()}-{rows[0]['id']}"
        Path(self.path).mkdir(parents=True, exist_ok=True)
        Path(self.path, f".{name}").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Written(name)

    def commit(self, messages, batchId):  # noqa: N803
        for message in messages:
            file = Path(self.path, f".{message.name}")
            if file.exists():
                file.rename(Path(self.path, f"{batchId}-{message.name}"))

    def abort(self, messages, batchId):  # noqa: N803
        raise AssertionError("nothing fails here")


class ArrowLines(DataSourceStreamArrowWriter, RowLines):
    def write(self, iterator):
        return self.finish([row for batch in iterator for row in batch.to_pylist()])


class Written(WriterCommitMessage):
    def __init__(self, name):
        self.name = name


@pytest.mark.parametrize("kind", ["rows", "arrow"])
def test_a_stream_writer_of_a_python_data_source(make_env, workers, tmp_path, kind):
    env, points = checkpointed(make_env(2), tmp_path), KillPoints(f"{tmp_path}/points")
    sink = PythonDataSink(Lines, {"path": f"{tmp_path}/out", "kind": kind})
    numbers(env, tmp_path).sink_to(KillingSink(sink, points if kind == "rows" else KillPoints(f"{tmp_path}/none")))
    run_with_kills(env, f"writer {kind}", tmp_path, points if kind == "rows" else None)
    files = [path for path in Path(tmp_path, "out").iterdir() if not path.name.startswith(".")]
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert Counter(row["id"] for row in rows) == Counter(range(COUNT))
    assert all(row["word"] == f"w{row['id'] % 7}" for row in rows)


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_directory_that_is_watched(make_env, workers, tmp_path):
    inbox = Path(tmp_path, "in")
    inbox.mkdir()
    corrupt = OutputTag("corrupt", CORRUPT_TYPE)

    def put(number):
        hidden = Path(tmp_path, f"{number}.json")
        lines = [json.dumps({"id": n, "word": "x"}) for n in range(number * 500, number * 500 + 500)]
        hidden.write_text("\n".join([*lines[:250], "{", *lines[250:]]))
        hidden.rename(inbox / hidden.name)

    env = checkpointed(make_env(2), tmp_path)
    source = FileSource(str(inbox), "json", PAIR, watch_ms=100, on_corrupt=corrupt)
    rows = env.from_source(source, source_name="Inbox", rate=4000)
    rows.rebalance().sink_to(FileSink(f"{tmp_path}/out", "parquet"))
    rows.get_side_output(corrupt).sink_to(FileSink(f"{tmp_path}/corrupt", "parquet"))
    for number in range(6):
        put(number)
    client = env.execute_async("inbox")
    kill_after_checkpoints(client.job, [(0, 0), (1, 1)])
    assert client.job.restarts == 2
    for number in range(6, 10):
        put(number)
    wait_until(lambda: len(parquet_ids(f"{tmp_path}/out")) == 5000, "all records")
    reported = lambda: sum(m.corrupt_records for m in client.job.metrics().values())  # noqa: E731
    wait_until(lambda: reported() >= 4, "the count of corrupt records")  # since the last restart
    client.stop_with_savepoint(savepoint_directory=f"file://{tmp_path}/savepoints")
    client.wait(120)
    assert parquet_ids(f"{tmp_path}/out") == Counter(range(5000))
    places = [
        p for f in Path(tmp_path, "corrupt").glob("*.parquet") for p in pq.read_table(f).column("place").to_pylist()
    ]
    assert len(places) == len(set(places)) == 10


def test_a_data_frame(make_env, spark, workers, tmp_path):
    frame = spark.range(COUNT).selectExpr(
        "id",
        "concat('w', id) as text",
        "array(id, null) as several",
        "map('k', id) as pairs",
        "named_struct('a', id, 'b', array('x')) as inside",
        "cast(id as decimal(20, 2)) as money",
        "date_add(date'2026-01-01', cast(id % 100 as int)) as day",
        "timestamp'2026-01-01 00:00:00Z' + make_interval(0, 0, 0, 0, 0, 0, id) as at",
        "if(id % 2 = 0, null, true) as odd",
    )
    env = checkpointed(make_env(2), tmp_path)
    rows = env.from_dataframe(frame)
    rows.map(lambda row: row, output_type=rows.get_type()).sink_to(FileSink(f"{tmp_path}/out", "parquet"))
    client = env.execute_async("frame")
    client.wait(120)
    back = spark.read.parquet(f"{tmp_path}/out")
    assert back.count() == COUNT
    one = back.where("id = 7").collect()[0]
    assert one.text == "w7"
    assert one.several == [7, None]
    assert one.pairs == {"k": 7}
    assert one.inside.asDict() == {"a": 7, "b": ["x"]}
    assert one.money == Decimal("7.00")
    assert one.day == dt.date(2026, 1, 8)
    assert one.odd is True
    assert back.selectExpr("sum(unix_seconds(at))").collect() == frame.selectExpr("sum(unix_seconds(at))").collect()
    assert parquet_ids(f"{tmp_path}/out") == Counter(range(COUNT))
    assert not list(Path(tmp_path, "checkpoints").rglob("dataframe-*"))  # the job has finished


def test_a_data_frame_is_read_on_after_a_kill(make_env, spark, workers, tmp_path):
    env = checkpointed(make_env(6), tmp_path)  # the wider, the longer until the last reader is connected
    frame = spark.range(0, COUNT, 1, 5).selectExpr("id", "'x' as word").orderBy("word")
    rows = env.from_dataframe(frame, rate=4000)
    rows.rebalance().sink_to(FileSink(f"{tmp_path}/out", "parquet"))
    run_with_kills(
        env, "frame", tmp_path, victims=[(1, 0), (1, 1)]
    )  # so few rows have one reader, the others have finished
    assert parquet_ids(f"{tmp_path}/out") == Counter(range(COUNT))


def test_a_bounded_file_source_ends_after_a_rescale(make_env, spark, workers, tmp_path):  # SPEC R9.4
    spark.range(0, 3 * COUNT, 1, 1).selectExpr("id", "'x' as word").write.parquet(f"{tmp_path}/in")
    env = checkpointed(make_env(2), tmp_path)
    rows = env.from_source(FileSource(f"{tmp_path}/in", "parquet"), source_name="Files", rate=8000)
    rows.rebalance().sink_to(FileSink(f"{tmp_path}/out", "parquet"))
    client = env.execute_async("files")
    assert client.job.wait_running(120)
    wait_until(lambda: completed(client.job) > 2, "three checkpoints")
    client.rescale(6)  # one reader has the file; the others ask at once
    client.wait(120)
    assert client.job.restarts == 0
    assert parquet_ids(f"{tmp_path}/out") == Counter(range(3 * COUNT))


def test_a_data_frame_in_two_jobs(make_env, spark, workers, tmp_path):
    env = make_env(1)
    rows = env.from_dataframe(spark.range(100).selectExpr("id", "'x' as word"))
    for name in ("first", "second"):  # what the first job staged is deleted with it
        rows.sink_to(FileSink(f"{tmp_path}/{name}", "parquet"))
        env.execute(name)
        assert parquet_ids(f"{tmp_path}/{name}") == Counter(range(100))


# --- S3 ---------------------------------------------------------------------------------------------------------------


def test_checkpoints_and_files_on_s3(tmp_path):
    server, options = s3_server.start()
    try:
        bucket = s3_server.make_bucket(options, "spark")
        environment = {
            "FSSPEC_S3_ENDPOINT_URL": options["endpoint_url"],
            "FSSPEC_S3_KEY": "testing",
            "FSSPEC_S3_SECRET": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        found = run_program("on_s3.py", bucket, env=environment)
    finally:
        server.shutdown()
    assert found == {"restarts": 1, "ids": 3000, "rows": 3000}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_sinks_that_commit_on_the_driver_need_checkpoints(make_env, tmp_path):
    env = make_env(1)
    numbers(env, tmp_path).sink_to(DeltaSink(f"{tmp_path}/table"))
    with pytest.raises(
        ConfigError, match=r"sink 'Sink' \(.*\) writes with every completed checkpoint, and the job takes none"
    ):
        env.execute_async()
    env = make_env(1)
    env.enable_checkpointing(1000)
    numbers(env, tmp_path).foreach_epoch(print)
    with pytest.raises(
        ConfigError, match=r"keeps its records beside the checkpoints .*: set execution\.checkpointing\.dir"
    ):
        env.execute_async()
    assert env.get_configuration().get("headrace.spark.reserved-slots") == 1


def test_what_does_not_fit_is_refused(make_env, spark, tmp_path):
    env = make_env(1)
    DeltaTable.create(f"{tmp_path}/table", numbers(env, tmp_path).get_type().schema, partition_by=["word"])
    with pytest.raises(
        InvalidArgument, match=r"DeltaSink\(.*\) is partitioned by \['word'\], but partition_by is \[\]"
    ):
        numbers(env, tmp_path).sink_to(DeltaSink(f"{tmp_path}/table"))
    other = env.from_sequence(1, 3).map(lambda n: (n, n), output_type="id bigint, word bigint")
    with pytest.raises(InvalidArgument, match=r"DeltaSink\(.*\) has the fields .*string.*, but the stream has .*long"):
        other.sink_to(DeltaSink(f"{tmp_path}/table", partition_by="word"))
    for sink in (DeltaSink("/x"), EpochSink(print), PythonDataSink(Lines)):
        with pytest.raises(InvalidArgument, match="declare output_type, for example"):
            env.from_collection([1]).sink_to(sink)
    with pytest.raises(InvalidArgument, match="needs a bounded DataFrame, and this one is a stream"):
        env.from_dataframe(spark.readStream.format("rate").load())


def test_an_error_of_a_stream_writer_names_the_sink(make_env, workers, tmp_path):
    env = checkpointed(make_env(1), tmp_path)
    env.set_restart_strategy(RestartStrategies.no_restart())
    numbers(env, tmp_path, 100).sink_to(PythonDataSink(Lines, {"path": "/proc/nowhere", "kind": "rows"}))
    with pytest.raises(HeadraceError, match=r"(?s)/proc/nowhere.*in operator 'Sink', defined at"):
        env.execute_async("writer fails").wait(120)
