"""Tables of HTML, for the rich display of objects in notebooks; every text is escaped. No state, any thread may call it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "padding:2px 10px;text-align:{};vertical-align:top"


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a title; numbers are aligned to the right.

    >>> html_table("<b>", ["n"], [[1]])
    '<div><b>&lt;b&gt;</b></div><table><thead><tr><th style="padding:2px 10px;text-align:left;vertical-align:top">n</th></tr></thead><tbody><tr><td style="padding:2px 10px;text-align:right;vertical-align:top">1</td></tr></tbody></table>'
    """
    head = "".join(_cell("th", column) for column in columns)
    body = "".join(f"<tr>{''.join(_cell('td', value) for value in row)}</tr>" for row in rows)
    return f"<div><b>{escape(title)}</b></div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(tag: str, value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = "" if value is None else f"{value:,}" if number else str(value)
    return f'<{tag} style="{_CELL.format("right" if number else "left")}">{escape(text)}</{tag}>'
