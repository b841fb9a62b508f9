"""The barriers of a subtask: a gate per delivery mode, and the instructions it gives."""

from headgate.checkpoint.barriers.alignment import BarrierHandler
from headgate.checkpoint.barriers.gate import InputGate
from headgate.checkpoint.barriers.instructions import (
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
from headgate.checkpoint.barriers.tracker import BarrierTracker

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
