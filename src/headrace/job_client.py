"""The handle of a job that a program has started; used in the program's own threads, in the driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from headrace.checkpoint.stats import StatsSnapshot
from headrace.checkpoint.types import SavepointFormat
from headrace.driver.job import SparkJob
from headrace.errors import HeadraceError, IllegalState
from headrace.html_tables import html_table
from headrace.ids import JobId
from headrace.job.status import JobStatus

__all__ = ["CheckpointTable", "Job", "JobClient", "JobExecutionResult"]


_SHOWN = 5  # checkpoints


def _display(what: object) -> Any | None:
    """Show an object in a notebook; what can show it anew in the same place, None outside of notebooks."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return None
    return None if get_ipython() is None else display(what, display_id=True)


class Job(Protocol):
    """A job that was started, on Spark or in the local runtime."""

    @property
    def job_id(self) -> JobId: ...

    @property
    def status(self) -> JobStatus: ...
    @property
    def error(self) -> HeadraceError | None: ...
    def cancel(self) -> None:
        """Request the end of the job; returns at once."""

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait until the job has ended, or for `timeout` seconds."""

    def raise_if_failed(self) -> None: ...


class JobExecutionResult:
    """The result of `execute` when the job has finished."""

    def __init__(self, job_id: JobId, seconds: float) -> None:
        self._job_id, self._seconds = job_id, seconds

    def get_job_id(self) -> JobId:
        """The job's id."""
        return self._job_id

    def get_net_runtime(self) -> int:
        """Return the duration of the job, in milliseconds."""
        return int(self._seconds * 1000)

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """None: as in PyFlink, no Python function can register an accumulator; see `RuntimeContext.get_metrics_group`."""
        return self.get_all_accumulator_results().get(accumulator_name)

    def get_all_accumulator_results(self) -> dict[str, Any]:
        """An empty dict: as in PyFlink, no Python function can register an accumulator."""
        return {}

    def __str__(self) -> str:
        return f"Program execution finished\nJob with JobID {self._job_id} has finished.\nJob Runtime: {self.get_net_runtime()} ms"


class CheckpointTable:
    """The checkpoints of a job at one moment, newest first; `stats` has their details."""

    def __init__(self, stats: StatsSnapshot) -> None:
        self.stats = stats

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        counts = self.stats.counts
        title = f"checkpoints: {counts.completed} completed, {counts.failed} failed, {counts.in_progress} in progress"
        columns = [
            "id",
            "type",
            "trigger",
            "status",
            "size",
            "full size",
            "end to end (ms)",
            "objects",
            "chain",
            "reason",
        ]
        rows = []
        for one in self.stats.history:
            totals, kind = one.totals, one.checkpoint_type.lower() + ", full" * one.full
            sizes = [totals.checkpointed_size, totals.state_size, totals.end_to_end_duration, totals.objects_written]
            reason = one.failure_message or one.full_reason
            rows.append([one.id, kind, one.trigger, one.status.value, *sizes, one.chain_length, reason])
        return html_table(title, columns, rows)


class JobClient:
    """The handle of a running job."""

    def __init__(self, job: Job, at_end: Callable[[], None] | None = None) -> None:
        """`at_end` is called when a wait for the job has ended."""
        self._job = job
        self._at_end = at_end
        self._started = time.monotonic()

    def get_job_id(self) -> JobId:
        """The job's id, 32 hex digits."""
        return self._job.job_id

    def get_job_status(self) -> JobStatus:
        """The present status of the job."""
        return self._job.status

    def cancel(self, timeout: float = 30.0) -> JobStatus:
        """Cancel the job and wait until it has ended, for `timeout` seconds at most; the status that it has then."""
        self._job.cancel()
        return self._job.wait(timeout)

    def wait(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait until the job has finished; raises its error if it failed, TimeoutError after `timeout` seconds."""
        if not self._job.wait(timeout).is_terminal:
            raise TimeoutError(f"the job still runs after {timeout} s")
        if self._at_end is not None:
            self._at_end()
        self._job.raise_if_failed()
        return JobExecutionResult(self._job.job_id, time.monotonic() - self._started)

    get_job_execution_result = wait

    def _repr_html_(self) -> str:
        """Return status, vertices with their rates and the newest checkpoints as HTML for a notebook."""
        job = self.job
        title = f"job {self.get_job_id()} is {self.get_job_status().value}"
        if not isinstance(job, SparkJob):
            return html_table(title, [], [])
        rows = []
        for vertex in job.plan.graph.vertices:
            measures = list(job.subtasks().get(vertex.id, {}).values())
            received = sum(one.metrics.records_in for one in measures)
            rate = round(sum(one.rates.records_in for one in measures))
            busy = max((one.rates.busy_ms / 10 for one in measures), default=0.0)
            rows.append([vertex.name, f"{len(measures)}/{vertex.parallelism}", received, rate, f"{busy:.0f} %"])
        columns = ["vertex", "subtasks", "records in", "records/s", "busy"]
        checkpoints = "" if job.stats is None else self.checkpoints(_SHOWN)._repr_html_()
        return html_table(f"'{job.plan.name}', {title}, {job.restarts} restarts", columns, rows) + checkpoints

    def watch(self, seconds: float | None = None, interval: float = 1.0) -> None:
        """Show the job in a notebook, always anew in the same place, until it has ended or the time is over.

        Without a notebook it only waits.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        handle = _display(self)
        while not self.get_job_status().is_terminal and (deadline is None or time.monotonic() < deadline):
            self._job.wait(interval)
            if handle is not None:
                handle.update(self)

    @property
    def job(self) -> Any:
        """The job itself: workers, metrics, failures."""
        return self._job

    def checkpoints(self, newest: int = 10) -> CheckpointTable:
        """Return the newest checkpoints, which a notebook shows as a table."""
        stats = self._takes_checkpoints().stats
        if stats is None:
            raise IllegalState("HR-3009", "the job has no checkpoints yet: it is still being started")
        return CheckpointTable(stats.snapshot(newest))

    # --- snapshots --------------------------------------------------------------------------------------------------

    def trigger_checkpoint(self, full: bool = False, timeout: float = 600.0) -> int:
        """Take a checkpoint now and wait for it; its id. A `full` one uses no file of an older one."""
        return int(self._takes_checkpoints().trigger_checkpoint(full, timeout).checkpoint_id)

    def trigger_savepoint(
        self,
        savepoint_directory: str | None = None,
        format: SavepointFormat = SavepointFormat.CANONICAL,
        timeout: float = 600.0,
    ) -> str:
        """Take a savepoint and wait for it; its path."""
        return str(self._takes_checkpoints().trigger_savepoint(savepoint_directory, format, timeout).pointer)

    def stop_with_savepoint(
        self,
        advance_to_end_of_event_time: bool = False,
        savepoint_directory: str | None = None,
        format: SavepointFormat = SavepointFormat.CANONICAL,
        timeout: float = 600.0,
    ) -> str:
        """Take a savepoint and stop; its path, from which a job can be started later (SPEC R8.3).

        With `advance_to_end_of_event_time` the job is drained: operators act as at the end of their input. Do not start
        a job from such a savepoint.
        """
        job = self._takes_checkpoints()
        done = job.stop_with_savepoint(savepoint_directory, advance_to_end_of_event_time, format, timeout)
        return str(done.pointer)

    def cancel_with_savepoint(self, savepoint_directory: str | None = None, timeout: float = 600.0) -> str:
        """Take a savepoint, then cancel the job; its path. `stop_with_savepoint` also commits what sinks have prepared."""
        path = self.trigger_savepoint(savepoint_directory, timeout=timeout)
        self.cancel()
        return path

    def rescale(self, parallelism: int, timeout: float = 600.0) -> None:
        """Continue with another parallelism, from a checkpoint that is taken for it, without losing or repeating a record.

        Operators with a parallelism of their own keep it. Refused, while the job continues, if Spark lacks the slots.
        """
        self._takes_checkpoints().rescale(parallelism, timeout)

    def _takes_checkpoints(self) -> Any:
        if not hasattr(self._job, "trigger_checkpoint"):
            raise IllegalState(
                "HR-3009", "the job takes no checkpoints and cannot be rescaled: it runs in the local runtime"
            )
        return self._job
