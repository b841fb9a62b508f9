"""The style of the code, held by tests: layering is held by import-linter (`make check`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headrace import config

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"
MODULES = sorted(SOURCE.rglob("*.py"))
MIRROR = SOURCE / "pyflink"  # PyFlink's module paths, not our choice
LONGEST_FUNCTION = 70
LONGEST_CLASS = 450
MOST_ATTRIBUTES = 30
STILL_TOO_LARGE = {"WindowOperator"}
"""Classes that are being cut: whoever has cut one removes its name."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_there_is_something_to_look_at():
    assert len(MODULES) > 40


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_no_type_checking_guards():
    """A guard means that the layering is wrong."""
    guard = re.compile(r"^\s*if (typing\.)?TYPE_CHECKING")
    assert [name_of(path) for path in MODULES if any(map(guard.match, lines_of(path)))] == []


def test_no_modules_that_are_named_after_nothing():
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
    ours = [path for path in MODULES if MIRROR not in path.parents]
    assert [name_of(p) for p in ours if vague & set(p.relative_to(SOURCE).with_suffix("").parts)] == []


def test_no_names_that_say_nothing():
    vague = re.compile(r"^_?(Abstract|Default|Base)[A-Z]|Impl$")
    assert [
        f"{name_of(path)}: {node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and vague.search(node.name) and MIRROR not in path.parents
    ] == []


def test_options_are_named_by_constant():
    """So that a reader of an option is found by its name."""
    keys = {*config.OPTIONS, *config.CURRENT_KEY}
    assert [
        f"{name_of(path)}:{node.lineno} {node.value}"
        for path in MODULES
        if path != SOURCE / "config.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in keys
    ] == []


def test_every_option_has_a_reader():
    names = [name for name, option in vars(config).items() if isinstance(option, config.Option)]
    read = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for path in MODULES
        if path != SOURCE / "config.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    assert [name for name in names if name not in read] == []


def test_a_file_name_of_the_runtime_occurs_once():
    """So that a traceback or a search says which file it means."""
    places: dict[str, list[str]] = {}
    for folder in ("driver", "worker", "checkpoint", "storage", "rest", "control", "job"):
        for path in (SOURCE / folder).rglob("*.py"):
            if path.name != "__init__.py":
                places.setdefault(path.name, []).append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_a_class_name_has_one_meaning():
    """PyFlink's mirror aside, whose thin classes have the names of what they wrap."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and MIRROR not in path.parents:
                places.setdefault(node.name, []).append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_plain_words():
    words = "mend|somebody|whoever|nobody|hears? of|so many|wish|wishes|passed over|in a hurry|who asked|what is told"
    dialect = re.compile(rf"\b({words})\b", re.IGNORECASE)
    found = [
        f"{name_of(path)}:{n} {line.strip()}"
        for path in MODULES
        for n, line in enumerate(lines_of(path), 1)
        if dialect.search(line)
    ]
    assert found == []


def test_public_modules_name_what_is_public():
    """What users import has __all__; in the other packages a leading underscore marks what stays in its module."""
    public = [p for name in ("api", "connectors", "savepoints") for p in sorted((SOURCE / name).rglob("*.py"))]
    unmarked = [
        name_of(path)
        for path in [*public, SOURCE / "job_client.py", SOURCE / "environment.py", SOURCE / "testing" / "__init__.py"]
        if path.name != "__init__.py" or path.parent.name == "testing"
        if not any(isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(tree_of(path)))
    ]
    assert unmarked == []


def test_functions_are_short():
    lengths = {
        f"{name_of(path)}:{f.lineno} {f.name}": (f.end_lineno or 0) - f.lineno + 1
        for path in MODULES
        for f in functions_of(path)
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


@cache
def classes() -> dict[str, ast.ClassDef]:
    """All classes by name, which have one meaning outside the mirror."""
    nodes = [node for path in MODULES if MIRROR not in path.parents for node in ast.walk(tree_of(path))]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def bases_of(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The class and all classes of ours that it inherits from."""
    yield node
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name | ast.Attribute):
            parent = classes().get(name.id if isinstance(name, ast.Name) else name.attr)
            if parent is not None and parent is not node:
                yield from bases_of(parent)


def attributes_of(node: ast.ClassDef) -> set[str]:
    """What the methods assign to `self`, and the fields of a dataclass that can be changed."""
    assigned = {
        target.attr
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    frozen = any("frozen=True" in ast.unparse(made) for made in (*node.decorator_list, *node.keywords))
    fields = {s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
    return assigned if frozen else assigned | fields


def too_large() -> dict[str, str]:
    """The classes above a limit, with their size; inherited attributes count."""
    found = {}
    for name, node in classes().items():
        family = list({id(one): one for one in bases_of(node)}.values())
        lines = (node.end_lineno or 0) - node.lineno
        attributes = len(set().union(*map(attributes_of, family)))
        if lines > LONGEST_CLASS or attributes > MOST_ATTRIBUTES:
            found[name] = f"{lines} lines, {attributes} attributes"
    return found


def test_classes_are_small():
    large = too_large()
    assert {name: size for name, size in large.items() if name not in STILL_TOO_LARGE} == {}
    assert sorted(STILL_TOO_LARGE - large.keys()) == [], "small enough now: remove their names"


def test_every_module_says_what_it_is():
    assert [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))] == []


def test_no_paths_of_a_machine():
    machine = re.compile(r"(/home/|/Users/|/root/|/work/|/mnt/|[A-Z]:\\\\)")
    files = [*MODULES, ROOT / "pyproject.toml", ROOT / "Makefile"]
    for folder in ("examples", "scripts", "benchmarks"):
        files += [
            p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".py", ".sh") and "peers" not in p.parts
        ]
    found = [f"{name_of(path)}: {line.strip()}" for path in files for line in lines_of(path) if machine.search(line)]
    assert found == []


def test_only_one_module_sees_sparks_jvm():
    inside = re.compile(r"\._(jvm|jsc|jdf|jsparkSession)\b|(import|from) py4j\b")
    seen = [name_of(path) for path in MODULES if any(map(inside.search, lines_of(path)))]
    assert seen == ["src/headrace/driver/spark.py"]


def test_the_test_kit_and_the_mirror_are_not_used_inside():
    """They stand on top: a runtime that imports its test kit ships it."""
    inner = [path for path in MODULES if not {SOURCE / "testing", MIRROR} & set(path.parents)]
    used = re.compile(r"\s*(from|import) headrace\.(testing|pyflink)\b")
    assert [name_of(path) for path in inner if any(map(used.match, lines_of(path)))] == []


def test_the_driver_takes_one_name_from_the_worker():
    """The function that Spark ships; an import contract holds that no other module of the worker is imported."""
    imported, strings, inside = [], [], []
    for path in (SOURCE / "driver").rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace.worker"):
                imported += [f"{path.name}: {node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.Constant) and str(node.value).startswith("headrace.worker"):
                strings.append(f"{path.name}: {node.value}")
        for function in functions_of(path):
            inside += [f"{path.name}: {function.name}" for node in ast.walk(function) if _imports_ours(node)]
    assert imported == ["spark_cluster.py: headrace.worker.shell.LevelTask"]
    # The module that Spark's executors start in place of pyspark's own is an option of Spark.
    assert strings == ["session.py: headrace.worker.daemon"]
    assert inside == []


def _imports_ours(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith("headrace")
    return isinstance(node, ast.Import) and any(alias.name.startswith("headrace") for alias in node.names)
