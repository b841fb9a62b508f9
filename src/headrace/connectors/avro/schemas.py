"""Avro schemas: parsed by fastavro; their defaults and columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from types import ModuleType
from typing import Any

import pyarrow as pa

from headrace.connectors.avro.logical import column_of, from_wire, logical_of, to_wire
from headrace.errors import InvalidArgument, install_hint

__all__ = ["NAMED", "ParsedSchema", "Schema", "default_of", "fastavro_module", "kind_of", "title"]

Schema = Any  # JSON: a name, an object, or a list for a union

PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
NAMED = {"record", "enum", "fixed"}
_KINDS = {*PRIMITIVES, *NAMED, "error", "array", "map"}
_DEFAULT = "headrace-default"  # fastavro checks a "default" less, and more, strictly than the specification


def fastavro_module() -> ModuleType:
    """Import fastavro, or raise InvalidArgument with the command that installs it."""
    try:
        import fastavro
    except ImportError as error:
        raise InvalidArgument("HR-1108", f"Avro needs the package fastavro ({error}): {install_hint('avro')}") from None
    return fastavro


def kind_of(schema: Schema) -> str:
    """Return the type of a schema whose references are resolved; an error is a record."""
    kind = str(schema["type"] if isinstance(schema, dict) else schema)
    return "record" if kind == "error" else kind


def title(schema: Schema) -> str:
    """Return the words for a schema in messages.

    >>> title({"type": "record", "name": "a.Key", "fields": []}), title({"type": "int", "logicalType": "date"})
    ('record a.Key', 'date')
    """
    kind = kind_of(schema)
    return f"{kind} {schema['name']}" if kind in NAMED else logical_of(schema) or kind


class ParsedSchema:
    """A schema whose names are full names, with the records, enums and fixed types that it defines."""

    def __init__(self, schema: str | Schema) -> None:
        if isinstance(schema, str) and schema not in PRIMITIVES:
            try:
                schema = json.loads(schema)
            except ValueError as error:
                raise InvalidArgument("HR-4504", f"Avro: the schema is not JSON: {error}") from None
        self.json = schema
        self._names: dict[str, Schema] = {}
        fastavro = fastavro_module()
        try:
            self.root = fastavro.parse_schema(_normal(schema), self._names)
        except fastavro.schema.UnknownType as error:
            raise InvalidArgument("HR-4504", f"Avro: unknown type {error.name!r} in the schema") from None
        except fastavro.schema.SchemaParseException as error:
            raise InvalidArgument("HR-4504", f"Avro: the schema is not valid: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument("HR-4504", f"Avro: the schema is not valid: {error!r}") from None
        for one in (self.root, *self._names.values()):
            self._check_unions(one)

    def resolve(self, schema: Schema) -> Schema:
        """Return the definition that a name stands for, or the schema itself."""
        return self._names.get(schema, schema) if isinstance(schema, str) else schema

    def branches(self, union: list[Schema]) -> list[Schema]:
        return [self.resolve(branch) for branch in union]

    def is_empty(self, schema: Schema, inside: tuple[str, ...] = ()) -> bool:
        """Return True if values of a schema take no bytes."""
        schema = self.resolve(schema)
        if isinstance(schema, list):
            return False
        kind = kind_of(schema)
        if kind == "record":
            inside = (*inside, schema["name"])
            return schema["name"] not in inside[:-1] and all(self.is_empty(f["type"], inside) for f in schema["fields"])
        return kind == "null" or (kind == "fixed" and schema["size"] == 0)

    def arrow_type(self, schema: Schema, inside: tuple[str, ...] = ()) -> pa.DataType:
        """Return the column of a schema, or raise InvalidArgument."""
        schema = self.resolve(schema)
        if isinstance(schema, list):
            others = [branch for branch in schema if branch != "null"]
            if len(others) != 1:
                raise InvalidArgument("HR-4504", "Avro: a union of several types has no column")
            return self.arrow_type(others[0], inside)
        kind = kind_of(schema)
        if kind == "record":
            if schema["name"] in inside:
                raise InvalidArgument("HR-4504", "Avro: a record that contains itself has no columns")
            inside = (*inside, schema["name"])
            return pa.struct([pa.field(f["name"], self.arrow_type(f["type"], inside)) for f in schema["fields"]])
        if kind == "array":
            return pa.list_(self.arrow_type(schema["items"], inside))
        if kind == "map":
            return pa.map_(pa.string(), self.arrow_type(schema["values"], inside))
        return column_of(kind, schema)

    def default(self, field: dict[str, Any]) -> Callable[[], Any]:
        """Return what makes a field's default, a new value each time; InvalidArgument if it has none, or a wrong one."""
        if _DEFAULT not in field:
            raise InvalidArgument("HR-4505", f"Avro: field '{field['name']}' is missing, and has no default")
        try:
            value = self._from_json(field["type"], field[_DEFAULT])
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(
                "HR-4504", f"Avro: the default of field '{field['name']}' is wrong: {error}"
            ) from None
        return (lambda: deepcopy(value)) if isinstance(value, list | dict) else lambda: value

    def _from_json(self, schema: Schema, value: Any) -> Any:
        schema = self.resolve(schema)
        if isinstance(schema, list):
            for branch in schema:
                try:
                    return self._from_json(branch, value)
                except (TypeError, ValueError, OverflowError):
                    continue
            raise ValueError(f"{value!r} is of no type of the union")
        kind = kind_of(schema)
        if not isinstance(value, _JSON[kind]) or (isinstance(value, bool) and kind != "boolean"):
            raise TypeError(f"{value!r} is not {title(schema)}")
        if kind == "array":
            return [self._from_json(schema["items"], one) for one in value]
        if kind == "map":
            return {key: self._from_json(schema["values"], one) for key, one in value.items()}
        if kind == "record":
            return {
                field["name"]: self._from_json(field["type"], value[field["name"]])
                if field["name"] in value
                else self.default(field)()
                for field in schema["fields"]
            }
        if kind == "enum" and value not in schema["symbols"]:
            raise ValueError(f"{value!r} is not a symbol of {schema['name']}")
        if kind in ("float", "double"):
            return float(value)
        if kind in ("bytes", "fixed"):
            value = value.encode("latin-1")
            if kind == "fixed" and len(value) != schema["size"]:
                raise ValueError(f"{len(value)} bytes in place of {schema['size']}")
        if kind in ("int", "long"):
            value = to_wire(kind, kind)(value)
        convert = from_wire(kind, schema)
        return value if convert is None else convert(value)

    def _check_unions(self, schema: Schema) -> None:
        if isinstance(schema, list):
            if any(isinstance(branch, list) for branch in schema):
                raise InvalidArgument("HR-4504", "Avro: the schema is not valid: a union is directly inside another")
            branches = self.branches(schema)
            kinds = [one["name"] if kind_of(one) in NAMED else kind_of(one) for one in branches]
            for kind in kinds:
                if kinds.count(kind) > 1:
                    raise InvalidArgument("HR-4504", f"Avro: the schema is not valid: a union has {kind} twice")
            for branch in schema:
                self._check_unions(branch)
        elif isinstance(schema, dict):
            names = [field["name"] for field in schema.get("fields", ())]
            for name in names:
                if names.count(name) > 1:
                    raise InvalidArgument(
                        "HR-4504", f"Avro: the schema is not valid: {schema['name']} has field '{name}' twice"
                    )
            for inner in [schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", ()))]:
                self._check_unions(inner)


_JSON: dict[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": int | float,
    "double": int | float,
    "array": list,
    "map": dict,
    "record": dict,
} | dict.fromkeys(("bytes", "string", "fixed", "enum"), str)
"""The Python types of JSON values that may be defaults."""


def default_of(field: dict[str, Any], schema: ParsedSchema) -> Callable[[], Any] | None:
    """Return what makes a field's default; None if it has none."""
    return schema.default(field) if _DEFAULT in field else None


def _normal(schema: Schema) -> Schema:
    """Return a copy in which types are not wrapped in others, and defaults are out of fastavro's sight."""
    if isinstance(schema, list):
        return [_normal(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema["type"]
    if not isinstance(kind, str) or kind not in _KINDS:
        return _normal(kind)  # {"type": {...}}, {"type": "Name"}
    if kind in PRIMITIVES:
        return schema if "logicalType" in schema else kind
    copy = {key: _normal(value) if key in ("items", "values") else value for key, value in schema.items()}
    if "fields" in schema:
        copy["fields"] = [_normal_field(field) for field in schema["fields"]]
    return copy


def _normal_field(field: dict[str, Any]) -> dict[str, Any]:
    copy = {_DEFAULT if key == "default" else key: value for key, value in field.items()}
    return copy | {"type": _normal(field["type"])} if "type" in field else copy
