"""Windows: how records are divided over them (assigners), when they are computed (triggers), and by what (functions).

Assigners, triggers and evictors are pickled and run in the subtask of the window operator, in its thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from headrace.api.durations import Time, milliseconds_of
from headrace.api.functions import Function, KeyedStateStore, RuntimeContext
from headrace.api.metrics import MetricGroup
from headrace.api.watermarks import MAX_WATERMARK
from headrace.errors import InvalidArgument

__all__ = [
    "AllWindowFunction",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountSlidingWindowAssigner",
    "CountTrigger",
    "CountTumblingWindowAssigner",
    "CountWindow",
    "DeltaEvictor",
    "DeltaTrigger",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "GlobalWindow",
    "GlobalWindows",
    "MergingWindowAssigner",
    "NeverTrigger",
    "ProcessAllWindowFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TimeEvictor",
    "TimeWindow",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
    "WindowFunction",
]

Duration = Time | timedelta | int


class _Subscripted:
    """Type arguments, as PyFlink's classes have them, are for readers only."""

    def __class_getitem__(cls, types: Any) -> type[Self]:
        return cls


# --- windows ----------------------------------------------------------------------------------------------------------


class TimeWindow(NamedTuple):
    """The time from `start` up to, and without, `end`; milliseconds.

    >>> TimeWindow(0, 10).max_timestamp(), TimeWindow(0, 10).intersects(TimeWindow(10, 20))
    (9, True)
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond that belongs to it."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return True if the windows overlap, or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The least window with both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """The start of the window of a size, shifted by an offset, that a time belongs to."""
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: Any) -> None:
        """Call `callback.merge(windows, cover)` for each group of windows that overlap or touch."""
        groups: list[tuple[TimeWindow, list[TimeWindow]]] = []
        for window in sorted(windows):
            if groups and groups[-1][0].intersects(window):
                groups[-1] = groups[-1][0].cover(window), [*groups[-1][1], window]
            else:
                groups.append((window, [window]))
        for cover, members in groups:
            if len(members) > 1:
                callback.merge(members, cover)


class GlobalWindow(NamedTuple):
    """The one window of all records of a key; it has no end."""

    start: int = 0  # a window is a tuple that is not empty, as every namespace of state

    @staticmethod
    def get() -> GlobalWindow:
        """The window."""
        return GlobalWindow()

    def max_timestamp(self) -> int:
        """The end of time."""
        return MAX_WATERMARK


Window = TimeWindow | GlobalWindow


# --- triggers ---------------------------------------------------------------------------------------------------------


class CountWindow(NamedTuple):
    """The window of a number of records; `id` counts the windows of a key."""

    id: int

    def max_timestamp(self) -> int:
        """The end of time: it is full when it has all of its records."""
        return MAX_WATERMARK


class TriggerResult(Enum):
    """The action on a window: `FIRE` computes it, `PURGE` drops its contents."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Return True if the window is computed."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Return True if the contents of the window go."""
        return self.value[1]


class TriggerContext(Protocol):
    """The context of a trigger: time, timers and state of the key and window."""

    def get_current_processing_time(self) -> int: ...

    def get_current_watermark(self) -> int: ...

    def register_processing_time_timer(self, time: int) -> None: ...

    def register_event_time_timer(self, time: int) -> None: ...

    def delete_processing_time_timer(self, time: int) -> None: ...

    def delete_event_time_timer(self, time: int) -> None: ...

    def get_metric_group(self) -> MetricGroup: ...

    def get_partitioned_state(self, state_descriptor: Any) -> Any:
        """State of this key and window."""

    def merge_partitioned_state(self, state_descriptor: Any) -> None:
        """In `on_merge`: the state of the merged windows becomes that of the new one."""


class AssignerContext(Protocol):
    """The context of an assigner: the clock, and state of the key."""

    def get_current_processing_time(self) -> int: ...

    def get_runtime_context(self) -> RuntimeContext: ...

    def number_of_key(self, name: str) -> Any: ...


class MergeCallback(Protocol):
    """Takes the merges of `merge_windows`."""

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None: ...


class Trigger(_Subscripted, ABC):
    """Says when a window is computed, and when its contents go."""

    TriggerContext = OnMergeContext = TriggerContext

    @abstractmethod
    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        """A record was added to the window."""

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        """A processing-time timer of the window is due."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        """An event-time timer of the window is due."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Return True if the trigger supports windows that merge: then it must define `on_merge`."""
        return type(self).on_merge is not Trigger.on_merge

    def on_merge(self, window: Any, ctx: Any) -> None:
        """Windows were merged into this one."""
        raise InvalidArgument(
            "HR-1403", f"{type(self).__name__} does not work with windows that merge: it must define on_merge"
        )

    def clear(self, window: Any, ctx: Any) -> None:
        """The window is over: delete timers and state of the trigger."""


class EventTimeTrigger(Trigger):
    """Fires when the watermark passes the end of the window; at each record that comes later, while that is allowed."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """The trigger: there is nothing to set."""
        return EventTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock passes the end of the window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """The trigger: there is nothing to set."""
        return ProcessingTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: Any) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class NeverTrigger(Trigger):
    """Never fires: the default of global windows."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        """Nothing is to be done."""


class CountTrigger(Trigger):
    """Fires when a window has this many records since it fired last."""

    def __init__(self, window_size: int) -> None:
        if window_size < 1:
            raise InvalidArgument("HR-1402", f"a count must be at least 1, got {window_size}")
        self._window_size = window_size

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        """Fire when a window has this many more records."""
        return CountTrigger(window_size)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        state = ctx.folded_state("trigger-count", _plus)
        state.add(1)
        if state.get() < self._window_size:
            return TriggerResult.CONTINUE
        state.clear()
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_folded_state("trigger-count", _plus)

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.folded_state("trigger-count", _plus).clear()


def _plus(one: int, other: int) -> int:
    return one + other


class _Continuous(Trigger):
    def __init__(self, interval: int) -> None:
        if interval < 1:
            raise InvalidArgument("HR-1402", f"an interval must be at least 1 ms, got {interval}")
        self._interval = interval

    @classmethod
    def of(cls, interval: Duration) -> Self:
        """Fires at each multiple of the interval."""
        return cls(milliseconds_of(interval))

    def _after(self, time: int) -> int:
        return time - time % self._interval + self._interval


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fires every interval of processing time while there are records."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        state = ctx.folded_state("trigger-fire-time", min)
        if state.get() is None:
            self._set(ctx, self._after(ctx.get_current_processing_time()), window)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        state = ctx.folded_state("trigger-fire-time", min)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        self._set(ctx, time + self._interval, window)
        return TriggerResult.FIRE

    def _set(self, ctx: Any, time: int, window: Any) -> None:
        time = min(time, window.max_timestamp())
        ctx.folded_state("trigger-fire-time", min).add(time)
        ctx.register_processing_time_timer(time)

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_folded_state("trigger-fire-time", min)
        time = ctx.folded_state("trigger-fire-time", min).get()
        if time is not None:
            ctx.register_processing_time_timer(time)

    def clear(self, window: Any, ctx: Any) -> None:
        state = ctx.folded_state("trigger-fire-time", min)
        time = state.get()
        if time is not None:
            ctx.delete_processing_time_timer(time)
            state.clear()


class ContinuousEventTimeTrigger(_Continuous):
    """Fires every interval of event time, and when the watermark passes the end of the window."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        if ctx.folded_state("trigger-fire-time", min).get() is None:
            self._set(ctx, self._after(timestamp), window)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        state = ctx.folded_state("trigger-fire-time", min)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        self._set(ctx, time + self._interval, window)
        return TriggerResult.FIRE

    def _set(self, ctx: Any, time: int, window: Any) -> None:
        time = min(time, window.max_timestamp())
        ctx.folded_state("trigger-fire-time", min).add(time)
        ctx.register_event_time_timer(time)

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_folded_state("trigger-fire-time", min)
        time = ctx.folded_state("trigger-fire-time", min).get()
        if time is not None:
            ctx.register_event_time_timer(time)
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        state = ctx.folded_state("trigger-fire-time", min)
        time = state.get()
        if time is not None:
            ctx.delete_event_time_timer(time)
            state.clear()
        ctx.delete_event_time_timer(window.max_timestamp())


class PurgingTrigger(Trigger):
    """Another trigger, whose windows are empty again when they have fired."""

    def __init__(self, nested_trigger: Trigger) -> None:
        self._nested = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        """Purge what the nested trigger fires."""
        return PurgingTrigger(nested_trigger)

    @staticmethod
    def _purged(result: TriggerResult) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        return self._purged(self._nested.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self._purged(self._nested.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self._purged(self._nested.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self._nested.can_merge()

    def on_merge(self, window: Any, ctx: Any) -> None:
        self._nested.on_merge(window, ctx)

    def clear(self, window: Any, ctx: Any) -> None:
        self._nested.clear(window, ctx)


class DeltaTrigger(Trigger):
    """Fires at a record that differs from the one of the last firing by more than a threshold."""

    def __init__(self, threshold: float, delta_function: Callable[[Any, Any], float]) -> None:
        self._threshold, self._delta = threshold, delta_function

    @staticmethod
    def of(threshold: float, delta_function: Callable[[Any, Any], float]) -> DeltaTrigger:
        """`delta_function(old, new)` gives the difference of two records."""
        return DeltaTrigger(threshold, delta_function)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        state = ctx.value_state("trigger-last-element")
        if state.value() is None:
            state.update(element)
        elif self._delta(state.value(), element) > self._threshold:
            state.update(element)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.value_state("trigger-last-element").clear()


# --- assigners --------------------------------------------------------------------------------------------------------


class WindowAssigner(_Subscripted, ABC):
    """Divides records over windows."""

    WindowAssignerContext = AssignerContext

    window_type: ClassVar[type[Any]] = TimeWindow
    """The class of its windows: a NamedTuple with `max_timestamp()`, since a window is stored as a tuple.

    It is not looked at for windows of another class, which `get_window_serializer()` is for.
    """

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[Any]:
        """The windows of a record.

        `context.get_current_processing_time()` is the clock, `context.get_runtime_context()` has state of the key.
        """

    @abstractmethod
    def get_default_trigger(self, env: Any = None) -> Trigger:
        """The trigger of its windows unless another one is set."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return True if windows go by the timestamps of records, and not by the clock."""

    def get_window_serializer(self) -> Any:
        """Return the serializer of windows that are no tuples: `serialize(window, stream)` and `deserialize(stream)`.

        Such windows need `__eq__` and `__hash__`.
        """
        return None


class MergingWindowAssigner(WindowAssigner):
    """Divides records over windows that merge when they meet."""

    MergeCallback = MergeCallback

    @abstractmethod
    def merge_windows(self, windows: Iterable[Any], callback: Any) -> None:
        """Call `callback.merge(windows, result)` for each group of windows that become one."""


class _EventTime:
    def is_event_time(self) -> bool:
        return True

    def get_default_trigger(self, env: Any = None) -> Trigger:
        return EventTimeTrigger()


class _ProcessingTime:
    def is_event_time(self) -> bool:
        return False

    def get_default_trigger(self, env: Any = None) -> Trigger:
        return ProcessingTimeTrigger()


@dataclass(frozen=True, slots=True)
class PanesSpec:
    """Windows of a size that start every `slide` ms, shifted by an offset."""

    size: int
    slide: int
    offset: int

    @staticmethod
    def of(size: Duration, slide: Duration, offset: Duration) -> PanesSpec:
        spec = PanesSpec(milliseconds_of(size), milliseconds_of(slide), milliseconds_of(offset))
        if spec.size <= 0 or spec.slide <= 0 or abs(spec.offset) >= spec.slide:
            raise InvalidArgument(
                "HR-1402",
                f"windows of {spec.size} ms every {spec.slide} ms with an offset of {spec.offset} ms: size and slide must be "
                "positive, and the offset shorter than the slide",
            )
        return spec

    def windows(self, time: int) -> list[TimeWindow]:
        last = TimeWindow.get_window_start_with_offset(time, self.offset, self.slide)
        return [TimeWindow(start, start + self.size) for start in range(last, time - self.size, -self.slide)]


class _Panes(WindowAssigner):
    def __init__(self, spec: PanesSpec) -> None:
        self.spec = spec

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        return self.spec.windows(timestamp)


class TumblingEventTimeWindows(_EventTime, _Panes):
    """Windows of one size, one after the other, by the timestamps of the records."""

    @staticmethod
    def of(size: Duration, offset: Duration = 0) -> TumblingEventTimeWindows:
        """Windows from offset + n * size on; a negative offset starts days of zones east of Greenwich."""
        return TumblingEventTimeWindows(PanesSpec.of(size, size, offset))


class SlidingEventTimeWindows(_EventTime, _Panes):
    """Windows of one size that start every `slide`, by the timestamps of the records."""

    @staticmethod
    def of(size: Duration, slide: Duration, offset: Duration = 0) -> SlidingEventTimeWindows:
        """Windows that start at offset + n * slide."""
        return SlidingEventTimeWindows(PanesSpec.of(size, slide, offset))


class _ClockPanes(_Panes):
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        return self.spec.windows(context.get_current_processing_time())


class TumblingProcessingTimeWindows(_ProcessingTime, _ClockPanes):
    """Windows of one size, one after the other, by the clock."""

    @staticmethod
    def of(size: Duration, offset: Duration = 0) -> TumblingProcessingTimeWindows:
        """Windows from offset + n * size on."""
        return TumblingProcessingTimeWindows(PanesSpec.of(size, size, offset))


class SlidingProcessingTimeWindows(_ProcessingTime, _ClockPanes):
    """Windows of one size that start every `slide`, by the clock."""

    @staticmethod
    def of(size: Duration, slide: Duration, offset: Duration = 0) -> SlidingProcessingTimeWindows:
        """Windows that start at offset + n * slide."""
        return SlidingProcessingTimeWindows(PanesSpec.of(size, slide, offset))


class _Sessions(MergingWindowAssigner):
    def __init__(self, gap: int | Callable[[Any], int]) -> None:
        self._gap = gap

    @classmethod
    def with_gap(cls, size: Duration) -> Self:
        """A session ends when no record comes for this long."""
        gap = milliseconds_of(size)
        if gap <= 0:
            raise InvalidArgument("HR-1402", f"the gap of a session must be positive, got {gap} ms")
        return cls(gap)

    @classmethod
    def with_dynamic_gap(cls, extractor: Any) -> Self:
        """The gap after each record in milliseconds: a callable, or an object with `extract(element)`."""
        return cls(getattr(extractor, "extract", extractor))

    def _session(self, element: Any, time: int) -> list[TimeWindow]:
        gap = self._gap if isinstance(self._gap, int) else self._gap(element)
        if gap <= 0:
            raise InvalidArgument("HR-1402", f"the gap of a session must be positive, got {gap} ms for {element!r}")
        return [TimeWindow(time, time + gap)]

    def merge_windows(self, windows: Iterable[TimeWindow], callback: Any) -> None:
        TimeWindow.merge_windows(windows, callback)


class EventTimeSessionWindows(_EventTime, _Sessions):
    """Sessions by the timestamps of the records."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        return self._session(element, timestamp)


class ProcessingTimeSessionWindows(_ProcessingTime, _Sessions):
    """Sessions by the clock."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[TimeWindow]:
        return self._session(element, context.get_current_processing_time())


class GlobalWindows(WindowAssigner):
    """One window for all records of a key; it needs a trigger."""

    window_type = GlobalWindow
    _ONE: ClassVar = [GlobalWindow()]

    @staticmethod
    def create() -> GlobalWindows:
        """The assigner: there is nothing to set."""
        return GlobalWindows()

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[GlobalWindow]:
        return self._ONE

    def get_default_trigger(self, env: Any = None) -> Trigger:
        return NeverTrigger()

    def is_event_time(self) -> bool:
        return False


# --- evictors ---------------------------------------------------------------------------------------------------------

Stamped = tuple[Any, int]  # a record of a window and its timestamp


class CountSlidingWindowAssigner(WindowAssigner):
    """Windows of `window_size` records of a key, one beginning every `window_slide` records; they fire when they are full."""

    window_type = CountWindow
    _state = "slide-count-assigner"

    def __init__(self, window_size: int, window_slide: int) -> None:
        if window_size < 1 or window_slide < 1:
            raise InvalidArgument(
                "HR-1402", f"windows by count need a positive size and slide, got {window_size}, {window_slide}"
            )
        self._size, self._slide = window_size, window_slide

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        """Create the assigner."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Collection[CountWindow]:
        state = context.number_of_key(self._state)
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

    _state = "tumble-count-assigner"

    def __init__(self, window_size: int) -> None:
        super().__init__(window_size, window_size)

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner:  # type: ignore[override]
        """Create the assigner."""
        return CountTumblingWindowAssigner(window_size)


class Evictor:
    """Removes records from a window before or after its function is called."""

    def evict_before(self, elements: Sequence[Stamped], window: Any, context: Any) -> Sequence[Stamped]:
        """The records that stay, of all (record, timestamp), oldest first."""
        return elements

    def evict_after(self, elements: Sequence[Stamped], window: Any, context: Any) -> Sequence[Stamped]:
        """The records that stay for the next time the window is computed."""
        return elements


class _BeforeOrAfter(Evictor):
    def __init__(self, after: bool) -> None:
        self._after = after

    def evict_before(self, elements: Sequence[Stamped], window: Any, context: Any) -> Sequence[Stamped]:
        return elements if self._after else self._kept(elements)

    def evict_after(self, elements: Sequence[Stamped], window: Any, context: Any) -> Sequence[Stamped]:
        return self._kept(elements) if self._after else elements

    def _kept(self, elements: Sequence[Stamped]) -> Sequence[Stamped]:
        raise NotImplementedError


class CountEvictor(_BeforeOrAfter):
    """Keeps at most this many records, the last ones."""

    def __init__(self, max_count: int, after: bool = False) -> None:
        super().__init__(after)
        self._max_count = max_count

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Keep this many records, before or after the function is called."""
        return CountEvictor(max_count, do_evict_after)

    def _kept(self, elements: Sequence[Stamped]) -> Sequence[Stamped]:
        return elements[-self._max_count :] if self._max_count else []


class TimeEvictor(_BeforeOrAfter):
    """Keeps the records whose timestamps are less than a length of time before the greatest one."""

    def __init__(self, window_size: int, after: bool = False) -> None:
        super().__init__(after)
        self._size = window_size

    @staticmethod
    def of(window_size: Duration, do_evict_after: bool = False) -> TimeEvictor:
        """Keep the records of this length of time before the greatest timestamp."""
        return TimeEvictor(milliseconds_of(window_size), do_evict_after)

    def _kept(self, elements: Sequence[Stamped]) -> Sequence[Stamped]:
        oldest = max((stamp for _, stamp in elements), default=0) - self._size
        return [one for one in elements if one[1] > oldest]


class DeltaEvictor(_BeforeOrAfter):
    """Keeps the records that differ from the last one by less than a threshold."""

    def __init__(self, threshold: float, delta_function: Callable[[Any, Any], float], after: bool = False) -> None:
        super().__init__(after)
        self._threshold, self._delta = threshold, delta_function

    @staticmethod
    def of(threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool = False) -> DeltaEvictor:
        """`delta_function(record, last)` gives the difference of a record and the last one."""
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _kept(self, elements: Sequence[Stamped]) -> Sequence[Stamped]:
        return [one for one in elements if self._delta(one[0], elements[-1][0]) < self._threshold]


# --- functions --------------------------------------------------------------------------------------------------------


class WindowFunction(_Subscripted, Function, ABC):
    """Computes a window of a keyed stream."""

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        """Yield or return any number of records."""


class AllWindowFunction(_Subscripted, Function, ABC):
    """Computes a window of all records."""

    @abstractmethod
    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        """Yield or return any number of records."""


class ProcessWindowFunction(_Subscripted, Function, ABC):
    """Computes a window of a keyed stream, with state of the window and of the key."""

    class Context(Protocol):
        """The window that is computed."""

        def __class_getitem__(cls, _: Any) -> Any:
            return cls

        def window(self) -> Any: ...

        def current_processing_time(self) -> int: ...

        def current_watermark(self) -> int: ...

        def window_state(self) -> KeyedStateStore:
            """State of this key and window; `clear` must clear it. Windows that merge have none."""

        def global_state(self) -> KeyedStateStore:
            """State of this key over all windows."""

    @abstractmethod
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        """Yield or return any number of records."""

    def clear(self, context: Any) -> None:
        """The window is over: clear its `window_state`."""


class ProcessAllWindowFunction(_Subscripted, Function, ABC):
    """Computes a window of all records, with state."""

    Context = ProcessWindowFunction.Context

    @abstractmethod
    def process(self, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        """Yield or return any number of records."""

    def clear(self, context: Any) -> None:
        """The window is over: clear its `window_state`."""
