"""The product was renamed before its first release: its former name stays in a few places only."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
FORMER = b"head" + b"gate"
EXCEPTIONS = {
    ".git-blame-ignore-revs",
    "CHANGELOG.md",
    "benchmarks/works.py",  # one constant: the package of older checkouts that are measured beside this one
    "docs/design/decisions/0001-headrace.md",
}


def test_the_former_name_is_gone():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:  # not a checkout
        return
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    assert [name for name in names if FORMER in name.lower().encode()] == []
    assert {name for name in names if FORMER in (ROOT / name).read_bytes().lower()} <= EXCEPTIONS


def test_old_checkouts_need_the_former_name_once():
    assert (ROOT / "benchmarks" / "works.py").read_bytes().lower().count(FORMER) == 1
