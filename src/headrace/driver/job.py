"""A job on Spark, as users and REST see it: the thread that runs its `JobMaster`, and requests from other threads."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from headrace import config
from headrace.checkpoint import events as ev
from headrace.checkpoint.assignment import SavedOperator
from headrace.checkpoint.stats import StatsTracker
from headrace.checkpoint.types import SavepointFormat
from headrace.config import Configuration
from headrace.control.messages import Metrics, Probe, Register
from headrace.driver.checkpoint_service import CheckpointService
from headrace.driver.cluster import Cluster
from headrace.driver.job_master import JobMaster, MasterEvent, OnOutput
from headrace.driver.metrics_history import SubtaskMeasures
from headrace.driver.probes import Question
from headrace.driver.replan import with_key_groups
from headrace.driver.services import DriverIo, driver_time, ends_soon
from headrace.driver.spark_cluster import SparkCluster
from headrace.errors import HeadraceError, IllegalState, JobCancelled
from headrace.graph.plan import JobPlan
from headrace.ids import JobId, OperatorId, VertexId
from headrace.job.job_events import CancelRequested, StartRequested
from headrace.job.machine import JobMachine, Timing
from headrace.job.restart import RestartStrategy
from headrace.job.status import JobStatus

_LONGEST_WAIT = 3600.0  # seconds; a queue refuses to wait for centuries


class SparkJob:
    """One job, from `execute` to its end, over any number of attempts."""

    def __init__(
        self,
        plan: JobPlan,
        job_id: JobId,
        spark: SparkSession,
        configuration: Configuration,
        restart: RestartStrategy,
        on_output: OnOutput,
        replan: Callable[[int], JobPlan] | None = None,
    ) -> None:
        """`replan` gives the plan for another parallelism."""
        self.begun_ms = driver_time()
        self.ended_ms: int | None = None
        self.spark_ui: str | None = None
        """The address of Spark's own pages, if they are served."""
        with suppress(Exception):  # the session may be stopped, or not be Spark's
            self.spark_ui = str(spark.sparkContext.uiWebUrl or "") or None
        self.status = JobStatus.CREATED
        self._replan = replan
        self._events: queue.SimpleQueue[MasterEvent] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._io = self._make_io()
        self.master = JobMaster(
            plan,
            job_id,
            configuration,
            restart,
            self._make_cluster(spark, configuration),
            self._events.put,
            io=self._io,
            timing=Timing(silence=configuration.get(config.CONTROL_TIMEOUT)),
            on_output=on_output,
            on_change=self._on_change,
            spark=spark,
        )
        """What the job's thread runs; `handle` and `on_idle` are called by that thread only."""
        self._thread = threading.Thread(target=self._run, name=f"headrace-job-{job_id[:8]}", daemon=True)

    def _make_io(self) -> DriverIo:
        return DriverIo()

    def _make_cluster(self, spark: SparkSession, configuration: Configuration) -> Cluster:
        return SparkCluster(spark, configuration, self._events.put)

    # --- the job's thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run in a thread of its own."""
        self._events.put(StartRequested())
        self._thread.start()

    def _run(self) -> None:
        while not self.master.ended:
            alarm = self.master.next_alarm()
            wait = None if alarm is None else min(max(0, alarm - self._io.now()) / 1000, _LONGEST_WAIT)
            try:
                event = self._events.get(timeout=wait)
            except queue.Empty:
                self.master.on_idle()
            else:
                self.master.handle(event)

    def _on_change(self) -> None:
        """A terminal status is shown when nothing of the job is left in this process."""
        with self._changed:
            status = self.machine.status
            if not status.is_terminal or self.master.closed:
                if status.is_terminal:
                    ends_soon(self._thread)
                self.status = status
                self.ended_ms = driver_time() if status.is_terminal else None
            self._changed.notify_all()

    # --- what others see --------------------------------------------------------------------------------------------

    @property
    def plan(self) -> JobPlan:
        """The plan of the attempt that runs; a rescale replaces it."""
        return self.master.plan

    @property
    def job_id(self) -> JobId:
        """The id of the job; a resumed job takes the id of the job that it continues."""
        return self.master.job_id

    @property
    def configuration(self) -> Configuration:
        return self.master.configuration

    @property
    def machine(self) -> JobMachine:
        """The decisions of the job: its phase, its attempts and their story."""
        return self.master.machine

    @property
    def service(self) -> CheckpointService | None:
        """The checkpoints of the job; None before the job has started."""
        return self.master.service

    @property
    def failure_log(self) -> list[str]:
        """The causes of failed attempts, the oldest first."""
        return self.master.failure_log

    @property
    def when_finished(self) -> list[Callable[[], None]]:
        """Functions to be called when all data is processed: nothing continues the job."""
        return self.master.when_finished

    @property
    def error(self) -> HeadraceError | None:
        return self.machine.error if self.status.is_terminal else None

    @property
    def restarts(self) -> int:
        return self.machine.restarts

    def spark_stage(self, vertex: VertexId) -> str | None:
        """The address of a vertex's stage in Spark's own pages, if they are served; its workers know the stage."""
        worker = self.master.workers.get((self.plan.layout.level_of[vertex], 0))
        if self.spark_ui is None or worker is None or worker.stage < 0:
            return None
        return f"{self.spark_ui}/stages/stage/?id={worker.stage}&attempt=0"

    def commit_figures(self) -> dict[OperatorId, dict[str, float]]:
        """Commits on the driver, by sink."""
        return {} if self.service is None else self.service.commit_figures()

    @property
    def stats(self) -> StatsTracker | None:
        """The statistics of the job's checkpoints; None before the job has started."""
        return None if self.service is None else self.service.coordinator.stats

    def workers(self) -> dict[tuple[int, int], Register]:
        """The workers of the attempt that runs, by level and number."""
        return dict(self.master.workers)

    def metrics(self) -> dict[tuple[int, int], Metrics]:
        """The newest counters of every subtask."""
        return self.master.history.newest()

    def metrics_by_vertex(self) -> dict[VertexId, list[Metrics]]:
        """The newest counters of the subtasks of each vertex, in their order; relays belong to none."""
        return {vertex: [seen.metrics for seen in subtasks.values()] for vertex, subtasks in self.subtasks().items()}

    def subtasks(self) -> dict[VertexId, dict[int, SubtaskMeasures]]:
        """The newest counters and the rates of the subtasks of each vertex, by their number."""
        plan = self.plan
        found: dict[VertexId, dict[int, SubtaskMeasures]] = {}
        for (level, index), measures in sorted(self.master.history.measures().items()):
            if level < len(plan.layout.levels) and index < len(plan.layout.levels[level]):  # a rescale changes the plan
                slot = plan.layout.levels[level][index]
                if not slot.relay:
                    found.setdefault(slot.vertex, {})[slot.subtask] = measures
        return found

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait until the job has ended, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.status.is_terminal, timeout)
        return self.status

    def wait_running(self, timeout: float | None = None) -> bool:
        """Wait until all subtasks run (or the job has ended); return True if they run."""
        with self._changed:
            self._changed.wait_for(lambda: self.machine.all_running or self.status.is_terminal, timeout)
            return self.machine.all_running

    def raise_if_failed(self) -> None:
        """Raise the job's error, or JobCancelled, if it has not finished."""
        if self.status is JobStatus.FAILED and self.error is not None:
            raise self.error
        if self.status is JobStatus.CANCELED:
            raise self.error or JobCancelled(f"job '{self.plan.name}' was cancelled")

    # --- requests, from any thread ----------------------------------------------------------------------------------

    def probe(self, vertex: VertexId, make: Callable[[int], Probe], subtask: int | None = None) -> Question:
        """Ask the subtasks of a vertex, or one of them, for a sample: `make` gets the number of the question."""
        return self.master.probe(vertex, make, subtask)

    def cancel(self) -> None:
        """Stop the job; returns at once."""
        self._events.put(CancelRequested())

    def trigger_checkpoint(self, full: bool = False, timeout: float = 600.0) -> ev.RequestDone:
        """Take a checkpoint now and wait for it; its error if it failed."""
        return self.master.request(lambda request: ev.CheckpointRequested(request, full)).result(timeout)

    def trigger_savepoint(
        self, target: str | None = None, format: SavepointFormat = SavepointFormat.CANONICAL, timeout: float = 600.0
    ) -> ev.RequestDone:
        """Take a savepoint now and wait for it; its error if it failed."""
        return self.master.request(lambda request: ev.SavepointRequested(request, target, format)).result(timeout)

    def stop_with_savepoint(
        self,
        target: str | None = None,
        drain: bool = False,
        format: SavepointFormat = SavepointFormat.CANONICAL,
        timeout: float = 600.0,
    ) -> ev.RequestDone:
        """Take a savepoint and stop; answered when all tasks have finished. Its error if the job continues."""
        return self.master.request(lambda request: ev.StopRequested(request, target, format, drain)).result(timeout)

    def rescale(self, parallelism: int, timeout: float = 600.0) -> None:
        """Continue with another parallelism, from a checkpoint that is taken now.

        (1) Everything that can be refused is refused while the job runs, (2) a checkpoint, (3) a new attempt.
        """
        if self._replan is None or self.service is None:
            raise IllegalState("HR-3009", f"job '{self.plan.name}' cannot be rescaled: it has not started yet")
        groups = {
            op.id: SavedOperator(op.name, v.max_parallelism, keyed=True)
            for v in self.plan.graph.vertices
            for op in v.operators
        }
        plan = with_key_groups(self._replan(parallelism), groups)  # (1)
        self.master.require_slots(plan)
        deadline = time.monotonic() + timeout
        self.trigger_checkpoint(timeout=timeout)  # (2)
        self.master.change_plan(plan).result(max(0.0, deadline - time.monotonic()))  # (3)
