"""What waits behind a blocked channel: its order, its memory, its file, and the writers that are held for it."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.types import Barrier
from headrace.control.messages import PauseWriter
from headrace.errors import StorageError
from headrace.records.frames import Frame, FrameKind
from headrace.worker import backlog
from headrace.worker.backlog import Backlog, Budget
from rig import data, event, plan_of, subtask, work_off


def frame(body, kind=FrameKind.PICKLE, flags=0):
    return Frame(kind, flags, 3, 1, memoryview(body))


def content(frame):
    return frame.kind, frame.flags, frame.edge, frame.writer, bytes(frame.body)


frames = st.builds(frame, st.binary(max_size=30), st.sampled_from(FrameKind), st.integers(0, 255))


@given(st.lists(st.one_of(frames, st.none()), max_size=60), st.integers(0, 60))
def test_frames_come_out_as_they_went_in_whatever_is_spilled(moves, memory):
    log, model = Backlog(Budget(memory, None)), []
    for move in moves:
        if move is not None:
            log.append(move)
            model.append(content(move))
        elif model:
            assert content(log.popleft()) == model.pop(0)
        assert [content(one) for one in log] == model
        assert log.bytes == sum(len(one[-1]) for one in model)
        assert bool(log) == bool(model)
    log.close()


def test_memory_is_shared_and_given_back():
    budget = Budget(10, None)
    first, second = Backlog(budget), Backlog(budget)
    first.append(frame(b"12345678"))
    second.append(frame(b"12345678"))
    assert (first.spilled, second.spilled, budget.left) == (0, 8, 2)
    first.popleft()
    second.popleft()
    assert (second.spilled, budget.left) == (0, 10)
    second.append(frame(b"12345678"))
    assert second.spilled == 0  # the file is empty: memory is used again


def test_a_full_disk_says_what_to_do(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(backlog.os, "pwrite", full)
    with pytest.raises(StorageError, match=r"cannot spill rows of a blocked channel.*No space left.*io\.tmp\.dirs"):
        Backlog(Budget(0, None)).append(frame(b"x"))


def test_a_write_that_came_short_is_a_full_disk(monkeypatch):
    monkeypatch.setattr(backlog.os, "pwrite", lambda number, row, at: len(row) - 1)
    with pytest.raises(StorageError, match="No space left"):
        Backlog(Budget(0, None)).append(frame(b"x"))


def two_writers(env):
    env.set_parallelism(2)
    numbers = env.from_sequence(0, 99).map(lambda x: x)
    numbers.rebalance().map(lambda x: x).set_parallelism(1).name("one")._collect_into("out")


def aligning(**conf):
    """A subtask with two writers, of which the first is blocked at its barrier."""
    task = subtask(plan_of(two_writers, **conf), "one")
    task.open()
    task.receive(event(FrameKind.BARRIER, writer=0, body=Barrier(1, 0).encode()))
    work_off(task)
    return task


def test_a_blocked_channel_that_spilled_much_pauses_its_writer_until_it_goes_on():
    task = aligning(headrace_alignment_memory="0 b", headrace_alignment_spill_soft="10 b")
    task.receive(data(1, 2, 3))
    assert task.take_pauses() == [PauseWriter(0, 0, True)]
    assert task.take_pauses() == []
    task.receive(event(FrameKind.BARRIER, writer=1, body=Barrier(1, 0).encode()))
    assert work_off(task) == 3
    assert task.take_pauses() == [PauseWriter(0, 0, False)]


def test_more_than_the_limit_behind_barriers_declines_the_checkpoint():  # SPEC R6.2
    task = aligning(headrace_alignment_spill_max="10 b")
    task.receive(data(1, 2, 3))
    (decline,) = task.take_declines()
    assert (decline.checkpoint_id, decline.reason) == (1, FailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT)
    assert work_off(task) == 3
