"""Reads files piece by piece: lines of text, JSON and CSV by byte positions, Parquet by row groups and rows.

A position is exact: the next record that was not given. So a reader goes on from it after a restore without reading
anything twice, whatever the sizes of its blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from headgate.api.durable import durable
from headgate.connectors.values import CorruptRecord, Decoder
from headgate.records.batch import Batch
from headgate.records.types import TypeInformation

__all__ = ["FilePart", "FileSplit", "LineReader", "ParquetReader", "PartReader"]

_BLOCK = 4 << 20
_HEADER_SAMPLE = 1 << 16


class FilePart(msgspec.Struct, frozen=True):
    """A part of a file and where to continue: bytes of lines, or row groups of Parquet."""

    path: str
    size: int  # of the whole file when it was found
    modified: float | str | None
    start: int  # the first byte or row group
    end: int | None  # behind the last one; None: to the end of a compressed file
    position: int = 0  # bytes behind `start` of the next line, or the next row in row group `start`

    @property
    def weight(self) -> int:
        """About how much there is to read."""
        return max(1, self.size if self.end is None else self.end - self.start)


@durable("file-split-1")
class FileSplit(msgspec.Struct, frozen=True):
    """Parts of files that one subtask reads, one after the other."""

    parts: tuple[FilePart, ...]


class PartReader(ABC):
    """Reads one part from its position."""

    def __init__(self, part: FilePart) -> None:
        self.part = part
        self.finished = False

    @abstractmethod
    def read(self, max_records: int) -> tuple[Batch, list[tuple[str, CorruptRecord]]]:
        """The next records, and what could not be read with its place; sets `finished` behind the last one."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class LineReader(PartReader):
    """Lines of a range of bytes: those that begin in it. The first one of a later range belongs to the range before."""

    def __init__(self, part: FilePart, file: Any, decoder: Decoder, header: str | None) -> None:
        """`header`: the first line that each file must have."""
        super().__init__(part)
        self._file, self._decoder = file, decoder
        self._block = b""  # whole lines that were read, from `part.position` on
        self._ends = np.empty(0, np.int64)  # where they end, in the block
        self._taken = 0  # lines of the block that were given
        self._rest = b""  # the beginning of a line behind the block
        self._at_end = False
        if part.position:
            file.seek(part.start + part.position)
        elif part.start:
            file.seek(part.start - 1)  # a line that begins exactly here is ours
            self.part = replace(part, position=len(file.readline()) - 1)
        elif header is not None and (line := file.readline(_HEADER_SAMPLE)):  # an empty file needs no header
            found = line.rstrip(b"\r\n").decode("utf-8", "replace")
            if found != header:
                raise ValueError(f"its first line is '{found[:200]}', but the fields are '{header}'")
            self.part = replace(part, position=len(line))

    def read(self, max_records: int) -> tuple[Batch, list[tuple[str, CorruptRecord]]]:
        if self._taken == len(self._ends) and not self._fill():
            self.finished = True
            return self._decoder.decode_lines(b"", 0)[0], []
        first, last = self._taken, min(self._taken + max_records, len(self._ends))
        start = int(self._ends[first - 1]) if first else 0
        block = self._block[start : int(self._ends[last - 1])]
        at = self.part.start + self.part.position
        batch, bad = self._decoder.decode_lines(block, last - first)
        self._taken = last
        self.part = replace(self.part, position=self.part.position + len(block))
        self.finished = self._taken == len(self._ends) and self._beyond()
        return batch, [(f"{self.part.path}, byte {at + max(0, block.find(one.data))}", one) for one in bad]

    def _beyond(self) -> bool:
        end = self.part.end
        return self._at_end or (end is not None and self.part.start + self.part.position >= end)

    def _fill(self) -> bool:
        """Read on; whether there are lines."""
        if self._beyond():
            return False
        pieces, self._rest = [self._rest], b""
        while data := self._file.read(_BLOCK):
            if cut := data.rfind(b"\n") + 1:
                pieces.append(data[:cut])
                self._rest = data[cut:]
                break
            pieces.append(data)  # one line is longer than a block
        else:
            self._at_end = True
        self._block = b"".join(pieces)
        ends = np.flatnonzero(np.frombuffer(self._block, np.uint8) == ord("\n")) + 1
        if self._block and (not len(ends) or ends[-1] != len(self._block)):
            ends = np.append(ends, len(self._block))  # the last line of a file need not have an end
        if self.part.end is not None:
            begins = self.part.start + self.part.position + np.concatenate(([0], ends[:-1])) if len(ends) else ends
            ends = ends[begins < self.part.end]
        self._ends, self._taken = ends, 0
        return bool(len(ends))

    def close(self) -> None:
        self._file.close()


class ParquetReader(PartReader):
    """Row groups of a Parquet file; the position is a row in the first of them."""

    def __init__(self, part: FilePart, file: Any, type: TypeInformation) -> None:
        super().__init__(part)
        self._handle, self._type = file, type
        self._file = pq.ParquetFile(file)
        check_schema(self._file.schema_arrow, type)
        self._rows: pa.RecordBatch | None = None

    def read(self, max_records: int) -> tuple[Batch, list[tuple[str, CorruptRecord]]]:
        part, end = self.part, self.part.end
        assert end is not None
        if part.start >= end:
            self.finished = True
            return Batch.of_arrow(pa.RecordBatch.from_pylist([], schema=self._type.schema), self._type), []
        if self._rows is None:
            self._rows = self._row_group(part.start)
        rows = self._rows.slice(part.position, max_records)
        position = part.position + rows.num_rows
        if position >= self._rows.num_rows:
            self._rows, part, position = None, replace(part, start=part.start + 1), 0
        self.part = replace(part, position=position)
        self.finished = part.start >= end
        return Batch.of_arrow(rows, self._type), []

    def _row_group(self, number: int) -> pa.RecordBatch:
        schema = self._type.schema
        assert schema is not None
        table = self._file.read_row_group(number, columns=schema.names, use_threads=False)
        columns = [table.column(field.name).combine_chunks().cast(field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def close(self) -> None:
        self._file.close()
        self._handle.close()


def check_schema(found: pa.Schema, type: TypeInformation) -> None:
    """ValueError if a Parquet file cannot give records of a type; it may have more columns, or narrower ones."""
    assert type.schema is not None
    for field in type.schema:
        if field.name not in found.names:
            raise ValueError(f"it has no column '{field.name}', only {', '.join(found.names)}")
        own = found.field(field.name).type
        if own != field.type and not _widens(own, field.type):
            raise ValueError(f"its column '{field.name}' is {own}, not {field.type}")


def _widens(own: pa.DataType, wanted: pa.DataType) -> bool:
    numbers = pa.types.is_integer(own) and pa.types.is_integer(wanted) and own.bit_width < wanted.bit_width
    floats = pa.types.is_floating(own) and pa.types.is_floating(wanted) and own.bit_width < wanted.bit_width
    texts = {pa.string(), pa.large_string(), pa.string_view()}
    times = pa.types.is_timestamp(own) and pa.types.is_timestamp(wanted)
    return numbers or floats or times or (own in texts and wanted in texts) or pa.types.is_dictionary(own)
