"""The barrier of a checkpoint and its options, as plain data (SPEC R6.1, R6.4); made on the driver, used everywhere.

The same barrier goes through the channels (the body of a BARRIER frame) and over the control plane (triggers and
announcements), so that a subtask treats both alike.
"""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec

from headrace.errors import InvalidArgument


class SnapshotType(Enum):
    """The kind of a snapshot; the values are stored in `_metadata`, the names are Flink's and appear in REST."""

    CHECKPOINT = "checkpoint"
    FULL_CHECKPOINT = "full checkpoint"  # builds on nothing older; later ones may build on it (SPEC R7.6)
    SAVEPOINT = "savepoint"
    SYNC_SAVEPOINT = "sync savepoint"  # the job stops when it is complete (SPEC R8.3)

    @property
    def is_savepoint(self) -> bool:
        """Return True if it belongs to the user: never aged out, and always aligned in exactly-once mode."""
        return self in {SnapshotType.SAVEPOINT, SnapshotType.SYNC_SAVEPOINT}


class AlignmentKind(StrEnum):
    """The treatment of a checkpoint's barriers.

    Forced alignment (SPEC R6.4) is not a kind: it is a property of an edge, known to the reader of the edge.
    """

    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    ALIGNED = "ALIGNED"
    UNALIGNED = "UNALIGNED"
    ALIGNED_WITH_TIMEOUT = "ALIGNED_WITH_TIMEOUT"


class SavepointFormat(StrEnum):
    """The format of a savepoint (SPEC R8.2)."""

    CANONICAL = "CANONICAL"
    NATIVE = "NATIVE"


class CheckpointOptions(msgspec.Struct, frozen=True, array_like=True):
    """The options of a checkpoint; the same for every subtask.

    `timeout_ms` belongs to ALIGNED_WITH_TIMEOUT, `format` to savepoints, `drain` to a stop-with-savepoint that ends
    the job for good (timers fire, windows flush). `location` is where the snapshot goes; empty: the job's own directory.

    >>> CheckpointOptions(SnapshotType.SAVEPOINT, AlignmentKind.UNALIGNED, format=SavepointFormat.NATIVE)
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-9001] a savepoint cannot be unaligned
    """

    type: SnapshotType = SnapshotType.CHECKPOINT
    alignment: AlignmentKind = AlignmentKind.ALIGNED
    timeout_ms: int | None = None
    location: str = ""
    format: SavepointFormat | None = None
    drain: bool = False

    def __post_init__(self) -> None:
        """Refuse contradictions."""
        savepoint = self.type.is_savepoint
        if savepoint and self.alignment in {AlignmentKind.UNALIGNED, AlignmentKind.ALIGNED_WITH_TIMEOUT}:
            raise InvalidArgument("HR-9001", "a savepoint cannot be unaligned")
        if self.alignment is AlignmentKind.ALIGNED_WITH_TIMEOUT:
            if self.timeout_ms is None or self.timeout_ms <= 0:
                raise InvalidArgument("HR-9001", f"an aligned timeout must be more than 0 ms, got {self.timeout_ms}")
        elif self.timeout_ms is not None:
            raise InvalidArgument("HR-9001", f"a checkpoint of kind {self.alignment} has no aligned timeout")
        if savepoint != (self.format is not None):
            raise InvalidArgument("HR-9001", "a savepoint needs a format, and only a savepoint has one")
        if self.drain and self.type is not SnapshotType.SYNC_SAVEPOINT:
            raise InvalidArgument("HR-9001", "only a stop-with-savepoint can drain")

    @property
    def exactly_once(self) -> bool:
        """Return True if channels are blocked, or their content stored, so that no record counts twice."""
        return self.alignment is not AlignmentKind.AT_LEAST_ONCE

    @property
    def unaligned(self) -> bool:
        """Return True if the barrier overtakes records now."""
        return self.alignment is AlignmentKind.UNALIGNED


class Barrier(msgspec.Struct, frozen=True, array_like=True):
    """The cut between the records before and behind a checkpoint.

    >>> barrier = Barrier(7, 1000, CheckpointOptions(alignment=AlignmentKind.ALIGNED_WITH_TIMEOUT, timeout_ms=50))
    >>> barrier.deadline, Barrier.decode(barrier.encode()) == barrier
    (1050, True)
    """

    id: int
    timestamp: int
    """When the coordinator triggered it, in ms of the driver's clock."""
    options: CheckpointOptions = CheckpointOptions()

    def encode(self) -> bytes:
        """The body of a BARRIER frame."""
        return _encoder.encode(self)

    @staticmethod
    def decode(data: bytes | memoryview) -> Barrier:
        """The barrier of a frame's body; msgspec.DecodeError if it is none."""
        return _decoder.decode(data)

    @property
    def deadline(self) -> int | None:
        """The time at which an alignment turns unaligned, counted from the trigger (SPEC R6.6)."""
        timeout = self.options.timeout_ms
        return None if timeout is None else self.timestamp + timeout

    def as_unaligned(self) -> Barrier:
        """The same barrier, which does not wait for alignment any more.

        >>> Barrier(7, 1000).as_unaligned().options.alignment
        <AlignmentKind.UNALIGNED: 'UNALIGNED'>
        """
        if self.options.unaligned:
            return self
        options = msgspec.structs.replace(self.options, alignment=AlignmentKind.UNALIGNED, timeout_ms=None)
        return Barrier(self.id, self.timestamp, options)


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Barrier] = msgspec.msgpack.Decoder(Barrier)
