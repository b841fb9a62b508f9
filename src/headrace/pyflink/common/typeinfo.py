"""`pyflink.common.typeinfo`: types whose values are PyFlink's.

They travel as Arrow columns like those of `headrace.Types`; rows can be changed, decimals and integers have any length,
a tuple inside a record is a tuple, and a field of a record may be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import pyarrow as pa

from headrace.errors import InvalidArgument
from headrace.records.flink_values import MutableRow
from headrace.records.types import TypeInformation, field_of, form_of, formed, mutable_row
from headrace.records.types import Types as _Types

__all__ = ["RowTypeInfo", "TupleTypeInfo", "TypeInformation", "Types"]

_JAVA_NAMES = {
    pa.string(): "String",
    pa.bool_(): "Boolean",
    pa.int8(): "Byte",
    pa.int16(): "Short",
    pa.int32(): "Integer",
    pa.int64(): "Long",
    pa.float32(): "Float",
    pa.float64(): "Double",
    pa.date32(): "SqlDate",
    pa.time64("us"): "SqlTime",
    pa.timestamp("us"): "SqlTimestamp",
}
_FORM_NAMES = {"decimal": "BigDecimal", "integer": "BigInteger", "instant": "Instant", "pickled": "PickledByteArray"}


def _java_name(type_info: TypeInformation) -> str:
    if type_info.schema is None:
        return _FORM_NAMES["pickled"]
    if type_info.kind != "scalar":
        return str(type_info)
    field = type_info.schema.field(0)
    return _FORM_NAMES.get(form_of(field)) or _JAVA_NAMES.get(field.type, str(type_info))


class RowTypeInfo(TypeInformation):
    """The type of rows.

    >>> str(RowTypeInfo([Types.STRING(), Types.INT()], ["word", "n"]))
    'RowTypeInfo(word: String, n: Integer)'
    """

    __slots__ = ()

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None) -> None:
        names = [f"f{i}" for i in range(len(field_types))] if field_names is None else list(field_names)
        if len(names) != len(field_types):
            raise InvalidArgument(
                "HR-1301", f"a row type needs a name for each type, got {len(names)} for {len(field_types)}"
            )
        super().__init__("row", mutable_row(names, field_types).schema)

    def __str__(self) -> str:
        pairs = zip(self.get_field_names(), self.get_field_types(), strict=True)
        return f"RowTypeInfo({', '.join(f'{name}: {_java_name(type_info)}' for name, type_info in pairs)})"


class TupleTypeInfo(TypeInformation):
    """The type of tuples.

    >>> str(TupleTypeInfo([Types.STRING(), Types.INT()]))
    'TupleTypeInfo(String, Integer)'
    """

    __slots__ = ()

    def __init__(self, field_types: Sequence[TypeInformation]) -> None:
        fields = [field_of(type_info, f"f{i}") for i, type_info in enumerate(field_types)]
        super().__init__("tuple", pa.schema(fields))

    def __str__(self) -> str:
        return f"TupleTypeInfo({', '.join(map(_java_name, self.get_field_types()))})"


def _formed(arrow: pa.DataType, form: str) -> TypeInformation:
    return TypeInformation("scalar", pa.schema([formed(arrow, form)]))


class Types(_Types):
    """PyFlink's types.

    >>> Types.ROW([Types.STRING(), Types.BIG_DEC()]).get_field_names()
    ['f0', 'f1']
    """

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """Decimals of any length, with their own scale."""
        return _formed(pa.string(), "decimal")

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """Integers of any length."""
        return _formed(pa.string(), "integer")

    @staticmethod
    def INSTANT() -> TypeInformation:
        """Points in time, as `Instant`."""
        return _formed(pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())]), "instant")

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> TypeInformation:
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> TypeInformation:
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TypeInformation:
        return TupleTypeInfo(field_types)


def with_flink_rows(type_info: TypeInformation) -> TypeInformation:
    """The same type with PyFlink's rows in place of Headrace's, which are tuples.

    >>> with_flink_rows(_Types.ROW([_Types.INT()])) == Types.ROW([Types.INT()])
    True
    """
    if type_info.schema is None:
        return type_info
    fields = [_with_rows(field) for field in type_info.schema]
    if type_info.kind == "row":
        return RowTypeInfo(TypeInformation("tuple", pa.schema(fields)).get_field_types(), type_info.get_field_names())
    return TypeInformation(type_info.kind, pa.schema(fields))


def _with_rows(field: pa.Field) -> pa.Field:
    arrow = field.type
    if pa.types.is_struct(arrow) and form_of(field) != "instant":
        return formed(pa.struct([_with_rows(inner) for inner in arrow]), form_of(field) or "mutable", field.name)
    if pa.types.is_list(arrow):
        return field.with_type(pa.list_(_with_rows(arrow.value_field)))
    if pa.types.is_map(arrow):
        return field.with_type(pa.map_(_with_rows(arrow.key_field).with_nullable(False), _with_rows(arrow.item_field)))
    return field


def fitted(values: Sequence[Any], type_info: TypeInformation) -> list[Any]:
    """The elements of a collection as the type wants them, converted as Flink's Java side does.

    Integers wrap around, a text is made of anything, a row is made of a dict, or of the attributes of an object.

    >>> fitted([{"n": 2**31, "word": 7}], Types.ROW_NAMED(["n", "word"], [Types.INT(), Types.STRING()]))
    [Row(n=-2147483648, word='7')]
    """
    if type_info.schema is None:
        return list(values)
    if type_info.kind == "scalar":
        return [_fit(value, type_info.schema.field(0)) for value in values]
    return [_fit_fields(value, type_info) for value in values]


def _fit_fields(value: Any, type_info: TypeInformation) -> Any:
    assert type_info.schema is not None
    given = value
    if not isinstance(value, dict | list | tuple | MutableRow) and type_info.kind == "row":
        value = getattr(value, "__dict__", value)
    if isinstance(value, dict):
        value = [value.get(name) for name in type_info.schema.names]
    elif not isinstance(value, Sized) or len(value) != len(type_info.schema):
        return value  # the error comes when it is used, with the place of the record
    else:
        value = type_info.normalise([value])[0] if type_info.converts else value
    made = type_info.record([_fit(item, field) for item, field in zip(value, type_info.schema, strict=True)])
    if isinstance(given, MutableRow) and isinstance(made, MutableRow):
        made.set_row_kind(given.get_row_kind())
    return made


def _fit(value: Any, field: pa.Field) -> Any:
    arrow, form = field.type, form_of(field)
    if value is None or form == "pickled":
        return value
    if form in ("mutable", "tuple") and isinstance(value, dict | list | tuple):
        return _fit_fields(value, TypeInformation("tuple", pa.schema([field])).get_field_types()[0])
    if isinstance(value, int) and not isinstance(value, bool):
        if pa.types.is_signed_integer(arrow):
            half = 1 << arrow.bit_width - 1
            return (value + half) % (2 * half) - half
        if pa.types.is_floating(arrow):
            return float(value)
    if isinstance(value, float) and pa.types.is_signed_integer(arrow):
        return int(value)
    if arrow == pa.string() and not form and not isinstance(value, str):
        return str(value)
    return value
