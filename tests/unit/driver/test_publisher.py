"""The entries that a driver claims in the job log, where storage or another entry gets in between."""

from random import Random

import pytest

from headrace import StreamExecutionEnvironment
from headrace.checkpoint import events as ev
from headrace.checkpoint.settings import CheckpointProperties, EndStatus, RetentionPolicy
from headrace.config import Configuration
from headrace.driver.job_snapshots import JobSnapshots
from headrace.errors import IllegalState
from headrace.ids import JobId
from headrace.testing.simulation.cluster import SimulatedIo
from headrace.testing.storage_faults import Fault, FaultKind, FaultyStore, Operation

CHECKPOINT = CheckpointProperties.for_checkpoint(RetentionPolicy.RETAIN_ON_CANCELLATION)


class Rig:
    """The publisher of a job that has just started; more than a hundred pauses are taken for a loop without end."""

    def __init__(self):
        self.store, self.pauses = FaultyStore(), 0
        env = StreamExecutionEnvironment.local()
        env.from_sequence(1, 3).print()
        configuration = Configuration({"execution.checkpointing.dir": "/data"})
        io = SimulatedIo(lambda: 1000, self.store, Random(1), self._pause)
        self.publisher = JobSnapshots(env._job_plan("job"), JobId("a" * 32), configuration, io).publisher

    def _pause(self):
        self.pauses += 1
        assert self.pauses < 100, "the driver never gives up"

    def publish(self, number, properties=CHECKPOINT):
        location = self.publisher.prepare(number, properties.type, "/data/savepoints")
        self.publisher.publish(ev.Content(number, 1000, properties, location, {}, {}, {}))

    def log_entries(self):
        return [path for path in self.store.objects if "/log" in path]


@pytest.fixture
def rig():
    return Rig()


def test_the_savepoint_of_a_stop_counts_only_under_the_number_that_it_names(rig):
    """What it holds was prepared for that number: another entry must not have taken it meanwhile."""
    rig.publish(1, CheckpointProperties.for_stop(force=True, drain=False))
    rig.publish(2)
    rig.publisher.claim(2, [])
    with pytest.raises(IllegalState, match="claimed while the savepoint was written; stop the job again"):
        rig.publisher.claim(1, [])


def test_a_driver_gives_up_when_the_entry_it_may_have_claimed_is_damaged(rig):
    rig.publish(1)
    rig.store.inject(Fault(FaultKind.LOST_REPLY, within="/log"))
    rig.store.inject(Fault(FaultKind.FLIP, None, Operation.READ, within="/log", amount=40))
    settled = rig.publisher.claim(1, [])
    assert isinstance(settled, ev.Superseded)
    assert "the job log is damaged" in settled.message


def test_an_end_that_cannot_be_recorded_is_none_so_that_nothing_is_deleted(rig):
    before = rig.log_entries()
    rig.store.inject(Fault(FaultKind.FAIL, None, within="/log"))
    assert rig.publisher.claim_end(EndStatus.FINISHED, []) == ev.JobEnded(EndStatus.SUSPENDED)
    assert rig.log_entries() == before
    rig.store.heal()
    assert rig.publisher.claim_end(EndStatus.FINISHED, []) == ev.JobEnded(EndStatus.FINISHED)
