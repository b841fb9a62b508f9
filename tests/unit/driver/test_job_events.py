"""What a job makes of what its workers say, one message after the other."""

from types import SimpleNamespace

import pytest

from headgate.control.channel import WorkerKey
from headgate.control.messages import Register, Running
from headgate.driver.attempt import Attempt
from headgate.driver.job import SparkJob

FIRST, SECOND = WorkerKey(0, 0, 0), WorkerKey(0, 0, 1)


class Job(SparkJob):
    """A job of two tasks whose thread does not run; `seen` is what it does."""

    def __init__(self):
        self.seen = []
        layout = SimpleNamespace(slots=2)
        self.plan = SimpleNamespace(name="job", layout=layout, task_name=lambda level, index: f"{level}/{index}")
        self._checkpoints = SimpleNamespace(on_message=lambda worker, message: None, job_running=self._running)
        self._rescaling = None
        self._attempt = Attempt(0, "group")
        for worker in (FIRST, SECOND):
            self.hear(worker, Register(0, worker.index, 0, "here", 1))

    def _running(self, running):
        self.seen.append(running)

    def _set(self, status):
        self.seen.append(status.name)

    def hear(self, worker, message):
        self._on_message(None, self._attempt, worker, message)


@pytest.fixture
def job():
    return Job()


def test_a_job_runs_when_all_tasks_run(job):
    job.hear(FIRST, Running())
    assert job.seen == []
    job.hear(SECOND, Running())
    assert job.seen == ["RUNNING", True]
    assert job._all_running()


def test_a_late_task_does_not_revive_a_failing_attempt(job):
    job.hear(FIRST, Running())
    job._on_lost(job._attempt, FIRST)
    job.hear(SECOND, Running())
    assert job.seen == ["FAILING", False]
    assert not job._all_running()


def test_nor_one_that_makes_room_for_another_plan(job):
    answer = SimpleNamespace(set_result=lambda result: pytest.fail("the rescale is not done"))
    job.hear(FIRST, Running())
    job._begin_rescale(SimpleNamespace(answer=answer))
    job.hear(SECOND, Running())
    assert job.seen == [False]
    assert not job._all_running()
