"""Opens the store of a path by its scheme. Used by the driver and by workers, from any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from headrace.errors import StorageError
from headrace.storage.cloud import CloudStore
from headrace.storage.local import DEFAULT_BUFFER, LocalStore
from headrace.storage.objects import ObjectInfo, ObjectStore, ObjectWriter, scheme_of, unsupported
from headrace.storage.webhdfs import WebHdfsStore


def open_store(
    options: Mapping[str, Mapping[str, Any]] | None = None, write_buffer: int = DEFAULT_BUFFER, private: bool = False
) -> RoutingStore:
    """Return a store for paths of every scheme; on a local file system, `private` files are for this user only.

    `options` holds options by scheme, beside those of fsspec's own configuration (its files, `FSSPEC_S3_ENDPOINT_URL`
    and the like) and the variables of the environment that docs/storage.md names.
    """

    def open_scheme(scheme: str) -> ObjectStore:
        own = (options or {}).get(scheme, {})
        if scheme == "file":
            return LocalStore(write_buffer, private)
        if scheme in ("webhdfs", "swebhdfs"):
            return WebHdfsStore(scheme, own)
        return CloudStore(scheme, own)

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
        """Return the store of a path's scheme."""
        scheme = scheme_of(path)
        with self._lock:
            store = self._stores.get(scheme)
            if store is None:
                if reason := unsupported(path):
                    raise StorageError("HR-3103", f"cannot use '{path}': {reason}")
                store = self._stores[scheme] = self._open_scheme(scheme)
        return store

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
