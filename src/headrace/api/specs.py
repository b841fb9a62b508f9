"""Specifications of operators: one frozen dataclass for each kind, made by a call of the API.

The plan takes them to the workers, where `worker/operators/registry.py` names the class that runs each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, ClassVar

from headrace.api.async_io import AsyncRetryStrategy
from headrace.api.sink import Sink
from headrace.api.watermarks import WatermarkStrategy
from headrace.api.windows import Evictor, PanesSpec, Trigger, WindowAssigner
from headrace.graph.job_graph import OperatorKind, OperatorSpec, OutputTag
from headrace.records.types import TypeInformation

__all__ = [
    "AggregateSpec",
    "AggregatedContents",
    "Aggregation",
    "AsyncSpec",
    "BroadcastProcessSpec",
    "CoFlatMapSpec",
    "CoMapSpec",
    "CoProcessSpec",
    "CollectSpec",
    "FilterSpec",
    "FlatMapSpec",
    "FunctionSinkSpec",
    "FunctionSpec",
    "IntervalJoinSpec",
    "KeyedBatchesSpec",
    "KeyedCoProcessSpec",
    "KeyedProcessSpec",
    "MapBatchesSpec",
    "MapSpec",
    "PrintSpec",
    "ProcessSpec",
    "ReduceSpec",
    "ReducedContents",
    "SinkSpec",
    "SourceSpec",
    "TimestampsSpec",
    "TwoInputSpec",
    "WindowColumnsSpec",
    "WindowComputation",
    "WindowSpec",
]


class Aggregation(StrEnum):
    """A built-in aggregation, with the name of the method that asks for it."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    MIN_BY = "min_by"
    MAX_BY = "max_by"
    COUNT = "count"
    MEAN = "mean"


class WindowComputation(Enum):
    """The computation of a window that fires."""

    CONTENTS = "contents"  # nothing: the folded contents are the result
    APPLY = "apply"  # a WindowFunction
    PROCESS = "process"  # a ProcessWindowFunction
    MAP_BATCHES = "map_batches"  # a function of one RecordBatch


@dataclass(frozen=True, slots=True)
class ReducedContents:
    """The records of a window are combined, two at a time."""

    function: Any
    type: TypeInformation


@dataclass(frozen=True, slots=True)
class AggregatedContents:
    """The records of a window are added to an accumulator."""

    function: Any
    type: TypeInformation  # of the accumulator


# --- functions of one input ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec(OperatorSpec):
    """An operator that calls a function of the user."""

    function: Any


class MapSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "map"


class FlatMapSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "flat_map"


class FilterSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "filter"


class MapBatchesSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "map_batches"


class ProcessSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "process"


class KeyedProcessSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "keyed_process"


class KeyedBatchesSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "keyed_batches"


class ReduceSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSpec(FunctionSpec):
    """Calls of an AsyncFunction; without a timeout (ms) a call may take any time."""

    kind: ClassVar[OperatorKind] = "async"
    timeout: int | None
    capacity: int
    ordered: bool
    retry: AsyncRetryStrategy[Any]


# --- functions of two inputs --------------------------------------------------------------------------------------------


class TwoInputSpec(FunctionSpec):
    """A function with a method for each input, as `map1` and `map2`."""

    __slots__ = ()


class CoMapSpec(TwoInputSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "co_map"


class CoFlatMapSpec(TwoInputSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "co_flat_map"


class CoProcessSpec(TwoInputSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "co_process"


class KeyedCoProcessSpec(TwoInputSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "keyed_co_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastProcessSpec(FunctionSpec):
    """A function of a stream and a broadcast stream, which changes the state of these descriptors."""

    kind: ClassVar[OperatorKind] = "broadcast_process"
    descriptors: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoinSpec(FunctionSpec):
    """Pairs of records whose times differ by `bounds`; late records of a side go to its tag."""

    kind: ClassVar[OperatorKind] = "interval_join"
    bounds: tuple[int, int]
    late_tags: tuple[OutputTag | None, OutputTag | None]


# --- aggregations and windows -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSpec(OperatorSpec):
    """A running aggregation of a field (count has none), with a result for each record, or for each key of a batch."""

    kind: ClassVar[OperatorKind] = "aggregate"
    how: Aggregation
    position: int | None
    each_record: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(OperatorSpec):
    """Windows with any assigner, trigger, evictor and function."""

    kind: ClassVar[OperatorKind] = "window"
    assigner: WindowAssigner
    trigger: Trigger
    evictor: Evictor | None
    lateness: int
    late_tag: OutputTag | None
    contents: ReducedContents | AggregatedContents | None  # None: all records
    computation: WindowComputation
    of_all: bool  # windows of all records: functions get no key
    input_type: TypeInformation


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowColumnsSpec(OperatorSpec):
    """A built-in aggregation over windows by event time, on whole batches."""

    kind: ClassVar[OperatorKind] = "window_columns"
    panes: PanesSpec
    how: Aggregation
    position: int | None
    floating: bool
    lateness: int
    late_tag: OutputTag | None


# --- sources, time and sinks --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec(FunctionSpec):
    """A Source or a SourceFunction; `rate` is the number of records per second of all its subtasks."""

    kind: ClassVar[OperatorKind] = "source"
    rate: float | None = None
    watermarks: WatermarkStrategy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampsSpec(OperatorSpec):
    """Timestamps and watermarks in the middle of a stream."""

    kind: ClassVar[OperatorKind] = "timestamps"
    watermarks: WatermarkStrategy


class FunctionSinkSpec(FunctionSpec):
    __slots__ = ()
    kind: ClassVar[OperatorKind] = "sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec(OperatorSpec):
    """A two-phase sink."""

    kind: ClassVar[OperatorKind] = "sink_to"
    function: Sink[Any]
    input_type: TypeInformation


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintSpec(OperatorSpec):
    """Records as text, with an identifier in front, on the driver."""

    kind: ClassVar[OperatorKind] = "print"
    identifier: str | None
    text: Callable[[Any], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSpec(OperatorSpec):
    """Records for a reader on the driver."""

    kind: ClassVar[OperatorKind] = "collect"
    channel: str
