"""A browser for the tests of the dashboard: Chromium of the system, driven by Playwright without a download."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For one module of tests: Playwright's event loop must not run while tests of others use one."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; run: make setup")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium; on Debian: apt-get install chromium, then run the tests again")
    # Chromium's sandbox refuses to start as root; the pages are our own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=[*arguments, "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


class Watched:
    """A page and what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(f"error: {error.stack}"))
        page.on("console", self._note)

    def _note(self, message: Any) -> None:
        """What REST refuses is told in the page, and is no problem of the page."""
        if message.type in {"error", "warning"} and "/v1/" not in message.location.get("url", ""):
            self.problems.append(message.text)

    def go(self, url: str) -> Any:
        self.page.goto(url)
        self.page.wait_for_selector("main h1")
        return self.page


@pytest.fixture
def watched(browser) -> Iterator[Watched]:
    """A page of a laptop; the test fails if anything is reported to its console, a breach of the policy included."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, locale="en-GB", timezone_id="Europe/Paris")
    page.set_default_timeout(90_000)  # a machine may be busy
    watched = Watched(page)
    yield watched
    page.close()
    assert watched.problems == [], watched.problems


@pytest.fixture
def page(watched) -> Any:
    return watched.page
