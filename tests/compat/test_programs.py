"""Programs as public tutorials write them for PyFlink: only the root of their imports differs.

The docstring of a program says what it shows, what it is modelled on, and what it prints, or with which error it ends. Unless
it says "Not run on PyFlink", the lines are those that PyFlink 2.3.0 prints.
"""

from __future__ import annotations

import ast
import runpy
import sys
import warnings
from pathlib import Path

import pytest

from headrace.testing import local_runtime
from kafka_mock import MockCluster

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def sections(program):
    """The parts of a docstring by their titles, as lines."""
    found = {}
    for part in ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))).split("\n\n"):
        title, _, text = part.partition(":\n")
        found[title] = [line.removeprefix("    ") for line in text.splitlines()]
    return found


@pytest.fixture(scope="module")
def kafka():
    cluster = MockCluster()
    cluster.create("flightdata")
    return cluster


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program(program, capsys, monkeypatch, request):
    if program.stem == "kafka_json":
        monkeypatch.setenv("BOOTSTRAP_SERVERS", request.getfixturevalue("kafka").address)
    monkeypatch.setattr(sys, "argv", [str(program)])
    expected, failure = sections(program), None
    with local_runtime(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            runpy.run_path(str(program), run_name="__main__")
        except Exception as error:
            if "Fails" not in expected:
                raise
            failure = f"{type(error).__name__}: {error}".replace(f"{program}:", f"{program.name}:")
    printed = capsys.readouterr().out.splitlines()
    if "Fails" in expected:
        assert failure == " ".join(expected["Fails"])
    elif "Prints, in any order" in expected:
        assert sorted(printed) == sorted(expected["Prints, in any order"])
    else:
        assert printed == expected["Prints"]


def test_every_program_says_what_it_shows_and_where_it_is_from():
    for program in PROGRAMS:
        text = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
        assert "\n\nModelled on: " in text, program
        assert len({"Prints", "Prints, in any order", "Fails"} & set(sections(program))) == 1, program


def test_only_the_root_of_imports_differs():
    for program in PROGRAMS:
        code = program.read_text(encoding="utf-8").partition('"""\n\n')[2]
        assert code.count("headrace") == code.count("\nfrom headrace.pyflink") + code.startswith("from headrace"), (
            program
        )
