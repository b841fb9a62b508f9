"""Records, keys and state values keep what they are: each test is a defect that is known, or one that was cured.

A test of a defect that is still there is an expected failure with the defect's name. Only an AssertionError counts as
that failure, so an error of the test itself is not taken for it.
"""

from __future__ import annotations

import datetime as dt
import enum
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace import (
    CoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    Row,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.values import CorruptRecord, Decoder, decoder, encoder
from headrace.errors import GraphError, HeadraceError, InvalidArgument
from headrace.pyflink.common import Row as FlinkRow
from headrace.pyflink.common import Types as FlinkTypes
from headrace.pyflink.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from headrace.pyflink.datastream.formats.json import JsonRows
from headrace.records.batch import Batch
from headrace.records.frames import FrameKind, pack, read_frames
from headrace.records.types import as_type
from headrace.testing import OneInputHarness, TwoInputHarness, run
from headrace.worker.inputs import decode
from headrace.worker.spark_rows import RowStream, as_message

PAIR = "word string, n bigint"


def in_process(program: str, *arguments: str) -> list[Any]:
    """What a program prints, a JSON value a line; the program runs in a process of its own, which may crash."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- D1: a JSON null reaches pyarrow's reader, which crashes ----------------------------------------------------------

DECODE = """
import json, sys
from headrace.connectors.values import decoder
from headrace.pyflink.datastream.formats.json import JsonRows
from headrace.records.types import as_type

type = as_type("word string, n bigint")
lines = decoder("json", type)
decoders = {
    "values": decoder("json", type).decode,
    "lines": lambda values: lines.decode_lines(b"".join(value + b"\\n" for value in values), len(values)),
    "PyFlink": JsonRows(type, False, False).decode,
    "PyFlink, missing fields are refused": JsonRows(type, True, False).decode,
    "PyFlink, errors are ignored": JsonRows(type, False, True).decode,
}
for texts in json.loads(sys.argv[1]):
    for name, decode in decoders.items():
        batch, corrupt = decode([text.encode() for text in texts])
        print(json.dumps([texts, name, list(map(list, batch.rows())), [one.data.decode() for one in corrupt]]))
"""

GOOD = '{"word":"a","n":1}'


def test_a_json_null_is_a_corrupt_record():
    cases = [["null"], ["null", GOOD], [GOOD, "null"], [GOOD, "null", "{oops"]]
    cases += [[form] for form in (" null ", "null{}", "null1", "\ufeffnull", "null null", "true", "7", '"x"', "[{}]")]
    found = in_process(DECODE, json.dumps(cases))
    assert len(found) == 5 * len(cases)
    for texts, name, rows, corrupt in found:
        assert rows == [["a", 1]] * texts.count(GOOD), name
        assert corrupt == [text for text in texts if text != GOOD], name


def test_a_json_null_is_reported_as_no_object():
    _, (corrupt,) = decoder("json", PAIR).decode([GOOD.encode(), b"null"])
    assert corrupt == CorruptRecord(1, b"null", "it is not a JSON object, which begins with '{' and ends with '}'")


JOB = """
import json, sys
from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileSource
env = StreamExecutionEnvironment.local()
source = FileSource(sys.argv[1], "json", "word string, n bigint", on_corrupt="skip")
with env.from_source(source).execute_and_collect() as records:
    for record in records:
        print(json.dumps(record))
"""


def test_a_job_skips_json_nulls_in_a_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'null\n{"word":"a","n":1}\nnull\n{oops\n{"word":"b","n":2}\n')
    assert in_process(JOB, str(path)) == [["a", 1], ["b", 2]]


# --- D10: records without columns vanish ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Types.TUPLE([]),
        lambda: Types.ROW([]),
        lambda: Types.ROW_NAMED([], []),
        lambda: FlinkTypes.ROW([]),
        lambda: FlinkTypes.TUPLE([]),
        lambda: FlinkTypes.TUPLE([FlinkTypes.TUPLE([]), FlinkTypes.INT()]),
        lambda: as_type("struct<>"),
        lambda: as_type(pa.schema([])),
        lambda: as_type(pa.struct([])),
    ],
)
def test_a_type_without_fields_is_refused(make):
    with pytest.raises(InvalidArgument, match=r"type without fields cannot hold records.*leave the type out"):
        make()


# --- what a restart keeps: keys and state -----------------------------------------------------------------------------

BACKENDS = ("hashmap", "rocksdb")


class Refused(Exception):
    """A record was refused, with Headrace's own error."""


def give(harness: OneInputHarness, *records: Any) -> list[Any]:
    """Give records in one batch; what comes of them, or Refused."""
    try:
        harness.process_elements(records)
    except HeadraceError as error:
        raise Refused(str(error)) from error
    return harness.take()


def taken(harness: OneInputHarness) -> bytes:
    """A snapshot; that it cannot be taken of records that were accepted is a failure."""
    try:
        return harness.snapshot()
    except HeadraceError as error:
        raise AssertionError(f"what was accepted cannot be stored: {error}") from error


def twice(function: Callable[[], Any], records: list[Any], backend: str, **options: Any) -> tuple[list[Any], list[Any]]:
    """What comes of records, and of the same records after a restart from a snapshot; `refused` for both if they are."""
    options["configuration"] = {"state.backend.type": backend}
    try:
        with OneInputHarness(function(), **options) as harness:
            first = give(harness, *records)
            snapshot = taken(harness)
    except Refused:
        return ["refused"], ["refused"]
    with OneInputHarness(function(), **options, restore=snapshot) as harness:
        return first, give(harness, *records)


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield self.count.value()


def itself(record: Any) -> Any:
    return record


# --- D2: keys of a declared tuple or row type -------------------------------------------------------------------------

NOON = dt.datetime(2020, 1, 1, 12)  # noqa: DTZ001 - a time without a zone is the case
NOON_UTC = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
LOSSY_KEYS = {
    "float": (Types.TUPLE([Types.FLOAT(), Types.STRING()]), (0.1, "a")),
    "row of float": ("x float, y string", (0.1, "a")),
    "int in double": (Types.TUPLE([Types.DOUBLE(), Types.STRING()]), (1, "a")),
    "float in bigint": (Types.TUPLE([Types.LONG(), Types.STRING()]), (1.0, "a")),
    "inside a tuple": (
        Types.TUPLE([Types.TUPLE([Types.DOUBLE(), Types.LONG()]), Types.STRING()]),
        ((1, 2), "a"),
    ),
    "inside a list": (Types.TUPLE([Types.LIST(Types.DOUBLE()), Types.STRING()]), ([1, 2], "a")),
    "datetime in date": (Types.TUPLE([Types.SQL_DATE(), Types.STRING()]), (NOON, "a")),
    "aware in naive": (Types.TUPLE([Types.SQL_TIMESTAMP(), Types.STRING()]), (NOON_UTC, "a")),
    "naive in aware": (Types.TUPLE([Types.INSTANT(), Types.STRING()]), (NOON, "a")),
}


@pytest.mark.parametrize("case", LOSSY_KEYS)
def test_tuple_keys_find_their_state_after_a_restart(case):
    key_type, key = LOSSY_KEYS[case]
    first, second = twice(Count, [key], "hashmap", key=itself, key_type=key_type)
    assert (first, second) in [([1], [2]), (["refused"], ["refused"])]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("key_type", "key"),
    [
        (Types.TUPLE([Types.INT(), Types.STRING()]), (2**40, "a")),
        (Types.TUPLE([Types.LONG(), Types.STRING()]), (True, "a")),
    ],
    ids=["too large", "boolean"],
)
def test_tuple_keys_that_do_not_fit_are_refused_at_their_record(backend, key_type, key):
    options = {"key": itself, "key_type": key_type, "configuration": {"state.backend.type": backend}}
    with OneInputHarness(Count(), **options) as harness:
        assert outcome(lambda: give(harness, key)) == "refused"


def outcome(action: Callable[[], Any]) -> Any:
    """What an action returns, or `refused`."""
    try:
        return action()
    except (Refused, HeadraceError):
        return "refused"


class CountToFiles(KeyedProcessFunction):
    """Counts by key, in value state and in a map; the output names the record and both counts."""

    def __init__(self, keys: list[Any], map_key: Any, map_key_type: object) -> None:
        self.keys, self.map_key, self.map_key_type = keys, map_key, map_key_type

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", self.map_key_type, "bigint"))

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        self.map.put(self.map_key, (self.map.get(self.map_key) or 0) + 1)
        yield f"{value} {self.count.value()} {self.map.get(self.map_key)}"


def after_a_canonical_savepoint(cluster: Any, key: Any, key_type: object, map_key: Any, map_key_type: object) -> str:
    """The line of the second record of a job on rocksdb that was stopped with a canonical savepoint after the first."""

    def program(numbers: Any) -> None:
        count = CountToFiles([key], map_key, map_key_type)
        keyed = numbers.key_by(lambda number: key, key_type)
        keyed.process(count).uid("count").sink_to(FileSink(str(cluster.output), "text")).uid("files")

    options = {"state.backend.type": "rocksdb"}
    job = cluster.start(program, options, total=2)
    job.feed(1)
    savepoint = job.stop(cluster.savepoints)
    again = cluster.start_from(savepoint, program, options, total=2)
    again.feed_rest()
    if again.wait() != "FINISHED" or len(cluster.visible()) != 2:
        raise RuntimeError(f"the job cannot go on: {again.error}, {cluster.visible()}")
    return cluster.visible()[1]


def test_tuple_keys_find_their_state_after_a_canonical_savepoint(cluster):
    key_type = Types.TUPLE([Types.FLOAT(), Types.STRING()])
    assert after_a_canonical_savepoint(cluster, (0.1, "a"), key_type, "k", "string") == "1 2 2"


# --- D3: keys of typed map state --------------------------------------------------------------------------------------

D3 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D3 keys of typed map state are not converted: after a restart entries are not found",
)
LOSSY_MAP_KEYS = {
    "int in double": (Types.DOUBLE(), 1),
    "float": (Types.FLOAT(), 0.1),
    "float in bigint": (Types.LONG(), 1.0),
    "datetime in date": (Types.SQL_DATE(), NOON),
    "bytes in string": (Types.STRING(), b"x"),
    "tuple of float": (Types.TUPLE([Types.FLOAT(), Types.STRING()]), (0.1, "a")),
}


class CountInMap(KeyedProcessFunction):
    """Counts the second fields of records in map state; gives the count and the number of entries."""

    def __init__(self, key_type: object) -> None:
        self.key_type = key_type

    def open(self, runtime_context):
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", self.key_type, "bigint"))

    def process_element(self, value, ctx):
        self.map.put(value[1], (self.map.get(value[1]) or 0) + 1)
        yield self.map.get(value[1]), len(list(self.map.items()))


@D3
@pytest.mark.parametrize("case", LOSSY_MAP_KEYS)
def test_keys_of_map_state_find_their_entries_after_a_restart(case):
    key_type, key = LOSSY_MAP_KEYS[case]
    first, second = twice(lambda: CountInMap(key_type), [("a", key)], "hashmap", key=itemgetter(0))
    assert (first, second) in [([(1, 1)], [(2, 1)]), (["refused"], ["refused"])]


@D3
@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_keys_of_map_state_are_one_entry(backend):
    first, second = twice(lambda: CountInMap("double"), [("a", 1), ("a", 1.0)], backend, key=itemgetter(0))
    assert (first, second) == ([(1, 1), (2, 1)], [(3, 1), (4, 1)])


@D3
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("key_type", "key"), [("int", 2**40), ("string", 5)])
def test_keys_of_map_state_that_do_not_fit_are_refused_at_their_record(backend, key_type, key):
    options = {"key": itemgetter(0), "configuration": {"state.backend.type": backend}}
    with OneInputHarness(CountInMap(key_type), **options) as harness:
        assert outcome(lambda: give(harness, ("a", key))) == "refused"


@D3
def test_keys_of_map_state_find_their_entries_after_a_canonical_savepoint(cluster):
    assert after_a_canonical_savepoint(cluster, "k", "string", 1, "double") == "1 2 2"


# --- D4, D5: keys whose class says how they are made ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KeywordKey:
    user: int
    other: str


@dataclass(frozen=True)
class PartlyGivenKey:
    user: int
    other: str = field(default="x", init=False)


@dataclass(frozen=True)
class PreparedKey:
    user: str

    def __post_init__(self):
        object.__setattr__(self, "user", "u:" + self.user)


class NamedKey(NamedTuple):
    user: int
    other: str


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class CountAndRemind(KeyedProcessFunction):
    """Counts by key, and gives key and count at time 50."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        ctx.timer_service().register_event_time_timer(50)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.count.value()


def reminders(key: Any, backend: str, restart: bool) -> Any:
    """The keys and counts that timers see, after a record in each of two lives; `refused` if the key is."""
    options: dict[str, Any] = {"key": itself, "configuration": {"state.backend.type": backend}}
    try:
        harness = OneInputHarness(CountAndRemind(), **options).open()
        give(harness, key)
    except Refused:
        return "refused"
    if restart:
        snapshot = harness.snapshot()
        harness.close()
        harness = OneInputHarness(CountAndRemind(), **options, restore=snapshot)
        try:
            harness.open()
        except Exception as error:  # the defect may be of any class
            raise AssertionError(f"the snapshot cannot be restored: {error!r}") from error
    give(harness, key)
    harness.process_watermark(100)
    taken = harness.take()
    harness.close()
    return taken


D4 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D4 keys that cannot be made from their fields: rocksdb cannot restore them, or loses their timers",
)


@D4
@pytest.mark.parametrize(
    "key",
    [KeywordKey(user=1, other="x"), PartlyGivenKey(1), PreparedKey("q"), Rights.READ | Rights.WRITE],
    ids=["keyword only", "field not given", "changed when made", "flags"],
)
def test_keys_of_unusual_classes_survive_a_restart(key):
    expected = [(key, 2)]
    if reminders(key, "hashmap", restart=True) != expected:
        raise RuntimeError("the other backend does not keep them either")
    assert reminders(key, "rocksdb", restart=True) in (expected, "refused")


D5 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D5 keys of subclasses become their base class: after a restart on rocksdb they differ, or have other state",
)


@D5
@pytest.mark.parametrize(
    "key",
    [
        pd.Timestamp("2020-01-01"),
        pd.Timestamp("2020-01-01", tz="UTC"),
        pd.Timestamp("2020-01-01T00:00:00.000000001"),
        pd.Timedelta("1s"),
    ],
    ids=["timestamp", "aware timestamp", "nanoseconds", "timedelta"],
)
def test_pandas_times_as_keys_survive_a_restart(key):
    before = reminders(key, "rocksdb", restart=False)
    if before != "refused" and [count for _, count in before] != [2]:
        raise RuntimeError(f"the key does not work without a restart either: {before}")
    assert reminders(key, "rocksdb", restart=True) == before


@D5
@pytest.mark.parametrize("key", [Row(user=1, other="x"), NamedKey(1, "x")], ids=["row", "named tuple"])
def test_keys_with_named_fields_have_their_names_after_a_restart(key):
    before = reminders(key, "rocksdb", restart=False)
    if before == "refused":
        return
    if before != [(key, 2)] or before[0][0].user != 1:
        raise RuntimeError(f"the key has no names without a restart either: {before}")
    ((found, count),) = reminders(key, "rocksdb", restart=True)
    assert (getattr(found, "user", None), count) == (1, 2)


# --- D6: values that do not fit their type ----------------------------------------------------------------------------

D6 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D6 declared integers truncate: 1.5 becomes 1, and whether it does depends on the plan and the backend",
)
TRUNCATED = [
    ("bigint", 1.5),
    ("bigint", Decimal("2.9")),
    ("int", -0.7),
    ("smallint", 3.99),
    ("bigint", np.float64(2.7)),
    ("float", 1e300),
    ("array<int>", [1.9]),
    ("map<string,int>", {"a": 1.9}),
    ("a int, b string", (1.9, "x")),
    ("a struct<b:int>", ((1.9,),)),
]


@D6
@pytest.mark.parametrize(("kind", "value"), TRUNCATED, ids=repr)
def test_a_value_that_does_not_fit_is_refused(kind, value):
    assert outcome(lambda: as_type(kind).to_batch([value])) == "refused"


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("bigint", np.int32(5), 5),
        ("bigint", 2.0, 2),
        ("bigint", Decimal(3), 3),
        ("double", 1, 1.0),
        ("bigint", None, None),
    ],
)
def test_a_value_that_fits_is_kept(kind, value, kept):
    rows = as_type(kind).to_rows(as_type(kind).to_batch([value]))
    assert [(type(row), row) for row in rows] == [(type(kept), kept)]


@D6
@pytest.mark.parametrize("rebalanced", [False, True], ids=["chained", "sent"])
def test_a_record_that_does_not_fit_its_declared_type_is_refused(rebalanced):
    def program(env: Any) -> Any:
        halves = env.from_collection([1, 3]).map(lambda n: n * 0.5, output_type="bigint")
        return (halves.rebalance() if rebalanced else halves).map(repr)

    assert outcome(lambda: run(program).records) == "refused"


class Keep(KeyedProcessFunction):
    """Keeps the second field of a record, if it has one, and gives what is kept."""

    def __init__(self, kind: object) -> None:
        self.kind = kind

    def open(self, runtime_context):
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept", self.kind))

    def process_element(self, value, ctx):
        if len(value) > 1:
            self.kept.update(value[1])
        yield repr(self.kept.value())


def kept(kind: str, value: Any, backend: str) -> Any:
    """What state gives back of a value in the same batch, in the next one, and after a restart; or `refused`."""
    options: dict[str, Any] = {"key": itemgetter(0), "configuration": {"state.backend.type": backend}}
    try:
        with OneInputHarness(Keep(kind), **options) as harness:
            found = give(harness, ("k", value), ("k",)) + give(harness, ("k",))
            snapshot = taken(harness)
    except Refused:
        return "refused"
    with OneInputHarness(Keep(kind), **options, restore=snapshot) as harness:
        return found + give(harness, ("k",))


@D6
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "value"), [("bigint", 1.5), ("a bigint, b string", (1.5, "x")), ("float", 1e300)])
def test_a_state_value_that_does_not_fit_is_refused(kind, value, backend):
    assert kept(kind, value, backend) == "refused"


@D6
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 1.0),
        ("double", 1),
        ("double", True),
        ("double", 2**53 + 1),
        ("float", 0.1),
        ("a bigint, b binary", (1.0, b"x")),
        ("a double, b string", (1, "x")),
        ("a double, b string", (1.5, b"x")),
        ("a double, b string", (True, "x")),
    ],
    ids=repr,
)
def test_backends_keep_the_same_value(kind, value):
    (first, second) = (kept(kind, value, backend) for backend in BACKENDS)
    assert first == second
    assert first == "refused" or len(set(first)) == 1, "the value changes"


@D6
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_do_not_fit_are_refused(backend):
    first, _ = twice(Count, [1.2, 1.7], backend, key=itself, key_type="bigint")
    assert first == ["refused"]


# --- D8: records that are corrupt -------------------------------------------------------------------------------------

D8 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D8 corrupt records fail the job: not every error of a decoder is that of the record",
)
DEEP = b'{"n":' + b"[" * 5000 + b"]" * 5000 + b"}"


def decoded(decoder: Decoder, *values: bytes) -> tuple[list[Any], list[bytes]]:
    """The records of some values, and the corrupt values; an error that is not told of a record is a failure."""
    try:
        batch, corrupt = decoder.decode(values)
        return [tuple(row) if isinstance(row, tuple) else row for row in batch.rows()], [one.data for one in corrupt]
    except Exception as error:
        raise AssertionError(f"the decoder raises {error!r}") from error


@D8
@pytest.mark.parametrize(
    ("make", "bad", "good", "row"),
    [
        (lambda: decoder("json", PAIR), b'{"word":"\xff","n":2}', GOOD.encode(), ("a", 1)),
        (lambda: decoder("json"), b"[" * 5000 + b"]" * 5000, b"1", 1),
        (lambda: JsonRows(as_type("n bigint"), False, False), DEEP, b'{"n":1}', (1,)),
        (lambda: JsonRows(as_type("n bigint"), True, False), DEEP, b'{"n":1}', (1,)),
    ],
    ids=["not UTF-8", "deep", "deep, PyFlink", "deep, PyFlink, strict"],
)
def test_values_that_cannot_be_read_are_corrupt_records(make, bad, good, row):
    assert decoded(make(), good, bad, good) == ([row, row], [bad])


@D8
def test_a_job_skips_json_that_is_not_utf8(tmp_path):
    (tmp_path / "a.json").write_bytes(b'{"word":"a","n":1}\n{"word":"\xff","n":2}\n{"word":"c","n":3}\n')
    source = FileSource(str(tmp_path / "a.json"), "json", PAIR, on_corrupt="skip")
    assert outcome(lambda: run(lambda env: env.from_source(source).map(str)).records) == ["a 1", "c 3"]


@D8
def test_a_long_text_in_pyflink_csv_is_read():
    type_info = FlinkTypes.ROW_NAMED(["a"], [FlinkTypes.STRING()])
    csv = CsvRowDeserializationSchema.Builder(type_info).build().decoder()
    text = "x" * 200_000
    batch, corrupt = csv.decode([text.encode()])
    assert [row[0] for row in batch.rows()] == [text], [one.reason for one in corrupt]


# --- D9: NaN and overflow in aggregates -------------------------------------------------------------------------------

D9 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D9 NaN and overflow in aggregates: the result depends on where batches end and on the columns",
)
NAN = math.nan


def running(method: str, type: str, batches: list[list[Any]]) -> Any:
    """The running aggregates of the column `n` by `k`, or `refused`."""

    def build(stream: Any) -> Any:
        return getattr(stream.key_by("k"), method)("n")

    with OneInputHarness.of(build, input_type=type) as harness:
        return outcome(lambda: [row[1] for batch in batches for row in give(harness, *batch)])


@D9
@pytest.mark.parametrize("values", [(2.0, NAN, 1.0), (NAN, 1.0, 2.0), (1.0, NAN, 2.0)], ids=str)
@pytest.mark.parametrize("method", ["min", "max"])
def test_nan_has_the_same_effect_in_any_batches(method, values):
    found = set()
    for type, more in (("k bigint, n double", ()), ("k string, n double", ()), ("k bigint, n double, x bigint", (0,))):
        rows = [("1" if "string" in type else 1, value, *more) for value in values]
        found.add(str(running(method, type, [rows])))
        found.add(str(running(method, type, [[row] for row in rows])))
    assert len(found) == 1


def sum_that_does_not_fit(type: str, batches: int) -> Any:
    """The running sums of the largest number and one."""
    largest = {"bigint": 2**63 - 1, "int": 2**31 - 1, "smallint": 2**15 - 1}[type.split("n ")[1].partition(",")[0]]
    key = "1" if "string" in type else 1
    rows = [(key, value, *((0,) if "x" in type else ())) for value in (largest, 1)]
    return running("sum", type, [rows] if batches == 1 else [[row] for row in rows])


@pytest.mark.parametrize("type", ["k bigint, n bigint, x bigint", "k bigint, n int", "k bigint, n smallint"])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_sum_that_does_not_fit_is_refused(type, batches):
    assert sum_that_does_not_fit(type, batches) == "refused"


@D9
@pytest.mark.parametrize("type", ["k bigint, n bigint", "k string, n bigint"])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_sum_of_two_columns_that_does_not_fit_is_refused(type, batches):
    assert sum_that_does_not_fit(type, batches) == "refused"


@D9
@pytest.mark.parametrize("method", ["sum", "mean"])
def test_a_window_aggregate_that_does_not_fit_is_refused_or_right(method):
    def build(stream: Any) -> Any:
        return getattr(stream.key_by("k").window(TumblingEventTimeWindows.of(10)), method)("n")

    with OneInputHarness.of(build, input_type="k bigint, n bigint") as harness:
        harness.process_elements([(1, 2**63 - 1), (1, 2**63 - 1)], [1, 2])
        found = outcome(lambda: [harness.process_watermark(100), harness.take()][1])
    assert found == "refused" or (method == "mean" and found[0][-1] == float(2**63 - 1))


# --- D11: a record and its neighbours ---------------------------------------------------------------------------------

D11 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D11 decoders join records: what becomes of a record depends on its neighbours in the batch",
)


def alone(decoder: Decoder, values: list[bytes]) -> tuple[list[Any], list[bytes]]:
    """What each of some values gives by itself."""
    found = [decoded(decoder, value) for value in values]
    return [row for rows, _ in found for row in rows], [value for _, bad in found for value in bad]


@pytest.mark.parametrize(
    "values",
    [
        [b'{"n":1}{"n":2}', b""],
        [b'{"n":', b'1}{"n":2}'],
        [b'{"n":7', b'}{"n":8}', b'{"n":9}'],
        [b'{"n":1,"m":', b'{"q":1}}{"n":2}'],
    ],
    ids=lambda values: b" | ".join(values).decode(),
)
def test_a_json_record_is_read_as_it_is_alone(values):
    json_decoder = decoder("json", "n bigint")
    assert decoded(json_decoder, *values) == alone(json_decoder, values)


@D11
@pytest.mark.parametrize(
    "values",
    [[b"a,1\nb,2", b""], [b'"a', b'b",2\nc,3']],
    ids=["two lines and none", "a quote over two records"],
)
def test_a_csv_record_is_read_as_it_is_alone(values):
    csv = decoder("csv", "a string, n bigint")
    assert decoded(csv, *values) == alone(csv, values)


@D11
@pytest.mark.parametrize("value", [b'{"x":NaN}', b'\xef\xbb\xbf{"x":1.5}'], ids=["NaN", "byte order mark"])
def test_a_pyflink_json_record_is_read_as_beside_any_other(value):
    rows = JsonRows(as_type("x double"), False, False)
    beside_plain = decoded(rows, b'{"x":1.0}', value)[1]
    beside_text = decoded(rows, b'{"x":"1.0"}', value)[1]
    assert beside_plain == beside_text


@D11
def test_a_line_end_inside_a_json_string_is_corrupt():
    assert decoded(decoder("json", PAIR), b'{"word":"a\nb","n":1}') == ([], [b'{"word":"a\nb","n":1}'])


# --- D12 to D20: wrong in a corner, or a late error -------------------------------------------------------------------


class CountBoth(CoProcessFunction):
    """Counts the records of both sides by key."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))

    def _count(self):
        self.count.update(self.count.value() + 1)
        return self.count.value()

    def process_element1(self, value, ctx):
        yield self._count()

    def process_element2(self, value, ctx):
        yield self._count()


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D12 connect() of keys with different types is accepted: equal keys of both sides never meet",
)
@pytest.mark.parametrize(
    ("types", "second", "key"),
    [
        (("k float, a string", "k double, b string"), "k", 0.1),
        (("k float, a string", None), itemgetter(0), 0.1),
        (("k bigint, a string", "k double, b string"), "k", 5),
        (("k string, a string", "k binary, b string"), "k", "x"),
    ],
    ids=["float and double", "float and function", "bigint and double", "string and binary"],
)
def test_connected_keys_have_one_type_or_meet(types, second, key):
    def found() -> list[int]:
        with TwoInputHarness(CountBoth(), keys=("k", second), input_types=types) as harness:
            harness.process_element1((key, "a"))
            harness.process_element2((key.encode() if types[1] == "k binary, b string" else key, "b"))
            return harness.take()

    assert outcome(found) in ("refused", [1, 2])


def test_connected_keys_of_int_and_bigint_are_refused():
    with pytest.raises(GraphError):
        TwoInputHarness(CountBoth(), keys=("k", "k"), input_types=("k int, a string", "k bigint, b string")).open()


def add_in_place(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    first["n"] += second["n"]
    return first


class OneObject(MapFunction):
    """Gives one object again and again."""

    def open(self, runtime_context):
        self.total = {"n": 0}

    def map(self, value):
        self.total["n"] += value["n"]
        return self.total


def totals(make: Callable[[], OneInputHarness], batches: list[list[int]]) -> list[int]:
    with make() as harness:
        found = []
        for numbers in batches:
            harness.process_elements([{"k": 1, "n": n} for n in numbers])
            found += harness.take()
        return [record["n"] for record in found]


@pytest.mark.parametrize(
    "make",
    [
        lambda: OneInputHarness(add_in_place, method="reduce", key=itemgetter("k")),
        lambda: OneInputHarness(OneObject()),
        lambda: OneInputHarness(OneObject(), key=itemgetter("k")),
    ],
    ids=["reduce", "map", "keyed map"],
)
def test_an_object_that_is_changed_after_it_was_emitted_was_copied(make):
    assert totals(make, [[1], [10], [100]]) == totals(make, [[1, 10, 100]]) == [1, 11, 111]


def csv_rows(type_info: Any, *lines: bytes, **builder: Any) -> tuple[list[Any], list[bytes]]:
    """What PyFlink's CSV reads of one column."""
    row = FlinkTypes.ROW_NAMED(["a"], [type_info])
    return decoded(CsvRowDeserializationSchema.Builder(row).build().decoder(), *lines)


D15 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D15 PyFlink's CSV reads other values than were written: an offset is dropped, 1_000 is a number",
)


@D15
def test_the_offset_of_a_time_in_csv_counts_or_is_refused():
    line = b"2020-01-01 00:00:00+05:00"
    rows, corrupt = csv_rows(FlinkTypes.SQL_TIMESTAMP(), line)
    assert corrupt == [line] or rows == [(dt.datetime(2019, 12, 31, 19),)]  # noqa: DTZ001 - in UTC, as JSON


@D15
def test_underscores_in_a_number_in_csv_are_corrupt():
    assert csv_rows(FlinkTypes.INT(), b"1_000") == ([], [b"1_000"])


def read_back(text: str) -> Any:
    """What PyFlink's CSV reads of a text that it has written with an escape character and without quotes."""
    row = FlinkTypes.ROW_NAMED(["a", "b"], [FlinkTypes.STRING(), FlinkTypes.STRING()])
    write = CsvRowSerializationSchema.Builder(row).disable_quote_character().set_escape_character("\\").build()
    read = CsvRowDeserializationSchema.Builder(row).set_escape_character("\\").build()
    rows, corrupt = decoded(read.decoder(), write.serialize(FlinkRow(text, "c")))
    return corrupt or list(rows[0])


@pytest.mark.parametrize("text", ["a,b", 'a"b'])
def test_texts_that_are_written_without_quotes_are_read_back(text):
    assert read_back(text) == [text, "c"]


@D15
@pytest.mark.parametrize("text", ["a\\b", "\\,"])
def test_escapes_in_texts_that_are_written_without_quotes_are_read_back(text):
    assert read_back(text) == [text, "c"]


D16 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D16 types that no worker can read are accepted: the error comes in the next task, or rows come as dicts",
)
INT_AND_TEXT = pa.struct([("a", pa.int64()), ("b", pa.string())])


@D16
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.dictionary(pa.int32(), pa.string()), "x"),
        (pa.schema([("s", pa.struct([("a", pa.int64()), ("a", pa.int64())]))]), ((1, 2),)),
        (pa.large_list(INT_AND_TEXT), [(1, "a")]),
        (pa.list_(INT_AND_TEXT, 1), [(1, "a")]),
    ],
    ids=["dictionary", "nested names twice", "large list of rows", "fixed list of rows"],
)
def test_a_type_is_refused_or_gives_back_its_values(kind, value):
    def found() -> Any:
        type = as_type(kind)
        with OneInputHarness(lambda n: value, method="map", output_type=type) as harness:
            harness.process_element(1)
            return harness.take()

    try:
        result = outcome(found)
    except Exception as error:
        raise AssertionError(f"the type is accepted, and then: {error!r}") from error
    assert result in ("refused", [value])


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D17 key_by of a column that cannot be a key is refused by the worker, at the first record",
)
@pytest.mark.parametrize(
    ("kind", "value"),
    [("date", NOON.date()), ("timestamp", NOON_UTC), ("decimal(10,2)", Decimal("1.50"))],
)
def test_a_column_is_a_key_or_is_refused_when_the_program_is_built(kind, value):
    def build(stream: Any) -> Any:
        return stream.key_by("k").process(Count())

    try:
        harness = OneInputHarness.of(build, input_type=f"k {kind}, x int").open()
    except (GraphError, InvalidArgument):
        return
    with harness:
        assert outcome(lambda: give(harness, (value, 1), (value, 1))) == [1, 2]


D18 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D18 unusual numbers and times as keys: a decimal NaN never finds its state, others raise OverflowError",
)
EARLY = dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@D18
@pytest.mark.parametrize(
    ("backend", "key"),
    [("hashmap", Decimal("NaN")), ("rocksdb", Decimal("1E+1000001")), ("rocksdb", EARLY)],
    ids=["NaN", "large decimal", "early time"],
)
def test_unusual_numbers_and_times_are_keys_or_refused(backend, key):
    try:
        found = twice(Count, [key, key], backend, key=itself)
    except Exception as error:
        raise AssertionError(repr(error)) from error
    assert found in (([1, 2], [3, 4]), (["refused"], ["refused"]))
    if found[0] == ["refused"]:
        with OneInputHarness(Count(), key=itself, configuration={"state.backend.type": backend}) as harness:
            error = refusal(lambda: give(harness, key))
        assert "OverflowError" not in error
        assert "decimal.Overflow" not in error


def refusal(action: Callable[[], Any]) -> str:
    """The text of the error with which an action is refused."""
    with pytest.raises(Refused) as caught:
        action()
    return str(caught.value)


D19 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D19 sinks write lines that are read back as other records",
)


@D19
def test_nulls_in_a_single_csv_column_are_read_back():
    type = as_type("a string")
    lines = encoder("csv", type)(Batch.of_rows([("x",), (None,), ("y",)], type))
    batch, _ = decoder("csv", type).decode_lines(b"".join(line + b"\n" for line in lines), len(lines))
    assert len(batch) == 3


@D19
def test_a_line_end_in_a_text_is_refused_or_kept():
    found = outcome(lambda: encoder("text", "string")(Batch.of_rows(["a\nb"], as_type("string"))))
    assert found == "refused" or b"\n" not in found[0]


@D19
def test_nan_is_refused_or_kept_in_json():
    type = as_type("x double")
    found = outcome(lambda: encoder("json", type)(Batch.of_rows([(NAN,)], type)))
    assert found == "refused" or b"null" not in found[0]


# --- D20: frames whose bytes were damaged -----------------------------------------------------------------------------


def damaged(data: bytes, random: Random) -> bytes:
    """A copy of some bytes with a few changes: other, missing and new bytes, and large numbers."""
    found = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(found)) if found else 0
        match random.randrange(4):
            case 0 if found:
                found[at] ^= 1 << random.randrange(8)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = random.randbytes(random.randrange(1, 9))
            case _:
                number = random.choice([0, 2**63 - 1, 2**64 - 1, 2**31 - 1, 2**40])
                found[at : at + 8] = number.to_bytes(8, "little")[: len(found[at : at + 8])]
    return bytes(found)


def read_rows_of_spark(data: bytes) -> None:
    for row in RowStream().load_stream(io.BytesIO(data)):
        bytes(row)


def stream_of_spark() -> bytes:
    """Rows as Spark sends them to a worker."""
    out = io.BytesIO()
    RowStream().dump_stream([as_message([(1, [b"abc", b"defg"]), (2, [b"x" * 100])])], out)
    return out.getvalue()[4:]  # behind pyspark's number that says that a stream begins


D20 = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="D20 damaged frames raise OSError or OverflowError in place of ValueError",
)


def failure_of(read: Callable[[], Any]) -> Exception | None:
    """The error of reading damaged bytes, if it is none that the reader expects."""
    try:
        read()
    except (ValueError, EOFError, pa.ArrowException):
        return None
    except Exception as error:
        return error
    return None


@D20
def test_dates_that_no_python_date_can_hold_are_a_value_error():
    kind = as_type("d date")
    dates = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    batch = pa.RecordBatch.from_arrays([dates], schema=kind.schema)
    (frame,) = read_frames(b"".join(pack(FrameKind.ARROW, 3, 1, bytes(batch.serialize()))))
    assert failure_of(lambda: decode(frame, kind).rows()) is None


@D20
def test_damaged_rows_of_spark_are_read_or_a_value_error():
    whole, random = stream_of_spark(), Random(1)
    read_rows_of_spark(whole)
    assert [failure_of(lambda: read_rows_of_spark(damaged(whole, random))) for _ in range(500)] == [None] * 500


@D20
def test_damaged_frames_are_read_or_a_value_error():
    kind = as_type("k bigint, s string, x double, b binary, l array<int>")
    rows = [(n, f"t{n}", float(n), b"z" * n, [n] * 3) for n in range(5)]
    whole, random = b"".join(pack(FrameKind.ARROW, 3, 1, bytes(kind.to_batch(rows).serialize()))), Random(1)
    for _ in range(500):
        data = damaged(whole, random)
        assert failure_of(lambda data=data: [decode(frame, kind).rows() for frame in read_frames(data)]) is None
