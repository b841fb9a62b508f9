"""The tours in docs/design/architecture.md name files that are there, and stay short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/design/architecture.md").read_text(encoding="utf-8")
TOURS = dict(re.findall(r"^### (One [a-z]+)\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL))
FILE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py)`")


def stops(tour):
    """The files that a tour visits."""
    return set(re.findall(r"^\d+\. `([a-z_/]+\.py)`", TOURS[tour], re.MULTILINE))


def test_there_are_tours():
    assert {"One record", "One barrier", "One acknowledgement", "One restore", "One rescale"} <= TOURS.keys()


@pytest.mark.parametrize("name", sorted(set(FILE.findall(TEXT)) - {"oracle.py"}))
def test_every_file_is_there(name):
    assert (ROOT / "src/headrace" / name).is_file()


@pytest.mark.parametrize(("tour", "most"), [("One barrier", 23), ("One acknowledgement", 10)])
def test_tours_are_short(tour, most):
    assert 5 < len(stops(tour)) <= most


def test_the_threads_of_a_worker_are_named():
    folders = [ROOT / "src/headrace" / name for name in ("worker", "connectors")]
    files = [
        ROOT / "src/headrace/control/worker_link.py",
        *(path for folder in folders for path in folder.rglob("*.py")),
    ]
    started = re.compile(r'(?:name|thread_name_prefix)="(headrace-[a-z]+)"')
    names = {name for path in files for name in started.findall(path.read_text(encoding="utf-8"))}
    assert len(names) == 9
    assert names == set(re.findall(r"`(headrace-[a-z]+)`", TEXT))
