"""Publish, load, verify, discard, dispose (SPEC R5.8, R5.9, R8.1, R8.7)."""

from __future__ import annotations

import errno
import shutil

import pytest
from storage_jobs import JOB, LAYOUT, content, manifest_of, take, take_savepoint, write_pieces

from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.types import SnapshotType
from headrace.errors import IllegalState, StorageError
from headrace.ids import JobId
from headrace.storage.byte_handles import FileSegment
from headrace.storage.layout import AttemptId, JobLayout, make_savepoint_directory
from headrace.storage.local import LocalStore
from headrace.storage.manifest import Manifest, PieceKind, SnapshotPart, StatePiece, decode_manifest, handles_of
from headrace.storage.objects import MissingObject, OutcomeUnknown
from headrace.storage.published_snapshots import (
    discard_checkpoint,
    discard_pending,
    dispose_savepoint,
    load_snapshot,
    publish,
    require_intact,
)
from headrace.storage.reader import SnapshotReader
from headrace.testing.storage_faults import Fault, FaultKind, FaultyStore, MemoryStore, Operation


def read_all(store, snapshot):
    return [SnapshotReader(store).read(handle) for handle in handles_of(snapshot.manifest)]


EXPECTED = [content(300, 70), content(10, 72), content(400, 71), content(300, 71), content(10, 73), content(400, 72)]


# ---- publish and load --------------------------------------------------------------------------------------------


def test_what_was_published_is_loaded(place):
    store, directory = place
    layout = JobLayout.of(directory, JOB)
    published = take(store, 7, layout=layout)
    for pointer in (layout.checkpoint(7), layout.metadata(7)):
        assert load_snapshot(store, pointer) == published
    assert read_all(store, published) == EXPECTED
    require_intact(store, published)


def test_references_in_the_metadata_are_relative(place):
    store, directory = place
    layout = JobLayout.of(directory, JOB)
    take(store, 7, layout=layout)
    stored = decode_manifest(store.read(layout.metadata(7)), "x")
    paths = {handle.path for handle in handles_of(stored) if isinstance(handle, FileSegment)}
    assert {path.rpartition("/")[0] for path in paths} == {"", "../shared"}


def test_several_jobs_with_the_same_id():
    # T FsCheckpointStorageAccessTest#testPersistMultipleMetadataOnlyCheckpoints
    store, layouts = MemoryStore(), [JobLayout.of("/data", JobId(c * 32)) for c in "ab"]
    for layout in layouts:
        take(store, 177, layout=layout)
    assert [load_snapshot(store, layout.checkpoint(177)).manifest.job_id for layout in layouts] == ["a" * 32, "b" * 32]


def test_an_existing_checkpoint_is_never_written_over(place):
    # T FsCheckpointStorageAccessTest#writeToAlreadyExistingCheckpointFails
    store, directory = place
    layout = JobLayout.of(directory, JOB)
    first = take(store, 7, layout=layout)
    with pytest.raises(StorageError, match=f"cannot publish checkpoint 7: '{layout.metadata(7)}' already exists"):
        take(store, 7, AttemptId(2), layout)
    assert load_snapshot(store, layout.checkpoint(7)) == first


def test_metadata_is_written_last():
    store = FaultyStore()
    take(store, 7)
    writes = [path for operation, path in store.history if operation is Operation.WRITE]
    assert writes[-1] == LAYOUT.metadata(7)
    assert len(writes) == 5, "one private and one shared file per subtask, and the metadata"


@pytest.mark.parametrize("kind", [FaultKind.FAIL, FaultKind.TORN])
def test_a_failed_publication_leaves_no_checkpoint(kind):
    store = FaultyStore([Fault(kind, within="_metadata", amount=30 if kind is FaultKind.TORN else errno.ENOSPC)])
    with pytest.raises(StorageError):
        take(store, 7)
    with pytest.raises(MissingObject):
        load_snapshot(store, LAYOUT.checkpoint(7))


def test_a_lost_reply_is_looked_up():
    store = FaultyStore([Fault(FaultKind.LOST_REPLY, within="_metadata")])
    published = take(store, 7)
    assert load_snapshot(store, LAYOUT.checkpoint(7)) == published


def test_an_outcome_that_stays_unknown():
    # R5.8: store outcome unknown -> keep the files
    store = FaultyStore([Fault(FaultKind.LOST_REPLY, within="_metadata"), Fault(FaultKind.FAIL, None, Operation.READ)])
    with pytest.raises(OutcomeUnknown):
        take(store, 7)
    store.heal()
    require_intact(store, load_snapshot(store, LAYOUT.checkpoint(7)))


def test_a_flipped_bit_in_the_metadata():
    store = FaultyStore()
    take(store, 7)
    store.flip(LAYOUT.metadata(7), 40)
    with pytest.raises(CorruptState, match=f"the metadata '{LAYOUT.metadata(7)}' is damaged"):
        load_snapshot(store, LAYOUT.checkpoint(7))


# ---- verify --------------------------------------------------------------------------------------------------------


def test_deep_verification_names_every_bad_file():
    store = FaultyStore()
    snapshot = take(store, 7)
    require_intact(store, snapshot)
    private0, private1 = f"{snapshot.directory}/e1r0-v0-s0.state", f"{snapshot.directory}/e1r0-v0-s1.state"
    shared = [path for path in snapshot.files() if "shared" in path]
    store.flip(private0, 100)
    store.truncate(private1, 299)
    store.delete(shared[0])
    with pytest.raises(CorruptState, match=f"'{snapshot.directory}' is damaged: .*restore from an older") as caught:
        require_intact(store, snapshot)
    assert f"300 bytes at 0 of '{private0}' are damaged: their checksum does not match" in str(caught.value)
    assert f"300 bytes at 0 of '{private1}' are damaged: the file ends after 299 of them" in str(caught.value)
    assert f"of '{shared[0]}' are damaged: the file does not exist; if the checkpoint was moved: it is inc" in str(
        caught.value
    )


def test_a_moved_incremental_checkpoint_tells_why_it_cannot_be_read():  # SPEC R8.2
    store = MemoryStore()
    snapshot = take(store, 7)
    for info in store.list_objects(snapshot.directory):
        store.put(f"/moved{info.path.removeprefix(snapshot.directory)}", store.read(info.path))
    with pytest.raises(CorruptState) as caught:
        require_intact(store, load_snapshot(store, "/moved"))
    assert (
        "the file does not exist; if the checkpoint was moved: it is incremental and refers to files in the shared directory "
        "of its job, so it can only be used in its place, while savepoints can be moved"
    ) in str(caught.value)


def test_many_problems_are_counted():
    store, directory = MemoryStore(), LAYOUT.checkpoint(1)
    handles = [FileSegment(f"{directory}/f{n}", 0, 5, 0) for n in range(9)]
    piece = StatePiece(PieceKind.OPERATOR, tuple(SnapshotPart(str(n), handle) for n, handle in enumerate(handles)))
    snapshot = publish(store, manifest_of(1, [(piece,)], AttemptId(1)), directory)
    with pytest.raises(CorruptState, match=r"f0' are damaged.*f4' are damaged: .*; and 4 more; restore from an older"):
        require_intact(store, snapshot)


# ---- discard -------------------------------------------------------------------------------------------------------


def test_discarding_a_checkpoint_keeps_shared_files(tmp_path):
    # R5.8: metadata, private state and chk-n go; shared files per R7.5
    store, layout = LocalStore(), JobLayout.of(str(tmp_path), JOB)
    take(store, 7, layout=layout)
    take(store, 8, layout=layout)
    discard_checkpoint(store, layout, 7)
    discard_checkpoint(store, layout, 7)
    assert store.list_names(layout.job) == ["chk-8", "shared"]
    assert len(store.list_names(layout.shared)) == 4
    require_intact(store, load_snapshot(store, layout.checkpoint(8)))


def test_half_a_checkpoint_never_looks_like_one():
    store = FaultyStore()
    take(store, 7)
    store.inject(Fault(FaultKind.FAIL, 2, Operation.DELETE))
    with pytest.raises(StorageError):
        discard_checkpoint(store, LAYOUT, 7)
    assert not store.exists(LAYOUT.metadata(7))
    discard_checkpoint(store, LAYOUT, 7)
    assert LAYOUT.checkpoint_ids(store) == []


def test_what_others_put_there_stays():
    store = MemoryStore()
    take(store, 7)
    store.put(f"{LAYOUT.checkpoint(7)}/notes.txt", b"mine")
    discard_checkpoint(store, LAYOUT, 7)
    assert store.list_names(LAYOUT.checkpoint(7)) == ["notes.txt"]


def test_discarding_a_pending_checkpoint_keeps_shared_files_and_other_attempts():
    # R5.8, T CheckpointCoordinatorTest#testSharedStateNotDiscaredOnAbort
    store = MemoryStore()
    write_pieces(store, 7, AttemptId(1), 0)
    write_pieces(store, 7, AttemptId(2), 0)
    discard_pending(store, LAYOUT.checkpoint(7), AttemptId(1))
    assert store.list_names(LAYOUT.checkpoint(7)) == ["e2r0-v0-s0.state"]
    assert len(store.list_names(LAYOUT.shared)) == 2


def test_discarding_what_was_published_but_not_completed():
    store = MemoryStore()
    published = take(store, 7)
    discard_pending(store, LAYOUT.checkpoint(7), AttemptId(1), published)
    assert LAYOUT.checkpoint_ids(store) == []


# ---- savepoints ----------------------------------------------------------------------------------------------------


def test_a_savepoint_can_be_moved(tmp_path):
    # R8.1: self-contained and movable
    store = LocalStore()
    directory = make_savepoint_directory(store, f"{tmp_path}/old", JOB)
    take_savepoint(store, 7, directory)
    shutil.move(directory, tmp_path / "moved")
    shutil.rmtree(tmp_path / "old")
    found = load_snapshot(store, f"{tmp_path}/moved")
    assert read_all(store, found) == EXPECTED
    assert all(path.startswith(f"{tmp_path}/moved/") for path in found.files())


def test_a_checkpoint_can_be_moved_with_its_job(tmp_path):
    store, layout = LocalStore(), JobLayout.of(f"{tmp_path}/old", JOB)
    take(store, 7, layout=layout)
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert read_all(store, load_snapshot(store, f"{tmp_path}/new/{JOB}/chk-7")) == EXPECTED


def test_a_savepoint_must_be_self_contained():
    store = MemoryStore()
    pieces = [write_pieces(store, 7, AttemptId(1), 0, directory="/sp")]
    with pytest.raises(IllegalState, match=r"refers to '/data/.*/shared/.*' outside of its directory '/sp'"):
        publish(store, manifest_of(7, pieces, AttemptId(1), SnapshotType.SAVEPOINT), "/sp")


@pytest.mark.parametrize("kind", [SnapshotType.SAVEPOINT, SnapshotType.SYNC_SAVEPOINT])
def test_dispose(tmp_path, kind):
    # R8.7: by directory or _metadata; all files, then the directory
    store = LocalStore()
    for suffix in ("", "/_metadata"):
        directory = make_savepoint_directory(store, str(tmp_path), JOB)
        take_savepoint(store, 7, directory, kind)
        disposal = dispose_savepoint(store, f"{directory}{suffix}")
        assert (disposal.deleted, disposal.left) == (3, ())
        assert store.list_names(str(tmp_path)) == []
        with pytest.raises(MissingObject, match="FileNotFound"):
            dispose_savepoint(store, directory)


def test_dispose_leaves_what_is_not_ours(tmp_path):
    store = LocalStore()
    take_savepoint(store, 7, f"{tmp_path}/sp")
    store.put(f"{tmp_path}/sp/notes/readme.txt", b"mine")
    store.put(f"{tmp_path}/sp/.tmp-e1r0-{'0' * 16}", b"left by a crash")
    assert dispose_savepoint(store, f"{tmp_path}/sp").left == (f"{tmp_path}/sp/notes/readme.txt",)
    assert [info.path for info in store.list_objects(f"{tmp_path}/sp")] == [f"{tmp_path}/sp/notes/readme.txt"]


def test_a_checkpoint_is_not_disposed_of():
    # R8.7: not a savepoint -> error
    store = MemoryStore()
    take(store, 7)
    with pytest.raises(IllegalState, match="is a checkpoint, not a savepoint"):
        dispose_savepoint(store, LAYOUT.checkpoint(7))
    require_intact(store, load_snapshot(store, LAYOUT.checkpoint(7)))


def test_dispose_can_be_repeated_after_a_failure():
    store = FaultyStore()
    snapshot = take_savepoint(store, 7, "/sp")
    store.inject(Fault(FaultKind.FAIL, 2, Operation.DELETE))
    with pytest.raises(StorageError):
        dispose_savepoint(store, "/sp")
    with pytest.raises(CorruptState):
        require_intact(store, snapshot)
    dispose_savepoint(store, "/sp")
    assert store.objects == {}


def test_a_savepoint_that_will_not_complete():
    store = MemoryStore()
    write_pieces(store, 7, AttemptId(1), 0, directory="/sp", shared=False)
    store.put("/sp/count/words.parquet", b"x")
    discard_pending(store, "/sp", None)
    assert store.objects == {}


def test_metadata_only():
    store = MemoryStore()
    empty = Manifest(1, SnapshotType.CHECKPOINT, JOB, "j", AttemptId(1), 0)
    assert load_snapshot(store, publish(store, empty, "/c").directory).manifest == empty
