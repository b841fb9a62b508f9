"""The live table of a running job: a line for each vertex and each of the last checkpoints, on the terminal."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from headrace.api.watermarks import MAX_WATERMARK
from headrace.checkpoint.stats import CheckpointStats, StatsSnapshot
from headrace.control.messages import Metrics
from headrace.driver.job import SparkJob
from headrace.driver.log_output import make_console
from headrace.ids import VertexId
from headrace.job.status import JobStatus

_REFRESH_PER_SECOND = 2
_CHECKPOINTS = 6
_LONGEST = {"alignment": "alignment_ms", "sync": "sync_ms", "async": "async_ms", "start delay": "start_delay_ms"}
_MEASUREMENTS = ("size", "full size", "end to end", *_LONGEST, "in flight", "objects", "shared files", "chain")


class JobTable:
    """Renders a job; rates are over the time since the render before."""

    def __init__(self, job: SparkJob) -> None:
        self._job = job
        self._at, self._records = time.monotonic(), dict[VertexId, int]()  # of the render before

    def __rich__(self) -> Group:
        stats = self._job.stats
        seen = None if stats is None else stats.snapshot()
        parts: list[RenderableType] = [self._vertices()]
        bar = restore_bar(list(self._job.metrics().values()))
        if bar is not None and self._job.status is not JobStatus.RUNNING:
            parts.append(bar)
        if seen is not None and seen.counts.total:
            parts.append(checkpoint_table(seen))
        return Group(*parts)

    def _vertices(self) -> Table:
        job, plan = self._job, self._job.plan
        restarts = f", {job.restarts} restarts" if job.restarts else ""
        title = f"{plan.name}  {job.job_id[:8]}  {job.status.value}{restarts}"
        table = Table("vertex", title=title, title_justify="left")
        for column in ("subtasks", "in", "records/s", "out", "busy", "back-pressured", "queued"):
            table.add_column(column, justify="right")
        by_vertex = job.metrics_by_vertex()
        timed = any(m.watermark is not None for ms in by_vertex.values() for m in ms)
        if timed:
            table.add_column("watermark", justify="right")
        now, records = time.monotonic(), {v: sum(m.records_in for m in ms) for v, ms in by_vertex.items()}
        seconds = max(now - self._at, 1e-3)
        for vertex in plan.graph.vertices:
            metrics = by_vertex.get(vertex.id, [])
            rate = (records.get(vertex.id, 0) - self._records.get(vertex.id, 0)) / seconds
            corrupt, late = sum(m.corrupt_records for m in metrics), sum(m.late_records for m in metrics)
            notes = f", {corrupt:,} corrupt records left out" * bool(corrupt) + f", {late:,} late records" * bool(late)
            table.add_row(
                vertex.name + notes,
                f"{len(metrics)}/{vertex.parallelism}",
                f"{records.get(vertex.id, 0):,}",
                f"{max(rate, 0):,.0f}",
                f"{sum(m.records_out for m in metrics):,}",
                _share(metrics, [m.busy_ms for m in metrics]),
                _share(metrics, [m.back_pressured_ms for m in metrics]),
                f"{sum(m.queued_bytes for m in metrics) / 1024:,.0f} KiB",
                *([_watermark(metrics)] if timed else []),
            )
        if seconds >= 0.9:
            self._at, self._records = now, records
        return table


def restore_bar(metrics: Collection[Metrics]) -> Table | None:
    """Return the progress of the restore over all subtasks; None if nothing is being restored."""
    total, done = sum(m.restore_bytes for m in metrics), sum(m.restored_bytes for m in metrics)
    if not total or done >= total:
        return None
    grid = Table.grid(padding=(0, 1))
    grid.add_row("restoring", ProgressBar(total, done, width=40), f"{_size(done)} of {_size(total)}")
    return grid


def checkpoint_table(stats: StatsSnapshot) -> Table:
    """The newest checkpoints, one a line; of times the longest of any subtask is shown."""
    counts = stats.counts
    title = f"checkpoints: {counts.completed} completed, {counts.failed} failed, {counts.in_progress} in progress"
    restored = f", restored from {stats.restored.id}" if stats.restored is not None else ""
    table = Table("id", "type", "trigger", "status", title=title + restored, title_justify="left")
    for column in _MEASUREMENTS:
        table.add_column(column, justify="right")
    for one in stats.history[:_CHECKPOINTS]:
        table.add_row(*_checkpoint_row(one))
    return table


def _checkpoint_row(stats: CheckpointStats) -> list[str]:
    totals = stats.totals
    kind = stats.checkpoint_type.lower() + ", full" * stats.full + ", unaligned" * totals.unaligned
    subtasks = [subtask.metrics for vertex in stats.vertices.values() for subtask in vertex.subtasks.values()]
    longest = [max((getattr(one, name) for one in subtasks), default=0) for name in _LONGEST.values()]
    return [
        str(stats.id),
        kind,
        stats.trigger,
        stats.failure_reason or f"{stats.status.value} {totals.num_acknowledged_subtasks}/{totals.num_subtasks}",
        _size(totals.checkpointed_size),
        _size(totals.state_size),
        *(f"{value} ms" for value in (max(0, totals.end_to_end_duration), *longest)),
        _size(totals.persisted_data),
        str(totals.objects_written),
        str(sum(stats.shared_files.values())),
        str(stats.chain_length),
    ]


def _size(count: int) -> str:
    return f"{count / 1024:,.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.1f} MiB"


def _watermark(metrics: list[Metrics]) -> str:
    """The least event-time clock of the subtasks, and by how much it is behind the time of day."""
    clocks = [m.watermark for m in metrics]
    known = [clock for clock in clocks if clock is not None]
    if not known or len(known) < len(clocks):
        return "none yet"
    if min(known) == MAX_WATERMARK:
        return "end of data"
    try:
        shown = datetime.fromtimestamp(min(known) / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):  # timestamps may be any number, a count for example
        return str(min(known))
    return f"{shown}, {(time.time_ns() // 1_000_000 - min(known)) / 1000:,.1f} s ago"


def _share(metrics: list[Metrics], part: list[int]) -> str:
    total = sum(m.busy_ms + m.back_pressured_ms + m.idle_ms for m in metrics)
    return f"{100 * sum(part) / total:.0f} %" if total else ""


@contextmanager
def live_table(job: SparkJob) -> Iterator[None]:
    """Show the table while the block runs, if standard error is a terminal."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with Live(JobTable(job), console=console, refresh_per_second=_REFRESH_PER_SECOND, transient=True):
        yield
