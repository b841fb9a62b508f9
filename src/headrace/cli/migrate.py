"""`headrace migrate`: a PyFlink program becomes one for Headrace, and what it uses that is not supported is listed."""

from __future__ import annotations

import difflib
import tokenize
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.migration import Migration
from headrace.cli.migration import migrate as migrated
from headrace.cli.output import reported
from headrace.errors import ConfigError, HeadraceError, InvalidArgument


def add_commands(app: typer.Typer) -> None:
    app.command()(migrate)


@reported
def migrate(
    files: Annotated[list[Path], typer.Argument(help="PyFlink programs, or directories of them.")],
    write: Annotated[bool, typer.Option("--write", help="Change the files; without it a diff is printed.")] = False,
) -> None:
    """Change the imports of PyFlink programs, and list what is not supported. Exit code 1 if there is any."""
    programs = sorted(found for given in files for found in _programs(given))
    if not programs:
        raise ConfigError("HR-7012", f"there is no Python file in {', '.join(map(str, files))}")
    problems = changed = unread = 0
    for program in programs:
        try:
            before, encoding = _read(program)
            done = migrated(before, str(program))
        except HeadraceError as error:
            typer.echo(f"{error}; it stays as it is", err=True)
            unread += 1
            continue
        changed += done.text != before
        problems += len(done.unsupported)
        _show(program, before, done, encoding if write else None)
    verb = "changed" if write else "to change"
    skipped = f", {unread} skipped" if unread else ""
    typer.echo(
        f"{changed} of {len(programs)} files {verb}{skipped}, {problems} uses of what is not supported", err=True
    )
    if problems or unread:
        raise typer.Exit(1)


def _read(program: Path) -> tuple[str, str]:
    """Return the text with its ends of lines, and its encoding, which a comment may name."""
    try:
        with program.open("rb") as file:
            encoding = tokenize.detect_encoding(file.readline)[0]
        with program.open(encoding=encoding.removesuffix("-sig"), newline="") as file:
            return file.read(), encoding.removesuffix("-sig")
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InvalidArgument("HR-7012", f"{program} cannot be read: {error}") from None


def _programs(given: Path) -> list[Path]:
    if not given.exists():
        raise ConfigError("HR-7012", f"there is no file '{given}'")
    if not given.is_dir():
        return [given]
    # Environments and checkouts below it are of others.
    found = [path for path in given.rglob("*.py") if path.is_file()]
    return [path for path in found if not any(_is_foreign(part) for part in path.relative_to(given).parts)]


def _is_foreign(part: str) -> bool:
    return part.startswith(".") or part == "site-packages"


def _show(program: Path, before: str, done: Migration, encoding: str | None) -> None:
    """Write the program, if there is an encoding, or show what would change."""
    if encoding is not None and done.text != before:
        with program.open("w", encoding=encoding, newline="") as file:
            file.write(done.text)
    elif encoding is None:
        old, new = before.splitlines(keepends=True), done.text.splitlines(keepends=True)
        typer.echo("".join(difflib.unified_diff(old, new, str(program), str(program))), nl=False)
    for one in done.unsupported:
        typer.echo(f"{program}:{one.line}: {one.what}: {one.instead}", err=True)
