"""The newest checkpoint is damaged, which a worker finds when it restores it: nothing of it was or will be committed."""

import re

import pytest

from headrace.control.messages import CheckpointComplete
from headrace.driver.epochs import Epochs
from headrace.testing.simulation.run import Run
from headrace.testing.simulation.world import Violation, found_splits, one_input, whole_epochs
from headrace.worker.operators.sinks import SinkOperator

OPTIONS = {
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.interval": "20 ms",
    "execution.checkpointing.data-inline-threshold": "0 b",
    "execution.checkpointing.num-retained": "3",
    "execution.checkpointing.max-concurrent-checkpoints": "1",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "headrace.recovery.allow-repeated-output": "true",
    "headrace.alignment.spill.max": "1 gb",
}
PROGRAMS = {"two-phase": one_input, "committer": found_splits, "whole epochs": whole_epochs}


def lose_completions(run):
    """No sink is notified of a checkpoint, and none is committed on the driver."""
    for worker in () if run.driver.attempt is None else run.driver.attempt.workers:
        for message in [one for one in worker.inbox if isinstance(one, CheckpointComplete)]:
            worker.inbox.remove(message)
    run.driver.io.epochs.waiting.clear()


def play(seed, program, *, resumed):
    """A job whose newest checkpoint is complete, not committed, and then damaged."""
    run = Run(seed, calm=True, program=program, parallelism=[2, 2], options=OPTIONS)
    while not run.driver.completed:
        run.act()
    before = run.driver.completed[-1]
    while run.driver.completed[-1] == before and not run.driver.ended:
        run.act()
        lose_completions(run)
    if run.driver.ended or len(run.driver.completed) < 2:
        return False
    newest = run.driver.completed[-1]
    files = sorted(path for path in run.store.objects if f"/chk-{newest}/" in path and "_metadata" not in path)
    run.store.flip(files[seed % len(files)], seed)
    run.flipped = True
    if resumed:
        run.driver = run._start_driver(resume=True)
    else:
        run.driver.cluster.end(None if run.driver.attempt is None else Violation("a worker was killed"))
    run.go()
    assert run.driver.service._snapshots.loader.is_damaged(newest)
    return True


@pytest.mark.parametrize(
    ("program", "resumed"),
    [("two-phase", False), ("two-phase", True), ("committer", False), ("committer", True), ("whole epochs", True)],
)
def test_output_is_exactly_once_after_a_step_back(program, resumed):  # SPEC R5.11, R9.3
    assert sum(play(seed, PROGRAMS[program], resumed=resumed) for seed in range(6)) >= 3


def first_violation(program):
    """What the first of 12 seeds that fails finds."""
    for seed in range(12):
        try:
            play(seed, PROGRAMS[program], resumed=True)
        except Violation as error:
            return str(error)
    return "nothing"


@pytest.mark.parametrize("program", ["two-phase", "committer"])
def test_it_finds_a_subtask_that_commits_before_others_have_restored(monkeypatch, program):
    opened = SinkOperator.open

    def open_and_start(self):
        opened(self)
        SinkOperator.start(self)

    monkeypatch.setattr(SinkOperator, "open", open_and_start)
    assert re.search("came more than once|committed already", first_violation(program))


def test_it_finds_a_driver_that_commits_before_the_subtasks_have_restored(monkeypatch):
    start_attempt = Epochs.start_attempt

    def commit_at_once(self, *restored):
        start_attempt(self, *restored)
        self.job_running()

    monkeypatch.setattr(Epochs, "start_attempt", commit_at_once)
    assert re.search("came more than once|has not connected", first_violation("whole epochs"))
