"""Reads the bytes of handles and verifies them; used by restores in workers, and by tools."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, assert_never

from headrace.checkpoint.handles import CorruptState
from headrace.errors import IllegalState
from headrace.storage.byte_handles import FileSegment, Handle, InlineBytes, Placeholder
from headrace.storage.layout import is_shared_file
from headrace.storage.objects import MissingObject, ObjectStore

_CHUNK: Final = 8 << 20


def damaged(segment: FileSegment, reason: str) -> CorruptState:
    """Return the error for state that is not what was written.

    >>> print(damaged(FileSegment("/chk-1/a", 0, 9, 0), "the file ends after 4 of them"))
    [HR-3102] 9 bytes at 0 of '/chk-1/a' are damaged: the file ends after 4 of them
    """
    return CorruptState(f"{segment.length} bytes at {segment.offset} of '{segment.path}' are damaged: {reason}")


def missing(segment: FileSegment) -> CorruptState:
    """Return the error for state whose file does not exist."""
    reason = "the file does not exist"
    if is_shared_file(segment.path):
        reason += (
            "; if the checkpoint was moved: it is incremental and refers to files in the shared directory of its job, so it "
            "can only be used in its place, while savepoints can be moved"
        )
    return damaged(segment, reason)


class SnapshotReader:
    """Reads the bytes of handles, whose paths are absolute as in `checkpoints.load_snapshot`.

    >>> from headrace.testing.storage_faults import MemoryStore
    >>> store = MemoryStore()
    >>> store.put("/chk-1/a", b"headrace")
    >>> SnapshotReader(store).read(FileSegment("/chk-1/a", 4, 4, zlib.crc32(b"race")))
    b'race'
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def read(self, handle: Handle) -> bytes:
        """All bytes of a handle; CorruptState ('damaged') if the file is missing, short or changed."""
        match handle:
            case InlineBytes(data):
                return data
            case FileSegment():
                return b"".join(self.chunks(handle, handle.length))
            case Placeholder():
                raise IllegalState("a placeholder has no bytes; register it with the shared-file registry first")
            case _:
                assert_never(handle)

    def chunks(self, segment: FileSegment, chunk: int = _CHUNK) -> Iterator[bytes]:
        """Yield the bytes of a segment piece by piece; damage is known for certain only after the last piece."""
        read, crc32 = 0, 0
        while read < segment.length:
            wanted = min(chunk, segment.length - read)
            try:
                piece = self._store.read(segment.path, segment.offset + read, wanted)
            except MissingObject as error:
                raise missing(segment) from error
            read, crc32 = read + len(piece), zlib.crc32(piece, crc32)
            if len(piece) != wanted:
                raise damaged(segment, f"the file ends after {read} of them")
            if read == segment.length and crc32 != segment.crc32:
                raise damaged(segment, "their checksum does not match")
            yield piece
