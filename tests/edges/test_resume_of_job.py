"""A resumed job goes on from what the job log says, and leaves what belongs to the user alone."""

import pytest
from edge_kit import counted, files_below


# SPEC R8.1, R8.4
@pytest.mark.parametrize("incremental", ["false", "true"])
@pytest.mark.parametrize("format", ["CANONICAL", "NATIVE"])
def test_the_savepoint_that_a_job_was_stopped_with_stays_whole(cluster, format, incremental):
    options = {"execution.checkpointing.incremental": incremental}
    job = cluster.start(options=options)
    job.feed(100)
    savepoint = job.stop(cluster.savepoints, format=format)
    files = files_below(savepoint)
    resumed = cluster.resume(options=options)
    for _ in range(3):
        resumed.feed(10)
        resumed.checkpoint()
    resumed.feed_rest()
    assert resumed.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))
    assert files_below(savepoint) == files


# SPEC R8.4
def test_a_driver_lost_before_the_first_checkpoint_goes_on_from_where_its_job_started(cluster):
    first = cluster.start()
    first.feed(100)
    savepoint = first.stop(cluster.savepoints)
    second = cluster.start_from(savepoint)
    assert second.running(), second.error
    assert second.position == 100
    second.kill_driver()
    resumed = cluster.resume()
    assert resumed.running(), resumed.error
    assert resumed.position == 100
    resumed.feed_rest()
    assert resumed.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


# SPEC R8.4
@pytest.mark.parametrize("resumed_as", ["LEGACY", "NO_CLAIM"])
def test_a_savepoint_that_increments_built_on_stays_whole_after_a_resume(cluster, resumed_as):
    options = {"execution.checkpointing.incremental": "true", "execution.state-recovery.claim-mode": "LEGACY"}
    first = cluster.start(options=options)
    first.feed(100)
    savepoint = first.stop(cluster.savepoints, format="NATIVE")
    files = files_below(savepoint)
    second = cluster.start_from(savepoint, options=options)
    second.feed(10)
    second.checkpoint()
    second.kill_driver()
    resumed = cluster.resume(options=options | {"execution.state-recovery.claim-mode": resumed_as})
    resumed.feed(10)
    resumed.client.trigger_checkpoint(full=True)
    for _ in range(2):
        resumed.feed(10)
        resumed.checkpoint()
    resumed.feed_rest()
    assert resumed.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))
    assert files_below(savepoint) == files


def test_a_job_cannot_be_resumed_with_checkpoints_in_the_memory_of_the_driver(cluster):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    job.kill_driver()
    files = files_below(cluster.checkpoints)
    resumed = cluster.resume(options={"execution.checkpointing.storage": "jobmanager"})
    assert resumed.wait() == "FAILED"
    assert "execution.checkpointing.storage=filesystem" in resumed.error
    assert files_below(cluster.checkpoints) == files
