"""Parquet files that nobody sees yet: written by subtasks, named in the checkpoint, made visible by a commit on the driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.api.durable import durable
from headgate.api.sink import SinkWriter
from headgate.connectors.files.sink import partitions_of
from headgate.records.types import TypeInformation
from headgate.storage.remote import open_store

__all__ = ["StagedFile", "StagedWriter", "remove_all"]

_FILE_BYTES = 64 << 20  # Arrow bytes that wait in memory for one file


@durable("staged-file-1")
class StagedFile(msgspec.Struct, frozen=True):
    """A Parquet file that is durable and not visible yet."""

    path: str
    name: str  # relative to the directory
    rows: int
    size: int
    modified: int  # milliseconds since 1970
    partition: dict[str, str | None] = {}


def remove_all(directory: str) -> None:
    """Delete a directory of staged files.

    >>> remove_all("memory://doc/nothing/there")
    """
    store = open_store()
    for file in store.list_objects(directory):
        store.delete(file.path)
    store.remove_directory(directory)


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0


class StagedWriter(SinkWriter[StagedFile]):
    """Writes batches to Parquet files of a directory, one for each partition, at least at every barrier."""

    batches = True

    def __init__(self, directory: str, prefix: str, type: TypeInformation, partition_by: Sequence[str] = ()) -> None:
        """Files are called `prefix` and something that never comes again."""
        assert type.schema is not None
        self._store, self._directory, self._prefix = open_store(), directory.rstrip("/"), prefix
        self._schema = pa.schema([f for f in type.schema if f.name not in partition_by])
        self._partition_by = tuple(partition_by)
        self._token, self._number = uuid4().hex[:12], 0
        self._waiting: dict[tuple[str, tuple[str | None, ...]], _Waiting] = {}
        self._size = 0
        self._written: list[StagedFile] = []

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Take a batch; the largest file is written when too much waits."""
        if not self._partition_by:
            self._add(("", ()), batch)
        else:
            rest = batch.select(self._schema.names)
            for directory, values, places in partitions_of(batch, self._partition_by):
                self._add((directory, values), rest if places is None else rest.take(pa.array(places)))
        while self._size >= _FILE_BYTES:
            self._write(max(self._waiting, key=lambda one: self._waiting[one].size))

    def _add(self, partition: tuple[str, tuple[str | None, ...]], batch: pa.RecordBatch) -> None:
        waiting = self._waiting.setdefault(partition, _Waiting())
        waiting.batches.append(batch)
        waiting.size += batch.nbytes
        self._size += batch.nbytes

    def _write(self, partition: tuple[str, tuple[str | None, ...]]) -> None:
        directory, values = partition
        waiting = self._waiting.pop(partition)
        self._size -= waiting.size
        self._number += 1
        name = f"{directory}{self._prefix}-{self._token}-{self._number}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches(waiting.batches, self._schema), sink, compression="zstd")
        data = sink.getvalue()
        path = f"{self._directory}/{name}"
        self._store.make_directory(path.rpartition("/")[0])
        self._store.put(path, data.to_pybytes())
        rows = sum(batch.num_rows for batch in waiting.batches)
        by_name: dict[str, Any] = dict(zip(self._partition_by, values, strict=True))
        self._written.append(StagedFile(path, name, rows, data.size, time.time_ns() // 1_000_000, by_name))

    def prepare(self, end_of_input: bool) -> Sequence[StagedFile]:
        """Write everything that waits."""
        for partition in list(self._waiting):
            self._write(partition)
        written, self._written = self._written, []
        return written
