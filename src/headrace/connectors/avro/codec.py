"""Values of an Avro schema to bytes and back."""

from __future__ import annotations

import json
import re
from io import BytesIO
from typing import Any

from headrace.connectors.avro.reading import MAX_EMPTY_VALUES, Resolution
from headrace.connectors.avro.schemas import ParsedSchema, Schema, fastavro_module
from headrace.connectors.avro.writing import WRITE_ERRORS, Writing
from headrace.errors import InvalidArgument
from headrace.records.types import PICKLED, TypeInformation, as_type

__all__ = ["AvroCodec"]

_MAX_COMPILED = 256
"""Bytes of a record that may contain itself, up to which fastavro's compiled reader is used. Each level takes a byte at
least, and that reader ends the process where levels are too many; the one in Python raises RecursionError."""

_HIGH_BYTES = re.compile(rb"[\x80-\xff]{10,}")


class _WatchedBytes(BytesIO):
    """Refuses numbers of more than ten bytes, whose first ones fastavro forgets."""

    _long = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._long = self._long + 1 if size == 1 and data >= b"\x80" else 0
        if self._long == 10:
            raise ValueError("a number has more than 64 bits")
        return data


class AvroCodec:
    r"""Encodes and decodes values of a schema.

    >>> codec = AvroCodec('{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}')
    >>> codec.encode({"n": -2}), codec.decode(b"\x03")
    (b'\x03', {'n': -2})
    >>> AvroCodec('{"type": "rekord"}')
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-4504] Avro: unknown type 'rekord' in the schema
    """

    def __init__(self, schema: str | Schema, written_with: str | Schema | None = None) -> None:
        """`written_with`: the schema of the bytes, if it is another one than that of the values."""
        self._parsed = ParsedSchema(schema)
        self._written_with = written_with
        written = self._parsed if written_with is None else ParsedSchema(written_with)
        self._writing = Writing(self._parsed)
        self._resolution = Resolution(written, self._parsed)
        fastavro = fastavro_module()
        self._write, self._read = fastavro.schemaless_writer, fastavro.schemaless_reader
        self._read_deep, self._convert = self._read, self._resolution.convert
        if self._resolution.is_recursive:
            from fastavro import _read_py

            self._read_deep = _read_py.schemaless_reader

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroCodec, (self.schema, self._written_with)

    @property
    def schema(self) -> Schema:
        """The schema as JSON."""
        return self._parsed.json

    @property
    def text(self) -> str:
        return json.dumps(self.schema)

    def type(self) -> TypeInformation:
        """The type of rows for a record; values that have no columns of one type, such as unions, are untyped."""
        try:
            arrow = self._parsed.arrow_type(self._parsed.root)
        except InvalidArgument:
            return PICKLED
        return as_type(arrow)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value, or raise InvalidArgument if it does not fit."""
        out = BytesIO()
        try:
            self._write(out, self._writing.schema, self._writing.put(value))
        except RecursionError:
            raise InvalidArgument("HR-4505", "Avro: a value is nested too deeply to be written") from None
        except WRITE_ERRORS as error:
            raise InvalidArgument("HR-4505", f"Avro: {str(value)[:200]} does not fit the schema: {error}") from None
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        """Return the value of some bytes, or raise ValueError if they are not one."""
        stream = self.stream(data)
        value = self.decode_from(stream, len(data))
        if rest := len(data) - stream.tell():
            raise ValueError(f"{rest} bytes follow the value of the Avro schema")
        return value

    def decode_from(self, stream: Any, size: int = _MAX_COMPILED + 1) -> Any:
        """Return the next value of a stream of at most `size` bytes, or raise ValueError."""
        if self._resolution.has_empty:
            self._resolution.empty.left = MAX_EMPTY_VALUES
        read = self._read if size <= _MAX_COMPILED else self._read_deep
        try:
            value = read(stream, self._resolution.schema, None)
            return value if self._convert is None else self._convert(value)
        except EOFError:
            raise ValueError("it ends too early for a value of the Avro schema") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"it is no value of the Avro schema: {error}") from None
        except (IndexError, KeyError, TypeError, OverflowError, ArithmeticError) as error:
            raise ValueError(f"it is no value of the Avro schema: {error!r}") from None

    def stream(self, data: bytes) -> BytesIO:
        """Return bytes as a stream in which numbers that are too long are found."""
        is_watched = not self._resolution.has_single_bytes and not all(map(_is_text, _HIGH_BYTES.findall(data)))
        return _WatchedBytes(data) if is_watched else BytesIO(data)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
