"""execution.checkpointing.incremental=true in jobs that have nothing yet to build increments on."""

import pytest
from edge_kit import counted

from headrace.driver.shared_files import SharedFiles
from headrace.errors import HeadraceError, IllegalState

INCREMENTAL = {"execution.checkpointing.incremental": "true"}


def goes_on(cluster, job):
    """Several checkpoints, then the end."""
    for _ in range(4):
        job.feed(10)
        job.checkpoint()
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert job.restarts == 0
    assert cluster.visible() == counted(range(400))


def full_checkpoint(cluster):
    """A job that took a checkpoint with incremental=false, and whose driver is gone."""
    job = cluster.start(options={"execution.checkpointing.incremental": "false"})
    job.feed(100)
    job.checkpoint()
    assert cluster.comes_to_show(counted(range(100)))
    job.kill_driver()


# SPEC R7.4
def test_a_job_with_full_checkpoints_is_resumed_with_incremental_ones(cluster):
    full_checkpoint(cluster)
    goes_on(cluster, cluster.resume(options=INCREMENTAL))


# SPEC R8.4
@pytest.mark.parametrize("mode", ["CLAIM", "LEGACY"])
def test_a_job_with_incremental_checkpoints_starts_from_a_full_one_of_another_job(cluster, mode):
    full_checkpoint(cluster)
    (checkpoint,) = cluster.checkpoints.glob("*/chk-*")
    goes_on(
        cluster, cluster.start_from(checkpoint, options=INCREMENTAL | {"execution.state-recovery.claim-mode": mode})
    )


# SPEC R7.6
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("claimed", [False, True])
def test_the_chain_continues_after_a_resume(cluster, backend, claimed):
    options = INCREMENTAL | {"state.backend.type": backend, "execution.checkpointing.data-inline-threshold": "0 b"}

    def chain(job):
        job.feed(10)
        number = job.checkpoint()
        found = job.client.job.stats.snapshot().find(number)
        return found.chain_length, found.full

    job = cluster.start(options=options)
    assert [chain(job) for _ in range(3)] == [(1, False), (2, False), (3, False)]
    job.kill_driver()
    if claimed:
        (checkpoint,) = cluster.checkpoints.glob("*/chk-3")
        job = cluster.start_from(checkpoint, options=options | {"execution.state-recovery.claim-mode": "CLAIM"})
    else:
        job = cluster.resume(options=options)
    assert [chain(job) for _ in range(2)] == [(4, False), (5, False)]
    job.cancel()


# SPEC R5.10
def test_incremental_checkpoints_in_the_memory_of_the_driver(cluster):
    in_memory = {"execution.checkpointing.storage": "jobmanager", "execution.checkpointing.dir": ""}
    goes_on(cluster, cluster.start(options=INCREMENTAL | in_memory))


# SPEC R5.6
def test_an_acknowledgement_that_cannot_be_handled_fails_its_checkpoint_only(cluster, monkeypatch):
    register = SharedFiles.register
    refused = []

    def refuse_once(self, checkpoint_id, state):
        if checkpoint_id in refused or not refused:
            refused.append(checkpoint_id)
            raise IllegalState("builds on shared state which is not known")
        return register(self, checkpoint_id, state)

    monkeypatch.setattr(SharedFiles, "register", refuse_once)
    job = cluster.start(options=INCREMENTAL | {"execution.checkpointing.tolerable-failed-checkpoints": "1"})
    job.feed(10)
    with pytest.raises(HeadraceError, match="builds on shared state which is not known"):
        job.checkpoint()
    goes_on(cluster, job)
