"""Checkpoints that a user requests, where a bounded source finishes in the middle."""

from concurrent.futures import Future
from random import Random

import pytest

from headrace import StreamExecutionEnvironment
from headrace.checkpoint.decider import RequestId
from headrace.checkpoint.events import CheckpointRequested
from headrace.checkpoint.reasons import FailureReason
from headrace.config import Configuration
from headrace.control import messages as msg
from headrace.driver.checkpoint_service import CheckpointService
from headrace.driver.services import JobPort
from headrace.errors import IllegalState
from headrace.ids import JobId
from headrace.testing.simulation.cluster import SimulatedIo
from headrace.testing.storage_faults import MemoryStore

SOURCES = 12


class Job:
    """The checkpoints of a driver whose job has `SOURCES` sources; the test sends the messages of the tasks."""

    def __init__(self):
        env = StreamExecutionEnvironment.get_execution_environment(Configuration()).set_parallelism(SOURCES)
        env.from_sequence(1, 99).uid("source").rebalance().map(lambda n: n).uid("map").set_parallelism(1).print()
        self.calls, self.io = [], SimulatedIo(lambda: 1000, MemoryStore(), Random(1), lambda: None)
        port = JobPort(self.sent, self.calls.append, pytest.fail, pytest.fail)
        settings = Configuration({"execution.checkpointing.dir": "/data"})
        self.triggered = []
        self.service = CheckpointService(env._job_plan("job"), JobId("a" * 32), settings, port, self.io)
        self.service.start_attempt(0, self.service.choose())
        self.tasks = [task for vertex in self.service.coordinator.tasks.topology.vertices for task in vertex.tasks()]
        for task in self.tasks:
            self.service.on_message(task, msg.Running())
        self.service.job_running(True)
        self.work()

    def sent(self, task, message):
        if isinstance(message, msg.TriggerCheckpoint):
            self.triggered.append(task)

    def work(self):
        """Do what waits on the driver."""
        while self.calls or any(one.waiting for one in self.io.jobs):
            while self.calls:
                self.calls.pop(0)()
            for one in self.io.jobs:
                one.shutdown()  # runs what waits

    def request(self):
        answer = Future()
        self.service.request(CheckpointRequested(RequestId("r"), full=False), answer)
        self.work()
        return answer

    def finish(self, task):
        self.service.on_message(task, msg.Finished())
        self.work()


def test_a_request_outlasts_any_number_of_sources_that_finish_one_after_the_other():
    job = Job()
    answer = job.request()
    for number, source in enumerate(job.tasks[:SOURCES], start=1):
        job.triggered.clear()
        job.finish(source)
        assert not answer.done(), f"{number} have finished: {answer.exception()}"
        assert source not in job.triggered
    assert job.triggered == [job.tasks[SOURCES]]  # whose inputs have all ended


def test_a_request_that_fails_again_and_again_although_no_task_finishes_is_given_up():
    job = Job()
    answer = job.request()
    for tried in range(6):
        assert not answer.done(), tried
        decline = msg.DeclineCheckpoint(tried + 1, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, "it is closing")
        job.service.on_message(job.tasks[0], decline)
        job.work()
    with pytest.raises(IllegalState, match="it is closing"):
        answer.result(0)
