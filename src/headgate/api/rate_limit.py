"""A limit on what a source gives: so many records a second, over all its subtasks, whatever the source is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.api.functions import OutputTag
from headgate.api.sources import UNCUT, DynamicSource, ReaderContext, Source, SourceReader, SplitEnumerator
from headgate.errors import InvalidArgument
from headgate.records.batch import Batch

__all__ = ["limited", "unlimited"]

_BURST_MS = 100  # what was not given in time may be given later, but not more than this at once


def limited(source: Source[Any], rate: float) -> Source[Any]:
    """The same source, giving at most `rate` records a second.

    >>> from headgate.api.sources import SequenceSource
    >>> from headgate.records.types import as_type
    >>> type(limited(SequenceSource(1, 9, as_type("bigint")), 100)).__name__
    'Limited'
    """
    if not rate > 0:
        raise InvalidArgument(f"rate must be positive records per second, got {rate}")
    return LimitedDynamic(source, rate) if isinstance(source, DynamicSource) else Limited(source, rate)


def unlimited(source: Any) -> Any:
    """What stands behind a limit, if there is one.

    >>> unlimited("anything else")
    'anything else'
    """
    return source.source if isinstance(source, Limited) else source


class Limited(Source[Any]):
    """A source whose splits are known when the job starts."""

    def __init__(self, source: Source[Any], rate: float) -> None:
        self._source, self._rate = source, rate
        self.single, self.type, self.side_outputs = source.single, source.type, source.side_outputs

    @property
    def source(self) -> Source[Any]:
        """The source itself."""
        return self._source

    def splits(self, parallelism: int) -> list[Any]:
        """Those of the source."""
        return self._source.splits(parallelism)

    def first_splits(self, context: ReaderContext) -> list[Any]:
        """Those of the source."""
        return self._source.first_splits(context)

    def reader(self, context: ReaderContext, splits: list[Any]) -> SourceReader[Any]:
        """The source's, held back."""
        share = self._rate / context.parallelism
        return _LimitedReader(self._source.reader(context, splits), share, context.clock)


class LimitedDynamic(Limited, DynamicSource[Any]):
    """A source whose splits are found while the job runs."""

    _source: DynamicSource[Any]

    def enumerator(self, restored: Any | None) -> SplitEnumerator[Any]:
        """That of the source."""
        return self._source.enumerator(restored)


class _LimitedReader(SourceReader[Any]):
    """Counts in thousandths of a record, so that slow rates are exact too."""

    def __init__(self, reader: SourceReader[Any], rate: float, clock: Callable[[], int]) -> None:
        self._reader, self._rate, self._clock = reader, rate, clock
        self._credit, self._at = 0.0, clock()
        self._waits = False

    def poll(self, max_records: int) -> Batch | None:
        if max_records >= UNCUT:  # a barrier waits for what must not be cut
            return self._give(max_records)
        now = self._clock()
        most = max(1.0, self._rate * _BURST_MS / 1000)
        self._credit, self._at = min(most, self._credit + (now - self._at) * self._rate / 1000), now
        self._waits = self._credit < 1
        if self._waits:
            return None
        return self._give(min(max_records, int(self._credit)))

    def _give(self, max_records: int) -> Batch | None:
        batch = self._reader.poll(max_records)
        self._credit -= 0 if batch is None else len(batch)
        return batch

    def ready_at(self) -> int | None:
        if self._waits:
            return self._at + max(1, round((1 - self._credit) * 1000 / self._rate))
        return self._reader.ready_at()

    def snapshot(self) -> list[Any]:
        return self._reader.snapshot()

    @property
    def finished(self) -> bool:  # type: ignore[override]
        return self._reader.finished

    @property
    def backlog(self) -> bool:  # type: ignore[override]
        return self._reader.backlog

    @property
    def corrupt(self) -> int:  # type: ignore[override]
        return self._reader.corrupt

    @property
    def holds_barrier(self) -> bool:  # type: ignore[override]
        return self._reader.holds_barrier

    @property
    def wants_split(self) -> bool:
        return self._reader.wants_split

    def add_splits(self, splits: list[Any]) -> None:
        self._reader.add_splits(splits)

    def no_more_splits(self) -> None:
        self._reader.no_more_splits()

    def notify_complete(self, splits: list[Any]) -> None:
        self._reader.notify_complete(splits)

    def take_side(self) -> list[tuple[OutputTag, Any]]:
        return self._reader.take_side()

    def close(self) -> None:
        self._reader.close()
