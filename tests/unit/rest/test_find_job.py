"""Which job a command means: a command that ends a job must not take one that was not named."""

import pytest

from headgate.errors import HeadgateError
from headgate.rest import client
from headgate.rest.client import RemoteJob, RestClient, find_job


@pytest.fixture
def running(monkeypatch):
    """Let some jobs run: (id, name)."""

    def run(*jobs):
        rest = RestClient("http://127.0.0.1:1")
        found = [RemoteJob(rest, {"jid": id, "name": name, "state": "RUNNING"}) for id, name in jobs]
        monkeypatch.setattr(client, "find_jobs", lambda url: found)

    return run


def test_an_empty_text_names_no_job(running):
    """As in `headgate cancel "$JOB"` where the variable is not set."""
    running(("a" * 32, "totals"))
    with pytest.raises(HeadgateError):
        find_job("", None)


def test_a_name_that_is_the_beginning_of_another_jobs_id_is_not_taken_for_that_job(running):
    running(("b" * 32, "cafe"), ("cafe" * 8, "totals"))
    try:
        found = find_job("cafe", None)
    except HeadgateError:
        return  # more than one job matches
    assert found.overview["name"] == "cafe"


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "http://[::1", "http://"])
def test_an_address_that_is_none_is_an_error_of_the_command(url):
    with pytest.raises(HeadgateError):
        client.find_jobs(url)


@pytest.mark.parametrize("token", ["a\nb", "a\u20acb"])
def test_a_token_that_cannot_be_sent_is_an_error_of_the_command(token, monkeypatch):
    monkeypatch.setenv("HEADGATE_REST_TOKEN", token)
    with pytest.raises(HeadgateError):
        client.find_jobs("http://127.0.0.1:1")
