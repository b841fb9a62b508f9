"""The schema with which fastavro reads what another schema has written.

fastavro reads by the writer's schema alone. Resolution is decided once, on the schemas: wherever the value wanted is
another than the one that fastavro reads, the schema given to fastavro has a logical type of Headrace, whose function makes
the one of the other. So the branch of a union is known where its value is read, and no value is looked at twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import count
from operator import itemgetter
from typing import Any, NoReturn

from headrace.connectors.avro.logical import Convert, from_wire, meaning_of
from headrace.connectors.avro.schemas import NAMED, ParsedSchema, Schema, fastavro_module, kind_of, title
from headrace.errors import InvalidArgument

__all__ = ["MAX_EMPTY_VALUES", "EmptyValues", "Resolution", "install_hooks"]

MAX_EMPTY_VALUES = 1 << 20
"""Values without bytes, such as the items of an array of nulls, in one record: six bytes can claim any number of them."""

_WIDER = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
_PROMOTIONS = _WIDER | {"string": ("bytes",), "bytes": ("string",)}
_HOOK = "headrace"


@cache
def install_hooks() -> None:
    """Let fastavro call the functions of schemas: once in a process."""
    readers = fastavro_module().read.LOGICAL_READERS
    kinds = ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "fixed", "array", "map", "record")
    readers.update({f"{kind}-{_HOOK}": _convert for kind in kinds})


def _convert(value: Any, schema: dict[str, Any], _: Any) -> Any:
    return schema["convert"](value)


def _hooked(schema: Schema, *steps: Convert | None) -> Schema:
    """Return a schema whose values go through some functions."""
    given = [step for step in steps if step is not None]
    if not given:
        return schema
    convert = given[0] if len(given) == 1 else partial(_through, given)
    return (schema if isinstance(schema, dict) else {"type": schema}) | {"logicalType": _HOOK, "convert": convert}


def _through(steps: list[Convert], value: Any) -> Any:
    for step in steps:
        value = step(value)
    return value


class EmptyValues:
    """Counts the values without bytes of one record."""

    def __init__(self) -> None:
        self.left = MAX_EMPTY_VALUES

    def take(self, value: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"more than {MAX_EMPTY_VALUES} values without bytes")
        return value


class _Branches(list[Any]):
    """The branches of a union, of which -1 is not the last one: fastavro asks for the length of negative indexes only."""

    def __len__(self) -> int:
        raise ValueError("a union has a negative index")


class Resolution:
    """Values of one schema, read as those of another."""

    def __init__(self, written: ParsedSchema, wanted: ParsedSchema) -> None:
        self._written, self._wanted = written, wanted
        self._numbers = count()
        self._records: dict[tuple[str, str | None], str] = {}
        self._open: list[str] = []
        self.empty = EmptyValues()
        self.has_empty = self.is_recursive = self.has_single_bytes = False
        self._named_again: set[str] = set()
        root, self.convert = self._bare(self._node(written.root, wanted.root))
        if not isinstance(root, dict) or root["type"] != "record":
            root = {"type": "record", "name": "root", "fields": [{"name": "value", "type": root}]}
            self.convert = (
                itemgetter("value") if self.convert is None else partial(_through, [itemgetter("value"), self.convert])
            )
        install_hooks()
        self.schema = _guarded(fastavro_module().parse_schema(root))

    def _bare(self, schema: Schema) -> tuple[Schema, Convert | None]:
        """Take the function off a schema, for who calls it without fastavro, which is faster."""
        if (
            not isinstance(schema, dict)
            or schema.get("logicalType") != _HOOK
            or schema.get("name") in self._named_again
        ):
            return schema, None
        bare = {key: value for key, value in schema.items() if key not in ("logicalType", "convert")}
        return bare if len(bare) > 1 else bare["type"], schema["convert"]

    def _node(self, written: Schema, wanted: Schema | None) -> Schema:
        """Return the schema for fastavro; `wanted` is None for a field that the reader does not have."""
        written = self._written.resolve(written)
        if isinstance(written, list):
            return [self._branch(branch, wanted) for branch in written]
        wanted = self._match(written, wanted)
        kind = kind_of(written)
        if kind == "record":
            return self._record(written, wanted)
        if kind == "array":
            items = self._node(written["items"], wanted and wanted["items"])
            if self._written.is_empty(written["items"]) and items == "null":
                items = _hooked(items, self._taken())
            return {"type": "array", "items": items}
        if kind == "map":
            return {"type": "map", "values": self._node(written["values"], wanted and wanted["values"])}
        if kind == "enum":
            return _hooked("int", partial(_symbol, written, wanted))
        if kind == "fixed":
            self.has_single_bytes = self.has_single_bytes or written["size"] == 1
            empty = self._taken() if written["size"] == 0 else None
            schema = {"type": "fixed", "name": f"fixed{next(self._numbers)}", "size": written["size"]}
            return _hooked(schema, empty, wanted and from_wire(kind, wanted))
        return _hooked(kind, *(() if wanted is None else _scalar(kind, wanted)))

    def _branch(self, written: Schema, wanted: Schema | None) -> Schema:
        """Return the schema of a union's branch; one that cannot be read is an error only where it is met."""
        records = dict(self._records)
        try:
            return self._node(written, wanted)
        except InvalidArgument as error:
            self._records = records
            return _hooked("null", partial(_refuse, str(error)))

    def _match(self, written: Schema, wanted: Schema | None) -> Schema | None:
        if wanted is None:
            return None
        wanted = self._wanted.resolve(wanted)
        found = wanted
        if isinstance(wanted, list):
            found = _best_branch(written, self._wanted.branches(wanted))
        elif not _is_same(written, wanted) and not _is_promoted(written, wanted):
            found = None
        if found is None:
            choice = (
                f"a union of {', '.join(map(title, self._wanted.branches(wanted)))}" if isinstance(wanted, list) else ""
            )
            raise InvalidArgument(
                "HR-4505", f"Avro: a {title(written)} was written where the schema has {choice or 'a ' + title(wanted)}"
            )
        return found

    def _record(self, written: dict[str, Any], wanted: dict[str, Any] | None) -> Schema:
        key = written["name"], None if wanted is None else wanted["name"]
        if key in self._records:
            name = self._records[key]
            self._named_again.add(name)
            self.is_recursive = self.is_recursive or name in self._open
            return name
        name = self._records[key] = f"record{next(self._numbers)}"
        self._open.append(name)
        try:
            fields, build = self._fields(written, wanted)
        finally:
            self._open.pop()
        empty = self._taken() if not fields or self._written.is_empty(written) else None
        return _hooked({"type": "record", "name": name, "fields": fields}, empty, build)

    def _fields(self, written: Schema, wanted: Schema | None) -> tuple[list[dict[str, Any]], Convert | None]:
        """Return the fields to read, and what makes the wanted record of them."""
        if wanted is None:
            return [{"name": f["name"], "type": self._node(f["type"], None)} for f in written["fields"]], None
        targets = _targets(written, wanted)
        fields, converts = [], []
        for place, (field, target) in enumerate(zip(written["fields"], targets, strict=True)):
            name = f"dropped{place}-" if target is None else target["name"]  # no name of Avro has a hyphen
            schema = self._node(field["type"], target and target["type"])
            if not isinstance(schema, dict) or schema["type"] != "record":  # a record may be named again later
                schema, convert = self._bare(schema)
                converts += [] if convert is None else [(name, convert)]
            fields.append({"name": name, "type": schema})
        given, names = [field["name"] for field in fields], [field["name"] for field in wanted["fields"]]
        if given == names:
            return fields, partial(_converted, converts) if converts else None
        plan = [(f["name"], None if f["name"] in given else self._wanted.default(f)) for f in wanted["fields"]]
        return fields, partial(_through, [partial(_converted, converts), partial(_rebuilt, plan)])

    def _taken(self) -> Convert:
        self.has_empty = True
        return self.empty.take


def _targets(written: Schema, wanted: Schema) -> list[dict[str, Any] | None]:
    """Return the wanted field for each written one: that of its name, or the one that has its name as an alias."""
    by_name = {field["name"]: field for field in wanted["fields"]}
    named = {field["name"] for field in written["fields"]} & set(by_name)
    by_alias = {
        alias: field for field in wanted["fields"] for alias in field.get("aliases", ()) if field["name"] not in named
    }
    targets: list[dict[str, Any] | None] = []
    for field in written["fields"]:
        target = by_name.get(field["name"]) or by_alias.get(field["name"])
        targets.append(None if target is not None and any(target is one for one in targets) else target)
    return targets


def _converted(converts: list[tuple[str, Convert]], found: dict[str, Any]) -> dict[str, Any]:
    for name, convert in converts:
        found[name] = convert(found[name])
    return found


def _rebuilt(plan: list[tuple[str, Callable[[], Any] | None]], found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] if default is None else default() for name, default in plan}


def _guarded(schema: Schema) -> Schema:
    """Replace the unions of a schema by lists without negative indexes."""
    if isinstance(schema, list):
        return _Branches([_guarded(branch) for branch in schema])
    if isinstance(schema, dict):
        for inner in ("items", "values"):
            if inner in schema:
                schema[inner] = _guarded(schema[inner])
        for field in schema.get("fields", ()):
            field["type"] = _guarded(field["type"])
    return schema


def _refuse(message: str, _: Any) -> NoReturn:
    raise ValueError(message)


def _symbol(written: dict[str, Any], wanted: dict[str, Any] | None, index: int) -> str | None:
    symbols = written["symbols"]
    if not 0 <= index < len(symbols):
        raise ValueError(f"{index} is not the place of a symbol of {written['name']}")
    symbol: str = symbols[index]
    if wanted is None or symbol in wanted["symbols"]:
        return symbol
    default: str | None = wanted.get("default")
    if default is None:
        raise ValueError(f"'{symbol}' is not a symbol of {wanted['name']}")
    return default


# --- which schema fits which ------------------------------------------------------------------------------------------


def _is_same(written: Schema, wanted: Schema) -> bool:
    """Return True if two schemas are of one type, and for enums and fixed types of one name; records only need fields."""
    kind = kind_of(written)
    if kind != kind_of(wanted) or not _has_same_meaning(written, wanted):
        return False
    if kind == "fixed" and written["size"] != wanted["size"]:
        return False
    return kind not in ("enum", "fixed") or _is_namesake(written, wanted)


def _is_promoted(written: Schema, wanted: Schema) -> bool:
    return kind_of(wanted) in _PROMOTIONS.get(kind_of(written), ()) and _has_same_meaning(written, wanted)


def _has_same_meaning(written: Schema, wanted: Schema) -> bool:
    first, second = meaning_of(written), meaning_of(wanted)
    return first is None or second is None or first == second


def _is_namesake(written: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return True if the names without namespaces are equal, or the written one is an alias."""
    name = written["name"]
    short = name.rpartition(".")[2]
    return short == wanted["name"].rpartition(".")[2] or not {name, short}.isdisjoint(wanted.get("aliases", ()))


def _best_branch(written: Schema, branches: list[Schema]) -> Schema | None:
    """Return the branch of the same type and full name, else of the same short name, else one to promote to."""
    same = [branch for branch in branches if _is_same(written, branch)]
    if kind_of(written) in NAMED:
        named = [branch for branch in same if branch["name"] == written["name"]]
        named += [branch for branch in same if _is_namesake(written, branch)]
        records = same if len([one for one in branches if kind_of(one) == "record"]) == 1 else []
        same = named or records
    promoted = [branch for branch in branches if _is_promoted(written, branch)]
    return next(iter(same + promoted), None)


def _scalar(kind: str, wanted: Schema) -> list[Convert | None]:
    """Return the functions that make a wanted scalar of a written one."""
    target = kind_of(wanted)
    steps: list[Convert | None] = [from_wire("int", "int") if kind == "int" else None]
    if target in ("float", "double") and kind in ("int", "long"):
        steps.append(float)
    elif (kind, target) == ("string", "bytes"):
        steps.append(str.encode)
    elif (kind, target) == ("bytes", "string"):
        steps.append(bytes.decode)
    return [*steps, None if target == "int" and meaning_of(wanted) is None else from_wire(target, wanted)]
