"""The dashboard of a job on Spark, in a real browser: every page is opened, every button does what it says. SPEC R10.4"""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from spark_kit import wait_until
from test_checkpoints import checkpointed, completed

from browser import browser, watched
from headrace import KeyedProcessFunction, TumblingEventTimeWindows, ValueStateDescriptor, WatermarkStrategy
from headrace.connectors.files import FileSink
from headrace.job.status import JobStatus
from headrace.rest import server
from headrace.rest.discovery import login_address

__all__ = ["browser", "watched"]  # fixtures

RECORD = "word string, n bigint, at bigint"
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=200)).with_timestamp_assigner("at")
WORDS = ("alpha", "beta", "gamma", "<b>delta</b>")
SCREENSHOTS = Path(__file__).parent.parent.parent / "build" / "screenshots"


class Count(KeyedProcessFunction):
    """Counts, and fails once, when there is a checkpoint."""

    def __init__(self, mark):
        self.mark = Path(mark)

    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", "bigint"))
        self.confirmed = False

    def notify_checkpoint_complete(self, checkpoint_id):
        self.confirmed = True

    def process_element(self, value, ctx):
        if self.confirmed and not self.mark.exists():
            self.mark.touch()
            raise ValueError("this record is <i>wrong</i>")
        total = (self.total.value() or 0) + 1
        self.total.update(total)
        yield value.word, total, value.at


@pytest.fixture
def client(make_env, tmp_path):
    options = {
        "execution.checkpointing.savepoint-dir": f"file://{tmp_path}/savepoints",
        "web.checkpoints.history": "1000",  # on a busy machine several are taken before a page is looked at
    }
    env = checkpointed(make_env(2, options), tmp_path, 500)
    words = env.from_datagen(lambda n: (WORDS[n % 4], n, n * 10), None, 300, RECORD).name("words").uid("words")
    timed = words.assign_timestamps_and_watermarks(STRATEGY)
    counts = (
        timed.key_by("word").process(Count(tmp_path / "failed"), output_type=RECORD).name("count words").uid("count")
    )
    windows = counts.key_by("word").window(TumblingEventTimeWindows.of(5_000)).sum("n").name("windows").uid("windows")
    windows.sink_to(FileSink(f"{tmp_path}/out", "json"))
    client = env.execute_async("a dashboard's job")
    client.job.spark_ui = "http://spark.example"  # the session of the tests serves no pages
    assert client.job.wait_running(120)
    wait_until(
        lambda: client.job.restarts and completed(client.job) > 2 and client.job.wait_running(120),
        "checkpoints after the restart",
    )
    return client


@pytest.fixture
def opened(client, watched):
    """The page of the job, opened by the address that a driver prints."""
    watched.page.goto(login_address(server._url, server._access.token))
    watched.page.get_by_role("link", name="a dashboard's job").click()
    watched.page.get_by_role("heading", name="a dashboard's job").wait_for()
    return watched.page


class Rest:
    """What REST says, asked for with the browser's own cookie."""

    def __init__(self, page, job_id):
        self._page, self._base = page, f"{server._url}/jobs/{job_id}"

    def __getitem__(self, path):
        answer = self._page.request.get(self._base + path)
        assert answer.ok, answer.text()
        return answer.json()


def press(page, name, **fields):
    page.get_by_role("group", name="Actions").get_by_role("button", name=name, exact=True).click()
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        dialog.get_by_label(label.capitalize()).fill(value)
    dialog.get_by_role("button", name=name, exact=True).click()
    message = page.locator(".reports p:not(.busy)")
    message.wait_for(timeout=60_000)
    text = message.locator("span").inner_text()
    page.get_by_role("button", name="Dismiss").click()
    return text


def tab(page, name, text):
    page.get_by_role("navigation", name="Parts of the job").get_by_role("link", name=name).click()
    page.get_by_text(text).first.wait_for()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.wait_for_timeout(700)
    page.screenshot(path=SCREENSHOTS / f"spark-{name.lower().replace(' ', '-')}.png", full_page=True)


def rows(page, label):
    return page.get_by_role("group", name=label, exact=True).locator("tbody > tr:not(.detail)")


def look_at_every_page(page, rest):
    page.get_by_text("live", exact=True).wait_for()
    vertices = rest[""]["vertices"]
    tab(page, "Graph", "count words")
    assert page.locator(".graph .node").count() == len(vertices) == rows(page, "Vertices").count()
    assert page.locator(".node .times").all_inner_texts() == ["×2"] * len(vertices)
    assert page.get_by_role("link", name="Spark UI").get_attribute("href") == "http://spark.example"
    tab(page, "Checkpoints", "Latest completed checkpoint")
    page.get_by_role("link", name="Summary").click()
    page.get_by_text("99.9 %").wait_for()
    page.get_by_role("navigation", name="Checkpoints").get_by_role("link", name="Configuration").click()
    page.get_by_text("exactly once").wait_for()
    tab(page, "State size", "Chain length")
    tab(page, "Key groups", "fullest: subtask")
    assert page.locator(".lane").count() == len(rest["/key-groups"]["operators"])
    tab(page, "Exceptions", "this record is <i>wrong</i>")
    assert re.search(r"test_dashboard\.py:\d+", page.locator(".failure .where").first.inner_text())
    tab(page, "Story", "Attempt 1")
    restored = rest["/story"]["attempts"][1]["restored_checkpoint"]
    assert page.locator(".story li").first.get_by_role("link", name=f"checkpoint {restored}").count() == 1
    tab(page, "Configuration", "execution.checkpointing.interval")


def look_at_a_vertex(page, spark):
    tab(page, "Graph", "count words")
    page.get_by_role("group", name="Vertices").get_by_role("link", name="count words", exact=False).first.click()
    page.get_by_role("heading", name="Subtasks").wait_for()
    page.get_by_role("group", name="Subtasks", exact=True).wait_for()
    assert rows(page, "Subtasks").count() == 2
    stage = page.get_by_role("link", name="Stage in the Spark UI").get_attribute("href")
    found = re.fullmatch(r"http://spark\.example/stages/stage/\?id=(\d+)&attempt=0", stage)
    assert spark.sparkContext.statusTracker().getStageInfo(int(found[1])).numActiveTasks == 2
    page.get_by_role("button", name="Take a sample").click()
    page.locator(".records li").first.wait_for()
    page.get_by_role("button", name="Sample the stacks").click()
    page.locator(".frame").first.wait_for()
    page.screenshot(path=SCREENSHOTS / "spark-vertex.png", full_page=True)


def take_checkpoints(page, rest, job_id):
    number = int(re.fullmatch(r"Full checkpoint (\d+) is complete\.", press(page, "Full checkpoint"))[1])
    details = rest[f"/checkpoints/details/{number}"]
    assert (details["status"], details["full"]) == ("COMPLETED", True)
    page.goto(f"{page.url.split('#')[0]}#/jobs/{job_id}/checkpoints/{number}")
    page.get_by_text("acknowledged last").wait_for()
    assert page.locator(".lane").count() == len(rest[""]["vertices"])
    page.screenshot(path=SCREENSHOTS / "spark-checkpoint.png", full_page=True)
    location = re.fullmatch(r"The savepoint is at (.*)\.", press(page, "Savepoint"))[1]
    assert Path(location.removeprefix("file://"), "_metadata").exists()


def browse_state(page, rest):
    tab(page, "State browser", "total")
    page.get_by_role("group", name="States").get_by_role("link", name="total").click()
    page.get_by_label("Key", exact=True).fill("<b>delta</b>")
    page.get_by_role("button", name="Look up").click()
    page.get_by_text('"<b>delta</b>"').first.wait_for()
    assert rows(page, "Entries").count() == 1
    shown = int(rows(page, "Entries").locator("td").last.inner_text())
    operator = next(one["operator"] for one in rest["/state"]["states"] if one["state"] == "total")
    (entry,) = rest[f"/state/{operator}/total?key=%22%3Cb%3Edelta%3C/b%3E%22"]["entries"]
    assert 0 < shown <= entry["value"]  # which grows


def rescale_and_stop(page, rest):
    assert press(page, "Rescale", parallelism="4") == "The job runs with parallelism 4."
    tab(page, "Graph", "count words")
    page.locator(".node .times", has_text="×4").first.wait_for()
    assert {vertex["parallelism"] for vertex in rest[""]["vertices"]} == {4}
    location = re.fullmatch(r"The job has stopped\. Its savepoint is at (.*)\.", press(page, "Stop"))[1]
    assert Path(location.removeprefix("file://"), "_metadata").exists()


@pytest.mark.timeout(300)
def test_a_job_from_its_pages(opened, client, spark):
    rest = Rest(opened, client.job.job_id)
    look_at_every_page(opened, rest)
    look_at_a_vertex(opened, spark)
    take_checkpoints(opened, rest, client.job.job_id)
    browse_state(opened, rest)
    rescale_and_stop(opened, rest)
    client.wait(120)
    assert client.get_job_status() is JobStatus.FINISHED
    opened.locator("header .status", has_text="finished").wait_for()
