"""`pyflink.datastream.window`.

A window of an assigner of your own is stored by the assigner's `get_window_serializer()`. A NamedTuple with `max_timestamp()`
needs none: the assigner names its class as `window_type`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Collection
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

from headrace.api.watermarks import MAX_WATERMARK
from headrace.api.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
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
from headrace.errors import InvalidArgument
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
from headrace.state.api import ValueStateDescriptor

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
    """What windows are: `TimeWindow`, `CountWindow` and `GlobalWindow`."""

    @abstractmethod
    def max_timestamp(self) -> int:
        """The last millisecond that belongs to it."""


class CountWindow(NamedTuple):
    """The window of a number of records; `id` counts the windows of a key."""

    id: int

    def max_timestamp(self) -> int:
        return MAX_WATERMARK


for _window in (TimeWindow, GlobalWindow, CountWindow):
    Window.register(_window)


class SessionWindowTimeGapExtractor(ABC):
    """Says how long the session of a record lasts."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Milliseconds."""


class CountSlidingWindowAssigner(WindowAssigner):
    """Windows of `window_size` records of a key, one beginning every `window_slide` records; they fire when they are full."""

    window_type = CountWindow
    _state = ValueStateDescriptor("slide-count-assigner", "bigint")

    def __init__(self, window_size: int, window_slide: int) -> None:
        if window_size < 1 or window_slide < 1:
            raise InvalidArgument(f"windows by count need a positive size and slide, got {window_size}, {window_slide}")
        self._size, self._slide = window_size, window_slide

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[CountWindow]:
        state = context.get_runtime_context().get_state(self._state)
        before = state.value() or 0
        state.update(before + 1)
        first = max(0, -(-(before - self._size + 1) // self._slide))
        return [CountWindow(number) for number in range(before // self._slide, first - 1, -1)]

    def get_default_trigger(self, env: Any = None) -> Trigger:
        """Fires a full window once, and drops its records."""
        return PurgingTrigger(CountTrigger(self._size))

    def is_event_time(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._slide})"


class CountTumblingWindowAssigner(CountSlidingWindowAssigner):
    """Windows of `window_size` records of a key, one after the other."""

    _state = ValueStateDescriptor("tumble-count-assigner", "bigint")

    def __init__(self, window_size: int) -> None:
        super().__init__(window_size, window_size)

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner:  # type: ignore[override]
        return CountTumblingWindowAssigner(window_size)


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
