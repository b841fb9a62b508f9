"""Changes a PyFlink program into one for Headrace: the root of its imports. And finds what it uses that is not supported.

Only the text is looked at; nothing of the program runs. Names of imports are checked exactly. A method is found by its name:
one that a class of PyFlink has, and that no class of Headrace has.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from headrace.cli.coverage import coverage, reason_for
from headrace.errors import InvalidArgument

__all__ = ["Migration", "Unsupported", "migrate"]

_OLD, _NEW = "pyflink", "headrace.pyflink"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # as Python counts lines; str.splitlines knows more ends of them
_NAME_OF_MODULE = re.compile(r"pyflink(?:\.\w+)*\.?(?<!pyflink)")

_MODULES: dict[str, str] = {
    "pyflink.table": "Headrace has the DataStream API only; use Spark SQL for tables: env.from_dataframe(df), and "
    "stream.foreach_epoch(function), which gives DataFrames",
    **{f"pyflink.{module}": instead for module, instead in importlib.import_module(_NEW).NOT_HERE.items()},
}
"""Modules that are not there, and what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Unsupported:
    """Something in a program that Headrace does not have."""

    line: int
    what: str
    instead: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}: {self.instead}"


@dataclass(frozen=True, slots=True)
class Migration:
    """The new text of a program, and what is left to do by hand."""

    text: str
    unsupported: tuple[Unsupported, ...]


def migrate(text: str, file: str = "<program>") -> Migration:
    r"""Return the program for Headrace.

    >>> done = migrate("from pyflink.datastream import StreamExecutionEnvironment\nfrom pyflink.table import Table\n")
    >>> done.text.splitlines()[0]
    'from headrace.pyflink.datastream import StreamExecutionEnvironment'
    >>> [(one.line, one.what) for one in done.unsupported]
    [(2, 'pyflink.table.Table')]
    """
    mark, text = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    try:
        tree = ast.parse(text, file)
    except (SyntaxError, ValueError) as error:  # ValueError: it has null bytes
        raise InvalidArgument("HR-7012", f"{file} is not a Python program: {error}") from None
    lines = _LINE.findall(text)
    # From the end to the beginning, so that positions in front of a change stay what they are.
    for line, column in sorted(_places(tree, lines), reverse=True):
        old = lines[line - 1].encode()
        lines[line - 1] = (old[:column] + _NEW.encode() + old[column + len(_OLD) :]).decode()
    return Migration(mark + "".join(lines), tuple(sorted({*_imports(tree), *_members(tree)})))


def _places(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the line and byte of each `pyflink` that is the root of an import or of an imported name."""
    whole = False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_pyflink(node.module):
            yield _root(lines, node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_pyflink(alias.name):
                    yield alias.lineno, alias.col_offset
                    whole = whole or alias.asname is None
    if whole:
        yield from ((n.lineno, n.col_offset) for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == _OLD)


def _root(lines: list[str], node: ast.ImportFrom) -> tuple[int, int]:
    """Return the line and byte of the module's name: behind `from`, perhaps in a later line."""
    line, column = node.lineno, node.col_offset + len("from")
    while (found := lines[line - 1].encode().find(_OLD.encode(), column)) < 0:
        line, column = line + 1, 0
    return line, found


def _is_pyflink(module: str | None) -> bool:
    return module is not None and (module == _OLD or module.startswith(f"{_OLD}."))


def _imports(tree: ast.Module) -> Iterator[Unsupported]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_pyflink(alias.name):
                    yield from _module(alias.name, alias.lineno)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and _is_pyflink(node.module):
            assert node.module is not None
            problems = list(_module(node.module, node.lineno))
            yield from problems
            for alias in node.names if not problems else ():
                if alias.name != "*" and not _has(node.module, alias.name):
                    yield Unsupported(alias.lineno, f"{node.module}.{alias.name}", _advice(node.module, alias.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME_OF_MODULE.fullmatch(node.value):
            yield Unsupported(
                node.lineno, f"the text '{node.value}'", f"if it names a module, put '{_NEW}' in its place"
            )


def _module(name: str, line: int) -> Iterator[Unsupported]:
    try:
        importlib.import_module(name.replace(_OLD, _NEW, 1))
    except ModuleNotFoundError:
        yield Unsupported(line, name, _advice(name, ""))


def _has(module: str, name: str) -> bool:
    new = module.replace(_OLD, _NEW, 1)
    try:
        if hasattr(importlib.import_module(new), name):
            return True
        importlib.import_module(f"{new}.{name}")
    except (ModuleNotFoundError, InvalidArgument):  # a name that is not supported says so
        return False
    return True


def _advice(module: str, name: str) -> str:
    full = f"{module}.{name}"
    known = next(
        (advice for prefix, advice in _MODULES.items() if full == prefix or full.startswith(f"{prefix}.")), None
    )
    if known is not None:
        return known
    found = next((one.name for one in coverage() if one.problem and one.name.path == name), None)
    return "Headrace does not have it; see docs/pyflink.md" if found is None else reason_for(found)


def _members(tree: ast.Module) -> Iterator[Unsupported]:
    """Methods that only PyFlink has."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        line = node.end_lineno or node.lineno  # of the name, in a call over several lines
        if (found := _only_in_pyflink().get(node.attr)) is not None:
            yield Unsupported(line, f".{node.attr} of {found[0]}", found[1])
        elif node.attr.startswith("_j_"):
            yield Unsupported(line, f".{node.attr}", _MODULES["pyflink.java_gateway"])


@cache
def _only_in_pyflink() -> dict[str, tuple[str, str]]:
    """Names of members that no class of Headrace has: class, and what to do."""
    here: set[str] = set()
    missing: dict[str, tuple[str, str]] = {}
    for finding in coverage():
        name = finding.name.path.rpartition(".")[2]
        if finding.problem is None or finding.problem.startswith(("no parameter", "`")):
            here.add(name)
        elif "." in finding.name.path and not name.startswith("_"):
            missing.setdefault(name, (finding.name.path.rpartition(".")[0], reason_for(finding.name)))
    return {name: found for name, found in missing.items() if name not in here}
