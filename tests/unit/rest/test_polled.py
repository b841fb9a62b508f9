"""Answers that many poll: made once for all, given to the same request only, and never in the way of others. SPEC R10.7"""

import asyncio
import json
import threading

import httpx
import pytest
from fastapi.testclient import TestClient

from headrace.checkpoint.stats import CheckpointStats, StatsTracker, VertexStats
from headrace.job.status import JobStatus
from headrace.rest import checkpoint_documents
from headrace.rest.app import make_app
from headrace.rest.cache import PolledAnswers, to_json
from headrace.rest.jobs import Jobs
from headrace.rest.state_browser import StateBrowser
from rest_kit import ID, FakeJob, plan_of


@pytest.fixture
def job():
    return FakeJob()


@pytest.fixture
def source(job):
    return job.plan.graph.vertices[0]


def polled(job, **options):
    jobs = Jobs()
    jobs.add(job)
    return TestClient(make_app(jobs, ["testserver"], **options))


def test_answers_are_made_once_for_all_who_poll(job):
    http = polled(job, cache_seconds=60)
    made = []
    job.subtasks = lambda: made.append(1) or {}
    answers = [http.get(f"/jobs/{ID}") for _ in range(5)]
    assert len({answer.content for answer in answers}) == len({str(answer.headers) for answer in answers}) == 1
    assert len(made) == 1


def test_what_was_answered_is_given_for_the_same_request_only(job):
    http = polled(job, cache_seconds=60)
    path = f"/jobs/{ID}/metrics"
    one = http.get(path, params={"get": "lastCheckpointSize"})
    assert [found["id"] for found in one.json()] == ["lastCheckpointSize"]
    assert len(http.get(path).json()) > 1
    assert http.post(path).status_code == 405
    assert http.get(f"/jobs/{'0' * 32}").status_code == 404
    assert http.get(f"/jobs/{'0' * 32}").status_code == 404


def test_what_was_answered_needs_the_token_as_well(job):
    http = polled(job, token="s3cret", cache_seconds=60)
    path = f"/jobs/{ID}"
    assert http.get(path, headers={"Authorization": "Bearer s3cret"}).status_code == 200
    assert http.get(path).status_code == 401
    assert http.get(path, headers={"Authorization": "Bearer s3cret", "Host": "evil.example"}).status_code == 400


def test_an_answer_of_some_time_ago_is_made_again(job, source):
    http = polled(job, cache_seconds=1e-9)
    made = []
    job.subtasks = lambda: made.append(1) or {}
    for _ in range(3):
        http.get(f"/jobs/{ID}")
    assert len(made) == 3
    path = f"/jobs/{ID}/vertices/{source.head.id}/subtasks/0/metrics"
    assert http.get(path).status_code == 200
    job.plan = plan_of(lambda env: env.from_sequence(1, 9).name("another").uid("another").print())
    for _ in range(2):
        gone = http.get(path)
        assert (gone.status_code, gone.json()["errors"]) == (404, [f"job {ID} has no vertex {source.head.id}"])


def test_a_job_that_was_resumed_under_its_id(job):
    jobs = Jobs()
    jobs.add(job)
    http = TestClient(make_app(jobs, ["testserver"], cache_seconds=1e-9))
    job.status = JobStatus.FAILED
    assert http.get(f"/jobs/{ID}/status").json() == {"status": "FAILED"}
    jobs.add(FakeJob())
    assert http.get(f"/jobs/{ID}/status").json() == {"status": "RUNNING"}


@pytest.mark.parametrize(
    "path", ["vertices/{vertex}/flamegraph", "vertices/{vertex}/sample", "key-groups", "state", "state/{operator}/s"]
)
def test_answers_that_take_long_do_not_hold_up_others(job, source, path, monkeypatch):
    asked, release = threading.Event(), threading.Event()

    def hang(*_args, **_options):
        asked.set()
        assert release.wait(300)
        raise RuntimeError("it took too long")

    for slow in ("states", "page"):
        monkeypatch.setattr(StateBrowser, slow, hang)
    monkeypatch.setattr("headrace.rest.app.key_groups", hang)
    job.probe = hang
    jobs = Jobs()
    jobs.add(job)
    transport = httpx.ASGITransport(make_app(jobs, ["x"], cache_seconds=0), raise_app_exceptions=False)

    async def run():
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            full = path.format(vertex=source.head.id, operator=source.head.id)
            slow = asyncio.create_task(http.get(f"/jobs/{ID}/{full}"))
            while not asked.is_set():  # noqa: ASYNC110 - it is set in another thread
                await asyncio.sleep(0.001)
            other = await http.get("/jobs")
            assert not slow.done()
            release.set()
            await slow
            return other.status_code

    assert asyncio.run(asyncio.wait_for(run(), 60)) == 200


# --- what is kept -------------------------------------------------------------------------------------------------------


class Kept:
    """Answers by a clock of the test; each is made of the number of times that it was made."""

    def __init__(self, seconds=1.0):
        self.now, self.made = 0.0, 0
        self.answers = PolledAnswers(seconds, clock=lambda: self.now)

    def make(self):
        self.made += 1
        return self.made

    def keep(self, path, body=b"0"):
        self.answers.keep({"path": path, "query_string": b""}, self.make, body)

    def find(self, path):
        return self.answers.find({"path": path, "query_string": b"", "method": "GET"})

    @property
    def size(self):
        assert self.answers._bytes == sum(len(one.body) for one in self.answers._polled.values())
        return len(self.answers._polled)


def test_an_answer_that_is_too_old_is_made_once():
    kept = Kept()
    kept.keep("/jobs")
    assert kept.find("/jobs") == b"0"
    kept.now = 1.0
    assert [kept.find("/jobs") for _ in range(3)] == [b"1"] * 3
    assert kept.find("/overview") is None


def test_an_answer_that_cannot_be_made_again_is_dropped():
    kept = Kept()
    kept.keep("/jobs")
    kept.make = None
    kept.answers.keep({"path": "/gone", "query_string": b""}, lambda: 1 / 0, b"0")
    kept.now = 1.0
    assert kept.find("/gone") is None
    assert kept.size == 1


def test_what_is_polled_stays_and_what_is_not_asked_for_goes():
    kept = Kept()
    kept.keep("/polled")
    for number in range(400):
        kept.keep(f"/{number}")
        kept.now += 0.1
        assert kept.find("/polled") is not None
    assert 90 < kept.size < 110
    for _ in range(120):  # nothing new is asked for
        kept.now += 0.1
        kept.find("/polled")
    assert kept.size == 1


def test_the_memory_that_is_kept_is_bounded():
    kept = Kept()
    for number in range(1000):
        kept.keep(f"/{number}")
    assert kept.size == 500
    for number in range(100):
        kept.keep(f"/large/{number}", bytes(1 << 20))
    assert kept.size == 32
    kept.keep("/too/large", bytes(33 << 20))
    assert kept.size == 0
    nothing = Kept(seconds=0.0)
    nothing.keep("/jobs")
    assert nothing.size == 0


def test_checkpoints_that_do_not_change_any_more_are_encoded_once(monkeypatch):
    """A history of hundreds of checkpoints is polled."""
    made = []
    monkeypatch.setattr(
        checkpoint_documents,
        "checkpoint",
        lambda one, make=checkpoint_documents.checkpoint: made.append(one.id) or make(one),
    )
    tracker = StatsTracker(10)
    for number in range(1, 5):
        stats = CheckpointStats(number, 1000, "CHECKPOINT", False, None, "periodic", {0: VertexStats(1)})
        tracker.pending(stats)
        if number < 3:
            stats.completed_timestamp = 1500
            tracker.completed(stats)
        elif number == 3:
            tracker.failed(stats, 2000, "timeout", "late")  # a subtask may still report

    def history():
        made.clear()
        found = checkpoint_documents.checkpoints(tracker.snapshot())
        found["latest"].clear()
        return json.loads(to_json(found))["history"]

    first = history()
    assert [(one["id"], one["status"]) for one in first] == [
        (4, "IN_PROGRESS"),
        (3, "FAILED"),
        (2, "COMPLETED"),
        (1, "COMPLETED"),
    ]
    assert sorted(made) == [1, 2, 2, 3, 3, 4]  # 2 and 3 are also the latest of their kinds
    assert history() == first
    assert sorted(made) == [2, 3, 3, 4]
    tracker.discarded(1)
    assert [one.get("discarded") for one in history()] == [None, None, False, True]
    assert sorted(made) == [1, 2, 3, 3, 4]
