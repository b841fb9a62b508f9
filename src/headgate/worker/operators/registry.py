"""Which class runs which kind of operator."""

from __future__ import annotations

from headgate.errors import GraphError
from headgate.graph.job_graph import ChainedOperator
from headgate.worker.operators.aggregate import Aggregate, Reduce
from headgate.worker.operators.base import Operator, OperatorContext
from headgate.worker.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess
from headgate.worker.operators.keyed import (
    KeyedCoFlatMap,
    KeyedCoMap,
    KeyedCoProcess,
    KeyedFilter,
    KeyedFlatMap,
    KeyedMap,
    KeyedProcess,
)
from headgate.worker.operators.sinks import CollectSink, FunctionSink, PrintSink, SinkOperator
from headgate.worker.operators.sources import SourceOperator
from headgate.worker.operators.stateless import CoFlatMap, CoMap, CoProcess, Filter, FlatMap, Map, MapBatches, Process

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
    "sink": FunctionSink,
    "sink_to": SinkOperator,
    "print": PrintSink,
    "collect": CollectSink,
    "reduce": Reduce,
    "aggregate": Aggregate,
    "keyed_process": KeyedProcess,
    "keyed_co_process": KeyedCoProcess,
    "broadcast_process": BroadcastProcess,
}
_KEYED: dict[str, type[Operator]] = {
    "map": KeyedMap,
    "flat_map": KeyedFlatMap,
    "filter": KeyedFilter,
    "co_map": KeyedCoMap,
    "co_flat_map": KeyedCoFlatMap,
    "broadcast_process": KeyedBroadcastProcess,
}


def make_operator(operator: ChainedOperator, context: OperatorContext) -> Operator:
    """The operator object for one subtask."""
    kind = operator.spec.kind
    keyed = any(key is not None for key in operator.spec.keys)
    found = (_KEYED.get(kind) if keyed else None) or _KINDS.get(kind)
    if found is None:
        raise GraphError(f"no operator of kind '{kind}'")
    return found(operator, context)
