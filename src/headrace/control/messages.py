"""The messages between the driver and its subtasks, as typed structures with tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from headrace.checkpoint.commits import Commits
from headrace.checkpoint.plan import TaskReport
from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.stats import SubtaskMetrics
from headrace.ids import OperatorId
from headrace.storage.manifest import StatePiece


class Register(msgspec.Struct, tag=True, frozen=True):
    """First message of a worker: its task and its attempt."""

    level: int
    index: int
    attempt: int
    host: str
    pid: int
    stage: int = -1
    """Spark's stage, if it is a task of one."""


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
    late_records: int = 0  # that were too late for their windows
    watermark: int | None = None  # its event-time clock, once it has moved
    spilled_bytes: int = 0  # rows of blocked channels that wait on disk
    operators: dict[str, dict[str, float]] = {}  # by operator: what only it measures
    user: dict[str, float] = {}  # metrics of the user's functions: `operator.group.name` -> value


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
    subtask: int | None = None  # filled in by the driver


TaskState: TypeAlias = dict[OperatorId, tuple[StatePiece, ...]]
"""What one subtask wrote at one checkpoint."""


class AcknowledgeCheckpoint(msgspec.Struct, tag=True, frozen=True):
    """The subtask has written its part of a checkpoint."""

    checkpoint_id: int
    state: TaskState
    report: TaskReport = TaskReport()
    metrics: SubtaskMetrics = SubtaskMetrics()


class DeclineCheckpoint(msgspec.Struct, tag=True, frozen=True):
    """The subtask declines a checkpoint."""

    checkpoint_id: int
    reason: FailureReason
    message: str = ""


class DataFinished(msgspec.Struct, tag=True, frozen=True):
    """The subtask has processed its last record and waits for the final checkpoint."""


class SourceBacklog(msgspec.Struct, tag=True, frozen=True):
    """The source of the subtask processes a backlog, or has caught up."""

    backlog: bool


class SourceWatermark(msgspec.Struct, tag=True, frozen=True):
    """The watermark of a source that is aligned with others; None while it is idle."""

    watermark: int | None


class AskForSplit(msgspec.Struct, tag=True, frozen=True):
    """The reader of a dynamic source has nothing left to read."""


class AssignSplits(msgspec.Struct, tag=True, frozen=True):
    """Splits for the reader of a dynamic source, in their tagged form; `no_more`: nothing will follow."""

    splits: list[str]
    no_more: bool = False


class StackSample(msgspec.Struct, tag=True, frozen=True):
    """The answer to `SampleStacks`: how often each stack was seen; frames are separated by lines, the outermost first."""

    question: int
    on_cpu: dict[str, int]
    off_cpu: dict[str, int]  # waiting, or blocked by its readers


class RecordSample(msgspec.Struct, tag=True, frozen=True):
    """The answer to `SampleRecords`."""

    question: int
    records: list[str]


class PauseWriter(msgspec.Struct, tag=True, frozen=True):
    """Request that the writer of a blocked channel that has spilled much pauses, or (`paused` is false) continues."""

    edge: int
    writer: int
    paused: bool


class Pause(msgspec.Struct, tag=True, frozen=True):
    """A reader, or the alignment of sources, requests that this subtask emits no more records, or withdraws the request."""

    requester: str
    paused: bool


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


class SampleStacks(msgspec.Struct, tag=True, frozen=True):
    """Look this often at what the subtask's thread is doing."""

    question: int
    samples: int
    interval_ms: int


class SampleRecords(msgspec.Struct, tag=True, frozen=True):
    """Show some of the records that were sent last."""

    question: int
    count: int


Probe: TypeAlias = SampleStacks | SampleRecords
"""Questions that a worker answers beside the work of its subtask."""


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
    | PauseWriter
    | SourceBacklog
    | SourceWatermark
    | AskForSplit
    | StackSample
    | RecordSample
)
ToSubtask = (
    TriggerCheckpoint
    | AnnounceCheckpoint
    | CheckpointComplete
    | CheckpointAborted
    | Pause
    | AssignSplits
    | EpochCommitted
)
"""Messages that the subtask itself handles, between two steps."""
FromDriver = Accepted | Cancel | Confirm | Ping | Probe | StartProcessing | ToSubtask

_encode = msgspec.msgpack.Encoder().encode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
decode_from_driver: Callable[[bytes], FromDriver] = msgspec.msgpack.Decoder(FromDriver).decode


def encode(message: FromWorker | FromDriver) -> bytes:
    """A message as bytes. Text that UTF-8 cannot carry is escaped: a message that fails would end the stream of the worker."""
    try:
        return _encode(message)
    except UnicodeEncodeError:  # lone surrogates, as bytes that were decoded with `surrogateescape` have them
        return _encode(escaped(msgspec.to_builtins(message, builtin_types=(bytes,))))


def escaped(value: Any) -> Any:
    r"""A document whose texts UTF-8 can carry: lone surrogates become escapes.

    >>> escaped({"name": ["whole", "half \udcff"]})
    {'name': ['whole', 'half \\udcff']}
    """
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {escaped(key): escaped(one) for key, one in value.items()}
        case list() | tuple():
            return [escaped(one) for one in value]
    return value
