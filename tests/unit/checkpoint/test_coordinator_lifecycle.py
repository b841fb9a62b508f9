"""SPEC R5.0, R5.1, R5.5-R5.8: the way of a checkpoint; named after the cases of Flink's CheckpointCoordinatorTest."""

import pytest
from coordinator_harness import LONG, Job, chain, task

from headrace.checkpoint import events as ev
from headrace.checkpoint.assignment import FinishedState, Mode, StateShape
from headrace.checkpoint.decider import RequestId
from headrace.checkpoint.plan import TaskReport, TaskStatus
from headrace.checkpoint.reasons import FailureReason as R
from headrace.checkpoint.settings import EndStatus, RetentionPolicy
from headrace.checkpoint.types import AlignmentKind, SnapshotType
from headrace.errors import IllegalState
from headrace.ids import OperatorId

STORAGE = {ev.PrepareLocation, ev.SnapshotDriverState, ev.WriteMetadata, ev.ClaimLogEntry}


def kinds(instructions):
    return [type(instruction).__name__ for instruction in instructions if not isinstance(instruction, ev.ScheduleAt)]


# ---- the steps -----------------------------------------------------------------------------------------------------


def test_the_steps_in_order():
    """R5.1: each step waits for the one before."""
    job = Job(chain(1, 2), hold=STORAGE, driver_state=True)
    steps = job.send(ev.CheckpointRequested(RequestId("r")))
    assert kinds(steps) == ["PrepareLocation"]
    steps = job.send(ev.LocationReady(1, "dir/chk-1"))
    assert kinds(steps) == ["SnapshotDriverState"]
    steps = job.send(ev.DriverStateReady(1, {OperatorId("op0"): b"enumerator"}))
    assert kinds(steps) == ["TriggerTasks"]
    assert steps[0].tasks == (task(0),)
    assert (steps[0].barrier.id, steps[0].barrier.timestamp) == (1, job.now)
    assert steps[0].barrier.options.location == "dir/chk-1"
    assert kinds(job.ack(1, task(0), task(1, 0))) == ["RegisterShared"] * 2
    steps = job.ack(1, task(1, 1))
    assert kinds(steps) == ["RegisterShared", "WriteMetadata"]
    content = steps[1].content
    assert content.states == {t: f"state-1-{t}" for t in job.tasks}
    assert content.driver_states == {OperatorId("op0"): b"enumerator"}
    assert content.vertices[0].state is FinishedState.RUNNING
    steps = job.send(ev.MetadataWritten(1, "dir/chk-1/_metadata"))
    assert kinds(steps) == ["ClaimLogEntry"]
    assert job.kept == []
    assert job.coordinator.claim_under_way
    steps = job.send(ev.LogEntryClaimed(1, 17))
    assert kinds(steps) == ["ReleaseShared", "CompleteRequest", "NotifyComplete"]
    assert steps[1].result == ev.RequestDone(1, "dir/chk-1/_metadata", 17)
    assert steps[2].tasks == tuple(job.tasks)
    assert steps[2].commit_number == 17
    assert job.kept == [1]
    assert not job.coordinator.claim_under_way


def test_trigger_and_confirm_simple_checkpoint():
    """R5.1, testTriggerAndConfirmSimpleCheckpoint: twice; the first id is 1, the second subsumes the first."""
    job = Job(chain(1, 1))
    request = job.trigger()
    assert job.pending == [1]
    job.ack(1, task(1))
    job.ack(1, task(1))  # acknowledged twice: ignored
    assert job.pending == [1]
    job.ack(1, task(0))
    assert (job.pending, job.kept) == ([], [1])
    assert job.result(request).checkpoint_id == 1
    assert job.complete() == 2
    assert job.kept == [2]
    assert job.ids(ev.NotifyComplete) == [1, 2]
    assert [n.subsumed for n in job.all(ev.NotifyComplete)] == [None, 1]
    assert job.ids(ev.DiscardCheckpoint) == [1]


def test_plan_failures_burn_no_id():
    """R5.1; testCheckpointAbortsIfTriggerTasksAreNotExecuted."""
    job = Job(start=False)
    assert job.reason(job.trigger()) == "NOT_ALL_REQUIRED_TASKS_RUNNING"
    job.send(ev.AttemptStarted(1, job.topology))
    assert job.reason(job.trigger()) == "NOT_ALL_REQUIRED_TASKS_RUNNING"
    job.start()
    assert job.complete() == 1


def test_no_checkpoint_while_tasks_run_but_the_job_does_not():
    job = Job()
    job.fail()
    request = job.trigger()
    assert job.result(request).message == "the job is not running"


def test_ids_go_on_over_attempts():
    job = Job()
    job.complete()
    job.trigger()
    job.fail()
    job.start(restored=1)
    assert job.pending == [3]


def test_multiple_concurrent_checkpoints():
    """R5.1, testMultipleConcurrentCheckpoints: both complete, in order."""
    job = Job(chain(1, 1, 1), max_concurrent=9, num_retained=2)
    job.trigger()
    job.ack(1, task(1))
    job.trigger()
    assert job.triggered() == [1, 2]
    job.ack(1, task(2))
    job.ack(2, task(0))
    job.ack(1, task(0))
    job.ack(2, task(1))
    assert (job.pending, job.kept) == ([2], [1])
    job.ack(2, task(2))
    assert (job.pending, job.kept) == ([], [1, 2])
    assert job.ids(ev.NotifyComplete) == [1, 2]


def test_successful_checkpoint_subsumes_unsuccessful():
    """R5.1, testSuccessfulCheckpointSubsumesUnsuccessful."""
    job = Job(chain(1, 1, 1), max_concurrent=9)
    first = job.trigger()
    job.ack(1, task(0), task(1))
    job.trigger()
    job.ack(2)
    assert job.reason(first) == "CHECKPOINT_SUBSUMED"
    assert (job.pending, job.kept) == ([], [2])
    assert job.ids(ev.DiscardCheckpoint) == [1]
    assert kinds(job.ack(1, task(2))) == ["RegisterShared", "DiscardFiles"]
    assert job.kept == [2]
    assert not job.all(ev.FailJob)
    # R5.1: older ones are aborted before the completion is notified, with the new one as the latest completed
    told = [i for i in job.out if isinstance(i, ev.NotifyAborted | ev.NotifyComplete)]
    assert [type(i) for i in told] == [ev.NotifyAborted, ev.NotifyComplete]
    assert (told[0].latest_completed, told[0].latest_commit_number) == (2, 1)


# ---- acknowledgements ----------------------------------------------------------------------------------------------


def test_state_cleanup_for_late_or_unknown_messages():
    """R5.1, testStateCleanupForLateOrUnknownMessages."""
    job = Job(chain(1, 1), tolerable_failures=9)
    job.trigger()
    job.ack(1, task(0))
    assert job.all(ev.DiscardFiles) == []
    job.ack(1, task(7), state="from nowhere")
    assert [i.state for i in job.all(ev.DiscardFiles)] == ["from nowhere"]
    job.ack(1, task(0), state="again")  # a duplicate is not ours to delete: the first may name the same files
    assert len(job.all(ev.DiscardFiles)) == 1
    job.decline(1, task(0))
    assert job.ids(ev.DiscardCheckpoint) == [1]
    job.ack(1, task(1), state="late")
    job.ack(1, task(8), state="late from nowhere")
    assert [i.state for i in job.all(ev.DiscardFiles)[1:]] == ["late", "late from nowhere"]


def test_messages_of_another_attempt_change_nothing():
    """R5.1: 'another job' cannot reach us (the control plane has a secret per job); another attempt can."""
    job = Job()
    job.trigger()
    job.fail()
    job.start()
    job.trigger()
    job.ack(2, attempt=1)
    job.send(ev.Declined(1, task(0), 2))
    job.send(ev.TaskStatusChanged(1, task(0), TaskStatus.FAILED))
    assert job.pending == [2]
    assert [i.checkpoint_id for i in job.all(ev.DiscardFiles)] == [2, 2]


def test_handle_messages_for_non_existing_checkpoints():
    """testHandleMessagesForNonExistingCheckpoints."""
    job = Job()
    job.ack(30965, task(0), state=None)
    job.decline(30965)
    for event in (
        ev.LocationReady(5, "x"),
        ev.StepFailed(5, "x"),
        ev.DriverStateReady(5),
        ev.MetadataWritten(5, "x"),
        ev.LogEntryClaimed(5, 5),
        ev.Discarded(5),
    ):
        assert kinds(job.send(event)) == []
    assert job.complete() == 1


def test_a_late_duplicate_never_deletes_a_kept_checkpoint():
    """Ours: a completed checkpoint or savepoint is safe from acknowledgements that come again."""
    job = Job(num_retained=2)
    job.complete()
    job.savepoint()
    job.ack(2)
    job.ack(1)
    job.ack(2)
    assert job.all(ev.DiscardFiles) == []


def test_late_ack_of_an_expired_checkpoint():
    """R5.1: its shared state is registered, the rest is deleted; 16 expired ids are remembered, to say so."""
    job = Job(timeout_ms=100, tolerable_failures=99)
    for _ in range(17):
        job.trigger()
        job.advance(100)
    steps = job.ack(17, task(0))
    assert kinds(steps) == ["RegisterShared", "Warn", "DiscardFiles"]
    assert "v0/0 acknowledged checkpoint 17 after it had expired" in steps[1].message
    assert kinds(job.ack(1, task(0))) == ["RegisterShared", "DiscardFiles"]


# ---- declines and failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [R.CHECKPOINT_DECLINED, R.CHECKPOINT_ASYNC_EXCEPTION])
def test_trigger_and_decline(reason):
    """R5.5, testTriggerAndDeclineCheckpointSimple, ...AsyncCheckpointFailureSimple, ...ThenFailureManagerThrowsException."""
    job = Job()
    request = job.trigger()
    job.decline(1, task(0), reason)
    assert job.pending == []
    assert job.reason(request) == reason.name
    (failed,) = job.all(ev.FailJob)
    assert (failed.reason, failed.checkpoint_id, failed.task) == (reason, 1, task(0))
    assert kinds(job.decline(1, task(1))) == []


def test_trigger_and_decline_complex():
    """testTriggerAndDeclineCheckpointComplex: the other checkpoint goes on; the abort is notified once."""
    job = Job(max_concurrent=9, tolerable_failures=9)
    job.trigger()
    job.trigger()
    job.decline(1, task(0))
    job.decline(1, task(0))
    job.decline(1, task(1))
    assert job.pending == [2]
    (aborted,) = job.all(ev.NotifyAborted)
    assert (aborted.checkpoint_id, aborted.tasks, aborted.reason) == (1, tuple(job.tasks), R.CHECKPOINT_DECLINED)
    assert job.ids(ev.DiscardCheckpoint) == [1]


def test_report_latest_completed_checkpoint_id_with_abort():
    """R5.7, testReportLatestCompletedCheckpointIdWithAbort."""
    job = Job()
    job.trigger()
    job.decline(1, reason=R.CHECKPOINT_EXPIRED)
    job.complete()
    job.trigger()
    job.decline(3, reason=R.CHECKPOINT_EXPIRED)
    assert [(a.latest_completed, a.latest_commit_number) for a in job.all(ev.NotifyAborted)] == [(None, None), (2, 1)]


def test_checkpoint_timeout():
    """R5.1, S5, testCheckpointTimeoutIsolated: the checkpoint expires; state is deleted, late acks too."""
    job = Job(timeout_ms=200, tolerable_failures=1)
    request = job.trigger()
    job.ack(1, task(0))
    job.advance(199)
    assert job.pending == [1]
    job.advance(1)
    assert job.pending == []
    assert job.reason(request) == "CHECKPOINT_EXPIRED"
    assert "not acknowledged by v1/0" in job.result(request).message
    assert "200 ms (execution.checkpointing.timeout)" in job.result(request).message
    assert job.ids(ev.DiscardCheckpoint) == [1]
    assert job.ids(ev.NotifyAborted) == [1]
    assert not job.all(ev.FailJob)


def test_expired_checkpoint_exceeds_tolerable_failure_number():
    """R5.6, testExpiredCheckpointExceedsTolerableFailureNumber: n = 1, the second one fails the job."""
    job = Job(timeout_ms=50, tolerable_failures=1)
    for _ in range(2):
        job.trigger()
        job.advance(50)
    assert [f.checkpoint_id for f in job.all(ev.FailJob)] == [2]


def test_trigger_after_storage_io_exception():
    """R5.5, testTriggerCheckpointAfterCheckpointStorageIOException: counted, and a pending checkpoint in the statistics."""
    job = Job(hold={ev.PrepareLocation})
    request = job.trigger()
    steps = job.send(ev.StepFailed(1, "read-only file system"))
    assert job.reason(request) == "IO_EXCEPTION"
    assert kinds(steps) == ["CompleteRequest", "FailJob"]  # no task heard of it, nothing to delete
    assert job.coordinator.stats.snapshot().find(1).failure_message == "read-only file system"


def test_driver_state_failure():
    """testTriggerCheckpointSnapshotMasterHookFailed: not counted; the driver is notified of the abort."""
    job = Job(hold={ev.SnapshotDriverState}, driver_state=True)
    request = job.trigger()
    job.send(ev.StepFailed(1, "broker away"))
    assert job.reason(request) == "TRIGGER_CHECKPOINT_FAILURE"
    assert [a.tasks for a in job.all(ev.NotifyAborted)] == [()]
    assert not job.all(ev.FailJob)


def test_abortion_is_told_to_the_parts_on_the_driver():
    """R5.7, testNotifyCheckpointAbortionInOperatorCoordinator, testTimeoutWhileCheckpointOperatorCoordinatorNotFinishing."""
    job = Job(hold={ev.SnapshotDriverState}, driver_state=True, timeout_ms=10, tolerable_failures=9)
    job.trigger()
    job.advance(10)
    assert job.ids(ev.NotifyAborted) == [1]
    assert kinds(job.send(ev.DriverStateReady(1))) == []  # too late
    assert job.triggered() == []


def test_a_task_that_ends_without_acknowledging():
    """R4.5: waiting for it would take until the timeout; not counted."""
    job = Job(chain(2, 1))
    request = job.trigger()
    job.ack(1, task(0, 0))
    job.finish(task(0, 0))
    assert job.pending == [1]
    job.finish(task(0, 1))
    assert job.reason(request) == "CHECKPOINT_DECLINED_TASK_CLOSING"
    assert not job.all(ev.FailJob)


def test_counted_reasons_only():
    """R5.6: over all reasons a task may give, exactly five fail the job with n = 0."""
    failing = set()
    for reason in R:
        job = Job()
        job.trigger()
        job.decline(1, reason=reason)
        failing |= {f.reason for f in job.all(ev.FailJob)}
    assert failing == {r for r in R if r.counted}


# ---- finalization --------------------------------------------------------------------------------------------------


def test_metadata_write_fails():
    """R5.8, testCleanupForGenericFailure: files deleted, counted, abort told, request failed."""
    job = Job(hold={ev.WriteMetadata})
    request = job.trigger()
    job.ack(1)
    steps = job.send(ev.StepFailed(1, "disk full"))
    assert kinds(steps) == ["DiscardCheckpoint", "CompleteRequest", "NotifyAborted", "FailJob"]
    assert job.reason(request) == "FINALIZE_CHECKPOINT_FAILURE"
    assert job.kept == []


@pytest.mark.parametrize(("unknown", "discarded"), [(False, [1]), (True, [])])
def test_storing_fails(unknown, discarded):
    """R5.8, testCleanupForGenericFailure, testCleanupOmissionForPossibleInconsistentStateException."""
    job = Job(hold={ev.ClaimLogEntry})
    request = job.trigger()
    job.ack(1)
    job.send(ev.StepFailed(1, "no answer", outcome_unknown=unknown))
    assert job.reason(request) == "FINALIZE_CHECKPOINT_FAILURE"
    assert job.ids(ev.DiscardCheckpoint) == discarded
    assert job.ids(ev.NotifyAborted) == [1]
    assert len(job.all(ev.FailJob)) == 1
    job.ack(1, task(0))
    assert bool(job.all(ev.DiscardFiles)) is not unknown


def test_the_claim_says_what_is_not_retained_any_more():
    """SPEC R5.8: an entry of the log names the checkpoints to restore from, so it must agree with the store."""
    job = Job(num_retained=2)
    for _ in range(4):
        job.complete()
    claims = job.all(ev.ClaimLogEntry)
    assert [claim.subsumed for claim in claims] == [(), (), (1,), (2,)]
    assert job.kept == [3, 4]


def test_what_is_deleted_says_whether_it_was_complete():
    job = Job(tolerable_failures=9, hold={ev.ClaimLogEntry})
    job.trigger()
    job.decline(1)
    job.savepoint()
    job.decline(2)
    job.trigger()
    job.ack(3)
    job.send(ev.StepFailed(3, "no"))
    job.hold.clear()
    job.complete()
    job.complete()
    told = [(i.checkpoint_id, i.type.name, i.completed, i.attempt, i.snapshot) for i in job.all(ev.DiscardCheckpoint)]
    assert told == [
        (1, "CHECKPOINT", False, 1, None),
        (2, "SAVEPOINT", False, 1, None),
        (3, "CHECKPOINT", False, 1, "snapshot 3"),
        (4, "CHECKPOINT", True, None, None),
    ]


def test_no_attempt_while_a_claim_is_under_way():
    job = Job(hold={ev.ClaimLogEntry})
    job.trigger()
    job.ack(1)
    job.fail()
    with pytest.raises(IllegalState, match="claim of checkpoint 1 is under way: wait for its answer"):
        job.start()
    job.send(ev.LogEntryClaimed(1, 1))
    job.start(restored=1)
    assert job.pending == [2]


def test_failed_storing_keeps_the_old_checkpoint():
    """R5.8, testAddCheckpointFailedShouldNotRemoveOldOnes."""
    job = Job(tolerable_failures=9)
    job.complete()
    job.hold.add(ev.ClaimLogEntry)
    job.trigger()
    job.ack(2)
    job.send(ev.StepFailed(2, "no"))
    assert job.kept == [1]
    assert job.ids(ev.DiscardCheckpoint) == [2]


def test_a_write_under_way_is_not_deleted_beneath():
    """Ours: an aborted checkpoint's directory is deleted when its metadata write has ended, well or not."""
    for result in (ev.MetadataWritten(1, "p"), ev.StepFailed(1, "x")):
        job = Job(hold={ev.WriteMetadata}, timeout_ms=100, tolerable_failures=9)
        request = job.trigger()
        job.ack(1)
        job.advance(100)
        assert "its metadata is not written" in job.result(request).message
        assert job.all(ev.DiscardCheckpoint) == []
        job.send(result)
        assert job.ids(ev.DiscardCheckpoint) == [1]
        assert job.kept == []


def test_a_directory_that_comes_too_late_is_deleted():
    """testTriggerCheckpointRequestCancelled: expired while it was prepared; no task is notified; 1 id is remembered."""
    job = Job(hold={ev.PrepareLocation}, timeout_ms=100, tolerable_failures=9)
    request = job.trigger()
    job.advance(100)
    assert job.reason(request) == "CHECKPOINT_EXPIRED"
    assert job.all(ev.NotifyAborted) == []
    assert kinds(job.send(ev.LocationReady(1, "dir/chk-1"))) == ["DiscardCheckpoint"]
    assert job.triggered() == []


def test_claims_are_made_one_at_a_time_in_the_order_of_ids():
    """SPEC R5.1: commit numbers grow with the ids."""
    job = Job(hold={ev.WriteMetadata, ev.ClaimLogEntry}, max_concurrent=2, num_retained=2)
    for _ in range(2):
        job.trigger()
    job.ack(1)
    job.ack(2)
    job.send(ev.MetadataWritten(1, "one"))
    job.send(ev.MetadataWritten(2, "two"))
    assert job.ids(ev.ClaimLogEntry) == [1]
    job.send(ev.LogEntryClaimed(1, 5))
    assert job.ids(ev.ClaimLogEntry) == [1, 2]
    job.send(ev.LogEntryClaimed(2, 6))
    assert [(n.checkpoint_id, n.commit_number) for n in job.all(ev.NotifyComplete)] == [(1, 5), (2, 6)]


def test_a_newer_one_that_is_written_first_subsumes_the_older():
    job = Job(hold={ev.WriteMetadata}, max_concurrent=2)
    first = job.trigger()
    job.trigger()
    job.ack(1)
    job.ack(2)
    job.send(ev.MetadataWritten(2, "two"))
    assert job.kept == [2]
    assert job.reason(first) == "CHECKPOINT_SUBSUMED"
    assert job.ids(ev.DiscardCheckpoint) == []
    job.send(ev.MetadataWritten(1, "one"))
    assert job.ids(ev.DiscardCheckpoint) == [1]


def test_union_state_of_a_partly_finished_vertex():
    """R4.5: CHECKPOINT_DECLINED_TASK_CLOSING, not counted."""
    job = Job(chain(2, 1))
    job.finish(task(0, 0))
    request = job.trigger()
    union = TaskReport({OperatorId("op0"): {"offsets": StateShape(Mode.UNION, 1)}})
    job.ack(1, task(0, 1), report=union)
    job.ack(1, task(1))
    assert job.reason(request) == "CHECKPOINT_DECLINED_TASK_CLOSING"
    assert "'offsets'" in job.result(request).message
    assert not job.all(ev.FailJob)


def test_checkpoint_after_some_tasks_finished():
    """R4.5, testCheckpointTriggeredAfterSomeTasksFinishedIfAllowed: only running tasks take part and are notified."""
    job = Job(chain(2, 1))
    job.finish(task(0, 0), task(0, 1))
    job.trigger()
    assert job.all(ev.TriggerTasks)[-1].tasks == (task(1),)
    job.ack(1, task(1))
    assert job.all(ev.NotifyComplete)[0].tasks == (task(1),)
    assert job.all(ev.WriteMetadata)[0].content.vertices[0].state is FinishedState.FULLY


def test_no_checkpoint_after_finish_if_not_allowed():
    """R4.5, testCheckpointAbortsIfTriggerTasksAreFinished."""
    job = Job(chain(2, 1), after_tasks_finish=False)
    job.finish(task(0, 0))
    assert job.reason(job.trigger()) == "NOT_ALL_REQUIRED_TASKS_RUNNING"


def test_end_of_data_triggers_the_final_checkpoint_at_once():
    """R4.5, R9.3: a bounded job need not wait for the interval; it is tried again if it fails."""
    job = Job(chain(1, 1), tolerable_failures=9)
    job.send(ev.EndOfData(job.attempt, task(0)))
    assert job.pending == []
    job.send(ev.EndOfData(job.attempt, task(1)))
    assert job.pending == [1]
    assert job.coordinator.stats.snapshot().history[0].trigger == "end of data"
    job.decline(1)
    assert job.pending == []
    job.advance(1000)
    assert job.pending == [2]
    job.ack(2, report=TaskReport(finished_operators=True))
    job.finish()
    job.advance(100_000)
    assert (job.pending, job.kept) == ([], [2])


def test_a_final_checkpoint_that_failed_does_not_wait_for_the_pause_between_checkpoints():
    """R4.5: no record waits for its turn; it is tried again after 1 s, 2 s, 4 s ... 60 s, and each attempt begins anew."""
    job = Job(chain(1), tolerable_failures=99, min_pause_ms=3_600_000, interval_ms=3_600_000)

    def waits():
        job.send(ev.EndOfData(job.attempt, task(0)))
        for _ in range(8):
            (pending,) = job.pending
            job.decline(pending)
            before = job.now
            while not job.pending:
                job.advance(500)
            yield (job.now - before) // 1000

    assert list(waits()) == [1, 2, 4, 8, 16, 32, 60, 60]
    job.fail()
    job.start()
    assert next(waits()) == 1


def test_end_of_data_without_checkpointing():
    job = Job(chain(1), interval_ms=None)
    job.send(ev.EndOfData(job.attempt, task(0)))
    job.send(ev.EndOfData(job.attempt - 1, task(0)))
    assert job.pending == []


# ---- suspension, end -----------------------------------------------------------------------------------------------


def test_suspension_aborts_everything():
    """R5.1: CHECKPOINT_COORDINATOR_SUSPEND for what is pending and what waits."""
    job = Job(max_concurrent=1)
    requests = [job.trigger() for _ in range(3)]
    job.status(task(1), TaskStatus.FAILED)
    assert (job.pending, job.queued) == ([], 0)
    assert {job.reason(r) for r in requests} == {"CHECKPOINT_COORDINATOR_SUSPEND"}
    assert job.ids(ev.DiscardCheckpoint) == []  # tasks that leave may still write to it
    assert not job.all(ev.FailJob)
    job.start()
    assert job.ids(ev.DiscardCheckpoint) == [1]


def test_a_claim_under_way_survives_the_suspension():
    """Ours: once claimed it is the checkpoint to restore from, whatever became of the tasks; they are not told."""
    job = Job(hold={ev.ClaimLogEntry})
    request = job.trigger()
    job.ack(1)
    job.fail()
    assert job.pending == []
    assert job.coordinator.claim_under_way
    assert job.result(request) is None
    job.send(ev.LogEntryClaimed(1, 4))
    assert not job.coordinator.claim_under_way
    assert job.kept == [1]
    assert job.result(request) == ev.RequestDone(1, "dir/chk-1/_metadata", 4)
    assert job.all(ev.NotifyComplete) == []


def test_a_claim_does_not_expire():
    """Not in Flink: it may be in the log, so it cannot be aborted."""
    job = Job(hold={ev.ClaimLogEntry}, timeout_ms=100)
    job.trigger()
    job.ack(1)
    job.advance(1000)
    assert job.pending == [1]
    job.send(ev.LogEntryClaimed(1, 1))
    assert job.kept == [1]


def test_a_claim_that_fails_after_the_suspension():
    job = Job(hold={ev.ClaimLogEntry})
    request = job.trigger()
    job.ack(1)
    job.fail()
    job.send(ev.StepFailed(1, "no"))
    assert job.reason(request) == "FINALIZE_CHECKPOINT_FAILURE"
    assert job.ids(ev.DiscardCheckpoint) == [1]
    assert job.all(ev.NotifyAborted) + job.all(ev.FailJob) == []


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("NEVER_RETAIN_AFTER_TERMINATION", []),
        ("RETAIN_ON_FAILURE", [EndStatus.FAILED]),
        ("RETAIN_ON_CANCELLATION", [EndStatus.CANCELED, EndStatus.FAILED]),
    ],
)
def test_externalized_checkpoints(policy, kept):
    """R5.2, testExternalizedCheckpoints: three policies by end status."""
    for status in (EndStatus.FINISHED, EndStatus.CANCELED, EndStatus.FAILED):
        job = Job(retention=RetentionPolicy[policy], num_retained=2)
        job.complete()
        job.complete()
        job.end(status)
        assert job.ids(ev.DiscardCheckpoint) == ([] if status in kept else [1, 2])
        assert job.all(ev.ReleaseShared)[-1].lowest == (1 if status in kept else None)


def test_shared_files_stay_while_another_driver_may_resume_the_job():
    """R5.8, testShutdownShouldNotDiscardStateHandleWhenJobIsNotGloballyTerminalState."""
    job = Job(num_retained=2)
    job.complete()
    released = len(job.all(ev.ReleaseShared))
    job.end(EndStatus.SUSPENDED)
    assert job.ids(ev.DiscardCheckpoint) == []
    assert len(job.all(ev.ReleaseShared)) == released


def test_after_the_end():
    """R5.5, testTriggerCheckpointAfterStopping, testTriggerCheckpointWithShuttingDownCoordinator."""
    job = Job()
    running = job.trigger()
    job.end()
    assert job.reason(running) == "CHECKPOINT_COORDINATOR_SHUTDOWN"
    assert job.reason(job.trigger()) == "CHECKPOINT_COORDINATOR_SHUTDOWN"
    assert job.reason(job.savepoint()) == "CHECKPOINT_COORDINATOR_SHUTDOWN"
    late = ["RegisterShared", "DiscardFiles", "ReleaseShared"]  # the files of a late acknowledgement are deleted
    assert kinds(job.ack(1)) == late * 2
    assert job.advance(10 * LONG) == []


def test_the_end_waits_for_the_claim():
    job = Job(hold={ev.ClaimLogEntry})
    job.trigger()
    job.ack(1)
    job.end(EndStatus.FINISHED)
    assert job.all(ev.ReleaseShared) == []
    job.send(ev.LogEntryClaimed(1, 1))
    assert job.ids(ev.DiscardCheckpoint) == [1]
    assert job.all(ev.ReleaseShared)[-1].lowest is None


def test_suspended_job_keeps_its_shared_files():
    """R5.8."""
    job = Job()
    job.complete()
    released = len(job.all(ev.ReleaseShared))
    job.end(EndStatus.SUSPENDED)
    assert len(job.all(ev.ReleaseShared)) == released


@pytest.mark.parametrize(("status", "discarded"), [(EndStatus.FAILED, [1]), (EndStatus.SUSPENDED, [])])
def test_what_leaving_tasks_wrote_is_deleted_at_the_end_of_the_job_only(status, discarded):
    """R5.8: the driver that resumes a suspended job may write to the same directory."""
    job = Job()
    job.trigger()
    job.fail()
    assert job.ids(ev.DiscardCheckpoint) == []
    job.end(status)
    assert job.ids(ev.DiscardCheckpoint) == discarded


# ---- fencing -------------------------------------------------------------------------------------------------------


def test_a_superseded_driver_stops_silently():
    """No notification, no commit, no deletion; only those who wait here get an answer."""
    job = Job(hold={ev.ClaimLogEntry}, max_concurrent=2)
    requests = [job.trigger() for _ in range(3)]
    job.ack(1)
    steps = job.send(ev.Superseded(1, "epoch 2 has taken over"))
    assert kinds(steps) == ["CompleteRequest"] * 3 + ["StandDown"]
    assert {job.reason(r) for r in requests} == {"CHECKPOINT_COORDINATOR_SHUTDOWN"}
    assert (job.pending, job.queued, job.coordinator.claim_under_way) == ([], 0, False)
    assert kinds(job.ack(2)) == []
    assert kinds(job.end(EndStatus.FAILED)) == []
    assert job.advance(10 * LONG) == []
    assert job.reason(job.trigger()) == "CHECKPOINT_COORDINATOR_SHUTDOWN"
    forbidden = (ev.NotifyComplete, ev.NotifyAborted, ev.DiscardCheckpoint, ev.DiscardFiles, ev.ReleaseShared)
    assert not [i for i in job.out if isinstance(i, forbidden)]


# ---- options of the barrier ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, AlignmentKind.ALIGNED),
        ({"exactly_once": False}, AlignmentKind.AT_LEAST_ONCE),
        ({"unaligned": True}, AlignmentKind.UNALIGNED),
        ({"unaligned": True, "aligned_timeout_ms": 50}, AlignmentKind.ALIGNED_WITH_TIMEOUT),
        ({"unaligned": True, "exactly_once": False}, AlignmentKind.AT_LEAST_ONCE),
    ],
)
def test_alignment(settings, kind):
    """R6.4; a savepoint is never unaligned."""
    job = Job(**settings)
    job.complete()
    assert job.barrier(1).options.alignment is kind
    job.savepoint()
    assert job.barrier(2).options.alignment in {AlignmentKind.ALIGNED, AlignmentKind.AT_LEAST_ONCE}


def test_unaligned_checkpoints_are_announced():
    """SPEC R6.5: a barrier cannot overtake inside Spark, so all but the sources are told at once."""
    job = Job(chain(1, 2, 1), unaligned=True)
    job.trigger()
    (announced,) = job.all(ev.Announce)
    assert announced.tasks == (task(1, 0), task(1, 1), task(2))
    assert announced.barrier == job.barrier(1)


def test_an_alignment_that_takes_too_long_is_announced():
    """R6.6: counted from the trigger; only to tasks that have not acknowledged, and not after all have."""
    job = Job(chain(1, 2), unaligned=True, aligned_timeout_ms=50)
    job.trigger()
    job.ack(1, task(1, 0))
    job.advance(49)
    assert job.all(ev.Announce) == []
    job.advance(1)
    (announced,) = job.all(ev.Announce)
    assert announced.tasks == (task(1, 1),)
    assert announced.barrier.options.alignment is AlignmentKind.UNALIGNED
    assert announced.barrier.options.type is SnapshotType.CHECKPOINT
    job.ack(1, task(0), task(1, 1))
    job.trigger()
    job.ack(2)
    job.advance(1000)
    assert len(job.all(ev.Announce)) == 1
