"""Which class runs which kind of operator, and which state an operator of a kind takes."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.sink import sink_kind
from headrace.api.sources import Source
from headrace.checkpoint.assignment import ASYNC_CALLS, SPLITS, StateShape, TakenState, prepared_by
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
    made = _KEYED.get(kind, _KINDS[kind]) if _is_keyed(operator.spec) else _KINDS[kind]
    return made(operator, context)


def _is_keyed(spec: OperatorSpec) -> bool:
    return any(key is not None for key in spec.keys)


def taken_state(spec: OperatorSpec) -> TakenState:
    """The state that an operator takes at a restore, beside what its function declares."""
    own = None
    if spec.kind == "sink_to":
        own = prepared_by(sink_kind(spec.function))
    elif spec.kind == "async":
        own = ASYNC_CALLS
    elif spec.kind == "source" and isinstance(spec.function, Source):
        own = SPLITS
    return TakenState(_is_keyed(spec), own)


def own_state(spec: OperatorSpec, shapes: Mapping[str, StateShape]) -> str | None:
    """What an operator keeps of its own accord, if these states of it hold any."""
    held = any(shapes[name].elements for name in _OWN_STATES.get(spec.kind, ()) if name in shapes)
    return taken_state(spec).own if held else None
