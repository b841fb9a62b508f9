"""Files of HDFS over HTTP: WebHDFS of the name node, or an HttpFS gateway.

A file is written under a temporary name and then renamed, which the name node does atomically: a reader sees whole files
only, and a rename without overwrite tells of several writers who was first.
"""

from __future__ import annotations

import getpass
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import fsspec.config

from headrace.errors import StorageError
from headrace.storage.objects import (
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    OutcomeUnknown,
    SpoolingWriter,
    reported,
    temporary_name,
    without_secrets,
)

_TIMEOUT_SECONDS: Final = 60
_REDIRECTED: Final = (302, 307)
_KINDS: Final[dict[str, type[OSError]]] = {
    "FileNotFoundException": FileNotFoundError,
    "AccessControlException": PermissionError,
    "SecurityException": PermissionError,
}


class WebHdfsStore(ObjectStore):
    """`webhdfs://host:port/path`, with TLS `swebhdfs://`; the options are `user` or `token` (a delegation token)."""

    def __init__(self, scheme: str, options: Mapping[str, Any]) -> None:
        given = {**fsspec.config.conf.get("webhdfs", {}), **fsspec.config.conf.get(scheme, {}), **options}
        self._http = "https" if scheme == "swebhdfs" else "http"
        token, user = given.get("token"), given.get("user") or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        self._login = {"delegation": token} if token else {"user.name": user}

    def _call(self, method: str, path: str, operation: str, body: IO[bytes] | None = None, **parameters: Any) -> bytes:
        host, _, key = path.partition("://")[2].partition("/")
        query = urlencode({"op": operation, **self._login, **parameters})
        url = f"{self._http}://{host}/webhdfs/v1/{quote(key)}?{query}"
        status, answer, location = _request(method, url, None)
        if status in _REDIRECTED:  # to the data node that has the bytes, or takes them
            status, answer, _ = _request(method, location, body)
        if status < 300:
            return answer
        raise _error(status, answer)

    def _ask(self, method: str, path: str, operation: str, **parameters: Any) -> Any:
        return json.loads(self._call(method, path, operation, **parameters))

    def _entries(self, directory: str) -> list[dict[str, Any]]:
        """Return the entries directly below; none if it is not a directory."""
        try:
            found = self._ask("GET", directory, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        except FileNotFoundError:
            return []
        return [info for info in found if info["pathSuffix"]]

    def _walk(self, directory: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for info in self._entries(directory):
            path = f"{directory}/{info['pathSuffix']}"
            yield path, info
            if info["type"] == "DIRECTORY":
                yield from self._walk(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        with reported("read", path):
            if offset and offset >= self.size(path):  # the name node refuses what a file answers with nothing
                return b""
            part: dict[str, Any] = {"offset": offset} if length is None else {"offset": offset, "length": length}
            return self._call("GET", path, "OPEN", **part)

    def size(self, path: str) -> int:
        with reported("look at", path):
            found = self._ask("GET", path, "GETFILESTATUS")["FileStatus"]
            if found["type"] != "FILE":
                raise FileNotFoundError(f"'{path}' is a directory")
            return int(found["length"])

    def list_objects(self, directory: str) -> list[ObjectInfo]:
        with reported("list", directory):
            return sorted(ObjectInfo(p, info["length"]) for p, info in self._walk(directory) if info["type"] == "FILE")

    def list_names(self, directory: str) -> list[str]:
        with reported("list", directory):
            return sorted(info["pathSuffix"] for info in self._entries(directory))

    def put(self, path: str, data: bytes) -> None:
        self._upload(data, path)

    def _upload(self, data: bytes | Path, path: str) -> None:
        with reported("write", path):
            temporary = self._write_temporary(path, data)
            self._call("PUT", temporary, "RENAME", destination=_absolute(path), renameoptions="OVERWRITE")

    def _write_temporary(self, path: str, data: bytes | Path) -> str:
        temporary = f"{path.rpartition('/')[0]}/{temporary_name()}"
        with data.open("rb") if isinstance(data, Path) else io.BytesIO(data) as body:
            self._call("PUT", temporary, "CREATE", body, overwrite="false")
        return temporary

    def writer(self, directory: str, label: str = "") -> ObjectWriter:
        return SpoolingWriter(directory, self._upload)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        with reported("create", path):
            temporary = self._write_temporary(path, data)
            failure: Exception = OSError(f"the name node refuses to rename '{temporary}'")
            try:
                if self._ask("PUT", temporary, "RENAME", destination=_absolute(path))["boolean"]:
                    return True
                with suppress(StorageError):
                    self.delete(temporary)
            except Exception as error:
                failure = error
                if self._was_renamed(path, temporary, error) and self.read(path) == data:
                    return True
            if self.exists(path):
                return False
            raise failure

    def _was_renamed(self, path: str, temporary: str, failure: Exception) -> bool:
        """Return True if a rename whose reply is lost has happened; after the temporary file's deletion it cannot."""
        try:
            return not self._ask("DELETE", temporary, "DELETE")["boolean"]
        except Exception as error:
            raise OutcomeUnknown(
                f"cannot tell whether '{path}' was created: {type(failure).__name__}: {without_secrets(failure)}; it may still "
                "appear"
            ) from error

    def delete(self, path: str) -> None:
        with reported("delete", path):
            self._call("DELETE", path, "DELETE")

    def make_directory(self, directory: str) -> bool:
        with reported("make directory", directory):
            with suppress(FileNotFoundError):
                self._call("GET", directory, "GETFILESTATUS")
                return False
            self._call("PUT", directory, "MKDIRS")
            return True

    def remove_directory(self, directory: str) -> None:
        with suppress(Exception):
            below = [path for path, info in self._walk(directory) if info["type"] == "DIRECTORY"]
            for path in [*reversed(below), directory]:
                self._call("DELETE", path, "DELETE")


def _absolute(path: str) -> str:
    return f"/{path.partition('://')[2].partition('/')[2]}"


def _request(method: str, url: str, body: IO[bytes] | None) -> tuple[int, bytes, str]:
    """Return the status, the body and the new address that a server answers."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Content-Type": "application/octet-stream"}
    if body is not None:
        headers["Content-Length"] = str(body.seek(0, os.SEEK_END))
        body.seek(0)
    with closing(kind(parts.netloc, timeout=_TIMEOUT_SECONDS)) as connection:
        connection.request(method, f"{parts.path}?{parts.query}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Location", "")


def _error(status: int, answer: bytes) -> OSError:
    """Return the exception that a name node or data node reports."""
    try:
        found = json.loads(answer)["RemoteException"]
    except (ValueError, KeyError, TypeError):
        found = {"exception": f"HTTP status {status}", "message": ""}
    if status == 401:
        return PermissionError(
            "it wants another login; set user, or token (a delegation token: Kerberos is not known here)"
        )
    text = f"{found['exception']}: {str(found['message']).partition(chr(10))[0]}"
    return _KINDS.get(found["exception"], OSError)(text)
