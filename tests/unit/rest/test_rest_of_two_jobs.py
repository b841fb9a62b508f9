"""One REST server serves several jobs of a process: what belongs to one of them is not mixed up with another."""

import logging
import re
import tempfile
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from test_rest import FakeJob, wait_for

from headrace import config
from headrace.config import Configuration
from headrace.errors import ConfigError
from headrace.job.status import JobStatus
from headrace.rest import discovery, server
from headrace.rest.app import make_app
from headrace.rest.jobs import Jobs


# SPEC R10.1
def test_the_same_trigger_id_in_two_jobs_names_two_operations():
    first, second, jobs = FakeJob(), FakeJob(), Jobs()
    second.job_id = "b" * 32
    jobs.add(first)
    jobs.add(second)
    http = TestClient(make_app(jobs, ["testserver"]))
    for job in (first, second):
        assert http.get(f"/jobs/{job.job_id}/savepoints/nightly").status_code == 404
        answer = http.post(f"/jobs/{job.job_id}/stop", json={"triggerId": "nightly", "targetDirectory": "/s"})
        assert answer.status_code == 202
        wait_for(http, f"/jobs/{job.job_id}/savepoints/nightly")
    assert [one[0] for one in first.asked] == ["stop"]
    assert [one[0] for one in second.asked] == ["stop"]


def test_a_job_that_was_resumed_in_the_same_process_is_shown_once():
    """It keeps its id. Twice the same labels would be refused by Prometheus, and the dashboard would see both in turn."""
    ended, resumed, jobs = FakeJob(), FakeJob(), Jobs()
    ended.status, ended.ended_ms = JobStatus.FINISHED, 2000
    for job in (ended, resumed):
        jobs.add(job)
    http = TestClient(make_app(jobs, ["testserver"]))
    assert [job["state"] for job in http.get("/jobs/overview").json()["jobs"]] == ["RUNNING"]
    lines = [line for line in http.get("/metrics/prometheus").text.splitlines() if 'status="RUNNING"' in line]
    assert len(lines) == 1
    assert lines[0].endswith(" 1")


@pytest.fixture
def fresh_server(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(discovery.TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(server, "_url", None)
    monkeypatch.setattr(server, "_jobs", Jobs())


ANY_PORT = {"rest.port": 0}
OPEN = {"headrace.rest.authentication.enabled": False}


def register_two(first, second):
    """Two jobs of a process, with the options of each; the address of REST for each."""
    jobs = FakeJob(), FakeJob(job_id="b" * 32)
    options = [Configuration(ANY_PORT | given) for given in (first, second)]
    return [server.register(job, given) for job, given in zip(jobs, options, strict=True)]


@pytest.mark.parametrize(
    ("first", "second", "option"),
    [
        (OPEN, {"headrace.rest.token": "secret"}, "headrace.rest.token"),
        (OPEN, {"headrace.rest.authentication.enabled": True}, "headrace.rest.authentication.enabled"),
        ({"headrace.rest.token": "one"}, {"headrace.rest.token": "two"}, "headrace.rest.token"),
        ({"headrace.rest.token": "one", "rest.address": "0.0.0.0"}, {"rest.address": "127.0.0.1"}, "rest.address"),
    ],
)
def test_a_job_that_asks_for_another_protection_than_the_server_has_is_refused(fresh_server, first, second, option):
    with pytest.raises(ConfigError, match=rf"^\[HR-7011\] {re.escape(option)}: an earlier job .* process of its own"):
        register_two(first, second)
    assert len(server._jobs.all()) == 1


def test_a_job_that_asks_for_tls_is_not_served_without(fresh_server, monkeypatch):
    monkeypatch.setattr(server, "_tls", lambda of: ("c", "k") if of.get(config.REST_KEY) else None)
    with pytest.raises(ConfigError, match=r"^\[HR-7011\] headrace\.rest\.tls\.certificate-file: an earlier job"):
        register_two({}, {"headrace.rest.tls.key-file": "k", "headrace.rest.tls.certificate-file": "c"})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (OPEN, {}),
        (OPEN, OPEN),
        ({}, OPEN),  # the server asks for more than the job
        ({}, {"headrace.rest.authentication.enabled": True, "rest.address": "localhost"}),
        ({"headrace.rest.token": "one", "rest.address": "0.0.0.0"}, {"headrace.rest.token": "one"}),
    ],
)
def test_a_job_that_the_protection_of_the_server_suits_is_served_by_it(fresh_server, first, second):
    urls = register_two(first, second)
    assert urls[0] == urls[1]
    assert len(server._jobs.all()) == 2


@pytest.mark.parametrize(
    ("terminal", "handler", "has_token"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_only_a_person_is_told_the_token(fresh_server, monkeypatch, terminal, handler, has_token):
    """What a program logs to a file is kept, and read by others, even if it runs on a terminal."""
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()] if handler else [])
    monkeypatch.setattr(logging.getLogger("headrace"), "handlers", [])
    address = server.register(FakeJob(), Configuration(ANY_PORT | {"headrace.rest.token": "s3cret"}))
    assert ("s3cret" in address) == has_token
