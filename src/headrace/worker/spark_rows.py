"""Rows from and to Spark: the number of the task that reads a row, and bytes.

They travel as Arrow batches, each in a struct. Two ways lead there. pyspark gives a function batches, which it reads in a
thread of its own, queues, and takes out of their struct one by one. In a worker of our own daemon the function has the
stream of bytes instead (`RowStream`), and reads and writes the few messages that occur itself. That takes a fraction of
the instructions, which counts at low rates: by the time of the next row they have left the CPU's caches.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from headrace.errors import UserCodeError
from headrace.worker.output import Piece

Row = tuple[int, list[Piece]]
"""The task that reads it, and the pieces it is made of."""

_SCHEMA = pa.schema([("dst", pa.int32()), ("payload", pa.binary())])
_IN_STRUCT = pa.schema([("_0", pa.struct(list(_SCHEMA)))])
_MAX_PORTION = 8 << 20
_MAX_BYTES = (1 << 31) - 1
_START_OF_STREAM = struct.pack(">i", -6)  # pyspark's START_ARROW_STREAM
_MESSAGE = -1  # what a message begins with, in place of the length of an older version of the format
_END_OF_STREAM = struct.pack("<iI", _MESSAGE, 0)
_RECORD_BATCH = 3  # a type of message
_BUFFERS = 6  # validity of the struct; validity and values of `dst`; validity, offsets and bytes of `payload`
_DST, _OFFSETS, _PAYLOAD = 2, 4, 5


def portions(rows: list[Row]) -> Iterator[list[Row]]:
    """Rows in portions of bounded size."""
    start, size = 0, 0
    for end, (_, pieces) in enumerate(rows, 1):
        size += sum(map(len, pieces))
        if size >= _MAX_PORTION or end == len(rows):
            yield rows[start:end]
            start, size = end, 0


def _ends(rows: list[Row]) -> list[int]:
    """Return zero, then the end offset of each row."""
    ends = list(accumulate((sum(map(len, pieces)) for _, pieces in rows), initial=0))
    if ends[-1] > _MAX_BYTES:
        raise UserCodeError(
            "HR-5005",
            f"a record cannot be sent to the next operator: it takes {ends[-1]:,} bytes, and Spark's rows have at most "
            f"{_MAX_BYTES:,}; emit the data in several records, or write it to a file and emit its path",
        )
    return ends


# --- as batches, through pyspark ------------------------------------------------------------------------------------


def read_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """The bytes of rows. Fillers and pulses only push rows through Spark, and the first level reads numbers."""
    for batch in batches:
        if batch.schema.names != _SCHEMA.names:
            continue
        targets, payloads = batch.column(0), batch.column(1)
        for i in range(batch.num_rows):
            if targets[i].as_py() >= 0 and (row := payloads[i].as_buffer()).size:
                yield row


def as_batch(rows: list[Row]) -> pa.RecordBatch:
    """Rows as an Arrow batch; their bytes are joined once and not copied again."""
    offsets = struct.pack(f"{len(rows) + 1}i", *_ends(rows))
    data = b"".join([piece for _, pieces in rows for piece in pieces])
    payload = pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([pa.array([dst for dst, _ in rows], pa.int32()), payload], schema=_SCHEMA)


# --- as a stream of bytes -------------------------------------------------------------------------------------------


class RowStream:
    """A stream of rows that pyspark uses as a serializer."""

    def load_stream(self, stream: BinaryIO) -> Iterator[pa.Buffer]:
        """The bytes of rows; ends where the stream ends. EOFError or ValueError if it is not whole."""
        schema = _read_message(stream)
        if schema is None:
            return
        names = _names(schema[0])
        while (message := _read_message(stream)) is not None:
            if names != _SCHEMA.names:
                continue
            try:
                yield from _rows_in(*message)
            except (struct.error, IndexError) as error:
                raise ValueError(f"a batch of rows in Spark's stream is shorter than it says: {error}") from error

    def dump_stream(self, messages: Iterable[bytes], stream: BinaryIO) -> None:
        """Write what `as_message` made; each message leaves at once."""
        begun = False
        try:
            for message in messages:
                if not begun:
                    stream.write(_START_OF_STREAM + _IN_STRUCT.serialize().to_pybytes())
                    begun = True
                stream.write(message)
                stream.flush()
        finally:
            if begun:  # also before an error, which Spark expects behind the stream
                stream.write(_END_OF_STREAM)


def _read_message(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """Metadata and body of the next message; None at the end of the stream."""
    head = stream.read(8)
    if not head or head == _END_OF_STREAM:
        return None
    if len(head) < 8:
        raise EOFError("Spark's stream ended inside of a message")
    mark, size = struct.unpack("<iI", head)
    if mark != _MESSAGE:
        raise ValueError("no message begins in Spark's stream where one must")
    metadata = stream.read(size)
    length = _body_length(metadata) if len(metadata) == size else 0
    body = stream.read(length) if length else b""
    if len(metadata) < size or len(body) < length:
        raise EOFError("Spark's stream ended inside of a message")
    return metadata, body


def _names(metadata: bytes) -> list[str]:
    """The names of the columns that are in the struct."""
    framed = struct.pack("<iI", _MESSAGE, len(metadata)) + metadata
    column = pa.ipc.read_schema(pa.py_buffer(framed)).field(0).type
    return [field.name for field in column] if pa.types.is_struct(column) else []


def _rows_in(metadata: bytes, body: bytes) -> Iterator[pa.Buffer]:
    count, buffers = _record_batch(metadata)
    if not count:
        return
    targets = struct.unpack_from(f"<{count}i", body, buffers[_DST][0])
    ends = struct.unpack_from(f"<{count + 1}i", body, buffers[_OFFSETS][0])
    at, whole = buffers[_PAYLOAD][0], pa.py_buffer(body)
    for target, (begin, end) in zip(targets, pairwise(ends), strict=True):
        if target >= 0 and end > begin:
            yield whole.slice(at + begin, end - begin)


class _Head(NamedTuple):
    """A message with a number of rows that have no bytes yet: what precedes them, and where their lengths are missing."""

    head: bytes
    body_length: int
    payload_length: int
    offsets: int  # in the body, as the next
    payload: int


@functools.lru_cache(64)
def _head(count: int) -> _Head:
    columns = as_batch([(0, [b""])] * count).columns
    batch = pa.record_batch([pa.StructArray.from_arrays(columns, fields=list(_SCHEMA))], schema=_IN_STRUCT)
    message = batch.serialize().to_pybytes()
    metadata = message[8 : 8 + _u32(message, 4)]
    table = _u32(metadata, 0)
    first, _ = _vector(metadata, _table(metadata, table, 2), 2)
    buffers = _record_batch(metadata)[1]
    return _Head(
        message[: 8 + len(metadata)],
        8 + _field(metadata, table, 3),
        8 + first + 16 * _PAYLOAD + 8,
        buffers[_OFFSETS][0],
        buffers[_PAYLOAD][0],
    )


def as_message(rows: list[Row]) -> bytes:
    """Rows as a message of the stream; their bytes are joined once and not copied again."""
    form, count = _head(len(rows)), len(rows)
    ends = _ends(rows)
    length = form.payload + ends[-1]
    padding = -length % 8
    head = bytearray(form.head)
    struct.pack_into("<q", head, form.body_length, length + padding)
    struct.pack_into("<q", head, form.payload_length, ends[-1])
    fixed = struct.pack(f"<{count}i", *[dst for dst, _ in rows]).ljust(form.offsets, b"\0")
    fixed += struct.pack(f"<{count + 1}i", *ends)
    pieces = [piece for _, pieces in rows for piece in pieces]
    return b"".join([head, fixed.ljust(form.payload, b"\0"), *pieces, bytes(padding)])


# --- the metadata of a message, in the format of flatbuffers ----------------------------------------------------------


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _field(data: bytes, table: int, number: int) -> int:
    """Return the offset of a table's field; 0 if it has its default."""
    fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    entry = fields + 4 + 2 * number
    if entry >= fields + int.from_bytes(data[fields : fields + 2], "little"):
        return 0
    offset = int.from_bytes(data[entry : entry + 2], "little")
    return table + offset if offset else 0


def _table(data: bytes, table: int, number: int) -> int:
    """Return the offset of the table that a field refers to."""
    at = _field(data, table, number)
    return at + _u32(data, at)


def _vector(data: bytes, table: int, number: int) -> tuple[int, int]:
    """Return the offset of a field's items, and their number."""
    at = _table(data, table, number)
    return at + 4, _u32(data, at)


def _body_length(metadata: bytes) -> int:
    at = _field(metadata, _u32(metadata, 0), 3)
    return int.from_bytes(metadata[at : at + 8], "little") if at else 0


def _record_batch(metadata: bytes) -> tuple[int, list[tuple[int, int]]]:
    """The number of rows, and where in the body each buffer begins, and its length."""
    message = _u32(metadata, 0)
    batch = _table(metadata, message, 2)
    at = _field(metadata, batch, 0)
    count = int.from_bytes(metadata[at : at + 8], "little") if at else 0
    first, number = _vector(metadata, batch, 2)
    if metadata[_field(metadata, message, 1)] != _RECORD_BATCH or number != _BUFFERS or _field(metadata, batch, 3):
        raise ValueError("Spark sent something other than a plain batch of rows; is it an older or newer version?")
    numbers = struct.unpack_from(f"<{2 * number}q", metadata, first)
    return count, list(zip(numbers[::2], numbers[1::2], strict=True))
