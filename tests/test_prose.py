"""The grammar of docstrings: an imperative sentence, or a noun phrase with a subject."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"
FRAGMENT = re.compile(r"(What|Whether|How|Who|Where|When|Returns? whether|Tells? (what|whether|how|who|where))\b")


def docstrings(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text


def test_no_docstring_is_a_fragment():
    """A fragment such as "Whether it is open" leaves out who asks; "Return True if the gate is open" does not."""
    assert [
        f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name, text in docstrings(path)
        if FRAGMENT.match(text)
    ] == []
