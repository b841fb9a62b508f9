"""Which source subtasks pause because their watermark is too far ahead of others of their group. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class WatermarkAligner(Generic[T]):
    """One for each attempt; it is told the watermarks, and answers who is to pause and who may go on.

    >>> aligner = WatermarkAligner(lambda task: ("clicks", 10))
    >>> aligner.on_watermark("a", 5), aligner.on_watermark("b", 30), aligner.on_watermark("a", 20)
    ({}, {'b': True}, {'b': False})
    """

    def __init__(self, group_of: Callable[[T], tuple[str, int] | None]) -> None:
        """`group_of` gives the name of a task's group and the largest drift in ms; None: it is not aligned."""
        self._group_of = group_of
        self._watermarks: dict[T, int] = {}
        self._paused: set[T] = set()

    def on_watermark(self, task: T, watermark: int | None) -> Mapping[T, bool]:
        """The watermark of a task, None if it is idle or has finished; for each task that changes, whether it pauses."""
        group = self._group_of(task)
        if group is None:
            return {}
        if watermark is None:
            self._watermarks.pop(task, None)
        else:
            self._watermarks[task] = watermark
        name = group[0]
        of_group = {one: mark for one, mark in self._watermarks.items() if (self._group_of(one) or ("",))[0] == name}
        least = min(of_group.values(), default=0)
        ahead = {one for one, mark in of_group.items() if mark > least + (self._group_of(one) or ("", 0))[1]}
        paused = {one for one in self._paused if (self._group_of(one) or ("",))[0] == name}
        self._paused = self._paused - paused | ahead
        return {one: one in ahead for one in ahead ^ paused}
