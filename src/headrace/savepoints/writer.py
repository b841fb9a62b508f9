"""Write a savepoint from DataFrames: to start a job with state from another system, or to repair state.

    writer = SavepointWriter.new(max_parallelism=128)
    writer.with_keyed_state("count", ValueStateDescriptor("total", "bigint"), df, key="user", value="n")
    path = writer.write("/savepoints")

`SavepointWriter.from_existing(path)` starts with a canonical savepoint: states that are given replace those of the same
name, all others are copied. The operator is named by its uid. The user's process runs it; Spark's workers write the
tables, one file for each part.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from headrace.checkpoint.handles import FileRef, Payload, StateMeta, decode_handle, encode_handle
from headrace.checkpoint.types import SnapshotType
from headrace.errors import IllegalState, InvalidArgument
from headrace.graph.job_graph import operator_id_of
from headrace.ids import OperatorId, new_job_id
from headrace.records import key_groups
from headrace.records.types import TypeInformation, as_type
from headrace.state.api import StateDescriptor
from headrace.state.parquet import keyed as parquet
from headrace.storage import manifest as mf
from headrace.storage.byte_handles import FileSegment
from headrace.storage.layout import (
    AttemptId,
    make_savepoint_directory,
    savepoint_target,
    state_directory,
    table_directory,
)
from headrace.storage.objects import ObjectStore
from headrace.storage.published_snapshots import Snapshot, load_snapshot, publish
from headrace.storage.remote import open_store

__all__ = ["SavepointWriter"]

_RESULT = pa.schema(
    {"part": pa.int32(), "file": pa.string(), "groups": pa.list_(pa.int32()), "sizes": pa.list_(pa.int64())}
    | dict.fromkeys(["rows", "size", "crc"], pa.int64())
)


@dataclass(frozen=True, slots=True)
class _StateColumns:
    """A state to write, and the columns of a DataFrame that hold it."""

    meta: StateMeta
    key_type: TypeInformation
    keys: tuple[str, ...]
    values: tuple[str, ...]
    map_key: str | None
    position: str | None


_Table = tuple[parquet.StoredTable, FileRef, mf.SnapshotPart]


@dataclass(slots=True)
class _OperatorTables:
    """The tables of one operator: a list for each part of the savepoint, which is a subtask for the restore."""

    uid: str
    key_type: TypeInformation
    parts: list[list[_Table]]


class SavepointWriter:
    """Gathers states, then writes them as one canonical savepoint."""

    def __init__(self, max_parallelism: int, parts: int, existing: Snapshot | None = None) -> None:
        """Use `new` or `from_existing`."""
        key_groups.check_max_parallelism(max_parallelism, parts, "the savepoint")
        self._max, self._parts, self._existing = max_parallelism, parts, existing
        self._states: dict[tuple[str, str], tuple[_StateColumns, DataFrame]] = {}
        self._dropped: set[str] = set()

    @classmethod
    def new(cls, max_parallelism: int = 128, parts: int = 4) -> SavepointWriter:
        """Return an empty savepoint; `parts` is how many files each state is written to."""
        return cls(max_parallelism, parts)

    @classmethod
    def from_existing(cls, path: str) -> SavepointWriter:
        """Return a changed copy of a canonical savepoint."""
        snapshot = load_snapshot(open_store(), path)
        if snapshot.manifest.format != parquet.CANONICAL:
            raise IllegalState(
                "HR-3007",
                f"'{path}' is not a canonical savepoint, so it cannot be changed: take one with --format CANONICAL",
            )
        operators = [op for op in snapshot.manifest.operators if any(s.pieces for s in op.subtasks)]
        limits = {op.max_parallelism for op in operators} or {128}
        return cls(max(limits), max([op.parallelism for op in operators], default=1), snapshot)

    def without_operator(self, uid: str) -> SavepointWriter:
        """Leave out an operator of the existing savepoint."""
        self._dropped.add(str(operator_id_of(uid)))
        return self

    def with_keyed_state(
        self,
        uid: str,
        state: StateDescriptor,
        frame: DataFrame,
        key: str | Sequence[str],
        value: str | Sequence[str],
        *,
        key_type: object = None,
        map_key: str | None = None,
        position: str | None = None,
    ) -> SavepointWriter:
        """Keyed state of the operator with this uid: one row of the DataFrame for each value, element or entry.

        `key` and `value` name columns; several make a tuple, or a row of the state's type. A list state needs `position`
        (the order of elements), a map state `map_key`. The key's type is that of its column unless `key_type` is given.
        """
        if state.ttl is not None:
            raise InvalidArgument(
                "HR-3008",
                f"state '{state.name}' has a time to live: write it without, and read it with headrace.state.ttl-migration.enabled",
            )
        if not state.type.is_typed:
            raise InvalidArgument(
                "HR-3008",
                f"state '{state.name}' has no type; give one, for example ValueStateDescriptor('n', 'bigint')",
            )
        for kind, option, column in (("map", "map_key", map_key), ("list", "position", position)):
            if (state.kind == kind) != (column is not None):
                raise InvalidArgument(
                    "HR-3008",
                    f"state '{state.name}' is {state.kind} state: {option} is for {kind} state, and only for it",
                )
        keys = (key,) if isinstance(key, str) else tuple(key)
        values = (value,) if isinstance(value, str) else tuple(value)
        found = as_type(key_type) if key_type is not None else _key_type(frame, keys)
        self._states[uid, state.name] = _StateColumns(state.meta(), found, keys, values, map_key, position), frame
        return self

    def write(self, target: str) -> str:
        """Write the savepoint below a directory; returns its path."""
        store = open_store()
        job_id = new_job_id()
        directory = make_savepoint_directory(store, savepoint_target(target, None), job_id)
        operators: dict[str, _OperatorTables] = {}
        for (uid, _), (state, frame) in self._states.items():
            operator_id = str(operator_id_of(uid))
            new = _OperatorTables(uid, state.key_type, [[] for _ in range(self._parts)])
            operator = operators.setdefault(operator_id, new)
            if operator.key_type != state.key_type:
                raise InvalidArgument(
                    "HR-3008",
                    f"the states of operator '{uid}' have keys of different types: {operator.key_type}, {state.key_type}",
                )
            folder = state_directory(table_directory(uid, operator_id), state.meta.name)
            self._write_state(state, frame, directory, folder, operator.parts)
        kept = list(self._existing_operators(_FileCopier(store, self._existing, directory), operators))
        made = [self._operator(id, operator) for id, operator in operators.items()]
        manifest = mf.Manifest(
            1 if self._existing is None else self._existing.manifest.checkpoint_id,
            SnapshotType.SAVEPOINT,
            job_id,
            "savepoint writer" if self._existing is None else self._existing.manifest.job_name,
            AttemptId(1),
            time.time_ns() // 1_000_000,
            (*kept, *made),
            parquet.CANONICAL,
        )
        publish(store, manifest, directory)
        return directory

    def _write_state(
        self, state: _StateColumns, frame: DataFrame, directory: str, folder: str, parts: list[list[_Table]]
    ) -> None:
        """Write one file for each part with Spark."""
        open_store().make_directory(f"{directory}/{folder}")
        job = _WriteJob(state, self._max, self._parts, f"{directory}/{folder}")
        added = [StructField("hr_group", IntegerType()), StructField("hr_part", IntegerType())]
        schema = StructType([*frame.schema.fields, *added])  # add() would change the DataFrame's own
        grouped = frame.mapInArrow(job.add_groups, schema).groupBy("hr_part")
        rows = grouped.applyInArrow(lambda table: job.write(table), from_arrow_schema(_RESULT)).collect()  # noqa: PLW0108 - Spark counts arguments
        for row in rows:
            name = f"{folder}/{row['file']}"
            table = parquet.StoredTable(state.meta, name, list(row["groups"]), row["rows"], list(row["sizes"]))
            file = FileRef(name, Payload(name, row["size"], row["crc"]), shared=False, created_by=1)
            part = mf.SnapshotPart(name, FileSegment(f"{directory}/{name}", 0, row["size"], row["crc"]))
            parts[row["part"]].append((table, file, part))

    def _operator(self, operator_id: str, operator: _OperatorTables) -> mf.OperatorManifest:
        subtasks = []
        for index, tables in enumerate(operator.parts):
            groups = key_groups.key_group_range(index, self._max, self._parts)
            stored, files = [table for table, _, _ in tables], [file for _, file, _ in tables]
            handle = parquet.describe_tables(1, self._max, groups, operator.key_type, files, stored)
            parts = tuple(part for _, _, part in tables)
            piece = mf.StatePiece(mf.PieceKind.KEYED, parts, encode_handle(handle), groups)
            subtasks.append(mf.SubtaskManifest(index, (piece,) if tables else ()))
        uid = operator.uid
        return mf.OperatorManifest(OperatorId(operator_id), uid, self._parts, self._max, tuple(subtasks), uid)

    def _existing_operators(
        self, copier: _FileCopier, changed: dict[str, _OperatorTables]
    ) -> Iterator[mf.OperatorManifest]:
        """The other operators of the existing savepoint; states of changed operators that were not given are copied too."""
        for operator in () if self._existing is None else self._existing.manifest.operators:
            tables = changed.get(operator.id)
            if tables is None and operator.id not in self._dropped:
                yield copier.operator(operator)
            if tables is None or operator.id in self._dropped:
                continue
            given = {name for uid, name in self._states if uid == tables.uid}
            for subtask in operator.subtasks:
                for piece in subtask.pieces:
                    if piece.kind is mf.PieceKind.KEYED:
                        handle = decode_handle(piece.description)
                        tables.key_type = handle.key_type.type_info()
                        files = {file.name: file for file in handle.files}
                        parts = {part.id: part for part in piece.parts}
                        tables.parts[subtask.index] += [
                            (table, files[table.file], copier.part(parts[table.file]))
                            for table in parquet.stored_tables(handle)
                            if table.meta.name not in given
                        ]


class _FileCopier:
    """Copies files of one savepoint into another."""

    def __init__(self, store: ObjectStore, source: Snapshot | None, target: str) -> None:
        self._store, self._source, self._target = store, "" if source is None else source.directory, target

    def part(self, part: mf.SnapshotPart) -> mf.SnapshotPart:
        handle = part.handle
        if not isinstance(handle, FileSegment):
            return part
        relative = handle.path.removeprefix(f"{self._source}/")
        folder, _, name = f"{self._target}/{relative}".rpartition("/")
        if not self._store.exists(f"{folder}/{name}"):
            self._store.make_directory(folder)
            writer = self._store.writer(folder)
            writer.write(self._store.read(handle.path))
            writer.finish(name)
        return msgspec.structs.replace(part, handle=msgspec.structs.replace(handle, path=f"{folder}/{name}"))

    def operator(self, operator: mf.OperatorManifest) -> mf.OperatorManifest:
        subtasks = []
        for subtask in operator.subtasks:
            pieces = tuple(
                msgspec.structs.replace(piece, parts=tuple(map(self.part, piece.parts))) for piece in subtask.pieces
            )
            subtasks.append(msgspec.structs.replace(subtask, pieces=pieces))
        return msgspec.structs.replace(operator, subtasks=tuple(subtasks))


def _key_type(frame: DataFrame, keys: tuple[str, ...]) -> TypeInformation:
    schema = to_arrow_schema(frame.select(*keys).schema)
    if len(keys) == 1:
        return as_type(schema.field(0).type)
    return TypeInformation("tuple", pa.schema([(f"f{i}", column.type) for i, column in enumerate(schema)]))


@dataclass(frozen=True, slots=True)
class _WriteJob:
    """Runs in Spark's workers; plain data that can be pickled."""

    state: _StateColumns
    max_parallelism: int
    parts: int
    directory: str

    def add_groups(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the key group and the part of each row."""
        for batch in batches:
            if len(self.state.keys) == 1 and self.state.key_type.kind == "scalar":
                column = batch.column(self.state.keys[0]).cast(self.state.key_type.arrow_type)
                groups = key_groups.key_groups_of(key_groups.hash_column(column), self.max_parallelism).tolist()
            else:
                keys = list(zip(*(batch.column(name).to_pylist() for name in self.state.keys), strict=True))
                groups = key_groups.KeyHasher(self.max_parallelism).groups(keys)
            parts = [key_groups.owner(group, self.max_parallelism, self.parts) for group in groups]
            columns = [*batch.columns, pa.array(groups, pa.int32()), pa.array(parts, pa.int32())]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "hr_group", "hr_part"])

    def write(self, table: pa.Table) -> pa.Table:
        """Write one part; returns one row that describes the file."""
        part = table.column("hr_part")[0].as_py()
        order = [("hr_group", "ascending"), *((name, "ascending") for name in self.state.keys)]
        if self.state.position is not None:
            order.append((self.state.position, "ascending"))
        table = table.sort_by(order)
        schema = parquet.table_schema(self.state.meta, self.state.key_type)
        result = pa.Table.from_arrays([self._column(table, column) for column in schema], schema=schema)
        name = f"part-{part:05d}.parquet"
        local = Path(self.directory.removeprefix("file://")) / name
        stored = parquet.write_table(self.state.meta, self.state.key_type, _by_group(result), local, name)
        data = local.read_bytes()
        row = [part, name, stored.groups, stored.sizes, stored.rows, len(data), zlib.crc32(data)]
        return pa.Table.from_pylist([dict(zip(_RESULT.names, row, strict=True))], schema=_RESULT)

    def _column(self, table: pa.Table, column: pa.Field) -> pa.ChunkedArray:
        if column.name == "key_group":
            return table.column("hr_group")
        if column.name == "namespace":
            return pa.chunked_array([pa.nulls(table.num_rows, pa.string())])
        if column.name == "pos":
            return _positions(table, self.state.keys)
        if column.name == "map_key":
            return table.column(self.state.map_key or "").cast(column.type)
        names = self.state.keys if column.name == "key" else self.state.values
        if len(names) == 1 and not (pa.types.is_struct(column.type) and column.name == "key"):
            return table.column(names[0]).cast(column.type)
        arrays = [
            table.column(name).combine_chunks().cast(inner.type) for name, inner in zip(names, column.type, strict=True)
        ]
        flat = [array.chunk(0) if isinstance(array, pa.ChunkedArray) else array for array in arrays]
        return pa.chunked_array([pa.StructArray.from_arrays(flat, fields=list(column.type))])


def _positions(table: pa.Table, keys: tuple[str, ...]) -> pa.ChunkedArray:
    """0, 1, 2, ... for the elements of each key, in the order they are in."""
    rows = list(zip(*(table.column(name).to_pylist() for name in keys), strict=True))
    positions: list[int] = []
    for i, row in enumerate(rows):
        positions.append(positions[-1] + 1 if i and rows[i - 1] == row else 0)
    return pa.chunked_array([pa.array(positions, pa.int32())])


def _by_group(table: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    groups = table.column("key_group").to_pylist()
    for group, rows in groupby(range(len(groups)), key=groups.__getitem__):
        indexes = list(rows)
        for batch in table.slice(indexes[0], len(indexes)).to_batches():
            yield group, batch
