"""Which subtask restores which part of a snapshot, at the same or another parallelism (SPEC R3.3-R4.5, R6.7).

Arithmetic over counts and ranges: no bytes, no files, no clock. The driver calls it with the shapes in a checkpoint's
metadata, a worker with the handles of its vertex; the result names what each new subtask has to read.

    keyed state      assign_keyed           old handles cut to the new subtask's key groups
    operator state   redistribute           split evenly, everything to everyone, or one copy each
    in-flight data   assign_inflight        old channels by the kind of the edge
    before all that  unclaimed_state, restored_max_parallelism, check_finished_graph, check_inflight_chain
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import msgspec

from headrace.errors import IllegalState, InvalidArgument
from headrace.records.key_groups import KeyGroupRange, default_max_parallelism, key_group_range, owner

# ---- operator state ------------------------------------------------------------------------------------------------


class Mode(Enum):
    """The redistribution of an operator state over the subtasks of the next run."""

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"

    def __str__(self) -> str:
        return "broadcast map" if self is Mode.BROADCAST else f"{self.value} list"


class StateShape(msgspec.Struct, frozen=True):
    """The mode and the number of elements of one operator state of one old subtask."""

    mode: Mode
    elements: int


Shapes: TypeAlias = Mapping[str, StateShape]
"""The operator states of one old subtask by name."""


class ElementRange(msgspec.Struct, frozen=True):
    """Elements `start` to `stop` (exclusive) of a state, in the snapshot of the old subtask `subtask`.

    `carried`: whether the new subtask must write these elements into its next snapshot when the program does not use
    the state. Each element of a union state is carried by one subtask only: otherwise a state that no function
    registers any more would be multiplied by the parallelism with every restore.
    """

    name: str
    subtask: int
    start: int
    stop: int
    carried: bool = True


def redistribute(old: Sequence[Shapes | None], parallelism: int) -> list[list[ElementRange]]:
    """The parts of operator state that each new subtask restores (SPEC R4.2-R4.4); one entry per new subtask.

    `old` has one entry per old subtask, None where it reported nothing (it had finished, or has no state). The parts
    of a subtask come by name, then in the order of the old elements. Raw operator state is redistributed by a call of
    its own, as one split state whose elements are the byte streams (SPEC R1.11).

    >>> one = {"words": StateShape(Mode.SPLIT, 2)}
    >>> for parts in redistribute([one], 2):
    ...     print([(part.start, part.stop) for part in parts])
    [(0, 1)]
    [(1, 2)]
    """
    _check_parallelism(len(old), parallelism)
    reporters = _reporters(old)
    result: list[list[ElementRange]] = [[] for _ in range(parallelism)]
    first = 0
    for name in sorted(reporters):
        mode, counts = reporters[name]
        if mode is Mode.UNION:
            _union(name, counts, len(old), result)
        elif mode is Mode.BROADCAST:
            _broadcast(name, counts, result)
        elif len(old) == parallelism:
            for subtask, elements in counts.items():
                result[subtask].append(ElementRange(name, subtask, 0, elements))
        else:
            first = _split(name, counts, first, result)
    return result


def _reporters(old: Sequence[Shapes | None]) -> dict[str, tuple[Mode, dict[int, int]]]:
    """By state name: the mode, and the number of elements of each old subtask that reported the state, in order."""
    found: dict[str, tuple[Mode, dict[int, int]]] = {}
    for subtask, shapes in enumerate(old):
        for name, shape in (shapes or {}).items():
            mode, counts = found.setdefault(name, (shape.mode, {}))
            if mode is not shape.mode:
                raise IllegalState(
                    "HR-2007",
                    f"Incompatible state assignment modes: operator state '{name}' was stored as {mode} by subtask "
                    f"{next(iter(counts))} and as {shape.mode} by subtask {subtask}; every subtask must register a "
                    "name in one mode, so this snapshot cannot be restored: take an older one",
                )
            counts[subtask] = shape.elements
    return found


def _split(name: str, counts: Mapping[int, int], first: int, result: list[list[ElementRange]]) -> int:
    """Assign the elements in contiguous runs, beginning at subtask `first`; returns where the next name begins."""
    base, extra = divmod(sum(counts.values()), len(result))
    runs = iter(counts.items())
    source, at, left = -1, 0, 0
    for i in range(len(result)):
        target = (first + i) % len(result)
        wanted = base + (i < extra)
        while wanted:
            while not left:
                source, left = next(runs)
                at = 0
            taken = min(wanted, left)
            result[target].append(ElementRange(name, source, at, at + taken))
            at, left, wanted = at + taken, left - taken, wanted - taken
    # The first subtask without an extra element begins the next name, so the totals over all names stay even too.
    return (first + extra) % len(result)


def _union(name: str, counts: Mapping[int, int], old_parallelism: int, result: list[list[ElementRange]]) -> None:
    for target, parts in enumerate(result):
        for source, elements in counts.items():
            # Monotone in `source`: elements that are carried on keep their order in the next union.
            carried = source * len(result) // old_parallelism == target
            parts.append(ElementRange(name, source, 0, elements, carried))


def _broadcast(name: str, counts: Mapping[int, int], result: list[list[ElementRange]]) -> None:
    copies = list(counts)
    for target, parts in enumerate(result):
        # If every old subtask reported and the parallelism is unchanged, this is the subtask's own copy. If only some
        # reported (the others had finished), no subtask keeps its own: the rule is the same for all (SPEC R4.4).
        source = copies[target % len(copies)]
        parts.append(ElementRange(name, source, 0, counts[source]))


def _check_parallelism(old: int, new: int) -> None:
    if old < 1 or new < 1:
        raise InvalidArgument(
            "HR-9001",
            f"cannot redistribute state of {old} old to {new} new subtasks: both must be at least 1; "
            "pass one entry per old subtask, None for those that reported nothing",
        )


# ---- keyed state ---------------------------------------------------------------------------------------------------


class KeyedPart(msgspec.Struct, frozen=True):
    """The key groups to read from handle number `handle` of the old subtask `subtask`."""

    subtask: int
    handle: int
    key_groups: KeyGroupRange


def assign_keyed(
    old: Sequence[Sequence[KeyGroupRange] | None], max_parallelism: int, parallelism: int
) -> list[list[KeyedPart]]:
    """The old keyed handles that each new subtask needs, cut to its key groups (SPEC R3.4); one entry per new subtask.

    `old` has, per old subtask, the key-group range of each handle it left; None if it left none. With unchanged
    parallelism every subtask gets its own handles back, uncut.

    >>> assign_keyed([[KeyGroupRange(0, 9)]], 10, 2)[1]
    [KeyedPart(subtask=0, handle=0, key_groups=KeyGroupRange(start=5, end=9))]
    """
    _check_parallelism(len(old), parallelism)
    handles = [
        KeyedPart(subtask, handle, key_groups)
        for subtask, ranges in enumerate(old)
        for handle, key_groups in enumerate(ranges or ())
    ]
    if len(old) == parallelism:
        return [[part for part in handles if part.subtask == target] for target in range(parallelism)]
    result = []
    for target in range(parallelism):
        mine = key_group_range(target, max_parallelism, parallelism)
        cut = [KeyedPart(part.subtask, part.handle, part.key_groups.intersect(mine)) for part in handles]
        result.append([part for part in cut if len(part.key_groups)])
    return result


class SavedOperator(msgspec.Struct, frozen=True):
    """An operator that has state in a checkpoint."""

    name: str
    max_parallelism: int
    keyed: bool


def require_same_max_parallelism(where: str, stored: int, configured: int) -> None:
    """Raise IllegalState if state was stored with another number of key groups than the job has (SPEC R3.3)."""
    if stored != configured:
        raise IllegalState(
            "HR-2105",
            f"{where}: max parallelism mismatch: the state was stored with {stored}, the program sets {configured}; the "
            f"number of key groups is fixed for the life of the state, so set {stored} or leave it unset",
        )


def restored_max_parallelism(
    vertex: str, saved: Sequence[SavedOperator], parallelism: int, configured: int | None
) -> int:
    """The max parallelism a restored vertex runs with, or IllegalState if it cannot (SPEC R3.3).

    `saved` are the operators chained in the vertex that have stored state, `configured` is what the user set (None: the
    default may give way to the stored one).

    >>> restored_max_parallelism("count", [SavedOperator("count", 64, keyed=True)], 4, None)
    64
    """
    keyed = [operator for operator in saved if operator.keyed]
    for operator in keyed[1:]:
        if operator.max_parallelism != keyed[0].max_parallelism:
            raise IllegalState(
                "HR-2105",
                f"vertex '{vertex}': max parallelism mismatch: the chained operators '{keyed[0].name}' and "
                f"'{operator.name}' have keyed state stored with max parallelism {keyed[0].max_parallelism} and "
                f"{operator.max_parallelism}; their keys belong to different key groups, so start a new chain at "
                f"'{operator.name}'",
            )
    for operator in saved:
        if operator.max_parallelism < parallelism:
            raise IllegalState(
                "HR-2105",
                f"vertex '{vertex}': the state of '{operator.name}' was stored with max parallelism "
                f"{operator.max_parallelism}, which is lower than the parallelism {parallelism} it is restored with; "
                f"lower the parallelism to {operator.max_parallelism} or less",
            )
        if configured is not None:
            require_same_max_parallelism(
                f"vertex '{vertex}', operator '{operator.name}'", operator.max_parallelism, configured
            )
    if configured is not None:
        return configured
    # Only keyed state depends on the number, so a keyed operator's value goes before that of one without.
    return next((operator.max_parallelism for operator in [*keyed, *saved]), default_max_parallelism(parallelism))


# ---- state that an operator cannot take ----------------------------------------------------------------------------

SPLITS = "splits"
ASYNC_CALLS = "async calls"
_PREPARED = "prepared by "
_OWN_TEXTS = {SPLITS: "splits of a source", ASYNC_CALLS: "records that wait for asynchronous calls"}


def prepared_by(sink_kind: str) -> str:
    """Return the kind of a sink's operator state."""
    return f"{_PREPARED}{sink_kind}"


class TakenState(msgspec.Struct, frozen=True):
    """The state that an operator takes, or has left.

    `own` says what Headrace keeps in the operator state of its own accord: SPLITS, ASYNC_CALLS, `prepared_by(...)`. None:
    only what the user's function declares.
    """

    keyed: bool = False
    own: str | None = None


def unclaimed_state(left: TakenState, takes: TakenState) -> TakenState | None:
    """The part of the state under a uid that the operator which has the uid now cannot take, if any (SPEC R8.5).

    State that a function declares is never part of it: a function that declares it no more, or not yet, carries it on
    (SPEC R1.10).

    >>> unclaimed_state(TakenState(keyed=True), TakenState())
    TakenState(keyed=True, own=None)
    >>> unclaimed_state(TakenState(own=prepared_by("files")), TakenState(own=prepared_by("files"))) is None
    True
    """
    unclaimed = TakenState(left.keyed and not takes.keyed, None if left.own == takes.own else left.own)
    return None if unclaimed == TakenState() else unclaimed


def describe_state(state: TakenState) -> str:
    """For error messages.

    >>> describe_state(TakenState(keyed=True, own=prepared_by("files")))
    "keyed state and output that a sink of kind 'files' has prepared and may not have committed"
    """
    texts = ["keyed state"] if state.keyed else []
    if state.own is not None and state.own.startswith(_PREPARED):
        kind = state.own.removeprefix(_PREPARED)
        texts.append(f"output that a sink of kind '{kind}' has prepared and may not have committed")
    elif state.own is not None:
        texts.append(_OWN_TEXTS.get(state.own, state.own))
    return " and ".join(texts)


# ---- finished subtasks ---------------------------------------------------------------------------------------------


class FinishedState(Enum):
    """The progress of a vertex when the checkpoint was taken: running, or finished in part or fully."""

    RUNNING = "running"
    PARTLY = "partly finished"
    FULLY = "fully finished"


def finished_state(finished: Sequence[bool]) -> FinishedState:
    """The state of a vertex from its subtasks; a fully finished one is restored as finished and does not run.

    >>> finished_state([True, False])
    <FinishedState.PARTLY: 'partly finished'>
    """
    if finished and all(finished):
        return FinishedState.FULLY
    return FinishedState.PARTLY if any(finished) else FinishedState.RUNNING


def union_states_of_partly_finished(old: Sequence[Shapes | None], finished: Sequence[bool]) -> list[str]:
    """The union states for which a checkpoint must be declined, since some subtasks have finished (SPEC R4.5).

    The elements of a finished subtask are gone. A split list can go on without them; a union that every subtask trusts
    to be complete cannot. An empty list: the checkpoint may be completed.

    >>> union_states_of_partly_finished([{"all": StateShape(Mode.UNION, 1)}, None], [False, True])
    ['all']
    """
    if finished_state(finished) is not FinishedState.PARTLY:
        return []
    return sorted(name for name, (mode, _) in _reporters(old).items() if mode is Mode.UNION)


class Predecessor(msgspec.Struct, frozen=True):
    """A vertex upstream, and whether the edge from it is pointwise (forward, rescale) or all to all."""

    vertex: str
    pointwise: bool


def check_finished_graph(
    finished: Mapping[str, FinishedState], predecessors: Mapping[str, Sequence[Predecessor]]
) -> None:
    """Raise IllegalState if finished vertices have predecessors that would still send to them (SPEC R4.5).

    This happens when a graph was edited after the checkpoint. A vertex that is not in `finished` counts as running.

    >>> check_finished_graph({"source": FinishedState.FULLY}, {"source": []})
    """
    for vertex, upstream in predecessors.items():
        state = finished.get(vertex, FinishedState.RUNNING)
        for before in upstream:
            theirs = finished.get(before.vertex, FinishedState.RUNNING)
            enough = {FinishedState.FULLY, state} if before.pointwise else {FinishedState.FULLY}
            if state is not FinishedState.RUNNING and theirs not in enough:
                edge = "a pointwise" if before.pointwise else "an all-to-all"
                raise IllegalState(
                    "HR-2106",
                    f"vertex '{vertex}' was {state.value} in the checkpoint, but its predecessor '{before.vertex}' "
                    f"over {edge} edge is {theirs.value}: records would be sent to subtasks that do not run any more; "
                    "restore with the graph the checkpoint was taken from, or give "
                    f"'{vertex}' a new uid to run it from the start",
                )


# ---- in-flight data ------------------------------------------------------------------------------------------------


class EdgeMapping(Enum):
    """Which old subtasks' in-flight data a new subtask reads (SPEC R6.7)."""

    RANGE = "range"  # those whose key groups overlap
    ROUND_ROBIN = "round robin"  # i, i + parallelism, ...
    FIRST = "first"  # all go to subtask 0
    FULL = "full"  # all go to every subtask
    UNSUPPORTED = "unsupported"


_BY_PARTITIONING = {
    "hash": EdgeMapping.RANGE,
    "rebalance": EdgeMapping.ROUND_ROBIN,
    "shuffle": EdgeMapping.ROUND_ROBIN,
    "global": EdgeMapping.FIRST,
    "custom": EdgeMapping.FULL,
    "forward": EdgeMapping.UNSUPPORTED,
    "rescale": EdgeMapping.UNSUPPORTED,
    "broadcast": EdgeMapping.UNSUPPORTED,
}


def edge_mapping(partitioning: str) -> EdgeMapping:
    """The mapping of the reading side of an edge, by the kind of its partitioning.

    >>> edge_mapping("rebalance")
    <EdgeMapping.ROUND_ROBIN: 'round robin'>
    """
    try:
        return _BY_PARTITIONING[partitioning]
    except KeyError:
        raise InvalidArgument(
            "HR-9001", f"unknown partitioning '{partitioning}' of an edge: known are {', '.join(_BY_PARTITIONING)}"
        ) from None


def old_subtasks(mapping: EdgeMapping, new_subtask: int, old: int, new: int, max_parallelism: int) -> range:
    """The old subtasks whose in-flight data the new subtask reads, of `old` before and `new` now.

    >>> list(old_subtasks(EdgeMapping.RANGE, 0, old=3, new=2, max_parallelism=128))
    [0, 1]
    """
    _check_parallelism(old, new)
    if old == new:
        return range(new_subtask, new_subtask + 1)
    if mapping is EdgeMapping.RANGE:
        # With the job's own max parallelism: Flink takes 32768 for every job, which misses overlaps of one key group.
        mine = key_group_range(new_subtask, max_parallelism, new)
        return range(owner(mine.start, max_parallelism, old), owner(mine.end, max_parallelism, old) + 1)
    if mapping is EdgeMapping.ROUND_ROBIN:
        return range(new_subtask, old, new)
    if mapping is EdgeMapping.FIRST:
        return range(old if new_subtask == 0 else 0)
    if mapping is EdgeMapping.FULL:
        return range(old)
    raise IllegalState(
        "HR-2106",
        f"in-flight data of a forward, rescale or broadcast edge cannot be moved from {old} to {new} subtasks; restore "
        f"with parallelism {old}, or from a savepoint, which has no in-flight data; did the partitioning of the edge "
        "change since the checkpoint?",
    )


class InflightPart(msgspec.Struct, frozen=True):
    """All in-flight data that the old subtask `subtask` stored for an edge.

    Each channel of it is a virtual channel of the new subtask, named by (old subtask, old channel). If `filtered`,
    other new subtasks read the same data: keep only the records that the edge's partitioning sends here.
    """

    subtask: int
    filtered: bool


def assign_inflight(mapping: EdgeMapping, old: int, new: int, max_parallelism: int) -> list[list[InflightPart]]:
    """The in-flight data of one edge that each new subtask reads (SPEC R6.7); one entry per new subtask.

    >>> [[part.subtask for part in parts] for parts in assign_inflight(EdgeMapping.RANGE, 2, 3, 128)]
    [[0], [0, 1], [1]]
    """
    plan = [old_subtasks(mapping, subtask, old, new, max_parallelism) for subtask in range(new)]
    readers = Counter(subtask for subtasks in plan for subtask in subtasks)
    return [[InflightPart(subtask, readers[subtask] > 1) for subtask in subtasks] for subtasks in plan]


def check_inflight_chain(vertex: str, head: str, with_inflight: Iterable[str]) -> None:
    """Raise IllegalState if an exchange with stored in-flight data is now inside a chain (SPEC R6.7).

    `with_inflight` are the operators of the vertex that have in-flight data stored in front of them; only the first one
    of the chain, `head`, still has channels to receive it.

    >>> check_inflight_chain("map -> sink", head="map", with_inflight=["map"])
    """
    inside = [operator for operator in with_inflight if operator != head]
    if inside:
        names = ", ".join(f"'{operator}'" for operator in inside)
        raise IllegalState(
            "HR-2106",
            f"vertex '{vertex}': the checkpoint holds in-flight data in front of {names}, which is now chained behind "
            f"'{head}' and has no channel to receive it; keep the exchange (start a new chain there), or restore from "
            "a savepoint, which has no in-flight data",
        )
