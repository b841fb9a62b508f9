"""The header of `_metadata` and of log entries: magic, format version, length, checksum, then the payload.

    0   magic            4 bytes
    4   format version   2
    6   reserved         2   zero
    8   payload length   8
    16  crc32            4   of bytes 4 to 16 and the payload
    20  payload

All numbers are big endian. The header is the same in every version, so the checksum is verified before the version is
read: a flipped bit is never mistaken for a newer version.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from headrace.checkpoint.handles import CorruptState
from headrace.errors import StorageError

_HEADER: Final = struct.Struct(">4sHHQI")
HEADER_SIZE: Final = _HEADER.size
_CHECKED: Final = slice(4, 16)
_ADVICE: Final = "use an older checkpoint or savepoint"
_BEFORE_FORMAT_1: Final = (b"\x89HGL", b"\x89HGM")  # of development versions, under another name of the product


def seal(magic: bytes, version: int, payload: bytes) -> bytes:
    """Put the header in front of a payload.

    >>> seal(b"TEST", 1, b"ab").hex()
    '54455354000100000000000000000002d0f32ebe6162'
    """
    assert len(magic) == 4
    bare = _HEADER.pack(magic, version, 0, len(payload), 0)
    crc32 = zlib.crc32(payload, zlib.crc32(bare[_CHECKED]))
    return _HEADER.pack(magic, version, 0, len(payload), crc32) + payload


def unseal(data: bytes, magic: bytes, newest: int, what: str) -> bytes:
    """Return the payload, or StorageError; `what` starts the message.

    >>> unseal(seal(b"TEST", 1, b"ab"), b"TEST", 1, "a test")
    b'ab'
    """
    if len(data) < HEADER_SIZE:
        raise CorruptState(f"{what} is damaged: it has only {len(data)} bytes; {_ADVICE}")
    found, version, _, length, crc32 = _HEADER.unpack_from(data)
    if found in _BEFORE_FORMAT_1:
        raise StorageError(
            "HR-3105",
            f"{what} was written by a development version from before format 1 of Headrace, which cannot be read: start "
            "the job without it; the tables of a canonical savepoint are Parquet files, which any reader of Parquet reads",
        )
    if found != magic:
        raise CorruptState(f"{what} is damaged or not a file of Headrace: it begins with {found!r}; {_ADVICE}")
    if len(data) != HEADER_SIZE + length:
        raise CorruptState(f"{what} is damaged: it has {len(data)} bytes instead of {HEADER_SIZE + length}; {_ADVICE}")
    payload = data[HEADER_SIZE:]
    if zlib.crc32(payload, zlib.crc32(data[_CHECKED])) != crc32:
        raise CorruptState(f"{what} is damaged: its checksum does not match; {_ADVICE}")
    if version > newest:
        raise StorageError(
            "HR-3105",
            f"{what} has format version {version}, but this Headrace reads only up to version {newest}: "
            "it was written by a newer one; upgrade, or use a checkpoint or savepoint of this version",
        )
    return payload


def sealed_crc32(data: bytes) -> int:
    """Return the checksum in the header, which identifies one of several files of the same name.

    >>> hex(sealed_crc32(seal(b"TEST", 1, b"ab")))
    '0xd0f32ebe'
    """
    crc32: int = _HEADER.unpack_from(data)[4]
    return crc32


def actual_crc32(data: bytes) -> int:
    """Return the checksum of the content, which differs from the one in the header if either is damaged.

    >>> hex(actual_crc32(seal(b"TEST", 1, b"ab")))
    '0xd0f32ebe'
    """
    return zlib.crc32(data[HEADER_SIZE:], zlib.crc32(data[_CHECKED]))
