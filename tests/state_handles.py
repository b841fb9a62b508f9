"""What tests of backends ask of a handle: its bytes apart from its description, and its sizes (SPEC R10.2)."""

import msgspec


def detach(handle):
    """The handle without bytes, and the bytes by payload id."""
    payloads = {payload.id: payload.data for payload in handle.payloads() if payload.data is not None}

    def bare(part):
        return msgspec.structs.replace(part, payload=msgspec.structs.replace(part.payload, data=None))

    segments, files = [bare(segment) for segment in handle.segments], [bare(file) for file in handle.files]
    return msgspec.structs.replace(handle, segments=segments, files=files), payloads


def written_size(handle):
    """Bytes that the checkpoint of this handle wrote itself."""
    own = {s.payload.id: s.payload.size for s in handle.segments if s.checkpoint_id == handle.checkpoint_id}
    return sum(own.values()) + sum(f.payload.size for f in handle.files if f.created_by == handle.checkpoint_id)


def full_size(handle):
    """Bytes including what earlier checkpoints wrote."""
    return sum(payload.size for payload in handle.payloads())
