"""Documents agree with the code: paths exist, dependencies are used and explained, the example of CONTRIBUTING.md runs."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {"pyyaml": "yaml", "confluent-kafka": "confluent_kafka"}


def names(requirements: list[str]) -> set[str]:
    found = {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}
    return found - {PROJECT["name"]}


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "README.md"])
def test_paths_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    words = re.findall(r"`([\w/.]+/[\w/.]*)`", text) + re.findall(r"`(\w+\.(?:py|toml|md))`", text)
    paths = {word for word in words if not word.startswith(("/", ".ci"))} - {"local.py", "word_count.py"}
    assert [path for path in sorted(paths) if not (ROOT / path).exists() and not (SOURCE / path).exists()] == []
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_layout_in_the_readme_is_the_tree():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme[readme.index("src/headrace/  ") : readme.index("tests/            unit")]
    named = {name.rstrip("/") for line in block.splitlines()[1:] for name in re.findall(r"\w+/?", line.split("   ")[0])}
    tree = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert tree - {"__init__"} <= named


def test_the_source_in_contributing_runs(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(program, "CONTRIBUTING.md", "exec"), {"__name__": "contributing"})
    assert capsys.readouterr().out == "[3, 2, 1]\n"


def test_every_dependency_is_imported():
    imported = {
        (node.module or "" if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name for name in names(PROJECT["dependencies"]) if IMPORTED_AS.get(name, name) not in imported} == set()


def test_every_dependency_is_explained():
    text = (ROOT / "docs" / "design" / "dependencies.md").read_text(encoding="utf-8")
    rows = {name for row in re.findall(r"^\| ([a-z0-9, -]+)", text, re.MULTILINE) for name in re.split(r"[, ]+", row)}
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    assert {name for group in groups for name in names(group)} - rows == set()
