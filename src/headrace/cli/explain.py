"""The `explain` command: the page of an error code."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from headrace.cli.output import Json, print_json
from headrace.errors.codes import AREAS, CODES, as_markdown


def add_commands(app: typer.Typer) -> None:
    """Add the command to the `headrace` command."""
    app.command()(explain)


def explain(
    code: Annotated[str, typer.Argument(help="The code at the beginning of a message, such as HR-1203.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Print all pages in Markdown.")] = False,
    json: Json = False,
) -> None:
    """Explain the code of an error: what happened, typical causes, and what to do."""
    if bool(code) == every:
        raise typer.BadParameter("give one code, such as HR-1203, or --all")
    if every and not json:
        typer.echo(as_markdown(), nl=False)
        return
    names = list(CODES) if every else [_known(code)]
    if json:
        found = [
            {"code": page.code, "area": page.area, "title": page.title, "cause": page.cause, "remedy": page.remedy}
            for page in map(CODES.__getitem__, names)
        ]
        print_json(found if every else found[0])
        return
    page, console = CODES[names[0]], Console(highlight=False)
    console.print(
        Text.assemble((page.code, "bold"), f"  {page.area}", "  (not raised any more)" if page.retired else "")
    )
    console.print(Text(page.title, style="bold"))
    for heading, text in (("Why", page.cause), ("What to do", page.remedy)):
        console.print()
        console.print(Text(heading, style="bold"))
        console.print(Padding(Text(text), (0, 0, 0, 2)))


def _known(given: str) -> str:
    """Return the code that is meant by `HR-1203`, `hr-1203`, `[HR-1203]` or `1203`."""
    code = given.strip().strip("[]").upper()
    code = code if code.startswith("HR-") else f"HR-{code}"
    if code in CODES:
        return code
    area = [known for known in CODES if known[:5] == code[:5]]
    hint = f"; those of '{AREAS[code[3:5]]}' are {area[0]} to {area[-1]}" if area else ""
    raise typer.BadParameter(f"there is no error code {given!r}{hint}; `headrace explain --all` shows every code")
