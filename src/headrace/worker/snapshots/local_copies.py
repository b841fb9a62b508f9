"""Second copies of keyed state on the worker's own disk, for a quicker restart there (SPEC R7.7).

    <directory>/headrace-copies-<user>/<job>/<operator>-<subtask>of<parallelism>/<checkpoint>/<payload>

Storage is authoritative: a copy that cannot be written, is missing or does not match its checksum is ignored. So is a
directory that another user has made.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Concatenate, ParamSpec
from urllib.parse import quote

from headrace.storage.byte_handles import FileSegment
from headrace.storage.local import private_directory

_CHUNK = 1 << 20
P = ParamSpec("P")


class LocalCopies:
    """The copies of one subtask's operators; after a rescale it may read those of other subtasks."""

    def __init__(
        self, directories: Sequence[str], job_id: str, operators: Sequence[str], subtask: int, parallelism: int
    ) -> None:
        """With several directories, for example on several disks, the subtasks are spread over them."""
        chosen = directories or (tempfile.gettempdir(),)
        name = f"headrace-copies-{os.getuid()}"
        self._roots = [Path(directory) / name / job_id for directory in chosen]
        self._operators, self._subtask, self._parallelism = operators, subtask, parallelism

    def begin(self, checkpoint_id: int, operator_id: str) -> CopyWriter:
        """Start the copy of an operator's state at a checkpoint."""
        return CopyWriter(self._directory(operator_id, self._subtask, self._parallelism), checkpoint_id)

    def confirmed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: remove the copies of older ones."""
        for directory in self._own():
            for number in _numbers(directory):
                if number < checkpoint_id:
                    shutil.rmtree(directory / str(number), ignore_errors=True)

    def aborted(self, checkpoint_id: int) -> None:
        for directory in self._own():
            shutil.rmtree(directory / str(checkpoint_id), ignore_errors=True)

    def remove(self) -> None:
        """The subtask has finished and will not be restored."""
        for directory in self._own():
            shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):
            self._root(self._subtask).rmdir()  # of the last subtask on this host

    def find(
        self, checkpoint_id: int, operator_id: str, subtask: int, parallelism: int, payload: str, segment: FileSegment
    ) -> Path | None:
        """The file that has the same bytes as a payload on storage; None if there is no such file here."""
        path = self._directory(operator_id, subtask, parallelism) / str(checkpoint_id) / _name(payload)
        try:
            private_directory(self._root(subtask).parent)
            if path.stat().st_size != segment.length:
                return None
            crc32 = 0
            with path.open("rb") as file:
                while piece := file.read(_CHUNK):
                    crc32 = zlib.crc32(piece, crc32)
        except OSError:
            return None
        return path if crc32 == segment.crc32 else None

    def _directory(self, operator_id: str, subtask: int, parallelism: int) -> Path:
        return self._root(subtask) / f"{operator_id[:16]}-{subtask}of{parallelism}"

    def _root(self, subtask: int) -> Path:
        return self._roots[subtask % len(self._roots)]

    def _own(self) -> list[Path]:
        with suppress(OSError):
            private_directory(self._root(self._subtask).parent)
            return [self._directory(operator, self._subtask, self._parallelism) for operator in self._operators]
        return []


def _guarded(step: Callable[Concatenate[CopyWriter, P], None]) -> Callable[Concatenate[CopyWriter, P], None]:
    """Do nothing after a failure; an OSError marks the copy as failed."""

    @functools.wraps(step)
    def run(self: CopyWriter, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.failed:
            return
        try:
            step(self, *args, **kwargs)
        except OSError:
            self.failed = True
            self.abort()

    return run


class CopyWriter:
    """Writes one copy; a disk error ends the copy, not the checkpoint."""

    def __init__(self, directory: Path, checkpoint_id: int) -> None:
        self._directory, self._id = directory, checkpoint_id
        self._draft = directory / f".{checkpoint_id}-{os.getpid()}"
        self._file: tuple[str, IO[bytes]] | None = None
        self.failed = False
        self._begin()

    @_guarded
    def _begin(self) -> None:
        private_directory(self._directory.parent.parent)
        shutil.rmtree(self._draft, ignore_errors=True)
        self._draft.mkdir(parents=True)

    @_guarded
    def write(self, payload: str, data: bytes) -> None:
        """Append to the copy of a payload; payloads come one after the other."""
        if self._file is None or self._file[0] != payload:
            self._close()
            self._file = payload, (self._draft / _name(payload)).open("wb")
        self._file[1].write(data)

    @_guarded
    def add(self, payload: str, path: Path) -> None:
        """Copy a file; without reading it if both are on one disk."""
        _link(path, self._draft / _name(payload))

    @_guarded
    def reuse(self, payload: str) -> None:
        """Link a payload from the copy of an earlier checkpoint, if it has one."""
        for number in sorted(_numbers(self._directory), reverse=True):
            earlier = self._directory / str(number) / _name(payload)
            if number < self._id and earlier.exists():
                _link(earlier, self._draft / _name(payload))
                return

    @_guarded
    def commit(self) -> None:
        """Publish the copy; called when the checkpoint's own files are written."""
        self._close()
        target = self._directory / str(self._id)
        shutil.rmtree(target, ignore_errors=True)  # of an earlier attempt that did not complete it
        self._draft.rename(target)

    def abort(self) -> None:
        with suppress(OSError):
            self._close()
        shutil.rmtree(self._draft, ignore_errors=True)

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file[1], None
            file.close()


def _name(payload: str) -> str:
    return quote(payload, safe="")


def _numbers(directory: Path) -> list[int]:
    with suppress(OSError):
        return [int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()]
    return []


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
