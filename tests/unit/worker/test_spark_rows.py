"""Rows from and to Spark: through pyspark's batches and as a stream of bytes, which must be the same for Spark."""

import gc
import io
import os
import pickle
import struct
import weakref
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import patch

import pyarrow as pa
import pyspark.daemon
import pyspark.worker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.messages import Failed
from headrace.errors import UserCodeError
from headrace.worker import daemon
from headrace.worker.daemon import _give_streams
from headrace.worker.shell import LevelTask, Shell
from headrace.worker.spark_rows import RowStream, as_batch, as_message, portions, read_batches
from rig import descriptor, plan_of

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
    RowStream().dump_stream(map(as_message, batches), out)
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
            yield as_message([(0, [b"%d" % number])])
            seen.append(list(out.flushed))

    RowStream().dump_stream(made(), out)
    assert [len(flushes) for flushes in seen] == [1, 2, 3]
    assert read(out.getvalue()[4 : seen[0][0]]) == [b"0"]


def test_an_error_ends_the_stream_that_has_begun():
    def broken():
        yield as_message([(0, [b"one"])])
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


def test_offsets_behind_the_bytes_that_they_point_to():
    whole = stream_of([row(b"x" * 777)])
    ends = struct.pack("<2i", 0, 777)
    at = whole.rindex(ends)
    with pytest.raises(ValueError, match="shorter than it says"):
        read(whole[:at] + struct.pack("<2i", 5000, 5777) + whole[at + len(ends) :])


def test_every_message_has_whole_words():
    """As the format demands; Spark's JVM would read on in the wrong place."""
    for size in range(20):
        message = as_message([(0, [b"x" * size])] * 3)
        assert len(message) % 8 == 0
        with pa.ipc.open_stream(io.BytesIO(written([(0, [b"x" * size])] * 3)[4:])) as reader:
            assert reader.read_all().num_rows == 3


class Huge(bytes):
    """Says that it takes two gigabytes."""

    def __len__(self):
        return 1 << 31


@pytest.mark.parametrize("form", [as_batch, as_message])
def test_a_record_that_no_row_of_spark_can_hold(form):
    with pytest.raises(
        UserCodeError, match=r"takes 2,147,483,648 bytes, and Spark's rows have at most 2,147,483,647; emit"
    ):
        form([(0, [Huge()])])


def test_portions_are_bounded():
    made = [(n, [bytes(3 << 20)]) for n in range(7)]
    assert [[dst for dst, _ in portion] for portion in portions(made)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(portions([])) == []


class NotConnected(Shell):
    """What it would tell the driver is kept here."""

    def connect(self, address, register, timeout):
        self.client = SimpleNamespace(send=TOLD.append, close=lambda: None)

    def end_process_in(self, seconds):
        return SimpleNamespace(cancel=lambda: None)

    def run(self, task):
        yield [(0, [Huge()])]


TOLD = []


@pytest.mark.parametrize("form", [as_batch, as_message])
def test_rows_that_cannot_be_sent_are_the_failure_of_their_task(form):
    """Not of what Spark does with the rows: the driver would only hear that a worker is lost."""
    TOLD.clear()
    plan = plan_of(lambda env: env.from_elements(1).map(lambda x: x).name("makes them").print())
    task = LevelTask(pickle.dumps([descriptor(plan, "makes them")]), None, 1.0)
    with (
        patch("headrace.worker.shell.Shell", NotConnected),
        pytest.raises(RuntimeError, match=r"makes them.*takes 2,147,483,648 bytes"),
    ):
        list(task.run(iter(()), form, 0))
    (failed,) = TOLD
    assert isinstance(failed, Failed)
    assert "a record cannot be sent to the next operator: it takes 2,147,483,648 bytes" in failed.message


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
    def run_in_spark(self, rows, form):
        yield from ["ran with", form, *rows]


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    worker = Worker()
    _give_streams(worker)
    return worker


PLAIN = SimpleNamespace(udf_profiler=None)
TASK = Task(b"", None, 0)
BEFORE = ("function", "profiler", "reads", "writes")


def read_udfs(worker, *commands, conf=PLAIN):
    return worker.read_udfs(None, commands, 207, conf, "rest")


def test_a_task_of_ours_gets_the_stream(worker):
    for _ in range(2):  # a worker may run several tasks
        function, profiler, reads, writes = read_udfs(worker, TASK)
        assert "SPARK_PIPELINED_UDF" not in os.environ  # else pyspark would read in a thread of its own
        assert list(function(3, ["a row"])) == ["ran with", as_message, "a row"]
        assert os.environ["SPARK_PIPELINED_UDF"] == "1"
        assert profiler is None
        assert isinstance(reads, RowStream)
        assert isinstance(writes, RowStream)
    assert worker.asked == [(207, "rest")] * 2


def test_functions_of_others_run_as_before_also_behind_a_task(worker):
    assert read_udfs(worker, print) == BEFORE
    list(read_udfs(worker, TASK)[0](0, []))
    assert read_udfs(worker, print) == BEFORE
    assert read_udfs(worker) == BEFORE
    assert os.environ["SPARK_PIPELINED_UDF"] == "1"


@pytest.mark.parametrize(("commands", "conf"), [((TASK, TASK), PLAIN), ((TASK,), SimpleNamespace(udf_profiler="perf"))])
def test_a_task_that_pyspark_chains_or_profiles_runs_as_before(worker, commands, conf):
    assert read_udfs(worker, *commands, conf=conf) == BEFORE
    assert os.environ["SPARK_PIPELINED_UDF"] == "1"


def test_what_a_worker_has_loaded_is_not_kept(worker):
    one = type("Function", (), {})()
    alive = weakref.ref(one)
    read_udfs(worker, one)
    worker.read_command(None, one)  # as pyspark does for functions over RDDs
    del one
    assert alive() is None


def test_a_function_that_cannot_be_loaded_leaves_the_module_as_it_was(monkeypatch):
    monkeypatch.setattr(Worker, "read_udfs", lambda *args: 1 / 0)
    broken = Worker()
    loads = broken.read_command
    _give_streams(broken)
    with pytest.raises(ZeroDivisionError):
        read_udfs(broken, TASK)
    assert broken.read_command == loads


def test_a_daemon_of_another_pyspark_says_that_rows_take_the_long_way(monkeypatch, caplog):
    monkeypatch.setattr(pyspark.daemon, "worker", pyspark.daemon.worker)
    monkeypatch.setattr(pyspark.daemon, "manager", lambda: None)
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "128")
    monkeypatch.delattr(pyspark.worker, "read_command")
    try:
        daemon.main()
    finally:
        gc.unfreeze()
    (said,) = caplog.messages
    assert said.startswith("workers read rows through pyspark, which takes more CPU time: AttributeError: ")


@pytest.mark.parametrize(("given_size", "size"), [("128", 64 << 10), ("1000000", 1_000_000)])
def test_the_daemon_sets_workers_up(monkeypatch, given_size, size):
    seen = []
    monkeypatch.setenv("SPARK_BUFFER_SIZE", given_size)
    monkeypatch.setattr(pyspark.worker, "read_udfs", pyspark.worker.read_udfs)  # both as they were afterwards
    monkeypatch.setattr(pyspark.daemon, "worker", pyspark.daemon.worker)
    monkeypatch.setattr(pyspark.daemon, "manager", lambda: seen.append(pyspark.worker.read_udfs.__module__))
    try:
        daemon.main()
    finally:
        gc.unfreeze()
    assert seen == ["headrace.worker.daemon"]
    assert int(os.environ["SPARK_BUFFER_SIZE"]) == size
