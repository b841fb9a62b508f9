"""The restore plan: from a job's plan and the metadata of a snapshot, without a store."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import StreamExecutionEnvironment
from headrace.checkpoint.commits import Commits
from headrace.checkpoint.types import SnapshotType
from headrace.config import Configuration
from headrace.driver.restore_plan import claimed_state, restore_plan, saved_operators
from headrace.errors import IllegalState, StateMigrationError
from headrace.graph.plan import make_plan
from headrace.ids import JobId
from headrace.records.key_groups import key_group_range
from headrace.storage.byte_handles import InlineBytes
from headrace.storage.layout import AttemptId
from headrace.storage.manifest import Manifest, OperatorManifest, PieceKind, SnapshotPart, StatePiece, SubtaskManifest

GROUPS = 128


def plan_of(parallelism=1, keyed="keyed"):
    """Source, keyed map, print: each in a vertex of its own."""
    env = StreamExecutionEnvironment.get_execution_environment(Configuration())
    env.set_parallelism(parallelism).set_max_parallelism(GROUPS)
    env.from_sequence(1, 9).uid("source").key_by(lambda n: n).map(lambda n: n).uid(keyed).rebalance().print()
    return env._job_plan("job")


def piece(kind, subtask=0, parallelism=1):
    groups = key_group_range(subtask, GROUPS, parallelism) if kind is PieceKind.KEYED else None
    return StatePiece(kind, (SnapshotPart(f"{kind.value}{subtask}", InlineBytes(b"state")),), b"", groups)


def manifest_of(plan, finished=(), kinds=(PieceKind.KEYED, PieceKind.CHANNEL), number=7):
    """The metadata of a snapshot in which the keyed operator has state; `finished` are (uid, subtask)."""
    operators = []
    for vertex in plan.graph.vertices:
        for op in vertex.operators:
            left = kinds if vertex.name != plan.graph.vertices[0].name and op.uid else ()
            subtasks = tuple(
                SubtaskManifest(
                    i, tuple(piece(kind, i, vertex.parallelism) for kind in left), finished=(op.uid, i) in finished
                )
                for i in range(vertex.parallelism)
            )
            operators.append(
                OperatorManifest(op.id, op.name, vertex.parallelism, vertex.max_parallelism, subtasks, op.uid)
            )
    return Manifest(number, SnapshotType.CHECKPOINT, JobId("a" * 32), "job", AttemptId(1), 0, tuple(operators))


def keyed_in(plan):
    return next((v, op) for v in plan.graph.vertices for op in v.operators if op.uid == "keyed")


@given(old=st.integers(1, 9), new=st.integers(1, 9), data=st.data())
def test_every_piece_of_a_subtask_that_runs_is_in_the_plan_once(old, new, data):  # SPEC R3.4
    """At any parallelism: what is left out was finished."""
    finished = {("keyed", i) for i in data.draw(st.sets(st.integers(0, old - 1), max_size=old - 1))}
    before, plan = plan_of(old), plan_of(new)
    finished |= {("source", i) for i in range(old)}  # the vertices before have finished, as they must have
    manifest = manifest_of(before, finished)
    vertex, operator = keyed_in(plan)
    restore = restore_plan(plan, claimed_state(plan, manifest, ignore_unmatched=False), claim=True)[vertex.id]
    left = restore.operators[operator.id]
    assert [pieces is None for pieces in left] == [("keyed", i) in finished for i in range(old)]
    stored = next(op for op in manifest.operators if op.uid == "keyed")
    assert [pieces for pieces in left if pieces is not None] == [
        subtask.pieces for subtask in stored.subtasks if not subtask.finished
    ]
    assert (restore.checkpoint_id, restore.parallelism, restore.claim) == (7, new, True)


def test_the_commits_of_the_checkpoint_reach_every_vertex():
    plan, commits = plan_of(2), Commits().add(7, 12)
    restore = restore_plan(plan, manifest_of(plan), claim=False, commits=commits)
    assert {one.commits for one in restore.values()} == {commits}
    assert restore.keys() == {vertex.id for vertex in plan.graph.vertices}


def test_channel_state_is_left_out_where_the_user_says_so():
    made = plan_of()
    plan = make_plan(made.graph, made.layout, dataclasses.replace(made.settings, without_channel_state=7))
    vertex, operator = keyed_in(plan)
    (pieces,) = restore_plan(plan, manifest_of(plan), claim=False)[vertex.id].operators[operator.id]
    assert [one.kind for one in pieces] == [PieceKind.KEYED]


def test_state_of_an_operator_that_is_gone_is_refused_and_may_be_dropped():  # SPEC R8.5
    manifest, plan = manifest_of(plan_of()), plan_of(keyed="renamed")
    with pytest.raises(
        StateMigrationError, match=r"state of operators that the program does not have any more: .*uid keyed"
    ):
        claimed_state(plan, manifest, ignore_unmatched=False)
    kept = claimed_state(plan, manifest, ignore_unmatched=True)
    assert "keyed" not in {op.uid for op in kept.operators}


def test_state_that_the_operator_cannot_take_is_refused_and_may_be_dropped():  # SPEC R8.5
    plan = plan_of()
    manifest = manifest_of(plan)
    source = next(op for op in manifest.operators if op.uid == "source")
    keyed_source = replace(source, subtasks=(SubtaskManifest(0, (piece(PieceKind.KEYED),)),))
    manifest = replace(
        manifest, operators=tuple(keyed_source if op.uid == "source" else op for op in manifest.operators)
    )
    with pytest.raises(StateMigrationError, match="cannot take"):
        claimed_state(plan, manifest, ignore_unmatched=False)
    kept = claimed_state(plan, manifest, ignore_unmatched=True)
    assert [op.size for op in kept.operators if op.uid == "source"] == [0]


def test_a_vertex_that_had_finished_before_one_that_had_not_is_refused():  # SPEC R4.5
    plan = plan_of()
    with pytest.raises(IllegalState, match="finished"):
        restore_plan(plan, manifest_of(plan, {("keyed", 0)}), claim=False)


def test_only_operators_with_state_are_saved_and_in_flight_data_counts_as_keyed():
    plan = plan_of()
    _, operator = keyed_in(plan)
    for kinds, keyed in (((PieceKind.CHANNEL,), True), ((PieceKind.OPERATOR,), False)):
        saved = saved_operators(manifest_of(plan, kinds=kinds).operators)
        assert saved[operator.id].keyed is keyed
        assert len(saved) == 1
