"""A job ends when it is told to, whatever the driver waits for."""

import threading

import pytest
from edge_kit import (
    EpochLedgerSink,
    Numbers,
    break_storage,
    eventually,
    finished_subtasks,
    in_background,
    wait_running,
    wait_until,
)

RESTARTS = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10 ms"}


@pytest.fixture
def hanging(jobs, tap, ledger, tmp_path):
    """A job whose commit on the driver does not return."""
    reached, release = threading.Event(), threading.Event()

    def hang(number):
        reached.set()
        release.wait(240)  # longer than a cancel may take

    ledger.before_commit = hang
    jobs.at_end(release.set)

    def build(env):
        env.from_source(Numbers(tap.name)).sink_to(EpochLedgerSink(ledger.name))

    client = wait_running(jobs.start(tmp_path, build, RESTARTS))
    tap.give(10)
    client.trigger_checkpoint()
    assert reached.wait(60)
    return client


def test_a_job_that_restarts_is_cancelled_while_a_commit_hangs(hanging, tap):
    tap.fail()
    wait_until(lambda: hanging.get_job_status().name == "RESTARTING")
    assert hanging.cancel(timeout=120).name == "CANCELED"


def test_a_job_at_the_end_of_its_data_is_cancelled_while_a_commit_hangs(hanging, tap):
    tap.end(0)
    eventually(lambda: finished_subtasks(hanging), 2)
    assert hanging.cancel(timeout=120).name == "CANCELED"


def test_a_running_job_is_cancelled_while_a_commit_hangs(hanging):
    assert hanging.cancel(timeout=120).name == "CANCELED"


def test_a_job_that_restarts_is_cancelled_while_the_job_log_does_not_answer(jobs, tap, tmp_path, monkeypatch):
    client = wait_running(jobs.start(tmp_path, lambda env: env.from_source(Numbers(tap.name)).print(), RESTARTS))
    outage = break_storage(monkeypatch, "/log/")
    jobs.at_end(outage.end)
    in_background(client.trigger_checkpoint)
    assert outage.reached.wait(60)
    tap.fail()
    wait_until(lambda: client.get_job_status().name == "RESTARTING")
    assert client.cancel(timeout=120).name == "CANCELED"
