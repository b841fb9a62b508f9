"""Streams that are divided into windows, in PyFlink's spelling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from headrace.api.call_site import call_site
from headrace.api.durations import milliseconds_of
from headrace.api.functions import AggregateFunction, callable_of
from headrace.api.specs import (
    AggregatedContents,
    Aggregation,
    ReducedContents,
    WindowColumnsSpec,
    WindowComputation,
    WindowSpec,
)
from headrace.api.windows import (
    Duration,
    EventTimeTrigger,
    Evictor,
    MergingWindowAssigner,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TimeWindow,
    Trigger,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from headrace.errors import GraphError, InvalidArgument
from headrace.graph.job_graph import KeySpec, OperatorSpec, OutputTag
from headrace.records.types import TypeInformation, as_type

__all__ = ["AllWindowedStream", "WindowedStream"]


class NamedStream(Protocol):
    """The stream of results, a `DataStream`."""

    def name(self, name: str) -> Self: ...

    def force_non_parallel(self) -> Self: ...


S = TypeVar("S", bound=NamedStream)
R_co = TypeVar("R_co", bound=NamedStream, covariant=True)


class WindowInput(Protocol[R_co]):
    """The keyed stream that windows divide, a `KeyedStream`."""

    _keys: tuple[KeySpec, ...]

    def get_type(self) -> TypeInformation: ...

    def get_execution_environment(self) -> Any: ...

    def _position(self, field: int | str, call: str) -> int: ...

    def _then(self, name: str, operator: OperatorSpec, output_type: object) -> R_co: ...


class WindowedStream(Generic[S]):
    """A keyed stream whose records are divided into windows; results are a stream again."""

    _of_all = False

    def __init__(self, stream: WindowInput[S], window_assigner: WindowAssigner) -> None:
        if not isinstance(window_assigner, WindowAssigner):
            raise InvalidArgument("HR-1202", f"window() needs a WindowAssigner, got {window_assigner!r}")
        self._stream, self._assigner = stream, window_assigner
        self._trigger: Trigger = window_assigner.get_default_trigger(stream.get_execution_environment())
        self._evictor: Evictor | None = None
        self._lateness = 0
        self._late_tag: OutputTag | None = None

    def get_execution_environment(self) -> Any:
        """The environment of the program."""
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """The type of the records that come in."""
        return self._stream.get_type()

    def trigger(self, trigger: Trigger) -> Self:
        """Compute windows when the trigger says so, in place of the assigner's own."""
        if isinstance(self._assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise GraphError(
                "HR-1403",
                f"trigger() at {call_site()}: {type(trigger).__name__} does not work with windows that merge ({type(self._assigner).__name__}): it must "
                "define on_merge",
            )
        self._trigger = trigger
        return self

    def evictor(self, evictor: Evictor) -> Self:
        """Remove records before or after a window is computed; all of its records are kept for that."""
        self._evictor = evictor
        return self

    def allowed_lateness(self, time_ms: Duration) -> Self:
        """Keep a window so much longer than its end by event time; a record that comes meanwhile computes it again."""
        lateness = milliseconds_of(time_ms)
        if lateness < 0:
            raise InvalidArgument("HR-1402", f"the allowed lateness must not be negative, got {lateness} ms")
        self._lateness = lateness
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Send records that are too late for their windows to a side output, in place of dropping them."""
        self._late_tag = output_tag
        return self

    # --- functions --------------------------------------------------------------------------------------------------

    def reduce(self, reduce_function: Any, window_function: Any = None, output_type: object = None) -> S:
        """Combine the records of a window, two at a time; the result, or what the window function makes of it."""
        reduce = callable_of(reduce_function, "reduce", "reduce()")
        type = self._stream.get_type()
        return self._then(window_function, ReducedContents(reduce, type), output_type if window_function else type)

    def aggregate(
        self,
        aggregate_function: Any,
        window_function: Any = None,
        accumulator_type: object = None,
        output_type: object = None,
    ) -> S:
        """Fold the records of a window into an accumulator (AggregateFunction)."""
        return self._then(
            window_function, AggregatedContents(aggregate_function, as_type(accumulator_type)), output_type
        )

    def apply(self, window_function: Any, output_type: object = None) -> S:
        """Compute a window from all of its records: a WindowFunction."""
        return self._then(window_function, None, output_type)

    def process(self, process_window_function: Any, output_type: object = None) -> S:
        """Compute a window from all of its records, with state: a ProcessWindowFunction."""
        return self._then(process_window_function, None, output_type)

    def map_batches(self, function: Any, output_type: object = None) -> S:
        """Compute a window from all of its records as one `pyarrow.RecordBatch`: `function(key, window, batch)`.

        It returns a RecordBatch of the output type, or None. Windows of all records have no key: `function(window, batch)`.
        Without `output_type` the output has the input's type. The stream must be typed.
        """
        type = self._stream.get_type()
        if not type.is_typed:
            raise GraphError(
                "HR-1203",
                f"map_batches() at {call_site()} needs a typed stream: give the operator before it an output_type, for example "
                "output_type='word string, n bigint'",
            )
        callable_of(function, "map_batches", "map_batches()")
        return self._then(function, None, output_type or type, WindowComputation.MAP_BATCHES)

    # --- built-in aggregations --------------------------------------------------------------------------------------

    def sum(self, field: int | str) -> S:
        """The sum of a field for each window: (key, window_start, window_end, value), as of all built-in aggregations."""
        return self._built_in(Aggregation.SUM, field)

    def min(self, field: int | str) -> S:
        """The least value of a field."""
        return self._built_in(Aggregation.MIN, field)

    def max(self, field: int | str) -> S:
        """The greatest value of a field."""
        return self._built_in(Aggregation.MAX, field)

    def mean(self, field: int | str) -> S:
        """The mean of a field."""
        return self._built_in(Aggregation.MEAN, field)

    def count(self) -> S:
        """The number of records."""
        return self._built_in(Aggregation.COUNT, None)

    def _built_in(self, how: Aggregation, field: int | str | None) -> S:
        if self._assigner.window_type is not TimeWindow:
            raise GraphError(
                "HR-1405",
                f"{how}() at {call_site()} gives the bounds of windows, which {type(self._assigner).__name__} have not: use aggregate()",
            )
        stream, name = self._stream, f"{type(self._assigner).__name__}.{how}"
        position = None if field is None else stream._position(field, f"{how}()")
        output = self._result_type(how, position)
        if output is None or self._of_all or not self._by_columns(position):
            windows = self.aggregate(Folded(how, position), WithBounds(), None, output)
            return windows.name(name)
        assert isinstance(self._assigner, TumblingEventTimeWindows | SlidingEventTimeWindows)
        schema = stream.get_type().schema
        assert schema is not None
        spec = WindowColumnsSpec(
            panes=self._assigner.spec,
            how=how,
            position=position,
            floating=position is not None and pa.types.is_floating(schema.field(position).type),
            lateness=self._lateness,
            late_tag=self._late_tag,
            keys=stream._keys,
        )
        return stream._then(name, spec, output)

    def _result_type(self, how: Aggregation, position: int | None) -> TypeInformation | None:
        """The type of results; None if the stream is untyped."""
        schema, key = self._stream.get_type().schema, self._stream._keys[0]
        if schema is None or not key.type.is_typed or len(key.columns) != 1 or not key.single:
            return None
        of_value = pa.int64() if position is None else schema.field(position).type
        if how is Aggregation.MEAN:
            of_value = pa.float64()
        elif how is Aggregation.SUM and pa.types.is_integer(of_value):
            of_value = pa.int64()
        fields = [(schema.field(key.columns[0]).name, key.type.arrow_type), ("window_start", pa.int64())]
        return as_type(pa.schema([*fields, ("window_end", pa.int64()), (how, of_value)]))

    def _by_columns(self, position: int | None) -> bool:
        """Return True if whole batches can be aggregated: numbers, plain keys, windows that fire once at their end."""
        schema, key = self._stream.get_type().schema, self._stream._keys[0]
        assert schema is not None
        plain = key.type.arrow_type
        of_value = pa.int64() if position is None else schema.field(position).type
        numeric = pa.types.is_signed_integer(of_value) or pa.types.is_floating(of_value)
        return (
            isinstance(self._assigner, TumblingEventTimeWindows | SlidingEventTimeWindows)
            and type(self._trigger) is EventTimeTrigger
            and self._evictor is None
            and numeric
            and bool(pa.types.is_integer(plain) or pa.types.is_string(plain) or pa.types.is_binary(plain))
        )

    def _then(
        self,
        function: Any,
        contents: ReducedContents | AggregatedContents | None,
        output_type: object,
        computation: WindowComputation | None = None,
    ) -> S:
        computation = computation or _computation_of(function)
        if computation is WindowComputation.APPLY:
            callable_of(function, "apply", "apply()")
        if contents is not None and self._evictor is not None:
            raise GraphError(
                "HR-1404",
                f"the window at {call_site()} has an evictor, which needs all of its records: use apply() or process(), not reduce() or "
                "aggregate()",
            )
        spec = WindowSpec(
            function=function,
            assigner=self._assigner,
            trigger=self._trigger,
            evictor=self._evictor,
            lateness=self._lateness,
            late_tag=self._late_tag,
            contents=contents,
            computation=computation,
            of_all=self._of_all,
            input_type=self._stream.get_type(),
            keys=self._stream._keys,
        )
        return self._stream._then(type(self._assigner).__name__, spec, output_type)


class AllWindowedStream(WindowedStream[S]):
    """A stream whose records are all divided into windows, in one subtask."""

    _of_all = True

    @classmethod
    def of(cls, windows: WindowedStream[S]) -> AllWindowedStream[S]:
        """The same windows over all records."""
        made = cls.__new__(cls)
        made.__dict__ |= vars(windows)
        return made

    def _then(
        self,
        function: Any,
        contents: ReducedContents | AggregatedContents | None,
        output_type: object,
        computation: WindowComputation | None = None,
    ) -> S:
        return super()._then(function, contents, output_type, computation).force_non_parallel()


def _computation_of(function: Any) -> WindowComputation:
    if function is None:
        return WindowComputation.CONTENTS
    return WindowComputation.PROCESS if callable(getattr(function, "process", None)) else WindowComputation.APPLY


def least(one: Any, other: Any) -> Any:
    """The lesser value; not-a-number if one of them is that, whatever their order."""
    if one <= other:
        return one
    return other if other <= one else one + other


def greatest(one: Any, other: Any) -> Any:
    """The greater value; not-a-number if one of them is that, whatever their order."""
    if one >= other:
        return one
    return other if other >= one else one + other


class Folded(AggregateFunction):
    """sum, count, min, max or mean, record by record: where whole batches cannot be aggregated."""

    def __init__(self, how: Aggregation, position: int | None) -> None:
        self._how, self._position = how, position

    def create_accumulator(self) -> Any:
        return ()

    def add(self, value: Any, accumulator: Any) -> Any:
        one = 1 if self._position is None else value[self._position] if isinstance(value, tuple | list) else value
        return self.merge(accumulator, (one, 1) if self._how is Aggregation.MEAN else (one,))

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        if not acc_a or not acc_b:
            return acc_a or acc_b
        if self._how in (Aggregation.MIN, Aggregation.MAX):
            return ((least if self._how is Aggregation.MIN else greatest)(acc_a[0], acc_b[0]),)
        return tuple(one + other for one, other in zip(acc_a, acc_b, strict=True))

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1] if self._how is Aggregation.MEAN else accumulator[0]


class WithBounds(ProcessWindowFunction):
    """The result of a built-in aggregation, with its key and window."""

    def process(self, *given: Any) -> Iterable[Any]:
        *key, context, elements = given  # there is no key if all records are in one window
        for value in elements:
            yield (*key, context.window().start, context.window().end, value)
