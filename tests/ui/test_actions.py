"""What the buttons do: asked first, sent with the header that other sites cannot send, told how it ended."""

from __future__ import annotations

import pytest
from simulated_job import JOB, SimulatedJob
from simulated_server import SimulatedServer


@pytest.fixture
def server():
    with SimulatedServer(SimulatedJob(operators=4, parallelism=2)).run() as server:
        yield server


@pytest.fixture
def job(server) -> SimulatedJob:
    return server.jobs[JOB]


@pytest.fixture
def opened(server, watched):
    page = watched.go(f"{server.url}#/jobs/{JOB}")
    page.get_by_role("group", name="Actions").wait_for()
    return page


def press(page, name: str, confirm: str | None = None) -> None:
    page.get_by_role("group", name="Actions").get_by_role("button", name=name, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=confirm or name, exact=True).click()


def result(page) -> str:
    message = page.locator(".reports p:not(.busy)").first
    message.wait_for()
    return message.locator("span").inner_text()


def test_checkpoints(opened, job):
    press(opened, "Checkpoint")
    assert result(opened) == "Checkpoint 14 is complete."
    opened.get_by_role("button", name="Dismiss").click()
    press(opened, "Full checkpoint")
    assert result(opened) == "Full checkpoint 15 is complete."
    assert [body["checkpointType"] for _, _, body in job.requests] == ["CONFIGURED", "FULL"]


def test_a_new_checkpoint_appears_by_itself(opened, job):
    opened.goto(f"{opened.url}/checkpoints/history")
    opened.get_by_role("link", name="Checkpoint 13 with its timeline").wait_for()
    job.checkpoint()
    job.checkpoint()
    opened.get_by_role("link", name="Checkpoint 14 with its timeline").wait_for()


def test_savepoint(opened, job):
    opened.get_by_role("button", name="Savepoint", exact=True).click()
    dialog = opened.get_by_role("dialog")
    dialog.get_by_label("Directory").fill("s3://mine")
    dialog.get_by_label("Format").select_option("NATIVE")
    dialog.get_by_role("button", name="Savepoint").click()
    assert result(opened) == "The savepoint is at s3://mine/savepoint-1."
    assert job.requests[-1][2] == {"target-directory": "s3://mine", "formatType": "NATIVE"}


def test_rescale(opened, job):
    opened.get_by_role("button", name="Rescale", exact=True).click()
    number = opened.get_by_role("dialog").get_by_label("Parallelism")
    assert number.input_value() == "2"
    number.fill("4")
    opened.wait_for_timeout(1200)  # events arrive meanwhile: what was typed stays
    assert number.input_value() == "4"
    opened.get_by_role("dialog").get_by_role("button", name="Rescale").click()
    assert result(opened) == "The job runs with parallelism 4."
    opened.locator(".node", has_text="×4").first.wait_for()
    assert job.requests[-1] == ("PATCH", f"/v1/jobs/{JOB}/rescaling", {"parallelism": "4"})


def test_stop_with_a_savepoint(opened, job):
    opened.get_by_role("button", name="Stop", exact=True).click()
    opened.get_by_role("dialog").get_by_label("Drain", exact=False).check()
    opened.get_by_role("dialog").get_by_role("button", name="Stop").click()
    assert result(opened) == "The job has stopped. Its savepoint is at s3://savepoints/savepoint-2."
    assert job.requests[-1][2] == {"formatType": "CANONICAL", "drain": True}
    opened.locator("header .status", has_text="finished").wait_for()
    assert opened.get_by_role("button", name="Stop", exact=True).is_disabled()


def test_cancel(opened, job):
    press(opened, "Cancel", "Cancel the job")
    assert result(opened) == "The job is being cancelled."
    opened.locator("header .status", has_text="canceled").wait_for()
    assert job.requests[-1] == ("PATCH", f"/v1/jobs/{JOB}", {"mode": "cancel"})


def test_nothing_is_sent_without_a_confirmation(opened, job):
    for name in ("Checkpoint", "Full checkpoint", "Savepoint", "Rescale", "Stop"):
        opened.get_by_role("button", name=name, exact=True).click()
        opened.get_by_role("dialog").get_by_role("button", name="Back").click()
        opened.get_by_role("dialog").wait_for(state="detached")
    opened.get_by_role("button", name="Cancel", exact=True).click()
    opened.get_by_role("dialog").wait_for()
    opened.keyboard.press("Escape")
    opened.get_by_role("dialog").wait_for(state="detached")
    # The focus is where it was, so that a user of the keyboard goes on from there.
    assert opened.evaluate("document.activeElement.textContent") == "Cancel"
    assert job.requests == []


def test_the_way_back_closes_a_dialog(opened, job):
    opened.get_by_role("link", name="Story").click()
    opened.get_by_role("button", name="Stop", exact=True).click()
    opened.get_by_role("dialog").wait_for()
    opened.go_back()
    opened.locator(".node").first.wait_for()
    assert opened.get_by_role("dialog").count() == 0
    assert job.requests == []


def test_a_failed_operation_says_why(opened, job):
    job.failing = "task <b>customer totals</b> declined: the disk is full"
    press(opened, "Checkpoint")
    assert (
        result(opened)
        == "Checkpoint of orders and payments failed: task <b>customer totals</b> declined: the disk is full"
    )


def test_by_keyboard_alone(opened, job):
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the content"
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.tagName") == "MAIN"
    while opened.evaluate("document.activeElement.textContent") != "Checkpoint":
        opened.keyboard.press("Tab")
    opened.keyboard.press("Enter")
    opened.get_by_role("dialog").wait_for()
    while opened.evaluate("document.activeElement.className") != "primary":
        opened.keyboard.press("Tab")
    opened.keyboard.press("Enter")
    assert result(opened) == "Checkpoint 14 is complete."
