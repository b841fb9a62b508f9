"""Workers that connect one after the other: nothing is sent to one that is not there yet. SPEC R9.4"""

import re

import pytest

from headgate.api.durable import unpack
from headgate.control.messages import AskForSplit
from headgate.driver.epochs import Epochs
from headgate.driver.splits import Splits
from headgate.testing.simulation import world
from headgate.testing.simulation.run import Run
from headgate.testing.simulation.world import Violation, found_splits, key_of, whole_epochs
from headgate.worker.subtask import Subtask

SOON = {"execution.checkpointing.interval": "10 ms", "execution.checkpointing.mode": "EXACTLY_ONCE"}


def all_dealt(run):
    """Whether the newest checkpoint has all splits with their readers, and nothing more to be found."""
    if not run.driver.completed:
        return False
    snapshots = run.driver.service._snapshots
    states = snapshots.driver_states(snapshots.published(run.driver.completed[-1]))
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


def restarted_runs(early):
    """Restarted runs, all splits dealt, in which one reader has nothing to read and has asked; the other has something."""
    for seed in range(40):
        run = run_until_dealt(seed)
        if run is None:
            continue
        run.restart("a worker was killed")
        sources = [w for w in run.driver.attempt.workers if isinstance(w.task, Subtask) and w.task.is_source]
        for worker in sources:
            worker.serve()  # the first turn of the worker's loop
        asking = [worker for worker in sources if asks(worker)]
        if len(asking) != 1:
            continue
        if not early:
            for worker in sources:
                run._tell_driver(worker, run.driver.attempt, run.driver)  # Register
        while asking[0].messages:
            run._tell_driver(asking[0], run.driver.attempt, run.driver)
        yield run


@pytest.mark.parametrize("early", [False, True], ids=["both connected", "one asks before the other is connected"])
def test_a_job_restored_with_all_splits_dealt_ends(early):
    runs = restarted_runs(early)
    for _ in range(3):
        next(runs).go()


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


def answer_at_once(self, task):
    """A planted bug: a reader that asks is answered though others are not connected."""
    self._assign(task.vertex, self._sources[task.vertex].assigner.request_split(task.subtask))


def first_violation(play):
    """What the first of 12 seeds that fails finds."""
    for seed in range(12):
        try:
            play(seed)
        except Violation as error:
            return str(error)
    return "nothing"


@pytest.mark.parametrize("play", [lambda _: next(restarted_runs(early=True)).go(), resume_with_owners])
def test_it_finds_that_early_asks_are_answered(monkeypatch, play):
    monkeypatch.setattr(Splits, "asked", answer_at_once)
    assert re.fullmatch(r"AssignSplits was sent to .*, which has not connected yet.*", first_violation(play))


def tell_at_once(self, line):
    """A planted bug: what a restored checkpoint holds is committed and reported though nobody is connected."""
    self._running = True
    tell(self, line)


tell = Epochs._notify


def test_it_finds_that_commits_are_reported_early(monkeypatch):
    def play(seed):
        run = Run(seed, calm=True, program=whole_epochs, parallelism=[2], options=SOON)
        while not run.driver.completed:
            run.act()
        run.restart("a worker was killed")
        run.go()

    play(0)
    monkeypatch.setattr(Epochs, "_notify", tell_at_once)
    assert re.fullmatch(r"EpochCommitted was sent to .*, which has not connected yet.*", first_violation(play))
