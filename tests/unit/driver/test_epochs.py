"""Commits on the driver: in order, one at a time, none twice, none forgotten. SPEC R9.3"""

from collections import deque
from types import SimpleNamespace

import pytest

from headrace import StreamExecutionEnvironment
from headrace.api.sink import EpochCommitter, Prepared, Sink, SinkWriter
from headrace.checkpoint.commits import Commits
from headrace.driver.epochs import MAX_WAITING, Epochs, epoch_sinks
from headrace.driver.services import JobPort
from headrace.storage.objects import MissingObject


class Whole(Sink):
    commits_on_driver = True

    def __init__(self, log):
        self.log = log

    def writer(self, context, restored):
        return SinkWriter()

    def epoch_committer(self, context):
        return Log(self.log)


class Log(EpochCommitter):
    def __init__(self, log):
        self.log = log

    def commit(self, epoch):
        if self.log and self.log[-1] == "fail next":
            self.log[-1] = f"failed {epoch.commit_number}"
            raise OSError("no room")
        self.log.append((epoch.commit_number, list(epoch.committables)))

    def close(self):
        self.log.append("closed")


class Rig:
    """The service with its thread in our hands: `work` commits one epoch, `hear` runs what it reports."""

    def __init__(self):
        self.log, self.told, self.holds, self.failures = [], [], [], []
        self.jobs, self.calls = deque(), deque()
        env = StreamExecutionEnvironment.local().set_parallelism(2)
        env.from_sequence(1, 3).sink_to(Whole(self.log)).name("out")
        graph, _ = env._graph(None)
        ((_, self.operator),) = epoch_sinks(graph)
        pool = SimpleNamespace(
            submit=lambda work, *args: self.jobs.append(lambda: work(*args)), shutdown=lambda wait: None
        )
        self.epochs = Epochs(
            graph,
            pool,
            JobPort(
                lambda task, message: self.told.append((task.subtask, message.checkpoint_id)),
                self.calls.append,
                self.failures.append,
                self.failures.append,
            ),
            self.read,
            self.holds.append,
            lambda operator: None,
        )
        self.commits = Commits()
        self.held = {}  # checkpoint -> what it holds
        self.missing = set()
        self.epochs.start_attempt(None, None, self.commits)
        self.epochs.job_running()

    def read(self, manifest, operator_id):
        assert operator_id == self.operator.id
        if manifest in self.missing:
            raise MissingObject(f"chk-{manifest} is gone")
        return self.held[manifest]

    def complete(self, checkpoint, number, *prepared):
        self.held[checkpoint] = [Prepared(id, values) for id, values in prepared]
        self.commits = self.commits.add(checkpoint, number)
        self.epochs.completed(checkpoint, checkpoint, self.commits)

    def work(self):
        self.jobs.popleft()()

    def hear(self):
        while self.calls:
            self.calls.popleft()()

    def settle(self):
        while self.jobs:
            self.work()
        self.hear()


@pytest.fixture
def rig():
    return Rig()


def test_an_epoch_is_everything_that_was_prepared_for_a_checkpoint(rig):
    rig.complete(1, 5, (1, ("a", "b")), (1, ("c",)))
    assert not rig.epochs.idle
    rig.settle()
    assert rig.log == [(5, ["a", "b", "c"])]
    assert rig.told == [(0, 1), (1, 1)]  # both subtasks may forget
    assert rig.epochs.idle


def test_what_a_later_checkpoint_still_holds_is_not_committed_again(rig):
    rig.complete(1, 5, (1, ("a",)))
    rig.complete(2, 6, (1, ("a",)), (2, ("b",)))  # the subtasks have not heard of the commit yet
    rig.settle()
    assert rig.log == [(5, ["a"]), (6, ["b"])]


def test_what_was_prepared_for_a_checkpoint_that_failed_belongs_to_the_next(rig):
    rig.complete(3, 9, (2, ("a",)), (3, ("b",)))
    rig.settle()
    assert rig.log == [(9, ["a", "b"])]


def test_an_empty_epoch_is_none(rig):
    rig.complete(1, 2)
    rig.settle()
    assert rig.log == []
    assert rig.told == [(0, 1), (1, 1)]


def test_too_many_that_wait_hold_the_coordinator(rig):
    for checkpoint in range(1, MAX_WAITING + 1):
        rig.complete(checkpoint, checkpoint, (checkpoint, (checkpoint,)))
    assert rig.holds == []
    rig.complete(4, 4, (4, (4,)))
    assert rig.holds == [True]
    rig.work()
    rig.hear()
    assert rig.holds == [True, False]
    rig.settle()
    assert [number for number, _ in rig.log] == [1, 2, 3, 4]


def test_behind_one_that_failed_nothing_is_committed(rig):
    rig.log.append("fail next")
    rig.complete(1, 5, (1, ("a",)))
    rig.complete(2, 6, (1, ("a",)), (2, ("b",)))
    rig.work()
    rig.work()  # before anybody has heard of the failure
    rig.hear()
    assert rig.log == ["failed 5"]
    assert rig.told == []
    (failure,) = rig.failures
    assert failure.startswith("sink 'out' (")
    assert failure.endswith("cannot commit: OSError: no room")
    rig.epochs.start_attempt(2, 2, rig.commits)  # restored from the newest checkpoint
    rig.epochs.job_running()
    rig.settle()
    assert rig.log == ["failed 5", (5, ["a"]), (6, ["b"])]


def test_what_could_not_be_committed_is_committed_first_with_the_next_checkpoint(rig):
    rig.log.append("fail next")
    rig.complete(1, 5, (1, ("a",)))
    rig.settle()
    rig.complete(2, 6, (1, ("a",)), (2, ("b",)))
    rig.settle()
    assert rig.log == ["failed 5", (5, ["a"]), (6, ["b"])]
    assert len(rig.failures) == 1


def test_a_restored_checkpoint_is_committed_again_only_if_this_driver_has_not(rig):
    rig.complete(1, 5, (1, ("a",)))
    rig.settle()
    rig.complete(2, 6, (2, ("b",)))
    rig.epochs._under_way = 0  # the job waits for what is under way; here it never ends
    rig.jobs.clear()
    rig.held[2] = [Prepared(1, ("a",)), Prepared(2, ("b",))]
    rig.epochs.start_attempt(2, 2, rig.commits)
    rig.settle()
    assert rig.log == [(5, ["a"])]  # while a subtask restores its state, the job may still step back
    rig.told.clear()
    rig.epochs.job_running()
    rig.settle()
    assert rig.log == [(5, ["a"]), (6, ["b"])]
    assert rig.told == [(0, 2), (1, 2)]  # the new subtasks hold both


def test_a_checkpoint_that_was_subsumed_meanwhile_is_in_the_next(rig):
    rig.complete(1, 5, (1, ("a",)))
    rig.complete(2, 6, (1, ("a",)), (2, ("b",)))
    rig.missing.add(1)
    rig.settle()
    assert rig.log == [(5, ["a"]), (6, ["b"])]
    assert rig.told == [(0, 2), (1, 2)]
    assert rig.failures == []


def test_but_the_newest_must_be_there(rig):
    rig.complete(1, 5, (1, ("a",)))
    rig.missing.add(1)
    rig.settle()
    assert rig.log == []
    assert "cannot commit: MissingObject: [HR-3101] chk-1 is gone" in rig.failures[0]


def test_the_committer_is_closed(rig):
    rig.complete(1, 5, (1, ("a",)))
    rig.settle()
    rig.epochs.close()
    assert rig.log[-1] == "closed"


def test_checkpoints_wait_for_the_next_attempt_when_a_commit_has_failed(rig):
    rig.log.append("fail next")
    for number in range(1, MAX_WAITING + 3):
        rig.complete(number, number, (number, ("a",)))
    assert rig.holds == [True]
    rig.settle()  # the first one fails, and those behind it are not committed
    assert len(rig.failures) == 1
    assert rig.told == []
    assert rig.holds == [True]
    rig.epochs.start_attempt(None, None, rig.commits)
    assert rig.holds == [True, False]
