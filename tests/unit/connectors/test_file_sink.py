"""The file sink: files are visible with their checkpoint, whole, once, whatever happens between. SPEC R9.3"""

import datetime as dt
import os
import re
from dataclasses import replace

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError

from headrace import StreamExecutionEnvironment
from headrace.api.sink import CommitRequest, WriterContext
from headrace.connectors.files import FileSink, TimeBuckets
from headrace.errors import InvalidArgument, StorageError
from headrace.records.types import as_type

PAIR = as_type("word string, n bigint")
JOB = "0123456789abcdef" * 2


def context(subtask=0, parallelism=1, attempt=0, type=PAIR, epoch=1):
    return WriterContext("out", "op", subtask, parallelism, 128, attempt, JOB, None, type, epoch)


def made(sink, type=PAIR, **where):
    sink.check(type)
    return sink.writer(context(**where, type=type), [])


def commit(sink, prepared, **where):
    requests = [CommitRequest(one, 1) for one in prepared]
    sink.committer(context(**where)).commit(requests)
    return requests


def visible(directory):
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file() and "/." not in str(p))


def batch(*rows, type=PAIR):
    return type.to_batch(list(rows))


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("json", b'{"word":"a","n":1}\n{"word":null,"n":2}\n'),
        ("csv", b'"a",1\n,2\n'),
        ("text", b"Row(word='a', n=1)\nRow(word=None, n=2)\n"),
    ],
)
def test_lines(tmp_path, format, content):
    sink = FileSink(f"file://{tmp_path}", format)
    writer = made(sink)
    writer.write_batch(batch(("a", 1), (None, 2)))
    assert visible(tmp_path) == []
    prepared = writer.prepare(False)
    assert visible(tmp_path) == []
    commit(sink, prepared)
    (name,) = visible(tmp_path)
    assert (tmp_path / name).read_bytes() == content
    commit(sink, prepared)  # again, as after a failure
    (tmp_path / name).unlink()
    commit(sink, prepared)  # somebody has taken it away
    assert visible(tmp_path) == []
    assert writer.prepare(False) == []  # nothing came: no empty file


def test_records_without_a_type(tmp_path):
    sink = FileSink(str(tmp_path), "json")
    writer = made(sink, as_type(None))
    for n in range(2500):
        writer.write({"n": n})
    commit(sink, writer.prepare(True))
    (name,) = visible(tmp_path)
    assert (tmp_path / name).read_bytes() == b"".join(b'{"n":%d}\n' % n for n in range(2500))


def test_parquet_of_many_small_batches_has_few_row_groups(tmp_path):
    sink = FileSink(str(tmp_path), "parquet")
    writer = made(sink)
    for n in range(500):
        writer.write_batch(batch(("a", n)))
    commit(sink, writer.prepare(False))
    (name,) = visible(tmp_path)
    file = pq.ParquetFile(tmp_path / name)
    assert (file.num_row_groups, file.metadata.num_rows) == (1, 500)
    assert file.read().column("n").to_pylist() == list(range(500))


def test_files_roll(tmp_path):
    sink = FileSink(str(tmp_path), "json", roll_bytes=100)
    writer = made(sink)
    for n in range(20):
        writer.write_batch(batch(("a", n)))
    prepared = writer.prepare(False)
    commit(sink, prepared)
    files = visible(tmp_path)
    assert len(files) == len(prepared) == 4
    assert sum((tmp_path / name).read_text().count("\n") for name in files) == 20


def test_partitions_are_directories_that_others_read(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.connectors.files.sink._OPEN_FILES", 3)
    type = as_type("day date, kind string, n bigint")
    sink = FileSink(str(tmp_path), "parquet", partition_by=["day", "kind"])
    writer = made(sink, type)
    rows = [(dt.date(2026, 11, 1 + i % 3), ["a/b", None, "ä"][i % 3 if i < 50 else 0], i) for i in range(100)]
    writer.write_batch(batch(*rows[:60], type=type))
    writer.write_batch(batch(*rows[60:], type=type))
    commit(sink, writer.prepare(False))
    directories = {name.rpartition("/")[0] for name in visible(tmp_path)}
    assert "day=2026-11-02/kind=__HIVE_DEFAULT_PARTITION__" in directories
    assert "day=2026-11-01/kind=a%2Fb" in directories
    query = f"select day, n from read_parquet('{tmp_path}/**/*.parquet', hive_partitioning=true) order by n"
    assert duckdb.sql(query).fetchall() == [(day, n) for day, _, n in rows]


def test_the_hidden_directory_may_be_removed_at_any_step_of_opening_a_file(tmp_path, monkeypatch):
    """The subtask that ends last removes it; another one may just have found that it exists."""
    real, failures = os.mkdir, [FileExistsError(17, "File exists"), FileNotFoundError(2, "No such directory")]

    def mkdir(path, mode=0o777):
        if failures:
            raise failures.pop()
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    sink = FileSink(f"file://{tmp_path}", "json")
    writer = made(sink)
    writer.write_batch(batch(("a", 1)))
    commit(sink, writer.prepare(False))
    assert len(visible(tmp_path)) == 1
    assert not failures


def test_what_dead_attempts_have_begun_is_removed_when_it_cannot_count_any_more(tmp_path):
    sink = FileSink(str(tmp_path), "json")
    dead = [made(sink, subtask=s, parallelism=12) for s in (0, 1, 11)]
    for writer in dead:
        writer.write_batch(batch(("lost", 1)))
    kept = dead[1].prepare(False)
    other = FileSink(str(tmp_path), "json")
    other.check(PAIR)
    another = other.writer(WriterContext("out2", "op2", 0, 1, 128, 0, JOB, None, PAIR), [])
    another.write_batch(batch(("mine", 1)))
    hidden = lambda: sorted(p.name for p in tmp_path.glob(".headrace-*/*"))  # noqa: E731
    assert len(hidden()) == 4
    commit(sink, kept, subtask=1)  # the restored checkpoint's, before anybody takes a barrier
    first, second = made(sink, attempt=1, parallelism=2), made(sink, attempt=1, subtask=1, parallelism=2)
    second.write_batch(batch(("new", 1)))
    assert first.prepare(False) == []
    assert len(hidden()) == 2  # of the other sink, and of the second subtask
    commit(sink, second.prepare(False), subtask=1)
    commit(other, another.prepare(False))
    assert len(visible(tmp_path)) == 3


def test_files_of_a_newer_driver_are_not_abandoned(tmp_path):
    sink = FileSink(str(tmp_path), "json")
    older, newer = made(sink, epoch=9), made(sink, epoch=10)
    newer.write_batch(batch(("a", 1)))
    prepared = newer.prepare(False)
    assert older.prepare(False) == []
    commit(sink, prepared)
    assert len(visible(tmp_path)) == 1


def test_a_commit_that_finds_no_file_is_reported(tmp_path):
    sink = FileSink(str(tmp_path), "json")
    writer = made(sink)
    writer.write_batch(batch(("a", 1)))
    prepared = writer.prepare(False)
    for file in tmp_path.glob(".headrace-*/*"):
        file.unlink()
    (request,) = commit(sink, prepared)
    assert request.dropped.endswith("or the latter was moved or deleted after its commit")


def test_an_open_file_is_forgotten_at_the_end(tmp_path):
    writer = made(FileSink(str(tmp_path), "parquet"))
    writer.write_batch(batch(("a", 1)))
    writer.close()
    assert list(tmp_path.glob(".headrace-*/*")) == []


def test_a_whole_job(tmp_path):
    env = StreamExecutionEnvironment.local()
    env.set_parallelism(2).from_sequence(1, 1000).map(lambda n: (n % 3, n), output_type="k bigint, n bigint").sink_to(
        FileSink(str(tmp_path), "parquet", partition_by="k")
    )
    env.execute()
    table = pa.concat_tables([pq.read_table(tmp_path / name, partitioning=None) for name in visible(tmp_path)])
    assert sorted(table.column("n").to_pylist()) == list(range(1, 1001))


def test_refusals(tmp_path):
    env = StreamExecutionEnvironment.local()
    numbers = env.from_sequence(1, 3)
    rows = numbers.map(lambda n: (n, n), output_type="a bigint, b bigint")
    for stream, options, message in (
        (numbers, {"format": "parquet"}, r"FileSink\('/x'\): parquet needs a stream with fields, got bigint; declare"),
        (rows, {"partition_by": "c"}, "there is no field 'c' to partition by in"),
        (rows, {"partition_by": ["a", "b"]}, "nothing is left to write if all fields are partitions"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            stream.sink_to(FileSink("/x", **options))
    with pytest.raises(InvalidArgument, match="roll_bytes must be positive, got 0"):
        FileSink("/x", roll_bytes=0)
    with pytest.raises(InvalidArgument, match=r"'gs://b/x': a file cannot be made visible in one step on gs"):
        FileSink("gs://b/x")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"the file sink cannot write '.*/file/out'"):
        made(FileSink(f"{tmp_path}/file/out")).write_batch(batch(("a", 1)))


# --- S3 ---------------------------------------------------------------------------------------------------------------


def test_objects_appear_with_the_commit(s3_bucket):
    sink = FileSink(f"{s3_bucket}/out", "json", partition_by="word")
    writer = made(sink)
    writer.write_batch(batch(("a", 1), ("b", 2)))
    prepared = writer.prepare(False)
    fs = fsspec.filesystem("s3")

    def objects():
        fs.invalidate_cache()
        return sorted(path.split("/out/")[1].split("/")[0] for path in fs.find(f"{s3_bucket}/out"))

    assert objects() == []
    commit(sink, prepared)
    assert objects() == ["word=a", "word=b"]
    assert all(request.dropped is None and not request.retry for request in commit(sink, prepared))
    assert objects() == ["word=a", "word=b"]


def test_large_objects_go_in_parts(s3_bucket):
    sink = FileSink(f"{s3_bucket}/large", "json")
    writer = made(sink)
    for _ in range(25):
        writer.write_batch(batch(("x" * 1_000_000, 1)))
    (prepared,) = writer.prepare(False)
    assert len(prepared.parts) == 3
    commit(sink, [prepared])
    with fsspec.open(prepared.path) as file:
        assert len(file.readlines()) == 25


def refusing(monkeypatch, code):
    """What S3 says to a completion; moto does not know all of it."""
    fs = fsspec.filesystem("s3")
    ask = fs.call_s3

    def call(method, **arguments):
        if method == "complete_multipart_upload":
            raise OSError("refused") from ClientError({"Error": {"Code": code, "Message": "no"}}, method)
        return ask(method, **arguments)

    monkeypatch.setattr(fs, "call_s3", call, raising=False)


def test_an_upload_that_somebody_aborted_is_said_to_be_lost(s3_bucket, monkeypatch):
    sink = FileSink(f"{s3_bucket}/gone", "json")
    writer = made(sink)
    writer.write_batch(batch(("a", 1)))
    prepared = writer.prepare(False)
    refusing(monkeypatch, "NoSuchUpload")
    (request,) = commit(sink, prepared)
    assert request.dropped.startswith("the upload is gone and the object does not exist")


def test_a_store_that_is_busy_is_asked_again(s3_bucket, monkeypatch):
    sink = FileSink(f"{s3_bucket}/busy", "json")
    writer = made(sink)
    writer.write_batch(batch(("a", 1)))
    prepared = writer.prepare(False)
    refusing(monkeypatch, "SlowDown")
    (request,) = commit(sink, prepared)
    assert request.retry
    assert request.dropped is None
    monkeypatch.undo()
    (request,) = commit(sink, prepared)
    assert not request.retry


def test_uploads_of_dead_attempts_are_aborted(s3_bucket):
    sink = FileSink(f"{s3_bucket}/dead", "json")
    made(sink).write_batch(batch(("a", 1)))
    made(sink, attempt=1).prepare(False)
    answer = fsspec.filesystem("s3").call_s3("list_multipart_uploads", Bucket="files", Prefix="dead/")
    assert "Uploads" not in answer


# --- what a killed attempt left ---------------------------------------------------------------------------------------


def hidden(directory):
    return sorted(path.suffix for path in directory.glob(".*/*"))


def test_a_file_that_a_killed_attempt_was_writing_goes_before_the_next_one_writes(tmp_path):
    """It takes room, and no checkpoint can hold it; what was prepared may be in one."""
    sink = FileSink(f"file://{tmp_path}", "json")
    killed = made(sink)
    killed.write_batch(batch(("a", 1)))
    prepared = killed.prepare(False)
    killed.write_batch(batch(("b", 2)))
    assert hidden(tmp_path) == [".inprogress", ".prepared"]
    made(sink, subtask=1, parallelism=2)
    assert hidden(tmp_path) == [".inprogress", ".prepared"]  # of another subtask
    made(sink, attempt=1)
    assert hidden(tmp_path) == [".prepared"]
    commit(sink, prepared, attempt=1)
    assert len(visible(tmp_path)) == 1


def test_what_a_newer_driver_is_writing_stays(tmp_path):
    sink = FileSink(f"file://{tmp_path}", "json")
    newer = made(sink, epoch=2)
    newer.write_batch(batch(("a", 1)))
    made(sink, epoch=1, attempt=1)
    assert hidden(tmp_path) == [".inprogress"]


def test_the_hidden_directory_goes_with_the_last_subtask(tmp_path):
    sink = FileSink(f"file://{tmp_path}", "json")
    writer = made(sink)
    writer.write_batch(batch(("a", 1)))
    prepared = writer.prepare(True)
    committer = sink.committer(context())
    committer.close()
    assert hidden(tmp_path) == [".prepared"]
    committer.commit([CommitRequest(one, 1) for one in prepared])
    committer.close()
    assert list(tmp_path.glob(".*")) == []


# --- directories, names and rolling -----------------------------------------------------------------------------------


def test_a_directory_for_the_time_of_writing(tmp_path):
    sink = FileSink(str(tmp_path), "text", bucket=TimeBuckets("%Y-%m-%d--%H", "Europe/Berlin"))
    times = iter([0, 0, 3_600_000])
    writer = sink.writer(replace(context(), clock=lambda: next(times)), [])
    for n in range(3):
        writer.write_batch(batch(("a", n)))
    commit(sink, writer.prepare(False))
    assert [name.partition("/")[0] for name in visible(tmp_path)] == ["1970-01-01--01", "1970-01-01--02"]
    with pytest.raises(InvalidArgument, match="there is no timezone 'Mars/Olympus'"):
        TimeBuckets("%Y", "Mars/Olympus")


def test_a_directory_by_a_function_of_the_record(tmp_path):
    sink = FileSink(str(tmp_path), "json", bucket=lambda row: f"/{row.word}/{row.n % 2}" if row.word else "")
    writer = made(sink)
    writer.write_batch(batch(("a", 1), ("b", 2), ("a", 3), ("", 4)))
    commit(sink, writer.prepare(False))
    found = {name.rpartition("/")[0]: (tmp_path / name).read_text() for name in visible(tmp_path)}
    assert found == {
        "a/1": '{"word":"a","n":1}\n{"word":"a","n":3}\n',
        "b/0": '{"word":"b","n":2}\n',
        "": '{"word":"","n":4}\n',
    }


def test_files_roll_by_age_and_by_inactivity(tmp_path):
    now = [0]
    sink = FileSink(str(tmp_path), "json", roll_ms=100, idle_ms=30)
    writer = sink.writer(replace(context(), clock=lambda: now[0]), [])
    files = []
    for now[0] in (0, 20, 40, 60, 80, 100, 120, 160):  # 100: old; 160: nothing came for 40 ms
        writer.write_batch(batch(("a", now[0])))
        files.append(len(writer._prepared))
    assert files == [0, 0, 0, 0, 0, 1, 1, 2]


def test_names_of_files(tmp_path):
    sink = FileSink(str(tmp_path), "json", prefix="orders", suffix=".ext")
    dead = made(sink)
    dead.write_batch(batch(("dead", 1)))
    dead.prepare(False)  # of an attempt that dies
    writer = made(sink, attempt=1)
    writer.write_batch(batch(("a", 1)))
    commit(sink, writer.prepare(False))
    (name,) = visible(tmp_path)
    assert name.startswith("orders-")
    assert name.endswith(".ext")
    assert [p.name for p in tmp_path.rglob("*.prepared")] == []  # what the dead attempt left was recognised
    bare = FileSink(str(tmp_path / "bare"), "json", suffix="")
    writer = made(bare)
    writer.write_batch(batch(("a", 1)))
    commit(bare, writer.prepare(False))
    assert "." not in visible(tmp_path / "bare")[0]


def test_fields_of_records_without_a_type(tmp_path):
    sink = FileSink(str(tmp_path), "parquet", type_info="word string, n bigint")
    writer = made(sink, as_type(None))
    for record in ({"n": 1, "word": "a", "more": 0}, ("b", 2), {"word": "c"}):
        writer.write(record)
    commit(sink, writer.prepare(False))
    (name,) = visible(tmp_path)
    assert pq.read_table(tmp_path / name).to_pylist() == [
        {"word": "a", "n": 1},
        {"word": "b", "n": 2},
        {"word": "c", "n": None},
    ]


def test_orc(tmp_path):
    from pyarrow import orc

    sink = FileSink(str(tmp_path), "orc")
    writer = made(sink)
    writer.write_batch(batch(("a", 1), (None, 2)))
    commit(sink, writer.prepare(False))
    (name,) = visible(tmp_path)
    assert name.endswith(".orc")
    assert orc.read_table(tmp_path / name).to_pylist() == [{"word": "a", "n": 1}, {"word": None, "n": 2}]


def test_lines_by_a_function(tmp_path):
    sink = FileSink(str(tmp_path), lambda row: row.word.encode("utf-16-le"))
    writer = made(sink)
    writer.write_batch(batch(("a", 1)))
    commit(sink, writer.prepare(False))
    (name,) = visible(tmp_path)
    assert (tmp_path / name).read_bytes() == b"a\0\n"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"roll_ms": 0}, "roll_ms must be positive, got 0"),
        ({"idle_ms": -1}, "idle_ms must be positive, got -1"),
        ({"prefix": ".hidden"}, "prefix '.hidden' and suffix None would hide files"),
        ({"suffix": "/x"}, "would hide files, or move them"),
        ({"partition_by": "word", "bucket": TimeBuckets()}, "give partition_by or bucket, one of the two"),
        ({"format": 7}, "format must be a name, a FileFormat or a function, got 7"),
    ],
)
def test_what_is_refused_of_names_and_rolling(tmp_path, how, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        FileSink(str(tmp_path), **{"format": "json", **how})
