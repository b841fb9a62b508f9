"""What objects look like in a notebook: tables of HTML in which every text is text."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from headrace import StreamExecutionEnvironment
from headrace.job.status import JobStatus
from headrace.job_client import CheckpointTable, JobClient
from rest_kit import FakeJob

HOSTILE = "<img src=x onerror=alert(1)>"


def program(env):
    return env.from_sequence(1, 9).map(lambda n: n).name(HOSTILE).key_by(lambda n: n).map(lambda n: n).name("last")


def test_an_environment():
    env = StreamExecutionEnvironment.local()
    assert "the program is empty" in env._repr_html_()
    program(env)
    env.get_configuration().set("pipeline.name", HOSTILE)
    shown = env._repr_html_()
    assert "<td" in shown
    assert "test_notebook.py:" in shown
    assert "pipeline.name" in shown
    assert HOSTILE not in shown
    assert "&lt;img" in shown


def test_a_plan():
    env = StreamExecutionEnvironment.local()
    program(env)
    shown = env._job_plan("<b>name</b>")._repr_html_()
    assert "&lt;b&gt;name&lt;/b&gt;" in shown
    assert "(hash)" in shown
    assert HOSTILE not in shown


def test_checkpoints():
    shown = CheckpointTable(FakeJob().stats.snapshot())._repr_html_()
    assert "1 completed, 0 failed" in shown
    assert ">300<" in shown


@pytest.fixture
def displayed(monkeypatch):
    """A notebook: what is displayed, and how often it was updated."""
    shown = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = object
    update = SimpleNamespace(update=lambda what: shown.append(what._repr_html_()))
    display.display = lambda what, display_id: shown.append(what._repr_html_()) or update
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_job_is_watched_in_place(displayed):
    statuses = iter([JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.FINISHED])
    job = SimpleNamespace(job_id="a" * 32, status=JobStatus.RUNNING)
    job.wait = lambda seconds: setattr(job, "status", next(statuses))
    JobClient(job).watch(interval=0.01)
    assert len(displayed) == 4
    assert "is RUNNING" in displayed[0]
    assert "is FINISHED" in displayed[-1]


def test_a_watch_ends_after_its_time(displayed):
    job = SimpleNamespace(job_id="a" * 32, status=JobStatus.RUNNING, wait=lambda seconds: None)
    JobClient(job).watch(seconds=0.05, interval=0.01)
    assert len(displayed) > 1
