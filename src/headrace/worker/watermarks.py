"""Watermarks in a subtask: made from the records of a source (`Stamper`), combined over input channels (`WatermarkValve`).

Both are stepped in the subtask's thread and have no clock of their own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.api.watermarks import MAX_WATERMARK, MIN_WATERMARK, Watermark, WatermarkStrategy
from headrace.errors import UserCodeError
from headrace.records.batch import Batch

_LOG = logging.getLogger(__name__)

Stamps = np.ndarray[Any, np.dtype[np.int64]]
_CONFIRMATION = 50  # ms; longer than a subtask waits before it reads again
_FURTHEST = 1 << 62  # ms
_PER_MILLISECOND = {"us": 1000, "ns": 1_000_000}


class TimeReceiver(Protocol):
    """A receiver of an event-time clock: an operator, or an edge to other subtasks."""

    def advance(self, watermark: int) -> None:
        """The clock has moved on; it never goes back."""

    def set_idle(self, idle: bool) -> None:
        """Mark the clock as idle (no record comes, others need not wait for it), or as active."""


class _Channel:
    __slots__ = ("aligned", "idle", "watermark")

    def __init__(self) -> None:
        self.watermark, self.idle, self.aligned = MIN_WATERMARK, False, True


class WatermarkValve:
    """The clock of a subtask: the least watermark of its channels, idle ones left out.

    A channel that was idle counts again when it has caught up with the clock, since the clock never goes back.

    >>> class Shown:
    ...     advance, set_idle = print, print
    >>> valve = WatermarkValve("ab", Shown)
    >>> valve.on_watermark("a", 5)
    >>> valve.on_watermark("b", 3)
    3
    """

    def __init__(self, channels: Iterable[Hashable], receiver: TimeReceiver) -> None:
        self._channels = {channel: _Channel() for channel in channels}
        self._receiver = receiver
        self.watermark = MIN_WATERMARK
        self.idle = False

    def add(self, channel: Hashable) -> None:
        """One more channel: the clock stands still until it has caught up."""
        self._channels[channel] = _Channel()
        self._set_idle(False)

    def remove(self, channel: Hashable) -> None:
        """The channel is not there any more."""
        del self._channels[channel]
        self._recombine()

    def on_watermark(self, channel: Hashable, watermark: int) -> None:
        one = self._channels[channel]
        if one.idle or watermark <= one.watermark:
            return
        one.watermark = watermark
        one.aligned = one.aligned or watermark >= self.watermark
        self._advance_to_least()

    def on_status(self, channel: Hashable, idle: bool) -> None:
        one = self._channels[channel]
        if one.idle is idle:
            return
        one.idle, one.aligned = idle, not idle and one.watermark >= self.watermark
        if idle:
            self._recombine()
        else:
            self._set_idle(False)

    def on_end(self, channel: Hashable) -> None:
        """No record follows on the channel."""
        one = self._channels[channel]
        one.watermark, one.aligned = MAX_WATERMARK, True
        if one.idle:
            one.idle = False
            self._set_idle(all(other.idle for other in self._channels.values()))
        self._advance_to_least()

    def _recombine(self) -> None:
        """A channel is not to be waited for any more."""
        if all(one.idle for one in self._channels.values()):
            # What the channels have said in all counts, then the clock stands still.
            self._advance(max(one.watermark for one in self._channels.values()))
            self._set_idle(True)
        else:
            self._advance_to_least()

    def _advance_to_least(self) -> None:
        self._advance(min((one.watermark for one in self._channels.values() if one.aligned), default=MIN_WATERMARK))

    def _advance(self, watermark: int) -> None:
        if watermark > self.watermark:
            self.watermark = watermark
            self._receiver.advance(watermark)

    def _set_idle(self, idle: bool) -> None:
        if idle is not self.idle:
            self.idle = idle
            self._receiver.set_idle(idle)


class _Split:
    """The clock of one split, or of a whole subtask; also the `WatermarkOutput` of the user's generator."""

    def __init__(self, strategy: WatermarkStrategy, now: int) -> None:
        self.generator = None if strategy.generator is None else strategy.generator()
        self.watermark = self.greatest = MIN_WATERMARK
        self.idle = False
        self.seen_at = now
        self.doubted_at: int | None = None  # when it was found to have had no record for too long

    def seen(self, now: int) -> None:
        """It has a record, or could not be read until now."""
        self.seen_at, self.doubted_at = now, None

    def idle_at(self, idle_after: int) -> int:
        """Return the time at which the split becomes idle, or is checked, if no record comes."""
        return self.seen_at + idle_after if self.doubted_at is None else self.doubted_at + _CONFIRMATION

    def doubt(self, now: int) -> None:
        """The time is over; it is idle if that is found again a moment later.

        A subtask may have been held up by back-pressure all the time, and records wait to be read.
        """
        if self.doubted_at is None:
            self.doubted_at = now
        else:
            self.idle = True

    def emit_watermark(self, watermark: Watermark | int) -> None:
        timestamp = watermark.timestamp if isinstance(watermark, Watermark) else watermark
        if not _is_int(timestamp) or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            raise UserCodeError(
                "HR-1407", f"a watermark is an int of 64 bits in milliseconds, the generator emitted {timestamp!r}"
            )
        self.watermark = max(self.watermark, int(timestamp))
        self.idle = False

    def mark_idle(self) -> None:
        self.idle = True

    def mark_active(self) -> None:
        self.idle = False


class Stamper:
    """Gives the records of a stream their timestamps, and makes its watermarks.

    `emit` takes the records, `receiver` the watermarks behind them; watermarks leave every `interval` ms while there is
    something new to say, so that a quiet stream costs nothing. Of a source whose splits are in order, each has watermarks
    of its own, and the least one counts.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        emit: Callable[[Batch], None],
        receiver: TimeReceiver,
        now: Callable[[], int],
        interval: int,
    ) -> None:
        self._warned = False
        self._strategy, self._emit, self._now, self._interval = strategy, emit, now, interval
        self._lag = strategy.out_of_orderness
        self._valve = WatermarkValve([None], receiver)
        self._splits: dict[Hashable, _Split] = {None: _Split(strategy, now())}
        self._next_emit: int | None = now() + interval if strategy.generator is not None and interval else None
        self._paused = False

    def pause(self, paused: bool) -> None:
        """While the source must not read, a split without records is not idle."""
        if paused is self._paused:
            return
        self._paused = paused
        for split in self._splits.values():
            split.seen(self._now())

    def set_splits(self, splits: Collection[Hashable]) -> None:
        """The splits that are being read now. A new one holds the clock until it has a watermark, or is idle.

        Without any, the subtask holds the clock itself, until it is idle.
        """
        wanted = splits or (None,)
        for name in wanted:
            if name not in self._splits:
                self._splits[name] = _Split(self._strategy, self._now())
                self._valve.add(name)
        for gone in self._splits.keys() - set(wanted):
            del self._splits[gone]
            self._valve.remove(gone)

    def receive(self, batch: Batch, splits: Iterable[Hashable] | None = None) -> None:
        """Pass a batch on with timestamps; `splits` has the split of each record."""
        if self._strategy.assigner is not None:
            batch = self._stamped(batch)
        if self._lag is not None and batch.timestamps is None and not self._warned:
            self._warned = True  # as in Flink, only what needs the time of records fails, such as a window
            _LOG.warning(
                "records have no timestamps, so there are no watermarks: give the watermark strategy a timestamp assigner, "
                "with_timestamp_assigner(...), or leave it out"
            )
        runs = [(None, len(batch))] if splits is None else [(name, len(list(run))) for name, run in groupby(splits)]
        at, now = 0, self._now()
        for name, length in runs:
            self._split(name, batch.slice(at, length), now)
            at += length
        if self._lag is not None:
            if self._interval and self._next_emit is None:
                self._next_emit = now + self._interval
            self.on_time(now)

    def _split(self, name: Hashable, batch: Batch, now: int) -> None:
        split = self._splits.get(name)
        if split is None:  # it was read to its end with these records
            self._emit(batch)
            return
        split.seen(now)
        if split.idle:
            split.idle = False
            self._send(name, split)
        if split.generator is not None:
            self._each(name, split, batch)
            return
        self._emit(batch)
        if self._lag is not None and batch.timestamps is not None:
            split.greatest = max(split.greatest, int(batch.timestamps.max()))

    def _each(self, name: Hashable, split: _Split, batch: Batch) -> None:
        """A generator of the user's: a watermark follows directly on the record at which it was emitted."""
        generator, start = split.generator, 0
        assert generator is not None
        stamps = [MIN_WATERMARK] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
        for index, (row, stamp) in enumerate(zip(batch.rows(), stamps, strict=True), 1):
            before = split.watermark
            generator.on_event(row, stamp, split)
            if split.watermark > before:
                self._emit(batch.slice(start, index - start))
                start = index
                self._send(name, split)
        if start < len(batch):
            self._emit(batch.slice(start, len(batch) - start))

    def _stamped(self, batch: Batch) -> Batch:
        assigner = self._strategy.assigner
        if isinstance(assigner, str):
            stamps = _column_stamps(batch, assigner)
            if len(stamps):
                _check_range(int(stamps.min()))
                _check_range(int(stamps.max()))
            return batch.with_timestamps(stamps)
        assert assigner is not None
        before = [MIN_WATERMARK] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
        return batch.with_timestamps(
            _checked([assigner(row, stamp) for row, stamp in zip(batch.rows(), before, strict=True)])
        )

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        times = [] if self._next_emit is None else [self._next_emit]
        if self._strategy.idle_after is not None and not self._paused:
            times += [split.idle_at(self._strategy.idle_after) for split in self._splits.values() if not split.idle]
        return min(times, default=None)

    def on_time(self, now: int) -> None:
        emit = self._next_emit is not None and now >= self._next_emit
        if emit:
            self._next_emit = None if self._strategy.generator is None else now + self._interval
        idle_after = self._strategy.idle_after
        for name, split in self._splits.items():
            if emit and split.generator is not None:
                split.generator.on_periodic_emit(split)
            elif emit and self._lag is not None and split.greatest > MIN_WATERMARK:
                split.watermark = split.greatest - self._lag - 1
            if idle_after is not None and not self._paused and now >= split.idle_at(idle_after):
                split.doubt(now)
            self._send(name, split)

    def _send(self, name: Hashable, split: _Split) -> None:
        if not split.idle:
            self._valve.on_status(name, idle=False)
        self._valve.on_watermark(name, split.watermark)
        if split.idle:
            self._valve.on_status(name, idle=True)


def _checked(stamps: list[Any]) -> Stamps:
    for place, stamp in enumerate(stamps):
        if not _is_int(stamp):
            if not isinstance(stamp, float) or not math.isfinite(stamp):
                raise UserCodeError(
                    "HR-1407", f"a timestamp is an int in milliseconds, the timestamp assigner gave {stamp!r}"
                )
            stamps[place] = int(stamp)  # of `moment.timestamp() * 1000`
        _check_range(stamps[place])
    return np.array(stamps, np.int64)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_range(stamp: int) -> None:
    """A stand-in for "never" would end all windows, and windows around it would have no bounds."""
    if stamp == MIN_WATERMARK:
        raise UserCodeError("HR-1407", "the record has no timestamp, and the timestamp assigner gave none")
    if not -_FURTHEST <= stamp <= _FURTHEST:
        raise UserCodeError(
            "HR-1407",
            f"the timestamp {stamp} is millions of years away: give milliseconds since 1970, and filter out records without time",
        )


def _column_stamps(batch: Batch, name: str) -> Stamps:
    """Milliseconds from a column of integers (milliseconds already), timestamps or dates."""
    column = batch.arrow().column(name)
    if column.null_count:
        raise UserCodeError("HR-1407", f"column '{name}' gives the timestamps and has a null: filter nulls out first")
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)
    if not pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"))
    unit = column.type.unit
    if unit == "s":
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False) * 1000  # type: ignore[no-any-return]
    # Rounded down, not towards zero: a time just before 1970 belongs to a window before 1970.
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False) // _PER_MILLISECOND.get(unit, 1)  # type: ignore[no-any-return]
