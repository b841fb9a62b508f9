"""`/docs`: the OpenAPI page as plain HTML, made here: it needs no network, no script, and every text is escaped."""

from __future__ import annotations

from html import escape
from typing import Any

Document = dict[str, Any]


def reference_page(schema: Document) -> str:
    """All paths with parameters and answers, then the shape of every answer."""
    paths = "".join(
        _operation(method.upper(), path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    )
    shapes = "".join(_shape(name, shape) for name, shape in sorted(schema["components"]["schemas"].items()))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(schema["info"]["title"])} REST</title></head>'
        f"<body><h1>REST of {escape(schema['info']['title'])}</h1><p>The same for programs: "
        f'<a href="/openapi.json">/openapi.json</a></p><h2>Paths</h2>{paths}<h2>Answers</h2>{shapes}</body></html>'
    )


def _operation(method: str, path: str, operation: Document) -> str:
    parts = [f"<h3><code>{method} {escape(path)}</code></h3>"]
    if text := operation.get("description"):
        parts.append(f"<p>{escape(text)}</p>")
    rows = [
        (f"{one['in']} {one['name']}", _type(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", [])
    ]
    if body := operation.get("requestBody"):
        rows.append(("body", _type(body["content"]["application/json"]["schema"]), ""))
    for code, answer in operation["responses"].items():
        for kind, content in answer.get("content", {}).items():
            rows.append((f"answer {code}", _type(content.get("schema", {})), kind))
    return "".join(parts) + _rows(rows)


def _shape(name: str, shape: Document) -> str:
    fields = [(field, _type(of), of.get("description", "")) for field, of in shape.get("properties", {}).items()]
    text = f"<p>{escape(shape['description'])}</p>" if "description" in shape else ""
    return f'<h3 id="{escape(name)}"><code>{escape(name)}</code></h3>{text}{_rows(fields)}'


def _rows(rows: list[tuple[str, str, str]]) -> str:
    """The second cell is HTML already."""
    body = "".join(f"<tr><td><code>{escape(a)}</code></td><td>{b}</td><td>{escape(c)}</td></tr>" for a, b, c in rows)
    return f"<table>{body}</table>" if rows else ""


def _type(schema: Document) -> str:
    """Return a type as HTML, with a link where it is one of ours."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if isinstance(of := schema.get("additionalProperties"), dict):
        return f"object of {_type(of)}"
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if values:
        return " | ".join(escape(str(value)) for value in values)
    return escape(str(schema.get("type", "any")))
