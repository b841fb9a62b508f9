"""A stop with a savepoint, from its request to its answer (SPEC R8.3). Part of the coordinator: pure, on the driver.

    REQUESTED --> TAKEN --> ANSWERED
        |           |
        +-----------+-----> FAILED

REQUESTED  the savepoint waits for its turn, or is being taken; no other checkpoint begins
TAKEN      it is complete and the tasks are notified: they finish
ANSWERED   all tasks have finished, and the request has the savepoint as its answer
FAILED     there is no savepoint, or the job did not finish after it: then the answer says where the savepoint is
"""

from __future__ import annotations

from enum import Enum, auto

from headrace.checkpoint import events as ev
from headrace.checkpoint.decider import RequestId
from headrace.lifecycle import Lifecycle


class StopState(Enum):
    """The progress of a stop with a savepoint."""

    REQUESTED = auto()
    TAKEN = auto()
    ANSWERED = auto()
    FAILED = auto()


MOVES = {
    StopState.REQUESTED: {StopState.TAKEN, StopState.FAILED},
    StopState.TAKEN: {StopState.ANSWERED, StopState.FAILED},
    StopState.ANSWERED: set[StopState](),
    StopState.FAILED: set[StopState](),
}


class StopWithSavepoint:
    """One stop with a savepoint.

    >>> stop = StopWithSavepoint(RequestId("r1"), now=0)
    >>> stop.taken(ev.RequestDone(7, "sp/_metadata", 3), now=10)
    >>> stop.answer(finished=False, active=True, now=11)
    []
    >>> stop.answer(finished=True, active=True, now=12)[0].result.checkpoint_id
    7
    """

    def __init__(self, request_id: RequestId, now: int) -> None:
        self.request_id = request_id
        self._done: ev.RequestDone | None = None
        self._life = Lifecycle(f"stop with savepoint {request_id}", MOVES, StopState.REQUESTED, now)

    @property
    def state(self) -> StopState:
        return self._life.state

    @property
    def story(self) -> str:
        """The states with their times."""
        return self._life.story

    @property
    def prevents_checkpoints(self) -> bool:
        """True unless it has failed: no checkpoint comes between the savepoint and the end of the job."""
        return self.state is not StopState.FAILED

    def taken(self, done: ev.RequestDone, now: int) -> None:
        """The savepoint is complete; the answer depends on whether the tasks finish."""
        self._life.move(StopState.TAKEN, now)
        self._done = done

    def savepoint_failed(self, now: int) -> None:
        """There is no savepoint; the request was answered as that of any checkpoint that fails."""
        self._life.move(StopState.FAILED, now)

    def answer(self, *, finished: bool, active: bool, now: int) -> list[ev.Instruction]:
        """Answer the request if the outcome is known: all tasks have finished, or the job is not `active` any more."""
        done = self._done
        if self.state is not StopState.TAKEN or done is None:
            return []
        if finished:
            self._life.move(StopState.ANSWERED, now)
            return [ev.CompleteRequest(self.request_id, done)]
        if active:
            return []
        message = f"savepoint {done.checkpoint_id} was taken, but the job did not finish; it is at {done.pointer}"
        return self._fail(ev.RequestFailed(message, None, done.checkpoint_id, done.pointer), now)

    def give_up(self, result: ev.RequestFailed, now: int) -> list[ev.Instruction]:
        """Answer a request whose savepoint is taken with a failure: another driver runs the job now."""
        return self._fail(result, now) if self.state is StopState.TAKEN else []

    def _fail(self, result: ev.RequestFailed, now: int) -> list[ev.Instruction]:
        self._life.move(StopState.FAILED, now)
        return [ev.CompleteRequest(self.request_id, result)]
