"""The stages of a checkpoint: the table of moves, and the story that an illegal one prints."""

import pytest

from headrace.checkpoint import events as ev
from headrace.checkpoint.decider import RequestOrigin, TriggerRequest
from headrace.checkpoint.pending import MOVES, PendingCheckpoint, Stage
from headrace.checkpoint.plan import CheckpointPlan, TaskId
from headrace.checkpoint.settings import CheckpointProperties, RetentionPolicy
from headrace.checkpoint.stats import CheckpointStats
from headrace.errors import IllegalState
from headrace.ids import VertexId

TASKS = (TaskId(VertexId(0), 0), TaskId(VertexId(0), 1))
PATHS = {
    Stage.PREPARING: [],
    Stage.DRIVER_STATE: [Stage.DRIVER_STATE],
    Stage.RUNNING: [Stage.DRIVER_STATE, Stage.RUNNING],
    Stage.WRITING: [Stage.DRIVER_STATE, Stage.RUNNING, Stage.WRITING],
    Stage.WRITTEN: [Stage.DRIVER_STATE, Stage.RUNNING, Stage.WRITING, Stage.WRITTEN],
    Stage.CLAIMING: [Stage.DRIVER_STATE, Stage.RUNNING, Stage.WRITING, Stage.WRITTEN, Stage.CLAIMING],
    Stage.COMPLETED: [Stage.DRIVER_STATE, Stage.RUNNING, Stage.WRITING, Stage.WRITTEN, Stage.COMPLETED],
    Stage.ABORTED: [Stage.ABORTED],
}


def pending(stage=Stage.PREPARING):
    properties = CheckpointProperties.for_checkpoint(RetentionPolicy.RETAIN_ON_FAILURE)
    request = TriggerRequest(properties, RequestOrigin.USER, 1000)
    stats = CheckpointStats(7, 1000, "CHECKPOINT", False, None, "user", {}, True, None)
    plan = CheckpointPlan(TASKS[:1], TASKS, ())
    one = PendingCheckpoint(
        7, request, properties, plan, timestamp=1000, deadline=2000, stats=stats, attempt=3, base=None
    )
    for number, step in enumerate(PATHS[stage], 1):
        one.advance(step, 1000 + number)
    return one


def test_every_stage_has_a_row():
    assert set(MOVES) == set(Stage) == set(PATHS)


@pytest.mark.parametrize(("start", "end"), [(start, end) for start in Stage for end in Stage])
def test_only_moves_of_the_table_are_made(start, end):
    one = pending(start)
    if end in MOVES[start]:
        one.advance(end, 2000)
        assert one.stage is end
    else:
        with pytest.raises(IllegalState, match=f"checkpoint 7 cannot move from {start.name} to {end.name} at 2000"):
            one.advance(end, 2000)
        assert one.stage is start


def test_an_illegal_move_tells_the_story():
    one = pending(Stage.RUNNING)
    one.acknowledge(ev.Acknowledged(3, TASKS[0], 7), 1005)
    one.advance(Stage.ABORTED, 1009)
    with pytest.raises(IllegalState) as error:
        one.advance(Stage.WRITING, 1010)
    assert str(error.value) == (
        "[HR-9001] checkpoint 7 cannot move from ABORTED to WRITING at 1010; its story: PREPARING at 1000, DRIVER_STATE at 1001, "
        "RUNNING at 1002, ABORTED at 1009; attempt 3, 1 of 2 tasks have acknowledged"
    )


def test_an_aborted_or_completed_checkpoint_stays_so():
    assert {stage for stage in Stage if not MOVES[stage]} == {Stage.ABORTED, Stage.COMPLETED}
    assert all(Stage.ABORTED in MOVES[stage] for stage in Stage if MOVES[stage])
