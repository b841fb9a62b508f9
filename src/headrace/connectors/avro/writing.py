"""Python values in the form that fastavro writes: the branch of each union is chosen, and each value is checked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any
from uuid import UUID

from headrace.connectors.avro.logical import Convert, logical_of, to_wire
from headrace.connectors.avro.schemas import NAMED, ParsedSchema, Schema, default_of, fastavro_module, kind_of
from headrace.records.flink_values import MutableRow
from headrace.records.types import Row

__all__ = ["WRITE_ERRORS", "Writing"]

WRITE_ERRORS = (TypeError, ValueError, KeyError, AttributeError, OverflowError)

Default = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    put: Convert
    default: Default | None


class _Record:
    """Makes the dict that fastavro writes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.set_fields([])

    def set_fields(self, fields: Sequence[_Field]) -> None:
        self.fields, self.names = fields, frozenset(field.name for field in fields)
        self._puts = [(field.name, field.put) for field in fields]
        self._pick = itemgetter(*(field.name for field in fields)) if len(fields) > 1 else None

    def put(self, value: Any) -> dict[str, Any]:
        found = {}
        name = ""
        values = self._values(value)
        try:
            for (name, put), one in zip(self._puts, values, strict=True):
                found[name] = put(one)
        except WRITE_ERRORS as error:
            raise ValueError(f"field '{name}': {error}") from None
        return found

    def _values(self, value: Any) -> Sequence[Any]:
        if type(value) is dict:
            if self._pick is not None:
                try:
                    values: Sequence[Any] = self._pick(value)
                except KeyError:
                    pass  # some have defaults
                else:
                    return values
            return [value[field.name] if field.name in value else _default(field) for field in self.fields]
        if names_of(value) == self.names:
            return [value[field.name] for field in self.fields]
        if isinstance(value, MutableRow | tuple | list):
            if len(value) != len(self.fields):
                raise ValueError(f"{len(value)} fields in place of {len(self.fields)}")
            return list(value)
        if not hasattr(value, "get"):
            raise TypeError(f"{value!r} is not a record")
        return [value[field.name] if field.name in value else _default(field) for field in self.fields]

    def fits(self, names: frozenset[str]) -> bool:
        """Return True if all given names are fields, and the other fields have defaults."""
        return names <= self.names and all(
            field.default is not None for field in self.fields if field.name not in names
        )


def names_of(value: Any) -> frozenset[str] | None:
    """Return the names of a row's fields; None if it has none."""
    if isinstance(value, MutableRow):
        return frozenset(value.names) if value.names else None
    return frozenset(value._fields) if isinstance(value, Row) and value._fields else None


def _default(field: _Field) -> Any:
    if field.default is None:
        raise ValueError(f"field '{field.name}' is missing, and has no default")
    return field.default()


class Writing:
    """The schema with which fastavro writes, and the function that makes what it writes."""

    def __init__(self, parsed: ParsedSchema) -> None:
        self._parsed = parsed
        self._numbers = count()
        self._records: dict[str, _Record] = {}
        root, put = self._node(parsed.root)
        self.put: Convert = put
        if not isinstance(root, dict) or root["type"] != "record":
            root = {"type": "record", "name": "root", "fields": [{"name": "value", "type": root}]}
            self.put = lambda value: {"value": put(value)}
        self.schema = fastavro_module().parse_schema(root)

    def _node(self, schema: Schema) -> tuple[Schema, Convert]:
        schema = self._parsed.resolve(schema)
        if isinstance(schema, list):
            return self._union(schema)
        kind = kind_of(schema)
        if kind == "record":
            return self._record(schema)
        if kind == "array":
            items, put = self._node(schema["items"])
            return {"type": "array", "items": items}, partial(_put_items, put)
        if kind == "map":
            values, put = self._node(schema["values"])
            return {"type": "map", "values": values}, partial(_put_pairs, put)
        wire: Schema = kind
        if kind in NAMED:
            wire = {"type": kind, "name": f"{kind}{next(self._numbers)}"}
            wire |= {key: schema[key] for key in ("size", "symbols") if key in schema}
        return wire, to_wire(kind, schema)

    def _record(self, schema: dict[str, Any]) -> tuple[Schema, Convert]:
        full = schema["name"]
        if full in self._records:
            return self._records[full].name, self._records[full].put
        record = self._records[full] = _Record(f"record{next(self._numbers)}")
        fields, wires = [], []
        for field in schema["fields"]:
            wire, put = self._node(field["type"])
            wires.append({"name": field["name"], "type": wire})
            fields.append(_Field(field["name"], put, default_of(field, self._parsed)))
        record.set_fields(fields)
        return {"type": "record", "name": record.name, "fields": wires}, record.put

    def _union(self, schemas: list[Schema]) -> tuple[Schema, Convert]:
        branches, wires = [], []
        for schema in self._parsed.branches(schemas):
            wire, put = self._node(schema)
            kind = kind_of(schema)
            name = wire if isinstance(wire, str) else wire["name"] if kind in NAMED else kind
            record = self._records[schema["name"]] if kind == "record" else None
            full = schema["name"] if kind in NAMED else None
            branches.append(_Branch(kind, name, put, *_test_of(kind, schema), full, record, logical_of(schema) is None))
            wires.append(wire)
        return wires, _Union(branches).put


def _put_items(put: Convert, value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping):
        raise TypeError(f"{value!r} is not an array")
    return [put(one) for one in value]


def _put_pairs(put: Convert, value: Any) -> dict[str, Any]:
    text = to_wire("string", "string")
    return {text(key): put(one) for key, one in value.items()}


# --- unions -----------------------------------------------------------------------------------------------------------

Test = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch of a union: values that are of its type, and others that it takes if there is no branch of theirs."""

    kind: str
    name: str
    put: Convert
    is_own: Test
    is_taken: Test
    full_name: str | None
    record: _Record | None
    is_plain: bool  # without a logical type


_QUICK: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "double",
    str: "string",
    bytes: "bytes",
}


class _Union:
    """Writes a value as that branch of a union which is of its type, else as one to which it can be promoted."""

    def __init__(self, branches: list[_Branch]) -> None:
        order = ("null", "boolean", "int", "long", "double", "float", "string", "enum", "bytes", "fixed", "record")
        self._branches = sorted(branches, key=lambda one: order.index(one.kind) if one.kind in order else len(order))
        self._records = [one for one in branches if one.kind == "record"]
        self._is_named = {one.full_name: one for one in branches if one.full_name is not None}
        for one in self._is_named.copy().values():
            short = str(one.full_name).rpartition(".")[2]
            if [str(name).rpartition(".")[2] for name in self._is_named].count(short) == 1:
                self._is_named.setdefault(short, one)
        self._quick = self._decided_by_type()
        self._one_record = self._records[0] if len(self._records) == 1 else None

    def _decided_by_type(self) -> dict[type, _Branch]:
        """Return the branches of Python types whose values need no closer look."""
        plain = {one.kind: one for one in reversed(self._branches) if one.is_plain}
        if "float" in plain:
            plain.setdefault("double", plain["float"])
        integers = [plain[kind] for kind in ("int", "long") if kind in plain]
        if len(integers) == 1 and plain.keys().isdisjoint(("float", "double")):
            plain["integer"] = integers[0]
        return {type: plain[kind] for type, kind in _QUICK.items() if kind in plain}

    def put(self, value: Any) -> tuple[str, Any]:
        quick = self._quick.get(type(value))
        if quick is not None:
            return quick.name, quick.put(value)
        if type(value) is tuple and len(value) == 2 and isinstance(value[0], str) and value[0] in self._is_named:
            named = self._is_named[value[0]]
            return named.name, named.put(value[1])
        branch = self._branch(value)
        return branch.name, branch.put(value)

    def _branch(self, value: Any) -> _Branch:
        for branch in self._branches:
            if branch.is_own(value):
                return branch if branch.kind != "record" else self._record(value)
        for branch in self._branches:
            if branch.is_taken(value):
                return branch
        raise TypeError(f"{value!r} is of no type of the union")

    def _record(self, value: Any) -> _Branch:
        """Return the record that a value is, by the names of its fields."""
        others = [one for one in self._branches if one.kind in ("map", "array") and one.is_own(value)]
        if self._one_record is not None and not others:
            return self._one_record
        names = names_of(value) or (frozenset(value) if hasattr(value, "keys") else None)
        if names is None:
            found = [one for one in self._records if one.record and len(one.record.fields) == len(value)]
        else:
            found = [one for one in self._records if one.record and one.record.names == names]
            found = found or [one for one in self._records if one.record and one.record.fits(names)]
        if len(found) > 1:
            choice = ", ".join(str(one.full_name) for one in found)
            raise ValueError(
                f"{value!r} fits several records of the union, {choice}: write (name of the record, value)"
            )
        if not found and not others:
            raise TypeError(f"{value!r} is of no type of the union")
        return (found or others)[0]


def _is_integer(bits: int, value: Any) -> bool:
    if isinstance(value, bool) or not (
        isinstance(value, int) or (hasattr(value, "dtype") and value.dtype.kind in "iu")
    ):
        return False
    return -(1 << bits - 1) <= int(value) < 1 << bits - 1


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _is(types: Any, value: Any) -> bool:
    return isinstance(value, types)


def _never(_: Any) -> bool:
    return False


def _is_day(value: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


def _test_of(kind: str, schema: Schema) -> tuple[Test, Test]:
    """Return two functions: is a value of a type, and can it be written as one if the union has no branch of its type."""
    name = logical_of(schema)
    if kind == "enum":
        return _never, partial(_is_symbol, frozenset(schema["symbols"]))
    plain = (partial(_has_size, schema["size"]), _never) if kind == "fixed" else _PLAIN[kind]
    if name is None:
        return plain
    own: Test = partial(_is, Decimal if name == "decimal" else UUID if name == "uuid" else datetime)
    if name.startswith("time-"):
        own = partial(_is, time)
    elif name == "date":
        own = _is_day
    return own, plain[0]


def _is_symbol(symbols: frozenset[str], value: Any) -> bool:
    return isinstance(value, str) and value in symbols


def _has_size(size: int, value: Any) -> bool:
    return isinstance(value, bytes | bytearray) and len(value) == size


_RECORDS = (dict, MutableRow, tuple)
_PLAIN: dict[str, tuple[Test, Test]] = {
    "null": (partial(_is, type(None)), _never),
    "boolean": (partial(_is, bool), _never),
    "int": (partial(_is_integer, 32), _never),
    "long": (partial(_is_integer, 64), _never),
    "float": (partial(_is, float), _is_number),
    "double": (partial(_is, float), _is_number),
    "bytes": (partial(_is, bytes | bytearray | memoryview), _never),
    "string": (partial(_is, str), _never),
    "array": (partial(_is, list | tuple), _never),
    "map": (partial(_is, Mapping), _never),
    "record": (lambda value: isinstance(value, _RECORDS) or hasattr(value, "keys"), _never),
}
