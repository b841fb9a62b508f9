"""The typed messages between the driver and its subtasks."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from headgate.checkpoint.commits import Commits
from headgate.checkpoint.plan import TaskReport
from headgate.checkpoint.stats import SubtaskMetrics
from headgate.ids import OperatorId
from headgate.storage.manifest import StatePiece

__all__ = [
    "Accepted",
    "AcknowledgeCheckpoint",
    "AnnounceCheckpoint",
    "AskForSplit",
    "AssignSplits",
    "Cancel",
    "CheckpointAborted",
    "CheckpointComplete",
    "Confirm",
    "DataFinished",
    "DeclineCheckpoint",
    "EpochCommitted",
    "Failed",
    "FailureKind",
    "Finished",
    "FromDriver",
    "FromWorker",
    "Hold",
    "HoldWriter",
    "Metrics",
    "Output",
    "Ping",
    "Register",
    "Running",
    "SourceBacklog",
    "TaskState",
    "TriggerCheckpoint",
    "decode_from_driver",
    "decode_from_worker",
    "encode",
]


class Register(msgspec.Struct, tag=True, frozen=True):
    """First message of a worker: who it is, and for which attempt it runs."""

    level: int
    index: int
    attempt: int
    host: str
    pid: int


class Running(msgspec.Struct, tag=True, frozen=True):
    """The subtask has opened its operators and takes records."""


class Metrics(msgspec.Struct, tag=True, frozen=True):
    """Counters of a subtask since its start, sent once a second."""

    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    busy_ms: int
    back_pressured_ms: int
    idle_ms: int
    queued_bytes: int
    resident_bytes: int
    restored_bytes: int = 0
    restore_bytes: int = 0  # what is to be restored
    restored_locally: int = 0  # of the restored ones: from copies on the worker's host
    corrupt_records: int = 0  # that a source could not read


class Output(msgspec.Struct, tag=True, frozen=True):
    """Printed lines or collected records for the driver; confirmed, so that a worker has only so many under way."""

    channel: str  # "" = printed lines
    payload: bytes
    records: int


class Finished(msgspec.Struct, tag=True, frozen=True):
    """The subtask ended well; its Spark task may go on, as long as the level before does."""


FailureKind = Literal["user", "runtime", "lost", "victim"]
"""User code failed, the runtime did, a worker was lost, or the task is only the victim of another one that died."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The subtask failed: the operator, the user's line, the key, and the trace."""

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
    """The subtask has no part in a checkpoint; `reason` is the name of a FailureReason."""

    checkpoint_id: int
    reason: str
    message: str = ""


class DataFinished(msgspec.Struct, tag=True, frozen=True):
    """The subtask has processed its last record and waits for the final checkpoint."""


class SourceBacklog(msgspec.Struct, tag=True, frozen=True):
    """The source of the subtask works off a backlog, or has caught up."""

    backlog: bool


class AskForSplit(msgspec.Struct, tag=True, frozen=True):
    """The reader of a dynamic source has nothing left to read."""


class AssignSplits(msgspec.Struct, tag=True, frozen=True):
    """Splits for the reader of a dynamic source, in their tagged form; `no_more`: nothing will follow."""

    splits: list[str]
    no_more: bool = False


class HoldWriter(msgspec.Struct, tag=True, frozen=True):
    """A blocked channel of the subtask has spilled much: hold its writer back, or (`hold` is false) let it go on."""

    edge: int
    writer: int
    hold: bool


class Hold(msgspec.Struct, tag=True, frozen=True):
    """A reader wants this subtask to make no more records, or (`hold` is false) wants it no longer."""

    reader: str
    hold: bool


class Accepted(msgspec.Struct, tag=True, frozen=True):
    """The driver knows the worker."""


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """Stop at once; the worker's attempt is over."""

    reason: str


class Confirm(msgspec.Struct, tag=True, frozen=True):
    """So many outputs were taken."""

    outputs: int


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
    """A checkpoint was given up; `latest_completed` stands for a completion that may not have been heard of."""

    checkpoint_id: int
    latest_completed: int | None = None
    commits: Commits = Commits()


class EpochCommitted(msgspec.Struct, tag=True, frozen=True):
    """What was prepared for checkpoints up to this one is committed: the sink need not keep it any more."""

    operator_id: str
    checkpoint_id: int


class Ping(msgspec.Struct, tag=True, frozen=True):
    """The driver lives; the worker answers nothing, its metrics show that it lives too."""


FromWorker = (
    Register
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
FromDriver = (
    Accepted
    | Cancel
    | Confirm
    | Ping
    | TriggerCheckpoint
    | AnnounceCheckpoint
    | CheckpointComplete
    | CheckpointAborted
    | Hold
    | AssignSplits
    | EpochCommitted
)

_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_driver: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)


def encode(message: FromWorker | FromDriver) -> bytes:
    """A message as bytes.

    >>> decode_from_driver(encode(Ping()))
    Ping()
    """
    return _encoder.encode(message)


def decode_from_worker(data: bytes) -> FromWorker:
    """A message of a worker; msgspec.DecodeError if it is none."""
    return _from_worker.decode(data)


def decode_from_driver(data: bytes) -> FromDriver:
    """A message of the driver; msgspec.DecodeError if it is none."""
    return _from_driver.decode(data)
