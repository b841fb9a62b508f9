"""The table of checkpoints on the terminal: every figure of SPEC R10.2 has its column."""

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from headrace.api.watermarks import MAX_WATERMARK
from headrace.checkpoint.stats import (
    CheckpointStats,
    CheckpointStatus,
    Counts,
    RestoredStats,
    StatsSnapshot,
    SubtaskMetrics,
    SubtaskStats,
    VertexStats,
)
from headrace.control.messages import Metrics
from headrace.driver.progress import JobTable, checkpoint_table, live_table
from headrace.ids import VertexId
from headrace.job.status import JobStatus
from rest_kit import FakeJob
from rig import plan_of


def shown(stats):
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(checkpoint_table(stats))
    return console.export_text()


def test_a_checkpoint_is_a_line():
    metrics = SubtaskMetrics(2048, 3 << 20, 4, 50, 60, 7, 800, 1024, True, 2)
    vertex = VertexStats(2, {0: SubtaskStats(1100, metrics)})
    one = CheckpointStats(17, 1000, "CHECKPOINT", False, None, "periodic", {VertexId(0): vertex}, full=True)
    one.chain_length, one.shared_files = 5, {"a": 30, "b": 4}
    restored = RestoredStats(12, 0, False, "chk-12", 0)
    text = shown(StatsSnapshot(Counts(1, 5, 1, 3, 1), {}, (one,), {}, restored))
    assert "3 completed, 1 failed, 1 in progress, restored from 12" in text
    line = next(part for part in text.splitlines() if " 17 " in part)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[1:3] == ["checkpoint, full, unaligned", "periodic"]
    assert cells[3].endswith("1/2")
    assert cells[4:] == ["2.0 KiB", "3.0 MiB", "100 ms", "60 ms", "4 ms", "50 ms", "7 ms", "1.0 KiB", "2", "34", "5"]


def test_one_that_failed_says_why():
    one = CheckpointStats(3, 0, "CHECKPOINT", False, None, "periodic", {}, status=CheckpointStatus.FAILED)
    one.failure_reason = "CHECKPOINT_EXPIRED"
    assert "CHECKPOINT_EXPIRED" in shown(StatsSnapshot(Counts(), {}, (one,), {}, None))


@pytest.mark.parametrize(
    ("clocks", "text"),
    [
        ([None, 7], "none yet"),
        ([MAX_WATERMARK, MAX_WATERMARK], "end of data"),
        ([1_000, 0], "1970-01-01 00:00:00"),
        ([1 << 61, 1 << 61], str(1 << 61)),
    ],
)
def test_the_least_watermark_of_a_vertex_is_shown_once_there_is_one(clocks, text):
    plan = plan_of(lambda env: env.from_sequence(1, 9).print())
    vertex = plan.graph.vertices[0].id
    job = SimpleNamespace(plan=plan, job_id="a" * 32, status=JobStatus.RUNNING, restarts=0, stats=None, metrics=dict)
    job.metrics_by_vertex = lambda: {vertex: [Metrics(watermark=clock) for clock in clocks]}
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(JobTable(job))
    job.metrics_by_vertex = dict
    assert text in console.export_text()
    console.print(JobTable(job))
    assert "watermark" not in console.export_text()


def test_the_lag_of_a_watermark_is_shown():
    plan = plan_of(lambda env: env.from_sequence(1, 9).print())
    job = SimpleNamespace(plan=plan, job_id="a" * 32, status=JobStatus.RUNNING, restarts=0, stats=None, metrics=dict)
    job.metrics_by_vertex = lambda: {plan.graph.vertices[0].id: [Metrics(watermark=int(time.time() * 1000) - 61_000)]}
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(JobTable(job))
    assert ", 61." in console.export_text().replace("60.9", "61.")


def test_late_records_are_shown():
    plan = plan_of(lambda env: env.from_sequence(1, 9).print())
    job = SimpleNamespace(plan=plan, job_id="a" * 32, status=JobStatus.RUNNING, restarts=0, stats=None, metrics=dict)
    job.metrics_by_vertex = lambda: {plan.graph.vertices[0].id: [Metrics(late_records=1200), Metrics(late_records=34)]}
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(JobTable(job))
    assert ", 1,234 late records" in console.export_text()


def test_names_are_no_markup(monkeypatch):
    """`execute` shows this table: an error in it would end the program, and the job with it."""
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    job = FakeJob(plan_of(lambda env: env.from_elements(1).name("read [/data/in] :key:").print()))
    job.plan.name = "job [/eu]"
    job.metrics, job.metrics_by_vertex = dict, dict
    with live_table(job):
        pass
    assert "read [/data/in] :key:" in out.getvalue()
    assert "job [/eu]" in out.getvalue()
