"""The requests for checkpoints: their origins and their answers (SPEC R5.3, R5.4). Part of the coordinator: pure.

Checkpoints are requested by users, by the interval, by the policy of full checkpoints and by the end of a bounded job's
data. Each request of a user is answered exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random

from headrace import config
from headrace.checkpoint import events as ev
from headrace.checkpoint.attempt import AttemptTasks
from headrace.checkpoint.decider import Activity, Decision, RequestDecider, RequestId, RequestOrigin, TriggerRequest
from headrace.checkpoint.full_policy import AutomaticFull, CompletedSize
from headrace.checkpoint.pending import PendingCheckpoint
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.schedule import PeriodicSchedule
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings, FullCheckpointPolicy
from headrace.checkpoint.stop import StopWithSavepoint
from headrace.checkpoint.turn import Turn
from headrace.checkpoint.types import SnapshotType
from headrace.ids import OperatorId

_FINAL_RETRY_MS, _LONGEST_FINAL_RETRY_MS = 1000, 60_000


class Requests:
    """The requests for checkpoints of one job.

    >>> turn = Turn()
    >>> requests = Requests(CheckpointSettings(), Random(0), None, AttemptTasks(), turn)
    >>> requests.accept(ev.SavepointRequested(RequestId("r1")))
    >>> turn.take()[0].result.message
    'no directory for the savepoint: name one, or set execution.checkpointing.savepoint-dir'
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        rng: Random,
        next_full: Callable[[int], int | None] | None,
        tasks: AttemptTasks,
        turn: Turn,
    ) -> None:
        self._settings, self._tasks, self._turn = settings, tasks, turn
        self._decider = RequestDecider(settings.max_concurrent, settings.min_pause_ms)
        self._schedule = PeriodicSchedule(settings, rng)
        # Without increments every checkpoint is full, and there is no chain to end.
        policy = settings.full if settings.incremental else FullCheckpointPolicy()
        self._full = AutomaticFull(policy, next_full if settings.incremental else None)
        self._final_at: int | None = None  # when the final checkpoint of a bounded job is due
        self._final_retry_ms = _FINAL_RETRY_MS
        self._held = False
        self._stop: StopWithSavepoint | None = None
        self._last_completion: int | None = None
        self._slow = False  # the last checkpoint took longer than the interval
        self._ended = False

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return self._decider.waiting

    @property
    def stopping(self) -> bool:
        """True while the job is stopped with a savepoint: nothing else begins."""
        return self._stop is not None and self._stop.prevents_checkpoints

    # ---- requests that come by themselves --------------------------------------------------------------------------

    def deadlines(self) -> Iterator[tuple[int, Callable[[], TriggerRequest]]]:
        """Yield the times at which requests are due, each with the function that makes the request."""
        if self._schedule.next_at is not None:
            yield self._schedule.next_at, self._make_periodic
        if not self._tasks.active or self.stopping:
            return
        if self._final_at is not None:
            yield self._final_at, self._make_final
        if self._full.due_at is not None:
            yield self._full.due_at, self._make_full

    def _make_periodic(self) -> TriggerRequest:
        self._schedule.fire()
        return TriggerRequest(self._properties(), RequestOrigin.PERIODIC, self._turn.now)

    def _make_full(self) -> TriggerRequest:
        reason, properties = self._full.take(self._turn.now), self._properties(full=True)
        return TriggerRequest(properties, RequestOrigin.AUTOMATIC, self._turn.now, full_reason=reason)

    def _make_final(self) -> TriggerRequest:
        self._final_at = None
        return TriggerRequest(self._properties(), RequestOrigin.END_OF_DATA, self._turn.now)

    def attempt_started(self) -> None:
        """The tasks of another attempt start; a stop before has been answered."""
        self._stop = None
        self._final_at, self._final_retry_ms = None, _FINAL_RETRY_MS
        self._schedule.clear_backlog()

    def resume(self) -> None:
        """All tasks run: checkpoints are requested from now on."""
        if not self.stopping:
            self._schedule.start(self._turn.now)
        self._full.start(self._turn.now)

    def suspend(self) -> None:
        """The job, or a task, does not run: nothing is requested by the interval."""
        self._schedule.stop()

    def end(self) -> None:
        """The job has ended: refuse what users request from now on."""
        self._ended = True
        self._schedule.stop()

    def backlog(self, operator: OperatorId, *, processing: bool) -> None:
        """A source processes a backlog, or does not any more."""
        self._schedule.backlog(operator, self._turn.now, processing=processing)

    def hold(self, held: bool) -> None:
        """Begin no checkpoint while the consumers of completed ones lag behind."""
        self._held = held

    def data_ended(self) -> None:
        """No task has data any more: a final checkpoint commits the last output and need not wait for the interval."""
        if self._settings.interval_ms is not None and self._settings.after_tasks_finish:
            self._final_at = self._turn.now

    # ---- requests of users -----------------------------------------------------------------------------------------

    def accept(self, event: ev.CheckpointRequested | ev.SavepointRequested) -> TriggerRequest | None:
        """The request that a user makes; None if it is refused, and answered."""
        if self._ended:
            refusal = ev.RequestFailed("the job has ended", FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        elif self.stopping:
            message = "the job is being stopped with a savepoint"
            refusal = ev.RequestFailed(message, FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)
        elif isinstance(event, ev.CheckpointRequested):
            properties, reason = self._properties(full=event.full), "requested" if event.full else None
            return TriggerRequest(properties, RequestOrigin.USER, self._turn.now, event.request_id, full_reason=reason)
        elif (target := event.target or self._settings.savepoint_dir) is None:
            refusal = ev.RequestFailed(f"no directory for the savepoint: name one, or set {config.SAVEPOINT_DIR.key}")
        else:
            properties = CheckpointProperties.for_savepoint(not self._settings.unaligned, event.format)
            if isinstance(event, ev.StopRequested):
                properties = CheckpointProperties.for_stop(properties.force, event.drain, event.format)
            return TriggerRequest(properties, RequestOrigin.USER, self._turn.now, event.request_id, target)
        self._turn.emit(ev.CompleteRequest(event.request_id, refusal))
        return None

    def begin_stop(self, request_id: RequestId) -> None:
        """The job is to stop with a savepoint: request nothing else."""
        self._schedule.stop()
        self._stop = StopWithSavepoint(request_id, self._turn.now)

    def _properties(self, *, full: bool = False) -> CheckpointProperties:
        properties = CheckpointProperties.for_checkpoint(self._settings.retention)
        return properties.as_full() if full else properties

    # ---- the queue -------------------------------------------------------------------------------------------------

    def submit(self, request: TriggerRequest, activity: Activity) -> TriggerRequest | None:
        """Add a request to those that wait; returns the one that may begin now."""
        return self._apply(self._decider.submit(request, self._turn.now, self._complete(activity)))

    def next(self, activity: Activity) -> TriggerRequest | None:
        """The request that may begin now."""
        return self._apply(self._decider.next(self._turn.now, self._complete(activity)))

    def fail_waiting(self, reason: FailureReason) -> None:
        """Fail all requests that wait."""
        for request in self._decider.clear():
            self.failed(request, reason, reason.value)

    def _complete(self, activity: Activity) -> Activity:
        return replace(activity, held=self._held, last_completion=self._last_completion)

    def _apply(self, decision: Decision) -> TriggerRequest | None:
        for request, reason in decision.dropped:
            self.failed(request, reason, reason.value)
        if decision.reschedule_at is not None:
            self._schedule.postpone(decision.reschedule_at)
        return decision.start

    # ---- what became of a request ----------------------------------------------------------------------------------

    def done(self, pending: PendingCheckpoint, done: ev.RequestDone) -> None:
        """The checkpoint is complete."""
        now, request = self._turn.now, pending.request
        self._last_completion = now
        if request.properties.is_synchronous and self._stop is not None:
            self._stop.taken(done, now)
            self.answer_stop()
        elif request.id is not None:
            self._turn.emit(ev.CompleteRequest(request.id, done))
        if pending.properties.is_savepoint:
            return
        self._warn_if_slow(pending)
        if pending.properties.type is SnapshotType.FULL_CHECKPOINT:
            self._full.completed_full(now, requested_here=request.trigger is RequestOrigin.AUTOMATIC)
        else:
            stats = pending.stats
            size = CompletedSize(stats.totals.state_size, stats.chain_length, stats.shared_files)
            self._full.completed(now, size, earliest=now + self._settings.min_pause_ms)

    def failed(
        self, request: TriggerRequest, reason: FailureReason, message: str, checkpoint_id: int | None = None
    ) -> None:
        """There will be no checkpoint."""
        now = self._turn.now
        if request.id is not None:
            self._turn.emit(ev.CompleteRequest(request.id, ev.RequestFailed(message, reason, checkpoint_id)))
        if request.trigger is RequestOrigin.AUTOMATIC:
            self._full.failed(now)
        elif request.trigger is RequestOrigin.END_OF_DATA:
            # Its user waits for it, and no records wait for their turn: the pause between checkpoints is not for it.
            self._final_at = now + self._final_retry_ms
            self._final_retry_ms = min(2 * self._final_retry_ms, _LONGEST_FINAL_RETRY_MS)
        if request.properties.is_synchronous and self._stop is not None:
            self._stop.savepoint_failed(now)
            if self._tasks.active:
                self._schedule.start(now)

    def answer_stop(self, *, job_finished: bool = False) -> None:
        """Answer a stop whose savepoint is complete if it is clear that the tasks finish, or that they do not."""
        if self._stop is not None:
            finished = job_finished or self._tasks.all_finished
            self._turn.emit(*self._stop.answer(finished=finished, active=self._tasks.active, now=self._turn.now))

    def stand_down(self, pending: Iterable[TriggerRequest], message: str) -> None:
        """Another driver runs the job now: answer the requests of pending checkpoints and all others."""
        self.end()
        result = ev.RequestFailed(message, FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        for request in (*pending, *self._decider.clear()):
            if request.id is not None:
                self._turn.emit(ev.CompleteRequest(request.id, result))
        if self._stop is not None:
            self._turn.emit(*self._stop.give_up(result, self._turn.now))

    def _warn_if_slow(self, pending: PendingCheckpoint) -> None:
        """Warn once, and again only after a checkpoint was in time."""
        interval, took = self._schedule.interval, self._turn.now - pending.timestamp
        slow, self._slow = self._slow, interval is not None and took > interval
        if interval is None or slow or not self._slow:
            return
        self._turn.emit(
            ev.Warn(
                f"checkpoint {pending.id} took {took} ms, longer than the interval of {interval} ms "
                f"({config.CHECKPOINT_INTERVAL.key}): the next one starts at once, and the job may spend most of its "
                f"time on checkpoints. Choose an interval longer than a checkpoint takes, or set "
                f"{config.CHECKPOINT_MIN_PAUSE.key} so that there is time for records in between"
            )
        )
