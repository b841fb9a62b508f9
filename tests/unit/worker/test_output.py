"""The output side: records are spread over targets, gathered into buffers, and leave as rows in order."""

from __future__ import annotations

import pickle
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.stream import key_spec
from headrace.errors import UserCodeError
from headrace.graph.job_graph import Edge, Partitioning
from headrace.graph.plan import OutputEdge
from headrace.records.batch import Batch
from headrace.records.frames import BY_VALUE, DRAIN, NARROW_TIMES, NARROWED, STAMPED, FrameKind, read_frames
from headrace.records.key_groups import key_group, owner
from headrace.records.types import PICKLED, TypeMismatch, as_type
from headrace.worker.failures import OperatorFailure
from headrace.worker.inputs import decode
from headrace.worker.output import EdgeWriter, RowBuffers

NUMBER = as_type("bigint")
MAX_ROW = 4 << 20


class Writer:
    """An edge writer, its buffers, and the records that came out of it."""

    def __init__(self, partitioning, readers=1, type=PICKLED, buffer_size=1 << 18, writers=1, writer=0, buffers=None):
        self.type = type
        self.buffers = buffers or RowBuffers(buffer_size)
        out = OutputEdge(Edge(7, 0, 1, 0, partitioning, type, None), readers, 128, 100)
        self.writer = EdgeWriter(out, writer, writers, self.buffers, Random(1))

    def emit(self, *values, stamps=None):
        batch = Batch.of_rows(list(values), self.type)
        batch.timestamps = None if stamps is None else np.array(stamps, np.int64)
        self.writer.emit(batch)
        return self

    def finish(self):
        self.writer.flush()
        self.buffers.flush()
        return self

    def rows(self):
        return [(target - 100, b"".join(pieces)) for target, pieces in self.buffers.take()]

    def frames(self):
        return [(target, frame) for target, row in self.rows() for frame in read_frames(row)]

    def records(self):
        """What each target got, in order."""
        found: dict[int, list[object]] = {}
        for target, frame in self.finish().frames():
            assert (frame.edge, frame.writer) == (7, 0)
            found.setdefault(target, []).extend(values_of(frame, self.type))
        return found


def values_of(frame, type=PICKLED):
    body = frame.body
    if frame.flags & STAMPED:
        body = body[8 + 8 * int.from_bytes(body[:8], "little") :]
    if frame.kind == FrameKind.ARROW:
        return type.to_rows(pa.ipc.read_record_batch(pa.py_buffer(body), type.schema))
    return pickle.loads(body)


def stamps_of(frame):
    if not frame.flags & STAMPED:
        return None
    count = int.from_bytes(frame.body[:8], "little")
    return np.frombuffer(frame.body[8 : 8 + 8 * count], np.int64).tolist()


# --- the buffers -----------------------------------------------------------------------------------------------------


def test_a_row_leaves_when_it_is_full():
    buffers = RowBuffers(buffer_size=10)
    buffers.add(1, [b"12345"])
    assert buffers.take() == []
    buffers.add(2, [b"12345"])
    buffers.add(1, [b"67890"])
    assert buffers.take() == [(1, [b"12345", b"67890"])]
    buffers.flush()
    assert buffers.take() == [(2, [b"12345"])]
    assert buffers.bytes_out == 15


def test_a_frame_may_close_its_row():
    buffers = RowBuffers(buffer_size=1000)
    buffers.add(1, [b"a"])
    buffers.add(1, [b"barrier"], close=True)
    buffers.add(1, [b"c"])
    assert buffers.take() == [(1, [b"a", b"barrier"])]


def test_an_empty_outbox_has_nothing_to_flush():
    buffers = RowBuffers(10)
    buffers.flush()
    assert buffers.take() == []


# --- spreading ------------------------------------------------------------------------------------------------------

_values = st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=20), max_size=8)
_kinds = st.sampled_from(["rebalance", "rescale", "shuffle", "broadcast", "global", "hash", "custom", "forward"])
_types = st.sampled_from([PICKLED, NUMBER])


def partitioning(kind, type):
    key = key_spec(type, lambda n: n, None)
    return Partitioning(kind, key, (lambda key, n: key % n) if kind == "custom" else None)


@given(_values, _kinds, _types, st.integers(1, 5), st.integers(1, 200))
@settings(max_examples=200)
def test_every_record_arrives_once_and_in_order(batches, kind, type, readers, buffer_size):
    """FIFO for each channel, whatever the buffers do; broadcast reaches everybody."""
    readers = 1 if kind == "forward" else readers
    writer = Writer(partitioning(kind, type), readers, type, buffer_size)
    for values in batches:
        writer.emit(*values)
    sent = [value for values in batches for value in values]
    got = writer.records()
    if kind == "broadcast":
        assert got == (dict.fromkeys(range(readers), sent) if sent else {})
    else:
        assert sorted(v for values in got.values() for v in values) == sorted(sent)
        for values in got.values():
            assert is_subsequence(values, sent)
    if kind == "global":
        assert set(got) <= {0}
    if kind == "custom":
        assert all(v % readers == target for target, values in got.items() for v in values)
    if kind == "hash":
        assert all(owner(key_group(v, 128), 128, readers) == r for r, values in got.items() for v in values)
    assert writer.writer.records_out == len(sent)


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(value in rest for value in part)


@pytest.mark.parametrize("kind", ["rebalance", "rescale"])
def test_round_robin_is_even(kind):
    writer = Writer(Partitioning(kind), readers=4, type=NUMBER)
    for size in (1, 3, 7, 2, 100):
        writer.emit(*range(size))
    sizes = [len(values) for values in writer.records().values()]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 1


def test_writers_of_few_records_start_at_different_targets():
    """One record from each of 40 writers must not all end at the first reader."""
    targets = set()
    for n in range(40):
        buffers = RowBuffers(1000)
        out = OutputEdge(Edge(7, 0, 1, 0, Partitioning("rebalance"), PICKLED, None), 4, 128, 0)
        writer = EdgeWriter(out, n, 40, buffers, Random(n))
        writer.emit(Batch.of_rows([1]))
        writer.flush()
        buffers.flush()
        targets |= {target for target, _ in buffers.take()}
    assert targets == {0, 1, 2, 3}


@pytest.mark.parametrize("choice", [5, -1, 2, "1", None, 1.0])
def test_a_custom_partitioner_out_of_range(choice):
    writer = Writer(Partitioning("custom", key_spec(PICKLED, lambda n: n, None), lambda key, n: choice), readers=2)
    with pytest.raises(UserCodeError) as caught:
        writer.emit("k")
    assert str(caught.value) == (
        f"[HR-5002] partition_custom() chose subtask {choice!r} for key 'k': it must be an integer from 0 to 1"
    )


def test_a_custom_partitioner_may_give_a_numpy_integer():
    writer = Writer(Partitioning("custom", key_spec(PICKLED, lambda n: n, None), lambda k, n: np.int64(k % n)), 2)
    assert writer.emit(1, 2, 3).records() == {0: [2], 1: [1, 3]}


# --- buffers --------------------------------------------------------------------------------------------------------


def test_records_wait_until_their_buffer_is_full():
    writer = Writer(Partitioning("forward"), type=NUMBER, buffer_size=800)
    for n in range(99):
        writer.emit(n)
    assert writer.frames() == []
    writer.emit(99)
    ((_, frame),) = writer.frames()
    assert values_of(frame, NUMBER) == list(range(100))
    assert writer.finish().frames() == []


def test_a_flush_lets_them_go():
    writer = Writer(Partitioning("forward")).emit(1).emit(2)
    assert writer.frames() == []
    ((_, frame),) = writer.finish().frames()
    assert values_of(frame) == [1, 2]


def test_small_frames_share_a_row():
    """A row costs a third of a millisecond per hop: frames of two edges to one target travel together."""
    first = Writer(Partitioning("forward"), buffer_size=1000)
    second = Writer(Partitioning("forward"), buffers=first.buffers)
    first.emit("a")
    second.emit("b")
    first.writer.flush()
    second.writer.flush()
    first.writer.event(FrameKind.WATERMARK, b"12345678")
    first.buffers.flush()
    ((_, row),) = first.rows()
    assert [FrameKind(f.kind) for f in read_frames(row)] == [FrameKind.PICKLE, FrameKind.PICKLE, FrameKind.WATERMARK]


def test_an_event_comes_behind_the_records_before_it():
    writer = Writer(Partitioning("broadcast"), readers=2).emit(1)
    writer.writer.event(FrameKind.END_OF_DATA, flags=DRAIN)
    writer.emit(2)
    writer.finish()
    for reader in range(2):
        frames = [
            f for target, row in writer.buffers.rows if target == 100 + reader for f in read_frames(b"".join(row))
        ]
        assert [f.kind for f in frames] == [FrameKind.PICKLE, FrameKind.END_OF_DATA, FrameKind.PICKLE]
        assert frames[1].flags == DRAIN


def test_an_event_reaches_every_channel():
    writer = Writer(Partitioning("hash", key_spec(PICKLED, lambda n: n, None)), readers=3)
    writer.writer.event(FrameKind.BARRIER, b"12345678", close=True)
    assert [(target, f.kind) for target, f in writer.frames()] == [(r, FrameKind.BARRIER) for r in range(3)]


def test_a_closing_event_ends_its_row():
    writer = Writer(Partitioning("forward")).emit(1)
    writer.writer.event(FrameKind.BARRIER, b"12345678", close=True)
    ((_, row),) = writer.rows()
    assert [f.kind for f in read_frames(row)] == [FrameKind.PICKLE, FrameKind.BARRIER]


@pytest.mark.parametrize("buffer_size", [1 << 10, 1 << 18, 16 << 20])
@pytest.mark.parametrize("type", [as_type("binary"), PICKLED])
def test_a_large_batch_is_split(type, buffer_size):
    """Spark never splits a row, so no row may be much larger than a few buffers."""
    values = [bytes([n % 256]) * 100_000 for n in range(200)]
    writer = Writer(Partitioning("forward"), type=type, buffer_size=buffer_size)
    writer.emit(*values)
    rows = writer.finish().rows()
    assert max(len(row) for _, row in rows) <= buffer_size + MAX_ROW + 1000
    assert [v for _, row in rows for f in read_frames(row) for v in values_of(f, type)] == values


@pytest.mark.parametrize("type", [as_type("binary"), PICKLED])
def test_one_record_larger_than_a_row_leaves_in_one_piece(type):
    value = bytes(MAX_ROW + 1)
    writer = Writer(Partitioning("forward"), type=type)
    assert writer.emit(value).emit(b"small").emit(value).records() == {0: [value, b"small", value]}


@pytest.mark.parametrize("type", [as_type("binary"), PICKLED])
def test_a_large_batch_keeps_its_timestamps(type):
    values = [bytes(1_000_000)] * 20
    writer = Writer(Partitioning("forward"), type=type)
    writer.emit(*values, stamps=range(20))
    assert [s for _, f in writer.finish().frames() for s in stamps_of(f)] == list(range(20))


# --- timestamps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", [PICKLED, NUMBER])
def test_timestamps_travel(type):
    writer = Writer(Partitioning("forward"), type=type).emit(1, 2, stamps=[10, 20]).emit(3, stamps=[30])
    ((_, frame),) = writer.finish().frames()
    assert stamps_of(frame) == [10, 20, 30]
    assert values_of(frame, type) == [1, 2, 3]


@pytest.mark.parametrize("type", [PICKLED, NUMBER])
@pytest.mark.parametrize("stamped_first", [True, False])
def test_records_with_and_without_timestamps_share_an_edge(type, stamped_first):
    writer = Writer(Partitioning("forward"), type=type)
    given = [([1], [10]), ([2], None)] if stamped_first else [([2], None), ([1], [10])]
    for values, stamps in given:
        writer.emit(*values, stamps=stamps)
    assert [(values_of(f, type), stamps_of(f)) for _, f in writer.finish().frames()] == given


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_record_that_cannot_be_pickled():
    writer = Writer(Partitioning("forward")).emit(1, lambda: 0)
    with pytest.raises(UserCodeError) as caught:
        writer.finish()
    assert "a record cannot be sent to the next operator: a function cannot be pickled" in str(caught.value)
    assert "emit plain values, or give the operator an output_type" in str(caught.value)


def test_a_class_of_the_programs_own_script_travels_by_value():
    """No worker can import it; a record of it is one of the class that the reader's program has."""

    class Item:
        def __init__(self, color):
            self.color = color

    Item.__module__, Item.__qualname__ = "__main__", "Item"
    ((_, frame),) = Writer(Partitioning("forward")).emit(Item("red"), stamps=[5]).finish().frames()
    assert frame.flags == STAMPED | BY_VALUE
    batch = decode(frame, PICKLED)
    (row,) = batch.rows()
    assert (row.color, type(row).__name__, batch.timestamps.tolist()) == ("red", "Item", [5])
    assert type(row) is Item


def test_a_record_that_cannot_be_pickled_names_the_operator_that_made_it():
    writer = Writer(Partitioning("forward"))
    writer.writer.emit(Batch.of_output([lambda: 0], PICKLED, ("Map", "file.py:3")))
    with pytest.raises(OperatorFailure) as caught:
        writer.finish()
    assert (caught.value.operator, caught.value.call_site) == ("Map", "file.py:3")
    assert "cannot be pickled" in str(caught.value.cause)


def test_a_record_of_the_wrong_type():
    with pytest.raises(TypeMismatch, match="expected bigint, got 'x'"):
        Writer(Partitioning("forward"), type=NUMBER).emit("x")


@given(st.lists(st.binary(min_size=1, max_size=5000), min_size=1, max_size=30))
def test_untyped_buffers_learn_how_large_records_are(values):
    writer = Writer(Partitioning("forward"), buffer_size=2000)
    for value in values:
        writer.emit(value)
    assert writer.records() == {0: values}


# --- small batches ----------------------------------------------------------------------------------------------------

PAIR = as_type("word string, n bigint")


def kinds_and_rows(type, batches, partitioning=None):
    """The kinds of the frames that leave, and the records that a reader makes of them."""
    writer = Writer(partitioning or Partitioning("forward"), type=type, readers=2 if partitioning else 1)
    for batch in batches:
        writer.writer.emit(batch)
    frames = [frame for _, frame in writer.finish().frames()]
    return [frame.kind for frame in frames], [row for frame in frames for row in decode(frame, type).rows()]


def test_a_few_records_travel_as_rows_and_come_back_as_what_the_type_promises():
    given = [Batch.of_rows([("a", 1), ("b", 2)], PAIR), Batch.of_output([("c", 3)], PAIR, None)]
    kinds, rows = kinds_and_rows(PAIR, given)
    assert kinds == [FrameKind.PICKLE]
    assert [(row.word, row.n) for row in rows] == [("a", 1), ("b", 2), ("c", 3)]


def test_many_small_batches_leave_as_one_batch_of_columns():
    kinds, rows = kinds_and_rows(NUMBER, [Batch.of_rows([n], NUMBER) for n in range(100)])
    assert (kinds, rows) == ([FrameKind.ARROW], list(range(100)))


@pytest.mark.parametrize(
    "row",
    [("a", None), (None, 1), ("é", 1), ("a" * 5000, 1)],
    ids=["no number", "no text", "not ASCII", "long"],
)
def test_values_that_columns_would_change_or_that_are_long_travel_in_columns(row):
    kinds, rows = kinds_and_rows(PAIR, [Batch.of_rows([row], PAIR)])
    assert kinds == [FrameKind.ARROW]
    assert [tuple(found) for found in rows] == [(row[0], row[1])]
    assert type(rows[0].n) in (int, type(None))


@pytest.mark.parametrize("row", [("a", True), ("a", 1 << 63), ("\ud800", 1), ("a", "b"), ("a",), "ab"])
def test_a_record_that_does_not_fit_is_refused_in_a_small_batch_too(row):
    with pytest.raises(TypeMismatch):
        kinds_and_rows(PAIR, [Batch.of_output([("a", 1), row], PAIR, ("Map", "file.py:1"))])


def test_named_rows_split_by_key_come_back_named():
    by_key = Partitioning("hash", key_spec(PAIR, "word", None))
    writer = Writer(by_key, readers=2, type=PAIR)
    for batch in (Batch.of_rows([("a", 1), ("b", 2)], PAIR), Batch.of_output([("c", 3)], PAIR, None)):
        writer.writer.emit(batch)
    found = [row for _, frame in writer.finish().frames() for row in decode(frame, PAIR).rows()]
    assert sorted((row.word, row.n) for row in found) == [("a", 1), ("b", 2), ("c", 3)]
    part = Batch.of_output([("a", 1), ("b", 2)], PAIR, ("Map", "file.py:1")).small_part([("b", 2)])
    assert (part.rows()[0].word, part.origin) == ("b", ("Map", "file.py:1"))


@pytest.mark.parametrize(("count", "kind"), [(64, FrameKind.PICKLE), (65, FrameKind.ARROW)])
def test_at_most_64_records_travel_as_rows(count, kind):
    assert kinds_and_rows(NUMBER, [Batch.of_rows(list(range(count)), NUMBER)])[0] == [kind]


@pytest.mark.parametrize(("length", "kind"), [(4096, FrameKind.PICKLE), (4097, FrameKind.ARROW)])
def test_long_byte_strings_travel_in_columns(length, kind):
    binary = as_type("binary")
    assert kinds_and_rows(binary, [Batch.of_rows([b"a" * length], binary)])[0] == [kind]


@given(
    st.lists(st.tuples(st.text(st.characters(codec="ascii"), max_size=3), st.integers(-5, 5)), min_size=1, max_size=80)
)
def test_small_and_large_batches_go_to_the_same_targets(rows):
    by_key = Partitioning("hash", key_spec(PAIR, "word", None))
    found = []
    for batch in (Batch.of_rows(rows, PAIR), Batch.of_arrow(PAIR.to_batch(rows), PAIR)):
        writer = Writer(by_key, readers=3, type=PAIR)
        writer.writer.emit(batch)
        frames = writer.finish().frames()
        found.append({target: [tuple(row) for row in decode(frame, PAIR).rows()] for target, frame in frames})
    assert found[0] == found[1]


def test_timestamps_of_a_small_batch_stay_with_their_records():
    by_key = Partitioning("hash", key_spec(PAIR, "word", None))
    writer = Writer(by_key, readers=2, type=PAIR)
    writer.emit(*[(str(n), n) for n in range(20)], stamps=range(100, 120))
    frames = [frame for _, frame in writer.finish().frames()]
    pairs = [pair for frame in frames for pair in zip(decode(frame, PAIR).rows(), stamps_of(frame), strict=True)]
    assert sorted((row.n, stamp) for row, stamp in pairs) == [(n, 100 + n) for n in range(20)]


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("count", [511, 512])
def test_integers_of_large_batches_travel_with_the_bytes_that_they_need(count, stamped):
    type = as_type("struct<n: bigint, text: string>")
    rows = [(10**12 + n, f"text {n}") for n in range(count)]
    stamps = [1_760_000_000_000 + n for n in range(count)] if stamped else None
    ((_, frame),) = Writer(Partitioning("forward"), type=type).emit(*rows, stamps=stamps).finish().frames()
    large = count == 512
    assert bool(frame.flags & NARROWED) == large
    assert bool(frame.flags & NARROW_TIMES) == (large and stamped)
    arrived = decode(frame, type)
    assert [tuple(row) for row in arrived.rows()] == rows
    assert (None if arrived.timestamps is None else arrived.timestamps.tolist()) == stamps
    if large:
        plain = type.to_batch(rows).nbytes + (8 * count if stamped else 0)
        assert len(frame.body) < plain - count * (11 if stamped else 5)
