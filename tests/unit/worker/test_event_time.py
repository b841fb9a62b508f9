"""Event time in whole jobs on the local runtime: timestamps, watermarks between subtasks, timers."""

from datetime import timedelta

import pytest

from headrace import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
    TimeDomain,
    Watermark,
    WatermarkGenerator,
    WatermarkStrategy,
)
from headrace.errors import GraphError, InvalidArgument
from headrace.testing.harness import OneInputHarness, TwoInputHarness


class EachRecord(WatermarkGenerator):
    """A watermark behind each record: no lateness at all."""

    def on_event(self, event, event_timestamp, output):
        output.emit_watermark(Watermark(event_timestamp))

    def on_periodic_emit(self, output):
        pass


def by_value(strategy=None):
    return (strategy or WatermarkStrategy.for_generator(EachRecord)).with_timestamp_assigner(lambda value, _: value)


class Clock(ProcessFunction):
    def process_element(self, value, ctx):
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()


class Alarm(KeyedProcessFunction):
    """A timer 10 after each record."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def on_timer(self, timestamp, ctx):
        assert ctx.time_domain() is TimeDomain.EVENT
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark()


def local(parallelism=1):
    return StreamExecutionEnvironment.local().set_parallelism(parallelism)


def test_time_follows_the_records():
    stream = local().from_collection([3, 1, 5]).assign_timestamps_and_watermarks(by_value())
    assert list(stream.process(Clock()).execute_and_collect()) == [(3, 3, MIN_WATERMARK), (1, 1, 3), (5, 5, 3)]


def test_a_strategy_at_the_source():
    from headrace.api.sources import CollectionSource

    stream = local().from_source(CollectionSource([3, 1, 5]), by_value(), "numbers")
    assert list(stream.process(Clock()).execute_and_collect()) == [(3, 3, MIN_WATERMARK), (1, 1, 3), (5, 5, 3)]


def test_timers_fire_when_the_watermark_passes_and_all_at_the_end():
    stream = local().from_collection([1, 2, 12, 30]).assign_timestamps_and_watermarks(by_value())
    fired = list(stream.key_by(lambda n: n % 2).process(Alarm()).execute_and_collect())
    assert fired == [(1, 11, 12), (0, 12, 12), (0, 22, 30), (0, 40, MAX_WATERMARK)]


def test_a_strategy_replaces_the_watermarks_before_it():
    stream = local().from_collection([10, 20]).assign_timestamps_and_watermarks(by_value())
    stream = stream.assign_timestamps_and_watermarks(by_value(WatermarkStrategy.no_watermarks()))
    assert list(stream.process(Clock()).execute_and_collect()) == [(10, 10, MIN_WATERMARK), (20, 20, MIN_WATERMARK)]


def test_the_clock_behind_a_union_is_the_lesser_one():
    env = local()
    fast = env.from_collection([100, 200]).assign_timestamps_and_watermarks(by_value())
    slow = env.from_collection([1, 2, 3]).assign_timestamps_and_watermarks(by_value())
    seen = list(fast.union(slow).rebalance().process(Clock()).execute_and_collect())
    assert sorted(value for value, _, _ in seen) == [1, 2, 3, 100, 200]
    assert all(clock < value for value, _, clock in seen if value < 10)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_watermarks_cross_an_exchange(parallelism):
    env = local(parallelism)
    stream = env.from_collection(list(range(0, 100, 5))).assign_timestamps_and_watermarks(by_value())
    fired = list(stream.key_by(lambda n: n % 7).process(Alarm()).execute_and_collect())
    assert sorted(time for _, time, _ in fired) == [n + 10 for n in range(0, 100, 5)]
    assert all(clock >= time for _, time, clock in fired)


# --- timestamps are kept ----------------------------------------------------------------------------------------------

TAG = OutputTag("aside")


class Twice(ProcessFunction):
    def process_element(self, value, ctx):
        yield value
        yield TAG, value
        yield value + 100


class KeyedTwice(KeyedProcessFunction):
    process_element = Twice.process_element


class SameOfBoth(CoMapFunction):
    def map1(self, value):
        return value

    map2 = map1


class TwiceOfBoth(CoFlatMapFunction):
    def flat_map1(self, value):
        return [value] * (value % 3)

    flat_map2 = flat_map1


class ProcessBoth(CoProcessFunction):
    process_element1 = process_element2 = Twice.process_element


class ProcessBothKeyed(KeyedCoProcessFunction):
    process_element1 = process_element2 = Twice.process_element


RULES = MapStateDescriptor("rules", "bigint", "bigint")


class UnderRules(BroadcastProcessFunction):
    process_element = Twice.process_element

    def process_broadcast_element(self, value, ctx):
        yield value


class UnderRulesKeyed(KeyedBroadcastProcessFunction):
    process_element = Twice.process_element
    process_broadcast_element = UnderRules.process_broadcast_element


def other(stream):
    return stream.map(lambda n: n).start_new_chain()


def keyed(stream):
    return stream.key_by(lambda n: n % 2)


OPERATORS = {
    "co_map": lambda s: s.connect(other(s)).map(SameOfBoth()),
    "co_flat_map": lambda s: s.connect(other(s)).flat_map(TwiceOfBoth()),
    "co_process": lambda s: s.connect(other(s)).process(ProcessBoth()),
    "keyed co_map": lambda s: keyed(s).connect(keyed(other(s))).map(SameOfBoth()),
    "keyed co_process": lambda s: keyed(s).connect(keyed(other(s))).process(ProcessBothKeyed()),
    "broadcast": lambda s: s.connect(other(s).broadcast(RULES)).process(UnderRules()),
    "keyed broadcast": lambda s: keyed(s).connect(other(s).broadcast(RULES)).process(UnderRulesKeyed()),
    "union": lambda s: s.union(other(s)),
    "rebalance": lambda s: s.rebalance().map(lambda n: n).set_parallelism(3).rescale(),
    "map": lambda s: s.map(lambda n: n),
    "flat_map": lambda s: s.flat_map(lambda n: [n] * (n % 3)),
    "filter": lambda s: s.filter(lambda n: n % 2),
    "process": lambda s: s.process(Twice()),
    "side": lambda s: s.process(Twice()).get_side_output(TAG),
    "keyed map": lambda s: s.key_by(lambda n: n % 2).map(lambda n: n),
    "keyed flat_map": lambda s: s.key_by(lambda n: n % 2).flat_map(lambda n: [n] * (n % 3)),
    "keyed filter": lambda s: s.key_by(lambda n: n % 2).filter(lambda n: n % 2),
    "keyed process": lambda s: s.key_by(lambda n: n % 2).process(KeyedTwice()),
    "reduce": lambda s: s.key_by(lambda n: n).reduce(lambda a, b: b),
    "map_batches": lambda s: s.map(lambda n: n, output_type="bigint").map_batches(lambda b: b),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_keeps_timestamps(name):
    stream = local().from_collection(range(10)).assign_timestamps_and_watermarks(by_value())
    rows = list(OPERATORS[name](stream).process(Clock()).execute_and_collect())
    assert rows
    assert [(value, stamp) for value, stamp, _ in rows if value % 100 != stamp] == []


@pytest.mark.parametrize("emit", ["record", "batch"])
@pytest.mark.parametrize("kind", ["k bigint, v bigint", "k string, v bigint"])
def test_aggregations_keep_the_timestamp_of_the_last_record(emit, kind):
    rows = [(key if "string" not in kind else str(key), value) for value, key in enumerate([1, 2, 1, 2, 2])]
    strategy = by_value().with_timestamp_assigner(lambda row, _: row[1])
    stream = local().from_collection(rows, type_info=kind).assign_timestamps_and_watermarks(strategy)
    found = list(stream.key_by("k").max("v", emit=emit).process(Clock()).execute_and_collect())
    assert [row[1] for row, _, _ in found] == [stamp for _, stamp, _ in found]


def test_what_an_event_time_timer_emits_has_its_time_and_of_a_processing_time_timer_none():
    class Both(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(5)
            ctx.timer_service().register_processing_time_timer(7)

        def on_timer(self, timestamp, ctx):
            yield ctx.time_domain().name

    with OneInputHarness(Both(), key=lambda n: n) as harness:
        harness.process_element(1, 1)
        harness.process_watermark(4)
        assert harness.take_with_timestamps() == []
        harness.process_watermark(5)
        harness.set_processing_time(9)
        assert harness.take_with_timestamps() == [("EVENT", 5), ("PROCESSING", None)]


# --- two inputs, restore ----------------------------------------------------------------------------------------------


def test_two_inputs_follow_the_lesser_clock():
    class Show(CoProcessFunction):
        def process_element1(self, value, ctx):
            yield ctx.timer_service().current_watermark()

        process_element2 = process_element1

    with TwoInputHarness(Show()) as harness:
        harness.process_watermark1(10)
        harness.process_element1(0, 11)
        harness.process_watermark2(4)
        harness.process_element2(0, 5)
        assert harness.take() == [MIN_WATERMARK, 4]


def test_after_a_restore_time_begins_anew_and_timers_are_still_there():
    with OneInputHarness(Alarm(), key=lambda n: n) as harness:
        harness.process_element(1, 1)
        harness.process_watermark(7)
        snapshot = harness.snapshot()
    with OneInputHarness(Alarm(), key=lambda n: n, restore=snapshot) as harness:
        assert harness.watermark == MIN_WATERMARK
        harness.process_watermark(11)
        assert harness.take() == [(1, 11, 11)]


# --- programs that are wrong ------------------------------------------------------------------------------------------


def test_what_is_no_strategy():
    with pytest.raises(InvalidArgument, match=r"assign_timestamps_and_watermarks\(\) at .*test_event_time.py.* got 5"):
        local().from_collection([1]).assign_timestamps_and_watermarks(5)


def test_a_column_that_is_not_there():
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    with pytest.raises(GraphError, match="unknown column 'at'; the stream has n"):
        local().from_collection([(1,)], type_info="n bigint").assign_timestamps_and_watermarks(strategy)


def test_the_error_of_an_assigner_names_the_operator_and_its_line():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=1))
    strategy = strategy.with_timestamp_assigner(lambda value, _: value["at"])
    stream = local().from_collection([7]).assign_timestamps_and_watermarks(strategy).name("clock")
    with pytest.raises(Exception, match=r"'clock'(.|\n)*not subscriptable"):
        list(stream.execute_and_collect())


def test_only_a_source_can_be_aligned():
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment("g", timedelta(seconds=1))
    with pytest.raises(InvalidArgument, match=r"only sources can pause.*from_source"):
        local().from_collection([1]).assign_timestamps_and_watermarks(strategy)
