"""Which job a command means: a command that ends a job must not take one that was not named."""

import pytest

from headrace.errors import HeadraceError, InvalidArgument
from headrace.rest import client
from headrace.rest.client import DriverUnreachable, RemoteJob, RestClient, find_job


@pytest.fixture
def running(monkeypatch):
    """Let a driver list some jobs: (id, name) or (id, name, state)."""

    def run(*jobs):
        rest = RestClient("http://127.0.0.1:1")
        found = [
            RemoteJob(rest, {"jid": id, "name": name, "state": "".join(state) or "RUNNING"})
            for id, name, *state in jobs
        ]
        monkeypatch.setattr(client, "find_jobs", lambda url, warn: found)

    return run


def test_an_empty_text_names_no_job(running):
    """As in `headrace cancel "$JOB"` where the variable is not set."""
    running(("a" * 32, "totals"))
    with pytest.raises(HeadraceError, match="is empty"):
        find_job("", None)


def test_a_name_that_is_also_the_beginning_of_another_jobs_id_is_ambiguous(running):
    running(("b" * 32, "cafe"), ("cafe" * 8, "totals"), ("d" * 32, "other"))
    with pytest.raises(HeadraceError, match=r"2 jobs match 'cafe': bbbbbbbb \(cafe\), cafecafe \(totals\)\."):
        find_job("cafe", None)
    assert find_job("b", None).overview["name"] == "cafe"


def test_a_full_id_is_never_ambiguous(running):
    running(("b" * 32, "a" * 32), ("a" * 32, "totals"))
    assert find_job("a" * 32, None).overview["name"] == "totals"


def test_a_job_whose_id_begins_with_its_own_name(running):
    running(("cafe" * 8, "cafe"))
    assert find_job("cafe", None).id == "cafe" * 8


def test_a_job_that_was_resumed_in_the_same_process_is_found(running):
    running(("a" * 32, "totals", "FINISHED"), ("a" * 32, "totals"), ("a" * 32, "totals", "FAILED"))
    assert {find_job(text, None).overview["state"] for text in ("a", "a" * 32, "totals")} == {"RUNNING"}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:port", "http://[::1", "http://", "http://h:99999", "ftp://h", "h:8081"]
)
def test_a_url_that_is_no_address_is_refused(url):
    with pytest.raises(InvalidArgument, match="is no address of a driver"):
        client.find_jobs(url)


def test_a_host_that_cannot_be_asked_is_unreachable():
    for url in ("http://user:secret@127.0.0.1:1", "http://a..b"):
        with pytest.raises(DriverUnreachable, match="cannot reach the driver"):
            client.find_jobs(url)


@pytest.mark.parametrize("token", ["s3\ncret", "s3\u20accret"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token, monkeypatch):
    monkeypatch.setenv("HEADRACE_REST_TOKEN", token)
    with pytest.raises(InvalidArgument, match=r"printable ASCII.*HEADRACE_REST_TOKEN") as refused:
        client.find_jobs("http://127.0.0.1:1")
    assert "cret" not in str(refused.value)
