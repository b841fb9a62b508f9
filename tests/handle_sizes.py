"""Keyed state handles in tests: their sizes, and handles without the bytes that `finish()` put inside."""

from __future__ import annotations

import msgspec

from headgate.checkpoint.handles import KeyedStateHandle


def written_size(handle: KeyedStateHandle) -> int:
    """Bytes that this checkpoint wrote itself."""
    own = {one.payload.id: one.payload.size for one in handle.segments if one.checkpoint_id == handle.checkpoint_id}
    new = [file.payload.size for file in handle.files if file.created_by == handle.checkpoint_id]
    return sum(own.values()) + sum(new)


def full_size(handle: KeyedStateHandle) -> int:
    """Bytes including what earlier checkpoints wrote."""
    return sum(payload.size for payload in handle.payloads())


def detach(handle: KeyedStateHandle) -> tuple[KeyedStateHandle, dict[str, bytes]]:
    """The handle without bytes, and the bytes by payload id."""
    found = {payload.id: payload.data for payload in handle.payloads() if payload.data is not None}
    return msgspec.structs.replace(
        handle,
        segments=[_without_data(one) for one in handle.segments],
        files=[_without_data(one) for one in handle.files],
    ), found


def _without_data(one):
    return msgspec.structs.replace(one, payload=msgspec.structs.replace(one.payload, data=None))
