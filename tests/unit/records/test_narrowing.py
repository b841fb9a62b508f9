"""Integer columns and timestamps on their way to another subtask have the bytes that they need, and arrive as they were."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from headrace.records import narrowing
from headrace.records.narrowing import narrow, narrow_times, widen, widen_times

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEMPORAL = [pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us")]


@pytest.fixture(autouse=True, scope="module")
def _whatever_it_saves():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(narrowing, "MIN_SAVED", 1)
        yield


def there_and_back(batch):
    """The batch that arrives, and the bytes of its columns on the way."""
    found = narrow(batch)
    if found is None:
        return batch, batch.nbytes
    head, narrowed = found
    body = pa.py_buffer(head + bytes(narrowed.serialize()))
    return widen(body, batch.schema), narrowed.nbytes


@st.composite
def columns(draw, bits):
    low = draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    reach = draw(st.sampled_from([0, 1, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63]))
    high = min(low + reach, 2 ** (bits - 1) - 1)
    return [low, high, *draw(st.lists(st.integers(low, high), max_size=20))]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_integers_arrive_as_they_were(data):
    name = data.draw(st.sampled_from([*INTEGERS]))
    values = data.draw(columns(INTEGERS[name]))
    array = pa.array(values, getattr(pa, name)())
    start = data.draw(st.integers(0, len(values) - 1))
    batch = pa.RecordBatch.from_arrays([array], names=["n"]).slice(start)
    back, size = there_and_back(batch)
    assert back.equals(batch)
    back.validate(full=True)
    spread = max(values[start:]) - min(values[start:])
    need = next(width for width, limit in ((1, 8), (2, 16), (4, 32), (8, 64)) if spread < 1 << limit)
    if INTEGERS[name] > 16:
        assert size <= max(need, 1) * len(batch)


@settings(max_examples=examples(100), deadline=None)
@given(columns(64))
def test_timestamps_arrive_as_they_were(values):
    times = np.array(values, np.int64)
    pieces = narrow_times(times)
    if pieces is None:
        assert max(values) - min(values) >= 1 << 32
        return
    body = b"".join(pieces)
    assert len(body) % 8 == 0  # what follows is read in place
    back, rest = widen_times(memoryview(body + b"records"))
    assert back.tolist() == values
    assert back.dtype == np.int64
    assert bytes(rest) == b"records"


@pytest.mark.parametrize("arrow", TEMPORAL, ids=str)
def test_times_and_dates(arrow):
    moment = dt.datetime(2026, 11, 18, 8, 15, tzinfo=dt.UTC)
    day = pa.types.is_date(arrow)
    steps = [moment + (dt.timedelta(days=n) if day else dt.timedelta(seconds=n)) for n in range(20)]
    values = [one.time() if pa.types.is_time(arrow) else one.date() if day else one for one in steps]
    batch = pa.RecordBatch.from_arrays([pa.array(values, arrow)], names=["t"])
    back, size = there_and_back(batch)
    assert back.equals(batch)
    assert size < batch.nbytes


def test_other_columns_travel_as_they_are():
    batch = pa.RecordBatch.from_pydict(
        {
            "small": pa.array([1, 2, 3]),
            "missing": pa.array([1, None, 3]),
            "text": pa.array(["a", "b", None]),
            "ratio": pa.array([0.5, -0.0, float("nan")]),
            "large": pa.array([0, 2**63, 2**64 - 1], pa.uint64()),
            "unsigned": pa.array([0, 1, 2], pa.uint64()),
            "flag": pa.array([True, False, None]),
            "list": pa.array([[1], [], None]),
            "row": pa.array([{"n": 1}, {"n": 2}, {"n": 3}]),
            "wide": pa.array([-(2**63), 0, 2**63 - 1]),
        }
    )
    head, narrowed = narrow(batch)
    assert narrowed.schema.types == [pa.uint8(), *batch.schema.types[1:]]
    back = widen(pa.py_buffer(head + bytes(narrowed.serialize())), batch.schema)
    assert [str(column) for column in back.columns] == [str(column) for column in batch.columns]
    assert back.schema == batch.schema


def test_nothing_to_narrow():
    assert narrow(pa.RecordBatch.from_pydict({"text": ["a"], "wide": [0.5]})) is None
    assert narrow(pa.RecordBatch.from_pydict({"wide": [-(2**63), 2**63 - 1]})) is None
    assert narrow_times(np.array([-(2**63), 2**63 - 1])) is None


def test_a_batch_of_which_little_can_be_narrowed_travels_as_it_is(monkeypatch):
    monkeypatch.setattr(narrowing, "MIN_SAVED", 1024)

    def table(rows, floats):
        columns = {"small": np.arange(rows) % 100} | {f"f{i}": np.zeros(rows) for i in range(floats)}
        return pa.RecordBatch.from_pydict(columns)

    assert narrow(table(512, 2)) is not None  # 7 bytes of each row
    assert narrow(table(512, 3)) is None
    assert narrow(table(1024, 3)) is not None
    assert narrow(table(512, 1000)) is None


@pytest.mark.parametrize("size", [20, 70_000])
def test_what_arrives_cannot_be_changed(size):
    """Batches share their columns and timestamps: a function that changes them would change those of others."""
    batch = pa.RecordBatch.from_pydict({"n": np.arange(size)})
    back, _ = there_and_back(batch)
    assert not back.column(0).buffers()[1].is_mutable
    times, _ = widen_times(memoryview(b"".join(narrow_times(np.arange(size)))))
    with pytest.raises(ValueError, match="read-only"):
        times[:] = 0


def test_damaged_widths():
    batch = pa.RecordBatch.from_pydict({"n": np.arange(600)})
    head, narrowed = narrow(batch)
    for width in (3, 8, 255):
        body = bytes([width]) + head[1:] + bytes(narrowed.serialize())
        with pytest.raises(ValueError, match=f"damaged frame: numbers of {width} bytes"):
            widen(pa.py_buffer(body), batch.schema)
    count, head, *rest = narrow_times(np.arange(600))
    for width in (0, 3, 8):
        with pytest.raises(ValueError, match="damaged frame"):
            widen_times(memoryview(b"".join([count, bytes([width]) + head[1:], *rest])))
