"""SPEC R5.1, R5.4: when checkpoints are triggered; Flink's CheckpointCoordinatorTriggeringTest and its neighbours."""

from random import Random

import pytest
from coordinator_harness import LONG, Job, chain, task

from headrace.checkpoint import events as ev
from headrace.checkpoint.plan import TaskStatus
from headrace.ids import OperatorId

SOURCE = OperatorId("op0")


class Latest(Random):
    """The first delay is always the longest."""

    def randint(self, a, b):
        return b


class Earliest(Random):
    def randint(self, a, b):
        return a


def trigger_times(job):
    """Trigger times relative to the start of the test."""
    return [i.barrier.timestamp - 1000 for i in job.all(ev.TriggerTasks)]


# ---- delays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_triggering_delay(seed):
    """R5.1, testTriggeringDelay: first in [min pause, interval], after a restart the pause."""
    job = Job(interval_ms=10_000, min_pause_ms=100, rng=Random(seed))
    assert 100 <= job.alarm - job.now <= 10_000
    job.fail()
    job.start()
    assert job.alarm - job.now == 100


def test_periodic_triggering():
    """R5.1, testPeriodicTriggering: start, stop, start again."""
    job = Job(interval_ms=10, max_concurrent=99, rng=Latest())
    job.advance(50)
    assert trigger_times(job) == [10, 20, 30, 40, 50]
    job.fail()
    assert job.pending == []
    job.advance(100)
    assert len(job.triggered()) == 5
    job.start()
    job.advance(40)
    assert trigger_times(job)[5:] == [150, 160, 170, 180, 190]


def test_times_are_fixed():
    """R5.4: a late alarm does not move the next one, and the delay is never negative."""
    job = Job(interval_ms=100, max_concurrent=99, rng=Latest())
    job.now += 130
    job.send(ev.TimePassed())
    assert trigger_times(job) == [130]
    assert job.alarm - 1000 == 200
    job.now += 220  # 350: two are due
    job.send(ev.TimePassed())
    assert len(job.triggered()) == 3
    assert job.alarm - 1000 == 400


def test_an_alarm_that_comes_early_is_set_again():
    job = Job(interval_ms=100, rng=Latest())
    job.now += 99
    assert [i.time for i in job.send(ev.TimePassed())] == [1100]


def test_time_never_goes_back():
    job = Job(interval_ms=100, rng=Latest())
    job.advance(100)
    job.now -= 50
    job.ack(1)
    assert job.coordinator.stats.snapshot().history[0].totals.end_to_end_duration == 0


def test_not_before_all_tasks_run():
    """R5.1, ExecutionTrackingCheckpointCoordinatorDeActivatorTest#testBasicLifecycle, testPeriodicSchedulingWithInactiveTasks."""
    job = Job(start=False, interval_ms=10)
    job.send(ev.AttemptStarted(1, job.topology))
    job.send(ev.JobStatusChanged(running=True))
    job.attempt = 1
    job.status(task(0), TaskStatus.RUNNING)
    job.advance(100)
    assert job.triggered() == []
    job.status(task(1), TaskStatus.RUNNING)
    job.advance(100)
    assert job.triggered() == [1]


def test_a_task_failure_stops_the_schedule_and_a_finished_task_does_not():
    """R5.1, ...DeActivatorTest#testTaskFailure and #testJobFinish."""
    job = Job(interval_ms=10, max_concurrent=99, rng=Latest())
    job.finish(task(0))
    job.advance(10)
    assert job.triggered() == [1]
    job.status(task(1), TaskStatus.FAILED)
    assert job.pending == []
    job.advance(100)
    assert job.triggered() == [1]


def test_job_restart():
    """R5.1, ...DeActivatorTest#testJobRestart."""
    job = Job(interval_ms=10, rng=Latest())
    job.fail()
    job.send(ev.AttemptStarted(2, job.topology))
    job.send(ev.JobStatusChanged(running=True))
    job.advance(100)
    assert job.triggered() == []
    job.attempt = 2
    for t in job.tasks:
        job.status(t, TaskStatus.RUNNING)
    assert job.triggered() == [1]


def test_no_interval_no_periodic_checkpoints():
    job = Job(interval_ms=None)
    assert job.advance(LONG) == []
    assert job.complete() == 1


# ---- pause ---------------------------------------------------------------------------------------------------------


def test_min_time_between_checkpoints_interval():
    """R5.4, testMinTimeBetweenCheckpointsInterval: interval 12, pause 50 -> a gap of at least 50."""
    job = Job(interval_ms=12, min_pause_ms=50, rng=Earliest())
    completed = []
    for i in range(1, 6):
        while job.pending != [i]:
            job.advance(1)
        job.advance(7)
        job.ack(i)
        completed.append(job.now - 1000)
    gaps = [start - end for start, end in zip(trigger_times(job)[1:], completed, strict=False)]
    assert gaps == [50, 50, 50, 50]


def test_min_checkpoint_pause():
    """R5.4, testMinCheckpointPause: a request that waited for its slot still honours the pause."""
    job = Job(interval_ms=1000, min_pause_ms=1000, rng=Earliest())
    job.advance(2000)  # 1 is under way, another waits
    assert (job.pending, job.queued) == ([1], 1)
    job.ack(1)
    assert job.pending == []
    job.advance(999)
    assert job.pending == []
    job.advance(1)
    assert job.pending == [2]


def test_the_pause_counts_from_completions_not_from_failures():
    """R5.4; savepoints are completions too."""
    job = Job(interval_ms=100, min_pause_ms=100, tolerable_failures=9, rng=Earliest())
    job.advance(190)
    job.decline(1)
    job.advance(10)
    assert job.pending == [2]
    job.ack(2)
    job.advance(50)
    job.savepoint()
    job.ack(3)
    job.advance(99)
    assert job.pending == []
    job.advance(1)
    assert job.pending == [4]


def test_min_delay_between_savepoints():
    """R5.3, testMinDelayBetweenSavepoints: no pause for savepoints, nor for users."""
    job = Job(interval_ms=LONG, min_pause_ms=LONG)
    job.savepoint()
    job.savepoint()
    assert job.pending == [1, 2]
    job.ack(1)
    job.ack(2)
    assert job.complete() == 3


# ---- concurrency ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_concurrent_attempts(limit):
    """R5.4, testMaxConcurrentAttempts{1,2,5}."""
    job = Job(interval_ms=10, max_concurrent=limit, rng=Latest())
    job.advance(10 * (limit + 3))
    assert job.pending == list(range(1, limit + 1))
    assert job.queued == 3
    job.ack(1)
    assert job.pending == list(range(2, limit + 2))


def test_max_concurrent_attempts_with_subsumption():
    """testMaxConcurrentAttemptsWithSubsumption: 2 completes, 1 is subsumed, two new ones start."""
    job = Job(chain(1), interval_ms=10, max_concurrent=2, rng=Latest())
    job.advance(40)
    assert job.pending == [1, 2]
    job.ack(2)
    assert job.pending == [3, 4]


def test_one_at_a_time_is_prepared():
    """testTriggerCheckpointBeforePreviousOneCompleted: the next is prepared when the tasks of the one before are told."""
    job = Job(hold={ev.PrepareLocation}, max_concurrent=9)
    for _ in range(3):
        job.trigger()
    assert (job.pending, job.queued) == ([1], 2)
    job.send(ev.LocationReady(1, "x"))
    assert (job.pending, job.queued) == ([1, 2], 1)


def test_a_failed_trigger_lets_the_next_request_in():
    """testTriggerCheckpointRequestQueuedWithFailure, discardingTriggeringCheckpointWillExecuteNextCheckpointRequest."""
    job = Job(hold={ev.PrepareLocation}, max_concurrent=9, tolerable_failures=9)
    first, second, third = (job.trigger() for _ in range(3))
    job.send(ev.StepFailed(1, "x"))
    assert job.pending == [2]
    job.decline(2)
    assert job.pending == [3]
    assert (job.reason(first), job.reason(second), job.result(third)) == ("IO_EXCEPTION", "CHECKPOINT_DECLINED", None)


def test_requests_that_cannot_begin_do_not_pile_up():
    """A thousand requests behind one that fails are all answered, without deep recursion."""
    job = Job()
    requests = [job.trigger() for _ in range(1001)]
    extra = job.trigger()
    assert job.reason(extra) == "TOO_MANY_CHECKPOINT_REQUESTS"
    job.status(task(1), TaskStatus.STARTING)
    assert all(job.reason(request) for request in requests)


def test_too_many_requests_of_the_schedule():
    """R5.3: the queue holds a thousand, periodic ones fall out."""
    job = Job(interval_ms=10, rng=Latest())
    job.advance(10 * 1005)
    assert job.queued == 1000
    request = job.savepoint()
    assert job.result(request) is None


def test_deleting_old_files_holds_new_checkpoints_back():
    """R5.3: while more old checkpoints than may run at once are being deleted."""
    job = Job(hold={ev.DiscardCheckpoint})
    job.complete()
    job.complete()
    job.complete()
    request = job.trigger()  # 1 and 2 are being deleted
    assert job.pending == []
    job.send(ev.Discarded(1))
    assert job.pending == [4]
    job.ack(4)
    assert job.result(request)


def test_a_consumer_that_lags_behind_holds_new_checkpoints_back():
    """As `foreach_epoch` does when its function is slow."""
    job = Job()
    job.send(ev.HoldChanged(held=True))
    job.trigger()
    job.savepoint()
    assert (job.pending, job.queued) == ([], 2)
    job.send(ev.HoldChanged(held=False))
    assert (job.pending, job.queued) == ([1], 1)


# ---- backlog -------------------------------------------------------------------------------------------------------


def test_interval_during_backlog():
    """R5.4: the longer interval applies from the next trigger on, the shorter one at once."""
    job = Job(interval_ms=100, interval_during_backlog_ms=1000, max_concurrent=99, rng=Latest())
    job.send(ev.BacklogChanged(SOURCE, backlog=True))
    job.advance(2000)
    assert trigger_times(job) == [100, 1100]
    job.send(ev.BacklogChanged(SOURCE, backlog=False))
    job.advance(250)
    assert trigger_times(job) == [100, 1100, 2100, 2200]


def test_no_checkpoints_during_backlog():
    """R5.4: 0 = none; two sources, the last to catch up counts."""
    job = Job(interval_ms=100, interval_during_backlog_ms=0, max_concurrent=99, rng=Latest())
    for operator in ("a", "b"):
        job.send(ev.BacklogChanged(OperatorId(operator), backlog=True))
    job.advance(10_000)
    assert trigger_times(job) == [100]
    job.send(ev.BacklogChanged(OperatorId("a"), backlog=False))
    job.advance(10_000)
    assert trigger_times(job) == [100]
    job.send(ev.BacklogChanged(OperatorId("b"), backlog=False))
    job.advance(200)
    assert trigger_times(job) == [100, 20_100, 20_200]


def test_the_end_of_its_data_ends_a_backlog():
    job = Job(interval_ms=100, interval_during_backlog_ms=0, max_concurrent=99, rng=Latest())
    job.send(ev.BacklogChanged(SOURCE, backlog=True))
    job.advance(500)
    job.send(ev.EndOfData(job.attempt, task(0)))
    job.advance(100)
    assert trigger_times(job) == [100, 600]


def test_a_new_attempt_has_no_backlog():
    job = Job(interval_ms=100, interval_during_backlog_ms=0, max_concurrent=99, rng=Latest())
    job.send(ev.BacklogChanged(SOURCE, backlog=True))
    job.fail()
    job.start()
    job.advance(300)
    assert trigger_times(job) == [0, 100, 200, 300]


# ---- advice --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_takes_longer_than_the_interval():
    """Seed 000: choose a longer interval, or a pause. Said once, and again after one that was in time."""
    job = Job(interval_ms=100, max_concurrent=1, rng=Latest())
    job.advance(100)
    job.advance(150)
    job.ack(1)
    (warning,) = job.all(ev.Warn)
    assert "checkpoint 1 took 150 ms, longer than the interval of 100 ms" in warning.message
    assert "execution.checkpointing.min-pause" in warning.message
    job.advance(150)
    job.ack(2)
    assert len(job.all(ev.Warn)) == 1
    job.ack(job.pending[0])
    while len(job.all(ev.Warn)) < 2:
        job.advance(150)
        job.ack(job.pending[0])
    assert job.coordinator.stats.snapshot().counts.completed >= 4


def test_savepoints_are_not_blamed():
    job = Job(interval_ms=100, rng=Latest())
    job.savepoint()
    job.advance(99)
    job.now += 1000
    job.ack(1)
    assert job.all(ev.Warn) == []
