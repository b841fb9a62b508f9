"""Programs by event time: what they give depends on the records alone, so it is computed here from all of them at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.api.functions import KeyedProcessFunction, RuntimeContext
from headrace.api.joins import ProcessJoinFunction
from headrace.api.sources import DataGenSource
from headrace.api.stream import DataStream
from headrace.api.watermarks import WatermarkStrategy
from headrace.api.windows import EventTimeSessionWindows, TumblingEventTimeWindows, WindowFunction
from headrace.environment import StreamExecutionEnvironment
from headrace.records.types import PICKLED
from headrace.state.api import MapStateDescriptor
from headrace.testing.simulation.world import Program, WorldSink

Rows = Counter[tuple[int, ...]]
Expected = Callable[[Collection[int]], Rows]
"""The rows of a program over some records: the key first, a weight last, so that none can be lost unnoticed."""

_KEYS = 8
_SIZE = 200  # of windows, ms
_GAP = 90  # of sessions
_REACH = 120  # of pairs
_DISORDER = timedelta(milliseconds=900)  # more than a source subtask ever mixes, so that no record is late
_WAITING = MapStateDescriptor("waiting", "bigint", "array<bigint>")
_SEEN = MapStateDescriptor("seen", "bigint", "bigint")


def key_of_time(record: int) -> int:
    """Return the key of a record."""
    return record % _KEYS


def time_of(record: int) -> int:
    """Return the timestamp of a record: out of order, and partly before 1970."""
    return record * 10 - record * 7919 % 400 - 1000


def _timed(env: StreamExecutionEnvironment, records: int) -> DataStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(_DISORDER)
    return env.from_datagen(lambda n: n, records).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda record, _: time_of(record))
    )


# --- windows of whole batches -------------------------------------------------------------------------------------------


def _columns(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
    columns = [key_of_time(numbers), time_of(numbers), numbers + 1]  # type: ignore[arg-type]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], ["key", "at", "weight"])


def tumbling(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Built-in sums over tumbling windows."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(_DISORDER).with_timestamp_assigner("at")
    source = env.from_datagen(_columns, records, None, "key bigint, at bigint, weight bigint", vectorised=True)
    keyed = source.assign_timestamps_and_watermarks(strategy).key_by("key")
    sums = keyed.window(TumblingEventTimeWindows.of(_SIZE)).sum("weight")
    sums.rebalance().map(tuple).add_sink(WorldSink(run))


def _in_tumbling_windows(records: Collection[int]) -> Rows:
    sums: Counter[tuple[int, int]] = Counter()
    for record in records:
        sums[key_of_time(record), time_of(record) // _SIZE * _SIZE] += record + 1
    return Counter((key, start, start + _SIZE, total) for (key, start), total in sums.items())


# --- two sources whose clocks are aligned --------------------------------------------------------------------------------


def aligned(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Tumbling windows over the even and the odd records, which come from two sources of one alignment group."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(_DISORDER).with_timestamp_assigner(
        lambda record, _: time_of(record)
    )
    strategy = strategy.with_watermark_alignment("both", _SIZE, 5)
    halves = (
        (DataGenSource(lambda n: 2 * n, (records + 1) // 2, None, PICKLED, vectorised=False), "even"),
        (DataGenSource(lambda n: 2 * n + 1, records // 2, None, PICKLED, vectorised=False), "odd"),
    )
    even, odd = (env.from_source(source, strategy, name) for source, name in halves)
    keyed = even.union(odd).key_by(key_of_time)
    keyed.window(TumblingEventTimeWindows.of(_SIZE)).apply(_Weigh()).rebalance().add_sink(WorldSink(run))


# --- sessions -----------------------------------------------------------------------------------------------------------


class _Weigh(WindowFunction):
    def apply(self, key: int, window: Any, inputs: Iterable[int]) -> Iterator[tuple[int, ...]]:
        yield key, window.start, window.end, sum(record + 1 for record in inputs)


def sessions(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Sessions, which merge when a record comes between them."""
    keyed = _timed(env, records).key_by(key_of_time)
    keyed.window(EventTimeSessionWindows.with_gap(_GAP)).apply(_Weigh()).rebalance().add_sink(WorldSink(run))


def _in_sessions(records: Collection[int]) -> Rows:
    by_key = _in_order(records)
    rows: Rows = Counter()
    for key, in_order in by_key.items():
        start, end, total = None, 0, 0
        for at, record in in_order:
            if start is not None and at > end:
                rows[key, start, end, total] += 1
                start, total = None, 0
            start, end, total = at if start is None else start, at + _GAP, total + record + 1
        assert start is not None
        rows[key, start, end, total] += 1
    return rows


# --- timers -------------------------------------------------------------------------------------------------------------


class _InOrder(KeyedProcessFunction):
    """Numbers the records of a key in the order of their times: each waits for its timer."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._waiting = runtime_context.get_map_state(_WAITING)
        self._seen = runtime_context.get_map_state(_SEEN)

    def process_element(self, value: int, ctx: Any) -> None:
        at = ctx.timestamp()
        self._waiting.put(at, [*(self._waiting.get(at) or ()), value])
        ctx.timer_service().register_event_time_timer(at)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, ...]]:
        for record in sorted(self._waiting.get(timestamp)):
            number = (self._seen.get(0) or 0) + 1
            self._seen.put(0, number)
            yield ctx.get_current_key(), timestamp, number, record + 1
        self._waiting.remove(timestamp)


def timers(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Emit records in the order of their times, by timers."""
    _timed(env, records).key_by(key_of_time).process(_InOrder()).rebalance().add_sink(WorldSink(run))


def _in_order(records: Collection[int]) -> dict[int, list[tuple[int, int]]]:
    by_key = defaultdict(list)
    for record in records:
        by_key[key_of_time(record)].append((time_of(record), record))
    return {key: sorted(found) for key, found in by_key.items()}


def _numbered(records: Collection[int]) -> Rows:
    return Counter(
        (key, at, number, record + 1)
        for key, in_order in _in_order(records).items()
        for number, (at, record) in enumerate(in_order, 1)
    )


# --- pairs --------------------------------------------------------------------------------------------------------------


class _Pairing(ProcessJoinFunction):
    def process_element(self, left: int, right: int, ctx: Any) -> Iterator[tuple[int, ...]]:
        yield key_of_time(left), left, right + 1


def _side(record: int) -> int:
    return record // _KEYS % 2


def pairs(env: StreamExecutionEnvironment, run: str, records: int) -> None:
    """Build an interval join of the even and the odd records of each key."""
    source = _timed(env, records)
    left = source.filter(lambda record: _side(record) == 0).key_by(key_of_time)
    right = source.filter(lambda record: _side(record) == 1).key_by(key_of_time)
    left.interval_join(right).between(-_REACH, _REACH).process(_Pairing()).rebalance().add_sink(WorldSink(run))


def _paired(records: Collection[int]) -> Rows:
    return Counter(
        (key, left, right + 1)
        for key, in_order in _in_order(records).items()
        for at, left in in_order
        for other, right in in_order
        if _side(left) == 0 and _side(right) == 1 and abs(at - other) <= _REACH
    )


TIMED: dict[Program, Expected] = {
    tumbling: _in_tumbling_windows,
    aligned: _in_tumbling_windows,
    sessions: _in_sessions,
    timers: _numbered,
    pairs: _paired,
}
"""The programs by event time, each with what it must give."""
