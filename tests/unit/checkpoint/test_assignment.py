"""Redistribution of state at restore: the vectors of SPEC R3.3-R4.5 and R6.7, and what must hold for any of them."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.checkpoint.assignment import (
    ASYNC_CALLS,
    SPLITS,
    EdgeMapping,
    ElementRange,
    FinishedState,
    KeyedPart,
    Mode,
    Predecessor,
    SavedOperator,
    StateShape,
    TakenState,
    assign_inflight,
    assign_keyed,
    check_finished_graph,
    check_inflight_chain,
    describe_state,
    edge_mapping,
    finished_state,
    old_subtasks,
    prepared_by,
    redistribute,
    restored_max_parallelism,
    unclaimed_state,
    union_states_of_partly_finished,
)
from headrace.errors import IllegalState, InvalidArgument
from headrace.records.key_groups import KeyGroupRange, default_max_parallelism, key_group_range, owner


def shapes(**states):
    """shapes(a=("split", 2)) -> {"a": StateShape(Mode.SPLIT, 2)}"""
    return {name: StateShape(Mode(mode), elements) for name, (mode, elements) in states.items()}


def split(*counts, name="a"):
    """One entry per old subtask with that many elements; None stays None."""
    return [None if count is None else {name: StateShape(Mode.SPLIT, count)} for count in counts]


def pick(parts, values, name="a"):
    """The values a subtask gets of one state; `values` has one list per old subtask."""
    return [value for part in parts if part.name == name for value in values[part.subtask][part.start : part.stop]]


def runs(parts, name):
    return [(part.subtask, part.start, part.stop) for part in parts if part.name == name]


# ---- even split ----------------------------------------------------------------------------------------------------


def test_split_of_the_seed():
    # SPEC R4.2: [e1, e2], p 1 -> 2
    values = [["e1", "e2"]]
    assert [pick(parts, values) for parts in redistribute(split(2), 2)] == [["e1"], ["e2"]]


def test_split_of_seven_to_three():
    # SPEC R4.2
    for old in ([7], [3, 4], [0, 7], [1, 1, 1, 1, 1, 1, 1], [None, 5, None, 2]):
        numbers = iter(range(7))
        values = [[next(numbers) for _ in range(count or 0)] for count in old]
        assert [pick(parts, values) for parts in redistribute(split(*old), 3)] == [[0, 1, 2], [3, 4], [5, 6]], old


def test_split_start_rolls_over_the_names():
    # SPEC R4.2: a=[1..4], b=[5..8] -> 3
    old = [shapes(b=("split", 4), a=("split", 4))]
    a, b = [[1, 2, 3, 4]], [[5, 6, 7, 8]]
    got = [(pick(parts, a, "a"), pick(parts, b, "b")) for parts in redistribute(old, 3)]
    assert got == [([1, 2], [8]), ([3], [5, 6]), ([4], [7])]


def test_split_start_stays_when_nothing_is_left_over():
    # SPEC R4.2: rem = 0 -> unchanged start
    old = [shapes(a=("split", 4), b=("split", 3), c=("split", 4))]
    counts = [
        [sum(stop - start for _, start, stop in runs(parts, name)) for name in "abc"] for parts in redistribute(old, 3)
    ]
    assert counts == [[2, 1, 1], [1, 1, 2], [1, 1, 1]]


def test_split_of_two_to_four_leaves_two_empty():
    # SPEC R4.2
    assert [len(parts) for parts in redistribute(split(2), 4)] == [1, 1, 0, 0]


def test_split_is_left_alone_when_the_parallelism_is_unchanged():
    # SPEC R4.2: no redistribution at all, however uneven
    got = redistribute(split(5, 0, None), 3)
    assert got == [[ElementRange("a", 0, 0, 5)], [ElementRange("a", 1, 0, 0)], []]


@pytest.mark.parametrize(("new", "counts"), [(3, [1, 1, 2]), (1, [4]), (2, [2, 2])])
def test_repartition_split_distribute_states(new, counts):
    # SPEC R4.2: StateAssignmentOperationTest#testRepartitionSplitDistributeStates
    old = [shapes(t1=("split", 2)), shapes(t2=("split", 2))]
    got = redistribute(old, new)
    assert sorted(sum(part.stop - part.start for part in parts) for parts in got) == counts
    per_name = [[name for name in ("t1", "t2") if runs(parts, name)] for parts in got]
    # each element on its own when scaled up, both together otherwise
    assert sum(map(len, per_name)) == (4 if new == 3 else 2)


# ---- union ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [1, 2, 3])
def test_repartition_union_state(new):
    # SPEC R4.3: StateAssignmentOperationTest#testRepartitionUnionState, also with unchanged parallelism
    old = [shapes(t3=("union", 1), t4=("union", 2)), shapes(t3=("union", 1))]
    got = redistribute(old, new)
    assert len(got) == new
    for parts in got:
        assert runs(parts, "t3") == [(0, 0, 1), (1, 0, 1)]
        assert runs(parts, "t4") == [(0, 0, 2)]


def test_union_is_carried_on_by_one_subtask_each():
    got = redistribute([shapes(a=("union", 1))] * 3, 2)
    assert [[part.subtask for part in parts if part.carried] for parts in got] == [[0, 1], [2]]
    got = redistribute([shapes(a=("union", 1))] * 2, 3)
    assert [[part.subtask for part in parts if part.carried] for parts in got] == [[0], [1], []]


# ---- broadcast -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "sources"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 0])])
def test_repartition_broadcast_state(new, sources):
    # SPEC R4.4: StateAssignmentOperationTest#testRepartitionBroadcastState
    old = [shapes(t5=("broadcast", 3), t6=("broadcast", 3))] * 2
    got = redistribute(old, new)
    for name in ("t5", "t6"):
        assert [runs(parts, name) for parts in got] == [[(source, 0, 3)] for source in sources]


@pytest.mark.parametrize("missing", [None, {}])
@pytest.mark.parametrize("new", [1, 2, 3])
def test_repartition_broadcast_state_that_only_some_reported(new, missing):
    # SPEC R4.4: #testRepartitionBroadcastStateWithNullSubtaskState, #...WithEmptySubtaskState
    got = redistribute([shapes(t5=("broadcast", 3), t6=("broadcast", 3)), missing], new)
    assert [runs(parts, "t5") for parts in got] == [[(0, 0, 3)]] * new
    assert [runs(parts, "t6") for parts in got] == [[(0, 0, 3)]] * new


def test_partly_reported_broadcast_goes_by_the_reporters():
    # SPEC R4.4: i mod number of reporting subtasks, and no subtask keeps its own
    one = shapes(a=("broadcast", 1))
    assert [runs(parts, "a") for parts in redistribute([None, one, one], 3)] == [[(1, 0, 1)], [(2, 0, 1)], [(1, 0, 1)]]


def test_empty_broadcast_copy_counts_as_reported():
    got = redistribute([shapes(a=("broadcast", 0)), shapes(a=("broadcast", 0))], 3)
    assert [runs(parts, "a") for parts in got] == [[(0, 0, 0)], [(1, 0, 0)], [(0, 0, 0)]]


# ---- all modes together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [1, 2, 3])
def test_redistribute_combined_partitionable_states(new):
    # SPEC R4.2-R4.4: StateAssignmentOperationTest#testReDistributeCombinedPartitionableStates
    old = [
        shapes(
            t1=("union", 1), t2=("union", 2), t3=("split", 2),
            t4=("broadcast", 3), t5=("broadcast", 3), t6=("broadcast", 3),
        ),
        shapes(t1=("union", 1), t4=("broadcast", 3), t5=("broadcast", 3), t6=("broadcast", 3)),
    ]  # fmt: skip
    got = redistribute(old, new)
    total = {name: sum(len(runs(parts, name)) for parts in got) for name in ("t1", "t2", "t3", "t4", "t5", "t6")}
    assert total == {"t1": 2 * new, "t2": new, "t3": 2 if new == 3 else 1, "t4": new, "t5": new, "t6": new}


def test_names_come_in_sorted_order():
    got = redistribute([shapes(c=("union", 1), a=("split", 1), b=("broadcast", 1))], 1)
    assert [part.name for part in got[0]] == ["a", "b", "c"]


def test_nothing_reported_gives_nothing():
    assert redistribute([None, None], 3) == [[], [], []]


def test_one_name_in_two_modes_is_refused():
    with pytest.raises(IllegalState) as caught:
        redistribute([None, shapes(a=("split", 1)), shapes(a=("union", 1))], 3)
    assert str(caught.value) == (
        "[HR-2007] Incompatible state assignment modes: operator state 'a' was stored as split list by subtask 1 and as union "
        "list by subtask 2; every subtask must register a name in one mode, so this snapshot cannot be restored: take "
        "an older one"
    )


@pytest.mark.parametrize(("old", "new"), [([], 1), ([None], 0)])
def test_parallelism_must_be_positive(old, new):
    with pytest.raises(InvalidArgument, match=r"cannot redistribute state of \d old to \d new subtasks: both must be"):
        redistribute(old, new)


def test_parts_travel_as_plain_data():
    for value in (ElementRange("a", 0, 1, 2), KeyedPart(0, 1, KeyGroupRange(2, 3)), StateShape(Mode.UNION, 4)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value)) == value


def state_shapes(modes):
    shape = st.tuples(modes, st.integers(0, 9))
    one = st.dictionaries(st.sampled_from("abcd"), shape, max_size=4)
    return st.lists(st.none() | one, min_size=1, max_size=6).map(_one_mode_per_name)


def _one_mode_per_name(old):
    modes = {}
    for states in old:
        for name, (mode, _) in (states or {}).items():
            modes.setdefault(name, mode)
    return [
        None if states is None else {name: StateShape(modes[name], count) for name, (_, count) in states.items()}
        for states in old
    ]


def elements(old, name):
    """All elements of a state as (old subtask, index), in order."""
    return [
        (i, k) for i, states in enumerate(old) for k in range(states[name].elements if name in (states or {}) else 0)
    ]


def given_to(parts, name):
    return [(part.subtask, k) for part in parts if part.name == name for k in range(part.start, part.stop)]


@given(state_shapes(st.just(Mode.SPLIT)), st.integers(1, 9))
def test_split_loses_nothing_repeats_nothing_and_is_even(old, new):
    # SPEC R4.2: CheckpointCoordinatorTest#testPartitionableStateRepartitioning
    got = redistribute(old, new)
    for name in "abcd":
        dealt = [given_to(parts, name) for parts in got]
        assert sorted(element for mine in dealt for element in mine) == elements(old, name)
        for mine in dealt:
            assert mine == sorted(mine)
        if new != len(old):
            counts = [len(mine) for mine in dealt]
            assert max(counts) - min(counts) <= 1
    if new != len(old):
        totals = [sum(part.stop - part.start for part in parts) for parts in got]
        assert max(totals) - min(totals) <= 1  # also over all names
        assert all(part.start < part.stop for parts in got for part in parts)


@given(state_shapes(st.just(Mode.SPLIT)))
def test_unchanged_parallelism_gives_every_split_list_back(old):
    # SPEC R4.2
    got = redistribute(old, len(old))
    for subtask, states in enumerate(old):
        assert got[subtask] == [
            ElementRange(name, subtask, 0, shape.elements) for name, shape in sorted((states or {}).items())
        ]


@given(state_shapes(st.just(Mode.UNION)), st.integers(1, 9))
def test_union_gives_everything_to_everyone_and_carries_it_once(old, new):
    # SPEC R4.3
    got = redistribute(old, new)
    for name in "abcd":
        for parts in got:
            assert given_to(parts, name) == elements(old, name)
        carried = [given_to([part for part in parts if part.carried], name) for parts in got]
        assert [element for mine in carried for element in mine] == elements(old, name)


@given(state_shapes(st.just(Mode.BROADCAST)), st.integers(1, 9))
def test_broadcast_gives_everyone_one_whole_copy(old, new):
    # SPEC R4.4
    got = redistribute(old, new)
    for name in {name for states in old for name in states or {}}:
        reporters = [subtask for subtask, states in enumerate(old) if name in (states or {})]
        for subtask, parts in enumerate(got):
            [(source, start, stop)] = runs(parts, name)
            assert source == reporters[subtask % len(reporters)]
            assert (start, stop) == (0, old[source][name].elements)
            if len(reporters) == len(old) == new:
                assert source == subtask


@given(state_shapes(st.sampled_from(Mode)), st.integers(1, 9))
def test_only_names_that_were_stored_come_out(old, new):
    stored = {name for states in old for name in states or {}}
    assert {part.name for parts in redistribute(old, new) for part in parts} <= stored


# ---- keyed state ---------------------------------------------------------------------------------------------------


def own_ranges(max_parallelism, parallelism):
    return [[key_group_range(i, max_parallelism, parallelism)] for i in range(parallelism)]


def test_keyed_handles_of_ten_groups_three_to_two():
    # SPEC R3.4
    got = assign_keyed(own_ranges(10, 3), 10, 2)
    assert got == [
        [KeyedPart(0, 0, KeyGroupRange(0, 3)), KeyedPart(1, 0, KeyGroupRange(4, 4))],
        [KeyedPart(1, 0, KeyGroupRange(5, 6)), KeyedPart(2, 0, KeyGroupRange(7, 9))],
    ]


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (2, 2), (15, 77), (77, 15)])
def test_key_group_snapshot_restore(old, new):
    # SPEC R3.4: StateBackendTestBase#testKeyGroupSnapshotRestore*, 128 groups
    got = assign_keyed(own_ranges(128, old), 128, new)
    for group in range(128):
        readers = [(i, part.subtask) for i, parts in enumerate(got) for part in parts if group in part.key_groups]
        assert readers == [(owner(group, 128, new), owner(group, 128, old))]


def test_rescale_of_thirteen_groups():
    # SPEC R3.4: RescaleCheckpointManuallyITCase, max 13, 3 -> 4 and back
    assert [[part.subtask for part in parts] for parts in assign_keyed(own_ranges(13, 3), 13, 4)] == [
        [0], [0, 1], [1, 2], [2],
    ]  # fmt: skip
    assert [[part.subtask for part in parts] for parts in assign_keyed(own_ranges(13, 4), 13, 3)] == [
        [0, 1], [1, 2], [2, 3],
    ]  # fmt: skip


def test_unchanged_parallelism_gives_own_handles_back():
    # SPEC R3.4
    old = [[KeyGroupRange(0, 4), KeyGroupRange(0, 2)], None]
    assert assign_keyed(old, 10, 2) == [
        [KeyedPart(0, 0, KeyGroupRange(0, 4)), KeyedPart(0, 1, KeyGroupRange(0, 2))],
        [],
    ]


def test_empty_handle_ranges_are_not_read():
    assert assign_keyed([[KeyGroupRange.EMPTY, KeyGroupRange(0, 9)]], 10, 2)[0] == [
        KeyedPart(0, 1, KeyGroupRange(0, 4))
    ]


@given(st.integers(1, 60), st.data())
def test_every_key_group_of_every_handle_is_read_once_by_its_owner(max_parallelism, data):
    # SPEC R3.4
    old = data.draw(st.integers(1, min(12, max_parallelism)))
    new = data.draw(st.integers(1, min(12, max_parallelism)))
    handles = own_ranges(max_parallelism, old)
    finished = data.draw(st.integers(-1, old - 1))
    if finished >= 0:
        handles[finished] = None
    got = assign_keyed(handles, max_parallelism, new)
    read = sorted((group, i) for i, parts in enumerate(got) for part in parts for group in part.key_groups)
    kept = [group for group in range(max_parallelism) if owner(group, max_parallelism, old) != finished]
    assert read == [(group, owner(group, max_parallelism, new)) for group in kept]


# ---- max parallelism -----------------------------------------------------------------------------------------------


def test_derived_max_parallelism_gives_way_to_the_stored_one():
    # SPEC R3.3
    assert restored_max_parallelism("v", [SavedOperator("count", 64, keyed=True)], 4, None) == 64


def test_configured_max_parallelism_that_agrees():
    # SPEC R3.3
    assert restored_max_parallelism("v", [SavedOperator("count", 64, keyed=True)], 64, 64) == 64


def test_without_stored_state_nothing_changes():
    # SPEC R3.2, R3.3
    assert restored_max_parallelism("v", [], 4, None) == default_max_parallelism(4)
    assert restored_max_parallelism("v", [], 4, 16) == 16


def test_restore_fails_when_max_parallelism_changes():
    # SPEC R3.3: CheckpointCoordinatorRestoringTest#testRestoreLatestCheckpointFailureWhenMaxParallelismChanges
    with pytest.raises(IllegalState) as caught:
        restored_max_parallelism("map -> count", [SavedOperator("count", 64, keyed=True)], 4, 128)
    assert str(caught.value) == (
        "[HR-2105] vertex 'map -> count', operator 'count': max parallelism mismatch: the state was stored with 64, the program "
        "sets 128; the number of key groups is fixed for the life of the state, so set 64 or leave it unset"
    )


def test_restore_fails_when_parallelism_exceeds_the_stored_max():
    # SPEC R3.3
    with pytest.raises(IllegalState) as caught:
        restored_max_parallelism("count", [SavedOperator("count", 8, keyed=True)], 9, None)
    assert str(caught.value) == (
        "[HR-2105] vertex 'count': the state of 'count' was stored with max parallelism 8, which is lower than the parallelism 9 "
        "it is restored with; lower the parallelism to 8 or less"
    )


def test_chained_keyed_operators_with_different_max_parallelism():
    # SPEC R3.3
    saved = [SavedOperator("a", 64, keyed=True), SavedOperator("b", 128, keyed=True)]
    with pytest.raises(IllegalState) as caught:
        restored_max_parallelism("a -> b", saved, 4, None)
    assert str(caught.value) == (
        "[HR-2105] vertex 'a -> b': max parallelism mismatch: the chained operators 'a' and 'b' have keyed state stored with max "
        "parallelism 64 and 128; their keys belong to different key groups, so start a new chain at 'b'"
    )


def test_chained_operators_without_keyed_state_follow_the_keyed_one():
    saved = [SavedOperator("sink", 256, keyed=False), SavedOperator("count", 64, keyed=True)]
    assert restored_max_parallelism("v", saved, 4, None) == 64
    assert restored_max_parallelism("v", saved[:1], 4, None) == 256


# ---- finished subtasks ---------------------------------------------------------------------------------------------


def test_split_part_of_a_finished_subtask_is_dropped():
    # SPEC R4.5
    values = [["a0", "a1"], [], ["c0"]]
    got = redistribute(split(2, None, 1), 2)
    assert [pick(parts, values) for parts in got] == [["a0", "a1"], ["c0"]]


@pytest.mark.parametrize(
    ("finished", "state"),
    [
        ([False, False], FinishedState.RUNNING),
        ([True, False], FinishedState.PARTLY),
        ([True, True], FinishedState.FULLY),
        ([], FinishedState.RUNNING),
    ],
)
def test_finished_state(finished, state):
    assert finished_state(finished) is state


def test_partly_finished_vertex_with_union_state_declines_the_checkpoint():
    # SPEC R4.5: DefaultCheckpointPlanTest#testAbortionIfPartiallyFinishedVertexUsedUnionListState
    old = [shapes(b=("union", 1), a=("union", 0), c=("split", 1), d=("broadcast", 1)), None]
    assert union_states_of_partly_finished(old, [False, True]) == ["a", "b"]
    assert union_states_of_partly_finished(old, [False, False]) == []
    assert union_states_of_partly_finished([None, None], [True, True]) == []


GRAPH = {"source": [], "map": [Predecessor("source", pointwise=True)], "sink": [Predecessor("map", pointwise=False)]}


@pytest.mark.parametrize(
    ("source", "map", "sink"),
    [
        ("RUNNING", "RUNNING", "RUNNING"),
        ("FULLY", "RUNNING", "RUNNING"),
        ("PARTLY", "PARTLY", "RUNNING"),
        ("FULLY", "PARTLY", "RUNNING"),
        ("FULLY", "FULLY", "PARTLY"),
        ("FULLY", "FULLY", "FULLY"),
    ],
)
def test_finished_graphs_that_can_be_restored(source, map, sink):
    # SPEC R4.5
    states = {"source": source, "map": map, "sink": sink}
    check_finished_graph({vertex: FinishedState[state] for vertex, state in states.items()}, GRAPH)


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (
            {"map": "FULLY"},
            (
                "vertex 'map' was fully finished in the checkpoint, but its predecessor 'source' over a pointwise edge "
                "is running: records would be sent to subtasks that do not run any more; restore with the graph the "
                "checkpoint was taken from, or give 'map' a new uid to run it from the start"
            ),
        ),
        ({"source": "PARTLY", "map": "FULLY"}, "'source' over a pointwise edge is partly finished"),
        ({"map": "PARTLY"}, "vertex 'map' was partly finished in the checkpoint, but its predecessor 'source'"),
        ({"source": "FULLY", "sink": "PARTLY"}, "'map' over an all-to-all edge is running"),
        ({"source": "FULLY", "map": "PARTLY", "sink": "PARTLY"}, "'map' over an all-to-all edge is partly finished"),
    ],
)
def test_job_graph_modifications_are_checked(states, text):
    # SPEC R4.5: CheckpointCoordinatorRestoringTest#testJobGraphModificationsAreCheckedForSavepoint
    with pytest.raises(IllegalState, match=re.escape(text)):
        check_finished_graph({vertex: FinishedState[state] for vertex, state in states.items()}, GRAPH)


# ---- in-flight data ------------------------------------------------------------------------------------------------


def plan(mapping, old, new, max_parallelism=128):
    return [[part.subtask for part in parts] for parts in assign_inflight(mapping, old, new, max_parallelism)]


def filtered(mapping, old, new, max_parallelism=128):
    return {
        part.subtask for parts in assign_inflight(mapping, old, new, max_parallelism) for part in parts if part.filtered
    }


def test_channel_state_assignment_downscaling():
    # SPEC R6.7: StateAssignmentOperationTest#testChannelStateAssignmentDownscaling
    assert plan(EdgeMapping.RANGE, 3, 2) == [[0, 1], [1, 2]]
    assert filtered(EdgeMapping.RANGE, 3, 2) == {1}
    assert plan(EdgeMapping.ROUND_ROBIN, 3, 2) == [[0, 2], [1]]
    assert filtered(EdgeMapping.ROUND_ROBIN, 3, 2) == set()


def test_channel_state_assignment_upscaling():
    # SPEC R6.7: StateAssignmentOperationTest#testChannelStateAssignmentUpscaling
    assert plan(EdgeMapping.RANGE, 2, 3) == [[0], [0, 1], [1]]
    assert filtered(EdgeMapping.RANGE, 2, 3) == {0, 1}
    assert plan(EdgeMapping.ROUND_ROBIN, 2, 3) == [[0], [1], []]


def test_channel_state_assignment_two_different_gates():
    # SPEC R6.7: #testChannelStateAssignmentDownscalingTwoDifferentGates; each edge has its own mapping
    assert plan(edge_mapping("hash"), 3, 2)[0] == [0, 1]
    assert plan(edge_mapping("rebalance"), 3, 2)[0] == [0, 2]


@pytest.mark.parametrize("mapping", EdgeMapping)
def test_channel_state_assignment_no_rescale(mapping):
    # SPEC R6.7: #testChannelStateAssignmentNoRescale and #testChannelStateAssignmentStability
    assert plan(mapping, 4, 4) == [[0], [1], [2], [3]]
    assert filtered(mapping, 4, 4) == set()


def test_round_robin():
    # SPEC R6.7
    assert plan(EdgeMapping.ROUND_ROBIN, 10, 4) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert plan(EdgeMapping.ROUND_ROBIN, 6, 10) == [[0], [1], [2], [3], [4], [5], [], [], [], []]


def test_first():
    # SPEC R6.7
    assert plan(EdgeMapping.FIRST, 3, 2) == [[0, 1, 2], []]
    assert filtered(EdgeMapping.FIRST, 3, 2) == set()


def test_full():
    # SPEC R6.7
    assert plan(EdgeMapping.FULL, 3, 2) == [[0, 1, 2], [0, 1, 2]]
    assert filtered(EdgeMapping.FULL, 3, 2) == {0, 1, 2}
    assert filtered(EdgeMapping.FULL, 3, 1) == set()


def test_unsupported():
    # SPEC R6.7
    with pytest.raises(IllegalState) as caught:
        assign_inflight(EdgeMapping.UNSUPPORTED, 3, 2, 128)
    assert str(caught.value) == (
        "[HR-2106] in-flight data of a forward, rescale or broadcast edge cannot be moved from 3 to 2 subtasks; restore with "
        "parallelism 3, or from a savepoint, which has no in-flight data; did the partitioning of the edge change "
        "since the checkpoint?"
    )


@pytest.mark.parametrize(
    ("partitioning", "mapping"),
    [
        ("hash", EdgeMapping.RANGE),
        ("rebalance", EdgeMapping.ROUND_ROBIN),
        ("shuffle", EdgeMapping.ROUND_ROBIN),
        ("global", EdgeMapping.FIRST),
        ("custom", EdgeMapping.FULL),
        ("forward", EdgeMapping.UNSUPPORTED),
        ("rescale", EdgeMapping.UNSUPPORTED),
        ("broadcast", EdgeMapping.UNSUPPORTED),
    ],
)
def test_edge_kinds(partitioning, mapping):
    # SPEC R6.7
    assert edge_mapping(partitioning) is mapping


def test_unknown_edge_kind():
    with pytest.raises(InvalidArgument, match="unknown partitioning 'zigzag' of an edge: known are hash, rebalance"):
        edge_mapping("zigzag")


def test_range_overlap_of_a_single_key_group():
    # SPEC R6.7: with 32768 key groups, as Flink computes it, new subtask 1 would not read old subtask 0
    assert owner(1, 201, 200) == 0
    assert owner(1, 201, 201) == 1
    assert list(old_subtasks(EdgeMapping.RANGE, 1, 200, 201, 201)) == [0]


@given(st.integers(1, 80), st.data())
def test_range_reads_exactly_the_overlapping_subtasks(max_parallelism, data):
    # SPEC R6.7
    old = data.draw(st.integers(1, max_parallelism))
    new = data.draw(st.integers(1, max_parallelism))
    overlaps = {(owner(g, max_parallelism, new), owner(g, max_parallelism, old)) for g in range(max_parallelism)}
    got = plan(EdgeMapping.RANGE, old, new, max_parallelism)
    assert {(subtask, source) for subtask, sources in enumerate(got) for source in sources} == overlaps


@given(st.sampled_from([EdgeMapping.ROUND_ROBIN, EdgeMapping.FIRST]), st.integers(1, 20), st.integers(1, 20))
def test_unfiltered_mappings_read_every_old_subtask_once(mapping, old, new):
    # SPEC R6.7
    assert sorted(source for sources in plan(mapping, old, new) for source in sources) == list(range(old))
    assert filtered(mapping, old, new) == set()


def test_inflight_data_in_front_of_the_chain():
    # SPEC R6.7
    check_inflight_chain("map -> sink", "map", ["map"])
    check_inflight_chain("map -> sink", "map", [])
    with pytest.raises(IllegalState) as caught:
        check_inflight_chain("map -> count -> sink", "map", ["map", "count", "sink"])
    assert str(caught.value) == (
        "[HR-2106] vertex 'map -> count -> sink': the checkpoint holds in-flight data in front of 'count', 'sink', which is now "
        "chained behind 'map' and has no channel to receive it; keep the exchange (start a new chain there), or "
        "restore from a savepoint, which has no in-flight data"
    )


# ---- state that an operator cannot take ----------------------------------------------------------------------------

FILES, KAFKA = prepared_by("files"), prepared_by("kafka")


@pytest.mark.parametrize(
    ("left", "takes", "unclaimed"),
    [
        (TakenState(), TakenState(), None),
        (TakenState(), TakenState(keyed=True, own=FILES), None),
        (TakenState(keyed=True), TakenState(keyed=True), None),
        (TakenState(keyed=True), TakenState(), "keyed state"),
        (TakenState(own=FILES), TakenState(own=FILES), None),
        (TakenState(own=FILES), TakenState(), "output that a sink of kind 'files' has prepared"),
        (TakenState(own=FILES), TakenState(own=KAFKA), "output that a sink of kind 'files' has prepared"),
        (TakenState(own=SPLITS), TakenState(own=SPLITS), None),
        (TakenState(own=SPLITS), TakenState(), "splits of a source"),
        (TakenState(own=ASYNC_CALLS), TakenState(own=SPLITS), "records that wait for asynchronous calls"),
        (TakenState(keyed=True, own=FILES), TakenState(keyed=True), "output that a sink of kind 'files' has prepared"),
        (TakenState(keyed=True, own=FILES), TakenState(own=FILES), "keyed state"),
        (TakenState(keyed=True, own=SPLITS), TakenState(), "keyed state and splits of a source"),
        (TakenState(own="of a newer version"), TakenState(), "of a newer version"),
    ],
)
def test_state_that_the_operator_under_a_uid_cannot_take(left, takes, unclaimed):  # SPEC R8.5
    found = unclaimed_state(left, takes)
    if unclaimed is None:
        assert found is None
    else:
        assert describe_state(found).startswith(unclaimed)
