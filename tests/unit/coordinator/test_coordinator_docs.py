"""The examples in the coordinator's docstrings run."""

import doctest
import importlib

import pytest

MODULES = [
    "checkpoint_plan",
    "checkpoint_store",
    "coordinator",
    "coordinator_events",
    "coordinator_flow",
    "coordinator_full",
    "coordinator_pending",
    "decider",
    "failure_manager",
    "properties",
    "stats",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"headgate.protocol.{name}")
    assert doctest.testmod(module).failed == 0
