"""A stop with a savepoint, without a coordinator: its states, and the one answer (SPEC R8.3)."""

import pytest

from headrace.checkpoint import events as ev
from headrace.checkpoint.decider import RequestId
from headrace.checkpoint.stop import MOVES, StopState, StopWithSavepoint
from headrace.errors import IllegalState

DONE = ev.RequestDone(7, "sp/_metadata", 3)


def stop(*, taken=True):
    one = StopWithSavepoint(RequestId("r1"), now=10)
    if taken:
        one.taken(DONE, now=20)
    return one


def test_the_answer_waits_for_the_tasks():
    one = stop()
    assert one.answer(finished=False, active=True, now=30) == []
    assert one.answer(finished=True, active=True, now=40) == [ev.CompleteRequest(RequestId("r1"), DONE)]
    assert one.answer(finished=True, active=True, now=50) == []
    assert one.prevents_checkpoints


def test_a_job_that_does_not_finish_names_the_savepoint():
    one = stop()
    (answer,) = one.answer(finished=False, active=False, now=30)
    assert answer.result.message == "savepoint 7 was taken, but the job did not finish; it is at sp/_metadata"
    assert (answer.result.checkpoint_id, answer.result.pointer) == (7, "sp/_metadata")
    assert one.state is StopState.FAILED
    assert not one.prevents_checkpoints


def test_nothing_is_answered_before_the_savepoint_is_taken():
    one = stop(taken=False)
    assert one.answer(finished=True, active=False, now=30) == []
    assert one.give_up(ev.RequestFailed("superseded"), now=30) == []
    one.savepoint_failed(now=40)
    assert one.state is StopState.FAILED


def test_a_driver_that_is_superseded_answers_a_stop_whose_savepoint_is_taken():
    failed = ev.RequestFailed("superseded")
    assert stop().give_up(failed, now=30) == [ev.CompleteRequest(RequestId("r1"), failed)]


def test_an_illegal_move_tells_the_story():
    one = stop()
    one.answer(finished=True, active=True, now=40)
    with pytest.raises(IllegalState, match="stop with savepoint r1 cannot move from ANSWERED to TAKEN") as error:
        one.taken(DONE, now=50)
    assert "its story: REQUESTED at 10, TAKEN at 20, ANSWERED at 40" in str(error.value)


def test_every_state_has_a_row():
    assert set(MOVES) == set(StopState)
