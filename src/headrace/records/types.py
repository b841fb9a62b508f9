"""Types of records: how a Python value becomes Arrow columns and comes back.

A stream is either *typed* (its records travel as Arrow columns) or *untyped* (one pickle per buffer).
A type is given as Spark DDL (`"word string, n bigint"`), as a pyarrow type or schema, or as PyFlink's `Types`.
What a function sees of a typed record:

    scalar type   "bigint", Types.LONG()            the value itself
    tuple type    Types.TUPLE([...])                a tuple
    row type      "word string, n bigint", ROW(..)  a Row: a tuple with named fields

Where a value has another form than the one Arrow gives it (a struct that is a tuple, a decimal of any length that is
stored as text), the metadata of the Arrow field say so; so everything that stores or sends a schema keeps the form.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, cast

import cloudpickle
import pyarrow as pa

from headrace.errors import InvalidArgument
from headrace.records import ddl
from headrace.records.flink_values import Instant, MutableRow, first_change, rows_with_names

_FORM: Final = b"headrace.form"
_RECORDS: Final = (tuple, list, MutableRow)
_CHUNK: Final = 256  # rows
_NONE: Final[Mapping[int, Any]] = MappingProxyType({})


def form_of(field: pa.Field) -> str:
    """The form of a column's values: tuple, mutable (a row), decimal, integer, instant or pickled; "" is Arrow's own."""
    return "" if field.metadata is None else field.metadata.get(_FORM, b"").decode()


def formed(arrow: pa.DataType, form: str, name: str = "value") -> pa.Field:
    """Return a column whose values have a form."""
    return pa.field(name, arrow, metadata={_FORM: form} if form else None)


class TypeMismatch(InvalidArgument):
    """A record does not fit the declared type; `index` is its place in the batch."""

    class_code = "HR-1302"

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

    __module__ = "headrace"  # pickles in stored state name the public path
    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _names: Row | None = None  # of a class with names: a row of them

    def __new__(cls, *values: Any, **named: Any) -> Row:  # noqa: PYI034 - named rows have a class of their own
        if named:
            if values:
                raise InvalidArgument("HR-1303", "Row takes positional or named values, not both")
            return tuple.__new__(row_class(tuple(named)), named.values())
        return tuple.__new__(cls, values)

    def __call__(self, *values: Any) -> Row:
        """Return a row of names makes rows with these names, as in PyFlink: `Row("word", "n")("a", 1)`."""
        if len(values) != len(self):
            raise InvalidArgument("HR-1303", f"{self!r} has {len(self)} fields, got {len(values)} values")
        return tuple.__new__(row_class(tuple(self)), values)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        if key not in self._fields:
            raise KeyError(f"{key!r}; the row has {', '.join(self._fields) or 'no names'}")
        return tuple.__getitem__(self, self._fields.index(key))

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the fields by name; unnamed ones are f0, f1, ..."""
        names = self._fields or [f"f{i}" for i in range(len(self))]
        return dict(zip(names, map(_plain, self) if recursive else self, strict=True))

    def __repr__(self) -> str:
        values = map(repr, self)
        named = (
            (f"{name}={value}" for name, value in zip(self._fields, values, strict=True)) if self._fields else values
        )
        return f"Row({', '.join(named)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Classes of named rows are made on the fly: a pickle calls the row of names instead.
        return Row if self._names is None else self._names, tuple(self)


@lru_cache(maxsize=4096)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the Row class with these fields; the same class for the same names."""
    if len(set(names)) != len(names):
        raise InvalidArgument("HR-1301", f"field names must be unique, got {', '.join(names)}")
    body: dict[str, Any] = {"__slots__": (), "_fields": names, "_names": tuple.__new__(Row, names)}
    for index, name in enumerate(names):
        # A field may hide a method of tuple, but none that rows themselves need.
        if name in ("count", "index") or not hasattr(Row, name):
            body[name] = property(itemgetter(index))
    return cast("type[Row]", type("Row", (Row,), body))


def _plain(value: Any) -> Any:
    """Rows inside a value as dicts."""
    if isinstance(value, Row):
        return value.as_dict(recursive=True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _check_names(rows: Sequence[Any], names: Sequence[str]) -> None:
    """Rows with other names than those of the type; only names that stand for positions are as good as none."""
    for index, row in enumerate(rows):
        if type(row) is MutableRow and row.names != [f"f{place}" for place in range(len(row))]:
            raise TypeMismatch(
                f"{_short(row)} has the fields {', '.join(row.names or ())}, and the type has {', '.join(names)}", index
            )


def _check_kinds(rows: Sequence[Any]) -> None:
    """Columns have no place for the kind of a row."""
    if (index := first_change(rows)) is not None:
        row = rows[index]
        raise TypeMismatch(
            f"the kind {row.get_row_kind()} of {_short(row)} would be lost on a stream of a declared type: leave out the type, "
            "or make the kind a field of the row",
            index,
        )


class TypeInformation:
    """The type of a stream's records, a key or a state value.

    >>> kind = as_type("word string, n bigint")
    >>> kind.to_batch([("a", 1), ("b", 2)]).num_rows
    2
    >>> kind.to_rows(kind.to_batch([("a", 1)]))
    [Row(word='a', n=1)]
    """

    __slots__ = ("_converters", "_exact", "converts", "kind", "mutable", "row", "schema")

    def __init__(self, kind: str, schema: pa.Schema | None) -> None:
        if schema is not None and not schema.names:
            raise InvalidArgument(
                "HR-1301",
                f"a {kind} type without fields cannot hold records: a batch without columns has no length. Give it a field, "
                "or leave the type out, and records are pickled",
            )
        self.kind = kind  # scalar | tuple | row | pickled
        self.schema = schema
        # Whether rows are PyFlink's, which can be changed; the other rows are tuples.
        self.mutable = kind == "row" and schema is not None and (schema.metadata or {}).get(_FORM) == b"mutable"
        self.row: type[Row] | None = (
            row_class(tuple(schema.names)) if kind == "row" and schema is not None and not self.mutable else None
        )
        self.converts = self.row is not None or self.mutable  # whether what a function returned needs `normalise`
        self._converters = [_converter(field) for field in schema] if schema is not None else []
        self._exact = None if schema is None or self.mutable else _exact_kinds(schema)

    @property
    def is_typed(self) -> bool:
        """Return True if records travel as Arrow columns."""
        return self.schema is not None

    @property
    def arrow_type(self) -> pa.DataType:
        """The type as one Arrow value: rows and tuples are structs."""
        schema = self._columns()
        return schema.field(0).type if self.kind == "scalar" else pa.struct(list(schema))

    def to_rows(self, batch: pa.RecordBatch, known: Mapping[int, list[Any]] = _NONE) -> list[Any]:
        """Return the records of a batch as Python values; `known` are columns that have been converted already."""
        if self.kind == "scalar":
            return known.get(0) or self._converters[0](batch.column(0))
        fields = self.fields(batch, known)
        return self.records(fields) if self.converts else list(fields)

    def fields(self, batch: pa.RecordBatch, known: Mapping[int, list[Any]] = _NONE) -> Iterator[tuple[Any, ...]]:
        """Return the Python values of each record of several fields; for plain tuples these are the records."""
        columns = [known.get(i) or convert(batch.column(i)) for i, convert in enumerate(self._converters)]
        return zip(*columns, strict=True)

    def is_exact(self, rows: Sequence[Any]) -> bool:
        """Return True if short values are exactly those that columns give back, so that rows can travel unchanged."""
        kinds = self._exact
        if kinds is None:
            return False
        columns: Iterable[Sequence[Any]] = (rows,)
        if self.kind != "scalar":
            if not set(map(type, rows)) <= {tuple, self.row} or set(map(len, rows)) != {len(kinds)}:
                return False
            columns = zip(*rows, strict=True)
        return all(_all_exact(column, kind) for column, kind in zip(columns, kinds, strict=True))

    def exact_bytes(self, rows: Sequence[Any]) -> int:
        """Return the size of exact values in columns, without what a column has besides."""
        kinds = self._exact or []
        columns = zip(*rows, strict=True) if self.kind != "scalar" else (rows,)
        texts = [column for column, kind in zip(columns, kinds, strict=True) if kind in (str, bytes)]
        return 8 * len(kinds) * len(rows) + sum(sum(map(len, column)) for column in texts)

    def records(self, fields: Iterable[Sequence[Any]]) -> list[Any]:
        """Return a record of this tuple or row type for the fields of each."""
        if self.row is not None:
            # tuple.__new__ skips Row.__new__: a third of the time for each record
            new, cls = tuple.__new__, self.row
            return [new(cls, values) for values in fields]
        if self.mutable:
            return cast("list[Any]", rows_with_names(self._columns().names, fields))
        return list(map(tuple, fields))

    def record(self, fields: Sequence[Any]) -> Any:
        """Return a record of this tuple or row type."""
        return self.records((fields,))[0]

    def columns(self, batch: pa.RecordBatch, positions: Sequence[int]) -> list[list[Any]]:
        """Return some columns of a batch, as lists of Python values."""
        return [self._converters[p](batch.column(p)) for p in positions]

    def can_share(self, position: int) -> bool:
        """Return True if the values of a column cannot be changed, so that one object may be in several places."""
        assert self.schema is not None
        field = self.schema.field(position)
        return not form_of(field) and not pa.types.is_nested(field.type)

    def normalise(self, rows: list[Any]) -> list[Any]:
        """Plain tuples as the named rows that the type promises."""
        cls, new, width = self.row, tuple.__new__, len(self._converters)
        kinds = set(map(type, rows))
        if kinds <= {cls} or not self.converts:
            return rows
        if not all(issubclass(kind, _RECORDS) for kind in kinds) or set(map(len, rows)) != {width}:
            for index, row in enumerate(rows):
                if not isinstance(row, _RECORDS) or len(row) != width:
                    raise TypeMismatch(f"expected {self}, got {_short(row)}: {self._problem(row)}", index)
        if cls is None:
            return self._mutable_rows(rows, kinds)
        return [row if row.__class__ is cls else new(cls, row) for row in self._in_order(rows, kinds)]

    def named(self, value: Any) -> Any:
        """One plain tuple as the row that the type promises; any other value as it is."""
        cls = self.row
        if value.__class__ is cls or not self.converts:
            return value
        if cls is not None and value.__class__ is tuple and len(value) == len(self._converters):
            return tuple.__new__(cls, value)
        return self.normalise([value])[0]

    def _mutable_rows(self, rows: Sequence[Any], kinds: set[type]) -> list[Any]:
        names = self._columns().names
        done = [row.__class__ is MutableRow and row.names == names for row in rows]
        if all(done):
            return list(rows)
        made = self.records(self._in_order(rows, kinds))
        return [row if as_is else new for row, new, as_is in zip(rows, made, done, strict=True)]

    def _in_order(self, rows: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
        """Reorder the fields of named rows whose order differs from the type's; other rows are unchanged."""
        names = self._columns().names
        if MutableRow in kinds:
            known = set(names)
            rows = [
                row.get_fields_by_names(names) if type(row) is MutableRow and set(row.names or names) == known else row
                for row in rows
            ]
            if any(type(row) is MutableRow for row in rows):
                _check_names(rows, names)
        swapped = {
            kind: itemgetter(*map(kind._fields.index, names))
            for kind in kinds
            if issubclass(kind, Row) and kind._fields != tuple(names) and sorted(kind._fields) == sorted(names)
        }
        if not swapped:
            return rows
        return [swapped[type(row)](row) if type(row) in swapped else row for row in rows]

    def to_batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Python values as one batch; TypeMismatch names the first record that does not fit."""
        schema = self._columns()
        try:
            columns = self._split(rows)
            if len(columns) != len(schema):
                raise ValueError(f"expected {len(schema)} fields, got {len(columns)}")
            arrays = [_to_array(column, field) for column, field in zip(columns, schema, strict=True)]
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._mismatch(rows, error) from None
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _split(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the fields of all rows, column by column."""
        if self.kind == "scalar":
            return [rows]
        if not rows:
            return [()] * len(self._columns())
        kinds = set(map(type, rows))
        if not all(issubclass(kind, _RECORDS) for kind in kinds):
            # zip would take a str or a dict for a row of its characters or keys
            raise TypeError("not a tuple")
        if MutableRow in kinds:
            _check_kinds(rows)
        return _transposed(self._in_order(rows, kinds))

    def fit(self, batch: Any) -> pa.RecordBatch:
        """A batch that a user's function made, with exactly the columns of this type; TypeMismatch if it has others."""
        schema = self._columns()
        if not isinstance(batch, pa.RecordBatch):
            raise TypeMismatch(f"expected a pyarrow.RecordBatch, got {type(batch).__name__}")
        if batch.schema == schema:
            return batch
        if batch.schema.names != schema.names:
            raise TypeMismatch(
                f"the columns are {', '.join(batch.schema.names)}, but the type is {self}; "
                "declare output_type, or rename the columns"
            )
        try:
            return batch.cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise TypeMismatch(f"the batch does not fit {self}: {error}") from None

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
        elif isinstance(value, _RECORDS):
            values = cast("Sequence[Any]", value)
            if len(values) != len(schema):
                return f"{len(values)} fields instead of {len(schema)}"
        else:
            return f"a {type(value).__name__} is not a {self.kind} of {len(schema)} fields"
        for item, field in zip(values, schema, strict=True):
            where = "" if self.kind == "scalar" else f" for field '{field.name}'"
            if item is None and not field.nullable:
                return f"None{where}, which is NOT NULL"
            try:
                _to_array([item], field)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return f"{_short(item)} is not {_text_of(field)}{where}"
        return None

    def _columns(self) -> pa.Schema:
        if self.schema is None:
            raise InvalidArgument(
                "HR-1203", "an untyped stream has no Arrow columns; declare a type, for example 'word string, n bigint'"
            )
        return self.schema

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TypeInformation) or self.kind != other.kind:
            return False
        if self.schema is None or other.schema is None:
            return self.schema is other.schema
        return bool(self.schema.equals(other.schema, check_metadata=True))

    def __hash__(self) -> int:
        return hash((self.kind, str(self.schema)))

    def __repr__(self) -> str:
        if self.schema is None:
            return "pickled"
        if self.kind == "scalar":
            return _text_of(self.schema.field(0))
        return f"{self.kind}<{', '.join(f'{f.name} {_text_of(f)}' for f in self.schema)}>"

    def need_conversion(self) -> bool:
        """False: values are converted when they become columns, so none needs it before."""
        return False

    def to_internal_type(self, obj: Any) -> Any:
        """Return the value itself."""
        return obj

    def from_internal_type(self, obj: Any) -> Any:
        """Return the value itself."""
        return obj

    def get_field_names(self) -> list[str]:
        """Return the names of the fields of a row or tuple."""
        return list(self._columns().names)

    def get_field_types(self) -> list[TypeInformation]:
        """Return the types of the fields of a row or tuple."""
        return [_of_field(field) for field in self._columns()]

    def __reduce__(self) -> tuple[Any, ...]:
        return TypeInformation, (self.kind, self.schema)


PICKLED = TypeInformation("pickled", None)


def as_type(given: object) -> TypeInformation:
    """Return the type for whatever a user may give: None, DDL, pyarrow type or schema, TypeInformation.

    >>> as_type("bigint"), as_type(None)
    (bigint, pickled)
    """
    if given is None:
        return PICKLED
    if isinstance(given, TypeInformation):
        return given
    if isinstance(given, str):
        return _of_ddl(given)
    if isinstance(given, pa.Schema | pa.DataType):
        _refuse_extension(given if isinstance(given, pa.DataType) else pa.struct(given), "")
    if isinstance(given, pa.Schema):
        return TypeInformation("row", given)
    if isinstance(given, pa.StructType):
        return TypeInformation("row", pa.schema(list(given)))
    if isinstance(given, pa.DataType):
        return _scalar(given)
    raise InvalidArgument(
        "HR-1301",
        f"{_short(given)} is not a type: give Spark DDL ('word string, n bigint'), a pyarrow type or schema, or headrace.Types",
    )


@lru_cache(maxsize=256)
def _of_ddl(text: str) -> TypeInformation:
    return as_type(ddl.parse(text))


def _refuse_extension(arrow: pa.DataType, where: str) -> None:
    """InvalidArgument for a type that the program registers itself: no worker knows it."""
    if isinstance(arrow, pa.ExtensionType):
        column = f"column '{where[1:]}' has the" if where else "this is an"
        raise InvalidArgument(
            "HR-1301",
            f"{column} extension type {arrow.extension_name}, which workers do not know: use {arrow.storage_type}, as which it is stored",
        )
    for i in range(arrow.num_fields if pa.types.is_nested(arrow) else 0):
        _refuse_extension(arrow.field(i).type, f"{where}.{arrow.field(i).name}")


def _scalar(arrow: pa.DataType) -> TypeInformation:
    return TypeInformation("scalar", pa.schema([pa.field("value", arrow)]))


def _fields(kind: str, names: Sequence[str], types: Sequence[TypeInformation]) -> TypeInformation:
    """Return a row or tuple type; a field that can only be pickled makes the whole record one that is pickled."""
    if not all(field.is_typed for field in types):
        return PICKLED
    return TypeInformation(kind, pa.schema([field_of(t, n) for n, t in zip(names, types, strict=True)]))


def field_of(type_info: TypeInformation, name: str) -> pa.Field:
    """Return a column for values of a type; those of an untyped one are pickled one by one."""
    if type_info.schema is None:
        return formed(pa.binary(), "pickled", name)
    if type_info.kind == "scalar":
        field = type_info.schema.field(0).with_name(name)
        return field if field.nullable else field.with_nullable(True)
    return formed(
        type_info.arrow_type, "mutable" if type_info.mutable else "tuple" if type_info.kind == "tuple" else "", name
    )


def mutable_row(names: Sequence[str], types: Sequence[TypeInformation]) -> TypeInformation:
    """PyFlink's row type: its records can be changed, and it may have fields that are pickled."""
    fields = [field_of(type_info, name) for name, type_info in zip(names, types, strict=True)]
    return TypeInformation("row", pa.schema(fields, metadata={_FORM: b"mutable"}))


def _of_field(field: pa.Field) -> TypeInformation:
    form = form_of(field)
    if form == "pickled":
        return PICKLED
    if not pa.types.is_struct(field.type) or form == "instant":
        return TypeInformation("scalar", pa.schema([field.with_name("value")]))
    metadata = {_FORM: b"mutable"} if form == "mutable" else None
    return TypeInformation("tuple" if form == "tuple" else "row", pa.schema(list(field.type), metadata=metadata))


def _text_of(field: pa.Field) -> str:
    form = form_of(field)
    return form if form in _SCALAR_FORMS else ddl.text_of(field.type)


def _constant(arrow: pa.DataType) -> staticmethod[[], TypeInformation]:
    return staticmethod(lambda: _scalar(arrow))


class Types:
    """Types in PyFlink's spelling.

    >>> Types.TUPLE([Types.STRING(), Types.LONG()])
    tuple<f0 string, f1 bigint>
    """

    STRING = _constant(pa.string())
    BOOLEAN = _constant(pa.bool_())
    BYTE = _constant(pa.int8())
    SHORT = _constant(pa.int16())
    INT = _constant(pa.int32())
    LONG = _constant(pa.int64())
    FLOAT = _constant(pa.float32())
    DOUBLE = _constant(pa.float64())
    CHAR = _constant(pa.string())
    BIG_DEC = _constant(pa.decimal128(38, 18))
    SQL_DATE = _constant(pa.date32())
    SQL_TIME = _constant(pa.time64("us"))
    SQL_TIMESTAMP = _constant(pa.timestamp("us"))
    INSTANT = _constant(pa.timestamp("us", tz="UTC"))

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        return _scalar(pa.binary()) if element_type == Types.BYTE() else Types.LIST(element_type)

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> TypeInformation:
        return _scalar(pa.list_(field_of(element_type_info, "item"))) if element_type_info.is_typed else PICKLED

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        return Types.LIST(element_type)

    OBJECT_ARRAY = BASIC_ARRAY

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> TypeInformation:
        if not (key_type_info.is_typed and value_type_info.is_typed):
            return PICKLED
        key = field_of(key_type_info, "key").with_nullable(False)
        return _scalar(pa.map_(key, field_of(value_type_info, "value")))

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TypeInformation:
        return _fields("tuple", [f"f{i}" for i in range(len(field_types))], field_types)

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> TypeInformation:
        return _fields("row", [f"f{i}" for i in range(len(field_types))], field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> TypeInformation:
        if len(field_names) != len(field_types):
            raise InvalidArgument("HR-1301", f"ROW_NAMED got {len(field_names)} names for {len(field_types)} types")
        return _fields("row", field_names, field_types)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        return PICKLED


# --- from Arrow to Python -------------------------------------------------------------------------------------------


def _converter(field: pa.Field) -> Callable[[pa.Array], list[Any]]:
    """Return the quickest conversion of such a column to a list that keeps the values exact."""
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
        return _numbers
    if _is_plain(field):
        return lambda column: cast("list[Any]", column.to_pylist())
    return lambda column: [_rebuild(value, field) for value in column.to_pylist()]


_EXACT_KINDS: Final[dict[pa.DataType, type]] = {
    pa.int64(): int,
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
    pa.binary(): bytes,
}
_EXACT_INT = 1 << 63
_EXACT_BYTES = 4096  # of the texts or byte strings in one column


def _exact_kinds(schema: pa.Schema) -> list[type] | None:
    """Return the Python type of each column's values, if every column gives values back as they are."""
    kinds = [None if form_of(field) else _EXACT_KINDS.get(field.type) for field in schema]
    return None if None in kinds else cast("list[type]", kinds)


def _all_exact(column: Sequence[Any], kind: type) -> bool:
    if set(map(type, column)) != {kind}:
        return False
    if kind is int:
        return bool(min(column) >= -_EXACT_INT and max(column) < _EXACT_INT)
    if kind is str:  # an ASCII text has no surrogates, which a column refuses
        return all(map(str.isascii, column)) and sum(map(len, column)) <= _EXACT_BYTES
    return kind is not bytes or sum(map(len, column)) <= _EXACT_BYTES


def _numbers(column: pa.Array) -> list[Any]:
    if column.null_count:
        return cast("list[Any]", column.to_pylist())
    return cast("list[Any]", column.to_numpy().tolist())


def _transposed(rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """The fields of all rows, column by column, a few rows at a time: an iterator over each of many does not fit the caches."""
    if len(rows) <= _CHUNK:
        return list(zip(*rows, strict=True))
    columns: list[list[Any]] = [[] for _ in rows[0]]
    for at in range(0, len(rows), _CHUNK):
        for column, part in zip(columns, zip(*rows[at : at + _CHUNK], strict=True), strict=True):
            column.extend(part)
    return columns


def _to_array(column: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return a column as Arrow array; what pa.array raises, or ValueError for a null in a column that is NOT NULL."""
    if not _is_plain(field):
        column = [_unbuild(value, field) for value in column]
    array = pa.array(column, field.type)
    if array.null_count and not field.nullable:
        raise ValueError(f"a null in column {field.name!r}, which is NOT NULL")
    return array


def _store_decimal(value: Any) -> str:
    if not isinstance(value, Decimal | int) or isinstance(value, bool):
        raise TypeError(f"{_short(value)} is not a Decimal")
    return str(value)


def _store_integer(value: Any) -> str:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{_short(value)} is not an int")
    return hex(value)  # Python refuses to print very long numbers


def _store_instant(value: Any) -> dict[str, int]:
    if not isinstance(value, Instant):
        raise TypeError(f"{_short(value)} is not an Instant")
    return {"seconds": value.seconds, "nanos": value.nanos}


def _store_pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except (pickle.PicklingError, AttributeError):  # a class of the program's own script
        return bytes(cloudpickle.dumps(value, 5))


# What a form stores of a value, and how the value is made of it again.
_SCALAR_FORMS: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "decimal": (_store_decimal, Decimal),
    "integer": (_store_integer, partial(int, base=16)),
    "instant": (_store_instant, lambda stored: Instant(stored["seconds"], stored["nanos"])),
    "pickled": (_store_pickled, pickle.loads),
}


def _unbuild(value: Any, field: pa.Field) -> Any:
    """Return a value as Arrow wants it, with rows and tuples inside as dicts and pairs; the inverse of `_rebuild`."""
    form, arrow = form_of(field), field.type
    if form == "pickled":
        return _store_pickled(value)
    if value is None:
        return None
    if form in _SCALAR_FORMS:
        return _SCALAR_FORMS[form][0](value)
    if pa.types.is_struct(arrow):
        return _struct(value, arrow)
    if pa.types.is_map(arrow):
        pairs = value.items() if isinstance(value, dict) else value
        return [(_unbuild(k, arrow.key_field), _unbuild(v, arrow.item_field)) for k, v in pairs]
    if pa.types.is_list(arrow):
        return [_unbuild(item, arrow.value_field) for item in value]
    return value


def _struct(value: Any, arrow: pa.DataType) -> dict[str, Any]:
    names = [field.name for field in arrow]
    own = value.names if isinstance(value, MutableRow) else getattr(value, "_fields", None)
    if isinstance(value, Row | MutableRow) and own is not None and sorted(own) == sorted(names):
        value = dict(zip(own, value, strict=True))
    elif isinstance(value, _RECORDS):
        value = dict(zip(names, value, strict=True))
    elif not isinstance(value, dict) or not value.keys() <= set(names):
        raise TypeError(f"{_short(value)} is not a struct of {', '.join(names)}")
    return {field.name: _unbuild(value.get(field.name), field) for field in arrow}


def _is_plain(field: pa.Field) -> bool:
    """Return True if Arrow's own conversion gives the values."""
    arrow = field.type
    if form_of(field) or pa.types.is_struct(arrow) or pa.types.is_map(arrow):
        return False
    return not pa.types.is_list(arrow) or _is_plain(arrow.value_field)


def _rebuild(value: Any, field: pa.Field) -> Any:
    """Return the value of a column: structs come as dicts and maps as pairs, and become rows, tuples and dicts."""
    if value is None:
        return None
    form, arrow = form_of(field), field.type
    if form in _SCALAR_FORMS:
        return _SCALAR_FORMS[form][1](value)
    if pa.types.is_struct(arrow):
        values = [_rebuild(value[f.name], f) for f in arrow]
        if form == "tuple":
            return tuple(values)
        names = [f.name for f in arrow]
        return rows_with_names(names, [values])[0] if form else tuple.__new__(row_class(tuple(names)), values)
    if pa.types.is_map(arrow):
        return {_rebuild(k, arrow.key_field): _rebuild(v, arrow.item_field) for k, v in value}
    if pa.types.is_list(arrow):
        return [_rebuild(item, arrow.value_field) for item in value]
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def check_storable(name: str, what: str) -> str:
    """A name that checkpoints are to hold; InvalidArgument if it is not Unicode text, or has a NUL, which ends a name in C."""
    if "\0" in name:
        raise InvalidArgument(
            "HR-1226",
            f"{what} {name!a} cannot be stored: its character {name.index(chr(0)) + 1} is NUL; use other characters",
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            "HR-1226",
            f"{what} {name!a} cannot be stored: its character {error.start + 1} is a lone surrogate, which comes from bytes "
            "that were decoded with the wrong encoding; use other characters",
        ) from None
    return name
