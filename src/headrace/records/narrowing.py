"""Integer columns travel with as few bytes as their values need.

Most integers are far smaller than their type, or close to each other as times are. A byte that does not travel saves four
copies on its way: worker, JVM, shuffle, JVM, worker. Body of a narrowed batch:

    for each column: width u8 | 7 bytes of padding | base i64       width 0: the column as it is
    Arrow record batch, in which a narrowed column has unsigned integers of this width: value minus base

Unsigned columns and those with nulls are left as they are, and batches of which only a small part can be narrowed.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MIN_ROWS = 512
"""Smaller batches are not narrowed: the calls cost more than the bytes."""

MIN_SAVED = 1024
"""Bytes for each column of a batch that narrowing has to save."""

_COLUMN = struct.Struct("<B7xq")
_STORED = {8: pa.int64(), 4: pa.int32()}  # by width of the type
_NARROW: dict[int, pa.DataType] = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32()}


def narrow(batch: pa.RecordBatch) -> tuple[bytes, pa.RecordBatch] | None:
    """Return the head of the body and the batch with narrowed columns; None if that saves too little.

    >>> batch = pa.RecordBatch.from_pydict({"n": [1_000_000, 1_000_255] * 256})
    >>> head, narrowed = narrow(batch)
    >>> narrowed.column(0)[:2].to_pylist()
    [0, 255]
    >>> widen(pa.py_buffer(head + bytes(narrowed.serialize())), batch.schema) == batch
    True
    """
    columns, heads, widths, saved = [], [], [], 0
    for column in batch.columns:
        width, base, narrowed = _narrow_column(column)
        columns.append(narrowed)
        heads.append(_COLUMN.pack(width, base))
        widths.append(width)
        saved += width and _width(column.type) - width
    if saved * len(batch) < MIN_SAVED * len(columns):
        return None
    return b"".join(heads), pa.RecordBatch.from_arrays(columns, schema=_schema(batch.schema, tuple(widths)))


def widen(body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch of a narrowed body; ValueError if it is damaged."""
    size = _COLUMN.size * len(schema)
    heads = list(_COLUMN.iter_unpack(memoryview(body)[:size]))
    for width, _ in heads:
        _check_width(width)
    narrowed = _schema(schema, tuple(width for width, _ in heads))
    batch = pa.ipc.read_record_batch(body.slice(size), narrowed)
    columns = [
        _widen_column(column, base, field.type) if width else column
        for column, (width, base), field in zip(batch.columns, heads, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def narrow_times(times: npt.NDArray[np.int64]) -> list[bytes] | None:
    """Event timestamps as the pieces of a frame, their number first; None if they need all their bytes."""
    width, base, packed = _narrow_numbers(times)
    if not width:
        return None
    data = packed.tobytes()
    return [len(times).to_bytes(8, "little"), _COLUMN.pack(width, base), data, bytes(-len(data) % 8)]


def widen_times(body: memoryview) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Event timestamps at the start of a body, and what follows them; ValueError if they are damaged."""
    count = int.from_bytes(body[:8], "little")
    width, base = _COLUMN.unpack_from(body, 8)
    _check_width(width or -1)
    start = 8 + _COLUMN.size
    end = start + count * width
    return _widen_numbers(np.frombuffer(body[start:end], f"u{width}"), base, 8), body[end + -end % 8 :]


def _narrow_column(column: pa.Array) -> tuple[int, int, pa.Array]:
    width = _width(column.type)
    if not width or column.null_count:
        return 0, 0, column
    needed, base, packed = _narrow_numbers(column.view(_STORED[width]).to_numpy())
    if not needed:
        return 0, 0, column
    return needed, base, pa.Array.from_buffers(_NARROW[needed], len(packed), [None, pa.py_buffer(packed)])


def _widen_column(column: pa.Array, base: int, wanted: pa.DataType) -> pa.Array:
    numbers = _widen_numbers(column.to_numpy(), base, _width(wanted))
    return pa.Array.from_buffers(wanted, len(numbers), [None, pa.py_buffer(numbers)])


def _narrow_numbers(numbers: npt.NDArray[Any]) -> tuple[int, int, npt.NDArray[Any]]:
    """Bytes of each, what they are counted from, and the differences; 0 bytes if they cannot be narrowed."""
    least, most = int(numbers.min()), int(numbers.max())
    base = 0 if least >= 0 and _needed(most) == _needed(most - least) else least
    needed = _needed(most - base)
    if needed >= numbers.itemsize:
        return 0, 0, numbers
    return needed, base, (numbers - base if base else numbers).astype(f"u{needed}")


def _widen_numbers(packed: npt.NDArray[Any], base: int, width: int) -> npt.NDArray[Any]:
    numbers = packed.astype(f"i{width}")
    if base:
        numbers += base
    numbers.flags.writeable = False  # as those that were not narrowed: batches share them
    return numbers


def _check_width(width: int) -> None:
    if width and width not in _NARROW:
        raise ValueError(f"damaged frame: numbers of {width} bytes")


def _needed(number: int) -> int:
    """Return the bytes of an unsigned integer."""
    return 1 if number < 1 << 8 else 2 if number < 1 << 16 else 4 if number < 1 << 32 else 8


@lru_cache
def _width(arrow: pa.DataType) -> int:
    """Return the bytes of an integer, date or time; 0 for other types, and for those that are narrow or unsigned."""
    if not pa.types.is_signed_integer(arrow) and not pa.types.is_temporal(arrow):
        return 0
    width = arrow.bit_width // 8
    return width if width in _STORED else 0


@lru_cache
def _schema(schema: pa.Schema, widths: tuple[int, ...]) -> pa.Schema:
    fields = [_NARROW[width] if width else field.type for field, width in zip(schema, widths, strict=True)]
    return pa.schema([(field.name, arrow) for field, arrow in zip(schema, fields, strict=True)])
