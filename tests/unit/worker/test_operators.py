"""Operators without state: what goes in, what comes out, and whom a failure names."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    MapFunction,
    OutputTag,
    ProcessFunction,
    Row,
    SinkFunction,
    SourceFunction,
    StreamExecutionEnvironment,
)
from headrace.api.sink import Committer, Sink, SinkWriter
from headrace.errors import UserCodeError
from headrace.testing import OneInputHarness
from headrace.worker.operators.base import MIN_WATERMARK


def run(build):
    return list(build(StreamExecutionEnvironment.local()).execute_and_collect())


def failure(build):
    with pytest.raises(UserCodeError) as caught:
        run(build)
    return str(caught.value)


# --- one input ------------------------------------------------------------------------------------------------------


class Twice(MapFunction):
    def map(self, value):
        return value * 2


class Words(FlatMapFunction):
    def flat_map(self, value):
        yield from value.split()


class Even(FilterFunction):
    def filter(self, value):
        return value % 2 == 0


@pytest.mark.parametrize("function", [Twice(), lambda n: n * 2])
def test_map(function):
    assert run(lambda env: env.from_collection([1, 2]).map(function)) == [2, 4]


@pytest.mark.parametrize("function", [Words(), str.split, lambda line: iter(line.split())])
def test_flat_map(function):
    assert run(lambda env: env.from_collection(["a b", "", "c"]).flat_map(function)) == ["a", "b", "c"]


def test_flat_map_may_return_none():
    assert run(lambda env: env.from_collection([1, 2]).flat_map(lambda n: [n] if n > 1 else None)) == [2]


@pytest.mark.parametrize("function", [Even(), lambda n: n % 2 == 0])
def test_filter(function):
    assert run(lambda env: env.from_collection([1, 2, 3, 4]).filter(function)) == [2, 4]


@pytest.mark.parametrize("function", [str, int, tuple])
def test_a_class_that_is_no_function_object_is_a_callable(function):
    assert run(lambda env: env.from_collection(["1"]).map(function)) == [function("1")]


def test_the_types_of_records_and_fields():
    def build(env):
        rows = env.from_collection([("a", 1)], "word string, n bigint")
        return rows.map(lambda row: (row.word, row["n"], type(row).__mro__[1] is Row))

    assert run(build) == [("a", 1, True)]


def test_a_plain_tuple_becomes_the_row_that_was_promised():
    def build(env):
        return env.from_collection([1]).map(lambda n: ("a", n), "word string, n bigint").map(lambda row: row.word)

    assert run(build) == ["a"]


# --- map_batches ----------------------------------------------------------------------------------------------------

NUMBERS = [(n,) for n in range(5)]


def batches(function, output_type=None):
    return run(lambda env: env.from_collection(NUMBERS, "n bigint").map_batches(function, output_type))


def test_map_batches():
    def double(batch):
        return pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], ["n"])

    assert batches(double) == [(n * 2,) for n in range(5)]


@pytest.mark.parametrize(
    "function",
    [
        lambda batch: [batch.slice(0, 2), batch.slice(2)],
        lambda batch: pa.Table.from_batches([batch]),
        lambda batch: iter([None, batch.slice(0, 3), None, batch.slice(3), None]),
        lambda batch: [[batch.slice(0, 1)], batch.slice(1)],
    ],
)
def test_map_batches_may_give_several(function):
    assert batches(function) == NUMBERS


@pytest.mark.parametrize("function", [lambda batch: None, lambda batch: [], lambda batch: batch.slice(0, 0)])
def test_map_batches_may_give_nothing(function):
    assert batches(function) == []


def test_map_batches_with_another_type():
    def texts(batch):
        return pa.RecordBatch.from_pydict({"s": batch.column(0).cast(pa.string())})

    assert batches(texts, "s string") == [(str(n),) for n in range(5)]


def test_map_batches_casts_columns():
    def small(batch):
        return pa.RecordBatch.from_pydict({"n": batch.column(0).cast(pa.int8())})

    assert batches(small) == NUMBERS


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda batch: batch.rename_columns(["other"]), "the columns are other, but the type is row<n bigint>"),
        (lambda batch: 5, "map_batches() must give pyarrow.RecordBatch, got int"),
        (lambda batch: {"n": [1]}, "map_batches() must give pyarrow.RecordBatch, got dict"),
        (lambda batch: [1], "map_batches() must give pyarrow.RecordBatch, got int"),
        (lambda batch: pa.RecordBatch.from_pydict({"n": ["x"]}), "does not fit row<n bigint>"),
        (lambda batch: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_map_batches_gone_wrong(function, text):
    message = failure(lambda env: env.from_collection(NUMBERS, "n bigint").map_batches(function).name("B"))
    assert text in message
    assert "in operator 'B'" in message


# --- process --------------------------------------------------------------------------------------------------------

TAG = OutputTag("side")


class Sides(ProcessFunction):
    def process_element(self, value, ctx):
        yield value
        yield TAG, -value
        yield OutputTag("unused"), value


def test_side_outputs():
    env = StreamExecutionEnvironment.local()
    main = env.from_collection([1, 2]).process(Sides())
    side = main.get_side_output(TAG)
    assert list(side.execute_and_collect()) == [-1, -2]
    assert list(main.execute_and_collect()) == [1, 2]


def test_the_records_of_a_side_output_that_nobody_reads_are_dropped():
    class Tagged(ProcessFunction):
        def process_element(self, value, ctx):
            yield value
            yield OutputTag("unused"), value

    assert run(lambda env: env.from_collection([1, 2]).process(Tagged())) == [1, 2]


def test_a_typed_side_output():
    tag = OutputTag("words", "word string, n int")

    class Tagged(ProcessFunction):
        def process_element(self, value, ctx):
            yield tag, ("a", value)

    def build(env):
        return env.from_collection([1]).process(Tagged()).get_side_output(tag).map(lambda row: row.word)

    assert run(build) == ["a"]


@pytest.mark.parametrize("record", [(TAG,), (TAG, 1, 2)])
def test_a_tag_with_no_value_or_with_two(record):
    class Wrong(ProcessFunction):
        def process_element(self, value, ctx):
            yield record

    message = failure(lambda env: env.from_collection([1]).process(Wrong()).name("P"))
    assert "yield tag, value" in message
    assert "OutputTag('side')" in message
    assert "in operator 'P'" in message


class Stamps(ProcessFunction):
    def process_element(self, value, ctx):
        yield value, ctx.timestamp()


class Stamped(SourceFunction):
    def run(self, ctx):
        ctx.collect_with_timestamp(1, 10)
        ctx.collect_with_timestamp(2, 20)
        ctx.collect(3)

    def cancel(self):
        pass


@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize(
    "between",
    [
        lambda s: s,
        lambda s: s.map(lambda n: n),
        lambda s: s.filter(lambda n: True),
        lambda s: s.filter(lambda n: n != 1),
    ],
)
def test_the_timestamp_of_a_record(chained, between):
    def build(env):
        stream = between(env.add_source(Stamped()))
        return (stream if chained else stream.rebalance()).process(Stamps())

    assert run(build)[-2:] == [(2, 20), (3, None)]


def test_time_without_a_key():
    class Times(ProcessFunction):
        def process_element(self, value, ctx):
            service = ctx.timer_service()
            yield service.current_processing_time(), service.current_watermark()

    env = StreamExecutionEnvironment.local(start_time=77)
    assert list(env.from_collection([1]).process(Times()).execute_and_collect()) == [(77, -(1 << 63))]


# --- two inputs -----------------------------------------------------------------------------------------------------


class CoMap(CoMapFunction):
    def map1(self, value):
        return "first", value

    def map2(self, value):
        return "second", value


class CoFlatMap(CoFlatMapFunction):
    def flat_map1(self, value):
        yield "first", value

    def flat_map2(self, value):
        return [("second", value)]


class CoProcess(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield "first", value

    def process_element2(self, value, ctx):
        yield "second", value


@pytest.mark.parametrize(
    "apply", [lambda s: s.map(CoMap()), lambda s: s.flat_map(CoFlatMap()), lambda s: s.process(CoProcess())]
)
@pytest.mark.parametrize("keyed", [True, False])
def test_connected_streams(apply, keyed):
    def build(env):
        both = env.from_collection([1, 2]).connect(env.from_collection(["a"]))
        return apply(both.key_by(str, str) if keyed else both)

    if keyed and apply(_Fake()) == "process":
        return  # a keyed process takes a KeyedCoProcessFunction, which is tested with state
    assert sorted(run(build)) == [("first", 1), ("first", 2), ("second", "a")]


class _Fake:
    def map(self, f):
        return "map"

    def flat_map(self, f):
        return "flat_map"

    def process(self, f):
        return "process"


# --- sinks ----------------------------------------------------------------------------------------------------------


class Remember(SinkFunction):
    seen: list[object] = []  # noqa: RUF012 - shared on purpose: functions are copied into the subtask

    def invoke(self, value, context):
        Remember.seen.append(value)


class RememberTimes(SinkFunction):
    seen: list[object] = []  # noqa: RUF012 - shared on purpose: functions are copied into the subtask

    def invoke(self, value, context):
        times = context.timestamp(), context.current_processing_time(), context.current_watermark()
        RememberTimes.seen.append((value, *times, context))


@pytest.mark.parametrize(
    ("source", "stamps"),
    [
        (lambda env: env.add_source(Stamped()), [10, 20, None]),
        (lambda env: env.from_collection([1, 2, 3]), [None, None, None]),
    ],
)
def test_the_context_of_a_sink_function(source, stamps):
    RememberTimes.seen.clear()
    env = StreamExecutionEnvironment.local(start_time=1234)
    source(env).add_sink(RememberTimes())
    env.execute()
    expected = [(value, stamp, 1234, MIN_WATERMARK) for value, stamp in zip((1, 2, 3), stamps, strict=True)]
    assert [one[:4] for one in RememberTimes.seen] == expected
    assert len({id(one[4]) for one in RememberTimes.seen}) == 1


def test_add_sink():
    Remember.seen.clear()
    env = StreamExecutionEnvironment.local()
    env.from_collection([1, 2]).add_sink(Remember())
    env.execute()
    assert Remember.seen == [1, 2]


# --- life -----------------------------------------------------------------------------------------------------------


class Knows(MapFunction):
    def open(self, runtime_context):
        self.facts = (
            runtime_context.get_task_name(),
            runtime_context.get_index_of_this_subtask(),
            runtime_context.get_number_of_parallel_subtasks(),
            runtime_context.get_max_number_of_parallel_subtasks(),
            runtime_context.get_attempt_number(),
            runtime_context.get_task_name_with_subtasks(),
            len(runtime_context.get_job_id()),
        )

    def map(self, value):
        return self.facts


def test_what_a_rich_function_knows():
    def build(env):
        return env.from_sequence(1, 2).rebalance().map(Knows()).name("K").set_parallelism(2).set_max_parallelism(9)

    assert sorted(run(build)) == [("K", 0, 2, 9, 0, "K (1/2)#0", 32), ("K", 1, 2, 9, 0, "K (2/2)#0", 32)]


def test_a_function_object_without_our_base_class_is_opened_too():
    class Duck:
        def open(self, context):
            self.opened = True

        def map(self, value):
            return self.opened

    assert run(lambda env: env.from_collection([1]).map(Duck())) == [True]
    assert not isinstance(Duck(), Function)


# --- failures -------------------------------------------------------------------------------------------------------


def broken(*args):
    raise KeyError("gone")


class BrokenOpen(MapFunction):
    def open(self, runtime_context):
        broken()

    def map(self, value):
        return value


class BrokenPrint:
    def __repr__(self):
        return broken()


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda s: s.map(broken).name("X"), "X"),
        (lambda s: s.flat_map(broken).name("X"), "X"),
        (lambda s: s.filter(broken).name("X"), "X"),
        (lambda s: s.map(BrokenOpen()).name("X"), "X"),
        (lambda s: s.key_by(broken).map(str).name("X"), "X"),
        (lambda s: s.key_by(broken).map(str).set_parallelism(2), "Collection Source"),
        (lambda s: s.map(lambda n: n).name("M").partition_custom(broken, str).map(str).set_parallelism(2), "M"),
    ],
)
def test_a_failure_leads_with_the_users_line_and_names_the_operator(build, name):
    message = failure(lambda env: build(env.from_collection([5])))
    first, second = message.split("\n")[:2]
    assert first.endswith("KeyError: 'gone'")
    assert f"{__file__}:{broken.__code__.co_firstlineno + 1}: " in first
    assert second.startswith(f"  in operator '{name}'")
    assert "test_operators.py:" in second.split("defined at ")[1]


def test_a_failure_while_printing_names_the_sink():
    env = StreamExecutionEnvironment.local()
    env.from_collection([1]).map(lambda n: BrokenPrint()).print().name("the print")
    with pytest.raises(UserCodeError, match="KeyError: 'gone'\n  in operator 'the print'"):
        env.execute()


@pytest.mark.parametrize(("values", "bad"), [([3, 2, 1, 0, 5], "0"), ([0], "0"), ([1, 0], "0")])
@pytest.mark.parametrize(
    "apply", [lambda s, f: s.map(f), lambda s, f: s.filter(f), lambda s, f: s.flat_map(lambda n: [f(n)])]
)
def test_a_failure_names_the_record(values, bad, apply):
    message = failure(lambda env: apply(env.from_collection(values), lambda n: 1 // n))
    assert f"record {bad}, defined at" in message


def test_a_failure_in_a_sink_names_the_record():
    env = StreamExecutionEnvironment.local()
    env.from_collection([1, 0]).add_sink(lambda n: 1 // n).name("S")
    with pytest.raises(UserCodeError, match="in operator 'S', record 0"):
        env.execute()


@pytest.mark.parametrize(
    ("apply", "method"),
    [
        (lambda s: s.flat_map(lambda n: n), "flat_map"),
        (
            lambda s: s.process(type("P", (ProcessFunction,), {"process_element": lambda self, v, c: v})()),
            "process_element",
        ),
    ],
)
def test_something_that_is_not_iterable(apply, method):
    message = failure(lambda env: apply(env.from_collection([5])))
    assert f"{method} must yield records or return a list of them, got int" in message
    assert "record 5" in message


def test_the_users_own_type_errors_are_left_alone():
    def inside(value):
        yield from value

    assert "TypeError: 'int' object is not iterable" in failure(lambda env: env.from_collection([5]).flat_map(inside))


class Published(Sink, SinkWriter, Committer):
    """Makes records visible in a list when they are committed."""

    def __init__(self):
        self.visible, self._open = [], []

    def writer(self, context, restored):
        return self

    def committer(self, context):
        return self

    def write(self, record):
        self._open.append(record)

    def prepare(self, end_of_input):
        prepared, self._open = self._open, []
        return [tuple(prepared)]

    def commit(self, requests):
        for request in requests:
            self.visible.extend(request.committable)


def test_a_sink_commits_only_what_was_prepared_for_checkpoints_that_are_complete():  # SPEC R9.3
    with OneInputHarness.of(lambda numbers: numbers.sink_to(Published())) as harness:
        harness.process_element(1)
        harness.snapshot()
        harness.process_element(2)
        harness.snapshot()
        visible = harness.function.visible
        harness.notify_checkpoint_complete(1)
        assert visible == [1]
        harness.notify_checkpoint_complete(2)
        assert visible == [1, 2]
