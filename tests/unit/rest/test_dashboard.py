"""The files of the dashboard, as the driver serves them. SPEC R10.4"""

import pytest

from rest_kit import FakeJob, client_of


@pytest.fixture
def http():
    return client_of(FakeJob())


def test_the_root_leads_to_the_page(http):
    answer = http.get("/")
    assert answer.url.path == "/ui/"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("name", ["", "main.js", "style.css", "views/graph.js", "vendor/preact.js", "icon.svg"])
def test_files_carry_the_policy(http, name):
    answer = http.get(f"/ui/{name}")
    assert answer.status_code == 200
    assert "require-trusted-types-for 'script'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


def test_a_file_that_the_browser_has_is_not_sent_again(http):
    first = http.get("/ui/main.js")
    again = http.get("/ui/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "content-security-policy" in again.headers


@pytest.mark.parametrize("name", ["missing.js", "..%2fapp.py", "%2e%2e/app.py", "vendor"])
def test_nothing_else_is_served(http, name):
    assert http.get(f"/ui/{name}").status_code == 404
