"""Checkpoints in the memory of the driver, which is where they are when no directory is set."""

import pytest
from edge_kit import counted, eventually

IN_MEMORY = {"execution.checkpointing.storage": "jobmanager", "execution.checkpointing.dir": ""}


# SPEC R5.10
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("incremental", ["false", "true"])
def test_a_job_is_restarted_from_the_memory_of_its_driver(cluster, backend, incremental):
    options = IN_MEMORY | {"state.backend.type": backend, "execution.checkpointing.incremental": incremental}
    job = cluster.start(options=options)
    for restarts in (1, 2):
        job.feed(40)
        job.checkpoint()
        assert cluster.comes_to_show(counted(range(job.position)))  # a start from the beginning would repeat these
        job.feed(30)  # read again by the next attempt
        job.kill_worker()
        assert eventually(lambda restarts=restarts: job.restarts == restarts)
        assert job.running()
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))
    assert not cluster.checkpoints.exists()
