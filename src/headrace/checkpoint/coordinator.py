"""The checkpoint coordinator: decides when checkpoints start, when they are complete and when their files are deleted.

It is a state machine without clock, thread, file or network (SPEC R5); `driver/checkpoint_service.py` runs it on the job's
thread of the driver. Events go in, instructions come out; the shell carries them out in order and reports the results:

    instructions = coordinator.handle(event, now)      # now: milliseconds since 1970, never going back

The life of a checkpoint:

    1 the decider accepts a request                      6 all tasks acknowledge; finished tasks are accounted for
    2 a plan is made; from here on it has an id          7 the metadata is written
    3 its directory is prepared                          8 its completion is claimed in the job log
    4 the state on the driver is taken                   9 it is stored, older ones are subsumed, the request answered
    5 tasks are triggered                               10 older pending ones are aborted, then tasks are notified

Nothing is notified, committed or deleted because of a checkpoint before step 8 has succeeded: a driver that was replaced
fails there and stands down. A plain savepoint skips steps 8 and 10: it has no effect on the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from headrace import config
from headrace.checkpoint import events as ev
from headrace.checkpoint.decider import Activity, Decision, RequestDecider, RequestId, RequestOrigin, TriggerRequest
from headrace.checkpoint.disposal import Disposal
from headrace.checkpoint.failure_manager import FailureManager
from headrace.checkpoint.full_policy import AutomaticFull, CompletedSize
from headrace.checkpoint.pending import PendingCheckpoint, Stage
from headrace.checkpoint.plan import Refusal, TaskId, TaskStatus, Topology, account_for_finished, plan_checkpoint
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.schedule import PeriodicSchedule
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings, EndStatus, FullCheckpointPolicy
from headrace.checkpoint.stats import CheckpointStats, RestoredStats, StatsTracker, SubtaskStats, VertexStats
from headrace.checkpoint.store import CheckpointStore, CompletedCheckpoint
from headrace.checkpoint.types import Barrier, SnapshotType
from headrace.errors import IllegalState

_FINAL_RETRY_MS, _LONGEST_FINAL_RETRY_MS = 1000, 60_000
_EXPIRED_REMEMBERED = 16
_NAMED_TASKS = 5  # in a message
_STEP_FAILURES = {
    Stage.PREPARING: FailureReason.IO_EXCEPTION,
    Stage.DRIVER_STATE: FailureReason.TRIGGER_CHECKPOINT_FAILURE,
    Stage.WRITING: FailureReason.FINALIZE_CHECKPOINT_FAILURE,
    Stage.CLAIMING: FailureReason.FINALIZE_CHECKPOINT_FAILURE,
}


class _Phase(Enum):
    """The value: which events are handled; others come too late."""

    OPEN = (ev.Event,)
    ENDED = (ev.Answer, ev.UserRequest)
    SUPERSEDED = (ev.UserRequest,)


@dataclass(frozen=True, slots=True)
class _Stop:
    """A stop-with-savepoint; `done` once the savepoint is complete and the tasks have to finish."""

    request: TriggerRequest
    done: ev.RequestDone | None = None


class Coordinator:
    """The checkpoints of one job, over all its attempts.

    `driver_state`: whether there is state on the driver to snapshot. `next_full`: the first time after a given time at
    which the schedule requests a full checkpoint. `recovered` and `next_id` are what a resumed job finds in its log.
    The latest checkpoint of `store` is the one to restore from; `stats` may be read by any thread through `snapshot`.

    >>> coordinator = Coordinator(CheckpointSettings(), Random(0))
    >>> coordinator.handle(ev.CheckpointRequested(RequestId("r1")), now=0)[0].result.reason.name
    'NOT_ALL_REQUIRED_TASKS_RUNNING'
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        rng: Random,
        *,
        driver_state: bool = False,
        next_full: Callable[[int], int | None] | None = None,
        recovered: Sequence[CompletedCheckpoint] = (),
        next_id: int = 1,
    ) -> None:
        self.settings = settings
        self.store = CheckpointStore(settings.num_retained, recovered)
        self.stats = StatsTracker(settings.history_size)
        self._driver_state = driver_state
        self._failures = FailureManager(settings.tolerable_failures)
        self._decider = RequestDecider(settings.max_concurrent, settings.min_pause_ms)
        self._schedule = PeriodicSchedule(settings, rng)
        # Without increments every checkpoint is full, and there is no chain to end.
        policy = settings.full if settings.incremental else FullCheckpointPolicy()
        self._full = AutomaticFull(policy, next_full if settings.incremental else None)
        self._handlers = self._make_handlers()
        # The event being handled
        self._now = 0
        self._instructions: list[ev.Instruction] = []
        self._armed: int | None = None  # the time of the last ScheduleAt
        self._slot_freed = False  # requests that wait may be accepted now
        # The job
        self._phase = _Phase.OPEN
        self._end_status: EndStatus | None = None
        self._attempt: int | None = None
        self._topology = Topology(())
        self._tasks: dict[TaskId, TaskStatus] = {}
        self._job_running = False
        self.active = False  # the job runs, and so does every task that has not finished
        self._at_end: set[TaskId] = set()  # tasks that have reached the end of their data
        self._final_at: int | None = None  # when the final checkpoint of a bounded job is due
        self._final_retry_ms = _FINAL_RETRY_MS
        self._held = False
        self._stop: _Stop | None = None
        # Checkpoints
        self._next_id = max([next_id, *(checkpoint.id + 1 for checkpoint in recovered)])
        self._pending: dict[int, PendingCheckpoint] = {}
        self._triggering: int | None = None  # in steps 2 to 4
        self._claiming: PendingCheckpoint | None = None  # in step 8
        self._last_completion: int | None = None
        self._force_full = False
        self._slow = False  # the last checkpoint took longer than the interval
        self._expired: deque[int] = deque(maxlen=_EXPIRED_REMEMBERED)
        self._disposal = Disposal(self.store)

    @property
    def pending(self) -> tuple[int, ...]:
        """The ids of the checkpoints under way."""
        return tuple(self._pending)

    @property
    def finished_tasks(self) -> int:
        """The number of tasks of the attempt that have finished."""
        return sum(status is TaskStatus.FINISHED for status in self._tasks.values())

    @property
    def claim_under_way(self) -> bool:
        """True while a log entry is being claimed: choose what to restore from later, the claim may succeed."""
        return self._claiming is not None

    # ---- events in, instructions out -------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: int) -> list[ev.Instruction]:
        """Process one event; returns the instructions to carry out, in order."""
        self._now = max(self._now, now)
        if isinstance(event, ev.TimePassed):
            self._armed = None  # the alarm is spent
        elif isinstance(event, self._phase.value):
            self._handlers[type(event)](event)
        self._fire_due()
        if self._slot_freed:
            self._slot_freed = False
            self._follow(self._decider.next(self._now, self._activity()))
        self._arm()
        instructions, self._instructions = self._instructions, []
        return instructions

    def _emit(self, *instructions: ev.Instruction) -> None:
        self._instructions += instructions

    def _make_handlers(self) -> dict[type[Any], Callable[[Any], None]]:
        return {
            ev.SnapshotImported: self._on_imported,
            ev.AttemptStarted: self._on_attempt,
            ev.JobStatusChanged: self._on_job_status,
            ev.JobEnded: self._on_job_ended,
            ev.TaskStatusChanged: self._on_task_status,
            ev.EndOfData: self._on_end_of_data,
            ev.BacklogChanged: self._on_backlog,
            ev.HoldChanged: self._on_hold,
            ev.CheckpointRequested: self._on_checkpoint_requested,
            ev.SavepointRequested: self._on_savepoint_requested,
            ev.StopRequested: self._on_savepoint_requested,
            ev.Acknowledged: self._on_acknowledged,
            ev.Declined: self._on_declined,
            ev.LocationReady: self._on_location,
            ev.DriverStateReady: self._on_driver_state,
            ev.MetadataWritten: self._on_metadata,
            ev.LogEntryClaimed: self._on_claimed,
            ev.StepFailed: self._on_step_failed,
            ev.Superseded: self._on_superseded,
            ev.Discarded: self._on_discarded,
            ev.SharedReleased: self._on_shared_released,
        }

    # ---- time ------------------------------------------------------------------------------------------------------

    def _deadlines(self) -> Iterator[tuple[int, Callable[[], None]]]:
        for pending in self._pending.values():
            if pending.stage <= Stage.WRITING:  # an entry that may be in the log cannot be taken back
                yield pending.deadline, partial(self._expire, pending)
            if pending.announce_at is not None:
                yield pending.announce_at, partial(self._announce, pending)
        if self._schedule.next_at is not None:
            yield self._schedule.next_at, self._fire_periodic
        if not self.active or self._stop is not None:
            return
        if self._final_at is not None:
            yield self._final_at, self._fire_final
        if self._full.due_at is not None:
            yield self._full.due_at, self._fire_full

    def _fire_due(self) -> None:
        while True:
            due = [deadline for deadline in self._deadlines() if deadline[0] <= self._now]
            if not due:
                return
            _, action = min(due, key=lambda deadline: deadline[0])
            action()

    def _arm(self) -> None:
        earliest = min((at for at, _ in self._deadlines()), default=None)
        if earliest is not None and earliest != self._armed:
            self._emit(ev.ScheduleAt(earliest))
        self._armed = earliest

    def _fire_periodic(self) -> None:
        self._schedule.fire()
        self._submit(TriggerRequest(self._checkpoint_properties(), RequestOrigin.PERIODIC, self._now))

    def _fire_full(self) -> None:
        properties = self._checkpoint_properties(full=True)
        reason = self._full.take(self._now)
        self._submit(TriggerRequest(properties, RequestOrigin.AUTOMATIC, self._now, full_reason=reason))

    def _fire_final(self) -> None:
        self._final_at = None
        self._submit(TriggerRequest(self._checkpoint_properties(), RequestOrigin.END_OF_DATA, self._now))

    # ---- the job ---------------------------------------------------------------------------------------------------

    def _on_imported(self, event: ev.SnapshotImported) -> None:
        """Start from a snapshot that the user named; ids continue from its id (SPEC R8.4)."""
        if self._attempt is not None or self.store.checkpoints:
            raise IllegalState(
                "HR-3009", "a snapshot that the user named can only be imported before the job has started"
            )
        imported = CompletedCheckpoint(
            event.checkpoint_id,
            self._now,
            CheckpointProperties.for_restored(event.claim, self.settings.retention),
            event.location,
            event.pointer,
            state_size=event.state_size,
            chain_length=event.chain_length,
            imported=True,
        )
        self.store.add(imported)
        self._next_id = max(self._next_id, event.checkpoint_id + 1)

    def _on_attempt(self, event: ev.AttemptStarted) -> None:
        self._job_running = False
        self._update_active()
        self._stop = None  # it was answered
        self._at_end.clear()
        self._final_at, self._final_retry_ms = None, _FINAL_RETRY_MS
        self._schedule.clear_backlog()
        assert not self._pending, self._pending
        if self._claiming is not None:
            raise IllegalState(
                "HR-3009", f"the claim of checkpoint {self._claiming.id} is under way: wait for its answer"
            )
        forgotten = [] if event.restored is None else self.store.step_back(event.restored)
        self._emit(*self._disposal.tasks_left())
        self._attempt, self._topology = event.attempt, event.topology
        self._tasks = dict.fromkeys(event.topology.tasks(), TaskStatus.STARTING)
        if event.restored is None:
            return
        self._disposal.keep(newer.id for newer in forgotten)
        restored = self.store.latest
        assert restored is not None
        # Files of the user that the job must not depend on: its first own checkpoint writes everything (SPEC R7.6). The
        # savepoint of a stop that did not end is such a case too.
        self._force_full = restored.properties.unclaimed or restored.properties.is_synchronous
        savepoint = restored.properties.is_savepoint
        self.stats.restored(RestoredStats(restored.id, self._now, savepoint, restored.pointer, restored.state_size))

    def _on_job_status(self, event: ev.JobStatusChanged) -> None:
        self._job_running = event.running
        self._update_active()

    def _on_task_status(self, event: ev.TaskStatusChanged) -> None:
        if event.attempt != self._attempt or event.task not in self._tasks:
            return
        self._tasks[event.task] = event.status
        if event.status is TaskStatus.FINISHED:
            self._abort_unreachable(event.task)
        self._update_active()
        self._answer_stop()

    def _abort_unreachable(self, task: TaskId) -> None:
        """Abort what waits for a task that has finished: its acknowledgement would have come before."""
        for pending in list(self._pending.values()):
            if pending.stage <= Stage.RUNNING and task in pending.not_acknowledged:
                message = f"task {task} finished before checkpoint {pending.id} reached it"
                self._abort(pending, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, message)

    def _on_end_of_data(self, event: ev.EndOfData) -> None:
        if event.attempt != self._attempt:
            return
        self._at_end.add(event.task)
        over = self._at_end | {task for task, status in self._tasks.items() if status is TaskStatus.FINISHED}
        for vertex in self._topology.vertices:
            if vertex.id == event.task.vertex and over.issuperset(vertex.tasks()):
                for operator in vertex.operators:
                    self._schedule.backlog(operator, self._now, processing=False)
        # A bounded job commits its last output with a final checkpoint, which need not wait for the interval.
        periodic = self.settings.interval_ms is not None
        if periodic and self.settings.after_tasks_finish and over.issuperset(self._tasks):
            self._final_at = self._now

    def _on_backlog(self, event: ev.BacklogChanged) -> None:
        self._schedule.backlog(event.operator, self._now, processing=event.backlog)

    def _on_hold(self, event: ev.HoldChanged) -> None:
        self._held = event.held
        self._slot_freed = True

    def _update_active(self) -> None:
        """Start or stop triggering: checkpoints need a running job all of whose tasks run or have finished."""
        statuses = self._tasks.values()
        going = {TaskStatus.RUNNING, TaskStatus.FINISHED}.issuperset(statuses)
        active = self._job_running and bool(statuses) and going
        if active == self.active:
            return
        self.active = active
        if active:
            if self._stop is None:
                self._schedule.start(self._now)
            self._full.start(self._now)
        else:
            self._schedule.stop()
            self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)
            self._answer_stop()

    def _on_job_ended(self, event: ev.JobEnded) -> None:
        self._phase, self._end_status = _Phase.ENDED, event.status
        self.active = self._job_running = False
        self._schedule.stop()
        self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        self._answer_stop()
        if event.status.is_terminal:  # otherwise another driver may resume the job and write to the same directories
            self._emit(*self._disposal.tasks_left())
        if self._claiming is None:  # otherwise the answer to the claim decides what is kept
            self._close_store(event.status)

    def _close_store(self, status: EndStatus) -> None:
        discard, retained = self.store.end(status)
        for checkpoint in discard:
            self.stats.discarded(checkpoint.id)
        self._emit(*self._disposal.end(status, discard, retained))

    def _on_superseded(self, event: ev.Superseded) -> None:
        """Another driver runs the job now: touch no file and no task, only answer the requests that wait here."""
        self._phase = _Phase.SUPERSEDED
        self.active = self._job_running = False
        self._schedule.stop()
        waiting = self._pending | ({} if self._claiming is None else {self._claiming.id: self._claiming})
        self._pending.clear()
        self._triggering = self._claiming = None
        unanswered = [*(pending.request for pending in waiting.values()), *self._decider.clear()]
        if self._stop is not None and self._stop.done is not None:
            unanswered.append(self._stop.request)
        result = ev.RequestFailed(event.message, FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        for request in unanswered:
            if request.id is not None:
                self._emit(ev.CompleteRequest(request.id, result))
        self._stop = None
        self._emit(ev.StandDown(event.message))

    # ---- requests (step 1) -----------------------------------------------------------------------------------------

    def _on_checkpoint_requested(self, event: ev.CheckpointRequested) -> None:
        if self._refused(event.request_id):
            return
        properties = self._checkpoint_properties(full=event.full)
        reason = "requested" if event.full else None
        self._submit(TriggerRequest(properties, RequestOrigin.USER, self._now, event.request_id, full_reason=reason))

    def _on_savepoint_requested(self, event: ev.SavepointRequested) -> None:
        if self._refused(event.request_id):
            return
        target = event.target or self.settings.savepoint_dir
        if target is None:
            message = f"no directory for the savepoint: name one, or set {config.SAVEPOINT_DIR.key}"
            self._emit(ev.CompleteRequest(event.request_id, ev.RequestFailed(message)))
            return
        properties = CheckpointProperties.for_savepoint(not self.settings.unaligned, event.format)
        if isinstance(event, ev.StopRequested):
            # No other checkpoint may come between the savepoint and the end of the job.
            self._schedule.stop()
            self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)
            properties = CheckpointProperties.for_stop(properties.force, event.drain, event.format)
        request = TriggerRequest(properties, RequestOrigin.USER, self._now, event.request_id, target)
        if properties.is_synchronous:
            self._stop = _Stop(request)
        self._submit(request)

    def _refused(self, request_id: RequestId) -> bool:
        """Answer a request that comes too late for any snapshot; return True if it does."""
        if self._phase is not _Phase.OPEN:
            reason, message = FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "the job has ended"
        elif self._stop is not None:
            reason, message = FailureReason.CHECKPOINT_COORDINATOR_SUSPEND, "the job is being stopped with a savepoint"
        else:
            return False
        self._emit(ev.CompleteRequest(request_id, ev.RequestFailed(message, reason)))
        return True

    def _checkpoint_properties(self, *, full: bool = False) -> CheckpointProperties:
        properties = CheckpointProperties.for_checkpoint(self.settings.retention)
        return properties.as_full() if full else properties

    def _activity(self) -> Activity:
        return Activity(
            triggering=self._triggering is not None,
            pending=len(self._pending),
            cleaning=self._disposal.cleaning,
            held=self._held,
            last_completion=self._last_completion,
        )

    def _submit(self, request: TriggerRequest) -> None:
        if not self.active:
            self._begin(request)  # it fails with what is missing; there is nothing to wait for
            return
        self._follow(self._decider.submit(request, self._now, self._activity()))

    def _follow(self, decision: Decision) -> None:
        while True:
            for request, reason in decision.dropped:
                self._request_failed(request, reason, reason.value)
            if decision.reschedule_at is not None:
                self._schedule.postpone(decision.reschedule_at)
            if decision.start is None:
                return
            self._begin(decision.start)
            decision = self._decider.next(self._now, self._activity())  # another one, if this could not begin

    # ---- triggering (steps 2 to 5) ---------------------------------------------------------------------------------

    def _begin(self, request: TriggerRequest) -> None:
        """Steps 2 and 3."""
        plan = plan_checkpoint(self._topology, self._tasks, after_finish=self.settings.after_tasks_finish)
        if not isinstance(plan, Refusal) and not self.active:
            plan = Refusal("the job is not running")
        if isinstance(plan, Refusal):
            self.stats.failed_before_start()
            self._request_failed(request, FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, plan.message)
            return
        checkpoint_id, self._next_id = self._next_id, self._next_id + 1
        properties, full_reason = request.properties, request.full_reason
        if self._force_full and not properties.is_savepoint:
            properties, full_reason = properties.as_full(), "first checkpoint after a start from files of the user"
        base = self.store.latest
        from_scratch = not self.settings.incremental or properties.type is not SnapshotType.CHECKPOINT
        stats = CheckpointStats(
            checkpoint_id,
            self._now,
            (properties.type if properties.is_savepoint else SnapshotType.CHECKPOINT).name,
            properties.is_savepoint,
            properties.format.value if properties.format else None,
            request.trigger.value,
            {one.id: VertexStats(one.parallelism, operators=one.operators) for one in self._topology.vertices},
            from_scratch,
            full_reason,
            chain_length=1 if base is None or from_scratch else base.chain_length + 1,
            chain_started=self._now if base is None or from_scratch else self.stats.chain_started(base.id),
        )
        for task in plan.finished:
            stats.report(task, SubtaskStats(self._now))
        self._pending[checkpoint_id] = PendingCheckpoint(
            checkpoint_id,
            request,
            properties,
            plan,
            timestamp=self._now,
            deadline=self._now + self.settings.timeout_ms,
            stats=stats,
            attempt=self._attempt,
            base=None if base is None or properties.is_savepoint else base.id,
        )
        self._triggering = checkpoint_id
        self._disposal.begin(checkpoint_id, properties.type, self._attempt)
        self.stats.pending(stats)
        self._emit(ev.PrepareLocation(checkpoint_id, properties.type, request.target))

    def _on_location(self, event: ev.LocationReady) -> None:
        """Step 4, or 5 if there is no state on the driver."""
        self._emit(*self._disposal.location_ready(event.checkpoint_id, event.location))
        pending = self._in_stage(event.checkpoint_id, Stage.PREPARING)
        if pending is None:
            return
        pending.location = event.location
        pending.stage = Stage.DRIVER_STATE
        if self._driver_state:
            self._emit(ev.SnapshotDriverState(pending.id))
        else:
            self._trigger(pending)

    def _on_driver_state(self, event: ev.DriverStateReady) -> None:
        pending = self._in_stage(event.checkpoint_id, Stage.DRIVER_STATE)
        if pending is not None:
            pending.driver_states.update(event.states)
            self._trigger(pending)

    def _trigger(self, pending: PendingCheckpoint) -> None:
        options = self.settings.options_for(pending.properties, pending.location or "")
        pending.barrier = Barrier(pending.id, pending.timestamp, options)
        pending.stage = Stage.RUNNING
        self._triggering = None
        self._slot_freed = True
        self._emit(ev.TriggerTasks(pending.barrier, pending.plan.trigger))
        pending.announce_at = pending.barrier.deadline
        if options.unaligned:
            self._announce(pending)
        self._finalize_if_acknowledged(pending)

    def _announce(self, pending: PendingCheckpoint) -> None:
        """Announce an unaligned barrier on the control plane: it cannot overtake rows inside Spark."""
        pending.announce_at = None
        assert pending.barrier is not None
        triggered = set(pending.plan.trigger)
        others = tuple(task for task in pending.not_acknowledged if task not in triggered)
        if others:
            self._emit(ev.Announce(pending.barrier.as_unaligned(), others))

    # ---- acknowledgements (step 6) ---------------------------------------------------------------------------------

    def _on_acknowledged(self, event: ev.Acknowledged) -> None:
        pending = self._pending.get(event.checkpoint_id)
        if event.state is not None and (pending is None or not pending.properties.is_savepoint):
            # Also when it is late: the task may build on these files, and unused ones are deleted when released.
            self._emit(ev.RegisterShared(event.checkpoint_id, event.task, event.state))
        if pending is None:
            self._on_late(event)
            return
        if event.attempt == self._attempt and event.task in pending.plan.wait:
            if pending.acknowledge(event, self._now):
                self._finalize_if_acknowledged(pending)
        elif event.state is not None:
            self._emit(ev.DiscardFiles(event.checkpoint_id, event.task, event.state))

    def _on_late(self, event: ev.Acknowledged) -> None:
        self.stats.late(event.checkpoint_id, event.task, self._now, event.metrics)
        if event.checkpoint_id in self._expired:
            message = f"task {event.task} acknowledged checkpoint {event.checkpoint_id} after it had expired"
            self._emit(ev.Warn(f"{message}: {config.CHECKPOINT_TIMEOUT.key} may be too short"))
        if event.state is not None:
            self._emit(*self._disposal.late_part(event.checkpoint_id, event.task, event.state))

    def _on_declined(self, event: ev.Declined) -> None:
        pending = self._pending.get(event.checkpoint_id)
        if pending is not None and pending.stage <= Stage.RUNNING and event.attempt == self._attempt:
            reason = event.reason
            if reason is FailureReason.CHECKPOINT_SUBSUMED:  # only the coordinator subsumes
                reason = FailureReason.CHECKPOINT_DECLINED_SUBSUMED
            self._abort(pending, reason, f"task {event.task}: {event.message or reason.value}", task=event.task)

    def _expire(self, pending: PendingCheckpoint) -> None:
        waiting = pending.not_acknowledged
        more = f" and {len(waiting) - _NAMED_TASKS} more" if len(waiting) > _NAMED_TASKS else ""
        missing = ", ".join(map(str, waiting[:_NAMED_TASKS])) + more
        what = f"not acknowledged by {missing}" if waiting else "acknowledged by all, but its metadata is not written"
        limit = config.format_value(config.CHECKPOINT_TIMEOUT, self.settings.timeout_ms)
        message = f"checkpoint {pending.id} took longer than {limit} ({config.CHECKPOINT_TIMEOUT.key}): {what}"
        self._abort(pending, FailureReason.CHECKPOINT_EXPIRED, message)

    # ---- completion (steps 7 to 10) --------------------------------------------------------------------------------

    def _finalize_if_acknowledged(self, pending: PendingCheckpoint) -> None:
        if pending.stage is not Stage.RUNNING or pending.not_acknowledged:
            return
        vertices = account_for_finished(self._topology, pending.plan, pending.reports)
        if isinstance(vertices, Refusal):
            self._abort(pending, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, vertices.message)
            return
        pending.stage, pending.announce_at = Stage.WRITING, None  # 7
        content = ev.Content(
            pending.id,
            pending.timestamp,
            pending.properties,
            pending.location or "",
            dict(pending.states),
            dict(pending.driver_states),
            vertices,
        )
        self._disposal.write_metadata(pending.id)
        self._emit(ev.WriteMetadata(content))

    def _on_metadata(self, event: ev.MetadataWritten) -> None:
        """Step 8; a plain savepoint is complete."""
        self._emit(*self._disposal.metadata_written(event.checkpoint_id, event.snapshot))
        pending = self._in_stage(event.checkpoint_id, Stage.WRITING)
        if pending is None:
            return
        pending.metadata = event
        pending.stage = Stage.WRITTEN
        if pending.properties.is_plain_savepoint:
            self._complete(pending, None)
        else:
            self._claim_next()

    def _on_step_failed(self, event: ev.StepFailed) -> None:
        """Abort the checkpoint; files that its metadata or the log may name are kept."""
        self._emit(*self._disposal.step_failed(event.checkpoint_id, outcome_unknown=event.outcome_unknown))
        claimed = self._end_claim(event.checkpoint_id)
        pending = claimed or self._pending.get(event.checkpoint_id)
        if pending is not None and pending.stage in _STEP_FAILURES:
            self._abort(pending, _STEP_FAILURES[pending.stage], event.message)
        if claimed is not None:
            self._after_claim()

    def _claim_next(self) -> None:
        """Claim one entry at a time, oldest checkpoint first, so that commit numbers grow with the ids."""
        written = [pending for pending in self._pending.values() if pending.stage is Stage.WRITTEN]
        if self._claiming is not None or not written:
            return
        pending = min(written, key=lambda p: p.id)
        pending.stage, self._claiming = Stage.CLAIMING, pending
        # Nothing enters or leaves the store before the answer, so that the log and the store agree.
        numbers = (old.commit_number for old in self.store.subsumed_by(pending.properties))
        self._emit(ev.ClaimLogEntry(pending.id, tuple(number for number in numbers if number is not None)))

    def _on_claimed(self, event: ev.LogEntryClaimed) -> None:
        pending = self._end_claim(event.checkpoint_id)
        if pending is not None:
            self._complete(pending, event.commit_number)
            self._after_claim()

    def _end_claim(self, checkpoint_id: int) -> PendingCheckpoint | None:
        pending = self._claiming
        if pending is None or pending.id != checkpoint_id:
            return None
        self._claiming = None
        return pending

    def _after_claim(self) -> None:
        if self._end_status is not None:
            self._close_store(self._end_status)
        else:
            self._claim_next()

    def _complete(self, pending: PendingCheckpoint, commit_number: int | None) -> None:
        metadata = pending.metadata
        assert metadata is not None
        # If it is not pending any more, the job stopped running during the claim: it is complete, but no task is left
        # to be notified.
        tasks_run = self._pending.pop(pending.id, None) is not None
        stats = pending.stats
        stats.external_path, stats.commit_number, stats.completed_timestamp = metadata.pointer, commit_number, self._now
        stats.metadata_size, stats.metadata_objects = metadata.size, metadata.objects
        subsumed = None if pending.properties.is_plain_savepoint else self._store(pending, metadata, commit_number)
        self._disposal.complete(pending.id, savepoint=pending.properties.is_savepoint)
        self._failures.success(pending.id)
        self.stats.completed(stats)
        self._last_completion = self._now
        self._slot_freed = True
        self._request_done(pending, ev.RequestDone(pending.id, metadata.pointer, commit_number))
        if commit_number is None:
            return
        for older in list(self._pending.values()):  # 10
            if older.id < pending.id and not older.properties.is_savepoint:
                message = f"checkpoint {pending.id} was completed before checkpoint {older.id}"
                self._abort(older, FailureReason.CHECKPOINT_SUBSUMED, message)
        if tasks_run:
            tasks = pending.plan.wait
            self._emit(ev.NotifyComplete(pending.id, commit_number, tasks, subsumed))

    def _store(self, pending: PendingCheckpoint, metadata: ev.MetadataWritten, commit_number: int | None) -> int | None:
        """Step 9; returns the newest checkpoint that is subsumed, if its files are deleted."""
        completed = CompletedCheckpoint(
            pending.id,
            pending.timestamp,
            pending.properties,
            pending.location or "",
            metadata.pointer,
            commit_number,
            pending.stats.totals.state_size,
            pending.stats.chain_length,
        )
        subsumed = self.store.add(completed)
        if not pending.properties.is_savepoint:
            self._force_full = False
        for old in subsumed:
            if old.properties.discard_subsumed:
                self.stats.discarded(old.id)
        self._emit(*self._disposal.subsume(subsumed))
        under_way = (pending.base for pending in self._pending.values() if pending.base is not None)
        self._emit(*self._disposal.release(under_way))
        newest = max(subsumed, key=lambda c: c.id, default=None)
        return newest.id if newest is not None and newest.properties.discard_subsumed else None

    def _request_done(self, pending: PendingCheckpoint, done: ev.RequestDone) -> None:
        request = pending.request
        if request.properties.is_synchronous:
            self._stop = _Stop(request, done)
            self._answer_stop()
        elif request.id is not None:
            self._emit(ev.CompleteRequest(request.id, done))
        if pending.properties.is_savepoint:
            return
        self._warn_if_slow(pending)
        if pending.properties.type is SnapshotType.FULL_CHECKPOINT:
            self._full.completed_full(self._now, requested_here=request.trigger is RequestOrigin.AUTOMATIC)
        else:
            stats = pending.stats
            size = CompletedSize(stats.totals.state_size, stats.chain_length, stats.shared_files)
            self._full.completed(self._now, size, earliest=self._now + self.settings.min_pause_ms)

    def _answer_stop(self) -> None:
        """Answer a stop whose savepoint is complete: the answer depends on whether the tasks finish (SPEC R8.3)."""
        stop = self._stop
        if stop is None or stop.done is None or stop.request.id is None:
            return
        done = stop.done
        finished = all(status is TaskStatus.FINISHED for status in self._tasks.values())
        if finished or self._end_status is EndStatus.FINISHED:
            self._stop = replace(stop, request=replace(stop.request, id=None))  # answered; the job still stops
            self._emit(ev.CompleteRequest(stop.request.id, done))
        elif not self.active:
            self._stop = None
            message = f"savepoint {done.checkpoint_id} was taken, but the job did not finish; it is at {done.pointer}"
            failed = ev.RequestFailed(message, None, done.checkpoint_id, done.pointer)
            self._emit(ev.CompleteRequest(stop.request.id, failed))

    def _warn_if_slow(self, pending: PendingCheckpoint) -> None:
        """Warn once, and again only after a checkpoint was in time."""
        interval, took = self._schedule.interval, self._now - pending.timestamp
        slow, self._slow = self._slow, interval is not None and took > interval
        if interval is None or slow or not self._slow:
            return
        self._emit(
            ev.Warn(
                f"checkpoint {pending.id} took {took} ms, longer than the interval of {interval} ms "
                f"({config.CHECKPOINT_INTERVAL.key}): the next one starts at once, and the job may spend most of its "
                f"time on checkpoints. Choose an interval longer than a checkpoint takes, or set "
                f"{config.CHECKPOINT_MIN_PAUSE.key} so that there is time for records in between"
            )
        )

    # ---- failure ---------------------------------------------------------------------------------------------------

    def _request_failed(
        self, request: TriggerRequest, reason: FailureReason, message: str, checkpoint_id: int | None = None
    ) -> None:
        if request.id is not None:
            self._emit(ev.CompleteRequest(request.id, ev.RequestFailed(message, reason, checkpoint_id)))
        if request.trigger is RequestOrigin.AUTOMATIC:
            self._full.failed(self._now)
        elif request.trigger is RequestOrigin.END_OF_DATA:
            # Its user waits for it, and no records wait for their turn: the pause between checkpoints is not for it.
            self._final_at = self._now + self._final_retry_ms
            self._final_retry_ms = min(2 * self._final_retry_ms, _LONGEST_FINAL_RETRY_MS)
        if request.properties.is_synchronous:
            self._stop = None
            if self.active:
                self._schedule.start(self._now)

    def _abort(
        self,
        pending: PendingCheckpoint,
        reason: FailureReason,
        message: str,
        *,
        task: TaskId | None = None,
    ) -> None:
        """Abort a checkpoint; `task` is the one that reported the failure, if one did."""
        assert reason is not FailureReason.CHECKPOINT_SUBSUMED or not pending.properties.is_savepoint, pending
        # If it is not pending any more, the job stopped running during the claim: its tasks are gone.
        tasks_run = self._pending.pop(pending.id, None) is not None
        if self._triggering == pending.id:
            self._triggering = None
        self._slot_freed = True
        tasks_leave = pending.stage is Stage.RUNNING and not self.active
        self._emit(*self._disposal.abort(pending.id, tasks_leave=tasks_leave))
        if reason is FailureReason.CHECKPOINT_EXPIRED:
            self._expired.append(pending.id)
        self.stats.failed(pending.stats, self._now, reason.name, message)
        self._request_failed(pending.request, reason, message, pending.id)
        if not tasks_run:
            return
        if pending.stage > Stage.PREPARING:
            self._notify_aborted(pending, reason)
        failure = self._failures.failure(
            reason,
            pending.properties,
            pending.id,
            by_task=task is not None,
            drained=pending.properties.drain and pending.stage >= Stage.RUNNING and self.active,
            detail=message,
        )
        if failure is not None:
            self._emit(ev.FailJob(failure, reason, pending.id, task))

    def _notify_aborted(self, pending: PendingCheckpoint, reason: FailureReason) -> None:
        own = (c for c in reversed(self.store.checkpoints) if c.commit_number is not None)
        latest = next(((c.id, c.commit_number) for c in own), (None, None))
        tasks = pending.plan.wait if pending.stage >= Stage.RUNNING else ()
        self._emit(ev.NotifyAborted(pending.id, tasks, reason, *latest))

    def _abort_all(self, reason: FailureReason) -> None:
        """Abort the requests that wait and every checkpoint that can still be aborted."""
        for request in self._decider.clear():
            self._request_failed(request, reason, reason.value)
        for pending in list(self._pending.values()):
            if pending.stage is not Stage.CLAIMING:
                self._abort(pending, reason, reason.value)
            elif not self.active:
                # It may be in the log already, and is then the one to restore from: the answer to the claim decides.
                # Only `claim_under_way` waits for that answer.
                del self._pending[pending.id]

    # ---- files -----------------------------------------------------------------------------------------------------

    def _on_discarded(self, event: ev.Discarded) -> None:
        self._disposal.discarded(event.checkpoint_id)
        self._slot_freed = True

    def _on_shared_released(self, event: ev.SharedReleased) -> None:
        self._emit(*self._disposal.shared_released(event.still_in_use))

    def _in_stage(self, checkpoint_id: int, stage: Stage) -> PendingCheckpoint | None:
        pending = self._pending.get(checkpoint_id)
        return pending if pending is not None and pending.stage is stage else None
