"""The rows between subtasks: any frames survive, and a row that is cut is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.frames import DRAIN, HEADER, FrameKind, pack, read_frames

_frames = st.lists(
    st.tuples(
        st.sampled_from(list(FrameKind)),
        st.integers(0, 65535),
        st.integers(0, (1 << 32) - 1),
        st.lists(st.binary(max_size=40), max_size=3),
        st.integers(0, 255),
    ),
    max_size=6,
)


def row_of(frames) -> bytes:
    return b"".join(
        piece for kind, edge, writer, body, flags in frames for piece in pack(kind, edge, writer, *body, flags=flags)
    )


@given(_frames)
def test_frames_survive(frames):
    read = list(read_frames(row_of(frames)))
    assert [(f.kind, f.edge, f.writer, bytes(f.body), f.flags) for f in read] == [
        (kind, edge, writer, b"".join(body), flags) for kind, edge, writer, body, flags in frames
    ]


@given(_frames)
def test_bodies_are_aligned(frames):
    """Arrow columns are read where they lie, so every body starts at a multiple of 8."""
    row = row_of(frames)
    at = 0
    for frame in read_frames(row):
        at += HEADER.size
        assert at % 8 == 0
        at += len(frame.body) + -len(frame.body) % 8
    assert at == len(row)


@given(_frames.filter(bool), st.data())
def test_a_cut_row_is_noticed(frames, data):
    row = row_of(frames)
    boundaries = {len(row_of(frames[:n])) for n in range(len(frames) + 1)}
    cut = data.draw(st.integers(1, len(row) - 1).filter(lambda n: n not in boundaries))
    with pytest.raises(ValueError, match="row cut short"):
        list(read_frames(row[:cut]))


def test_a_body_is_a_view_and_not_a_copy():
    row = bytearray(row_of([(FrameKind.PICKLE, 1, 2, [b"abcdefgh"], 0)]))
    (frame,) = read_frames(row)
    row[HEADER.size] = ord("X")
    assert bytes(frame.body) == b"Xbcdefgh"


def test_an_empty_row_has_no_frames():
    assert list(read_frames(b"")) == []


def test_kinds_and_flags_are_what_they_were():
    """These numbers travel between processes and lie in unaligned checkpoints."""
    assert {kind.name: kind.value for kind in FrameKind} == {
        "ARROW": 1,
        "PICKLE": 2,
        "WATERMARK": 3,
        "BARRIER": 4,
        "CANCEL_MARKER": 5,
        "END_OF_DATA": 6,
        "END_OF_PARTITION": 7,
        "END": 8,
    }
    assert DRAIN == 2
