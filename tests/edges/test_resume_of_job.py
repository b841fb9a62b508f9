"""A resumed job goes on from what the job log says, and leaves what belongs to the user alone."""

import pytest
from edge_kit import counted, files_below


# SPEC R8.1, R8.4
@pytest.mark.xfail(
    strict=True, reason="a resumed job takes the savepoint of `headgate stop` for its own and deletes its files"
)
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
