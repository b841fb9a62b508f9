"""Which class runs which kind of operator."""

from __future__ import annotations

from headgate.graph.job_graph import ChainedOperator, OperatorKind
from headgate.worker.operators import keyed
from headgate.worker.operators.aggregate import Aggregate, Reduce
from headgate.worker.operators.base import Operator, OperatorContext
from headgate.worker.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess
from headgate.worker.operators.sinks import CollectSink, FunctionSink, PrintSink, SinkOperator
from headgate.worker.operators.sources import SourceOperator
from headgate.worker.operators.stateless import Filter, FlatMap, Map, MapBatches, Process

_KINDS: dict[OperatorKind, type[Operator]] = {
    "source": SourceOperator,
    "map": Map,
    "flat_map": FlatMap,
    "filter": Filter,
    "map_batches": MapBatches,
    "process": Process,
    "co_map": Map,
    "co_flat_map": FlatMap,
    "co_process": Process,
    "sink": FunctionSink,
    "sink_to": SinkOperator,
    "print": PrintSink,
    "collect": CollectSink,
    "reduce": Reduce,
    "aggregate": Aggregate,
    "keyed_process": keyed.KeyedProcessOperator,
    "keyed_co_process": keyed.KeyedProcessOperator,
    "broadcast_process": BroadcastProcess,
}
_KEYED: dict[OperatorKind, type[Operator]] = {
    "map": keyed.KeyedMapOperator,
    "flat_map": keyed.KeyedFlatMapOperator,
    "filter": keyed.KeyedFilterOperator,
    "co_map": keyed.KeyedMapOperator,
    "co_flat_map": keyed.KeyedFlatMapOperator,
    "broadcast_process": KeyedBroadcastProcess,
}


def make_operator(operator: ChainedOperator, context: OperatorContext) -> Operator:
    """The operator object for one subtask."""
    kind = operator.spec.kind
    keyed = any(key is not None for key in operator.spec.keys)
    made = _KEYED.get(kind, _KINDS[kind]) if keyed else _KINDS[kind]
    return made(operator, context)
