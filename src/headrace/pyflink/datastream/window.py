"""`pyflink.datastream.window`.

A window of an assigner of your own is stored by the assigner's `get_window_serializer()`. A NamedTuple with `max_timestamp()`
needs none: the assigner names its class as `window_type`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from io import BytesIO
from typing import Any, TypeVar

from headrace.api.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    MergingWindowAssigner,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from headrace.pyflink.common.constants import MAX_LONG_VALUE as MAX_LONG_VALUE
from headrace.pyflink.common.constants import MIN_LONG_VALUE as MIN_LONG_VALUE
from headrace.pyflink.common.serializer import TypeSerializer
from headrace.pyflink.common.time import Duration as Duration
from headrace.pyflink.common.time import Time as Time
from headrace.pyflink.common.typeinfo import Types as Types
from headrace.pyflink.datastream.functions import IN as IN
from headrace.pyflink.datastream.functions import KEY as KEY
from headrace.pyflink.datastream.functions import OUT as OUT
from headrace.pyflink.datastream.functions import W2 as W2
from headrace.pyflink.datastream.functions import ReduceFunction as ReduceFunction
from headrace.pyflink.datastream.functions import RuntimeContext as RuntimeContext
from headrace.pyflink.datastream.functions import W as W
from headrace.pyflink.datastream.output_tag import OutputTag as OutputTag
from headrace.state.api import ReducingState as ReducingState
from headrace.state.api import ReducingStateDescriptor as ReducingStateDescriptor
from headrace.state.api import State as State
from headrace.state.api import StateDescriptor as StateDescriptor

__all__ = [
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountSlidingWindowAssigner",
    "CountTrigger",
    "CountTumblingWindowAssigner",
    "CountWindow",
    "CountWindowSerializer",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "GlobalWindow",
    "GlobalWindowSerializer",
    "GlobalWindows",
    "MergingWindowAssigner",
    "NeverTrigger",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TimeWindow",
    "TimeWindowSerializer",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
]

T = TypeVar("T")

DynamicEventTimeSessionWindows = EventTimeSessionWindows
DynamicProcessingTimeSessionWindows = ProcessingTimeSessionWindows


class Window(ABC):
    """The base of `TimeWindow`, `CountWindow` and `GlobalWindow`."""

    @abstractmethod
    def max_timestamp(self) -> int:
        """The last millisecond that belongs to it."""


for _window in (TimeWindow, GlobalWindow, CountWindow):
    Window.register(_window)


class SessionWindowTimeGapExtractor(ABC):
    """Says how long the session of a record lasts."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Milliseconds."""


class TimeWindowSerializer(TypeSerializer[TimeWindow]):
    """Two numbers of 64 bits."""

    def serialize(self, element: TimeWindow, stream: BytesIO) -> None:
        stream.write(struct.pack(">qq", *element))

    def deserialize(self, stream: BytesIO) -> TimeWindow:
        return TimeWindow(*struct.unpack(">qq", stream.read(16)))


class CountWindowSerializer(TypeSerializer[CountWindow]):
    """A number of 64 bits."""

    def serialize(self, element: CountWindow, stream: BytesIO) -> None:
        stream.write(struct.pack(">q", element.id))

    def deserialize(self, stream: BytesIO) -> CountWindow:
        return CountWindow(*struct.unpack(">q", stream.read(8)))


class GlobalWindowSerializer(TypeSerializer[GlobalWindow]):
    """One byte."""

    def serialize(self, element: GlobalWindow, stream: BytesIO) -> None:
        stream.write(b"\0")

    def deserialize(self, stream: BytesIO) -> GlobalWindow:
        stream.read(1)
        return GlobalWindow()
