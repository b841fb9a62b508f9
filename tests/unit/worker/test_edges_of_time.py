"""Event time at its edges: late by one millisecond, before 1970, at the end of time, across a restore."""

from datetime import UTC, date, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from headrace import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    AggregateFunction,
    Configuration,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    EventTimeSessionWindows,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessJoinFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    StreamExecutionEnvironment,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    Watermark,
    WatermarkGenerator,
    WatermarkStrategy,
    WindowFunction,
)
from headrace.api.sources import DataGenSource
from headrace.checkpoint.barriers import instructions as do
from headrace.errors import GraphError, HeadraceError
from headrace.records.batch import Batch
from headrace.records.types import PICKLED, as_type
from headrace.testing import run
from headrace.testing.harness import OneInputHarness, TwoInputHarness
from headrace.worker.watermarks import Stamper
from rig import Services, subtask

BACKENDS = ["hashmap", "rocksdb"]
LATE = OutputTag("late")


class Show(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, tuple(window), sorted(stamp for _, stamp in inputs)


def windows(assigner, *, restore=None, backend="hashmap", lateness=0, trigger=None, evictor=None, function=None):
    def build(stream):
        windowed = stream.key_by(lambda row: row[0]).window(assigner).allowed_lateness(lateness)
        windowed = windowed.side_output_late_data(LATE)
        windowed = windowed if trigger is None else windowed.trigger(trigger)
        windowed = windowed if evictor is None else windowed.evictor(evictor)
        return windowed.process(function) if function is not None else windowed.apply(Show())

    return OneInputHarness.of(
        build, side_outputs=[LATE], restore=restore, configuration=Configuration({"state.backend.type": backend})
    )


def give(harness, *stamps, key="a"):
    for stamp in stamps:
        harness.process_element((key, stamp), stamp)


# --- late by one millisecond ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lateness", [0, 1, 5])
@pytest.mark.parametrize("stamp", [-10, -1, 0, 9, 10, 19])
def test_a_record_is_late_exactly_when_its_window_is_over(backend, lateness, stamp):
    end = stamp // 10 * 10 + 10
    for clock in range(end - 3, end + lateness + 3):
        with windows(TumblingEventTimeWindows.of(10), lateness=lateness, backend=backend) as one:
            one.process_watermark(clock)
            give(one, stamp)
            one.end_input()
            over = clock >= end - 1 + lateness
            assert one.take_side_output(LATE) == ([("a", stamp)] if over else [])
            assert one.take() == ([] if over else [("a", (end - 10, end), [stamp])])


@pytest.mark.parametrize("clock", [14, 15, 16])
def test_a_late_record_may_still_close_the_gap_to_an_open_session(clock):
    with windows(EventTimeSessionWindows.with_gap(10)) as one:
        give(one, 12)
        one.process_watermark(clock)
        give(one, 3)  # [3, 13) would be over, [3, 22) is not
        assert one.take_side_output(LATE) == []
        give(one, 1, -8)  # [-8, 2) touches nothing but what reaches further
        one.end_input()
        assert one.take() == [("a", (-8, 22), [-8, 1, 3, 12])]


def test_a_record_of_some_sliding_windows_that_are_over_is_not_late():
    with windows(SlidingEventTimeWindows.of(10, 5)) as one:
        one.process_watermark(9)
        give(one, 6)
        one.process_watermark(14)
        give(one, 9)
        assert one.take() == [("a", (5, 15), [6])]
        assert one.take_side_output(LATE) == [("a", 9)]


class Pairs(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield left[1], right[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interval_join_at_its_bounds(backend):
    harness = TwoInputHarness.of(
        lambda left, right: (
            left.key_by(lambda row: row[0])
            .interval_join(right.key_by(lambda row: row[0]))
            .between(-5, 5)
            .side_output_right_late_data(LATE)
            .process(Pairs())
        ),
        side_outputs=[LATE],
        configuration=Configuration({"state.backend.type": backend}),
    )
    with harness as one:
        one.process_element1(("a", 10), 10)
        for clock in (13, 14, 15):
            one.process_watermark1(clock)
            one.process_watermark2(clock)
            one.process_element2(("a", clock - 1), clock - 1)  # behind the clock
            one.process_element2(("a", clock), clock)
        assert one.take() == [(10, 13), (10, 14), (10, 15)]
        assert one.take_side_output(LATE) == [("a", 12), ("a", 13), ("a", 14)]
        one.process_watermark1(16)
        one.process_watermark2(16)
        assert one._subtask.metrics().late_records == 3


def test_late_records_are_counted_with_and_without_a_side_output():
    with windows(TumblingEventTimeWindows.of(10)) as one:
        one.process_watermark(30)
        give(one, 1, 2, 35)
        assert one._subtask.metrics().late_records == 2


# --- before 1970, and other zones -------------------------------------------------------------------------------------

EAST = timezone(timedelta(hours=8))
NOW = WatermarkStrategy.no_watermarks()


def stamps_of(ddl, *values):
    kind, found = as_type(ddl), []
    stamper = Stamper(
        NOW.with_timestamp_assigner("at"), lambda batch: found.extend(batch.timestamps.tolist()), None, int, 0
    )
    column = pa.array(list(values), kind.schema.field("at").type)
    stamper.receive(Batch.of_arrow(pa.RecordBatch.from_arrays([column], schema=kind.schema), kind))
    return found


def test_times_are_rounded_down_also_before_1970():
    before = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    assert stamps_of("at timestamp", before, datetime(1970, 1, 1, tzinfo=UTC)) == [-1, 0]


def test_a_time_of_another_zone_is_the_same_moment():
    moment = datetime(2024, 3, 10, 7, 30, tzinfo=UTC)
    assert stamps_of("at timestamp", moment, moment.astimezone(EAST)) == [int(moment.timestamp() * 1000)] * 2


def test_times_without_a_zone_are_utc_and_dates_are_midnight():
    assert stamps_of("at timestamp_ntz", datetime(1969, 12, 31, 23, tzinfo=UTC).replace(tzinfo=None)) == [-3_600_000]
    assert stamps_of("at date", date(1969, 12, 31), date(1970, 1, 2)) == [-86_400_000, 86_400_000]


def test_days_of_a_zone():
    days = TumblingEventTimeWindows.of(timedelta(days=1), timedelta(hours=-8))
    night = int(datetime(1969, 12, 31, 23, 59, 59, tzinfo=EAST).timestamp() * 1000)
    ((start, end),) = days.assign_windows(None, night, None)
    assert datetime.fromtimestamp(start / 1000, EAST) == datetime(1969, 12, 31, tzinfo=EAST)
    assert datetime.fromtimestamp(end / 1000, EAST) == datetime(1970, 1, 1, tzinfo=EAST)


@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_around_1970_keep_their_order_through_a_restore(backend):
    with windows(TumblingEventTimeWindows.of(10), backend=backend) as one:
        give(one, -11, -10, -1, 0, 9, 10)
        snapshot = one.snapshot()
    with windows(TumblingEventTimeWindows.of(10), restore=snapshot, backend=backend) as one:
        one.process_watermark(-2)
        assert one.take() == [("a", (-20, -10), [-11])]
        one.process_watermark(9)
        assert one.take() == [("a", (-10, 0), [-10, -1]), ("a", (0, 10), [0, 9])]


# --- the end of time --------------------------------------------------------------------------------------------------


class Jumps(WatermarkGenerator):
    """The record 5 ends time."""

    def on_event(self, event, event_timestamp, output):
        output.emit_watermark(Watermark(MAX_WATERMARK if event[1] == 5 else event_timestamp - 1))

    def on_periodic_emit(self, output):
        pass


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_watermark_that_jumps_to_the_end(parallelism):
    """Everything fires at once, behind an exchange too; whatever comes later is late."""
    env = StreamExecutionEnvironment.local().set_parallelism(parallelism)
    strategy = WatermarkStrategy.for_generator(Jumps).with_timestamp_assigner(lambda row, _: row[1])
    rows = [("a", 1), ("b", 2), ("a", 5), ("a", 30), ("b", 40)]
    timed = env.from_collection(rows).assign_timestamps_and_watermarks(strategy).set_parallelism(1)
    tumbling = timed.key_by(lambda row: row[0]).window(TumblingEventTimeWindows.of(10)).side_output_late_data(LATE)
    found = tumbling.apply(Show())
    late = found.get_side_output(LATE).map(lambda row: ("late", row, []))
    assert sorted(found.union(late).execute_and_collect()) == [
        ("a", (0, 10), [1, 5]),
        ("b", (0, 10), [2]),
        ("late", ("a", 30), []),
        ("late", ("b", 40), []),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lateness_without_end(backend):
    with windows(TumblingEventTimeWindows.of(10), lateness=MAX_WATERMARK, backend=backend) as one:
        give(one, 1)
        one.process_watermark(1 << 60)
        give(one, 2)
        assert [stamps for _, _, stamps in one.take()] == [[1], [1, 2]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lateness_without_end_of_whole_batches(backend):
    harness = OneInputHarness.of(
        lambda stream: (
            stream.key_by("k").window(TumblingEventTimeWindows.of(10)).allowed_lateness(MAX_WATERMARK).sum("v")
        ),
        "k bigint, v bigint",
        configuration=Configuration({"state.backend.type": backend}),
    )
    with harness as one:
        one.process_element((1, 5), 1)
        one.process_watermark(1 << 60)
        one.process_element((1, 6), 2)
        assert [row[3] for row in one.take()] == [5, 11]


@pytest.mark.parametrize("stamp", [MAX_WATERMARK, -(1 << 63) + 1, 1 << 70])
def test_a_stand_in_for_never_is_refused(stamp):
    strategy = NOW.with_timestamp_assigner(lambda row, _: row)
    stream = StreamExecutionEnvironment.local().from_collection([stamp]).assign_timestamps_and_watermarks(strategy)
    with pytest.raises(HeadraceError, match=f"the timestamp {stamp} is millions of years away"):
        list(stream.execute_and_collect())


def test_a_column_with_a_stand_in_for_never_is_refused():
    strategy = NOW.with_timestamp_assigner("at")
    stream = StreamExecutionEnvironment.local().from_collection([(MAX_WATERMARK,)], type_info="at bigint")
    with pytest.raises(HeadraceError, match="millions of years away"):
        list(stream.assign_timestamps_and_watermarks(strategy).execute_and_collect())


def test_an_assigner_that_gives_back_that_there_is_no_timestamp():
    strategy = NOW.with_timestamp_assigner(lambda row, before: before)
    stream = StreamExecutionEnvironment.local().from_collection([1]).assign_timestamps_and_watermarks(strategy)
    with pytest.raises(HeadraceError, match="the record has no timestamp, and the timestamp assigner gave none"):
        list(stream.execute_and_collect())


@pytest.mark.parametrize("emitted", [1.5, "7", None, 1 << 63, True])
def test_a_generator_that_emits_no_watermark(emitted):
    class Wrong(Jumps):
        def on_event(self, event, event_timestamp, output):
            output.emit_watermark(Watermark(emitted))

    strategy = WatermarkStrategy.for_generator(Wrong).with_timestamp_assigner(lambda row, _: row)
    stream = StreamExecutionEnvironment.local().from_collection([1]).assign_timestamps_and_watermarks(strategy)
    with pytest.raises(HeadraceError, match="a watermark is an int of 64 bits in milliseconds, the generator emitted"):
        list(stream.execute_and_collect())


# --- idle sources -----------------------------------------------------------------------------------------------------


class Clock:
    now = 0

    def __call__(self):
        return self.now


class Behind:
    def __init__(self):
        self.events = []

    def advance(self, watermark):
        self.events.append(watermark)

    def set_idle(self, idle):
        self.events.append("idle" if idle else "active")


def stamped(*stamps):
    return Batch.of_rows(list(stamps)).with_timestamps(pa.array(stamps, pa.int64()).to_numpy())


def test_a_source_that_was_held_up_is_not_idle():
    clock, behind = Clock(), Behind()
    one = Stamper(WatermarkStrategy.for_monotonous_timestamps().with_idleness(1000), lambda _: None, behind, clock, 200)
    clock.now = 60_000  # back-pressure: nothing was called for a minute
    one.on_time(clock.now)
    assert behind.events == []
    one.receive(stamped(5))
    clock.now += 200
    one.on_time(clock.now)
    assert behind.events == [4]
    for _ in range(3):
        clock.now = one.next_deadline()
        one.on_time(clock.now)
        if "idle" in behind.events:
            break
    assert behind.events == [4, "idle"]
    assert clock.now < 62_500


def test_an_idle_split_that_comes_back_far_behind_does_not_move_the_clock_back():
    clock, behind = Clock(), Behind()
    one = Stamper(WatermarkStrategy.for_monotonous_timestamps().with_idleness(100), lambda _: None, behind, clock, 10)
    one.set_splits(["a", "b"])
    for now in range(0, 400, 20):
        clock.now = now
        one.receive(stamped(1000 + now), ["a"])
        one.on_time(now)
    reached = behind.events[-1]
    assert reached > 1000
    one.receive(stamped(7), ["b"])
    clock.now = 420
    one.on_time(420)
    assert max(event for event in behind.events if event != "idle") == behind.events[-1] >= reached


# --- across a restore -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lateness", [0, 20])
def test_two_sessions_before_a_snapshot_are_one_behind_it(backend, lateness):
    options = {"backend": backend, "lateness": lateness}
    with windows(EventTimeSessionWindows.with_gap(10), **options) as one:
        give(one, 0, 18, 37)
        snapshot = one.snapshot()
    with windows(EventTimeSessionWindows.with_gap(10), restore=snapshot, **options) as one:
        give(one, 9)
        again = one.snapshot()
    with windows(EventTimeSessionWindows.with_gap(10), restore=again, **options) as one:
        give(one, 28)
        one.process_watermark(60)
        assert one.take() == [("a", (0, 47), [0, 9, 18, 28, 37])]
        one.process_watermark(100)
        one.end_input()
        assert one.take() == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_count_of_a_trigger_survives_a_merge_and_a_restore(backend):
    options = {"backend": backend, "trigger": PurgingTrigger.of(CountTrigger.of(4))}
    with windows(EventTimeSessionWindows.with_gap(10), **options) as one:
        give(one, 0, 18)
        snapshot = one.snapshot()
    with windows(EventTimeSessionWindows.with_gap(10), restore=snapshot, **options) as one:
        give(one, 9)
        assert one.take() == []
        give(one, 20)
        assert one.take() == [("a", (0, 30), [0, 9, 18, 20])]
        give(one, 21, 22, 23)
        assert one.take() == []
        give(one, 24)
        assert one.take() == [("a", (0, 34), [21, 22, 23, 24])]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_continuous_trigger_survives_a_merge_and_a_restore(backend):
    options = {"backend": backend, "trigger": ContinuousEventTimeTrigger.of(5)}
    with windows(EventTimeSessionWindows.with_gap(10), **options) as one:
        give(one, -12, 6)  # the next firings are at -10 and 10
        snapshot = one.snapshot()
    with windows(EventTimeSessionWindows.with_gap(10), restore=snapshot, **options) as one:
        give(one, -3)  # [-12, 16) is one session; the first firing counts
        found = []
        for clock in range(-11, 20):
            one.process_watermark(clock)
            found += [(clock, *row[1:]) for row in one.take()]
        whole = ((-12, 16), [-12, -3, 6])
        assert found == [(clock, *whole) for clock in (-10, -5, 0, 5, 10, 15)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_evicted_records_do_not_come_back_after_a_restore(backend):
    options = {"backend": backend, "trigger": CountTrigger.of(2), "evictor": CountEvictor.of(2)}
    with windows(TumblingEventTimeWindows.of(100), **options) as one:
        give(one, 1, 2, 3)
        assert one.take() == [("a", (0, 100), [1, 2])]
        snapshot = one.snapshot()
    with windows(TumblingEventTimeWindows.of(100), restore=snapshot, **options) as one:
        give(one, 4)
        assert one.take() == [("a", (0, 100), [3, 4])]


# --- triggers, evictors and windows by the clock -----------------------------------------------------------------------


class AtLarge(Trigger):
    """Fires when the sum of the timestamps since it fired last is at least 10; the sum is its own state."""

    SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, "bigint")

    def on_element(self, element, timestamp, window, ctx):
        state = ctx.get_partitioned_state(self.SUM)
        state.add(timestamp)
        if state.get() < 10:
            return TriggerResult.CONTINUE
        state.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self.SUM)

    def clear(self, window, ctx):
        ctx.get_partitioned_state(self.SUM).clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trigger_of_ones_own_with_its_own_state(backend):
    options = {"backend": backend, "trigger": AtLarge()}
    with windows(EventTimeSessionWindows.with_gap(3), **options) as one:
        give(one, 1, 5)  # two sessions
        snapshot = one.snapshot()
    with windows(EventTimeSessionWindows.with_gap(3), restore=snapshot, **options) as one:
        give(one, 3)
        assert one.take() == []
        give(one, 4)
        assert one.take() == [("a", (1, 8), [1, 3, 4, 5])]


def test_a_delta_evictor():
    evictor = DeltaEvictor.of(3, lambda one, last: last[1] - one[1])
    with windows(TumblingEventTimeWindows.of(100), evictor=evictor) as one:
        give(one, 1, 5, 6, 7)
        one.end_input()
        assert one.take() == [("a", (0, 100), [5, 6, 7])]


def test_sessions_by_the_clock():
    with windows(ProcessingTimeSessionWindows.with_gap(10)) as one:
        give(one, 1)
        one.set_processing_time(8)
        give(one, 2)
        one.set_processing_time(16)
        assert one.take() == []
        one.set_processing_time(17)
        assert one.take() == [("a", (0, 18), [1, 2])]


def test_sliding_windows_by_the_clock():
    with windows(SlidingProcessingTimeWindows.of(10, 5)) as one:
        one.set_processing_time(7)
        give(one, 1)
        one.set_processing_time(30)
        assert one.take() == [("a", (0, 10), [1]), ("a", (5, 15), [1])]


def test_a_continuous_trigger_by_the_clock():
    trigger = ContinuousProcessingTimeTrigger.of(5)
    with windows(TumblingEventTimeWindows.of(1000), trigger=trigger) as one:
        give(one, 1)
        one.set_processing_time(4)
        assert one.take() == []
        one.set_processing_time(11)
        assert one.take() == [("a", (0, 1000), [1])] * 2


# --- programs that are wrong ------------------------------------------------------------------------------------------


class WithStateOfWindow(ProcessWindowFunction):
    def process(self, key, context, elements):
        context.window_state().get_state(ValueStateDescriptor("seen", "bigint"))


def test_windows_that_merge_have_no_state_of_their_own():
    with windows(EventTimeSessionWindows.with_gap(10), function=WithStateOfWindow()) as one:
        give(one, 1)
        with pytest.raises(HeadraceError, match=r"window_state\(\) is not kept when windows merge.*global_state"):
            one.process_watermark(100)


def test_a_join_on_a_column_that_is_not_there():
    env = StreamExecutionEnvironment.local()
    one, other = (env.from_collection([(1,)], type_info="id bigint") for _ in range(2))
    join = one.join(other).where("id").equal_to("order").window(TumblingEventTimeWindows.of(10))
    with pytest.raises(GraphError, match=r"equal_to\(\) at .*test_edges_of_time.py.*unknown column 'order'"):
        join.apply(lambda a, b: (a, b))


def test_map_batches_over_windows():
    env = StreamExecutionEnvironment.local().set_parallelism(2)
    strategy = NOW.with_timestamp_assigner("at")
    rows = [("a", 1), ("a", 5), ("b", 7), ("a", 12)]
    timed = env.from_collection(rows, type_info="k string, at bigint").assign_timestamps_and_watermarks(strategy)

    def spans(key, window, batch):
        return pa.RecordBatch.from_pydict({"k": [key], "rows": [batch.num_rows], "start": [window.start]})

    tumbling = timed.key_by("k").window(TumblingEventTimeWindows.of(10))
    found = tumbling.map_batches(spans, "k string, rows bigint, start bigint")
    assert sorted(map(tuple, found.execute_and_collect())) == [("a", 1, 10), ("a", 2, 0), ("b", 1, 0)]

    def late_ones(window, batch):
        return batch.filter(pa.compute.greater(batch["at"], 4)) if window.start == 0 else None

    found = timed.window_all(TumblingEventTimeWindows.of(10)).map_batches(late_ones)
    assert sorted(map(tuple, found.execute_and_collect())) == [("a", 5), ("b", 7)]


def test_map_batches_over_windows_needs_a_type():
    env = StreamExecutionEnvironment.local()
    keyed = env.from_collection([1]).key_by(lambda n: n)
    with pytest.raises(GraphError, match=r"map_batches\(\) at .*test_edges_of_time\.py:\d+ needs a typed stream"):
        keyed.window(TumblingEventTimeWindows.of(10)).map_batches(lambda key, window, batch: batch)


def test_the_clock_starts_at_the_least_number():
    with windows(TumblingEventTimeWindows.of(10)) as one:
        assert one.watermark == MIN_WATERMARK


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_that_reduces_finds_its_own_results_by_name(backend):
    env = StreamExecutionEnvironment.local(Configuration({"state.backend.type": backend}))
    rows = [(1, 2, 10), (1, 3, 11), (1, 4, 12), (1, 5, 13)]
    strategy = NOW.with_timestamp_assigner("at")
    timed = env.from_collection(rows, type_info="k bigint, v bigint, at bigint")
    keyed = timed.assign_timestamps_and_watermarks(strategy).key_by("k")
    windowed = keyed.window(TumblingEventTimeWindows.of(100))
    found = windowed.reduce(lambda a, b: (a.k, a.v + b.v, min(a.at, b.at))).execute_and_collect()
    assert [tuple(row) for row in found] == [(1, 14, 10)]
    running = keyed.reduce(lambda a, b: (a.k, a.v + b.v, min(a.at, b.at))).execute_and_collect()
    assert [row.v for row in running] == [2, 5, 9, 14]


def test_a_stream_whose_channels_wait_for_a_barrier_is_not_idle():
    """Records wait behind the barrier: were the stream idle, they would be late."""
    env = StreamExecutionEnvironment.local()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(1000).with_timestamp_assigner(lambda n, _: n)
    build = env.from_sequence(0, 9).rebalance().assign_timestamps_and_watermarks(strategy).name("clock")
    build.rebalance().add_sink(print)
    services = Services()
    task = subtask(env._job_plan(), "clock", 0, services)
    task.open()
    (stamper,) = [operator._stamper for operator in task.operators if operator.makes_watermarks]
    (channel,) = task._inputs.channels
    task._execute([do.Block(channel)])
    assert stamper.next_deadline() is None
    services.time += 60_000
    task._execute([do.Unblock([channel])])
    assert stamper.next_deadline() == services.time + 1000


@pytest.mark.parametrize("idleness", [None, 100])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_source_without_records_holds_windows_unless_it_is_idle(idleness, parallelism):
    def build(env):
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row[1])
        quiet = strategy if idleness is None else strategy.with_idleness(idleness)
        busy = env.from_source(
            DataGenSource(lambda n: ("busy", n * 10), None, 100.0, PICKLED, vectorised=False), strategy
        )
        other = env.from_source(DataGenSource(lambda n: ("quiet", n), None, 1e-6, PICKLED, vectorised=False), quiet)
        keyed = busy.union(other).key_by(lambda row: row[0])
        return keyed.window(TumblingEventTimeWindows.of(100)).apply(Show())

    found = run(build, parallelism=parallelism, until=3000).records
    fired = [window for key, window, _ in found if key == "busy"]
    if idleness is None:
        assert fired == []
    else:
        assert fired == [(start, start + 100) for start in range(0, len(fired) * 100, 100)]
        assert len(fired) > 20


def test_what_an_idle_source_sends_later_counts_while_it_is_in_time():
    def build(env):
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row[1])
        busy = DataGenSource(lambda n: ("a", n * 10), 200, 100.0, PICKLED, vectorised=False)
        # One record a second, of the time of its own: it is idle in between.
        slow = DataGenSource(lambda n: ("b", n * 1000), 2, 1.0, PICKLED, vectorised=False)
        streams = [env.from_source(one, strategy.with_idleness(200)) for one in (busy, slow)]
        keyed = streams[0].union(streams[1]).key_by(lambda row: row[0])
        return keyed.window(TumblingEventTimeWindows.of(500)).apply(Show())

    found = run(build).records
    assert sorted(stamp for key, _, stamps in found for stamp in stamps if key == "a") == [n * 10 for n in range(200)]
    assert [(window, stamps) for key, window, stamps in found if key == "b"] == [
        ((0, 500), [0]),
        ((1000, 1500), [1000]),
    ]


class Fails(WindowFunction):
    def apply(self, key, window, inputs):
        raise ValueError("no such thing")


def test_the_error_of_a_window_function_names_the_key_and_the_line():
    env = StreamExecutionEnvironment.local()
    timed = env.from_collection([("a", 1)]).assign_timestamps_and_watermarks(
        NOW.with_timestamp_assigner(lambda row, _: row[1])
    )
    windowed = timed.key_by(lambda row: row[0]).window(TumblingEventTimeWindows.of(10))
    stream = windowed.apply(Fails()).name("failing windows")
    with pytest.raises(
        HeadraceError,
        match=r"test_edges_of_time.py:\d+: ValueError: no such thing(.|\n)*'failing windows', key 'a', defined at .*test_edges",
    ):
        list(stream.execute_and_collect())


class Numbers(ProcessWindowFunction):
    def process(self, key, context, elements):
        return 5


def test_a_window_function_that_returns_no_records():
    with windows(TumblingEventTimeWindows.of(10), function=Numbers()) as one:
        give(one, 1)
        with pytest.raises(
            HeadraceError, match="the window function must yield records or return a list of them, got int"
        ):
            one.process_watermark(100)


class Odd(AggregateFunction):
    """The odd timestamps."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [*accumulator, value[1]] if value[1] % 2 else accumulator

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_result_is_a_result(backend):
    harness = OneInputHarness.of(
        lambda stream: stream.key_by(lambda row: row[0]).window(EventTimeSessionWindows.with_gap(5)).aggregate(Odd()),
        configuration=Configuration({"state.backend.type": backend}),
    )
    with harness as one:
        give(one, 2, 20, 21)
        one.end_input()
        assert one.take() == [[], [21]]
