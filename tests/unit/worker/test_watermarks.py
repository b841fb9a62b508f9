"""Watermarks in a subtask: the valve over channels, and what a strategy makes of records."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from headrace import MAX_WATERMARK, MIN_WATERMARK, Watermark, WatermarkGenerator, WatermarkStrategy
from headrace.errors import InvalidArgument, UserCodeError
from headrace.records.batch import Batch
from headrace.records.types import as_type
from headrace.worker.watermarks import Stamper, WatermarkValve


class Seen:
    """Takes records, watermarks and status as one list of events."""

    def __init__(self):
        self.events = []

    def advance(self, watermark):
        self.events.append(watermark)

    def set_idle(self, idle):
        self.events.append("idle" if idle else "active")

    def emit(self, batch):
        stamps = [None] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
        self.events += list(zip(batch.rows(), stamps, strict=True))

    def take(self):
        taken, self.events = self.events, []
        return taken


# --- the valve --------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen():
    return Seen()


def test_the_clock_is_the_least_of_the_channels(seen):
    valve = WatermarkValve("ab", seen)
    valve.on_watermark("a", 5)
    assert seen.take() == []
    valve.on_watermark("b", 3)
    valve.on_watermark("b", 2)  # it never goes back
    valve.on_watermark("b", 9)
    assert seen.take() == [3, 5]


def test_an_idle_channel_is_not_waited_for(seen):
    valve = WatermarkValve("ab", seen)
    valve.on_watermark("a", 5)
    valve.on_status("b", idle=True)
    assert seen.take() == [5]
    valve.on_watermark("a", 7)
    assert seen.take() == [7]


def test_a_channel_that_comes_back_counts_when_it_has_caught_up(seen):
    valve = WatermarkValve("ab", seen)
    valve.on_status("b", idle=True)
    valve.on_watermark("a", 10)
    valve.on_status("b", idle=False)
    valve.on_watermark("b", 4)
    valve.on_watermark("a", 12)
    assert seen.take() == [10, 12]  # b is behind the clock
    valve.on_watermark("b", 13)
    valve.on_watermark("a", 20)
    assert seen.take() == [13]


def test_when_all_are_idle_the_greatest_counts_and_the_subtask_is_idle(seen):
    valve = WatermarkValve("ab", seen)
    valve.on_watermark("a", 5)
    valve.on_watermark("b", 8)
    valve.on_status("a", idle=True)
    valve.on_status("b", idle=True)
    assert seen.take() == [5, 8, "idle"]
    valve.on_status("a", idle=False)
    valve.on_watermark("a", 9)
    assert seen.take() == ["active", 9]


def test_a_channel_that_ends_is_not_waited_for(seen):
    valve = WatermarkValve("ab", seen)
    valve.on_watermark("a", 5)
    valve.on_end("b")
    assert seen.take() == [5]
    valve.on_end("a")
    assert seen.take() == [MAX_WATERMARK]


def test_an_idle_channel_that_ends_leaves_the_others_in_charge(seen):
    valve = WatermarkValve("ab", seen)
    valve.on_status("a", idle=True)
    valve.on_end("a")
    assert seen.take() == []
    valve.on_watermark("b", 5)
    assert seen.take() == [5]


class PlainValve:
    """What the clock must be, said in the simplest way."""

    def __init__(self, channels):
        self.marks, self.idle = dict.fromkeys(channels, MIN_WATERMARK), set()
        self.behind = set()  # channels that came back and have not caught up
        self.clock = MIN_WATERMARK

    def step(self, channel, what):
        if what == "idle":
            self.idle.add(channel)
            self.behind.discard(channel)
        elif what == "active" and channel in self.idle:
            self.idle.discard(channel)
            self.behind |= {channel} if self.marks[channel] < self.clock else set()
        elif what == "end":
            self.idle.discard(channel)
            self.behind.discard(channel)
            self.marks[channel] = MAX_WATERMARK
        elif isinstance(what, int) and channel not in self.idle:
            self.marks[channel] = max(self.marks[channel], what)
            self.behind -= {channel} if self.marks[channel] >= self.clock else set()
        counted = [mark for one, mark in self.marks.items() if one not in self.idle | self.behind]
        if len(self.idle) == len(self.marks):
            self.clock = max(self.clock, *self.marks.values())
        elif counted:
            self.clock = max(self.clock, min(counted))


WHAT = st.one_of(st.integers(0, 20), st.sampled_from(["idle", "active", "end"]))


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.sampled_from("abc"), WHAT)))
def test_the_valve_agrees_with_a_plain_one(steps):
    valve, plain, ended = WatermarkValve("abc", Seen()), PlainValve("abc"), set()
    for channel, what in steps:
        if channel in ended:
            continue
        plain.step(channel, what)
        if what == "end":
            valve.on_end(channel)
            ended.add(channel)
        elif isinstance(what, str):
            valve.on_status(channel, idle=what == "idle")
        else:
            valve.on_watermark(channel, what)
        assert valve.watermark == plain.clock
        assert valve.idle == (plain.idle == set("abc"))


# --- what a strategy makes of records ---------------------------------------------------------------------------------


class Clock:
    now = 0

    def __call__(self):
        return self.now


def stamper(strategy, seen, clock, interval=200):
    return Stamper(strategy, seen.emit, seen, clock, interval)


def batch(*values):
    return Batch.of_rows(list(values))


def stamped(*stamps):
    rows = Batch.of_rows(list(stamps))
    rows.timestamps = np.array(stamps, np.int64)
    return rows


def test_watermarks_leave_behind_the_records_and_at_intervals(seen):
    clock = Clock()
    one = stamper(WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=3)), seen, clock)
    one.receive(stamped(10, 7))
    assert seen.take() == [(10, 10), (7, 7)]
    assert one.next_deadline() == 200
    clock.now = 200
    one.on_time(200)
    assert seen.take() == [6]  # 10 - 3 - 1: a record with the timestamp 7 may follow
    assert one.next_deadline() is None  # nothing new to say
    clock.now = 450
    one.receive(stamped(8))
    assert (seen.take(), one.next_deadline()) == ([(8, 8)], 650)
    one.on_time(650)
    assert seen.take() == []


def test_monotonous_timestamps(seen):
    clock = Clock()
    one = stamper(WatermarkStrategy.for_monotonous_timestamps(), seen, clock)
    one.receive(stamped(10))
    one.on_time(200)
    assert seen.take() == [(10, 10), 9]


@pytest.mark.parametrize("strategy", [WatermarkStrategy.no_watermarks(), None])
def test_no_watermarks(seen, strategy):
    one = stamper(
        strategy or WatermarkStrategy.for_monotonous_timestamps(),
        seen,
        Clock(),
        interval=0 if strategy is None else 200,
    )
    one.receive(stamped(10))
    assert (seen.take(), one.next_deadline()) == ([(10, 10)], None)


def test_timestamps_from_a_function_and_from_a_column(seen):
    strategy = WatermarkStrategy.no_watermarks()
    by_function = strategy.with_timestamp_assigner(
        lambda value, before: value * 10 if before == MIN_WATERMARK else before + 1
    )
    one = stamper(by_function, seen, Clock())
    one.receive(batch(1, 2))
    one.receive(stamped(5))
    assert seen.take() == [(1, 10), (2, 20), (5, 6)]
    kind = as_type("word string, at bigint")
    one = stamper(strategy.with_timestamp_assigner("at"), seen, Clock())
    one.receive(Batch.of_arrow(kind.to_batch([("a", 3), ("b", 4)]), kind))
    assert [stamp for _, stamp in seen.take()] == [3, 4]
    kind = as_type("at timestamp")
    one = stamper(strategy.with_timestamp_assigner("at"), seen, Clock())
    one.receive(Batch.of_arrow(kind.to_batch([(np.datetime64(1500, "ms").item(),)]), kind))
    assert [stamp for _, stamp in seen.take()] == [1500]


def test_a_timestamp_that_is_none(seen):
    one = stamper(WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda value, _: value), seen, Clock())
    with pytest.raises(UserCodeError, match="a timestamp is an int in milliseconds, the timestamp assigner gave '7'"):
        one.receive(batch("7"))


def test_records_without_timestamps_make_no_watermarks(seen, caplog):
    """As in Flink: only what needs the time of a record fails."""
    one = stamper(WatermarkStrategy.for_monotonous_timestamps(), seen, Clock())
    one.receive(batch(1))
    one.receive(batch(2))
    assert seen.events == [(1, None), (2, None)]
    assert caplog.text.count("records have no timestamps, so there are no watermarks") == 1
    assert "with_timestamp_assigner" in caplog.text


def test_an_idle_stream(seen):
    clock = Clock()
    one = stamper(WatermarkStrategy.for_monotonous_timestamps().with_idleness(timedelta(seconds=1)), seen, clock)
    assert one.next_deadline() == 1000
    one.receive(stamped(5))
    one.on_time(200)
    clock.now = 1000
    one.on_time(1000)
    assert (seen.take(), one.next_deadline()) == (
        [(5, 5), 4],
        1050,
    )  # records may wait to be read: it is looked at again
    clock.now = 1050
    one.on_time(1050)
    assert seen.take() == ["idle"]
    assert one.next_deadline() is None
    clock.now = 1500
    one.receive(stamped(6))
    assert seen.take() == ["active", (6, 6)]
    assert one.next_deadline() == 1700


class AtMarks(WatermarkGenerator):
    """A watermark at each record that is negative; every interval, one less than the greatest timestamp."""

    def __init__(self):
        self.greatest = MIN_WATERMARK

    def on_event(self, event, event_timestamp, output):
        self.greatest = max(self.greatest, event_timestamp)
        if event < 0:
            output.emit_watermark(Watermark(-event))

    def on_periodic_emit(self, output):
        output.emit_watermark(Watermark(self.greatest - 1))


def test_a_watermark_of_a_generator_follows_directly_on_its_record(seen):
    one = stamper(WatermarkStrategy.for_generator(AtMarks).with_timestamp_assigner(lambda v, _: abs(v)), seen, Clock())
    one.receive(batch(1, -4, 6, -3, 9))
    assert seen.take() == [(1, 1), (-4, 4), 4, (6, 6), (-3, 3), (9, 9)]
    one.on_time(200)
    assert (seen.take(), one.next_deadline()) == ([8], 400)


# --- splits -----------------------------------------------------------------------------------------------------------


def test_each_split_has_its_own_watermark_and_the_least_counts(seen):
    one = stamper(WatermarkStrategy.for_monotonous_timestamps(), seen, Clock())
    one.set_splits(["a", "b"])
    one.receive(stamped(100, 101, 5), ["a", "a", "b"])
    one.on_time(200)
    assert seen.take() == [(100, 100), (101, 101), (5, 5), 4]
    one.set_splits(["a"])  # b was read to its end
    assert seen.take() == [100]


def test_a_new_split_holds_the_clock(seen):
    one = stamper(WatermarkStrategy.for_monotonous_timestamps(), seen, Clock())
    one.set_splits(["a"])
    one.receive(stamped(10), ["a"])
    one.on_time(200)
    one.set_splits(["a", "b"])
    one.receive(stamped(20), ["a"])
    one.on_time(400)
    assert seen.take() == [(10, 10), 9, (20, 20)]
    one.receive(stamped(15), ["b"])
    one.on_time(600)
    assert seen.take() == [(15, 15), 14]


def test_a_split_without_records_is_idle_by_itself(seen):
    clock = Clock()
    one = stamper(WatermarkStrategy.for_monotonous_timestamps().with_idleness(1000), seen, clock)
    one.set_splits(["a", "b"])
    clock.now = 900
    one.receive(stamped(10), ["a"])
    for clock.now in (1000, 1100):
        one.on_time(clock.now)
    assert seen.take() == [(10, 10), 9]  # b is not waited for


def test_a_subtask_without_splits_holds_the_clock_until_it_is_idle(seen):
    clock = Clock()
    one = stamper(WatermarkStrategy.for_monotonous_timestamps().with_idleness(1000), seen, clock)
    one.set_splits([])
    for clock.now in (1000, 1050):
        one.on_time(clock.now)
    assert seen.take() == ["idle"]


def test_a_source_that_must_pause_is_not_idle(seen):
    clock = Clock()
    one = stamper(WatermarkStrategy.for_monotonous_timestamps().with_idleness(1000), seen, clock)
    one.pause(True)
    clock.now = 5000
    assert one.next_deadline() is None
    one.on_time(5000)
    one.pause(False)
    assert (seen.take(), one.next_deadline()) == ([], 6000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=-1)), "must not be negative"),
        (lambda: WatermarkStrategy.no_watermarks().with_idleness(timedelta(0)), "must be positive"),
        (lambda: WatermarkStrategy.for_generator(3), "needs a class or a function"),
        (lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(3), "with_timestamp_assigner"),
    ],
)
def test_a_strategy_that_makes_no_sense(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()
