"""A PyFlink function may change a record after it has emitted it, and a record that another branch has got: PyFlink sends
records as bytes, so the results are those of the moment. The expected lines are what PyFlink 2.3.0 gives."""

from __future__ import annotations

import pytest

from headrace.pyflink.common import Row, Types
from headrace.pyflink.datastream import (
    CoMapFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from headrace.testing import local_runtime

PAIR = Types.ROW([Types.STRING(), Types.INT()])


@pytest.fixture
def env():
    with local_runtime():
        env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    return env


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


def test_object_reuse_turns_copies_off(env):
    env.get_config().enable_object_reuse()
    assert collected(env.from_collection([1, 2]).process(Growing())) == [[1, 2], [1, 2]]
