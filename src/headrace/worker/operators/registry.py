"""The class that runs each kind of operator, and the states that operators of a kind keep of their own."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api import specs
from headrace.api.state_claims import taken_state
from headrace.checkpoint.assignment import StateShape
from headrace.graph.job_graph import ChainedOperator, OperatorSpec
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

_OPERATORS: dict[type[OperatorSpec], type[Operator]] = {
    specs.SourceSpec: SourceOperator,
    specs.MapSpec: Map,
    specs.FlatMapSpec: FlatMap,
    specs.FilterSpec: Filter,
    specs.MapBatchesSpec: MapBatches,
    specs.ProcessSpec: Process,
    specs.AsyncSpec: AsyncWait,
    specs.TimestampsSpec: TimestampsAndWatermarks,
    specs.WindowSpec: WindowOperator,
    specs.WindowColumnsSpec: WindowColumns,
    specs.IntervalJoinSpec: IntervalJoinOperator,
    specs.CoMapSpec: Map,
    specs.CoFlatMapSpec: FlatMap,
    specs.CoProcessSpec: Process,
    specs.FunctionSinkSpec: FunctionSink,
    specs.SinkSpec: SinkOperator,
    specs.PrintSpec: PrintSink,
    specs.CollectSpec: CollectSink,
    specs.ReduceSpec: Reduce,
    specs.AggregateSpec: Aggregate,
    specs.KeyedBatchesSpec: KeyedBatches,
    specs.KeyedProcessSpec: keyed.KeyedProcessOperator,
    specs.KeyedCoProcessSpec: keyed.KeyedProcessOperator,
    specs.BroadcastProcessSpec: BroadcastProcess,
}
_KEYED_OPERATORS: dict[type[OperatorSpec], type[Operator]] = _OPERATORS | {
    specs.MapSpec: keyed.KeyedMapOperator,
    specs.FlatMapSpec: keyed.KeyedFlatMapOperator,
    specs.FilterSpec: keyed.KeyedFilterOperator,
    specs.CoMapSpec: keyed.KeyedMapOperator,
    specs.CoFlatMapSpec: keyed.KeyedFlatMapOperator,
    specs.BroadcastProcessSpec: KeyedBroadcastProcess,
}
_OWN_STATES: dict[type[OperatorSpec], tuple[str, ...]] = {
    specs.SourceSpec: sources.OWN_STATES,
    specs.AsyncSpec: async_wait.OWN_STATES,
    specs.SinkSpec: sinks.OWN_STATES,
}


def operator_class(spec: OperatorSpec) -> type[Operator]:
    """The class that runs operators with such a specification."""
    return (_KEYED_OPERATORS if spec.keyed else _OPERATORS)[type(spec)]


def make_operator(operator: ChainedOperator, context: OperatorContext) -> Operator:
    """The operator object for one subtask."""
    return operator_class(operator.spec)(operator, context)


def own_state(spec: OperatorSpec, shapes: Mapping[str, StateShape]) -> str | None:
    """Return the state that the operator keeps besides its function's, if these states hold any."""
    held = any(shapes[name].elements for name in _OWN_STATES.get(type(spec), ()) if name in shapes)
    return taken_state(spec).own if held else None
