"""The contract of sources, and the sources that need no connector.

A source is divided into *splits*; every subtask reads some of them, and a checkpoint holds their positions. The splits of
most sources are known when the job starts; a `DynamicSource` has an enumerator on the driver that finds them while the job
runs. A reader is polled in the subtask's thread: it never sleeps and has no clock of its own, so the same reader runs on
Spark and in the local runtime. A restore may distribute the splits over another number of subtasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from headrace.api.durable import durable
from headrace.api.functions import OutputTag
from headrace.errors import InvalidArgument
from headrace.records.batch import Batch
from headrace.records.copying import copier
from headrace.records.kernel import detached
from headrace.records.types import PICKLED, TypeInformation

__all__ = ["DynamicSource", "QueueReader", "ReaderContext", "Source", "SourceReader", "SplitEnumerator"]

S = TypeVar("S")

UNCUT = 1 << 30  # records that are asked for at once when a reader `holds_barrier`

_SPLITS = 16  # the least number, so that the job can be scaled up later


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """The subtask in which a reader runs."""

    subtask: int
    parallelism: int
    clock: Callable[[], int]  # milliseconds


class SourceReader(ABC, Generic[S]):
    """Reads the splits of one subtask."""

    finished: bool = False

    backlog: bool = False
    """Whether it reads a backlog: `execution.checkpointing.interval-during-backlog` applies then."""

    holds_barrier: bool = False
    """Whether it is inside something that it cannot resume in the middle: it is polled further before a snapshot."""

    @abstractmethod
    def poll(self, max_records: int) -> Batch | None:
        """At most `max_records` records, or None if there are none now; sets `finished` with the last one.

        The list of untyped records must not be used again: they may be sent later.
        """

    @abstractmethod
    def snapshot(self) -> list[S]:
        """The splits with their positions: the first record not yet returned (SPEC R9.4)."""

    def notify_complete(self, splits: list[S]) -> None:
        """The checkpoint with these splits, as `snapshot` returned them, is complete (SPEC R9.4)."""

    def ready_at(self) -> int | None:
        """After a poll that returned None: the time (ms) at which the next one makes sense, if it is known."""
        return None

    @property
    def wants_split(self) -> bool:
        """Of a dynamic source: whether to ask for another split."""
        return False

    def add_splits(self, splits: list[S]) -> None:
        """Of a dynamic source: read these as well."""
        raise NotImplementedError(
            f"{type(self).__name__} is given splits while it runs, since its source is dynamic: "
            "it must define add_splits(splits)"
        )

    def no_more_splits(self) -> None:
        """Of a dynamic source: when the present splits are read, the reader is finished."""

    corrupt: int = 0
    """The number of records that could not be read and were skipped."""

    def take_side(self) -> list[tuple[OutputTag, Any]]:
        """Records for side outputs; called after each `poll`."""
        return []

    def ordered_splits(self) -> Collection[Hashable] | None:
        """The names of the splits being read, if records of one are in order of time: each has its own watermark then."""
        return None

    def split_of_each(self) -> Iterable[Hashable]:
        """Of a reader with `ordered_splits`: the split of each record that the last `poll` returned."""
        return ()

    def close(self) -> None:
        """Release resources."""


class QueueReader(SourceReader[S]):
    """Base class of readers of a dynamic source that read one split after the other; `_splits` holds the rest."""

    def __init__(self, splits: Sequence[S]) -> None:
        self._splits: list[S] = list(splits)
        self._no_more = False

    @property
    def wants_split(self) -> bool:
        return not self._splits and not self._no_more

    def add_splits(self, splits: list[S]) -> None:
        self._splits += splits

    def no_more_splits(self) -> None:
        self._no_more = True
        self.finished = not self._splits

    def _end_split(self) -> None:
        """Remove the first split, which is read to its end."""
        self._splits.pop(0)
        self.finished = self._no_more and not self._splits

    def snapshot(self) -> list[S]:
        return list(self._splits)


class Source(ABC, Generic[S]):
    """Describes a source; it is pickled and sent to the workers."""

    single = False
    """Whether it must run in one subtask."""

    type: TypeInformation = PICKLED

    bounded: bool | None = None
    """Whether the stream ends; None: it is not known."""

    side_outputs: tuple[OutputTag, ...] = ()
    """The side outputs that its readers give records to."""

    @abstractmethod
    def splits(self, parallelism: int) -> list[S]:
        """All splits, at their beginning."""

    @abstractmethod
    def reader(self, context: ReaderContext, splits: list[S]) -> SourceReader[S]:
        """The reader of one subtask for some splits."""

    def first_splits(self, context: ReaderContext) -> list[S]:
        """The splits of one subtask when nothing was restored: neighbours stay together."""
        everything = self.splits(context.parallelism)
        first = len(everything) * context.subtask // context.parallelism
        last = len(everything) * (context.subtask + 1) // context.parallelism
        return everything[first:last]


class SplitEnumerator(ABC, Generic[S]):
    """Finds the splits of a source; there is one of it, on the driver (SPEC R9.4)."""

    interval: int = 10_000
    """Milliseconds from one discovery to the next."""

    complete: bool = False
    """Set it when no split will follow: readers then finish, and the job may end."""

    in_rounds: bool = False
    """Whether to look for splits only when all that were found are read to their end, in all subtasks."""

    @abstractmethod
    def discover(self) -> Sequence[S]:
        """The splits that it has not returned before. It may do I/O: it runs in a thread of its own, once at a time."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The state it needs to return each split once, also after a restore; called between two discoveries."""

    def owner(self, split: S, parallelism: int) -> int | None:
        """The subtask that must read a split; None: any subtask that asks for one."""
        return None

    def notify_complete(self, read: Any) -> None:
        """A checkpoint is complete that has everything in front of its barrier that was found up to the snapshot `read`.

        Only of an enumerator that works `in_rounds`. It is called in the job's thread, maybe while `discover` runs in
        another one: remember it, and do I/O in the next `discover` or in `close`.
        """

    def close(self) -> None:
        """Release resources."""


class OnceEnumerator(SplitEnumerator[S]):
    """Finds all splits in one discovery."""

    def __init__(self, find: Callable[[], Sequence[S]], restored: bool | None = None) -> None:
        self._find, self.complete = find, bool(restored)

    def discover(self) -> Sequence[S]:
        found = [] if self.complete else self._find()
        self.complete = True
        return found

    def snapshot(self) -> bool:
        return self.complete


class DynamicSource(Source[S]):
    """A source whose splits are found while the job runs."""

    @abstractmethod
    def enumerator(self, restored: Any | None) -> SplitEnumerator[S]:
        """The enumerator; `restored` is what the `snapshot` of an earlier one gave."""

    def splits(self, parallelism: int) -> list[S]:
        """None: the enumerator finds them."""
        return []


def check_rate(rate: float | None) -> None:
    if rate is not None and not rate > 0:
        raise InvalidArgument("HR-1201", f"rate must be positive records per second, got {rate}")


def split_count(parallelism: int) -> int:
    """The number of splits to make: at least 16, and a multiple of the parallelism.

    >>> split_count(1), split_count(3), split_count(40)
    (16, 18, 40)
    """
    return -(-max(_SPLITS, parallelism) // parallelism) * parallelism


class CollectionSource(Source[int]):
    """Records of a Python collection, in order, in one subtask; a split is the position."""

    single = True
    bounded = True

    def __init__(self, rows: Sequence[Any], type: TypeInformation = PICKLED) -> None:
        self.type = type
        # Typed records are turned into columns here, so a record that does not fit is found before the job starts.
        self._data: Batch = Batch.of_arrow(type.to_batch(rows), type) if type.is_typed else Batch.of_rows(list(rows))

    def splits(self, parallelism: int) -> list[int]:
        """One split at the first record."""
        return [0]

    def reader(self, context: ReaderContext, splits: list[int]) -> SourceReader[int]:
        """The reader of the collection."""
        return _CollectionReader(self._data, splits)


class _CollectionReader(SourceReader[int]):
    def __init__(self, data: Batch, splits: list[int]) -> None:
        self._data = data
        self._mine = bool(splits)
        self._position = splits[0] if splits else len(data)
        self.finished = self._position >= len(data)

    def poll(self, max_records: int) -> Batch | None:
        if self.finished:
            return None
        part = self._data.slice(self._position, max_records)
        self._position += len(part)
        self.finished = self._position >= len(self._data)
        return part.copied(detached)  # an element may be in the collection twice, and a function may change it

    def snapshot(self) -> list[int]:
        return [self._position] if self._mine else []


EMPTY_READER: SourceReader[Any] = _CollectionReader(Batch.of_rows([]), [])


@durable("number-range-1")
class NumberRange(msgspec.Struct, frozen=True):
    """The integers from `start` to below `end`."""

    start: int
    end: int


class SequenceSource(Source[NumberRange]):
    """The integers start .. end (both included); a split is a range (next, end) of them."""

    bounded = True

    def __init__(self, start: int, end: int, type: TypeInformation) -> None:
        self.start, self.end, self.type = start, end, type

    def splits(self, parallelism: int) -> list[NumberRange]:
        """Ranges of equal length."""
        total, count = max(0, self.end - self.start + 1), split_count(parallelism)
        cuts = [self.start + total * i // count for i in range(count + 1)]
        return [NumberRange(*cut) for cut in pairwise(cuts)]

    def reader(self, context: ReaderContext, splits: list[NumberRange]) -> SourceReader[NumberRange]:
        """The reader of some ranges, one after the other."""
        reader = _RangeReader(splits, self.type)
        reader.no_more_splits()
        return reader


class _RangeReader(QueueReader[NumberRange]):
    """Reads ranges of integers as columns of one field."""

    def __init__(self, splits: list[NumberRange], type: TypeInformation) -> None:
        super().__init__([split for split in splits if split.start < split.end])
        self._type = type

    def poll(self, max_records: int) -> Batch | None:
        numbers = []
        while self._splits and max_records > 0:
            start, end = self._splits[0].start, self._splits[0].end
            stop = min(end, start + max_records)
            numbers.append(np.arange(start, stop, dtype=np.int64))
            max_records -= stop - start
            if stop == end:
                self._end_split()
            else:
                self._splits[0] = NumberRange(stop, end)
        if not numbers:
            return None
        column = pa.array(numbers[0] if len(numbers) == 1 else np.concatenate(numbers))
        return Batch.of_arrow(pa.RecordBatch.from_arrays([column], schema=self._type.schema), self._type)


@durable("stride-1")
class Stride(msgspec.Struct, frozen=True):
    """The numbers first, first + step, first + 2 step, ...; `done` of them were given."""

    first: int
    step: int
    done: int = 0


class DataGenSource(Source[Stride]):
    """Records computed from their number, at a rate if one is set.

    `generate` takes the number of a record and gives the record; with `vectorised` it takes a numpy array of numbers
    and gives a `pyarrow.RecordBatch` (the type must be set then). One subtask gives its numbers in order.
    """

    def __init__(
        self,
        generate: Callable[[Any], Any],
        count: int | None,
        rate: float | None,
        type: TypeInformation,
        vectorised: bool,
    ) -> None:
        if count is not None and count < 0:
            raise InvalidArgument("HR-1201", f"count must not be negative, got {count}")
        check_rate(rate)
        if vectorised and not type.is_typed:
            raise InvalidArgument(
                "HR-1203", "a vectorised generator needs a type, for example type_info='word string, n bigint'"
            )
        self.generate, self.count, self.rate, self.type, self.vectorised = generate, count, rate, type, vectorised
        self.bounded = count is not None

    def splits(self, parallelism: int) -> list[Stride]:
        """Interleaved numbers, so that every subtask has low ones and high ones."""
        step = split_count(parallelism)
        return [Stride(first, step) for first in range(step)]

    def reader(self, context: ReaderContext, splits: list[Stride]) -> SourceReader[Stride]:
        """The reader of some strides."""
        return _DataGenReader(self, context.clock, splits)


class _DataGenReader(SourceReader[Stride]):
    def __init__(self, source: DataGenSource, clock: Callable[[], int], splits: list[Stride]) -> None:
        self._source, self._clock = source, clock
        self._firsts = np.array([split.first for split in splits], np.int64)
        self._done = np.array([split.done for split in splits], np.int64)
        self._step = splits[0].step if splits else 1
        self._given = 0
        self._per_ms = None if source.rate is None else source.rate * len(splits) / self._step / 1000
        self._started: int | None = None
        self._detaches = copier(source.type) is not None  # plain values of a declared type cannot be changed
        self.finished = not splits or self._exhausted()

    def poll(self, max_records: int) -> Batch | None:
        allowed = min(max_records, self._due())
        if self.finished or allowed <= 0:
            return None
        numbers = self._next_numbers(allowed)
        self._given += len(numbers)
        self.finished = self._exhausted()
        source = self._source
        if not len(numbers):
            return None
        if source.vectorised:
            return Batch.of_arrow(source.type.fit(source.generate(numbers)), source.type)
        made = map(source.generate, numbers.tolist())
        return Batch.of_rows(list(map(detached, made) if self._detaches else made), source.type)

    def _next_numbers(self, allowed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Row by row over the strides that are furthest behind: normally all of them, after a rescale maybe some."""
        behind = int(self._done.min())
        active = np.flatnonzero(self._done == behind)
        if len(active) > allowed:
            active = active[:allowed]
        rounds = max(1, allowed // len(active))
        ahead = self._done[self._done > behind]
        if len(ahead):
            rounds = min(rounds, int(ahead.min()) - behind)
        grid = np.arange(behind, behind + rounds, dtype=np.int64)[:, None] * self._step + self._firsts[active][None, :]
        self._done[active] += rounds
        numbers = grid.ravel()
        return numbers if self._source.count is None else numbers[numbers < self._source.count]

    def _exhausted(self) -> bool:
        if self._source.count is None:
            return False
        return bool((self._firsts + self._done * self._step >= self._source.count).all())

    def _due(self) -> int:
        """Return the number of further records that the rate allows by now."""
        if self._per_ms is None:
            return 1 << 30
        now = self._clock()
        if self._started is None:
            self._started = now
        return int((now - self._started) * self._per_ms) + 1 - self._given

    def ready_at(self) -> int | None:
        if self._per_ms is None or self._started is None:
            return None
        return self._started + int(self._given / self._per_ms) + 1

    def snapshot(self) -> list[Stride]:
        return [
            Stride(first, self._step, done)
            for first, done in zip(self._firsts.tolist(), self._done.tolist(), strict=True)
        ]
