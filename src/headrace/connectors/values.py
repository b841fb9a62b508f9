"""Bytes into records and back: text, JSON, CSV; whole batches at a time, in workers. A corrupt record affects no other.

text    a string a record
bytes   the bytes as they are
json    an object a record into the fields of a row type; without a type any JSON value
csv     a line a record into the fields of a row type
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from headrace.api.functions import OutputTag
from headrace.errors import HeadraceError, InvalidArgument
from headrace.records.batch import Batch
from headrace.records.types import PICKLED, Row, TypeInformation, as_type

__all__ = ["CORRUPT_TYPE", "CorruptRecord", "CorruptRecords", "Decoder", "check_choice", "decoder", "encoder", "joined"]

Encode = Callable[[Batch], list[bytes]]

CORRUPT_TYPE = "place string, reason string, data binary"
"""The type of a side output for corrupt records: `OutputTag("corrupt", CORRUPT_TYPE)`."""


@dataclass(frozen=True, slots=True)
class CorruptRecord:
    """A record that cannot be decoded: its position in the batch, its bytes, and the reason."""

    index: int
    data: bytes
    reason: str


def check_choice(name: str, given: object, *choices: str) -> None:
    """InvalidArgument if an argument is none of its choices.

    >>> check_choice("FileSource: on_change", "stop", "fail", "ignore")
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-1225] FileSource: on_change must be 'fail' or 'ignore', got 'stop'
    """
    if given not in choices:
        raise InvalidArgument("HR-1225", f"{name} must be {' or '.join(map(repr, choices))}, got {given!r}")


class CorruptRecords:
    """Handles the corrupt records of a source as its `on_corrupt` says: "fail", "skip", or an OutputTag; counts them."""

    def __init__(self, policy: str | OutputTag, source: str) -> None:
        if not isinstance(policy, OutputTag) and policy not in ("fail", "skip"):
            raise InvalidArgument(
                "HR-1225", f"{source}: on_corrupt must be 'fail', 'skip' or an OutputTag, got {policy!r}"
            )
        self.policy, self._source = policy, source
        self.count = 0
        self._side: list[tuple[OutputTag, Row]] = []

    def add(self, place: str, one: CorruptRecord) -> None:
        self.count += 1
        if self.policy == "fail":
            start = one.data[:200]
            raise HeadraceError(
                "HR-4502",
                f"{self._source}: {place} cannot be read: {one.reason}; it is {start!r}{'...' if len(one.data) > 200 else ''}. "
                "Fix it, or set on_corrupt='skip', or on_corrupt=OutputTag(...) to send such records to a side output",
            )
        if isinstance(self.policy, OutputTag):
            self._side.append((self.policy, Row(place=place, reason=one.reason, data=one.data)))

    def take(self) -> list[tuple[OutputTag, Row]]:
        """The records for the side output since the last call."""
        side, self._side = self._side, []
        return side


class Decoder(ABC):
    """Decodes bytes into batches of records."""

    def __init__(self, type: TypeInformation) -> None:
        self.type = type

    def decode(self, values: Sequence[bytes]) -> tuple[Batch, list[CorruptRecord]]:
        """The records in order, and those that are corrupt."""
        try:
            return self._all(values), []
        except (pa.ArrowException, ValueError, msgspec.MsgspecError) as error:
            if len(values) == 1:
                return self._none(), [CorruptRecord(0, values[0], str(error))]
        # Halves, until the corrupt ones are alone: the others are still decoded many at a time.
        half = len(values) // 2
        (first, bad), (second, worse) = self.decode(values[:half]), self.decode(values[half:])
        return joined([first, second]), bad + [CorruptRecord(one.index + half, one.data, one.reason) for one in worse]

    def decode_lines(self, block: bytes, count: int) -> tuple[Batch, list[CorruptRecord]]:
        """Decode a block of `count` lines; empty lines are skipped, unless the format is text."""
        return self.decode([line for line in lines_of(block) if line.strip()])

    @abstractmethod
    def _all(self, values: Sequence[bytes]) -> Batch:
        """All records, or an error if one of them is corrupt."""

    def _none(self) -> Batch:
        if not self.type.is_typed:
            return Batch.of_rows([])
        return Batch.of_arrow(pa.RecordBatch.from_pylist([], schema=self.type.schema), self.type)


def lines_of(block: bytes) -> list[bytes]:
    r"""The lines of a block, without their ends.

    >>> lines_of(b"a\r\nb\n")
    [b'a', b'b']
    """
    lines = block.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return [line[:-1] if line.endswith(b"\r") else line for line in lines] if b"\r\n" in block else lines


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches of one type as one."""
    type = batches[0].type
    if not type.is_typed:
        return Batch.of_rows([row for batch in batches for row in batch.rows()])
    return Batch.of_arrow(pa.concat_batches([batch.arrow() for batch in batches]), type)


class _ColumnDecoder(Decoder):
    """Text or bytes: the records are one column."""

    def _all(self, values: Sequence[bytes]) -> Batch:
        column = pa.array(values, pa.binary()).cast(self.type.arrow_type)
        return Batch.of_arrow(pa.RecordBatch.from_arrays([column], schema=self.type.schema), self.type)

    def decode_lines(self, block: bytes, count: int) -> tuple[Batch, list[CorruptRecord]]:
        return self.decode(lines_of(block))  # an empty line is a record too


class _AnyJsonDecoder(Decoder):
    def _all(self, values: Sequence[bytes]) -> Batch:
        return Batch.of_rows(list(map(msgspec.json.decode, values)))


class _BlockDecoder(Decoder):
    """Formats that pyarrow reads as a block of lines."""

    def _all(self, values: Sequence[bytes]) -> Batch:
        return self._block(b"\n".join(values) + b"\n", len(values))

    def decode_lines(self, block: bytes, count: int) -> tuple[Batch, list[CorruptRecord]]:
        try:
            return self._block(block, count), []
        except (pa.ArrowException, ValueError):  # also if some lines are empty: the lines one by one tell
            return super().decode_lines(block, count)

    def _block(self, block: bytes, count: int) -> Batch:
        table = self._read(block)
        if table.num_rows != count:
            raise ValueError(f"{table.num_rows} records in place of {count}")
        schema = self.type.schema
        assert schema is not None
        for field in schema:
            if not field.nullable and table.column(field.name).null_count:
                raise ValueError(f"no value for '{field.name}', which is NOT NULL")
        columns = [table.column(name).combine_chunks() for name in schema.names]
        return Batch.of_arrow(pa.RecordBatch.from_arrays(columns, schema=schema), self.type)

    @abstractmethod
    def _read(self, block: bytes) -> pa.Table:
        """The table of a block of lines."""


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_SPACE = b" \t\r\n"


class _JsonDecoder(_BlockDecoder):
    """Objects with pyarrow's reader, which takes a `null` for an object, and crashes where a block begins with one.

    Only values that begin with `{` and end with `}` reach the reader. Two such values cannot be parts of one object, so
    a block with as many objects as values has one object in each.
    """

    def __init__(self, type: TypeInformation) -> None:
        super().__init__(type)
        assert type.schema is not None
        nullable = pa.schema([pa.field(f.name, f.type) for f in type.schema])
        self._parse = pa.json.ParseOptions(explicit_schema=nullable, unexpected_field_behavior="ignore")

    def _all(self, values: Sequence[bytes]) -> Batch:
        # Between the parts of a value a line's end is white space, and inside a string it is no JSON.
        block = b"\n".join([value.replace(b"\n", b" ") for value in values]) + b"\n"
        if not _has_objects(block, len(values)) and not all(map(_is_object, values)):
            raise ValueError(_NO_OBJECT)
        return self._block(block, len(values))

    def decode_lines(self, block: bytes, count: int) -> tuple[Batch, list[CorruptRecord]]:
        if _has_objects(block, count):
            return super().decode_lines(block, count)
        return Decoder.decode_lines(self, block, count)

    def _read(self, block: bytes) -> pa.Table:
        # One block: a record that straddles two would be an error.
        options = pa.json.ReadOptions(use_threads=False, block_size=max(1 << 10, len(block) + 1))
        return pa.json.read_json(io.BytesIO(block), read_options=options, parse_options=self._parse)


_NO_OBJECT = "it is not a JSON object, which begins with '{' and ends with '}'"


def _has_objects(block: bytes, count: int) -> bool:
    r"""Return True if each of the `count` lines of a block begins and ends like an object, without white space around it.

    >>> _has_objects(b'{"n": 1}\n{"n": 2}\n', 2), _has_objects(b'{"n": 1}\nnull\n', 2)
    (True, False)
    """
    if not block.startswith(b"{") or not block.endswith(b"}\n"):
        return False
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    return (
        len(ends) == count
        and bool((data[ends - 1] == ord("}")).all())
        and bool((data[ends[:-1] + 1] == ord("{")).all())
    )


def _is_object(value: bytes) -> bool:
    """Return True if a value begins and ends like an object; white space and a byte order mark do not matter."""
    text = value.removeprefix(_BYTE_ORDER_MARK).strip(_JSON_SPACE)
    return text.startswith(b"{") and text.endswith(b"}")


class _CsvDecoder(_BlockDecoder):
    def __init__(self, type: TypeInformation, delimiter: str) -> None:
        super().__init__(type)
        assert type.schema is not None
        self._names = type.schema.names
        self._parse = pa.csv.ParseOptions(delimiter=delimiter)
        self._convert = pa.csv.ConvertOptions(
            column_types={f.name: f.type for f in type.schema},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def _read(self, block: bytes) -> pa.Table:
        options = pa.csv.ReadOptions(
            use_threads=False, block_size=max(1 << 10, len(block) + 1), column_names=self._names
        )
        return pa.csv.read_csv(
            io.BytesIO(block), read_options=options, parse_options=self._parse, convert_options=self._convert
        )


def decoder(format: str, type: object = None, delimiter: str = ",") -> Decoder:
    """The decoder of a format; the type is DDL or another form that `as_type` takes.

    >>> decoder("csv", "word string, n bigint").decode([b"a,1", b"b,2"])[0].rows()
    [Row(word='a', n=1), Row(word='b', n=2)]
    >>> decoder("xml")
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-4501] unknown format 'xml'; use text, bytes, json or csv
    """
    kind = as_type(type)
    if format in ("text", "bytes"):
        own = as_type("string" if format == "text" else "binary")
        if kind is not PICKLED and kind != own:
            raise InvalidArgument("HR-1227", f"format '{format}' gives {own}, not {kind}; leave the type out")
        return _ColumnDecoder(own)
    if format == "json" and not kind.is_typed:
        return _AnyJsonDecoder(PICKLED)
    if format not in ("json", "csv"):
        raise InvalidArgument("HR-4501", f"unknown format {format!r}; use text, bytes, json or csv")
    if kind.kind != "row":
        raise InvalidArgument(
            "HR-1203",
            f"format '{format}' needs a type with named fields, for example 'word string, n bigint', got {kind}",
        )
    return _JsonDecoder(kind) if format == "json" else _CsvDecoder(kind, delimiter)


def encoder(format: str, type: object = None, delimiter: str = ",") -> Encode:
    """A function that encodes the records of a batch of a type.

    >>> encoder("text", "bigint")(Batch.of_rows([1, 2], as_type("bigint")))
    [b'1', b'2']
    """
    kind = as_type(type)
    if format == "csv":
        if kind.kind not in ("row", "tuple"):
            raise InvalidArgument(
                "HR-1203", f"format 'csv' needs a type with fields, for example 'word string, n bigint', got {kind}"
            )
        options = pa.csv.WriteOptions(include_header=False, delimiter=delimiter)
        return lambda batch: _csv_lines(batch, options)
    if format not in _ENCODERS:
        raise InvalidArgument("HR-4501", f"unknown format {format!r}; use text, bytes, json or csv")
    return _ENCODERS[format]


def _text_lines(batch: Batch) -> list[bytes]:
    return [str(row).encode() for row in batch.rows()]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


_JSON = msgspec.json.Encoder(enc_hook=_plain)


def _json_lines(batch: Batch) -> list[bytes]:
    if batch.type.kind == "row":
        return list(map(_JSON.encode, batch.arrow().to_pylist()))
    return [_JSON.encode(row.as_dict(recursive=True) if isinstance(row, Row) else row) for row in batch.rows()]


def _as_bytes(batch: Batch) -> list[bytes]:
    rows = batch.rows()
    for row in rows:
        if not isinstance(row, bytes):
            raise InvalidArgument("HR-4503", f"format 'bytes' takes records that are bytes, got {row!r}")
    return rows


def _csv_lines(batch: Batch, options: pa.csv.WriteOptions) -> list[bytes]:
    out = io.BytesIO()
    pa.csv.write_csv(batch.arrow(), out, options)
    lines = lines_of(out.getvalue())
    if len(lines) != len(batch):
        raise InvalidArgument(
            "HR-4503", "a record has a line's end in one of its strings; csv files hold a record a line: use json"
        )
    return lines


_ENCODERS: dict[str, Encode] = {"text": _text_lines, "json": _json_lines, "bytes": _as_bytes}
