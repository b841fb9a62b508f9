"""A driver that does not know yet that another one has taken over its job harms nothing of the other one."""

import pytest
from edge_kit import counted, eventually

from headrace.driver import resume


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


class Meanwhile:
    """Calls `act` once, between the moment when a new driver has read the log and the one when it claims it."""

    def __init__(self, monkeypatch, act):
        self._act, self._read = act, resume.newest_job
        monkeypatch.setattr(resume, "newest_job", self)

    def __call__(self, *arguments):
        entry = self._read(*arguments)
        if self._act is not None:
            act, self._act = self._act, None
            act()
        return entry


def job_with_output(cluster, retained):
    first = cluster.start(options={"execution.checkpointing.num-retained": retained})
    first.feed(40)
    first.checkpoint()
    first.feed(10)
    return first


@pytest.mark.parametrize("retained", ["1", "2"])
def test_a_checkpoint_that_the_old_driver_completes_during_a_resume_is_the_one_that_is_restored(
    cluster, monkeypatch, retained
):
    first = job_with_output(cluster, retained)

    def complete():
        first.checkpoint()
        assert cluster.comes_to_show(counted(range(50)))
        first.has_cleaned_up()

    Meanwhile(monkeypatch, complete)
    second = cluster.resume(options={"execution.checkpointing.num-retained": retained})
    assert second.running(), second.error
    second.feed_rest()
    assert second.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


def test_a_job_that_is_stopped_during_a_resume_continues_from_its_savepoint(cluster, monkeypatch):
    first = job_with_output(cluster, "2")
    Meanwhile(monkeypatch, lambda: first.stop(cluster.savepoints))
    second = cluster.resume()
    assert second.running(), second.error
    second.feed_rest()
    assert second.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


def test_a_job_that_finishes_during_a_resume_is_not_run_again(cluster, monkeypatch):
    first = job_with_output(cluster, "1")

    def finish():
        first.feed_rest()
        assert first.wait() == "FINISHED"

    Meanwhile(monkeypatch, finish)
    second = cluster.resume(options={"restart-strategy.type": "none"})
    assert second.wait() == "FAILED"
    assert "is FINISHED and has retained no checkpoint; start it without --resume" in second.error
    assert cluster.visible() == counted(range(400))


def test_an_old_driver_that_is_faster_each_time_is_named(cluster, monkeypatch):
    first = job_with_output(cluster, "1")
    monkeypatch.setattr(resume, "_CLAIM_TRIES", 2)
    read = resume.newest_job

    def newest_job(*arguments):
        entry = read(*arguments)
        first.checkpoint()
        return entry

    monkeypatch.setattr(resume, "newest_job", newest_job)
    second = cluster.resume(options={"restart-strategy.type": "none"})
    assert second.wait() == "FAILED"
    assert "2 times in a row; stop or cancel that driver first" in second.error
    assert first.running()
    first.feed_rest()
    assert first.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))
