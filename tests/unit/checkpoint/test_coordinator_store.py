"""SPEC R5.8; the cases of Flink's CompletedCheckpointStoreTest and DefaultCompletedCheckpointStoreTest."""

import pytest

from headrace.checkpoint.settings import CheckpointProperties, EndStatus, RetentionPolicy
from headrace.checkpoint.store import CheckpointStore, CompletedCheckpoint
from headrace.errors import IllegalState, InvalidArgument


def cp(checkpoint_id, policy=RetentionPolicy.RETAIN_ON_CANCELLATION):
    return CompletedCheckpoint(checkpoint_id, 0, CheckpointProperties.for_checkpoint(policy), "", "")


def sp(checkpoint_id):
    return CompletedCheckpoint(checkpoint_id, 0, CheckpointProperties.for_savepoint(False), "", "")


def stop(checkpoint_id):
    return CompletedCheckpoint(checkpoint_id, 0, CheckpointProperties.for_stop(False, False), "", "")


def kept(num_retained, *checkpoints):
    store = CheckpointStore(num_retained)
    for checkpoint in checkpoints:
        store.add(checkpoint)
    return list(store.checkpoints)


def test_at_least_one_is_retained():
    """R5.8, testExceptionOnNoRetainedCheckpoints."""
    with pytest.raises(InvalidArgument, match=r"at least one .* got 0"):
        CheckpointStore(0)


def test_add_and_get_latest():
    """R5.8, testAddAndGetLatestCheckpoint and testAcquireLatestCompletedCheckpointId."""
    store = CheckpointStore(4)
    assert (store.latest, store.checkpoints) == (None, ())
    for checkpoint in (first := cp(1), second := cp(2)):
        assert store.add(checkpoint) == []
        assert store.latest is checkpoint
    assert store.checkpoints == (first, second)
    assert store.find(2) is second
    assert store.find(3) is None


def test_add_more_than_retained():
    """R5.8, testAddCheckpointMoreThanMaxRetained."""
    store = CheckpointStore(1)
    store.add(cp(0))
    for i in range(1, 5):
        assert [c.id for c in store.add(cp(i))] == [i - 1]
        assert [c.id for c in store.checkpoints] == [i]


@pytest.mark.parametrize(
    ("num_retained", "added", "expected"),
    [
        pytest.param(1, [cp(1), cp(2), sp(3), sp(4), sp(5)], [2, 5], id="testAtLeastOneCheckpointRetained"),
        pytest.param(1, [cp(1), sp(2), cp(3)], [3], id="testOlderSavepointSubsumed"),
        pytest.param(1, [cp(1), sp(2), stop(3)], [3], id="testSubsumeAfterStoppingWithSavepoint"),
        pytest.param(3, [cp(1), cp(2), cp(3)], [1, 2, 3], id="testNotSubsumedIfNotNeeded"),
        pytest.param(1, [sp(1), sp(2)], [2], id="savepoints only"),
        pytest.param(2, [cp(1), cp(2), cp(3), cp(4)], [3, 4], id="two retained"),
    ],
)
def test_retention(num_retained, added, expected):
    """R5.8, DefaultCompletedCheckpointStoreTest: first in, first out; never the newest, nor the base of increments."""
    assert [c.id for c in kept(num_retained, *added)] == expected


def test_recovered_checkpoints_are_sorted_and_superfluous_ones_go_with_the_next():
    """R5.8, testRecoverSortedCheckpoints and testAddCheckpointSuccessfullyShouldRemoveOldOnes."""
    store = CheckpointStore(1, [cp(3), cp(1), cp(2)])
    assert [c.id for c in store.checkpoints] == [1, 2, 3]
    assert [c.id for c in store.add(cp(100))] == [1, 2, 3]
    assert [c.id for c in store.checkpoints] == [100]


def test_step_back():
    store = CheckpointStore(3, [cp(1), cp(2), cp(3)])
    assert [c.id for c in store.step_back(2)] == [3]
    assert store.step_back(2) == []
    assert [c.id for c in store.checkpoints] == [1, 2]
    with pytest.raises(InvalidArgument, match="checkpoint 3 is not kept any more; kept are: 1, 2"):
        store.step_back(3)


@pytest.mark.parametrize("status", list(EndStatus))
def test_end_by_status(status):
    """R5.8, R5.2, testDiscardAllCheckpoints: every policy by every end; a savepoint in the store is never deleted. SUSPENDED is no end."""
    store = CheckpointStore(9, [*(cp(i, policy) for i, policy in enumerate(RetentionPolicy, 1)), sp(4)])
    discarded, kept = store.end(status)
    retained = {
        EndStatus.FINISHED: [4],
        EndStatus.CANCELED: [3, 4],
        EndStatus.FAILED: [2, 3, 4],
        EndStatus.SUSPENDED: [1, 2, 3, 4],  # not an end: the driver that resumes the job needs everything
    }
    assert [c.id for c in kept] == retained[status]
    assert [c.id for c in discarded] == [i for i in (1, 2, 3, 4) if i not in retained[status]]
    assert store.checkpoints == ()


@pytest.mark.parametrize("status", list(EndStatus))
def test_nothing_is_added_after_the_end(status):
    """R5.8, testShutdownFailsAnyFutureCallsToAddCheckpoint."""
    store = CheckpointStore(1)
    store.end(status)
    with pytest.raises(IllegalState, match="closed"):
        store.add(cp(1))
