"""Working files of backends: a directory that one backend locks, and payloads in files. In a worker's process."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.checkpoint.handles import CorruptState, Payload, ReadPayload
from headrace.errors import IllegalState, StorageError

_LOCK: Final = "in-use"
_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.05
_READ_BYTES: Final = 4 << 20


def lock_directory(path: Path) -> int | None:
    """Lock a directory that exists: a file descriptor that holds the lock until it is closed; None if it is locked.

    The lock is the kernel's, so it ends with the process that holds it.
    """
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _is_lock_of(lock: int, path: Path) -> bool:
    """Return True if the lock file is still in its directory; if not, the lock is released."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), (path / _LOCK).stat()):
            return True
    os.close(lock)
    return False


def download(read: ReadPayload, payload: Payload, path: Path, what: str) -> None:
    """Write a payload to a file and verify it; CorruptState names `what` it is."""
    crc32 = size = 0
    with path.open("wb") as out:
        while size < payload.size and (data := read(payload, size, min(_READ_BYTES, payload.size - size))):
            out.write(data)
            size += len(data)
            crc32 = zlib.crc32(data, crc32)
    if (size, crc32) != (payload.size, payload.crc32):
        raise CorruptState(
            f"{what} is damaged: payload '{payload.id}' does not match its checksum; restore from an older checkpoint or "
            "savepoint"
        )


class LocalDirectory:
    """A directory that one backend locks.

    Files of an earlier attempt are removed: state is restored from checkpoints only.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="headrace-rocksdb-")) if path is None else path
        self._lock = self._lock_patiently()
        for entry in self.path.iterdir():
            if entry.name != _LOCK:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _lock_patiently(self) -> int:
        """Another task may remove the directory, which no process has locked yet, between the steps taken here."""
        obstacle: OSError | None = None
        for _ in range(_TRIES):
            try:
                obstacle = None
                self.path.mkdir(parents=True, exist_ok=True)
                lock = lock_directory(self.path)
                if lock is not None and _is_lock_of(lock, self.path):
                    return lock
            except FileNotFoundError:
                continue
            except FileExistsError as error:
                obstacle = error  # a file, or a directory that was removed before mkdir() could look what it is
            except OSError as error:
                raise self._unusable(error) from error
            time.sleep(_PAUSE_SECONDS)
        if obstacle is not None:
            raise self._unusable(obstacle) from obstacle
        raise IllegalState(
            "HR-2201",
            f"rocksdb: directory {self.path} is in use by another backend; give each operator and attempt its own",
        )

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError("HR-2201", f"rocksdb: directory {self.path} cannot be used for local state: {error}")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
