"""How commands report errors, and where their tables go."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from headgate.errors import HeadgateError

P = ParamSpec("P")
R = TypeVar("R")


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """The command, but an error of Headgate becomes a message on stderr and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except HeadgateError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None

    return run


def make_table(*columns: str, right: str = "", title: str | None = None) -> Table:
    """An empty table; `right` names the columns that are aligned to the right, separated by commas."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right.split(", ") else "left")
    return table


def console() -> Console:
    """As wide as the terminal, and in a file or pipe wide enough that no column is cut."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=160)
