"""The live table of a running job: one line for each vertex, on the terminal of whoever waits for the job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headgate.protocol.messages import Metrics
from headgate.runtime.job import SparkJob

__all__ = ["live_table"]

_REFRESH_PER_SECOND = 2


@dataclass(slots=True)
class _Sample:
    at: float
    records: dict[int, int]


class JobTable:
    """Renders a job; rates are over the time since the render before."""

    def __init__(self, job: SparkJob) -> None:
        self._job = job
        self._before = _Sample(time.monotonic(), {})

    def __rich__(self) -> Table:
        job, plan = self._job, self._job.plan
        restarts = f", {job.restarts} restarts" if job.restarts else ""
        table = Table(title=f"{plan.name}  {job.job_id[:8]}  {job.status.value}{restarts}", title_justify="left")
        table.add_column("vertex")
        for column in ("subtasks", "in", "records/s", "out", "busy", "back-pressured", "queued"):
            table.add_column(column, justify="right")
        by_vertex = self._by_vertex()
        now = _Sample(time.monotonic(), {v: sum(m.records_in for m in ms) for v, ms in by_vertex.items()})
        seconds = max(now.at - self._before.at, 1e-3)
        for vertex in plan.graph.vertices:
            metrics = by_vertex.get(vertex.id, [])
            rate = (now.records.get(vertex.id, 0) - self._before.records.get(vertex.id, 0)) / seconds
            table.add_row(
                vertex.name,
                f"{len(metrics)}/{vertex.parallelism}",
                f"{now.records.get(vertex.id, 0):,}",
                f"{max(rate, 0):,.0f}",
                f"{sum(m.records_out for m in metrics):,}",
                _share(metrics, [m.busy_ms for m in metrics]),
                _share(metrics, [m.back_pressured_ms for m in metrics]),
                f"{sum(m.queued_bytes for m in metrics) / 1024:,.0f} KiB",
            )
        if seconds >= 0.9:
            self._before = now
        return table

    def _by_vertex(self) -> dict[int, list[Metrics]]:
        found: dict[int, list[Metrics]] = {}
        for (level, index), metrics in self._job.metrics().items():
            slot = self._job.plan.layout.levels[level][index]
            if not slot.relay:
                found.setdefault(slot.vertex, []).append(metrics)
        return found


def _share(metrics: list[Metrics], part: list[int]) -> str:
    total = sum(m.busy_ms + m.back_pressured_ms + m.idle_ms for m in metrics)
    return f"{100 * sum(part) / total:.0f} %" if total else ""


@contextmanager
def live_table(job: SparkJob) -> Iterator[None]:
    """Show the table while the block runs, if standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with Live(JobTable(job), console=console, refresh_per_second=_REFRESH_PER_SECOND, transient=True):
        yield
