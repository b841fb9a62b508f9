"""A job that runs without anything, as REST sees it, and the answers of REST checked against their models."""

import threading
from types import SimpleNamespace

from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from headrace.checkpoint.events import RequestDone
from headrace.checkpoint.stats import CheckpointStats, StatsTracker, SubtaskMetrics, SubtaskStats, VertexStats
from headrace.config import Configuration
from headrace.control.messages import RecordSample, Register, SampleStacks, StackSample
from headrace.driver.metrics_history import SubtaskMeasures
from headrace.driver.probes import Question
from headrace.job import job_events as ev
from headrace.job.machine import JobMachine
from headrace.job.restart import FixedDelay
from headrace.job.status import JobStatus
from headrace.rest.app import make_app
from headrace.rest.jobs import Jobs
from rig import plan_of

ID = "a" * 32


def default_plan():
    return plan_of(lambda env: env.from_sequence(1, 9).key_by(lambda x: x).map(lambda x: x).print())


class FakeCheckpoints:
    def __init__(self, vertices):
        self.stats = StatsTracker(10)
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()
        self.error = None
        first = CheckpointStats(1, 1000, "CHECKPOINT", False, None, "periodic", vertices, chain_length=4)
        first.shared_files = {"b" * 32: 20, "c" * 32: 3}
        first.chain_started = 400
        self.stats.pending(first)
        metrics = SubtaskMetrics(100, 300, 2, 30, 7, 5, objects_written=1, sync_started=1013, written=1045)
        first.vertices[0].subtasks[0] = SubtaskStats(1250, metrics)
        first.completed_timestamp, first.external_path = 1260, "/chk-1"
        self.stats.completed(first)

    def _answer(self, *what):
        self.gate.wait(300)
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
    """What REST asks of a job; its machine is the real one."""

    spark_ui = None

    def spark_stage(self, vertex):
        return None

    def __init__(self, plan=None, job_id=ID):
        self.plan = plan or default_plan()
        super().__init__(
            {
                vertex.id: VertexStats(vertex.parallelism, operators=tuple(one.id for one in vertex.operators))
                for vertex in self.plan.graph.vertices
            }
        )
        self.job_id = job_id
        self.status = JobStatus.RUNNING
        self.begun_ms, self.ended_ms, self.restarts = 1000, None, 0
        self.configuration = Configuration(
            {"execution.checkpointing.interval": "5 s", "headrace.full-checkpoint.max-chain-length": 20}
        )
        self.rescaled, self.cancelled = [], False
        self.counters = {}
        self.service = SimpleNamespace(newest_checkpoint=None)
        self.machine = JobMachine(self.plan.name, self.plan.layout.slots, FixedDelay(3, 100))
        self.run_attempt(1000)

    @property
    def failure_log(self):
        return [cause.message for cause in self.machine.story.failures()]

    @property
    def _workers(self):
        return [(level, i) for level, slots in enumerate(self.plan.layout.levels) for i in range(len(slots))]

    def run_attempt(self, now, restored=None):
        """Let the machine start an attempt, whose subtasks all run at once."""
        number = self.machine.attempt
        if not self.machine.story.attempts:
            self.machine.handle(ev.StartRequested(), now)
        self.machine.handle(ev.CommitsAnswered(), now + 10)
        self.machine.handle(ev.AttemptSubmitted(number, restored), now + 20)
        for event, at in ((ev.WorkerRegistered, 30), (ev.WorkerRestored, 40), (ev.WorkerRunning, 50)):
            for worker in self._workers:
                self.machine.handle(event(number, worker), now + at)

    def fail_attempt(self, now, error, **where):
        """Let it fail and be started again, up to the settling of the next attempt."""
        number = self.machine.attempt
        self.machine.handle(ev.TaskFailed(number, certain=True), now)
        self.machine.handle(ev.AttemptEnded(number, failed=True), now + 5)
        self.machine.handle(ev.TasksLeft(number, (), 0), now + 6)
        self.machine.handle(ev.CauseFound(number, error, **where), now + 7)
        self.machine.handle(ev.TasksLeft(number, (), 0), now + 8)
        self.machine.handle(ev.TimeElapsed(), now + 200)
        self.restarts = self.machine.restarts

    def subtasks(self):
        return {
            vertex: {index: SubtaskMeasures(one) for index, one in enumerate(all_of_them)}
            for vertex, all_of_them in self.counters.items()
        }

    def workers(self):
        return {(level, i): Register(level, i, 0, "host", 7) for level, i in self._workers}

    def commit_figures(self):
        return {}

    silent = False  # whether its workers do not answer

    def probe(self, vertex, make, subtask=None):
        question = Question()
        question.subtasks = {(0, 0): 0}
        message = make(1)
        stacks = StackSample(1, {"main\nloop\nwork": 3, "main\nloop": 1}, {"main\nwait": 2})
        answer = stacks if isinstance(message, SampleStacks) else RecordSample(1, ["1", "'two'"])
        question.answers = {} if self.silent else {0: answer}
        question.close()
        return question

    def cancel(self):
        self.cancelled = True

    def wait(self, timeout=None):
        return self.status

    def rescale(self, parallelism, timeout):
        self.rescaled.append(parallelism)


def client_of(*jobs, token=None, **more):
    """A client of REST for these jobs; nothing is cached."""
    listed = Jobs()
    for job in jobs:
        listed.add(job)
    app = make_app(listed, ["testserver"], token, cache_seconds=0, **more)
    return TestClient(app, raise_server_exceptions=False)


def checked(http, path, status=200, **more):
    """The answer to a GET; it must be what its model says."""
    answer = http.get(path, **more)
    assert answer.status_code == status, answer.text
    document = answer.json()
    model = model_of(http.app, path.partition("?")[0])
    TypeAdapter(model).validate_json(answer.content)
    return document


def model_of(app, path):
    """The model of what a GET of this path answers."""
    routers = [route.original_router for route in app.routes if hasattr(route, "original_router")]
    for route in routers[0].routes:
        methods = getattr(route, "methods", None) or ()
        if "GET" in methods and getattr(route, "response_model", None) and route.path_regex.match(path):
            return route.response_model
    raise AssertionError(f"no route for {path}")
