"""Sources: every record exactly once at any parallelism, also after a restore; rates; SourceFunctions in their thread."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.functions import SourceFunction
from headrace.api.sources import CollectionSource, DataGenSource, ReaderContext, SequenceSource
from headrace.errors import InvalidArgument, UserCodeError
from headrace.records.types import PICKLED, TypeMismatch, as_type
from headrace.worker.operators.sources import FunctionReader
from waiting import wait_until


class Clock:
    def __init__(self, now=0):
        self.now = now

    def __call__(self):
        return self.now


def readers(source, parallelism, clock=None):
    found = []
    for subtask in range(1 if source.single else parallelism):
        context = ReaderContext(subtask, 1 if source.single else parallelism, clock or Clock())
        found.append(source.reader(context, source.first_splits(context)))
    return found


def read(reader, sizes=(7,)):
    """All records of a reader, polled in batches of these sizes."""
    rows, turn = [], 0
    while not reader.finished:
        batch = reader.poll(sizes[turn % len(sizes)])
        turn += 1
        if batch is not None:
            assert 0 < len(batch) <= sizes[(turn - 1) % len(sizes)]
            rows += batch.rows()
    assert reader.poll(100) is None
    return rows


SOURCES = {
    "collection": lambda n: CollectionSource(list(range(n))),
    "typed collection": lambda n: CollectionSource(list(range(n)), as_type("bigint")),
    "sequence": lambda n: SequenceSource(0, n - 1, as_type("bigint")),
    "datagen": lambda n: DataGenSource(lambda i: i, n, None, PICKLED, False),
    "vectorised datagen": lambda n: DataGenSource(
        lambda numbers: pa.RecordBatch.from_pydict({"value": numbers}), n, None, as_type("bigint"), True
    ),
}
_sources = st.sampled_from(sorted(SOURCES))
_sizes = st.lists(st.integers(1, 20), min_size=1, max_size=4)


@given(_sources, st.integers(0, 100), st.integers(1, 40), _sizes)
def test_every_record_once_at_any_parallelism(name, count, parallelism, sizes):
    parts = [read(reader, sizes) for reader in readers(SOURCES[name](count), parallelism)]
    assert sorted(n for part in parts for n in part) == list(range(count))
    for part in parts:
        assert part == sorted(part)  # each subtask gives its own in order


@given(_sources, st.integers(0, 100), st.integers(1, 20), st.integers(1, 20), _sizes, st.integers(0, 10))
def test_every_record_once_over_a_restore_with_another_parallelism(name, count, before, after, sizes, polls):
    source = SOURCES[name](count)
    rows, splits = [], []
    for reader in readers(source, before):
        for turn in range(polls):
            batch = reader.poll(sizes[turn % len(sizes)])
            rows += batch.rows() if batch is not None else []
        splits += reader.snapshot()
    after = 1 if source.single else after
    for subtask in range(after):
        share = splits[len(splits) * subtask // after : len(splits) * (subtask + 1) // after]
        rows += read(source.reader(ReaderContext(subtask, after, Clock()), share), sizes)
    assert sorted(rows) == list(range(count))


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 5))
def test_a_sequence_has_both_ends(start, end, parallelism):
    parts = [read(reader) for reader in readers(SequenceSource(start, end, as_type("bigint")), parallelism)]
    assert sorted(n for part in parts for n in part) == list(range(start, end + 1))


def test_a_typed_collection_is_checked_before_the_job_starts():
    with pytest.raises(TypeMismatch, match="expected bigint, got 'x'"):
        CollectionSource([1, "x"], as_type("bigint"))


# --- datagen --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": -1}, "count must not be negative, got -1"),
        ({"rate": 0}, "rate must be positive records per second, got 0"),
        ({"rate": -2.5}, "rate must be positive records per second, got -2.5"),
        ({"vectorised": True}, "a vectorised generator needs a type"),
    ],
)
def test_wrong_arguments(arguments, text):
    given = {"count": None, "rate": None, "type": PICKLED, "vectorised": False} | arguments
    with pytest.raises(InvalidArgument, match=text):
        DataGenSource(str, **given)


@given(st.floats(0.1, 100_000), st.integers(1, 4))
@settings(max_examples=50)
def test_a_rate_on_a_virtual_clock(rate, parallelism):
    """Woken only when it asks to be, the source gives what the rate allows, and always moves on."""
    clock = Clock(1_000)
    parts = readers(DataGenSource(lambda n: n, None, rate, PICKLED, False), parallelism, clock)
    given_records = 0
    for _ in range(30):
        for reader in parts:
            while (batch := reader.poll(10_000)) is not None:
                given_records += len(batch)
        seconds = (clock.now - 1_000) / 1000
        exact = 1e-6 * (1 + rate * seconds)  # what the product of two floats may be off
        assert given_records <= rate * seconds + parallelism + exact  # each subtask starts with one at once
        assert given_records >= rate * seconds - parallelism - exact
        wake = min(reader.ready_at() for reader in parts)
        assert wake > clock.now
        clock.now = wake


def test_the_first_record_comes_at_once():
    clock = Clock()
    (reader,) = readers(DataGenSource(lambda n: n, None, 0.5, PICKLED, False), 1, clock)
    assert reader.ready_at() is None
    assert reader.poll(10).rows() == [0]
    assert reader.poll(10) is None
    assert reader.ready_at() == 2001
    clock.now = 2001
    assert reader.poll(10).rows() == [1]


def test_a_rate_catches_up_after_a_pause():
    clock = Clock()
    (reader,) = readers(DataGenSource(lambda n: n, None, 1000, PICKLED, False), 1, clock)
    reader.poll(10)
    clock.now = 5000
    rows = []
    while (batch := reader.poll(10_000)) is not None:
        rows += batch.rows()
    assert rows == list(range(1, 5001))


@pytest.mark.parametrize("made", [{"value": ["x"]}, {"other": [1]}])
def test_a_vectorised_generator_must_keep_to_its_type(made):
    """The reader of an edge decodes by the declared schema: another one would be read as garbage."""
    source = DataGenSource(lambda numbers: pa.RecordBatch.from_pydict(made), 5, None, as_type("bigint"), True)
    (reader,) = readers(source, 1)
    with pytest.raises(TypeMismatch):
        reader.poll(5)


def test_a_vectorised_generators_columns_are_cast():
    source = DataGenSource(
        lambda numbers: pa.RecordBatch.from_pydict({"value": pa.array(numbers, pa.int32())}),
        3,
        None,
        as_type("bigint"),
        True,
    )
    assert read(readers(source, 1)[0]) == [0, 1, 2]


# --- SourceFunctions ------------------------------------------------------------------------------------------------


class Numbers(SourceFunction):
    def __init__(self, count, after=None):
        self.count, self.after = count, after
        self.cancelled = threading.Event()

    def run(self, ctx):
        for n in range(self.count):
            ctx.collect(n)
        if self.after is not None:
            self.after(ctx)

    def cancel(self):
        self.cancelled.set()


def function_reader(function, lockstep, type=PICKLED):
    wakes = threading.Semaphore(0)
    reader = FunctionReader(function, type, SimpleNamespace(wake=wakes.release, lockstep=lockstep))
    reader.wakes = wakes
    return reader


def poll_until_end(reader, size=100):
    rows = []
    while not reader.finished:
        batch = reader.poll(size)
        if batch is not None:
            rows.append(batch.rows())
        else:
            reader.wakes.acquire(timeout=60)
    reader.close()
    return rows


def test_in_lockstep_each_poll_gives_one_record():
    reader = function_reader(Numbers(3), lockstep=True)
    assert [reader.poll(100).rows() for _ in range(3)] == [[0], [1], [2]]
    assert not reader.finished  # whether run() has returned yet is left to chance otherwise
    assert reader.poll(100) is None
    assert reader.finished
    reader.close()


def test_free_running_gives_what_is_there():
    rows = poll_until_end(function_reader(Numbers(25_000), lockstep=False), 1000)
    assert [n for part in rows for n in part] == list(range(25_000))
    assert max(map(len, rows)) <= 1000


def test_a_free_running_source_is_held_when_nobody_polls():
    reader = function_reader(Numbers(30_000), lockstep=False)
    wait_until(lambda: len(reader._rows) >= 10_000)
    reader._thread.join(timeout=0.2)
    assert reader._thread.is_alive()
    assert len(reader._rows) == 10_000
    assert sum(len(part) for part in poll_until_end(reader, 5000)) == 30_000


@pytest.mark.parametrize("lockstep", [True, False])
def test_an_error_in_run_comes_behind_the_records_before_it(lockstep):
    def fail(ctx):
        raise ValueError("broken pipe")

    reader = function_reader(Numbers(3, fail), lockstep)
    rows = []
    with pytest.raises(ValueError, match="broken pipe"):  # noqa: PT012 - records come first
        while True:
            batch = reader.poll(100)
            if batch is not None:
                rows += batch.rows()
            assert not reader.finished
    assert rows == [0, 1, 2]
    reader.close()


@pytest.mark.parametrize("lockstep", [True, False])
def test_sys_exit_in_run_is_an_error_and_not_silence(lockstep):
    reader = function_reader(Numbers(0, lambda ctx: sys.exit(3)), lockstep)
    reader._thread.join(timeout=60)
    with pytest.raises(UserCodeError, match=r"run\(\) ended with SystemExit\(3\)"):
        reader.poll(1)
    reader.close()


@pytest.mark.parametrize("lockstep", [True, False])
def test_close_cancels_and_unwinds_a_source_that_waits(lockstep):
    unwound = threading.Event()

    class Endless(Numbers):
        def run(self, ctx):
            try:
                while True:
                    ctx.collect(1)
            finally:
                unwound.set()

    function = Endless(0)
    reader = function_reader(function, lockstep)
    assert reader.poll(1).rows() == [1]
    reader.close()
    assert function.cancelled.is_set()
    assert unwound.wait(60)
    assert not reader._thread.is_alive()


def test_close_ends_a_source_that_sleeps_until_it_is_cancelled():
    function = Numbers(1, lambda ctx: function.cancelled.wait(30))
    reader = function_reader(function, lockstep=False)
    assert reader.wakes.acquire(timeout=60)
    assert reader.poll(1).rows() == [0]
    assert reader.poll(1) is None
    assert not reader.finished
    reader.close()
    assert not reader._thread.is_alive()


def test_user_code_cannot_swallow_the_end():
    class Stubborn(Numbers):
        def run(self, ctx):
            while not self.cancelled.is_set():
                try:
                    ctx.collect(1)
                except Exception:
                    continue

    reader = function_reader(Stubborn(0), lockstep=False)
    assert reader.poll(1) is not None or reader.wakes.acquire(timeout=60)
    reader.close()
    assert not reader._thread.is_alive()


@pytest.mark.parametrize("lockstep", [True, False])
def test_timestamps(lockstep):
    def stamped(ctx):
        ctx.collect_with_timestamp("a", 10)
        ctx.collect_with_timestamp("b", 20)
        ctx.collect("c")

    reader = function_reader(Numbers(2, stamped), lockstep)
    reader._thread.join(timeout=0.2)
    seen = []
    while not reader.finished:
        batch = reader.poll(100)
        if batch is not None:
            stamps = [None] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
            seen += zip(batch.rows(), stamps, strict=True)
    assert seen == [(0, None), (1, None), ("a", 10), ("b", 20), ("c", None)]
    reader.close()


def test_the_checkpoint_lock_makes_emitting_and_counting_one_step():
    """A snapshot taken at any moment sees as many records emitted as the function has counted."""

    class Counting(SourceFunction):
        def __init__(self):
            self.emitted = 0
            self.running = True

        def run(self, ctx):
            while self.running:
                with ctx.get_checkpoint_lock():
                    ctx.collect(self.emitted)
                    self.emitted += 1

        def cancel(self):
            self.running = False

    function = Counting()
    reader = function_reader(function, lockstep=False)
    taken = 0
    for _ in range(200):
        batch = reader.poll(64)
        taken += 0 if batch is None else len(batch)
        with reader.get_checkpoint_lock():
            assert function.emitted == taken + len(reader._rows)
    reader.close()


def test_typed_source_functions():
    reader = function_reader(Numbers(2), True, as_type("bigint"))
    assert reader.poll(1).arrow().num_rows == 1
    reader.close()
