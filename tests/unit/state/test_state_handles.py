from __future__ import annotations

import pytest

from headrace.checkpoint.handles import (
    CorruptState,
    GroupTable,
    KeyedStateHandle,
    Payload,
    Segment,
    StateMeta,
    StateSlice,
    TypeMeta,
    attach,
    checked_read,
    decode_handle,
    encode_handle,
    read_inline,
)
from headrace.errors import StorageError
from headrace.records.types import PICKLED, Types, as_type
from state_handles import detach, full_size, written_size


def handle():
    meta = StateMeta("count", "value", TypeMeta.of(as_type("a bigint, b string")), ttl=True)
    table = GroupTable([1, 5], [0, 10], [10, 20], [0, 0])
    segments = [
        Segment(3, False, 0, 7, Payload("base", 30, 1, b"x" * 30), [StateSlice(meta, table)]),
        Segment(4, True, 0, 3, Payload("inc", 5, 2), []),
        Segment(3, False, 4, 7, Payload("base", 30, 1), []),
    ]
    return KeyedStateHandle("hashmap", 4, 8, 0, 7, TypeMeta.of(PICKLED), segments)


def test_a_handle_goes_through_bytes():
    assert decode_handle(encode_handle(handle())) == handle()
    with pytest.raises(StorageError, match="not a keyed state handle"):
        decode_handle(b"\x81\xa1a\x01")


def test_payloads_travel_apart():
    described, payloads = detach(handle())
    assert payloads == {"base": b"x" * 30}
    assert all(payload.data is None for payload in described.payloads())
    assert attach(described, payloads).segments[0].payload.data == b"x" * 30
    with pytest.raises(StorageError, match=r"payload 'base' \(30 bytes\) is not attached"):
        read_inline(described.segments[0].payload, 0, 5)


def test_a_payload_counts_once():
    assert [payload.id for payload in handle().payloads()] == ["base", "inc"]
    assert (full_size(handle()), written_size(handle())) == (35, 5)


def test_every_part_is_verified():
    payload = Payload("p", 4, 0, b"abcd")
    with pytest.raises(CorruptState, match="group 3 is damaged: 2 bytes at 1 of payload 'p' do not match"):
        checked_read(read_inline, payload, 1, 2, 12345, "group 3")


@pytest.mark.parametrize(
    "given", [None, "bigint", "a int, b array<string>", Types.TUPLE([Types.STRING(), Types.LONG()])]
)
def test_types_come_back(given):
    assert TypeMeta.of(as_type(given)).type_info() == as_type(given)


def test_clipping():
    segment = handle().segments[0]
    assert segment.clip(2, 9).first_group == 2
    assert segment.clip(2, 9).last_group == 7
    assert segment.clip(8, 9) is None
