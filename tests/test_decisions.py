"""Decision records have the parts that `docs/design/decisions/README.md` promises, and are listed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "design" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
PARTS = ["Context", "Decision", "Alternatives", "Consequences", "Taken back if"]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_complete(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem[:4]} ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS
    alternatives = text.split("## Alternatives\n")[1].split("\n## ")[0]
    assert len(re.findall(r"^- \*", alternatives, re.MULTILINE)) >= 2


def test_all_records_are_listed():
    listed = re.findall(r"^\| \[\d{4}\]\((.*)\) \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [path.name for path in RECORDS]


def test_numbers_are_unique():
    assert [path.stem[:4] for path in RECORDS] == [f"{number:04d}" for number in range(1, len(RECORDS) + 1)]
