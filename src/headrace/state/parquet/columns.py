"""Keys and values as columns of a table, for people and other tools; no state, so any thread may call it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from headrace.records.flink_values import MutableRow
from headrace.records.types import TypeInformation
from headrace.state.pickling import dump_values, load_values

_TEXT = 500  # the most characters of the text of an untyped value
_NUMBERS = frozenset([int, float, bool, type(None)])
_SEQUENCES = (list, tuple, set, frozenset, MutableRow)


def column_fields(name: str, type_info: TypeInformation) -> list[pa.Field]:
    """Return the columns of a key or value: one of its type, or a pickle and a text.

    >>> from headrace.records.types import PICKLED, as_type
    >>> [field.name for field in column_fields("value", PICKLED)]
    ['value_pickle', 'value_text']
    >>> column_fields("value", as_type("word string, n bigint"))[0].type
    StructType(struct<word: string, n: int64>)
    """
    if type_info.schema is None:
        return [pa.field(f"{name}_pickle", pa.binary()), pa.field(f"{name}_text", pa.string())]
    schema = type_info.schema
    return [pa.field(name, schema.field(0).type if type_info.kind == "scalar" else pa.struct(list(schema)))]


def cells_of(values: Sequence[Any], type_info: TypeInformation) -> Sequence[Any]:
    """Return the input of `columns_of`: typed values unchanged, untyped ones as pickle and text; None is a null."""
    if type_info.schema is not None:
        return values
    return [None if value is None else (dump_values([value], "a value"), _text(value)) for value in values]


def columns_of(cells: Sequence[Any], type_info: TypeInformation) -> list[pa.Array]:
    """Cells as the columns of `column_fields`. They must be far below 2 GB, see `weight`: more can end the process."""
    if type_info.schema is None:
        pickles = [None if cell is None else cell[0] for cell in cells]
        texts = [None if cell is None else cell[1] for cell in cells]
        return [pa.array(pickles, pa.binary()), pa.array(texts, pa.string())]
    if type_info.kind == "scalar":
        return [type_info.to_batch(cells).column(0)]
    absent = [cell is None for cell in cells]
    if not any(absent):
        return [_struct(type_info.to_batch(cells))]
    present = type_info.to_batch([cell for cell in cells if cell is not None])
    places, next_place = [], 0
    for gone in absent:
        places.append(None if gone else next_place)
        next_place += not gone
    return [_struct(present).take(pa.array(places, pa.int64()))]


def weight(cells: Sequence[Any]) -> int:
    """About the bytes of cells in Arrow's memory: texts and bytes exactly, and 8 for anything else.

    >>> weight([7, ("key", [b"1234", "ü"]), {"a": None}])
    82
    """
    kinds = set(map(type, cells))
    total = 8 * len(cells)
    for kind in kinds - _NUMBERS:
        some: Sequence[Any] = cells if len(kinds) == 1 else [cell for cell in cells if type(cell) is kind]
        if issubclass(kind, str):
            total += sum(len(one) if one.isascii() else len(one.encode("utf-8", "surrogatepass")) for one in some)
        elif issubclass(kind, bytes):
            total += sum(map(len, some))
        elif issubclass(kind, Mapping):
            total += weight([*chain.from_iterable(some)]) + weight([*chain.from_iterable(one.values() for one in some)])
        elif issubclass(kind, _SEQUENCES):
            total += weight([*chain.from_iterable(some)])
        else:
            total += sum(map(sys.getsizeof, some))
    return total


def _struct(batch: pa.RecordBatch) -> pa.StructArray:
    return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))


def _text(value: Any) -> str:
    text = repr(value)
    return (text if len(text) <= _TEXT else text[: _TEXT - 3] + "...").encode("utf-8", "replace").decode()


def values_of(table: pa.Table, name: str, type_info: TypeInformation) -> list[Any]:
    """Return the values of these columns. Pickles are loaded: the checksum of the file must have been verified."""
    if type_info.schema is None:
        cells = table.column(f"{name}_pickle").to_pylist()
        return [None if cell is None else load_values(cell, f"column '{name}'")[0] for cell in cells]
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
    if type_info.kind == "scalar":
        cast = column.cast(type_info.schema.field(0).type)
        return type_info.to_rows(pa.RecordBatch.from_arrays([cast], schema=type_info.schema))
    present = column.drop_null()
    fields = [present.field(i).cast(field.type) for i, field in enumerate(type_info.schema)]
    rows = iter(type_info.to_rows(pa.RecordBatch.from_arrays(fields, schema=type_info.schema)))
    return [next(rows) if valid else None for valid in column.is_valid().to_pylist()]
