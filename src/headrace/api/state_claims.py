"""The state that an operator takes from a snapshot, by its specification (SPEC R8.5)."""

from __future__ import annotations

from headrace.api.sink import sink_kind
from headrace.api.sources import Source
from headrace.checkpoint.assignment import ASYNC_CALLS, SPLITS, TakenState, prepared_by
from headrace.graph.job_graph import OperatorSpec

__all__ = ["is_keyed", "taken_state"]


def is_keyed(spec: OperatorSpec) -> bool:
    """Return True if an input of the operator is a keyed stream."""
    return any(key is not None for key in spec.keys)


def taken_state(spec: OperatorSpec) -> TakenState:
    """Return the state that an operator takes at a restore, beside what its function declares."""
    own = None
    if spec.kind == "sink_to":
        own = prepared_by(sink_kind(spec.function))
    elif spec.kind == "async":
        own = ASYNC_CALLS
    elif spec.kind == "source" and isinstance(spec.function, Source):
        own = SPLITS
    return TakenState(is_keyed(spec), own)
