"""SPEC R5.0 and R4.5; the cases of Flink's DefaultCheckpointPlanCalculatorTest and DefaultCheckpointPlanTest."""

import pytest
from coordinator_harness import chain, task

from headrace.checkpoint.assignment import FinishedState, Mode, StateShape
from headrace.checkpoint.plan import (
    CheckpointPlan,
    PlanInput,
    PlanVertex,
    Refusal,
    TaskReport,
    TaskStatus,
    Topology,
    VertexOutcome,
    account_for_finished,
    plan_checkpoint,
)
from headrace.graph.job_graph import Partitioning
from headrace.ids import OperatorId, VertexId

ALL_TO_ALL, POINTWISE = Partitioning("hash"), Partitioning("rescale")


def topology(parallelism, edges=()):
    """From the parallelism of each vertex and edges (source, target, partitioning), as the job graph has them."""

    def inputs(vertex):
        for source, target, partitioning in edges:
            if target == vertex:
                writers, readers = parallelism[source], parallelism[target]
                reach = tuple(tuple(partitioning.writers(r, writers, readers)) for r in range(readers))
                yield PlanInput(VertexId(source), reach if partitioning.pointwise else None)

    return Topology(tuple(PlanVertex(VertexId(i), p, tuple(inputs(i))) for i, p in enumerate(parallelism)))


def plan(job, finished=()):
    """`finished` has the finished subtasks of each vertex."""
    gone = {task(vertex, subtask) for vertex, subtasks in enumerate(finished) for subtask in subtasks}
    statuses = {t: TaskStatus.FINISHED if t in gone else TaskStatus.RUNNING for t in job.tasks()}
    return plan_checkpoint(job, statuses)


def check(job, finished, expected_trigger):
    result = plan(job, finished)
    gone = {task(vertex, subtask) for vertex, subtasks in enumerate(finished) for subtask in subtasks}
    assert set(result.trigger) == {task(vertex, s) for vertex, subtasks in expected_trigger.items() for s in subtasks}
    assert set(result.wait) == set(job.tasks()) - gone
    assert set(result.finished) == gone


def test_all_tasks_run():
    """R5.0, testComputeAllRunningGraph: the sources are triggered."""
    job = topology([3, 4, 5, 6], [(0, 2, ALL_TO_ALL), (1, 2, POINTWISE), (2, 3, ALL_TO_ALL)])
    check(job, [(), (), (), ()], {0: range(3), 1: range(4)})


def test_all_to_all_with_some_sources_finished():
    """R4.5, testAllToAllEdgeWithSomeSourcesFinished."""
    check(topology([3, 4], [(0, 1, ALL_TO_ALL)]), [range(2), ()], {0: [2]})


def test_one_to_one_with_some_sources_finished():
    """R4.5, testOneToOneEdgeWithSomeSourcesFinished."""
    check(topology([4, 4], [(0, 1, POINTWISE)]), [range(2), ()], {0: [2, 3], 1: [0, 1]})


def test_one_to_one_with_some_sources_and_targets_finished():
    """R4.5, testOneToOnEdgeWithSomeSourcesAndTargetsFinished."""
    check(topology([4, 4], [(0, 1, POINTWISE)]), [range(2), [0]], {0: [2, 3], 1: [1]})


def test_several_inputs():
    """R4.5, testComputeWithMultipleInputs."""
    job = topology([3, 5, 5, 5], [(0, 3, ALL_TO_ALL), (1, 3, POINTWISE), (2, 3, POINTWISE)])
    check(job, [range(3), [0, 2, 3], [2, 4], [2]], {1: [1, 4], 2: [0, 1, 3]})


def test_several_levels():
    """R4.5, testComputeWithMultipleLevels."""
    edges = [(0, 2, POINTWISE), (0, 3, POINTWISE), (1, 2, ALL_TO_ALL), (1, 3, POINTWISE)]
    job = topology([16] * 5, [*edges, (2, 4, POINTWISE), (3, 4, ALL_TO_ALL)])
    check(job, [range(4), range(16), range(2), (), ()], {0: range(4, 16), 2: [2, 3], 3: range(4)})


@pytest.mark.parametrize("status", [TaskStatus.STARTING, TaskStatus.FAILED])
@pytest.mark.parametrize("vertex", [0, 1])
def test_a_task_that_does_not_run(status, vertex):
    """R5.5, testPlanCalculationWhenOneTaskNotRunning."""
    job = chain(1, 1)
    statuses = dict.fromkeys(job.tasks(), TaskStatus.RUNNING) | {task(vertex): status}
    assert plan_checkpoint(job, statuses) == Refusal(
        f"task v{vertex}/0 is {status.value}, and a checkpoint needs all of them: try again when all tasks run"
    )


def test_without_checkpoints_after_finish():
    """R4.5: with the feature off there is no checkpoint once any task has finished."""
    job = chain(2, 1)
    statuses = dict.fromkeys(job.tasks(), TaskStatus.RUNNING) | {task(0, 1): TaskStatus.FINISHED}
    assert isinstance(plan_checkpoint(job, statuses), CheckpointPlan)
    refused = plan_checkpoint(job, statuses, after_finish=False)
    assert (
        refused.message == "task v0/1 has finished, and execution.checkpointing.checkpoints-after-tasks-finish is off"
    )


def test_nothing_left_to_take_a_checkpoint_of():
    assert "all tasks have finished" in plan(chain(1, 2), [[0], [0, 1]]).message


# ---- finished tasks in a completed checkpoint ----------------------------------------------------------------------

OPERATOR = OperatorId("op")


def report(mode=None, **options):
    return TaskReport({OPERATOR: {"offsets": StateShape(mode, 3)}} if mode else {}, **options)


def accounted(job, finished, reports):
    return account_for_finished(job, plan(job, finished), reports)


def test_finished_vertices_are_recorded():
    """R4.5, testFulfillFinishedStates: fully, partly and not finished."""
    job = chain(2, 2, 2)
    running = {t: report(Mode.SPLIT) for t in [task(1, 1), task(2, 0), task(2, 1)]}
    assert accounted(job, [[0, 1], [0], []], running) == {
        0: VertexOutcome(FinishedState.FULLY, (0, 1)),
        1: VertexOutcome(FinishedState.PARTLY, (0,)),
        2: VertexOutcome(FinishedState.RUNNING),
    }


def test_partly_finished_with_union_state():
    """R4.5, testAbortionIfPartiallyFinishedVertexUsedUnionListState."""
    refused = accounted(chain(1, 2), [[], [0]], {task(0): report(), task(1, 1): report(Mode.UNION)})
    assert isinstance(refused, Refusal)
    assert "vertex 1 have finished, others still run, and its union list state 'offsets'" in refused.message


def test_partly_called_finish_with_union_state():
    """R4.5, testAbortionIfPartiallyOperatorsFinishedVertexUsedUnionListState."""
    reports = {task(0, 0): report(Mode.UNION, finished_operators=True), task(0, 1): report(Mode.UNION)}
    refused = accounted(chain(2), [[]], reports)
    assert "have called finish(), others still run" in refused.message


def test_all_called_finish_with_union_state():
    """R4.5: they share their final checkpoint, nothing is missing."""
    reports = {task(0, i): report(Mode.UNION, finished_operators=True) for i in range(2)}
    assert accounted(chain(2), [[]], reports) == {0: VertexOutcome(FinishedState.RUNNING)}


def test_gone_and_called_finish_is_not_all():
    """The elements of the one that is gone are missing, although the others are about to end too."""
    assert isinstance(accounted(chain(2), [[0]], {task(0, 1): report(Mode.UNION, finished_operators=True)}), Refusal)


@pytest.mark.parametrize("mode", [Mode.SPLIT, Mode.BROADCAST])
def test_other_modes_may_be_incomplete(mode):
    """R4.5: of a split list the finished subtask's part is dropped."""
    assert accounted(chain(2), [[0]], {task(0, 1): report(mode)})[0].state is FinishedState.PARTLY


def test_finished_on_restore_is_finished_again():
    """R4.5, PendingCheckpointTest#testReportTaskFinishedOnRestore: it runs only to send its end."""
    reports = {t: report(finished_on_restore=True) for t in (task(0, 0), task(0, 1))} | {task(1): report()}
    outcome = accounted(chain(2, 1), [[], []], reports)
    assert outcome[0] == VertexOutcome(FinishedState.FULLY, (0, 1))
    assert outcome[1].state is FinishedState.RUNNING
