"""Spark's type strings: `"word string, n bigint"`, `"array<int>"`, `"struct<a: int>"`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from headrace.errors import InvalidArgument

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


def text_of(arrow: pa.DataType) -> str:
    """Spark's name of a type where it has one, otherwise Arrow's.

    >>> text_of(pa.int64())
    'bigint'
    """
    return _NAMES.get(str(arrow), str(arrow))


def parse(text: str) -> pa.DataType | pa.Schema:
    """One type, or a schema if the text names columns; InvalidArgument says what is wrong.

    >>> parse("array<int>"), parse("word string, n bigint").names
    (ListType(list<item: int32>), ['word', 'n'])
    """
    reader = _Ddl(text)
    if not reader.tokens:
        raise reader.wrong("it is empty")
    second = reader.peek(1)
    if second is not None and second not in "<(":
        return pa.schema(reader.fields(None))
    arrow = reader.data_type()
    if reader.peek() is not None:
        raise reader.wrong(f"unexpected {reader.peek()!r} after the type")
    return arrow


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
        return InvalidArgument(
            "HR-1301", f"type {self.text!r}: {why}; write it as Spark DDL, for example 'word string, n bigint'"
        )

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
            self.take("("), self._number(), self.take(")")
            return pa.string()
        if name in ("array", "map"):
            self.take("<")
            types = [self.data_type()]
            if name == "map":
                self.take(",")
                types.append(self.data_type())
            self.take(">")
            return pa.map_(*types) if name == "map" else pa.list_(*types)
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
            precision = self._number()
            if self.peek() == ",":
                self.take(",")
                scale = self._number()
            self.take(")")
        try:
            return pa.decimal128(precision, scale)
        except ValueError as error:
            raise self.wrong(str(error)) from None

    def _number(self) -> int:
        token = self.take()
        if not token.isdigit():
            raise self.wrong(f"expected a number, found {token}")
        return int(token)

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
            if word == "not" and (self.peek() or "").lower() != "null":
                raise self.wrong(f"expected null, found {self.peek() or 'the end'}")
            self.take()
            not_null = not_null or word == "not"
        return not_null
