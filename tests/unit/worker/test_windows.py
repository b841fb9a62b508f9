"""Windows agree with a plain computation over the whole input, also through snapshots, on both backends."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_windows import PlainWindows

from effort import examples
from headrace import (
    MIN_WATERMARK,
    AggregateFunction,
    Configuration,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    OutputTag,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    Watermark,
    WatermarkGenerator,
    WatermarkStrategy,
    WindowFunction,
)
from headrace.errors import GraphError, HeadraceError
from headrace.records.key_groups import key_group, owner
from headrace.testing.harness import OneInputHarness

BACKENDS = ["hashmap", "rocksdb"]
LATE = OutputTag("late")


class AtMarks(WatermarkGenerator):
    """A record (None, t) is the watermark t."""

    def on_event(self, event, event_timestamp, output):
        if event[0] is None:
            output.emit_watermark(Watermark(event[1]))

    def on_periodic_emit(self, output):
        pass


STRATEGY = WatermarkStrategy.for_generator(AtMarks).with_timestamp_assigner(lambda row, _: row[1])


def stream(rows, backend="hashmap"):
    env = StreamExecutionEnvironment.local(Configuration({"state.backend.type": backend}))
    timed = env.from_collection(rows).assign_timestamps_and_watermarks(STRATEGY)
    return timed.filter(lambda row: row[0] is not None).key_by(lambda row: row[0])


class Show(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, tuple(window), sorted(stamp for _, stamp in inputs)


def shown(windows):
    return sorted(windows.apply(Show()).execute_and_collect())


# --- the kinds of windows ---------------------------------------------------------------------------------------------


def test_tumbling():
    rows = [("a", 1), ("a", 9), ("b", 3), ("a", 10), (None, 9), ("a", 12)]
    found = shown(stream(rows).window(TumblingEventTimeWindows.of(10)))
    assert found == [("a", (0, 10), [1, 9]), ("a", (10, 20), [10, 12]), ("b", (0, 10), [3])]


def test_an_offset_and_times_before_1970():
    rows = [("a", -1), ("a", 2), ("a", 3)]
    assert shown(stream(rows).window(TumblingEventTimeWindows.of(10, 3))) == [
        ("a", (-7, 3), [-1, 2]),
        ("a", (3, 13), [3]),
    ]


def test_sliding():
    assert shown(stream([("a", 7)]).window(SlidingEventTimeWindows.of(10, 5))) == [
        ("a", (0, 10), [7]),
        ("a", (5, 15), [7]),
    ]


def test_sessions_merge_when_a_record_closes_the_gap():
    rows = [("a", 0), ("a", 20), ("b", 5), ("a", 10), (None, 18), ("a", 60)]
    found = shown(stream(rows).window(EventTimeSessionWindows.with_gap(11)))
    assert found == [("a", (0, 31), [0, 10, 20]), ("a", (60, 71), [60]), ("b", (5, 16), [5])]


def test_sessions_with_a_gap_of_each_record():
    rows = [("a", 0), ("a", 4), ("a", 50)]
    found = shown(stream(rows).window(EventTimeSessionWindows.with_dynamic_gap(lambda row: 5 if row[1] < 4 else 40)))
    assert found == [("a", (0, 44), [0, 4]), ("a", (50, 90), [50])]


def test_count_windows():
    rows = [("a", n) for n in range(5)]
    assert shown(stream(rows).count_window(2)) == [("a", (0,), [0, 1]), ("a", (1,), [2, 3])]
    assert shown(stream(rows).count_window(3, 2)) == [("a", (0,), [0, 1, 2]), ("a", (1,), [2, 3, 4])]


def test_windows_of_all_records():
    rows = [("a", 1), ("b", 2), ("c", 11)]
    env = StreamExecutionEnvironment.local().set_parallelism(3)
    timed = env.from_collection(rows).assign_timestamps_and_watermarks(STRATEGY)
    counts = timed.window_all(TumblingEventTimeWindows.of(10)).aggregate(Count())
    assert sorted(counts.execute_and_collect()) == [1, 2]


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


# --- functions --------------------------------------------------------------------------------------------------------


class WithWindow(ProcessWindowFunction):
    """Numbers the windows of a key, and the firings of a window."""

    def process(self, key, context, elements):
        windows = context.global_state().get_state(ValueStateDescriptor("windows", "bigint", 0))
        firings = context.window_state().get_state(ValueStateDescriptor("firings", "bigint", 0))
        if not firings.value():
            windows.update(windows.value() + 1)
        firings.update(firings.value() + 1)
        yield key, context.window().start, windows.value(), firings.value(), list(elements)

    def clear(self, context):
        context.window_state().get_state(ValueStateDescriptor("firings", "bigint", 0)).clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_of_the_window_and_of_the_key(backend):
    rows = [("a", 1), (None, 9), ("a", 2), ("a", 15), (None, 30), ("a", 3)]
    windows = stream(rows, backend).window(TumblingEventTimeWindows.of(10)).allowed_lateness(5)
    found = list(windows.aggregate(Count(), WithWindow()).execute_and_collect())
    assert found == [("a", 0, 1, 1, [1]), ("a", 0, 1, 2, [2]), ("a", 10, 2, 1, [1])]


def test_reduce_alone_and_with_a_window_function():
    rows = [("a", 1), ("a", 4), ("b", 2)]
    late = max
    windows = stream(rows).window(TumblingEventTimeWindows.of(10))
    assert sorted(windows.reduce(late).execute_and_collect()) == [("a", 4), ("b", 2)]
    windows = stream(rows).window(TumblingEventTimeWindows.of(10))
    assert sorted(windows.reduce(late, Show()).execute_and_collect()) == [("a", (0, 10), [4]), ("b", (0, 10), [2])]


def test_results_have_the_last_timestamp_of_their_window():
    with harness(TumblingEventTimeWindows.of(10)) as one:
        one.process_element(("a", 3), 3)
        one.process_watermark(20)
        assert one.take_with_timestamps() == [(("a", (0, 10), [3]), 9)]


def harness(assigner, restore=None, backend="hashmap", lateness=0, trigger=None, evictor=None, place=(0, 1)):
    def build(keyed):
        windows = keyed.window(assigner).allowed_lateness(lateness).side_output_late_data(LATE)
        windows = windows if trigger is None else windows.trigger(trigger)
        return (windows if evictor is None else windows.evictor(evictor)).apply(Show())

    return OneInputHarness.of(
        lambda source: build(source.key_by(lambda row: row[0])),
        side_outputs=[LATE],
        restore=restore,
        subtask=place[0],
        parallelism=place[1],
        max_parallelism=16,
        configuration=Configuration({"state.backend.type": backend}),
    )


class Subtasks:
    """All subtasks of the windows; each key is given to the one it belongs to."""

    def __init__(self, parallelism, restore=None, **options):
        self.all = [harness(restore=restore, place=(i, parallelism), **options).open() for i in range(parallelism)]

    def process(self, key, stamp):
        self.all[owner(key_group(key, 16), 16, len(self.all))].process_element((key, stamp), stamp)

    def watermark(self, stamp):
        for one in self.all:
            one.process_watermark(stamp)

    def end(self):
        for one in self.all:
            one.end_input()

    def take(self):
        return [row for one in self.all for row in one.take()]

    def take_late(self):
        return [row for one in self.all for row in one.take_side_output(LATE)]

    def stop(self):
        """The snapshots of all."""
        snapshots = [one.snapshot() for one in self.all]
        self.close()
        return snapshots

    def close(self):
        for one in self.all:
            one.close()


# --- late records -----------------------------------------------------------------------------------------------------


def test_late_records_fire_again_while_that_is_allowed_and_go_aside_after():
    with harness(TumblingEventTimeWindows.of(10), lateness=5) as one:
        one.process_element(("a", 1), 1)
        one.process_watermark(9)
        one.process_element(("a", 2), 2)
        one.process_watermark(13)
        one.process_element(("a", 3), 3)
        assert [stamps for _, _, stamps in one.take()] == [[1], [1, 2], [1, 2, 3]]
        one.process_watermark(14)
        one.process_element(("a", 4), 4)
        assert one.take() == []
        assert one.take_side_output(LATE) == [("a", 4)]


# --- triggers and evictors --------------------------------------------------------------------------------------------


def test_a_count_trigger_and_a_purging_one():
    rows = [("a", n) for n in range(5)]
    windows = stream(rows).window(GlobalWindows.create()).trigger(CountTrigger.of(2))
    assert [stamps for _, _, stamps in shown(windows)] == [[0, 1], [0, 1, 2, 3]]
    windows = stream(rows).window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2)))
    assert [stamps for _, _, stamps in shown(windows)] == [[0, 1], [2, 3]]


def test_a_continuous_trigger_fires_early_and_at_the_end():
    rows = [("a", 1), (None, 4), ("a", 6), (None, 11), ("a", 12), (None, 30)]
    windows = stream(rows).window(TumblingEventTimeWindows.of(20)).trigger(ContinuousEventTimeTrigger.of(5))
    found = [stamps for _, _, stamps in windows.apply(Show()).execute_and_collect()]
    assert found == [[1, 6], [1, 6], [1, 6, 12], [1, 6, 12]]


def test_a_delta_trigger():
    rows = [("a", n) for n in [0, 5, 11, 15, 30]]
    trigger = DeltaTrigger.of(10, lambda old, new: new[1] - old[1])
    windows = stream(rows).window(GlobalWindows.create()).trigger(trigger)
    assert [stamps for _, _, stamps in shown(windows)] == [[0, 5, 11], [0, 5, 11, 15, 30]]


def test_evictors():
    rows = [("a", n) for n in [1, 5, 8]]
    windows = stream(rows).window(TumblingEventTimeWindows.of(10))
    assert shown(windows.evictor(CountEvictor.of(2))) == [("a", (0, 10), [5, 8])]
    windows = stream(rows).window(TumblingEventTimeWindows.of(10))
    assert shown(windows.evictor(TimeEvictor.of(4))) == [("a", (0, 10), [5, 8])]


def test_windows_by_the_clock():
    with harness(TumblingProcessingTimeWindows.of(10)) as one:
        one.process_element(("a", 1))
        one.set_processing_time(5)
        one.process_element(("a", 2))
        one.set_processing_time(8)
        assert one.take() == []
        one.set_processing_time(9)
        assert one.take() == [("a", (0, 10), [1, 2])]
        one.process_element(("a", 3))
        one.set_processing_time(20)
        assert one.take() == [("a", (0, 10), [3])]  # it came in the last millisecond of the window, behind its timer


# --- agreement with a plain computation -------------------------------------------------------------------------------


def gap_of(row):
    return 3 + row[1] % 7


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None, None, None]), st.integers(-30, 40)), max_size=25)
ASSIGNERS = st.sampled_from(
    [
        TumblingEventTimeWindows.of(10),
        TumblingEventTimeWindows.of(7, 3),
        SlidingEventTimeWindows.of(12, 5),
        SlidingEventTimeWindows.of(4, 6),
        EventTimeSessionWindows.with_gap(6),
        EventTimeSessionWindows.with_dynamic_gap(gap_of),
    ]
)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=ROWS,
    assigner=ASSIGNERS,
    lateness=st.sampled_from([0, 4]),
    cut=st.integers(0, 25),
    widths=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    told_again=st.booleans(),
)
def test_windows_agree_with_a_plain_computation_through_a_snapshot_and_rescaling(
    backend, rows, assigner, lateness, cut, widths, told_again
):
    results, late, plain = [], [], PlainWindows(assigner, lateness)
    options = {"assigner": assigner, "backend": backend, "lateness": lateness}
    tasks = Subtasks(widths[0], **options)
    for place, (key, stamp) in enumerate(rows):
        if place == cut:
            tasks = Subtasks(widths[1], restore=tasks.stop(), **options)
            clock = plain.clock
            plain.restart()
            if told_again and clock > MIN_WATERMARK:
                tasks.watermark(clock)
                plain.advance(clock)
        if key is None:
            tasks.watermark(stamp)
            plain.advance(stamp)
        else:
            tasks.process(key, stamp)
            plain.batch([(key, stamp)])
        results += tasks.take()
        late += tasks.take_late()
    tasks.end()
    plain.end()
    results += tasks.take()
    tasks.close()
    assert late == plain.late
    assert sorted(results) == sorted(plain.fired)


# --- programs that are wrong ------------------------------------------------------------------------------------------


def test_records_without_timestamps():
    env = StreamExecutionEnvironment.local()
    windows = env.from_collection([("a", 1)]).key_by(lambda row: row[0]).window(TumblingEventTimeWindows.of(10))
    with pytest.raises(HeadraceError, match="windows by event time need timestamps"):
        list(windows.apply(Show()).execute_and_collect())


def test_a_trigger_that_cannot_merge():
    with pytest.raises(GraphError, match="DeltaTrigger does not work with windows that merge"):
        stream([]).window(EventTimeSessionWindows.with_gap(5)).trigger(DeltaTrigger.of(1, lambda a, b: 0))


def test_an_evictor_needs_all_records():
    windows = stream([]).window(TumblingEventTimeWindows.of(10)).evictor(CountEvictor.of(1))
    with pytest.raises(
        GraphError, match=r"the window at .*test_windows\.py:\d+ has an evictor, which needs all of its records"
    ):
        windows.reduce(max)
