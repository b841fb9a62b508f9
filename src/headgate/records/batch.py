"""A batch of records: the unit of work between operators.

Records are held as Python values, as Arrow columns, or both; the missing form is made on demand and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.records.types import PICKLED, TypeInformation, TypeMismatch


class Batch:
    """Records of one type, with optional event timestamps (milliseconds).

    >>> batch = Batch.of_rows([3, 4])
    >>> batch.rows(), len(batch), batch.slice(1, 1).rows()
    ([3, 4], 2, [4])
    """

    __slots__ = ("_arrow", "_raw", "_rows", "origin", "timestamps", "type")

    def __init__(
        self,
        type: TypeInformation,
        rows: list[Any] | None,
        arrow: pa.RecordBatch | None,
        timestamps: np.ndarray[Any, np.dtype[np.int64]] | None = None,
    ) -> None:
        self.type = type
        self._rows = rows
        self._arrow = arrow
        self.timestamps = timestamps
        # Whether rows are as the user's function returned them: plain tuples where the type may have named fields.
        self._raw = False
        self.origin: Any = None  # the operator that emitted it, for errors that are found when the batch is encoded

    @classmethod
    def of_output(cls, rows: list[Any], type: TypeInformation, origin: Any) -> Batch:
        """Rows that a user's function returned; they are checked against the type when they are used."""
        batch = cls(type, rows, None)
        batch._raw = type.converts
        batch.origin = origin
        return batch

    @classmethod
    def of_rows(cls, rows: list[Any], type: TypeInformation = PICKLED) -> Batch:
        """A batch of Python values; plain tuples become the rows that the type promises when they are used."""
        batch = cls(type, rows, None)
        batch._raw = type.converts
        return batch

    @classmethod
    def of_arrow(cls, arrow: pa.RecordBatch, type: TypeInformation) -> Batch:
        """A batch of Arrow columns."""
        return cls(type, None, arrow)

    def __len__(self) -> int:
        if self._rows is not None:
            return len(self._rows)
        assert self._arrow is not None
        return int(self._arrow.num_rows)

    def rows(self) -> list[Any]:
        """The records as Python values; do not change the list."""
        if self._rows is None:
            assert self._arrow is not None
            self._rows = self.type.to_rows(self._arrow)
        elif self._raw:
            try:
                self._rows = self.type.normalise(self._rows)
            except TypeMismatch as error:
                error.origin = self.origin
                raise
            self._raw = False
        return self._rows

    def arrow(self) -> pa.RecordBatch:
        """The records as Arrow columns; TypeMismatch if a value does not fit the type."""
        if self._arrow is None:
            assert self._rows is not None
            try:
                self._arrow = self.type.to_batch(self._rows)
            except TypeMismatch as error:
                error.origin = self.origin
                raise
        return self._arrow

    def retyped(self, type: TypeInformation) -> Batch:
        """The same columns as records of a type that differs only in the form of its values."""
        batch = Batch(type, None, self.arrow(), self.timestamps)
        batch.origin = self.origin
        return batch

    def with_timestamps(self, stamps: np.ndarray[Any, np.dtype[np.int64]] | None) -> Batch:
        """The same records with other timestamps."""
        batch = Batch(self.type, self._rows, self._arrow, stamps)
        batch._raw, batch.origin = self._raw, self.origin
        return batch

    def copied(self, copy: Callable[[Any], Any]) -> Batch:
        """The same records for a receiver that may change them; columns are shared."""
        if self._arrow is not None:
            batch = Batch(self.type, None, self._arrow, self.timestamps)
        else:
            assert self._rows is not None
            batch = Batch(self.type, list(map(copy, self._rows)), None, self.timestamps)
            batch._raw = self._raw
        batch.origin = self.origin
        return batch

    def slice(self, start: int, length: int) -> Batch:
        """Part of the batch; Arrow columns are shared, not copied."""
        if start == 0 and length >= len(self):
            return self
        stamps = None if self.timestamps is None else self.timestamps[start : start + length]
        # Only one form is cut: Arrow if it is there, so a slice that is only passed on costs nothing.
        if self._arrow is not None:
            return Batch(self.type, None, self._arrow.slice(start, length), stamps)
        assert self._rows is not None
        return self._part(self._rows[start : start + length], stamps)

    def select(self, indices: np.ndarray[Any, np.dtype[Any]]) -> Batch:
        """The records at these places, in that order."""
        stamps = None if self.timestamps is None else self.timestamps[indices]
        if self._arrow is not None:
            return Batch(self.type, None, self._arrow.take(pa.array(indices)), stamps)
        assert self._rows is not None
        rows = self._rows
        return self._part([rows[i] for i in indices.tolist()], stamps)

    def _part(self, rows: list[Any], stamps: np.ndarray[Any, np.dtype[np.int64]] | None) -> Batch:
        part = Batch(self.type, rows, None, stamps)
        part._raw, part.origin = self._raw, self.origin
        return part
