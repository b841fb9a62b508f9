"""A value state for all keys of a batch at once: as a column of numbers where it can be, else as a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import IllegalState, InvalidArgument
from headrace.records.copying import copied, copier
from headrace.state.api import StateDescriptor, ValueStateDescriptor
from headrace.state.backend import KeyedStateBackend
from headrace.state.tables import BatchTable

Array = npt.NDArray[Any]


class BatchValueState:
    """The value of each key of the current batch."""

    def __init__(self, descriptor: ValueStateDescriptor, backend: KeyedStateBackend) -> None:
        self.name = descriptor.name
        self._default = descriptor.default
        self._copy = copier(descriptor.type) if backend.returns_stored_objects else None
        arrow = descriptor.type.arrow_type if descriptor.type.kind == "scalar" and descriptor.type.is_typed else None
        is_number = arrow is not None and (pa.types.is_integer(arrow) or pa.types.is_floating(arrow))
        self._arrow = arrow if is_number else None
        self._columns = backend.column_table(descriptor)
        self._table: BatchTable | None = None if self._columns is not None else backend.value_table(descriptor)
        self._demote: Callable[[], BatchTable] = lambda: backend.value_table(descriptor)
        self._count = -1  # of the keys of the batch
        self._keys: Array | None = None
        self._addresses: list[Any] = []
        self._groups: Array = np.empty(0, np.int32)

    @property
    def by_address(self) -> bool:
        """Return True if it needs the addresses of keys that are int64."""
        return self._columns is None

    def begin(self, keys: Array | None, addresses: list[Any], groups: Array) -> None:
        """Begin a batch with these keys; `keys` are the numbers if they are int64, else `addresses` are given."""
        self._keys, self._addresses, self._groups, self._count = keys, addresses, groups, len(groups)

    def end(self) -> None:
        """End the batch."""
        self._count = -1

    def get_many(self, default: Any = None) -> Any:
        """The values, in order of the batch's keys, `default` where there is none: numbers as a numpy array, else a list.

        Without `default` that of the descriptor is used.
        """
        self._check_batch()
        default = self._default if default is None else default
        if self._arrow is not None and default is None:
            raise InvalidArgument(
                "HR-2009",
                f"value state '{self.name}': get_many() needs a default, such as get_many(0): a column of numbers has no None",
            )
        if self._columns is not None and self._keys is not None:
            slots = self._columns.find(self._keys, self._groups)
            found = self._columns.values[slots]
            found[(slots < 0) | ~self._columns.live[slots]] = default
            return found
        listed = self._as_table().get_many(self._addresses, self._groups.tolist())
        if self._arrow is not None:
            return np.array([default if value is None else value for value in listed], self._arrow.to_pandas_dtype())
        copy = self._copy or _same
        return [copied(default) if value is None else copy(value) for value in listed]

    def put_many(self, values: Any) -> None:
        """Store a value for each of the batch's keys, in their order; None, in a list, removes."""
        self._check_batch()
        if len(values) != self._count:
            raise InvalidArgument(
                "HR-2009",
                f"value state '{self.name}': put_many() needs a value for each of the {self._count} keys of the batch, "
                f"got {len(values)}",
            )
        if self._columns is not None and self._keys is not None and not _has_none(values):
            column = self._column(values)
            self._columns.put(self._columns.slots(self._keys, self._groups, 0), column)
            return
        listed = self._column(values).tolist() if self._arrow is not None and not _has_none(values) else list(values)
        if self._columns is not None and self._keys is not None:
            self._remove([value is None for value in listed])
            there = [i for i, value in enumerate(listed) if value is not None]
            slots = self._columns.slots(self._keys[there], self._groups[there], 0)
            self._columns.put(slots, self._column([listed[i] for i in there]))
            return
        self._as_table().put_many(self._addresses, self._groups.tolist(), listed)

    def remove_many(self, where: Any) -> None:
        """Remove the values of the keys for which `where`, one bool for each key, is true."""
        self._check_batch()
        chosen = np.asarray(where, np.bool_)
        if len(chosen) != self._count:
            raise InvalidArgument(
                "HR-2009",
                f"value state '{self.name}': remove_many() needs a bool for each of the {self._count} keys of the batch, "
                f"got {len(chosen)}",
            )
        self._remove(chosen)

    def _remove(self, where: Any) -> None:
        places = np.flatnonzero(where)
        if self._columns is not None and self._keys is not None:
            slots = self._columns.find(self._keys[places], self._groups[places])
            self._columns.remove(slots[slots >= 0])
        else:
            addresses = [self._addresses[i] for i in places.tolist()]
            self._as_table().put_many(addresses, self._groups[places].tolist(), [None] * len(addresses))

    def _as_table(self) -> BatchTable:
        if self._table is None:  # a key that is not an int64
            self._columns, self._table = None, self._demote()
        return self._table

    def _column(self, values: Any) -> Array:
        """Numbers as the column of the state's type; InvalidArgument if one does not fit."""
        assert self._arrow is not None
        try:
            array = pa.array(values) if not isinstance(values, pa.Array | pa.ChunkedArray) else values
            return np.asarray(array.cast(self._arrow).to_numpy(zero_copy_only=False))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(
                "HR-2009", f"value state '{self.name}': put_many(): the values are not {self._arrow}: {error}"
            ) from None

    def _check_batch(self) -> None:
        if self._count < 0:
            raise IllegalState(
                "HR-2009",
                f"value state '{self.name}' was used outside of process_batch(): it has the values of a batch's keys",
            )


def _same(value: Any) -> Any:
    return value


def _has_none(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype == object and any(value is None for value in values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return bool(values.null_count)
    return isinstance(values, Sequence) and None in values


class BatchStates:
    """Gives a KeyedBatchFunction its state."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend
        self.handles: list[BatchValueState] = []

    def state(self, descriptor: StateDescriptor) -> BatchValueState:
        """Return the state of a descriptor for all keys of a batch."""
        if not isinstance(descriptor, ValueStateDescriptor) or descriptor.ttl is not None:
            raise InvalidArgument(
                "HR-2006",
                f"state '{descriptor.name}': a function over batches has value states without a time to live; use a "
                "KeyedProcessFunction for lists, maps and TTL",
            )
        handle = BatchValueState(descriptor, self._backend)
        self.handles.append(handle)
        return handle

    def raw_streams(self) -> Any:
        return self._backend.raw_streams()
