"""Stop with a savepoint, seen from one subtask: suspend and drain. SPEC R8.3"""

import asyncio

import pytest

from headrace import KeyedProcessFunction
from headrace.checkpoint.types import AlignmentKind, Barrier, CheckpointOptions, SavepointFormat, SnapshotType
from headrace.job.status import Status
from headrace.records.frames import DRAIN, FrameKind
from rig import Services, event, frames_to, plan_of, subtask, taken, work_off

ENDED = []


class Ends(KeyedProcessFunction):
    """Says when its input has ended, and fires a timer."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(50)
        yield value

    def on_timer(self, timestamp, ctx):
        yield "timer"

    def finish(self):
        ENDED.append(True)


def program(env):
    env.from_sequence(1, 100).key_by(lambda x: x).process(Ends()).name("keyed").print()


def sync(checkpoint_id, drain=False):
    options = CheckpointOptions(
        SnapshotType.SYNC_SAVEPOINT, AlignmentKind.ALIGNED, format=SavepointFormat.NATIVE, drain=drain
    )
    return Barrier(checkpoint_id, 0, options)


@pytest.fixture
def source():
    task = subtask(plan_of(program), "Sequence")
    task.open()
    task.step(10)
    task.flush()
    taken(task)
    return task


def kinds(task):
    return [frame.kind for _, frames in taken(task) for frame in frames]


def test_a_suspended_source_reads_no_more_and_ends_when_the_savepoint_is_complete(source):
    source.trigger(sync(5))
    assert FrameKind.BARRIER in kinds(source)
    assert not source.has_work()
    assert source.next_deadline() is None
    (snapshot,) = source.take_snapshots()
    assert not snapshot.finished  # it is not at its end: the job goes on another time
    source.notify_complete(5)
    assert source.status is Status.FINISHED
    rows = taken(source)
    ends = [frame for _, frames in rows for frame in frames if frame.kind == FrameKind.END_OF_DATA]
    assert ends
    assert not any(frame.flags & DRAIN for frame in ends)
    assert FrameKind.END_OF_PARTITION in [frame.kind for _, frames in rows for frame in frames]


def test_if_the_savepoint_fails_the_source_goes_on(source):
    source.trigger(sync(5))
    kinds(source)
    source.notify_aborted(5)
    assert source.has_work()
    assert source.step(10) == 10


def test_another_completion_does_not_end_it(source):
    source.trigger(sync(5))
    source.notify_complete(4)
    assert source.status is Status.RUNNING
    assert not source.has_work()


def test_a_drained_source_ends_its_data_before_the_barrier(source):
    source.trigger(sync(5, drain=True))
    order = kinds(source)
    assert order.index(FrameKind.END_OF_DATA) < order.index(FrameKind.BARRIER)
    (snapshot,) = source.take_snapshots()
    assert snapshot.finished
    source.notify_complete(5)
    assert source.status is Status.FINISHED


@pytest.fixture
def keyed():
    ENDED.clear()
    services = Services()
    task = subtask(plan_of(program), "keyed", services=services)
    task.open()
    return task, services


def test_a_suspended_operator_has_no_last_words_and_fires_no_timer(keyed):
    from rig import data

    task, services = keyed
    task.receive(data(1))
    task.receive(event(FrameKind.BARRIER, body=sync(5).encode()))
    work_off(task)
    assert len(task.take_snapshots()) == 1
    services.time = 1000
    assert task.next_deadline() is None
    task.on_time(1000)
    task.receive(event(FrameKind.END_OF_DATA, flags=0))
    task.receive(event(FrameKind.END_OF_PARTITION))
    work_off(task)
    assert task.status is Status.RUNNING  # the end of its input came before the word that the savepoint is complete
    task.notify_complete(5)
    assert task.status is Status.FINISHED
    assert ENDED == []
    assert [frame for _, frame in frames_to(taken(task), 0) if frame == "timer"] == []


def test_no_timer_fires_behind_the_last_record(keyed):
    """The readers have been told that no record follows."""
    from dataclasses import replace

    from rig import data

    services, plan = Services(), plan_of(program)
    settings = replace(plan.settings, final_checkpoint=True)  # so that it lives on behind its last record
    task = subtask(plan, "keyed", services=services, settings=settings)
    task.open()
    task.receive(data(1))
    work_off(task)
    assert task.next_deadline() == 50
    task.receive(_drained())
    work_off(task)
    assert task.data_finished
    assert task.status is Status.RUNNING
    services.time = 1000
    assert task.next_deadline() is None
    before = list(services.sent)
    task.on_time(1000)
    assert services.sent == before


def _drained():
    from headrace.records.frames import pack

    return b"".join(pack(FrameKind.END_OF_DATA, 0, 0, flags=DRAIN))


# --- with asynchronous calls under way: SPEC R14.5 --------------------------------------------------------------------


async def later(value):
    await asyncio.sleep(0.05)
    return value


@pytest.fixture
def calling():
    """A source whose records wait for calls."""
    services = Services()
    plan = plan_of(lambda env: env.from_sequence(1, 100).map_async(later, 1000, capacity=10).rebalance().print())
    task = subtask(plan, "Sequence", services=services)
    task.open()
    task.step(5)
    task.flush()
    taken(task)
    return task, services


def test_a_drain_waits_for_calls(calling):
    task, services = calling
    task.trigger(sync(5, drain=True))
    assert task.take_snapshots() == []  # what the calls give goes before the barrier
    assert FrameKind.BARRIER not in kinds(task)
    assert not task.has_work()
    services.time = 50
    task.on_time(50)
    order = kinds(task)
    assert order.index(FrameKind.END_OF_DATA) < order.index(FrameKind.BARRIER)
    (snapshot,) = task.take_snapshots()
    assert snapshot.finished
    assert task.metrics().records_out == 5
    task.notify_complete(5)
    assert task.status is Status.FINISHED


def test_a_drain_that_is_aborted_leaves_no_barrier(calling):
    task, services = calling
    task.trigger(sync(5, drain=True))
    task.notify_aborted(5)
    services.time = 50
    task.on_time(50)
    order = kinds(task)
    assert FrameKind.END_OF_DATA in order
    assert FrameKind.BARRIER not in order
    assert task.take_snapshots() == []


def test_a_suspended_source_does_not_wait_for_calls(calling):
    task, services = calling
    task.trigger(sync(5))
    (snapshot,) = task.take_snapshots()
    assert not snapshot.finished
    services.time = 50
    task.on_time(50)
    assert task.metrics().records_out == 0  # they are in the savepoint
    task.notify_complete(5)
    assert task.status is Status.FINISHED


def test_if_the_savepoint_fails_calls_go_on(calling):
    task, services = calling
    task.trigger(sync(5))
    task.take_snapshots()
    task.notify_aborted(5)
    services.time = 50
    task.on_time(50)
    task.flush()
    assert task.metrics().records_out == 5
    assert task.has_work()


def test_a_drained_source_of_a_job_without_periodic_checkpoints_ends_after_the_savepoint(source):
    """It waits for no final checkpoint, and still nothing may come behind the end of its channels."""
    source.trigger(sync(5, drain=True))
    assert FrameKind.END_OF_PARTITION not in kinds(source)
    assert source.status is Status.RUNNING
    source.notify_complete(5)
    assert FrameKind.END_OF_PARTITION in kinds(source)
    assert source.status is Status.FINISHED


def test_a_drained_source_whose_savepoint_fails_ends_without_it(source):
    source.trigger(sync(5, drain=True))
    source.notify_aborted(5)
    assert kinds(source)[-2:] == [FrameKind.END_OF_PARTITION, FrameKind.END]
    assert source.status is Status.FINISHED
