"""How commands say what went wrong, and where their tables go."""

from __future__ import annotations

import traceback

import typer
from rich.console import Console

from headgate.errors import HeadgateError

__all__ = ["console", "fail"]


def fail(error: HeadgateError, show_traceback: bool = False) -> typer.Exit:
    """Say on stderr what is wrong; the end of the command, to be raised.

    >>> fail(HeadgateError("there is no job")).exit_code
    1
    """
    if show_traceback:
        traceback.print_exception(error)
    else:
        typer.echo(str(error), err=True)
    return typer.Exit(1)


def console() -> Console:
    """For tables: as wide as the terminal, and in a file or pipe wide enough that no column is cut."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=160)
