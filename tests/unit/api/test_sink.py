"""Sinks with writer and committer: SPEC R9.3, as SinkV2CommitterOperatorTest has it."""

import pytest

from headrace import StreamExecutionEnvironment
from headrace.api.sink import Committer, Prepared, Sink, SinkWriter
from headrace.checkpoint.commits import Commits
from headrace.control.operator_state import operator_state_of, prepared_in
from headrace.errors import HeadraceError, InvalidArgument
from headrace.state.operator import OperatorStateBackend, rescale
from headrace.storage.reader import SnapshotReader
from headrace.testing.storage_faults import MemoryStore
from headrace.worker.failures import OperatorFailure, describe
from rig import plan_of, restore_of, snapshot_of, subtask

LOG = []


class Notes(Sink):
    """Notes what happens; `fails` commits ask for another try, `drops` are given up."""

    def __init__(self, fails=0, drops=(), batches=False):
        self.fails, self.drops, self.batches = fails, drops, batches

    def writer(self, context, restored):
        LOG.append(("writer", context.subtask, restored))
        return NoteWriter(self.batches)

    def committer(self, context):
        return NoteCommitter(self)


class NoteWriter(SinkWriter):
    def __init__(self, batches):
        self.rows, self.batches = [], batches

    def write(self, value):
        if value == 13:
            raise ValueError("thirteen")
        self.rows.append(value)

    def write_batch(self, batch):
        self.rows += batch.column(0).to_pylist()

    def prepare(self, end_of_input):
        rows, self.rows = self.rows, []
        LOG.append(("prepare", rows, end_of_input))
        return [tuple(rows)] if rows else []

    def snapshot(self):
        return ["kept"]

    def close(self):
        LOG.append(("close", list(self.rows)))


class NoteCommitter(Committer):
    def __init__(self, sink):
        self.sink, self.left = sink, sink.fails

    def commit(self, requests):
        for request in requests:
            if request.committable in self.sink.drops:
                request.drop("no such table")
            elif self.left:
                self.left -= 1
                request.retry_later()
            else:
                LOG.append(("commit", request.committable, request.commit_number, request.tries))


@pytest.fixture(autouse=True)
def fresh():
    LOG.clear()


def committed():
    return [entry[1:] for entry in LOG if entry[0] == "commit"]


def task_of(sink, last=6, **conf):
    plan = plan_of(lambda env: env.from_sequence(1, last).sink_to(sink), **conf)
    task = subtask(plan, "Sequence")
    task.open()
    return task


def barrier(task, checkpoint_id):
    snapshot_of(task, checkpoint_id)


def test_committed_when_the_checkpoint_is_complete():
    task = task_of(Notes())
    task.step(2)
    barrier(task, 1)
    task.step(2)
    barrier(task, 2)
    assert committed() == []
    task.notify_complete(1, Commits().add(1, 7))
    assert committed() == [((1, 2), 7, 0)]
    task.notify_complete(1, Commits().add(1, 7))
    assert len(committed()) == 1


class OnDriver(Notes):
    commits_on_driver = True


def test_what_the_driver_has_not_committed_yet_stays_in_later_checkpoints():
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(1000)
    env.from_sequence(1, 6).sink_to(OnDriver())
    task = subtask(env._job_plan(), "Sequence")
    task.open()
    for number in (1, 2):
        task.step(2)
        barrier(task, number)

    def held_by(checkpoint_id):
        state = operator_state_of(SnapshotReader(MemoryStore()), snapshot_of(task, checkpoint_id)[sink.id])
        return prepared_in(OperatorStateBackend("sink", rescale([state], 1)[0]))

    sink = task._chain.operators[-1].operator
    assert held_by(3) == [Prepared(1, ((1, 2),)), Prepared(2, ((3, 4),))]
    task.epoch_committed(sink.id, 1)
    assert held_by(4) == [Prepared(2, ((3, 4),))]
    task.epoch_committed(sink.id, 3)
    assert held_by(5) == []


def test_what_a_checkpoint_that_failed_has_prepared_goes_with_the_next():
    task = task_of(Notes())
    task.step(2)
    barrier(task, 1)
    task.notify_aborted(1)
    task.step(2)
    barrier(task, 2)
    task.notify_complete(2, Commits().add(2, 9))
    assert committed() == [((1, 2), 9, 0), ((3, 4), 9, 0)]


def test_a_notification_that_was_missed_does_not_change_the_number():
    task = task_of(Notes())
    task.step(2)
    barrier(task, 1)
    task.step(2)
    barrier(task, 2)
    task.notify_complete(2, Commits().add(1, 7).add(2, 9))
    assert committed() == [((1, 2), 7, 0), ((3, 4), 9, 0)]


def test_a_restore_commits_again_under_the_same_numbers_before_it_writes():
    plan = plan_of(lambda env: env.from_sequence(1, 6).sink_to(Notes()))
    task = subtask(plan, "Sequence")
    task.open()
    task.step(2)
    barrier(task, 1)
    task.step(2)
    restore = restore_of(2, [snapshot_of(task, 2)], commits=Commits().add(1, 7).add(2, 9))
    LOG.clear()
    again = subtask(plan, "Sequence", attempt=1, restore=restore)
    again.restore()
    assert LOG == []  # until all subtasks have restored their state: SPEC R5.11
    again.open()
    assert LOG == [("commit", (1, 2), 7, 0), ("commit", (3, 4), 9, 0), ("writer", 0, ["kept"])]


def test_it_is_tried_again():  # SPEC R9.3 testNumberOfRetries
    task = task_of(Notes(fails=1), **{"sink.committer.retries": 1})
    task.step(2)
    barrier(task, 1)
    task.notify_complete(1, Commits().add(1, 7))
    assert committed() == [((1, 2), 7, 1)]


def test_but_not_for_ever():  # SPEC R9.3 testNumberOfRetries
    task = task_of(Notes(fails=1), **{"sink.committer.retries": 0})
    task.step(2)
    barrier(task, 1)
    with pytest.raises(OperatorFailure) as caught:
        task.notify_complete(1, Commits().add(1, 7))
    message = describe(caught.value, "a subtask").message
    assert "(1, 2) could not be committed in 1 tries" in message
    assert "sink.committer.retries" in message


def test_what_can_never_be_committed_is_dropped_loudly(caplog):
    task = task_of(Notes(drops=((1, 2),)))
    task.step(2)
    barrier(task, 1)
    task.notify_complete(1, Commits().add(1, 7))
    assert committed() == []
    assert "sink 'Sink': (1, 2) was DROPPED: no such table" in caplog.text


def test_the_last_records_are_committed_at_once_without_checkpoints():  # SPEC R9.3 testHandleEndInput
    task = task_of(Notes())
    while not task.data_finished:
        task.step(10)
    assert ("prepare", [1, 2, 3, 4, 5, 6], True) in LOG
    assert committed() == [((1, 2, 3, 4, 5, 6), None, 0)]


def test_and_with_the_final_checkpoint_otherwise():  # SPEC R9.3 testHandleEndInputInStreamingMode
    from dataclasses import replace

    plan = plan_of(lambda env: env.from_sequence(1, 6).sink_to(Notes()))
    task = subtask(plan, "Sequence", settings=replace(plan.settings, final_checkpoint=True))
    task.open()
    while not task.data_finished:
        task.step(10)
    assert committed() == []
    barrier(task, 3)
    task.notify_complete(3, Commits().add(3, 4))
    assert committed() == [((1, 2, 3, 4, 5, 6), 4, 0)]
    assert task.status.name == "FINISHED"


def test_batches():
    task = task_of(Notes(batches=True), last=20)
    task.step(6)
    barrier(task, 1)
    task.notify_complete(1, Commits().add(1, 2))
    assert committed() == [((1, 2, 3, 4, 5, 6), 2, 0)]


def test_a_record_that_cannot_be_written_is_named():
    task = task_of(Notes(), last=20)
    task.step(5)
    task.step(5)
    with pytest.raises(OperatorFailure) as caught:
        task.step(5)
    assert "thirteen" in describe(caught.value, "a subtask").message
    task.close()
    assert LOG[-1] == ("close", list(range(1, 13)))


def test_only_a_sink():
    with pytest.raises((InvalidArgument, HeadraceError), match="needs a headrace Sink"):
        plan_of(lambda env: env.from_sequence(1, 6).sink_to(print))


def prepared_by(subtasks, plan):
    """What subtasks keep that have prepared for checkpoints 1 and 2, which are not complete."""
    states = []
    for index in range(subtasks):
        task = subtask(plan, "Sequence", index)
        task.open()
        task.step(2)
        barrier(task, 1)
        task.step(2)
        states.append(snapshot_of(task, 2))
    LOG.clear()
    return states


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2), (2, 3)])
def test_a_rescale_keeps_together_and_in_order_what_a_subtask_prepared(before, after):  # SPEC R9.3
    def program(parallelism):
        return plan_of(lambda env: env.set_parallelism(parallelism).from_sequence(1, 60).sink_to(Notes()))

    restore = restore_of(2, prepared_by(before, program(before)), after, Commits().add(1, 7).add(2, 9))
    plan, seen = program(after), []
    for index in range(after):
        task = subtask(plan, "Sequence", index, attempt=1, restore=restore)
        task.open()
        numbers = {}
        for records, number, _ in committed():
            numbers.setdefault(records[0] // (60 // before), []).append(number)
        assert all(of_one == [7, 9] for of_one in numbers.values())  # all of a subtask's, the oldest first
        seen += committed()
        LOG.clear()
    assert len(seen) == 2 * before
