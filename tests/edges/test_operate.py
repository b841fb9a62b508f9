"""REST on a job that really runs, with worker threads and the control plane of production, but no JVM. SPEC R10"""

import json
import threading
import time
import urllib.request
from datetime import date
from uuid import UUID

import numpy as np
import pytest
import uvicorn
from edge_kit import wait_running

from headrace import KeyedProcessFunction, ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from headrace.rest.app import make_app
from headrace.rest.jobs import Jobs
from headrace.savepoints.reader import StateSnapshotReader
from rest_kit import checked, client_of
from waiting import wait_until

WORDS = ["ant", "bee", "cat", "dog"]


class Remember(KeyedProcessFunction):
    """Every kind of state under a word, and a failure when the test asks for one."""

    fail = threading.Event()

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint", default=0))
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        self.odd = runtime_context.get_map_state(MapStateDescriptor("odd", "bigint", "boolean"))

    def process_element(self, value, ctx):
        if Remember.fail.is_set():
            Remember.fail.clear()
            raise ValueError("asked for")
        self.count.update(self.count.value() + 1)
        self.last.update({"number": value[1]})
        if self.count.value() <= 3:
            self.seen.add(value[1])
            self.odd.put(value[1], value[1] % 2 == 1)
        ctx.timer_service().register_processing_time_timer(1 << 45)
        yield value


def build(env):
    words = env.from_sequence(0, 1 << 40).map(_slowly).map(lambda n: (WORDS[n % 4], n))
    words.key_by(lambda pair: pair[0]).process(Remember()).name("remember").uid("remember").add_sink(lambda pair: None)


def _slowly(number):
    time.sleep(0.0005)
    return number


@pytest.fixture
def client(jobs, tmp_path):
    Remember.fail.clear()
    options = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "50 ms"}
    return wait_running(jobs.start(tmp_path / "checkpoints", build, options, name="operate", parallelism=2))


@pytest.fixture
def http(client):
    return client_of(client.job)


@pytest.fixture
def path(client):
    return f"/jobs/{client.get_job_id()}"


def vertex_path(http, path, name):
    (found,) = [one["id"] for one in checked(http, path)["vertices"] if name in one["name"]]
    return f"{path}/vertices/{found}"


def operation(http, method, path, result, **more):
    request = http.request(method, path, **more).json()["request-id"]
    return wait_until(lambda: http.get(f"{result}/{request}").json()["operation"], what="the end of the operation")


def test_counters_and_rates(http, path):
    wait_until(lambda: checked(http, path)["vertices"][1]["metrics"]["read-records-per-second"] > 0)
    details = checked(http, path)
    assert details["vertices"][1]["metrics"]["busy-ratio"] >= 0
    (listed,) = checked(http, "/jobs/overview")["jobs"]
    assert listed["tasks"]["running"] == listed["tasks"]["total"] == 4
    remember = vertex_path(http, path, "remember")
    assert len(checked(http, f"{remember}/backpressure")["subtasks"]) == 2
    assert len(checked(http, remember)["subtasks"]) == 2
    text = http.get("/metrics/prometheus").text
    assert "flink_taskmanager_job_task_numRecordsInPerSecond{" in text
    assert "stateEntries" in text


def test_workers_are_sampled(http, path):
    source = vertex_path(http, path, "Sequence")
    flames = lambda query: checked(http, f"{source}/flamegraph{query}")["data"]  # noqa: E731
    tree = wait_until(
        lambda: whole if (whole := flames(""))["value"] > 60 else None
    )  # both subtasks have answered in time
    assert "_slowly" in json.dumps(tree)
    one = wait_until(lambda: part if (part := flames("?subtaskindex=1"))["value"] > 0 else None)
    assert one["value"] < tree["value"]
    records = wait_until(lambda: checked(http, f"{source}/sample?records=5")["records"])
    assert len(records) <= 5
    assert all(record.startswith("('") for record in records)
    received = f"{vertex_path(http, path, 'remember')}/sample"  # the newest batch, which may be short
    wait_until(lambda: any("'ant'" in record for record in checked(http, received)["records"]))


def test_the_timeline_of_a_real_checkpoint(http, path):
    done = operation(http, "POST", f"{path}/checkpoints", f"{path}/checkpoints")
    found = checked(http, f"{path}/checkpoints/details/{done['checkpointId']}/timeline")
    assert len(found["subtasks"]) == 4
    for one in found["subtasks"]:
        moments = [one[name] for name in ("first_barrier", "last_barrier", "sync_start", "sync_end", "async_end")]
        assert moments == sorted(moments), one
        assert found["trigger_timestamp"] <= moments[0]
        assert moments[-1] <= one["ack_timestamp"] <= found["completed_timestamp"]
    (point,) = checked(http, f"{path}/state-files")["points"]
    assert (point["oldest_file_age"], point["chain_length"]) == (0, 1)
    (groups,) = [one for one in checked(http, f"{path}/key-groups")["operators"] if one["name"] == "remember"]
    assert [(one["first"], one["last"]) for one in groups["subtasks"]] == [(0, 15), (16, 31)]
    assert sum(one["bytes"] for one in groups["subtasks"]) > 0


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_the_state_browser(jobs, tmp_path, backend):
    Remember.fail.clear()
    options = {"state.backend.type": backend}
    client = wait_running(jobs.start(tmp_path / "checkpoints", build, options, parallelism=2))
    http, path = client_of(client.job), f"/jobs/{client.get_job_id()}"
    assert http.get(f"{path}/state").status_code == 409
    wait_until(lambda: checked(http, path)["vertices"][1]["metrics"]["read-records"] > 50)
    done = operation(http, "POST", f"{path}/checkpoints", f"{path}/checkpoints")
    found = checked(http, f"{path}/state")
    assert found["checkpoint"] == done["checkpointId"]
    kinds = {one["state"]: one["kind"] for one in found["states"] if one["uid"] == "remember"}
    assert {"count": "value", "last": "value", "seen": "list", "odd": "map"}.items() <= kinds.items()
    values = {}
    for word in WORDS:
        (entry,) = checked(http, f'{path}/state/remember/count?key="{word}"')["entries"]
        assert (entry["key"], entry["namespace"]) == (word, None)
        values[word] = entry["value"]
        (entry,) = checked(http, f'{path}/state/remember/last?key="{word}"')["entries"]
        assert entry["value"]["number"] % 4 == WORDS.index(word)
        (entry,) = checked(http, f'{path}/state/remember/seen?key="{word}"')["entries"]
        seen = entry["value"]
        assert [number % 4 for number in seen] == [WORDS.index(word)] * 3
        (entry,) = checked(http, f'{path}/state/remember/odd?key="{word}"')["entries"]
        assert sorted(entry["value"]) == sorted([number, number % 2 == 1] for number in seen)
    pages, after = [], ""
    while True:
        page = checked(http, f"{path}/state/remember/count?limit=3{after}")
        pages += page["entries"]
        if page["next"] is None:
            break
        assert len(page["entries"]) == 3
        after = f"&after={page['next']}"
    assert {entry["key"]: entry["value"] for entry in pages} == values
    assert checked(http, f'{path}/state/remember/count?key="emu"')["entries"] == []
    again = http.get(f"{path}/state/remember/count?limit=3{after}")
    assert (again.status_code, "start again" in again.json()["errors"][0]) == (404, True)
    unknown = http.get(f"{path}/state/remember/none")
    assert unknown.status_code == 400
    assert "it has 'count' (value)" in unknown.json()["errors"][0]
    timers = [one["state"] for one in found["states"] if one["kind"] == "timers"]
    assert {tuple(e["value"][0].items()) for e in checked(http, f"{path}/state/remember/{timers[0]}")["entries"]} == {
        (("domain", "processing"), ("ts", 1 << 45))
    }


def test_what_a_notebook_shows(client, tmp_path):
    wait_until(client.job.metrics_by_vertex)
    path = client.trigger_savepoint(str(tmp_path / "savepoints"))
    shown = client._repr_html_()
    assert "&#x27;operate&#x27;, job" in shown
    assert "remember" in shown
    assert "savepoint" in shown
    shown = StateSnapshotReader.open(path)._repr_html_()
    assert "of job &#x27;operate&#x27;" in shown


KEYS = ["ant", 1 << 60, -7, 3.5, float("inf"), b"bytes", ("t", 2), None, True, date(2026, 1, 2), UUID(int=5), "1"]


def build_keys(env):
    numbers = env.from_sequence(0, 1 << 40).map(_slowly).map(lambda n: (KEYS[n % len(KEYS)], n))
    numbers.key_by(lambda pair: pair[0]).process(Remember()).name("a/b").add_sink(lambda pair: None)
    wide = env.from_sequence(0, 1 << 40).map(
        lambda n: ((1 << 60) + n % 4, _slowly(n)), output_type="id bigint, n bigint"
    )
    wide.key_by("id").process(Remember()).uid("wide").add_sink(lambda pair: None)


def test_every_key_that_is_shown_can_be_looked_up(jobs, tmp_path):
    Remember.fail.clear()
    client = wait_running(jobs.start(tmp_path / "checkpoints", build_keys, {}, parallelism=2))
    http, path = client_of(client.job), f"/jobs/{client.get_job_id()}"
    wait_until(lambda: min(one["metrics"]["read-records"] for one in checked(http, path)["vertices"]) > 100)
    operation(http, "POST", f"{path}/checkpoints", f"{path}/checkpoints")
    operators = {one["operator-name"]: one["operator"] for one in checked(http, f"{path}/state")["states"]}
    for operator, count in ((operators["a/b"], len(KEYS)), ("wide", 4)):
        entries = checked(http, f"{path}/state/{operator}/count")["entries"]
        assert len(entries) == count
        for entry in entries:
            found = http.get(f"{path}/state/{operator}/count", params={"key": json.dumps(entry["key"])}).json()
            assert found["entries"] == [entry], entry
    for key in (str(1 << 60), f'"{1 << 60}"'):  # as it is written, and as it is shown
        (entry,) = checked(http, f"{path}/state/wide/count?key={key}")["entries"]
        assert entry["key"] == str(1 << 60)
    (entry,) = checked(http, f"{path}/state/{operators['a/b']}/count?key={1 << 60}")["entries"]
    assert entry["key"] == str(1 << 60)


def test_a_state_that_is_too_large_is_refused(jobs, tmp_path):
    Remember.fail.clear()
    client = wait_running(jobs.start(tmp_path / "c", build, {"headrace.rest.state-browser.max-size": "10 b"}))
    http, path = client_of(client.job), f"/jobs/{client.get_job_id()}"
    wait_until(lambda: checked(http, path)["vertices"][1]["metrics"]["read-records"] > 50)
    operation(http, "POST", f"{path}/checkpoints", f"{path}/checkpoints")
    answer = http.get(f"{path}/state/remember/count")
    assert answer.status_code == 409
    assert "headrace.rest.state-browser.max-size = 10" in answer.json()["errors"][0]


def test_the_story_of_a_failure(http, client, path):
    done = operation(http, "POST", f"{path}/checkpoints", f"{path}/checkpoints")
    Remember.fail.set()
    wait_until(lambda: client.job.restarts == 1 and client.job.machine.all_running)
    first, second = checked(http, f"{path}/story")["attempts"]
    assert (first["outcome"], second["outcome"]) == ("FAILED", "OPEN")
    assert first["cause"]["message"].split(": ", 1)[1].startswith("ValueError: asked for")
    assert "test_operate.py:" in first["cause"]["location"]
    assert (first["cause"]["operator"], first["cause"]["subtask"] in (0, 1)) == ("remember", True)
    assert second["restored_checkpoint"] == done["checkpointId"]
    # The delay counts from when the cause is known, which may be before the last task has left.
    assert second["phases"]["cancel"] + second["phases"]["wait"] >= 50
    assert all(second["phases"][name] >= 0 for name in ("cancel", "schedule", "restore"))
    (entry,) = checked(http, f"{path}/exceptions")["exceptionHistory"]["entries"]
    assert (entry["exceptionName"], entry["taskName"]) == ("UserCodeError", "remember")
    assert checked(http, path)["timestamps"]["RESTARTING"] > 0


def test_a_cancelled_job_says_so(http, client, path):
    assert http.patch(f"{path}?mode=cancel").status_code == 202
    wait_until(lambda: client.get_job_status().is_terminal)
    (attempt,) = checked(http, f"{path}/story")["attempts"]
    assert attempt["outcome"] == "CANCELED"
    (listed,) = checked(http, "/jobs/overview")["jobs"]
    assert (listed["state"], listed["tasks"]["canceled"] + listed["tasks"]["finished"]) == ("CANCELED", 4)
    assert http.patch(f"{path}?mode=cancel").status_code == 409


class Measure(KeyedProcessFunction):
    """Metrics, errors and state as careless functions have them."""

    fail = threading.Event()

    def open(self, runtime_context):
        group = runtime_context.get_metrics_group()
        group.gauge("is_open", lambda: True)
        group.gauge("level", lambda: np.float64(2.5))
        group.gauge("huge", lambda: 10**400)
        group.gauge("name", lambda: "text")
        self.bytes = group.counter("bytes \udcff")
        self.held = runtime_context.get_state(ValueStateDescriptor("held"))

    def process_element(self, value, ctx):
        self.bytes.inc(np.int64(1))
        self.held.update({"text": "bad \udcff", "big": 1 << 60, "nan": float("nan")})
        if Measure.fail.is_set():
            Measure.fail.clear()
            raise ValueError("cannot read bad \udcff")
        yield value


def build_careless(env):
    words = env.from_sequence(0, 1 << 40).map(_slowly).map(lambda n: (WORDS[n % 4], n))
    words.key_by(lambda pair: pair[0]).process(Measure()).name("measure").add_sink(lambda pair: None)


def test_what_functions_measure_and_raise_never_ends_a_worker(jobs, tmp_path):
    """Numbers of other libraries, and text that UTF-8 cannot carry."""
    Measure.fail.clear()
    options = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "50 ms"}
    client = wait_running(jobs.start(tmp_path / "checkpoints", build_careless, options))
    http, path = client_of(client.job), f"/jobs/{client.get_job_id()}"
    measure = vertex_path(http, path, "measure")
    names = {"0.measure.is_open", "0.measure.level", "0.measure.bytes \\udcff"}
    wait_until(lambda: names <= {one["id"] for one in checked(http, f"{measure}/metrics")}, what="the metrics")
    assert client.job.restarts == 0
    operation(http, "POST", f"{path}/checkpoints", f"{path}/checkpoints")
    (entry,) = checked(http, f'{path}/state/measure/held?key="ant"')["entries"]
    assert entry["value"] == {"text": "bad \\udcff", "big": str(1 << 60), "nan": "nan"}
    Measure.fail.set()
    wait_until(lambda: client.job.restarts == 1 and client.job.machine.all_running)
    failed = checked(http, f"{path}/story")["attempts"][0]
    assert "ValueError: cannot read bad \\udcff" in failed["cause"]["message"]


def paths_of(job):
    """Every GET of a job, as it is now."""
    vertex = f"/vertices/{job.plan.graph.vertices[-1].head.id}"
    of_vertex = "", "/metrics", "/subtasks/metrics", "/subtasks/0", "/subtasktimes", "/taskmanagers", "/backpressure"
    of_job = "", "/plan", "/config", "/status", "/exceptions", "/story", "/accumulators", "/metrics", "/checkpoints"
    more = "/checkpoints/config", "/checkpoints/details/1", "/checkpoints/details/1/timeline", "/state-files", "/state"
    parts = *of_job, *more, "/key-groups", *(vertex + part for part in (*of_vertex, "/watermarks", "/sample"))
    return ["/overview", "/jobs/overview", "/metrics/prometheus", *(f"/jobs/{job.job_id}{part}" for part in parts)]


def test_no_answer_is_an_error_of_the_server_from_before_the_start_to_after_the_end(jobs, tmp_path):
    Remember.fail.clear()
    options = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "50 ms"}
    client = jobs.start(tmp_path / "checkpoints", build, options, parallelism=2)
    over, bad, seen = threading.Event(), [], set()

    def hammer():
        http = client_of(client.job)
        while not over.is_set():
            for path in paths_of(client.job):
                answer = http.get(path)
                seen.add(client.get_job_status())
                if answer.status_code >= 500 or not answer.text:
                    bad.append((path, answer.status_code, client.get_job_status()))

    threads = [threading.Thread(target=hammer) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_running(client)
    client.trigger_checkpoint()
    Remember.fail.set()
    wait_until(lambda: client.job.restarts == 1 and client.job.machine.all_running)
    for parallelism in (3, 1):
        client.trigger_checkpoint()
        client.job.master.change_plan(client.job._replan(parallelism)).result(30)
    client.cancel()
    wait_until(lambda: client.get_job_status().is_terminal)
    over.set()
    for thread in threads:
        thread.join(30)
    assert bad == []
    assert len(seen) >= 2


# --- events -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def address(client):
    """A real server: a stream without end cannot be read from the test client."""
    listed = Jobs()
    listed.add(client.job)
    config = uvicorn.Config(make_app(listed, ["127.0.0.1"], "s3cret"), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = server.force_exit = True
    thread.join(5)


def events(address, query=""):
    request = urllib.request.Request(f"{address}/events{query}", headers={"Authorization": "Bearer s3cret"})
    answer = urllib.request.urlopen(request, timeout=120)
    assert answer.headers["content-type"].startswith("text/event-stream")
    kind = None
    for line in answer:
        if line.startswith(b"event: "):
            kind = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield kind, json.loads(line[6:])


def test_events(address, client):
    first, other = events(address), events(address, f"?job={client.get_job_id()}")
    seen = [next(first), next(first)]
    assert [kind for kind, _ in seen] == ["job", "metrics"]
    assert (seen[0][1]["jid"], seen[0][1]["state"]) == (client.get_job_id(), "RUNNING")
    assert len(seen[1][1]["vertices"]) == 2
    client.trigger_checkpoint()
    found = next(document for kind, document in first if kind == "checkpoint" and document["status"] == "COMPLETED")
    assert (found["jid"], found["num_acknowledged_subtasks"]) == (client.get_job_id(), 4)
    assert next(document for kind, document in other if kind == "checkpoint")["id"] == found["id"]
    client.cancel()
    assert (
        next(document["state"] for kind, document in first if kind == "job" and document["end-time"] > 0) == "CANCELED"
    )
