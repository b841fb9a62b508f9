"""SPEC R5.7, R8.1, R8.3, R8.4: savepoints, stop-with-savepoint, claim modes."""

import pytest
from coordinator_harness import Job, chain, task

from headrace.checkpoint import events as ev
from headrace.checkpoint.plan import TaskStatus
from headrace.checkpoint.reasons import FailureReason as R
from headrace.checkpoint.settings import CheckpointProperties, ClaimMode, EndStatus, RetentionPolicy
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.checkpoint.types import SavepointFormat, SnapshotType
from headrace.errors import IllegalState, InvalidArgument


def imported(mode, *, checkpoint_id=7, hold=(), **options):
    job = Job(start=False, hold=hold, incremental=True, **options)
    job.send(ev.SnapshotImported(checkpoint_id, "old/chk", "old/chk/_metadata", mode, state_size=9, chain_length=4))
    job.start(restored=checkpoint_id)
    job.advance(0)
    return job


# ---- plain savepoints ----------------------------------------------------------------------------------------------


def test_trigger_and_confirm_simple_savepoint():
    """R8.1, testTriggerAndConfirmSimpleSavepoint: not in the store, no notification, no entry in the log, no sharing."""
    job = Job(chain(1, 1))
    request = job.savepoint("s3://here", format=SavepointFormat.NATIVE)
    assert job.all(ev.PrepareLocation)[0].target == "s3://here"
    options = job.barrier(1).options
    assert (options.type, options.format) == (SnapshotType.SAVEPOINT, SavepointFormat.NATIVE)
    job.ack(1)
    assert job.result(request) == ev.RequestDone(1, "s3://here/chk-1/_metadata", None)
    assert job.kept == []
    kinds = (ev.NotifyComplete, ev.ClaimLogEntry, ev.RegisterShared, ev.ReleaseShared, ev.DiscardCheckpoint)
    assert not [i for i in job.out if isinstance(i, kinds)]


def test_savepoints_are_not_subsumed():
    """R5.2, testSavepointsAreNotSubsumed, step by step."""
    job = Job(max_concurrent=99)
    first = job.savepoint()
    job.trigger()
    job.trigger()
    assert job.pending == [1, 2, 3]
    job.ack(3)
    assert [n.subsumed for n in job.all(ev.NotifyComplete)] == [None]
    assert (job.pending, job.kept, job.result(first)) == ([1], [3], None)
    job.trigger()
    second = job.savepoint()
    job.ack(5)
    assert (job.pending, job.kept) == ([1, 4], [3])
    assert job.result(second).checkpoint_id == 5
    job.ack(1)
    assert (job.pending, job.kept) == ([4], [3])
    assert job.result(first).checkpoint_id == 1
    job.trigger()
    job.ack(6)
    assert [(n.checkpoint_id, n.subsumed) for n in job.all(ev.NotifyComplete)] == [(3, None), (6, 3)]
    assert job.ids(ev.DiscardCheckpoint) == [2, 3, 4]


def test_concurrent_savepoints():
    """R5.2, testConcurrentSavepoints: forced, so more than may run at once."""
    job = Job(max_concurrent=1)
    requests = [job.savepoint() for _ in range(5)]
    assert job.pending == [1, 2, 3, 4, 5]
    for i in job.pending:
        job.ack(i)
    assert all(job.result(r).checkpoint_id == i for i, r in enumerate(requests, 1))


def test_savepoint_scheduled_in_unaligned_mode():
    """S8, testSavepointScheduledInUnalignedMode: not forced, but first in line."""
    job = Job(unaligned=True, tolerable_failures=9)
    for _ in range(10):
        job.trigger()
    request = job.savepoint()
    assert (job.pending, job.queued) == ([1], 10)
    job.send(ev.Declined(job.attempt, task(99), 1, R.CHECKPOINT_DECLINED))
    assert (job.pending, job.queued) == ([2], 9)
    assert job.barrier(2).options.type is SnapshotType.SAVEPOINT
    assert job.result(request) is None


def test_no_directory():
    """R8.1: an error before anything is triggered."""
    job = Job()
    for request in (job.savepoint(None), job.stop(None)):
        result = job.result(request)
        assert result.reason is None
        assert "set execution.checkpointing.savepoint-dir" in result.message
    assert job.complete() == 1
    job = Job(savepoint_dir="file:/default")
    job.savepoint(None)
    assert job.all(ev.PrepareLocation)[0].target == "file:/default"


def test_savepoint_failures_on_the_driver_never_count():
    """R5.6."""
    job = Job(timeout_ms=10)
    job.savepoint()
    job.advance(10)
    assert job.all(ev.FailJob) == []
    job.savepoint()
    job.decline(2)
    assert len(job.all(ev.FailJob)) == 1


def test_an_aborted_savepoint_is_deleted_and_a_completed_one_never():
    job = Job(tolerable_failures=9)
    job.savepoint()
    job.decline(1)
    assert job.ids(ev.DiscardCheckpoint) == [1]
    job.savepoint()
    job.ack(2)
    for _ in range(3):
        job.complete()
    job.end(EndStatus.FINISHED)
    assert 2 not in job.ids(ev.DiscardCheckpoint)


# ---- stop with savepoint -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [False, True])
def test_stop_with_savepoint(drain):
    """R8.3: the schedule stops, pending ones are aborted, the completion is notified, the answer comes with the end."""
    job = Job(interval_ms=100)
    pending = job.trigger()
    request = job.stop(drain=drain)
    assert job.reason(pending) == "CHECKPOINT_COORDINATOR_SUSPEND"
    assert job.barrier(2).options.type is SnapshotType.SYNC_SAVEPOINT
    assert job.barrier(2).options.drain is drain
    job.advance(1000)
    assert job.pending == [2]
    job.ack(2)
    (complete,) = job.all(ev.NotifyComplete)
    assert (complete.checkpoint_id, complete.commit_number) == (2, 1)
    assert job.result(request) is None
    job.finish(task(0))
    assert job.result(request) is None
    job.finish(task(1))
    assert job.result(request) == ev.RequestDone(2, "sp/chk-2/_metadata", 1)
    job.end(EndStatus.FINISHED)
    assert len(job.answers()[request]) == 1
    assert job.triggered() == [1, 2]


def test_stop_keeps_the_savepoint_as_the_one_to_restore_from():
    """R5.8: the job has stopped, so older checkpoints are subsumed; the savepoint outlives every end."""
    job = Job()
    job.complete()
    job.stop()
    job.ack(2)
    assert job.kept == [2]
    assert job.ids(ev.DiscardCheckpoint) == [1]
    assert [n.subsumed for n in job.all(ev.NotifyComplete)] == [None, 1]
    job.finish()
    job.end(EndStatus.FINISHED)
    assert job.ids(ev.DiscardCheckpoint) == [1]


def test_stop_may_exceed_the_limit_and_does_not_expire_the_claim_before_it():
    job = Job(hold={ev.ClaimLogEntry})
    first = job.trigger()
    job.ack(1)
    job.stop()
    assert job.pending == [1, 2]
    job.send(ev.LogEntryClaimed(1, 1))
    assert job.result(first).checkpoint_id == 1
    assert job.ids(ev.NotifyComplete) == [1]


def test_a_declined_stop_fails_the_job():
    """R8.3, R5.6, jobFailsIfInFlightSynchronousSavepointIsDiscarded: also with tolerable failures to spare."""
    job = Job(tolerable_failures=99)
    request = job.stop()
    job.decline(1, task(0), R.CHECKPOINT_DECLINED, "Custom-Exception")
    assert "Custom-Exception" in job.result(request).message
    (failed,) = job.all(ev.FailJob)
    assert failed.message == "stop-with-savepoint failed (checkpoint 1): task v0/0: Custom-Exception"


def test_a_failed_stop_lets_the_job_go_on():
    """R8.3: failure to create on the driver: the scheduler is started again."""
    job = Job(interval_ms=100, timeout_ms=50, hold={ev.WriteMetadata})
    request = job.stop()
    job.ack(1)
    job.send(ev.StepFailed(1, "disk full"))
    assert job.reason(request) == "FINALIZE_CHECKPOINT_FAILURE"
    assert job.all(ev.FailJob) == []
    assert job.pending == [2]  # at once: the pause is 0
    job.ack(2)
    assert job.reason(job.stop()) is None


def test_a_failed_drain_fails_the_job_once_tasks_were_triggered():
    """R8.3: the sources have ended their data, so only a restore reads the rest."""
    job = Job(tolerable_failures=99, hold={ev.WriteMetadata})
    request = job.stop(drain=True)
    job.ack(1)
    job.send(ev.StepFailed(1, "disk full"))
    assert job.reason(request) == "FINALIZE_CHECKPOINT_FAILURE"
    (failed,) = job.all(ev.FailJob)
    assert failed.message == "stop-with-savepoint failed (checkpoint 1): disk full"


def test_a_drain_that_fails_before_any_task_is_triggered_lets_the_job_go_on():
    job = Job(hold={ev.PrepareLocation})
    request = job.stop(drain=True)
    job.send(ev.StepFailed(1, "disk full"))
    assert job.reason(request) == "IO_EXCEPTION"
    assert not job.all(ev.FailJob)


def test_a_drain_of_a_job_that_stops_running_does_not_fail_it_again():
    job = Job()
    job.stop(drain=True)
    job.fail()
    assert not job.all(ev.FailJob)


def test_stop_with_tasks_that_do_not_finish():
    """R8.3: the savepoint is there, but a task failed: the answer says so and names the path."""
    job = Job()
    request = job.stop()
    job.ack(1)
    job.finish(task(0))
    job.status(task(1), TaskStatus.FAILED)
    result = job.result(request)
    assert result.pointer == "sp/chk-1/_metadata"
    assert result.message == "savepoint 1 was taken, but the job did not finish; it is at sp/chk-1/_metadata"
    job.start(restored=1)
    assert (
        job.barrier(2).options.type is SnapshotType.FULL_CHECKPOINT
    )  # the savepoint is the user's: do not build on it


def test_a_stop_does_not_satisfy_the_need_for_a_full_checkpoint():
    """R7.6: if the job goes on after all."""
    job = imported(ClaimMode.NO_CLAIM)
    job.stop()
    job.ack(8)
    job.fail()
    job.start(restored=8)
    assert job.barrier(9).options.type is SnapshotType.FULL_CHECKPOINT


def test_stop_whose_job_was_cancelled_meanwhile():
    job = Job()
    request = job.stop()
    job.ack(1)
    job.end(EndStatus.CANCELED)
    assert job.result(request).pointer == "sp/chk-1/_metadata"


@pytest.mark.parametrize("done", [True, False])
def test_stop_while_the_claim_is_under_way_when_the_job_fails(done):
    job = Job(hold={ev.ClaimLogEntry})
    request = job.stop()
    job.ack(1)
    job.fail()
    assert job.result(request) is None
    job.send(ev.LogEntryClaimed(1, 1) if done else ev.StepFailed(1, "no"))
    result = job.result(request)
    assert result.pointer == ("sp/chk-1/_metadata" if done else None)
    assert result.reason is (None if done else R.FINALIZE_CHECKPOINT_FAILURE)
    assert job.kept == ([1] if done else [])


def test_no_other_snapshot_while_the_job_stops():
    job = Job()
    job.stop()
    for request in (job.trigger(), job.savepoint(), job.stop()):
        assert job.reason(request) == "CHECKPOINT_COORDINATOR_SUSPEND"
        assert "being stopped" in job.result(request).message
    job.ack(1)
    assert job.reason(job.trigger()) == "CHECKPOINT_COORDINATOR_SUSPEND"


def test_stop_before_the_tasks_run():
    job = Job(interval_ms=100)
    job.status(task(1), TaskStatus.STARTING)
    assert job.reason(job.stop()) == "NOT_ALL_REQUIRED_TASKS_RUNNING"
    job.status(task(1), TaskStatus.RUNNING)
    assert job.pending == [1]


def test_superseded_while_the_tasks_finish():
    job = Job()
    request = job.stop()
    job.ack(1)
    job.send(ev.Superseded(1, "epoch 2"))
    assert job.reason(request) == "CHECKPOINT_COORDINATOR_SHUTDOWN"


# ---- starting from a snapshot --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(ClaimMode))
def test_next_id(mode):
    """R8.4: restored id + 1 in all modes."""
    job = imported(mode)
    job.trigger()
    assert job.pending == [8]
    assert job.coordinator.stats.snapshot().restored.id == 7
    assert job.coordinator.stats.snapshot().counts.restored == 1


@pytest.mark.parametrize(
    ("mode", "full"), [(ClaimMode.NO_CLAIM, True), (ClaimMode.CLAIM, False), (ClaimMode.LEGACY, False)]
)
def test_the_first_checkpoint_after_no_claim_is_full(mode, full):
    """R7.6, R8.4, testTriggeringFullCheckpoints."""
    job = imported(mode)
    job.complete()
    job.complete()
    types = [job.barrier(i).options.type for i in (8, 9)]
    assert types == [SnapshotType.FULL_CHECKPOINT if full else SnapshotType.CHECKPOINT, SnapshotType.CHECKPOINT]
    stats = job.coordinator.stats.snapshot().find(8)
    assert stats.full is full
    assert (stats.full_reason is not None) is full


def test_a_savepoint_does_not_satisfy_it_and_incremental_does_not_override_it():
    """R7.6, testTriggeringCheckpointsWithCheckpointTypeAfterNoClaimSavepoint."""
    job = imported(ClaimMode.NO_CLAIM)
    job.savepoint()
    job.ack(8)
    job.trigger()
    assert job.barrier(9).options.type is SnapshotType.FULL_CHECKPOINT


def test_failed_attempts_keep_the_flag_and_so_does_a_failover():
    """R7.6, testTriggeringFullSnapshotAfterJobmasterFailover."""
    job = imported(ClaimMode.NO_CLAIM, tolerable_failures=9)
    job.trigger()
    job.decline(8)
    job.trigger()
    assert job.barrier(9).options.type is SnapshotType.FULL_CHECKPOINT
    job.fail()
    job.start(restored=7)
    assert job.barrier(10).options.type is SnapshotType.FULL_CHECKPOINT
    job.ack(10)
    job.fail()
    job.start(restored=10)
    assert job.barrier(11).options.type is SnapshotType.CHECKPOINT


def test_another_driver_keeps_the_flag():
    """R7.6: it survives the coordinator, because the restored snapshot is known to be the user's."""
    properties = CheckpointProperties.for_restored(ClaimMode.NO_CLAIM, RetentionPolicy.RETAIN_ON_FAILURE)
    recovered = [CompletedCheckpoint(7, 0, properties, "old", "old/_metadata", imported=True)]
    job = Job(recovered=recovered, restored=7, next_id=12, incremental=True)
    job.trigger()
    assert job.barrier(12).options.type is SnapshotType.FULL_CHECKPOINT


@pytest.mark.parametrize(("mode", "gone"), [(ClaimMode.NO_CLAIM, []), (ClaimMode.LEGACY, []), (ClaimMode.CLAIM, [7])])
def test_who_deletes_the_snapshot(mode, gone):
    """R8.4: only a claimed one is deleted, once subsumed."""
    job = imported(mode)
    job.complete()
    job.complete()
    job.end(EndStatus.FINISHED)
    assert [i for i in job.ids(ev.DiscardCheckpoint) if i == 7] == gone


def test_a_claimed_folder_waits_until_its_files_are_unused():
    """R7.5, SharedStateRegistryTest#testUnregisterUnusedSavepointState: the registry says which are still in use."""
    job = imported(ClaimMode.CLAIM, hold={ev.ReleaseShared})
    job.complete()
    assert job.kept == [8]
    job.send(ev.SharedReleased(frozenset({7})))
    assert job.ids(ev.DiscardCheckpoint) == []
    job.complete()
    job.send(ev.SharedReleased())
    assert job.ids(ev.DiscardCheckpoint) == [8, 7]
    job.send(ev.SharedReleased())
    assert job.ids(ev.DiscardCheckpoint) == [8, 7]


def test_legacy_is_subsumed_but_not_told():
    """R5.7: lastSubsumed only if its files go."""
    job = imported(ClaimMode.LEGACY)
    job.complete()
    job.complete()
    assert [n.subsumed for n in job.all(ev.NotifyComplete)] == [None, 8]


# ---- stepping back -------------------------------------------------------------------------------------------------


def test_step_back_forgets_newer_checkpoints_and_leaves_their_files():
    """SPEC S7: the newest is damaged; ids still grow."""
    job = Job(num_retained=3)
    for _ in range(3):
        job.complete()
    job.fail()
    job.start(restored=2)
    assert job.kept == [1, 2]
    job.ack(3, task(0))  # a late acknowledgement must not delete what the user may want to repair
    assert job.ids(ev.DiscardCheckpoint) + job.ids(ev.DiscardFiles) == []
    assert job.pending == [4]


def test_only_a_kept_checkpoint_can_be_restored():
    job = Job()
    job.complete()
    job.fail()
    with pytest.raises(InvalidArgument, match="checkpoint 9 is not kept any more; kept are: 1"):
        job.send(ev.AttemptStarted(2, job.topology, restored=9))


def test_a_snapshot_is_imported_before_anything_else():
    with pytest.raises(IllegalState, match="before the job has started"):
        Job().send(ev.SnapshotImported(7, "x", "x/_metadata", ClaimMode.CLAIM))
