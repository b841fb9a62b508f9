"""SPEC R7.6 and R7.5 as the coordinator sees them: full checkpoints, asked for or not, and shared files."""

import pytest
from coordinator_harness import LONG, Job, chain, task

from headrace.checkpoint import events as ev
from headrace.checkpoint.full_policy import AutomaticFull, CompletedSize, reason_for_full
from headrace.checkpoint.settings import FullCheckpointPolicy
from headrace.checkpoint.types import SnapshotType
from headrace.ids import OperatorId

FULL, NORMAL = SnapshotType.FULL_CHECKPOINT, SnapshotType.CHECKPOINT
A, B = OperatorId("a"), OperatorId("b")


def types(job):
    return {i.barrier.id: i.barrier.options.type for i in job.all(ev.TriggerTasks)}


def policy_job(*, retry_ms=1000, cooldown_ms=10_000, **limits):
    options = {k: limits.pop(k) for k in list(limits) if k not in FullCheckpointPolicy.__slots__}
    policy = FullCheckpointPolicy(cooldown_ms=cooldown_ms, retry_ms=retry_ms, **limits)
    return Job(incremental=True, full=policy, tolerable_failures=99, **options)


# ---- by users ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (False, NORMAL),
        (True, FULL),
    ],
)
def test_kinds(kind, type_):
    """R7.6, testTriggeringCheckpointsWith{Incremental,Full}CheckpointType."""
    job = Job(incremental=True)
    job.complete(kind)
    assert types(job) == {1: type_}
    stats = job.coordinator.stats.snapshot().find(1)
    assert (stats.full, stats.full_reason) == ((True, "requested") if type_ is FULL else (False, None))
    assert stats.checkpoint_type == "CHECKPOINT"


def test_without_increments_every_checkpoint_is_full():
    job = Job(incremental=False)
    job.complete()
    assert job.coordinator.stats.snapshot().find(1).full


def test_chain_length():
    """The number of checkpoints a restore needs files of: a full one starts again, a savepoint is outside."""
    job = Job(incremental=True)
    for kind in (False,) * 3 + (True, False):
        job.complete(kind)
    job.savepoint()
    job.ack(6)
    job.complete()
    history = job.coordinator.stats.snapshot().history
    assert [one.chain_length for one in reversed(history)] == [1, 2, 3, 1, 2, 1, 3]


# ---- by policy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "figures", "reason"),
    [
        ({"max_size": 10}, CompletedSize(11, 1, {}), "full size of 11 bytes, limit 10"),
        ({"max_size": 10}, CompletedSize(10, 1, {}), None),
        ({"max_files": 3}, CompletedSize(0, 1, {A: 2, B: 2}), "4 shared files, limit 3"),
        ({"max_files": 4}, CompletedSize(0, 1, {A: 2, B: 2}), None),
        ({"max_files_per_operator": 2}, CompletedSize(0, 1, {A: 2, B: 3}), "3 shared files of operator b, limit 2"),
        ({"max_files_per_operator": 3}, CompletedSize(0, 1, {A: 3, B: 3}), None),
        ({"max_chain_length": 5}, CompletedSize(0, 6, {}), "chain of 6 checkpoints, limit 5"),
        ({}, CompletedSize(10**15, 10**6, {A: 10**6}), None),
    ],
)
def test_limits(limits, figures, reason):
    """R7.6 (b)."""
    assert reason_for_full(FullCheckpointPolicy(**limits), figures) == reason


def test_chain_is_cut_after_a_completed_checkpoint():
    """R7.6: requested at once, its reason in the statistics, and the cooldown holds."""
    job = policy_job(max_chain_length=2, cooldown_ms=10_000)
    for _ in range(3):
        job.complete()
    assert job.pending == [4]
    assert types(job)[4] is FULL
    job.ack(4)
    stats = job.coordinator.stats.snapshot().find(4)
    assert (stats.trigger, stats.full, stats.full_reason) == ("automatic", True, "chain of 3 checkpoints, limit 2")
    for _ in range(4):
        assert job.pending == []
        job.complete()
    job.advance(10_000)
    job.complete()
    assert job.pending == [10]
    assert types(job)[10] is FULL


def test_files_are_counted_over_tasks():
    job = policy_job(max_files_per_operator=5, topology=chain(1, 2))
    job.trigger()
    job.ack(1, task(0), shared={A: 4})
    job.ack(1, task(1, 0), shared={B: 3})
    job.ack(1, task(1, 1), shared={B: 3})
    assert job.pending == [2]
    job.ack(2)
    assert job.coordinator.stats.snapshot().find(2).full_reason == "6 shared files of operator b, limit 5"


def test_size():
    job = policy_job(max_size=100)
    job.complete(state_size=50)
    assert job.pending == []
    job.complete(state_size=51)
    assert types(job)[3] is FULL


def test_it_honours_the_pause():
    job = policy_job(max_chain_length=1, min_pause_ms=500)
    job.complete()
    job.complete()
    job.advance(499)
    assert job.pending == []
    job.advance(1)
    assert job.pending == [3]


def test_a_failed_one_is_tried_again_and_increments_go_on():
    """R7.6: retried after 1, 2, 4 ... seconds, never two at a time."""
    job = policy_job(max_chain_length=1, retry_ms=1000)
    job.complete()
    job.complete()
    times = []
    for _ in range(3):
        (full,) = job.pending
        assert types(job)[full] is FULL
        job.decline(full)
        failed_at = job.now
        increment = job.complete()
        assert types(job)[increment] is NORMAL
        while not job.pending:
            job.advance(100)
        times.append(job.now - failed_at)
    assert times == [1000, 2000, 4000]
    job.ack(job.pending[0])
    job.advance(9_000)
    assert job.pending == []


def test_one_at_a_time():
    """R7.6: while it is under way no other is asked for; the others go on."""
    job = policy_job(max_chain_length=1, max_concurrent=9, cooldown_ms=0)
    job.complete()
    job.complete()
    assert [i for i, t in types(job).items() if t is FULL] == [3]
    for _ in range(3):
        job.trigger()
    assert [i for i, t in types(job).items() if t is FULL] == [3]


def test_a_full_one_of_a_user_settles_it():
    job = policy_job(max_chain_length=1, max_concurrent=9, retry_ms=1000)
    job.complete()
    job.complete()
    job.decline(3)
    job.complete(full=True)
    job.advance(9_000)
    assert job.pending == []


def test_it_survives_a_restart_of_the_job():
    job = policy_job(max_chain_length=1, retry_ms=1000, interval_ms=None)
    job.complete()
    job.complete()
    assert job.pending == [3]
    job.fail()
    job.start(restored=2)
    job.advance(1000)
    assert types(job)[4] is FULL


def test_not_while_the_job_stops():
    job = policy_job(max_chain_length=1, retry_ms=10)
    job.complete()
    job.complete()
    job.stop()
    job.advance(1000)
    assert job.pending == [4]
    assert types(job)[4] is SnapshotType.SYNC_SAVEPOINT


def test_no_policy_without_increments():
    job = Job(incremental=False, full=FullCheckpointPolicy(max_size=1), next_full=lambda now: now + 10)
    job.complete(state_size=100)
    assert job.advance(1000) == []


# ---- by schedule ---------------------------------------------------------------------------------------------------


def hourly(now):
    return (now // 3_600_000 + 1) * 3_600_000


def test_schedule():
    """R7.6 (c): whatever the cooldown says."""
    job = Job(incremental=True, next_full=hourly, interval_ms=LONG, now=0)
    assert job.alarm == 3_600_000
    job.advance(3_600_000)
    assert types(job) == {1: FULL}
    job.ack(1)
    assert job.coordinator.stats.snapshot().find(1).full_reason == "schedule"
    job.advance(3_600_000)
    assert types(job) == {1: FULL, 2: FULL}
    job.advance(3_600_000 * 2)  # 2 expires after ten minutes and is tried again, and so on
    assert set(types(job).values()) == {FULL}
    assert len(types(job)) > 3


def test_a_time_missed_while_one_was_under_way_is_not_made_up_for():
    job = Job(incremental=True, next_full=hourly, now=0, timeout_ms=LONG)
    job.advance(3_600_000)
    job.advance(3_600_000)
    job.ack(1)
    assert job.pending == []
    job.advance(3_600_000)
    assert job.pending == [2]


def test_a_time_missed_while_the_job_was_down_is():
    job = Job(incremental=True, next_full=hourly, now=0, interval_ms=None)
    job.fail()
    job.advance(3_700_000)
    job.start()
    assert types(job) == {1: FULL}


def test_a_schedule_may_end():
    full = AutomaticFull(FullCheckpointPolicy(), lambda now: 10 if now < 10 else None)
    full.start(0)
    assert (full.due_at, full.take(10), full.due_at) == (10, "schedule", None)
    full.completed_full(20, requested_here=True)
    assert full.due_at is None


# ---- shared files --------------------------------------------------------------------------------------------------


def released(job):
    return [i.lowest for i in job.all(ev.ReleaseShared)]


def test_shared_state_is_not_deleted_on_abort():
    """R5.8, testSharedStateNotDiscaredOnAbort: private files go, shared ones when a later checkpoint is completed."""
    job = Job(tolerable_failures=9)
    job.trigger()
    job.ack(1, task(0))
    job.decline(1, task(1))
    assert job.ids(ev.DiscardCheckpoint) == [1]
    assert released(job) == []
    job.complete()
    assert released(job) == [2]  # last used by 1: may go


def test_registered_on_every_acknowledgement_but_not_for_savepoints():
    """R7.5: also when it is late."""
    job = Job(tolerable_failures=9)
    job.trigger()
    job.ack(1, task(0))
    job.decline(1, task(1))
    job.ack(1, task(1))
    assert [(i.checkpoint_id, i.task) for i in job.all(ev.RegisterShared)] == [(1, task(0)), (1, task(1))]
    job.savepoint()
    job.ack(2)
    assert len(job.all(ev.RegisterShared)) == 2


def test_released_up_to_the_lowest_retained():
    """R7.5, R7.6: with k retained, the old chain is free k - 1 checkpoints after the full one."""
    job = Job(num_retained=2, incremental=True)
    for kind in (False,) * 3 + (True, False):
        job.complete(kind)
    assert released(job) == [1, 2, 3, 4]


def test_files_that_a_pending_checkpoint_builds_on_are_not_released():
    """Ours: 3 builds on 1 and has not said which of its files it uses when 2 is completed."""
    job = Job(incremental=True, max_concurrent=9)
    job.complete()
    job.trigger()
    job.trigger()
    job.ack(2)
    assert job.kept == [2]
    assert released(job) == [1]
    job.ack(3)
    assert released(job) == [1, 3]
