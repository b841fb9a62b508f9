"""Targets of a file sink: files are invisible until they are committed, then visible at once and complete.

    local and mounted directories   written in a hidden directory, committed by a rename
    s3                              a multipart upload, committed by completing it: no object exists before

Both can be committed again. Schemes without such an atomic step are refused. Workers use it, in the subtask's thread.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import msgspec

from headrace.api.durable import durable
from headrace.api.sink import CommitRequest, Committer
from headrace.errors import InvalidArgument, StorageError, install_hint
from headrace.storage.local import flush_directory
from headrace.storage.objects import scheme_of

__all__ = ["FileTarget", "PendingFile", "PreparedFile", "open_target"]

_PART_BYTES = 8 << 20  # S3 takes no parts below 5 MiB, except the last


@durable("prepared-file-1")
class PreparedFile(msgspec.Struct, frozen=True):
    """A file that is durable and not visible yet."""

    path: str
    hidden: str  # the hidden file, or the id of the upload
    parts: tuple[str, ...] = ()  # of an upload
    rows: int = 0
    size: int = 0
    partition: dict[str, str | None] = {}  # the values of the columns that the file is partitioned by


class PendingFile(io.RawIOBase, ABC):
    """A file that is being written, and not visible."""

    size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    @abstractmethod
    def finish(self) -> PreparedFile:
        """Make it durable."""

    @abstractmethod
    def abort(self) -> None:
        """Discard it."""


class FileTarget(Committer[PreparedFile]):
    """The directory of a sink, and what makes its files visible. Names are relative to it."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    @abstractmethod
    def open(self, name: str) -> PendingFile:
        """Create a file that will be visible under this name."""

    def commit(self, requests: Sequence[CommitRequest[PreparedFile]]) -> None:
        for request in requests:
            self._commit(request)

    @abstractmethod
    def _commit(self, request: CommitRequest[PreparedFile]) -> None:
        """Make one file visible."""

    @abstractmethod
    def remove(self, abandoned: Callable[[str], bool]) -> None:
        """Remove files that are not visible and whose names are those of abandoned ones."""

    def remove_unfinished(self, abandoned: Callable[[str], bool]) -> None:
        """Remove those of them that no checkpoint can hold, since they were never finished, and that take room."""


def open_target(root: str, hidden: str) -> FileTarget:
    """Return the target of a path; `hidden` names the directory for files that are being written.

    >>> open_target("ftp://host/out", ".headrace")
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-4107] 'ftp://host/out': a file cannot be made visible in one step on ftp; use a local or mounted directory, or s3://
    """
    scheme = scheme_of(root)
    if scheme == "file":
        return LocalTarget(root, hidden)
    if scheme == "s3":
        return S3Target(root)
    raise InvalidArgument(
        "HR-4107",
        f"'{root}': a file cannot be made visible in one step on {scheme}; use a local or mounted directory, or s3://",
    )


# --- local ------------------------------------------------------------------------------------------------------------


_OPEN_ATTEMPTS = 20
_WRITING, _PREPARED = ".inprogress", ".prepared"


class _LocalFile(PendingFile):
    def __init__(self, hidden: Path, path: Path) -> None:
        self._hidden, self._path = hidden, path
        self._file = hidden.open("xb")

    def write(self, data: Any) -> int:
        with _reported(self._path):
            written = self._file.write(data)
        self.size += written
        return written

    def finish(self) -> PreparedFile:
        prepared = self._hidden.with_suffix(_PREPARED)
        with _reported(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._hidden.rename(prepared)
            flush_directory(prepared.parent)
        return PreparedFile(str(self._path), str(prepared))

    def abort(self) -> None:
        # Closing writes what is still buffered, so a full disk fails here once more; the file goes either way.
        with suppress(OSError):
            self._file.close()
        self._hidden.unlink(missing_ok=True)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            "HR-4106",
            f"the file sink cannot write '{path}': {error}; check that its disk has room and can be written to",
        ) from error


class LocalTarget(FileTarget):
    """A local or mounted directory."""

    def __init__(self, root: str, hidden: str) -> None:
        super().__init__(root.removeprefix("file://"))
        self._hidden = Path(self.root) / hidden

    def open(self, name: str) -> PendingFile:
        hidden = self._hidden / f"{name.rpartition('/')[2]}{_WRITING}"
        with _reported(Path(self.root)):
            for attempt in range(_OPEN_ATTEMPTS):
                try:
                    self._hidden.mkdir(parents=True, exist_ok=True)
                    return _LocalFile(hidden, Path(self.root) / name)
                except (FileNotFoundError, FileExistsError):  # another subtask has ended, and has removed the directory
                    if attempt == _OPEN_ATTEMPTS - 1:
                        raise
        raise AssertionError("unreachable")

    def _commit(self, request: CommitRequest[PreparedFile]) -> None:
        path = Path(request.committable.path)
        if path.parent != Path(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            Path(request.committable.hidden).rename(path)
        except FileNotFoundError:
            if not path.exists():  # else it was committed before
                request.drop(
                    f"neither '{request.committable.hidden}' nor the visible file exists: the former was deleted outside the "
                    "job, or the latter was moved or deleted after its commit"
                )
            return
        flush_directory(path.parent)

    def remove(self, abandoned: Callable[[str], bool]) -> None:
        self._remove(abandoned, (_WRITING, _PREPARED))

    def remove_unfinished(self, abandoned: Callable[[str], bool]) -> None:
        self._remove(abandoned, (_WRITING,))

    def _remove(self, abandoned: Callable[[str], bool], suffixes: tuple[str, ...]) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            for file in self._hidden.iterdir():
                if file.suffix in suffixes and abandoned(file.stem):
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        with suppress(OSError):  # files of other subtasks, or of the next checkpoint, are still there
            self._hidden.rmdir()


# --- S3 ---------------------------------------------------------------------------------------------------------------


class _S3Upload(PendingFile):
    def __init__(self, fs: Any, where: dict[str, Any], path: str) -> None:
        self._fs, self._where, self._path = fs, where, path
        self._id: str = _call_s3(fs, "create_multipart_upload", self._where)["UploadId"]
        self._parts: list[str] = []
        self._buffer = bytearray()

    def write(self, data: Any) -> int:
        written = memoryview(data).nbytes
        self._buffer += data
        self.size += written
        if len(self._buffer) >= _PART_BYTES:
            self._send()
        return written

    def _send(self) -> None:
        answer = _call_s3(
            self._fs,
            "upload_part",
            self._where | {"UploadId": self._id, "PartNumber": len(self._parts) + 1, "Body": bytes(self._buffer)},
        )
        self._parts.append(answer["ETag"])
        self._buffer.clear()

    def finish(self) -> PreparedFile:
        if self._buffer or not self._parts:
            self._send()
        return PreparedFile(self._path, self._id, tuple(self._parts))

    def abort(self) -> None:
        with suppress(StorageError):
            _call_s3(self._fs, "abort_multipart_upload", self._where | {"UploadId": self._id})


class S3Target(FileTarget):
    """A prefix of a bucket; uploads that were begun and never completed cost storage until they are aborted."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        try:
            self._fs = fsspec.filesystem("s3")
        except ImportError as error:
            raise InvalidArgument("HR-1108", f"'{root}' needs s3fs: {install_hint('s3')}") from error

    def open(self, name: str) -> PendingFile:
        path = f"{self.root}/{name}"
        return _S3Upload(self._fs, _bucket_and_key(path), path)

    def _commit(self, request: CommitRequest[PreparedFile]) -> None:
        file = request.committable
        parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(file.parts, 1)]
        upload = {"UploadId": file.hidden, "MultipartUpload": {"Parts": parts}}
        try:
            _call_s3(self._fs, "complete_multipart_upload", _bucket_and_key(file.path) | upload)
        except StorageError as error:
            self._fs.invalidate_cache()
            if self._fs.exists(file.path):
                return  # it was committed before
            if isinstance(error, _UploadGone):
                request.drop(
                    "the upload is gone and the object does not exist: it was aborted outside the job (a lifecycle rule of the "
                    "bucket?), or the object was deleted after its commit"
                )
            else:
                request.retry_later()

    def remove(self, abandoned: Callable[[str], bool]) -> None:
        where = _bucket_and_key(self.root)
        bucket = {"Bucket": where["Bucket"]}
        answer = _call_s3(self._fs, "list_multipart_uploads", bucket | {"Prefix": where["Key"]})
        for upload in answer.get("Uploads", ()):
            if abandoned(upload["Key"].rpartition("/")[2]):
                one = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                with suppress(StorageError):
                    _call_s3(self._fs, "abort_multipart_upload", bucket | one)


def _bucket_and_key(path: str) -> dict[str, Any]:
    bucket, _, key = path.partition("://")[2].partition("/")
    return {"Bucket": bucket, "Key": key}


class _UploadGone(StorageError):
    """The upload was completed or aborted."""

    class_code = "HR-4106"


def _call_s3(fs: Any, method: str, arguments: dict[str, Any]) -> Any:
    try:
        return fs.call_s3(method, **arguments)
    except Exception as error:
        response = getattr(error.__cause__ or error, "response", {})
        kind = _UploadGone if response.get("Error", {}).get("Code") == "NoSuchUpload" else StorageError
        raise kind(f"s3 {method} of {arguments['Bucket']}/{arguments.get('Key', '')}: {error}") from error
