"""`pyflink.datastream.formats.csv`: rows as lines with separators, in files and in Kafka.

A line is one record: a line end inside quotes is not supported. An empty field is an empty string in a string column, and
None in any other.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Self

import pyarrow as pa

from headrace.connectors.files.formats import FilePart, LineFormat, LineReader, PartReader
from headrace.connectors.values import CorruptRecord, Decoder
from headrace.errors import InvalidArgument
from headrace.pyflink.common.serialization import (
    BulkWriterFactory,
    DeserializationSchema,
    SerializationSchema,
    as_text,
    float_text,
    values_of,
)
from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.common.types import Row
from headrace.pyflink.datastream.connectors.file_system import StreamFormat
from headrace.records.batch import Batch
from headrace.records.types import TypeInformation, field_of, form_of

__all__ = [
    "CsvBulkWriters",
    "CsvReaderFormat",
    "CsvRowDeserializationSchema",
    "CsvRowSerializationSchema",
    "CsvSchema",
    "CsvSchemaBuilder",
]

_LONGEST_CHECKED = 24  # a longer text is quoted whatever is in it, as Flink's writer does


@dataclass(frozen=True)
class _Column:
    name: str
    type: TypeInformation
    separator: str | None = None  # of the elements of an array; None: the one of the file


@dataclass(frozen=True)
class _Dialect:
    """The form of lines that are written and read."""

    separator: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null: str | None = None
    line_end: str = "\n"
    elements: str = ";"
    comments: bool = False
    lenient: bool = False  # a field that cannot be read is None

    def fields(self, line: str) -> list[str]:
        """The fields of one line."""
        reader = csv.reader(
            io.StringIO(line, newline=""),
            delimiter=self.separator,
            quotechar=self.quote,
            escapechar=self.escape,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            strict=True,
        )
        try:
            return next(reader, [])
        except csv.Error as error:
            raise ValueError(str(error)) from None

    def line(self, fields: Iterable[str | tuple[str]]) -> str:
        """A line without its end; a text is given in a tuple, since only texts are quoted."""
        return self.separator.join(self._quoted(one[0]) if isinstance(one, tuple) else one for one in fields)

    def _quoted(self, text: str) -> str:
        if self.quote is None:
            return text if self.escape is None else text.replace(self.separator, self.escape + self.separator)
        safe = max(map(ord, (self.separator, self.quote, "\r", "\n")))
        special = len(text) > _LONGEST_CHECKED or any(ord(c) <= safe or c == self.escape for c in text)
        if not special:
            return text
        if self.escape is not None:
            text = text.replace(self.escape, self.escape * 2)
        return self.quote + text.replace(self.quote, self.quote * 2) + self.quote


class CsvSchema:
    """The columns of a file, and how its lines are written."""

    def __init__(
        self,
        columns: Sequence[_Column],
        dialect: _Dialect,
        header: bool = False,
        strict: bool = False,
        skip: bool = False,
    ) -> None:
        self.columns, self.dialect = tuple(columns), dialect
        self.use_header, self.strict_headers, self.skip_first_data_row = header, strict, skip

    @staticmethod
    def builder() -> CsvSchemaBuilder:
        return CsvSchemaBuilder()

    @property
    def type(self) -> TypeInformation:
        """The type of the rows."""
        return Types.ROW_NAMED([column.name for column in self.columns], [column.type for column in self.columns])

    def size(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def __len__(self) -> int:
        return self.size()

    def __str__(self) -> str:
        return f"[CsvSchema: columns={[f'{c.name}/{c.type}' for c in self.columns]}, header? {self.use_header}]"

    __repr__ = __str__


class CsvSchemaBuilder:
    """Builds a CsvSchema, column by column."""

    def __init__(self) -> None:
        self._columns: list[_Column] = []
        self._dialect = _Dialect()
        self._header = self._strict = self._skip = False

    def build(self) -> CsvSchema:
        return CsvSchema(self._columns, self._dialect, self._header, self._strict, self._skip)

    def _add(self, *columns: _Column) -> Self:
        self._columns += columns
        return self

    def _with(self, **settings: Any) -> Self:
        self._dialect = replace(self._dialect, **settings)
        return self

    def add_array_column(self, name: str, separator: str = ";", element_type: TypeInformation | None = None) -> Self:
        """A column of several values, strings if no type is given."""
        return self._add(_Column(name, Types.LIST(element_type or Types.STRING()), separator))

    def add_boolean_column(self, name: str) -> Self:
        return self._add(_Column(name, Types.BOOLEAN()))

    def add_number_column(self, name: str, number_type: TypeInformation | None = None) -> Self:
        """A column of numbers, long ones if no type is given."""
        return self._add(_Column(name, number_type or Types.LONG()))

    def add_string_column(self, name: str) -> Self:
        return self._add(_Column(name, Types.STRING()))

    def add_columns_from(self, schema: CsvSchema) -> Self:
        return self._add(*schema.columns)

    def clear_columns(self) -> Self:
        self._columns.clear()
        return self

    def set_allow_comments(self, allow: bool = True) -> Self:
        """Lines that begin with `#` are no records."""
        return self._with(comments=allow)

    def set_any_property_name(self, name: str) -> Self:
        """Columns that the schema does not name are not read, so there is nothing to name."""
        raise InvalidArgument(
            "HR-8002", "set_any_property_name() is not supported: name every column with add_..._column(...)"
        )

    def disable_array_element_separator(self) -> Self:
        """An array is one value."""
        return self._with(elements="")

    def remove_array_element_separator(self, index: int) -> Self:
        """The array in a column is one value."""
        self._columns[index] = replace(self._columns[index], separator="")
        return self

    def set_array_element_separator(self, separator: str) -> Self:
        """The separator of all arrays that have none of their own."""
        return self._with(elements=separator)

    def set_column_separator(self, char: str) -> Self:
        return self._with(separator=_char("Column separator", char))

    def disable_escape_char(self) -> Self:
        return self._with(escape=None)

    def set_escape_char(self, char: str) -> Self:
        return self._with(escape=_char("Escape char", char))

    def set_line_separator(self, separator: str) -> Self:
        """The end of lines, when they are written."""
        return self._with(line_end=separator)

    def set_null_value(self, null_value: str) -> Self:
        """The text that stands for None."""
        return self._with(null=null_value)

    def disable_quote_char(self) -> Self:
        return self._with(quote=None)

    def set_quote_char(self, char: str) -> Self:
        return self._with(quote=_char("Quote char", char))

    def set_skip_first_data_row(self, skip: bool = True) -> Self:
        self._skip = skip
        return self

    def set_strict_headers(self, strict: bool = True) -> Self:
        """Require the names in the first line to be those of the schema; needs `set_use_header`."""
        self._strict = strict
        return self

    def set_use_header(self, use: bool = True) -> Self:
        """Take the names of columns from the first line, or not."""
        self._header = use
        return self

    def size(self) -> int:
        """The number of columns so far."""
        return len(self._columns)

    def __len__(self) -> int:
        return self.size()


def _char(what: str, char: str) -> str:
    if len(char) != 1:
        raise ValueError(f"{what} must be a single char, got {char}")
    return char


# --- lines and records ------------------------------------------------------------------------------------------------


class _CsvRows(Decoder):
    """Decodes lines into the fields of a row type."""

    def __init__(self, columns: Sequence[_Column], type: TypeInformation, dialect: _Dialect) -> None:
        super().__init__(type)
        self._columns, self._dialect = columns, dialect
        self._converters = [_parser(column, dialect) for column in columns]

    def __reduce__(self) -> tuple[Any, ...]:
        return _CsvRows, (self._columns, self.type, self._dialect)

    def decode_lines(self, block: bytes, count: int) -> tuple[Batch, list[CorruptRecord]]:
        lines = [line.rstrip(b"\r") for line in block.split(b"\n")]
        comments = self._dialect.comments
        return self.decode([line for line in lines if line and not (comments and line.startswith(b"#"))])

    def _all(self, values: Sequence[bytes]) -> Batch:
        return Batch.of_arrow(self.type.to_batch([self.row(value.decode()) for value in values]), self.type)

    def row(self, line: str) -> tuple[Any, ...]:
        """The values of a line."""
        fields = self._dialect.fields(line.rstrip("\r\n"))
        if len(fields) != len(self._converters) and not self._dialect.lenient:
            raise ValueError(f"{len(fields)} fields in place of {len(self._converters)}")
        fields += [""] * (len(self._converters) - len(fields))
        return tuple(convert(text) for convert, text in zip(self._converters, fields, strict=False))


def _parser(column: _Column, dialect: _Dialect) -> Callable[[str], Any]:
    field = field_of(column.type, column.name)
    separator = dialect.elements if column.separator is None else column.separator
    convert = _value_parser(field, separator)
    is_text = pa.types.is_string(field.type) and not form_of(field)

    def parse(text: str) -> Any:
        if text == dialect.null or (not text and not is_text):
            return None
        try:
            return convert(text)
        except (ValueError, ArithmeticError):
            if dialect.lenient:
                return None
            raise ValueError(f"{text!r} in column '{column.name}' is not {column.type}") from None

    return parse


def _value_parser(field: pa.Field, separator: str) -> Callable[[str], Any]:
    arrow, form = field.type, form_of(field)
    if form in ("decimal", "integer"):
        return (lambda text: Decimal(text.strip())) if form == "decimal" else (lambda text: int(text.strip()))
    if form in ("pickled", "instant"):
        raise InvalidArgument("HR-8004", f"CSV has no values for a field that is {form}; read it as a string")
    if pa.types.is_string(arrow):
        return str
    if pa.types.is_integer(arrow):
        return lambda text: int(text.strip())
    if pa.types.is_floating(arrow):
        return lambda text: float(text.strip())
    if pa.types.is_boolean(arrow):
        return lambda text: text.strip().lower() == "true"
    if pa.types.is_decimal(arrow):
        exponent = Decimal(1).scaleb(-arrow.scale)
        return lambda text: Decimal(text.strip()).quantize(exponent, ROUND_HALF_UP)
    if pa.types.is_binary(arrow):
        return str.encode
    if pa.types.is_date(arrow):
        return lambda text: dt.date.fromisoformat(text.strip())
    if pa.types.is_time(arrow):
        return lambda text: dt.time.fromisoformat(text.strip())
    if pa.types.is_timestamp(arrow):
        return lambda text: dt.datetime.fromisoformat(text.strip()).replace(tzinfo=None if arrow.tz is None else dt.UTC)
    if pa.types.is_list(arrow):
        item = _value_parser(arrow.value_field, separator)
        return lambda text: [item(one) for one in (text.split(separator) if separator else [text])]
    if pa.types.is_struct(arrow):
        items = [_value_parser(one, separator) for one in arrow]
        return lambda text: tuple(convert(one) for convert, one in zip(items, text.split(separator), strict=True))
    raise InvalidArgument("HR-8004", f"CSV has no values for {arrow}; read it as a string")


def _printer(column: _Column, dialect: _Dialect) -> Callable[[Any], str | tuple[str]]:
    field = field_of(column.type, column.name)
    arrow = field.type
    separator = dialect.elements if column.separator is None else column.separator
    if pa.types.is_floating(arrow):
        convert: Callable[[Any], str | tuple[str]] = lambda value: float_text(value, arrow)  # noqa: E731
    elif (
        form_of(field) in ("decimal", "integer")
        or pa.types.is_integer(arrow)
        or pa.types.is_boolean(arrow)
        or pa.types.is_decimal(arrow)
    ):
        convert = as_text
    elif pa.types.is_list(arrow) or pa.types.is_struct(arrow):
        convert = lambda value: (separator.join(map(as_text, value)),)  # noqa: E731
    elif pa.types.is_timestamp(arrow):
        convert = lambda value: (str(value.replace(tzinfo=None)),)  # noqa: E731
    else:
        convert = lambda value: (value.decode() if isinstance(value, bytes) else str(value),)  # noqa: E731
    return lambda value: (dialect.null or "") if value is None else convert(value)


class _Lines:
    """Makes lines of records."""

    def __init__(self, columns: tuple[_Column, ...], dialect: _Dialect) -> None:
        self.columns, self.dialect = columns, dialect
        self.printers = [_printer(column, dialect) for column in columns]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Lines, (self.columns, self.dialect)

    def __call__(self, record: Any) -> str:
        values = values_of(record, [column.name for column in self.columns])
        if len(values) != len(self.printers):
            raise InvalidArgument(
                "HR-8004", f"CSV: {str(record)[:200]} has {len(values)} fields, the schema has {len(self.printers)}"
            )
        return self.dialect.line(printer(value) for printer, value in zip(self.printers, values, strict=True))


def _columns_of(type_info: TypeInformation, what: str) -> tuple[_Column, ...]:
    if type_info is None:
        raise TypeError("Type information must not be None")
    if type_info.kind not in ("row", "tuple") or type_info.schema is None:
        raise InvalidArgument("HR-8004", f"{what} needs a row type, for example Types.ROW_NAMED, got {type_info}")
    return tuple(map(_Column, type_info.get_field_names(), type_info.get_field_types()))


# --- files ------------------------------------------------------------------------------------------------------------


class _CsvFiles(LineFormat):
    """Reads files by a schema. A first line with names, or one that is skipped, is the same in every part of a file."""

    def __init__(self, schema: CsvSchema) -> None:
        super().__init__(_CsvRows(schema.columns, schema.type, schema.dialect), suffix="csv")
        self._schema = schema

    def reader(self, part: FilePart, file: Any) -> PartReader:
        schema = self._schema
        reader = LineReader(part, file, self._rows, None)
        first = part.start == 0 and part.position == 0
        for row in range(schema.use_header + schema.skip_first_data_row if first else 0):
            line = reader.skip_line().decode("utf-8", "replace")
            expected = [column.name for column in schema.columns]
            if row == 0 and schema.use_header and schema.strict_headers and schema.dialect.fields(line) != expected:
                raise ValueError(f"its first line is '{line[:200]}', but the columns are {', '.join(expected)}")
        return reader

    @property
    def _rows(self) -> Decoder:
        assert self._decoder is not None
        return self._decoder


class CsvReaderFormat(StreamFormat):
    """Reads files with a CsvSchema."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> CsvReaderFormat:
        return CsvReaderFormat(_CsvFiles(schema))


class CsvBulkWriters:
    """Writes files with a CsvSchema."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> BulkWriterFactory:
        if schema.dialect.line_end != "\n":
            raise InvalidArgument(
                "HR-8004", f"files have lines that end with '\\n', not with {schema.dialect.line_end!r}"
            )
        lines = _Lines(schema.columns, schema.dialect)
        return BulkWriterFactory(
            LineFormat(encode=lambda _: lambda batch: [lines(row).encode() for row in batch.rows()])
        )


# --- messages ---------------------------------------------------------------------------------------------------------


class _SchemaBuilder:
    def __init__(self, type_info: TypeInformation, what: str) -> None:
        self._type, self._columns = type_info, _columns_of(type_info, what)
        self._dialect = _Dialect()

    def _with(self, **settings: Any) -> Self:
        self._dialect = replace(self._dialect, **settings)
        return self

    def set_array_element_delimiter(self, delimiter: str) -> Self:
        return self._with(elements=delimiter)

    def set_quote_character(self, c: str) -> Self:
        return self._with(quote=_char("Quote char", c))

    def set_escape_character(self, c: str) -> Self:
        return self._with(escape=_char("Escape char", c))


class CsvRowDeserializationSchema(DeserializationSchema):
    """Reads lines as Rows."""

    def __init__(self, columns: Sequence[_Column], type_info: TypeInformation, dialect: _Dialect) -> None:
        self._columns, self._type, self._dialect = columns, type_info, dialect
        self.ignores_errors = dialect.lenient

    def deserialize(self, message: bytes) -> Row:
        row: Row = self.decoder()._all([message]).rows()[0]  # noqa: SLF001
        return row

    def get_produced_type(self) -> TypeInformation:
        return self._type

    def decoder(self) -> Decoder:
        return _CsvRows(self._columns, self._type, self._dialect)

    class Builder(_SchemaBuilder):
        def __init__(self, type_info: TypeInformation) -> None:
            super().__init__(type_info, "CsvRowDeserializationSchema")

        def set_field_delimiter(self, delimiter: str) -> Self:
            return self._with(separator=_char("Field delimiter", delimiter))

        def set_allow_comments(self, allow_comments: bool) -> Self:
            return self._with(comments=allow_comments)

        def set_null_literal(self, null_literal: str) -> Self:
            return self._with(null=null_literal)

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> Self:
            """A field that cannot be read is None, a line that cannot be read is skipped."""
            return self._with(lenient=ignore_parse_errors)

        def build(self) -> CsvRowDeserializationSchema:
            return CsvRowDeserializationSchema(self._columns, self._type, self._dialect)


class CsvRowSerializationSchema(SerializationSchema):
    """Writes Rows as lines, each with its end."""

    def __init__(self, columns: Sequence[_Column], dialect: _Dialect) -> None:
        self._lines = _Lines(tuple(columns), dialect)

    def serialize(self, element: Any) -> bytes:
        return (self._lines(element) + self._lines.dialect.line_end).encode()

    class Builder(_SchemaBuilder):
        def __init__(self, type_info: TypeInformation) -> None:
            super().__init__(type_info, "CsvRowSerializationSchema")

        def set_field_delimiter(self, c: str) -> Self:
            return self._with(separator=_char("Field delimiter", c))

        def set_line_delimiter(self, delimiter: str) -> Self:
            return self._with(line_end=delimiter)

        def disable_quote_character(self) -> Self:
            return self._with(quote=None)

        def set_null_literal(self, s: str) -> Self:
            return self._with(null=s)

        def build(self) -> CsvRowSerializationSchema:
            return CsvRowSerializationSchema(self._columns, self._dialect)
