"""The driver's shell around the checkpoint coordinator: carries out its instructions and reports the results.

The coordinator decides (`checkpoint/coordinator.py`), storage knows files (`storage/`), the job talks to workers
(`job.py`). Everything here is called in the job's thread, except I/O, which runs in a small pool whose results come back
as calls in the job's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from headrace import config
from headrace.api.sink import EpochContext
from headrace.api.specs import SinkSpec, SourceSpec
from headrace.checkpoint import events as ev
from headrace.checkpoint.commits import NO_COMMITS
from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.decider import RequestId
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.plan import PlanInput, PlanVertex, TaskId, TaskStatus, Topology
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.settings import CheckpointSettings, EndStatus
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.config import Configuration
from headrace.control import messages as msg
from headrace.control.deployment import VertexRestore, WorkerStorage
from headrace.driver.cron_schedule import cron
from headrace.driver.enumerators import Splits
from headrace.driver.epochs import Epochs
from headrace.driver.job_snapshots import JobSnapshots
from headrace.driver.replan import with_key_groups
from headrace.driver.restore_plan import claimed_state, restore_plan, saved_operators
from headrace.driver.services import DriverIo, JobPort
from headrace.driver.spans import Spans
from headrace.driver.step_back import StepBack
from headrace.errors import IllegalState, StorageError
from headrace.graph.plan import JobPlan
from headrace.ids import JobId, OperatorId, VertexId
from headrace.job.watermark_alignment import WatermarkAligner
from headrace.storage.objects import MissingObject, OutcomeUnknown
from headrace.storage.published_snapshots import Snapshot


@dataclass(slots=True)
class _Request:
    """A user's request, and the number of tasks that had finished when it was last submitted."""

    event: ev.UserRequest
    answer: Future[ev.RequestDone]
    finished: int = 0
    tries: int = 5  # for when no other task has finished since then


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint that an attempt restores, and what it holds of the driver's parts of operators; or none."""

    checkpoint: CompletedCheckpoint | None
    snapshot: Snapshot | None
    driver_states: dict[OperatorId, bytes]


class CheckpointService:
    """The checkpoints of one job; `spark` is the user's session, for sinks that commit on the driver."""

    def __init__(
        self, plan: JobPlan, job_id: JobId, configuration: Configuration, job: JobPort, io: DriverIo, spark: Any = None
    ) -> None:
        self.settings = CheckpointSettings.from_configuration(configuration)
        self.plan, self._configuration, self._job, self._io = plan, configuration, job, io
        self._step_back = StepBack(plan, configuration)
        self._snapshots = JobSnapshots(plan, job_id, configuration, self._io)
        start = self._snapshots.start
        self.job_id = start.job_id
        if (resumed := start.newest_manifest) is not None:
            plan = self.plan = with_key_groups(plan, saved_operators(resumed.operators))
            self._snapshots.publisher.replan(plan)
        self._splits = Splits(plan.graph, io, job)
        self._epochs = Epochs(
            plan.graph,
            io.epochs,
            job,
            self._snapshots.loader.prepared,
            lambda behind: self._tell(ev.HoldChanged(behind)),
            lambda op: EpochContext(op.name, op.id, self.job_id, spark, start.staging, SinkSpec.of(op).input_type),
        )
        self.coordinator = Coordinator(
            self.settings,
            self._io.random,
            next_full=cron(configuration.get(config.FULL_CRON)),
            recovered=[one.checkpoint for one in start.retained],
            next_id=start.next_id,
            driver_state=self._splits.any,
        )
        self._alarm: int | None = None
        self._attempt = 0
        self._restoring = False  # whether the attempt began with a checkpoint
        self._requests: dict[RequestId, _Request] = {}
        self._retries: list[_Request] = []  # requests that are submitted again while the job runs
        self._io_under_way = 0
        self._end_status: EndStatus | None = None
        self._end_claimed = False
        self.end_recorded = False  # the end is in the job log, or need not be
        self.finish_recorded = False  # the job has finished, as the log answered this driver: nothing continues it
        self._backlogs: set[TaskId] = set()
        self._aligner = WatermarkAligner(self._alignment)
        for warning in self.settings.warnings:
            self._warn(warning)
        if configuration.get(config.CHECKPOINT_INCREMENTAL) and not self.settings.incremental:
            self._warn(
                f"{config.CHECKPOINT_INCREMENTAL.key} has no effect: checkpoints in the memory of the driver are always "
                f"full; set {config.CHECKPOINT_DIR.key}"
            )
        imported = self._snapshots.import_named()
        if imported is not None:
            self._tell(imported)

    # --- called by the job ------------------------------------------------------------------------------------------

    @property
    def commits_under_way(self) -> bool:
        """True while a claim in the job log or a commit on the driver has no answer.

        The claim may succeed: then its checkpoint is the one to restore. And no two epochs are committed at once.
        """
        return self.coordinator.claim_under_way or not self._epochs.idle

    @property
    def newest_checkpoint(self) -> CompletedCheckpoint | None:
        """May be called by any thread."""
        return self.coordinator.store.latest

    def snapshot_of(self, checkpoint: CompletedCheckpoint) -> Snapshot:
        """The metadata of a completed checkpoint; may be called by any thread, which may have to wait.

        MissingObject if it has been deleted meanwhile.
        """
        return self._snapshots.loader.look_up(checkpoint)

    def commit_figures(self) -> dict[OperatorId, dict[str, float]]:
        """Commits on the driver, by sink; may be called by any thread."""
        return self._epochs.figures()

    def start_attempt(self, number: int, choice: Choice) -> dict[VertexId, VertexRestore]:
        """A new attempt begins: what its subtasks restore."""
        self._attempt, self._restoring = number, choice.checkpoint is not None
        self._backlogs.clear()
        self._aligner = WatermarkAligner(self._alignment)
        restore: dict[VertexId, VertexRestore] = {}
        checkpoint, snapshot = choice.checkpoint, choice.snapshot
        if checkpoint is None or snapshot is None:
            self._epochs.start_attempt(None, None, NO_COMMITS)
        else:
            ignore = self._configuration.get(config.RECOVERY_IGNORE_UNCLAIMED)
            manifest = claimed_state(self.plan, snapshot.manifest, ignore_unmatched=ignore)
            commits = self._snapshots.step_back_to(checkpoint)
            restore = restore_plan(
                self.plan,
                manifest,
                claim=self.settings.incremental
                and not checkpoint.properties.unclaimed
                and self._snapshots.shared.has_keyed_parts(snapshot.manifest),
                commits=commits,
            )
            self._epochs.start_attempt(manifest, checkpoint.id, commits)
        self._splits.start_attempt(choice.driver_states)
        restored = None if checkpoint is None else checkpoint.id
        self._tell(ev.AttemptStarted(number, _topology(self.plan), restored))
        return restore

    def replan(self, plan: JobPlan) -> None:
        """The next attempt runs another plan of the same program."""
        self.plan = plan
        self._snapshots.publisher.replan(plan)
        self._splits.replan(plan.graph)
        self._epochs.replan(plan.graph)

    def worker_storage(self) -> WorkerStorage:
        """Return the storage that the workers of the attempt write to."""
        return self._snapshots.publisher.start_attempt(self._attempt, self.settings.incremental)

    def choose(self) -> Choice:
        """The checkpoint that the next attempt restores: the newest one that is not known to be damaged (SPEC R5.11).

        Only its metadata is read; workers verify what they read. Called in a thread that may wait, while no commit is under way.
        """
        for checkpoint in reversed(self.coordinator.store.checkpoints):
            try:
                snapshot = self._snapshots.loader.load(checkpoint)
                return Choice(checkpoint, snapshot, self._snapshots.loader.driver_states(snapshot.manifest))
            except (CorruptState, MissingObject) as damage:
                self._snapshots.start.log.check_leading()  # a driver that took over deletes what its checkpoints replace
                self._warn(self._skip(checkpoint, damage))
        return Choice(None, None, {})

    def _skip(self, checkpoint: CompletedCheckpoint, damage: StorageError) -> str:
        """The warning that a damaged checkpoint is not restored; CorruptState if no older one can be."""
        self._snapshots.loader.mark_damaged(checkpoint.id, damage)
        older = any(not self._snapshots.loader.is_damaged(one.id) for one in self.coordinator.store.checkpoints)
        return self._step_back.over(checkpoint, damage, older=older)

    def step_back(self, damage: str) -> bool:
        """A worker found damage in the checkpoint that it restores: the next attempt restores an older one.

        False if the attempt restores none; CorruptState if no older one can be restored.
        """
        restoring = self.coordinator.store.latest if self._restoring else None
        if restoring is not None:
            self._skip(restoring, CorruptState(damage))
        return restoring is not None

    def on_message(self, task: TaskId, message: msg.FromWorker) -> None:
        """A message of a subtask; messages that do not concern checkpoints are ignored."""
        match message:
            case msg.AcknowledgeCheckpoint(id, state, report, metrics):
                shared = {op: sum(part.shared for one in pieces for part in one.parts) for op, pieces in state.items()}
                self._tell(ev.Acknowledged(self._attempt, task, id, state, metrics, report, shared))
            case msg.DeclineCheckpoint(id, reason, text):
                self._tell(ev.Declined(self._attempt, task, id, reason, text))
            case msg.Running():
                self._tell(ev.TaskStatusChanged(self._attempt, task, TaskStatus.RUNNING))
            case msg.Finished():
                self._tell(ev.TaskStatusChanged(self._attempt, task, TaskStatus.FINISHED))
            case msg.DataFinished():
                self._align(task, None)
                self._tell(ev.EndOfData(self._attempt, task))
            case msg.SourceWatermark(watermark):
                self._align(task, watermark)
            case msg.AskForSplit():
                self._splits.asked(task)
            case msg.SourceBacklog(backlog):
                self._backlog(task, backlog)
            case msg.PauseWriter(edge, writer, paused):
                self._job.send(TaskId(self.plan.graph.edges[edge].source, writer), msg.Pause(f"{task}/{edge}", paused))

    def _align(self, task: TaskId, watermark: int | None) -> None:
        for one, paused in self._aligner.on_watermark(task, watermark).items():
            self._job.send(one, msg.Pause("alignment", paused))

    def _alignment(self, task: TaskId) -> tuple[str, int] | None:
        """The group of a source whose watermarks are aligned, and the largest drift."""
        spec = self.plan.graph.vertices[task.vertex].head.spec
        found = spec.watermarks.alignment if isinstance(spec, SourceSpec) and spec.watermarks is not None else None
        return None if found is None else (found.group, found.max_drift)

    def _backlog(self, task: TaskId, backlog: bool) -> None:
        """A subtask of a source works off a backlog or not; the source does while any of its subtasks does."""
        (self._backlogs.add if backlog else self._backlogs.discard)(task)
        source = self.plan.graph.vertices[task.vertex].head.id
        self._tell(ev.BacklogChanged(source, any(one.vertex == task.vertex for one in self._backlogs)))

    def job_running(self, running: bool) -> None:
        """All subtasks run, or the attempt is failing."""
        if running:
            self._splits.job_running()
            self._epochs.job_running()
        self._tell(ev.JobStatusChanged(running))
        self._retry()

    def end(self, status: EndStatus) -> None:
        """The job is over: delete what need not be kept. `ended` says when that is done.

        1. No checkpoint is taken any more; a claim under way is answered, since it decides what is kept.
        2. The end is claimed in the job log, so that a driver that was superseded deletes nothing.
        3. The coordinator decides what is deleted.
        """
        self._end_status = status
        self._tell(ev.JobStatusChanged(False))  # 1
        self._claim_end()

    def _claim_end(self) -> None:
        status = self._end_status
        if status is None or self._end_claimed or self.coordinator.claim_under_way:
            return
        self._end_claimed = True
        if status is EndStatus.SUSPENDED:
            self._on_end_claimed(ev.JobEnded(status))
            return
        store = self.coordinator.store
        discarded = [
            checkpoint.commit_number
            for checkpoint in store.checkpoints
            if status in checkpoint.properties.discard_at and checkpoint.commit_number is not None
        ]

        def claim() -> None:
            event = self._snapshots.publisher.claim_end(status, discarded)  # 2
            self._job.call(lambda: self._on_end_claimed(event))

        self._io.log.submit(claim)

    def _on_end_claimed(self, event: ev.JobEnded | ev.Superseded) -> None:
        self._tell(event)  # 3
        self.end_recorded = True
        self.finish_recorded = isinstance(event, ev.JobEnded) and event.status is EndStatus.FINISHED

    @property
    def ended(self) -> bool:
        """Return True if nothing is left to do after `end`: a claim that is answered late decides what is deleted."""
        return self.end_recorded and not self.coordinator.claim_under_way and self._io_under_way == 0

    def close(self) -> None:
        """Release what enumerators and committers hold; a commit that hangs is not waited for."""
        self._splits.close()
        self._epochs.close()

    def tick(self) -> None:
        """Called after every event, and when `next_alarm` is due."""
        self._claim_end()
        self._splits.tick()
        if self._alarm is not None and self._io.now() >= self._alarm:
            self._alarm = None
            self._tell(ev.TimePassed())

    def next_alarm(self) -> int | None:
        """Return the time at which `tick` has work."""
        return min((at for at in (self._alarm, self._splits.next_alarm()) if at is not None), default=None)

    # --- requests, in the job's thread ------------------------------------------------------------------------------

    def request(self, event: ev.UserRequest, answer: Future[ev.RequestDone]) -> None:
        """A user requests a checkpoint, a savepoint, or a savepoint and then the end of the job (SPEC R8.3)."""
        request = self._requests[event.request_id] = _Request(event, answer)
        self._submit(request)

    def _submit(self, request: _Request) -> None:
        request.finished = self.coordinator.finished_tasks
        self._tell(request.event)

    # --- instructions -----------------------------------------------------------------------------------------------

    def _tell(self, event: ev.Event) -> None:
        for instruction in self.coordinator.handle(event, self._io.now()):
            self._carry_out(instruction)

    def _carry_out(self, do: ev.Instruction) -> None:
        match do:
            case ev.PrepareLocation(id, type, target):
                self._step(id, lambda: ev.LocationReady(id, self._snapshots.publisher.prepare(id, type, target)))
            case ev.SnapshotDriverState(id):
                # One step: a split that is assigned between the enumerators' part and the trigger would be in both parts.
                self._job.call(lambda: self._tell(self._driver_state(id)))
            case ev.TriggerTasks(barrier, tasks):
                self._send_all(tasks, msg.TriggerCheckpoint(barrier.encode()))
            case ev.Announce(barrier, tasks):
                self._send_all(tasks, msg.AnnounceCheckpoint(barrier.encode()))
            case ev.RegisterShared():
                self._register_shared(do)
            case ev.ReleaseShared(lowest):
                paths, in_use = self._snapshots.deletion.release(lowest)
                released = ev.SharedReleased(in_use)
                self._later(lambda: ev.SharedReleased(self._snapshots.deletion.delete(paths, in_use)), released)
            case ev.WriteMetadata(content):
                # The metadata of a savepoint that the job stops with has its commit number: no claim may come between.
                pool = self._io.log if content.properties.is_synchronous else None
                self._step(content.checkpoint_id, lambda: self._snapshots.publisher.publish(content), pool)
            case ev.ClaimLogEntry(id):
                self._step(id, lambda: self._snapshots.publisher.claim(id, do.subsumed), self._io.log)
            case ev.NotifyComplete(id):
                self._send_all(do.tasks, msg.CheckpointComplete(id, self._snapshots.commits))
                if self._epochs.any:
                    self._epochs.completed(self._snapshots.loader.published(id).manifest, id, self._snapshots.commits)
                self._splits.notify_complete(id)
                self._trace(id)
            case ev.NotifyAborted(id):
                self._trace(id)
                self._send_all(do.tasks, msg.CheckpointAborted(id, do.latest_completed, self._snapshots.commits))
            case ev.DiscardFiles():
                self._later(lambda: self._snapshots.deletion.discard_part(do.state))
            case ev.DiscardCheckpoint(id):
                self._later(lambda: self._snapshots.deletion.discard(do), ev.Discarded(id))
            case ev.CompleteRequest():
                self._complete_request(do)
            case ev.FailJob(message):
                self._job.fail(message)
            case ev.ScheduleAt(time):
                self._alarm = time
            case ev.Warn(message):
                self._warn(message)
            case ev.StandDown(message):
                self._job.stand_down(message)

    def _trace(self, checkpoint_id: int) -> None:
        """A span for a checkpoint that has ended, if spans are wanted."""
        if (tracer := self._io.tracer) is not None:
            stats = self.coordinator.stats.snapshot().find(checkpoint_id)
            if stats is not None:
                self._io.spans.submit(Spans(tracer, self.job_id, self.plan.name).checkpoint, stats)

    def _send_all(self, tasks: Iterable[TaskId], message: msg.FromDriver) -> None:
        for task in tasks:
            self._job.send(task, message)

    def _step(self, checkpoint_id: int, work: Callable[[], ev.Event], pool: Executor | None = None) -> None:
        """Take a step of a checkpoint in a thread that may wait."""

        def run() -> ev.Event:
            try:
                return work()
            except Exception as error:
                return ev.StepFailed(checkpoint_id, str(error), isinstance(error, OutcomeUnknown))

        self._later(run, pool=pool)

    def _later(
        self, work: Callable[[], ev.Event | None], failed: ev.Event | None = None, pool: Executor | None = None
    ) -> None:
        """Work in a thread that may wait; its result, or `failed`, is an event in the job's thread."""

        def run() -> None:
            try:
                event = work()
            except Exception:
                event = failed
            self._job.call(lambda: self._done(event))

        self._io_under_way += 1
        (pool or self._io.pool).submit(run)

    def _done(self, event: ev.Event | None) -> None:
        self._io_under_way -= 1
        if event is not None:
            self._tell(event)

    def _driver_state(self, checkpoint_id: int) -> ev.DriverStateReady | ev.StepFailed:
        try:
            return ev.DriverStateReady(checkpoint_id, self._splits.snapshot(checkpoint_id))
        except Exception as error:
            return ev.StepFailed(checkpoint_id, str(error))

    def _register_shared(self, do: ev.RegisterShared) -> None:
        try:
            self._snapshots.shared.register(do.checkpoint_id, do.state)
        except Exception as error:
            if isinstance(error, IllegalState):
                self._warn(f"checkpoint {do.checkpoint_id} is declined: {error}; report this as a bug")
            # Later, since other instructions of the acknowledgement follow; metadata that needs the part cannot be written.
            declined = ev.Declined(
                self._attempt, do.task, do.checkpoint_id, FailureReason.CHECKPOINT_DECLINED, str(error)
            )
            self._job.call(lambda: self._tell(declined))

    def _complete_request(self, do: ev.CompleteRequest) -> None:
        request = self._requests.get(do.request_id)
        if request is None:
            return
        if isinstance(do.result, ev.RequestDone):
            request.answer.set_result(do.result)
        elif do.result.reason is FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING and self._may_succeed_now(request):
            self._retries.append(request)
            self._job.call(self._retry)
            return
        else:
            request.answer.set_exception(IllegalState("HR-3009", do.result.message))
        del self._requests[do.request_id]

    def _may_succeed_now(self, request: _Request) -> bool:
        """A task that finished in the middle says nothing against the next try, and each task does it once."""
        if self.coordinator.finished_tasks > request.finished:
            return True
        request.tries -= 1
        return request.tries >= 0

    def _retry(self) -> None:
        """Submit requests again; a drain that was aborted has failed the attempt, so they wait for the next one."""
        if self.coordinator.active:
            retries, self._retries = self._retries, []
            for request in retries:
                self._submit(request)

    def _warn(self, text: str) -> None:
        self._io.warn(f"job '{self.plan.name}': {text}")


def _topology(plan: JobPlan) -> Topology:
    """The job graph as the coordinator sees it."""
    vertices = []
    for vertex in plan.graph.vertices:
        inputs = []
        for edge in plan.graph.inputs(vertex.id):
            writers = plan.graph.vertices[edge.source].parallelism
            channels = [edge.partitioning.writers(r, writers, vertex.parallelism) for r in range(vertex.parallelism)]
            inputs.append(PlanInput(edge.source, tuple(map(tuple, channels)) if edge.partitioning.pointwise else None))
        operators = tuple(operator.id for operator in vertex.operators)
        vertices.append(PlanVertex(vertex.id, vertex.parallelism, tuple(inputs), operators))
    return Topology(tuple(vertices))
