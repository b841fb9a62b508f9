"""Steps 2 to 10 in the life of each checkpoint (SPEC R5). Part of the coordinator, whose docstring lists the steps: pure.

The coordinator says when a checkpoint begins and hands over what tasks and storage report; `requests` gets to know what
became of each request, `disposal` what may be deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from headrace import config
from headrace.checkpoint import events as ev
from headrace.checkpoint.attempt import AttemptTasks
from headrace.checkpoint.decider import Activity, TriggerRequest
from headrace.checkpoint.disposal import Disposal
from headrace.checkpoint.failure_manager import FailureManager
from headrace.checkpoint.pending import PendingCheckpoint, Stage
from headrace.checkpoint.plan import CheckpointPlan, Refusal, TaskId, account_for_finished, plan_checkpoint
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.requests import Requests
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings, EndStatus
from headrace.checkpoint.stats import CheckpointStats, RestoredStats, StatsTracker, SubtaskStats, VertexStats
from headrace.checkpoint.store import CheckpointStore, CompletedCheckpoint
from headrace.checkpoint.turn import Turn
from headrace.checkpoint.types import Barrier, SnapshotType
from headrace.errors import IllegalState

_EXPIRED_REMEMBERED = 16
_STEP_FAILURES = {
    Stage.PREPARING: FailureReason.IO_EXCEPTION,
    Stage.DRIVER_STATE: FailureReason.TRIGGER_CHECKPOINT_FAILURE,
    Stage.WRITING: FailureReason.FINALIZE_CHECKPOINT_FAILURE,
    Stage.CLAIMING: FailureReason.FINALIZE_CHECKPOINT_FAILURE,
}


class CheckpointSteps:
    """The checkpoints that are under way, and the completed ones that they become.

    >>> from random import Random
    >>> settings, tasks, turn = CheckpointSettings(), AttemptTasks(), Turn()
    >>> steps = CheckpointSteps(settings, tasks, Requests(settings, Random(0), None, tasks, turn), turn)
    >>> steps.ids, steps.claim_under_way, steps.store.latest
    ((), False, None)
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        tasks: AttemptTasks,
        requests: Requests,
        turn: Turn,
        *,
        driver_state: bool = False,
        recovered: Sequence[CompletedCheckpoint] = (),
        next_id: int = 1,
    ) -> None:
        self.store = CheckpointStore(settings.num_retained, recovered)
        self.stats = StatsTracker(settings.history_size)
        self._settings, self._tasks, self._requests, self._turn = settings, tasks, requests, turn
        self._driver_state = driver_state
        self._disposal = Disposal(self.store)
        self._failures = FailureManager(settings.tolerable_failures)
        self._next_id = max([next_id, *(checkpoint.id + 1 for checkpoint in recovered)])
        self._pending: dict[int, PendingCheckpoint] = {}
        self._triggering: int | None = None  # in steps 2 to 4
        self._claiming: PendingCheckpoint | None = None  # in step 8
        self._force_full = False
        self._expired: deque[int] = deque(maxlen=_EXPIRED_REMEMBERED)
        self._end_status: EndStatus | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the checkpoints under way."""
        return tuple(self._pending)

    @property
    def claim_under_way(self) -> bool:
        """True while a log entry is being claimed."""
        return self._claiming is not None

    @property
    def activity(self) -> Activity:
        """The work under way that may keep other requests from beginning."""
        return Activity(self._triggering is not None, len(self._pending), self._disposal.cleaning)

    def deadlines(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yield the times at which something is due, each with the action."""
        for pending in self._pending.values():
            if pending.stage <= Stage.WRITING:  # an entry that may be in the log cannot be taken back
                yield pending.deadline, partial(self._expire, pending)
            if pending.announce_at is not None:
                yield pending.announce_at, partial(self._announce, pending)

    # ---- the job ---------------------------------------------------------------------------------------------------

    def import_snapshot(self, event: ev.SnapshotImported) -> None:
        """Start from a snapshot that the user named; ids continue from its id (SPEC R8.4)."""
        if self._tasks.attempt is not None or self.store.checkpoints:
            raise IllegalState(
                "HR-3009", "a snapshot that the user named can only be imported before the job has started"
            )
        imported = CompletedCheckpoint(
            event.checkpoint_id,
            self._turn.now,
            CheckpointProperties.for_restored(event.claim, self._settings.retention),
            event.location,
            event.pointer,
            state_size=event.state_size,
            chain_length=event.chain_length,
            imported=True,
        )
        self.store.add(imported)
        self._next_id = max(self._next_id, event.checkpoint_id + 1)

    def start_attempt(self, restored_id: int | None) -> None:
        """The tasks of the attempt before have left; those of the next one restore this checkpoint."""
        assert not self._pending, self._pending
        if self._claiming is not None:
            raise IllegalState(
                "HR-3009", f"the claim of checkpoint {self._claiming.id} is under way: wait for its answer"
            )
        if restored_id is not None:
            self._disposal.keep(newer.id for newer in self.store.step_back(restored_id))
        self._turn.emit(*self._disposal.tasks_left())
        restored = self.store.latest
        if restored_id is None or restored is None:
            return
        # Files of the user that the job must not depend on: its first own checkpoint writes everything (SPEC R7.6). The
        # savepoint of a stop that did not end is such a case too.
        self._force_full = restored.properties.unclaimed or restored.properties.is_synchronous
        savepoint, size = restored.properties.is_savepoint, restored.state_size
        self.stats.restored(RestoredStats(restored.id, self._turn.now, savepoint, restored.pointer, size))

    def end(self, status: EndStatus) -> None:
        """The job has ended, and no checkpoint is under way but one that is being claimed."""
        self._end_status = status
        if status.is_terminal:  # otherwise another driver may resume the job and write to the same directories
            self._turn.emit(*self._disposal.tasks_left())
        if self._claiming is None:  # otherwise the answer to the claim decides what is kept
            self._close_store(status)

    def _close_store(self, status: EndStatus) -> None:
        discard, retained = self.store.end(status)
        for checkpoint in discard:
            self.stats.discarded(checkpoint.id)
        self._turn.emit(*self._disposal.end(status, discard, retained))

    def stand_down(self) -> list[TriggerRequest]:
        """Another driver runs the job now: touch no file and no task; returns the requests that wait for an answer."""
        waiting = self._pending | ({} if self._claiming is None else {self._claiming.id: self._claiming})
        self._pending.clear()
        self._triggering = self._claiming = None
        return [pending.request for pending in waiting.values()]

    # ---- triggering (steps 2 to 5) ---------------------------------------------------------------------------------

    def begin(self, request: TriggerRequest) -> None:
        """Begin a checkpoint, or fail the request with what is missing."""
        tasks = self._tasks
        plan = plan_checkpoint(tasks.topology, tasks.statuses, after_finish=self._settings.after_tasks_finish)  # 2
        if not isinstance(plan, Refusal) and not tasks.active:
            plan = Refusal("the job is not running")
        if isinstance(plan, Refusal):
            self.stats.failed_before_start()
            self._requests.failed(request, FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, plan.message)
            return
        pending = self._make_pending(request, plan)
        self._pending[pending.id], self._triggering = pending, pending.id
        self._disposal.begin(pending.id, pending.properties.type, tasks.attempt)
        self.stats.pending(pending.stats)
        self._turn.emit(ev.PrepareLocation(pending.id, pending.properties.type, request.target))  # 3

    def _make_pending(self, request: TriggerRequest, plan: CheckpointPlan) -> PendingCheckpoint:
        now, tasks = self._turn.now, self._tasks
        checkpoint_id, self._next_id = self._next_id, self._next_id + 1
        properties, full_reason = request.properties, request.full_reason
        if self._force_full and not properties.is_savepoint:
            properties, full_reason = properties.as_full(), "first checkpoint after a start from files of the user"
        base = self.store.latest
        from_scratch = not self._settings.incremental or properties.type is not SnapshotType.CHECKPOINT
        stats = CheckpointStats(
            checkpoint_id,
            now,
            (properties.type if properties.is_savepoint else SnapshotType.CHECKPOINT).name,
            properties.is_savepoint,
            properties.format.value if properties.format else None,
            request.trigger.value,
            {one.id: VertexStats(one.parallelism, operators=one.operators) for one in tasks.topology.vertices},
            from_scratch,
            full_reason,
            chain_length=1 if base is None or from_scratch else base.chain_length + 1,
            chain_started=now if base is None or from_scratch else self.stats.chain_started(base.id),
        )
        for task in plan.finished:
            stats.report(task, SubtaskStats(now))
        return PendingCheckpoint(
            checkpoint_id,
            request,
            properties,
            plan,
            timestamp=now,
            deadline=now + self._settings.timeout_ms,
            stats=stats,
            attempt=tasks.attempt,
            base=None if base is None or properties.is_savepoint else base.id,
        )

    def on_location(self, event: ev.LocationReady) -> None:
        """The directory is there: take the state on the driver, or trigger at once if there is none."""
        self._turn.emit(*self._disposal.location_ready(event.checkpoint_id, event.location))
        pending = self._in_stage(event.checkpoint_id, Stage.PREPARING)
        if pending is None:
            return
        pending.location = event.location
        pending.advance(Stage.DRIVER_STATE, self._turn.now)
        if self._driver_state:
            self._turn.emit(ev.SnapshotDriverState(pending.id))  # 4
        else:
            self._trigger(pending)

    def on_driver_state(self, event: ev.DriverStateReady) -> None:
        """The state on the driver is taken."""
        pending = self._in_stage(event.checkpoint_id, Stage.DRIVER_STATE)
        if pending is not None:
            pending.driver_states.update(event.states)
            self._trigger(pending)

    def _trigger(self, pending: PendingCheckpoint) -> None:
        options = self._settings.options_for(pending.properties, pending.location or "")
        pending.barrier = Barrier(pending.id, pending.timestamp, options)
        pending.advance(Stage.RUNNING, self._turn.now)
        self._triggering = None
        self._turn.slot_freed = True
        self._turn.emit(ev.TriggerTasks(pending.barrier, pending.plan.trigger))  # 5
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
            self._turn.emit(ev.Announce(pending.barrier.as_unaligned(), others))

    # ---- acknowledgements (step 6) ---------------------------------------------------------------------------------

    def on_acknowledged(self, event: ev.Acknowledged) -> None:
        """A task has written its part."""
        pending = self._pending.get(event.checkpoint_id)
        if event.state is not None and (pending is None or not pending.properties.is_savepoint):
            # Also when it is late: the task may build on these files, and unused ones are deleted when released.
            self._turn.emit(ev.RegisterShared(event.checkpoint_id, event.task, event.state))
        if pending is None:
            self._on_late(event)
            return
        if event.attempt == self._tasks.attempt and event.task in pending.plan.wait:
            if pending.acknowledge(event, self._turn.now):
                self._finalize_if_acknowledged(pending)
        elif event.state is not None:
            self._turn.emit(ev.DiscardFiles(event.checkpoint_id, event.task, event.state))

    def _on_late(self, event: ev.Acknowledged) -> None:
        self.stats.late(event.checkpoint_id, event.task, self._turn.now, event.metrics)
        if event.checkpoint_id in self._expired:
            message = f"task {event.task} acknowledged checkpoint {event.checkpoint_id} after it had expired"
            self._turn.emit(ev.Warn(f"{message}: {config.CHECKPOINT_TIMEOUT.key} may be too short"))
        if event.state is not None:
            self._turn.emit(*self._disposal.late_part(event.checkpoint_id, event.task, event.state))

    def on_declined(self, event: ev.Declined) -> None:
        """A task cannot take part."""
        pending = self._pending.get(event.checkpoint_id)
        if pending is not None and pending.stage <= Stage.RUNNING and event.attempt == self._tasks.attempt:
            reason = event.reason
            if reason is FailureReason.CHECKPOINT_SUBSUMED:  # only the coordinator subsumes
                reason = FailureReason.CHECKPOINT_DECLINED_SUBSUMED
            self._abort(pending, reason, f"task {event.task}: {event.message or reason.value}", task=event.task)

    def task_finished(self, task: TaskId) -> None:
        """Abort what waits for a task that has finished: its acknowledgement would have come before."""
        for pending in list(self._pending.values()):
            if pending.stage <= Stage.RUNNING and task in pending.not_acknowledged:
                message = f"task {task} finished before checkpoint {pending.id} reached it"
                self._abort(pending, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, message)

    def _expire(self, pending: PendingCheckpoint) -> None:
        limit = config.format_value(config.CHECKPOINT_TIMEOUT, self._settings.timeout_ms)
        took = f"checkpoint {pending.id} took longer than {limit} ({config.CHECKPOINT_TIMEOUT.key})"
        self._abort(pending, FailureReason.CHECKPOINT_EXPIRED, f"{took}: {pending.missing}")

    # ---- completion (steps 7 to 10) --------------------------------------------------------------------------------

    def _finalize_if_acknowledged(self, pending: PendingCheckpoint) -> None:
        if pending.stage is not Stage.RUNNING or pending.not_acknowledged:
            return
        vertices = account_for_finished(self._tasks.topology, pending.plan, pending.reports)  # 6
        if isinstance(vertices, Refusal):
            self._abort(pending, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, vertices.message)
            return
        pending.advance(Stage.WRITING, self._turn.now)
        pending.announce_at = None
        self._disposal.write_metadata(pending.id)
        self._turn.emit(ev.WriteMetadata(pending.content(vertices)))  # 7

    def on_metadata(self, event: ev.MetadataWritten) -> None:
        """The metadata are written: a plain savepoint is complete, anything else enters the job log."""
        self._turn.emit(*self._disposal.metadata_written(event.checkpoint_id, event.snapshot))
        pending = self._in_stage(event.checkpoint_id, Stage.WRITING)
        if pending is None:
            return
        pending.metadata = event
        pending.advance(Stage.WRITTEN, self._turn.now)
        if pending.properties.is_plain_savepoint:
            self._complete(pending, None)
        else:
            self._claim_next()

    def on_step_failed(self, event: ev.StepFailed) -> None:
        """Abort the checkpoint; files that its metadata or the log may name are kept."""
        self._turn.emit(*self._disposal.step_failed(event.checkpoint_id, outcome_unknown=event.outcome_unknown))
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
        pending = self._claiming = min(written, key=lambda p: p.id)
        pending.advance(Stage.CLAIMING, self._turn.now)
        # Nothing enters or leaves the store before the answer, so that the log and the store agree.
        numbers = (old.commit_number for old in self.store.subsumed_by(pending.properties))
        self._turn.emit(ev.ClaimLogEntry(pending.id, tuple(number for number in numbers if number is not None)))  # 8

    def on_claimed(self, event: ev.LogEntryClaimed) -> None:
        """The completion is in the job log."""
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
        pending.advance(Stage.COMPLETED, self._turn.now)
        completed = pending.completed(metadata, commit_number, self._turn.now)
        subsumed = None if pending.properties.is_plain_savepoint else self._store(completed)  # 9
        self._disposal.complete(pending.id, savepoint=pending.properties.is_savepoint)
        self._failures.success(pending.id)
        self.stats.completed(pending.stats)
        self._turn.slot_freed = True
        self._requests.done(pending, ev.RequestDone(pending.id, metadata.pointer, commit_number))
        if commit_number is None:
            return
        for older in list(self._pending.values()):  # 10
            if older.id < pending.id and not older.properties.is_savepoint:
                message = f"checkpoint {pending.id} was completed before checkpoint {older.id}"
                self._abort(older, FailureReason.CHECKPOINT_SUBSUMED, message)
        if tasks_run:
            self._turn.emit(ev.NotifyComplete(pending.id, commit_number, pending.plan.wait, subsumed))

    def _store(self, completed: CompletedCheckpoint) -> int | None:
        """Store a checkpoint; returns the newest one that it subsumes, if its files are deleted."""
        subsumed = self.store.add(completed)
        if not completed.properties.is_savepoint:
            self._force_full = False
        for old in subsumed:
            if old.properties.discard_subsumed:
                self.stats.discarded(old.id)
        self._turn.emit(*self._disposal.subsume(subsumed))
        under_way = (pending.base for pending in self._pending.values() if pending.base is not None)
        self._turn.emit(*self._disposal.release(under_way))
        newest = max(subsumed, key=lambda c: c.id, default=None)
        return newest.id if newest is not None and newest.properties.discard_subsumed else None

    # ---- failure ---------------------------------------------------------------------------------------------------

    def _abort(
        self, pending: PendingCheckpoint, reason: FailureReason, message: str, *, task: TaskId | None = None
    ) -> None:
        """Abort a checkpoint; `task` is the one that reported the failure, if one did."""
        assert reason is not FailureReason.CHECKPOINT_SUBSUMED or not pending.properties.is_savepoint, pending
        # If it is not pending any more, the job stopped running during the claim: its tasks are gone.
        tasks_run = self._pending.pop(pending.id, None) is not None
        stage = pending.stage
        pending.advance(Stage.ABORTED, self._turn.now)
        if self._triggering == pending.id:
            self._triggering = None
        self._turn.slot_freed = True
        tasks_leave = stage is Stage.RUNNING and not self._tasks.active
        self._turn.emit(*self._disposal.abort(pending.id, tasks_leave=tasks_leave))
        if reason is FailureReason.CHECKPOINT_EXPIRED:
            self._expired.append(pending.id)
        self.stats.failed(pending.stats, self._turn.now, reason.name, message)
        self._requests.failed(pending.request, reason, message, pending.id)
        if not tasks_run:
            return
        if stage > Stage.PREPARING:
            self._notify_aborted(pending, reason, stage)
        failure = self._failures.failure(
            reason,
            pending.properties,
            pending.id,
            by_task=task is not None,
            drained=pending.properties.drain and stage >= Stage.RUNNING and self._tasks.active,
            detail=message,
        )
        if failure is not None:
            self._turn.emit(ev.FailJob(failure, reason, pending.id, task))

    def _notify_aborted(self, pending: PendingCheckpoint, reason: FailureReason, stage: Stage) -> None:
        own = (c for c in reversed(self.store.checkpoints) if c.commit_number is not None)
        latest = next(((c.id, c.commit_number) for c in own), (None, None))
        tasks = pending.plan.wait if stage >= Stage.RUNNING else ()
        self._turn.emit(ev.NotifyAborted(pending.id, tasks, reason, *latest))

    def abort_all(self, reason: FailureReason) -> None:
        """Abort every checkpoint that can still be aborted."""
        for pending in list(self._pending.values()):
            if pending.stage is not Stage.CLAIMING:
                self._abort(pending, reason, reason.value)
            elif not self._tasks.active:
                # It may be in the log already, and is then the one to restore from: the answer to the claim decides.
                # Only `claim_under_way` waits for that answer.
                del self._pending[pending.id]

    # ---- files -----------------------------------------------------------------------------------------------------

    def on_discarded(self, event: ev.Discarded) -> None:
        """The files of a checkpoint are deleted."""
        self._disposal.discarded(event.checkpoint_id)
        self._turn.slot_freed = True

    def on_shared_released(self, event: ev.SharedReleased) -> None:
        """Unused shared files are deleted."""
        self._turn.emit(*self._disposal.shared_released(event.still_in_use))

    def _in_stage(self, checkpoint_id: int, stage: Stage) -> PendingCheckpoint | None:
        pending = self._pending.get(checkpoint_id)
        return pending if pending is not None and pending.stage is stage else None
