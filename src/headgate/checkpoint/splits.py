"""Which subtask reads which split of a source: decided on the driver, split by split (SPEC R9.4).

    found      an enumerator found splits: those with an owner go there, the others to who asks first
    asked      a reader has nothing left to read
    Assignment goes to the reader's subtask; `no_more` tells it that nothing will follow

A checkpoint keeps what is not assigned; what is assigned is kept by its reader. Both are cut at one moment: messages to a
reader keep their order, so a split that was assigned before the trigger is in the reader's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Assignment", "SplitAssigner"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Assignment(Generic[S]):
    """Splits for one subtask; `no_more`: it will never get another one.

    >>> Assignment(0, ["a"]).no_more
    False
    """

    subtask: int
    splits: list[S]
    no_more: bool = False


class SplitAssigner(Generic[S]):
    """Deals out the splits of one source.

    >>> assigner = SplitAssigner(2, lambda split, parallelism: None)
    >>> assigner.asked(1)
    []
    >>> assigner.found(["a", "b"], complete=True)
    [Assignment(subtask=1, splits=['a'], no_more=False)]
    >>> assigner.asked(0)  # doctest: +NORMALIZE_WHITESPACE
    [Assignment(subtask=0, splits=['b'], no_more=False), Assignment(subtask=0, splits=[], no_more=True),
     Assignment(subtask=1, splits=[], no_more=True)]
    """

    def __init__(
        self,
        parallelism: int,
        owner: Callable[[S, int], int | None],
        unassigned: Iterable[S] = (),
        complete: bool = False,
    ) -> None:
        """`owner` names the subtask that must read a split; None: any may."""
        self._parallelism, self._owner = parallelism, owner
        self._free: deque[S] = deque(unassigned)
        self._asking: deque[int] = deque()
        self.complete = complete
        self._told = False

    @property
    def unassigned(self) -> list[S]:
        """The splits that nobody reads yet."""
        return list(self._free)

    @property
    def idle(self) -> bool:
        """Whether every subtask has asked since it got something: if splits are dealt only then, all of them are read."""
        return not self._free and len(self._asking) == self._parallelism

    def found(self, splits: Iterable[S], complete: bool) -> list[Assignment[S]]:
        """New splits; `complete`: there will be no others."""
        self._free.extend(splits)
        self.complete = self.complete or complete
        return self._deal()

    def asked(self, subtask: int) -> list[Assignment[S]]:
        """A reader wants something to read."""
        if subtask not in self._asking:
            self._asking.append(subtask)
        return self._deal()

    def _deal(self) -> list[Assignment[S]]:
        given: dict[int, list[S]] = {}
        free: deque[S] = deque()
        for split in self._free:
            owner = self._owner(split, self._parallelism)
            if owner is None and self._asking:
                owner = self._asking.popleft()
            if owner is None:
                free.append(split)
            else:
                given.setdefault(owner, []).append(split)
        self._free = free
        if given:  # who got a split that it owns asks again when it has read it
            self._asking = deque(subtask for subtask in self._asking if subtask not in given)
        dealt = [Assignment(subtask, splits) for subtask, splits in given.items()]
        if self.complete and not free and not self._told:
            self._told = True
            dealt += [Assignment(subtask, [], no_more=True) for subtask in range(self._parallelism)]
        return dealt
