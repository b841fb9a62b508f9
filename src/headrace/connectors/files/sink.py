"""Writes records to files that become visible exactly once: with the checkpoint that holds them (SPEC R9.3).

Every file is finished before a barrier, so none is open in a checkpoint; a file that has grown large or old is finished
earlier and the next one begun. Names never repeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, tzinfo
from hashlib import blake2b
from typing import Any
from urllib.parse import quote
from uuid import uuid4
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from headrace.api.sink import Committer, Sink, SinkWriter, WriterContext
from headrace.connectors.files.formats import BUFFERED_BYTES, FileFormat, FormatWriter, writing_format
from headrace.connectors.files.targets import FileTarget, PreparedFile, open_target
from headrace.errors import InvalidArgument
from headrace.records.batch import Batch
from headrace.records.types import TypeInformation, as_type

__all__ = ["FileSink", "FileSinkWriter", "TimeBuckets", "check_partitions"]

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_OPEN_FILES = 128
_BUFFERED_ROWS = 1000  # of untyped records


class TimeBuckets:
    """Puts records into a directory for the time at which they are written.

    >>> TimeBuckets("%Y-%m-%d/%H", "Asia/Tokyo").directory(0)
    '1970-01-01/09'
    """

    def __init__(self, pattern: str = "%Y-%m-%d--%H", timezone: str | tzinfo | None = None) -> None:
        """`pattern` is that of `strftime`; the timezone is UTC if none is given."""
        self.pattern = pattern
        try:
            self._zone = ZoneInfo(timezone) if isinstance(timezone, str) else timezone or UTC
        except (KeyError, ValueError) as error:
            raise InvalidArgument("HR-4105", f"TimeBuckets: there is no timezone {timezone!r}: {error}") from None

    def directory(self, now: int) -> str:
        """Return the directory of a time in milliseconds."""
        return datetime.fromtimestamp(now / 1000, self._zone).strftime(self.pattern).strip("/")


class FileSink(Sink[PreparedFile]):
    """Files below a directory, visible when their checkpoint is complete.

    `format` is text (`str` of each record), json, csv, parquet or orc, a `FileFormat`, or a function that makes the bytes
    of a line. `type_info` are the fields of the file, if the stream has no type or another one.

    Directories below the path: `partition_by` names columns whose values become directories (`day=2026-11-15/`), as Spark
    writes and reads them; `bucket` is a `TimeBuckets`, or a function that gives the directory of a record.

    A file is finished with each checkpoint, and earlier when it has `roll_bytes`, is older than `roll_ms`, or was not
    written to for `idle_ms`. The path is local, mounted, or `s3://`.

    >>> FileSink("/data/out", "xml")
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-4501] FileSink('/data/out'): unknown format 'xml'; use text, json, csv, parquet, orc
    """

    output_kind = "files"
    type: TypeInformation | None = None
    bucket: TimeBuckets | Callable[[Any], str] | None = None
    roll_ms: int | None = None
    idle_ms: int | None = None
    prefix = "part"
    suffix: str | None = None
    delimiter = ","

    def __init__(
        self,
        path: str,
        format: str | FileFormat | Callable[[Any], bytes] = "json",
        *,
        type_info: object = None,
        partition_by: Sequence[str] = (),
        bucket: TimeBuckets | Callable[[Any], str] | None = None,
        roll_bytes: int = 128 << 20,
        roll_ms: int | None = None,
        idle_ms: int | None = None,
        prefix: str = "part",
        suffix: str | None = None,
        compression: str = "zstd",
        delimiter: str = ",",
    ) -> None:
        """Names of files begin with `prefix` and end with `suffix`; `compression` is Parquet's or ORC's."""
        self._name = f"FileSink('{path}')"
        self.path, self.format, self.roll_bytes = path, format, roll_bytes
        self.compression, self.delimiter = compression, delimiter
        self.file_format()
        for name, limit in (("roll_bytes", roll_bytes), ("roll_ms", roll_ms), ("idle_ms", idle_ms)):
            if limit is not None and limit < 1:
                raise InvalidArgument("HR-4105", f"{self._name}: {name} must be positive, got {limit}")
        if not prefix or prefix[0] in "._" or "/" in prefix or "/" in (suffix or ""):
            raise InvalidArgument(
                "HR-4105",
                f"{self._name}: prefix {prefix!r} and suffix {suffix!r} would hide files, or move them; start with a letter, "
                "and leave out '/'",
            )
        open_target(path, ".headrace")  # a scheme that cannot do it is refused here
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        if self.partition_by and bucket is not None:
            raise InvalidArgument("HR-4105", f"{self._name}: give partition_by or bucket, one of the two")
        self.type = None if type_info is None else as_type(type_info)
        self.bucket, self.roll_ms, self.idle_ms, self.prefix, self.suffix = bucket, roll_ms, idle_ms, prefix, suffix

    def file_format(self) -> FileFormat:
        """Return the format that writes the files."""
        return writing_format(self.format, self.compression, self.delimiter, self._name)

    def check(self, stream_type: TypeInformation) -> None:
        """Raise an error if records of this type cannot be written."""
        type, format = self.type or stream_type, self.file_format()
        if format.takes_fields and type.kind not in ("row", "tuple"):
            raise InvalidArgument(
                "HR-1203",
                f"{self._name}: {format.suffix} needs a stream with fields, got {type}; declare output_type, for example "
                "'word string, n bigint'",
            )
        check_partitions(self._name, self.partition_by, type)

    def writer(self, context: WriterContext, restored: list[Any]) -> SinkWriter[PreparedFile]:
        """Make the writer of one subtask's files."""
        return FileSinkWriter(self, context)

    def committer(self, context: WriterContext) -> Committer[PreparedFile]:
        return self.target(context)

    def target(self, context: WriterContext) -> FileTarget:
        return open_target(self.path, f".headrace-{context.job_id[:8]}")

    def rest_of(self, type: TypeInformation) -> TypeInformation:
        """Return the columns that are written into the files: all except the partition columns."""
        if not self.partition_by or type.schema is None:
            return type
        return TypeInformation("row", pa.schema([f for f in type.schema if f.name not in self.partition_by]))


class FileSinkWriter(SinkWriter[PreparedFile]):
    """Writes the files of one subtask: one for each partition, finished before each barrier."""

    def __init__(self, sink: FileSink, context: WriterContext) -> None:
        self._sink, self._format = sink, sink.file_format()
        self._type = sink.type or context.type
        self._rest = sink.rest_of(self._type)
        self.batches = context.type.is_typed and context.type == self._type
        self._target = sink.target(context)
        operator = blake2b(context.operator_id.encode(), digest_size=4).hexdigest()
        self._prefix = f"{sink.prefix}-{context.job_id[:8]}-{operator}"
        self._suffix = f".{self._format.suffix}" if sink.suffix is None else sink.suffix
        self._context, self._token, self._number = context, uuid4().hex[:12], 0
        self._parts: dict[str, FormatWriter] = {}
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
            schema = self._type.schema
            if schema is not None and self._type.kind != "scalar":
                rows = [tuple(map(row.get, schema.names)) if isinstance(row, dict) else row for row in rows]
            batch = Batch.of_rows(rows, self._type)
            if self._sink.partition_by:
                self.write_batch(batch.arrow())
            else:
                self._into_buckets(batch)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if not self._sink.partition_by:
            self._into_buckets(Batch.of_arrow(batch, self._type))
            return
        rest = batch.select([name for name in batch.schema.names if name not in self._sink.partition_by])
        for directory, values, places in partitions_of(batch, self._sink.partition_by):
            part = rest if places is None else rest.take(pa.array(places))
            self._append(directory, Batch.of_arrow(part, self._rest), values)

    def _into_buckets(self, batch: Batch) -> None:
        bucket = self._sink.bucket
        if bucket is None:
            self._append("", batch)
        elif isinstance(bucket, TimeBuckets):
            self._append(f"{bucket.directory(self._context.clock())}/", batch)
        else:
            places: dict[str, list[int]] = {}
            for place, row in enumerate(batch.rows()):
                places.setdefault(f"{bucket(row).strip('/')}/".lstrip("/"), []).append(place)
            for directory, own in places.items():
                self._append(directory, batch.select(np.array(own)))

    def _append(self, directory: str, batch: Batch, values: Sequence[str | None] = ()) -> None:
        sink = self._sink
        now = self._context.clock() if sink.roll_ms or sink.idle_ms else 0
        part = self._parts.get(directory)
        if part is not None and self._is_old(part, now):
            self._finish(directory)
            part = None
        if part is None:
            if len(self._parts) >= _OPEN_FILES:
                self._finish(next(iter(self._parts)))  # the one that was opened first
            part = self._format.writer(self._target.open(self._new_name(directory)), self._rest)
            part.partition, part.opened = dict(zip(sink.partition_by, values, strict=True)), now
            self._parts[directory] = part
        part.write(batch)
        part.rows += len(batch)
        part.written = now
        if part.file.size + part.buffered >= sink.roll_bytes:
            self._finish(directory)
        elif sum(one.buffered for one in self._parts.values()) >= BUFFERED_BYTES:
            for one in self._parts.values():
                one.flush()

    def _is_old(self, part: FormatWriter, now: int) -> bool:
        """Return True if the file must be finished before the next record; files appear at checkpoints, so no timer does."""
        roll, idle = self._sink.roll_ms, self._sink.idle_ms
        return (roll is not None and now - part.opened >= roll) or (idle is not None and now - part.written >= idle)

    def _new_name(self, directory: str) -> str:
        self._number += 1
        place = f"{self._context.subtask}-{self._context.epoch}"
        return f"{directory}{self._prefix}-{place}-{self._token}-{self._number}{self._suffix}"

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
        """Return True if a file is of an earlier attempt; those in the restored checkpoint are committed by now.

        A barrier comes only when all subtasks run, and each commits what it was restored with before it runs. Each subtask
        removes its own files, the first one also those of subtasks that do not exist any more. Files of a newer epoch are
        those of a driver that has replaced ours.
        """
        found = re.fullmatch(
            rf"{re.escape(self._prefix)}-(\d+)-(\d+)-([0-9a-f]{{12}})-\d+{re.escape(self._suffix)}", name
        )
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
            raise InvalidArgument("HR-1206", f"{sink}: there is no field '{column}' to partition by in {type}")
    if columns and len(columns) == len(names):
        raise InvalidArgument("HR-4105", f"{sink}: nothing is left to write if all fields are partitions")


def partitions_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, tuple[str | None, ...], Any]]:
    """Yield the directories of a batch's records, their values, and the records' places; None: all of them.

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
    """Return a value as Hive and Spark write it; an empty string is none."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _directory(value: str | None) -> str:
    return _NO_VALUE if value is None else quote(value, safe=" +,@()!$&'~;._-")
