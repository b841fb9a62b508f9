"""SPEC R5.6; the cases of Flink's CheckpointFailureManagerTest."""

from headrace.checkpoint.failure_manager import FailureManager
from headrace.checkpoint.reasons import FailureReason as R
from headrace.checkpoint.settings import CheckpointProperties, RetentionPolicy

CHECKPOINT = CheckpointProperties.for_checkpoint(RetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
SAVEPOINT = CheckpointProperties.for_savepoint(force=True)
STOP = CheckpointProperties.for_stop(force=True, drain=False)
FIVE = {
    R.IO_EXCEPTION,
    R.CHECKPOINT_ASYNC_EXCEPTION,
    R.CHECKPOINT_DECLINED,
    R.CHECKPOINT_EXPIRED,
    R.FINALIZE_CHECKPOINT_FAILURE,
}


def failures(manager, *reports):
    """How often the job was failed."""
    return sum(manager.failure(reason, CHECKPOINT, checkpoint_id) is not None for reason, checkpoint_id in reports)


def test_past_checkpoints_are_ignored():
    """R5.6, testIgnoresPastCheckpoints."""
    manager = FailureManager(2)
    assert failures(manager, (R.CHECKPOINT_EXPIRED, 1), (R.CHECKPOINT_EXPIRED, 2)) == 0
    manager.success(2)
    assert failures(manager, (R.CHECKPOINT_EXPIRED, 1), (R.CHECKPOINT_EXPIRED, 3), (R.CHECKPOINT_EXPIRED, 4)) == 0


def test_failures_in_a_row():
    """R5.6, testContinuousFailure: DECLINED 1, 2, a failover that does not count, DECLINED 4."""
    reports = (
        (R.CHECKPOINT_DECLINED, 1),
        (R.CHECKPOINT_DECLINED, 2),
        (R.CHECKPOINT_COORDINATOR_SUSPEND, 3),
        (R.CHECKPOINT_DECLINED, 4),
    )
    assert failures(FailureManager(2), *reports) == 1


def test_a_success_breaks_the_row():
    """R5.6, testBreakContinuousFailure."""
    manager = FailureManager(2)
    assert (
        failures(manager, (R.IO_EXCEPTION, 1), (R.CHECKPOINT_DECLINED, 2), (R.CHECKPOINT_COORDINATOR_SUSPEND, 3)) == 0
    )
    manager.success(4)
    assert failures(manager, (R.CHECKPOINT_EXPIRED, 5)) == 0


def test_an_older_success_does_not():
    manager = FailureManager(1)
    manager.success(3)
    failures(manager, (R.CHECKPOINT_EXPIRED, 4))
    manager.success(2)
    assert failures(manager, (R.CHECKPOINT_EXPIRED, 5)) == 1


def test_five_reasons_count():
    """R5.6, testTotalCountValue: n = 0, every reason once -> 5."""
    manager = FailureManager(0)
    failing = {reason for reason in R if manager.failure(reason, CHECKPOINT, 7) is not None}
    assert failing == FIVE
    assert {reason for reason in R if reason.counted} == FIVE


def test_one_checkpoint_counts_once():
    """R5.6, testIgnoreOneCheckpointRepeatedlyCountMultiTimes."""
    reports = (
        (R.CHECKPOINT_DECLINED, 1),
        (R.CHECKPOINT_DECLINED, 2),
        (R.CHECKPOINT_COORDINATOR_SUSPEND, 3),
        (R.CHECKPOINT_DECLINED, 2),
    )
    assert failures(FailureManager(2), *reports) == 0


def test_the_count_starts_again_after_the_job_was_failed():
    assert failures(FailureManager(1), *[(R.CHECKPOINT_EXPIRED, i) for i in range(6)]) == 3


def test_savepoints():
    """R5.6: on the driver they never count, a task's failure does; a declined stop fails the job at once."""
    manager = FailureManager(0)
    assert manager.failure(R.CHECKPOINT_EXPIRED, SAVEPOINT, 1) is None
    assert manager.failure(R.CHECKPOINT_EXPIRED, STOP, 2) is None
    assert manager.failure(R.IO_EXCEPTION, STOP, 2, by_task=True) is None  # before any task heard of it
    assert manager.failure(R.CHECKPOINT_DECLINED, SAVEPOINT, 3, by_task=True) is not None
    message = FailureManager(9).failure(R.CHECKPOINT_DECLINED_TASK_NOT_READY, STOP, 4, by_task=True, detail="not yet")
    assert message == "stop-with-savepoint failed (checkpoint 4): not yet"


def test_the_message_names_the_option_and_the_last_failure():
    manager = FailureManager(1)
    failures(manager, (R.CHECKPOINT_EXPIRED, 1))
    assert manager.failure(R.CHECKPOINT_DECLINED, CHECKPOINT, 2, detail="task v1/0: disk full") == (
        "2 checkpoints failed in a row, 1 are tolerated (execution.checkpointing.tolerable-failed-checkpoints); "
        "the last one, checkpoint 2: task v1/0: disk full"
    )
