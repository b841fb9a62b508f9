"""A function may change a record after it has emitted it, and a record that another branch has got: the results are those of the
moment, under both roots of imports and for all sizes of batches. The expected lines are what PyFlink 2.3.0 gives."""

from __future__ import annotations

import pytest

import headrace
from headrace.api.async_io import FixedDelayRetryStrategy
from headrace.pyflink.common import Row, Types
from headrace.pyflink.datastream import (
    AggregateFunction,
    AsyncFunction,
    CoMapFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    SourceFunction,
    StreamExecutionEnvironment,
)
from headrace.pyflink.datastream.window import CountTrigger, GlobalWindows

PAIR = Types.ROW([Types.STRING(), Types.INT()])


@pytest.fixture(params=[headrace.StreamExecutionEnvironment, StreamExecutionEnvironment], ids=["native", "pyflink"])
def root(request):
    return request.param


@pytest.fixture(params=[1, 100], ids=["one by one", "in batches"])
def env(root, request):
    return root.local(slice_records=request.param).set_parallelism(1)


def collected(stream):
    return list(stream.execute_and_collect())


class Growing(ProcessFunction):
    def open(self, runtime_context):
        self.seen = []

    def process_element(self, value, ctx):
        self.seen.append(value)
        yield self.seen


class InPairs(ProcessFunction):
    def open(self, runtime_context):
        self.waiting = []

    def process_element(self, value, ctx):
        self.waiting.append(value)
        if len(self.waiting) == 2:
            yield self.waiting
            self.waiting.clear()


class Counting(FlatMapFunction):
    def flat_map(self, value):
        row = Row("a", 0)
        for number in range(value):
            row[1] = number
            yield row


class Known(MapFunction):
    def open(self, runtime_context):
        self.known = {}

    def map(self, value):
        self.known[value] = 1
        return self.known


class AtTheTimer(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = []

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value)
        self.seen.append(value)

    def on_timer(self, timestamp, ctx):
        yield self.seen
        self.seen.append("fired")


class Prefixes(ProcessWindowFunction):
    def process(self, key, context, elements):
        prefix = []
        for element in elements:
            prefix.append(element)
            yield prefix


class Both(CoMapFunction):
    def open(self, runtime_context):
        self.seen = []

    def map1(self, value):
        self.seen.append(value)
        return self.seen

    map2 = map1


class Cached(AsyncFunction):
    def __init__(self):
        self.seen = []

    async def async_invoke(self, value):
        self.seen.append(value)
        return [self.seen]

    def timeout(self, value):
        raise TimeoutError


class Lists(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


NINE_TWICE = [[1]] * 2


def add(total, more):
    total["n"] += more["n"]
    return total


def append_nine(value):
    value.append(9)
    return value


def add_ten(row):
    row[1] += 10
    return row


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda one: one([1, 2]).process(Growing()), [[1], [1, 2]]),
        (lambda one: one([1, 2]).process(Growing()).map(len), [1, 2]),
        (lambda one: one([1, 2, 3, 4]).process(InPairs()), [[1, 2], [3, 4]]),
        (lambda one: one([3]).flat_map(Counting(), PAIR).map(lambda row: row[1]), [0, 1, 2]),
        (lambda one: one([3]).flat_map(Counting()).map(lambda row: row[1]), [0, 1, 2]),
        (lambda one: one([1, 2]).map(Known()), [{1: 1}, {1: 1, 2: 1}]),
        (lambda one: one([1, 2]).key_by(lambda _: 0).map(Known()), [{1: 1}, {1: 1, 2: 1}]),
        (lambda one: one([1, 2]).key_by(lambda _: 0).process(AtTheTimer()), [[1, 2], [1, 2, "fired"]]),
        (lambda one: one([1, 2]).key_by(lambda _: 0).count_window(2).process(Prefixes()), [[1], [1, 2]]),
        (lambda one: one([1]).connect(one([2])).map(Both()).map(len), [1, 2]),
        (
            lambda one: one([{"n": 1}, {"n": 2}, {"n": 3}]).key_by(lambda _: 0).reduce(add),
            [{"n": 1}, {"n": 3}, {"n": 6}],
        ),
        (lambda one: one([1, 2]).map_async(Cached(), 1000, capacity=1), [[1], [1, 2]]),
        (
            lambda one: one([1, 2]).key_by(lambda _: 0).count_window(2, 1).aggregate(Lists()).map(append_nine),
            [[1, 2, 9]],
        ),
        (
            lambda one: (
                one([1, 2, 3])
                .key_by(lambda _: 0)
                .window(GlobalWindows.create())
                .trigger(CountTrigger.of(1))
                .aggregate(Lists())
            ).map(append_nine),
            [[1, 9], [1, 2, 9], [1, 2, 3, 9]],
        ),
        (lambda one: one(NINE_TWICE).map(append_nine), [[1, 9], [1, 9]]),
    ],
)
def test_what_was_emitted_does_not_change(env, build, expected):
    assert collected(build(env.from_collection)) == expected


def test_branches_do_not_see_the_changes_of_each_other(env):
    numbers = env.from_collection([[1], [2]])
    both = numbers.map(append_nine).union(numbers.map(list), numbers.map(append_nine))
    assert sorted(collected(both)) == [[1], [1, 9], [1, 9], [2], [2, 9], [2, 9]]


def test_nor_do_branches_of_rows(env):
    rows = env.from_collection([Row("a", 1)], PAIR)
    assert sorted(row[1] for row in collected(rows.map(add_ten, PAIR).union(rows.map(lambda row: row, PAIR)))) == [
        1,
        11,
    ]


def test_side_outputs_of_a_typed_function(env):
    tag = OutputTag("seen", Types.PICKLED_BYTE_ARRAY())

    class Seen(Growing):
        def process_element(self, value, ctx):
            yield value
            self.seen.append(value)
            yield tag, self.seen

    numbers = env.from_collection([1, 2], Types.INT()).process(Seen(), Types.INT())
    assert collected(numbers.get_side_output(tag)) == [[1], [1, 2]]


def test_a_record_that_cannot_be_copied_goes_to_a_chained_function(env):
    assert collected(env.from_collection([2]).map(lambda n: iter(range(n))).flat_map(lambda numbers: numbers)) == [0, 1]


def test_object_reuse_turns_copies_off(root):
    env = root.local().set_parallelism(1)
    env.get_config().enable_object_reuse()
    assert collected(env.from_collection([1, 2]).process(Growing())) == [[1, 2], [1, 2]]


def test_a_reduce_result_that_is_changed_later_stays_as_it_was_in_the_state(env):
    totals = env.from_collection([{"n": 1}, {"n": 2}]).key_by(lambda _: 0).reduce(add)
    assert collected(totals.map(lambda record: add(record, {"n": 100}))) == [{"n": 101}, {"n": 103}]


def test_a_source_function_may_emit_one_object_again(env):
    class Counting(SourceFunction):
        def run(self, ctx):
            record = [0]
            for number in range(3):
                record[0] = number
                ctx.collect(record)
                ctx.collect_with_timestamp(record, number)

        def cancel(self):
            pass

    assert collected(env.add_source(Counting())) == [[0], [0], [1], [1], [2], [2]]


def test_a_call_under_way_keeps_the_record_as_it_came(env):
    class Changing(AsyncFunction):
        def __init__(self):
            self.calls = 0

        async def async_invoke(self, value):
            value.append(9)
            self.calls += 1
            if self.calls == 1:
                raise OSError("try again")
            return [value]

        def timeout(self, value):
            raise TimeoutError

    retry = FixedDelayRetryStrategy(2, 1, None, lambda error: True)
    assert collected(env.from_collection([[1]]).map_async(Changing(), 1000, retry=retry)) == [[1, 9]]
