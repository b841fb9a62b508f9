"""The checkpoint coordinator: decides when checkpoints start, when they are complete and when their files are deleted.

It is a state machine without clock, thread, file or network (SPEC R5); `driver/checkpoint_service.py` runs it on the job's
thread of the driver. Events go in, instructions come out; the shell carries them out in order and reports the results:

    instructions = coordinator.handle(event, now)      # now: milliseconds since 1970, never going back

The life of a checkpoint, whose steps carry these numbers in the code (step 1 here, the others in `steps.py`):

    1 the decider accepts a request                      6 all tasks acknowledge; finished tasks are accounted for
    2 a plan is made; from here on it has an id          7 the metadata is written
    3 its directory is prepared                          8 its completion is claimed in the job log
    4 the state on the driver is taken                   9 it is stored, older ones are subsumed, the request answered
    5 tasks are triggered                               10 older pending ones are aborted, then tasks are notified

Nothing is notified, committed or deleted because of a checkpoint before step 8 has succeeded: a driver that was replaced
fails there and stands down. A plain savepoint skips steps 8 and 10: it has no effect on the job.

Its parts, each of which stands alone: `requests.py` (what requests checkpoints, and the answers), `stop.py` (a stop with
a savepoint), `attempt.py` (the tasks), `steps.py` and `pending.py` (a checkpoint under way), `store.py` (completed ones)
and `disposal.py` (what is deleted).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from headrace.checkpoint import events as ev
from headrace.checkpoint.attempt import AttemptTasks
from headrace.checkpoint.decider import TriggerRequest
from headrace.checkpoint.plan import TaskStatus
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.requests import Requests
from headrace.checkpoint.settings import CheckpointSettings, EndStatus
from headrace.checkpoint.steps import CheckpointSteps
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.checkpoint.turn import Turn


class _Phase(Enum):
    """The value: which events are handled; others come too late."""

    OPEN = (ev.Event,)
    ENDED = (ev.Answer, ev.UserRequest)
    SUPERSEDED = (ev.UserRequest,)


class Coordinator:
    """The checkpoints of one job, over all its attempts.

    `driver_state`: there is state on the driver to snapshot. `next_full`: the first time after a given time at which the
    schedule requests a full checkpoint. `recovered` and `next_id` are what a resumed job finds in its log. The latest
    checkpoint of `store` is the one to restore from; `stats` may be read by any thread through `snapshot`.

    >>> from headrace.checkpoint.decider import RequestId
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
        self.tasks = AttemptTasks()
        self._turn = Turn()
        self._requests = Requests(settings, rng, next_full, self.tasks, self._turn)
        self._steps = CheckpointSteps(
            settings,
            self.tasks,
            self._requests,
            self._turn,
            driver_state=driver_state,
            recovered=recovered,
            next_id=next_id,
        )
        self.store, self.stats = self._steps.store, self._steps.stats
        self._handlers = self._make_handlers()
        self._phase = _Phase.OPEN
        self._armed: int | None = None  # the time of the last ScheduleAt

    @property
    def pending(self) -> tuple[int, ...]:
        """The ids of the checkpoints under way."""
        return self._steps.ids

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return self._requests.waiting

    @property
    def active(self) -> bool:
        """True if the job runs, and so does every task that has not finished."""
        return self.tasks.active

    @property
    def finished_tasks(self) -> int:
        """The number of tasks of the attempt that have finished."""
        return self.tasks.finished

    @property
    def claim_under_way(self) -> bool:
        """True while a log entry is being claimed: choose what to restore from later, the claim may succeed."""
        return self._steps.claim_under_way

    # ---- events in, instructions out -------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: int) -> list[ev.Instruction]:
        """Process one event; returns the instructions to carry out, in order."""
        turn = self._turn
        turn.now = max(turn.now, now)
        if isinstance(event, ev.TimePassed):
            self._armed = None  # the alarm is spent
        elif isinstance(event, self._phase.value):
            self._handlers[type(event)](event)
        self._fire_due()
        if turn.slot_freed:
            turn.slot_freed = False
            self._begin(self._requests.next(self._steps.activity))
        self._arm()
        return turn.take()

    def _make_handlers(self) -> dict[type[Any], Callable[[Any], None]]:
        steps = self._steps
        return {
            ev.SnapshotImported: steps.import_snapshot,
            ev.AttemptStarted: self._on_attempt,
            ev.JobStatusChanged: self._on_job_status,
            ev.JobEnded: self._on_job_ended,
            ev.TaskStatusChanged: self._on_task_status,
            ev.EndOfData: self._on_end_of_data,
            ev.BacklogChanged: self._on_backlog,
            ev.HoldChanged: self._on_hold,
            ev.CheckpointRequested: self._on_requested,
            ev.SavepointRequested: self._on_requested,
            ev.StopRequested: self._on_requested,
            ev.Acknowledged: steps.on_acknowledged,
            ev.Declined: steps.on_declined,
            ev.LocationReady: steps.on_location,
            ev.DriverStateReady: steps.on_driver_state,
            ev.MetadataWritten: steps.on_metadata,
            ev.LogEntryClaimed: steps.on_claimed,
            ev.StepFailed: steps.on_step_failed,
            ev.Superseded: self._on_superseded,
            ev.Discarded: steps.on_discarded,
            ev.SharedReleased: steps.on_shared_released,
        }

    # ---- time ------------------------------------------------------------------------------------------------------

    def _deadlines(self) -> Iterator[tuple[int, Callable[[], None]]]:
        yield from self._steps.deadlines()
        for at, make_request in self._requests.deadlines():
            yield at, partial(self._submit_due, make_request)

    def _submit_due(self, make_request: Callable[[], TriggerRequest]) -> None:
        self._submit(make_request())

    def _fire_due(self) -> None:
        while True:
            due = [deadline for deadline in self._deadlines() if deadline[0] <= self._turn.now]
            if not due:
                return
            _, action = min(due, key=lambda deadline: deadline[0])
            action()

    def _arm(self) -> None:
        earliest = min((at for at, _ in self._deadlines()), default=None)
        if earliest is not None and earliest != self._armed:
            self._turn.emit(ev.ScheduleAt(earliest))
        self._armed = earliest

    # ---- the job ---------------------------------------------------------------------------------------------------

    def _on_attempt(self, event: ev.AttemptStarted) -> None:
        self._after_change(self.tasks.set_job_running(False))
        self._requests.attempt_started()
        self._steps.start_attempt(event.restored)
        self.tasks.start(event.attempt, event.topology)

    def _on_job_status(self, event: ev.JobStatusChanged) -> None:
        self._after_change(self.tasks.set_job_running(event.running))

    def _on_task_status(self, event: ev.TaskStatusChanged) -> None:
        if not self.tasks.is_current(event.attempt, event.task):
            return
        changed = self.tasks.set_status(event.task, event.status)
        if event.status is TaskStatus.FINISHED:
            self._steps.task_finished(event.task)
        self._after_change(changed)
        self._requests.answer_stop()

    def _on_end_of_data(self, event: ev.EndOfData) -> None:
        if event.attempt != self.tasks.attempt:
            return
        for operator in self.tasks.end_of_data(event.task):
            self._requests.backlog(operator, processing=False)
        if self.tasks.all_at_end:
            self._requests.data_ended()

    def _on_backlog(self, event: ev.BacklogChanged) -> None:
        self._requests.backlog(event.operator, processing=event.backlog)

    def _on_hold(self, event: ev.HoldChanged) -> None:
        self._requests.hold(event.held)
        self._turn.slot_freed = True

    def _after_change(self, changed: bool) -> None:
        """Begin or cease to trigger when the tasks have become active, or are not any more."""
        if not changed:
            return
        if self.tasks.active:
            self._requests.resume()
        else:
            self._requests.suspend()
            self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)
            self._requests.answer_stop()

    def _abort_all(self, reason: FailureReason) -> None:
        self._requests.fail_waiting(reason)
        self._steps.abort_all(reason)

    def _on_job_ended(self, event: ev.JobEnded) -> None:
        self._phase = _Phase.ENDED
        self.tasks.set_job_running(False)
        self._requests.end()
        self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        self._requests.answer_stop(job_finished=event.status is EndStatus.FINISHED)
        self._steps.end(event.status)

    def _on_superseded(self, event: ev.Superseded) -> None:
        """Another driver runs the job now: touch no file and no task, only answer the requests that wait here."""
        self._phase = _Phase.SUPERSEDED
        self.tasks.set_job_running(False)
        self._requests.stand_down(self._steps.stand_down(), event.message)
        self._turn.emit(ev.StandDown(event.message))

    # ---- requests (step 1) -----------------------------------------------------------------------------------------

    def _on_requested(self, event: ev.CheckpointRequested | ev.SavepointRequested) -> None:
        request = self._requests.accept(event)
        if request is None:
            return
        if isinstance(event, ev.StopRequested):
            # No other checkpoint may come between the savepoint and the end of the job.
            self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)
            self._requests.begin_stop(event.request_id)
        self._submit(request)

    def _submit(self, request: TriggerRequest) -> None:
        if self.tasks.active:
            self._begin(self._requests.submit(request, self._steps.activity))
        else:
            self._steps.begin(request)  # it fails with what is missing; there is nothing to wait for

    def _begin(self, request: TriggerRequest | None) -> None:
        while request is not None:
            self._steps.begin(request)  # 1
            request = self._requests.next(self._steps.activity)  # another one, if this could not begin
