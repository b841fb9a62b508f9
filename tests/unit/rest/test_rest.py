"""REST without Spark: what it answers, what it refuses. SPEC R10.1"""

import threading
import time
from types import SimpleNamespace

import pytest

from headrace.api.watermarks import MAX_WATERMARK
from headrace.config import Configuration
from headrace.control.messages import Metrics
from headrace.errors import IllegalState
from headrace.job.status import JobStatus
from headrace.rest.operations import Operations, UnknownOperation
from rest_kit import ID, FakeJob, client_of


@pytest.fixture
def job():
    return FakeJob()


@pytest.fixture
def http(job):
    return client_of(job)


def wait_for(http, path):
    for _ in range(200):
        answer = http.get(path).json()
        if answer["status"]["id"] == "COMPLETED":
            return answer["operation"]
        threading.Event().wait(0.01)
    raise AssertionError("the operation does not end")


def test_jobs(http):
    assert http.get("/jobs").json() == {"jobs": [{"id": ID, "status": "RUNNING"}]}
    assert http.get("/v1/jobs").json() == http.get("/jobs").json()
    (one,) = http.get("/jobs/overview").json()["jobs"]
    assert (one["jid"], one["state"], one["start-time"], one["end-time"]) == (ID, "RUNNING", 1000, -1)
    details = http.get(f"/jobs/{ID}").json()
    assert [vertex["parallelism"] for vertex in details["vertices"]] == [1, 1]
    assert all(len(vertex["id"]) == 32 for vertex in details["vertices"])


def test_watermarks(http, job):
    source, other = job.plan.graph.vertices
    path = f"/jobs/{ID}/vertices/{source.head.id}/watermarks"
    assert http.get(path).json() == []
    assert http.get(f"/jobs/{ID}").json()["vertices"][0]["metrics"]["current-watermark"] is None
    now = time.time_ns() // 1_000_000
    job.counters = {source.id: [Metrics(watermark=now - 5000)], other.id: [Metrics(watermark=MAX_WATERMARK)]}
    assert http.get(path).json() == [{"id": "0.currentInputWatermark", "value": str(now - 5000)}]
    first, second = (vertex["metrics"] for vertex in http.get(f"/jobs/{ID}").json()["vertices"])
    assert (first["current-watermark"], first["watermark-lag"] // 1000) == (now - 5000, 5)
    assert (second["current-watermark"], second["watermark-lag"]) == (MAX_WATERMARK, 0)
    job.counters = {source.id: [Metrics(late_records=2), Metrics(late_records=3)]}
    assert http.get(f"/jobs/{ID}").json()["vertices"][0]["metrics"]["late-records"] == 5
    refused = http.get(f"/jobs/{ID}/vertices/none/watermarks")
    assert (refused.status_code, refused.json()["errors"]) == (404, [f"job {ID} has no vertex none"])


def test_checkpoints(http):
    found = http.get(f"/jobs/{ID}/checkpoints").json()
    assert found["counts"] == {"restored": 0, "total": 1, "in_progress": 0, "completed": 1, "failed": 0}
    assert set(found["summary"]["state_size"]) == {"min", "max", "avg", "p50", "p90", "p95", "p99", "p999"}
    (one,) = found["history"]
    assert (one["id"], one["status"], one["checkpoint_type"], one["external_path"]) == (
        1,
        "COMPLETED",
        "CHECKPOINT",
        "/chk-1",
    )
    assert (one["checkpointed_size"], one["state_size"], one["end_to_end_duration"]) == (100, 300, 250)
    assert (one["chain_length"], one["shared_files"]) == (4, 23)  # the figures behind the limits of SPEC R7.6
    assert one["shared_files_by_operator"] == {"b" * 32: 20, "c" * 32: 3}
    assert found["latest"]["completed"]["id"] == 1
    assert found["latest"]["savepoint"] is None


def test_metrics(http, job):  # SPEC R10.3
    names = http.get(f"/jobs/{ID}/metrics").json()
    assert {"id": "lastCompletedCheckpointId"} in names
    assert {one["id"] for one in names} == set(job.stats.gauges())
    wanted = "lastCheckpointFullSize,noSuchMetric,lastCheckpointExternalPath"
    assert http.get(f"/jobs/{ID}/metrics", params={"get": wanted}).json() == [
        {"id": "lastCheckpointFullSize", "value": "300"},
        {"id": "lastCheckpointExternalPath", "value": "/chk-1"},
    ]
    job.stats = None
    assert http.get(f"/jobs/{ID}/metrics").status_code == 409


def test_details(http, job):
    details = http.get(f"/jobs/{ID}/checkpoints/details/1").json()
    vertex = str(job.plan.graph.vertices[0].head.id)
    assert details["tasks"][vertex]["num_acknowledged_subtasks"] == 1
    subtasks = http.get(f"/jobs/{ID}/checkpoints/details/1/subtasks/{vertex}").json()
    (one,) = subtasks["subtasks"]
    assert one["checkpoint"] == {"sync": 2, "async": 30}
    assert one["alignment"]["duration"] == 7
    assert one["start_delay"] == 5
    assert subtasks["summary"]["checkpoint_duration"]["async"]["max"] == 30


def test_config(http):
    found = http.get(f"/jobs/{ID}/checkpoints/config").json()
    assert (found["mode"], found["interval"], found["checkpoint_storage"]) == ("exactly_once", 5000, "jobmanager")
    assert found["externalization"] == {"enabled": False, "delete_on_cancellation": True}
    assert found["full_checkpoint"] == {
        "max_size": None,
        "max_files": None,
        "max_files_per_operator": None,
        "max_chain_length": 20,
        "cooldown_ms": 3_600_000,
        "retry_ms": 60_000,
        "cron": None,
    }


@pytest.mark.parametrize("kind", ["CONFIGURED", "FULL"])
def test_a_checkpoint_is_triggered(http, job, kind):
    answer = http.post(f"/jobs/{ID}/checkpoints", json={"checkpointType": kind})
    assert answer.status_code == 202
    operation = wait_for(http, f"/jobs/{ID}/checkpoints/{answer.json()['request-id']}")
    assert operation == {"checkpointId": 7}
    assert job.asked == [("checkpoint", kind == "FULL")]


def test_a_savepoint_is_triggered_once_for_one_id(http, job):
    job.gate.clear()
    body = {"target-directory": "/s", "triggerId": "mine"}
    first, second = (http.post(f"/jobs/{ID}/savepoints", json=body).json() for _ in range(2))
    assert first == second == {"request-id": "mine"}
    assert http.get(f"/jobs/{ID}/savepoints/mine").json()["status"] == {"id": "IN_PROGRESS"}
    job.gate.set()
    assert wait_for(http, f"/jobs/{ID}/savepoints/mine") == {"location": "/savepoints/s-1"}
    assert job.asked == [("savepoint", "/s", "CANONICAL")]


def test_a_failure_is_told(http, job):
    job.error = IllegalState("no directory for the savepoint")
    request = http.post(f"/jobs/{ID}/savepoints").json()["request-id"]
    cause = wait_for(http, f"/jobs/{ID}/savepoints/{request}")["failure-cause"]
    assert cause == {"class": "IllegalState", "stack-trace": "[HR-9001] no directory for the savepoint"}


def test_stop_cancel_rescale(http, job):
    body = {"targetDirectory": "/s", "drain": True, "formatType": "NATIVE"}
    request = http.post(f"/jobs/{ID}/stop", json=body).json()["request-id"]
    assert wait_for(http, f"/jobs/{ID}/savepoints/{request}") == {"location": "/savepoints/s-1"}
    assert job.asked == [("stop", "/s", True, "NATIVE")]
    request = http.patch(f"/jobs/{ID}/rescaling?parallelism=4").json()["request-id"]
    assert wait_for(http, f"/jobs/{ID}/rescaling/{request}") == {}
    assert job.rescaled == [4]
    assert http.patch(f"/jobs/{ID}?mode=cancel").status_code == 202
    assert job.cancelled


def test_disposal(http, tmp_path):
    request = http.post("/savepoint-disposal", json={"savepoint-path": str(tmp_path)}).json()["request-id"]
    cause = wait_for(http, f"/savepoint-disposal/{request}")["failure-cause"]
    assert "cannot find a checkpoint or savepoint" in cause["stack-trace"]


REFUSED = [
    ("get", f"/jobs/{'b' * 32}", None, 404, "is not known; GET"),
    ("get", f"/jobs/{ID}/checkpoints/details/99", None, 404, "checkpoint 99"),
    ("get", f"/jobs/{ID}/checkpoints/details/x", None, 400, "checkpoint_id"),
    ("get", f"/jobs/{ID}/checkpoints/details/1/subtasks/{'c' * 32}", None, 404, "has no part in checkpoint 1"),
    ("get", f"/jobs/{ID}/checkpoints/never", None, 404, "no checkpoint operation 'never'"),
    ("get", f"/jobs/{'b' * 32}/savepoints/x", None, 404, "is not known; GET"),
    (
        "post",
        f"/jobs/{ID}/checkpoints",
        {"checkpointType": "INCREMENTAL"},
        400,
        "Input should be 'CONFIGURED' or 'FULL'",
    ),
    ("post", f"/jobs/{ID}/checkpoints", {"checkpointTyp": "FULL"}, 400, "checkpointTyp"),
    ("post", f"/jobs/{ID}/savepoints", {"formatType": "XML"}, 400, "formatType"),
    ("post", f"/jobs/{'b' * 32}/savepoints", None, 404, "is not known; GET"),
    ("post", "/savepoint-disposal", {}, 400, "savepoint-path"),
    ("patch", f"/jobs/{ID}/rescaling", None, 400, "parallelism"),
    ("patch", f"/jobs/{ID}/rescaling?parallelism=0", None, 400, "greater than or equal to 1"),
    ("patch", f"/jobs/{ID}?mode=stop", None, 400, "only 'cancel'"),
    ("get", "/nothing", None, 404, "Not Found"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "reason"), REFUSED)
def test_what_is_wrong_is_refused_with_a_reason(http, method, path, body, status, reason):
    answer = http.request(method.upper(), path, json=body)
    assert answer.status_code == status, answer.text
    assert reason in " ".join(answer.json()["errors"])


def test_a_job_that_has_ended_takes_no_orders(http, job):
    job.status = JobStatus.FINISHED
    answer = http.post(f"/jobs/{ID}/savepoints")
    assert answer.status_code == 409
    assert "has ended: it is FINISHED" in answer.json()["errors"][0]


def test_the_token_is_never_shown():
    conf = Configuration({"headrace.rest.token": "s3cret"})
    assert "s3cret" not in repr(conf)
    assert [text for _, text, _ in conf.changed()] == ["(hidden)"]


def test_not_too_many_operations_at_once(http, job):
    """Each has a thread."""
    job.gate.clear()
    answers = [http.post(f"/jobs/{ID}/savepoints") for _ in range(101)]
    job.gate.set()
    assert [answer.status_code for answer in answers] == [202] * 100 + [429]
    assert "100 operations are under way" in answers[-1].json()["errors"][0]


def test_results_are_kept_for_a_while():
    now = SimpleNamespace(time=0.0)
    operations = Operations(300, lambda: now.time)
    request = operations.start("savepoint", None, lambda: 1)
    assert operations.find("savepoint", request).result(60) == 1
    now.time = 299
    assert operations.find("savepoint", request).done()
    now.time = 1000
    with pytest.raises(UnknownOperation, match="ended more than 300 s ago"):
        operations.find("savepoint", request)


def test_results_are_read_before_the_process_ends():
    """`headrace stop` asks until the job has stopped, and then the driver's process ends at once."""
    operations = Operations(300)
    started = time.monotonic()
    operations.linger(60.0)  # no caller waits
    assert time.monotonic() - started < 30
    request = operations.start("stop", None, lambda: "path")
    operations.find("stop", request).result()  # it is done; its answer may have been asked for before
    heard = []

    def ask():
        time.sleep(0.3)
        heard.append(operations.find("stop", request).result())

    asking = threading.Thread(target=ask)
    asking.start()
    operations._delivered.clear()
    operations.linger(60.0)
    assert heard == ["path"]
    asking.join()
    forgotten = operations.start("stop", None, lambda: "never asked for")
    started = time.monotonic()
    operations.linger(0.1)
    operations.linger(60.0)  # no caller is waited for twice
    assert time.monotonic() - started < 30
    assert operations.find("stop", forgotten).result() == "never asked for"
