"""The class that runs each kind of operator, and the states that operators of a kind keep of their own."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.state_claims import is_keyed, taken_state
from headrace.checkpoint.assignment import StateShape
from headrace.graph.job_graph import ChainedOperator, OperatorKind, OperatorSpec
from headrace.worker.operators import async_wait, keyed, sinks, sources
from headrace.worker.operators.aggregate import Aggregate, Reduce
from headrace.worker.operators.async_wait import AsyncWait
from headrace.worker.operators.base import Operator, OperatorContext
from headrace.worker.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess
from headrace.worker.operators.joins import IntervalJoinOperator
from headrace.worker.operators.keyed_batches import KeyedBatches
from headrace.worker.operators.sinks import CollectSink, FunctionSink, PrintSink, SinkOperator
from headrace.worker.operators.sources import SourceOperator
from headrace.worker.operators.stateless import Filter, FlatMap, Map, MapBatches, Process
from headrace.worker.operators.time import TimestampsAndWatermarks
from headrace.worker.operators.window_columns import WindowColumns
from headrace.worker.operators.windows import WindowOperator

_KINDS: dict[OperatorKind, type[Operator]] = {
    "source": SourceOperator,
    "map": Map,
    "flat_map": FlatMap,
    "filter": Filter,
    "map_batches": MapBatches,
    "process": Process,
    "async": AsyncWait,
    "timestamps": TimestampsAndWatermarks,
    "window": WindowOperator,
    "window_columns": WindowColumns,
    "interval_join": IntervalJoinOperator,
    "co_map": Map,
    "co_flat_map": FlatMap,
    "co_process": Process,
    "sink": FunctionSink,
    "sink_to": SinkOperator,
    "print": PrintSink,
    "collect": CollectSink,
    "reduce": Reduce,
    "aggregate": Aggregate,
    "keyed_batches": KeyedBatches,
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
_OWN_STATES: dict[OperatorKind, tuple[str, ...]] = {
    "source": sources.OWN_STATES,
    "async": async_wait.OWN_STATES,
    "sink_to": sinks.OWN_STATES,
}


def make_operator(operator: ChainedOperator, context: OperatorContext) -> Operator:
    """The operator object for one subtask."""
    kind = operator.spec.kind
    made = _KEYED.get(kind, _KINDS[kind]) if is_keyed(operator.spec) else _KINDS[kind]
    return made(operator, context)


def own_state(spec: OperatorSpec, shapes: Mapping[str, StateShape]) -> str | None:
    """What an operator keeps of its own accord, if these states of it hold any."""
    held = any(shapes[name].elements for name in _OWN_STATES.get(spec.kind, ()) if name in shapes)
    return taken_state(spec).own if held else None
