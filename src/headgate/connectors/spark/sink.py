"""Any PySpark Python data source with a stream writer as a sink, unchanged.

Its `write` runs in every subtask, once for each checkpoint in which the subtask had records, in a thread that is fed from a
queue until the barrier comes. The message that it returns travels in the checkpoint; when that is complete `commit` is called on
the driver with all messages, and the commit number as batch id. As with Spark, a batch may be committed again under its id.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row as SparkRow
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema

from headgate.api.sink import Epoch, EpochCommitter, EpochContext, Sink, SinkWriter, WriterContext
from headgate.errors import InvalidArgument, UserCodeError
from headgate.records.types import TypeInformation

__all__ = ["PythonDataSink"]

_QUEUED_BATCHES = 8
_END = object()

Message = WriterCommitMessage | None


class PythonDataSink(Sink[Message]):
    """Writes with the stream writer of a data source: give its class and its options.

    >>> PythonDataSink(dict)
    Traceback (most recent call last):
    headgate.errors.InvalidArgument: PythonDataSink needs a class that extends pyspark.sql.datasource.DataSource, got <class 'dict'>
    """

    commits_on_driver = True

    def __init__(
        self, source: type[DataSource], options: Mapping[str, str] | None = None, *, overwrite: bool = False
    ) -> None:
        if not (inspect.isclass(source) and issubclass(source, DataSource)):
            raise InvalidArgument(
                f"PythonDataSink needs a class that extends pyspark.sql.datasource.DataSource, got {source!r}"
            )
        self._source, self._overwrite = source, overwrite
        self._options = {name: str(value) for name, value in (options or {}).items()}

    def check(self, stream_type: TypeInformation) -> None:
        """A data source writes typed columns."""
        if stream_type.kind not in ("row", "tuple"):
            raise InvalidArgument(
                f"data source '{self._source.name()}' needs a stream with fields: declare output_type, for example 'word string, n "
                "bigint'"
            )

    def stream_writer(self, type: TypeInformation) -> DataSourceStreamWriter:
        """A new writer of the data source for records of this type."""
        schema = from_arrow_schema(type.schema)
        writer: Any = self._source(CaseInsensitiveDict(self._options)).streamWriter(schema, self._overwrite)
        if not isinstance(writer, DataSourceStreamWriter):
            raise UserCodeError(
                f"streamWriter() of data source '{self._source.name()}' must give a DataSourceStreamWriter, got {writer!r}"
            )
        return writer

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[Message]:
        """Runs `write`."""
        return _DataSourceSinkWriter(self, context.type)

    def epoch_committer(self, context: EpochContext) -> EpochCommitter[Message]:
        """Runs `commit`."""
        return _DataSourceCommitter(self, context.type)

    @property
    def name(self) -> str:
        """The data source's."""
        return self._source.name()


class _DataSourceCommitter(EpochCommitter[Message]):
    def __init__(self, sink: PythonDataSink, type: TypeInformation) -> None:
        self._sink, self._type = sink, type

    def commit(self, epoch: Epoch[Message]) -> None:
        messages: Any = list(epoch.committables)
        # Never aborted: after an error the same messages are committed again.
        self._sink.stream_writer(self._type).commit(messages, epoch.commit_number)


class _WriterThread:
    """One call of `write`, in a thread of its own."""

    def __init__(self, writer: DataSourceStreamWriter, type: TypeInformation) -> None:
        self._writer, self._type = writer, type
        self._batches: queue.Queue[Any] = queue.Queue(_QUEUED_BATCHES)
        self._over = threading.Event()
        self._message: Message = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headgate-writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if isinstance(self._writer, DataSourceStreamArrowWriter):
                self._message = self._writer.write(self._taken())
            else:
                self._message = self._writer.write(self._rows())
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def _taken(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._batches.get()) is not _END:
            yield batch

    def _rows(self) -> Iterator[SparkRow]:
        names = self._type.schema.names if self._type.schema is not None else []
        make = SparkRow(*names)
        for batch in self._taken():
            for row in self._type.to_rows(batch):
                yield make(*row)

    def put(self, item: Any) -> None:
        """Give it a batch, or the end; its error if it has failed."""
        while not self._over.is_set():
            try:
                self._batches.put(item, timeout=0.2)
                return
            except queue.Full:
                continue
        if self._error is not None:
            raise self._error

    def end(self) -> Message:
        """The message that it returns."""
        self.put(_END)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._message


class _DataSourceSinkWriter(SinkWriter[Message]):
    batches = True

    def __init__(self, sink: PythonDataSink, type: TypeInformation) -> None:
        self._sink, self._type = sink, type
        self._writing: _WriterThread | None = None

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if self._writing is None:
            self._writing = _WriterThread(self._sink.stream_writer(self._type), self._type)
        self._writing.put(batch)

    def prepare(self, end_of_input: bool) -> Sequence[Message]:
        if self._writing is None:
            return []
        writing, self._writing = self._writing, None
        return [writing.end()]

    def close(self) -> None:
        if self._writing is not None:
            self._writing.put(_END)
