"""Documents agree with the code: paths exist, dependencies are used and explained, the example of CONTRIBUTING.md runs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {"pyyaml": "yaml", "confluent-kafka": "confluent_kafka", "pyspark-data-sources": "pyspark_datasources"}


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


FORMER = re.compile(r"grpc|protobuf", re.IGNORECASE)
"""Packages that Headrace stood on once: pages that say how it is now do not name them, those that say what was weighed do."""
HISTORY = {"docs/design/dependencies.md", "docs/design/performance.md"}


def documents():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages}


def test_no_document_names_a_former_dependency():
    now = {name: text for name, text in documents().items() if name not in HISTORY and "/decisions/" not in name}
    assert [name for name, text in now.items() if FORMER.search(text)] == []


def test_documents_import_what_the_project_depends_on():
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    known = {IMPORTED_AS.get(name, name) for group in groups for name in names(group)}
    known |= sys.stdlib_module_names | {"headrace", "pyspark_headrace", "pyflink"}
    found = {
        (name, module)
        for name, text in documents().items()
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        for module in re.findall(r"^\s*(?:from|import) (\w+)", block, re.MULTILINE)
    }
    assert {
        (name, module) for name, module in found if module.replace("_", "-") not in known and module not in known
    } == set()


def test_the_works_of_the_benchmarks_are_explained():
    works = re.findall(
        r'^    "(\w+)": [a-z]\w*,$', (ROOT / "benchmarks/works.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    page = documents()["docs/design/performance.md"]
    assert set(re.findall(r"^\| (\w+) \| [a-zA-Z]", page[: page.index("## The bars")], re.MULTILINE)) - {"work"} == set(
        works
    )


def test_extras_that_documents_name_are_there():
    extras = {extra for text in documents().values() for extra in re.findall(r"\bextra `(\w+)`|'\.\[(\w+)\]'", text)}
    assert {one for pair in extras for one in pair if one} <= PROJECT["optional-dependencies"].keys()


def test_every_dependency_is_explained():
    text = (ROOT / "docs" / "design" / "dependencies.md").read_text(encoding="utf-8")
    rows = {name for row in re.findall(r"^\| ([a-z0-9, -]+)", text, re.MULTILINE) for name in re.split(r"[, ]+", row)}
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    assert {name for group in groups for name in names(group)} - rows == set()
