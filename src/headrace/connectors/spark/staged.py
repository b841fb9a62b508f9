"""Parquet files that readers do not see yet: subtasks write them, and the driver makes them visible with a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.api.sink import CommitRequest, WriterContext
from headrace.connectors.files.sink import FileSink
from headrace.connectors.files.targets import FileTarget, PendingFile, PreparedFile
from headrace.storage.objects import ObjectStore
from headrace.storage.remote import open_store

__all__ = ["StagedParquet", "remove_all"]

_FILE_BYTES = 64 << 20


def remove_all(directory: str) -> None:
    """Delete a directory of staged files.

    >>> remove_all("memory://doc/nothing/there")
    """
    store = open_store()
    for file in store.list_objects(directory):
        store.delete(file.path)
    store.remove_directory(directory)


class StagedParquet(FileSink):
    """Writes Parquet files of a directory under their own names; another system or the driver commits them."""

    def __init__(self, path: str, partition_by: Sequence[str] = ()) -> None:
        self._name = self.path = path
        self.format, self.roll_bytes = "parquet", _FILE_BYTES
        self.partition_by, self.compression = tuple(partition_by), "zstd"

    def target(self, context: WriterContext) -> FileTarget:
        return _StagingTarget(self.path)


class _StagingTarget(FileTarget):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._store = open_store()

    def open(self, name: str) -> PendingFile:
        return _StagedFile(self._store, f"{self.root}/{name}")

    def _commit(self, request: CommitRequest[PreparedFile]) -> None:
        raise NotImplementedError("staged files are committed on the driver")

    def remove(self, abandoned: Callable[[str], bool]) -> None:
        """They are removed with the directory."""


class _StagedFile(PendingFile):
    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store, self._path, self._data = store, path, bytearray()

    def write(self, data: Any) -> int:
        self._data += data
        written = len(self._data) - self.size
        self.size += written
        return written

    def finish(self) -> PreparedFile:
        self._store.put(self._path, bytes(self._data))
        return PreparedFile(self._path, self._path)

    def abort(self) -> None:
        self._data.clear()
