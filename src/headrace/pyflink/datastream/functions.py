"""`pyflink.datastream.functions`."""

from __future__ import annotations

from typing import TypeVar

from headrace.api import functions as _functions
from headrace.api.async_io import AsyncFunction as AsyncFunction
from headrace.api.async_io import AsyncRetryPredicate as AsyncRetryPredicate
from headrace.api.async_io import AsyncRetryStrategy as AsyncRetryStrategy
from headrace.api.functions import AggregateFunction as AggregateFunction
from headrace.api.functions import CoFlatMapFunction as CoFlatMapFunction
from headrace.api.functions import CoMapFunction as CoMapFunction
from headrace.api.functions import FilterFunction as FilterFunction
from headrace.api.functions import FlatMapFunction as FlatMapFunction
from headrace.api.functions import Function as Function
from headrace.api.functions import KeyedStateStore as KeyedStateStore
from headrace.api.functions import KeySelector as KeySelector
from headrace.api.functions import MapFunction as MapFunction
from headrace.api.functions import Partitioner as Partitioner
from headrace.api.functions import ReduceFunction as ReduceFunction
from headrace.api.functions import RuntimeContext as RuntimeContext
from headrace.api.functions import SinkFunction as SinkFunction
from headrace.api.functions import SourceFunction as SourceFunction
from headrace.api.functions import TimerService as TimerService
from headrace.api.watermarks import MIN_WATERMARK
from headrace.api.windows import AllWindowFunction as AllWindowFunction
from headrace.api.windows import ProcessAllWindowFunction as ProcessAllWindowFunction
from headrace.api.windows import ProcessWindowFunction as ProcessWindowFunction
from headrace.api.windows import WindowFunction as WindowFunction
from headrace.pyflink.datastream.state import *
from headrace.pyflink.datastream.time_domain import TimeDomain as TimeDomain
from headrace.pyflink.metrics import MetricGroup as MetricGroup

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SinkFunction",
    "SourceFunction",
    "TimerService",
    "WindowFunction",
]

# Programs subscript their functions with these, and import them from here.
W = TypeVar("W")
W2 = TypeVar("W2")
IN = TypeVar("IN")
IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")


class _Timed:
    """Time as in PyFlink: a record without a timestamp has the least one, and not None; a timer takes a float."""

    no_timestamp = MIN_WATERMARK
    float_times = True


class ProcessFunction(_Timed, _functions.ProcessFunction):
    """The general function on a stream; `yield tag, value` goes to a side output."""


class KeyedProcessFunction(_Timed, _functions.KeyedProcessFunction):
    """The general function on a keyed stream: state, timers, side outputs."""


class CoProcessFunction(_Timed, _functions.CoProcessFunction):
    """The general function on two connected streams."""


class KeyedCoProcessFunction(_Timed, _functions.KeyedCoProcessFunction):
    """The general function on two connected keyed streams: shared state, timers, side outputs."""


class BroadcastProcessFunction(_Timed, _functions.BroadcastProcessFunction):
    """A stream connected with a broadcast stream: the first reads the broadcast state, the second changes it."""

    BaseContext = _functions.SinkFunction.Context


class KeyedBroadcastProcessFunction(_Timed, _functions.KeyedBroadcastProcessFunction):
    """A keyed stream connected with a broadcast stream: keyed state and timers on the keyed side."""

    BaseContext = _functions.SinkFunction.Context


BaseBroadcastProcessFunction = BroadcastProcessFunction
