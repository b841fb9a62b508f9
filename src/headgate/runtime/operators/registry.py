"""Which class runs which kind of operator."""

from __future__ import annotations

from headgate.errors import GraphError
from headgate.graph import ChainedOperator
from headgate.runtime.operators.base import Operator, OperatorContext
from headgate.runtime.operators.ends import Collect, Print, Sink, SourceOperator
from headgate.runtime.operators.stateless import CoFlatMap, CoMap, CoProcess, Filter, FlatMap, Map, MapBatches, Process

__all__ = ["make_operator"]

_KINDS: dict[str, type[Operator]] = {
    "source": SourceOperator,
    "map": Map,
    "flat_map": FlatMap,
    "filter": Filter,
    "map_batches": MapBatches,
    "process": Process,
    "co_map": CoMap,
    "co_flat_map": CoFlatMap,
    "co_process": CoProcess,
    "sink": Sink,
    "print": Print,
    "collect": Collect,
}


def make_operator(operator: ChainedOperator, context: OperatorContext) -> Operator:
    """The operator object for one subtask."""
    try:
        return _KINDS[operator.spec.kind](operator, context)
    except KeyError:
        raise GraphError(f"no operator of kind '{operator.spec.kind}'") from None
