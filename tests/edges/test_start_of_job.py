"""A job that cannot start, or that the driver itself fails, keeps what it was to start from."""

import sys

from edge_kit import Count, counted, eventually, key_of

from headrace.connectors.files import FileSink


def stored_job(cluster, options=None):
    """A job with a completed checkpoint whose driver is gone; the files of the checkpoint."""
    job = cluster.start(options=options)
    job.feed(100)
    job.checkpoint()
    assert cluster.comes_to_show(counted(range(100)))
    job.kill_driver()
    files = cluster.checkpoint_files()
    assert any(path.endswith("_metadata") for path in files)
    return files


def renamed(cluster):
    """The program with another uid for the operator that has state."""

    def program(numbers):
        numbers.key_by(key_of).process(Count()).uid("renamed").sink_to(FileSink(str(cluster.output), "text")).uid(
            "files"
        )

    return program


# SPEC R8.5
def test_resume_with_an_operator_renamed_refuses_and_deletes_nothing(cluster):
    files = stored_job(cluster)
    job = cluster.resume(renamed(cluster))
    assert job.wait() == "FAILED"
    assert "'Keyed Process' (uid count)" in job.error
    assert cluster.checkpoint_files() == files


def test_resume_with_another_max_parallelism_refuses_and_deletes_nothing(cluster):
    files = stored_job(cluster)
    job = cluster.resume(max_parallelism=64)
    assert job.wait() == "FAILED"
    assert "max parallelism" in job.error
    assert cluster.checkpoint_files() == files


def test_the_mistake_is_put_right_and_the_job_goes_on(cluster):
    stored_job(cluster)
    assert cluster.resume(renamed(cluster)).wait() == "FAILED"
    job = cluster.resume()
    assert job.running(), job.error
    assert job.position == 100
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


# SPEC R8.4
def test_a_claimed_checkpoint_that_the_program_does_not_fit_stays(cluster):
    incremental = {"execution.checkpointing.incremental": "true"}
    files = stored_job(cluster, incremental)
    (checkpoint,) = cluster.checkpoints.glob("*/chk-*")
    claiming = {"execution.state-recovery.claim-mode": "CLAIM"}
    job = cluster.start_from(checkpoint, renamed(cluster), incremental | claiming)
    assert job.wait() == "FAILED"
    assert "'Keyed Process' (uid count)" in job.error
    assert cluster.checkpoint_files() == files


def test_storage_that_does_not_answer_during_a_restart_costs_restarts_and_not_the_job(cluster):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    job.feed(100)
    job.storage.go_down()
    job.kill_worker()
    assert eventually(lambda: job.storage.refused >= 25 or job.ended)
    job.storage.come_back()
    assert job.running(), job.error
    job.feed_rest()
    assert job.wait() == "FINISHED"
    assert cluster.visible() == counted(range(400))


def test_storage_that_does_not_answer_leads_to_no_deletion(cluster):
    job = cluster.start(
        options={"restart-strategy.fixed-delay.attempts": "1", "restart-strategy.fixed-delay.delay": "1 ms"}
    )
    job.feed(100)
    job.checkpoint()
    files = cluster.checkpoint_files()
    job.storage.go_down()
    job.kill_worker()
    assert job.wait() == "FAILED"
    assert cluster.checkpoint_files() == files


class ClosedOutput:
    """The standard output of a driver whose terminal is gone."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self):
        pass


def test_an_error_inside_the_driver_deletes_nothing(cluster, monkeypatch):
    def printed(numbers):
        numbers.key_by(key_of).process(Count()).uid("count").print()

    job = cluster.start(printed)
    job.feed(100)
    job.checkpoint()
    files = cluster.checkpoint_files()
    monkeypatch.setattr(sys, "stdout", ClosedOutput())
    job.feed(1)
    assert job.wait() == "FAILED"
    assert "Broken pipe" in job.error
    assert cluster.checkpoint_files() == files
