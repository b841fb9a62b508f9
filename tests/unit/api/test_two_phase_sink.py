"""Sinks that commit with checkpoints (SPEC R9.2), as TwoPhaseCommitSinkFunctionTest has it."""

import pytest

from headgate.api.functions import FunctionInitializationContext, FunctionSnapshotContext, NoState
from headgate.api.two_phase import FileSink, TwoPhaseCommitSinkFunction
from headgate.errors import InvalidArgument
from headgate.state.operator import OperatorStateBackend, RestoredOperatorState, rescale


class Content(TwoPhaseCommitSinkFunction):
    """Transactions are lists in a dict of files; committed ones are visible."""

    def __init__(self, files, visible):
        super().__init__()
        self.files, self.visible = files, visible
        self.count = 0
        self.broken = False

    def begin_transaction(self):
        self.count += 1
        name = f"tmp-{len(self.files)}-{self.count}"
        self.files[name] = []
        return name

    def write(self, transaction, value):
        self.files[transaction].append(value)

    def pre_commit(self, transaction):
        pass

    def commit(self, transaction):
        if self.broken:
            raise OSError("disk full")
        self.visible.extend(self.files.pop(transaction, []))

    def abort(self, transaction):
        self.files.pop(transaction, None)


class Lab:
    def __init__(self):
        self.files, self.visible = {}, []
        self.start(None)

    def start(self, restored: RestoredOperatorState | None, checkpoint_id=None):
        self.sink = Content(self.files, self.visible)
        self.backend = OperatorStateBackend("sink", restored)
        self.sink.initialize_state(FunctionInitializationContext(self.backend, NoState("sink"), checkpoint_id))
        self.sink.open(None)

    def put(self, *values):
        for value in values:
            self.sink.invoke(value, None)

    def snapshot(self, checkpoint_id):
        self.sink.snapshot_state(FunctionSnapshotContext(checkpoint_id, 0))
        return self.backend.snapshot()()


def test_a_completed_checkpoint_commits_it_and_older_ones():  # SPEC R9.2 testNotifyOfCompletedCheckpoint
    lab = Lab()
    lab.put(42)
    lab.snapshot(0)
    lab.put(43)
    lab.snapshot(1)
    lab.put(44)
    lab.snapshot(2)
    lab.sink.notify_checkpoint_complete(1)
    assert lab.visible == [42, 43]
    assert len(lab.files) == 2  # one for checkpoint 2 and one open


def test_a_late_notification_commits_nothing_twice():  # SPEC R9.2 testSubsumedNotificationOfPreviousCheckpoint
    lab = Lab()
    for checkpoint, value in enumerate((42, 43, 44)):
        lab.put(value)
        lab.snapshot(checkpoint)
    lab.sink.notify_checkpoint_complete(2)
    lab.sink.notify_checkpoint_complete(1)
    assert lab.visible == [42, 43, 44]


def test_a_restore_commits_what_the_checkpoint_holds_and_aborts_the_rest():  # SPEC R9.2 testFailBeforeNotify
    lab = Lab()
    lab.put(42)
    lab.snapshot(0)
    lab.put(43)
    state = lab.snapshot(1)
    lab.put(44)
    lab.snapshot(2)
    lab.sink.close()
    lab.start(rescale([state], 1)[0], 1)
    lab.sink.close()
    assert lab.visible == [42, 43]
    assert not any(lab.files.values())  # 44 was written behind the restored barrier: its transaction is gone


@pytest.mark.parametrize(("age", "lost"), [(0, False), (1001, True)])
def test_a_commit_that_fails_in_recovery_is_given_up_after_the_timeout(age, lost, monkeypatch, caplog):
    # SPEC R9.2 testIgnoreCommitExceptionDuringRecovery
    monkeypatch.setattr(Content, "transaction_timeout", 1000)
    monkeypatch.setattr(Content, "ignore_failures_after_timeout", True)
    monkeypatch.setattr(Content, "clock", staticmethod(lambda: 0.0))
    lab = Lab()
    lab.put("42")
    state = lab.snapshot(0)
    monkeypatch.setattr(Content, "clock", staticmethod(lambda: float(age)))
    monkeypatch.setattr(Content, "recover_and_commit", lambda self, transaction: lab.sink.fail())
    monkeypatch.setattr(Content, "fail", lambda self: (_ for _ in ()).throw(OSError("expired")), raising=False)
    if lost:
        lab.start(rescale([state], 1)[0], 0)
        assert "is LOST: it is 1001 s old, and its timeout is 1000 s: expired" in caplog.text
    else:
        with pytest.raises(OSError, match="expired"):
            lab.start(rescale([state], 1)[0], 0)


def test_nothing_is_started_behind_the_last_record():  # SPEC R9.2
    lab = Lab()
    lab.put(1)
    lab.sink.finish()
    lab.snapshot(1)
    lab.sink.notify_checkpoint_complete(1)
    lab.sink.close()
    assert lab.visible == [1]
    assert lab.files == {}


def test_every_commit_is_tried_and_the_first_error_raised():  # SPEC R9.2
    lab = Lab()
    lab.put(1)
    lab.snapshot(1)
    lab.put(2)
    lab.snapshot(2)
    lab.sink.broken = True
    with pytest.raises(OSError, match="disk full"):
        lab.sink.notify_checkpoint_complete(2)
    lab.sink.broken = False
    lab.sink.notify_checkpoint_complete(2)
    assert lab.visible == [1, 2]


def test_transactions_are_spread_when_the_parallelism_changes():
    first, second = Lab(), Lab()
    second.files, second.visible = first.files, first.visible
    first.put(1)
    second.sink.files, second.sink.visible = first.files, first.visible
    state = first.snapshot(7)
    for part in rescale([state, OperatorStateBackend("sink").snapshot()()], 3):
        lab = Lab()
        lab.files, lab.visible = first.files, first.visible
        lab.start(part, 7)
    assert first.visible == [1]


def files(path):
    return sorted(p.name.split("-")[0] for p in path.iterdir() if not p.name.startswith("."))


def test_a_file_is_hidden_until_it_is_committed(tmp_path):
    sink = FileSink(f"file://{tmp_path}", "json")
    backend = OperatorStateBackend("sink")
    sink.initialize_state(FunctionInitializationContext(backend, NoState("sink"), None))
    sink._current = sink.begin_transaction()
    sink.invoke({"n": 1}, None)
    sink.snapshot_state(FunctionSnapshotContext(1, 0))
    assert files(tmp_path) == []
    sink.notify_checkpoint_complete(1)
    sink.close()
    assert files(tmp_path) == ["part"]
    assert next(tmp_path.glob("part-*")).read_text() == '{"n": 1}\n'
    assert list(tmp_path.glob(".*")) == []


def test_an_unknown_format_is_refused():
    with pytest.raises(InvalidArgument, match="unknown format 'csv'; use text or json"):
        FileSink("/tmp/x", "csv")
