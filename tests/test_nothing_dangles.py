"""What is written is used: definitions of the pure core.

A rule that only its own tests call is not kept by anything, and a green test hides that.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"
PATHS = sorted(SOURCE.rglob("*.py"))
CORE = [
    path for path in PATHS if path.relative_to(SOURCE).parts[0] in {"checkpoint", "job", "storage", "records", "graph"}
]
PUBLIC_API = [path for path in PATHS if path == SOURCE / "__init__.py" or "pyflink" in path.parts]

ALLOWED = {
    "Batch.has_arrow": "tests that batches stay columnar",
    "hash32_int": "the rule for one key, which the hashing of columns is compared with",
    "key_group": "the rule for one key, which the hashing of columns is compared with",
}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(tree: ast.AST) -> set[str]:
    """The names that code uses, by itself or behind a dot; imports and texts do not count."""
    nodes = list(ast.walk(tree))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


@functools.cache
def for_users() -> set[str]:
    """The names that the public modules import."""
    nodes = [node for path in PUBLIC_API for node in ast.walk(tree_of(path))]
    return {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


@functools.cache
def names_of(path: Path) -> set[str]:
    return names_in(tree_of(path))


@functools.cache
def modules_with() -> Counter[str]:
    """How many modules use a name."""
    return Counter(name for path in PATHS for name in names_of(path))


def definitions(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Functions, classes and their methods with the names they use; the methods of a class for users go with it."""
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and node.name in for_users()):
            yield node.name, names_in(node)
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            rest = [*node.bases, *(part for part in node.body if part not in methods)]
            yield node.name, set().union(*map(names_in, rest))
            yield from ((f"{node.name}.{method.name}", names_in(method)) for method in methods)


def dangling(path: Path) -> list[str]:
    """What nothing outside the module leads to, directly or through other definitions of the module."""
    left = dict(definitions(path))
    found = [node for node in tree_of(path).body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    used_here = for_users().union(*map(names_in, found))

    def is_used(name: str) -> bool:
        short = name.rpartition(".")[2]
        return short.startswith("__") or short in used_here or modules_with()[short] > (short in names_of(path))

    while reached := [name for name in left if is_used(name)]:
        used_here = used_here.union(*(left.pop(name) for name in reached))
    return [name for name in left if name not in ALLOWED]


def test_the_pure_core_is_used():
    assert {str(path.relative_to(SOURCE)): found for path in CORE if (found := dangling(path))} == {}
