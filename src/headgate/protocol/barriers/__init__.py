"""The barriers of a subtask: a gate per delivery mode, and the instructions it gives."""

from headgate.protocol.barriers.alignment import BarrierHandler
from headgate.protocol.barriers.gate import InputGate
from headgate.protocol.barriers.instructions import (
    AlignmentMetrics,
    Block,
    CaptureComplete,
    ChannelId,
    Decline,
    Instruction,
    SendCancelMarker,
    StartCapture,
    StopCapture,
    TakeSnapshot,
    Unblock,
)
from headgate.protocol.barriers.tracker import BarrierTracker

__all__ = [
    "AlignmentMetrics",
    "BarrierHandler",
    "BarrierTracker",
    "Block",
    "CaptureComplete",
    "ChannelId",
    "Decline",
    "InputGate",
    "Instruction",
    "SendCancelMarker",
    "StartCapture",
    "StopCapture",
    "TakeSnapshot",
    "Unblock",
]
