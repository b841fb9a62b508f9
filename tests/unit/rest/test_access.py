"""Who may send requests to REST: nothing answers without the token, no other web page can send anything."""

import pytest
from fastapi.testclient import TestClient

from headrace.rest.app import make_app
from headrace.rest.jobs import Jobs
from rest_kit import ID, FakeJob

BEARER = {"Authorization": "Bearer s3;cret"}
CSRF = {"X-Requested-With": "headrace"}


@pytest.fixture
def job():
    return FakeJob()


def client(job, base_url="http://127.0.0.1:8081", token="s3;cret", hosts=("127.0.0.1",), **more):
    jobs = Jobs()
    jobs.add(job)
    app = make_app(jobs, hosts, token, cache_seconds=0, **more)
    return TestClient(app, base_url=base_url, raise_server_exceptions=False, follow_redirects=False)


@pytest.fixture
def http(job):
    return client(job)


@pytest.mark.parametrize(
    "path", ["/jobs", "/v1/jobs", "/", "/ui/", "/openapi.json", "/events", "/metrics/prometheus", "/nothing"]
)
def test_nothing_answers_without_the_token(http, path):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3;cret"}, {"Authorization": ""}):
        answer = http.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert "headrace token" in answer.json()["errors"][0]


def test_a_token_in_the_header(http):
    assert http.get("/jobs", headers=BEARER).status_code == 200
    assert http.get("/jobs", headers={"authorization": "bearer s3;cret"}).status_code == 200
    assert http.patch(f"/jobs/{ID}", headers=BEARER).status_code == 202  # programs need no other header


def test_a_browser_logs_in_once(http, job):
    answer = http.get("/login", params={"token": "s3;cret"})
    assert (answer.status_code, answer.headers["location"]) == (303, "ui/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(
        "headrace-token-8081="
    )  # each driver has a port of its own, and all share the host's cookies
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert http.get("/jobs").status_code == 200
    refused = http.patch(f"/jobs/{ID}")
    assert (refused.status_code, job.cancelled) == (403, False)
    assert "X-Requested-With: headrace" in refused.json()["errors"][0]
    assert http.patch(f"/jobs/{ID}", headers=CSRF).status_code == 202
    assert job.cancelled


def test_the_cookie_is_for_tls_only_if_that_is_spoken(job):
    answer = client(job, "https://127.0.0.1:8081", secure=True).get("/login?token=s3%3Bcret")
    assert answer.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize(
    ("path", "login"), [("/", "login"), ("/ui/", "../login"), ("/docs", "login"), ("/ui/x/y", "../../login")]
)
def test_a_person_without_the_token_is_asked_for_it(http, path, login):
    page = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = http.get(path, headers=page)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert f'<form action="{login}" method="get">' in answer.text
    assert "form-action 'self'" in answer.headers["content-security-policy"]
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert http.get(path, headers=page | {"Host": "evil.example"}).status_code == 400
    assert http.post(path, headers=page).headers["content-type"] == "application/json"
    assert http.get(path, headers=page | BEARER).status_code != 401


def test_a_wrong_token_does_not_log_in(http):
    for path in ("/login", "/login?token=wrong", "/login?token="):
        answer = http.get(path)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    assert http.post("/login?token=s3%3Bcret").status_code == 405


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:9999", "null", "https://127.0.0.1.evil.example", "http://["]
)
def test_pages_of_other_origins_are_refused(http, job, origin):
    http.get("/login", params={"token": "s3;cret"})
    for answer in (
        http.get("/jobs", headers={"Origin": origin}),
        http.patch(f"/jobs/{ID}", headers={"Origin": origin} | CSRF),
        http.patch(f"/jobs/{ID}", headers={"Origin": origin} | BEARER),
    ):
        assert answer.status_code == 403
        assert "are refused" in answer.json()["errors"][0]
    assert not job.cancelled


def test_our_own_pages_are_not(http):
    assert http.get("/jobs", headers=BEARER | {"Origin": "http://127.0.0.1:8081"}).status_code == 200


def test_without_authentication_other_pages_are_refused_too(job):
    http = client(job, token=None)
    assert http.get("/jobs").status_code == 200
    assert http.post(f"/jobs/{ID}/stop", headers={"Origin": "http://evil.example"}).status_code == 403
    assert job.asked == []
    assert http.get("/login").headers["location"] == "ui/"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", ""])
def test_no_other_host_name(http, host):
    """A web page may have its name resolved to this machine, and then be of the same origin."""
    answer = http.get("/jobs", headers=BEARER | {"Host": host})
    assert answer.status_code == 400
    assert "use one of 127.0.0.1" in answer.json()["errors"][0]


def test_addresses_of_ipv6(job):
    http = client(job, "http://[::1]:8081", hosts=["[::1]"])
    assert http.get("/jobs", headers=BEARER | {"Origin": "http://[::1]:8081"}).status_code == 200


def test_no_get_changes_anything(http, job):
    job.gate.clear()
    for path in (f"/jobs/{ID}/stop", f"/jobs/{ID}/yarn-cancel", f"/jobs/{ID}/rescaling", "/savepoint-disposal"):
        assert http.get(path, headers=BEARER).status_code in (404, 405)
    http.get(f"/jobs/{ID}?mode=cancel", headers=BEARER)
    http.get(f"/jobs/{ID}/savepoints", headers=BEARER)
    assert (job.asked, job.cancelled, job.rescaled) == ([], False, [])


def test_browsers_are_kept_strict(http):
    headers = http.get("/jobs", headers=BEARER).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert http.get("/jobs").headers["content-security-policy"] == policy  # also where it refuses


def test_names_and_errors_are_never_html(job):
    job.plan.name = "<script>alert(1)</script>"
    http = client(job)
    answer = http.get("/jobs/overview", headers=BEARER)
    assert answer.headers["content-type"] == "application/json"
    assert http.get("/jobs/<script>", headers=BEARER).headers["content-type"] == "application/json"
    shown = http.get("/metrics/prometheus", headers=BEARER)
    assert shown.headers["content-type"].startswith("text/plain")
