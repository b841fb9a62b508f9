"""Avro container files, and batches of records that are Avro values."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Sequence
from io import BytesIO
from secrets import token_bytes
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from headrace.connectors.avro.codec import AvroCodec
from headrace.connectors.avro.schemas import Schema
from headrace.connectors.files.formats import FileFormat, FilePart, FormatWriter, PartReader
from headrace.connectors.files.targets import PendingFile, PreparedFile
from headrace.connectors.values import CorruptRecord, Decoder
from headrace.errors import InvalidArgument
from headrace.records.batch import Batch
from headrace.records.types import PICKLED, TypeInformation

__all__ = ["AvroFormat"]

_MAGIC = b"Obj\x01"
_BLOCK_BYTES = 1 << 16
_SYNC = {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}}
_HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [{"name": "meta", "type": {"type": "map", "values": "bytes"}}, _SYNC],
}
_BLOCK = {
    "type": "record",
    "name": "Block",
    "fields": [{"name": "count", "type": "long"}, {"name": "data", "type": "bytes"}, _SYNC],
}


class AvroFormat(FileFormat):
    """Avro container files, and Avro values for other connectors.

    Records with columns are Rows of a type; with `typed=False`, and where there are no columns, they are dicts.

    >>> format = AvroFormat('{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}')
    >>> format.type
    row<n bigint>
    >>> format.decoder().decode([format.codec.encode((7,))])[0].rows()
    [Row(n=7)]
    """

    suffix = "avro"

    def __init__(
        self,
        schema: str | Schema,
        *,
        typed: bool = True,
        type_info: TypeInformation | None = None,
        compression: str = "null",
    ) -> None:
        """`type_info`: another type with the same fields."""
        if compression not in ("null", "deflate"):
            raise InvalidArgument(
                "HR-1225", f"AvroFormat: compression must be 'null' or 'deflate', got {compression!r}"
            )
        self.codec, self._compression = AvroCodec(schema), compression
        self.type = type_info or (self.codec.type() if typed else PICKLED)

    def decoder(self) -> Decoder:
        """Return a decoder of values that are encoded with the schema, without a file around them."""
        return _AvroDecoder(self)

    def batch(self, values: list[Any]) -> Batch:
        """Return decoded values as records."""
        if self.type.kind == "row":
            return Batch.of_output([tuple(value.values()) for value in values], self.type, None)
        return Batch.of_rows(values, self.type)

    def reader(self, part: FilePart, file: Any) -> PartReader:
        return _AvroReader(part, file, self)

    def writer(self, file: PendingFile, type: TypeInformation) -> FormatWriter:
        return _AvroWriter(file, self.codec, self._compression)


class _AvroDecoder(Decoder):
    def __init__(self, format: AvroFormat) -> None:
        super().__init__(format.type)
        self._format = format

    def _all(self, values: Sequence[bytes]) -> Batch:
        decode = self._format.codec.decode
        return self._format.batch([decode(value) for value in values])


class _AvroReader(PartReader):
    """Reads a container file block by block; the position is the number of records that were given."""

    def __init__(self, part: FilePart, file: Any, format: AvroFormat) -> None:
        super().__init__(part)
        self._file, self._format = file, format
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is no Avro file")
        header = AvroCodec(_HEADER).decode_from(file)
        meta, self._sync = header["meta"], header["sync"]
        if "avro.schema" not in meta:
            raise ValueError("it is no Avro file: its header has no schema")
        self._codec = AvroCodec(format.codec.schema, meta["avro.schema"].decode())
        self._compression = meta.get("avro.codec", b"null").decode()
        self._blocks = AvroCodec(_BLOCK)
        self._block, self._size, self._left = BytesIO(), 0, 0
        self._skip(part.position)

    def _skip(self, records: int) -> None:
        while records and self._next_block():
            skipped = min(records, self._left)
            self._take(skipped)
            records -= skipped

    def _take(self, count: int) -> list[Any]:
        """Read records of the block."""
        values = [self._codec.decode_from(self._block, self._size) for _ in range(count)]
        self._left -= count
        if not self._left and self._block.tell() != self._size:
            raise ValueError("a block holds more bytes than its records: it is damaged")
        return values

    def _next_block(self) -> bool:
        first = self._file.read(1)
        if not first:
            return False
        self._file.seek(-1, 1)
        block = self._blocks.decode_from(self._file)
        if block["sync"] != self._sync or block["count"] < 0:
            raise ValueError("a block does not end with the mark of the file: it is damaged")
        data = _unpacked(block["data"], self._compression)
        self._block, self._size, self._left = self._codec.stream(data), len(data), block["count"]
        return True

    def read(self, max_records: int) -> tuple[Batch, list[tuple[str, CorruptRecord]]]:
        values: list[Any] = []
        while len(values) < max_records:
            if not self._left and not self._next_block():
                self.finished = True
                break
            values += self._take(min(self._left, max_records - len(values)))
        self.part = replace(self.part, position=self.part.position + len(values))
        return self._format.batch(values), []

    def close(self) -> None:
        self._file.close()


def _unpacked(data: bytes, compression: str) -> bytes:
    if compression == "null":
        return data
    if compression == "deflate":
        return zlib.decompress(data, -15)
    if compression == "bzip2":
        return bz2.decompress(data)
    if compression == "xz":
        return lzma.decompress(data)
    if compression == "snappy":  # its own length first, four bytes of a checksum at the end
        length = shift = 0
        for byte in data[:5]:
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return bytes(pa.decompress(data[:-4], length, "snappy"))
    raise ValueError(
        f"its compression '{compression}' is not supported; write it with null, deflate, snappy, bzip2 or xz"
    )


class _AvroWriter(FormatWriter):
    def __init__(self, file: PendingFile, codec: AvroCodec, compression: str) -> None:
        super().__init__(file)
        self._codec, self._compression, self._sync = codec, compression, token_bytes(16)
        self._blocks = AvroCodec(_BLOCK)
        self._block, self._count = bytearray(), 0
        meta = {"avro.schema": codec.text.encode(), "avro.codec": compression.encode()}
        file.write(_MAGIC + AvroCodec(_HEADER).encode({"meta": meta, "sync": self._sync}))

    def write(self, batch: Batch) -> None:
        for row in batch.rows():
            self._block += self._codec.encode(row)
            self._count += 1
            if len(self._block) >= _BLOCK_BYTES:
                self.flush()
        self.buffered = len(self._block)

    def flush(self) -> None:
        if not self._count:
            return
        data = bytes(self._block)
        if self._compression == "deflate":
            data = zlib.compress(data, wbits=-15)
        self.file.write(self._blocks.encode({"count": self._count, "data": data, "sync": self._sync}))
        self._block, self._count, self.buffered = bytearray(), 0, 0

    def finish(self) -> PreparedFile:
        self.flush()
        return super().finish()
