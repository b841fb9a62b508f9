"""Joins of two streams: over windows (join, co-group), and of records that are close in time (interval join)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

from headrace.api.call_site import call_site
from headrace.api.durations import milliseconds_of
from headrace.api.functions import Function, callable_of
from headrace.api.windows import Duration, Evictor, Trigger, WindowAssigner, WindowFunction
from headrace.errors import GraphError, InvalidArgument
from headrace.graph.job_graph import OutputTag

__all__ = [
    "CoGroupFunction",
    "CoGroupedStreams",
    "FlatJoinFunction",
    "IntervalJoin",
    "JoinFunction",
    "JoinedStreams",
    "ProcessJoinFunction",
]


S = TypeVar("S")  # the stream of results, a `DataStream`


class JoinFunction(Function, ABC):
    """Makes one record of each pair of a window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """The record of a pair."""


class FlatJoinFunction(Function, ABC):
    """Makes any number of records of each pair of a window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any]:
        """Yield or return any number of records."""


class CoGroupFunction(Function, ABC):
    """Takes all records of a key and window, of both streams; one side may have none."""

    @abstractmethod
    def co_group(self, first: list[Any], second: list[Any]) -> Iterable[Any]:
        """Yield or return any number of records."""


class ProcessJoinFunction(Function, ABC):
    """Takes each pair of records whose times are close enough."""

    class Context(Protocol):
        """The timestamps of a pair."""

        def get_left_timestamp(self) -> int: ...

        def get_right_timestamp(self) -> int: ...

        def get_timestamp(self) -> int:
            """The greater one, which the output has too."""

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterable[Any]:
        """Yield or return any number of records."""


class _Sides(WindowFunction):
    """Divides the records of a window by their stream."""

    def __init__(self, compute: Callable[[list[Any], list[Any]], Iterable[Any]], function: Any) -> None:
        self._compute, self._function = compute, function

    def open(self, runtime_context: Any) -> None:
        if hasattr(self._function, "open"):
            self._function.open(runtime_context)

    def close(self) -> None:
        if hasattr(self._function, "close"):
            self._function.close()

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        sides: tuple[list[Any], list[Any]] = ([], [])
        for side, value in inputs:
            sides[side].append(value)
        return self._compute(*sides) or ()


class _TwoStreams(Generic[S]):
    """`first.join(second).where(key).equal_to(key).window(assigner).apply(function)`."""

    def __init__(self, first: Any, second: Any) -> None:
        self._streams, self._keys = (first, second), [None, None]
        self._windows: WindowAssigner | None = None
        self._settings: list[Callable[[Any], Any]] = []

    def where(self, key_selector: Any) -> Self:
        """The key of the first stream."""
        self._keys[0] = key_selector
        return self

    def equal_to(self, key_selector: Any) -> Self:
        """The key of the second stream."""
        self._keys[1] = key_selector
        return self

    def window(self, window_assigner: WindowAssigner) -> Self:
        """Divide the records of both streams into windows."""
        self._windows = window_assigner
        return self

    def trigger(self, trigger: Trigger) -> Self:
        """Compute windows when the trigger says so."""
        self._settings.append(lambda windows: windows.trigger(trigger))
        return self

    def evictor(self, evictor: Evictor) -> Self:
        """Remove records before or after a window is computed."""
        self._settings.append(lambda windows: windows.evictor(evictor))
        return self

    def allowed_lateness(self, time_ms: Duration) -> Self:
        """Keep a window so much longer than its end by event time."""
        self._settings.append(lambda windows: windows.allowed_lateness(time_ms))
        return self

    def _apply(self, function: Any, compute: Callable[[list[Any], list[Any]], Iterable[Any]], output_type: object) -> S:
        if None in self._keys or self._windows is None:
            raise GraphError(
                "HR-1212",
                f"a join needs where(key), equal_to(key) and window(assigner) before apply(function), called at {call_site()}",
            )
        calls = ("where()", "equal_to()")
        select = [self._selector(*one) for one in zip(self._streams, self._keys, calls, strict=True)]
        first, second = (stream.map(_Tag(side)) for side, stream in enumerate(self._streams))
        keyed = first.union(second).key_by(lambda row: select[row[0]](row[1]))
        windows = keyed.window(self._windows)
        for setting in self._settings:
            windows = setting(windows)
        joined: S = windows.apply(_Sides(compute, function), output_type)
        return joined

    @staticmethod
    def _selector(stream: Any, key: Any, call: str) -> Callable[[Any], Any]:
        if isinstance(key, str | int):
            position = stream._position(key, call)
            return lambda value: value[position]
        return callable_of(key, "get_key", call)


class _Tag:
    """Says which stream a record is of."""

    def __init__(self, side: int) -> None:
        self._side = side

    def __call__(self, value: Any) -> tuple[int, Any]:
        return self._side, value


class JoinedStreams(_TwoStreams[S]):
    """Pairs of records with the same key in the same window."""

    def apply(self, function: Any, output_type: object = None) -> S:
        """A callable, a JoinFunction (one record of each pair) or a FlatJoinFunction (any number)."""
        join = callable_of(function, "join", "join()")
        if isinstance(function, FlatJoinFunction):
            return self._apply(
                function, lambda one, two: [r for a in one for b in two for r in join(a, b) or ()], output_type
            )
        return self._apply(function, lambda one, two: [join(a, b) for a in one for b in two], output_type)


class CoGroupedStreams(_TwoStreams[S]):
    """All records of a key and window, of both streams."""

    def apply(self, function: Any, output_type: object = None) -> S:
        """A callable (first, second), or a CoGroupFunction."""
        return self._apply(function, callable_of(function, "co_group", "co_group()"), output_type)


class IntervalJoin(Generic[S]):
    """`left.interval_join(right).between(lower, upper).process(function)`."""

    def __init__(self, left: Any, right: Any) -> None:
        self._left, self._right = left, right
        self._bounds: tuple[int, int] | None = None
        self._late: tuple[OutputTag | None, OutputTag | None] = (None, None)

    def between(self, lower_bound: Duration, upper_bound: Duration) -> Self:
        """Join where right's timestamp is from left's + lower to left's + upper, both included."""
        lower, upper = milliseconds_of(lower_bound), milliseconds_of(upper_bound)
        if lower > upper:
            raise InvalidArgument(
                "HR-1402", f"the lower bound ({lower} ms) is greater than the upper bound ({upper} ms)"
            )
        self._bounds = lower, upper
        return self

    def lower_bound_exclusive(self) -> Self:
        """Leave out pairs that are exactly at the lower bound."""
        lower, upper = self._checked()
        return self.between(lower + 1, upper)

    def upper_bound_exclusive(self) -> Self:
        """Leave out pairs that are exactly at the upper bound."""
        lower, upper = self._checked()
        return self.between(lower, upper - 1)

    def side_output_left_late_data(self, output_tag: OutputTag) -> Self:
        """Send records of the first stream that are behind the watermark to a side output, in place of dropping them."""
        self._late = (output_tag, self._late[1])
        return self

    def side_output_right_late_data(self, output_tag: OutputTag) -> Self:
        """The same for the second stream."""
        self._late = (self._late[0], output_tag)
        return self

    def process(self, process_join_function: Any, output_type: object = None) -> S:
        """Call a ProcessJoinFunction with each pair."""
        callable_of(process_join_function, "process_element", "interval_join()")
        joined: S = self._left.connect(self._right)._interval_join(
            process_join_function, self._checked(), self._late, output_type
        )
        return joined

    def _checked(self) -> tuple[int, int]:
        if self._bounds is None:
            raise GraphError(
                "HR-1212",
                f"an interval join needs between(lower, upper) before process(function), called at {call_site()}",
            )
        return self._bounds
