"""The DataStream API, in PyFlink's spelling: every call adds a node to the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, NoReturn, Protocol, Self

import pyarrow as pa

from headrace.api.async_io import AsyncRetryStrategy, NoRetryStrategy, as_async_function
from headrace.api.call_site import call_site
from headrace.api.dialect import Dialect
from headrace.api.durations import Time, milliseconds_of
from headrace.api.execution_config import ExecutionConfig
from headrace.api.functions import KeySelector, OutputTag, callable_of
from headrace.api.joins import CoGroupedStreams, IntervalJoin, JoinedStreams
from headrace.api.sink import Sink, check_sink
from headrace.api.specs import (
    AggregateSpec,
    Aggregation,
    AsyncSpec,
    BroadcastProcessSpec,
    CoFlatMapSpec,
    CollectSpec,
    CoMapSpec,
    CoProcessSpec,
    FilterSpec,
    FlatMapSpec,
    FunctionSinkSpec,
    IntervalJoinSpec,
    KeyedBatchesSpec,
    KeyedCoProcessSpec,
    KeyedProcessSpec,
    MapBatchesSpec,
    MapSpec,
    PrintSpec,
    ProcessSpec,
    ReduceSpec,
    SinkSpec,
    TimestampsSpec,
)
from headrace.api.watermarks import WatermarkStrategy
from headrace.api.windowed_stream import AllWindowedStream, WindowedStream
from headrace.api.windows import CountSlidingWindowAssigner, CountTumblingWindowAssigner, WindowAssigner
from headrace.errors import GraphError, InvalidArgument
from headrace.graph.job_graph import KeySpec, Node, NodeInput, OperatorSpec, Partitioning, Pipeline
from headrace.records.types import PICKLED, TypeInformation, as_type, check_storable, field_of

__all__ = ["BroadcastStream", "ConnectedStreams", "DataStream", "DataStreamSink", "KeyedStream"]


class Executor(Protocol):
    """The environment of a program, which runs it."""

    @property
    def dialect(self) -> Dialect:
        """The forms of values."""

    def get_config(self) -> ExecutionConfig:
        """The settings of the program's execution."""

    def _collect(self, stream: DataStream, job_name: str | None) -> Records:
        """Run the program and give this stream's records."""

    def _foreach_epoch(self, stream: DataStream, function: Callable[[Any, int], object]) -> DataStreamSink:
        """Give each completed checkpoint's records to a function."""


class Records(Iterator[Any], AbstractContextManager[Any], Protocol):
    """Records of a job that may still run; closing cancels it."""

    def next(self) -> Any:
        """The next record."""

    def close(self) -> None: ...


def check_parallelism(value: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgument("HR-1201", f"{what} must be an integer of at least 1, got {value!r}")
    return value


def check_buffer_timeout(timeout_ms: int) -> int:
    if timeout_ms < -1:
        raise InvalidArgument("HR-1201", f"buffer timeout must be -1, 0 or positive milliseconds, got {timeout_ms}")
    return timeout_ms


class _OperatorSettings:
    """Settings of the node that made a stream or a sink."""

    def __init__(self, node: Node | None) -> None:
        self._node = node

    def _own(self, call: str) -> Node:
        if self._node is None:
            raise GraphError(
                "HR-1205",
                f"{call} at {call_site()} must directly follow an operator; this stream is a union or a partitioning of others",
            )
        return self._node

    def name(self, name: str) -> Self:
        """Name the operator: shown in plans, errors and metrics."""
        self._own("name()").name = check_storable(name, "the name")
        return self

    def uid(self, uid: str) -> Self:
        """Give the operator an id that stays the same when the program changes, so its state is found again."""
        if not uid:
            raise InvalidArgument("HR-1220", "a uid must not be empty")
        self._own("uid()").uid = check_storable(uid, "uid")
        return self

    def set_description(self, description: str) -> Self:
        """Describe the operator: shown in plans."""
        self._own("set_description()").description = description
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Run the operator in this many subtasks."""
        self._own("set_parallelism()").parallelism = check_parallelism(parallelism, "parallelism")
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Fix the number of key groups (1 .. 32768)."""
        self._own("set_max_parallelism()").max_parallelism = check_parallelism(max_parallelism, "max parallelism")
        return self

    def set_uid_hash(self, uid_hash: str) -> Self:
        """Give the operator this id (32 hex digits), for example one that a log of another version of the program shows."""
        if not re.fullmatch("[0-9A-Fa-f]{32}", uid_hash):
            raise InvalidArgument(
                "HR-1220", f"set_uid_hash() needs the id of an operator, 32 hex digits, got {uid_hash!r}"
            )
        self._own("set_uid_hash()").uid_hash = uid_hash.lower()
        return self

    def slot_sharing_group(self, slot_sharing_group: Any) -> Self:
        """A hint that has no effect: Spark gives each task a slot. Plans show the name of the group."""
        name = slot_sharing_group if isinstance(slot_sharing_group, str) else slot_sharing_group.get_name()
        self._own("slot_sharing_group()").slot_sharing_group = name
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Set the time that a record may wait for its buffer to fill: 0 = not at all, -1 = until it is full."""
        self._own("set_buffer_timeout()").buffer_timeout = check_buffer_timeout(timeout_millis)
        return self

    def start_new_chain(self) -> Self:
        """Do not chain this operator to the one before it."""
        self._own("start_new_chain()").chaining = "head"
        return self

    def disable_chaining(self) -> Self:
        """Chain this operator to no other."""
        self._own("disable_chaining()").chaining = "never"
        return self


class DataStreamSink(_OperatorSettings):
    """The end of a stream; can be named and given a parallelism."""


class DataStream(_OperatorSettings):
    """A stream of records.

    >>> from headrace import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> words = env.from_collection(["a", "b"]).map(str.upper)
    """

    _keys: tuple[KeySpec, ...] = ()

    def __init__(
        self,
        pipeline: Pipeline,
        executor: Executor,
        inlets: Sequence[NodeInput],
        type: TypeInformation,
        node: Node | None = None,
    ) -> None:
        super().__init__(node)
        self._pipeline = pipeline
        self._executor = executor
        self._inlets = list(inlets)
        self._type = type

    def get_type(self) -> TypeInformation:
        """The type of the records."""
        return self._type

    def get_name(self) -> str:
        """The name of the operator."""
        return self._own("get_name()").name

    def get_execution_environment(self) -> Executor:
        """The environment of the program."""
        return self._executor

    def get_execution_config(self) -> ExecutionConfig:
        """The settings of the program's execution."""
        return self._executor.get_config()

    def cache(self) -> NoReturn:
        """Refused: a stream is not kept for a second job."""
        raise GraphError(
            "HR-8002",
            f"cache() at {call_site()}: streams are not cached; write the stream with sink_to(FileSink(...)) and read the files "
            "in the second job, or build both results in one program",
        )

    def force_non_parallel(self) -> Self:
        """Run the operator in one subtask, which `set_parallelism` cannot change."""
        node = self._own("force_non_parallel()")
        node.parallelism, node.single = 1, True
        return self

    # --- functions --------------------------------------------------------------------------------------------------

    def map(self, func: Any, output_type: object = None) -> DataStream:
        """One record in, one out: a callable or a MapFunction."""
        callable_of(func, "map", "map()")
        return self._then("Map", MapSpec(function=func, keys=self._keys), output_type)

    def flat_map(self, func: Any, output_type: object = None) -> DataStream:
        """One record in, any number out: a callable that returns an iterable (or yields), or a FlatMapFunction."""
        callable_of(func, "flat_map", "flat_map()")
        return self._then("Flat Map", FlatMapSpec(function=func, keys=self._keys), output_type)

    def filter(self, func: Any) -> DataStream:
        """Keep the records for which the callable or FilterFunction is true."""
        callable_of(func, "filter", "filter()")
        return self._then("Filter", FilterSpec(function=func, keys=self._keys), self._type)

    def map_batches(self, func: Callable[[Any], Any], output_type: object = None) -> DataStream:
        """Vectorised: `pyarrow.RecordBatch` in, `pyarrow.RecordBatch` (or an iterable of them, or None) out.

        The stream must be typed. Without `output_type` the output has the input's type.
        """
        self._check_typed("map_batches()")
        callable_of(func, "map_batches", "map_batches()")
        return self._then("Map Batches", MapBatchesSpec(function=func), output_type or self._type)

    def _check_typed(self, what: str) -> None:
        if not self._type.is_typed:
            raise GraphError(
                "HR-1203",
                f"{what} at {call_site()} needs a typed stream: give the operator before it an output_type, "
                "for example output_type='word string, n bigint'",
            )

    def map_async(
        self,
        func: Any,
        timeout: Time | timedelta | int | None,
        output_type: object = None,
        *,
        capacity: int = 100,
        ordered: bool = True,
        retry: AsyncRetryStrategy[Any] | None = None,
    ) -> DataStream:
        """Call an `async def` function for each record, many at a time: it returns the record that takes its place.

        An AsyncFunction returns a list of records. At most `capacity` calls are under way in a subtask. A call that takes
        longer than `timeout`, with all that `retry` adds, fails the job, unless the AsyncFunction has a `timeout` method.
        Results leave in the order of their records, or (`ordered=False`) as they are done; no record leaves behind a
        watermark that came after it. Calls that are under way are in the checkpoint, and made again after a restore.

        >>> async def look_up(order):
        ...     return order, await prices.get(order)  # doctest: +SKIP
        >>> orders.map_async(look_up, Time.seconds(5))  # doctest: +SKIP
        """
        function, where = as_async_function(func, "map_async()"), f"map_async() at {call_site()}"
        limit = None if timeout is None else milliseconds_of(timeout)
        limit = limit if limit is None or limit > 0 else None
        if capacity < 1:
            raise InvalidArgument("HR-1201", f"{where}: capacity must be at least 1, got {capacity}")
        if retry is not None and not isinstance(retry, AsyncRetryStrategy):
            raise InvalidArgument("HR-1202", f"{where}: retry must be an AsyncRetryStrategy, got {retry!r}")
        retry = retry or NoRetryStrategy()
        if limit is None and not isinstance(retry, NoRetryStrategy):
            raise InvalidArgument("HR-1223", f"{where}: calls that are made again need a timeout, got {timeout!r}")
        if retry.get_retry_predicate() is None:
            raise InvalidArgument("HR-1223", f"{where}: get_retry_predicate() of {type(retry).__name__} gave None")
        spec = AsyncSpec(function=function, timeout=limit, capacity=capacity, ordered=ordered, retry=retry)
        return self._then("Async Map", spec, output_type)

    def project(self, *field_indexes: int) -> DataStream:
        """Some fields of a stream of tuples, in this order."""
        if self._type.kind != "tuple":
            raise GraphError(
                "HR-1224", f"project() at {call_site()} needs a stream of tuples, not {self._type}; use map()"
            )
        positions = [self._position(index, "project()") for index in field_indexes]
        if not positions:
            raise InvalidArgument("HR-1224", f"project() at {call_site()} needs the position of at least one field")
        types = self._type.get_field_types()
        schema = pa.schema([field_of(types[p], f"f{i}") for i, p in enumerate(positions)])
        take = itemgetter(*positions) if len(positions) > 1 else lambda record: (record[positions[0]],)
        return self._then("Projection", MapSpec(function=take), TypeInformation("tuple", schema))

    def process(self, func: Any, output_type: object = None) -> DataStream:
        """The general function: a ProcessFunction."""
        callable_of(func, "process_element", "process()")
        return self._then("Process", ProcessSpec(function=func), output_type)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Give the records their event timestamps, and make watermarks from here on."""
        strategy = check_strategy(watermark_strategy, self._type, "assign_timestamps_and_watermarks()")
        if watermark_strategy.alignment is not None:
            raise InvalidArgument(
                "HR-1222",
                f"assign_timestamps_and_watermarks() at {call_site()}: only sources can pause, so give a strategy with an "
                "alignment to from_source(...)",
            )
        return self._then("Timestamps/Watermarks", TimestampsSpec(watermarks=strategy), self._type)

    # --- partitioning -----------------------------------------------------------------------------------------------

    def key_by(self, key_selector: Any, key_type: object = None) -> KeyedStream:
        """Group by a key: a field name (or several), a callable, or a KeySelector."""
        key = key_spec(self._type, key_selector, key_type)
        return KeyedStream(self._pipeline, self._executor, self._spread(Partitioning("hash", key)), self._type, key)

    def rebalance(self) -> DataStream:
        """Spread records evenly, round robin, over all subtasks of the next operator."""
        return self._partitioned(Partitioning("rebalance"))

    def rescale(self) -> DataStream:
        """Round robin over the few subtasks that belong to this one: no all-to-all traffic."""
        return self._partitioned(Partitioning("rescale"))

    def shuffle(self) -> DataStream:
        """Each record to a random subtask."""
        return self._partitioned(Partitioning("shuffle"))

    def global_(self) -> DataStream:
        """All records to the first subtask."""
        return self._partitioned(Partitioning("global"))

    def forward(self) -> DataStream:
        """Each subtask to the same subtask of the next operator; both need the same parallelism."""
        return self._partitioned(Partitioning("forward"))

    def broadcast(self, broadcast_state_descriptor: Any = None, *other_broadcast_state_descriptors: Any) -> Any:
        """Every record to every subtask; with state descriptors: a stream to connect for broadcast state."""
        spread = self._partitioned(Partitioning("broadcast"))
        if broadcast_state_descriptor is None:
            return spread
        return BroadcastStream(spread, (broadcast_state_descriptor, *other_broadcast_state_descriptors))

    def partition_custom(self, partitioner: Any, key_selector: Any) -> DataStream:
        """The subtask is `partitioner(key, number of subtasks)`."""
        callable_of(partitioner, "partition", "partition_custom()")
        key = key_spec(self._type, key_selector, None)
        return self._partitioned(Partitioning("custom", key, partitioner))

    # --- combining --------------------------------------------------------------------------------------------------

    def union(self, *streams: DataStream) -> DataStream:
        """The records of all streams, in no particular order between them; the types must be equal."""
        for stream in streams:
            _check_one_program(self, stream, "union()")
            if stream.get_type() != self._type:
                raise GraphError(
                    "HR-1207",
                    f"union() at {call_site()} of streams with different types: {self._type} and {stream.get_type()}",
                )
        inlets = [inlet for stream in (self, *streams) for inlet in stream._inlets]
        return DataStream(self._pipeline, self._executor, inlets, self._type)

    def connect(self, ds: DataStream | BroadcastStream) -> ConnectedStreams:
        """Two streams into one operator that tells them apart."""
        _check_one_program(self, ds._stream if isinstance(ds, BroadcastStream) else ds, "connect()")
        return ConnectedStreams(self, ds)

    def join(self, other: DataStream) -> JoinedStreams[DataStream]:
        """Pairs of records with the same key in the same window."""
        _check_one_program(self, other, "join()")
        return JoinedStreams(self, other)

    def co_group(self, other: DataStream) -> CoGroupedStreams[DataStream]:
        """All records of a key and window, of both streams."""
        _check_one_program(self, other, "co_group()")
        return CoGroupedStreams(self, other)

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """The records that the operator yielded with this tag."""
        node = self._own("get_side_output()")
        of_source = getattr(node.operator.function, "side_outputs", ())
        if node.operator.kind == "source" and output_tag not in of_source:
            raise GraphError(
                "HR-1209",
                f"get_side_output({output_tag.name!r}): {node.where} has no such side output; a source has one if it was given "
                "the tag, for corrupt records",
            )
        return DataStream(self._pipeline, self._executor, [NodeInput(node.id, output_tag, None, 0)], output_tag.type)

    def window_all(self, window_assigner: WindowAssigner) -> AllWindowedStream[DataStream]:
        """Divide all records into windows, in one subtask."""
        return AllWindowedStream(self.key_by(_no_key, "int"), window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream[DataStream]:
        """Windows of a number of records, in one subtask."""
        of_key = self.key_by(_no_key, "int").count_window(size, slide)
        return AllWindowedStream.of(of_key)

    # --- sinks ------------------------------------------------------------------------------------------------------

    def add_sink(self, sink_func: Any) -> DataStreamSink:
        """Pass every record to a SinkFunction; a `Sink` (a TwoPhaseCommitSinkFunction is one) is the same as in `sink_to`."""
        if isinstance(sink_func, Sink):
            return self.sink_to(sink_func)
        callable_of(sink_func, "invoke", "add_sink()")
        return DataStreamSink(self._add("Sink", FunctionSinkSpec(function=sink_func), PICKLED))

    def sink_to(self, sink: Sink[Any]) -> DataStreamSink:
        """Write the records with a two-phase sink: what it writes is visible exactly once.

        >>> stream.sink_to(FileSink("/data/out"))  # doctest: +SKIP
        """
        check_sink(sink)
        sink.check(self.get_type())
        return DataStreamSink(self._add("Sink", SinkSpec(function=sink, input_type=self.get_type()), PICKLED))

    def foreach_epoch(self, function: Callable[[Any, int], object]) -> DataStreamSink:
        """Call `function(df, commit_number)` with each completed checkpoint's records as a Spark DataFrame.

        It runs on the driver, in your session, in order, one call at a time; while more than three epochs wait, no
        checkpoint starts. After a failure it may be called again for an epoch, with the same number and the same rows.

        >>> stream.foreach_epoch(lambda df, n: df.write.mode("append").saveAsTable("orders"))  # doctest: +SKIP
        """
        return self._executor._foreach_epoch(self, function)

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Print every record on the driver, with `n>` in front when there is more than one subtask."""
        spec = PrintSpec(identifier=sink_identifier, text=self._executor.dialect.text)
        return DataStreamSink(self._add("Print", spec, PICKLED))

    def execute_and_collect(self, job_execution_name: str | None = None, limit: int | None = None) -> Any:
        """Run the program and iterate over this stream's records; with a limit, a list of the first ones.

        The iterator is a context manager: leaving it cancels a job that still runs.
        """
        records = self._executor._collect(self, job_execution_name)
        if limit is None:
            return records
        with records:
            return list(islice(records, limit))

    def _collect_into(self, channel: str) -> DataStreamSink:
        """Send the records to the driver under a name; `execute_and_collect` and the test kit read them there."""
        node = self._add("Collect", CollectSpec(channel=channel), PICKLED)
        self._beside(node)
        return DataStreamSink(node)

    def _beside(self, node: Node) -> None:
        """Run a node in the subtasks of the operator before it, so that the records of a single one keep their order."""
        if len(self._inlets) == 1 and self._inlets[0].partitioning is None:
            before = self._pipeline.nodes[self._inlets[0].node]
            node.parallelism = 1 if before.single else before.parallelism

    # --- building ---------------------------------------------------------------------------------------------------

    def _add(self, name: str, operator: OperatorSpec, output_type: object) -> Node:
        return self._pipeline.add(name, operator, self._inlets, as_type(output_type), call_site())

    def _then(self, name: str, operator: OperatorSpec, output_type: object) -> DataStream:
        node = self._add(name, operator, output_type)
        return DataStream(self._pipeline, self._executor, [NodeInput(node.id, None, None, 0)], node.type, node)

    def _position(self, field: int | str, call: str) -> int:
        return _field_index(self._type, field, call)

    def _spread(self, partitioning: Partitioning) -> list[NodeInput]:
        return [NodeInput(i.node, i.tag, partitioning, i.input) for i in self._inlets]

    def _partitioned(self, partitioning: Partitioning) -> DataStream:
        return DataStream(self._pipeline, self._executor, self._spread(partitioning), self._type)


class KeyedStream(DataStream):
    """A stream grouped by key: its functions (map, flat_map, filter, process, reduce) may use keyed state."""

    def __init__(
        self, pipeline: Pipeline, executor: Executor, inlets: Sequence[NodeInput], type: TypeInformation, key: KeySpec
    ) -> None:
        super().__init__(pipeline, executor, inlets, type)
        self._key, self._keys = key, (key,)

    def _partitioned(self, partitioning: Partitioning) -> DataStream:
        raise GraphError(
            "HR-1210",
            f"{partitioning.kind}() at {call_site()}: the records of a keyed stream go where their keys belong; call it on the "
            "stream before key_by(...)",
        )

    def process(self, func: Any, output_type: object = None) -> DataStream:
        """The general keyed function: a KeyedProcessFunction."""
        callable_of(func, "process_element", "process()")
        return self._then("Keyed Process", KeyedProcessSpec(function=func, keys=self._keys), output_type)

    def process_batches(self, func: Any, output_type: object = None) -> DataStream:
        """Vectorised: a KeyedBatchFunction gets whole batches, and state with one value for each distinct key.

        The stream must be typed. Without `output_type` the output has the input's type.
        """
        self._check_typed("process_batches()")
        callable_of(func, "process_batch", "process_batches()")
        operator = KeyedBatchesSpec(function=func, keys=self._keys)
        return self._then("Keyed Batches", operator, output_type or self._type)

    def _before_key(self) -> DataStream:
        """The stream that `key_by` was called on."""
        inlets = [NodeInput(i.node, i.tag, None, i.input) for i in self._inlets]
        return DataStream(self._pipeline, self._executor, inlets, self._type)

    def window(self, window_assigner: WindowAssigner) -> WindowedStream[DataStream]:
        """Divide the records of each key into windows."""
        return WindowedStream(self, window_assigner)

    def interval_join(self, other: KeyedStream) -> IntervalJoin[DataStream]:
        """Pairs of records with the same key whose times are close enough."""
        return IntervalJoin(self, other)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream[DataStream]:
        """Windows of `size` records of a key, one beginning every `slide` records; only full windows are computed.

        Without a slide they follow one after the other.
        """
        if size < 1 or slide < 0:
            raise InvalidArgument(
                "HR-1402",
                f"count_window() needs a positive size, and a slide that is not negative, got {size}, {slide}",
            )
        return self.window(CountSlidingWindowAssigner(size, slide) if slide else CountTumblingWindowAssigner(size))

    def reduce(self, func: Any) -> DataStream:
        """The running combination of all records of a key: one result for each record."""
        callable_of(func, "reduce", "reduce()")
        return self._then("Reduce", ReduceSpec(function=func, keys=self._keys), self._type)

    def sum(self, position_to_sum: int | str = 0, emit: str = "record") -> DataStream:
        """The running sum of a field for each key; the other fields are those of the key's first record."""
        return self._aggregate(Aggregation.SUM, position_to_sum, emit)

    def min(self, position_to_min: int | str = 0, emit: str = "record") -> DataStream:
        """The running minimum of a field for each key; the other fields are those of the key's first record."""
        return self._aggregate(Aggregation.MIN, position_to_min, emit)

    def max(self, position_to_max: int | str = 0, emit: str = "record") -> DataStream:
        """The running maximum of a field for each key; the other fields are those of the key's first record."""
        return self._aggregate(Aggregation.MAX, position_to_max, emit)

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """The record of each key with the least value of a field so far; the first of equal ones."""
        return self._aggregate(Aggregation.MIN_BY, position_to_min_by, "record")

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """The record of each key with the greatest value of a field so far; the first of equal ones."""
        return self._aggregate(Aggregation.MAX_BY, position_to_max_by, "record")

    def count(self, emit: str = "record") -> DataStream:
        """The running number of records of each key, as (key, count)."""
        return self._aggregate(Aggregation.COUNT, None, emit, _count_type(self._key))

    def _aggregate(
        self, how: Aggregation, position: int | str | None, emit: str, output_type: TypeInformation | None = None
    ) -> DataStream:
        if emit not in ("record", "batch"):
            raise InvalidArgument(
                "HR-1225",
                f"emit must be 'record' (one result for each record) or 'batch' (one for each key and batch), got {emit!r}",
            )
        index = None if position is None else _field_index(self._type, position, f"{how}()")
        operator = AggregateSpec(how=how, position=index, each_record=emit == "record", keys=self._keys)
        return self._then(how.replace("_", " ").title(), operator, output_type or self._type)


class BroadcastStream:
    """A stream whose records reach every subtask, with the descriptors of the state they change."""

    def __init__(self, stream: DataStream, descriptors: Sequence[Any]) -> None:
        self._stream = stream
        self._descriptors = tuple(descriptors)


class ConnectedStreams:
    """Two streams that one operator reads, telling them apart."""

    def __init__(self, first: DataStream, second: DataStream | BroadcastStream) -> None:
        self._first = first
        self._second = second._stream if isinstance(second, BroadcastStream) else second
        self._descriptors = second._descriptors if isinstance(second, BroadcastStream) else ()

    def key_by(self, key_selector1: Any, key_selector2: Any, key_type: object = None) -> ConnectedStreams:
        """Group both streams by key; equal keys meet in one subtask and share state."""
        return ConnectedStreams(
            self._first.key_by(key_selector1, key_type), self._second.key_by(key_selector2, key_type)
        )

    def map(self, func: Any, output_type: object = None) -> DataStream:
        """A CoMapFunction: `map1` and `map2`."""
        return self._then("Co-Map", CoMapSpec, func, ("map1", "map2"), output_type)

    def flat_map(self, func: Any, output_type: object = None) -> DataStream:
        """A CoFlatMapFunction: `flat_map1` and `flat_map2`."""
        return self._then("Co-Flat Map", CoFlatMapSpec, func, ("flat_map1", "flat_map2"), output_type)

    def process(self, func: Any, output_type: object = None) -> DataStream:
        """A CoProcessFunction, or a (Keyed)BroadcastProcessFunction if one side is a broadcast stream."""
        if self._descriptors:
            methods = ("process_element", "process_broadcast_element")
            return self._then(
                "Co-Process-Broadcast",
                partial(BroadcastProcessSpec, descriptors=self._descriptors),
                func,
                methods,
                output_type,
            )
        spec = KeyedCoProcessSpec if self._keys()[0] is not None else CoProcessSpec
        return self._then("Co-Process", spec, func, ("process_element1", "process_element2"), output_type)

    def _interval_join(
        self,
        func: Any,
        bounds: tuple[int, int],
        late_tags: tuple[OutputTag | None, OutputTag | None],
        output_type: object,
    ) -> DataStream:
        operator = IntervalJoinSpec(function=func, bounds=bounds, late_tags=late_tags, keys=self._keys())
        return self._of_both()._then("Interval Join", operator, output_type)

    def _keys(self) -> tuple[KeySpec | None, KeySpec | None]:
        first, second = (s._key if isinstance(s, KeyedStream) else None for s in (self._first, self._second))
        if (first is None) != (second is None) and not self._descriptors:
            return None, None  # without a key on both sides there is no keyed state
        if first is not None and second is not None:
            _check_keys_meet(self._first, first, self._second, second)
        return first, second

    def _then(
        self, name: str, spec: Callable[..., OperatorSpec], func: Any, methods: tuple[str, str], output_type: object
    ) -> DataStream:
        missing = [m for m in methods if not callable(getattr(func, m, None))]
        if missing:
            raise InvalidArgument(
                "HR-1204", f"{name} needs an object with {methods[0]}(...) and {methods[1]}(...), got {func!r}"
            )
        return self._of_both()._then(name, spec(function=func, keys=self._keys()), output_type)

    def _of_both(self) -> DataStream:
        inlets = [
            NodeInput(i.node, i.tag, i.partitioning, side)
            for side, s in enumerate((self._first, self._second))
            for i in s._inlets
        ]
        return DataStream(self._first._pipeline, self._first._executor, inlets, PICKLED)


def _no_key(_: Any) -> int:
    """The key of all records of `window_all`."""
    return 0


def _check_one_program(first: DataStream, second: DataStream, call: str) -> None:
    if first._pipeline is not second._pipeline:
        raise GraphError(
            "HR-1208", f"{call} at {call_site()} of streams of two environments: build one program with one environment"
        )


def _check_keys_meet(first: DataStream, first_key: KeySpec, second: DataStream, second_key: KeySpec) -> None:
    """Small integer columns are hashed as Java's int, all other integers as long: these differ below zero."""
    small, other = _small_columns(first, first_key), _small_columns(second, second_key)
    if small.keys() != other.keys():
        name = next(iter((small or other).values()))
        raise GraphError(
            "HR-1211",
            f"connect() at {call_site()}: one key is the int column {name!r}, the other is not: negative keys would not "
            "meet; make it a bigint column, or use a callable on both sides",
        )


def _small_columns(stream: DataStream, key: KeySpec) -> dict[int, str]:
    """Place in the key -> name, of signed key columns with less than 64 bits."""
    schema = stream.get_type().schema
    if schema is None:
        return {}
    fields = [schema.field(column) for column in key.columns]
    return {i: f.name for i, f in enumerate(fields) if pa.types.is_signed_integer(f.type) and f.type.bit_width < 64}


def check_strategy(strategy: Any, record_type: TypeInformation, call: str) -> WatermarkStrategy:
    """Refuse what is no strategy, and a column of timestamps that the records do not have."""
    if not isinstance(strategy, WatermarkStrategy):
        raise InvalidArgument("HR-1202", f"{call} at {call_site()} needs a WatermarkStrategy, got {strategy!r}")
    if isinstance(strategy.assigner, str):
        _field_index(record_type, strategy.assigner, call)
    return strategy


def key_spec(record_type: TypeInformation, selector: Any, key_type: object) -> KeySpec:
    """The key of a stream from what the user gave to `key_by`."""
    if isinstance(selector, KeySelector) or callable(selector):
        callable_of(selector, "get_key", "key_by()")
        return KeySpec((), selector, True, as_type(key_type))
    names: Iterable[Any] = (
        [selector] if isinstance(selector, str | int) else selector if isinstance(selector, list | tuple) else ()
    )
    positions = tuple(_field_index(record_type, name, "key_by()") for name in names)
    if not positions:
        raise InvalidArgument(
            "HR-1202",
            f"key_by() at {call_site()} needs a field name, a list of them, a callable or a KeySelector, got {selector!r}",
        )
    single = isinstance(selector, str | int)
    if not record_type.is_typed:
        alone = len(positions) == 1 and not single  # itemgetter gives the bare value of one position
        select = (lambda value: (value[positions[0]],)) if alone else itemgetter(*positions)
        return KeySpec((), select, True, as_type(key_type))
    types = [record_type.schema.field(p).type for p in positions]  # type: ignore[union-attr]
    several = pa.schema([(f"f{i}", type) for i, type in enumerate(types)])
    return KeySpec(positions, None, single, as_type(types[0]) if single else TypeInformation("tuple", several))


def _field_index(record_type: TypeInformation, name: int | str, call: str) -> int:
    if not record_type.is_typed:
        if isinstance(name, int) and not isinstance(name, bool):
            return name
        raise GraphError(
            "HR-1206",
            f"{call} at {call_site()}: the stream is untyped, so it has no column {name!r}; use a callable, a position, "
            "or give the operator before it an output_type",
        )
    names = record_type.schema.names  # type: ignore[union-attr]
    if isinstance(name, int) and not isinstance(name, bool) and 0 <= name < len(names):
        return name
    if name in names:
        return int(names.index(name))
    raise GraphError("HR-1206", f"{call} at {call_site()}: unknown column {name!r}; the stream has {', '.join(names)}")


def _count_type(key: KeySpec) -> TypeInformation:
    if not key.type.is_typed:
        return PICKLED
    return TypeInformation("tuple", pa.schema([("f0", key.type.arrow_type), ("f1", pa.int64())]))
