"""The state browser reads checkpoints that a job replaces meanwhile. SPEC R10.4"""

from types import SimpleNamespace

import pytest

from headgate.rest import state_browser
from headgate.rest.state_browser import StateBrowser
from headgate.storage.objects import MissingObject

JOB = SimpleNamespace(job_id="a" * 32)


class Checkpoints:
    """A checkpoint after the other; those before `whole` are deleted while they are read."""

    def __init__(self, monkeypatch, whole, step=1):
        self.taken, self.whole, self.step = 0, whole, step
        monkeypatch.setattr(state_browser, "_reader", self.newest)
        monkeypatch.setattr(state_browser, "_states", self.read)

    def newest(self, job):
        self.taken += self.step
        return SimpleNamespace(manifest=SimpleNamespace(checkpoint_id=max(1, self.taken)))

    def read(self, reader):
        if reader.manifest.checkpoint_id < self.whole:
            raise MissingObject(f"checkpoint {reader.manifest.checkpoint_id} is gone")
        return {"checkpoint": reader.manifest.checkpoint_id}


def test_checkpoints_that_are_replaced_while_they_are_read(monkeypatch):
    Checkpoints(monkeypatch, whole=9)
    assert StateBrowser().states(JOB) == {"checkpoint": 9}


def test_a_checkpoint_that_cannot_be_read_and_is_not_replaced(monkeypatch):
    Checkpoints(monkeypatch, whole=9, step=0)
    with pytest.raises(MissingObject, match="checkpoint 1 is gone"):
        StateBrowser().states(JOB)


def test_it_does_not_try_for_ever(monkeypatch):
    times = iter(range(0, 10_000, 25))
    checkpoints = Checkpoints(monkeypatch, whole=1000)
    with pytest.raises(MissingObject, match="checkpoint 3 is gone"):
        StateBrowser(lambda: next(times)).states(JOB)
    assert checkpoints.taken == 3
