"""Objects behind fsspec: memory, S3, and every other scheme that fsspec knows.

Only the reliable calls of fsspec are used. Its `exists` returns False on any error, its `find` skips directories that it
cannot read, and its listings may come from a cache: each could make a file in use look unused. Its exclusive create is a
check followed by a write; so memory uses a lock here, and S3 a conditional put.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final

import fsspec

from headgate.errors import StorageError
from headgate.storage.local import LocalStore
from headgate.storage.objects import (
    MissingObject,
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    OutcomeUnknown,
    reported,
    scheme_of,
    storage_error,
)

_FLAT: Final = {"s3", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss"}  # no directories: nothing to make or remove
_SPOOL_BUFFER: Final = 8 << 20
_CONFLICT_ATTEMPTS: Final = 8
_CONFLICT_PAUSE_SECONDS: Final = 0.05
_TOKEN: Final = "headgate-writer"  # noqa: S105  the name of a header, no secret
_MEMORY_LOCK: Final = Lock()  # fsspec's memory file system is one per process, and so is this


def open_store(options: Mapping[str, Mapping[str, Any]] | None = None, write_buffer: int | None = None) -> RoutingStore:
    """A store for paths of every scheme.

    `options` holds arguments for fsspec by scheme; fsspec's own configuration (its files, `FSSPEC_S3_ENDPOINT_URL` and
    the like) works without them.

    >>> open_store().supports_create_if_absent("gs://bucket/x")
    False
    """

    def open_scheme(scheme: str) -> ObjectStore:
        if scheme == "file":
            return LocalStore() if write_buffer is None else LocalStore(write_buffer)
        kinds: dict[str, type[FsspecStore]] = {"memory": MemoryFsspecStore, "s3": S3Store}
        return kinds.get(scheme, FsspecStore)(scheme, (options or {}).get(scheme, {}))

    return RoutingStore(open_scheme)


class RoutingStore(ObjectStore):
    """One store for paths of every scheme; each scheme is opened when it is first used.

    >>> store = open_store()
    >>> store.put("memory://doc/a", b"1")
    >>> store.read("memory://doc/a")
    b'1'
    """

    def __init__(self, open_scheme: Callable[[str], ObjectStore]) -> None:
        self._open_scheme = open_scheme
        self._stores: dict[str, ObjectStore] = {}
        self._lock = Lock()

    def store_for(self, path: str) -> ObjectStore:
        """The store of a path's scheme."""
        scheme = scheme_of(path)
        with self._lock:
            store = self._stores.get(scheme)
            if store is None:
                store = self._stores[scheme] = self._open_scheme(scheme)
        return store

    def supports_create_if_absent(self, path: str) -> bool:
        # Not through store_for: to say no, the scheme's library need not be installed.
        return scheme_of(path) in {"file", "memory", "s3"}

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.store_for(path).read(path, offset, length)

    def size(self, path: str) -> int:
        return self.store_for(path).size(path)

    def list_objects(self, directory: str) -> list[ObjectInfo]:
        return self.store_for(directory).list_objects(directory)

    def list_names(self, directory: str) -> list[str]:
        return self.store_for(directory).list_names(directory)

    def put(self, path: str, data: bytes) -> None:
        self.store_for(path).put(path, data)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        return self.store_for(path).create_if_absent(path, data)

    def delete(self, path: str) -> None:
        self.store_for(path).delete(path)

    def make_directory(self, directory: str) -> bool:
        return self.store_for(directory).make_directory(directory)

    def remove_directory(self, directory: str) -> None:
        self.store_for(directory).remove_directory(directory)

    def writer(self, directory: str, label: str = "") -> ObjectWriter:
        return self.store_for(directory).writer(directory, label)


class FsspecStore(ObjectStore):
    """Any scheme of fsspec; good for plain checkpoints, but without create-if-absent."""

    def __init__(self, scheme: str, options: Mapping[str, Any]) -> None:
        self._scheme = scheme
        try:
            self._fs: Any = fsspec.filesystem(scheme, use_listings_cache=False, **options)
        except ImportError as error:
            raise StorageError(f"paths of scheme '{scheme}' need a package that is not installed: {error}") from error
        except ValueError as error:
            raise StorageError(f"no file system is known for scheme '{scheme}' ({error}); check the path") from error

    def supports_create_if_absent(self, path: str) -> bool:
        return False

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        with reported("read", path):
            try:
                data: bytes = self._fs.cat_file(path, start=offset, end=None if length is None else offset + length)
            except OSError:
                # S3 refuses a range that starts at or behind the end, even of an empty object; a file gives nothing.
                if offset < self.size(path):
                    raise
                return b""
            return data

    def size(self, path: str) -> int:
        with reported("look at", path):
            info = self._fs.info(path)
            if info["type"] != "file":
                raise FileNotFoundError(f"'{path}' is a directory")
            return int(info["size"])

    def list_objects(self, directory: str) -> list[ObjectInfo]:
        with reported("list", directory):
            start = self._stripped(directory)
            found, todo = [], [start]
            while todo:
                for info in self._entries(todo.pop()):
                    name = self._stripped(info["name"])
                    if info["type"] == "directory":
                        todo.append(name)
                    else:
                        found.append(ObjectInfo(f"{directory}/{name[len(start) :].lstrip('/')}", int(info["size"])))
            return sorted(found)

    def list_names(self, directory: str) -> list[str]:
        with reported("list", directory):
            return sorted(self._stripped(info["name"]).rpartition("/")[2] for info in self._entries(directory))

    def put(self, path: str, data: bytes) -> None:
        with reported("write", path):
            self._make_parent(path)
            self._fs.pipe_file(path, data)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        raise StorageError(f"cannot create '{path}': scheme '{self._scheme}' has no atomic create-if-absent here")

    def delete(self, path: str) -> None:
        with reported("delete", path), suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def make_directory(self, directory: str) -> bool:
        with reported("make directory", directory):
            if self._entries(directory):
                return False
            if self._scheme in _FLAT:
                return True
            try:
                self._fs.makedirs(directory, exist_ok=False)
            except FileExistsError:
                return False
            return True

    def remove_directory(self, directory: str) -> None:
        if self._scheme not in _FLAT:
            with suppress(Exception):
                self._fs.rmdir(directory)

    def writer(self, directory: str, label: str = "") -> ObjectWriter:
        return _SpoolingWriter(directory, self.upload)

    def upload(self, local: str, path: str) -> None:
        """Copy a local file to an object."""
        self._make_parent(path)
        self._fs.put_file(local, path)

    def _stripped(self, path: str) -> str:
        return str(self._fs._strip_protocol(path)).rstrip("/")  # noqa: SLF001  fsspec has no public name for it

    def _entries(self, directory: str) -> list[dict[str, Any]]:
        """The entries directly below, without the directory marker of an object store."""
        try:
            entries = self._fs.ls(directory, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        own = self._stripped(directory)
        return [info for info in entries if self._stripped(info["name"]) != own]

    def _make_parent(self, path: str) -> None:
        if self._scheme not in _FLAT:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)


class _SpoolingWriter(ObjectWriter):
    """Writes an object to a local file first: an upload needs the name, and the name of a shared file is known last."""

    def __init__(self, directory: str, upload: Callable[[str, str], None]) -> None:
        super().__init__(directory)
        self._upload = upload
        self._file = tempfile.NamedTemporaryFile(prefix="headgate-upload-", buffering=_SPOOL_BUFFER)  # noqa: SIM115

    def _append(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def _commit(self, path: str) -> None:
        self._file.flush()
        self._upload(self._file.name, path)
        self._file.close()

    def _discard(self) -> None:
        with suppress(OSError):
            self._file.close()


class MemoryFsspecStore(FsspecStore):
    """fsspec's `memory://`, gone with the process: for tests and demonstrations."""

    def supports_create_if_absent(self, path: str) -> bool:
        return True

    def put(self, path: str, data: bytes) -> None:
        with _MEMORY_LOCK:
            super().put(path, data)

    def upload(self, local: str, path: str) -> None:
        self.put(path, Path(local).read_bytes())

    def create_if_absent(self, path: str, data: bytes) -> bool:
        with _MEMORY_LOCK:
            if self.exists(path):
                return False
            super().put(path, data)
            return True


class S3Store(FsspecStore):
    """S3 and services that honour `If-None-Match` on a put (`objects.check_create_if_absent` finds out).

    The library below repeats a request whose reply got lost, and the repetition finds the object that the first one
    made. A token in the object's own metadata tells a writer whether the existing object is its own.
    """

    def supports_create_if_absent(self, path: str) -> bool:
        return True

    def create_if_absent(self, path: str, data: bytes) -> bool:
        bucket, key, _ = self._fs.split_path(path)
        token = secrets.token_hex(16)
        request = {"Bucket": bucket, "Key": key, "Body": data, "IfNoneMatch": "*", "Metadata": {_TOKEN: token}}
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                self._fs.call_s3("put_object", **request)
                return True
            except Exception as error:
                code = _s3_code(error)
                if code in {"PreconditionFailed", "412"}:
                    return self._writer_of(path) == token
                if code in {"AccessDenied", "403", "NoSuchBucket", "404"}:
                    raise storage_error("create", path, error) from error
                if code not in {"ConditionalRequestConflict", "OperationAborted", "409"}:
                    return self._after_failure(path, token, error)
                # Another conditional put is under way; S3 asks to try again.
                time.sleep(_CONFLICT_PAUSE_SECONDS * (attempt + 1))
        raise OutcomeUnknown(f"cannot create '{path}': {_CONFLICT_ATTEMPTS} attempts met other writers; try again")

    def _after_failure(self, path: str, token: str, error: Exception) -> bool:
        with suppress(StorageError):
            if self._writer_of(path) == token:
                return True
        raise OutcomeUnknown(
            f"cannot tell whether '{path}' was created: {type(error).__name__}: {error}; it may still appear"
        ) from error

    def _writer_of(self, path: str) -> str | None:
        """The token of the call that made an object; None if it is gone again."""
        bucket, key, _ = self._fs.split_path(path)
        try:
            with reported("look at", path):
                found = self._fs.call_s3("head_object", Bucket=bucket, Key=key)
        except MissingObject:
            return None
        token: str | None = found.get("Metadata", {}).get(_TOKEN)
        return token


def _s3_code(error: BaseException | None) -> str:
    """The code that S3 returned, wherever s3fs has put it; "" if S3 did not answer."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        if isinstance(error, FileExistsError):
            return "PreconditionFailed"
        error = error.__cause__
    return ""
