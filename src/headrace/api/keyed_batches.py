"""Keyed functions over whole batches: state as columns, with one value for each distinct key of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.api.functions import Function
from headrace.errors import InvalidArgument

__all__ = ["KeyedBatch", "KeyedBatchFunction"]

Array = npt.NDArray[Any]


class KeyedBatch:
    """The records of a batch, grouped by key without moving them.

    `arrow` has the records in order, `timestamps` their event times if they have some. `keys` are the distinct keys, each
    once, in order of their first record; a key of several fields is a struct. `index[i]` is the place of record i's key
    in `keys`.

    >>> batch = KeyedBatch(pa.RecordBatch.from_pydict({"n": [1, 2, 3]}), pa.array(["a", "b"]), np.array([0, 1, 0]))
    >>> batch.sum("n").tolist(), batch.count().tolist(), batch.running_sum("n", np.array([10, 0])).tolist()
    ([4, 2], [2, 1], [11, 2, 14])
    """

    __slots__ = ("arrow", "index", "keys", "timestamps")

    def __init__(self, arrow: pa.RecordBatch, keys: pa.Array, index: Array, timestamps: Array | None = None) -> None:
        self.arrow, self.keys, self.index, self.timestamps = arrow, keys, index, timestamps

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def column(self, name: str) -> Array:
        """A column of the records as a numpy array; a view of the records where that is possible."""
        return np.asarray(self.arrow.column(name).to_numpy(zero_copy_only=False))

    # --- one result for each key ------------------------------------------------------------------------------------

    def count(self) -> npt.NDArray[np.int64]:
        """The number of records of each key."""
        return np.bincount(self.index, minlength=len(self.keys))

    def sum(self, values: str | Array) -> Array:
        """The sum over the records of each key, of a column or of an array with a value for each record."""
        values = self._values(values)
        kind = np.int64 if values.dtype.kind in "bi" else values.dtype
        return self._combined(np.add, values, np.zeros(len(self.keys), kind))

    def min(self, values: str | Array) -> Array:
        """The smallest value of the records of each key."""
        values = self._values(values)
        return self._combined(np.minimum, values, values[self.first()])

    def max(self, values: str | Array) -> Array:
        """The largest value of the records of each key."""
        values = self._values(values)
        return self._combined(np.maximum, values, values[self.first()])

    def first(self) -> npt.NDArray[np.int64]:
        """The place of the first record of each key."""
        places = np.empty(len(self.keys), np.int64)
        places[self.index[::-1]] = np.arange(len(self) - 1, -1, -1)
        return places

    def last(self) -> npt.NDArray[np.int64]:
        """The place of the last record of each key."""
        places = np.empty(len(self.keys), np.int64)
        places[self.index] = np.arange(len(self))
        return places

    # --- one result for each record ---------------------------------------------------------------------------------

    def running_sum(self, values: str | Array, start: Array) -> Array:
        """For each record `start` of its key plus the records of the key up to this one; `start` has a value for each key."""
        return np.asarray(running_sums(self.index, self._values(values)) + np.asarray(start)[self.index])

    def _values(self, values: str | Array) -> Array:
        found = self.column(values) if isinstance(values, str) else np.asarray(values)
        if len(found) != len(self):
            raise InvalidArgument("HR-2009", f"expected a value for each of the {len(self)} records, got {len(found)}")
        return found

    def _combined(self, combine: np.ufunc, values: Array, result: Array) -> Array:
        combine.at(result, self.index, values)
        return result


def running_sums(codes: Array, values: Array) -> Array:
    """For each record the sum over the records of its key up to it; `codes` says which have the same key."""
    order = np.argsort(codes, kind="stable")
    ordered, added = codes[order], values[order]
    sums = np.cumsum(added)
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])
    offsets = np.repeat(sums[first] - added[first], np.diff(np.r_[first, len(ordered)]))
    result = np.empty_like(sums)
    result[order] = sums - offsets
    return result


class KeyedBatchFunction(Function, ABC):
    """A function that gets whole batches of a keyed stream, and state with one value for each distinct key.

    In `open`, `runtime_context.get_state(ValueStateDescriptor(...))` gives the state; `get_many` reads it and `put_many`
    writes it for all keys of the batch at once. The stored state is that of a function which takes record by record under
    the same descriptor.
    """

    @abstractmethod
    def process_batch(self, batch: KeyedBatch) -> pa.RecordBatch | Iterable[pa.RecordBatch] | None:
        """The records that take the place of the batch.

        As many as the batch has keep its timestamps; one for each key has that of the key's last record.
        """
