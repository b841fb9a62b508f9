"""The interface of an object store, and its errors. Used by the driver and by workers, from any thread.

A path is an absolute local path or a URL (`/data/chk`, `s3://bucket/chk`, `memory://chk`). A directory is only a common
beginning of paths: stores that have real directories make them when something is written below.

The one hard requirement is `create_if_absent`: of many writers, on many machines, exactly one succeeds, and no reader
ever sees less than its whole object. Job logs and exactly-once sinks stand on it, so a scheme without it is refused.
"""

from __future__ import annotations

import errno
import re
import secrets
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from headrace.errors import HeadraceError, IllegalState, InvalidArgument, StorageError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SAME_SCHEME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}  # as Hadoop, Spark and fsspec users spell it
_SUPPORTED: Final = ("file", "memory", "s3", "gs", "az", "abfs", "abfss", "webhdfs", "swebhdfs")
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_DENIED: Final = {"PermissionDeniedError", "UnauthenticatedError"}  # obstore's, which are no PermissionError
_SECRET: Final = re.compile(
    r"\b(sig|delegation|token|[\w-]*signature|[\w-]*credential|[\w-]*security-token)=[^&\s\"']+", re.IGNORECASE
)
_SPOOL_BUFFER: Final = 8 << 20


class MissingObject(StorageError, FileNotFoundError):
    """There is no object at that path."""

    class_code = "HR-3101"


class OutcomeUnknown(StorageError):
    """A write failed, but the object may exist, or appear later: what it refers to must not be deleted (SPEC R5.8)."""

    class_code = "HR-3104"


def storage_error(action: str, path: str, error: BaseException) -> StorageError:
    """Return a StorageError that names the path, the cause and what to do.

    >>> print(storage_error("write", "/chk/7", OSError(errno.ENOSPC, "No space left on device")))
    [HR-3103] cannot write '/chk/7': the disk is full (ENOSPC); free some space there, or use another execution.checkpointing.dir
    """
    code = error.errno if isinstance(error, OSError) else None
    result = StorageError
    if code in _FULL:
        assert code is not None
        reason = f"the disk is full ({errno.errorcode[code]}); free some space there, or use another execution.checkpointing.dir"
    elif isinstance(error, FileNotFoundError):
        result = MissingObject
        reason = "FileNotFound: it does not exist; check the path, or use another checkpoint or savepoint"
    elif isinstance(error, NotADirectoryError | FileExistsError):
        reason = (
            f"{type(error).__name__}: a part of this path is a file, but a directory is needed: that of a checkpoint or savepoint "
            "to read it, or one below which files can be written"
        )
    elif isinstance(error, PermissionError) or type(error).__name__ in _DENIED:
        reason = (
            f"permission denied ({without_secrets(error)}); the user and the credentials of the job must be able to read and "
            "write there"
        )
    else:
        reason = (
            f"{type(error).__name__}: {without_secrets(error)}; check that the storage can be reached, then try again"
        )
    found = result(f"cannot {action} '{path}': {reason}")
    found.errno = code
    return found


def without_secrets(error: BaseException) -> str:
    """Return the text of an error without signatures and tokens in URLs, and without a library's debug output.

    >>> without_secrets(OSError("GET http://host/x?sig=abc&se=1 failed"))
    'GET http://host/x?sig=***&se=1 failed'
    """
    return _SECRET.sub(r"\1=***", str(error).partition("\n\nDebug source")[0])


@contextmanager
def reported(action: str, path: str) -> Iterator[None]:
    """Turn any error that a library raises inside into a StorageError.

    >>> with reported("read", "/chk/7"):
    ...     raise TimeoutError("30 s")
    Traceback (most recent call last):
    headrace.errors.StorageError: [HR-3103] cannot read '/chk/7': TimeoutError: 30 s; check that the storage can be reached, then try again
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raise storage_error(action, path, error) from error


def scheme_of(path: str) -> str:
    """Return the scheme of a path; a path without one is local.

    >>> scheme_of("s3a://bucket/x"), scheme_of("/data/x")
    ('s3', 'file')
    """
    found = _SCHEME.fullmatch(path)
    scheme = found[1].lower() if found else "file"
    return _SAME_SCHEME.get(scheme, scheme)


def unsupported(path: str) -> str | None:
    """Why a path cannot hold checkpoints, job logs and savepoints; None if it can.

    >>> unsupported("/data/x"), unsupported("abfss://container@account.dfs.core.windows.net/x")
    (None, None)
    """
    scheme = scheme_of(path)
    if scheme in _SUPPORTED:
        return None
    return (
        f"Headrace has no atomic create-if-absent on '{scheme}://', which job logs and exactly-once sinks need; use a local or "
        "mounted directory, s3://, gs://, az://, abfs://, abfss://, or webhdfs:// or swebhdfs:// for HDFS"
    )


def normalise(path: str) -> str:
    """Return the canonical spelling of a path: local paths are absolute and have no scheme, no path ends with a slash.

    >>> normalise("file:///data//chk/"), normalise("s3a://bucket/chk/")
    ('/data/chk', 's3://bucket/chk')
    """
    if not path:
        raise InvalidArgument(
            "HR-1008", "an empty path names no directory; give one, for example /data/checkpoints or s3://bucket/x"
        )
    scheme, found = scheme_of(path), _SCHEME.fullmatch(path)
    rest = found[2] if found else path
    if scheme == "file":
        # Not resolve(): a link that is moved later must not leave its old target in the metadata.
        return str(Path(rest).absolute())
    rest = rest.lstrip("/") if scheme == "memory" else rest
    return f"{scheme}://{rest.rstrip('/')}"


def temporary_name(label: str = "") -> str:
    """Return a name for an unfinished object; `layout.JobLayout.parse` recognises it, so gc finds what a crash left.

    >>> len(temporary_name("e1r0")) == len(".tmp-e1r0-") + 16
    True
    """
    return f".tmp-{label}{'-' if label else ''}{secrets.token_hex(8)}"


class ObjectInfo(msgspec.Struct, frozen=True, order=True):
    """An object in a listing."""

    path: str
    size: int


class Written(msgspec.Struct, frozen=True):
    """A finished object."""

    path: str
    size: int
    crc32: int


class ObjectWriter(ABC):
    """A new object, written in chunks; it exists only once `finish` has given it its name.

    Names come last because those of shared files hold a checksum of what was written.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.size = 0
        self.crc32 = 0
        self._status = "open"

    def write(self, data: bytes | memoryview) -> None:
        self._require_open("write to")
        with reported("write", self.directory):
            self._append(data)
        self.size += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def finish(self, name: str) -> Written:
        """Make the object durable under `name` in the directory; an older one of that name is replaced."""
        self._require_open("finish")
        path = f"{self.directory}/{name}"
        with reported("write", path):
            self._commit(path)
        self._status = "finished"
        return Written(path, self.size, self.crc32)

    def abort(self) -> None:
        """Discard what was written; does nothing when the writer is finished or aborted."""
        if self._status == "open":
            self._status = "aborted"
            self._discard()

    def _require_open(self, action: str) -> None:
        if self._status != "open":
            raise IllegalState(f"cannot {action} an object below '{self.directory}': the writer is {self._status}")

    @abstractmethod
    def _append(self, data: bytes | memoryview) -> None: ...

    @abstractmethod
    def _commit(self, path: str) -> None: ...

    @abstractmethod
    def _discard(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.abort()


class SpoolingWriter(ObjectWriter):
    """Writes an object to a local file first: an upload needs the name, and the name of a shared file is known last."""

    def __init__(self, directory: str, upload: Callable[[Path, str], None]) -> None:
        super().__init__(directory)
        self._upload = upload
        self._file = tempfile.NamedTemporaryFile(prefix="headrace-upload-", buffering=_SPOOL_BUFFER)  # noqa: SIM115

    def _append(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def _commit(self, path: str) -> None:
        self._file.flush()
        self._upload(Path(self._file.name), path)
        self._file.close()

    def _discard(self) -> None:
        with suppress(OSError):
            self._file.close()


class ObjectStore(ABC):
    """Objects by path. Every failure is a StorageError that names the path; calls may come from any thread."""

    @abstractmethod
    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes from `offset` on, at most `length`; fewer only if the object ends earlier. MissingObject if absent."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of an object; MissingObject if absent."""

    @abstractmethod
    def list_objects(self, directory: str) -> list[ObjectInfo]:
        """All objects below a directory, at any depth, by path; none if there is no such directory."""

    @abstractmethod
    def list_names(self, directory: str) -> list[str]:
        """The names directly below a directory, of objects and directories, sorted; none if it does not exist."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write an object, over an older one if there is one; atomic where the scheme allows."""

    @abstractmethod
    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one: True if this call created it, False if it existed.

        OutcomeUnknown if the call failed and the object may or may not have been created.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete an object; it is not an error if it does not exist."""

    @abstractmethod
    def make_directory(self, directory: str) -> bool:
        """Make a directory where the scheme has them; False if it, or something below it, is there already."""

    @abstractmethod
    def remove_directory(self, directory: str) -> None:
        """Remove a directory if it is empty and the scheme has them; never an error."""

    @abstractmethod
    def writer(self, directory: str, label: str = "") -> ObjectWriter:
        """A writer of a new object in a directory; `label` (an attempt) goes into the name of what a crash leaves."""

    def exists(self, path: str) -> bool:
        """Return True if there is an object; an unreachable store is an error, not a no."""
        try:
            self.size(path)
        except MissingObject:
            return False
        return True


def create(store: ObjectStore, path: str, data: bytes) -> bool:
    """Create an object unless there is one: True if it was absent.

    If the reply is lost, the object is read again. Pass different data with each call, so that the writer recognises
    its own object.

    >>> from headrace.testing.storage_faults import MemoryStore
    >>> store = MemoryStore()
    >>> create(store, "a", b"1"), create(store, "a", b"2")
    (True, False)
    """
    try:
        return store.create_if_absent(path, data)
    except OutcomeUnknown:
        with suppress(StorageError):
            if store.read(path) == data:
                return True
        raise


def check_create_if_absent(store: ObjectStore, directory: str) -> None:
    """Test create-if-absent: a service that imitates S3 may ignore the condition and let a replaced driver overwrite."""
    path = f"{directory}/{temporary_name()}"
    try:
        if not store.create_if_absent(path, b"1") or store.create_if_absent(path, b"2") or store.read(path) != b"1":
            raise StorageError(
                "HR-3106",
                f"the storage at '{directory}' does not honour create-if-absent: a second writer replaced the first; "
                "an old driver could overwrite a newer one's checkpoints, so use storage with conditional writes",
            )
    finally:
        store.delete(path)
