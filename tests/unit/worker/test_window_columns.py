"""Built-in aggregations over windows: whole batches give what single records give, and what a plain computation gives."""

import math
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_windows import PlainWindows

from effort import examples
from headrace import (
    Configuration,
    EventTimeSessionWindows,
    GlobalWindows,
    OutputTag,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from headrace.errors import GraphError
from headrace.records.key_groups import key_group, owner
from headrace.testing.harness import OneInputHarness

HOW = {
    "sum": sum,
    "min": min,
    "max": max,
    "count": len,
    "mean": lambda values: sum(values) / len(values),
}
KINDS = {"bigint": "k bigint, at bigint, v bigint", "string": "k string, at bigint, v double"}
LATE = OutputTag("late", "k bigint, at bigint, v bigint")


def aggregated(windows, how):
    return windows.count() if how == "count" else getattr(windows, how)("v")


def plain(rows, assigner, how):
    found = defaultdict(list)
    for key, at, value in rows:
        for window in assigner.assign_windows(None, at, None):
            found[key, *window].append(value)
    return sorted((*window, HOW[how](values)) for window, values in found.items())


ROWS = st.lists(st.tuples(st.integers(-3, 3), st.integers(-20, 40), st.integers(-9, 9)), max_size=40)
ASSIGNERS = [TumblingEventTimeWindows.of(10), SlidingEventTimeWindows.of(12, 5, 2), SlidingEventTimeWindows.of(3, 7)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("key", KINDS)
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, assigner=st.sampled_from(ASSIGNERS), how=st.sampled_from(list(HOW)))
def test_whole_batches_agree_with_a_plain_computation(backend, key, rows, assigner, how):
    if key == "string":
        rows = [(f"k{k}", at, float(value)) for k, at, value in rows]
    env = StreamExecutionEnvironment.local(Configuration({"state.backend.type": backend})).set_parallelism(2)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_assigner("at")
    stream = env.from_collection(rows, type_info=KINDS[key]).assign_timestamps_and_watermarks(strategy)
    result = aggregated(stream.key_by("k").window(assigner), how)
    assert result._node.operator.kind == "window_columns"
    assert sorted(map(tuple, result.execute_and_collect())) == plain(rows, assigner, how)


@pytest.mark.parametrize("how", HOW)
def test_where_batches_cannot_be_aggregated_records_are(how):
    rows = [("a", 1, 4), ("a", 3, 6), ("b", 30, 5)]
    env = StreamExecutionEnvironment.local()
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda row, _: row[1])
    stream = env.from_collection(rows).assign_timestamps_and_watermarks(strategy).key_by(lambda row: row[0])
    windows = stream.window(EventTimeSessionWindows.with_gap(5))
    result = sorted((windows.count() if how == "count" else getattr(windows, how)(2)).execute_and_collect())
    assert result == [("a", 1, 8, HOW[how]([4, 6])), ("b", 30, 35, HOW[how]([5]))]


def test_windows_of_all_records_have_no_key():
    env = StreamExecutionEnvironment.local().set_parallelism(2)
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner("at")
    rows = [(1, 1, 4), (2, 3, 6), (1, 11, 5)]
    stream = env.from_collection(rows, type_info=KINDS["bigint"]).assign_timestamps_and_watermarks(strategy)
    result = stream.window_all(TumblingEventTimeWindows.of(10)).sum("v")
    assert sorted(result.execute_and_collect()) == [(0, 10, 10), (10, 20, 5)]


def test_global_windows_have_no_bounds():
    stream = StreamExecutionEnvironment.local().from_collection([(1, 1, 1)], type_info=KINDS["bigint"]).key_by("k")
    with pytest.raises(
        GraphError,
        match=r"sum\(\) at .*test_window_columns\.py:\d+ gives the bounds of windows, which GlobalWindows have not",
    ):
        stream.window(GlobalWindows.create()).sum("v")


# --- lateness and restore ---------------------------------------------------------------------------------------------


def harness(backend, restore=None, lateness=0, assigner=ASSIGNERS[0], place=(0, 1)):
    def build(stream):
        windows = stream.key_by("k").window(assigner).allowed_lateness(lateness)
        return windows.side_output_late_data(LATE).sum("v")

    return OneInputHarness.of(
        build,
        KINDS["bigint"],
        side_outputs=[LATE],
        restore=restore,
        subtask=place[0],
        parallelism=place[1],
        max_parallelism=16,
        configuration=Configuration({"state.backend.type": backend}),
    )


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_late_records_count_while_that_is_allowed(backend):
    with harness(backend, lateness=5) as one:
        one.process_element((1, 3, 10), 3)
        one.process_watermark(9)
        assert one.take_with_timestamps() == [((1, 0, 10, 10), 9)]
        one.process_element((1, 4, 20), 4)
        assert one.take() == [(1, 0, 10, 30)]
        one.process_watermark(13)
        assert one.take() == []
        snapshot = one.snapshot()
    with harness(backend, restore=snapshot, lateness=5) as one:
        one.process_watermark(13)
        assert one.take() == []  # it has fired before
        one.process_element((1, 5, 1), 5)
        assert one.take() == [(1, 0, 10, 31)]
        one.process_watermark(14)
        one.process_element((1, 6, 1), 6)
        assert one.take() == []
        assert one.take_side_output(LATE) == [(1, 6, 1)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_open_windows_are_found_again_after_a_restore(backend):
    with harness(backend) as one:
        for at in (1, 11, 21):
            one.process_element((at, at, at), at)
        one.process_watermark(9)
        assert one.take() == [(1, 0, 10, 1)]
        snapshot = one.snapshot()
    with harness(backend, restore=snapshot) as one:
        one.process_watermark(25)
        assert one.take() == [(11, 10, 20, 11)]
        one.end_input()
        assert one.take() == [(21, 20, 30, 21)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_late_record_that_opens_a_window_fires_it_once(backend):
    with harness(backend, lateness=50) as one:
        one.process_watermark(30)
        one.process_element((1, 3, 10), 3)
        assert one.take() == [(1, 0, 10, 10)]
        one.process_watermark(31)
        one.process_watermark(100)
        assert one.take() == []


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_record_between_a_restore_and_the_first_watermark_is_not_lost(backend):
    with harness(backend, lateness=50) as one:
        one.process_element((1, 3, 10), 3)
        one.process_watermark(30)
        assert one.take() == [(1, 0, 10, 10)]
        snapshot = one.snapshot()
    with harness(backend, restore=snapshot, lateness=50) as one:
        one.process_element((1, 4, 5), 4)
        assert one.take() == []
        one.process_watermark(30)
        assert one.take() == [(1, 0, 10, 15)]
        one.end_input()
        assert one.take() == []


STEPS = st.lists(
    st.one_of(
        st.integers(-20, 40),
        st.lists(st.tuples(st.integers(-3, 3), st.integers(-20, 40)), min_size=1, max_size=5),
    ),
    max_size=20,
)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    assigner=st.sampled_from(ASSIGNERS),
    lateness=st.sampled_from([0, 6]),
    cut=st.integers(0, 20),
    widths=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_late_records_and_open_windows_agree_with_a_plain_computation_through_rescaling(
    backend, steps, assigner, lateness, cut, widths
):
    """A step is a watermark or a batch; the value of a record is its timestamp."""

    def start(width, restore=None):
        return [harness(backend, restore, lateness, assigner, (i, width)).open() for i in range(width)]

    tasks, plain, results, late = start(widths[0]), PlainWindows(assigner, lateness), [], []

    def take():
        for one in tasks:
            results.extend(map(tuple, one.take()))
            late.extend(row[:2] for row in one.take_side_output(LATE))

    for place, step in enumerate(steps):
        if place == cut:
            snapshots = [one.snapshot() for one in tasks]
            for one in tasks:
                one.close()
            tasks = start(widths[1], snapshots)
            plain.restart()
        if isinstance(step, int):
            for one in tasks:
                one.process_watermark(step)
            plain.advance(step)
        else:
            for i, one in enumerate(tasks):
                mine = [row for row in step if owner(key_group(row[0], 16), 16, len(tasks)) == i]
                if mine:
                    one.process_elements([(key, at, at) for key, at in mine], [at for _, at in mine])
            plain.batch(step)
        take()
    for one in tasks:
        one.end_input()
    plain.end()
    take()
    for one in tasks:
        one.close()
    assert sorted(map(tuple, late)) == sorted(plain.late)
    assert sorted(results) == sorted((key, *window, sum(stamps)) for key, window, stamps in plain.fired)


@pytest.mark.parametrize("how", ["min", "max", "sum", "mean"])
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("batch", [1, 4])
def test_not_a_number_counts_wherever_it_comes(how, place, batch):
    values = [1.0, 2.0, 3.0]
    values.insert(place, float("nan"))
    rows = [(f"k{n}", 1, value) for value in values for n in range(2)]
    harness = OneInputHarness.of(
        lambda stream: aggregated(stream.key_by("k").window(TumblingEventTimeWindows.of(10)), how), KINDS["string"]
    )
    with harness as one:
        for at in range(0, len(rows), batch):
            one.process_elements(rows[at : at + batch], [1] * len(rows[at : at + batch]))
        one.end_input()
        found = [row[3] for row in one.take()]
    assert len(found) == 2
    assert all(map(math.isnan, found))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_mean_survives_a_restore(backend):
    def build(stream):
        return stream.key_by("k").window(TumblingEventTimeWindows.of(10)).mean("v")

    options = {"input_type": KINDS["bigint"], "configuration": Configuration({"state.backend.type": backend})}
    with OneInputHarness.of(build, **options) as one:
        one.process_elements([(1, 1, 2), (1, 2, 4)], [1, 2])
        snapshot = one.snapshot()
    with OneInputHarness.of(build, restore=snapshot, **options) as one:
        one.process_elements([(1, 3, 9)], [3])
        one.end_input()
        assert one.take() == [(1, 0, 10, 5.0)]
