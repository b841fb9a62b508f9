"""Every page of the dashboard in a real browser, with a simulated job: what it shows is what REST says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulated_job import JOB, SimulatedJob, vertex_id
from simulated_server import SimulatedServer

BASE = f"#/jobs/{JOB}"
SCREENSHOTS = Path(__file__).parent.parent.parent / "build" / "screenshots"
# address, and a text that is there when the page is complete
PAGES = {
    "jobs": ("#/", "orders and payments"),
    "graph": (BASE, "detect fraud"),
    "vertex": (f"{BASE}/vertices/{vertex_id(5)}", "times the mean"),
    "sample": (f"{BASE}/vertices/{vertex_id(8)}/sample", "Order(id=0"),
    "checkpoints": (f"{BASE}/checkpoints", "Latest completed checkpoint"),
    "history": (f"{BASE}/checkpoints/history", "Last acknowledgement"),
    "summary": (f"{BASE}/checkpoints/summary", "99.9 %"),
    "checkpoint configuration": (f"{BASE}/checkpoints/configuration", "exactly once"),
    "checkpoint": (f"{BASE}/checkpoints/9", "acknowledged last"),
    "failed checkpoint": (f"{BASE}/checkpoints/13", "not acknowledged"),
    "files": (f"{BASE}/files", "Chain length"),
    "key groups": (f"{BASE}/key-groups", "fullest: subtask"),
    "state": (f"{BASE}/state/{vertex_id(5)}/total", "customer-0"),
    "exceptions": (f"{BASE}/exceptions", "orders.py:88"),
    "story": (f"{BASE}/story", "Attempt 2"),
    "configuration": (f"{BASE}/configuration", "restart-strategy"),
    "missing": ("#/nothing", "There is no such page"),
    "missing part": (f"{BASE}/constructor", "There is no such page"),
    "missing part of checkpoints": (f"{BASE}/checkpoints/constructor", "There is no such page"),
}


@pytest.fixture(scope="module")
def server():
    with SimulatedServer(
        SimulatedJob(operators=10, parallelism=4, checkpoints=26),
        SimulatedJob(jid="e" * 32, name="done", state="FINISHED"),
    ).run() as server:
        yield server


@pytest.fixture
def job(server) -> SimulatedJob:
    return server.jobs[JOB]


@pytest.fixture
def at(server, watched):
    """Opens a page by its name, and waits until it is complete."""

    def open_page(name: str):
        address, text = PAGES[name]
        watched.go(server.url + address)
        watched.page.get_by_text(text).first.wait_for()
        return watched.page

    return open_page


@pytest.mark.parametrize("name", PAGES)
def test_page_in_both_themes_and_on_a_phone(at, name):
    page = at(name)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for size, width in {"laptop": 1280, "phone": 390}.items():
        page.set_viewport_size({"width": width, "height": 844})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(100)  # widths are measured after the layout
            page.screenshot(path=SCREENSHOTS / f"{name.replace(' ', '-')}-{size}-{theme}.png", full_page=True)
        # Tables and the graph scroll by themselves; the page never does sideways.
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.evaluate("window.hostile") is None


# ---- what is shown is what REST says -----------------------------------------------------------------------------------


def cells(page, label: str) -> list[list[str]]:
    rows = page.get_by_role("group", name=label, exact=True).locator("tbody > tr:not(.detail)")
    return [[cell.strip() for cell in row.locator("th, td").all_inner_texts()] for row in rows.all()]


def test_jobs(at):
    page = at("jobs")
    assert [row[:2] for row in cells(page, "Running jobs")] == [["orders and payments", "running"]]
    assert [row[:2] for row in cells(page, "Ended jobs")] == [["done", "finished"]]
    page.get_by_role("link", name="orders and payments").click()
    page.get_by_role("heading", name="orders and payments").wait_for()
    assert page.title() == "Graph · orders and payments · Headrace"


def test_graph(at, job):
    page = at("graph")
    assert page.locator(".graph .node").count() == 10
    edges = sum(len(node["inputs"]) for node in job.plan()["nodes"])
    assert page.locator(".graph svg path").count() == edges
    # The vertex before the slow one waits for it, and so its edge is marked.
    assert "waits" in page.locator(".node", has_text="customer totals").get_attribute("class")
    assert "hot" in page.locator(".node", has_text="enrich").get_attribute("class")
    assert page.locator(".graph path.high").count() > 0
    row = next(row for row in cells(page, "Vertices") if row[0] == "customer totals")
    assert row[1:4] == ["running", "4", "30 %"]
    assert row[5] == "70 %"


def test_graph_nodes_do_not_overlap(at):
    page = at("graph")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(200)
        boxes = [node.bounding_box() for node in page.locator(".graph .node").all()]
        apart = lambda a, b: (  # noqa: E731
            a["x"] + a["width"] <= b["x"]
            or b["x"] + b["width"] <= a["x"]
            or a["y"] + a["height"] <= b["y"]
            or b["y"] + b["height"] <= a["y"]
        )
        assert all(apart(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_tables_sort(at):
    page = at("vertex")
    page.get_by_role("button", name="Received").click()
    page.get_by_role("columnheader", name="Received", exact=False).first.wait_for()
    assert cells(page, "Subtasks")[0][0] == "1"  # the one with three times the records
    page.get_by_role("button", name="Subtask").click()
    page.get_by_role("button", name="Subtask").click()
    assert [row[0] for row in cells(page, "Subtasks")] == ["0", "1", "2", "3"]


def test_history_opens_to_operators_and_subtasks(at, job):
    page = at("history")
    rows = cells(page, "Checkpoints")
    assert [int(row[1]) for row in rows] == [one["id"] for one in job.history]
    assert {row[2] for row in rows} == {"completed", "failed"}
    page.get_by_role("button", name="Details of 9", exact=True).click()
    operators = page.get_by_role("group", name="Operators")
    operators.wait_for()
    assert operators.locator("tbody > tr").count() == 10
    operators.get_by_role("button", name=f"Details of {vertex_id(7)}").click()
    subtasks = page.get_by_role("group", name="Subtasks, 4 in all")
    subtasks.wait_for()
    slow = job.checkpoint_subtasks(job.find_checkpoint(9), 7)["subtasks"][2]
    shown = subtasks.locator("tbody > tr").nth(2).locator("td").all_inner_texts()
    assert shown[2] == f"{slow['end_to_end_duration'] / 1000:.2f} s"
    page.get_by_role("button", name="Details of 9", exact=True).click()
    operators.wait_for(state="detached")


def test_timeline_says_which_subtask_held_the_checkpoint_up(at):
    page = at("checkpoint")
    text = page.locator("section[aria-labelledby=timeline] .hint").inner_text()
    assert re.fullmatch(
        r"Subtask 2 of enrich -> filter.* acknowledged last, [\d.]+ s after the trigger; for [\d.]+ s of that it waited for its last barrier\.",
        text,
    )
    assert page.locator(".lane").count() == 10
    page.locator(".lane", has_text="detect fraud").get_by_role("button", name="As a table").click()
    assert len(cells(page, "Phases of detect fraud")) == 4


def test_a_failed_checkpoint_names_who_did_not_acknowledge(at):
    page = at("failed checkpoint")
    hint = page.locator("section[aria-labelledby=timeline] .hint").inner_text()
    assert hint.startswith("1 subtask has not acknowledged: subtask 2 of enrich")
    page.get_by_text("subtask 1 of customer totals declined").wait_for()


def test_limits_are_drawn_where_they_are_near(at):
    page = at("files")
    chart = lambda title: page.locator("figure", has_text=title)  # noqa: E731
    assert chart("Chain length").locator(".limit").text_content() == "limit 20"
    assert chart("Full size").locator(".limit").count() == 0
    assert "limit 64.0 GiB, far above" in chart("Full size").inner_text()
    assert chart("Chain length").locator(".noted").count() == 2  # full checkpoints


def test_a_chart_is_read_by_keyboard(at, job):
    page = at("files")
    chart = page.get_by_role("slider", name="Chain length", exact=False)
    chart.focus()
    page.keyboard.press("Home")
    assert "at checkpoint 1," in chart.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowRight")
    assert chart.get_attribute("aria-valuetext").startswith("2 at checkpoint 2,")


def test_key_groups_show_skew(at):
    page = at("key groups")
    lane = page.locator(".lane", has_text="customer totals")
    assert re.search(r"fullest: subtask 1 with [\d.]+ MiB, [\d.]+ times the mean", lane.inner_text())
    assert lane.locator(".skewed").count() == 1
    page.get_by_label("Keys").check()
    page.locator(".lane", has_text="10 s windows").get_by_text("no figures yet").wait_for()


def test_state_is_looked_up_and_paged(at):
    page = at("state")
    assert len(cells(page, "Entries")) == 50
    page.get_by_role("button", name="Next page").click()
    page.get_by_text("customer-99").wait_for()
    page.get_by_role("button", name="Next page").click()
    page.get_by_text("customer-129").wait_for()
    assert page.get_by_role("button", name="Next page").is_disabled()
    page.get_by_role("button", name="Previous page").click()
    page.get_by_text("customer-50").wait_for()
    key = page.get_by_label("Key", exact=True)
    key.fill("customer-41")  # no JSON: it is taken as a text
    key.press("Enter")
    page.get_by_text('"customer-41"').wait_for()
    page.get_by_text("customer-50").wait_for(state="detached")
    assert cells(page, "Entries") == [['"customer-41"', "–", "697"]]
    key.fill('"customer-777"')
    key.press("Enter")
    page.get_by_text('The state has nothing for the key "customer-777".').wait_for()


def test_a_key_is_looked_up_though_an_earlier_answer_comes_at_that_moment(server, watched):
    """Effects are undone a frame after a click: until then the answer of the first page is still taken."""
    watched.page.add_init_script(
        """
        const real = window.fetch;
        window.fetch = async (address, options) => {
          const answer = await real(address, options);
          if (!address.includes("/total?limit=50")) return answer;
          const body = await answer.json();
          await new Promise((resolve) => { window.giveFirstPage = resolve; });
          return { ok: true, headers: new Headers(), json: async () => body };
        };
        """
    )
    page = watched.go(server.url + PAGES["state"][0])
    page.wait_for_function("() => Boolean(window.giveFirstPage)")
    page.evaluate(
        """
        () => {
          document.querySelector("form.look input").value = "customer-41";
          document.querySelector("form.look").requestSubmit();
          window.giveFirstPage();
        }
        """
    )
    page.get_by_text('"customer-41"').wait_for()
    assert cells(page, "Entries") == [['"customer-41"', "–", "697"]]


def test_a_state_with_a_hostile_name_is_found(at, page):
    at("state")
    page.get_by_role("link", name="<b>seen</b>/paths & more").click()
    page.get_by_role("heading", name="<b>seen</b>/paths & more of detect fraud").wait_for()
    page.get_by_text("customer-49").wait_for()


def test_exceptions_are_led_by_the_line_of_the_user(at):
    page = at("exceptions")
    failure = page.locator(".failure").first
    assert failure.inner_text().startswith("/home/anna/jobs/orders.py:88\n")
    assert failure.locator("h3").inner_text().startswith("enrich failed at orders.py:88 for the key 'PLN': KeyError")
    assert "Traceback" in failure.locator("pre").inner_text()


def test_story(at):
    page = at("story")
    assert re.search(
        r"3 attempts in .*; the job was running for",
        page.locator("section[aria-labelledby=story] > .hint").inner_text(),
    )
    attempts = page.locator(".story > li").all_inner_texts()
    assert [text.splitlines()[0] for text in attempts] == [
        "Attempt 3",
        "Attempt 2",
        "Attempt 1",
    ]  # as logs and the command line count
    assert "checkpoint 7" in attempts[0]
    assert "the beginning" in attempts[2]
    assert "restore the state: 600 ms" in attempts[1]


def test_an_edge_leads_to_what_is_sent_over_it(at):
    page = at("graph")
    page.locator(".graph a.edge").first.click()
    page.locator(".records li").first.wait_for()
    assert page.locator(".records").bounding_box()["y"] < 800  # seen without scrolling


def test_sampled_records_are_text(at):
    page = at("sample")
    assert page.locator(".records li").count() == 20
    assert "<script>" in page.locator(".records li").nth(1).inner_text()


def test_flame_graph(at):
    page = at("vertex")
    page.get_by_role("button", name="Sample the stacks").click()
    page.get_by_role("button", name="orders.py:88 enrich: 520 samples, 52 %").click()
    page.get_by_role("button", name="Whole graph").wait_for()


def test_samples_of_subtasks_that_do_not_answer(at):
    page = at("vertex")
    nothing = {"records": [], "missing_subtasks": 2}
    page.route("**/sample?records=20", lambda route: route.fulfill(json=nothing))
    flames = {"endTimestamp": 1, "data": {"name": "root", "value": 0, "children": []}, "missingSubtasks": 2}
    page.route("**/flamegraph", lambda route: route.fulfill(json=flames))
    page.get_by_role("button", name="Take a sample").click()
    page.get_by_role("region", name="Data sample").get_by_text("The subtasks are too busy to answer").wait_for()
    page.get_by_role("button", name="Sample the stacks").click()
    page.get_by_role("region", name="Flame graph").get_by_text("The subtasks are too busy to answer").wait_for()


def test_options_are_searched(at):
    page = at("configuration")
    page.get_by_label("Search").fill("checkpointing")
    assert [row[0] for row in cells(page, "Options")] == ["execution.checkpointing.interval"]


def test_links_to_spark(at):
    page = at("vertex")
    links = [link.get_attribute("href") for link in page.get_by_role("link", name="Spark UI").all()]
    assert links == ["http://localhost:4040", "http://localhost:4040/stages/stage/?id=5&attempt=0"]
