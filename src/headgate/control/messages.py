"""The messages between the driver and its subtasks, as typed structures with tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from headgate.checkpoint.commits import Commits
from headgate.checkpoint.plan import TaskReport
from headgate.checkpoint.stats import SubtaskMetrics
from headgate.ids import OperatorId
from headgate.storage.manifest import StatePiece


class Register(msgspec.Struct, tag=True, frozen=True):
    """First message of a worker: its task and its attempt."""

    level: int
    index: int
    attempt: int
    host: str
    pid: int


class Restored(msgspec.Struct, tag=True, frozen=True):
    """The task has read and verified all state that it starts from; it waits for `StartProcessing`."""


class Running(msgspec.Struct, tag=True, frozen=True):
    """The subtask has committed what its checkpoint holds, and takes records."""


class Metrics(msgspec.Struct, tag=True, frozen=True):
    """Counters of a subtask since its start, sent once a second."""

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    busy_ms: int = 0
    back_pressured_ms: int = 0
    idle_ms: int = 0
    queued_bytes: int = 0
    resident_bytes: int = 0
    restored_bytes: int = 0
    restore_bytes: int = 0  # what is to be restored
    restored_locally: int = 0  # of the restored ones: from copies on the worker's host
    corrupt_records: int = 0  # that a source could not read


class Output(msgspec.Struct, tag=True, frozen=True):
    """Printed lines or collected records for the driver; the driver confirms them, which limits what is under way."""

    channel: str  # "" = printed lines
    payload: bytes
    records: int


class Finished(msgspec.Struct, tag=True, frozen=True):
    """The subtask has finished; its Spark task may run as long as the level before does."""


FailureKind = Literal["user", "runtime", "damaged", "lost", "victim"]
"""User code failed, the runtime did, state was damaged, a worker was lost, or the task is the victim of one that died."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The subtask failed."""

    message: str
    traceback: str
    operator: str = ""
    user_line: str = ""
    key: str = ""
    kind: FailureKind = "user"


TaskState: TypeAlias = dict[OperatorId, tuple[StatePiece, ...]]
"""What one subtask wrote at one checkpoint."""


class AcknowledgeCheckpoint(msgspec.Struct, tag=True, frozen=True):
    """The subtask has written its part of a checkpoint."""

    checkpoint_id: int
    state: TaskState
    report: TaskReport = TaskReport()
    metrics: SubtaskMetrics = SubtaskMetrics()


class DeclineCheckpoint(msgspec.Struct, tag=True, frozen=True):
    """The subtask declines a checkpoint; `reason` is the name of a FailureReason."""

    checkpoint_id: int
    reason: str
    message: str = ""


class DataFinished(msgspec.Struct, tag=True, frozen=True):
    """The subtask has processed its last record and waits for the final checkpoint."""


class SourceBacklog(msgspec.Struct, tag=True, frozen=True):
    """The source of the subtask processes a backlog, or has caught up."""

    backlog: bool


class AskForSplit(msgspec.Struct, tag=True, frozen=True):
    """The reader of a dynamic source has nothing left to read."""


class AssignSplits(msgspec.Struct, tag=True, frozen=True):
    """Splits for the reader of a dynamic source, in their tagged form; `no_more`: nothing will follow."""

    splits: list[str]
    no_more: bool = False


class HoldWriter(msgspec.Struct, tag=True, frozen=True):
    """Stop the writer of a blocked channel that has spilled much, or (`hold` is false) let it continue."""

    edge: int
    writer: int
    hold: bool


class Hold(msgspec.Struct, tag=True, frozen=True):
    """A reader requests that this subtask emits no more records, or (`hold` is false) withdraws the request."""

    reader: str
    hold: bool


class Accepted(msgspec.Struct, tag=True, frozen=True):
    """The answer to Register."""


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """Stop at once; the worker's attempt is over."""

    reason: str


class Confirm(msgspec.Struct, tag=True, frozen=True):
    """The driver has taken this number of outputs."""

    outputs: int


class StartProcessing(msgspec.Struct, tag=True, frozen=True):
    """Every task of the attempt has restored its state: commit what the checkpoint holds, then take records."""


class TriggerCheckpoint(msgspec.Struct, tag=True, frozen=True):
    """Start a checkpoint here; `barrier` is an encoded Barrier."""

    barrier: bytes


class AnnounceCheckpoint(msgspec.Struct, tag=True, frozen=True):
    """A checkpoint is unaligned, or its aligned timeout has passed."""

    barrier: bytes


class CheckpointComplete(msgspec.Struct, tag=True, frozen=True):
    """A checkpoint is complete; its number in the job log is the last of `commits`."""

    checkpoint_id: int
    commits: Commits


class CheckpointAborted(msgspec.Struct, tag=True, frozen=True):
    """A checkpoint was aborted; `latest_completed` repeats a completion whose notification may have been lost."""

    checkpoint_id: int
    latest_completed: int | None = None
    commits: Commits = Commits()


class EpochCommitted(msgspec.Struct, tag=True, frozen=True):
    """The driver has committed what a sink prepared for checkpoints up to this one; the sink may drop it."""

    operator_id: str
    checkpoint_id: int


class Ping(msgspec.Struct, tag=True, frozen=True):
    """The driver is alive; there is no answer, since metrics show that the worker is."""


FromWorker = (
    Register
    | Restored
    | Running
    | Metrics
    | Output
    | Finished
    | Failed
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | DataFinished
    | HoldWriter
    | SourceBacklog
    | AskForSplit
)
ToSubtask = (
    TriggerCheckpoint
    | AnnounceCheckpoint
    | CheckpointComplete
    | CheckpointAborted
    | Hold
    | AssignSplits
    | EpochCommitted
)
"""Messages that the subtask itself handles, between two steps."""
FromDriver = Accepted | Cancel | Confirm | Ping | StartProcessing | ToSubtask

encode: Callable[[FromWorker | FromDriver], bytes] = msgspec.msgpack.Encoder().encode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
decode_from_driver: Callable[[bytes], FromDriver] = msgspec.msgpack.Decoder(FromDriver).decode
