"""The driver's shell around the checkpoint coordinator: carries out its instructions and reports the results.

The coordinator decides (`checkpoint/coordinator.py`), storage knows files (`storage/`), the job talks to workers
(`job.py`). Everything here is called in the job's thread, except I/O, which runs in a small pool whose results come back
as calls in the job's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from headgate import config
from headgate.api.sink import EpochContext
from headgate.checkpoint import events as ev
from headgate.checkpoint.commits import NO_COMMITS
from headgate.checkpoint.coordinator import Coordinator
from headgate.checkpoint.decider import RequestId
from headgate.checkpoint.handles import CorruptState
from headgate.checkpoint.plan import PlanInput, PlanVertex, TaskId, TaskStatus, Topology
from headgate.checkpoint.reasons import FailureReason
from headgate.checkpoint.settings import CheckpointSettings, EndStatus
from headgate.checkpoint.store import CompletedCheckpoint
from headgate.config import Configuration
from headgate.control.messages import (
    AcknowledgeCheckpoint,
    AnnounceCheckpoint,
    AskForSplit,
    CheckpointAborted,
    CheckpointComplete,
    DataFinished,
    DeclineCheckpoint,
    Finished,
    FromDriver,
    FromWorker,
    Hold,
    HoldWriter,
    Running,
    SourceBacklog,
    TriggerCheckpoint,
)
from headgate.driver.epochs import Epochs
from headgate.driver.replan import with_key_groups
from headgate.driver.schedule import cron
from headgate.driver.services import DriverIo
from headgate.driver.snapshots import JobSnapshots, restore_plan, saved_operators
from headgate.driver.splits import Splits
from headgate.driver.step_back import StepBack
from headgate.errors import IllegalState, StorageError
from headgate.graph.plan import JobPlan
from headgate.ids import JobId, OperatorId, VertexId
from headgate.storage.checkpoints import Snapshot
from headgate.storage.objects import MissingObject, OutcomeUnknown
from headgate.worker.checkpoints import WorkerStorage
from headgate.worker.restore import VertexRestore

Send = Callable[[TaskId, FromDriver], None]


@dataclass(slots=True)
class _Request:
    """What a user requested; `tries` are left for when a task finishes in the middle of it."""

    event: Any
    answer: Future[ev.RequestDone]
    tries: int = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint that an attempt restores, and what it holds of the driver's parts of operators; or none."""

    checkpoint: CompletedCheckpoint | None
    snapshot: Snapshot | None
    driver_states: dict[OperatorId, bytes]


class CheckpointService:
    """The checkpoints of one job.

    `send` reaches a subtask, `call` runs a function in the job's thread, `fail` fails the attempt, `stand_down` ends this
    driver because another one has taken over the job.
    """

    def __init__(
        self,
        plan: JobPlan,
        job_id: JobId,
        configuration: Configuration,
        *,
        send: Send,
        call: Callable[[Callable[[], None]], None],
        fail: Callable[[str], None],
        stand_down: Callable[[str], None],
        io: DriverIo,
        spark: Any = None,
    ) -> None:
        """`spark` is the user's session, for sinks that commit on the driver."""
        self._io = io
        self.settings = CheckpointSettings.from_configuration(configuration)
        self.plan, self._send, self._call, self._fail, self._stand_down = plan, send, call, fail, stand_down
        self._configuration = configuration
        self._step_back = StepBack(plan, configuration)
        self._snapshots = JobSnapshots(plan, job_id, configuration, self._io)
        self.job_id = self._snapshots.job_id
        if self._snapshots.resumed is not None:
            plan = self.plan = with_key_groups(plan, saved_operators(self._snapshots.resumed.operators))
            self._snapshots.replan(plan)
        self._splits = Splits(plan.graph, self._io, send, call, fail)
        self._epochs = Epochs(
            plan.graph,
            self._io.epochs,
            self._snapshots.prepared,
            send,
            call,
            fail,
            lambda held: self._tell(ev.HoldChanged(held)),
            lambda op: EpochContext(
                op.name, op.id, self.job_id, spark, self._snapshots.staging, op.spec.options["type"]
            ),
        )
        recovered, next_id = self._snapshots.recovered()
        self._coordinator = Coordinator(
            self.settings,
            self._io.random,
            next_full=cron(configuration.get(config.FULL_CRON)),
            recovered=recovered,
            next_id=next_id,
            driver_state=self._splits.any,
        )
        self._alarm: int | None = None
        self._attempt = 0
        self._restoring = False  # whether the attempt began with a checkpoint
        self._requests: dict[RequestId, _Request] = {}
        self._retries: list[ev.Event] = []  # requests that are submitted again while the job runs
        self._io_under_way = 0
        self._end_status: EndStatus | None = None
        self._end_claimed = self._ended = False
        self._backlogs: set[TaskId] = set()
        self._actions = self._make_actions()
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

    def _make_actions(self) -> dict[type[ev.Instruction], Callable[[Any], None]]:
        """Which method carries out which instruction."""
        return {
            ev.PrepareLocation: self._prepare_location,
            ev.SnapshotDriverState: self._snapshot_driver_state,
            ev.TriggerTasks: self._trigger_tasks,
            ev.Announce: self._announce,
            ev.RegisterShared: self._register_shared,
            ev.ReleaseShared: self._release_shared,
            ev.WriteMetadata: self._write_metadata,
            ev.ClaimLogEntry: self._claim_log_entry,
            ev.NotifyComplete: self._notify_complete,
            ev.NotifyAborted: self._notify_aborted,
            ev.DiscardFiles: self._discard_files,
            ev.DiscardCheckpoint: self._discard_checkpoint,
            ev.CompleteRequest: self._complete_request,
            ev.FailJob: self._fail_job,
            ev.ScheduleAt: self._schedule_at,
            ev.Warn: self._pass_warning,
            ev.StandDown: self._superseded,
        }

    @property
    def coordinator(self) -> Coordinator:
        """Completed checkpoints, pending ones, statistics."""
        return self._coordinator

    # --- called by the job ------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether no claim in the job log and no commit on the driver is under way.

        A claim may succeed: then that checkpoint is the one to restore. And no two epochs are committed at once.
        """
        return self._coordinator.settled and self._epochs.idle

    def start_attempt(self, number: int, choice: Choice) -> dict[VertexId, VertexRestore]:
        """A new attempt begins: what its subtasks restore."""
        self._attempt, self._restoring = number, choice.checkpoint is not None
        self._backlogs.clear()
        restore: dict[VertexId, VertexRestore] = {}
        checkpoint, snapshot = choice.checkpoint, choice.snapshot
        if checkpoint is None or snapshot is None:
            self._epochs.start_attempt(None, None, NO_COMMITS)
        else:
            commits = self._snapshots.step_back_to(checkpoint)
            restore = restore_plan(
                self.plan,
                snapshot.manifest,
                claim=self.settings.incremental
                and not checkpoint.properties.unclaimed
                and self._snapshots.has_registered(snapshot.manifest),
                ignore_unmatched=self._configuration.get(config.RECOVERY_IGNORE_UNCLAIMED),
                commits=commits,
            )
            self._epochs.start_attempt(snapshot.manifest, checkpoint.id, commits)
        self._splits.start_attempt(choice.driver_states)
        restored = None if checkpoint is None else checkpoint.id
        self._tell(ev.AttemptStarted(number, _topology(self.plan), restored))
        return restore

    def replan(self, plan: JobPlan) -> None:
        """The next attempt runs another plan of the same program."""
        self.plan = plan
        self._snapshots.replan(plan)
        self._splits.replan(plan.graph)
        self._epochs.replan(plan.graph)

    def worker_storage(self) -> WorkerStorage:
        """Where the workers of the attempt write."""
        return self._snapshots.worker_storage(self._attempt, self.settings.incremental)

    def choose(self) -> Choice:
        """The checkpoint that the next attempt restores: the newest one that is not known to be damaged (SPEC R5.11).

        Only its metadata is read; workers verify what they read. Called in a thread that may wait, when all is settled.
        """
        for checkpoint in reversed(self._coordinator.store.checkpoints):
            try:
                snapshot = self._snapshots.load(checkpoint)
                return Choice(checkpoint, snapshot, self._snapshots.driver_states(snapshot.manifest))
            except (CorruptState, MissingObject) as damage:
                self._warn(self._skip(checkpoint, damage))
        return Choice(None, None, {})

    def _skip(self, checkpoint: CompletedCheckpoint, damage: StorageError) -> str:
        """The warning that a damaged checkpoint is not restored; CorruptState if no older one can be."""
        self._snapshots.damaged[checkpoint.id] = damage
        older = any(one.id not in self._snapshots.damaged for one in self._coordinator.store.checkpoints)
        return self._step_back.over(checkpoint, damage, older=older)

    def step_back(self, damage: str) -> bool:
        """A worker found damage in the checkpoint that it restores: the next attempt restores an older one.

        False if the attempt restores none; CorruptState if no older one can be restored.
        """
        restoring = self._coordinator.store.latest if self._restoring else None
        if restoring is not None:
            self._skip(restoring, CorruptState(damage))
        return restoring is not None

    def on_message(self, task: TaskId, message: FromWorker) -> None:
        """A message of a subtask; messages that do not concern checkpoints are ignored."""
        match message:
            case AcknowledgeCheckpoint():
                self._acknowledged(task, message)
            case DeclineCheckpoint():
                self._declined(task, message)
            case Running():
                self._tell(ev.TaskStatusChanged(self._attempt, task, TaskStatus.RUNNING))
            case Finished():
                self._tell(ev.TaskStatusChanged(self._attempt, task, TaskStatus.FINISHED))
            case DataFinished():
                self._tell(ev.EndOfData(self._attempt, task))
            case AskForSplit():
                self._splits.asked(task)
            case SourceBacklog(backlog):
                self._backlog(task, backlog)
            case HoldWriter(edge, writer, hold):
                self._send(TaskId(self.plan.graph.edges[edge].source, writer), Hold(f"{task}/{edge}", hold))

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
        if status is None or self._end_claimed or not self._coordinator.settled:
            return
        self._end_claimed = True
        if status is EndStatus.SUSPENDED:
            self._on_end_claimed(ev.JobEnded(status))
            return
        store = self._coordinator.store
        discarded = [
            checkpoint.commit_number
            for checkpoint in store.checkpoints
            if checkpoint.properties.discard_on_end(status) and checkpoint.commit_number is not None
        ]

        def claim() -> None:
            event = self._snapshots.claim_end(status, discarded)  # 2
            self._call(lambda: self._on_end_claimed(event))

        self._io.log.submit(claim)

    def _on_end_claimed(self, event: ev.JobEnded | ev.Superseded) -> None:
        self._tell(event)  # 3
        self._ended = True

    @property
    def end_recorded(self) -> bool:
        """Whether the end is in the job log, or need not be."""
        return self._ended

    @property
    def ended(self) -> bool:
        """Whether nothing is left to be done after `end`: a claim that is answered late decides what is deleted."""
        return self._ended and self._coordinator.settled and self._io_under_way == 0

    def close(self) -> None:
        """Release what enumerators and committers hold; a commit that hangs is not waited for."""
        self._splits.close()
        self._epochs.close()
        for request in self._requests.values():
            if not request.answer.done():
                request.answer.set_exception(IllegalState("the job has ended"))

    def _acknowledged(self, task: TaskId, message: AcknowledgeCheckpoint) -> None:
        """A subtask has written its part."""
        shared = {
            op: sum(part.shared for piece in pieces for part in piece.parts) for op, pieces in message.state.items()
        }
        self._tell(
            ev.Acknowledged(
                self._attempt, task, message.checkpoint_id, message.state, message.metrics, message.report, shared
            )
        )

    def _declined(self, task: TaskId, message: DeclineCheckpoint) -> None:
        """A subtask has no part in a checkpoint."""
        reason = FailureReason[message.reason]
        self._tell(ev.Declined(self._attempt, task, message.checkpoint_id, reason, message.message))

    def tick(self) -> None:
        """Called after every event, and when `next_alarm` is due."""
        self._claim_end()
        self._splits.tick()
        if self._alarm is not None and self._io.now() >= self._alarm:
            self._alarm = None
            self._tell(ev.TimePassed())

    def next_alarm(self) -> int | None:
        """When `tick` has work."""
        return min((at for at in (self._alarm, self._splits.next_alarm()) if at is not None), default=None)

    # --- requests, in the job's thread ------------------------------------------------------------------------------

    def request(
        self, event: ev.CheckpointRequested | ev.SavepointRequested | ev.StopRequested, answer: Future[ev.RequestDone]
    ) -> None:
        """A user requests a checkpoint, a savepoint, or a savepoint and then the end of the job (SPEC R8.3)."""
        self._requests[event.request_id] = _Request(event, answer)
        self._tell(event)

    # --- instructions -----------------------------------------------------------------------------------------------

    def _tell(self, event: ev.Event) -> None:
        for instruction in self._coordinator.handle(event, self._io.now()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: ev.Instruction) -> None:
        self._actions[type(instruction)](instruction)

    def _later(
        self,
        work: Callable[[], ev.Event | None],
        failed: Callable[[Exception], ev.Event | None],
        pool: Executor | None = None,
    ) -> None:
        """Do I/O in the pool; its result is an event in the job's thread."""

        def run() -> None:
            try:
                event = work()
            except Exception as error:
                event = failed(error)
            self._call(lambda: self._done(event))

        self._io_under_way += 1
        (pool or self._io.pool).submit(run)

    def _done(self, event: ev.Event | None) -> None:
        self._io_under_way -= 1
        if event is not None:
            self._tell(event)

    def _prepare_location(self, do: ev.PrepareLocation) -> None:
        self._later(
            lambda: ev.LocationReady(do.checkpoint_id, self._snapshots.prepare(do.checkpoint_id, do.type, do.target)),
            lambda error: ev.LocationFailed(do.checkpoint_id, str(error)),
        )

    def _snapshot_driver_state(self, do: ev.SnapshotDriverState) -> None:
        # One step: a split that is assigned between the enumerators' part and the trigger would be in both parts.
        self._call(lambda: self._tell(self._driver_state(do.checkpoint_id)))

    def _driver_state(self, checkpoint_id: int) -> ev.DriverStateReady | ev.DriverStateFailed:
        try:
            return ev.DriverStateReady(checkpoint_id, self._splits.snapshot(checkpoint_id))
        except Exception as error:
            return ev.DriverStateFailed(checkpoint_id, str(error))

    def _trigger_tasks(self, do: ev.TriggerTasks) -> None:
        for task in do.tasks:
            self._send(task, TriggerCheckpoint(do.barrier.encode()))

    def _announce(self, do: ev.Announce) -> None:
        for task in do.tasks:
            self._send(task, AnnounceCheckpoint(do.barrier.encode()))

    def _register_shared(self, do: ev.RegisterShared) -> None:
        try:
            self._snapshots.register(do.checkpoint_id, do.state)
        except Exception as error:
            # Later, since other instructions of the acknowledgement follow; metadata that needs the part cannot be written.
            declined = ev.Declined(
                self._attempt, do.task, do.checkpoint_id, FailureReason.CHECKPOINT_DECLINED, str(error)
            )
            self._call(lambda: self._tell(declined))

    def _release_shared(self, do: ev.ReleaseShared) -> None:
        paths, in_use = self._snapshots.release(do.lowest)
        self._later(
            lambda: ev.SharedReleased(self._snapshots.delete(paths, in_use)), lambda _: ev.SharedReleased(in_use)
        )

    def _write_metadata(self, do: ev.WriteMetadata) -> None:
        # The metadata of a savepoint that the job stops with has its commit number: no claim may come between.
        pool = self._io.log if do.content.properties.is_synchronous else None
        self._later(
            lambda: self._snapshots.publish(do.content),
            lambda error: ev.MetadataFailed(do.checkpoint_id, str(error), isinstance(error, OutcomeUnknown)),
            pool,
        )

    def _claim_log_entry(self, do: ev.ClaimLogEntry) -> None:
        self._later(
            lambda: self._snapshots.claim(do.checkpoint_id, do.subsumed),
            lambda error: ev.LogEntryFailed(do.checkpoint_id, str(error)),
            self._io.log,
        )

    def _notify_complete(self, do: ev.NotifyComplete) -> None:
        for task in do.tasks:
            self._send(task, CheckpointComplete(do.checkpoint_id, self._snapshots.commits))
        if self._epochs.any:
            manifest = self._snapshots.published(do.checkpoint_id)
            self._epochs.completed(manifest, do.checkpoint_id, self._snapshots.commits)
        self._splits.notify_complete(do.checkpoint_id)

    def _notify_aborted(self, do: ev.NotifyAborted) -> None:
        for task in do.tasks:
            self._send(task, CheckpointAborted(do.checkpoint_id, do.latest_completed, self._snapshots.commits))

    def _discard_files(self, do: ev.DiscardFiles) -> None:
        self._later(lambda: self._snapshots.discard_part(do.state), _nothing)

    def _discard_checkpoint(self, do: ev.DiscardCheckpoint) -> None:
        self._later(lambda: self._snapshots.discard(do), lambda _: ev.Discarded(do.checkpoint_id))

    def _complete_request(self, do: ev.CompleteRequest) -> None:
        request = self._requests.get(do.request_id)
        if request is None:
            return
        failed = None if isinstance(do.result, ev.RequestDone) else do.result
        if failed is not None and failed.reason is FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING and request.tries:
            request.tries -= 1  # a task finished just then: that says nothing against the next try
            self._retries.append(request.event)
            self._call(self._retry)
            return
        del self._requests[do.request_id]
        if isinstance(do.result, ev.RequestDone):
            request.answer.set_result(do.result)
        else:
            request.answer.set_exception(IllegalState(do.result.message))

    def _retry(self) -> None:
        """Submit requests again; a drain that was aborted has failed the attempt, so they wait for the next one."""
        if self._coordinator.active:
            retries, self._retries = self._retries, []
            for event in retries:
                self._tell(event)

    def _fail_job(self, do: ev.FailJob) -> None:
        self._fail(do.message)

    def _schedule_at(self, do: ev.ScheduleAt) -> None:
        self._alarm = do.time

    def _pass_warning(self, do: ev.Warn) -> None:
        self._warn(do.message)

    def _superseded(self, do: ev.StandDown) -> None:
        self._stand_down(do.message)

    def _warn(self, text: str) -> None:
        self._io.warn(f"job '{self.plan.name}': {text}")


def _nothing(_: Exception) -> None:
    return None


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
