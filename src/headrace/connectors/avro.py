"""Avro: the binary encoding of records by a schema, and files of them; in workers, and on the driver to check schemas.

Values are those of Python: a record is a dict (or a Row or tuple, to write), dates and times are datetime's, a decimal is a
Decimal. A file that was written with an older or newer schema is read as Avro resolves schemas: fields by name, missing
ones from their defaults, numbers widened.
"""

from __future__ import annotations

import bz2
import json
import lzma
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from secrets import token_bytes
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from headrace.connectors.files.formats import FileFormat, FilePart, FormatWriter, PartReader
from headrace.connectors.files.targets import PendingFile, PreparedFile
from headrace.connectors.values import CorruptRecord, Decoder
from headrace.errors import InvalidArgument
from headrace.records.batch import Batch
from headrace.records.flink_values import MutableRow
from headrace.records.types import PICKLED, Row, TypeInformation, as_type

__all__ = ["AvroCodec", "AvroFormat"]

Schema = Any  # JSON: a name, an object, or a list for a union
_Write = Callable[[Any, bytearray], None]
_Read = Callable[[BytesIO], Any]

_MAGIC = b"Obj\x01"
_SYNC = 16
_BLOCK = 1 << 16
_EPOCH_DAY, _EPOCH = date(1970, 1, 1), datetime(1970, 1, 1)  # noqa: DTZ001 - Avro's local and UTC times have no zone here
_PRIMITIVE = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_WIDER = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
_SAME_BYTES = ({"bytes", "string"},)


class AvroCodec:
    r"""Encodes and decodes values of a schema.

    >>> codec = AvroCodec('{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}')
    >>> codec.encode({"n": -2}), codec.decode(b"\x03")
    (b'\x03', {'n': -2})
    >>> AvroCodec('{"type": "rekord"}')
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: Avro: unknown type 'rekord' in the schema
    """

    def __init__(self, schema: str | Schema, written_with: str | Schema | None = None) -> None:
        """`written_with`: the schema of the bytes, if it is another one than that of the values."""
        self.schema = _parsed(schema)
        self._names = _named(self.schema)
        self._write = _writer(self.schema, self._names, {})
        written = self.schema if written_with is None else _parsed(written_with)
        self._read = _reader(written, _named(written), self.schema, self._names, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroCodec, (self.schema,)

    @property
    def text(self) -> str:
        return json.dumps(self.schema)

    def type(self) -> TypeInformation:
        """The type of rows for a record; values that have no columns of one type, such as unions, are untyped."""
        try:
            arrow = _arrow_type(self.schema, self._names, ())
        except InvalidArgument:
            return PICKLED
        return as_type(arrow)

    def encode(self, value: Any) -> bytes:
        """The bytes of a value; InvalidArgument if it does not fit."""
        out = bytearray()
        self.encode_into(value, out)
        return bytes(out)

    def encode_into(self, value: Any, out: bytearray) -> None:
        try:
            self._write(value, out)
        except (TypeError, ValueError, KeyError, AttributeError, struct.error, OverflowError) as error:
            raise InvalidArgument(f"Avro: {str(value)[:200]} does not fit the schema: {error}") from None

    def decode(self, data: bytes) -> Any:
        """The value of some bytes; ValueError if they are not one."""
        return self.decode_from(BytesIO(data))

    def decode_from(self, data: BytesIO) -> Any:
        try:
            return self._read(data)
        except (IndexError, KeyError, struct.error, OverflowError) as error:
            raise ValueError(f"it is no value of the Avro schema: {error!r}") from None


# --- schemas ----------------------------------------------------------------------------------------------------------


def _parsed(schema: str | Schema) -> Schema:
    if isinstance(schema, str) and schema not in _PRIMITIVE:
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidArgument(f"Avro: the schema is not JSON: {error}") from None
    return schema


def _kind(schema: Schema) -> str:
    if isinstance(schema, list):
        return "union"
    return _kind(schema["type"]) if isinstance(schema, dict) and not isinstance(schema["type"], str) else _name(schema)


def _name(schema: Schema) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _full_name(schema: dict[str, Any], space: str) -> str:
    name = schema.get("name")
    if not isinstance(name, str):
        raise InvalidArgument(f"Avro: a {schema['type']} in the schema has no name")
    space = schema.get("namespace", space)
    return name if "." in name or not space else f"{space}.{name}"


def _named(schema: Schema, space: str = "", found: dict[str, Schema] | None = None) -> dict[str, Schema]:
    """The records, enums and fixed types of a schema by name, also by the short one."""
    found = {} if found is None else found
    if isinstance(schema, list):
        for branch in schema:
            _named(branch, space, found)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            full = _full_name(schema, space)
            found[full] = found.setdefault(full.rpartition(".")[2], schema) and schema
            space = full.rpartition(".")[0]
        for inner in ("items", "values", "type"):
            if isinstance(schema.get(inner), list | dict):
                _named(schema[inner], space, found)
        for field in schema.get("fields", ()):
            _named(field["type"], space, found)
    return found


def _resolved(schema: Schema, names: dict[str, Schema]) -> Schema:
    """A schema itself, where a name of it stands; `{"type": {...}}` without its wrapper."""
    while isinstance(schema, dict) and isinstance(schema.get("type"), list | dict):
        schema = schema["type"]
    name = _name(schema) if not isinstance(schema, list) else ""
    if name in names and (isinstance(schema, str) or name not in _PRIMITIVE):
        return names[name]
    known = (*_PRIMITIVE, "record", "error", "enum", "fixed", "array", "map", "")
    if name not in known:
        raise InvalidArgument(f"Avro: unknown type {name!r} in the schema")
    return schema


def _logical(schema: Schema) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _arrow_type(schema: Schema, names: dict[str, Schema], inside: tuple[int, ...]) -> pa.DataType:
    schema = _resolved(schema, names)
    if isinstance(schema, list):
        rest = [branch for branch in schema if branch != "null"]
        if len(rest) != 1:
            raise InvalidArgument("Avro: a union of several types has no column")
        return _arrow_type(rest[0], names, inside)
    kind, logical = _name(schema), _logical(schema)
    if id(schema) in inside:
        raise InvalidArgument("Avro: a record that contains itself has no columns")
    inside = (*inside, id(schema))
    if kind in ("record", "error"):
        return pa.struct([pa.field(f["name"], _arrow_type(f["type"], names, inside)) for f in schema["fields"]])
    if kind == "array":
        return pa.list_(_arrow_type(schema["items"], names, inside))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"], names, inside))
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind in ("int", "long") and logical is not None:
        if logical == "date":
            return pa.date32()
        if logical.startswith("time-"):
            return pa.time64("us")
        if "timestamp-" in logical:
            return pa.timestamp("us")
    plain = {"boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "null": pa.null()}
    more = {"double": pa.float64(), "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string()}
    return {**plain, **more, "enum": pa.string()}[kind]


# --- writing values ---------------------------------------------------------------------------------------------------


def _put_long(value: int, out: bytearray) -> None:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} has more than 64 bits")
    number = (value << 1) ^ (value >> 63)
    while number & ~0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)


def _put_bytes(value: bytes, out: bytearray) -> None:
    _put_long(len(value), out)
    out += value


def _put_bool(value: Any, out: bytearray) -> None:
    out.append(1 if value else 0)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise TypeError(f"{value!r} is not an integer")
    return int(value)


def _put_integer(value: Any, out: bytearray) -> None:
    _put_long(_integer(value), out)


def _put_nothing(value: Any, _: bytearray) -> None:
    if value is not None:
        raise TypeError(f"{value!r} is not null")


def _put_text(value: Any, out: bytearray) -> None:
    _put_bytes(value if isinstance(value, bytes) else _text(value).encode(), out)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


_WRITERS: dict[str, _Write] = {
    "null": _put_nothing,
    "boolean": _put_bool,
    "int": _put_integer,
    "long": _put_integer,
    "float": lambda value, out: out.extend(struct.pack("<f", value)),
    "double": lambda value, out: out.extend(struct.pack("<d", value)),
    "bytes": lambda value, out: _put_bytes(bytes(value), out),
    "string": _put_text,
}


def _writer(schema: Schema, names: dict[str, Schema], made: dict[int, _Write]) -> _Write:
    schema = _resolved(schema, names)
    if isinstance(schema, list):
        return _union_writer(schema, names, made)
    kind, logical = _name(schema), _logical(schema)
    if logical is not None and (convert := _TO_NUMBER.get((kind, logical))) is not None:
        return lambda value, out: _put_integer(convert(value), out)
    if logical == "decimal":
        return _decimal_writer(schema)
    if kind in _WRITERS:
        return _WRITERS[kind]
    if id(schema) in made:  # a record that contains itself
        return lambda value, out: made[id(schema)](value, out)  # noqa: PLW0108 - it is made later
    made[id(schema)] = _put_nothing
    made[id(schema)] = _complex_writer(kind, schema, names, made)
    return made[id(schema)]


def _complex_writer(kind: str, schema: Schema, names: dict[str, Schema], made: dict[int, _Write]) -> _Write:
    if kind == "array":
        item = _writer(schema["items"], names, made)
        return lambda value, out: _put_blocks([(item, (one,)) for one in value], out)
    if kind == "map":
        inner = _writer(schema["values"], names, made)
        return lambda value, out: _put_blocks([(_put_pair, (key, inner, one)) for key, one in value.items()], out)
    if kind == "enum":
        places = {symbol: place for place, symbol in enumerate(schema["symbols"])}
        return lambda value, out: _put_long(places[value], out)
    if kind == "fixed":
        return lambda value, out: out.extend(_of_size(bytes(value), schema["size"]))
    fields = [(f["name"], _writer(f["type"], names, made), f) for f in schema["fields"]]

    def write(value: Any, out: bytearray) -> None:
        values = _fields_of(value, fields)
        for (name, put, _), one in zip(fields, values, strict=True):
            try:
                put(one, out)
            except (TypeError, ValueError, KeyError, AttributeError, struct.error) as error:
                raise ValueError(f"field '{name}': {error}") from None

    return write


def _put_pair(key: str, inner: _Write, value: Any, out: bytearray) -> None:
    _put_text(key, out)
    inner(value, out)


def _put_blocks(items: Sequence[tuple[Callable[..., None], tuple[Any, ...]]], out: bytearray) -> None:
    if items:
        _put_long(len(items), out)
        for put, arguments in items:
            put(*arguments, out)
    out.append(0)


def _fields_of(value: Any, fields: list[tuple[str, _Write, Any]]) -> Sequence[Any]:
    own = value.names if isinstance(value, MutableRow) else value._fields if isinstance(value, Row) else None
    if own and set(own) == {name for name, _, _ in fields}:
        return [value[name] for name, _, _ in fields]
    if isinstance(value, MutableRow | tuple | list):
        if len(value) != len(fields):
            raise ValueError(f"{len(value)} fields in place of {len(fields)}")
        return list(value)
    if not hasattr(value, "get"):
        raise TypeError(f"{value!r} is not a record")
    return [value[name] if name in value else _default(field) for name, _, field in fields]


def _default(field: dict[str, Any]) -> Any:
    if "default" not in field:
        raise ValueError(f"field '{field['name']}' is missing, and has no default")
    default = field["default"]
    return default.encode("latin-1") if _kind(field["type"]) in ("bytes", "fixed") and default is not None else default


def _of_size(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise ValueError(f"{len(value)} bytes in place of {size}")
    return value


def _union_writer(branches: list[Schema], names: dict[str, Schema], made: dict[int, _Write]) -> _Write:
    writers = [(_resolved(branch, names), _writer(branch, names, made)) for branch in branches]

    def write(value: Any, out: bytearray) -> None:
        for place, (branch, put) in enumerate(writers):
            if _fits(branch, value):
                _put_long(place, out)
                put(value, out)
                return
        raise TypeError(f"{value!r} is of no type of the union")

    return write


def _fits(schema: Schema, value: Any) -> bool:
    kind, logical = _name(schema), _logical(schema)
    if kind in ("int", "long") and logical is not None and isinstance(value, date | time):
        return "date" in logical if type(value) is date else ("timestamp" in logical) == isinstance(value, datetime)
    if logical == "decimal":
        return isinstance(value, Decimal)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31
    if kind == "enum":
        return value in schema["symbols"]
    if kind in ("record", "error"):
        return isinstance(value, dict | MutableRow | tuple) or hasattr(value, "keys")
    python: dict[str, Any] = {"null": type(None), "boolean": bool, "float": float | int, "double": float | int}
    python |= {
        "bytes": bytes | bytearray,
        "fixed": bytes | bytearray,
        "string": str,
        "array": list | tuple,
        "map": dict,
    }
    expected = {**python, "long": int}[kind]
    return isinstance(value, expected) and (kind == "boolean" or not isinstance(value, bool))


def _decimal_writer(schema: dict[str, Any]) -> _Write:
    scale, size = schema.get("scale", 0), schema.get("size")

    def write(value: Any, out: bytearray) -> None:
        unscaled = int(Decimal(value).scaleb(scale).to_integral_exact())
        length = size or (unscaled + (unscaled < 0)).bit_length() // 8 + 1
        data = unscaled.to_bytes(length, "big", signed=True)
        out.extend(data) if size else _put_bytes(data, out)

    return write


def _micros(value: timedelta) -> int:
    return value // timedelta(microseconds=1)


def _stamp(value: Any, unit: int) -> int:
    if not isinstance(value, datetime):
        return _integer(value)
    if value.tzinfo is not None:
        value = value.replace(tzinfo=None) - (value.utcoffset() or timedelta())
    return _micros(value - _EPOCH) // unit


def _of_day(value: Any, unit: int) -> int:
    if not isinstance(value, time):
        return _integer(value)
    return (((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond) // unit


def _days(value: Any) -> int:
    return (value - _EPOCH_DAY).days if isinstance(value, date) else _integer(value)


_UNITS = {"millis": 1000, "micros": 1}
_TO_NUMBER: dict[tuple[str, str], Callable[[Any], int]] = {
    ("int", "date"): _days,
    ("int", "time-millis"): lambda value: _of_day(value, 1000),
    ("long", "time-micros"): lambda value: _of_day(value, 1),
}
for _unit, _size in _UNITS.items():
    for _zone in ("", "local-"):
        _TO_NUMBER["long", f"{_zone}timestamp-{_unit}"] = lambda value, size=_size: _stamp(value, size)  # type: ignore[misc]


# --- reading values ---------------------------------------------------------------------------------------------------


def _get(data: BytesIO, size: int) -> bytes:
    found = data.read(size)
    if size < 0 or len(found) != size:
        raise ValueError(f"it ends too early: {size} bytes are missing")
    return found


def _get_long(data: BytesIO) -> int:
    shift = number = 0
    while True:
        byte = _get(data, 1)[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1)
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _get_bytes(data: BytesIO) -> bytes:
    return _get(data, _get_long(data))


_READERS: dict[str, _Read] = {
    "null": lambda _: None,
    "boolean": lambda data: _get(data, 1) != b"\0",
    "int": _get_long,
    "long": _get_long,
    "float": lambda data: struct.unpack("<f", _get(data, 4))[0],
    "double": lambda data: struct.unpack("<d", _get(data, 8))[0],
    "bytes": _get_bytes,
    "string": lambda data: _get_bytes(data).decode(),
}
_FROM_NUMBER: dict[str, Callable[[int], Any]] = {
    "date": lambda days: _EPOCH_DAY + timedelta(days=days),
    "time-millis": lambda n: (_EPOCH + timedelta(milliseconds=n)).time(),
    "time-micros": lambda n: (_EPOCH + timedelta(microseconds=n)).time(),
    "timestamp-millis": lambda n: _EPOCH + timedelta(milliseconds=n),
    "timestamp-micros": lambda n: _EPOCH + timedelta(microseconds=n),
}
_FROM_NUMBER |= {f"local-{name}": convert for name, convert in _FROM_NUMBER.items() if "stamp" in name}


def _reader(
    written: Schema, of_writer: dict[str, Schema], wanted: Schema, of_reader: dict[str, Schema], made: dict[Any, _Read]
) -> _Read:
    """Reads values that were written with one schema as those of another."""
    written, wanted = _resolved(written, of_writer), _resolved(wanted, of_reader)
    if isinstance(written, list):
        branches: list[_Read | InvalidArgument] = []
        for branch in written:
            try:
                branches.append(_reader(branch, of_writer, wanted, of_reader, made))
            except InvalidArgument as error:  # only an error if a value of this branch comes
                branches.append(error)
        return lambda data: _branch(branches, data)
    if isinstance(wanted, list):
        for branch in wanted:
            if _matches(written, _resolved(branch, of_reader)):
                return _reader(written, of_writer, branch, of_reader, made)
        raise InvalidArgument(f"Avro: a {_name(written)} was written where the schema has {json.dumps(wanted)}")
    if not _matches(written, wanted):
        raise InvalidArgument(f"Avro: a {_name(written)} was written where the schema has a {_name(wanted)}")
    key = id(written), id(wanted)
    if key in made:
        return lambda data: made[key](data)  # noqa: PLW0108 - it is made later
    kind, logical = _name(written), _logical(wanted)
    if kind in _READERS or kind == "fixed":
        return _simple_reader(kind, written, wanted, logical)
    made[key] = _READERS["null"]
    made[key] = _complex_reader(written, of_writer, wanted, of_reader, made)
    return made[key]


def _branch(branches: list[_Read | InvalidArgument], data: BytesIO) -> Any:
    read = branches[_get_long(data)]
    if isinstance(read, InvalidArgument):
        raise ValueError(str(read))  # noqa: TRY004 - of the bytes
    return read(data)


def _matches(written: Schema, wanted: Schema) -> bool:
    if isinstance(wanted, list):
        return True
    first, second = _name(written), _name(wanted)
    if first == second:
        return first != "fixed" or written["size"] == wanted["size"]
    return second in _WIDER.get(first, ()) or any({first, second} <= same for same in _SAME_BYTES)


def _simple_reader(kind: str, written: Schema, wanted: Schema, logical: str | None) -> _Read:
    read: _Read = (lambda data: _get(data, written["size"])) if kind == "fixed" else _READERS[kind]
    target = _name(wanted)
    if logical == "decimal":
        scale = wanted.get("scale", 0)
        return lambda data: Decimal(int.from_bytes(read(data), "big", signed=True)).scaleb(-scale)
    if target in ("int", "long") and logical in _FROM_NUMBER:
        convert = _FROM_NUMBER[logical]
        return lambda data: convert(read(data))
    if kind in ("int", "long") and target in ("float", "double"):
        return lambda data: float(read(data))
    if {kind, target} == {"bytes", "string"}:
        return (lambda data: _get_bytes(data).decode()) if target == "string" else _get_bytes
    return read


def _complex_reader(
    written: Schema, of_writer: dict[str, Schema], wanted: Schema, of_reader: dict[str, Schema], made: dict[Any, _Read]
) -> _Read:
    kind = _name(written)
    if kind == "enum":
        symbols, known = written["symbols"], set(wanted["symbols"])
        return lambda data: _symbol(symbols[_get_long(data)], known, wanted.get("default"))
    if kind == "array":
        item = _reader(written["items"], of_writer, wanted["items"], of_reader, made)
        return lambda data: list(_blocks(data, item))
    if kind == "map":
        inner = _reader(written["values"], of_writer, wanted["values"], of_reader, made)
        return lambda data: dict(_blocks(data, lambda data: (_get_bytes(data).decode(), inner(data))))
    by_name = {field["name"]: field for field in wanted["fields"]}
    for field in wanted["fields"]:
        by_name |= dict.fromkeys(field.get("aliases", ()), field)
    steps: list[tuple[str | None, _Read]] = []
    for field in written["fields"]:
        own = by_name.get(field["name"])
        target = (field["type"], of_writer) if own is None else (own["type"], of_reader)
        steps.append((None if own is None else own["name"], _reader(field["type"], of_writer, *target, made)))
    given = {name for name, _ in steps}
    rest = {field["name"]: _default(field) for field in wanted["fields"] if field["name"] not in given}
    order = [field["name"] for field in wanted["fields"]]

    def read(data: BytesIO) -> dict[str, Any]:
        found = {name: one(data) for name, one in steps}  # those that are not wanted overwrite each other under None
        return {name: found[name] if name in found else rest[name] for name in order}

    return read


def _symbol(symbol: str, known: set[str], default: str | None) -> str:
    if symbol in known:
        return symbol
    if default is None:
        raise ValueError(f"'{symbol}' is no symbol of the enum")
    return default


def _blocks(data: BytesIO, read: _Read) -> Iterable[Any]:
    while count := _get_long(data):
        if count < 0:  # the size of the block follows, for those who skip it
            count = -count
            _get_long(data)
        for _ in range(count):
            yield read(data)


# --- files and batches ------------------------------------------------------------------------------------------------


class AvroFormat(FileFormat):
    """Avro container files, and Avro values for other connectors.

    Records with columns are Rows of a type; with `typed=False`, and where there are no columns, they are dicts.

    >>> format = AvroFormat('{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}')
    >>> format.type
    row<n bigint>
    >>> format.decoder().decode([format.codec.encode((7,))])[0].rows()
    [Row(n=7)]
    """

    suffix = "avro"

    def __init__(
        self,
        schema: str | Schema,
        *,
        typed: bool = True,
        type_info: TypeInformation | None = None,
        compression: str = "null",
    ) -> None:
        """`type_info`: another type with the same fields."""
        if compression not in ("null", "deflate"):
            raise InvalidArgument(f"AvroFormat: compression must be 'null' or 'deflate', got {compression!r}")
        self.codec, self._compression = AvroCodec(schema), compression
        self.type = type_info or (self.codec.type() if typed else PICKLED)

    def decoder(self) -> Decoder:
        """Decodes values that are encoded with the schema, without a file around them."""
        return _AvroDecoder(self)

    def batch(self, values: list[Any]) -> Batch:
        """Decoded values as records."""
        if self.type.kind == "row":
            return Batch.of_output([tuple(value.values()) for value in values], self.type, None)
        return Batch.of_rows(values, self.type)

    def reader(self, part: FilePart, file: Any) -> PartReader:
        return _AvroReader(part, file, self)

    def writer(self, file: PendingFile, type: TypeInformation) -> FormatWriter:
        return _AvroWriter(file, self.codec, self._compression)


class _AvroDecoder(Decoder):
    def __init__(self, format: AvroFormat) -> None:
        super().__init__(format.type)
        self._format = format

    def _all(self, values: Sequence[bytes]) -> Batch:
        decode = self._format.codec.decode
        return self._format.batch([decode(value) for value in values])


class _AvroReader(PartReader):
    """Reads a container file block by block; the position is the number of records that were given."""

    def __init__(self, part: FilePart, file: Any, format: AvroFormat) -> None:
        super().__init__(part)
        self._file, self._format = file, format
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is no Avro file")
        header = AvroCodec({"type": "map", "values": "bytes"})
        meta = header.decode_from(file)
        self._codec = AvroCodec(format.codec.schema, meta["avro.schema"].decode())
        self._compression = meta.get("avro.codec", b"null").decode()
        self._sync = _get(file, _SYNC)
        self._block, self._left = BytesIO(), 0
        self._skip(part.position)

    def _skip(self, records: int) -> None:
        while records and self._next_block():
            skipped = min(records, self._left)
            for _ in range(skipped):
                self._codec.decode_from(self._block)
            self._left -= skipped
            records -= skipped

    def _next_block(self) -> bool:
        first = self._file.read(1)
        if not first:
            return False
        self._file.seek(-1, 1)
        count, size = _get_long(self._file), _get_long(self._file)
        self._block, self._left = BytesIO(_unpacked(_get(self._file, size), self._compression)), count
        if _get(self._file, _SYNC) != self._sync:
            raise ValueError("a block does not end with the mark of the file: it is damaged")
        return True

    def read(self, max_records: int) -> tuple[Batch, list[tuple[str, CorruptRecord]]]:
        values: list[Any] = []
        while len(values) < max_records:
            if not self._left and not self._next_block():
                self.finished = True
                break
            take = min(self._left, max_records - len(values))
            values += [self._codec.decode_from(self._block) for _ in range(take)]
            self._left -= take
        self.part = replace(self.part, position=self.part.position + len(values))
        return self._format.batch(values), []

    def close(self) -> None:
        self._file.close()


def _unpacked(data: bytes, compression: str) -> bytes:
    if compression == "null":
        return data
    if compression == "deflate":
        return zlib.decompress(data, -15)
    if compression == "bzip2":
        return bz2.decompress(data)
    if compression == "xz":
        return lzma.decompress(data)
    if compression == "snappy":  # its own length first, four bytes of a checksum at the end
        length = shift = 0
        for byte in data[:5]:
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return bytes(pa.decompress(data[:-4], length, "snappy"))
    raise ValueError(
        f"its compression '{compression}' is not supported; write it with null, deflate, snappy, bzip2 or xz"
    )


class _AvroWriter(FormatWriter):
    def __init__(self, file: PendingFile, codec: AvroCodec, compression: str) -> None:
        super().__init__(file)
        self._codec, self._compression, self._sync = codec, compression, token_bytes(_SYNC)
        self._block, self._count = bytearray(), 0
        meta = {"avro.schema": codec.text.encode(), "avro.codec": compression.encode()}
        header = AvroCodec({"type": "map", "values": "bytes"}).encode(meta)
        file.write(_MAGIC + header + self._sync)

    def write(self, batch: Batch) -> None:
        for row in batch.rows():
            self._codec.encode_into(row, self._block)
            self._count += 1
            if len(self._block) >= _BLOCK:
                self.flush()
        self.buffered = len(self._block)

    def flush(self) -> None:
        if not self._count:
            return
        data = bytes(self._block)
        if self._compression == "deflate":
            data = zlib.compress(data, wbits=-15)
        frame = bytearray()
        _put_long(self._count, frame)
        _put_long(len(data), frame)
        self.file.write(bytes(frame) + data + self._sync)
        self._block, self._count, self.buffered = bytearray(), 0, 0

    def finish(self) -> PreparedFile:
        self.flush()
        return super().finish()
