"""REST without Spark: what it answers, what it refuses. SPEC R10.1"""

import threading
import time
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from headgate.checkpoint.events import RequestDone
from headgate.checkpoint.stats import CheckpointStats, StatsTracker, SubtaskMetrics, SubtaskStats, VertexStats
from headgate.config import Configuration
from headgate.errors import IllegalState
from headgate.job.status import JobStatus
from headgate.rest.app import make_app
from headgate.rest.jobs import Jobs
from headgate.rest.operations import Operations, UnknownOperation
from rig import plan_of

ID = "a" * 32


class FakeCheckpoints:
    def __init__(self, vertices):
        self.stats = StatsTracker(10)
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()
        self.error = None
        first = CheckpointStats(1, 1000, "CHECKPOINT", False, None, "periodic", vertices, chain_length=4)
        first.shared_files = {"b" * 32: 20, "c" * 32: 3}
        self.stats.pending(first)
        first.vertices[0].subtasks[0] = SubtaskStats(1250, SubtaskMetrics(100, 300, 2, 30, 7, 5, objects_written=1))
        first.completed_timestamp, first.external_path = 1260, "/chk-1"
        self.stats.completed(first)

    def _answer(self, *what):
        self.gate.wait(10)
        self.asked.append(what)
        if self.error:
            raise self.error
        return RequestDone(7, "/savepoints/s-1", 3)

    def trigger_checkpoint(self, full, timeout):
        return self._answer("checkpoint", full)

    def trigger_savepoint(self, target, format, timeout):
        return self._answer("savepoint", target, format.value)

    def stop_with_savepoint(self, target, drain, format, timeout):
        return self._answer("stop", target, drain, format.value)


class FakeJob(FakeCheckpoints):
    """What REST asks of a job."""

    def __init__(self):
        super().__init__({0: VertexStats(1)})
        self.job_id = ID
        self.plan = plan_of(lambda env: env.from_sequence(1, 9).key_by(lambda x: x).map(lambda x: x).print())
        self.status = JobStatus.RUNNING
        self.begun_ms, self.ended_ms, self.restarts, self.failure_log = 1000, None, 0, []
        self.configuration = Configuration(
            {"execution.checkpointing.interval": "5 s", "headgate.full-checkpoint.max-chain-length": 20}
        )
        self.rescaled, self.cancelled = [], False

    def metrics_by_vertex(self):
        return {}

    def cancel(self):
        self.cancelled = True

    def wait(self, timeout=None):
        return self.status

    def rescale(self, parallelism, timeout):
        self.rescaled.append(parallelism)


@pytest.fixture
def job():
    return FakeJob()


@pytest.fixture
def http(job):
    jobs = Jobs()
    jobs.add(job)
    return TestClient(make_app(jobs, ["testserver"]), raise_server_exceptions=False)


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
    assert cause == {"class": "IllegalState", "stack-trace": "no directory for the savepoint"}


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
    ("post", f"/jobs/{ID}/checkpoints", {"checkpointType": "INCREMENTAL"}, 400, "must be CONFIGURED or FULL"),
    ("post", f"/jobs/{ID}/checkpoints", {"checkpointTyp": "FULL"}, 400, "checkpointTyp"),
    ("post", f"/jobs/{ID}/savepoints", {"formatType": "XML"}, 400, "formatType"),
    ("post", f"/jobs/{'b' * 32}/savepoints", None, 404, "is not known; GET"),
    ("post", "/savepoint-disposal", {}, 400, "savepoint-path"),
    ("patch", f"/jobs/{ID}/rescaling", None, 400, "parallelism"),
    ("patch", f"/jobs/{ID}/rescaling?parallelism=0", None, 400, "at least 1"),
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


def test_a_token(job):
    jobs = Jobs()
    jobs.add(job)
    http = TestClient(make_app(jobs, ["testserver"], token="s3cret"))
    assert http.get("/jobs").status_code == 401
    assert http.get("/jobs", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert http.get("/jobs", headers={"Authorization": "Bearer s3cret"}).status_code == 200


def test_no_other_host_name(job):
    http = TestClient(make_app(Jobs(), ["127.0.0.1"]), base_url="http://evil.example")
    assert http.get("/jobs").status_code == 400


def test_the_token_is_never_shown():
    conf = Configuration({"headgate.rest.token": "s3cret"})
    assert "s3cret" not in repr(conf)
    assert [text for _, text, _ in conf.changed()] == ["(hidden)"]


def test_results_are_kept_for_a_while():
    now = SimpleNamespace(time=0.0)
    operations = Operations(300, lambda: now.time)
    request = operations.start("savepoint", None, lambda: 1)
    assert operations.find("savepoint", request).result(5) == 1
    now.time = 299
    assert operations.find("savepoint", request).done()
    now.time = 1000
    with pytest.raises(UnknownOperation, match="ended more than 300 s ago"):
        operations.find("savepoint", request)


def test_results_are_read_before_the_process_ends():
    """`headgate stop` asks until the job has stopped, and then the driver's process ends at once."""
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
