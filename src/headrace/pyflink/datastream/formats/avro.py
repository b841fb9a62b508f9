"""`pyflink.datastream.formats.avro`: Avro records in files and in Kafka. See `headrace.connectors.avro`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.avro import AvroCodec, AvroFormat
from headrace.connectors.files import FileSource
from headrace.connectors.values import Decoder
from headrace.errors import InvalidArgument
from headrace.pyflink.common.io import InputFormat
from headrace.pyflink.common.serialization import BulkWriterFactory, DeserializationSchema, SerializationSchema
from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.common.types import Row
from headrace.pyflink.datastream.utils import ResultTypeQueryable
from headrace.records.types import PICKLED, TypeInformation, as_type

__all__ = [
    "AvroBulkWriters",
    "AvroInputFormat",
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "AvroSchema",
    "GenericRecordAvroTypeInfo",
]


class AvroSchema:
    """A schema of Avro.

    >>> str(AvroSchema.parse_string('{"type": "enum", "name": "E", "symbols": ["A"]}'))
    '{"type": "enum", "name": "E", "symbols": ["A"]}'
    """

    def __init__(self, schema: str) -> None:
        self.text = AvroCodec(schema).text

    def __str__(self) -> str:
        return self.text

    @staticmethod
    def parse_string(json_schema: str) -> AvroSchema:
        return AvroSchema(json_schema)

    @staticmethod
    def parse_file(file_path: str) -> AvroSchema:
        return AvroSchema(Path(file_path).read_text(encoding="utf-8"))


class GenericRecordAvroTypeInfo(TypeInformation):
    """The type of a stream of Avro records: dicts, which are pickled between subtasks."""

    def __init__(self, schema: AvroSchema) -> None:
        super().__init__(PICKLED.kind, None)


class AvroInputFormat(FileSource, InputFormat, ResultTypeQueryable):
    """Reads Avro files as dicts, for `env.create_input(...)`."""

    def __init__(self, path: str, schema: AvroSchema) -> None:
        super().__init__(path, AvroFormat(schema.text, typed=False))
        self._schema = schema

    def get_produced_type(self) -> GenericRecordAvroTypeInfo:
        return GenericRecordAvroTypeInfo(self._schema)


class AvroBulkWriters:
    """Writes Avro files."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> BulkWriterFactory:
        """Of dicts, Rows or tuples that fit the schema."""
        return BulkWriterFactory(AvroFormat(schema.text))


def _codec(record_class: str | None, schema: str | None) -> AvroCodec:
    if schema is None and record_class is None:
        raise TypeError("record_class or avro_schema_string should be specified.")
    if schema is None:
        raise InvalidArgument(
            "HR-8001", f"Avro: {record_class} is a Java class; give its schema as avro_schema_string='{{...}}'"
        )
    return AvroCodec(schema)


def _rows(arrow: pa.DataType) -> TypeInformation:
    """An Arrow type whose structs are PyFlink's rows."""
    if pa.types.is_struct(arrow):
        return Types.ROW_NAMED([field.name for field in arrow], [_rows(field.type) for field in arrow])
    if pa.types.is_list(arrow):
        return Types.LIST(_rows(arrow.value_type))
    return Types.MAP(Types.STRING(), _rows(arrow.item_type)) if pa.types.is_map(arrow) else as_type(arrow)


class AvroRowDeserializationSchema(DeserializationSchema):
    """Reads Avro records as Rows."""

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        codec = _codec(record_class, avro_schema_string)
        columns = codec.type()
        if columns.kind not in ("row", "pickled"):
            raise InvalidArgument("HR-8004", f"Avro: rows need a schema of a record, got {avro_schema_string}")
        rows = None if columns.schema is None else _rows(columns.arrow_type)
        self._format = AvroFormat(codec.schema, type_info=rows)

    def deserialize(self, message: bytes) -> Row | dict[str, Any]:
        record: Row | dict[str, Any] = self._format.batch([self._format.codec.decode(message)]).rows()[0]
        return record

    def get_produced_type(self) -> TypeInformation:
        return self._format.type

    def decoder(self) -> Decoder:
        return self._format.decoder()


class AvroRowSerializationSchema(SerializationSchema):
    """Writes Rows as Avro records."""

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        self._avro = _codec(record_class, avro_schema_string)

    def serialize(self, element: Any) -> bytes:
        return self._avro.encode(element)
