"""The keys of a batch: from columns where the stream is typed, otherwise by the user's selector."""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.api.functions import callable_of
from headgate.graph.job_graph import KeySpec
from headgate.records.batch import Batch
from headgate.records.key_groups import KeyHasher, hash_columns, key_groups_of


class KeyReader:
    """Extracts keys and key groups; writer and reader of a keyed edge use the same rules."""

    def __init__(self, key: KeySpec, max_parallelism: int) -> None:
        self._columns = key.columns
        self._single = key.single
        self._max_parallelism = max_parallelism
        self._select = None if key.columns else callable_of(key.selector, "get_key", "key_by()")
        self._hasher = KeyHasher(max_parallelism)
        self.type = key.type

    def keys(self, batch: Batch) -> list[Any]:
        """The key of every record."""
        if self._select is not None:
            select = self._select
            return [select(row) for row in batch.rows()]
        columns = batch.type.columns(batch.arrow(), self._columns)
        return columns[0] if self._single else list(zip(*columns, strict=True))

    def groups(self, batch: Batch) -> np.ndarray[Any, np.dtype[Any]]:
        """The key group of every record."""
        if self._columns:
            arrow = batch.arrow()
            return key_groups_of(hash_columns([arrow.column(c) for c in self._columns]), self._max_parallelism)
        return np.array(self._hasher.groups(self.keys(batch)), np.int32)

    def group_of(self, key: Any) -> int:
        """The key group of one key, for look-ups outside of batches."""
        if not self._columns:
            return self._hasher.group(key)
        batch = self.type.to_batch([key])
        return int(key_groups_of(hash_columns(batch.columns), self._max_parallelism)[0])

    def keys_and_groups(self, batch: Batch) -> tuple[list[Any], list[int]]:
        """Keys and key groups, with the selector called once for each record."""
        keys = self.keys(batch)
        if self._columns:
            return keys, self.groups(batch).tolist()
        return keys, self._hasher.groups(keys)
