"""The state browser reads checkpoints that a job replaces meanwhile. SPEC R10.4"""

from functools import partial
from types import SimpleNamespace

import pytest

from headrace.rest import state_browser
from headrace.rest.state_browser import StateBrowser
from headrace.storage.objects import MissingObject


class Checkpoints:
    """Of a job, one after the other; those before `whole` are deleted while they are opened, or while they are read."""

    def __init__(self, monkeypatch, whole, when, step=1):
        self.taken, self.whole, self.when, self.step = 0, whole, when, step
        self.tries = 0
        self.job = SimpleNamespace(job_id="a" * 32, service=self)
        monkeypatch.setattr(state_browser, "StateSnapshotReader", lambda snapshot, store: snapshot)
        monkeypatch.setattr(state_browser, "_states", lambda number: {"checkpoint": self.check(number, "read")})

    @property
    def newest_checkpoint(self):
        self.taken += self.step
        return max(1, self.taken)

    def snapshot_of(self, number):
        self.tries += 1
        return self.check(number, "opened")

    def check(self, number, when):
        if number < self.whole and when == self.when:
            raise MissingObject(f"checkpoint {number} is gone")
        return number


@pytest.fixture(params=["opened", "read"])
def checkpoints(monkeypatch, request):
    return partial(Checkpoints, monkeypatch, when=request.param)


def test_checkpoints_that_are_replaced_while_they_are_read(checkpoints):
    made = checkpoints(whole=9)
    assert StateBrowser().states(made.job) == {"checkpoint": 9}


def test_a_checkpoint_that_cannot_be_read_and_is_not_replaced(checkpoints):
    made = checkpoints(whole=9, step=0)
    with pytest.raises(MissingObject, match="checkpoint 1 is gone"):
        StateBrowser().states(made.job)
    assert made.tries == 2  # and not as long as it would wait for newer ones


def test_it_does_not_try_for_ever(checkpoints):
    times = iter(range(0, 10_000, 25))
    made = checkpoints(whole=1000)
    with pytest.raises(MissingObject, match="checkpoint 3 is gone"):
        StateBrowser(lambda: next(times)).states(made.job)
    assert made.taken == 3
