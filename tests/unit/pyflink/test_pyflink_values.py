"""Values as PyFlink has them: rows, types, keys, and what functions are given."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import pickle

import pytest

from headrace.errors import InvalidArgument, UserCodeError
from headrace.launch.checks import is_batch
from headrace.pyflink.common import Instant, Row, RowKind, Time, Types, WatermarkStrategy
from headrace.pyflink.common.typeinfo import RowTypeInfo, TupleTypeInfo, fitted
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import (
    CoMapFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WindowFunction,
)
from headrace.pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor
from headrace.pyflink.datastream.window import TumblingEventTimeWindows
from headrace.records.types import PICKLED, TypeMismatch


@pytest.fixture
def env():
    return StreamExecutionEnvironment.local()


# --- rows ---------------------------------------------------------------------------------------------------------------


def test_a_row_can_be_changed_by_position_and_by_name():
    row = Row(word="a", n=1)
    row["n"] += 1
    row[0] = "b"
    assert (row.word, row.n, list(row), len(row)) == ("b", 2, ["b", 2], 2)
    assert row[-1:] == [2]
    assert repr(row) == "Row(word='b', n=2)"


def test_contains_looks_at_names_and_without_names_at_values():
    assert "word" in Row(word="a")
    assert "a" not in Row(word="a")
    assert "a" in Row("a")


def test_equality():
    assert Row(a=1, b=2) == Row(b=2, a=1)
    assert Row(a=1) != Row(b=1)
    assert Row(1) != Row(a=1)
    assert Row(1, 2) == Row(1, 2)
    assert Row(1, 2) != (1, 2)
    assert Row(1, 2) != [1, 2]
    assert Row.of_kind(RowKind.DELETE, 1) != Row(1)
    assert hash(Row(a=1)) == hash(Row(b=1)) == hash((1,))


def test_a_row_of_names_makes_rows():
    person = Row("name", "age")
    assert person("Alice", 11) == Row(name="Alice", age=11)
    assert repr(person) == "<Row('name', 'age')>"
    with pytest.raises(InvalidArgument, match="has 2 fields, got 3 values"):
        person(1, 2, 3)


def test_the_other_methods_of_a_row():
    row = Row(1, Row(a=2))
    row.set_field_names(["x", "y"])
    assert row.as_dict(recursive=True) == {"x": 1, "y": {"a": 2}}
    assert row.get_fields_by_names(["y", "x"]) == [Row(a=2), 1]
    row.set_row_kind(RowKind.UPDATE_AFTER)
    assert (row.get_row_kind(), str(row.get_row_kind())) == (RowKind.UPDATE_AFTER, "+U")
    assert [str(kind) for kind in RowKind] == ["+I", "-U", "+U", "-D"]
    with pytest.raises(TypeError, match="without field names"):
        Row(1).as_dict()
    with pytest.raises(InvalidArgument, match="no field z"):
        row.get_fields_by_names(["z"])
    with pytest.raises(InvalidArgument, match="positional or named"):
        Row(1, a=2)
    for wrong, error in (
        (lambda: row.z, AttributeError),
        (lambda: row["z"], ValueError),
        (lambda: Row(1)["z"], KeyError),
    ):
        with pytest.raises(error):
            wrong()


@pytest.mark.parametrize("row", [Row("a", 1), Row(word="a", n=[1]), Row.of_kind(RowKind.DELETE, a=Row(b=1))])
def test_copies_and_pickles(row):
    for made in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row), row.copy()):
        assert made == row
        assert made is not row
    assert b"headrace.records" not in pickle.dumps(row)


# --- types --------------------------------------------------------------------------------------------------------------

ALL_TYPES = [
    (
        Types.BIG_DEC(),
        [decimal.Decimal("1.50"), decimal.Decimal("1000000000000000000.05999999999999999899999999999"), None],
    ),
    (Types.BIG_INT(), [1 << 200, -(1 << 90), 0, None]),
    (Types.INSTANT(), [Instant(1, 2), Instant.of_epoch_milli(-1), None]),
    (Types.TUPLE([Types.INT(), Types.TUPLE([Types.STRING(), Types.BIG_DEC()])]), [(1, ("a", decimal.Decimal("2.0")))]),
    (Types.ROW([Types.INT(), Types.ROW_NAMED(["x"], [Types.INT()])]), [Row(f0=1, f1=Row(x=2))]),
    (
        Types.ROW_NAMED(["a", "b"], [Types.PICKLED_BYTE_ARRAY(), Types.INT()]),
        [Row(a={"any": object}, b=1), Row(a=None, b=2)],
    ),
    (Types.LIST(Types.TUPLE([Types.INT(), Types.INT()])), [[(1, 2)], []]),
    (Types.MAP(Types.STRING(), Types.ROW([Types.INT()])), [{"a": Row(f0=1)}]),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"ab"]),
    (Types.BASIC_ARRAY(Types.BIG_DEC()), [[decimal.Decimal(1), None]]),
    (Types.SQL_TIMESTAMP(), [dt.datetime(2020, 1, 2, 3, 4, 5, 6)]),  # noqa: DTZ001
]


@pytest.mark.parametrize(("kind", "values"), ALL_TYPES, ids=lambda value: str(value)[:40])
def test_values_come_back_as_they_were(kind, values):
    assert kind.to_rows(kind.to_batch(values)) == values
    again = pickle.loads(pickle.dumps(kind))
    assert again == kind
    assert again.to_rows(kind.to_batch(values)) == values


@pytest.mark.parametrize(("kind", "values"), ALL_TYPES, ids=lambda value: str(value)[:40])
def test_values_travel_through_a_job(env, kind, values):
    values = [value for value in values if value is not None]
    env.set_parallelism(2)
    found = env.from_collection(values, kind).rebalance().map(lambda value: value, kind).execute_and_collect()
    assert sorted(map(repr, found)) == sorted(map(repr, values))


def test_types_of_different_forms_are_different():
    assert Types.BIG_DEC() != Types.STRING()
    assert Types.BIG_DEC() != Types.BIG_INT()
    assert Types.ROW([Types.INT()]) == RowTypeInfo([Types.INT()])
    assert Types.TUPLE([Types.INT()]) == TupleTypeInfo([Types.INT()])
    assert repr(Types.BIG_DEC()) == "decimal"
    assert Types.ROW_NAMED(["a", "b"], [Types.STRING(), PICKLED]).get_field_types() == [Types.STRING(), PICKLED]
    assert Types.ROW([Types.INT()]).need_conversion() is False


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Types.BIG_DEC(), "1"), (Types.BIG_DEC(), True), (Types.BIG_INT(), 1.5), (Types.INSTANT(), 1)],
    ids=str,
)
def test_values_that_do_not_fit(kind, value):
    with pytest.raises(TypeMismatch, match=f"expected {kind!r}, got"):
        kind.to_batch([value])


def test_elements_of_a_collection_are_converted_as_flink_does(env):
    kind = Types.ROW_NAMED(["n", "word", "f"], [Types.INT(), Types.STRING(), Types.DOUBLE()])
    given = [{"n": 2**31, "word": 7}, (1, "a", 2), Row(word="b", n=3, f=1.0)]
    assert fitted(given, kind) == [
        Row(n=-(2**31), word="7", f=None),
        Row(n=1, word="a", f=2.0),
        Row(n=3, word="b", f=1.0),
    ]
    assert list(env.from_collection(given, kind).execute_and_collect()) == fitted(given, kind)
    assert list(env.from_collection([70_000], Types.SHORT()).execute_and_collect()) == [4464]
    with pytest.raises(TypeMismatch):
        env.from_collection(["a"], Types.INT())


def test_results_of_functions_become_rows(env):
    kind = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.INT()])
    ds = env.from_collection([1]).flat_map(lambda n: [(n, 2), Row(n, 2), Row(b=2, a=n), [n, 2]], kind)
    assert list(ds.execute_and_collect()) == [Row(a=1, b=2)] * 4


def test_a_row_is_changed_in_place_between_operators(env):
    def add(row):
        row["n"] += 1
        return row

    kind = Types.ROW_NAMED(["n"], [Types.INT()])
    assert list(env.from_collection([(1,)], kind).map(add, kind).map(add, kind).execute_and_collect()) == [Row(n=3)]


def test_rows_of_every_source_can_be_changed(env, tmp_path):
    from headrace.connectors.files import FileSource

    (tmp_path / "a.json").write_text('{"word": "a", "inner": {"n": 1}, "list": [{"n": 2}]}\n')
    text = "word string, inner struct<n: int>, list array<struct<n: int>>"
    kind = Types.ROW_NAMED(
        ["word", "inner", "list"],
        [Types.STRING(), Types.ROW_NAMED(["n"], [Types.INT()]), Types.LIST(Types.ROW_NAMED(["n"], [Types.INT()]))],
    )
    expected = Row(word="a", inner=Row(n=1), list=[Row(n=2)])
    ds = env.from_source(FileSource(str(tmp_path), "json", text), None, "files", kind)
    assert ds.get_type() == kind
    assert list(ds.execute_and_collect()) == [expected]
    assert list(env.from_collection([("a", (1,), [(2,)])], text).map(lambda row: row).execute_and_collect()) == [
        expected
    ]
    with pytest.raises(InvalidArgument, match="the source has the type"):
        env.from_source(FileSource(str(tmp_path), "json", text), None, "files", Types.ROW([Types.STRING()]))


# --- functions ----------------------------------------------------------------------------------------------------------


class OnlyFirst(CoMapFunction):
    def map1(self, value):
        return value if value > 1 else None

    def map2(self, value):
        return None


@pytest.mark.parametrize("keyed", [False, True])
def test_none_of_a_co_map_is_not_emitted(env, keyed):
    first, second = env.from_collection([1, 2, 3]), env.from_collection([1])
    connected = first.connect(second)
    if keyed:
        connected = connected.key_by(lambda n: n, lambda n: n)
    assert sorted(connected.map(OnlyFirst()).execute_and_collect()) == [2, 3]


def test_a_keyed_stream_connected_with_one_that_is_not(env):
    connected = env.from_collection([1, 2, 3]).key_by(lambda n: n).connect(ds=env.from_collection([1]))
    assert sorted(connected.map(OnlyFirst()).execute_and_collect()) == [2, 3]


def test_the_timestamp_of_a_record_without_one(env):
    class Stamp(ProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.timestamp() + 1

    class KeyedStamp(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.timestamp() + 1

    ds = env.from_collection([1])
    assert list(ds.process(Stamp()).execute_and_collect()) == [1 - 2**63]
    assert list(ds.key_by(lambda n: n).process(KeyedStamp()).execute_and_collect()) == [1 - 2**63]


def test_map_state_with_none(env):
    class Puts(KeyedProcessFunction):
        def open(self, runtime_context):
            self.map = runtime_context.get_map_state(MapStateDescriptor("m", Types.STRING(), Types.INT()))

        def process_element(self, value, ctx):
            self.map.put("k", None)
            yield self.map.contains("k"), "k" in self.map, list(self.map.items())

    found = env.from_collection([1]).key_by(lambda n: n).process(Puts()).execute_and_collect()
    assert list(found) == [(False, False, [("k", None)])]


def test_a_reduce_function_with_state(env):
    class Counting(ReduceFunction[tuple]):
        def open(self, runtime_context):
            self.calls = runtime_context.get_state(ValueStateDescriptor("calls", Types.INT()))

        def reduce(self, value1, value2):
            self.calls.update((self.calls.value() or 0) + 1)
            return value1[0], value1[1] + value2[1], self.calls.value()

    data = [("a", 1), ("b", 10), ("a", 2), ("b", 20), ("a", 3)]
    found = env.from_collection(data).key_by(lambda pair: pair[0]).reduce(Counting()).execute_and_collect()
    assert sorted(found, key=repr) == [("a", 1), ("a", 3, 1), ("a", 6, 2), ("b", 10), ("b", 30, 1)]


def test_functions_can_be_subscripted():
    from headrace.pyflink.datastream import functions, window

    for name in functions.__all__:
        if name.endswith("Function"):
            kind = getattr(functions, name)
            assert kind[int, str] is kind
    assert window.Trigger[tuple, window.TimeWindow] is window.Trigger
    assert window.MergingWindowAssigner[tuple, window.TimeWindow] is window.MergingWindowAssigner
    assert functions.ProcessWindowFunction.Context[window.TimeWindow] is functions.ProcessWindowFunction.Context


@pytest.mark.parametrize("keyed", [False, True])
def test_side_outputs_of_map_and_flat_map(env, keyed):
    tag = OutputTag("odd", Types.INT())
    assert (tag.tag_id, tag.type_info) == ("odd", Types.INT())
    ds = env.from_collection([1, 2, 3])
    ds = ds.key_by(lambda n: n) if keyed else ds
    mapped = ds.map(lambda n: (tag, n) if n % 2 else n)
    assert sorted(mapped.get_side_output(tag).execute_and_collect()) == [1, 3]
    flat = ds.flat_map(lambda n: [n, (tag, -n)])
    both = flat.union(flat.get_side_output(OutputTag("odd")))
    assert sorted(both.execute_and_collect()) == [-3, -2, -1, 1, 2, 3]
    assert list(ds.filter(bool).get_side_output(tag).execute_and_collect()) == []


# --- streams ------------------------------------------------------------------------------------------------------------


def test_a_single_source_is_collected_in_order(env):
    env.set_parallelism(4)
    assert list(env.from_collection(list(range(1000))).execute_and_collect()) == list(range(1000))
    assert env.from_collection(["a", "b", "c"]).execute_and_collect(limit=2) == ["a", "b"]


def test_a_keyed_stream_is_collected_with_its_keys(env):
    env.set_parallelism(2)
    data = [("a", 1), ("b", 2), ("a", 3)]
    ds = env.from_collection(data, Types.TUPLE([Types.STRING(), Types.INT()]))
    with ds.key_by(lambda pair: pair[0], Types.STRING()).execute_and_collect() as results:
        assert list(results) == [Row(f0=pair[0], f1=pair) for pair in data]
    with ds.key_by(lambda pair: float(pair[1]), Types.INT()).execute_and_collect() as results:
        assert [type(row[0]) for row in results] == [int] * 3


def test_min_by_max_by_and_project(env):
    data = [("a", 3, 0), ("a", 1, 1), ("a", 1, 2), ("b", 5, 3)]
    ds = env.from_collection(data, Types.TUPLE([Types.STRING(), Types.INT(), Types.INT()])).key_by(lambda t: t[0])
    assert list(ds.min_by(1).execute_and_collect()) == [data[0], data[1], data[1], data[3]]
    assert list(ds.max_by(1).execute_and_collect()) == [data[0], data[0], data[0], data[3]]
    named = Types.ROW_NAMED(["k", "v"], [Types.STRING(), Types.INT()])
    rows = env.from_collection([("a", 2), ("a", 1)], named).key_by(lambda row: row.k)
    assert list(rows.min_by("v").execute_and_collect()) == [Row(k="a", v=2), Row(k="a", v=1)]
    assert list(rows.sum("v").execute_and_collect()) == [Row(k="a", v=2), Row(k="a", v=3)]
    assert list(env.from_collection([3, 1]).key_by(lambda n: 0).min_by().execute_and_collect()) == [3, 1]
    pairs = env.from_collection(data, Types.TUPLE([Types.STRING(), Types.INT(), Types.INT()]))
    assert list(pairs.project(2, 0).execute_and_collect()) == [(0, "a"), (1, "a"), (2, "a"), (3, "b")]
    assert list(pairs.project(1).execute_and_collect()) == [(3,), (1,), (1,), (5,)]


def test_sum_of_untyped_rows_and_lists(env):
    rows = env.from_collection([Row(k="a", v=1), Row(k="a", v=2)]).key_by(lambda row: row.k)
    assert list(rows.sum(1).execute_and_collect()) == [Row(k="a", v=1), Row(k="a", v=3)]
    lists = env.from_collection([["a", 1], ["a", 2]]).key_by(lambda row: row[0])
    assert list(lists.sum(1).execute_and_collect()) == [["a", 1], ["a", 3]]


@pytest.mark.parametrize(
    "key",
    [
        None,
        dt.date(2024, 1, 1),
        decimal.Decimal("1.5"),
        [1, 2],
        {"a": 1},
        frozenset([1]),
        ("a", None),
        1 << 90,
        Row(a=1),
        RowKind.DELETE,
    ],
    ids=repr,
)
def test_keys_of_every_type(env, key):
    class Keys(KeyedProcessFunction):
        def open(self, runtime_context):
            self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

        def process_element(self, value, ctx):
            self.count.update((self.count.value() or 0) + 1)
            yield ctx.get_current_key(), self.count.value()

    env.set_parallelism(2)
    found = list(env.from_collection([1, 2]).key_by(lambda _: key).process(Keys()).execute_and_collect())
    assert found == [(key, 1), (key, 2)]


# --- batch --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.AUTOMATIC])
def test_batch_gives_the_last_result_of_each_key(env, mode):
    env.set_parallelism(2).set_runtime_mode(mode)
    ds = env.from_collection([("a", 1), ("b", 5), ("a", 2)], Types.TUPLE([Types.STRING(), Types.INT()]))
    keyed = ds.key_by(lambda pair: pair[0])
    assert sorted(keyed.sum(1).execute_and_collect()) == [("a", 3), ("b", 5)]
    assert sorted(keyed.reduce(lambda x, y: (x[0], max(x[1], y[1]))).execute_and_collect()) == [("a", 2), ("b", 5)]
    assert sorted(keyed.min_by(1).execute_and_collect()) == [("a", 1), ("b", 5)]
    assert sorted(keyed.count().execute_and_collect()) == [("a", 2), ("b", 1)]
    twice = keyed.sum(1).key_by(lambda pair: 0).sum(1).map(lambda pair: pair[1])
    assert list(twice.execute_and_collect()) == [8]
    by_column = ds.key_by(0).sum(1)
    assert sorted(by_column.execute_and_collect()) == [("a", 3), ("b", 5)]


def test_batch_refuses_a_source_that_never_ends(env):
    from headrace.errors import ConfigError

    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    ds = env.from_datagen(lambda n: n)
    with pytest.raises(ConfigError, match=r"runtime-mode is BATCH, and the source 'DataGen Source' \(.*\) never ends"):
        ds.map(str).execute_and_collect()


def test_automatic_streams_if_a_source_may_not_end(env):
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    one = env.from_collection([("a", 1), ("a", 2)])
    endless = env.from_datagen(lambda n: ("a", 1), rate=1)
    assert not is_batch(env._graph(None)[0], env.get_configuration())
    assert one is not endless


# --- times and names ----------------------------------------------------------------------------------------------------


class HalfPast(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value / 2)
        ctx.timer_service().register_event_time_timer(99.5)
        ctx.timer_service().delete_event_time_timer(99.9)

    def on_timer(self, timestamp, ctx):
        yield timestamp


class AsFloat(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value / 2


def test_times_may_be_floats_as_in_pyflink(env):
    keyed = env.from_collection([11]).key_by(lambda value: value)
    assert list(keyed.process(HalfPast()).execute_and_collect()) == [5]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(AsFloat())
    windows = env.from_collection([3, 9]).assign_timestamps_and_watermarks(strategy).key_by(lambda _: 0)
    ends = windows.window(TumblingEventTimeWindows.of(Time.milliseconds(2))).apply(EndOfWindow())
    assert list(ends.execute_and_collect()) == [2, 6]


class EndOfWindow(WindowFunction):
    def apply(self, key, window, inputs):
        return [window.end]


@pytest.mark.parametrize("time", [float("nan"), float("inf")])
def test_a_time_that_is_no_number(env, time):
    class At(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(time)

    stream = env.from_collection([1]).key_by(lambda value: value).process(At())
    with pytest.raises(UserCodeError, match="a timer's time is an int of 64 bits in milliseconds, got"):
        list(stream.execute_and_collect())


def test_a_row_with_other_names_than_those_of_its_type(env):
    """PyFlink refuses it, too: its fields would go to the wrong columns."""
    kind = Types.ROW_NAMED(["y", "x"], [Types.INT(), Types.INT()])
    swapped = env.from_collection([1]).map(lambda n: Row(x=n, y=n + 1), kind)
    assert [row.as_dict() for row in swapped.execute_and_collect()] == [{"y": 2, "x": 1}]
    by_position = env.from_collection([1]).map(lambda n: Row(f0=n, f1=n + 1), kind)
    assert [row.as_dict() for row in by_position.execute_and_collect()] == [{"y": 1, "x": 2}]
    with pytest.raises(UserCodeError, match=r"has the fields x, z, and the type has y, x"):
        list(env.from_collection([1]).map(lambda n: Row(x=n, z=n + 1), kind).execute_and_collect())
