"""The local directory of a backend: exclusive, empty at the start, removed at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from headgate.errors import IllegalState, StorageError

__all__ = ["LocalDirectory"]

_LOCK = "in-use"


class LocalDirectory:
    """A directory that one backend locks.

    Files of an earlier attempt are removed: state is restored from checkpoints only. The lock is the kernel's, so it ends
    with the process that holds it.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="headgate-rocksdb-")) if path is None else path
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"rocksdb: directory {self.path} cannot be used for local state: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise IllegalState(
                f"rocksdb: directory {self.path} is in use by another backend; give each operator and attempt its own"
            ) from None
        for entry in self.path.iterdir():
            if entry.name != _LOCK:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
