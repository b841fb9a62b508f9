"""`pyflink.common.serialization`: schemas that make bytes of records and records of bytes.

In PyFlink a schema wraps a Java class. Here it is Python, so a program may also define its own: a subclass with
`serialize`, or with `deserialize` and `get_produced_type`.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.connectors.files.formats import FileFormat, LineFormat
from headrace.connectors.values import CorruptRecord, Decoder, decoder
from headrace.errors import InvalidArgument
from headrace.pyflink.common.types import Row
from headrace.records.batch import Batch
from headrace.records.types import PICKLED, TypeInformation, Types
from headrace.records.types import Row as _NamedTuple

__all__ = [
    "BulkWriterFactory",
    "ByteArraySchema",
    "DeserializationSchema",
    "Encoder",
    "RowFieldExtractorSchema",
    "SerializationSchema",
    "SimpleStringSchema",
]


class SerializationSchema:
    """Makes the bytes of a record."""

    def serialize(self, element: Any) -> bytes | None:
        raise NotImplementedError(f"{type(self).__name__} must define serialize(element), which gives bytes")


class DeserializationSchema:
    """Makes a record of bytes."""

    ignores_errors = False
    """Whether bytes that are no record are skipped."""

    def deserialize(self, message: bytes) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define deserialize(message), which gives a record")

    def get_produced_type(self) -> TypeInformation:
        """The type of the records."""
        return PICKLED

    def decoder(self) -> Decoder:
        """Return the decoder of whole batches, for sources."""
        return _SchemaDecoder(self)


class _SchemaDecoder(Decoder):
    """Decodes record by record."""

    def __init__(self, schema: DeserializationSchema) -> None:
        super().__init__(schema.get_produced_type())
        self._schema = schema

    def decode(self, values: Sequence[bytes]) -> tuple[Batch, list[CorruptRecord]]:
        rows, bad = [], []
        for index, value in enumerate(values):
            try:
                rows.append(self._schema.deserialize(value))
            except Exception as error:
                bad.append(CorruptRecord(index, value, f"{type(error).__name__}: {error}"))
        return Batch.of_output(rows, self.type, None), bad

    def _all(self, values: Sequence[bytes]) -> Batch:
        return self.decode(values)[0]


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    r"""Strings in a character set.

    >>> SimpleStringSchema().serialize("ä"), SimpleStringSchema("latin-1").deserialize(b"\xe4")
    (b'\xc3\xa4', 'ä')
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        self._charset = check_charset(charset)

    def serialize(self, element: Any) -> bytes:
        if not isinstance(element, str):
            raise InvalidArgument(
                "HR-8004",
                f"SimpleStringSchema writes strings, got {str(element)[:200]!r} of type {type(element).__name__}; put "
                ".map(str, output_type=Types.STRING()) before the sink",
            )
        return element.encode(self._charset)

    def deserialize(self, message: bytes) -> str:
        return message.decode(self._charset)

    def get_produced_type(self) -> TypeInformation:
        return Types.STRING()

    def decoder(self) -> Decoder:
        return decoder("text") if self._charset == "utf-8" else super().decoder()


def check_charset(name: str) -> str:
    """Python's name of a character set; InvalidArgument if there is none."""
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise InvalidArgument(
            "HR-1225", f"there is no character set {name!r}; use one that Python knows, such as 'UTF-8'"
        ) from None


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Bytes as they are."""

    def serialize(self, element: Any) -> bytes:
        if not isinstance(element, bytes | bytearray):
            raise InvalidArgument(
                "HR-8004",
                f"ByteArraySchema writes bytes, got {str(element)[:200]!r} of type {type(element).__name__}; put a map(...) with "
                "output_type=Types.PRIMITIVE_ARRAY(Types.BYTE()) before the sink",
            )
        return bytes(element)

    def deserialize(self, message: bytes) -> bytes:
        return message

    def get_produced_type(self) -> TypeInformation:
        return Types.PRIMITIVE_ARRAY(Types.BYTE())

    def decoder(self) -> Decoder:
        return decoder("bytes")


class RowFieldExtractorSchema(SerializationSchema):
    """One field of a Row, which must be bytes; nothing, where the field is None.

    >>> RowFieldExtractorSchema(1).serialize(Row(b"key", b"value"))
    b'value'
    """

    def __init__(self, field_index: int) -> None:
        if field_index < 0:
            raise ValueError(f"Field index must be non-negative, got: {field_index}")
        self.field_index = field_index

    def serialize(self, element: Any) -> bytes:
        value = None if element is None else element[self.field_index]
        if value is None:
            return b""
        if not isinstance(value, bytes | bytearray):
            raise InvalidArgument(
                "HR-8004",
                f"RowFieldExtractorSchema({self.field_index}): the field must be bytes, got {type(value).__name__} in "
                f"{str(element)[:200]}; encode it in a map(...) before the sink",
            )
        return bytes(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowFieldExtractorSchema) and other.field_index == self.field_index

    def __hash__(self) -> int:
        return hash(self.field_index)


class Encoder:
    """Writes records to files, one after the other."""

    def __init__(self, format: FileFormat) -> None:
        self.format = format

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """A line for each record: its text, which for a record of a type is the one that Flink writes."""
        charset = check_charset(charset_name)

        def encode(type: TypeInformation) -> Callable[[Batch], list[bytes]]:
            text = as_text if type.is_typed else str
            return lambda batch: [text(row).encode(charset) for row in batch.rows()]

        return Encoder(LineFormat(encode=encode))


class BulkWriterFactory:
    """Writes files of a format of many records at a time."""

    def __init__(self, format: FileFormat | str, type_info: TypeInformation | None = None) -> None:
        """`type_info`: the fields of the files."""
        self.format, self.type_info = format, type_info


def values_of(record: Any, names: Sequence[str]) -> list[Any]:
    """The fields of a dict, Row or tuple: by name if it has all these names, else in their order.

    >>> values_of({"b": 1}, ["a", "b"]), values_of(Row(b=1, a=2), ["a", "b"]), values_of((1, 2), ["a", "b"])
    ([None, 1], [2, 1], [1, 2])
    """
    if isinstance(record, dict):
        return [record.get(name) for name in names]
    own = record.names if isinstance(record, Row) else getattr(record, "_fields", None)
    return [record[name] for name in names] if own and set(own).issuperset(names) else list(record)


def as_text(value: Any) -> str:
    """The text that Flink writes for a value: of tuples `(a,1)`, of rows `+I[a, 1]`.

    >>> as_text(("a", 1, None, True)), as_text(Row("a", 2.0)), as_text([1e10])
    ('(a,1,null,true)', '+I[a, 2.0]', '[1.0E10]')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, Row):
        return f"{value.get_row_kind()}[{', '.join(map(as_text, value))}]"
    if isinstance(value, _NamedTuple):
        return f"+I[{', '.join(map(as_text, value))}]"
    if isinstance(value, tuple):
        return f"({','.join(map(as_text, value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(as_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_text(key)}={as_text(one)}' for key, one in value.items())}}}"
    return str(value)


def printed(value: Any) -> str:
    """Return PyFlink's printed form of a record: a row's fields as Python writes them, all else as Java does.

    >>> printed(Row("a", None)), printed(("a", None)), printed(1.0), printed("a")
    ('+I[a,None]', '(a,null)', '1.0', 'a')
    """
    return f"{value.get_row_kind()}[{','.join(map(str, value))}]" if isinstance(value, Row) else as_text(value)


def float_text(value: float, arrow: pa.DataType | None = None) -> str:
    """A number as Java writes it; of a float32 column the shortest text that gives the same one.

    >>> float_text(3e38, pa.float32()), float_text(0.001), float_text(1234567.0), float_text(float("inf"))
    ('3.0E38', '0.001', '1234567.0', 'Infinity')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value and not 1e-3 <= abs(value) < 1e7:
        short = np.float32(value) if arrow == pa.float32() else value
        digits, exponent = np.format_float_scientific(short, unique=True, trim="0").split("e")
        return f"{digits}E{int(exponent)}"
    return np.format_float_positional(np.float32(value) if arrow == pa.float32() else value, unique=True, trim="0")


_FORMATS = {"Avro": "avro", "Csv": "csv", "Json": "json"}


def format_schema(module: str, name: str) -> object:
    """A schema of a format, which programs for Flink 1.x import from here; formats are made of what is here."""
    for prefix, of_format in _FORMATS.items():
        if name in (f"{prefix}RowSerializationSchema", f"{prefix}RowDeserializationSchema"):
            return vars(import_module(f"headrace.pyflink.datastream.formats.{of_format}"))[name]
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def __getattr__(name: str) -> object:
    return format_schema(__name__, name)
