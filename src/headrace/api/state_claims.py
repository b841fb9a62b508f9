"""The state that an operator takes from a snapshot, by its specification (SPEC R8.5)."""

from __future__ import annotations

from headrace.api.sink import sink_kind
from headrace.api.sources import Source
from headrace.api.specs import AsyncSpec, SinkSpec, SourceSpec
from headrace.checkpoint.assignment import ASYNC_CALLS, SPLITS, TakenState, prepared_by
from headrace.graph.job_graph import OperatorSpec

__all__ = ["taken_state"]


def taken_state(spec: OperatorSpec) -> TakenState:
    """Return the state that an operator takes at a restore, beside what its function declares."""
    own = None
    if isinstance(spec, SinkSpec):
        own = prepared_by(sink_kind(spec.function))
    elif isinstance(spec, AsyncSpec):
        own = ASYNC_CALLS
    elif isinstance(spec, SourceSpec) and isinstance(spec.function, Source):
        own = SPLITS
    return TakenState(spec.keyed, own)
