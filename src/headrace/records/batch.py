"""A batch of records: the unit of work between operators.

Records are held as Python values, as Arrow columns, or both; the missing form is made on demand and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.records.types import PICKLED, TypeInformation, TypeMismatch

FEW = 64  # records of a small batch


class Batch:
    """Records of one type, with optional event timestamps (milliseconds).

    >>> batch = Batch.of_rows([3, 4])
    >>> batch.rows(), len(batch), batch.slice(1, 1).rows()
    ([3, 4], 2, [4])
    """

    __slots__ = ("_arrow", "_columns", "_raw", "_rows", "_small", "origin", "timestamps", "type")

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
        self._columns: dict[int, list[Any]] = {}  # of `column`
        self.timestamps = timestamps
        # Whether rows are as the user's function returned them: plain tuples where the type may have named fields.
        self._raw = False
        self._small: bool | None = None
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
        """Return a batch of Python values; plain tuples become the rows that the type promises when they are used."""
        batch = cls(type, rows, None)
        batch._raw = type.converts
        return batch

    @classmethod
    def of_arrow(cls, arrow: pa.RecordBatch, type: TypeInformation) -> Batch:
        """Return a batch of Arrow columns."""
        return cls(type, None, arrow)

    @classmethod
    def joined(cls, parts: list[Batch]) -> Batch:
        """Return the records of several batches of one type and origin; all of them have timestamps, or none has.

        >>> Batch.joined([Batch.of_rows([1, 2]), Batch.of_rows([3])]).rows()
        [1, 2, 3]
        """
        first = parts[0]
        if len(parts) == 1:
            return first
        if any(part.has_columns for part in parts):
            batch = cls(first.type, None, pa.concat_batches([part.arrow() for part in parts]))
        else:
            batch = cls(first.type, [row for part in parts for row in part.rows()], None)
        if first.timestamps is not None:
            batch.timestamps = np.concatenate([part.timestamps for part in parts if part.timestamps is not None])
        batch.origin = first.origin
        return batch

    def __len__(self) -> int:
        if self._rows is not None:
            return len(self._rows)
        assert self._arrow is not None
        return int(self._arrow.num_rows)

    @property
    def has_columns(self) -> bool:
        """Return True if the columns are made."""
        return self._arrow is not None

    @property
    def is_small(self) -> bool:
        """Return True if it has a few records of a declared type with short values, which are faster without columns.

        For one batch now and then, most of the time is for loading the code of numpy and Arrow into the CPU's caches.
        """
        if self._small is None:
            rows = self._rows if self._arrow is None else None
            self._small = rows is not None and 0 < len(rows) <= FEW and self.type.is_exact(rows)
        return self._small

    def plain_rows(self) -> list[Any]:
        """Return the records of a small batch as plain values: named rows as tuples."""
        assert self._rows is not None
        return self._rows if self.type.row is None else list(map(tuple, self._rows))

    @property
    def nbytes(self) -> int:
        """The size of the records in columns; of a small batch an estimate."""
        if self.is_small:
            assert self._rows is not None
            return self.type.exact_bytes(self._rows)
        return int(self.arrow().nbytes)

    def rows(self) -> list[Any]:
        """Return the records as Python values; do not change the list."""
        if self._rows is None:
            assert self._arrow is not None
            self._rows = self.type.to_rows(self._arrow, self._columns)
        elif self._raw:
            try:
                self._rows = self.type.normalise(self._rows)
            except TypeMismatch as error:
                error.origin = self.origin
                raise
            self._raw = False
        return self._rows

    def each(self) -> Iterable[Any]:
        """The records one after the other, each made when it is its turn; in this way they stay in the CPU's caches."""
        if self._rows is None and not self.type.converts and self.type.kind != "scalar":
            assert self._arrow is not None
            return self.type.fields(self._arrow, self._columns)
        return self.rows()

    def column(self, position: int) -> list[Any]:
        """One field of all records as Python values, which `rows` then uses as well; do not change the list."""
        made = self._columns.get(position)
        if made is None:
            (made,) = self.type.columns(self.arrow(), (position,))
            if self.type.can_share(position):
                self._columns[position] = made
        return made

    def arrow(self) -> pa.RecordBatch:
        """Return the records as Arrow columns; TypeMismatch if a value does not fit the type."""
        if self._arrow is None:
            assert self._rows is not None
            try:
                self._arrow = self.type.to_batch(self._rows)
            except TypeMismatch as error:
                error.origin = self.origin
                raise
        return self._arrow

    def in_one_form(self) -> Batch:
        """The same records without the Python values, if there are columns: for a batch that is kept and hardly read."""
        return self if self._arrow is None else Batch(self.type, None, self._arrow, self.timestamps)

    def retyped(self, type: TypeInformation) -> Batch:
        """Return the same columns as records of a type that differs only in the form of its values."""
        batch = Batch(type, None, self.arrow(), self.timestamps)
        batch.origin = self.origin
        return batch

    def with_timestamps(self, stamps: np.ndarray[Any, np.dtype[np.int64]] | None) -> Batch:
        """Return the same records with other timestamps."""
        batch = Batch(self.type, self._rows, self._arrow, stamps)
        batch._raw, batch.origin = self._raw, self.origin
        return batch

    def copied(self, copy: Callable[[Any], Any]) -> Batch:
        """Return the same records for a receiver that may change them; columns are shared."""
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
        """Return the records at these places, in that order."""
        stamps = None if self.timestamps is None else self.timestamps[indices]
        if self._arrow is not None:
            return Batch(self.type, None, self._arrow.take(pa.array(indices)), stamps)
        assert self._rows is not None
        rows = self._rows
        return self._part([rows[i] for i in indices.tolist()], stamps)

    def small_part(self, rows: list[Any]) -> Batch:
        """Return some of the plain rows of a small batch."""
        part = Batch(self.type, rows, None)
        part._raw, part._small, part.origin = self.type.converts, True, self.origin
        return part

    def _part(self, rows: list[Any], stamps: np.ndarray[Any, np.dtype[np.int64]] | None) -> Batch:
        part = Batch(self.type, rows, None, stamps)
        part._raw, part.origin = self._raw, self.origin
        return part
