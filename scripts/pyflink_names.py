"""Lists PyFlink's public names of the DataStream API, from an unpacked wheel: names only, no code of PyFlink's.

    pip download --no-deps apache-flink==2.3.0 && unzip -d wheel apache_flink-*.whl
    python scripts/pyflink_names.py wheel > src/headrace/cli/pyflink_names.txt

A line is a class, a member of a class with the names of its parameters (those with a default end with `=`), or a function
of a module. Members of bases that are not public count as those of the class. Constructors that take a Java object, and methods that give one, are left out: programs do not use them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("common", "datastream", "datastream/connectors", "datastream/formats")
OF_JAVA = ("get_java_", "_j_", "j_", "to_j_")


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """The modules with public names, by their path below `pyflink`."""
    for package in PACKAGES:
        for file in sorted((root / "pyflink" / package).glob("*.py")):
            if file.stem != "__init__":
                name = f"{package}/{file.stem}".replace("/", ".")
                yield name, ast.parse(file.read_text(encoding="utf-8"))


def exported(tree: ast.Module) -> set[str] | None:
    """`__all__` of a module, if it has one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return set(ast.literal_eval(node.value))
    return None


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef, bound: bool = True) -> list[str]:
    """Names of parameters, of a method without `self`; `=` marks those with a default."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    defaults = len(names) - len(given.defaults)
    found = [f"{name}=" if place >= defaults else name for place, name in enumerate(names)]
    static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)
    found = found if static or not bound else found[1:]
    found += [f"*{given.vararg.arg}"] if given.vararg else []
    found += [
        one.arg + ("" if default is None else "=")
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return found + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def is_of_java(names: list[str]) -> bool:
    return any(name.startswith(OF_JAVA) for name in names)


def hidden_bases(cls: ast.ClassDef, hidden: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """The bases of a class, and theirs, that its module does not export."""
    for base in cls.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name) and name.id in hidden:
            yield hidden[name.id]
            yield from hidden_bases(hidden[name.id], hidden)


def members(cls: ast.ClassDef, path: str, hidden: dict[str, ast.ClassDef]) -> Iterator[str]:
    """The public members of a class, those of its nested classes too."""
    seen = set()
    for node in (*cls.body, *(node for base in hidden_bases(cls, hidden) for node in base.body)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            public = not node.name.startswith("_") or node.name == "__init__"
            names = parameters(node)
            if not public or node.name in seen or node.name.startswith(OF_JAVA):
                continue
            if node.name == "__init__" and is_of_java(names):
                continue
            seen.add(node.name)
            is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)
            yield f"{path}.{node.name}" + ("" if is_property else f"({', '.join(names)})")
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and not target.id.startswith("_") and target.id not in seen:
                    seen.add(target.id)
                    yield f"{path}.{target.id}"
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield f"{path}.{node.name}"
            yield from members(node, f"{path}.{node.name}", hidden)


def main(root: Path) -> None:
    for module, tree in modules(root):
        public = exported(tree)
        hidden = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.ClassDef) and public is not None and node.name not in public
        }
        for node in tree.body:
            name = getattr(node, "name", "_")
            if name.startswith("_") or (public is not None and name not in public):
                continue
            if isinstance(node, ast.ClassDef):
                print(f"{module}:{name}")
                for member in members(node, name, hidden):
                    print(f"{module}:{member}")
            elif isinstance(node, ast.FunctionDef):
                print(f"{module}:{name}({', '.join(parameters(node, bound=False))})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
