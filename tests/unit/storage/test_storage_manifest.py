"""The bytes of `_metadata`: fixed for ever, strict, and verified before they are believed (SPEC R5.9)."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from headrace import storage
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.types import SnapshotType
from headrace.errors import IllegalState, StorageError
from headrace.ids import JobId, OperatorId
from headrace.records.key_groups import KeyGroupRange
from headrace.storage.byte_handles import FileSegment, InlineBytes, Placeholder
from headrace.storage.layout import AttemptId
from headrace.storage.manifest import (
    FORMAT_VERSION,
    MAGIC,
    Manifest,
    OperatorManifest,
    PieceKind,
    SnapshotPart,
    StatePiece,
    SubtaskManifest,
    decode_manifest,
    encode_manifest,
    handles_of,
    map_handles,
)
from headrace.storage.sealed import HEADER_SIZE, seal

JOB = JobId("a" * 32)
SMALL = Manifest(1, SnapshotType.CHECKPOINT, JOB, "j", AttemptId(1, 0), 1000)


def full_manifest():
    keyed = StatePiece(
        PieceKind.KEYED,
        (
            SnapshotPart("base", FileSegment("../shared/e1r0-c5-v1-s0-00.shared", 0, 100, 0xDEADBEEF), shared=True),
            SnapshotPart("delta", InlineBytes(b"\x00\x01"), shared=True),
        ),
        description=b"\xc1opaque",
        key_groups=KeyGroupRange(0, 63),
    )
    operator = StatePiece(PieceKind.OPERATOR, (SnapshotPart("list", FileSegment("e1r0-v1-s0.state", 7, 9, 1)),))
    count = OperatorManifest(
        OperatorId("1" * 32),
        "count",
        2,
        128,
        (SubtaskManifest(0, (keyed, operator)), SubtaskManifest(1, finished=True)),
        uid="count-uid",
        coordinator=InlineBytes(b"splits"),
    )
    sink = OperatorManifest(OperatorId("2" * 32), "sink", 1, 128, (SubtaskManifest(0, finished=True),))
    return Manifest(
        7,
        SnapshotType.SAVEPOINT,
        JOB,
        "wordcount",
        AttemptId(2, 3),
        1_700_000_000_000,
        (count, sink),
        format="native",
    )


@pytest.mark.parametrize(("name", "manifest"), [("small", SMALL), ("full", full_manifest())])
def test_golden_bytes(name, manifest):
    # If this fails, the format has changed: raise FORMAT_VERSION and keep a reader for the old one.
    golden = bytes.fromhex((Path(__file__).parent / "golden" / f"manifest-v1-{name}.hex").read_text())
    assert encode_manifest(manifest) == golden
    assert decode_manifest(golden, "x") == manifest


def test_finished_flags():
    count, sink = decode_manifest(encode_manifest(full_manifest()), "x").operators
    assert (count.fully_finished, sink.fully_finished) == (False, True)
    assert not OperatorManifest(OperatorId("3" * 32), "o", 1, 1).fully_finished


def test_newer_version_is_refused():
    data = seal(MAGIC, FORMAT_VERSION + 1, b"whatever the future holds")
    with pytest.raises(
        StorageError, match=r"'chk-7' has format version 2, but this Headrace reads only up to version 1.*upgrade"
    ):
        decode_manifest(data, "chk-7")


@pytest.mark.parametrize("manifest", [SMALL, full_manifest()], ids=["small", "full"])
def test_every_flipped_bit_is_found(manifest):
    data = encode_manifest(manifest)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptState, match="the metadata 'x' is damaged"):
                decode_manifest(bytes(damaged), "x")


def test_every_truncation_is_found():
    data = encode_manifest(full_manifest())
    for length in range(len(data)):
        with pytest.raises(CorruptState, match="damaged"):
            decode_manifest(data[:length], "x")
    with pytest.raises(CorruptState, match="damaged"):
        decode_manifest(data + b"\0", "x")


def test_the_checksum_comes_before_the_version():
    # A bit that turns version 1 into a huge one must not read as "written by a newer Headrace".
    data = bytearray(encode_manifest(SMALL))
    data[4] ^= 0x80
    with pytest.raises(CorruptState, match="its checksum does not match"):
        decode_manifest(bytes(data), "x")


def payload(**changes):
    return {**msgspec.to_builtins(SMALL, str_keys=False), **changes}


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x05N.",  # a pickle
        b"",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(payload(unknown=1)),
        msgspec.msgpack.encode(payload(checkpoint_id="1")),
        msgspec.msgpack.encode(payload(type="snapshot")),
        msgspec.msgpack.encode({}),
    ],
)
def test_decoding_is_strict(content):
    with pytest.raises(StorageError, match="the metadata 'x' cannot be read"):
        decode_manifest(seal(MAGIC, 1, content), "x")


def with_operator(**changes):
    operator = OperatorManifest(OperatorId("1" * 32), "count", 2, 128)
    return msgspec.structs.replace(SMALL, operators=(msgspec.structs.replace(operator, **changes),))


def with_handle(handle):
    return with_operator(subtasks=(SubtaskManifest(0, (StatePiece(PieceKind.KEYED, (SnapshotPart("p", handle),)),)),))


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        (with_handle(Placeholder(5)), "a placeholder was not replaced"),
        (with_handle(FileSegment("a", 0, 0, 0)), "a segment of 0 bytes"),
        (with_handle(FileSegment("a", -1, 5, 0)), "a segment of 5 bytes at -1"),
        (with_operator(parallelism=0), "parallelism 0 does not fit max parallelism 128"),
        (with_operator(parallelism=129), "parallelism 129 does not fit"),
        (with_operator(subtasks=(SubtaskManifest(2),)), r"its subtasks are numbered \[2\], but its parallelism is 2"),
        (with_operator(subtasks=(SubtaskManifest(0), SubtaskManifest(0))), r"numbered \[0, 0\]"),
        (
            with_operator(
                subtasks=(SubtaskManifest(0, (StatePiece(PieceKind.KEYED, key_groups=KeyGroupRange(0, 128)),)),)
            ),
            "key groups 0..128, beyond the max parallelism",
        ),
        (msgspec.structs.replace(SMALL, checkpoint_id=-1), "the checkpoint id is -1"),
        (msgspec.structs.replace(SMALL, operators=full_manifest().operators[:1] * 2), "an operator is listed twice"),
    ],
)
def test_contradictions_are_found_when_written_and_when_read(manifest, fault):
    with pytest.raises(IllegalState, match=fault):
        encode_manifest(manifest)
    with pytest.raises(CorruptState, match=fault):
        decode_manifest(seal(MAGIC, 1, msgspec.msgpack.encode(manifest)), "x")


def test_not_a_file_of_ours():
    with pytest.raises(CorruptState, match="damaged or not a file of Headrace"):
        decode_manifest(b"\x49\x60\x67\x2d" + bytes(40), "flink")
    with pytest.raises(CorruptState, match="only 3 bytes"):
        decode_manifest(b"abc", "x")
    assert len(seal(MAGIC, 1, b"")) == HEADER_SIZE


def test_handles_are_found_and_changed():
    manifest = full_manifest()
    assert len(list(handles_of(manifest))) == 4
    changed = map_handles(manifest, lambda handle: InlineBytes(b"x"))
    assert set(handles_of(changed)) == {InlineBytes(b"x")}
    assert map_handles(changed, lambda handle: handle) == changed


def test_this_package_imports_no_pickle():
    sources = Path(storage.__file__).parent.glob("*.py")
    nodes = [node for source in sources for node in ast.walk(ast.parse(source.read_text()))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert "msgspec" in imported
    assert not {name for name in imported if name.partition(".")[0] in {"pickle", "cloudpickle", "marshal", "shelve"}}


@pytest.mark.parametrize("magic", [b"\x89HGM", b"\x89HGL"])
def test_a_file_from_before_format_1_is_refused_and_not_called_damaged(magic):
    small = bytes.fromhex((Path(__file__).parent / "golden" / "manifest-v1-small.hex").read_text())
    with pytest.raises(StorageError, match="before format 1 of Headrace") as refused:
        decode_manifest(magic + small[4:], "x")
    assert not isinstance(refused.value, CorruptState)  # a restart steps back from damaged checkpoints only
