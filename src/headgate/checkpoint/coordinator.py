"""The checkpoint coordinator: decides when checkpoints start, when they are complete and what becomes of them.

A state machine without clock, thread, file or network (SPEC R5). It is told what happened and when; it answers with
instructions for the shell around it, which carries them out in order and reports what came of them:

    instructions = coordinator.handle(event, now)      # now: milliseconds since the epoch, never going back

The life of a checkpoint:

    1 a request is let through by the decider            6 all tasks acknowledge; finished tasks are settled
    2 a plan is made; from here on it has an id          7 the metadata is written
    3 its directory is prepared                          8 its completion is claimed in the job log
    4 the parts on the driver give their state           9 it is stored, older ones are subsumed, the request answered
    5 tasks are triggered                               10 older pending ones are aborted, then tasks are notified

Nothing is notified, committed or deleted because of a checkpoint before step 8 has succeeded: a driver that was replaced
fails there and stands down. A plain savepoint skips steps 8 and 10, it leaves no trace in the job.

Here is step 1 and what decides about it: the job's state, time, and the wishes of users. The rest is in
`coordinator_flow.py`, what goes in and out in `coordinator_events.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from headgate import config
from headgate.checkpoint import events as ev
from headgate.checkpoint.decider import Activity, Decision, RequestDecider, RequestId, Trigger, TriggerRequest
from headgate.checkpoint.flow import CheckpointFlow
from headgate.checkpoint.full_policy import AutomaticFull, CompletedSize
from headgate.checkpoint.pending import Outbox, PendingCheckpoint, PeriodicSchedule
from headgate.checkpoint.plan import TaskId, TaskStatus
from headgate.checkpoint.reasons import FailureReason
from headgate.checkpoint.settings import CheckpointProperties, CheckpointSettings, EndStatus, FullCheckpointPolicy
from headgate.checkpoint.stats import StatsTracker
from headgate.checkpoint.store import CheckpointStore, CompletedCheckpoint
from headgate.checkpoint.types import SnapshotType
from headgate.errors import InvalidArgument

__all__ = ["Coordinator"]

_FINAL_RETRY_MS = 1000

_Handler = Callable[[Any], None]


class _Phase(Enum):
    OPEN = "open"
    ENDED = "ended"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class _Stop:
    """A stop-with-savepoint; `done` once the savepoint is complete and the tasks have to finish."""

    request: TriggerRequest
    done: ev.RequestDone | None = None


class Coordinator:
    """The checkpoints of one job, over all its attempts.

    `driver_state`: whether there are parts on the driver to ask. `next_full`: the first moment after a moment at which
    the schedule wants a full checkpoint. `recovered` and `next_id` are what a job that is resumed finds in its log.

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
        self._outbox = Outbox()
        self._flow = CheckpointFlow(
            settings, self._outbox, self, driver_state=driver_state, recovered=recovered, next_id=next_id
        )
        self._decider = RequestDecider(settings.max_concurrent, settings.min_pause_ms)
        self._schedule = PeriodicSchedule(settings, rng)
        # Without increments every checkpoint is full, and there is no chain to cut.
        policy = settings.full if settings.incremental else FullCheckpointPolicy()
        self._full = AutomaticFull(policy, next_full if settings.incremental else None)
        self._phase = _Phase.OPEN
        self._end_status: EndStatus | None = None
        self._job_running = False
        self._active = False  # the job runs, and so does every task that has not finished
        self._at_end: set[TaskId] = set()  # tasks that have reached the end of their data
        self._final_at: int | None = None  # when the final checkpoint of a bounded job is due
        self._held = False
        self._stop: _Stop | None = None
        self._slow = False
        self._armed: int | None = None
        self._handlers = self._make_handlers()

    # ---- what others see -------------------------------------------------------------------------------------------

    @property
    def store(self) -> CheckpointStore:
        """The completed checkpoints that are kept; the latest is the one to restore from."""
        return self._flow.store

    @property
    def stats(self) -> StatsTracker:
        """What is remembered of all checkpoints."""
        return self._flow.stats

    @property
    def pending(self) -> tuple[int, ...]:
        """The ids of the checkpoints under way."""
        return tuple(self._flow.pending)

    @property
    def queued(self) -> int:
        """The number of requests that wait."""
        return len(self._decider)

    @property
    def settled(self) -> bool:
        """Whether no claim of a log entry is under way. Choose what to restore from only then: a claim may succeed."""
        return self._flow.claiming is None

    def handle(self, event: ev.Event, now: int) -> list[ev.Instruction]:
        """Take one event in; gives what is to be done, in order."""
        self._outbox.open(now, _describe(event))
        if isinstance(event, ev.TimePassed):
            self._armed = None  # the alarm is spent
        else:
            self._handlers[type(event)](event)
        self._fire_due()
        if self._flow.slot_freed:
            self._flow.slot_freed = False
            self._follow(self._decider.next(self._outbox.now, self._load()))
        self._arm()
        return self._outbox.close()

    def _make_handlers(self) -> dict[type[Any], _Handler]:
        """Which method takes which event; what comes too late for its phase is ignored."""
        flow = self._flow
        while_open: dict[type[Any], _Handler] = {
            ev.SnapshotImported: flow.import_snapshot,
            ev.AttemptStarted: self._on_attempt,
            ev.JobStatusChanged: self._on_job_status,
            ev.JobEnded: self._on_job_ended,
            ev.TaskStatusChanged: self._on_task_status,
            ev.EndOfData: self._on_end_of_data,
            ev.BacklogChanged: self._on_backlog,
            ev.HoldChanged: self._on_hold,
            ev.Acknowledged: flow.on_acknowledged,
            ev.Declined: flow.on_declined,
            ev.TriggerFailed: flow.on_trigger_failed,
            ev.DriverStateReady: flow.on_driver_state,
            ev.DriverStateFailed: flow.on_driver_state_failed,
        }
        until_superseded: dict[type[Any], _Handler] = {
            ev.LocationReady: flow.on_location,
            ev.LocationFailed: flow.on_location_failed,
            ev.MetadataWritten: flow.on_metadata,
            ev.MetadataFailed: flow.on_metadata_failed,
            ev.LogEntryClaimed: flow.on_claimed,
            ev.LogEntryFailed: flow.on_claim_failed,
            ev.Superseded: self._on_superseded,
            ev.Discarded: flow.on_discarded,
            ev.SharedReleased: flow.on_shared_released,
        }
        always: dict[type[Any], _Handler] = {
            ev.CheckpointRequested: self._on_checkpoint_requested,
            ev.SavepointRequested: self._on_savepoint_requested,
            ev.StopRequested: self._on_stop_requested,
        }
        early, late = {_Phase.OPEN}, {_Phase.OPEN, _Phase.ENDED}
        guarded = {kind: partial(self._guarded, early, handler) for kind, handler in while_open.items()}
        guarded |= {kind: partial(self._guarded, late, handler) for kind, handler in until_superseded.items()}
        return {**guarded, **always}

    def _guarded(self, phases: set[_Phase], handler: _Handler, event: ev.Event) -> None:
        if self._phase in phases:
            handler(event)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _deadlines(self) -> Iterator[tuple[int, Callable[[], None]]]:
        for at, action, pending in self._flow.deadlines():
            yield at, partial(action, pending)
        if self._schedule.next_at is not None:
            yield self._schedule.next_at, self._fire_periodic
        if not self._active or self._stop is not None:
            return
        if self._final_at is not None:
            yield self._final_at, self._fire_final
        if self._full.due_at is not None:
            yield self._full.due_at, self._fire_full

    def _fire_due(self) -> None:
        while True:
            due = [deadline for deadline in self._deadlines() if deadline[0] <= self._outbox.now]
            if not due:
                return
            _, action = min(due, key=lambda deadline: deadline[0])
            action()

    def _arm(self) -> None:
        earliest = min((at for at, _ in self._deadlines()), default=None)
        if earliest is not None and earliest != self._armed:
            self._outbox.emit(ev.ScheduleAt(earliest))
        self._armed = earliest

    def _fire_periodic(self) -> None:
        self._schedule.fire()
        self._submit(TriggerRequest(self._checkpoint_properties(), Trigger.PERIODIC, self._outbox.now))

    def _fire_full(self) -> None:
        properties = self._checkpoint_properties(SnapshotType.FULL_CHECKPOINT)
        reason = self._full.take(self._outbox.now)
        self._submit(TriggerRequest(properties, Trigger.AUTOMATIC, self._outbox.now, full_reason=reason))

    def _fire_final(self) -> None:
        self._final_at = None
        self._submit(TriggerRequest(self._checkpoint_properties(), Trigger.END_OF_DATA, self._outbox.now))

    # ---- the job ---------------------------------------------------------------------------------------------------

    def _on_attempt(self, event: ev.AttemptStarted) -> None:
        self._job_running = False
        self._update_active()
        self._stop = None  # it was answered
        self._at_end.clear()
        self._final_at = None
        self._schedule.clear_backlog()
        self._flow.start_attempt(event)

    def _on_job_status(self, event: ev.JobStatusChanged) -> None:
        self._job_running = event.running
        self._update_active()

    def _on_task_status(self, event: ev.TaskStatusChanged) -> None:
        if event.attempt != self._flow.attempt or event.task not in self._flow.tasks:
            return
        self._flow.tasks[event.task] = event.status
        if event.status is TaskStatus.FINISHED:
            self._flow.on_task_finished(event.task)
        self._update_active()
        self._answer_stop()

    def _on_end_of_data(self, event: ev.EndOfData) -> None:
        if event.attempt != self._flow.attempt:
            return
        tasks, now = self._flow.tasks, self._outbox.now
        self._at_end.add(event.task)
        over = self._at_end | {task for task, status in tasks.items() if status is TaskStatus.FINISHED}
        for vertex in self._flow.topology.vertices:
            if vertex.id == event.task.vertex and over.issuperset(vertex.tasks()):
                for operator in vertex.operators:
                    self._schedule.backlog(operator, now, processing=False)
        # A bounded job commits its last output with a final checkpoint, which need not wait for the interval.
        periodic = self.settings.interval_ms is not None
        if periodic and self.settings.after_tasks_finish and over.issuperset(tasks):
            self._final_at = now

    def _on_backlog(self, event: ev.BacklogChanged) -> None:
        self._schedule.backlog(event.operator, self._outbox.now, processing=event.backlog)

    def _on_hold(self, event: ev.HoldChanged) -> None:
        self._held = event.held
        self._flow.slot_freed = True

    def _update_active(self) -> None:
        """Start or stop triggering: it goes on only while the job and all its tasks run, or have finished."""
        statuses = self._flow.tasks.values()
        going = {TaskStatus.RUNNING, TaskStatus.FINISHED}.issuperset(statuses)
        active = self._job_running and bool(statuses) and going
        if active == self._active:
            return
        self._active = active
        if active:
            if self._stop is None:
                self._schedule.start(self._outbox.now)
            self._full.start(self._outbox.now)
        else:
            self._schedule.stop()
            self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)
            self._answer_stop()

    def _abort_all(self, reason: FailureReason) -> None:
        for request in self._decider.clear():
            self.on_request_failed(request, reason, reason.text, None)
        self._flow.abort_all(reason, job_runs=self._active)

    def _on_job_ended(self, event: ev.JobEnded) -> None:
        self._phase, self._end_status = _Phase.ENDED, event.status
        self._active = self._job_running = False
        self._schedule.stop()
        self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        self._answer_stop()
        self._flow.end(event.status)

    def _on_superseded(self, event: ev.Superseded) -> None:
        """Another driver goes on with the job. No file, no task: only those who wait for an answer here get one."""
        self._phase = _Phase.SUPERSEDED
        self._active = self._job_running = False
        self._schedule.stop()
        unanswered = [*self._flow.stand_down(), *self._decider.clear()]
        if self._stop is not None and self._stop.done is not None:
            unanswered.append(self._stop.request)
        result = ev.RequestFailed(event.message, FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        for request in unanswered:
            if request.id is not None:
                self._outbox.emit(ev.CompleteRequest(request.id, result))
        self._stop = None
        self._outbox.emit(ev.StandDown(event.message))

    # ---- wishes (step 1) -------------------------------------------------------------------------------------------

    def _on_checkpoint_requested(self, event: ev.CheckpointRequested) -> None:
        if not isinstance(event.kind, ev.CheckpointKind):
            raise InvalidArgument(f"the kind of a checkpoint must be CONFIGURED, FULL or INCREMENTAL, got {event.kind}")
        if self._refused(event.request_id):
            return
        full = event.kind is ev.CheckpointKind.FULL
        properties = self._checkpoint_properties(SnapshotType.FULL_CHECKPOINT if full else SnapshotType.CHECKPOINT)
        reason = "requested" if full else None
        self._submit(TriggerRequest(properties, Trigger.USER, self._outbox.now, event.request_id, full_reason=reason))

    def _on_savepoint_requested(self, event: ev.SavepointRequested) -> None:
        target = self._target(event.request_id, event.target)
        if target is not None:
            properties = CheckpointProperties.for_savepoint(not self.settings.unaligned, event.format)
            self._submit(TriggerRequest(properties, Trigger.USER, self._outbox.now, event.request_id, target))

    def _on_stop_requested(self, event: ev.StopRequested) -> None:
        target = self._target(event.request_id, event.target)
        if target is None:
            return
        # No other checkpoint may come between the savepoint and the end of the job.
        self._schedule.stop()
        self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)
        properties = CheckpointProperties.for_stop(not self.settings.unaligned, event.drain, event.format)
        request = TriggerRequest(properties, Trigger.USER, self._outbox.now, event.request_id, target)
        self._stop = _Stop(request)
        self._submit(request)

    def _target(self, request_id: RequestId, target: str | None) -> str | None:
        if self._refused(request_id):
            return None
        target = target or self.settings.savepoint_dir
        if target is None:
            message = f"no directory for the savepoint: name one, or set {config.SAVEPOINT_DIR.key}"
            self._outbox.emit(ev.CompleteRequest(request_id, ev.RequestFailed(message)))
        return target

    def _refused(self, request_id: RequestId) -> bool:
        """Whether a request comes too late for any snapshot; if so, it is answered."""
        if self._phase is not _Phase.OPEN:
            reason, message = FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "the job has ended"
        elif self._stop is not None:
            reason, message = FailureReason.CHECKPOINT_COORDINATOR_SUSPEND, "the job is being stopped with a savepoint"
        else:
            return False
        self._outbox.emit(ev.CompleteRequest(request_id, ev.RequestFailed(message, reason)))
        return True

    def _checkpoint_properties(self, type: SnapshotType = SnapshotType.CHECKPOINT) -> CheckpointProperties:
        return CheckpointProperties.for_checkpoint(self.settings.retention, type)

    def _load(self) -> Activity:
        return Activity(
            triggering=self._flow.triggering is not None,
            pending=len(self._flow.pending),
            cleaning=len(self._flow.cleaning),
            held=self._held,
            last_completion=self._flow.last_completion,
        )

    def _submit(self, request: TriggerRequest) -> None:
        if not self._active:
            self._flow.begin(request, job_runs=False)  # which says what is missing; there is nothing to wait for
            return
        self._follow(self._decider.submit(request, self._outbox.now, self._load()))

    def _follow(self, decision: Decision) -> None:
        while True:
            for request, reason in decision.dropped:
                self.on_request_failed(request, reason, reason.text, None)
            if decision.reschedule_at is not None:
                self._schedule.ask_again(decision.reschedule_at)
            if decision.start is None:
                return
            self._flow.begin(decision.start, job_runs=self._active)
            decision = self._decider.next(self._outbox.now, self._load())  # another one, if this could not begin

    # ---- answers (step 9) ------------------------------------------------------------------------------------------

    def on_request_failed(
        self, request: TriggerRequest, reason: FailureReason, message: str, checkpoint_id: int | None
    ) -> None:
        """A wish was not fulfilled."""
        now = self._outbox.now
        if request.id is not None:
            self._outbox.emit(ev.CompleteRequest(request.id, ev.RequestFailed(message, reason, checkpoint_id)))
        if request.trigger is Trigger.AUTOMATIC:
            self._full.failed(now)
        elif request.trigger is Trigger.END_OF_DATA:
            self._final_at = now + max(self.settings.min_pause_ms, _FINAL_RETRY_MS)
        if request.properties.is_synchronous:
            self._stop = None
            if self._active:
                self._schedule.start(now)

    def on_completed(self, pending: PendingCheckpoint, done: ev.RequestDone) -> None:
        """A wish was fulfilled."""
        request = pending.request
        if request.properties.is_synchronous:
            self._stop = _Stop(request, done)
            self._answer_stop()
        elif request.id is not None:
            self._outbox.emit(ev.CompleteRequest(request.id, done))
        if pending.properties.is_savepoint:
            return
        self._warn_if_slow(pending)
        now = self._outbox.now
        if pending.properties.type is SnapshotType.FULL_CHECKPOINT:
            self._full.completed_full(now, requested_here=request.trigger is Trigger.AUTOMATIC)
        else:
            figures = CompletedSize(pending.stats.state_size, pending.chain_length, pending.shared_files)
            self._full.completed(now, figures, earliest=now + self.settings.min_pause_ms)

    def _answer_stop(self) -> None:
        """The savepoint to stop with is complete: the answer depends on whether the tasks finish (SPEC R8.3)."""
        stop = self._stop
        if stop is None or stop.done is None or stop.request.id is None:
            return
        done = stop.done
        finished = all(status is TaskStatus.FINISHED for status in self._flow.tasks.values())
        if finished or self._end_status is EndStatus.FINISHED:
            self._stop = replace(stop, request=replace(stop.request, id=None))  # answered; the job still stops
            self._outbox.emit(ev.CompleteRequest(stop.request.id, done))
        elif not self._active:
            self._stop = None
            message = f"savepoint {done.checkpoint_id} was taken, but the job did not finish; it is at {done.pointer}"
            failed = ev.RequestFailed(message, None, done.checkpoint_id, done.pointer)
            self._outbox.emit(ev.CompleteRequest(stop.request.id, failed))

    def _warn_if_slow(self, pending: PendingCheckpoint) -> None:
        """Say it once, and again only after a checkpoint was in time."""
        interval, took = self._schedule.interval, self._outbox.now - pending.timestamp
        slow, self._slow = self._slow, interval is not None and took > interval
        if interval is None or slow or not self._slow:
            return
        self._outbox.emit(
            ev.Warn(
                f"checkpoint {pending.id} took {took} ms, longer than the interval of {interval} ms "
                f"({config.CHECKPOINT_INTERVAL.key}): the next one starts at once, and the job may spend most of its "
                f"time on checkpoints. Choose an interval longer than a checkpoint takes, or set "
                f"{config.CHECKPOINT_MIN_PAUSE.key} so that there is time for records in between"
            )
        )


def _describe(event: ev.Event) -> str:
    """An event in a few words, for the instructions that it leads to.

    >>> _describe(ev.LocationReady(3, "file:/tmp/chk-3"))
    'LocationReady(checkpoint_id=3)'
    """
    names = ("checkpoint_id", "task", "request_id", "status", "attempt", "reason", "running", "operator")
    named = ((name, getattr(event, name, None)) for name in names)
    shown = (f"{name}={getattr(value, 'name', value)}" for name, value in named if value is not None)
    return f"{type(event).__name__}({', '.join(shown)})"
