"""The keys of a batch: from columns where the stream is typed, otherwise by the user's selector."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.api.functions import callable_of
from headrace.errors import InvalidArgument
from headrace.graph.job_graph import KeySpec
from headrace.records.batch import Batch
from headrace.records.key_groups import KeyHasher, hash_columns, key_groups_of
from headrace.records.types import form_of
from headrace.state.backend import KeyArrays

_KINDS: Final[dict[pa.DataType, type]] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
    pa.binary(): bytes,
    pa.date32(): dt.date,
}


class _Exact:
    """The values that a column of a declared key type gives back unchanged."""

    __slots__ = ("_kinds", "_limit")

    def __init__(self, field: pa.Field) -> None:
        kind = object if form_of(field) else _KINDS.get(field.type, object)  # no value is of class `object` alone
        self._kinds = {kind}
        self._limit = 1 << (field.type.bit_width - 1) if kind is int else 0

    def holds(self, values: Sequence[Any]) -> bool:
        """Return True if the column holds all of some values exactly; an integer may be too large for it."""
        if set(map(type, values)) != self._kinds:
            return False
        return not self._limit or (-self._limit <= min(values) and max(values) < self._limit)


class KeyReader:
    """Extracts keys and key groups; writer and reader of a keyed edge use the same rules."""

    def __init__(self, key: KeySpec, max_parallelism: int) -> None:
        self._columns = key.columns
        self._single = key.single
        self._integers = bool(key.columns) and key.single and pa.types.is_signed_integer(key.type.arrow_type)
        self._max_parallelism = max_parallelism
        self._select = None if key.columns else callable_of(key.selector, "get_key", "key_by()")
        self._hasher = KeyHasher(max_parallelism)
        self.type = key.type
        # Keys of a declared type are converted to it, unless every field is what its column gives back.
        declared = key.type.schema if not key.columns and key.type.is_typed else None
        self._exact = None if declared is None else list(map(_Exact, declared))

    def keys(self, batch: Batch) -> list[Any]:
        """The key of every record."""
        if self._select is not None:
            select = self._select
            keys = [select(row) for row in batch.rows()]
            return keys if self._exact is None or self._fit(keys) else self._converted(keys)
        if batch.is_small:
            rows = batch.plain_rows()
            fields = [rows if batch.type.kind == "scalar" else list(map(itemgetter(c), rows)) for c in self._columns]
            return fields[0] if self._single else list(zip(*fields, strict=True))
        columns = [batch.column(c) for c in self._columns]
        return columns[0] if self._single else list(zip(*columns, strict=True))

    def _fit(self, keys: list[Any]) -> bool:
        """Return True if all keys are what the declared type gives back when they are read from columns."""
        exact = self._exact
        assert exact is not None
        if self.type.kind == "scalar":
            return exact[0].holds(keys)
        if set(map(type, keys)) != {tuple} or set(map(len, keys)) != {len(exact)}:
            return False
        return all(one.holds(list(map(itemgetter(place), keys))) for place, one in enumerate(exact))

    def _converted(self, keys: list[Any]) -> list[Any]:
        if None in keys:
            raise InvalidArgument(
                "HR-1305", f"key is None, which is not {self.type}: every record needs a key, or leave key_type out"
            )
        if pa.types.is_integer(self.type.arrow_type) and set(map(type, keys)) <= {int, float, bool}:
            keys = list(map(int, keys))
        converted = self.type.to_rows(self.type.to_batch(keys))
        return list(map(tuple, converted)) if self.type.mutable else converted

    def groups(self, batch: Batch) -> np.ndarray[Any, np.dtype[Any]]:
        """The key group of every record."""
        if self._columns and not batch.is_small:
            arrow = batch.arrow()
            return key_groups_of(hash_columns([arrow.column(c) for c in self._columns]), self._max_parallelism)
        return np.array(self._hasher.groups(self.keys(batch)), np.int32)

    def group_of(self, key: Any) -> int:
        """The key group of one key, for look-ups outside of batches."""
        if not self._columns:
            if self._exact is not None and not self._fit([key]):
                (key,) = self._converted([key])
            return self._hasher.group(key)
        batch = self.type.to_batch([key])
        return int(key_groups_of(hash_columns(batch.columns), self._max_parallelism)[0])

    def keys_and_groups(self, batch: Batch) -> tuple[list[Any], list[int], KeyArrays | None]:
        """Keys and key groups, with the selector called once for each record; both as arrays too, if keys are integers."""
        if not self._columns or batch.is_small:
            keys = self.keys(batch)
            return keys, self._hasher.groups(keys), None
        groups = self.groups(batch)  # refuses null keys
        if self._integers:
            numbers = batch.arrow().column(self._columns[0]).to_numpy().astype(np.int64, copy=False)
            return batch.column(self._columns[0]), groups.tolist(), (numbers, groups)
        return self.keys(batch), groups.tolist(), None
