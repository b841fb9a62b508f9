"""Keyed functions over whole batches: records are grouped by key with Arrow and numpy, state is read and written at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.functions import StateAccess
from headrace.api.keyed_batches import KeyedBatch
from headrace.errors import InvalidArgument
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.records.key_groups import hash_columns, key_groups_of
from headrace.state.batch_values import BatchStates
from headrace.worker.operators.base import OperatorContext, Receiver
from headrace.worker.operators.keyed import KeyedOperator
from headrace.worker.operators.stateless import MapBatches
from headrace.worker.watermarks import Stamps

Array = np.ndarray[Any, np.dtype[Any]]


class KeyedBatches(KeyedOperator, MapBatches):
    """Calls the user's function with each batch and its distinct keys."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        key = operator.spec.keys[0]
        assert key is not None
        self._key = key
        # What dictionary encoding keeps apart exactly as the state does: floats have -0.0 and NaN.
        self._by_columns = bool(key.columns) and all(
            pa.types.is_integer(field.type) or pa.types.is_string(field.type) or pa.types.is_binary(field.type)
            for field in (key.type.schema or ())
        )
        self._states: BatchStates | None = None

    def keyed_state(self) -> StateAccess:
        self._states = BatchStates(self.backend)
        return self._states

    def receiver(self, input: int) -> Receiver:
        function = self.method("process_batch", input)

        def receive(batch: Batch) -> None:
            keyed = self._grouped(batch)
            for arrow in self._batches(self.guard(function, keyed)):
                if arrow.num_rows:
                    output = Batch.of_arrow(self.guard(self.type.fit, arrow), self.type)
                    output.timestamps = _stamps(keyed, len(output))
                    self.emit(output)
            for handle in self._states.handles if self._states is not None else ():
                handle.end()
            self.end_batch()

        return receive

    def _grouped(self, batch: Batch) -> KeyedBatch:
        """The batch with its distinct keys, and its state ready for them."""
        arrow = batch.arrow()
        if not self._by_columns:
            return self._grouped_one_by_one(batch)
        columns = [arrow.column(position) for position in self._key.columns]
        if any(column.null_count for column in columns):
            self.guard(hash_columns, columns)  # says what is wrong with null keys
        index, first = _codes(columns)
        chosen = [column.take(pa.array(first)) for column in columns]
        groups = key_groups_of(hash_columns(chosen), self.context.info.max_parallelism)
        fields = [arrow.schema.field(position) for position in self._key.columns]
        keys = chosen[0] if self._key.single else pa.StructArray.from_arrays(chosen, fields=fields)
        numbers = None
        if self._key.single and pa.types.is_signed_integer(keys.type):
            numbers = keys.to_numpy().astype(np.int64, copy=False)
        self._begin(numbers, chosen, groups)
        return KeyedBatch(arrow, keys, index, batch.timestamps)

    def _begin(self, numbers: Array | None, columns: list[pa.Array], groups: Array) -> None:
        assert self._states is not None
        addresses: list[Any] = []
        if numbers is None or any(handle.by_address for handle in self._states.handles):
            listed = [column.to_pylist() for column in columns]
            keys = listed[0] if self._key.single else list(zip(*listed, strict=True))
            addresses = self.backend.prepare_keys(keys)
        self.backend.begin_batch(addresses, groups.tolist() if addresses else ())
        for handle in self._states.handles:
            handle.begin(numbers, addresses, groups)

    def _grouped_one_by_one(self, batch: Batch) -> KeyedBatch:
        """Keys of a function, or of types that only Python tells apart."""
        keys, groups, _ = self.guard(self._readers[0].keys_and_groups, batch)
        addresses = self.backend.prepare_keys(keys)
        places: dict[Any, int] = {}
        index = np.array([places.setdefault(address, len(places)) for address in addresses], np.int64)
        distinct = KeyedBatch(batch.arrow(), pa.nulls(len(places)), index).first()
        chosen = distinct.tolist()
        held = np.array([groups[i] for i in chosen], np.int32)
        self.backend.begin_batch([addresses[i] for i in chosen], held.tolist())
        assert self._states is not None
        for handle in self._states.handles:
            handle.begin(None, [addresses[i] for i in chosen], held)
        return KeyedBatch(batch.arrow(), self.guard(_key_array, [keys[i] for i in chosen]), index, batch.timestamps)


def _codes(columns: list[pa.Array]) -> tuple[Array, Array]:
    """For each record the place of its key among the distinct keys, and for each of these the place of its first record."""
    codes: Array | None = None
    for column in columns:
        encoded = pc.dictionary_encode(column)
        own = encoded.indices.to_numpy()
        codes = own if codes is None else codes.astype(np.int64) * len(encoded.dictionary) + own
        if codes is not own:
            codes = pc.dictionary_encode(pa.array(codes)).indices.to_numpy()
    assert codes is not None
    first = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, first


def _key_array(keys: list[Any]) -> pa.Array:
    try:
        return pa.array(keys)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            "HR-1305",
            f"process_batches() needs keys that are a column of one type, such as numbers or texts: {error}; use a "
            "KeyedProcessFunction, or another key",
        ) from None


def _stamps(batch: KeyedBatch, count: int) -> Stamps | None:
    """The timestamps of results: of the records if there are as many, of each key's last record, else none."""
    if batch.timestamps is None or count == len(batch):
        return batch.timestamps
    return batch.timestamps[batch.last()] if count == len(batch.keys) else None
