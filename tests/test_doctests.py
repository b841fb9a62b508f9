"""The examples in docstrings run: of every module that can be imported without a JVM."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import headrace
from headrace.config import Configuration, set_process_defaults

MODULES = sorted({"headrace", *(m.name for m in pkgutil.walk_packages(headrace.__path__, "headrace."))})
OPTIONAL = {"prometheus_client", "confluent_kafka", "deltalake", "s3fs", "nicegui", "fastapi"}


@pytest.fixture(autouse=True)
def fresh_defaults():
    yield
    set_process_defaults(Configuration())


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in OPTIONAL:
            pytest.skip(f"{error.name} is not installed")
        raise
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    output: list[str] = []
    for test in finder.find(module, name, globs=dict(vars(module))):
        runner.run(test, out=output.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(output)
