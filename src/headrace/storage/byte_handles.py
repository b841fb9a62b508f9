"""Handles of stored bytes: plain data in acknowledgements and in `_metadata`.

InlineBytes   the bytes themselves
FileSegment   a run of bytes of a file, with its checksum
Placeholder   the part that an earlier checkpoint wrote under this id: only in acks, the shared-file registry replaces it

In memory the path of a segment is absolute; in `_metadata` it is relative to the directory that holds the metadata, so
that the directory can be moved (`layout.make_ref`, `layout.resolve_ref`).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class InlineBytes(msgspec.Struct, frozen=True, tag="inline", forbid_unknown_fields=True):
    """Small state, inside the metadata itself."""

    data: bytes


class FileSegment(msgspec.Struct, frozen=True, tag="file", forbid_unknown_fields=True):
    """`length` bytes of a file from `offset` on; `crc32` is theirs."""

    path: str
    offset: int
    length: int
    crc32: int


class Placeholder(msgspec.Struct, frozen=True, tag="placeholder", forbid_unknown_fields=True):
    """State that an earlier checkpoint has stored; `length` is only for the statistics."""

    length: int


Handle: TypeAlias = InlineBytes | FileSegment | Placeholder


def size_of(handle: Handle) -> int:
    """Return the bytes of state behind a handle."""
    return len(handle.data) if isinstance(handle, InlineBytes) else handle.length
