"""`spark.read.format("headrace-state")`: the state of any checkpoint or savepoint as a DataFrame.

    spark.read.format("headrace-state").option("operator", "count").option("state", "total").load("/checkpoints/.../chk-7")

Without `operator` and `state` the rows list the states. Options: `keyGroups` ("0-15") reads only these key groups, `key`
(a text, or a number for integer keys) only the key group of that key. With `pushFilters` = true, and
spark.sql.python.filterPushdown.enabled, filters `key_group = n` and `key = x` are used the same way. The driver plans the
read, Spark's workers read the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import InvalidArgument
from headrace.records.key_groups import KeyGroupRange, KeyHasher
from headrace.savepoints.reader import StateInfo, StateSnapshotReader

__all__ = ["StateDataSource"]

_TEXTS = ("operator", "uid", "operator_id", "state", "kind", "columns", "backend")
_LISTING = pa.schema(
    [(name, pa.string()) for name in _TEXTS] + [("parallelism", pa.int32()), ("max_parallelism", pa.int32())]
)


class StateDataSource(DataSource):
    """Any checkpoint or savepoint."""

    @classmethod
    def name(cls) -> str:
        return "headrace-state"

    def schema(self) -> StructType:
        """Return the columns of the state's table, or those of the list of states."""
        wanted = self._wanted()
        return from_arrow_schema(_LISTING if wanted is None else self._snapshot().state(*wanted).schema)

    def _snapshot(self) -> StateSnapshotReader:
        path = self.options.get("path")
        if not path:
            raise InvalidArgument("HR-3008", "headrace-state needs a path: .load('/checkpoints/<job>/chk-7')")
        return StateSnapshotReader.open(path)

    def _wanted(self) -> tuple[str, str] | None:
        operator, state = self.options.get("operator"), self.options.get("state")
        if (operator is None) != (state is None):
            raise InvalidArgument(
                "HR-3008", "headrace-state needs both options 'operator' and 'state', or none to list the states"
            )
        return None if operator is None or state is None else (operator, state)

    def reader(self, schema: StructType) -> DataSourceReader:
        wanted = self._wanted()
        snapshot = self._snapshot()
        if wanted is None:
            return _ListingReader(snapshot)
        info = snapshot.state(*wanted)
        kind = _FilteringReader if self.options.get("pushfilters") == "true" else _StateReader
        return kind(snapshot, info, _groups(self.options, snapshot, info))


def _groups(options: Any, snapshot: StateSnapshotReader, info: StateInfo) -> KeyGroupRange | None:
    if (text := options.get("keygroups")) is not None:
        first, _, last = text.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise InvalidArgument("HR-3008", f"keyGroups is '{text}'; give one group or a range, for example 0-15")
        return KeyGroupRange(int(first), int(last or first))
    key = options.get("key")
    if key is None:
        return None
    if not info.keyed:
        raise InvalidArgument("HR-3008", f"state '{info.name}' is {info.kind} state and has no keys")
    return _group_of(_parsed(key, info), snapshot, info)


def _group_of(key: Any, snapshot: StateSnapshotReader, info: StateInfo) -> KeyGroupRange:
    group = KeyHasher(snapshot.operator(info.operator_id).max_parallelism).group(key)
    return KeyGroupRange(group, group)


def _parsed(key: str, info: StateInfo) -> Any:
    field = info.schema.field("key") if "key" in info.schema.names else None
    return int(key) if field is not None and pa.types.is_integer(field.type) else key


class _ListingReader(DataSourceReader):
    def __init__(self, snapshot: StateSnapshotReader) -> None:
        operators = {str(op.id): op for op in snapshot.manifest.operators}
        self._rows = []
        for info in snapshot.states():
            columns = ", ".join(f"{field.name} {field.type}" for field in info.schema)
            texts = info.operator, info.uid, info.operator_id, info.name, info.kind, columns, info.backend
            operator = operators[info.operator_id]
            row = *texts, operator.parallelism, operator.max_parallelism
            self._rows.append(dict(zip(_LISTING.names, row, strict=True)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(self._rows, schema=_LISTING)


class _StateReader(DataSourceReader):
    def __init__(self, snapshot: StateSnapshotReader, info: StateInfo, groups: KeyGroupRange | None) -> None:
        self._snapshot: StateSnapshotReader | None = snapshot
        self._path = snapshot.snapshot.directory
        self._info, self._groups = info, groups

    def __getstate__(self) -> dict[str, Any]:
        """Workers open the snapshot by its path."""
        return {**self.__dict__, "_snapshot": None}

    def partitions(self) -> list[InputPartition]:
        """One partition for each old subtask with any of the rows."""
        assert self._snapshot is not None
        return list(map(InputPartition, self._snapshot.parts(self._info.operator_id, self._info.name, self._groups)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from StateSnapshotReader.open(self._path).read_part(partition.value)


class _FilteringReader(_StateReader):
    """A reader with filters; Spark refuses a reader with this method while filter pushdown is disabled."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Use `key_group = n` and `key = x` to read less; Spark applies all filters as well."""
        assert self._snapshot is not None
        for one in filters:
            if isinstance(one, EqualTo) and self._info.keyed:
                if one.attribute == ("key_group",):
                    self._narrow(KeyGroupRange(one.value, one.value))
                elif one.attribute == ("key",):
                    self._narrow(_group_of(one.value, self._snapshot, self._info))
        return filters

    def _narrow(self, groups: KeyGroupRange) -> None:
        self._groups = groups if self._groups is None else self._groups.intersect(groups)
