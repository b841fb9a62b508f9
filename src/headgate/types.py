"""Types of records: how a Python value becomes Arrow columns and comes back.

A stream is either *typed* (its records travel as Arrow columns) or *untyped* (one pickle per buffer).
A type is given as Spark DDL (`"word string, n bigint"`), as a pyarrow type or schema, or as PyFlink's `Types`.
What a function sees of a typed record:

    scalar type   "bigint", Types.LONG()            the value itself
    tuple type    Types.TUPLE([...])                a tuple
    row type      "word string, n bigint", ROW(..)  a Row: a tuple with named fields
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, cast

import pyarrow as pa

from headgate.errors import InvalidArgument

__all__ = ["PICKLED", "Row", "TypeInformation", "TypeMismatch", "Types", "as_type", "row_class"]


class TypeMismatch(InvalidArgument):
    """A record does not fit the declared type; `index` is its place in the batch."""

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.index = index
        self.origin: Any = None  # the operator that made the record


class Row(tuple[Any, ...]):
    """A record with fields: a tuple whose fields can also be read by name.

    >>> row = Row(word="a", n=1)
    >>> row.word, row["n"], row[1], row == ("a", 1)
    ('a', 1, 1, True)
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __new__(cls, *values: Any, **named: Any) -> Row:  # noqa: PYI034 - named rows have a class of their own
        if named:
            if values:
                raise InvalidArgument("Row takes positional or named values, not both")
            return tuple.__new__(row_class(tuple(named)), named.values())
        return tuple.__new__(cls, values)

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else tuple.__getitem__(self, key)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name; unnamed ones are f0, f1, ..."""
        names = self._fields or [f"f{i}" for i in range(len(self))]
        return dict(zip(names, self, strict=True))

    def __repr__(self) -> str:
        inner = (
            ", ".join(f"{k}={v!r}" for k, v in self.as_dict().items()) if self._fields else ", ".join(map(repr, self))
        )
        return f"Row({inner})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Classes of named rows are made on the fly: a pickle carries the names instead.
        return _restore_row, (self._fields, tuple(self))


@lru_cache(maxsize=4096)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """The Row class with these fields; the same class for the same names."""
    if len(set(names)) != len(names):
        raise InvalidArgument(f"field names must be unique, got {', '.join(names)}")
    body: dict[str, Any] = {"__slots__": (), "_fields": names}
    for index, name in enumerate(names):
        if name not in ("count", "index", "as_dict"):
            body[name] = property(itemgetter(index))
    return cast("type[Row]", type("Row", (Row,), body))


def _restore_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return tuple.__new__(row_class(names) if names else Row, values)


class TypeInformation:
    """The type of a stream's records, a key or a state value.

    >>> kind = as_type("word string, n bigint")
    >>> kind.to_batch([("a", 1), ("b", 2)]).num_rows
    2
    >>> kind.to_rows(kind.to_batch([("a", 1)]))
    [Row(word='a', n=1)]
    """

    __slots__ = ("_converters", "kind", "row", "schema")

    def __init__(self, kind: str, schema: pa.Schema | None) -> None:
        self.kind = kind  # scalar | tuple | row | pickled
        self.schema = schema
        self.row: type[Row] | None = row_class(tuple(schema.names)) if kind == "row" and schema is not None else None
        self._converters = [_converter(field.type) for field in schema] if schema is not None else []

    @property
    def is_typed(self) -> bool:
        """Whether records travel as Arrow columns."""
        return self.schema is not None

    @property
    def arrow_type(self) -> pa.DataType:
        """The type as one Arrow value: rows and tuples are structs."""
        schema = self._columns()
        return schema.field(0).type if self.kind == "scalar" else pa.struct(list(schema))

    def to_rows(self, batch: pa.RecordBatch) -> list[Any]:
        """The records of a batch as Python values."""
        columns = [convert(column) for convert, column in zip(self._converters, batch.columns, strict=True)]
        if self.kind == "scalar":
            return columns[0]
        if self.row is not None:
            # tuple.__new__ skips Row.__new__: a third of the time for each record
            new, cls = tuple.__new__, self.row
            return [new(cls, values) for values in zip(*columns, strict=True)]
        return list(zip(*columns, strict=True))

    def column_reader(self, positions: Sequence[int]) -> Callable[[pa.RecordBatch], list[list[Any]]]:
        """A function that gives some columns of a batch as lists."""
        chosen = [(p, self._converters[p]) for p in positions]
        return lambda batch: [convert(batch.column(p)) for p, convert in chosen]

    def normalise(self, rows: list[Any]) -> list[Any]:
        """Plain tuples as the named rows that the type promises."""
        cls, new, width = self.row, tuple.__new__, len(self._converters)
        if cls is None:
            return rows
        for index, row in enumerate(rows):
            if not isinstance(row, tuple | list) or len(row) != width:
                raise TypeMismatch(f"expected {self}, got {_short(row)}: {self._problem(row)}", index)
        return [row if row.__class__ is cls else new(cls, row) for row in rows]

    def to_batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Python values as one batch; TypeMismatch names the first record that does not fit."""
        schema = self._columns()
        try:
            columns: Sequence[Any]
            fields = [()] * len(schema) if not rows or self.kind == "scalar" else list(zip(*rows, strict=True))
            columns = [rows] if self.kind == "scalar" else fields
            if len(columns) != len(schema):
                raise ValueError(f"expected {len(schema)} fields, got {len(columns)}")
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._mismatch(rows, error) from None
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _mismatch(self, rows: Sequence[Any], error: Exception) -> TypeMismatch:
        for index, value in enumerate(rows):
            problem = self._problem(value)
            if problem:
                return TypeMismatch(f"expected {self}, got {_short(value)}: {problem}", index)
        return TypeMismatch(f"expected {self}: {error}")

    def _problem(self, value: Any) -> str | None:
        schema = self._columns()
        if self.kind == "scalar":
            values: Sequence[Any] = [value]
        elif isinstance(value, tuple | list):
            values = value
            if len(values) != len(schema):
                return f"{len(values)} fields instead of {len(schema)}"
        else:
            return f"a {type(value).__name__} is not a {'row' if self.row else 'tuple'} of {len(schema)} fields"
        for item, field in zip(values, schema, strict=True):
            try:
                pa.array([item], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                where = "" if self.kind == "scalar" else f" for field '{field.name}'"
                return f"{_short(item)} is not {_arrow_name(field.type)}{where}"
        return None

    def _columns(self) -> pa.Schema:
        if self.schema is None:
            raise InvalidArgument(
                "an untyped stream has no Arrow columns; declare a type, for example 'word string, n bigint'"
            )
        return self.schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and self.kind == other.kind and self.schema == other.schema

    def __hash__(self) -> int:
        return hash((self.kind, str(self.schema)))

    def __repr__(self) -> str:
        if self.schema is None:
            return "pickled"
        if self.kind == "scalar":
            return _arrow_name(self.schema.field(0).type)
        return f"{self.kind}<{', '.join(f'{f.name} {_arrow_name(f.type)}' for f in self.schema)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return TypeInformation, (self.kind, self.schema)


PICKLED = TypeInformation("pickled", None)


def as_type(given: object) -> TypeInformation:
    """The type for whatever a user may give: None, DDL, pyarrow type or schema, TypeInformation.

    >>> as_type("bigint"), as_type(None)
    (bigint, pickled)
    """
    if given is None:
        return PICKLED
    if isinstance(given, TypeInformation):
        return given
    if isinstance(given, str):
        return _parse_ddl(given)
    if isinstance(given, pa.Schema):
        return TypeInformation("row", given)
    if isinstance(given, pa.StructType):
        return TypeInformation("row", pa.schema(list(given)))
    if isinstance(given, pa.DataType):
        return _scalar(given)
    raise InvalidArgument(
        f"{_short(given)} is not a type: give Spark DDL ('word string, n bigint'), a pyarrow type or schema, or headgate.Types"
    )


def _scalar(arrow: pa.DataType) -> TypeInformation:
    return TypeInformation("scalar", pa.schema([pa.field("value", arrow)]))


class Types:
    """Types in PyFlink's spelling.

    >>> Types.TUPLE([Types.STRING(), Types.LONG()])
    tuple<f0 string, f1 bigint>
    """

    @staticmethod
    def STRING() -> TypeInformation:
        return _scalar(pa.string())

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        return _scalar(pa.bool_())

    @staticmethod
    def BYTE() -> TypeInformation:
        return _scalar(pa.int8())

    @staticmethod
    def SHORT() -> TypeInformation:
        return _scalar(pa.int16())

    @staticmethod
    def INT() -> TypeInformation:
        return _scalar(pa.int32())

    @staticmethod
    def LONG() -> TypeInformation:
        return _scalar(pa.int64())

    @staticmethod
    def FLOAT() -> TypeInformation:
        return _scalar(pa.float32())

    @staticmethod
    def DOUBLE() -> TypeInformation:
        return _scalar(pa.float64())

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        return _scalar(pa.decimal128(38, 18))

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        return _scalar(pa.date32())

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        return _scalar(pa.timestamp("us"))

    @staticmethod
    def INSTANT() -> TypeInformation:
        return _scalar(pa.timestamp("us", tz="UTC"))

    @staticmethod
    def PRIMITIVE_ARRAY(element: TypeInformation) -> TypeInformation:
        return _scalar(pa.binary() if element == Types.BYTE() else pa.list_(element.arrow_type))

    @staticmethod
    def BASIC_ARRAY(element: TypeInformation) -> TypeInformation:
        return _scalar(pa.list_(element.arrow_type))

    @staticmethod
    def LIST(element: TypeInformation) -> TypeInformation:
        return _scalar(pa.list_(element.arrow_type))

    @staticmethod
    def MAP(key: TypeInformation, value: TypeInformation) -> TypeInformation:
        return _scalar(pa.map_(key.arrow_type, value.arrow_type))

    @staticmethod
    def TUPLE(fields: Sequence[TypeInformation]) -> TypeInformation:
        return TypeInformation("tuple", pa.schema([(f"f{i}", f.arrow_type) for i, f in enumerate(fields)]))

    @staticmethod
    def ROW(fields: Sequence[TypeInformation]) -> TypeInformation:
        return TypeInformation("row", pa.schema([(f"f{i}", f.arrow_type) for i, f in enumerate(fields)]))

    @staticmethod
    def ROW_NAMED(names: Sequence[str], fields: Sequence[TypeInformation]) -> TypeInformation:
        if len(names) != len(fields):
            raise InvalidArgument(f"ROW_NAMED got {len(names)} names for {len(fields)} types")
        return TypeInformation("row", pa.schema([(n, f.arrow_type) for n, f in zip(names, fields, strict=True)]))

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        return PICKLED


# --- from Arrow to Python -------------------------------------------------------------------------------------------


def _converter(arrow: pa.DataType) -> Callable[[pa.Array], list[Any]]:
    """How to turn a column of this type into a list, the quickest way that keeps the values exact."""
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
        return _numbers
    if _has_struct(arrow):
        return lambda column: [_rebuild(value, arrow) for value in column.to_pylist()]
    return lambda column: cast("list[Any]", column.to_pylist())


def _numbers(column: pa.Array) -> list[Any]:
    if column.null_count:
        return cast("list[Any]", column.to_pylist())
    return cast("list[Any]", column.to_numpy().tolist())


def _has_struct(arrow: pa.DataType) -> bool:
    if pa.types.is_struct(arrow) or pa.types.is_map(arrow):
        return True
    return pa.types.is_list(arrow) and _has_struct(arrow.value_type)


def _rebuild(value: Any, arrow: pa.DataType) -> Any:
    """Nested structs come as dicts and maps as pairs: give them back as rows and dicts."""
    if value is None:
        return None
    if pa.types.is_struct(arrow):
        names = tuple(field.name for field in arrow)
        return tuple.__new__(row_class(names), [_rebuild(value[f.name], f.type) for f in arrow])
    if pa.types.is_map(arrow):
        return {_rebuild(k, arrow.key_type): _rebuild(v, arrow.item_type) for k, v in value}
    if pa.types.is_list(arrow):
        return [_rebuild(item, arrow.value_type) for item in value]
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- Spark DDL ------------------------------------------------------------------------------------------------------

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES = {
    str(arrow): name
    for name, arrow in reversed(_PRIMITIVES.items())
    if name not in ("byte", "short", "integer", "long", "real")
}
_TOKEN = re.compile(r"\s*(`[^`]*`|'[^']*'|[A-Za-z_]\w*|\d+|[<>(),:])")


def _arrow_name(arrow: pa.DataType) -> str:
    return _NAMES.get(str(arrow), str(arrow))


class _Ddl:
    """A reader of Spark's type strings."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._split(text))
        self.at = 0

    def _split(self, text: str) -> Iterator[str]:
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.wrong(f"cannot read {text[position:].strip()[:20]!r}")
            position = match.end()
            yield match.group(1)

    def wrong(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"type {self.text!r}: {why}; write it as Spark DDL, for example 'word string, n bigint'")

    def peek(self, ahead: int = 0) -> str | None:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if token is None or (expected is not None and token != expected):
            raise self.wrong(f"expected {expected or 'a type'}, found {token or 'the end'}")
        self.at += 1
        return token

    def data_type(self) -> pa.DataType:
        name = self.take().lower()
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name in ("varchar", "char"):
            self.take("("), self.take(), self.take(")")
            return pa.string()
        if name == "array":
            self.take("<")
            element = self.data_type()
            self.take(">")
            return pa.list_(element)
        if name == "map":
            self.take("<")
            key = self.data_type()
            self.take(",")
            value = self.data_type()
            self.take(">")
            return pa.map_(key, value)
        if name == "struct":
            self.take("<")
            fields = self.fields(">")
            self.take(">")
            return pa.struct(fields)
        raise self.wrong(
            f"unknown type '{name}' (known: {', '.join(sorted(_PRIMITIVES))}, decimal, array, map, struct)"
        )

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self.peek() == "(":
            self.take("(")
            precision = int(self.take())
            if self.peek() == ",":
                self.take(",")
                scale = int(self.take())
            self.take(")")
        return pa.decimal128(precision, scale)

    def fields(self, end: str | None) -> list[pa.Field]:
        found: list[pa.Field] = []
        while self.peek() != end:
            if found:
                self.take(",")
            name = self.take().strip("`")
            if self.peek() == ":":
                self.take(":")
            arrow = self.data_type()
            found.append(pa.field(name, arrow, nullable=not self._suffix()))
        return found

    def _suffix(self) -> bool:
        """Read NOT NULL and COMMENT; whether the field is NOT NULL."""
        not_null = False
        while (word := (self.peek() or "").lower()) in ("not", "comment"):
            self.take()
            self.take()
            not_null = not_null or word == "not"
        return not_null


@lru_cache(maxsize=256)
def _parse_ddl(text: str) -> TypeInformation:
    reader = _Ddl(text)
    if not reader.tokens:
        raise reader.wrong("it is empty")
    second = reader.peek(1)
    if second is None or second in "<(":
        arrow = reader.data_type()
        if reader.peek() is not None:
            raise reader.wrong(f"unexpected {reader.peek()!r} after the type")
        return as_type(arrow)
    return TypeInformation("row", pa.schema(reader.fields(None)))
