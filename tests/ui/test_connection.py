"""The dashboard and a driver that asks for a token, has no event stream, or is gone; and text that must stay text."""

from __future__ import annotations

import re
import time

import pytest
from simulated_job import JOB, SimulatedJob
from simulated_server import SimulatedServer


@pytest.fixture
def server():
    with SimulatedServer(SimulatedJob(operators=4, parallelism=2)).run() as server:
        yield server


def test_every_file_carries_the_policy(server, page):
    for name in ("", "main.js", "style.css", "views/graph.js"):
        policy = page.request.get(server.url + name).headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize(
    "attack",
    [
        "document.querySelector('h1').innerHTML = '<b>x</b>'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "document.body.setAttribute('onclick', 'window.ran = 1')",
        "document.write('<b>x</b>')",
        "setTimeout('window.ran = 1')",
    ],
)
def test_the_browser_refuses_markup_and_code_made_of_text(server, browser, attack):
    """Not only do our modules make none: the policy stops one that would."""
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_selector("h1")
    run = f"() => {{ try {{ {attack}; return 'done'; }} catch (error) {{ return error.name; }} }}"
    assert page.evaluate(run) == "TypeError"
    assert page.evaluate("window.ran") is None
    page.close()


def test_without_the_token_the_page_says_what_to_do(server, browser):
    server.token = "secret"
    page = browser.new_page()
    page.goto(f"{server.url}#/jobs/{JOB}")
    page.get_by_role("heading", name="The driver asks for its token").wait_for()
    page.context.add_cookies([{"name": "headrace-token", "value": "secret", "url": server.origin}])
    page.reload()
    page.get_by_role("heading", name="orders and payments").wait_for()
    page.close()


def test_without_the_event_stream_it_polls(server, browser):
    server.streaming = False
    page = browser.new_page()
    page.goto(f"{server.url}#/jobs/{JOB}")
    page.get_by_text("without the event stream").wait_for()
    server.jobs[JOB].state = "RESTARTING"
    page.locator("header .status", has_text="restarting").wait_for()
    page.close()


def test_a_driver_that_is_gone_is_said_to_be(browser):
    with SimulatedServer(SimulatedJob(operators=4, parallelism=2)).run() as server:
        page = browser.new_page()
        page.goto(f"{server.url}#/jobs/{JOB}")
        page.get_by_text("live", exact=True).wait_for()
    page.get_by_text("The driver does not answer.").first.wait_for(timeout=15_000)
    assert "no connection, last answer at" in page.locator(".connection").inner_text()
    assert page.locator(".node").count() == 4  # what was seen last stays
    page.close()


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_browser_whose_clock_is_wrong(server, watched, hours):
    """Durations are those of the driver's clock."""
    watched.page.add_init_script(f"const now = Date.now; Date.now = () => now() + {hours} * 3_600_000;")
    for address in ("", f"#/jobs/{JOB}"):
        page = watched.go(server.url + address)
        page.get_by_text(r"orders and payments").first.wait_for()
        page.wait_for_timeout(1_500)
        expected = (time.time_ns() // 1_000_000 - server.jobs[JOB].overview()["start-time"]) / 60_000
        text = page.locator("main").inner_text()
        shown = {int(h) * 60 + int(m) for h, m in re.findall(r"\b(\d+) h (\d+) min", text)}
        shown |= {int(m) for m in re.findall(r"(?<!h )\b(\d+) min \d+ s", text)}
        assert any(abs(minutes - expected) < 2 for minutes in shown), (shown, expected)


def test_an_unknown_job_is_said_to_be(server, browser):
    page = browser.new_page()
    page.goto(f"{server.url}#/jobs/{'f' * 32}")
    page.get_by_text(f"job {'f' * 32} is not known").wait_for()
    page.close()


def test_a_hidden_page_gives_its_connection_back(server, watched):
    page = watched.go(f"{server.url}#/jobs/{JOB}")
    page.get_by_text("live", exact=True).wait_for()
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    for _ in range(50):
        if server.streams == 0:
            break
        page.wait_for_timeout(100)
    assert server.streams == 0
    page.evaluate(hide, False)
    page.get_by_text("live", exact=True).wait_for()
    page.wait_for_timeout(300)
    assert server.streams == 1


def test_the_theme_is_kept(server, watched):
    page = watched.go(server.url)
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    page.wait_for_selector("h1")
    assert page.evaluate(background) == dark
    assert page.get_by_label("Theme").input_value() == "dark"
    page.get_by_label("Theme").select_option("system")
    assert page.evaluate(background) == light


def test_addresses_of_documents_become_links_only_if_they_are_web_addresses(server, watched):
    page = watched.go(server.url)
    script = """async (hrefs) => {
        const [{ html, render }, { External }] = [await import('./html.js'), await import('./parts.js')];
        return hrefs.map((href) => {
            const box = document.createElement('div');
            render(html`<${External} href=${href}>x<//>`, box);
            return box.querySelector('a') !== null;
        });
    }"""
    addresses = ["https://spark/", "http://spark/", "javascript:alert(1)", "data:text/html,x", " javascript:x", None]
    assert page.evaluate(script, addresses) == [True, True, False, False, False, False]
