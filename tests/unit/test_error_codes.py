"""Codes of errors: the table, the messages, and every place that raises one."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import headrace
from headrace import config, errors
from headrace.errors import GraphError, HeadraceError, IllegalState, JobFailed, StorageError, UserCodeError
from headrace.errors.codes import AREAS, CODES, as_markdown
from headrace.storage.objects import MissingObject

ROOT = Path(headrace.__file__).parent
DOCUMENT = ROOT.parent.parent / "docs" / "errors.md"


def error_classes() -> dict[str, type[HeadraceError]]:
    for module in pkgutil.walk_packages([str(ROOT)], "headrace."):
        if not module.name.endswith(("__main__", "kernel.compiled")):
            importlib.import_module(module.name)
    found: dict[str, type[HeadraceError]] = {}
    waiting: list[type[HeadraceError]] = [HeadraceError]
    while waiting:
        one = waiting.pop()
        if one.__module__.startswith("headrace."):
            found[one.__name__] = one
        waiting += one.__subclasses__()
    return found


CLASSES = error_classes()


def calls() -> Iterator[tuple[str, type[HeadraceError], ast.Call]]:
    """Every place that makes an error of ours."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func).rpartition(".")[2]) in CLASSES:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {name}", CLASSES[name], node


def code_in(call: ast.Call) -> str | None:
    first = call.args[0] if len(call.args) > 1 else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def takes_over_a_message(call: ast.Call) -> bool:
    """`GraphError(str(error))` keeps the code of an error that is raised again as another class."""
    return len(call.args) == 1 and ast.unparse(call.args[0]) == "str(error)"


def test_every_error_that_is_raised_has_a_code():
    without = [
        where
        for where, kind, call in calls()
        if kind.class_code is None and code_in(call) is None and not takes_over_a_message(call)
    ]
    assert without == [], "give each a code of src/headrace/errors/codes.py as first argument"


def test_codes_that_are_raised_have_a_page_and_are_not_retired():
    raised = [(where, code) for where, _, call in calls() if (code := code_in(call)) and code.startswith("HR")]
    raised += [(name, kind.class_code) for name, kind in CLASSES.items() if kind.class_code]
    assert [(where, code) for where, code in raised if code not in CODES or CODES[code].retired] == []


def test_codes_that_nothing_raises_are_retired():
    raised = {code_in(call) for _, _, call in calls()} | {kind.class_code for kind in CLASSES.values()}
    assert {code for code, page in CODES.items() if not page.retired} - raised == set()


def test_a_code_has_an_area_and_stands_once_in_the_table():
    written = re.findall(r'^ {8}"(HR-.*?)",$', (ROOT / "errors" / "codes.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(written) == sorted(CODES) == written
    assert all(re.fullmatch(r"HR-\d{4}", code) and code[3:5] in AREAS for code in CODES)


@pytest.mark.parametrize("code", CODES)
def test_a_page_is_made_of_whole_sentences(code):
    page = CODES[code]
    assert not page.title.endswith(".")
    assert all(len(text) > 20 and text[0].isupper() and text.endswith(".") for text in (page.cause, page.remedy))


def test_options_that_pages_name_exist():
    text = " ".join(f"{page.cause} {page.remedy}" for page in CODES.values())
    keys = re.findall(r"\b(?:headrace|execution|rest|sink|io|pipeline)\.[a-z][a-z.-]+[a-z]\b", text)
    assert len(keys) > 10
    assert {key for key in keys if key not in config.OPTIONS} == set()


def test_the_document_has_what_the_table_says():
    assert DOCUMENT.read_text(encoding="utf-8") == as_markdown(), "run: headrace explain --all > docs/errors.md"


def test_an_error_begins_with_its_code():
    error = GraphError("HR-1214", "the program is empty")
    assert (str(error), error.code, error.text) == ("[HR-1214] the program is empty", "HR-1214", "the program is empty")


def test_an_error_of_a_class_with_one_meaning_has_the_code_of_its_class():
    assert str(IllegalState("twice")) == "[HR-9001] twice"
    assert str(IllegalState("HR-3009", "the job has ended")) == "[HR-3009] the job has ended"


def test_a_message_that_is_taken_over_keeps_its_code():
    assert str(JobFailed(str(UserCodeError("job.py:1: ValueError")))) == "[HR-5001] job.py:1: ValueError"


def test_a_message_has_the_same_code_once():
    inner = JobFailed("the first error")
    assert str(JobFailed(f"job 'x' failed: {inner}")) == "[HR-6001] job 'x' failed: the first error"


def test_a_message_has_the_codes_of_both_errors():
    inner = UserCodeError("job.py:1: ValueError")
    assert str(JobFailed(f"job 'x' failed: {inner}")) == "[HR-6001] job 'x' failed: [HR-5001] job.py:1: ValueError"


def test_an_error_of_a_class_without_a_code_may_have_none():
    assert (str(HeadraceError("odd")), HeadraceError("odd").code, HeadraceError("odd").text) == ("odd", None, "odd")
    assert HeadraceError().code is None


def test_a_text_in_the_place_of_a_code_is_refused():
    with pytest.raises(TypeError, match="takes a code and a text"):
        GraphError("the program is empty", "add a source")


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize(
    "error",
    [
        GraphError("HR-1214", "empty"),
        StorageError("no answer"),
        MissingObject("gone"),
        IllegalState("HR-3009", "ended"),
    ],
)
def test_a_code_survives_pickling(error, dumps):
    again = pickle.loads(dumps(error))
    assert (type(again), str(again), again.code) == (type(error), str(error), error.code)


def test_an_error_of_storage_keeps_the_number_of_the_system():
    error = StorageError("no space")
    error.errno = 28
    assert str(error) == "[HR-3103] no space"
    assert error.code == "HR-3103"


def test_the_module_of_errors_lists_its_classes():
    listed = {getattr(errors, name) for name in errors.__all__}
    assert {one for one in CLASSES.values() if one.__module__ == "headrace.errors"} - listed == {errors.LocalStateError}
