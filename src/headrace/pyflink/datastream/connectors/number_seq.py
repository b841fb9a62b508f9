"""`pyflink.datastream.connectors.number_seq`."""

from __future__ import annotations

from headrace.api.sources import SequenceSource
from headrace.records.types import Types

__all__ = ["NumberSequenceSource"]


class NumberSequenceSource(SequenceSource):
    """The integers from `start` to `end`, both included; the subtasks share them.

    >>> NumberSequenceSource(1, 3).type
    bigint
    """

    def __init__(self, start: int, end: int) -> None:
        super().__init__(start, end, Types.LONG())
