"""Which subtask reads which split of a source (SPEC R9.4): pure, called on the job's thread of the driver.

    add_splits      an enumerator found splits: those with a fixed reader go there, the others to the first that asks
    request_split   a reader has nothing left to read
    Assignment      goes to the reader's subtask; `no_more`: nothing will follow

The driver's part of a checkpoint holds the splits that are not assigned, the reader's part those that are. The two
agree: messages to a reader keep their order, so a split that was assigned before the trigger is in the reader's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Assignment(Generic[S]):
    """Splits for one subtask; `no_more`: it will never get another one."""

    subtask: int
    splits: list[S]
    no_more: bool = False


class SplitAssigner(Generic[S]):
    """Assigns the splits of one source.

    >>> assigner = SplitAssigner(2, lambda split, parallelism: None)
    >>> assigner.request_split(1)
    []
    >>> assigner.add_splits(["a", "b"], complete=True)
    [Assignment(subtask=1, splits=['a'], no_more=False)]
    >>> assigner.request_split(0)  # doctest: +NORMALIZE_WHITESPACE
    [Assignment(subtask=0, splits=['b'], no_more=False), Assignment(subtask=0, splits=[], no_more=True),
     Assignment(subtask=1, splits=[], no_more=True)]
    """

    def __init__(
        self,
        parallelism: int,
        reader_of: Callable[[S, int], int | None],
        unassigned: Iterable[S] = (),
        complete: bool = False,
    ) -> None:
        """`reader_of` gives the subtask that must read a split; None: any may."""
        self._parallelism, self._reader_of = parallelism, reader_of
        self._free: deque[S] = deque(unassigned)
        self._waiting: deque[int] = deque()
        self.complete = complete
        self._ended = False

    @property
    def unassigned(self) -> list[S]:
        """The splits that are not assigned yet."""
        return list(self._free)

    @property
    def idle(self) -> bool:
        """Return True if every subtask waits for a split, so that all that were assigned are read."""
        return not self._free and len(self._waiting) == self._parallelism

    def add_splits(self, splits: Iterable[S], complete: bool) -> list[Assignment[S]]:
        """Add splits; `complete`: there will be no others."""
        self._free.extend(splits)
        self.complete = self.complete or complete
        return self._assign()

    def request_split(self, subtask: int) -> list[Assignment[S]]:
        """Note that a reader waits for a split."""
        if subtask not in self._waiting:
            self._waiting.append(subtask)
        return self._assign()

    def _assign(self) -> list[Assignment[S]]:
        given: dict[int, list[S]] = {}
        free: deque[S] = deque()
        for split in self._free:
            reader = self._reader_of(split, self._parallelism)
            if reader is None and self._waiting:
                reader = self._waiting.popleft()
            if reader is None:
                free.append(split)
            else:
                given.setdefault(reader, []).append(split)
        self._free = free
        if given:  # the reader of a fixed split asks again when it has read it
            self._waiting = deque(subtask for subtask in self._waiting if subtask not in given)
        assigned = [Assignment(subtask, splits) for subtask, splits in given.items()]
        if self.complete and not free and not self._ended:
            self._ended = True
            assigned += [Assignment(subtask, [], no_more=True) for subtask in range(self._parallelism)]
        return assigned
