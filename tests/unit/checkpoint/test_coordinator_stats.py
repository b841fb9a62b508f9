"""SPEC R10.2 and R10.3; the cases of Flink's CheckpointStatsHistoryTest, ...CountsTest, ...SummaryTest."""

import threading

import pytest
from coordinator_harness import Job, chain, task

from headrace.checkpoint.plan import TaskId, TaskStatus
from headrace.checkpoint.stats import (
    CheckpointStats,
    CheckpointStatus,
    RestoredStats,
    StatsTracker,
    SubtaskMetrics,
    SubtaskStats,
    Summary,
    SummaryStatistics,
    VertexStats,
)
from headrace.checkpoint.types import SavepointFormat
from headrace.ids import VertexId

COMPLETED, FAILED, IN_PROGRESS = CheckpointStatus.COMPLETED, CheckpointStatus.FAILED, CheckpointStatus.IN_PROGRESS


def stats(checkpoint_id, *, savepoint=False, trigger_timestamp=0, parallelism=1):
    kind = "SAVEPOINT" if savepoint else "CHECKPOINT"
    vertices = {VertexId(0): VertexStats(parallelism)}
    return CheckpointStats(checkpoint_id, trigger_timestamp, kind, savepoint, None, "user", vertices)


# ---- history -------------------------------------------------------------------------------------------------------


def test_it_may_be_looked_at_from_another_thread():
    tracker = StatsTracker(10)
    errors = []
    stop = threading.Event()

    def look():
        while not stop.is_set():
            try:
                tracker.snapshot()
            except Exception as error:
                errors.append(error)

    looker = threading.Thread(target=look)
    looker.start()
    for number in range(300):
        stats = CheckpointStats(number, 0, "CHECKPOINT", False, None, "periodic", {0: VertexStats(50)})
        tracker.pending(stats)
        for subtask in range(50):
            stats.report(TaskId(0, subtask), SubtaskStats(1, SubtaskMetrics()))
        tracker.completed(stats)
    stop.set()
    looker.join()
    assert errors == []


def test_history_of_size_zero():
    """R10.2, testZeroMaxSizeHistory: empty, but the latest is kept."""
    tracker = StatsTracker(0)
    tracker.pending(checkpoint := stats(1))
    tracker.completed(checkpoint)
    snapshot = tracker.snapshot()
    assert snapshot.history == ()
    assert snapshot.find(1) == checkpoint
    assert snapshot.find(2) is None


def test_history_of_size_one():
    """R10.2, testSizeOneHistory: checkpoints under way count too."""
    tracker = StatsTracker(1)
    for checkpoint in (first := stats(0), second := stats(1)):
        tracker.pending(checkpoint)
    tracker.completed(first)
    tracker.completed(second)
    assert [(s.id, s.status) for s in tracker.snapshot().history] == [(1, COMPLETED)]


def test_history():
    """R10.2, testCheckpointHistory: the newest first, whatever becomes of them."""
    tracker, checkpoints = StatsTracker(3), [stats(i) for i in range(4)]
    tracker.pending(checkpoints[0])
    assert [s.id for s in tracker.snapshot().history] == [0]
    for checkpoint in checkpoints[1:]:
        tracker.pending(checkpoint)
    assert [(s.id, s.status) for s in tracker.snapshot().history] == [(i, IN_PROGRESS) for i in (3, 2, 1)]
    tracker.failed(checkpoints[1], 9, "CHECKPOINT_EXPIRED", "late")
    tracker.completed(checkpoints[3])
    tracker.failed(checkpoints[2], 9, "CHECKPOINT_SUBSUMED", "old")
    snapshot = tracker.snapshot()
    assert [(s.id, s.status) for s in snapshot.history] == [(3, COMPLETED), (2, FAILED), (1, FAILED)]
    assert snapshot.find(2).failure_message == "old"
    assert snapshot.latest["failed"].id == 2


def test_a_snapshot_does_not_change():
    """R10.2, testModifySnapshot and CheckpointStatsCountsTest#testCreateSnapshot."""
    tracker = StatsTracker(3)
    tracker.pending(checkpoint := stats(1))
    snapshot = tracker.snapshot()
    checkpoint.report(task(0), SubtaskStats(5, SubtaskMetrics(state_size=7)))
    tracker.completed(checkpoint)
    assert snapshot.history[0].status is IN_PROGRESS
    assert snapshot.history[0].totals.state_size == 0
    assert (snapshot.counts.in_progress, snapshot.counts.completed) == (1, 0)


def test_latest_of_each_kind():
    tracker = StatsTracker(10)
    for checkpoint in (late := stats(3), savepoint := stats(2, savepoint=True), early := stats(1)):
        tracker.pending(checkpoint)
    for checkpoint in (late, savepoint, early):
        tracker.completed(checkpoint)
    snapshot = tracker.snapshot()
    assert {kind: one.id for kind, one in snapshot.latest.items()} == {"completed": 3, "savepoint": 2}


# ---- counts --------------------------------------------------------------------------------------------------------


def test_counts():
    """R10.2, CheckpointStatsCountsTest#testCounts."""
    tracker = StatsTracker(10)

    def counts():
        c = tracker.snapshot().counts
        return c.restored, c.total, c.in_progress, c.completed, c.failed

    assert counts() == (0, 0, 0, 0, 0)
    tracker.restored(RestoredStats(1, 0, False, "path", 5))
    assert counts() == (1, 0, 0, 0, 0)
    tracker.pending(first := stats(1))
    assert counts() == (1, 1, 1, 0, 0)
    tracker.completed(first)
    assert counts() == (1, 1, 0, 1, 0)
    tracker.pending(second := stats(2))
    tracker.failed(second, 0, "CHECKPOINT_DECLINED", "")
    assert counts() == (1, 2, 0, 1, 1)
    tracker.failed_before_start()
    assert counts() == (1, 3, 0, 1, 2)


# ---- figures -------------------------------------------------------------------------------------------------------


def test_summary():
    """R10.2, CompletedCheckpointStatsSummaryTest#testSimpleUpdates: whole numbers beyond 32 bits."""
    summary, base = Summary(), 2**31 + 17_786
    for i in range(10):
        summary.add(base + i)
    figures = summary.statistics()
    assert (figures.min, figures.max, figures.avg) == (base, base + 9, base + 4)


@pytest.mark.parametrize(
    ("values", "p50", "p90", "p99"),
    [([7], 7, 7, 7), ([1, 2], 1.5, 2, 2), (range(1, 11), 5.5, 9.9, 10), (range(1, 1000), 500, 900, 990)],
)
def test_percentiles(values, p50, p90, p99):
    """R10.1, #testQuantiles: by interpolation at rank p (n + 1)."""
    figures = SummaryStatistics.of(values)
    assert (figures.p50, figures.p90, figures.p99) == pytest.approx((p50, p90, p99))
    assert figures.p50 <= figures.p90 <= figures.p95 <= figures.p99 <= figures.p999 <= figures.max


def test_no_values():
    assert SummaryStatistics.of([]) == SummaryStatistics()
    assert SummaryStatistics.of([-1]) == SummaryStatistics()


def test_a_task_reports_once():
    """TaskStateStatsTest#testHandInSubtasks, PendingCheckpointStatsTest#testReportSubtaskStats."""
    checkpoint = stats(1, trigger_timestamp=100, parallelism=3)
    metrics = SubtaskMetrics(checkpointed_size=2, state_size=3, processed_bytes=4, persisted_bytes=5, objects_written=6)
    assert checkpoint.totals.end_to_end_duration == -1
    assert checkpoint.report(task(0, 0), SubtaskStats(110, metrics))
    assert not checkpoint.report(task(0, 0), SubtaskStats(120, metrics))
    assert not checkpoint.report(task(9, 0), SubtaskStats(120, metrics))
    assert checkpoint.report(task(0, 2), SubtaskStats(105, SubtaskMetrics(unaligned=True, state_size=-1)))
    assert (checkpoint.totals.num_subtasks, checkpoint.totals.num_acknowledged_subtasks) == (3, 2)
    assert (checkpoint.totals.checkpointed_size, checkpoint.totals.state_size) == (2, 3)
    assert (checkpoint.totals.processed_data, checkpoint.totals.persisted_data, checkpoint.totals.objects_written) == (
        4,
        5,
        6,
    )
    assert (checkpoint.totals.latest_ack_timestamp, checkpoint.totals.end_to_end_duration) == (110, 10)
    assert checkpoint.totals.unaligned
    summary = checkpoint.vertices[0].summary(100)
    assert (summary["end_to_end_duration"].min, summary["end_to_end_duration"].max) == (5, 10)
    assert summary["state_size"].min == summary["state_size"].max == 3  # -1 is not known


def test_durations_are_never_negative():
    """R10.2: clocks may disagree."""
    checkpoint = stats(1, trigger_timestamp=100)
    checkpoint.report(task(0), SubtaskStats(90, SubtaskMetrics()))
    assert checkpoint.totals.end_to_end_duration == 0


# ---- as the coordinator fills them ---------------------------------------------------------------------------------


def test_a_completed_checkpoint_in_numbers():
    """R10.2: sizes, times and objects of each subtask, and our own fields."""
    job = Job(chain(1, 2), incremental=True)
    job.trigger()
    job.advance(30)
    job.ack(1, task(0), checkpointed_size=10, state_size=100, objects_written=2)
    job.advance(20)
    job.ack(1, task(1, 0), task(1, 1), checkpointed_size=1, state_size=1, sync_ms=3, alignment_ms=4, start_delay_ms=5)
    snapshot = job.coordinator.stats.snapshot()
    (checkpoint,) = snapshot.history
    assert checkpoint == snapshot.latest["completed"]
    assert checkpoint.status is COMPLETED
    assert (checkpoint.id, checkpoint.commit_number, checkpoint.trigger) == (1, 1, "user")
    assert (checkpoint.checkpoint_type, checkpoint.is_savepoint, checkpoint.full) == ("CHECKPOINT", False, False)
    assert (
        checkpoint.totals.checkpointed_size,
        checkpoint.totals.state_size,
        checkpoint.totals.end_to_end_duration,
    ) == (12, 102, 50)
    assert (checkpoint.metadata_size, checkpoint.totals.objects_written) == (100, 3)
    assert checkpoint.external_path == "dir/chk-1/_metadata"
    assert checkpoint.vertices[1].subtasks[1].metrics.alignment_ms == 4
    assert snapshot.summary["state_size"].max == 102
    assert snapshot.summary["end_to_end_duration"].p99 == 50


def test_savepoints_and_discarded_checkpoints():
    job = Job()
    job.complete()
    job.savepoint(format=SavepointFormat.NATIVE)
    job.ack(2)
    job.complete()
    snapshot = job.coordinator.stats.snapshot()
    assert snapshot.find(1).discarded
    savepoint = snapshot.latest["savepoint"]
    assert (savepoint.id, savepoint.checkpoint_type, savepoint.savepoint_format) == (2, "SAVEPOINT", "NATIVE")
    assert savepoint.full
    assert not savepoint.discarded
    assert snapshot.counts.completed == 3


def test_failed_checkpoints_keep_what_was_reported():
    """R10.2, CheckpointCoordinatorTest#testAbortedCheckpointStatsUpdatedAfterFailure: best effort, also what is late."""
    job = Job(tolerable_failures=9)
    job.trigger()
    job.ack(1, task(0), state_size=5)
    job.decline(1, task(1), message="no disk")
    job.ack(1, task(1), state_size=6)
    checkpoint = job.coordinator.stats.snapshot().latest["failed"]
    assert (checkpoint.failure_reason, checkpoint.failure_message) == ("CHECKPOINT_DECLINED", "task v1/0: no disk")
    assert checkpoint.totals.state_size == 11
    assert checkpoint.totals.num_acknowledged_subtasks == 1


def test_finished_tasks_count_as_acknowledged():
    job = Job(chain(2, 1))
    job.finish(task(0, 0))
    job.trigger()
    (checkpoint,) = job.coordinator.stats.snapshot().history
    assert (checkpoint.totals.num_subtasks, checkpoint.totals.num_acknowledged_subtasks) == (3, 1)


def test_failures_before_the_start_are_counted():
    job = Job()
    job.status(task(1), TaskStatus.STARTING)
    job.trigger()
    counts = job.coordinator.stats.snapshot().counts
    assert (counts.total, counts.failed, counts.in_progress) == (1, 1, 0)


def test_gauges():
    """R10.3."""
    job = Job()
    gauges = job.coordinator.stats.gauges()
    assert len(gauges) == 14
    assert gauges["lastCheckpointExternalPath"] == "n/a"
    assert {name for name, value in gauges.items() if value == -1} == {
        "lastCheckpointDuration",
        "lastCheckpointSize",
        "lastCheckpointFullSize",
        "lastCheckpointMetadataSize",
        "lastCheckpointProcessedData",
        "lastCheckpointPersistedData",
        "lastCompletedCheckpointId",
        "lastCheckpointCompletedTimestamp",
        "lastCheckpointRestoreTimestamp",
    }
    job.complete(checkpointed_size=1, state_size=2, processed_bytes=3, persisted_bytes=4)
    job.trigger()
    gauges = job.coordinator.stats.gauges()
    assert gauges["lastCheckpointSize"] == 2
    assert gauges["lastCheckpointFullSize"] == 4
    assert (gauges["totalNumberOfCheckpoints"], gauges["numberOfInProgressCheckpoints"]) == (2, 1)
    assert gauges["lastCheckpointCompletedTimestamp"] == job.now
    job.fail()
    job.start(restored=1)
    assert job.coordinator.stats.gauges()["lastCheckpointRestoreTimestamp"] == job.now
    assert job.coordinator.stats.snapshot().restored == RestoredStats(1, job.now, False, "dir/chk-1/_metadata", 4)


def test_the_totals_of_a_completed_checkpoint_are_computed_once():
    """A history of hundreds of checkpoints with thousands of subtasks is polled."""
    tracker = StatsTracker(10)
    stats = CheckpointStats(1, 1000, "CHECKPOINT", False, None, "periodic", {0: VertexStats(1)})
    tracker.pending(stats)
    stats.report(TaskId(0, 0), SubtaskStats(1100, SubtaskMetrics(5)))
    tracker.completed(stats)
    first, second = tracker.snapshot().history[0], tracker.snapshot().history[0]
    assert first.totals is second.totals
    assert (first.totals.checkpointed_size, first.totals.end_to_end_duration) == (5, 100)


def test_a_snapshot_does_not_change_when_a_checkpoint_is_discarded():
    tracker = StatsTracker(10)
    for number in (1, 2):
        stats = CheckpointStats(number, 1000, "CHECKPOINT", False, None, "periodic", {0: VertexStats(1)})
        tracker.pending(stats)
        tracker.completed(stats)
    before = tracker.snapshot()
    tracker.discarded(2)
    after = tracker.snapshot()
    assert [one.discarded for one in (*before.history, before.latest["completed"])] == [False] * 3
    assert [one.discarded for one in (*after.history, after.latest["completed"])] == [True, False, True]
    assert after.history[1] is before.history[1]  # what has not changed is not copied, so that REST encodes it once
    assert after.history[0] is after.latest["completed"]
    assert tracker.gauges()["lastCompletedCheckpointId"] == 2
    tracker.discarded(2)
    assert tracker.snapshot().history[0] is after.history[0]
    tracker.discarded(9)


def test_a_snapshot_of_the_newest_checkpoints_only():
    tracker = StatsTracker(10)
    for number in range(1, 6):
        tracker.pending(CheckpointStats(number, 1000, "CHECKPOINT", False, None, "periodic", {}))
    assert [one.id for one in tracker.snapshot(2).history] == [5, 4]
    assert len(tracker.snapshot().history) == 5


def test_the_age_of_a_chain_is_that_of_its_oldest_checkpoint():
    tracker = StatsTracker(10)
    tracker.pending(CheckpointStats(1, 1000, "CHECKPOINT", False, None, "periodic", {}, chain_started=400))
    assert tracker.chain_started(1) == 400
    assert tracker.chain_started(2) is None
