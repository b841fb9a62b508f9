"""The files of one subtask for one checkpoint. Used by the snapshot threads of a worker, and by the driver.

    writer = StateWriter(store, target, subtask_owner(vertex, subtask))
    with writer.open("words") as stream:
        stream.write(data)
    piece = StatePiece(PieceKind.OPERATOR, (stream.part,))     # None in place of a part if nothing was written
    stats = writer.close()                                     # now the files are durable: acknowledge

Small state stays inline and travels in the ack. The rest of a subtask's private state goes into one file, one segment
after the other, so that a checkpoint costs one object per subtask however many states there are. State that later
checkpoints may use too gets a file of its own.
"""

from __future__ import annotations

import enum
import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, get_ident
from typing import Final, Self

import msgspec

from headgate.errors import IllegalState, StorageError
from headgate.storage.handles import FileSegment, Handle, InlineBytes, Placeholder
from headgate.storage.layout import AttemptId, private_file, shared_file
from headgate.storage.manifest import SnapshotPart
from headgate.storage.objects import ObjectStore, ObjectWriter, reported
from headgate.storage.settings import MAX_JOBMANAGER_STATE

_FILE_CHUNK: Final = 1 << 20
_DIGEST: Final = 32  # hex digits


class Scope(enum.Enum):
    """Which snapshots may use what is written."""

    EXCLUSIVE = "exclusive"  # this checkpoint only
    SHARED = "shared"  # later checkpoints too
    TABLE = "table"  # this savepoint only, in a file of its own whose name is the part's


class SnapshotTarget(msgspec.Struct, frozen=True):
    """Where a checkpoint goes: plain data that travels with the trigger.

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


class PartStream(ABC):
    """A part that is being written; `part` is its handle after `finish` or the end of the `with` block."""

    def __init__(self, writer: StateWriter, part_id: str) -> None:
        self.part: SnapshotPart | None = None  # an empty stream leaves no handle (SPEC R5.9)
        self.length = 0
        self._writer = writer
        self._id = part_id
        self._finished = False
        self._crc32 = 0

    def write(self, data: bytes | memoryview) -> None:
        self._writer._require_open(f"write state '{self._id}'")  # noqa: SLF001  writer and stream are one unit
        if self._finished:
            raise IllegalState(f"cannot write state '{self._id}': the stream is finished")
        self.length += len(data)
        self._crc32 = zlib.crc32(data, self._crc32)
        with self._writer._breaking():  # noqa: SLF001
            self._append(data)

    def finish(self) -> SnapshotPart | None:
        """End the stream; returns None if nothing was written."""
        if not self._finished:
            self._writer._require_open(f"finish state '{self._id}'")  # noqa: SLF001
            self._finished = True
            with self._writer._breaking():  # noqa: SLF001
                self.part = self._end() if self.length else None
        return self.part

    def cancel(self) -> None:
        """Abandon the stream; bytes that are already in the packed file stay there unused."""
        if not self._finished:
            self._finished = True
            self._drop()

    @abstractmethod
    def _append(self, data: bytes | memoryview) -> None: ...

    @abstractmethod
    def _end(self) -> SnapshotPart: ...

    @abstractmethod
    def _drop(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.finish()
        else:
            self.cancel()


class StateWriter:
    """All state that one subtask writes for one checkpoint. Streams may be used by several threads, each by one.

    `close` before the ack; `abort` instead if there will be none. After the ack only the coordinator deletes.

    >>> from headgate.testing.storage_faults import MemoryStore
    >>> writer = StateWriter(MemoryStore(), SnapshotTarget(7, AttemptId(1), "/chk-7"), "v0-s0")
    >>> writer.write("words", b"abc")
    SnapshotPart(id='words', handle=InlineBytes(data=b'abc'), shared=False)
    >>> writer.close()
    WriteStats(objects=0, file_bytes=0, inline_bytes=3)
    """

    def __init__(self, store: ObjectStore, target: SnapshotTarget, owner: str) -> None:
        """`owner` is `layout.subtask_owner`, or "driver"."""
        self._store = store
        self._target = target
        self._owner = owner
        self.threshold = target.inline_threshold
        self._name = private_file(target.attempt, owner)
        self._status = _StateWriterStatus.OPEN
        self._lock = Condition()
        self._inline_bytes = 0
        self._packed: ObjectWriter | None = None
        self._packed_by: tuple[_PackedStream, int] | None = None  # the stream that writes, and its thread
        self._shared: dict[str, FileSegment] = {}  # by content: written once per checkpoint
        self._tables: list[FileSegment] = []
        self._files: list[ObjectWriter] = []  # all that were begun
        self._paths: set[str] = set()  # all that may exist, also after a failure

    def open(self, part_id: str, scope: Scope = Scope.EXCLUSIVE) -> PartStream:
        """Begin to write a part of state."""
        self._require_open(f"write state '{part_id}'")
        return self._stream(part_id, scope)

    def write(self, part_id: str, data: bytes | Iterable[bytes], scope: Scope = Scope.EXCLUSIVE) -> SnapshotPart | None:
        """Write a part at once; None if it is empty."""
        with self.open(part_id, scope) as stream:
            for chunk in [data] if isinstance(data, bytes) else data:
                stream.write(chunk)
        return stream.part

    def write_file(self, part_id: str, path: Path, scope: Scope = Scope.EXCLUSIVE) -> SnapshotPart | None:
        """Write the content of a local file; None if it is empty."""
        with reported("read", str(path)), path.open("rb") as file:
            return self.write(part_id, iter(lambda: file.read(_FILE_CHUNK), b""), scope)

    def reuse(self, part_id: str, length: int) -> SnapshotPart:
        """A part that a confirmed checkpoint has stored under this id; nothing is written."""
        self._require_open(f"reuse state '{part_id}'")
        return SnapshotPart(part_id, Placeholder(length), shared=True)

    def close(self) -> WriteStats:
        """Make everything durable. Harmless to repeat."""
        if self._status is not _StateWriterStatus.CLOSED:
            self._require_open("close the checkpoint's files")
            with self._breaking():
                self._finish_files()
            self._status = _StateWriterStatus.CLOSED
        return self._stats()

    def abort(self) -> None:
        """Delete what was written; only before the ack."""
        if self._status is not _StateWriterStatus.ABORTED:
            self._status = _StateWriterStatus.ABORTED
            self._delete_files()

    def _inline(self, part_id: str, data: bytes, scope: Scope) -> SnapshotPart:
        with self._lock:
            self._inline_bytes += len(data)
        return SnapshotPart(part_id, InlineBytes(data), shared=scope is Scope.SHARED)

    def _require_open(self, action: str) -> None:
        if self._status is not _StateWriterStatus.OPEN:
            raise IllegalState(
                f"cannot {action} for checkpoint {self._target.checkpoint_id}: the writer is {self._status.value}"
            )

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Mark the writer as broken if the body fails: half a segment may be in the file."""
        try:
            yield
        except IllegalState:
            raise
        except BaseException:
            self._status = _StateWriterStatus.BROKEN
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.abort()

    # --- files ---

    def _stream(self, part_id: str, scope: Scope) -> PartStream:
        target = self._target
        if target.directory is None:
            return _AckStream(self, part_id, scope, target.max_inline_state)
        if scope is Scope.SHARED and target.shared_directory is not None:
            return _SharedStream(self, part_id, target.shared_directory)
        if scope is Scope.TABLE:
            return _TableStream(self, part_id, target.directory)
        return _PackedStream(self, part_id)

    def new_file(self, directory: str) -> ObjectWriter:
        """Begin a file; it is aborted with the writer."""
        file = self._store.writer(directory, str(self._target.attempt))
        self._files.append(file)
        return file

    def make_directory(self, directory: str) -> None:
        """A directory for tables; it may be there."""
        self._store.make_directory(directory)

    # --- the packed file: segments must not mix, so one stream writes at a time ---

    def enter(self, stream: _PackedStream, *, wait: bool) -> tuple[ObjectWriter, int] | None:
        """Give a stream the packed file and its offset; None if another stream writes and this one need not wait."""
        with self._lock:
            while self._packed_by is not None:
                if not wait:
                    return None
                if self._packed_by[1] == get_ident():
                    raise IllegalState(
                        f"two large states of checkpoint {self._target.checkpoint_id} are written at once by one "
                        "thread; finish the stream that was opened first"
                    )
                self._lock.wait()
            if self._packed is None:
                assert self._target.directory is not None
                self._packed = self.new_file(self._target.directory)
            self._packed_by = (stream, get_ident())
            return self._packed, self._packed.size

    def leave(self, stream: _PackedStream) -> None:
        """Release the packed file."""
        with self._lock:
            if self._packed_by is not None and self._packed_by[0] is stream:
                self._packed_by = None
                self._lock.notify_all()

    def packed_segment(self, offset: int, length: int, crc32: int) -> FileSegment:
        """The handle of a segment; the file gets this name when the writer is closed."""
        return FileSegment(f"{self._target.directory}/{self._name}", offset, length, crc32)

    # --- shared files ---

    def store_shared(self, file: ObjectWriter, digest: str) -> FileSegment:
        """Give a finished shared file its name; the same content is not stored twice."""
        with self._lock:
            found = self._shared.get(digest)
        if found is not None:
            file.abort()
            return found
        target = self._target
        name = shared_file(target.attempt, target.checkpoint_id, self._owner, digest)
        self._paths.add(f"{file.directory}/{name}")
        written = file.finish(name)
        with self._lock:
            return self._shared.setdefault(digest, FileSegment(written.path, 0, written.size, written.crc32))

    def store_table(self, file: ObjectWriter, part_id: str) -> FileSegment:
        """Give a finished table its name."""
        name = part_id.rpartition("/")[2]
        self._paths.add(f"{file.directory}/{name}")
        written = file.finish(name)
        segment = FileSegment(written.path, 0, written.size, written.crc32)
        with self._lock:
            self._tables.append(segment)
        return segment

    # --- the end ---

    def _finish_files(self) -> None:
        if self._packed_by is not None:
            raise IllegalState(f"checkpoint {self._target.checkpoint_id} cannot be closed: a stream is not finished")
        if self._packed is not None:
            self._paths.add(f"{self._packed.directory}/{self._name}")
            self._packed.finish(self._name)

    def _delete_files(self) -> None:
        with self._lock:
            self._packed_by = None
            self._lock.notify_all()
        for file in self._files:
            file.abort()
        for path in sorted(self._paths):
            self._store.delete(path)

    def _stats(self) -> WriteStats:
        packed = self._packed.size if self._packed is not None else 0
        own = [*self._shared.values(), *self._tables]
        size = sum(segment.length for segment in own)
        return WriteStats(len(own) + (packed > 0), packed + size, self._inline_bytes)


class _AckStream(PartStream):
    """State that travels in the ack: storage `jobmanager`."""

    def __init__(self, writer: StateWriter, part_id: str, scope: Scope, limit: int) -> None:
        super().__init__(writer, part_id)
        self._scope = scope
        self._limit = limit
        self._buffer = bytearray()

    def _append(self, data: bytes | memoryview) -> None:
        # Bytes above the limit are counted, not kept: the error is raised at the end with the whole size (SPEC R5.10).
        if self.length <= self._limit:
            self._buffer += data

    def _end(self) -> SnapshotPart:
        if self.length > self._limit:
            raise StorageError(
                f"state '{self._id}' is larger than what the storage 'jobmanager' takes: size={self.length}, "
                f"max={self._limit}; set execution.checkpointing.storage to filesystem and execution.checkpointing.dir "
                "to a directory"
            )
        return self._writer._inline(self._id, bytes(self._buffer), self._scope)  # noqa: SLF001

    def _drop(self) -> None:
        self._buffer.clear()


class _PackedStream(PartStream):
    """Private state: in memory up to the threshold, then written into the packed file as soon as that is free."""

    def __init__(self, writer: StateWriter, part_id: str) -> None:
        super().__init__(writer, part_id)
        self._kept: list[bytes | memoryview] = []
        self._file: ObjectWriter | None = None
        self._offset = 0

    def _append(self, data: bytes | memoryview) -> None:
        if self._file is not None:
            self._file.write(data)
            return
        self._kept.append(bytes(data))
        if self.length > self._writer.threshold:
            self._enter(wait=False)

    def _end(self) -> SnapshotPart:
        if self.length <= self._writer.threshold:
            return self._writer._inline(self._id, b"".join(self._kept), Scope.EXCLUSIVE)  # noqa: SLF001
        if self._file is None:
            self._enter(wait=True)
        self._writer.leave(self)
        return SnapshotPart(self._id, self._writer.packed_segment(self._offset, self.length, self._crc32))

    def _drop(self) -> None:
        self._kept.clear()
        self._writer.leave(self)

    def _enter(self, *, wait: bool) -> None:
        place = self._writer.enter(self, wait=wait)
        if place is not None:
            self._file, self._offset = place
            for data in self._kept:
                self._file.write(data)
            self._kept.clear()


class _SharedStream(PartStream):
    """State that may be shared: a file of its own, named by its content."""

    def __init__(self, writer: StateWriter, part_id: str, directory: str) -> None:
        super().__init__(writer, part_id)
        self._directory = directory
        self._kept: list[bytes] = []
        self._file: ObjectWriter | None = None
        self._digest = hashlib.sha256()  # hardware-accelerated: faster here than blake2

    def _append(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        if self._file is None and self.length <= self._writer.threshold:
            self._kept.append(bytes(data))
            return
        if self._file is None:
            self._file = self._writer.new_file(self._directory)
            for kept in self._kept:
                self._file.write(kept)
            self._kept.clear()
        self._file.write(data)

    def _end(self) -> SnapshotPart:
        if self._file is None:
            return self._writer._inline(self._id, b"".join(self._kept), Scope.SHARED)  # noqa: SLF001
        handle: Handle = self._writer.store_shared(self._file, self._digest.hexdigest()[:_DIGEST])
        return SnapshotPart(self._id, handle, shared=True)

    def _drop(self) -> None:
        self._kept.clear()
        if self._file is not None:
            self._file.abort()


class _TableStream(PartStream):
    """A table that other programs read too: a file of its own, under its own name."""

    def __init__(self, writer: StateWriter, part_id: str, directory: str) -> None:
        super().__init__(writer, part_id)
        folder = f"{directory}/{part_id}".rpartition("/")[0]
        writer.make_directory(folder)
        self._file = writer.new_file(folder)

    def _append(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def _end(self) -> SnapshotPart:
        return SnapshotPart(self._id, self._writer.store_table(self._file, self._id))

    def _drop(self) -> None:
        self._file.abort()
