"""Rows from and to Spark: through pyspark's batches and as a stream of bytes, which must be the same for Spark."""

import io
import os
from contextlib import suppress
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.worker.daemon import _give_streams
from headgate.worker.shell import LevelTask
from headgate.worker.spark_rows import RowStream, as_batch, portions, read_batches

ROW = pa.struct([("dst", pa.int32()), ("payload", pa.binary())])
FILLER = {"dst": -1, "payload": None}
END = b"\xff\xff\xff\xff\0\0\0\0"
rows = st.lists(st.tuples(st.integers(0, 1000), st.lists(st.binary(max_size=300), max_size=4)), min_size=1, max_size=80)


def stream_of(*batches, codec=None):
    """What Spark writes: each batch a list of rows, in a struct."""
    out = io.BytesIO()
    schema = pa.schema([("in", ROW)])
    with pa.ipc.new_stream(out, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch([pa.array(batch, ROW)], schema=schema))
    return out.getvalue()


def read(data):
    return [row.to_pybytes() for row in RowStream().load_stream(io.BytesIO(data))]


def written(*batches):
    out = io.BytesIO()
    RowStream().dump_stream(iter(batches), out)
    return out.getvalue()


def row(payload, dst=0):
    return {"dst": dst, "payload": payload}


def test_fillers_and_pulses_are_left_out():
    data = stream_of([FILLER, row(b"one")], [FILLER, row(b"")], [row(b"two", 5), row(b"x" * 1000), FILLER], [FILLER])
    assert read(data) == [b"one", b"two", b"x" * 1000]


def test_an_empty_batch_and_an_empty_stream():
    assert read(stream_of([])) == []
    assert read(stream_of()) == []
    assert read(b"") == []


def test_the_numbers_of_the_first_level_are_no_rows():
    kind = pa.struct([("id", pa.int64())])
    out, schema = io.BytesIO(), pa.schema([("in", kind)])
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([{"id": 3}], kind)], schema=schema))
    assert read(out.getvalue()) == []
    assert list(read_batches([pa.record_batch({"id": pa.array([3])})])) == []


@given(st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=200)), max_size=5), max_size=5))
def test_a_stream_has_the_rows_that_pyspark_would_give(batches):
    given_rows = [[FILLER if payload is None else row(payload) for payload in batch] for batch in batches]
    through_pyspark = [pa.RecordBatch.from_struct_array(pa.array(batch, ROW)) for batch in given_rows]
    assert read(stream_of(*given_rows)) == [one.to_pybytes() for one in read_batches(through_pyspark)]


@given(st.lists(rows, min_size=1, max_size=3))
def test_what_is_written_is_what_pyspark_would_write(batches):
    data = written(*batches)
    assert data[:4] == b"\xff\xff\xff\xfa"  # pyspark: START_ARROW_STREAM
    found = list(pa.ipc.open_stream(data[4:]))
    for batch, given_rows in zip(found, batches, strict=True):
        batch.validate(full=True)
        column = batch.column(0)
        assert pa.RecordBatch.from_struct_array(column).equals(as_batch(given_rows))
        assert column.to_pylist() == [row(b"".join(pieces), dst) for dst, pieces in given_rows]
    assert data.endswith(END)
    assert read(data[4:]) == [joined for batch in batches for _, pieces in batch if (joined := b"".join(pieces))]


def test_a_row_of_views():
    assert read(written([(1, [b"ab", memoryview(b"xcdx")[1:3]])])[4:]) == [b"abcd"]


def test_nothing_is_written_without_rows():
    assert written() == b""


class Pipe(io.BytesIO):
    """Notes what was there at each flush."""

    def __init__(self):
        super().__init__()
        self.flushed = []

    def flush(self):
        self.flushed.append(len(self.getvalue()))


def test_each_portion_leaves_at_once():
    out, seen = Pipe(), []

    def made():
        for number in range(3):
            yield [(0, [b"%d" % number])]
            seen.append(list(out.flushed))

    RowStream().dump_stream(made(), out)
    assert [len(flushes) for flushes in seen] == [1, 2, 3]
    assert read(out.getvalue()[4 : seen[0][0]]) == [b"0"]


def test_an_error_ends_the_stream_that_has_begun():
    def broken():
        yield [(0, [b"one"])]
        raise RuntimeError("of the task")

    out = io.BytesIO()
    with pytest.raises(RuntimeError, match="of the task"):
        RowStream().dump_stream(broken(), out)
    assert out.getvalue().endswith(END)  # what Spark's JVM reads next is the error
    assert read(out.getvalue()[4:]) == [b"one"]


def test_an_error_before_any_row_is_all_that_is_there():
    def broken():
        raise RuntimeError("of the task")
        yield

    out = io.BytesIO()
    with pytest.raises(RuntimeError):
        RowStream().dump_stream(broken(), out)
    assert out.getvalue() == b""


def test_a_stream_that_breaks_off_says_so():
    data = stream_of([FILLER, row(b"one" * 20)], [FILLER, row(b"two" * 20)])
    whole = {}
    for size in range(len(data)):
        found = RowStream().load_stream(io.BytesIO(data[:size]))
        with suppress(EOFError):
            whole[size] = len(list(found))
    # Only between messages: behind the schema, the first batch, the second one.
    assert list(whole.values()) == [0, 0, 1, 2]
    assert max(whole) == len(data) - len(END)


def test_rows_that_came_before_the_break_are_there():
    data = stream_of([row(b"one")], [row(b"two")])
    found = RowStream().load_stream(io.BytesIO(data[:-20]))
    assert next(found).to_pybytes() == b"one"
    with pytest.raises(EOFError, match="ended inside of a message"):
        next(found)


def test_compressed_batches_are_not_taken_for_rows():
    with pytest.raises(ValueError, match="other than a plain batch of rows"):
        read(stream_of([row(b"x" * 1000)], codec="zstd"))


def test_bytes_that_are_no_message():
    data = stream_of([row(b"one")])
    with pytest.raises(ValueError, match="no message begins"):
        read(data.replace(END, b"") + b"12345678")


def test_a_batch_that_is_shorter_than_it_says():
    whole = stream_of([row(b"one")] * 100)
    damaged = whole.replace((100).to_bytes(8, "little"), (10_000).to_bytes(8, "little"))
    assert damaged != whole
    with pytest.raises(ValueError, match="shorter than it says"):
        read(damaged)


def test_portions_are_bounded():
    made = [(n, [bytes(3 << 20)]) for n in range(7)]
    assert [[dst for dst, _ in portion] for portion in portions(made)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(portions([])) == []


# --- what the daemon does to pyspark's module --------------------------------------------------------------------------


class Worker:
    """The two functions of pyspark's module; a command is what it loads."""

    def __init__(self):
        self.asked = []

    def read_command(self, serializer, command):
        return command, None

    def read_udfs(self, serializer, commands, kind, conf, rest):
        self.asked.append((kind, rest))
        for command in commands:
            self.read_command(serializer, command)  # by its name in the module, as pyspark does
        return "function", "profiler", "reads", "writes"


class Task(LevelTask):
    def run(self, rows):
        return iter(["ran with", *rows])


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    worker = Worker()
    _give_streams(worker)
    return worker


PLAIN = SimpleNamespace(udf_profiler=None)
TASK = Task(b"", None, 0)


def read_udfs(worker, *commands, conf=PLAIN):
    found = worker.read_udfs(None, commands, 207, conf, "rest")
    return found, os.environ["SPARK_PIPELINED_UDF"]


def test_a_task_of_ours_gets_the_stream(worker):
    (function, profiler, reads, writes), pipelined = read_udfs(worker, TASK)
    assert list(function(3, ["a row"])) == ["ran with", "a row"]
    assert profiler is None
    assert isinstance(reads, RowStream)
    assert isinstance(writes, RowStream)
    assert pipelined == "0"
    assert worker.asked == [(207, "rest")]


def test_functions_of_others_run_as_before_also_behind_a_task(worker):
    before = ("function", "profiler", "reads", "writes")
    assert read_udfs(worker, print) == (before, "1")
    read_udfs(worker, TASK)
    assert read_udfs(worker, print) == (before, "1")
    assert read_udfs(worker) == (before, "1")


def test_a_task_that_pyspark_chains_or_profiles_runs_as_before(worker):
    assert read_udfs(worker, TASK, TASK)[0][0] == "function"
    assert read_udfs(worker, TASK, conf=SimpleNamespace(udf_profiler="perf")) == (
        ("function", "profiler", "reads", "writes"),
        "1",
    )
