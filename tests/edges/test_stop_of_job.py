"""A stop that fails leaves a job that continues as if it had not been requested."""

import pytest
from edge_kit import counted, refuse_once

from headrace.errors import HeadraceError


# SPEC R8.3
@pytest.mark.parametrize("drain", [True, False], ids=["drain", "suspend"])
def test_a_stop_whose_savepoint_fails_loses_no_input(cluster, drain):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    job.feed(50)
    job.storage.fail_next_write("_metadata")
    with pytest.raises(HeadraceError, match="the disk is broken"):
        job.stop(cluster.savepoints, drain=drain)
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


# SPEC R8.3
def test_a_drain_that_meets_a_finishing_task_is_tried_again_when_the_job_has_restarted(cluster, monkeypatch):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    job.feed(50)
    refuse_once(monkeypatch)
    job.stop(cluster.savepoints, drain=True)
    assert job.wait() == "FINISHED"
    assert job.restarts == 1
    assert job.position >= 100
    assert cluster.visible() == counted(range(job.position))


# SPEC R8.3
@pytest.mark.parametrize(
    "options",
    [
        {"execution.checkpointing.interval": ""},
        {"execution.checkpointing.checkpoints-after-tasks-finish": "false"},
    ],
    ids=["no periodic checkpoints", "no final checkpoint"],
)
def test_a_job_that_waits_for_no_final_checkpoint_drains_into_a_savepoint(cluster, options):
    job = cluster.start(options=options)
    job.feed(100)
    job.stop(cluster.savepoints, drain=True)
    assert job.wait() == "FINISHED"
    assert job.restarts == 0
    assert cluster.visible() == counted(range(job.position))
