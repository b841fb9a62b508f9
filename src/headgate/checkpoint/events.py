"""What the checkpoint coordinator is told, and what it tells others to do: plain data, no behaviour.

Events are facts. Every instruction is carried out in the order given and names its cause, the event that led to it.
An instruction with an outcome is answered by exactly one event:

    PrepareLocation      LocationReady | LocationFailed
    SnapshotDriverState  DriverStateReady | DriverStateFailed
    WriteMetadata        MetadataWritten | MetadataFailed
    ClaimLogEntry        LogEntryClaimed | LogEntryFailed | Superseded
    DiscardCheckpoint    Discarded, whether or not the deletion went well
    ReleaseShared        SharedReleased
    TriggerTasks         TriggerFailed, only if a task could not be reached; acknowledgements come by Acknowledged
    ScheduleAt           TimePassed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from headgate.checkpoint.decider import RequestId
from headgate.checkpoint.plan import TaskId, TaskReport, TaskStatus, Topology, VertexOutcome
from headgate.checkpoint.reasons import FailureReason
from headgate.checkpoint.settings import CheckpointProperties, ClaimMode, EndStatus
from headgate.checkpoint.stats import SubtaskMetrics
from headgate.checkpoint.types import Barrier, SavepointFormat, SnapshotType
from headgate.ids import OperatorId, VertexId

__all__ = [
    "Acknowledged",
    "Announce",
    "AttemptStarted",
    "BacklogChanged",
    "CheckpointKind",
    "CheckpointRequested",
    "ClaimLogEntry",
    "CompleteRequest",
    "Content",
    "Declined",
    "DiscardCheckpoint",
    "DiscardFiles",
    "Discarded",
    "DriverStateFailed",
    "DriverStateReady",
    "EndOfData",
    "Event",
    "FailJob",
    "HoldChanged",
    "Instruction",
    "JobEnded",
    "JobStatusChanged",
    "LocationFailed",
    "LocationReady",
    "LogEntryClaimed",
    "LogEntryFailed",
    "MetadataFailed",
    "MetadataWritten",
    "NotifyAborted",
    "NotifyComplete",
    "PrepareLocation",
    "RegisterShared",
    "ReleaseShared",
    "RequestDone",
    "RequestFailed",
    "SavepointRequested",
    "ScheduleAt",
    "SharedReleased",
    "SnapshotDriverState",
    "SnapshotImported",
    "StandDown",
    "StopRequested",
    "Superseded",
    "TaskStatusChanged",
    "TimePassed",
    "TriggerFailed",
    "TriggerTasks",
    "Warn",
    "WriteMetadata",
]


# ---- events: the job -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time of the last ScheduleAt has come; coming early or for nothing does no harm."""


@dataclass(frozen=True, slots=True)
class SnapshotImported:
    """The job is to start from a snapshot that the user named; before the first attempt."""

    checkpoint_id: int
    location: str
    pointer: str
    claim: ClaimMode
    state_size: int = 0
    chain_length: int = 1


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The job starts, or starts again, perhaps with other parallelism; no task runs yet, and no claim is under way.

    `restored` is the completed checkpoint it starts from, normally the latest. An older one is a step back: newer ones
    are forgotten, their files stay.
    """

    attempt: int
    topology: Topology
    restored: int | None = None


@dataclass(frozen=True, slots=True)
class JobStatusChanged:
    """The job is RUNNING, or it is in any other status that is not its end."""

    running: bool


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job reached its end; nothing starts any more."""

    status: EndStatus


@dataclass(frozen=True, slots=True)
class TaskStatusChanged:
    """A task turned to this status."""

    attempt: int
    task: TaskId
    status: TaskStatus


@dataclass(frozen=True, slots=True)
class EndOfData:
    """A task has processed its last record and waits for a final checkpoint (SPEC R4.5)."""

    attempt: int
    task: TaskId


@dataclass(frozen=True, slots=True)
class BacklogChanged:
    """A source works off a backlog, or has caught up."""

    operator: OperatorId
    backlog: bool


@dataclass(frozen=True, slots=True)
class HoldChanged:
    """Whoever consumes completed checkpoints lags behind: start no new one until this is taken back."""

    held: bool


# ---- events: wishes ------------------------------------------------------------------------------------------------


class CheckpointKind(Enum):
    """What a user may ask for; CONFIGURED is what the job does anyway."""

    CONFIGURED = "CONFIGURED"
    FULL = "FULL"
    INCREMENTAL = "INCREMENTAL"


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A user wants a checkpoint now."""

    request_id: RequestId
    kind: CheckpointKind = CheckpointKind.CONFIGURED


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A user wants a savepoint; without a target it goes to the default directory."""

    request_id: RequestId
    target: str | None = None
    format: SavepointFormat = SavepointFormat.CANONICAL


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user wants the job to stop with a savepoint (SPEC R8.3); answered when all tasks have finished."""

    request_id: RequestId
    target: str | None = None
    drain: bool = False
    format: SavepointFormat = SavepointFormat.CANONICAL


# ---- events: tasks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A task has written its part. `state` is for the metadata, the coordinator does not look into it.

    `shared_files` is the number of shared files that the part uses, new or old, for each operator.
    """

    attempt: int
    task: TaskId
    checkpoint_id: int
    state: Any = None
    metrics: SubtaskMetrics = field(default_factory=SubtaskMetrics)
    report: TaskReport = field(default_factory=TaskReport)
    shared_files: Mapping[OperatorId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declined:
    """A task cannot take part."""

    attempt: int
    task: TaskId
    checkpoint_id: int
    reason: FailureReason = FailureReason.CHECKPOINT_DECLINED
    message: str = ""


@dataclass(frozen=True, slots=True)
class TriggerFailed:
    """A task could not be told to start its part."""

    checkpoint_id: int
    message: str


# ---- events: results -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocationReady:
    """The directory of a checkpoint is there."""

    checkpoint_id: int
    location: str


@dataclass(frozen=True, slots=True)
class LocationFailed:
    """The directory of a checkpoint could not be made."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class DriverStateReady:
    """The parts on the driver (enumerators of sources) have given their state, by operator."""

    checkpoint_id: int
    states: Mapping[OperatorId, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriverStateFailed:
    """A part on the driver could not."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The metadata is on storage; `pointer` is the path to restore from.

    `snapshot` is whatever the storage wants to be given with the claim, or when the metadata must be deleted again.
    """

    checkpoint_id: int
    pointer: str
    size: int = 0
    objects: int = 1
    snapshot: Any = None


@dataclass(frozen=True, slots=True)
class MetadataFailed:
    """The metadata could not be written."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class LogEntryClaimed:
    """The completion stands in the job log, under this number, which never comes again."""

    checkpoint_id: int
    commit_number: int


@dataclass(frozen=True, slots=True)
class LogEntryFailed:
    """The entry could not be claimed; if `outcome_unknown`, it may be there all the same."""

    checkpoint_id: int
    message: str
    outcome_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another driver has claimed the entry: it goes on with the job, and this one is over."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """The files of a checkpoint are deleted, or left for `headgate gc`."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SharedReleased:
    """Unused shared files are gone; these imported snapshots still have files in use, so their folders must stay."""

    still_in_use: frozenset[int] = frozenset()


Event: TypeAlias = (
    TimePassed
    | SnapshotImported
    | AttemptStarted
    | JobStatusChanged
    | JobEnded
    | TaskStatusChanged
    | EndOfData
    | BacklogChanged
    | HoldChanged
    | CheckpointRequested
    | SavepointRequested
    | StopRequested
    | Acknowledged
    | Declined
    | TriggerFailed
    | LocationReady
    | LocationFailed
    | DriverStateReady
    | DriverStateFailed
    | MetadataWritten
    | MetadataFailed
    | LogEntryClaimed
    | LogEntryFailed
    | Superseded
    | Discarded
    | SharedReleased
)


# ---- instructions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """Something to be done, and the event that led to it."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class PrepareLocation(Instruction):
    """Make the directory of a checkpoint, or of a savepoint below `target`; shared/ and taskowned/ too if missing."""

    checkpoint_id: int
    type: SnapshotType
    target: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotDriverState(Instruction):
    """Ask the parts on the driver for their state; tasks are triggered after they have answered (SPEC R9.4)."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class TriggerTasks(Instruction):
    """Tell these tasks to take their part now and to send the barrier."""

    barrier: Barrier
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class Announce(Instruction):
    """Tell these tasks that the barrier is in a hurry: start unaligned, do not wait for it to arrive."""

    barrier: Barrier
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class RegisterShared(Instruction):
    """Register the shared files of a task's part as used by the checkpoint, also when it came too late (SPEC R7.5)."""

    checkpoint_id: int
    task: TaskId
    state: Any


@dataclass(frozen=True, slots=True)
class ReleaseShared(Instruction):
    """Delete shared files that were last used before the checkpoint `lowest`; None: all of them."""

    lowest: int | None


@dataclass(frozen=True, slots=True)
class Content:
    """What goes into the metadata of a checkpoint."""

    checkpoint_id: int
    timestamp: int
    type: SnapshotType
    properties: CheckpointProperties
    location: str
    states: Mapping[TaskId, Any]
    driver_states: Mapping[OperatorId, Any]
    vertices: Mapping[VertexId, VertexOutcome]
    chain_length: int


@dataclass(frozen=True, slots=True)
class WriteMetadata(Instruction):
    """Write the metadata; placeholders of shared files are replaced by what the registry holds."""

    content: Content

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint it belongs to."""
        return self.content.checkpoint_id


@dataclass(frozen=True, slots=True)
class ClaimLogEntry(Instruction):
    """Claim the next entry of the job log for "this checkpoint is completed"; at most one claim is under way.

    With it the checkpoints of the commit numbers in `subsumed` are not retained any more.
    """

    checkpoint_id: int
    pointer: str
    type: SnapshotType
    subsumed: tuple[int, ...] = ()
    snapshot: Any = None


@dataclass(frozen=True, slots=True)
class NotifyComplete(Instruction):
    """Tell these tasks and the parts on the driver that a checkpoint is complete.

    `subsumed` is the newest checkpoint whose files are deleted because of it.
    """

    checkpoint_id: int
    commit_number: int
    timestamp: int
    tasks: tuple[TaskId, ...]
    subsumed: int | None = None


@dataclass(frozen=True, slots=True)
class NotifyAborted(Instruction):
    """Tell these tasks and the parts on the driver that a checkpoint will not be completed.

    `latest_completed` and `latest_commit_number` stand for a completion that they may not have heard of.
    """

    checkpoint_id: int
    timestamp: int
    tasks: tuple[TaskId, ...]
    reason: FailureReason
    latest_completed: int | None = None
    latest_commit_number: int | None = None


@dataclass(frozen=True, slots=True)
class DiscardFiles(Instruction):
    """Delete the private files of one task's part; shared ones stay until they are released."""

    checkpoint_id: int
    task: TaskId
    state: Any


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint(Instruction):
    """Delete the directory of a checkpoint with its metadata and private files; shared ones stay.

    One that is not `completed` was given up: only what this attempt wrote is ours, and the metadata only if there is a
    `snapshot`.
    """

    checkpoint_id: int
    location: str
    type: SnapshotType
    completed: bool
    attempt: int | None = None
    snapshot: Any = None


@dataclass(frozen=True, slots=True)
class RequestDone:
    """The snapshot that was asked for is complete."""

    checkpoint_id: int
    pointer: str
    commit_number: int | None


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """It is not. Without a reason the request itself was wrong; with a pointer the savepoint is there all the same."""

    message: str
    reason: FailureReason | None = None
    checkpoint_id: int | None = None
    pointer: str | None = None


@dataclass(frozen=True, slots=True)
class CompleteRequest(Instruction):
    """Answer a request; each is answered once."""

    request_id: RequestId
    result: RequestDone | RequestFailed


@dataclass(frozen=True, slots=True)
class FailJob(Instruction):
    """Checkpoints failed so that the job must: it restarts as after any failure."""

    message: str
    reason: FailureReason
    checkpoint_id: int | None = None
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class ScheduleAt(Instruction):
    """Send TimePassed at this time; replaces the one before."""

    time: int


@dataclass(frozen=True, slots=True)
class Warn(Instruction):
    """Tell the user."""

    message: str


@dataclass(frozen=True, slots=True)
class StandDown(Instruction):
    """A newer driver has taken over: stop, notify nobody, commit nothing, delete nothing."""

    message: str
