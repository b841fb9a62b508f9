"""What is written is used: definitions of the pure core.

A rule that only its own tests call is not kept by anything, and a green test hides that.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headgate"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
CORE = [
    path for path in TREES if path.relative_to(SOURCE).parts[0] in {"checkpoint", "job", "storage", "records", "graph"}
]
PUBLIC_API = [path for path in TREES if path == SOURCE / "__init__.py" or "pyflink" in path.parts]

ALLOWED = {
    "Batch.has_arrow": "tests that batches stay columnar",
    "hash32_int": "the rule for one key, which the hashing of columns is compared with",
    "key_group": "the rule for one key, which the hashing of columns is compared with",
}


def names_in(tree: ast.AST) -> set[str]:
    """The names that code uses, by itself or behind a dot; imports and texts do not count."""
    nodes = list(ast.walk(tree))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


def imported_by(paths: list[Path]) -> set[str]:
    nodes = [node for path in paths for node in ast.walk(TREES[path])]
    return {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


NAMES = {path: names_in(tree) for path, tree in TREES.items()}
MODULES_WITH = Counter(name for names in NAMES.values() for name in names)
FOR_USERS = imported_by(PUBLIC_API)


def definitions(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Functions, classes and their methods with the names they use; the methods of a class for users go with it."""
    for node in TREES[path].body:
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and node.name in FOR_USERS):
            yield node.name, names_in(node)
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            rest = [*node.bases, *(part for part in node.body if part not in methods)]
            yield node.name, set().union(*map(names_in, rest))
            yield from ((f"{node.name}.{method.name}", names_in(method)) for method in methods)


def dangling(path: Path) -> list[str]:
    """What nothing outside the module leads to, directly or through other definitions of the module."""
    left = dict(definitions(path))
    found = [node for node in TREES[path].body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    used_here = FOR_USERS.union(*map(names_in, found))

    def is_used(name: str) -> bool:
        short = name.rpartition(".")[2]
        return short.startswith("__") or short in used_here or MODULES_WITH[short] > (short in NAMES[path])

    while reached := [name for name in left if is_used(name)]:
        used_here = used_here.union(*(left.pop(name) for name in reached))
    return [name for name in left if name not in ALLOWED]


def test_the_pure_core_is_used():
    assert {str(path.relative_to(SOURCE)): found for path in CORE if (found := dangling(path))} == {}
