"""Sources: where records come from.

A `Source` makes one `SourceReader` for each subtask. A reader is polled: it never sleeps and has no clock of its own,
so the same reader runs on Spark and in the local runtime.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.batch import Batch
from headgate.errors import InvalidArgument
from headgate.types import PICKLED, TypeInformation

__all__ = ["CollectionSource", "DataGenSource", "ReaderContext", "SequenceSource", "Source", "SourceReader"]


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """Where a reader runs."""

    subtask: int
    parallelism: int
    clock: Callable[[], int]  # milliseconds


class SourceReader(ABC):
    """Reads one subtask's part of a source."""

    finished: bool = False

    @abstractmethod
    def poll(self, max_records: int) -> Batch | None:
        """At most so many records, or None if there are none now; sets `finished` behind the last one."""

    def ready_at(self) -> int | None:
        """When None was returned: the time (ms) at which asking again makes sense, if that is known."""
        return None

    def close(self) -> None:
        """Give back what the reader holds."""


class Source(ABC):
    """Describes a source; travels to the workers."""

    single = False
    """Whether it must run in one subtask."""

    type: TypeInformation = PICKLED

    @abstractmethod
    def reader(self, context: ReaderContext) -> SourceReader:
        """The reader of one subtask."""


class CollectionSource(Source):
    """Records of a Python collection, in order, in one subtask."""

    single = True

    def __init__(self, rows: Sequence[Any], type: TypeInformation = PICKLED) -> None:
        self.type = type
        # Typed records are turned into columns here, so a record that does not fit is found before the job starts.
        self._data: Batch = Batch.of_arrow(type.to_batch(rows), type) if type.is_typed else Batch.of_rows(list(rows))

    def reader(self, context: ReaderContext) -> SourceReader:
        """The reader of one subtask."""
        return _CollectionReader(self._data)


class _CollectionReader(SourceReader):
    def __init__(self, data: Batch) -> None:
        self._data = data
        self._position = 0
        self.finished = len(data) == 0

    def poll(self, max_records: int) -> Batch | None:
        if self.finished:
            return None
        part = self._data.slice(self._position, max_records)
        self._position += len(part)
        self.finished = self._position >= len(self._data)
        return part


class SequenceSource(Source):
    """The integers start .. end (both included), split over the subtasks."""

    def __init__(self, start: int, end: int, type: TypeInformation) -> None:
        self.start, self.end, self.type = start, end, type

    def reader(self, context: ReaderContext) -> SourceReader:
        """The reader of one subtask's range."""
        total = max(0, self.end - self.start + 1)
        first = self.start + total * context.subtask // context.parallelism
        last = self.start + total * (context.subtask + 1) // context.parallelism
        return _SequenceReader(first, last, self.type)


class _SequenceReader(SourceReader):
    def __init__(self, position: int, end: int, type: TypeInformation) -> None:
        self._position, self._end, self._type = position, end, type
        self.finished = position >= end

    def poll(self, max_records: int) -> Batch | None:
        if self.finished:
            return None
        stop = min(self._end, self._position + max_records)
        column = pa.array(np.arange(self._position, stop, dtype=np.int64))
        self._position = stop
        self.finished = stop >= self._end
        return Batch.of_arrow(pa.RecordBatch.from_arrays([column], schema=self._type.schema), self._type)


class DataGenSource(Source):
    """Records computed from their number, at a rate if one is set.

    `generate` takes the number of a record and gives the record; with `vectorised` it takes a numpy array of numbers
    and gives a `pyarrow.RecordBatch` (the type must be set then). Number n belongs to subtask n modulo parallelism.
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
            raise InvalidArgument(f"count must not be negative, got {count}")
        if rate is not None and not rate > 0:
            raise InvalidArgument(f"rate must be positive records per second, got {rate}")
        if vectorised and not type.is_typed:
            raise InvalidArgument("a vectorised generator needs a type, for example type_info='word string, n bigint'")
        self.generate, self.count, self.rate, self.type, self.vectorised = generate, count, rate, type, vectorised

    def reader(self, context: ReaderContext) -> SourceReader:
        """The reader of one subtask."""
        return _DataGenReader(self, context)


class _DataGenReader(SourceReader):
    def __init__(self, source: DataGenSource, context: ReaderContext) -> None:
        self._source = source
        self._context = context
        count = source.count
        self._mine = None if count is None else len(range(context.subtask, count, context.parallelism))
        self._done = 0
        self._per_ms = None if source.rate is None else source.rate / context.parallelism / 1000
        self._started: int | None = None
        self.finished = self._mine == 0

    def poll(self, max_records: int) -> Batch | None:
        if self.finished:
            return None
        allowed = min(max_records, self._due(), max_records if self._mine is None else self._mine - self._done)
        if allowed <= 0:
            return None
        step, first = self._context.parallelism, self._context.subtask
        numbers = np.arange(self._done, self._done + allowed, dtype=np.int64) * step + first
        self._done += allowed
        self.finished = self._mine is not None and self._done >= self._mine
        source = self._source
        if source.vectorised:
            return Batch.of_arrow(source.generate(numbers), source.type)
        return Batch.of_rows([source.generate(n) for n in numbers.tolist()], source.type)

    def _due(self) -> int:
        """How many more records the rate allows by now."""
        if self._per_ms is None:
            return 1 << 30
        now = self._context.clock()
        if self._started is None:
            self._started = now
        return int((now - self._started) * self._per_ms) + 1 - self._done

    def ready_at(self) -> int | None:
        if self._per_ms is None or self._started is None:
            return None
        return self._started + int(self._done / self._per_ms) + 1
