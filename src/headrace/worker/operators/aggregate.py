"""Running aggregations: reduce with a user's function, and sum, min, max, count by columns.

State is touched once for each distinct key of a batch; what leaves is still one running result for every record, in
order (`emit="record"`), or one for every key and batch (`emit="batch"`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.functions import Function, callable_of
from headrace.api.keyed_batches import running_sums
from headrace.api.specs import AggregateSpec, Aggregation
from headrace.api.watermarks import MAX_WATERMARK
from headrace.errors import UserCodeError
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.records.flink_values import MutableRow
from headrace.records.kernel import detached
from headrace.records.key_groups import hash_column, key_groups_of
from headrace.records.types import PICKLED, TypeInformation, as_type
from headrace.state.addresses import VOID, address_of
from headrace.state.api import ValueStateDescriptor
from headrace.state.backend import NumberColumns
from headrace.state.tables import BatchTable
from headrace.worker.failures import NO_KEY as UNKNOWN
from headrace.worker.operators.base import OperatorContext, Receiver
from headrace.worker.operators.keyed import KeyedOperator
from headrace.worker.watermarks import Stamps

Array = np.ndarray[Any, np.dtype[Any]]
Combine = Callable[[Any, Any], Any]


class _RunningOperator(KeyedOperator):
    """One value per key, combined with each record of the key."""

    state_type: TypeInformation = PICKLED
    table: BatchTable  # when it is open

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        # In batch mode one result for each key leaves, when the input has ended.
        self.at_end = context.settings.batch
        self._selects_key = isinstance(self.function, Function) and type(self.function).open is not Function.open

    def open(self) -> None:
        super().open()
        self.open_table()

    def open_table(self) -> None:
        self.table = self.backend.value_table(self.descriptor())

    def descriptor(self) -> ValueStateDescriptor:
        """The state: one value for each key."""
        return ValueStateDescriptor("running", self.state_type)

    def fold(self, batch: Batch, start: Callable[[Any], Any], combine: Combine, every: bool) -> None:
        """Record by record in Python; `every`: a result for each record, else for each key."""
        rows = batch.rows()
        addresses, groups = self.keys_of(batch, 0)
        distinct = dict(zip(addresses, groups, strict=True))
        order, owners = list(distinct), list(distinct.values())
        running: dict[Any, Any] = dict(zip(order, self.table.get_many(order, owners), strict=True))
        out: list[Any] = []
        stamps = batch.timestamps
        row = address = UNKNOWN
        every = every and not self.at_end
        selected = self._selected(addresses, groups) if self._selects_key else addresses
        copies = self.detaches
        try:
            for address, row in zip(selected, rows, strict=True):
                old = running[address]
                running[address] = new = start(row) if old is None else combine(old, row)
                if every:
                    out.append(detached(new) if copies else new)
        except Exception as error:
            key = UNKNOWN if address is UNKNOWN else self.backend.key_at(address)
            raise self.failure(error, row, key) from error
        values = [running[address] for address in order]
        self.table.put_many(order, owners, values)
        self.end_batch()
        if self.at_end:
            return
        if stamps is not None and not every:
            last = {address: place for place, address in enumerate(addresses)}
            stamps = stamps[list(map(last.__getitem__, order))]
        if copies and not every:
            values = list(map(detached, values))
        self.emit_results(out if every else values, addresses if every else order, stamps)

    def _selected(self, addresses: list[Any], groups: list[int]) -> Iterator[Any]:
        """The addresses, each selected as the current key: for a function that may use state."""
        current = self.backend.context
        for address, current.address, current.group in zip(addresses, addresses, groups, strict=True):
            yield address

    def on_watermark(self, watermark: int) -> None:
        if not self.at_end or watermark < MAX_WATERMARK:
            return
        addresses: list[Any] = []
        results: list[Any] = []

        def take(key: Any, state: Any) -> None:
            addresses.append(address_of(key))
            results.append(state.value())

        self.guard(self.backend.apply_to_all_keys, self.descriptor(), VOID, take)
        self.end_batch()
        self.emit_results(results, addresses, None)

    def emit_results(self, results: list[Any], addresses: list[Any], stamps: Stamps | None) -> None:
        """Send results; `addresses` has the key of each. A result has the timestamp of the last record in it."""
        self.emit_rows(results, stamps)


class Reduce(_RunningOperator):
    """The running combination of a key's records by the user's function."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self.state_type = operator.type

    def receiver(self, input: int) -> Receiver:
        combine = callable_of(self.function, "reduce", "reduce()")
        if self.type.converts:  # the function finds the fields of its own results by name, as those of records
            reduce, named = combine, self.type.named
            combine = lambda one, other: named(reduce(one, other))  # noqa: E731
        return lambda batch: self.fold(batch, _same, combine, every=True)


def _same(row: Any) -> Any:
    return row


class Aggregate(_RunningOperator):
    """sum, min, max or count of a field for each key."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        spec = AggregateSpec.of(operator)
        self._how, self._position, self._every = spec.how, spec.position, spec.each_record
        key = spec.keys[0]
        assert key is not None
        self._key = key
        self._field = self._field_type()
        self._columnar = self._is_columnar()
        # A running float sum is order-dependent to the last bit; a loop adds in order whatever the batches are.
        self._in_order = self._every and self._how is Aggregation.SUM and pa.types.is_floating(self._field or pa.null())
        self._columns: NumberColumns | None = None
        # Only key and field in a record: a number per key is all there is to keep.
        self.state_type = (
            as_type(self._field) if self._columnar else PICKLED if self._how is Aggregation.COUNT else operator.type
        )

    def _field_type(self) -> pa.DataType | None:
        if self._how is Aggregation.COUNT:
            return pa.int64()
        if self.type.schema is None or self._position is None:
            return None
        return self.type.schema.field(self._position).type

    def _is_columnar(self) -> bool:
        if self.at_end or self._how in _WHOLE_RECORDS:
            return False
        if self._field is None or not (pa.types.is_integer(self._field) or pa.types.is_floating(self._field)):
            return False
        if len(self._key.columns) != 1 or not self._key.single or not _plain_key(self._key.type):
            return False
        if self._how is Aggregation.COUNT:
            return True
        schema = self.type.schema
        return schema is not None and len(schema) == 2 and self._key.columns[0] != self._position

    def open_table(self) -> None:
        # Floats are added record by record when every result leaves, so they need the state key by key.
        if self._columnar and not self._in_order:
            self._columns = self.backend.column_table(self.descriptor())
        if self._columns is None:
            super().open_table()

    def receiver(self, input: int) -> Receiver:
        return self._receive

    def _receive(self, batch: Batch) -> None:
        if self._columnar:
            self._check_nulls(batch.arrow())
        if self._columns is not None:
            self._by_slots(batch, self._columns)
        elif self._columnar and not self._in_order:
            self._by_columns(batch)
        elif self._how is Aggregation.COUNT:
            self.fold(batch, lambda _: 1, lambda old, _: old + 1, self._every)
        elif self._columnar:
            at, combine = self._position, _COMBINE[self._how]
            self.fold(batch, lambda row: row[at], lambda old, row: combine(old, row[at]), self._every)
        else:
            self.fold(batch, _same, self._combine_rows(), self._every)

    def _check_nulls(self, arrow: pa.RecordBatch) -> None:
        keys = arrow.column(self._key.columns[0])
        if keys.null_count:
            self.guard(hash_column, keys)  # says what is wrong with null keys
        if self._position is not None and arrow.column(self._position).null_count:
            name = arrow.schema.names[self._position]
            raise self.failure(
                UserCodeError("HR-5003", f"{self._how}() met a null in column '{name}': filter nulls out first")
            )

    def _combine_rows(self) -> Combine:
        at, combine = self._position, _COMBINE[self._how]
        whole = self._how in _WHOLE_RECORDS
        assert at is not None

        def rows(old: Any, row: Any) -> Any:
            if not isinstance(old, tuple | list | MutableRow):
                return combine(old, row)  # a scalar record is its own field
            best = combine(old[at], row[at])
            if whole:
                return old if best is old[at] else row
            if isinstance(old, tuple):
                return (*old[:at], best, *old[at + 1 :])
            changed = old.copy()
            changed[at] = best
            return changed

        return rows

    def emit_results(self, results: list[Any], addresses: list[Any], stamps: Stamps | None) -> None:
        if self._how is not Aggregation.COUNT and not self._columnar:
            self.emit_rows(results, stamps)
            return
        keys = [self.backend.key_at(address) for address in addresses]
        pair = (results, keys) if self._how is not Aggregation.COUNT and self._position == 0 else (keys, results)
        self.emit_rows(list(zip(*pair, strict=True)), stamps)

    def _by_slots(self, batch: Batch, table: NumberColumns) -> None:
        """Numbers under integer keys: no Python object for any record or key."""
        arrow = batch.arrow()
        column = arrow.column(self._key.columns[0])
        groups = key_groups_of(hash_column(column), self.context.info.max_parallelism)
        keys = column.to_numpy().astype(np.int64, copy=False)
        dtype = table.values.dtype
        self.backend.begin_batch((), ())
        slots = table.slots(keys, groups, _neutral(self._how, dtype))
        values = np.ones(len(keys), dtype) if self._position is None else arrow.column(self._position).to_numpy()
        results = self._running(slots, values, table.values[slots]) if self._every else None
        _UFUNC[self._how].at(table.values, slots, values)
        table.touch(slots)
        stamps = batch.timestamps
        if results is None:
            last = _last_of_each(slots, table.count)
            column, results = column.take(pa.array(last)), table.values[slots[last]]
            stamps = None if stamps is None else stamps[last]
        self.end_batch()  # slots are not valid any more
        self._emit_columns(column, pa.array(results), stamps)

    # --- by columns -------------------------------------------------------------------------------------------------

    def _by_columns(self, batch: Batch) -> None:
        arrow = batch.arrow()
        column = arrow.column(self._key.columns[0])
        encoded = pc.dictionary_encode(column)
        codes: Array = encoded.indices.to_numpy()
        distinct = encoded.dictionary
        groups = key_groups_of(hash_column(distinct), self.context.info.max_parallelism).tolist()
        addresses = self.backend.prepare_keys(distinct.to_pylist())
        self.backend.begin_batch(addresses, groups)
        old = self.table.get_many(addresses, groups)
        dtype = np.dtype(self._field.to_pandas_dtype())  # type: ignore[union-attr]
        values = np.ones(len(codes), dtype) if self._position is None else arrow.column(self._position).to_numpy()
        neutral = _neutral(self._how, dtype)
        start = np.array([neutral if value is None else value for value in old], dtype)
        totals = start.copy()
        _UFUNC[self._how].at(totals, codes, values)
        self.table.put_many(addresses, groups, totals.tolist())
        self.end_batch()
        stamps = batch.timestamps
        if self._every:
            self._emit_columns(column, pa.array(self._running(codes, values, start[codes])), stamps)
            return
        if stamps is not None:
            of_last = np.empty(len(totals), np.int64)
            of_last[codes] = stamps  # the last one of each key is what stays
            stamps = of_last
        self._emit_columns(distinct, pa.array(totals), stamps)

    def _running(self, codes: Array, values: Array, before: Array) -> Array:
        """The result behind each record: what the key had before, and the records of the key up to this one."""
        if self._how in (Aggregation.SUM, Aggregation.COUNT):
            return before + running_sums(codes, values)
        import pandas as pd  # it takes a third of a second, and is for this only

        grouped = pd.Series(values).groupby(codes, sort=False)
        running = grouped.cummin() if self._how is Aggregation.MIN else grouped.cummax()
        return np.asarray(_UFUNC[self._how](before, running.to_numpy()))

    def _emit_columns(self, keys: pa.Array, results: pa.Array, stamps: Stamps | None) -> None:
        schema: pa.Schema = self.type.schema
        columns = [results, keys] if self._position == 0 else [keys, results]
        try:
            columns = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
        except pa.ArrowInvalid as error:
            too_large = UserCodeError(
                "HR-5004", f"{self._how}() does not fit {self.type} any more: declare a wider type ({error})"
            )
            raise self.failure(too_large) from None
        self.emit(Batch(self.type, None, pa.RecordBatch.from_arrays(columns, schema=schema), stamps))


def _last_of_each(slots: Array, size: int) -> Array:
    """The place of the last record of each key, in order of place."""
    place = np.empty(size, np.int64)
    everywhere = np.arange(len(slots))
    place[slots] = everywhere
    return np.flatnonzero(place[slots] == everywhere)


def _plain_key(key_type: TypeInformation) -> bool:
    """Keys that dictionary encoding keeps apart exactly as the state does (floats have -0.0 and NaN)."""
    if not key_type.is_typed:
        return False
    arrow = key_type.arrow_type
    return bool(pa.types.is_integer(arrow) or pa.types.is_string(arrow) or pa.types.is_binary(arrow))


def _neutral(how: Aggregation, dtype: np.dtype[Any]) -> Any:
    """The value that an aggregation starts from."""
    if how in (Aggregation.SUM, Aggregation.COUNT):
        return dtype.type(0)
    greatest, least = (np.inf, -np.inf) if dtype.kind == "f" else (np.iinfo(dtype).max, np.iinfo(dtype).min)
    return greatest if how is Aggregation.MIN else least


_UFUNC: dict[Aggregation, np.ufunc] = {
    Aggregation.SUM: np.add,
    Aggregation.COUNT: np.add,
    Aggregation.MIN: np.minimum,
    Aggregation.MAX: np.maximum,
}
_COMBINE: dict[Aggregation, Combine] = {
    Aggregation.SUM: lambda a, b: a + b,
    Aggregation.MIN: min,
    Aggregation.MAX: max,
    Aggregation.MIN_BY: min,
    Aggregation.MAX_BY: max,
}
_WHOLE_RECORDS = (Aggregation.MIN_BY, Aggregation.MAX_BY)  # the result is the record with the value
