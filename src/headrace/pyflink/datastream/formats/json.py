"""`pyflink.datastream.formats.json`: rows as JSON objects.

Values are taken as Flink takes them: a number may be a text, binary data is base64, dates and times are in ISO form. A
batch of plain values is decoded at once, by columns; what does not fit is decoded one record at a time.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Self

import msgspec
import pyarrow as pa

from headrace.connectors.values import CorruptRecord, Decoder, decoder, joined
from headrace.errors import InvalidArgument
from headrace.pyflink.common.serialization import DeserializationSchema, SerializationSchema, values_of
from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.common.types import Row
from headrace.records.batch import Batch
from headrace.records.types import TypeInformation, form_of

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]

_Convert = Callable[[Any], Any]


class JsonRowDeserializationSchema(DeserializationSchema):
    """Reads JSON objects as Rows."""

    def __init__(self, type_info: TypeInformation, fail_on_missing_field: bool, ignore_parse_errors: bool) -> None:
        if type_info.kind != "row":
            raise InvalidArgument(
                "HR-8004",
                f"JsonRowDeserializationSchema needs a row type, for example Types.ROW_NAMED, got {type_info}",
            )
        self._type, self._strict, self.ignores_errors = type_info, fail_on_missing_field, ignore_parse_errors

    @staticmethod
    def builder() -> JsonRowDeserializationSchema.Builder:
        return JsonRowDeserializationSchema.Builder()

    def deserialize(self, message: bytes) -> Row:
        row: Row = self.decoder().decode_one(message).rows()[0]
        return row

    def get_produced_type(self) -> TypeInformation:
        return self._type

    def decoder(self) -> JsonRows:
        return JsonRows(self._type, self._strict, self.ignores_errors)

    class Builder:
        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None
            self._strict = self._ignore = False

        def type_info(self, type_info: TypeInformation) -> Self:
            """The names of the fields are those of the JSON object."""
            self._type_info = type_info
            return self

        def json_schema(self, json_schema: str) -> Self:
            """The type that a JSON schema describes."""
            if json_schema is None:
                raise TypeError("The json_schema must not be None.")
            root = json.loads(json_schema)
            self._type_info = _type_of_schema(root, root)
            return self

        def fail_on_missing_field(self) -> Self:
            """A field that is missing is an error; else it is None."""
            self._strict = True
            return self

        def ignore_parse_errors(self) -> Self:
            """Skip what is no JSON; a field that cannot be read is None."""
            self._ignore = True
            return self

        def build(self) -> JsonRowDeserializationSchema:
            if self._type_info is None:
                raise TypeError("Typeinfo should be set.")
            if self._strict and self._ignore:
                raise InvalidArgument(
                    "HR-8003", "JsonRowDeserializationSchema: fail on missing fields, or ignore errors: not both"
                )
            return JsonRowDeserializationSchema(self._type_info, self._strict, self._ignore)


class JsonRows(Decoder):
    """Decodes JSON objects into the fields of a row type."""

    def __init__(self, type: TypeInformation, strict: bool, lenient: bool) -> None:
        super().__init__(type)
        assert type.schema is not None
        self._strict, self._lenient = strict, lenient
        fields = [(field.name, _converter(field, lenient, strict)) for field in type.schema]
        self._fields = fields
        self._columns = None if strict or not all(map(_is_plain, type.schema)) else decoder("json", type)

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonRows, (self.type, self._strict, self._lenient)

    def decode(self, values: Sequence[bytes]) -> tuple[Batch, list[CorruptRecord]]:
        if self._columns is not None:
            batch, bad = self._columns.decode(values)
            if not bad:
                return batch, []
        rows, bad = [], []
        for index, value in enumerate(values):
            try:
                rows.append(self.decode_one(value))
            except (ValueError, msgspec.MsgspecError) as error:
                bad.append(CorruptRecord(index, value, str(error)))
        return (joined(rows) if rows else self._none()), bad

    def decode_one(self, value: bytes) -> Batch:
        """One record; ValueError if it does not fit."""
        found = msgspec.json.decode(value)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004 - of the bytes
        row = tuple(convert(_field(found, name, self._strict)) for name, convert in self._fields)
        return Batch.of_arrow(self.type.to_batch([row]), self.type)

    def _all(self, values: Sequence[bytes]) -> Batch:
        return joined([self.decode_one(value) for value in values])


def _field(found: dict[str, Any], name: str, strict: bool) -> Any:
    if strict and name not in found:
        raise ValueError(f"it has no field '{name}'")
    return found.get(name)


def _is_plain(field: pa.Field) -> bool:
    """Return True if a column is read in the same way by columns and value by value."""
    arrow, form = field.type, form_of(field)
    if pa.types.is_list(arrow):
        return not form and _is_plain(arrow.value_field)
    if pa.types.is_struct(arrow):
        return form in ("", "mutable") and all(map(_is_plain, arrow))
    return not form and bool(
        pa.types.is_string(arrow)
        or pa.types.is_boolean(arrow)
        or pa.types.is_integer(arrow)
        or pa.types.is_floating(arrow)
    )


def _converter(field: pa.Field, lenient: bool, strict: bool) -> _Convert:
    convert = _of_form(form_of(field)) or _value_converter(field.type, lenient, strict)

    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except (ValueError, TypeError, ArithmeticError, AttributeError):
            if lenient:
                return None
            raise ValueError(f"{value!r} is not {field.type}") from None

    return checked


def _of_form(form: str) -> _Convert | None:
    if form == "decimal":
        return lambda value: Decimal(str(value))
    if form == "integer":
        return lambda value: int(Decimal(str(value)))
    if form in ("pickled", "instant", "tuple"):
        raise InvalidArgument("HR-8004", f"JSON has no values for a field that is {form}; read it as a string")
    return None


def _value_converter(arrow: pa.DataType, lenient: bool, strict: bool) -> _Convert:
    if pa.types.is_struct(arrow):
        fields = [(field.name, _converter(field, lenient, strict)) for field in arrow]
        return lambda value: {name: convert(_field(dict(value), name, strict)) for name, convert in fields}
    if pa.types.is_list(arrow):
        item = _converter(arrow.value_field, lenient, strict)
        return lambda value: [item(one) for one in _of(list, value)]
    if pa.types.is_map(arrow):
        inner = _converter(arrow.item_field, lenient, strict)
        return lambda value: {key: inner(one) for key, one in value.items()}
    if pa.types.is_string(arrow):
        return lambda value: value if isinstance(value, str) else _JSON.encode(value).decode()
    if pa.types.is_boolean(arrow):
        return lambda value: value if isinstance(value, bool) else str(value).strip().lower() == "true"
    if pa.types.is_integer(arrow):
        return lambda value: int(value.strip()) if isinstance(value, str) else int(value)
    if pa.types.is_floating(arrow):
        return float
    if pa.types.is_decimal(arrow):
        return lambda value: Decimal(str(value))
    return _time_converter(arrow)


def _time_converter(arrow: pa.DataType) -> _Convert:
    if pa.types.is_binary(arrow):
        return lambda value: base64.b64decode(value, validate=True)
    if pa.types.is_date(arrow):
        return dt.date.fromisoformat
    if pa.types.is_time(arrow):
        return lambda value: dt.time.fromisoformat(value.removesuffix("Z"))
    if pa.types.is_timestamp(arrow):
        return lambda value: _timestamp(value, has_zone=arrow.tz is not None)
    raise InvalidArgument("HR-8004", f"JSON has no values for {arrow}; read it as a string")


def _timestamp(text: str, has_zone: bool) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if has_zone:
        return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    return found if found.tzinfo is None else found.astimezone(dt.UTC).replace(tzinfo=None)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _type_of_schema(schema: Any, root: Any) -> TypeInformation:
    """The type that a JSON schema describes."""
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].lstrip("#/").split("/"):
            target = target[step]
        return _type_of_schema(target, root)
    kinds = schema.get("type", "object")
    kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    if len(kinds) != 1:
        raise InvalidArgument(
            "HR-8004", f"a JSON schema with several types for one value has no row type: {json.dumps(schema)}"
        )
    if kinds[0] == "object":
        fields = {name: _type_of_schema(one, root) for name, one in schema.get("properties", {}).items()}
        return Types.ROW_NAMED(list(fields), list(fields.values()))
    if kinds[0] == "array":
        return Types.LIST(_type_of_schema(schema["items"], root))
    if kinds[0] == "string":
        by_format = {"date": Types.SQL_DATE(), "time": Types.SQL_TIME(), "date-time": Types.SQL_TIMESTAMP()}
        if schema.get("contentEncoding") == "base64":
            return Types.PRIMITIVE_ARRAY(Types.BYTE())
        return by_format.get(schema.get("format", ""), Types.STRING())
    numbers = {"boolean": Types.BOOLEAN(), "integer": Types.BIG_INT(), "number": Types.BIG_DEC()}
    if kinds[0] not in numbers:
        raise InvalidArgument("HR-8004", f"unknown type {kinds[0]!r} in a JSON schema")
    return numbers[kinds[0]]


# --- writing ----------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat() + ("" if value.tzinfo else "Z")
    if isinstance(value, dt.time):
        return value.isoformat() + "Z"
    return str(value)


_JSON = msgspec.json.Encoder(enc_hook=_plain, decimal_format="number")


class JsonRowSerializationSchema(SerializationSchema):
    """Writes Rows as JSON objects."""

    def __init__(self, type_info: TypeInformation) -> None:
        if type_info.kind not in ("row", "tuple") or type_info.schema is None:
            raise InvalidArgument(
                "HR-8004", f"JsonRowSerializationSchema needs a row type, for example Types.ROW_NAMED, got {type_info}"
            )
        self._type = type_info
        self._fields = [(field.name, _writer(field.type)) for field in type_info.schema]

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonRowSerializationSchema, (self._type,)

    @staticmethod
    def builder() -> JsonRowSerializationSchema.Builder:
        return JsonRowSerializationSchema.Builder()

    def serialize(self, element: Any) -> bytes:
        return _JSON.encode(_object(element, self._fields))

    class Builder:
        def __init__(self) -> None:
            self._type_info: TypeInformation | None = None

        def with_type_info(self, type_info: TypeInformation) -> Self:
            """The names of the fields become those of the JSON object."""
            self._type_info = type_info
            return self

        def build(self) -> JsonRowSerializationSchema:
            if self._type_info is None:
                raise TypeError("Typeinfo should be set.")
            return JsonRowSerializationSchema(self._type_info)


def _object(value: Any, fields: list[tuple[str, _Convert]]) -> dict[str, Any]:
    values = values_of(value, [name for name, _ in fields])
    if len(values) < len(fields):
        raise InvalidArgument(
            "HR-8004",
            f"JsonRowSerializationSchema: {str(value)[:200]} has {len(values)} fields, the type has {len(fields)}",
        )
    return {
        name: convert(one) for (name, convert), one in zip(fields, values, strict=False)
    }  # as Flink, without fields that the type has not


def _writer(arrow: pa.DataType) -> _Convert:
    if pa.types.is_struct(arrow):
        fields = [(field.name, _writer(field.type)) for field in arrow]
        return lambda value: None if value is None else _object(value, fields)
    if pa.types.is_list(arrow):
        item = _writer(arrow.value_type)
        return lambda value: None if value is None else [item(one) for one in value]
    if pa.types.is_map(arrow):
        inner = _writer(arrow.item_type)
        return lambda value: None if value is None else {str(key): inner(one) for key, one in value.items()}
    if pa.types.is_timestamp(arrow) or pa.types.is_time(arrow):
        return lambda value: None if value is None else _plain(value)
    if pa.types.is_binary(arrow):
        return lambda value: None if value is None else base64.b64encode(value).decode()
    return lambda value: value
