"""The frames of the control plane: a message is its length in eight bytes, then its bytes; an empty one ends its direction."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

_SIZE: Final = struct.Struct(">Q")
LAST_FRAME: Final = b""
"""The last message of a direction."""
READ_AHEAD_BYTES: Final = 1 << 18


def framed(message: bytes) -> bytes:
    """Return a message as a frame."""
    return _SIZE.pack(len(message)) + message


async def receive(reader: asyncio.StreamReader, largest: int | None = None) -> bytes:
    """Receive the next message; an empty one if the stream has ended."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return await reader.readexactly(size) if size and (largest is None or size <= largest) else LAST_FRAME
    except asyncio.IncompleteReadError:
        return LAST_FRAME
