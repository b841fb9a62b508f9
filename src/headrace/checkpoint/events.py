"""The events that the checkpoint coordinator receives and the instructions that it returns: plain data, no behaviour.

Instructions are carried out in the order given. An instruction with an outcome is answered by exactly one event:

    PrepareLocation      LocationReady | StepFailed
    SnapshotDriverState  DriverStateReady | StepFailed
    WriteMetadata        MetadataWritten | StepFailed
    ClaimLogEntry        LogEntryClaimed | StepFailed | Superseded
    DiscardCheckpoint    Discarded, whether or not the deletion succeeded
    ReleaseShared        SharedReleased
    TriggerTasks         Acknowledged | Declined, by each task that must acknowledge
    ScheduleAt           TimePassed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.checkpoint.decider import RequestId
from headrace.checkpoint.plan import TaskId, TaskReport, TaskStatus, Topology, VertexOutcome
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.settings import CheckpointProperties, ClaimMode, EndStatus
from headrace.checkpoint.stats import SubtaskMetrics
from headrace.checkpoint.types import Barrier, SavepointFormat, SnapshotType
from headrace.ids import OperatorId, VertexId


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""


class Answer(Event, frozen=True):
    """An event that still counts when the job has ended: files may depend on it."""


class CheckpointAnswer(Answer, frozen=True):
    checkpoint_id: int


class UserRequest(Event, frozen=True):
    """A request of a user: it is answered whenever it comes."""

    request_id: RequestId


class Instruction(msgspec.Struct, frozen=True):
    """Something to be done."""


class CheckpointInstruction(Instruction, frozen=True):
    checkpoint_id: int


# ---- events: the job -----------------------------------------------------------------------------------------------


class TimePassed(Event, frozen=True):
    """The time of the last ScheduleAt has come; an early or needless one does no harm."""


class SnapshotImported(Event, frozen=True):
    """The job is to start from a snapshot that the user named; before the first attempt."""

    checkpoint_id: int
    location: str
    pointer: str
    claim: ClaimMode
    state_size: int = 0
    chain_length: int = 1


class AttemptStarted(Event, frozen=True):
    """The job starts, or starts again, perhaps with another parallelism; no task runs yet, and no claim is under way.

    `restored` is the completed checkpoint it starts from, normally the latest. An older one is a step back: newer ones
    are forgotten, their files stay.
    """

    attempt: int
    topology: Topology
    restored: int | None = None


class JobStatusChanged(Event, frozen=True):
    """The job is RUNNING, or it is in any other status that is not its end."""

    running: bool


class JobEnded(Event, frozen=True):
    """The job reached its end; nothing starts any more."""

    status: EndStatus


class TaskStatusChanged(Event, frozen=True):
    attempt: int
    task: TaskId
    status: TaskStatus


class EndOfData(Event, frozen=True):
    """A task has processed its last record and waits for a final checkpoint (SPEC R4.5)."""

    attempt: int
    task: TaskId


class BacklogChanged(Event, frozen=True):
    """A source processes a backlog, or has caught up."""

    operator: OperatorId
    backlog: bool


class HoldChanged(Event, frozen=True):
    """A consumer of completed checkpoints lags behind: no new one starts while `held`."""

    held: bool


# ---- events: requests ----------------------------------------------------------------------------------------------


class CheckpointRequested(UserRequest, frozen=True):
    """A user requests a checkpoint; a `full` one uses no file of an older one."""

    full: bool = False


class SavepointRequested(UserRequest, frozen=True):
    """A user requests a savepoint; without a target it goes to the default directory."""

    target: str | None = None
    format: SavepointFormat = SavepointFormat.CANONICAL


class StopRequested(SavepointRequested, frozen=True):
    """A user requests a stop with a savepoint (SPEC R8.3); answered when all tasks have finished."""

    drain: bool = False


# ---- events: tasks -------------------------------------------------------------------------------------------------


class Acknowledged(Answer, frozen=True):
    """A task has written its part. `state` goes into the metadata, the coordinator does not look into it.

    `shared_files` is the number of shared files that the part uses, new or old, for each operator.
    """

    attempt: int
    task: TaskId
    checkpoint_id: int
    state: Any = None
    metrics: SubtaskMetrics = SubtaskMetrics()
    report: TaskReport = TaskReport()
    shared_files: Mapping[OperatorId, int] = {}


class Declined(Event, frozen=True):
    """A task cannot take part."""

    attempt: int
    task: TaskId
    checkpoint_id: int
    reason: FailureReason = FailureReason.CHECKPOINT_DECLINED
    message: str = ""


# ---- events: results -----------------------------------------------------------------------------------------------


class LocationReady(CheckpointAnswer, frozen=True):
    location: str


class DriverStateReady(Event, frozen=True):
    """The state on the driver (enumerators of sources), by operator."""

    checkpoint_id: int
    states: Mapping[OperatorId, Any] = {}


class MetadataWritten(CheckpointAnswer, frozen=True):
    """The metadata is on storage; `pointer` is the path to restore from.

    `snapshot` is handed back to the storage when the metadata must be deleted again.
    """

    pointer: str
    size: int = 0
    objects: int = 1
    snapshot: Any = None


class LogEntryClaimed(CheckpointAnswer, frozen=True):
    """The completion is in the job log, under this number, which is never used again."""

    commit_number: int


class StepFailed(CheckpointAnswer, frozen=True):
    """A step of a checkpoint failed: the directory, the state on the driver, the metadata or the log entry.

    If `outcome_unknown`, the metadata or the entry may exist all the same.
    """

    message: str
    outcome_unknown: bool = False


class Superseded(CheckpointAnswer, frozen=True):
    """Another driver has claimed the entry: it runs the job now, and this one must stop."""

    message: str


class Discarded(CheckpointAnswer, frozen=True):
    """The files of a checkpoint are deleted, or left for `headrace gc`."""


class SharedReleased(Answer, frozen=True):
    """Unused shared files are deleted; these imported snapshots still have files in use, so their folders must stay."""

    still_in_use: frozenset[int] = frozenset()


# ---- instructions --------------------------------------------------------------------------------------------------


class PrepareLocation(CheckpointInstruction, frozen=True):
    """Make the directory of a checkpoint, or of a savepoint below `target`; shared/ and taskowned/ too if missing."""

    type: SnapshotType
    target: str | None = None


class SnapshotDriverState(CheckpointInstruction, frozen=True):
    """Take the state on the driver; tasks are triggered after it is there (SPEC R9.4)."""


class TriggerTasks(Instruction, frozen=True):
    """Make these tasks take their part now and send the barrier."""

    barrier: Barrier
    tasks: tuple[TaskId, ...]


class Announce(Instruction, frozen=True):
    """Announce to these tasks that the barrier is unaligned: they start now and do not wait for it to arrive."""

    barrier: Barrier
    tasks: tuple[TaskId, ...]


class RegisterShared(CheckpointInstruction, frozen=True):
    """Register the shared files of a task's part as used by the checkpoint, also when it came too late (SPEC R7.5)."""

    task: TaskId
    state: Any


class ReleaseShared(Instruction, frozen=True):
    """Delete shared files that were last used before the checkpoint `lowest`; None: all of them."""

    lowest: int | None


class Content(msgspec.Struct, frozen=True):
    """The content of a checkpoint's metadata."""

    checkpoint_id: int
    timestamp: int
    properties: CheckpointProperties
    location: str
    states: Mapping[TaskId, Any]
    driver_states: Mapping[OperatorId, Any]
    vertices: Mapping[VertexId, VertexOutcome]


class WriteMetadata(Instruction, frozen=True):
    """Write the metadata; placeholders of shared files are replaced by what the registry holds."""

    content: Content

    @property
    def checkpoint_id(self) -> int:
        return self.content.checkpoint_id


class ClaimLogEntry(CheckpointInstruction, frozen=True):
    """Claim the next entry of the job log for "this checkpoint is completed"; at most one claim is under way.

    With it the checkpoints of the commit numbers in `subsumed` are not retained any more.
    """

    subsumed: tuple[int, ...] = ()


class NotifyComplete(CheckpointInstruction, frozen=True):
    """Notify these tasks and the driver's operators that a checkpoint is complete.

    `subsumed` is the newest checkpoint whose files are deleted because of it.
    """

    commit_number: int
    tasks: tuple[TaskId, ...]
    subsumed: int | None = None


class NotifyAborted(CheckpointInstruction, frozen=True):
    """Notify these tasks and the driver's operators that a checkpoint will not be completed.

    `latest_completed` and `latest_commit_number` repeat the last completion, whose notification may have been lost.
    """

    tasks: tuple[TaskId, ...]
    reason: FailureReason
    latest_completed: int | None = None
    latest_commit_number: int | None = None


class DiscardFiles(CheckpointInstruction, frozen=True):
    """Delete the private files of one task's part; shared ones stay until they are released."""

    task: TaskId
    state: Any


class DiscardCheckpoint(CheckpointInstruction, frozen=True):
    """Delete the directory of a checkpoint with its metadata and private files; shared ones stay.

    One that is not `completed` was aborted: only the files of this attempt are deleted, and the metadata only if there
    is a `snapshot`.
    """

    location: str
    type: SnapshotType
    completed: bool
    attempt: int | None = None
    snapshot: Any = None


class RequestDone(msgspec.Struct, frozen=True):
    """The requested snapshot is complete."""

    checkpoint_id: int
    pointer: str
    commit_number: int | None


class RequestFailed(msgspec.Struct, frozen=True):
    """The request failed. Without a reason it was itself wrong; with a pointer the savepoint exists all the same."""

    message: str
    reason: FailureReason | None = None
    checkpoint_id: int | None = None
    pointer: str | None = None


class CompleteRequest(Instruction, frozen=True):
    """Answer a request; each is answered once."""

    request_id: RequestId
    result: RequestDone | RequestFailed


class FailJob(Instruction, frozen=True):
    """Fail the job because of failed checkpoints: it restarts as after any failure."""

    message: str
    reason: FailureReason
    checkpoint_id: int | None = None
    task: TaskId | None = None


class ScheduleAt(Instruction, frozen=True):
    """Send TimePassed at this time; replaces the one before."""

    time: int


class Warn(Instruction, frozen=True):
    """Show a warning to the user."""

    message: str


class StandDown(Instruction, frozen=True):
    """Stop without notifying, committing or deleting anything: another driver runs the job now."""

    message: str
