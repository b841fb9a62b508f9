"""The instructions of an input gate to its subtask: frozen values, carried out at once and in the given order."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import msgspec

from headrace.checkpoint.reasons import FailureReason
from headrace.checkpoint.types import Barrier

ChannelId: TypeAlias = Hashable
"""The name of a channel: (edge, writer) of a frame, or any other name for restored in-flight rows."""


class AlignmentMetrics(msgspec.Struct, frozen=True):
    """The arrival of a subtask's barriers (SPEC R10.2); times in ms.

    `start_delay` is from the trigger to the first barrier (or announcement), `alignment` from there to the last one,
    `processed_bytes` what was processed in between. `persisted_bytes` is filled in by the caller, who stores the rows.
    """

    start_delay: int = 0
    alignment: int = 0
    processed_bytes: int = 0
    persisted_bytes: int = 0


class Block(msgspec.Struct, frozen=True):
    """Process nothing more of the channel: its barrier has been reached. Reading goes on."""

    channel: ChannelId


class Unblock(msgspec.Struct, frozen=True):
    """Process the channels again, from the first row behind their barrier."""

    channels: tuple[ChannelId, ...]


class StartCapture(msgspec.Struct, frozen=True):
    """Store the in-flight data of the channels: records only, no events and no watermarks.

    It is (1) what is left of a batch that is being processed, (2) what waits in the channel's queue, as far as the
    barrier of the checkpoint if that is there already, (3) what is read until StopCapture. The rows stay in their
    queues and are processed later as usual.
    """

    checkpoint_id: int
    channels: tuple[ChannelId, ...]


class StopCapture(msgspec.Struct, frozen=True):
    """Stop storing records of the channels; records that are stored already stay."""

    checkpoint_id: int
    channels: tuple[ChannelId, ...]


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Take the subtask's part of a checkpoint, as one step as seen from records and timers (SPEC R6.1).

    The order: (1) the operators' pre-barrier hook, (2) flush and broadcast `barrier` downstream, (3) the synchronous
    snapshot, (4) start the asynchronous write. If it is not `unaligned`, acknowledge when the write is done, with
    `metrics`; if it is, wait for CaptureComplete too, whose metrics count.
    """

    barrier: Barrier
    unaligned: bool
    metrics: AlignmentMetrics


class CaptureComplete(msgspec.Struct, frozen=True):
    """The in-flight data of an unaligned checkpoint is whole: acknowledge when it and the state are written."""

    checkpoint_id: int
    metrics: AlignmentMetrics


class Decline(msgspec.Struct, frozen=True):
    """Decline the checkpoint and discard what is held for it."""

    checkpoint_id: int
    reason: FailureReason


class SendCancelMarker(msgspec.Struct, frozen=True):
    """Send a cancel marker to all readers downstream: no barrier of the checkpoint follows."""

    checkpoint_id: int


Instruction: TypeAlias = (
    Block | Unblock | StartCapture | StopCapture | TakeSnapshot | CaptureComplete | Decline | SendCancelMarker
)
