"""PySpark's data sources in a subtask: rows of `read` become batches (see `data_source.py`, which plans them)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

import cloudpickle
import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from headgate.api.durable import durable
from headgate.api.sources import QueueReader, ReaderContext, SourceReader
from headgate.errors import UserCodeError
from headgate.records.batch import Batch
from headgate.records.types import TypeInformation, TypeMismatch

__all__ = ["DataSourceInfo", "OffsetSplit", "PartitionReader", "PartitionSplit", "SimpleReader"]

_ROWS = 1000  # of a partition in one batch


@durable("partition-split-1")
class PartitionSplit(msgspec.Struct, frozen=True):
    """A partition of a reader: its place in the plan, the pickled `InputPartition`, and how many rows it has given."""

    index: int
    partition: bytes
    done: int = 0


@durable("offset-split-1")
class OffsetSplit(msgspec.Struct, frozen=True):
    """Where a `SimpleDataSourceStreamReader` stands: offsets as JSON; `end` is set inside a batch that has given `done`."""

    start: str | None = None
    end: str | None = None
    done: int = 0


class DataSourceInfo(Protocol):
    """What a reader must know of its source."""

    name: str
    data_source: DataSource
    schema: StructType
    arrow_schema: pa.Schema
    type: TypeInformation
    bounded: bool
    poll_interval_ms: int
    whole: bool

    def encoded(self, offset: Any, method: str) -> str:
        """An offset as JSON."""


class _SourceRows:
    """What one `read` gives, as Arrow batches of any size; the first `skip` rows were given before a failure."""

    def __init__(self, source: DataSourceInfo, rows: Any, skip: int) -> None:
        if not isinstance(rows, Iterator):
            raise UserCodeError(
                f"read() of data source '{source.name}' must give an iterator, got a {type(rows).__name__}"
            )
        self._source, self._rows, self._left_out, self._skip = source, rows, skip, skip
        self._batches = iter(records_to_arrow_batches(self._of_user(), _ROWS, source.schema, source.data_source))
        self._rest: pa.RecordBatch | None = None

    def take(self, max_records: int) -> pa.RecordBatch | None:
        """At most `max_records` of the next rows; None at the end."""
        if self.ended:
            return None
        assert self._rest is not None
        batch, self._rest = self._rest.slice(0, max_records), self._rest.slice(max_records)
        return batch

    @property
    def ended(self) -> bool:
        """Whether no row is left; it takes the next batch from the source to find out."""
        while self._rest is None or not self._rest.num_rows:
            batch = self._next()
            if batch is None:
                return True
            if self._skip:
                dropped = min(self._skip, batch.num_rows)
                batch, self._skip = batch.slice(dropped), self._skip - dropped
            self._rest = batch
        return False

    def _next(self) -> pa.RecordBatch | None:
        try:
            batch = next(self._batches, None)
        except _UserError as error:
            raise error.error from None
        except (PySparkException, pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise self._unfit(str(error).rstrip(".")) from None
        if batch is None:
            if self._skip:
                raise UserCodeError(
                    f"data source '{self._source.name}' read a partition again after a failure and it has fewer rows than the "
                    f"{self._left_out} that it gave before: its read() is not deterministic, use "
                    "PythonDataSource(..., barriers_between_partitions=True)"
                )
            return None
        if not isinstance(batch, pa.RecordBatch):
            raise self._unfit(f"a {type(batch).__name__} after a RecordBatch")
        if not batch.schema.equals(self._source.arrow_schema):
            raise self._unfit(f"the RecordBatch has {batch.schema.to_string(show_field_metadata=False)!r}")
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if column.null_count and not field.nullable:
                raise self._unfit(f"None in column '{field.name}', which is NOT NULL")
        return batch

    def _of_user(self) -> Iterator[Any]:
        try:
            yield from self._rows
        except Exception as error:
            raise _UserError(error) from None

    def _unfit(self, why: str) -> TypeMismatch:
        return TypeMismatch(
            f"what read() of data source '{self._source.name}' gives does not fit its schema {self._source.type}: {why}; "
            "change what read() yields, or the schema"
        )

    def close(self) -> None:
        """Let a generator of the user clean up."""
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()


class _UserError(Exception):
    """An error of the user's iterator, on its way through pyspark's code."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class PartitionReader(QueueReader[PartitionSplit]):
    """Reads partitions, one after the other."""

    def __init__(self, source: DataSourceInfo, template: Any, splits: list[PartitionSplit]) -> None:
        super().__init__(splits)
        self._source, self._reader = source, template
        self._rows: _SourceRows | None = None  # of the first one

    @property
    def holds_barrier(self) -> bool:  # type: ignore[override]
        return self._source.whole and self._rows is not None

    def poll(self, max_records: int) -> Batch | None:
        while self._splits:
            first = self._splits[0]
            if self._rows is None:
                partition = cloudpickle.loads(first.partition)
                self._rows = _SourceRows(self._source, self._reader.read(partition), first.done)
            batch = self._rows.take(min(max_records, _ROWS))
            if batch is not None:
                self._splits[0] = replace(first, done=first.done + batch.num_rows)
            # A barrier that waits must know whether this was the end; otherwise the next rows are not waited for.
            if batch is None or (self._source.whole and self._rows.ended):
                self._close_rows()
                self._end_split()
            if batch is not None:
                return Batch.of_arrow(batch, self._source.type)
        return None

    def _close_rows(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def close(self) -> None:
        self._close_rows()


class SimpleReader(SourceReader[OffsetSplit]):
    """Reads a simple stream: batch after batch, each from the offset where the one before ended."""

    def __init__(
        self, source: DataSourceInfo, template: Any, context: ReaderContext, splits: list[OffsetSplit]
    ) -> None:
        self._source, self._reader, self._clock = source, template, context.clock
        self._at: OffsetSplit | None = splits[0] if splits else None
        self._rows: _SourceRows | None = None
        self._next_look: int | None = None
        self._last = False  # whether the batch that is being read is the last one
        self._committed: str | None = None
        if source.bounded and isinstance(template, SupportsTriggerAvailableNow):
            template.prepareForTriggerAvailableNow()

    @property
    def wants_split(self) -> bool:
        return self._at is None

    def add_splits(self, splits: list[OffsetSplit]) -> None:
        self._at = splits[0]

    @property
    def holds_barrier(self) -> bool:  # type: ignore[override]
        return self._source.whole and self._rows is not None

    def poll(self, max_records: int) -> Batch | None:
        if self._at is None or self.finished or (self._next_look is not None and self._clock() < self._next_look):
            return None
        self._next_look = None
        if self._rows is None and not self._open(self._at):
            return None
        assert self._rows is not None
        at, batch = self._at, self._rows.take(min(max_records, _ROWS))
        if batch is not None:
            self._at = replace(at, done=at.done + batch.num_rows)
        if batch is None or (self._source.whole and self._rows.ended):
            self._rows.close()
            self._rows, self._at, self.finished = None, OffsetSplit(at.end), self._last
        if batch is None:
            self._next_look = self._clock()
            return None
        return Batch.of_arrow(batch, self._source.type)

    def _open(self, at: OffsetSplit) -> bool:
        """Begin the next batch, or go on with the one that a failure interrupted; whether there is one."""
        source, reader = self._source, self._reader
        self._last = source.bounded and not isinstance(reader, SupportsTriggerAvailableNow)
        if at.start is not None and at.end is not None:
            again = reader.readBetweenOffsets(json.loads(at.start), json.loads(at.end))
            self._rows = _SourceRows(source, again, at.done)
            return True
        start = at.start
        if start is None:
            start = self._committed = source.encoded(reader.initialOffset(), "initialOffset")
        iterator, offset = reader.read(json.loads(start))
        end = source.encoded(offset, "read")
        rows = _SourceRows(source, iterator, 0)
        if end != start:
            self._at, self._rows = OffsetSplit(start, end), rows
            return True
        if not rows.ended:
            raise UserCodeError(
                f"read() of data source '{source.name}' gave rows but the same offset that it was given, {start}: it would "
                "repeat them without end; advance the offset with the rows"
            )
        rows.close()
        self._at = OffsetSplit(start)
        self.finished = source.bounded
        self._next_look = self._clock() + source.poll_interval_ms
        return False

    def ready_at(self) -> int | None:
        return self._next_look

    def snapshot(self) -> list[OffsetSplit]:
        return [] if self._at is None else [self._at]

    def notify_complete(self, splits: list[OffsetSplit]) -> None:
        read = splits[0].start if splits else None  # the batch that begins here may have been cut
        if read is not None and read != self._committed:
            self._reader.commit(json.loads(read))
            self._committed = read

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
