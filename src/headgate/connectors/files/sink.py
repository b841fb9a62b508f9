"""Writes records to files that become visible exactly once: with the checkpoint that holds them (SPEC R9.3).

Every file is finished before a barrier, so none is open in a checkpoint; a file that grows beyond `roll_bytes` is
finished earlier and the next one begun. Names never repeat.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from hashlib import blake2b
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from headgate.api.sink import Committer, Sink, SinkWriter, WriterContext
from headgate.connectors.files.targets import FileTarget, PendingFile, PreparedFile, open_target
from headgate.connectors.values import Encode, encoder
from headgate.errors import InvalidArgument
from headgate.records.batch import Batch
from headgate.records.types import TypeInformation

__all__ = ["FileSink", "FileSinkWriter", "check_partitions"]

_SUFFIXES = {"text": "txt", "json": "jsonl", "csv": "csv", "parquet": "parquet"}
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_OPEN_FILES = 128
_BUFFERED_BYTES = 64 << 20
_BUFFERED_ROWS = 1000  # of untyped records


class FileSink(Sink[PreparedFile]):
    """Files below a directory, visible when their checkpoint is complete.

    `format` is text (`str` of each record), json, csv or parquet. `partition_by` names columns whose values become
    directories (`day=2026-11-15/`), as Spark writes and reads them. The path is local, mounted, or `s3://`.

    >>> FileSink("/data/out", "orc")
    Traceback (most recent call last):
    headgate.errors.InvalidArgument: FileSink('/data/out'): unknown format 'orc'; use text, json, csv, parquet
    """

    def __init__(
        self,
        path: str,
        format: str = "json",
        *,
        partition_by: Sequence[str] = (),
        roll_bytes: int = 128 << 20,
        compression: str = "zstd",
        delimiter: str = ",",
    ) -> None:
        """`compression` is Parquet's."""
        self._name = f"FileSink('{path}')"
        if format not in _SUFFIXES:
            raise InvalidArgument(f"{self._name}: unknown format {format!r}; use {', '.join(_SUFFIXES)}")
        if roll_bytes < 1:
            raise InvalidArgument(f"{self._name}: roll_bytes must be positive, got {roll_bytes}")
        open_target(path, ".headgate")  # a scheme that cannot do it is refused here
        self.path, self.format, self.roll_bytes = path, format, roll_bytes
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self.compression, self.delimiter = compression, delimiter

    def check(self, stream_type: TypeInformation) -> None:
        """Whether records of this type can be written."""
        if self.format in ("parquet", "csv") and stream_type.kind not in ("row", "tuple"):
            raise InvalidArgument(
                f"{self._name}: {self.format} needs a stream with fields, got {stream_type}; declare output_type, for example "
                "'word string, n bigint'"
            )
        check_partitions(self._name, self.partition_by, stream_type)

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[PreparedFile]:
        """Writes the files of one subtask."""
        return FileSinkWriter(self, context)

    def committer(self, context: WriterContext) -> Committer[PreparedFile]:
        return self.target(context)

    def target(self, context: WriterContext) -> FileTarget:
        return open_target(self.path, f".headgate-{context.job_id[:8]}")

    def rest_of(self, type: TypeInformation) -> TypeInformation:
        """What is written into the files: all but the partitions."""
        if not self.partition_by or type.schema is None:
            return type
        return TypeInformation("row", pa.schema([f for f in type.schema if f.name not in self.partition_by]))

    def open_part(self, file: PendingFile, type: TypeInformation) -> _FormatWriter:
        """A file of this format."""
        if self.format == "parquet":
            return _ParquetFileWriter(file, type, self.compression)
        return _LineWriter(file, encoder(self.format, type, self.delimiter))


class _FormatWriter(ABC):
    """A file in a format; what is written may wait in memory."""

    def __init__(self, file: PendingFile) -> None:
        self.file = file
        self.buffered = self.rows = 0
        self.partition: dict[str, str | None] = {}

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Append records."""

    def flush(self) -> None:
        """Empty the memory."""

    def finish(self) -> PreparedFile:
        """The last record was written."""
        return self.file.finish()

    def abort(self) -> None:
        """Forget it."""
        self.file.abort()


class _LineWriter(_FormatWriter):
    def __init__(self, file: PendingFile, encode: Encode) -> None:
        super().__init__(file)
        self._encode = encode

    def write(self, batch: Batch) -> None:
        if len(batch):
            self.file.write(b"\n".join([*self._encode(batch), b""]))


class _ParquetFileWriter(_FormatWriter):
    """Batches wait until they make a row group of a useful size."""

    def __init__(self, file: PendingFile, type: TypeInformation, compression: str) -> None:
        super().__init__(file)
        self._schema = type.schema
        self._writer = pq.ParquetWriter(file, type.schema, compression=compression)
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: Batch) -> None:
        arrow = batch.arrow()
        self._batches.append(arrow)
        self.buffered += arrow.nbytes
        if self.buffered >= _BUFFERED_BYTES // 4:
            self.flush()

    def flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
            self._batches, self.buffered = [], 0

    def finish(self) -> PreparedFile:
        self.flush()
        self._writer.close()
        return super().finish()

    def abort(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._writer.close()  # else it would write when it is collected
        super().abort()


class FileSinkWriter(SinkWriter[PreparedFile]):
    """Writes the files of one subtask: one for each partition, finished before each barrier."""

    def __init__(self, sink: FileSink, context: WriterContext) -> None:
        self._sink, self._type, self._rest = sink, context.type, sink.rest_of(context.type)
        self.batches = context.type.is_typed
        self._target = sink.target(context)
        operator = blake2b(context.operator_id.encode(), digest_size=4).hexdigest()
        self._prefix = f"part-{context.job_id[:8]}-{operator}"
        self._context, self._token, self._number = context, uuid4().hex[:12], 0
        self._parts: dict[str, _FormatWriter] = {}
        self._rows: list[Any] = []
        self._prepared: list[PreparedFile] = []
        self._cleaned = False
        self._target.remove_unfinished(self._is_abandoned)

    # --- records ---

    def write(self, value: Any) -> None:
        self._rows.append(value)
        if len(self._rows) >= _BUFFERED_ROWS:
            self._write_rows()

    def _write_rows(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._append("", Batch.of_rows(rows, self._type))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if not self._sink.partition_by:
            self._append("", Batch.of_arrow(batch, self._type))
            return
        rest = batch.select([name for name in batch.schema.names if name not in self._sink.partition_by])
        for directory, values, places in partitions_of(batch, self._sink.partition_by):
            part = rest if places is None else rest.take(pa.array(places))
            self._append(directory, Batch.of_arrow(part, self._rest), values)

    def _append(self, directory: str, batch: Batch, values: Sequence[str | None] = ()) -> None:
        part = self._parts.get(directory)
        if part is None:
            if len(self._parts) >= _OPEN_FILES:
                self._finish(next(iter(self._parts)))  # the one that was opened first
            part = self._parts[directory] = self._sink.open_part(
                self._target.open(self._new_name(directory)), self._rest
            )
            part.partition = dict(zip(self._sink.partition_by, values, strict=True))
        part.write(batch)
        part.rows += len(batch)
        if part.file.size + part.buffered >= self._sink.roll_bytes:
            self._finish(directory)
        elif sum(one.buffered for one in self._parts.values()) >= _BUFFERED_BYTES:
            for one in self._parts.values():
                one.flush()

    def _new_name(self, directory: str) -> str:
        self._number += 1
        suffix = _SUFFIXES[self._sink.format]
        place = f"{self._context.subtask}-{self._context.epoch}"
        return f"{directory}{self._prefix}-{place}-{self._token}-{self._number}.{suffix}"

    def _finish(self, directory: str) -> None:
        part = self._parts[directory]
        file = replace(part.finish(), rows=part.rows, size=part.file.size, partition=part.partition)
        del self._parts[directory]  # not before: what cannot be finished is aborted
        self._prepared.append(file)

    # --- checkpoints ---

    def prepare(self, end_of_input: bool) -> Sequence[PreparedFile]:
        self._write_rows()
        for directory in list(self._parts):
            self._finish(directory)
        if not self._cleaned:
            self._cleaned = True
            self._target.remove(self._is_abandoned)
        prepared, self._prepared = self._prepared, []
        return prepared

    def _is_abandoned(self, name: str) -> bool:
        """Whether a file is of an earlier attempt; those in the restored checkpoint are committed by now.

        A barrier comes only when all subtasks run, and each commits what it was restored with before it runs. Each subtask
        removes its own files, the first one also those of subtasks that do not exist any more. Files of a newer epoch are
        those of a driver that has replaced ours.
        """
        found = re.fullmatch(rf"{re.escape(self._prefix)}-(\d+)-(\d+)-([0-9a-f]{{12}})-\d+\.\w+", name)
        if found is None or found[3] == self._token or int(found[2]) > self._context.epoch:
            return False
        subtask, own = int(found[1]), self._context.subtask
        return subtask == own or (own == 0 and subtask >= self._context.parallelism)

    def close(self) -> None:
        with ExitStack() as parts:  # all are aborted, also if one cannot be
            for part in self._parts.values():
                parts.callback(part.abort)
        self._parts.clear()


def check_partitions(sink: str, columns: Sequence[str], type: TypeInformation) -> None:
    """InvalidArgument if records of a type cannot be partitioned by some columns."""
    names = type.schema.names if type.schema is not None else []
    for column in columns:
        if column not in names:
            raise InvalidArgument(f"{sink}: there is no field '{column}' to partition by in {type}")
    if columns and len(columns) == len(names):
        raise InvalidArgument(f"{sink}: nothing is left to write if all fields are partitions")


def partitions_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, tuple[str | None, ...], Any]]:
    """The directories of a batch's records, their values, and the records' places; None: all of them.

    >>> batch = pa.record_batch({"k": ["a", None, "a"], "n": [1, 2, 3]})
    >>> [(directory, values) for directory, values, _ in partitions_of(batch, ["k"])]
    [('k=a/', ('a',)), ('k=__HIVE_DEFAULT_PARTITION__/', (None,))]
    """
    codes = np.zeros(batch.num_rows, np.int64)
    texts: list[list[str | None]] = []
    for name in columns:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        texts.append([_text(value) for value in encoded.dictionary.to_pylist()])
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
    distinct, inverse = np.unique(codes, return_inverse=True)
    for number, code in enumerate(distinct.tolist()):
        values: list[str | None] = []
        for own in reversed(texts):
            code, place = divmod(code, len(own))
            values.insert(0, own[place])
        names = [f"{column}={_directory(value)}/" for column, value in zip(columns, values, strict=True)]
        yield "".join(names), tuple(values), None if len(distinct) == 1 else np.flatnonzero(inverse == number)


def _text(value: Any) -> str | None:
    """A value as Hive and Spark write it; an empty string is none."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _directory(value: str | None) -> str:
    return _NO_VALUE if value is None else quote(value, safe=" +,@()!$&'~;._-")
