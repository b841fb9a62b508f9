"""Any PySpark Python data source (`pyspark.sql.datasource`) as a source of a stream, as it is.

    class Ticker(DataSource): ...  # schema(), and streamReader(), simpleStreamReader() or reader()

    env.from_source(PythonDataSource(Ticker, {"symbol": "ABC"}), source_name="ticker")

Of a `DataSourceStreamReader` everything but `read` happens on the driver, round by round as Spark's micro-batches: the
partitions between two offsets are read by the subtasks, and when all of them are read the next ones are planned. A
checkpoint keeps the offset, and the partitions that are being read with the number of rows that they have given.
Subtasks turn the rows of `read` into batches.
"""

from __future__ import annotations

import inspect
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import cloudpickle
import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.errors import PySparkException, PySparkNotImplementedError
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from pyspark.sql.utils import to_str
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from headrace.api.durable import durable
from headrace.api.sources import (
    DynamicSource,
    OnceEnumerator,
    QueueReader,
    ReaderContext,
    SourceReader,
    SplitEnumerator,
)
from headrace.errors import InvalidArgument, UserCodeError
from headrace.records import ddl
from headrace.records.batch import Batch
from headrace.records.types import TypeMismatch, as_type

__all__ = ["PythonDataSource"]

_LOG = logging.getLogger(__name__)

_NEXT_ROUND_MS = 10  # from a round that had something to the next; as long as Spark waits between two looks

_ROWS = 1000  # of a partition in one batch

S = TypeVar("S")
Readers = DataSourceReader | DataSourceStreamReader | SimpleDataSourceStreamReader


def check_data_source(name: str, given: object) -> None:
    """InvalidArgument if something is not the class of a data source."""
    if not (isinstance(given, type) and issubclass(given, DataSource)):
        raise InvalidArgument(
            "HR-4301", f"{name} needs a class that extends pyspark.sql.datasource.DataSource, got {given!r}"
        )


@durable("partition-split-1")
class PartitionSplit(msgspec.Struct, frozen=True):
    """A partition of a reader: its place in the plan, the pickled `InputPartition`, and how many rows it has given."""

    index: int
    partition: bytes
    done: int = 0


@durable("offset-split-1")
class OffsetSplit(msgspec.Struct, frozen=True):
    """The position of a `SimpleDataSourceStreamReader`: offsets as JSON; `end` is set if a batch has given `done`."""

    start: str | None = None
    end: str | None = None
    done: int = 0


class PythonDataSource(DynamicSource[Any]):
    """A PySpark Python data source, unchanged.

    `source` is the `DataSource` class, `options` what `.option()` would set. `schema` (a StructType, DDL or a
    pyarrow.Schema) replaces the source's own. With `bounded` the stream ends: it is what `reader()` gives, or, of a
    source that has only a stream, what is there at the start, as with Spark's trigger AvailableNow.

    `poll_interval_ms` is how long to wait after a look for new data that found none. `limit` bounds a round: a number of
    rows, or one of pyspark's ReadLimits. After a failure a partition that was being read is read again and the rows that
    it had given are left out, so `read` must give the same rows in the same order; if it does not, set
    `barriers_between_partitions`: a checkpoint then waits for the end of a partition, whose rows are held in memory if
    the readers downstream are slow.

    >>> class Letters(DataSource):
    ...     def schema(self):
    ...         return "letter string"
    ...
    ...     def reader(self, schema):
    ...         return LettersReader()
    >>> class LettersReader(DataSourceReader):
    ...     def read(self, partition):
    ...         yield from zip("abc")
    >>> PythonDataSource(Letters, bounded=True).type
    row<letter string>
    """

    bounded: bool

    def __init__(
        self,
        source: type[DataSource],
        options: Mapping[str, Any] | None = None,
        *,
        schema: StructType | str | pa.Schema | None = None,
        bounded: bool = False,
        poll_interval_ms: int = 100,
        limit: int | ReadLimit | None = None,
        barriers_between_partitions: bool = False,
    ) -> None:
        check_data_source("PythonDataSource", source)
        if poll_interval_ms < 1:
            raise InvalidArgument("HR-4301", f"poll_interval_ms must be at least 1, got {poll_interval_ms}")
        self.name = source.name()
        self.bounded, self.poll_interval_ms, self.whole = bounded, poll_interval_ms, barriers_between_partitions
        texts = {key: text for key, value in (options or {}).items() if (text := to_str(value)) is not None}
        self.data_source = source(CaseInsensitiveDict(texts))
        self.schema = self._struct(schema)
        try:
            self.arrow_schema: pa.Schema = to_arrow_schema(self.schema, timezone="UTC")
            self.type = as_type(self.arrow_schema)
        except (PySparkException, InvalidArgument) as error:
            raise InvalidArgument(
                "HR-4301", f"data source '{self.name}' has a schema that cannot be used: {error}"
            ) from error
        # Made here and carried to the workers, as Spark does: a worker calls nothing but `read`.
        self.template = self.make_reader()
        self.single = isinstance(self.template, SimpleDataSourceStreamReader)
        self.limit = self._checked_limit(limit)

    def _struct(self, given: StructType | str | pa.Schema | None) -> StructType:
        if given is None:
            try:
                given = self.data_source.schema()
            except NotImplementedError:
                raise InvalidArgument(
                    "HR-4301",
                    f"data source '{self.name}' has no schema of its own: give one, schema='id bigint, name string'",
                ) from None
        if isinstance(given, str):
            try:
                given = ddl.parse(given)
            except InvalidArgument as error:
                raise InvalidArgument(
                    "HR-4301", f"the schema of data source '{self.name}': {error.text}; or as a StructType"
                ) from None
        if isinstance(given, pa.Schema):
            given = from_arrow_schema(given)
        if not isinstance(given, StructType):
            raise InvalidArgument(
                "HR-4301",
                f"the schema of data source '{self.name}' must be columns, a StructType or DDL as 'id bigint, name string', "
                f"got {given!r}",
            )
        return given

    def make_reader(self) -> Readers:
        """Return a new reader of the kind that fits: Spark's order, and `reader()` first if the stream is to end."""
        source = self.data_source
        makers: list[Callable[[StructType], Readers]] = [source.streamReader, source.simpleStreamReader]
        for make in [source.reader, *makers] if self.bounded else makers:
            with suppress(PySparkNotImplementedError):
                return make(self.schema)
        wanted = "streamReader() or simpleStreamReader()"
        hint = f"reader(), {wanted}" if self.bounded else f"{wanted}; if it has reader(), pass bounded=True"
        raise InvalidArgument("HR-4301", f"data source '{self.name}' cannot be read as a stream: it has no {hint}")

    def _checked_limit(self, limit: int | ReadLimit | None) -> ReadLimit | None:
        if limit is None:
            return None
        if not isinstance(self.template, DataSourceStreamReader) or not takes_limit(self.template):
            raise InvalidArgument(
                "HR-4301",
                f"data source '{self.name}' takes no limit: only a DataSourceStreamReader with latestOffset(start, limit) does",
            )
        if isinstance(limit, ReadLimit):
            return limit
        if limit < 1:
            raise InvalidArgument("HR-4301", f"limit must be at least 1 row, got {limit}")
        return ReadMaxRows(limit)

    def enumerator(self, restored: Any | None) -> SplitEnumerator[Any]:
        """Plans partitions, on the driver."""
        if isinstance(self.template, DataSourceStreamReader):
            return _RoundPlanner(self, restored)
        if isinstance(self.template, DataSourceReader):
            return OnceEnumerator(self._batch_partitions, restored)
        return OnceEnumerator(lambda: [OffsetSplit()], restored)  # a simple stream has one split, which never ends

    def _batch_partitions(self) -> list[PartitionSplit]:
        reader = self.make_reader()
        assert isinstance(reader, DataSourceReader)
        try:
            partitions = list(self.call(reader.partitions))
        except UserCodeError as error:
            if not isinstance(error.__cause__, NotImplementedError):  # which means one partition
                raise
            partitions = []
        return _as_splits(self, partitions or [InputPartition(None)])

    def reader(self, context: ReaderContext, splits: list[Any]) -> SourceReader[Any]:
        """Reads partitions, or a whole simple stream, in one subtask."""
        if isinstance(self.template, SimpleDataSourceStreamReader):
            return SimpleReader(self, self.template, context, splits)
        return PartitionReader(self, self.template, splits)

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call the source's code on the driver; an error names the source, the method and the line."""
        try:
            return method(*args)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise UserCodeError(
                "HR-4302",
                f"{method.__name__}() of data source '{self.name}' failed: {type(error).__name__}: {error} "
                f"({frame.filename}:{frame.lineno})",
            ) from error

    def encoded(self, offset: Any, method: str) -> str:
        """Return an offset as the JSON that Spark would keep."""
        if not isinstance(offset, dict):
            raise UserCodeError(
                "HR-4302", f"{method}() of data source '{self.name}' must give an offset as a dict, got {offset!r}"
            )
        try:
            return json.dumps(offset)
        except (TypeError, ValueError) as error:
            raise UserCodeError(
                "HR-4302",
                f"{method}() of data source '{self.name}' gave an offset that is not JSON: {offset!r} ({error})",
            ) from None


def takes_limit(reader: DataSourceStreamReader) -> bool:
    """Return True if latestOffset has the arguments of Spark 4.2 and newer."""
    return bool(inspect.signature(reader.latestOffset).parameters)


# --- on the driver --------------------------------------------------------------------------------------------------


@durable("rounds-planned-1")
class RoundsPlanned(msgspec.Struct, frozen=True):
    """The state of the planner: the end of the newest round as JSON, and whether it was the last one."""

    offset: str | None
    last: bool


class _RoundPlanner(SplitEnumerator[PartitionSplit]):
    """Plans the rounds of a DataSourceStreamReader.

    `notify_complete` says up to which one
    everything was read and is in a completed checkpoint: that is what the reader's `commit` is told.
    """

    in_rounds = True

    def __init__(self, source: PythonDataSource, restored: RoundsPlanned | None) -> None:
        self._source = source
        self._offset, self._last = (None, False) if restored is None else (restored.offset, restored.last)
        self._reader: DataSourceStreamReader | None = None
        self._to_commit: str | None = None  # written by the job's thread, read in `discover`
        self._committed: str | None = None  # unknown after a restore: the commit is made again
        self._busy = threading.Lock()
        self._closed = False

    def discover(self) -> list[PartitionSplit]:
        with self._busy:
            splits = [] if self._closed else self._round()
        if self._closed:
            self._stop()
        return splits

    def _round(self) -> list[PartitionSplit]:
        source, reader = self._source, self._opened()
        self._commit()
        if self._offset is None:
            self._offset = self._committed = source.encoded(source.call(reader.initialOffset), "initialOffset")
        end = self._offset if self._last else self._latest(reader, self._offset)
        if end == self._offset:
            self.complete = source.bounded
            self.interval = source.poll_interval_ms
            return []
        partitions = source.call(reader.partitions, json.loads(self._offset), json.loads(end))
        splits = _as_splits(source, partitions)
        self._offset = end
        self._last = source.bounded and not isinstance(reader, SupportsTriggerAvailableNow)
        self.interval = _NEXT_ROUND_MS
        return splits

    def _opened(self) -> DataSourceStreamReader:
        if self._reader is None:
            reader = self._source.make_reader()
            assert isinstance(reader, DataSourceStreamReader)
            if self._source.bounded and isinstance(reader, SupportsTriggerAvailableNow):
                self._source.call(reader.prepareForTriggerAvailableNow)
            self._reader = reader
        return self._reader

    def _latest(self, reader: DataSourceStreamReader, start: str) -> str:
        source = self._source
        if takes_limit(reader):
            limit = source.limit or source.call(reader.getDefaultReadLimit)
            offset = source.call(reader.latestOffset, json.loads(start), limit)
        else:
            offset = source.call(reader.latestOffset)
        return source.encoded(offset, "latestOffset")

    def owner(self, split: PartitionSplit, parallelism: int) -> int:
        # The same place in each round is read by the same subtask: sources list what they read from in a fixed order.
        return split.index % parallelism

    def snapshot(self) -> RoundsPlanned:
        return RoundsPlanned(self._offset, self._last)

    def notify_complete(self, read: RoundsPlanned) -> None:
        self._to_commit = read.offset

    def _commit(self) -> None:
        end = self._to_commit
        if self._reader is not None and end is not None and end != self._committed:
            self._source.call(self._reader.commit, json.loads(end))
            self._committed = end

    def close(self) -> None:
        self._closed = True
        self._stop()

    def _stop(self) -> None:
        """Now, or when the discovery that is under way has ended: the reader is never used by two threads."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._commit()
            if self._reader is not None:
                self._source.call(self._reader.stop)
        except UserCodeError as error:  # the attempt is over anyway: it must not keep the next one from starting
            _LOG.warning("%s", error)
        finally:
            self._reader = None
            self._busy.release()


def _as_splits(source: PythonDataSource, partitions: Any) -> list[PartitionSplit]:
    found = list(partitions)
    for one in found:
        if not isinstance(one, InputPartition):
            raise UserCodeError(
                "HR-4302", f"partitions() of data source '{source.name}' must give InputPartitions, got {one!r}"
            )
    return [PartitionSplit(index, cloudpickle.dumps(one)) for index, one in enumerate(found)]


# --- in workers -----------------------------------------------------------------------------------------------------


class _SourceRows:
    """The rows of one `read` as Arrow batches; the first `skip` rows were returned before a failure."""

    def __init__(self, source: PythonDataSource, rows: Any, skip: int) -> None:
        if not isinstance(rows, Iterator):
            raise UserCodeError(
                "HR-4302", f"read() of data source '{source.name}' must give an iterator, got a {type(rows).__name__}"
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
        """Return True if no row is left; this takes the next batch from the source."""
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
                    "HR-4302",
                    f"data source '{self._source.name}' read a partition again after a failure and it has fewer rows than the "
                    f"{self._left_out} that it gave before: its read() is not deterministic, use "
                    "PythonDataSource(..., barriers_between_partitions=True)",
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
            "change what read() yields, or the schema",
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


class _RowsReader(SourceReader[S]):
    """A reader that is inside one `read`, or between two; `whole`: no barrier comes inside."""

    _source: PythonDataSource
    _rows: _SourceRows | None = None

    @property
    def holds_barrier(self) -> bool:  # type: ignore[override]
        return self._source.whole and self._rows is not None

    def _take(self, rows: _SourceRows, max_records: int) -> tuple[pa.RecordBatch | None, bool]:
        """Return the next rows, and whether it was the end; what was read to its end is closed."""
        batch = rows.take(min(max_records, _ROWS))
        # A barrier that waits must know whether this was the end; otherwise the next rows are not waited for.
        ended = batch is None or (self._source.whole and rows.ended)
        if ended:
            self.close()
        return batch, ended

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None


class PartitionReader(_RowsReader[PartitionSplit], QueueReader[PartitionSplit]):
    """Reads partitions, one after the other."""

    def __init__(self, source: PythonDataSource, template: Any, splits: list[PartitionSplit]) -> None:
        super().__init__(splits)
        self._source, self._reader = source, template

    def poll(self, max_records: int) -> Batch | None:
        while self._splits:
            first = self._splits[0]
            if self._rows is None:
                partition = cloudpickle.loads(first.partition)
                self._rows = _SourceRows(self._source, self._reader.read(partition), first.done)
            batch, ended = self._take(self._rows, max_records)
            if batch is not None:
                self._splits[0] = replace(first, done=first.done + batch.num_rows)
            if ended:
                self._end_split()
            if batch is not None:
                return Batch.of_arrow(batch, self._source.type)
        return None


class SimpleReader(_RowsReader[OffsetSplit]):
    """Reads a simple stream: batch after batch, each from the offset where the one before ended."""

    def __init__(
        self, source: PythonDataSource, template: Any, context: ReaderContext, splits: list[OffsetSplit]
    ) -> None:
        self._source, self._reader, self._clock = source, template, context.clock
        self._at: OffsetSplit | None = splits[0] if splits else None
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

    def poll(self, max_records: int) -> Batch | None:
        if self._at is None or self.finished or (self._next_look is not None and self._clock() < self._next_look):
            return None
        self._next_look = None
        if self._rows is None and not self._open(self._at):
            return None
        assert self._rows is not None
        at, (batch, ended) = self._at, self._take(self._rows, max_records)
        if batch is not None:
            self._at = replace(at, done=at.done + batch.num_rows)
        if ended:
            self._at, self.finished = OffsetSplit(at.end), self._last
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
                "HR-4302",
                f"read() of data source '{source.name}' gave rows but the same offset that it was given, {start}: it would "
                "repeat them without end; advance the offset with the rows",
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
