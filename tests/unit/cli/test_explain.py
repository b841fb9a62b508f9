"""`headrace explain`: the page of an error code."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors.codes import CODES, as_markdown


def explain(*arguments: str):
    return CliRunner().invoke(app, ["explain", *arguments])


@pytest.mark.parametrize("given", ["HR-1203", "hr-1203", "1203", "[HR-1203]"])
def test_a_page_has_title_cause_and_remedy(given):
    shown = " ".join(explain(given).output.split())
    page = CODES["HR-1203"]
    assert shown.startswith("HR-1203 Programs The call needs a typed stream Why ")
    assert page.cause in shown
    assert f"What to do {page.remedy}" in shown


def test_a_page_as_json():
    found = json.loads(explain("HR-6003", "--json").output)
    assert (found["code"], found["area"], found["title"]) == (
        "HR-6003",
        "Running jobs",
        "A worker or its connection was lost",
    )


def test_all_pages():
    assert explain("--all").output == as_markdown()
    assert [page["code"] for page in json.loads(explain("--all", "--json").output)] == list(CODES)


@pytest.mark.parametrize("given", ["HR-1299", "1299"])
def test_an_unknown_code_is_wrong_usage_and_names_the_codes_of_its_area(given):
    found = explain(given)
    assert found.exit_code == 2
    words = " ".join(found.output.replace("│", " ").split())
    assert f"there is no error code '{given}'; those of 'Programs' are HR-1201 to HR-1227" in words


def test_a_code_of_an_unknown_area():
    found = explain("banana")
    assert found.exit_code == 2
    assert "there is no error code 'banana'; `headrace explain --all`" in " ".join(
        found.output.replace("│", " ").split()
    )


@pytest.mark.parametrize("arguments", [[], ["HR-1203", "--all"]])
def test_one_code_or_all_must_be_asked_for(arguments):
    found = explain(*arguments)
    assert found.exit_code == 2
    assert "give one code, such as HR-1203, or --all" in found.output
