"""One REST server serves several jobs of a process: what belongs to one of them is not mixed up with another."""

import tempfile
import urllib.error
import urllib.request

import pytest
from fastapi.testclient import TestClient
from test_rest import FakeJob, wait_for

from headgate.config import Configuration
from headgate.rest import discovery, server
from headgate.rest.app import make_app
from headgate.rest.client import RestClient
from headgate.rest.jobs import Jobs


# SPEC R10.1
def test_the_same_trigger_id_for_two_jobs_is_two_operations():
    first, second, jobs = FakeJob(), FakeJob(), Jobs()
    second.job_id = "b" * 32
    jobs.add(first)
    jobs.add(second)
    http = TestClient(make_app(jobs, ["testserver"]))
    for job in (first, second):
        answer = http.post(f"/jobs/{job.job_id}/stop", json={"triggerId": "nightly", "targetDirectory": "/s"})
        assert answer.status_code == 202
        wait_for(http, f"/jobs/{job.job_id}/savepoints/nightly")
    assert [one[0] for one in first.asked] == ["stop"]
    assert [one[0] for one in second.asked] == ["stop"]  # it was reported as done


@pytest.fixture
def fresh_server(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(discovery.TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(server, "_url", None)
    monkeypatch.setattr(server, "_jobs", Jobs())


def status_without_token(url):
    try:
        with urllib.request.urlopen(f"{url}/jobs", timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def test_a_job_that_asks_for_a_token_is_not_shown_without_one(fresh_server):
    """The first job of the process has switched the token off, for itself."""
    server.register(FakeJob(), Configuration({"rest.port": 0, "headgate.rest.authentication.enabled": False}))
    careful = FakeJob()
    careful.job_id = "b" * 32
    url = server.register(careful, Configuration({"rest.port": 0, "headgate.rest.token": "secret"}))
    status, body = status_without_token(url)
    assert status == 401 or b"b" * 32 not in body


def test_loopback_of_ipv6(fresh_server):
    url = server.register(FakeJob(), Configuration({"rest.port": 0, "rest.address": "::1"}))
    assert "[::1]" in url
    (known,) = discovery.known_servers()
    assert RestClient(known.url, known.token).send("GET", "/jobs")["jobs"]


def test_a_wrong_address_is_reported_as_such(fresh_server, caplog):
    """It is no matter of a free port."""
    with pytest.raises(Exception, match=r"rest\.address"):
        server.register(
            FakeJob(), Configuration({"rest.port": 0, "rest.address": "203.0.113.77", "headgate.rest.token": "secret"})
        )
