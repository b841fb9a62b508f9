"""Any PySpark Python data source with a stream writer as a sink, unchanged.

Its `write` runs in every subtask, once for each checkpoint in which the subtask had records, in a thread that is fed from a
queue until the barrier comes. The message that it returns travels in the checkpoint; when that is complete `commit` is called on
the driver with all messages, and the commit number as batch id. As with Spark, a batch may be committed again under its id.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
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

from headrace.api.sink import Epoch, EpochCommitter, EpochContext, Sink, SinkWriter, WriterContext
from headrace.connectors.spark.source import check_data_source
from headrace.errors import InvalidArgument, UserCodeError
from headrace.records.types import TypeInformation

__all__ = ["PythonDataSink"]

_QUEUED_BATCHES = 8
_END = object()

Message = WriterCommitMessage | None


class PythonDataSink(Sink[Message]):
    """Writes with the stream writer of a data source: give its class and its options.

    >>> PythonDataSink(dict)
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-4301] PythonDataSink needs a class that extends pyspark.sql.datasource.DataSource, got <class 'dict'>
    """

    commits_on_driver = True

    def __init__(
        self, source: type[DataSource], options: Mapping[str, str] | None = None, *, overwrite: bool = False
    ) -> None:
        check_data_source("PythonDataSink", source)
        self._source, self._overwrite = source, overwrite
        self.output_kind = f"data source {source.name()}"
        self._options = {name: str(value) for name, value in (options or {}).items()}

    def check(self, stream_type: TypeInformation) -> None:
        """Raise an error for untyped records: a data source writes typed columns."""
        if stream_type.kind not in ("row", "tuple"):
            raise InvalidArgument(
                "HR-1203",
                f"data source '{self._source.name()}' needs a stream with fields: declare output_type, for example 'word string, n "
                "bigint'",
            )

    def stream_writer(self, type: TypeInformation) -> DataSourceStreamWriter:
        """Return a new writer of the data source for records of this type."""
        schema = from_arrow_schema(type.schema)
        writer: Any = self._source(CaseInsensitiveDict(self._options)).streamWriter(schema, self._overwrite)
        if not isinstance(writer, DataSourceStreamWriter):
            raise UserCodeError(
                "HR-4302",
                f"streamWriter() of data source '{self._source.name()}' must give a DataSourceStreamWriter, got {writer!r}",
            )
        return writer

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[Message]:
        """Runs `write`."""
        return _DataSourceSinkWriter(self, context.type)

    def epoch_committer(self, context: EpochContext) -> EpochCommitter[Message]:
        """Runs `commit`."""
        return _DataSourceCommitter(self, context.type)


class _DataSourceCommitter(EpochCommitter[Message]):
    def __init__(self, sink: PythonDataSink, type: TypeInformation) -> None:
        self._sink, self._type = sink, type

    def commit(self, epoch: Epoch[Message]) -> None:
        messages: Any = list(epoch.committables)
        # Never aborted: after an error the same messages are committed again.
        self._sink.stream_writer(self._type).commit(messages, epoch.commit_number)


class _DataSourceSinkWriter(SinkWriter[Message]):
    """Calls `write` once for each checkpoint, in a thread that takes batches from a queue."""

    batches = True

    def __init__(self, sink: PythonDataSink, type: TypeInformation) -> None:
        self._sink, self._type = sink, type
        self._queue: queue.Queue[Any] = queue.Queue(_QUEUED_BATCHES)
        self._result: Future[Message] | None = None  # of the call that runs

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if self._result is None:
            self._result, self._queue = Future(), queue.Queue(_QUEUED_BATCHES)
            arguments = self._sink.stream_writer(self._type), self._queue, self._result
            threading.Thread(target=self._run, args=arguments, name="headrace-writer", daemon=True).start()
        self._put(batch, self._result)

    def _put(self, item: Any, result: Future[Message]) -> None:
        while not result.done():
            try:
                self._queue.put(item, timeout=0.2)
                return
            except queue.Full:
                continue
        result.result()  # its error, if it has failed

    def _run(self, writer: DataSourceStreamWriter, batches: queue.Queue[Any], result: Future[Message]) -> None:
        taken = iter(batches.get, _END)
        try:
            arrow = isinstance(writer, DataSourceStreamArrowWriter)
            result.set_result(writer.write(taken if arrow else self._rows(taken)))
        except BaseException as error:
            result.set_exception(error)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[SparkRow]:
        make = SparkRow(*(self._type.schema.names if self._type.schema is not None else []))
        return (make(*row) for batch in batches for row in self._type.to_rows(batch))

    def prepare(self, end_of_input: bool) -> Sequence[Message]:
        if self._result is None:
            return []
        result, self._result = self._result, None
        self._put(_END, result)
        return [result.result()]

    def close(self) -> None:
        if self._result is not None:
            self._put(_END, self._result)
