"""The files of one subtask for one checkpoint. Used by the snapshot thread of a worker.

    writer = StateWriter(store, target, subtask_owner(vertex, subtask))
    part = writer.write("words", data)                         # None if it is empty
    stats = writer.close()                                     # now the files are durable: acknowledge

Small state stays inline and travels in the ack. The rest of a subtask's private state goes into one file, one segment
after the other, so that a checkpoint costs one object per subtask however many states there are. State that later
checkpoints may use too gets a file of its own.
"""

from __future__ import annotations

import enum
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import IllegalState, StorageError
from headrace.storage.byte_handles import FileSegment, Handle, InlineBytes, Placeholder
from headrace.storage.layout import AttemptId, private_file, shared_file
from headrace.storage.manifest import SnapshotPart
from headrace.storage.objects import ObjectStore, ObjectWriter, reported
from headrace.storage.storage_settings import MAX_JOBMANAGER_STATE

_FILE_CHUNK: Final = 1 << 20
_DIGEST: Final = 32  # hex digits


class Scope(enum.Enum):
    """Which snapshots may use what is written."""

    EXCLUSIVE = "exclusive"  # this checkpoint only
    SHARED = "shared"  # later checkpoints too
    TABLE = "table"  # this savepoint only, in a file of its own whose name is the part's


class SnapshotTarget(msgspec.Struct, frozen=True):
    """The target of a checkpoint: plain data that travels with the trigger.

    Without a `directory` all state travels in the acks (storage `jobmanager`). Without a `shared_directory` nothing is
    shared: a savepoint keeps everything in its own directory.
    """

    checkpoint_id: int
    attempt: AttemptId
    directory: str | None = None
    shared_directory: str | None = None
    inline_threshold: int = 20 * 1024
    max_inline_state: int = MAX_JOBMANAGER_STATE


class WriteStats(msgspec.Struct, frozen=True):
    """The amount that a subtask wrote for one checkpoint; `inline_bytes` travel in the ack."""

    objects: int = 0
    file_bytes: int = 0
    inline_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The checkpointed size (SPEC R10.2)."""
        return self.file_bytes + self.inline_bytes


class _StateWriterStatus(enum.Enum):
    OPEN = "open"
    BROKEN = "broken by an earlier error"
    CLOSED = "closed"
    ABORTED = "aborted"


class StateWriter:
    """All state that one subtask writes for one checkpoint, one part after the other. Used by one thread.

    `close` before the ack; `abort` instead if there will be none. After the ack only the coordinator deletes.

    >>> from headrace.testing.storage_faults import MemoryStore
    >>> writer = StateWriter(MemoryStore(), SnapshotTarget(7, AttemptId(1), "/chk-7"), "v0-s0")
    >>> writer.write("words", b"abc")
    SnapshotPart(id='words', handle=InlineBytes(data=b'abc'), shared=False)
    >>> writer.close()
    WriteStats(objects=0, file_bytes=0, inline_bytes=3)
    """

    def __init__(self, store: ObjectStore, target: SnapshotTarget, owner: str) -> None:
        """`owner` is `layout.subtask_owner`, or "driver"."""
        self._store, self._target, self._owner = store, target, owner
        self._name = private_file(target.attempt, owner)
        self._status = _StateWriterStatus.OPEN
        self._inline_bytes = 0
        self._packed: ObjectWriter | None = None  # private state, one segment after the other
        self._own: dict[str, FileSegment] = {}  # files with one part, by content or name: written once per checkpoint
        self._files: list[ObjectWriter] = []  # all that were begun
        self._paths: set[str] = set()  # all that may exist, also after a failure

    def write(self, part_id: str, data: bytes | Iterable[bytes], scope: Scope = Scope.EXCLUSIVE) -> SnapshotPart | None:
        """Write a part of state; None if it is empty (SPEC R5.9)."""
        with self._unbroken(f"write state '{part_id}'"):
            handle = self._write(part_id, iter([data] if isinstance(data, bytes) else data), scope)
        if handle is None:
            return None
        shared = scope is Scope.SHARED and (self._target.directory is None or self._target.shared_directory is not None)
        return SnapshotPart(part_id, handle, shared)

    def write_file(self, part_id: str, path: Path, scope: Scope = Scope.EXCLUSIVE) -> SnapshotPart | None:
        """Write the content of a local file; None if it is empty."""
        with reported("read", str(path)), path.open("rb") as file:
            return self.write(part_id, iter(lambda: file.read(_FILE_CHUNK), b""), scope)

    def reuse(self, part_id: str, length: int) -> SnapshotPart:
        """Return a part that a confirmed checkpoint has stored under this id; nothing is written."""
        with self._unbroken(f"reuse state '{part_id}'"):
            return SnapshotPart(part_id, Placeholder(length), shared=True)

    def close(self) -> WriteStats:
        """Make everything durable. Harmless to repeat."""
        if self._status is not _StateWriterStatus.CLOSED:
            with self._unbroken("close the checkpoint's files"):
                if self._packed is not None:
                    self._finish(self._packed, self._name)
            self._status = _StateWriterStatus.CLOSED
        packed = 0 if self._packed is None else self._packed.size
        size = sum(segment.length for segment in self._own.values())
        return WriteStats(len(self._own) + (packed > 0), packed + size, self._inline_bytes)

    def abort(self) -> None:
        """Delete what was written; only before the ack."""
        if self._status is not _StateWriterStatus.ABORTED:
            self._status = _StateWriterStatus.ABORTED
            for file in self._files:
                file.abort()
            for path in sorted(self._paths):
                self._store.delete(path)
            if self._target.directory is not None:  # the driver may have deleted it before a file was begun in it
                self._store.remove_directory(self._target.directory)

    @contextmanager
    def _unbroken(self, action: str) -> Iterator[None]:
        """Refuse the body after the end, and mark the writer as broken if it fails: half a segment may be in the file."""
        if self._status is not _StateWriterStatus.OPEN:
            raise IllegalState(
                f"cannot {action} for checkpoint {self._target.checkpoint_id}: the writer is {self._status.value}"
            )
        try:
            yield
        except BaseException:
            self._status = _StateWriterStatus.BROKEN
            raise

    # --- where a part goes ------------------------------------------------------------------------------------------

    def _write(self, part_id: str, chunks: Iterator[bytes], scope: Scope) -> Handle | None:
        target = self._target
        if target.directory is None:
            return self._write_into_ack(part_id, chunks)
        if scope is Scope.TABLE:
            return self._write_table(f"{target.directory}/{part_id}", chunks)
        first, size = [], 0
        for chunk in chunks:
            first.append(chunk)
            size += len(chunk)
            if size > target.inline_threshold:
                break
        else:
            return self._inline(first)
        if scope is Scope.SHARED and target.shared_directory is not None:
            return self._write_shared(target.shared_directory, chain(first, chunks))
        return self._write_packed(target.directory, chain(first, chunks))

    def _inline(self, chunks: list[bytes]) -> InlineBytes | None:
        data = b"".join(chunks)
        self._inline_bytes += len(data)
        return InlineBytes(data) if data else None

    def _write_into_ack(self, part_id: str, chunks: Iterator[bytes]) -> InlineBytes | None:
        """Storage `jobmanager`. Bytes above the limit are counted, not kept: the error names the whole size (SPEC R5.10)."""
        kept, size, limit = [], 0, self._target.max_inline_state
        for chunk in chunks:
            size += len(chunk)
            if size <= limit:
                kept.append(chunk)
        if size > limit:
            raise StorageError(
                "HR-3011",
                f"state '{part_id}' is larger than what the storage 'jobmanager' takes: size={size}, max={limit}; set "
                "execution.checkpointing.storage to filesystem and execution.checkpointing.dir to a directory",
            )
        return self._inline(kept)

    def _write_packed(self, directory: str, chunks: Iterable[bytes]) -> FileSegment:
        """Private state; the file gets its name when the writer is closed."""
        file = self._packed = self._packed or self._new_file(directory)
        offset, crc32 = file.size, 0
        for chunk in chunks:
            file.write(chunk)
            crc32 = zlib.crc32(chunk, crc32)
        return FileSegment(f"{directory}/{self._name}", offset, file.size - offset, crc32)

    def _write_shared(self, directory: str, chunks: Iterable[bytes]) -> FileSegment:
        """State that later checkpoints may use: a file named by its content, which is not stored twice."""
        file, content = self._new_file(directory), hashlib.sha256()  # hardware-accelerated: faster here than blake2
        for chunk in chunks:
            content.update(chunk)
            file.write(chunk)
        digest = content.hexdigest()[:_DIGEST]
        if digest in self._own:
            file.abort()
        else:
            name = shared_file(self._target.attempt, self._target.checkpoint_id, self._owner, digest)
            self._own[digest] = self._finish(file, name)
        return self._own[digest]

    def _write_table(self, path: str, chunks: Iterable[bytes]) -> FileSegment | None:
        """Return a table that other programs read too: a file under its own name, however small it is."""
        folder, _, name = path.rpartition("/")
        self._store.make_directory(folder)
        file = self._new_file(folder)
        for chunk in chunks:
            file.write(chunk)
        if not file.size:
            return None
        self._own[path] = self._finish(file, name)
        return self._own[path]

    def _new_file(self, directory: str) -> ObjectWriter:
        """Begin a file; it is aborted with the writer."""
        file = self._store.writer(directory, str(self._target.attempt))
        self._files.append(file)
        return file

    def _finish(self, file: ObjectWriter, name: str) -> FileSegment:
        self._paths.add(f"{file.directory}/{name}")
        written = file.finish(name)
        return FileSegment(written.path, 0, written.size, written.crc32)
