"""A driver that was replaced and does not know it yet: however it ends, its successor finds all its files."""

import pytest

from headrace.checkpoint.settings import EndStatus
from headrace.errors import StorageError
from headrace.storage.log import JobLog
from headrace.testing.simulation.run import Run, play
from headrace.testing.simulation.world import one_input

OPTIONS = {
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "execution.checkpointing.num-retained": "1",
    "execution.checkpointing.interval": "40 ms",
    "execution.checkpointing.data-inline-threshold": "0 b",
    "execution.checkpointing.timeout": "4000 ms",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
}
ENDS = [EndStatus.FINISHED, EndStatus.CANCELED, EndStatus.FAILED]


def until(run, condition):
    while not condition() and not run.driver.ended:
        run.outcome.actions += 1
        run.act()
        run._check()


def replaced(incremental, go_on):
    """A run whose first driver is alive though a second one has taken over; that may have completed a checkpoint."""
    options = OPTIONS | {"execution.checkpointing.incremental": incremental}
    run = Run(3, calm=True, program=one_input, parallelism=[1, 1], options=options)
    until(run, lambda: run.outcome.completed >= 2)
    old = run.driver
    run.outcome.drivers += 1
    run.driver = run._start_driver(resume=True)
    if go_on:
        until(run, lambda: run.driver.completed[-1] > old.completed[-1])
    return run, old


@pytest.mark.parametrize("go_on", [False, True])
@pytest.mark.parametrize("incremental", ["true", "false"])
@pytest.mark.parametrize("status", ENDS)
def test_its_end_deletes_nothing(status, incremental, go_on):  # SPEC R5.8
    run, old = replaced(incremental, go_on)
    before = set(run.store.objects)
    old.end(status)
    assert before <= set(run.store.objects)
    run.oracle.check_kept(run.driver)
    run.restart("a worker was killed")
    run.go()


@pytest.mark.parametrize("status", ENDS)
def test_the_end_of_the_driver_that_leads_deletes_its_checkpoint(status):  # SPEC R5.2
    run, _ = replaced("true", go_on=True)
    (kept,) = run.driver.completed
    assert any(f"/chk-{kept}/" in path for path in run.store.objects)
    run.driver.end(status)
    assert not any(f"/chk-{kept}/" in path for path in run.store.objects)


def test_the_simulator_finds_that_it_deletes(monkeypatch):
    monkeypatch.setattr(JobLog, "check_leading", lambda self: None)
    monkeypatch.setattr(JobLog, "end", lambda self, status, discarded: None)
    run, old = replaced("true", go_on=False)
    old.end(EndStatus.CANCELED)
    with pytest.raises(StorageError, match="cannot find a checkpoint"):
        run.oracle.check_kept(run.driver)
    assert any(play(seed)[1] for seed in range(200))
