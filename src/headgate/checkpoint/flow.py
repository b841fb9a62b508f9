"""The way of a checkpoint from its plan to its end: steps 2 to 10 of `coordinator.py`.

`Coordinator` says when one begins and for whom; here is what then happens to it, and to the older ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from headgate import config
from headgate.checkpoint import events as ev
from headgate.checkpoint.decider import TriggerRequest
from headgate.checkpoint.failure_manager import FailureManager
from headgate.checkpoint.pending import AckResult, Outbox, Owner, PendingCheckpoint, Stage
from headgate.checkpoint.plan import (
    CheckpointPlan,
    NotAllRunning,
    TaskId,
    TaskStatus,
    Topology,
    UnionStateRefused,
    make_plan,
    settle_finished,
)
from headgate.checkpoint.reasons import FailureReason
from headgate.checkpoint.settings import CheckpointProperties, CheckpointSettings, EndStatus
from headgate.checkpoint.stats import (
    CheckpointStats,
    RestoredStats,
    StatsTracker,
    SubtaskMetrics,
    SubtaskStats,
    VertexStats,
)
from headgate.checkpoint.store import CheckpointStore, CompletedCheckpoint
from headgate.checkpoint.types import Barrier, SnapshotType, options_for
from headgate.errors import IllegalState

__all__ = ["CheckpointFlow"]

_EXPIRED_REMEMBERED = 16
_NAMED = 5  # tasks that a message names


class CheckpointFlow:
    """The checkpoints under way, and those that are kept."""

    def __init__(
        self,
        settings: CheckpointSettings,
        outbox: Outbox,
        owner: Owner,
        *,
        driver_state: bool,
        recovered: Sequence[CompletedCheckpoint],
        next_id: int,
    ) -> None:
        self._settings, self._outbox, self._owner = settings, outbox, owner
        self._driver_state = driver_state
        self._failures = FailureManager(settings.tolerable_failures)
        self.stats = StatsTracker(settings.history_size)
        self.store = CheckpointStore(settings.num_retained, recovered)
        self.attempt: int | None = None
        self.topology = Topology(())
        self.tasks: dict[TaskId, TaskStatus] = {}
        self.pending: dict[int, PendingCheckpoint] = {}
        self.triggering: int | None = None  # in step 2 to 4
        self.claiming: PendingCheckpoint | None = None  # in step 8
        self.cleaning: set[int] = set()
        self.last_completion: int | None = None
        self.slot_freed = False  # requests that wait may have a chance now
        self._end_status: EndStatus | None = None
        self._next_id = max([next_id, *(checkpoint.id + 1 for checkpoint in recovered)])
        self._force_full = False
        self._late_locations: dict[int, PendingCheckpoint] = {}  # aborted while the directory was being made
        self._late_writes: dict[int, PendingCheckpoint] = {}  # aborted while the metadata was being written
        self._kept: set[int] = set()  # not ours to delete any more: savepoints above all
        self._folders: dict[int, CompletedCheckpoint] = {}  # imported and subsumed, perhaps with files still in use
        self._released: int | None = None
        self._expired: deque[int] = deque(maxlen=_EXPIRED_REMEMBERED)

    # ---- before and after ------------------------------------------------------------------------------------------

    def import_snapshot(self, event: ev.SnapshotImported) -> None:
        """The job starts from a snapshot of somebody else; its ids go on from there (SPEC R8.4)."""
        if self.attempt is not None or self.store.checkpoints:
            raise IllegalState("a job starts from a snapshot of the user before anything else, or not at all")
        imported = CompletedCheckpoint(
            event.checkpoint_id,
            self._outbox.now,
            CheckpointProperties.for_restored(event.claim, self._settings.retention),
            event.location,
            event.pointer,
            state_size=event.state_size,
            chain_length=event.chain_length,
            imported=True,
        )
        self.store.add(imported)
        self._next_id = max(self._next_id, event.checkpoint_id + 1)

    def start_attempt(self, event: ev.AttemptStarted) -> None:
        """The job starts, from a checkpoint or from nothing; nothing is pending."""
        assert not self.pending, self.pending
        if self.claiming is not None:
            raise IllegalState(f"the claim of checkpoint {self.claiming.id} is not answered: wait until it is settled")
        forgotten = [] if event.restored is None else self.store.step_back(event.restored)
        self.attempt, self.topology = event.attempt, event.topology
        self.tasks = dict.fromkeys(event.topology.tasks(), TaskStatus.STARTING)
        if event.restored is None:
            return
        self._kept |= {newer.id for newer in forgotten}
        restored = self.store.latest
        assert restored is not None
        # Files of the user that the job must not depend on: its first own checkpoint writes everything (SPEC R7.6). The
        # savepoint of a stop that did not end is such a case too.
        self._force_full = restored.properties.unclaimed or restored.properties.is_synchronous
        savepoint = restored.properties.is_savepoint
        self.stats.restored(
            RestoredStats(restored.id, self._outbox.now, savepoint, restored.pointer, restored.state_size)
        )

    def end(self, status: EndStatus) -> None:
        """The job has ended, and nothing is pending; what is kept is decided when the last claim is answered."""
        self._end_status = status
        if self.claiming is None:
            self._close_store(status)

    def _close_store(self, status: EndStatus) -> None:
        decision = self.store.end(status)
        self._kept |= {checkpoint.id for checkpoint in decision.retained}
        for checkpoint in decision.discard:
            self._discard_completed(checkpoint)
        if decision.release_shared:
            self._outbox.emit(ev.ReleaseShared(decision.lowest_retained))

    def stand_down(self) -> list[TriggerRequest]:
        """A newer driver has taken over: forget everything, touch nothing; gives the requests without an answer."""
        waiting = list(self.pending.values())
        if self.claiming is not None and self.claiming.id not in self.pending:
            waiting.append(self.claiming)
        self.pending.clear()
        self.triggering = self.claiming = None
        return [pending.request for pending in waiting]

    def deadlines(self) -> Iterator[tuple[int, Callable[[PendingCheckpoint], None], PendingCheckpoint]]:
        """When something must happen to a checkpoint if nothing else does."""
        for pending in self.pending.values():
            if pending.can_expire:
                yield pending.deadline, self._expire, pending
            if pending.announce_at is not None:
                yield pending.announce_at, self._announce, pending

    # ---- triggering ------------------------------------------------------------------------------------------------

    def begin(self, request: TriggerRequest, *, job_runs: bool) -> None:
        """Steps 2 and 3."""
        plan = make_plan(self.topology, self.tasks, after_finish=self._settings.after_tasks_finish)
        if not isinstance(plan, NotAllRunning) and not job_runs:
            plan = NotAllRunning("the job is not running")
        if isinstance(plan, NotAllRunning):
            self.stats.failed_before_start()
            reason = FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
            self._owner.on_request_failed(request, reason, plan.message, None)
            return
        checkpoint_id, self._next_id = self._next_id, self._next_id + 1
        properties, full_reason = request.properties, request.full_reason
        if self._force_full and not properties.is_savepoint:
            properties, full_reason = properties.as_full(), "first checkpoint after a start from files of the user"
        base = self.store.latest
        from_scratch = not self._settings.incremental or properties.type is not SnapshotType.CHECKPOINT
        stats = self._new_stats(checkpoint_id, request, properties, plan)
        stats.full, stats.full_reason = from_scratch, full_reason
        self.pending[checkpoint_id] = PendingCheckpoint(
            checkpoint_id,
            request,
            properties,
            plan,
            timestamp=self._outbox.now,
            deadline=self._outbox.now + self._settings.timeout_ms,
            stats=stats,
            attempt=self.attempt,
            base=None if base is None or properties.is_savepoint else base.id,
            chain_length=1 if base is None or from_scratch else base.chain_length + 1,
        )
        self.triggering = checkpoint_id
        self.stats.pending(stats)
        self._outbox.emit(ev.PrepareLocation(checkpoint_id, properties.type, request.target))

    def _new_stats(
        self, checkpoint_id: int, request: TriggerRequest, properties: CheckpointProperties, plan: CheckpointPlan
    ) -> CheckpointStats:
        stats = CheckpointStats(
            checkpoint_id,
            self._outbox.now,
            (properties.type if properties.is_savepoint else SnapshotType.CHECKPOINT).value,
            properties.is_savepoint,
            properties.format.value if properties.format else None,
            request.trigger.value,
            {vertex.id: VertexStats(vertex.id, vertex.parallelism) for vertex in self.topology.vertices},
        )
        for task in plan.finished:
            stats.report(task, SubtaskStats(task.subtask, self._outbox.now, SubtaskMetrics()))
        return stats

    def on_location(self, event: ev.LocationReady) -> None:
        """Step 4, or 5 if there are no parts on the driver."""
        late = self._late_locations.pop(event.checkpoint_id, None)
        if late is not None:
            late.location = event.location
            self._discard_aborted(late)
        pending = self._in_stage(event.checkpoint_id, Stage.PREPARING)
        if pending is None:
            return
        pending.location = event.location
        pending.stage = Stage.DRIVER_STATE
        if self._driver_state:
            self._outbox.emit(ev.SnapshotDriverState(pending.id))
        else:
            self._trigger(pending)

    def on_location_failed(self, event: ev.LocationFailed) -> None:
        """Step 3 failed."""
        pending = self._in_stage(event.checkpoint_id, Stage.PREPARING)
        if pending is not None:
            self.abort(pending, FailureReason.IO_EXCEPTION, event.message)
        self._late_locations.pop(event.checkpoint_id, None)

    def on_driver_state(self, event: ev.DriverStateReady) -> None:
        """Step 5."""
        pending = self._in_stage(event.checkpoint_id, Stage.DRIVER_STATE)
        if pending is not None:
            pending.driver_states.update(event.states)
            self._trigger(pending)

    def on_driver_state_failed(self, event: ev.DriverStateFailed) -> None:
        """Step 4 failed."""
        pending = self._in_stage(event.checkpoint_id, Stage.DRIVER_STATE)
        if pending is not None:
            self.abort(pending, FailureReason.TRIGGER_CHECKPOINT_FAILURE, event.message)

    def _trigger(self, pending: PendingCheckpoint) -> None:
        settings, properties = self._settings, pending.properties
        options = options_for(
            properties.type,
            exactly_once=settings.exactly_once,
            unaligned=settings.unaligned,
            aligned_timeout_ms=settings.aligned_timeout_ms,
            location=pending.location or "",
            format=properties.format,
            drain=properties.drain,
        )
        pending.barrier = Barrier(pending.id, pending.timestamp, options)
        pending.stage = Stage.RUNNING
        self.triggering = None
        self.slot_freed = True
        self._outbox.emit(ev.TriggerTasks(pending.barrier, pending.plan.trigger))
        pending.announce_at = pending.barrier.deadline
        if options.unaligned:
            self._announce(pending)
        self._finalize_if_acknowledged(pending)

    def on_trigger_failed(self, event: ev.TriggerFailed) -> None:
        """Step 5 failed."""
        pending = self._in_stage(event.checkpoint_id, Stage.RUNNING)
        if pending is not None:
            self.abort(pending, FailureReason.TRIGGER_CHECKPOINT_FAILURE, event.message)

    def _announce(self, pending: PendingCheckpoint) -> None:
        """A barrier cannot overtake rows inside Spark: what is in a hurry is said on the control plane (SPEC R6.5)."""
        pending.announce_at = None
        assert pending.barrier is not None
        told = set(pending.plan.trigger)
        others = tuple(task for task in pending.waiting_for if task not in told)
        if others:
            self._outbox.emit(ev.Announce(pending.barrier.as_unaligned(), others))

    # ---- acknowledgements ------------------------------------------------------------------------------------------

    def on_acknowledged(self, event: ev.Acknowledged) -> None:
        """Step 6, or a part that comes too late."""
        pending = self.pending.get(event.checkpoint_id)
        if event.state is not None and (pending is None or not pending.properties.is_savepoint):
            # Also when it is late: the task may build on these files, and unused ones go when they are released.
            self._outbox.emit(ev.RegisterShared(event.checkpoint_id, event.task, event.state))
        if pending is None:
            self._on_late(event)
            return
        known = event.attempt == self.attempt
        result = pending.acknowledge(event, self._outbox.now) if known else AckResult.UNKNOWN
        if result is AckResult.SUCCESS:
            self._finalize_if_acknowledged(pending)
        elif result is AckResult.UNKNOWN and event.state is not None:
            self._outbox.emit(ev.DiscardFiles(event.checkpoint_id, event.task, event.state))

    def _on_late(self, event: ev.Acknowledged) -> None:
        self.stats.late(event.checkpoint_id, event.task, self._outbox.now, event.metrics)
        if event.checkpoint_id in self._expired:
            message = f"task {event.task} acknowledged checkpoint {event.checkpoint_id} after it had expired"
            self._outbox.emit(ev.Warn(f"{message}: {config.CHECKPOINT_TIMEOUT.key} may be too short"))
        if event.state is not None and not self._is_protected(event.checkpoint_id):
            self._outbox.emit(ev.DiscardFiles(event.checkpoint_id, event.task, event.state))

    def on_declined(self, event: ev.Declined) -> None:
        """A task cannot take part."""
        pending = self.pending.get(event.checkpoint_id)
        if pending is not None and pending.stage <= Stage.RUNNING and event.attempt == self.attempt:
            reason = event.reason
            if reason is FailureReason.CHECKPOINT_SUBSUMED:  # that is for us to say
                reason = FailureReason.CHECKPOINT_DECLINED_SUBSUMED
            self.abort(pending, reason, f"task {event.task}: {event.message or reason.text}", task=event.task)

    def on_task_finished(self, task: TaskId) -> None:
        """A task has ended. Its acknowledgement would have come before: what still waits for it waits in vain."""
        for pending in list(self.pending.values()):
            if pending.stage <= Stage.RUNNING and task in pending.waiting_for:
                message = f"task {task} finished before checkpoint {pending.id} reached it"
                self.abort(pending, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, message)

    def _expire(self, pending: PendingCheckpoint) -> None:
        waiting = pending.waiting_for
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        missing = ", ".join(map(str, waiting[:_NAMED])) + more
        what = f"not acknowledged by {missing}" if waiting else "acknowledged by all, but its metadata is not written"
        limit = config.format_value(config.CHECKPOINT_TIMEOUT, self._settings.timeout_ms)
        message = f"checkpoint {pending.id} took longer than {limit} ({config.CHECKPOINT_TIMEOUT.key}): {what}"
        self.abort(pending, FailureReason.CHECKPOINT_EXPIRED, message)

    # ---- completion ------------------------------------------------------------------------------------------------

    def _finalize_if_acknowledged(self, pending: PendingCheckpoint) -> None:
        if pending.stage is not Stage.RUNNING or pending.waiting_for:
            return
        vertices = settle_finished(self.topology, pending.plan, pending.reports)
        if isinstance(vertices, UnionStateRefused):
            self.abort(pending, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, vertices.message)
            return
        pending.stage, pending.announce_at = Stage.WRITING, None  # 7
        content = ev.Content(
            pending.id,
            pending.timestamp,
            pending.properties.type,
            pending.properties,
            pending.location or "",
            dict(pending.states),
            dict(pending.driver_states),
            vertices,
            pending.chain_length,
        )
        self._outbox.emit(ev.WriteMetadata(content))

    def on_metadata(self, event: ev.MetadataWritten) -> None:
        """Step 8; a plain savepoint is complete."""
        late = self._late_writes.pop(event.checkpoint_id, None)
        if late is not None:
            late.metadata = event
            self._discard_aborted(late)
        pending = self._in_stage(event.checkpoint_id, Stage.WRITING)
        if pending is None:
            return
        pending.metadata = event
        pending.stage = Stage.WRITTEN
        if pending.properties.is_plain_savepoint:
            self._complete(pending, None)
        else:
            self._claim_next()

    def on_metadata_failed(self, event: ev.MetadataFailed) -> None:
        """Step 7 failed."""
        late = self._late_writes.pop(event.checkpoint_id, None)
        if late is not None:
            self._discard_aborted(late)
        pending = self._in_stage(event.checkpoint_id, Stage.WRITING)
        if pending is not None:
            pending.stage = Stage.WRITTEN  # the write is over: nothing to wait for before the files are deleted
            self.abort(pending, FailureReason.FINALIZE_CHECKPOINT_FAILURE, event.message)

    def _claim_next(self) -> None:
        """One claim at a time, oldest first, so that commit numbers grow with the ids."""
        written = [pending for pending in self.pending.values() if pending.stage is Stage.WRITTEN]
        if self.claiming is not None or not written:
            return
        pending = min(written, key=lambda p: p.id)
        metadata, properties = pending.metadata, pending.properties
        assert metadata is not None
        pending.stage, self.claiming = Stage.CLAIMING, pending
        # Nothing enters or leaves the store before the answer, so that the log and the store agree.
        numbers = (old.commit_number for old in self.store.subsumed_by(properties))
        subsumed = tuple(number for number in numbers if number is not None)
        self._outbox.emit(ev.ClaimLogEntry(pending.id, metadata.pointer, properties.type, subsumed, metadata.snapshot))

    def on_claimed(self, event: ev.LogEntryClaimed) -> None:
        """Step 9."""
        pending = self._end_claim(event.checkpoint_id)
        if pending is not None:
            self._complete(pending, event.commit_number)
            self._after_claim()

    def on_claim_failed(self, event: ev.LogEntryFailed) -> None:
        """Step 8 failed; files that the log may name are kept."""
        pending = self._end_claim(event.checkpoint_id)
        if pending is not None:
            reason = FailureReason.FINALIZE_CHECKPOINT_FAILURE
            self.abort(pending, reason, event.message, keep_files=event.outcome_unknown)
            self._after_claim()

    def _end_claim(self, checkpoint_id: int) -> PendingCheckpoint | None:
        pending = self.claiming
        if pending is None or pending.id != checkpoint_id:
            return None
        self.claiming = None
        return pending

    def _after_claim(self) -> None:
        if self._end_status is not None:
            self._close_store(self._end_status)
        else:
            self._claim_next()

    def _complete(self, pending: PendingCheckpoint, commit_number: int | None) -> None:
        metadata, now = pending.metadata, self._outbox.now
        assert metadata is not None
        # Not there any more: the job stopped running during the claim. It is complete, but nobody is left to be told.
        tasks_run = self.pending.pop(pending.id, None) is not None
        stats = pending.stats
        stats.external_path, stats.commit_number, stats.completed_timestamp = metadata.pointer, commit_number, now
        stats.metadata_size, stats.metadata_objects = metadata.size, metadata.objects
        subsumed = None if pending.properties.is_plain_savepoint else self._store(pending, metadata, commit_number)
        if pending.properties.is_savepoint:
            self._kept.add(pending.id)
        self._failures.success(pending.id)
        self.stats.completed(stats)
        self.last_completion = now
        self.slot_freed = True
        self._owner.on_completed(pending, ev.RequestDone(pending.id, metadata.pointer, commit_number))
        if commit_number is None:
            return
        for older in list(self.pending.values()):  # 10
            if older.id < pending.id and older.can_be_subsumed:
                message = f"checkpoint {pending.id} was completed before checkpoint {older.id}"
                self.abort(older, FailureReason.CHECKPOINT_SUBSUMED, message)
        if tasks_run:
            tasks = pending.plan.commit
            self._outbox.emit(ev.NotifyComplete(pending.id, commit_number, pending.timestamp, tasks, subsumed))

    def _store(self, pending: PendingCheckpoint, metadata: ev.MetadataWritten, commit_number: int | None) -> int | None:
        """Step 9; gives the newest checkpoint that is subsumed, if its files go."""
        completed = CompletedCheckpoint(
            pending.id,
            pending.timestamp,
            pending.properties,
            pending.location or "",
            metadata.pointer,
            commit_number,
            pending.stats.state_size,
            pending.chain_length,
        )
        subsumed = self.store.add(completed)
        if not pending.properties.is_savepoint:
            self._force_full = False
        for old in subsumed:
            if old.properties.discard_subsumed:
                self._discard_completed(old)
            else:
                self._kept.add(old.id)
        self._release_shared()
        newest = max(subsumed, key=lambda c: c.id, default=None)
        return newest.id if newest is not None and newest.properties.discard_subsumed else None

    # ---- failure ---------------------------------------------------------------------------------------------------

    def abort(
        self,
        pending: PendingCheckpoint,
        reason: FailureReason,
        message: str,
        *,
        task: TaskId | None = None,
        keep_files: bool = False,
    ) -> None:
        """Give a checkpoint up; `task` is the one that reported the failure, if it was one."""
        assert reason is not FailureReason.CHECKPOINT_SUBSUMED or pending.can_be_subsumed, pending
        # Not there any more: the job stopped running during the claim, and its end settles everything with the tasks.
        tasks_run = self.pending.pop(pending.id, None) is not None
        if self.triggering == pending.id:
            self.triggering = None
        self.slot_freed = True
        if keep_files:
            self._kept.add(pending.id)
        elif pending.location is None:
            self._late_locations[pending.id] = pending
        elif pending.stage is Stage.WRITING:
            self._late_writes[pending.id] = pending  # deleting now would race with the write
        else:
            self._discard_aborted(pending)
        if reason is FailureReason.CHECKPOINT_EXPIRED:
            self._expired.append(pending.id)
        self.stats.failed(pending.stats, self._outbox.now, reason.name, message)
        self._owner.on_request_failed(pending.request, reason, message, pending.id)
        if not tasks_run:
            return
        if pending.stage > Stage.PREPARING:
            self._notify_aborted(pending, reason)
        by_task = task is not None
        failure = self._failures.failure(reason, pending.properties, pending.id, by_task=by_task, detail=message)
        if failure is not None:
            self._outbox.emit(ev.FailJob(failure, reason, pending.id, task))

    def _notify_aborted(self, pending: PendingCheckpoint, reason: FailureReason) -> None:
        own = [c for c in self.store.checkpoints if c.commit_number is not None]
        latest = own[-1] if own else None
        self._outbox.emit(
            ev.NotifyAborted(
                pending.id,
                pending.timestamp,
                pending.plan.commit if pending.stage >= Stage.RUNNING else (),
                reason,
                latest.id if latest else None,
                latest.commit_number if latest else None,
            )
        )

    def abort_all(self, reason: FailureReason, *, job_runs: bool) -> None:
        """Give up all that can be given up."""
        for pending in list(self.pending.values()):
            if pending.stage is not Stage.CLAIMING:
                self.abort(pending, reason, reason.text)
            elif not job_runs:
                # It may stand in the log already, and then it is the one to restore from: the answer decides. Nobody
                # waits for it but `settled`.
                del self.pending[pending.id]

    # ---- files -----------------------------------------------------------------------------------------------------

    def on_discarded(self, event: ev.Discarded) -> None:
        """Files are gone."""
        self.cleaning.discard(event.checkpoint_id)
        self.slot_freed = True

    def on_shared_released(self, event: ev.SharedReleased) -> None:
        """The folder of an imported snapshot goes when none of its files is used any more."""
        for checkpoint_id in [i for i in self._folders if i not in event.still_in_use]:
            self._discard(_discard_of(self._folders.pop(checkpoint_id)))

    def _release_shared(self) -> None:
        # A pending checkpoint may use files of the one it builds on, which its acknowledgements have yet to name.
        under_way = [pending.base for pending in self.pending.values() if pending.base is not None]
        lowest = min([*under_way, *(c.id for c in self.store.checkpoints)])
        if self._released is None or lowest > self._released:
            self._released = lowest
            self._outbox.emit(ev.ReleaseShared(lowest))

    def _discard_completed(self, checkpoint: CompletedCheckpoint) -> None:
        self.stats.discarded(checkpoint.id)
        if checkpoint.imported:
            self._folders[checkpoint.id] = checkpoint
        else:
            self._discard(_discard_of(checkpoint))

    def _discard_aborted(self, pending: PendingCheckpoint) -> None:
        assert pending.location is not None
        snapshot = None if pending.metadata is None else pending.metadata.snapshot
        type = pending.properties.type
        self._discard(ev.DiscardCheckpoint(pending.id, pending.location, type, False, pending.attempt, snapshot))

    def _discard(self, instruction: ev.DiscardCheckpoint) -> None:
        assert not self._is_protected(instruction.checkpoint_id), instruction
        self.cleaning.add(instruction.checkpoint_id)
        self._outbox.emit(instruction)

    def _is_protected(self, checkpoint_id: int) -> bool:
        """Whether files of this checkpoint may be needed, by us or by somebody else."""
        claimed = self.claiming is not None and self.claiming.id == checkpoint_id
        return claimed or checkpoint_id in self._kept or self.store.find(checkpoint_id) is not None

    def _in_stage(self, checkpoint_id: int, stage: Stage) -> PendingCheckpoint | None:
        pending = self.pending.get(checkpoint_id)
        return pending if pending is not None and pending.stage is stage else None


def _discard_of(checkpoint: CompletedCheckpoint) -> ev.DiscardCheckpoint:
    return ev.DiscardCheckpoint(checkpoint.id, checkpoint.location, checkpoint.properties.type, completed=True)
