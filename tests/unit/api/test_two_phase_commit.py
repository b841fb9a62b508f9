"""Sinks written as transactions (SPEC R9.2), as TwoPhaseCommitSinkFunctionTest has it, run by the operator of all sinks."""

from dataclasses import replace

import pytest

from headrace.api.two_phase_commit import TwoPhaseCommitSinkFunction
from headrace.checkpoint.commits import Commits
from headrace.worker.failures import OperatorFailure
from rig import plan_of, restore_of, snapshot_of, subtask

FILES, VISIBLE = {}, []  # open and prepared transactions, and what readers see


class Content(TwoPhaseCommitSinkFunction):
    """Transactions are lists; committed ones are visible."""

    time = 0.0
    broken = False

    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.clock = lambda: Content.time

    def begin_transaction(self):
        name = f"tmp-{self.subtask}-{len(FILES)}"
        FILES[name] = []
        return name

    def write(self, transaction, value):
        FILES[transaction].append(value)

    def pre_commit(self, transaction):
        FILES[transaction].append("durable")

    def commit(self, transaction):
        if Content.broken:
            raise OSError("disk full")
        VISIBLE.extend(value for value in FILES.pop(transaction, []) if value != "durable")

    def abort(self, transaction):
        FILES.pop(transaction, None)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    FILES.clear()
    VISIBLE.clear()
    monkeypatch.setattr(Content, "time", 0.0)
    monkeypatch.setattr(Content, "broken", False)


def start(first=42, last=99, parallelism=1, state=None, checkpoint_id=None, final=False):
    """The subtasks of a job that writes the numbers from `first` on, from a checkpoint if there is one."""
    plan = plan_of(lambda env: env.set_parallelism(parallelism).from_sequence(first, last).add_sink(Content()))
    restore = None if state is None else restore_of(checkpoint_id, [state], parallelism)
    settings = replace(plan.settings, final_checkpoint=final)
    tasks = [subtask(plan, "Sequence", i, restore=restore, settings=settings) for i in range(parallelism)]
    for task in tasks:
        task.open()
    return tasks


def complete(task, checkpoint_id):
    task.notify_complete(checkpoint_id, Commits().add(0, 1).add(1, 2).add(2, 3))


def test_a_completed_checkpoint_commits_it_and_older_ones():  # SPEC R9.2 testNotifyOfCompletedCheckpoint
    (task,) = start()
    for checkpoint_id in range(3):
        task.step(1)
        snapshot_of(task, checkpoint_id)
    complete(task, 1)
    assert VISIBLE == [42, 43]
    assert sorted(FILES.values()) == [[], [44, "durable"]]  # one is open, one is prepared for checkpoint 2


def test_a_late_notification_commits_nothing_twice():  # SPEC R9.2 testSubsumedNotificationOfPreviousCheckpoint
    (task,) = start()
    for checkpoint_id in range(3):
        task.step(1)
        snapshot_of(task, checkpoint_id)
    complete(task, 2)
    complete(task, 1)
    assert VISIBLE == [42, 43, 44]


def test_a_restore_commits_what_the_checkpoint_holds_and_aborts_the_rest():  # SPEC R9.2 testFailBeforeNotify
    (task,) = start()
    task.step(1)
    snapshot_of(task, 0)
    task.step(1)
    state = snapshot_of(task, 1)
    task.step(1)  # 44 is written behind the barrier, and the worker is killed: nothing is closed
    assert [44] in FILES.values()
    (task,) = start(state=state, checkpoint_id=1)
    task.close()
    assert VISIBLE == [42, 43]
    assert FILES == {}


@pytest.mark.parametrize(("age", "lost"), [(0, False), (1001, True)])
def test_a_commit_that_fails_in_recovery_is_dropped_after_the_timeout(age, lost, monkeypatch, caplog):
    # SPEC R9.2 testIgnoreCommitExceptionDuringRecovery
    monkeypatch.setattr(Content, "transaction_timeout", 1000)
    monkeypatch.setattr(Content, "ignore_failures_after_timeout", True)
    monkeypatch.setattr(Content, "clock", staticmethod(lambda: Content.time))
    (task,) = start()
    task.step(1)
    state = snapshot_of(task, 0)
    Content.time, Content.broken = float(age), True
    if lost:
        start(state=state, checkpoint_id=0)
        assert "was DROPPED: it is 1001 s old, and its timeout is 1000 s: disk full" in caplog.text
    else:
        with pytest.raises(OperatorFailure) as caught:
            start(state=state, checkpoint_id=0)
        assert str(caught.value.__cause__) == "disk full"


def test_recovery_has_methods_of_its_own(monkeypatch):
    calls = []
    monkeypatch.setattr(Content, "recover_and_commit", lambda self, transaction: calls.append(("commit", transaction)))
    monkeypatch.setattr(Content, "recover_and_abort", lambda self, transaction: calls.append(("abort", transaction)))
    (task,) = start()
    task.step(1)
    state = snapshot_of(task, 0)
    start(state=state, checkpoint_id=0)
    assert calls == [("commit", "tmp-0-0"), ("abort", "tmp-0-1")]


def test_nothing_is_started_behind_the_last_record():  # SPEC R9.2
    (task,) = start(1, 1, final=True)
    while not task.data_finished:
        task.step(10)
    snapshot_of(task, 1)
    assert FILES == {"tmp-0-0": [1, "durable"]}
    complete(task, 1)
    assert (VISIBLE, FILES) == ([1], {})


def test_every_commit_is_tried_and_the_first_error_raised(monkeypatch):  # SPEC R9.2
    tried, commit = [], Content.commit

    def watched(self, transaction):
        tried.append(transaction)
        commit(self, transaction)

    monkeypatch.setattr(Content, "commit", watched)
    (task,) = start(1)
    for checkpoint_id in (1, 2):
        task.step(1)
        snapshot_of(task, checkpoint_id)
    Content.broken = True
    with pytest.raises(OperatorFailure) as caught:
        complete(task, 2)
    assert str(caught.value.__cause__) == "disk full"
    assert tried == ["tmp-0-0", "tmp-0-1"]
    Content.broken = False
    complete(task, 2)
    assert VISIBLE == [1, 2]


def test_transactions_are_redistributed_when_the_parallelism_changes():
    (task,) = start(1)
    task.step(1)
    start(1, parallelism=3, state=snapshot_of(task, 1), checkpoint_id=1)
    assert VISIBLE == [1]
