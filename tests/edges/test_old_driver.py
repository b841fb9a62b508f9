"""A driver that does not know yet that another one has taken over its job harms nothing of the other one."""

import pytest
from edge_kit import counted, eventually


def two_drivers(cluster, options):
    """A job whose driver was believed dead, and the one that goes on with it."""
    old = cluster.start(options=options)
    old.feed(100)
    old.checkpoint()
    assert cluster.comes_to_show(counted(range(100)))
    new = cluster.resume(options=options)
    new.feed(50)
    return old, new


@pytest.mark.parametrize("end", ["cancel", "kill_worker"])
@pytest.mark.parametrize("incremental", ["false", "true"])
def test_the_end_of_an_old_driver_leaves_the_checkpoint_that_the_new_one_goes_on_from(cluster, end, incremental):
    options = {"execution.checkpointing.incremental": incremental, "restart-strategy.type": "none"}
    old, _ = two_drivers(cluster, options)
    files = cluster.checkpoint_files()
    getattr(old, end)()
    old.wait()
    assert cluster.checkpoint_files() == files


# SPEC R7.5
@pytest.mark.parametrize("end", ["cancel", "kill_worker"])
def test_the_end_of_an_old_driver_leaves_shared_files_that_the_new_one_builds_on(cluster, end):
    old, new = two_drivers(cluster, {"execution.checkpointing.incremental": "true", "restart-strategy.type": "none"})
    new.checkpoint()
    assert eventually(
        lambda: not list(cluster.checkpoints.glob("*/chk-1"))
    )  # the new driver has deleted what it subsumed
    files = cluster.checkpoint_files()
    getattr(old, end)()
    old.wait()
    assert cluster.checkpoint_files() == files


def test_an_old_driver_whose_checkpoint_is_gone_says_that_another_one_has_taken_over(cluster):
    old, new = two_drivers(cluster, {})
    new.checkpoint()
    assert eventually(lambda: not list(cluster.checkpoints.glob("*/chk-1")))
    old.kill_worker()
    assert old.wait() == "FAILED"
    assert "another driver has taken over" in old.error


def test_the_new_driver_goes_on_when_the_old_one_has_ended(cluster):
    old, new = two_drivers(cluster, {})
    old.cancel()
    new.kill_worker()
    assert new.running(), new.error
    new.feed_rest()
    assert new.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


def test_an_old_driver_that_restarts_its_tasks_deletes_no_prepared_file_of_the_new_one(cluster):
    old, new = two_drivers(cluster, {})
    with new.storage.hold_writes("/log/"):  # its sink has prepared a file, and the checkpoint is about to be complete
        checkpoint = new.checkpoint_later()
        assert eventually(lambda: new.storage.held)
        old.kill_worker()
        assert old.checkpoint_later().exception() is not None
    checkpoint.result()
    assert cluster.comes_to_show(counted(range(150)))
