"""Seeds that pass, and bugs planted on purpose that the simulator must find: else it proves nothing."""

import pytest

from effort import examples
from headgate.driver.checkpoints import CheckpointService
from headgate.errors import IllegalState
from headgate.state.hashmap.increments import History
from headgate.storage.shared import SharedStateRegistry
from headgate.testing.simulation.run import play
from headgate.testing.simulation.world import Violation
from headgate.worker.inputs import Inputs
from headgate.worker.subtask import Subtask

FIXED = range(examples(40))
WITHIN = 500


@pytest.mark.parametrize("seed", FIXED)
def test_a_seed_passes(seed):  # SPEC R6.0, R5.8, R7.5, R9.2
    outcome, error = play(seed)
    assert error is None, f"{outcome}: {error}"


def test_a_seed_plays_the_same_again():
    first, _ = play(3)
    again, _ = play(3)
    assert first == again


def first_failure():
    """Why the first seed that fails does so."""
    found = next((error for seed in range(WITHIN) if (error := play(seed)[1]) is not None), None)
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
    confirmed, register = History.base_for, SharedStateRegistry.register

    def hasty(self, live_entries):
        written = [taken for taken in self.undecided.values() if taken.segments is not None]
        return written[-1] if written else confirmed(self, live_entries)

    def strict(self, key, handle, checkpoint_id):
        try:
            return register(self, key, handle, checkpoint_id)
        except IllegalState as error:  # in production the checkpoint is declined
            raise Violation(str(error)) from error

    monkeypatch.setattr(SharedStateRegistry, "register", strict)
    monkeypatch.setattr(
        CheckpointService, "_register_shared", lambda self, do: self._snapshots.register(do.checkpoint_id, do.state)
    )
    assert play(0)[1] is None
    monkeypatch.setattr(History, "base_for", hasty)
    assert "which is not known" in first_failure()
