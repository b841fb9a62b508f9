"""Python values of Avro's logical types, and of types with a range: from what fastavro reads, to what it writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa

from headrace.errors import InvalidArgument

__all__ = ["column_of", "from_wire", "logical_of", "meaning_of", "to_wire"]

Convert = Callable[[Any], Any]

_EPOCH_DAY, _EPOCH = date(1970, 1, 1), datetime(1970, 1, 1)  # noqa: DTZ001 - Avro's local and UTC times have no zone here
_MICROSECOND = timedelta(microseconds=1)
_DAY = 24 * 60 * 60 * 1_000_000
_MAX_FLOAT = (2 - 2**-23) * 2.0**127
_EXACT = Context(prec=1000, traps=[Inexact])
_UNITS = {"millis": 1000, "micros": 1}  # in microseconds

_TIMESTAMPS = {f"{zone}timestamp-{unit}" for zone in ("", "local-") for unit in ("millis", "micros", "nanos")}
_KNOWN = {("int", "date"), ("int", "time-millis"), ("long", "time-micros"), ("string", "uuid"), ("fixed", "uuid")} | {
    ("long", name) for name in _TIMESTAMPS
}


def logical_of(schema: Any) -> str | None:
    """Return the logical type of a schema; None if it is unknown or not valid, as the specification says.

    >>> logical_of({"type": "int", "logicalType": "date"}), logical_of({"type": "string", "logicalType": "date"})
    ('date', None)
    """
    name = schema.get("logicalType") if isinstance(schema, dict) else None
    if name == "decimal" and schema["type"] in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        return name if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision else None
    if name == "uuid" and schema["type"] == "fixed" and schema["size"] != 16:
        return None
    return name if isinstance(name, str) and (schema["type"], name) in _KNOWN else None


def meaning_of(schema: Any) -> str | None:
    """Return what two logical types must have in common, so that the number of one means the same in the other.

    >>> meaning_of({"type": "long", "logicalType": "local-timestamp-millis"})
    'timestamp-millis'
    """
    name = logical_of(schema)
    if name == "decimal":
        return f"decimal of scale {schema.get('scale', 0)}"
    return None if name is None else name.removeprefix("local-")


def column_of(kind: str, schema: Any) -> pa.DataType:
    """Return the Arrow type of a scalar."""
    name = logical_of(schema)
    if name == "decimal":
        if schema["precision"] > 38:
            raise InvalidArgument("HR-4504", "Avro: a decimal of more than 38 digits has no column")
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if name == "date":
        return pa.date32()
    if name is not None and name.startswith("time-"):
        return pa.time64("us")
    if name in _TIMESTAMPS:
        return pa.timestamp("ns" if name.endswith("nanos") else "us")
    return _COLUMNS[kind]


_COLUMNS = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}


# --- reading ----------------------------------------------------------------------------------------------------------


def from_wire(kind: str, schema: Any) -> Convert | None:
    """Return the function that makes a Python value of what fastavro reads as a scalar; None if it is the value.

    >>> from_wire("int", "int")(2**31)
    Traceback (most recent call last):
    ValueError: 2147483648 has more than 32 bits
    """
    name = logical_of(schema)
    if name == "decimal":
        return partial(_read_decimal, 10 ** schema["precision"], schema.get("scale", 0))
    if name in _TIMESTAMPS:
        unit = name.rpartition("-")[2]
        return _read_nanos if unit == "nanos" else partial(_read_timestamp, _UNITS[unit])
    if name in ("time-millis", "time-micros"):
        return partial(_read_time, _UNITS[name.removeprefix("time-")])
    if name == "date":
        return _read_date
    return _checked_int if kind == "int" else None


def _checked_bits(bits: int, value: int) -> int:
    if -(1 << bits - 1) <= value < 1 << bits - 1:
        return value
    raise ValueError(f"{value} has more than {bits} bits")


def _checked_int(value: int) -> int:
    return value if -0x80000000 <= value <= 0x7FFFFFFF else _checked_bits(32, value)


def _read_date(days: int) -> date:
    return _EPOCH_DAY + timedelta(days=days)


def _read_time(unit: int, number: int) -> time:
    if not 0 <= number * unit < _DAY:
        raise ValueError(f"{number} is not a time of day")
    return (_EPOCH + timedelta(microseconds=number * unit)).time()


def _read_timestamp(unit: int, number: int) -> datetime:
    return _EPOCH + timedelta(microseconds=number * unit)


def _read_nanos(number: int) -> datetime:
    import pandas as pd

    if number == -(1 << 63):
        raise ValueError("the number stands for no timestamp")
    found: datetime = pd.Timestamp(number)
    return found


def _read_decimal(limit: int, scale: int, data: bytes) -> Decimal:
    number = int.from_bytes(data, "big", signed=True)
    if not -limit < number < limit:
        raise ValueError(f"a decimal has more than {len(str(limit)) - 1} digits")
    return Decimal(f"{number}E-{scale}")  # scaleb() would round to the digits of the context


# --- writing ----------------------------------------------------------------------------------------------------------


def to_wire(kind: str, schema: Any) -> Convert:
    """Return the function that makes of a Python value what fastavro writes as a scalar; it raises if it does not fit.

    >>> to_wire("int", "int")(True)
    Traceback (most recent call last):
    TypeError: True is not an integer
    """
    name = logical_of(schema)
    if name == "decimal":
        return partial(_write_decimal, schema["precision"], schema.get("scale", 0), schema.get("size"))
    if name in _TIMESTAMPS:
        unit = name.rpartition("-")[2]
        return _write_nanos if unit == "nanos" else partial(_write_timestamp, _UNITS[unit])
    if name in ("time-millis", "time-micros"):
        return partial(_write_time, _UNITS[name.removeprefix("time-")])
    if name == "date":
        return _write_date
    if name == "uuid":
        return _write_uuid if kind == "string" else _write_uuid_bytes
    if kind == "fixed":
        return partial(_write_fixed, schema["size"])
    if kind == "enum":
        return partial(_write_symbol, schema["name"], frozenset(schema["symbols"]))
    return _WRITERS[kind]


def _write_nothing(value: Any) -> None:
    if value is not None:
        raise TypeError(f"{value!r} is not null")


def _write_boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if value not in (0, 1):
        raise TypeError(f"{value!r} is not a boolean")
    return bool(value)


def _write_integer(bits: int, value: Any) -> int:
    if type(value) is not int:
        if isinstance(value, bool) or int(value) != value:
            raise TypeError(f"{value!r} is not an integer")
        value = int(value)
    return _checked_bits(bits, value)


def _write_double(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _write_float(value: Any) -> float:
    number = _write_double(value)
    if abs(number) > _MAX_FLOAT and not math.isinf(number):
        raise ValueError(f"{value!r} has no place in 32 bits")
    return number


def _write_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{value!r} is not bytes")
    return bytes(value)


def _write_fixed(size: int, value: Any) -> bytes:
    data = _write_bytes(value)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes in place of {size}")
    return data


def _write_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{value!r} is not a string")


def _write_symbol(name: str, symbols: frozenset[str], value: Any) -> str:
    if isinstance(value, str) and value in symbols:
        return value
    raise ValueError(f"{value!r} is not a symbol of {name}")


def _write_uuid(value: Any) -> str:
    return str(value) if isinstance(value, UUID) else _write_text(value)


def _write_uuid_bytes(value: Any) -> bytes:
    return value.bytes if isinstance(value, UUID) else _write_fixed(16, value)


def _write_date(value: Any) -> int:
    if isinstance(value, datetime):
        value = value.date()
    return (value - _EPOCH_DAY).days if isinstance(value, date) else _write_integer(32, value)


def _write_time(unit: int, value: Any) -> int:
    if not isinstance(value, time):
        return _write_integer(32 if unit == 1000 else 64, value)
    return (((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond) // unit


def _write_timestamp(unit: int, value: Any) -> int:
    if not isinstance(value, datetime):
        return _write_integer(64, value)
    if value.tzinfo is not None:
        value = value.replace(tzinfo=None) - (value.utcoffset() or timedelta())
    return int((value - _EPOCH) // _MICROSECOND // unit)


def _write_nanos(value: Any) -> int:
    if not isinstance(value, datetime):
        return _write_integer(64, value)
    return _checked_bits(64, _write_timestamp(1, value) * 1000 + int(getattr(value, "nanosecond", 0)))


def _write_decimal(precision: int, scale: int, size: int | None, value: Any) -> bytes:
    number = Decimal(value)
    if number and number.is_finite() and number.adjusted() + scale >= precision:
        raise ValueError(f"{value} has more than {precision} digits")
    try:
        unscaled = int(number.scaleb(scale, _EXACT).to_integral_exact(context=_EXACT))
    except Inexact:
        raise ValueError(f"{value} has more than {scale} digits after the point") from None
    return unscaled.to_bytes(size or (unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)


_WRITERS: dict[str, Convert] = {
    "null": _write_nothing,
    "boolean": _write_boolean,
    "int": partial(_write_integer, 32),
    "long": partial(_write_integer, 64),
    "float": _write_float,
    "double": _write_double,
    "bytes": _write_bytes,
    "string": _write_text,
}
