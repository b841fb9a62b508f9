"""Workers that connect, restore and start one after the other: nothing is sent to one too early. SPEC R9.4"""

import re

import pytest

from headrace.api.durable import unpack
from headrace.control.messages import AskForSplit, StartProcessing
from headrace.driver.epochs import Epochs
from headrace.testing.simulation import world
from headrace.testing.simulation.run import Run
from headrace.testing.simulation.world import Violation, found_splits, key_of, whole_epochs
from headrace.worker.subtask import Subtask

SOON = {"execution.checkpointing.interval": "10 ms", "execution.checkpointing.mode": "EXACTLY_ONCE"}


def all_dealt(run):
    """Whether the newest checkpoint has all splits with their readers, and nothing more to be found."""
    if not run.driver.completed:
        return False
    loader = run.driver.service._snapshots.loader
    states = loader.driver_states(loader.published(run.driver.completed[-1]).manifest)
    (found,) = (unpack(bytes(state).decode()) for state in states.values())
    return found.complete and not found.unassigned


def run_until_dealt(seed):
    run = Run(seed, calm=True, program=found_splits, parallelism=[2], options=SOON)
    run.max_actions = 6000
    while not run.driver.ended:
        run.outcome.actions += 1
        run.act()
        run._check()
        if all_dealt(run):
            return run
    return None


def asks(worker):
    return any(isinstance(message, AskForSplit) for message in worker.messages)


def start_tasks(run):
    """Let all workers connect and restore their state, and hear that they may start."""
    for worker in run.driver.attempt.workers:
        while worker.messages:
            run._tell_driver(worker, run.driver.attempt, run.driver)
    for worker in run.driver.attempt.workers:
        worker.hear()


def restarted_runs(early):
    """Restarted runs, all splits dealt, in which one reader has nothing to read and has asked; the other has something.

    `early`: it has asked before the driver knows that the other one runs.
    """
    for seed in range(40):
        run = run_until_dealt(seed)
        if run is None:
            continue
        run.restart("a worker was killed")
        start_tasks(run)
        sources = [w for w in run.driver.attempt.workers if isinstance(w.task, Subtask) and w.task.source is not None]
        asking = [worker for worker in sources if asks(worker)]
        if len(asking) != 1:
            continue
        for worker in asking if early else sources:
            while worker.messages:
                run._tell_driver(worker, run.driver.attempt, run.driver)
        yield run


@pytest.mark.parametrize("early", [False, True], ids=["both run", "one asks before the other runs"])
def test_a_job_restored_with_all_splits_dealt_ends(early):
    runs = restarted_runs(early)
    for _ in range(3):
        next(runs).go()


def test_no_record_is_processed_before_every_task_has_restored_its_state():
    run = run_until_dealt(0)
    run.restart("a worker was killed")
    *others, last = run.driver.attempt.workers
    for worker in others:
        while worker.messages:
            run._tell_driver(worker, run.driver.attempt, run.driver)
    assert not any(worker.inbox for worker in run.driver.attempt.workers)
    assert not any(worker.task.has_work() for worker in run.driver.attempt.workers)
    while last.messages:
        run._tell_driver(last, run.driver.attempt, run.driver)
    assert [type(worker.inbox[0]) for worker in run.driver.attempt.workers] == [StartProcessing] * (len(others) + 1)
    run.go()


class OwnedChunks(world.Chunks):
    """Splits that anybody may read at parallelism 1, and that have owners at a higher one."""

    def enumerator(self, restored):
        return OwnedEnumerator(self._records, restored or 0)


class OwnedEnumerator(world._ChunkEnumerator):
    def owner(self, split, parallelism):
        return None if parallelism == 1 else split.end % parallelism


def owned_splits(env, run, records):
    env.from_source(OwnedChunks(records)).key_by(key_of).process(world.Number()).sink_to(world.NumberedSink(run))


def resume_with_owners(seed):
    """Resume with parallelism 3 a job that was at parallelism 1."""
    run = Run(seed, calm=True, program=owned_splits, parallelism=[1, 3], options=SOON)
    run.max_actions = 8000
    while not run.driver.completed:
        run.act()
        run._check()
    run.replace_driver()
    run.go()


@pytest.mark.parametrize("seed", range(12))
def test_no_split_is_lost_when_its_owner_changes(seed):
    resume_with_owners(seed)


def first_violation(play):
    """What the first of 12 seeds that fails finds."""
    for seed in range(12):
        try:
            play(seed)
        except Violation as error:
            return str(error)
    return "nothing"


def commit_at_once(self, *restored):
    """A planted bug: what a restored checkpoint holds is committed and reported though no subtask is connected."""
    start_attempt(self, *restored)
    self.job_running()


start_attempt = Epochs.start_attempt


def test_it_finds_that_commits_are_reported_early(monkeypatch):
    def play(seed):
        run = Run(seed, calm=True, program=whole_epochs, parallelism=[2], options=SOON)
        while not run.driver.completed:
            run.act()
        run.restart("a worker was killed")
        run.go()

    play(0)
    monkeypatch.setattr(Epochs, "start_attempt", commit_at_once)
    assert re.fullmatch(r"EpochCommitted was sent to .*, which has not connected yet.*", first_violation(play))
