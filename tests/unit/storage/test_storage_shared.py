"""The shared-file registry, with the vectors of SPEC R7.5, R7.6 and R7.9."""

from __future__ import annotations

import pytest
from storage_jobs import OPERATOR, manifest_of

from headrace.checkpoint.settings import ClaimMode
from headrace.checkpoint.types import SnapshotType
from headrace.errors import IllegalState
from headrace.storage.byte_handles import FileSegment, InlineBytes, Placeholder
from headrace.storage.layout import AttemptId
from headrace.storage.manifest import PieceKind, SnapshotPart, StatePiece
from headrace.storage.shared import SharedStateRegistry, shared_key


def file(name, offset=0):
    return FileSegment(f"/shared/{name}", offset, 10, 1)


def keyed(*parts):
    return StatePiece(PieceKind.KEYED, parts)


def shared(part_id, handle=None):
    return SnapshotPart(part_id, handle or file(part_id), shared=True)


def reused(part_id):
    return SnapshotPart(part_id, Placeholder(10), shared=True)


# ---- register ------------------------------------------------------------------------------------------------------


def test_registry_normal():
    # T SharedStateRegistryTest#testRegistryNormal: a, b @0; unregister(1) -> both deleted
    registry = SharedStateRegistry()
    assert registry.register("a", file("a"), 0) is not None
    registry.register("b", file("b"), 0)
    assert registry.register("a", file("a"), 0) == file("a"), "the same handle again"
    assert registry.unregister_unused(0).delete == ()
    assert registry.unregister_unused(1).delete == ("/shared/a", "/shared/b")
    assert registry.unregister_unused(1).delete == ()
    assert registry.entries == {}


def test_a_placeholder_is_replaced_and_counts_as_a_use():
    registry = SharedStateRegistry()
    registry.register("a", file("a"), 1)
    assert registry.register("a", Placeholder(10), 3) == file("a")
    assert registry.register("a", Placeholder(10), 2) == file("a")
    entry = registry.entries["a"]
    assert (entry.created_by, entry.last_used) == (1, 3), "the newest use counts, whatever order acks come in"
    assert registry.unregister_unused(3).delete == ()
    assert registry.unregister_unused(4).delete == ("/shared/a",)


def test_another_handle_under_one_key():
    registry = SharedStateRegistry()
    registry.register("a", file("a"), 1)
    with pytest.raises(
        IllegalState, match="stored shared state 'a' a second time, in another place: '/shared/a' and '/shared/b'"
    ):
        registry.register("a", file("b"), 2)
    with pytest.raises(IllegalState, match="and 3 bytes inline"):
        registry.register("a", InlineBytes(b"abc"), 2)
    assert registry.entries["a"].last_used == 1


def test_an_unknown_placeholder():
    with pytest.raises(IllegalState, match="checkpoint 2 builds on shared state 'a', which is not known"):
        SharedStateRegistry().register("a", Placeholder(10), 2)


def test_small_shared_state_is_inline_and_has_no_file():
    registry = SharedStateRegistry()
    registry.register("a", InlineBytes(b"abc"), 1)
    assert registry.register("a", Placeholder(3), 2) == InlineBytes(b"abc")
    assert registry.unregister_unused(9).delete == ()


def test_pieces_of_an_ack():
    registry = SharedStateRegistry()
    private = StatePiece(PieceKind.OPERATOR, (SnapshotPart("list", file("private")),))
    assert registry.register_pieces(OPERATOR, [keyed(shared("a")), private], 1) == (keyed(shared("a")), private)
    assert registry.register_pieces(OPERATOR, [keyed(reused("a"), shared("b"))], 2) == (
        keyed(shared("a"), shared("b")),
    )
    assert set(registry.entries) == {shared_key(OPERATOR, "a"), shared_key(OPERATOR, "b")}


def test_a_late_ack_is_registered_too():
    # R7.5: on every task ack, even late ones: its files go with the next subsumption
    registry = SharedStateRegistry()
    registry.register_pieces(OPERATOR, [keyed(shared("x"))], 6)
    assert registry.unregister_unused(6).delete == ()
    registry.register_pieces(OPERATOR, [keyed(shared("late"))], 5)
    assert registry.unregister_unused(6).delete == ("/shared/late",)


def test_a_file_of_several_parts_goes_with_the_last():
    # T SharedStateRegistryTest#testFireMergingOperatorStateRegister; also: equal content is one file
    registry = SharedStateRegistry()
    registry.register("a", file("merged", 0), 1)
    registry.register("b", file("merged", 10), 1)
    registry.register("b", Placeholder(10), 2)
    assert registry.unregister_unused(2).delete == ()
    assert registry.unregister_unused(3).delete == ("/shared/merged",)


# ---- restore -------------------------------------------------------------------------------------------------------


def test_unregister_unused_savepoint_state():
    # T SharedStateRegistryTest#testUnregisterUnusedSavepointState: native savepoint 1 claimed, its state used by 2 and 3
    registry = SharedStateRegistry()
    savepoint = manifest_of(1, [(keyed(SnapshotPart("a", file("sp"))),)], AttemptId(1), SnapshotType.SAVEPOINT)
    registry.register_restored(savepoint, ClaimMode.CLAIM)
    for checkpoint in (2, 3):
        assert registry.register_pieces(OPERATOR, [keyed(reused("a"))], checkpoint) == (keyed(shared("a", file("sp"))),)
    found = registry.unregister_unused(3)
    assert (found.delete, found.in_use) == ((), {1}), "its directory must wait"
    found = registry.unregister_unused(4)
    assert (found.delete, found.in_use) == (("/shared/sp",), set())


def test_a_claimed_checkpoint_does_not_hold_its_directory():
    registry = SharedStateRegistry()
    registry.register_restored(manifest_of(1, [(keyed(shared("a")),)], AttemptId(1)), ClaimMode.CLAIM)
    registry.register_pieces(OPERATOR, [keyed(reused("a"))], 2)
    assert registry.unregister_unused(2).in_use == set(), "its shared files are not in its directory"


def three_incrementals():
    """T CheckpointCoordinatorTest#testSharedStateRegistrationOnRestore: each but the first re-uses one of the one before."""
    registry, manifests = SharedStateRegistry(), []
    for checkpoint in range(3):
        pieces = []
        for subtask in range(2):
            parts = [shared(f"{checkpoint}-{subtask}")]
            if checkpoint:
                parts.append(reused(f"{checkpoint - 1}-{subtask}"))
            pieces.append(registry.register_pieces(OPERATOR, [keyed(*parts)], checkpoint))
        manifests.append(manifest_of(checkpoint, pieces, AttemptId(1)))
    return registry, manifests


@pytest.mark.parametrize("mode", ClaimMode)
def test_shared_state_registration_on_restore(mode):
    registry, manifests = three_incrementals()
    handles = [part for m in manifests for s in m.operators[0].subtasks for p in s.pieces for part in p.parts]
    assert len(handles) == 10
    assert not any(isinstance(part.handle, Placeholder) for part in handles)
    assert registry.unregister_unused(1).delete == (), "cp0's files are used by cp1"

    restored = SharedStateRegistry()
    for manifest in manifests[1:]:
        restored.register_restored(manifest, mode)
    deleted = restored.unregister_unused(2).delete
    assert deleted == (("/shared/0-0", "/shared/0-1") if mode is ClaimMode.CLAIM else ())


def test_files_of_an_unclaimed_snapshot_are_never_deleted():
    # R8.4: NO_CLAIM and LEGACY never delete; LEGACY may depend on them
    registry = SharedStateRegistry()
    registry.register_restored(manifest_of(5, [(keyed(shared("old")),)], AttemptId(1)), ClaimMode.LEGACY)
    registry.register_pieces(OPERATOR, [keyed(reused("old"), shared("new"))], 6)
    assert registry.unregister_unused(8).delete == ("/shared/new",)


def test_a_file_of_an_unclaimed_snapshot_stays_although_a_later_part_shares_it():
    registry = SharedStateRegistry()
    registry.register_restored(manifest_of(5, [(keyed(shared("old")),)], AttemptId(1)), ClaimMode.LEGACY)
    registry.register("other", file("old"), 6)
    assert registry.unregister_unused(6).delete == ()
    assert registry.unregister_unused(7).delete == ()


def test_own_checkpoints_after_an_unclaimed_restore_are_deleted_as_usual():
    registry = SharedStateRegistry()
    registry.register_restored(manifest_of(5, [(keyed(shared("old")),)], AttemptId(1)), ClaimMode.NO_CLAIM)
    registry.register("new", file("new"), 6)
    assert registry.unregister_unused(7).delete == ("/shared/new",)


def test_a_full_checkpoint_cuts_the_chain():
    # R7.6, T ours: inc 1..5 (retained 1), FULL 6 -> only files created by 6; 7 refers to nothing older
    registry, deleted = SharedStateRegistry(), []
    for checkpoint in range(1, 6):
        parts = [reused(f"f{older}") for older in range(1, checkpoint)] + [shared(f"f{checkpoint}")]
        registry.register_pieces(OPERATOR, [keyed(*parts)], checkpoint)
        deleted += registry.unregister_unused(checkpoint).delete
    assert deleted == []
    registry.register_pieces(OPERATOR, [keyed(shared("f6"))], 6)
    assert registry.unregister_unused(6).delete == tuple(f"/shared/f{n}" for n in range(1, 6))
    registry.register_pieces(OPERATOR, [keyed(reused("f6"), shared("f7"))], 7)
    assert registry.unregister_unused(7).delete == ()
    assert min(entry.created_by for entry in registry.entries.values()) == 6


def test_two_retained_free_the_chain_one_checkpoint_later():
    # R7.6: num-retained = k: after k - 1 more
    registry = SharedStateRegistry()
    registry.register("old", file("old"), 5)
    registry.register("full", file("full"), 6)
    assert registry.unregister_unused(5).delete == (), "5 and 6 retained"
    registry.register("full", Placeholder(10), 7)
    assert registry.unregister_unused(6).delete == ("/shared/old",)
