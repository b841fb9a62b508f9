"""Operators on keyed streams: running results as a plain dict would give them, whatever the batches and the types."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    CoFlatMapFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ReduceFunction,
    Row,
    StreamExecutionEnvironment,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)
from headrace.errors import UserCodeError
from headrace.testing import OneInputHarness, TwoInputHarness, run

# --- running aggregations -------------------------------------------------------------------------------------------

COMBINE = {"sum": lambda a, b: a + b, "min": min, "max": max}
KEYS = {
    "string": st.sampled_from(["a", "b", "", "ä"]),
    "bigint": st.sampled_from([0, -1, 1 << 40]),
    "int": st.sampled_from([0, -1, 5]),
    "double": st.sampled_from([0.0, -0.0, 1.5]),
    "boolean": st.booleans(),
    "binary": st.sampled_from([b"", b"x"]),
}
VALUES = {
    "bigint": st.integers(-(1 << 40), 1 << 40),
    "int": st.integers(-1000, 1000),
    "double": st.integers(-1000, 1000).map(float),  # whole numbers: sums are exact in any order
    "string": st.text("abc", max_size=2),
}


@st.composite
def _cases(draw, layouts=("key value", "value key", "key value more")):
    key_type, value_type = draw(st.sampled_from(sorted(KEYS))), draw(st.sampled_from(sorted(VALUES)))
    layout = draw(st.sampled_from(layouts))
    pairs = draw(st.lists(st.tuples(KEYS[key_type], VALUES[value_type]), max_size=25))
    typed = draw(st.booleans())
    names = {"key": f"k {key_type}", "value": f"v {value_type}", "more": "m string"}
    ddl = ", ".join(names[part] for part in layout.split())
    rows = [tuple({"key": k, "value": v, "more": f"m{i}"}[p] for p in layout.split()) for i, (k, v) in enumerate(pairs)]
    return ddl if typed else None, rows, layout.split().index("key"), layout.split().index("value")


def plain(key):
    """-0.0 and 0.0 are one key."""
    return key + 0.0 if isinstance(key, float) else key


def running(rows, key_at, value_at, combine):
    """One running result for each record: the first record of the key, with the combined value."""
    state, out = {}, []
    for row in rows:
        key = plain(row[key_at])
        old = state.get(key)
        value = row[value_at] if old is None else combine(old[value_at], row[value_at])
        first = row if old is None else old
        state[key] = tuple(value if i == value_at else field for i, field in enumerate(first))
        out.append(state[key])
    return out


def by_key(rows, key_at):
    found = collections.defaultdict(list)
    for row in rows:
        found[plain(row[key_at])].append(tuple(map(plain, row)))
    return found


@given(_cases(), st.sampled_from(sorted(COMBINE)), st.integers(1, 3), st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_aggregations_emit_every_running_result(case, how, parallelism, slice_records):
    ddl, rows, key_at, value_at = case

    def build(env):
        keyed = env.from_collection(rows, ddl).key_by(key_at)
        return getattr(keyed, how)(value_at)

    got = run(build, parallelism=parallelism, slice_records=slice_records, seed=1).records
    assert by_key(got, key_at) == by_key(running(rows, key_at, value_at, COMBINE[how]), key_at)


@given(_cases(), st.sampled_from(sorted(COMBINE)), st.integers(1, 30))
@settings(max_examples=80, deadline=None)
def test_emit_batch_ends_with_the_final_results(case, how, slice_records):
    ddl, rows, key_at, value_at = case

    def build(env):
        return getattr(env.from_collection(rows, ddl).key_by(key_at), how)(value_at, emit="batch")

    got = by_key(run(build, slice_records=slice_records).records, key_at)
    expected = by_key(running(rows, key_at, value_at, COMBINE[how]), key_at)
    assert got.keys() == expected.keys()
    for key, results in got.items():
        assert results[-1] == expected[key][-1]
        rest = iter(expected[key])
        assert all(result in rest for result in results)  # some of the running results, in order


@given(_cases(), st.booleans(), st.integers(1, 3), st.integers(1, 30))
@settings(max_examples=80, deadline=None)
def test_count(case, every, parallelism, slice_records):
    ddl, rows, key_at, _ = case

    def build(env):
        return env.from_collection(rows, ddl).key_by(key_at).count(emit="record" if every else "batch")

    got = by_key(run(build, parallelism=parallelism, slice_records=slice_records).records, 0)
    totals = collections.Counter(plain(row[key_at]) for row in rows)
    assert {key: results[-1][1] for key, results in got.items()} == dict(totals)
    if every:
        assert all([n for _, n in results] == list(range(1, len(results) + 1)) for results in got.values())


@given(_cases(layouts=("key value",)), st.integers(0, 25), st.sampled_from([*sorted(COMBINE), "count"]))
@settings(max_examples=60, deadline=None)
def test_aggregations_go_on_after_a_restore(case, cut, how):
    """Also when the stream was typed: vectorised state is the same state."""
    ddl, rows, key_at, value_at = case

    def harness(restore=None):
        apply = (lambda s: s.count()) if how == "count" else (lambda s: getattr(s, how)(value_at))
        return _Aggregating(apply, ddl, key_at, restore)

    with harness() as first:
        first.process_elements(rows[:cut])
        state = first.snapshot()
        got = first.take()
    with harness(state) as second:
        second.process_elements(rows[cut:])
        got += second.take()
    with harness() as whole:
        whole.process_elements(rows)
        assert got == whole.take()


class _Aggregating(OneInputHarness):
    """A harness for a built-in aggregation, which has no function of its own."""

    def __init__(self, apply, ddl, key_at, restore):
        from headrace.testing import harness as module

        def build(env):
            return apply(env.from_collection([], ddl).key_by(key_at))

        module._Harness.__init__(self, build, restore=restore)


def test_sum_of_single_values():
    assert run(lambda env: env.from_collection([1, 2, 3], "bigint").key_by(lambda n: n % 2).sum()).records == [1, 2, 4]


def test_sum_of_rows_keeps_them_rows():
    def build(env):
        return env.from_collection([("a", 1, 0.5), ("a", 2, 9.0)], "w string, n int, x double").key_by("w").sum("n")

    assert run(build).records == [Row(w="a", n=1, x=0.5), Row(w="a", n=3, x=0.5)]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("how", ["sum", "count", "reduce", "map"])
def test_a_null_key_is_refused_by_name(parallelism, how):
    def build(env):
        keyed = env.from_collection([("a", 1), (None, 2)], "k string, n int").key_by("k")
        if how == "reduce":
            return keyed.reduce(lambda a, b: a)
        if how == "map":
            return keyed.map(str)
        return keyed.sum("n") if how == "sum" else keyed.count()

    with pytest.raises(UserCodeError, match=r"key is None|key column has 1 null"):
        run(build, parallelism=parallelism)


@pytest.mark.parametrize("key", ["k string", "k int", "k double"])
@pytest.mark.parametrize("more", ["", ", m int"])
def test_a_sum_that_grows_out_of_its_type(key, more):
    def build(env):
        rows = [("a" if key == "k string" else 1, 1 << 30, *([0] if more else []))] * 2
        return env.from_collection(rows, f"{key}, v int{more}").key_by("k").sum("v")

    with pytest.raises(UserCodeError, match=r"2147483648.*\n?.*in operator 'Sum'"):
        run(build)


# --- reduce ---------------------------------------------------------------------------------------------------------


class Longest(ReduceFunction):
    def reduce(self, value1, value2):
        return max(value1, value2, key=len)


@pytest.mark.parametrize("function", [Longest(), lambda a, b: max(a, b, key=len)])
def test_reduce(function):
    def build(env):
        return env.from_collection(["a", "bb", "ccc", "dd"]).key_by(lambda s: 0).reduce(function)

    assert run(build).records == ["a", "bb", "ccc", "ccc"]


def test_a_failing_reduce_names_key_and_record():
    with pytest.raises(UserCodeError, match=r"in operator 'Reduce', key 'k', record \('k', 2\)"):
        run(lambda env: env.from_collection([("k", 1), ("k", 2)]).key_by(0).reduce(lambda a, b: 1 // 0))


# --- functions with state -------------------------------------------------------------------------------------------


class StatefulMap(MapFunction):
    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def map(self, value):
        last = self.last.value()
        self.last.update(value[1])
        return value[0], last


class Distinct(FilterFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen"))

    def filter(self, value):
        new = not self.seen.contains(value[1])
        self.seen.put(value[1], True)
        return new


class Pairs(FlatMapFunction):
    def open(self, runtime_context):
        self.held = runtime_context.get_state(ValueStateDescriptor("held"))

    def flat_map(self, value):
        held = self.held.value()
        if held is None:
            self.held.update(value[1])
        else:
            self.held.clear()
            yield value[0], held, value[1]


INPUT = [("a", 1), ("b", 7), ("a", 2), ("a", 2), ("b", 7)]


@pytest.mark.parametrize(
    ("function", "method", "expected"),
    [
        (StatefulMap(), "map", [("a", None), ("b", None), ("a", 1), ("a", 2), ("b", 7)]),
        (Distinct(), "filter", [("a", 1), ("b", 7), ("a", 2)]),
        (Pairs(), "flat_map", [("a", 1, 2), ("b", 7, 7)]),
    ],
)
@pytest.mark.parametrize("ddl", [None, "k string, v bigint"])
def test_rich_functions_on_keyed_streams(function, method, expected, ddl):
    def build(env):
        return getattr(env.from_collection(INPUT, ddl).key_by(0), method)(function)

    assert run(build).records == expected
    assert sorted(run(build, parallelism=3).records, key=str) == sorted(expected, key=str)


class Sides(CoMapFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))

    def _next(self, side, value):
        self.count.update(self.count.value() + 1)
        return side, value[0], self.count.value()

    def map1(self, value):
        return self._next(1, value)

    def map2(self, value):
        return self._next(2, value)


class FlatSides(Sides, CoFlatMapFunction):
    def flat_map1(self, value):
        yield self._next(1, value)

    def flat_map2(self, value):
        yield self._next(2, value)


@pytest.mark.parametrize(("function", "method"), [(Sides(), "map"), (FlatSides(), "flat_map")])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_connected_keyed_streams_share_state(function, method, parallelism):
    def build(env):
        first, second = env.from_collection([("a", 1), ("b", 1)]), env.from_collection([("a", 2), ("a", 3)])
        return getattr(first.connect(second).key_by(lambda p: p[0], lambda p: p[0]), method)(function)

    got = run(build, parallelism=parallelism).records
    assert sorted((key, n) for _, key, n in got) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


# --- process and timers ---------------------------------------------------------------------------------------------


class Timers(KeyedProcessFunction):
    def process_element(self, value, ctx):
        service = ctx.timer_service()
        kind, at = value[1:]
        getattr(service, kind)(at)
        yield "element", ctx.get_current_key(), ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        yield ctx.time_domain(), ctx.get_current_key(), timestamp, ctx.timestamp()


def test_timers_are_per_key_deduplicated_and_can_be_deleted():
    register, delete = "register_processing_time_timer", "delete_processing_time_timer"
    with OneInputHarness(Timers(), key=lambda v: v[0]) as harness:
        harness.process_elements(
            [
                ("a", register, 10),
                ("a", register, 10),
                ("b", register, 10),
                ("b", register, 20),
                ("b", delete, 20),
                ("c", delete, 5),
            ]
        )
        harness.take()
        harness.set_processing_time(100)
        assert sorted(harness.take(), key=str) == [
            (TimeDomain.PROCESSING, "a", 10, 10),
            (TimeDomain.PROCESSING, "b", 10, 10),
        ]


def test_event_time_timers_fire_at_the_end_of_input():
    with OneInputHarness(Timers(), key=lambda v: v[0]) as harness:
        harness.process_elements([("a", "register_event_time_timer", 30), ("b", "register_event_time_timer", 10)])
        harness.process_elements([("a", "register_processing_time_timer", 50)])
        harness.take()
        harness.end_input()
        assert [(t[0], t[1], t[2]) for t in harness.take()] == [
            (TimeDomain.EVENT, "b", 10),
            (TimeDomain.EVENT, "a", 30),
        ]


def test_the_timestamp_of_a_keyed_record():
    with OneInputHarness(Timers(), key=lambda v: v[0]) as harness:
        harness.process_element(("a", "register_event_time_timer", 1), timestamp=77)
        harness.process_element(("a", "register_event_time_timer", 1))
        assert harness.take() == [("element", "a", 77), ("element", "a", None)]


class Failing(KeyedProcessFunction):
    def process_element(self, value, ctx):
        if value == ("k", 0):
            raise ValueError("bad")
        ctx.timer_service().register_processing_time_timer(5)

    def on_timer(self, timestamp, ctx):
        raise KeyError("in timer")


def test_failures_name_the_key():
    with (
        OneInputHarness(Failing(), key=lambda v: v[0]) as harness,
        pytest.raises(
            UserCodeError, match=r"ValueError: bad\n  in operator 'Keyed Process', key 'k', record \('k', 0\)"
        ),
    ):
        harness.process_elements([("a", 1), ("k", 0)])
    with OneInputHarness(Failing(), key=lambda v: v[0]) as harness:
        harness.process_element(("a", 1))
        with pytest.raises(UserCodeError, match=r"KeyError: 'in timer'\n  in operator 'Keyed Process', key 'a'"):
            harness.set_processing_time(10)


def test_a_failure_in_a_batch_of_columns_names_the_record():
    """Records are made when it is their turn."""

    def build(env):
        pair = Types.TUPLE([Types.LONG(), Types.LONG()])
        stream = env.from_collection([(n % 3, n) for n in range(200)], type_info=pair).key_by(0)
        return stream.map(lambda row: 1 // (row[1] - 150), output_type=Types.LONG())

    env = StreamExecutionEnvironment.local()
    with pytest.raises(UserCodeError, match=r"ZeroDivisionError.*\n.*key 0, record \(0, 150\)"):
        list(build(env).execute_and_collect())


def test_keys_that_python_takes_for_equal_stay_apart():
    def build(env):
        return env.from_collection([1, 1.0, True, "1", 1]).key_by(lambda v: v).count()

    assert [(type(key), n) for key, n in run(build).records] == [(int, 1), (float, 1), (bool, 1), (str, 1), (int, 2)]


def test_no_key_in_open():
    class Early(MapFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("x")).value()

        def map(self, value):
            return value

    with pytest.raises(UserCodeError, match="No key set: value state 'x' was used while no record"):
        run(lambda env: env.from_collection([1]).key_by(str).map(Early()))


class Gives(KeyedProcessFunction):
    """Gives the record itself."""

    def process_element(self, value, ctx):
        return value


@pytest.mark.parametrize(("function", "method"), [(lambda n: n, "flat_map"), (Gives(), "process_element")])
def test_a_keyed_function_that_gives_no_iterable(function, method):
    call = None if method == "process_element" else method
    with (
        OneInputHarness(function, key=lambda n: n, method=call) as harness,
        pytest.raises(UserCodeError) as caught,
    ):
        harness.process_elements([5, 6])
    assert f"{method} must yield records or return a list of them, got int" in str(caught.value)
    assert "record 5" in str(caught.value)


class Odd(CoMapFunction):
    def map1(self, value):
        return value if value % 2 else None

    def map2(self, value):
        return None


def test_none_of_a_keyed_co_map_is_no_record():
    with TwoInputHarness(Odd(), keys=(lambda n: n, lambda n: n)) as harness:
        for value in (1, 2, 3):
            harness.process_element1(value)
            harness.process_element2(value)
        assert harness.take() == [1, 3]


EVEN = OutputTag("even")


class Split(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield (EVEN, value) if value % 2 == 0 else value


def test_side_outputs_of_a_keyed_function():
    with OneInputHarness(Split(), key=lambda n: n, side_outputs=[EVEN]) as harness:
        harness.process_elements([1, 2, 3, 4])
        assert harness.take() == [1, 3]
        assert harness.take_side_output(EVEN) == [2, 4]
