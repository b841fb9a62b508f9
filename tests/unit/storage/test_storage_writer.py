"""What a subtask writes for a checkpoint, and reading it back (SPEC R5.9, R5.10, R7.9).

T names are Flink's: FsCheckpointStateOutputStreamTest, FsCheckpointStorageAccessTest, MemoryCheckpointStorageAccessTest.
"""

from __future__ import annotations

import errno
import zlib

import pytest

from headrace.checkpoint.handles import CorruptState
from headrace.errors import IllegalState, StorageError
from headrace.storage.byte_handles import FileSegment, InlineBytes, Placeholder, size_of
from headrace.storage.layout import AttemptId
from headrace.storage.local import LocalStore
from headrace.storage.objects import ObjectStore
from headrace.storage.reader import SnapshotReader
from headrace.storage.writer import Scope, SnapshotTarget, StateWriter, WriteStats
from headrace.testing.storage_faults import Fault, FaultKind, FaultyStore, MemoryStore

TARGET = SnapshotTarget(7, AttemptId(1, 2), "/job/chk-7", "/job/shared", inline_threshold=100)
SAVEPOINT = SnapshotTarget(7, AttemptId(1, 2), "/sp", None, inline_threshold=100)
IN_ACKS = SnapshotTarget(7, AttemptId(1, 2))
MAX = 5 * 1024 * 1024


def writer_on(store: ObjectStore | None = None, target=TARGET):
    return StateWriter(MemoryStore() if store is None else store, target, "v3-s0")


def pattern(size, salt=0):
    return bytes((i * 7 + salt) % 251 for i in range(size))


# ---- inline or packed ----------------------------------------------------------------------------------------------


def test_an_empty_stream_leaves_no_handle():
    # T testEmptyState
    store = MemoryStore()
    writer = writer_on(store)
    assert writer.write("a", b"") is None
    assert writer.write("b", [b"", b""], Scope.SHARED) is None
    assert writer.write("c", [b""], Scope.TABLE) is None
    assert writer.close() == WriteStats(0, 0, 0)
    assert store.objects == {}


@pytest.mark.parametrize("scope", [Scope.EXCLUSIVE, Scope.SHARED])  # a table is a file however small it is
def test_up_to_the_threshold_state_stays_inline(scope):
    # T testStateBelowMemThreshold, testStateOneBufferAboveThreshold
    store = MemoryStore()
    writer = writer_on(store)
    assert writer.write("a", pattern(99), scope).handle == InlineBytes(pattern(99))
    assert writer.write("b", [pattern(60), pattern(40)], scope).handle == InlineBytes(pattern(60) + pattern(40))
    assert isinstance(writer.write("c", pattern(101), scope).handle, FileSegment)
    assert writer.close() == WriteStats(1, 101, 199)
    assert len(store.objects) == 1


def test_threshold_zero_keeps_nothing_inline():
    # T testZeroMemThreshold
    writer = writer_on(target=SnapshotTarget(7, AttemptId(1), "/job/chk-7", inline_threshold=0))
    assert isinstance(writer.write("a", b"1").handle, FileSegment)


def test_private_state_is_one_file_per_subtask():
    store = MemoryStore()
    writer = writer_on(store)
    parts = [writer.write(f"s{n}", pattern(200 + n, n)) for n in range(20)]
    assert store.objects == {}, "nothing is visible before the end"
    stats = writer.close()
    assert writer.close() == stats
    assert list(store.objects) == ["/job/chk-7/e1r2-v3-s0.state"]
    assert (stats.objects, stats.file_bytes) == (1, sum(200 + n for n in range(20)))
    assert [part.handle.offset for part in parts[:3]] == [0, 200, 401]
    reader = SnapshotReader(store)
    for n, part in enumerate(parts):
        assert reader.read(part.handle) == pattern(200 + n, n)
        assert part.handle.crc32 == zlib.crc32(pattern(200 + n, n))


def test_local_files_are_copied(tmp_path):
    store, writer = MemoryStore(), None
    (tmp_path / "sst").write_bytes(pattern(3_000_000))
    (tmp_path / "empty").write_bytes(b"")
    writer = writer_on(store)
    shared = writer.write_file("sst", tmp_path / "sst", Scope.SHARED)
    private = writer.write_file("copy", tmp_path / "sst")
    assert writer.write_file("empty", tmp_path / "empty") is None
    assert writer.close() == WriteStats(2, 6_000_000, 0)
    for part in (shared, private):
        assert SnapshotReader(store).read(part.handle) == pattern(3_000_000)
    with pytest.raises(StorageError, match="FileNotFound"):
        writer_on(store).write_file("gone", tmp_path / "gone")


# ---- shared --------------------------------------------------------------------------------------------------------


def test_shared_files_carry_attempt_checkpoint_and_content():
    # T testDirectoriesForExclusiveAndSharedState: SHARED -> shared/, EXCLUSIVE -> chk-n/
    store = MemoryStore()
    writer = writer_on(store)
    part = writer.write("sst", pattern(500), Scope.SHARED)
    assert part.shared
    assert part.handle.path.startswith("/job/shared/e1r2-c7-v3-s0-")
    assert store.read(part.handle.path) == pattern(500)
    assert writer.close() == WriteStats(1, 500, 0)


def test_the_same_content_is_not_written_twice():
    store = FaultyStore()
    writer = writer_on(store)
    one, two = writer.write("one", pattern(500), Scope.SHARED), writer.write("two", pattern(500), Scope.SHARED)
    other = writer.write("other", pattern(500, 1), Scope.SHARED)
    assert one.handle == two.handle != other.handle
    assert writer.close() == WriteStats(2, 1000, 0)
    assert len(store.history) == 2


def test_a_later_checkpoint_writes_its_own_file():
    # The first file may be about to be deleted: only confirmed ones are used again, by a placeholder.
    store = MemoryStore()
    later = SnapshotTarget(8, AttemptId(1, 2), "/job/chk-8", "/job/shared", inline_threshold=100)
    first = writer_on(store).write("sst", pattern(500), Scope.SHARED)
    second = writer_on(store, later).write("sst", pattern(500), Scope.SHARED)
    assert first.handle.path != second.handle.path


def test_reuse_writes_nothing():
    writer = writer_on()
    part = writer.reuse("sst", 500)
    assert (part.handle, part.shared, size_of(part.handle)) == (Placeholder(500), True, 500)
    assert writer.close() == WriteStats()


def test_a_savepoint_shares_nothing():
    # R7.4: NO_SHARING, all files in its own directory
    store = MemoryStore()
    writer = writer_on(store, SAVEPOINT)
    parts = [writer.write(f"sst{n}", pattern(500, n), Scope.SHARED) for n in range(3)]
    assert not any(part.shared for part in parts)
    writer.close()
    assert list(store.objects) == ["/sp/e1r2-v3-s0.state"]


# ---- jobmanager ----------------------------------------------------------------------------------------------------


def test_jobmanager_storage_keeps_bytes_in_the_ack():
    store = MemoryStore()
    writer = writer_on(store, IN_ACKS)
    assert writer.write("a", pattern(30_000)).handle == InlineBytes(pattern(30_000))
    assert writer.write("b", pattern(30_000), Scope.SHARED).shared
    assert writer.close() == WriteStats(0, 0, 60_000)
    writer.abort()
    assert store.objects == {}


def test_five_mebibytes_are_fine_and_one_byte_more_is_not():
    # R5.10, T MemoryCheckpointStorageAccessTest: checked when the stream is closed; equal is fine; each state for itself
    writer = writer_on(target=IN_ACKS)
    for name in ("a", "b"):
        assert size_of(writer.write(name, bytes(MAX)).handle) == MAX
    with pytest.raises(
        StorageError, match=rf"state 'c' is larger than .* 'jobmanager' takes: size={6 << 20}, max={MAX}; .*filesystem"
    ):
        writer.write("c", [bytes(1 << 20)] * 6)
    with pytest.raises(StorageError, match=f"size={MAX + 1}, max={MAX}"):
        writer_on(target=IN_ACKS).write("d", bytes(MAX + 1))


def fail_inside():
    yield pattern(300)
    raise RuntimeError("user code")


# ---- failures ------------------------------------------------------------------------------------------------------


def test_abort_deletes_what_was_written(tmp_path):
    # T testCleanupWhenClosingStream, testCleanupWhenFailingCloseAndGetHandle
    store = LocalStore()
    target = SnapshotTarget(7, AttemptId(1), f"{tmp_path}/chk-7", f"{tmp_path}/shared", inline_threshold=10)
    for close in (False, True):
        writer = StateWriter(store, target, "v0-s0")
        writer.write("a", pattern(50))
        writer.write("b", pattern(50), Scope.SHARED)
        if close:
            writer.close()
        else:
            with pytest.raises(RuntimeError, match="user code"):
                writer.write("c", fail_inside(), Scope.SHARED)
        assert store.list_objects(str(tmp_path))
        writer.abort()
        writer.abort()
        assert store.list_objects(str(tmp_path)) == []
        with pytest.raises(IllegalState, match="for checkpoint 7: the writer is aborted"):
            writer.write("d", b"1")


@pytest.mark.parametrize("kind", [FaultKind.FAIL, FaultKind.TORN, FaultKind.LOST_REPLY])
@pytest.mark.parametrize("scope", Scope)
def test_a_failed_write_breaks_the_writer_and_abort_cleans_up(kind, scope):
    store = FaultyStore([Fault(kind, amount=errno.ENOSPC if kind is FaultKind.FAIL else 10)])
    writer = writer_on(store)

    def run():
        writer.write("a", pattern(500), scope)
        writer.close()

    with pytest.raises(StorageError):
        run()
    with pytest.raises(IllegalState, match="broken by an earlier error"):
        writer.close()
    writer.abort()
    assert store.objects == {}


def test_writing_after_the_end():
    writer = writer_on()
    writer.close()
    for call in (lambda: writer.write("b", b"1"), lambda: writer.reuse("b", 1)):
        with pytest.raises(IllegalState, match="the writer is closed"):
            call()


# ---- reading -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored():
    store = FaultyStore()
    writer = writer_on(store)
    parts = [writer.write(f"s{n}", pattern(1000, n)) for n in range(3)]
    writer.close()
    return store, parts[1].handle, parts[2].handle


def test_every_flipped_byte_of_a_segment_is_found(stored):
    store, handle, _ = stored
    reader = SnapshotReader(store)
    for position in range(0, 1000, 37):
        store.flip(handle.path, handle.offset + position)
        with pytest.raises(CorruptState, match=rf"1000 bytes at 1000 of '{handle.path}' are damaged: their checksum"):
            reader.read(handle)
        store.flip(handle.path, handle.offset + position)
    assert reader.read(handle) == pattern(1000, 1)


def test_damage_elsewhere_in_the_file_does_no_harm(stored):
    store, handle, _ = stored
    store.flip(handle.path, 10)
    store.flip(handle.path, 2010)
    assert SnapshotReader(store).read(handle) == pattern(1000, 1)


def test_truncated_and_missing_files(stored):
    store, handle, last = stored
    reader = SnapshotReader(store)
    store.truncate(handle.path, 2500)
    assert reader.read(handle) == pattern(1000, 1)
    with pytest.raises(CorruptState, match="the file ends after 500 of them"):
        reader.read(last)
    store.delete(handle.path)
    with pytest.raises(CorruptState, match=r"are damaged: the file does not exist$"):
        reader.read(handle)


def test_inline_and_placeholder():
    reader = SnapshotReader(MemoryStore())
    assert reader.read(InlineBytes(b"abc")) == b"abc"
    with pytest.raises(IllegalState, match="a placeholder has no bytes"):
        reader.read(Placeholder(3))
