"""Operator state as Parquet tables: the content of a canonical savepoint (SPEC R8.2), written and read by workers.

subtask  pos  value             list state, one row for each element; the mode is in the metadata
subtask  pos  map_key  value    broadcast state, the copy of each subtask
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.checkpoint.assignment import Mode
from headrace.checkpoint.handles import TypeMeta
from headrace.records.types import TypeInformation
from headrace.state.operator import OperatorStateSnapshot, StateSnapshot, decode_elements, encode_elements
from headrace.state.parquet.columns import cells_of, column_fields, columns_of, values_of


class StoredOperatorTable(msgspec.Struct, frozen=True):
    """One table: its state and its file."""

    name: str
    mode: Mode
    types: tuple[TypeMeta, ...]
    file: str
    rows: int = 0


class StoredOperatorTables(msgspec.Struct, frozen=True):
    """The operator state of one subtask; `raw` is the file of the raw streams, if there are any."""

    tables: tuple[StoredOperatorTable, ...]
    raw: str | None = None


def operator_schema(types: tuple[TypeInformation, ...]) -> pa.Schema:
    """Return the columns of a table; two types are those of a broadcast map.

    >>> from headrace.records.types import as_type
    >>> operator_schema((as_type("bigint"),)).names
    ['subtask', 'pos', 'value']
    """
    fields = [pa.field("subtask", pa.int32(), nullable=False), pa.field("pos", pa.int32(), nullable=False)]
    if len(types) == 2:
        fields += column_fields("map_key", types[0])
    return pa.schema([*fields, *column_fields("value", types[-1])])


def operator_table(values: list[object], types: tuple[TypeInformation, ...], subtask: int) -> pa.Table:
    """Elements, or entries of a broadcast map, as a table."""
    columns = [pa.array([subtask] * len(values), pa.int32()), pa.array(range(len(values)), pa.int32())]
    if len(types) == 2:
        columns += _columns([entry[0] for entry in values], types[0])  # type: ignore[index]
        values = [entry[1] for entry in values]  # type: ignore[index]
    return pa.Table.from_arrays([*columns, *_columns(values, types[-1])], schema=operator_schema(types))


def _columns(values: list[object], type_info: TypeInformation) -> list[pa.Array]:
    return columns_of(cells_of(values, type_info), type_info)


def write_operator_tables(snapshot: OperatorStateSnapshot, subtask: int) -> Iterator[tuple[StateSnapshot, bytes, int]]:
    """Each state with the bytes of its file, and the number of its rows."""
    for state in snapshot.states:
        types = tuple(type.type_info() for type in state.types)
        table = operator_table(decode_elements(state, types), types, subtask)
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        yield state, sink.getvalue(), table.num_rows


_decode_raw = msgspec.msgpack.Decoder(StateSnapshot).decode


def read_operator_tables(described: StoredOperatorTables, files: dict[str, bytes]) -> OperatorStateSnapshot:
    states = []
    for one in described.tables:
        types = tuple(type.type_info() for type in one.types)
        table = pq.read_table(io.BytesIO(files[one.file])).sort_by("pos")
        values = values_of(table, "value", types[-1])
        if len(types) == 2:
            values = list(zip(values_of(table, "map_key", types[0]), values, strict=True))
        states.append(encode_elements(one.name, one.mode, types, values))
    raw = None if described.raw is None else _decode_raw(files[described.raw])
    return OperatorStateSnapshot(tuple(states), raw)
