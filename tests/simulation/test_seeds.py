"""Seeds that pass, and bugs planted on purpose that the simulator must find: else it proves nothing."""

import pytest

from effort import examples
from headgate.state.hashmap.increments import History
from headgate.testing.simulation.run import play
from headgate.worker.inputs import Inputs
from headgate.worker.subtask import Subtask

FIXED = [*range(examples(40)), 823]  # 823: a replaced driver that waits for its restart ends
WITHIN = 500


@pytest.mark.parametrize("seed", FIXED)
def test_a_seed_passes(seed):  # SPEC R6.0, R5.8, R7.5, R9.2
    outcome, error = play(seed)
    assert error is None, f"{outcome}: {error}"


def test_a_seed_plays_the_same_again():
    first, _ = play(3)
    again, _ = play(3)
    assert first == again


def first_failure(begin=0):
    """Why the first seed that fails does so."""
    found = next((error for seed in range(begin, WITHIN) if (error := play(seed)[1]) is not None), None)
    assert found is not None, f"the planted bug was not found within {WITHIN} seeds"
    return found


def test_it_finds_that_channels_are_not_blocked(monkeypatch):  # SPEC R6.2
    monkeypatch.setattr(Inputs, "block", lambda self, channel: None)
    assert "Violation" in first_failure()


def test_it_finds_a_commit_before_the_checkpoint_is_complete(monkeypatch):  # SPEC R9.2
    snapshot = Subtask._snapshot

    def hasty(self, instruction):
        snapshot(self, instruction)
        self.notify_complete(instruction.barrier.id)

    monkeypatch.setattr(Subtask, "_snapshot", hasty)
    assert "Violation" in first_failure()


def test_it_finds_an_increment_on_an_unconfirmed_checkpoint(monkeypatch):  # SPEC R7.4
    confirmed = History.base_for

    def hasty(self, live_entries):
        written = [taken for taken in self.undecided.values() if taken.segments is not None]
        return written[-1] if written else confirmed(self, live_entries)

    monkeypatch.setattr(History, "base_for", hasty)
    assert first_failure(begin=27)  # few seeds meet it; this is the first one
