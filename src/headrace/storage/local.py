"""Objects as files of this machine, or of a file system that all machines have mounted.

A file is visible completely or not at all, even after a power failure: it is written under a temporary name, flushed to
the disk, and then given its name by `rename` (which replaces) or `link` (which fails if the name exists). The directory
is flushed too, since it holds the name.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from headrace.errors import StorageError
from headrace.storage.objects import ObjectInfo, ObjectStore, ObjectWriter, OutcomeUnknown, reported, temporary_name

_OPEN_ATTEMPTS: Final = 3  # another thread may remove an empty directory between our mkdir and our open
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
DEFAULT_BUFFER: Final = 4096


class LocalStore(ObjectStore):
    """Files below ordinary directories; paths may carry `file://`.

    >>> import tempfile
    >>> store, directory = LocalStore(), tempfile.mkdtemp()
    >>> store.create_if_absent(f"{directory}/a", b"1"), store.create_if_absent(f"{directory}/a", b"2")
    (True, False)
    >>> store.read(f"{directory}/a")
    b'1'
    """

    def __init__(self, write_buffer: int = DEFAULT_BUFFER, private: bool = False) -> None:
        """`private`: other users can read neither the files nor the directories that are made."""
        self._write_buffer, self._private = write_buffer, private

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with reported("read", path), _local(path).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if length is None else length)

    def size(self, path: str) -> int:
        with reported("look at", path):
            local = _local(path)
            found = local.stat().st_size
            if local.is_dir():
                raise FileNotFoundError(errno.ENOENT, "it is a directory", path)
            return found

    def list_objects(self, directory: str) -> list[ObjectInfo]:
        found = []

        def refuse(error: OSError) -> None:
            # A directory that disappears meanwhile counts as empty; any other gap would hide files in use.
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        with reported("list", directory):
            base = _local(directory)
            for folder, _, files in os.walk(base, onerror=refuse):
                for name in files:
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):
                        relative = path.relative_to(base).as_posix()
                        found.append(ObjectInfo(f"{directory}/{relative}", path.stat().st_size))
        return sorted(found)

    def list_names(self, directory: str) -> list[str]:
        with reported("list", directory):
            try:
                return sorted(path.name for path in _local(directory).iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def put(self, path: str, data: bytes) -> None:
        directory, _, name = path.rpartition("/")
        with self.writer(directory) as writer:
            writer.write(data)
            writer.finish(name)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        target = _local(path)
        with reported("create", path), self._writer(path.rpartition("/")[0]) as writer:
            writer.write(data)
            writer.close()
            if not _link(writer.temporary, target):
                return False
            try:
                flush_directory(target.parent)
            except OSError as error:
                raise OutcomeUnknown(f"cannot tell whether '{path}' survives a power failure: {error}") from error
        return True

    def delete(self, path: str) -> None:
        with reported("delete", path), suppress(NotADirectoryError):
            _local(path).unlink(missing_ok=True)

    def make_directory(self, directory: str) -> bool:
        with reported("make directory", directory):
            local = _local(directory)
            _ensure_directory(local.parent, self._private)
            try:
                local.mkdir(_directory_mode(self._private))
            except FileExistsError:
                return False
            flush_directory(local.parent)
            return True

    def remove_directory(self, directory: str) -> None:
        with suppress(OSError):
            for folder, _, _ in os.walk(_local(directory), topdown=False):
                Path(folder).rmdir()

    def writer(self, directory: str, label: str = "") -> ObjectWriter:
        with reported("write", directory):
            return self._writer(directory, label)

    def _writer(self, directory: str, label: str = "") -> _LocalWriter:
        return _LocalWriter(directory, *_open_temporary(_local(directory), self._write_buffer, self._private, label))


class _LocalWriter(ObjectWriter):
    def __init__(self, directory: str, temporary: Path, file: BinaryIO) -> None:
        super().__init__(directory)
        self.temporary, self._file = temporary, file

    def _append(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def close(self) -> None:
        """Make the temporary file durable."""
        _flush(self._file)
        self._file.close()

    def _commit(self, path: str) -> None:
        self.close()
        target = _local(path)
        self.temporary.replace(target)
        flush_directory(target.parent)

    def _discard(self) -> None:
        # Closing writes what is still buffered, so a full disk fails here once more; the file goes either way.
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self.temporary.unlink(missing_ok=True)


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def _open_temporary(directory: Path, write_buffer: int, private: bool, label: str) -> tuple[Path, BinaryIO]:
    for attempt in range(_OPEN_ATTEMPTS):
        temporary = directory / temporary_name(label)
        try:
            _ensure_directory(directory, private)
            if private:
                temporary.touch(0o600, exist_ok=False)
            # 2 is the smallest buffer Python takes; 1 would mean lines.
            return temporary, temporary.open("wb" if private else "xb", buffering=max(write_buffer, 2))
        except (FileNotFoundError, FileExistsError):  # another process has removed the directory between two steps
            if attempt == _OPEN_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _directory_mode(private: bool) -> int:
    return 0o700 if private else 0o777


def _ensure_directory(directory: Path, private: bool) -> None:
    if directory.is_dir():
        return
    _ensure_directory(directory.parent, private)
    directory.mkdir(_directory_mode(private), exist_ok=True)
    flush_directory(directory.parent)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def flush_directory(directory: Path) -> None:
    """Make the names in a directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EBADF}:  # file systems that cannot, and need not
            raise
    finally:
        os.close(descriptor)


def _link(temporary: Path, target: Path) -> bool:
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        # Over NFS the reply of a link that worked may be lost, and the repeated call then finds its own file. Only our
        # temporary file with a second name can tell (link(2), open(2)).
        return temporary.stat().st_nlink == 2
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise StorageError(
                "HR-3106",
                f"cannot create '{target}': the file system has no hard links, which create-if-absent needs "
                f"({error.strerror}); use another execution.checkpointing.dir",
            ) from error
        raise
    return True


def private_directory(path: Path) -> Path:
    """Make a directory that only this user can use; StorageError if another user has made it, or it is a link.

    In a directory that all users write to, such as /tmp, another user may have put anything under the name.
    """
    with reported("make", str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise StorageError(
                "HR-3107",
                f"'{path}' is not a directory of user {os.getuid()}: another user may have put it there, so nothing is "
                "written to it; remove it, or choose another directory for temporary files (io.tmp.dirs, TMPDIR)",
            )
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    return path
