"""States that change by legal moves only: a table of them, and the story of how a thing came to its state."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Generic, TypeVar

from headrace.errors import IllegalState

_REMEMBERED = 30  # moves; a job that restarts for a year must not fill the memory

State = TypeVar("State", bound=Enum)


class Lifecycle(Generic[State]):
    """The state of a thing; each row of `moves` has the states that may follow one state.

    >>> class Door(Enum):
    ...     OPEN = 1
    ...     SHUT = 2
    >>> door = Lifecycle("the door", {Door.OPEN: {Door.SHUT}, Door.SHUT: set()}, Door.OPEN, now=0)
    >>> door.move(Door.SHUT, now=7)
    >>> door.move(Door.OPEN, now=9)
    Traceback (most recent call last):
    headrace.errors.IllegalState: [HR-9001] the door cannot move from SHUT to OPEN at 9; its story: OPEN at 0, SHUT at 7
    """

    __slots__ = ("_moves", "_name", "_story", "state")

    def __init__(self, name: str, moves: Mapping[State, Collection[State]], start: State, now: int) -> None:
        self._name, self._moves, self.state = name, moves, start
        self._story: deque[tuple[State, int]] = deque([(start, now)], maxlen=_REMEMBERED)

    @property
    def story(self) -> str:
        """The newest states with the times at which they were reached."""
        return ", ".join(f"{state.name} at {at}" for state, at in self._story)

    @property
    def is_over(self) -> bool:
        """True if no state follows any more."""
        return not self._moves[self.state]

    def move(self, state: State, now: int, detail: str = "") -> None:
        """Change to another state; IllegalState with the story, and the `detail`, if the table has no such move."""
        if state not in self._moves[self.state]:
            move = f"{self._name} cannot move from {self.state.name} to {state.name} at {now}"
            raise IllegalState(f"{move}; its story: {self.story}{detail and '; '}{detail}")
        self.state = state
        self._story.append((state, now))
