"""The state that each vertex restores, from the plan of a job and the metadata of a snapshot: pure, without a store.

It stands in `driver`, above the pure packages `checkpoint` and `job`, because it joins three things from above these:
the plan (`graph`), the metadata (`storage.manifest`) and the description that workers get (`control.deployment`). An
import contract holds that it knows no store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from headrace.api.sink import Sink, sink_kind
from headrace.api.state_claims import taken_state
from headrace.checkpoint.assignment import (
    SPLITS,
    FinishedState,
    Predecessor,
    SavedOperator,
    TakenState,
    check_finished_graph,
    describe_state,
    restored_max_parallelism,
    unclaimed_state,
)
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.control.deployment import VertexRestore
from headrace.errors import StateMigrationError
from headrace.graph.job_graph import ChainedOperator, Vertex
from headrace.graph.plan import JobPlan
from headrace.ids import OperatorId, VertexId
from headrace.storage import manifest as mf

_KEYED = {mf.PieceKind.KEYED, mf.PieceKind.CHANNEL}


def claimed_state(plan: JobPlan, manifest: mf.Manifest, *, ignore_unmatched: bool) -> mf.Manifest:
    """Return the manifest without state that no operator of the program takes (SPEC R8.5).

    StateMigrationError if there is such state, unless it may be dropped.
    """
    known = {operator.id: operator for vertex in plan.graph.vertices for operator in vertex.operators}
    lost = [op for op in manifest.operators if op.id not in known and any(s.pieces for s in op.subtasks)]
    refused = {op.id: left for op in manifest.operators if op.id in known and (left := unclaimed_of(op, known[op.id]))}
    if not ignore_unmatched:
        _refuse_lost(manifest.checkpoint_id, lost)
        _refuse_unclaimed(manifest, refused, known)
    operators = tuple(
        _without(op, refused[op.id]) if op.id in refused else op for op in manifest.operators if op.id in known
    )
    return msgspec.structs.replace(manifest, operators=operators)


def unclaimed_of(left: mf.OperatorManifest, operator: ChainedOperator) -> TakenState | None:
    """Return the state of running subtasks that the operator with their uid cannot take now; None if it takes all."""
    state = mf.state_in(piece for subtask in left.subtasks if not subtask.finished for piece in subtask.pieces)
    if left.coordinator is not None and not left.fully_finished:
        state = TakenState(state.keyed, SPLITS)  # those that no reader has yet
    return unclaimed_state(state, taken_state(operator.spec))


def _label(operator: mf.OperatorManifest) -> str:
    return f"'{operator.name}'" + (f" (uid {operator.uid})" if operator.uid else "")


def _refuse_lost(checkpoint_id: int, lost: Sequence[mf.OperatorManifest]) -> None:
    if lost:
        names = ", ".join(map(_label, lost))
        raise StateMigrationError(
            "HR-2103",
            f"checkpoint {checkpoint_id} has state of operators that the program does not have any more: {names}; "
            "give them their uids back, or set execution.state-recovery.ignore-unclaimed-state=true to drop that state",
        )


def _refuse_unclaimed(
    manifest: mf.Manifest, refused: Mapping[OperatorId, TakenState], known: Mapping[OperatorId, ChainedOperator]
) -> None:
    if refused:
        before = {op.id: op for op in manifest.operators}
        found = "; ".join(
            f"{_label(before[id])} has left {describe_state(left)}, and its place has {_taker(known[id])}"
            for id, left in refused.items()
        )
        raise StateMigrationError(
            "HR-2104",
            f"checkpoint {manifest.checkpoint_id} has state that the operator under the same uid cannot take: {found}; give the "
            "uid back to the operator that had it, and the new one another uid, or set "
            "execution.state-recovery.ignore-unclaimed-state=true to drop that state",
        )


def _taker(operator: ChainedOperator) -> str:
    sink = operator.spec.function
    kind = f", a sink of kind '{sink_kind(sink)}' (its output_kind)" if isinstance(sink, Sink) else ""
    return f"'{operator.name}' ({operator.call_site}){kind}"


def _without(operator: mf.OperatorManifest, dropped: TakenState) -> mf.OperatorManifest:
    kinds = {mf.PieceKind.KEYED} if dropped.keyed else set()
    kinds |= {mf.PieceKind.OPERATOR} if dropped.own is not None else set()
    subtasks = tuple(
        msgspec.structs.replace(subtask, pieces=tuple(piece for piece in subtask.pieces if piece.kind not in kinds))
        for subtask in operator.subtasks
    )
    return msgspec.structs.replace(operator, subtasks=subtasks)


def restore_plan(
    plan: JobPlan, manifest: mf.Manifest, *, claim: bool, commits: Commits = NO_COMMITS
) -> dict[VertexId, VertexRestore]:
    """Return the state that each vertex restores; `manifest` is a `claimed_state`."""
    by_id = {operator.id: operator for operator in manifest.operators}
    restore: dict[VertexId, VertexRestore] = {}
    finished: dict[VertexId, FinishedState] = {}
    for vertex in plan.graph.vertices:
        found = {op.id: by_id[op.id] for op in vertex.operators if op.id in by_id}
        if not found:
            continue
        saved = [op for op in saved_operators(found.values()).values() if op.keyed or vertex.max_parallelism_set]
        restored_max_parallelism(vertex.name, saved, vertex.parallelism, vertex.max_parallelism)
        dropped = plan.settings.without_channel_state == manifest.checkpoint_id
        operators = {str(op_id): _left(op, without_channel_state=dropped) for op_id, op in found.items()}
        finished[vertex.id] = _finished_before(vertex, found)
        restore[vertex.id] = VertexRestore(
            manifest.checkpoint_id,
            vertex.parallelism,
            vertex.max_parallelism,
            operators,
            claim,
            finished[vertex.id] is FinishedState.FULLY,
            commits,
        )
    often = Counter(vertex.name for vertex in plan.graph.vertices)
    labels = {v.id: v.name if often[v.name] == 1 else f"{v.name} ({v.id})" for v in plan.graph.vertices}
    check_finished_graph(
        {labels[vertex]: state for vertex, state in finished.items()},
        {
            labels[vertex.id]: [
                Predecessor(labels[edge.source], edge.partitioning.pointwise) for edge in plan.graph.inputs(vertex.id)
            ]
            for vertex in plan.graph.vertices
        },
    )
    return restore


def saved_operators(operators: Collection[mf.OperatorManifest]) -> dict[OperatorId, SavedOperator]:
    """Return the operators that left state; keyed are those whose state or in-flight data goes by key groups."""
    kinds = {op.id: {piece.kind for subtask in op.subtasks for piece in subtask.pieces} for op in operators}
    return {
        op.id: SavedOperator(op.name, op.max_parallelism, not kinds[op.id].isdisjoint(_KEYED))
        for op in operators
        if kinds[op.id]
    }


def _finished_before(vertex: Vertex, found: Mapping[OperatorId, mf.OperatorManifest]) -> FinishedState:
    """Return the progress of a vertex at the checkpoint; an operator that is new in it has not finished."""
    if len(found) == len(vertex.operators) and all(op.fully_finished for op in found.values()):
        return FinishedState.FULLY
    some = any(subtask.finished for op in found.values() for subtask in op.subtasks)
    return FinishedState.PARTLY if some else FinishedState.RUNNING


def _left(operator: mf.OperatorManifest, *, without_channel_state: bool) -> list[tuple[mf.StatePiece, ...] | None]:
    left: list[tuple[mf.StatePiece, ...] | None] = [None] * operator.parallelism
    for subtask in operator.subtasks:
        if not subtask.finished:
            left[subtask.index] = tuple(
                piece for piece in subtask.pieces if not (without_channel_state and piece.kind is mf.PieceKind.CHANNEL)
            )
    return left
