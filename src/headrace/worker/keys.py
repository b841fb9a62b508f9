"""The keys of a batch: from columns where the stream is typed, otherwise by the user's selector."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.api.functions import callable_of
from headrace.errors import InvalidArgument
from headrace.graph.job_graph import KeySpec
from headrace.records.batch import Batch
from headrace.records.key_groups import KeyHasher, hash_columns, key_groups_of
from headrace.records.types import TypeInformation, form_of
from headrace.state.backend import KeyArrays

_KINDS: Final[dict[pa.DataType, type]] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
    pa.binary(): bytes,
}


def _python_type(key_type: TypeInformation) -> type:
    """The type of keys that need no conversion; `object`, which no key has, if all of them do."""
    assert key_type.schema is not None
    if key_type.kind != "scalar":
        return tuple
    field = key_type.schema.field(0)
    return object if form_of(field) else _KINDS.get(field.type, object)


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
        # Keys of a declared type are converted to it, if they are not of its Python type already.
        self._kind = None if key.columns or not key.type.is_typed else {_python_type(key.type)}
        self._limit = 1 << (key.type.arrow_type.bit_width - 1) if self._kind == {int} else None

    def keys(self, batch: Batch) -> list[Any]:
        """The key of every record."""
        if self._select is not None:
            select = self._select
            keys = [select(row) for row in batch.rows()]
            return keys if self._kind is None or self._fit(keys) else self._converted(keys)
        if batch.is_small:
            rows = batch.plain_rows()
            fields = [rows if batch.type.kind == "scalar" else list(map(itemgetter(c), rows)) for c in self._columns]
            return fields[0] if self._single else list(zip(*fields, strict=True))
        columns = [batch.column(c) for c in self._columns]
        return columns[0] if self._single else list(zip(*columns, strict=True))

    def _fit(self, keys: list[Any]) -> bool:
        """Return True if all keys are what the declared type holds; an integer may be too large for it."""
        if set(map(type, keys)) != self._kind:
            return False
        return self._limit is None or (-self._limit <= min(keys) and max(keys) < self._limit)

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
