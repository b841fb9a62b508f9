"""Each kind of operator has a specification and a class that runs it."""

from __future__ import annotations

import pickle
from typing import get_args

import pytest

from headrace.api import specs
from headrace.graph.job_graph import ChainedOperator, KeySpec, OperatorKind, OperatorSpec
from headrace.ids import OperatorId
from headrace.records.types import PICKLED
from headrace.worker.operators.keyed import KeyedMapOperator
from headrace.worker.operators.registry import operator_class
from headrace.worker.operators.stateless import Map

KINDS = [
    found
    for found in vars(specs).values()
    if isinstance(found, type) and issubclass(found, OperatorSpec) and hasattr(found, "kind")
]


def made(kind: type[OperatorSpec], **values: object) -> OperatorSpec:
    spec = kind.__new__(kind)
    for name, value in {"function": len, "keys": (), **values}.items():
        object.__setattr__(spec, name, value)
    return spec


def test_every_kind_has_one_specification():
    assert sorted(kind.kind for kind in KINDS) == sorted(get_args(OperatorKind))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_specification_has_an_operator_with_and_without_a_key(kind):
    assert operator_class(made(kind)) is not None
    assert operator_class(made(kind, keys=(KeySpec(),))) is not None


def test_a_keyed_map_may_use_state():
    assert operator_class(specs.MapSpec(function=len)) is Map
    assert operator_class(specs.MapSpec(function=len, keys=(KeySpec(),))) is KeyedMapOperator


def test_a_specification_reaches_the_workers_as_it_is():
    spec = specs.AggregateSpec(how=specs.Aggregation.MIN_BY, position=1, each_record=True, keys=(KeySpec((0,)),))
    assert pickle.loads(pickle.dumps(spec)) == spec
    mapped = specs.MapSpec(function=len)
    assert pickle.loads(pickle.dumps(mapped)) == mapped
    assert mapped != specs.FilterSpec(function=len)


def test_a_specification_cannot_be_changed():
    with pytest.raises(AttributeError):
        specs.MapSpec(function=len).function = max


def test_an_operator_gives_its_specification_of_the_kind_that_is_asked_for():
    spec = specs.CollectSpec(channel="results")
    operator = ChainedOperator(OperatorId("a" * 32), "Collect", spec, PICKLED, "job.py:1", None, "")
    assert specs.CollectSpec.of(operator).channel == "results"
    with pytest.raises(AssertionError, match="'Collect' has a CollectSpec, not a PrintSpec"):
        specs.PrintSpec.of(operator)
