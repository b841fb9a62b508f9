"""Rules of recovery: what a subtask that had finished says, and when a damaged checkpoint may be skipped."""

import pytest

from headrace import KeyedProcessFunction
from headrace.checkpoint.settings import CheckpointProperties, ClaimMode, RetentionPolicy
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.checkpoint.types import Barrier
from headrace.config import Configuration
from headrace.connectors.files import FileSink
from headrace.control.deployment import VertexRestore
from headrace.driver.step_back import StepBack
from headrace.errors import StorageError
from headrace.records.frames import FrameKind
from headrace.worker.snapshots.restore import read_restore
from rig import event, plan_of, subtask, vertex_plan, work_off


def program(env):
    env.from_sequence(1, 9).sink_to(FileSink("/nowhere")).name("files")


def bare(env):
    env.from_sequence(1, 9).print()


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def keyed(env):
    env.from_sequence(1, 9).map(lambda x: x).key_by(lambda x: x).process(Pass()).name("keyed").print()


def test_a_vertex_that_had_finished_is_restored_as_finished():  # SPEC R4.5
    plan = vertex_plan(plan_of(program), "Sequence")
    restore = read_restore(VertexRestore(7, 1, 128, {}, claim=False, finished=True), 0, plan)
    assert restore.finished


def test_a_subtask_that_had_finished_says_so_and_opens_nothing():  # SPEC R4.5
    plan = plan_of(keyed)
    task = subtask(plan, "keyed", restore=VertexRestore(7, 1, 128, {}, claim=False, finished=True))
    task.open()
    assert task.next_deadline() is None  # timers of an operator that is not open are not asked for
    task.receive(event(FrameKind.BARRIER, body=Barrier(8, 0).encode()))
    work_off(task)
    (snapshot,) = task.take_snapshots()
    assert snapshot.finished_on_restore
    assert snapshot.operators == []
    task.notify_complete(8)
    task.notify_aborted(9)
    task.close()


DAMAGE = StorageError("'chk-7/e1r0-v0-s0.state' is damaged")
PROPERTIES = CheckpointProperties.for_restored(ClaimMode.CLAIM, RetentionPolicy.RETAIN_ON_FAILURE)
SEVENTH = CompletedCheckpoint(7, 0, PROPERTIES, "/job/chk-7", "/job/chk-7")


def step_back(build, older=True, **options):
    configuration = Configuration(
        {f"headrace.recovery.{key.replace('_', '-')}": value for key, value in options.items()}
    )
    return StepBack(plan_of(build), configuration).over(SEVENTH, DAMAGE, older=older)


def test_a_damaged_checkpoint_is_skipped_loudly():
    assert step_back(bare) == (
        "checkpoint 7 ('/job/chk-7') is DAMAGED, stepping back to an older one: "
        "[HR-3103] 'chk-7/e1r0-v0-s0.state' is damaged"
    )


def test_it_is_not_when_a_sink_may_have_committed_with_it():
    with pytest.raises(StorageError, match=r"DAMAGED.*sink 'files' may have committed.*allow-repeated-output=true"):
        step_back(program)


def test_unless_repeated_output_is_allowed():
    assert "output may be REPEATED" in step_back(program, allow_repeated_output="true")


def test_it_is_not_when_that_is_switched_off():
    with pytest.raises(StorageError, match="step-back=false forbids"):
        step_back(bare, step_back="false")


def test_the_last_one_is_not_skipped():
    with pytest.raises(StorageError, match=r"'chk-7/e1r0-v0-s0.state' is damaged; no older one is left.*--from"):
        step_back(bare, older=False)
