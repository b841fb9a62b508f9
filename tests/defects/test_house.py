"""Avro, metrics, and state in columns: defects that are known, and what holds now.

A test of a defect is an expected failure with the defect's name. Only an AssertionError counts as that failure.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading
from typing import Any

import pytest

from headrace.connectors.avro import AvroCodec, AvroFormat
from headrace.control.messages import Metrics
from headrace.driver.metrics_history import MetricsHistory

# --- D7: values of an Avro union --------------------------------------------------------------------------------------


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


CLICK = record("Click", {"name": "x", "type": "int", "default": 0})
SEARCH = record("Search", {"name": "y", "type": "string", "default": ""})
BARE_CLICK, BARE_SEARCH = (
    record("Click", {"name": "x", "type": "int"}),
    record("Search", {"name": "y", "type": "string"}),
)
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["A", "B"]}
SHAPE = {"type": "enum", "name": "Shape", "symbols": ["C"]}


def event(*branches: Any) -> dict[str, Any]:
    return record("Event", {"name": "p", "type": list(branches)})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (event(CLICK, SEARCH), {"p": {"y": "hello"}}),
        (event(BARE_CLICK, BARE_SEARCH), {"p": {"y": "hello"}}),
        (["double", "long"], 2**60 + 1),
        (["float", "int"], 2**24 + 1),
        (["null", "string", "bytes"], b"abc"),
        (["string", "bytes"], b"\xff\x00"),
        ([COLOUR, SHAPE], "C"),
    ],
    ids=["records with defaults", "records", "long", "int", "bytes", "bytes, no text", "enums"],
)
def test_a_value_of_a_union_comes_back_as_it_was(schema, value):
    codec = AvroCodec(schema)
    found = codec.decode(codec.encode(value))
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("schema", [event(CLICK, SEARCH), event(BARE_CLICK, BARE_SEARCH)], ids=["defaults", "none"])
def test_the_branch_of_a_union_is_read_by_its_number(schema):
    assert AvroCodec(schema).decode(b"\x02\x0ahello") == {"p": {"y": "hello"}}


# --- D14: other values of Avro ----------------------------------------------------------------------------------------


def refused(codec: AvroCodec, data: bytes) -> bool:
    try:
        codec.decode(data)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (["null", "string"], b"\x01\x02a"),
        (COLOUR, b"\x01"),
        ("long", b"\x02garbage"),
        ("int", AvroCodec("long").encode(2**40)),
    ],
    ids=["negative branch", "negative symbol", "bytes behind", "more than 32 bits"],
)
def test_bytes_that_are_no_value_are_refused(schema, data):
    assert refused(AvroCodec(schema), data)


@pytest.mark.parametrize(
    ("schema", "bad", "good"),
    [
        (record("R", {"name": "n", "type": "int"}), AvroCodec("long").encode(2**40), b"\x02"),
        (record("N", {"name": "next", "type": ["null", "N"]}), b"\x02" * 5000 + b"\0", b"\0"),
        (
            record(
                "D",
                {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0}},
            ),
            b"\x06\x01\xe2\x40",
            b"\x02\x01",
        ),
    ],
    ids=["more than 32 bits", "nested deeply", "decimal over its precision"],
)
def test_a_record_that_cannot_be_read_is_corrupt_alone(schema, bad, good):
    try:
        batch, corrupt = AvroFormat(schema, typed=schema["name"] != "N").decoder().decode([good, bad, good])
        rows = batch.rows()
    except Exception as error:
        raise AssertionError(f"the decoder raises {error!r}") from error
    assert [one.data for one in corrupt] == [bad]
    assert len(rows) == 2


def test_a_default_is_another_object_for_each_record():
    old = record("R", {"name": "n", "type": "int"})
    tags = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
    codec = AvroCodec(record("R", {"name": "n", "type": "int"}, tags), old)
    codec.decode(b"\x02")["tags"].append("mine")
    assert codec.decode(b"\x04") == {"n": 2, "tags": []}


def test_a_default_has_the_type_of_its_field():
    old = record("R", {"name": "n", "type": "int"})
    date = {"name": "d", "type": {"type": "int", "logicalType": "date"}, "default": 0}
    found = AvroCodec(record("R", {"name": "n", "type": "int"}, date), old).decode(b"\x02")
    assert found == {"n": 1, "d": dt.date(1970, 1, 1)}


def test_nanoseconds_are_read_as_nanoseconds():
    schema = record("R", {"name": "t", "type": {"type": "long", "logicalType": "timestamp-nanos"}})
    batch, corrupt = AvroFormat(schema).decoder().decode([AvroCodec("long").encode(1_700_000_000_000_000_000)])
    assert corrupt == []
    assert batch.arrow().column(0).cast("timestamp[s]").cast("int64").to_pylist() == [1_700_000_000]


@pytest.mark.parametrize("reference", ["Key", "b.Key"])
def test_equal_short_names_in_two_namespaces_stay_apart(reference):
    number = {"type": "record", "name": "Key", "namespace": "a", "fields": [{"name": "n", "type": "long"}]}
    text = {"type": "record", "name": "Key", "fields": [{"name": "s", "type": "string"}]}
    outer = {"type": "record", "name": "Outer", "namespace": "b"}
    outer["fields"] = [{"name": "k1", "type": text}, {"name": "k2", "type": reference}]
    codec = AvroCodec(record("Top", {"name": "a", "type": number}, {"name": "b", "type": outer}))
    value = {"a": {"n": 1}, "b": {"k1": {"s": "x"}, "k2": {"s": "y"}}}
    assert codec.decode(codec.encode(value)) == value


BOMB = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from headrace.connectors.avro import AvroCodec
codec = AvroCodec({"type": "array", "items": "null"})
try:
    codec.decode(AvroCodec("long").encode(1 << 40) + b"\\0")
except ValueError as error:
    print("refused")
"""


def test_a_few_bytes_do_not_fill_the_memory():
    done = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "refused\n", done.stderr


# --- H1: metrics ------------------------------------------------------------------------------------------------------


class SlowMetrics(Metrics, frozen=True):
    """Counters whose reader is stopped where it begins, until the test lets it go on."""

    def __getattribute__(self, name: str) -> Any:
        if name == "records_in" and threading.current_thread() is reader.get("thread"):
            reader["entered"].set()
            reader["go"].wait(30)
        return super().__getattribute__(name)


reader: dict[str, Any] = {}


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="H1 metrics of REST: a reader puts back an old rate that newer counters have replaced meanwhile",
)
def test_metrics_that_arrive_while_rates_are_read_are_seen_next():
    history, worker = MetricsHistory(), (0, 0)
    history.add(worker, 1000, SlowMetrics(records_in=0))
    history.add(worker, 2000, Metrics(records_in=100))
    reader.update(entered=threading.Event(), go=threading.Event())
    reader["thread"] = threading.Thread(target=history.measures)
    reader["thread"].start()
    if not reader["entered"].wait(30):
        raise RuntimeError("the rates are not computed from the counters")
    history.add(worker, 3000, Metrics(records_in=500))
    reader["go"].set()
    reader["thread"].join()
    assert history.measures()[worker].metrics.records_in == history.newest()[worker].records_in == 500
