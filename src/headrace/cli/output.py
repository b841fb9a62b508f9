"""Output of commands: errors, and tables for people or, with `--json`, for programs."""

from __future__ import annotations

import functools
import io
import re
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, ParamSpec, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headrace.control.messages import escaped
from headrace.driver.log_output import make_console
from headrace.errors import HeadraceError

P = ParamSpec("P")
R = TypeVar("R")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Return the command, but an error of Headrace becomes a message on stderr and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # names may have characters that the terminal has not
        try:
            return command(*args, **kwargs)
        except HeadraceError as error:
            warn(str(error))
            raise typer.Exit(1) from None
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            warn(str(error))  # a full disk behind stdout, or a log that is gone
            raise typer.Exit(1) from None

    return run


def warn(message: str) -> None:
    """Print a message on stderr."""
    typer.echo(visible(message), err=True)


def visible(text: str) -> str:
    r"""Text without what a terminal would obey: a name or a record could move its cursor, or hide what follows.

    >>> visible("a\x1b[2J b\n")
    'a\\x1b[2J b\n'
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# Control characters but tab and newline, halves of pairs, and marks that turn the direction of writing.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


class VisibleTable(Table):
    """A table whose cells are text."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def make_table(*columns: str, right: str = "", title: str | None = None) -> Table:
    """Return an empty table; `right` names the columns that are aligned to the right, separated by commas."""
    table = VisibleTable(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right.split(", ") else "left")
    return table


def console() -> Console:
    """As wide as the terminal, and in a file or pipe wide enough that no column is cut."""
    terminal = make_console()
    return terminal if terminal.is_terminal else make_console(width=160)


def print_json(document: Any) -> None:
    """One document, indented; what JSON does not have is text, and what UTF-8 cannot carry is escaped."""
    try:
        encoded = msgspec.json.encode(document, enc_hook=str)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(escaped(document), enc_hook=str)
    typer.echo(msgspec.json.format(encoded, indent=2).decode())


def when(milliseconds: int | None) -> str:
    """Return a time of day, of another day with its date.

    >>> when(None)
    ''
    """
    if milliseconds is None or milliseconds < 0:
        return ""
    at = datetime.fromtimestamp(milliseconds / 1000).astimezone()
    today = at.date() == datetime.now().astimezone().date()
    return at.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def size(count: int | None) -> str:
    """Bytes for people.

    >>> size(2048), size(5 << 20)
    ('2.0 KiB', '5.0 MiB')
    """
    if count is None:
        return ""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count / 1024:,.1f} KiB"
