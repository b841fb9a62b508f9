"""What of a job's snapshots is known, used and kept when it goes on, possibly as another program."""

import pytest
from edge_kit import (
    LedgerSink,
    Numbers,
    check_whole,
    checkpoints,
    damage,
    files,
    finished_subtasks,
    job_directory,
    numbered,
    numbering,
    retained,
    wait_ended,
    wait_running,
    wait_until,
)

from headrace.errors import HeadraceError

THREE = {"execution.checkpointing.num-retained": "3", "execution.checkpointing.incremental": "true"}
RESTARTS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "headrace.recovery.allow-repeated-output": "true",
}


def take_checkpoints(client, tap, *counts):
    """One checkpoint behind each of these records."""
    for count in counts:
        tap.give(count)
        client.trigger_checkpoint()


@pytest.fixture
def crashed(jobs, tap, ledger, tmp_path):
    """The directory of a job that has retained chk-1, chk-2 and chk-3 when its driver died."""
    client = wait_running(jobs.start(tmp_path / "checkpoints", numbering(tap, ledger), THREE))
    take_checkpoints(client, tap, 10, 20, 30)
    wait_until(lambda: retained(tmp_path / "checkpoints") == ["chk-1", "chk-2", "chk-3"])
    jobs.crash(client, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_a_resumed_job_steps_back_over_a_damaged_checkpoint(jobs, tap, ledger, crashed):
    client = wait_running(jobs.resume(crashed, numbering(tap, ledger), THREE | RESTARTS))
    damage(job_directory(crashed) / "chk-3" / "_metadata")
    tap.fail()
    wait_until(lambda: client.job.restarts)
    tap.let(40)
    tap.close()
    assert wait_ended(client) == ("FINISHED", None)
    assert ledger.visible.keys() == numbered(40).keys()


def test_a_resumed_job_keeps_as_many_checkpoints_as_it_should(jobs, tap, ledger, crashed):
    client = wait_running(jobs.resume(crashed, numbering(tap, ledger), THREE))
    take_checkpoints(client, tap, 40, 50, 60)
    assert retained(crashed) == ["chk-4", "chk-5", "chk-6"]
    wait_until(lambda: checkpoints(crashed) == ["chk-4", "chk-5", "chk-6"], "the end of older checkpoints")


def test_every_checkpoint_that_the_log_of_a_resumed_job_names_is_whole(jobs, tap, ledger, crashed):
    client = wait_running(jobs.resume(crashed, numbering(tap, ledger), THREE))
    take_checkpoints(client, tap, 40)
    wait_until(lambda: client.trigger_checkpoint(full=True))
    take_checkpoints(client, tap, 50, 60)
    for name in retained(crashed):
        check_whole(job_directory(crashed) / name)


def test_a_job_is_resumed_though_an_older_checkpoint_is_damaged(jobs, tap, ledger, crashed, caplog):
    damage(job_directory(crashed) / "chk-2" / "_metadata")
    client = wait_running(jobs.resume(crashed, numbering(tap, ledger), THREE))
    assert "checkpoint 2 is DAMAGED" in caplog.text
    take_checkpoints(client, tap, 40, 50, 60)
    assert retained(crashed) == ["chk-4", "chk-5", "chk-6"]
    wait_until(lambda: checkpoints(crashed) == ["chk-4", "chk-5", "chk-6"], "the end of older checkpoints")
    for name in retained(crashed):
        check_whole(job_directory(crashed) / name)


def test_the_log_forgets_a_checkpoint_that_was_stepped_back_over(jobs, tap, ledger, tmp_path):
    client = wait_running(jobs.start(tmp_path, numbering(tap, ledger), THREE | RESTARTS))
    take_checkpoints(client, tap, 10, 20, 30)
    damage(job_directory(tmp_path) / "chk-3" / "_metadata")
    tap.fail()
    wait_until(lambda: client.job.restarts)
    wait_running(client)
    take_checkpoints(client, tap, 40)
    assert "chk-3" not in retained(tmp_path)


# SPEC R3.3
def test_a_resumed_job_takes_over_the_max_parallelism_of_its_state(jobs, tap, ledger, crashed):
    tap.let(40)
    tap.close()
    client = jobs.resume(crashed, numbering(tap, ledger), THREE, max_parallelism=None)
    assert wait_ended(client) == ("FINISHED", None)
    assert ledger.visible.keys() == numbered(40).keys()


# SPEC R4.5
def test_a_new_source_before_a_finished_operator_is_refused(jobs, tap, ledger, tmp_path):
    def program(env, with_new_source):
        short = env.from_source(Numbers(tap.name, 1)).uid("short")
        if with_new_source:
            short = short.union(env.from_source(Numbers(tap.name, 3)).uid("new"))
        short.rebalance().map(lambda n: n).uid("map").sink_to(LedgerSink(ledger.name)).uid("sink")
        env.from_source(Numbers(tap.name, 2)).uid("long").map(lambda n: n).uid("other")

    tap.let(10, split=0)
    client = wait_running(jobs.start(tmp_path, lambda env: program(env, False)))
    tap.end(0)
    client.trigger_checkpoint()
    wait_until(lambda: finished_subtasks(client) >= 2)
    savepoint = client.trigger_savepoint(str(tmp_path / "savepoints"))
    client.cancel()
    tap.close()
    edited = jobs.start(
        tmp_path / "edited", lambda env: program(env, True), {"execution.state-recovery.path": savepoint}
    )
    with pytest.raises(HeadraceError, match="finished in the checkpoint, but its predecessor"):
        edited.wait(60)


def test_a_claimed_savepoint_stays_when_the_program_does_not_fit(jobs, tap, ledger, tmp_path):
    client = wait_running(jobs.start(tmp_path / "first", numbering(tap, ledger)))
    tap.give(10)
    savepoint = client.stop_with_savepoint(savepoint_directory=str(tmp_path / "savepoints"))
    before = files(savepoint)
    assert before
    options = {"execution.state-recovery.path": savepoint, "execution.state-recovery.claim-mode": "CLAIM"}
    other = jobs.start(
        tmp_path / "second", lambda env: env.from_source(Numbers(tap.name)).sink_to(LedgerSink(ledger.name)), options
    )
    with pytest.raises(HeadraceError, match="operators that the program does not have any more"):
        other.wait(60)
    assert files(savepoint) == before
