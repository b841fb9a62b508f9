"""Joins agree with a plain computation over the whole input."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from headrace import (
    CoGroupFunction,
    Configuration,
    FlatJoinFunction,
    JoinFunction,
    OutputTag,
    ProcessJoinFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from headrace.errors import GraphError, HeadraceError, InvalidArgument

STRATEGY = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda row, _: row[1])


def two(first, second, backend="hashmap", parallelism=2):
    env = StreamExecutionEnvironment.local(Configuration({"state.backend.type": backend})).set_parallelism(parallelism)
    return [env.from_collection(rows).assign_timestamps_and_watermarks(STRATEGY) for rows in (first, second)]


def key(row):
    return row[0]


LEFT = [("a", 1), ("a", 12), ("b", 2)]
RIGHT = [("a", 3), ("a", 9), ("c", 2)]


class Pair(JoinFunction):
    def join(self, first, second):
        return first[1], second[1]


class Both(FlatJoinFunction):
    def join(self, first, second):
        yield first[1]
        yield second[1]


def test_a_join_over_windows():
    one, other = two(LEFT, RIGHT)
    joined = one.join(other).where(key).equal_to(key).window(TumblingEventTimeWindows.of(10)).apply(Pair())
    assert sorted(joined.execute_and_collect()) == [(1, 3), (1, 9)]
    one, other = two(LEFT, RIGHT)
    joined = one.join(other).where(key).equal_to(key).window(TumblingEventTimeWindows.of(10)).apply(Both())
    assert sorted(joined.execute_and_collect()) == [1, 1, 3, 9]


class Sides(CoGroupFunction):
    def co_group(self, first, second):
        yield len(first), len(second)


def test_a_co_group_has_windows_of_one_side_too():
    one, other = two(LEFT, RIGHT)
    grouped = one.co_group(other).where(key).equal_to(key).window(TumblingEventTimeWindows.of(10)).apply(Sides())
    assert sorted(grouped.execute_and_collect()) == [(0, 1), (1, 0), (1, 0), (1, 2)]


class Close(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        assert (left[1], right[1]) == (ctx.get_left_timestamp(), ctx.get_right_timestamp())
        yield left, right


ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=12)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(left=ROWS, right=ROWS, bounds=st.tuples(st.integers(-8, 8), st.integers(0, 8)))
def test_an_interval_join_agrees_with_a_plain_one(backend, left, right, bounds):
    lower, upper = bounds[0], bounds[0] + bounds[1]
    one, other = two(left, right, backend)
    joined = one.key_by(key).interval_join(other.key_by(key)).between(lower, upper).process(Close())
    expected = [(a, b) for a in left for b in right if a[0] == b[0] and a[1] + lower <= b[1] <= a[1] + upper]
    assert sorted(joined.execute_and_collect()) == sorted(expected)


def test_bounds_that_are_not_included():
    one, other = two([("a", 5)], [("a", n) for n in range(10)])
    join = one.key_by(key).interval_join(other.key_by(key)).between(-2, 2)
    join = join.lower_bound_exclusive().upper_bound_exclusive()
    assert sorted(right[1] for _, right in join.process(Close()).execute_and_collect()) == [4, 5, 6]


def test_programs_that_are_wrong():
    one, other = two(LEFT, RIGHT)
    with pytest.raises(GraphError, match=r"a join needs where\(key\), equal_to\(key\) and window"):
        one.join(other).where(key).apply(Pair())
    with pytest.raises(GraphError, match=r"an interval join needs between"):
        one.key_by(key).interval_join(other.key_by(key)).process(Close())
    with pytest.raises(InvalidArgument, match="the lower bound"):
        one.key_by(key).interval_join(other.key_by(key)).between(3, 2)


def test_an_interval_join_without_timestamps():
    env = StreamExecutionEnvironment.local()
    one, other = (env.from_collection([("a", 1)]).key_by(key) for _ in range(2))
    with pytest.raises(HeadraceError, match="an interval join needs timestamps"):
        list(one.interval_join(other).between(0, 1).process(Close()).execute_and_collect())


def test_late_records_of_an_interval_join_go_aside():
    from headrace.testing.harness import TwoInputHarness

    tag = OutputTag("late")
    harness = TwoInputHarness.of(
        lambda left, right: (
            left.key_by(key)
            .interval_join(right.key_by(key))
            .between(0, 5)
            .side_output_left_late_data(tag)
            .process(Close())
        ),
        side_outputs=[tag],
    )
    with harness:
        harness.process_element1(("a", 10), 10)
        harness.process_watermark1(12)
        harness.process_watermark2(12)
        harness.process_element1(("a", 11), 11)
        harness.process_element2(("a", 13), 13)
        assert harness.take_with_timestamps() == [((("a", 10), ("a", 13)), 13)]
        assert harness.take_side_output(tag) == [("a", 11)]
        harness.process_watermark1(16)
        harness.process_watermark2(16)
        harness.process_element2(("a", 16), 16)
        assert harness.take() == []
