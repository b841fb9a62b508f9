"""Names, values and requests that are not expected: every answer is JSON, or Prometheus' format, or a refusal with its reason."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest
from test_access import client as browser

from headrace.config import Configuration
from headrace.control.messages import Metrics
from headrace.errors import UserCodeError
from headrace.graph.plan import JobPlan
from headrace.job.status import JobStatus
from headrace.rest.cache import Cache
from headrace.rest.event_stream import EventStream, _Client, make_change
from rest_kit import ID, FakeJob, checked, client_of, default_plan
from rig import plan_of
from waiting import wait_until

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def job():
    return FakeJob()


@pytest.fixture
def http(job):
    return client_of(job)


# --- text ---------------------------------------------------------------------------------------------------------------


def test_text_that_utf8_cannot_carry_is_escaped(job, http):
    """A file name or a record may have bytes that were decoded with `surrogateescape`."""
    job.plan.name = "half \udcff"
    job.fail_attempt(2000, UserCodeError("bad \udcff"), operator="op \ud800")
    for path in ("/jobs/overview", f"/jobs/{ID}", f"/jobs/{ID}/plan", f"/jobs/{ID}/config"):
        assert checked(http, path)
    assert checked(http, "/jobs/overview")["jobs"][0]["name"] == "half \\udcff"
    assert "bad \\udcff" in json.dumps(checked(http, f"/jobs/{ID}/exceptions")).replace("\\\\", "\\")
    assert 'job_name="half ?"' in http.get("/metrics/prometheus").text


def test_an_error_of_an_operation_is_escaped_too(job, http):
    job.error = UserCodeError("cannot write 'a\udcff'")
    request = http.post(f"/jobs/{ID}/checkpoints").json()["request-id"]
    done = wait_until(lambda: http.get(f"/jobs/{ID}/checkpoints/{request}").json()["operation"])
    assert done["failureCause"]["stack-trace"] == "[HR-5001] cannot write 'a\\udcff'"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (rb'{"target-directory": "\ud800"}', "body.target-directory: .*lone surrogates"),
        (rb'{"\ud800": 1}', "body"),
        (b'{"cancel-job": NaN}', "body.cancel-job"),
        (b"[" * 100_000, "error parsing the body"),
        (b'{"a":' * 100_000, "error parsing the body"),
        (b"\xff\xfe", "body"),
        (b"[1]", "body"),
        (b'{"triggerId": "a/b"}', "body.triggerId"),
        (b'{"triggerId": ".."}', "body.triggerId"),
        (b'{"triggerId": "config"}', "'config' names another resource"),
        (b'{"triggerId": "details"}', "'details' names another resource"),
    ],
)
def test_bodies_that_are_refused(job, http, body, reason):
    answer = http.post(f"/jobs/{ID}/savepoints", content=body, headers=JSON)
    assert answer.status_code == 400
    assert re.search(reason, "; ".join(answer.json()["errors"]))
    assert job.asked == []


def test_an_id_that_is_left_open(job, http):
    """As Flink's own client sends it."""
    body = {"triggerId": None, "checkpointType": "FULL"}
    assert len(http.post(f"/jobs/{ID}/checkpoints", json=body).json()["request-id"]) == 32


# --- cookies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        'settings={"a":1}',
        "theme=a b",
        'x="open',
        "caf\xe9=1",
        "[]=3",
        "a,b=1",
        "=",
        "flag",
        "expires=Mon",
        "headrace-token-8081=other",
    ],
)
def test_a_cookie_of_another_program_on_this_host_does_not_log_out(job, other):
    """All ports of a host share their cookies."""
    http = browser(job)
    cookie = http.get("/login", params={"token": "s3;cret"}).headers["set-cookie"].partition(";")[0]
    http.cookies.clear()
    for sent in (f"{other}; {cookie}", f"{cookie}; {other}"):
        assert http.get("/jobs", headers={"Cookie": sent.encode("latin-1")}).status_code == 200


def test_a_proxy_may_add_a_path(job):
    http = browser(job)
    assert http.get("/login", params={"token": "s3;cret"}).headers["location"] == "ui/"
    assert http.get("/").headers["location"] == "ui/"


# --- numbers ------------------------------------------------------------------------------------------------------------

SAMPLE = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*\{([a-z_]+="([^"\\\n]|\\\\|\\"|\\n)*"(,|(?=\})))*\} (-?[0-9.]+(e[+-]?[0-9]+)?|NaN|[+-]Inf)'
)


def test_prometheus_gets_whole_numbers_and_each_sample_once(job, http):
    source = job.plan.graph.vertices[0]
    job.plan.name = 'he said "no"\\\n\udcff {}'
    user = {
        "clicks": 12345678901.0,
        "share": 0.1,
        "a.b": 1.0,
        "a_b": 2.0,
        'x"y\n{}': 3.0,
        "none": float("nan"),
        "most": float("inf"),
        "least": float("-inf"),
        "large": 2.0**70,
    }
    job.counters = {
        source.id: [Metrics(records_in=(1 << 60) + 1, user={f"{source.name}.{k}": v for k, v in user.items()})]
    }
    lines = [line for line in http.get("/metrics/prometheus").text.splitlines() if not line.startswith("#")]
    for line in lines:
        assert SAMPLE.fullmatch(line), line
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)
    values = {
        line.partition("{")[0].removeprefix("flink_taskmanager_job_task_"): line.rpartition(" ")[2] for line in lines
    }
    assert values["numRecordsIn"] == "1152921504606846977"
    mine = {name.removeprefix("operator_"): value for name, value in values.items() if name.startswith("operator_")}
    assert mine == {
        "clicks": "12345678901",
        "share": "0.1",
        "a_b": "1",
        "x_y___": "3",
        "none": "NaN",
        "most": "+Inf",
        "least": "-Inf",
        "large": "1.1805916207174113e+21",
    }


def test_subtasks_of_a_metric(job, http):
    source = job.plan.graph.vertices[0]
    job.counters = {source.id: [Metrics(records_in=n) for n in (1, 2, 4, 8, 16)]}
    path = f"/jobs/{ID}/vertices/{source.head.id}/subtasks/metrics?get=numRecordsIn&agg=sum"
    for subtasks, total in (("0,2-3", 13), ("1", 2), ("3-", 8), ("0-99999999999", 31), ("4-2", None), ("7", None)):
        assert [one["sum"] for one in checked(http, f"{path}&subtasks={subtasks}")] == ([total] if total else [])
    started = time.process_time()
    answer = http.get(f"{path}&subtasks={','.join(['0-32767'] * 1000)}")
    assert (answer.json()[0]["sum"], time.process_time() - started < 1) == (31, True)
    assert http.get(f"{path}&subtasks={'0,' * 6000}0").status_code == 400


# --- a job that changes while it is looked at ---------------------------------------------------------------------------


def test_a_checkpoint_of_before_a_rescale_that_chained_operators_in_another_way():
    """Its vertices are those that the job had then."""
    apart = plan_of(lambda env: env.from_sequence(1, 9).key_by(str).map(str).key_by(str).map(str).print())
    job = FakeJob(apart)
    http = client_of(job)
    before = checked(http, f"/jobs/{ID}/checkpoints/details/1")
    heads = [str(vertex.head.id) for vertex in apart.graph.vertices]
    assert sorted(before["tasks"]) == sorted(heads)
    job.plan = default_plan()
    assert checked(http, f"/jobs/{ID}/checkpoints/details/1") == before
    shown = checked(http, f"/jobs/{ID}/checkpoints/details/1/timeline")["subtasks"]
    assert [one["vertex"] for one in shown] == heads
    for head in heads:
        assert len(checked(http, f"/jobs/{ID}/checkpoints/details/1/subtasks/{head}")["subtasks"]) == 1
    for path in (f"/jobs/{ID}/state-files", f"/jobs/{ID}/key-groups", f"/jobs/{ID}/vertices/{heads[0]}/metrics"):
        assert checked(http, path) is not None
    unknown = http.get(f"/jobs/{ID}/checkpoints/details/1/subtasks/{'0' * 32}")
    assert unknown.status_code == 404
    assert "has no part in checkpoint 1" in unknown.json()["errors"][0]


@pytest.mark.parametrize("path", ["/metrics/prometheus", f"/jobs/{ID}"])
def test_a_plan_that_is_replaced_in_the_middle_of_an_answer(job, http, path, monkeypatch):
    """The answer is made again, of the new one."""
    calls = []
    real = JobPlan.workers_of
    job.counters = {job.plan.graph.vertices[0].id: [Metrics()]}

    def workers_of(plan, vertex):
        calls.append(vertex)
        if len(calls) == 1:  # the vertex is of the old plan
            raise KeyError(vertex)
        return real(plan, vertex)

    monkeypatch.setattr(JobPlan, "workers_of", workers_of)
    assert http.get(path).status_code == 200
    assert len(calls) > 1


def test_the_state_of_a_job_that_has_ended(job, http):
    assert "has no completed checkpoint yet" in http.get(f"/jobs/{ID}/state").json()["errors"][0]
    job.status = JobStatus.FINISHED
    answer = http.get(f"/jobs/{ID}/state")
    assert answer.status_code == 409
    assert "has ended, and keeps no checkpoint; `headrace inspect PATH`" in answer.json()["errors"][0]


# --- memory -------------------------------------------------------------------------------------------------------------


def test_an_answer_is_not_kept_longer_than_it_is_of_use():
    now = [0.0]
    cache = Cache(seconds=1, clock=lambda: now[0])
    for page in range(400):
        cache.get(page, lambda: "x" * 1000)
        now[0] += 0.1
    assert len(cache._bodies) <= 12


def test_a_client_that_does_not_read_gets_the_newest_of_each_kind():
    async def run():
        seen = [0]

        def look():
            seen[0] += 1
            return [make_change(ID, "metrics", {"n": seen[0]}), make_change(ID, "job", {"state": "RUNNING"})]

        stream = EventStream(look, period=0.001)
        slow = stream.stream(ID)
        await anext(slow)
        (client,) = stream._clients
        while seen[0] < 50:
            await asyncio.sleep(0.001)
            assert len(client.waiting) <= 2
        events = (await anext(slow)).decode().split("\n\n")
        newest = [json.loads(event.partition("data: ")[2]) for event in events if event.startswith("event: metrics")]
        assert [event["n"] >= 40 for event in newest] == [True]
        await slow.aclose()

    asyncio.run(run())


def test_events_that_wait_are_sent_some_at_once_and_in_order():
    client = _Client(None)
    for number in range(1500):
        client.put((ID, "checkpoint", number), b"%d " % number + bytes(100))
    first = client.take()
    assert 60_000 < len(first) <= 1 << 16
    rest = [first]
    while client.waiting:
        rest.append(client.take())
    assert [int(one.split()[0]) for one in b"".join(rest).split(bytes(100)) if one] == list(range(500, 1500))
    client.put((ID, "metrics", None), bytes(1 << 17))
    client.put((ID, "job", None), b"job")
    assert [len(client.take()), client.take(), client.waiting] == [1 << 17, b"job", {}]


def test_events_continue_after_a_look_that_failed(caplog):
    async def run():
        looks = [0]

        def look():
            looks[0] += 1
            if looks[0] == 1:
                raise RuntimeError("the job changed")
            return [make_change(ID, "job", {"state": "RUNNING"})]

        events = EventStream(look, period=0.001).stream(None)
        await anext(events)
        assert b"RUNNING" in await asyncio.wait_for(anext(events), 5)
        await events.aclose()

    asyncio.run(run())
    assert "they are tried again" in caplog.text


# --- secrets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "headrace.rest.token",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net",
        "spark.ssl.keyPassword",
        "spark.authenticate.secret",
        "spark.hadoop.my.api-key",
    ],
)
def test_no_secret_is_shown(job, http, key):
    job.configuration = Configuration({key: "s3cret"})
    assert checked(http, f"/jobs/{ID}/config")["execution-config"]["user-config"][key] == "(hidden)"
    assert "s3cret" not in repr(job.configuration)


def test_what_is_no_secret_is_shown(job, http):
    values = {"headrace.rest.token-file": "/run/token", "spark.hadoop.fs.s3a.endpoint": "http://store"}
    job.configuration = Configuration(values)
    assert values.items() <= checked(http, f"/jobs/{ID}/config")["execution-config"]["user-config"].items()
