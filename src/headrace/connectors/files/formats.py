"""The formats of files: lines of text, JSON and CSV, Parquet, ORC; what reads them piece by piece, and what writes them.

A reader's position is exact: the next record that was not given. So a reader goes on from it after a restore without
reading anything twice, whatever the sizes of its blocks: lines by byte positions, Parquet by row groups and rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from headrace.api.durable import durable
from headrace.connectors.files.targets import PendingFile, PreparedFile
from headrace.connectors.values import CorruptRecord, Decoder, Encode, encoder
from headrace.errors import InvalidArgument
from headrace.records.batch import Batch
from headrace.records.types import PICKLED, TypeInformation

__all__ = [
    "FileFormat",
    "FilePart",
    "FileSplit",
    "FormatWriter",
    "LineFormat",
    "LineReader",
    "ParquetReader",
    "PartReader",
    "writing_format",
]

_BLOCK = 4 << 20
BUFFERED_BYTES = 64 << 20  # of all the files of a writer
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
        """Return the next records, and what could not be read with its place; sets `finished` behind the last one."""

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

    def skip_line(self) -> bytes:
        """Skip the next line before the first `read`, and return it without its end."""
        line: bytes = self._file.readline()
        self.part = replace(self.part, position=self.part.position + len(line))
        return line.rstrip(b"\r\n")

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


# --- writing ----------------------------------------------------------------------------------------------------------


class FormatWriter(ABC):
    """A file in a format; what is written may wait in memory."""

    def __init__(self, file: PendingFile) -> None:
        self.file = file
        self.buffered = self.rows = 0
        self.partition: dict[str, str | None] = {}
        self.opened = self.written = 0  # times in milliseconds, if files roll by time

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Append records."""

    def flush(self) -> None:
        """Empty the memory."""

    def finish(self) -> PreparedFile:
        """Return the last record was written."""
        return self.file.finish()

    def abort(self) -> None:
        """Forget it."""
        self.file.abort()


class _LineWriter(FormatWriter):
    def __init__(self, file: PendingFile, encode: Encode) -> None:
        super().__init__(file)
        self._encode = encode

    def write(self, batch: Batch) -> None:
        if len(batch):
            self.file.write(b"\n".join([*self._encode(batch), b""]))


class _TableWriter(FormatWriter):
    """Batches wait until they make a row group or stripe of a useful size."""

    def __init__(self, file: PendingFile, schema: pa.Schema, writer: Any, write: Callable[[pa.Table], None]) -> None:
        super().__init__(file)
        self._schema, self._writer, self._write = schema, writer, write
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: Batch) -> None:
        arrow = batch.arrow()
        self._batches.append(arrow)
        self.buffered += arrow.nbytes
        if self.buffered >= BUFFERED_BYTES // 4:
            self.flush()

    def flush(self) -> None:
        if self._batches:
            self._write(pa.Table.from_batches(self._batches, self._schema))
            self._batches, self.buffered = [], 0

    def finish(self) -> PreparedFile:
        self.flush()
        self._writer.close()
        return super().finish()

    def abort(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._writer.close()  # else it would write when it is collected
        super().abort()


# --- formats ----------------------------------------------------------------------------------------------------------


class FileFormat:
    """Reads records from files, or writes them, or both; a file source and a file sink take one in place of a name."""

    suffix = ""
    """The end of the names of files, without a dot."""

    type: TypeInformation = PICKLED
    """The type of the records that it reads."""

    lines = False
    """Whether files are lines, so that they can be cut anywhere and compressed."""

    takes_fields = False
    """Whether it writes only records with fields: of a row or tuple type."""

    def reader(self, part: FilePart, file: Any) -> PartReader:
        """Reads a part of an open file; a format that is not `lines` gets whole files."""
        raise InvalidArgument("HR-4501", f"{type(self).__name__} cannot read files")

    def writer(self, file: PendingFile, type: TypeInformation) -> FormatWriter:
        """Open a new file for records of a type."""
        raise InvalidArgument("HR-4501", f"{self.__class__.__name__} cannot write files")


class LineFormat(FileFormat):
    """A line for each record: by a decoder and, to write, by a function that encodes the records of a batch."""

    lines = True

    def __init__(
        self,
        decoder: Decoder | None = None,
        encode: Callable[[TypeInformation], Encode] | None = None,
        *,
        suffix: str = "txt",
        header: str | None = None,
    ) -> None:
        """`header`: the first line that each file must have, and that is no record."""
        self.suffix, self._decoder, self._encode, self._header = suffix, decoder, encode, header
        self.type = PICKLED if decoder is None else decoder.type

    def reader(self, part: FilePart, file: Any) -> PartReader:
        if self._decoder is None:
            return super().reader(part, file)
        return LineReader(part, file, self._decoder, self._header)

    def writer(self, file: PendingFile, type: TypeInformation) -> FormatWriter:
        return super().writer(file, type) if self._encode is None else _LineWriter(file, self._encode(type))


class _TableFormat(FileFormat):
    """Parquet or ORC, as files are written."""

    takes_fields = True

    def __init__(self, suffix: str, compression: str) -> None:
        self.suffix, self._compression = suffix, compression

    def writer(self, file: PendingFile, type: TypeInformation) -> FormatWriter:
        assert type.schema is not None
        if self.suffix == "orc":
            from pyarrow import orc

            stripes = orc.ORCWriter(file, compression=self._compression)
            return _TableWriter(file, type.schema, stripes, stripes.write)
        groups = pq.ParquetWriter(file, type.schema, compression=self._compression)
        return _TableWriter(file, type.schema, groups, groups.write_table)


class _CsvLines(LineFormat):
    takes_fields = True


_SUFFIXES = {"text": "txt", "json": "jsonl", "csv": "csv", "parquet": "parquet", "orc": "orc"}


def writing_format(
    format: str | FileFormat | Callable[[Any], bytes], compression: str, delimiter: str, sink: str
) -> FileFormat:
    """Return the writer of a named format, or of lines that a function makes of records."""
    if isinstance(format, FileFormat):
        return format
    if not isinstance(format, str):
        if not callable(format):
            raise InvalidArgument(
                "HR-4501", f"{sink}: format must be a name, a FileFormat or a function, got {format!r}"
            )
        return LineFormat(encode=lambda _: lambda batch: [format(row) for row in batch.rows()])
    if format not in _SUFFIXES:
        raise InvalidArgument("HR-4501", f"{sink}: unknown format {format!r}; use {', '.join(_SUFFIXES)}")
    suffix = _SUFFIXES[format]
    if format in ("parquet", "orc"):
        return _TableFormat(suffix, compression)
    made = _CsvLines if format == "csv" else LineFormat
    return made(encode=lambda kind: encoder(format, kind, delimiter), suffix=suffix)
