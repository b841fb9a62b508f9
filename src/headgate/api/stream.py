"""The DataStream API, in PyFlink's spelling: every call adds a node to the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa

from headgate.api.functions import KeySelector, OutputTag, callable_of
from headgate.api.sink import Sink, check_sink
from headgate.errors import GraphError, InvalidArgument
from headgate.graph.job_graph import KeySpec, Node, NodeInput, OperatorKind, OperatorSpec, Partitioning, Pipeline
from headgate.records.types import PICKLED, TypeInformation, as_type

__all__ = ["BroadcastStream", "ConnectedStreams", "DataStream", "DataStreamSink", "KeyedStream"]

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"


class Executor(Protocol):
    """What runs a program: the environment."""

    def _collect(self, stream: DataStream, job_name: str | None) -> Records:
        """Run the program and give this stream's records."""

    def _foreach_epoch(self, stream: DataStream, function: Callable[[Any, int], object]) -> DataStreamSink:
        """Give each completed checkpoint's records to a function."""


class Records(Iterator[Any], AbstractContextManager[Any], Protocol):
    """Records of a job that may still run; closing cancels it."""

    def close(self) -> None: ...


def call_site() -> str:
    """file:line of the user's call that led here."""
    frame = sys._getframe(1)  # the cheapest way to the caller's line
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_parallelism(value: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgument(f"{what} must be an integer of at least 1, got {value!r}")
    return value


def check_buffer_timeout(timeout_ms: int) -> int:
    if timeout_ms < -1:
        raise InvalidArgument(f"buffer timeout must be -1, 0 or positive milliseconds, got {timeout_ms}")
    return timeout_ms


class _OperatorSettings:
    """Settings of the node that made a stream or a sink."""

    def __init__(self, node: Node | None) -> None:
        self._node = node

    def _own(self, call: str) -> Node:
        if self._node is None:
            raise GraphError(
                f"{call} must directly follow an operator; this stream is a union or a partitioning of others"
            )
        return self._node

    def name(self, name: str) -> Self:
        """Name the operator: shown in plans, errors and metrics."""
        self._own("name()").name = name
        return self

    def uid(self, uid: str) -> Self:
        """Give the operator an id that stays the same when the program changes, so its state is found again."""
        if not uid:
            raise InvalidArgument("a uid must not be empty")
        self._own("uid()").uid = uid
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

    def set_buffer_timeout(self, timeout_ms: int) -> Self:
        """How long a record may wait for its buffer to fill: 0 = not at all, -1 = until it is full."""
        self._own("set_buffer_timeout()").buffer_timeout = check_buffer_timeout(timeout_ms)
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

    >>> from headgate import StreamExecutionEnvironment
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

    def force_non_parallel(self) -> Self:
        """Run the operator in one subtask, which `set_parallelism` cannot change."""
        node = self._own("force_non_parallel()")
        node.parallelism, node.single = 1, True
        return self

    # --- functions --------------------------------------------------------------------------------------------------

    def map(self, func: Any, output_type: object = None) -> DataStream:
        """One record in, one out: a callable or a MapFunction."""
        callable_of(func, "map", "map()")
        return self._then("Map", OperatorSpec("map", func, keys=self._keys), output_type)

    def flat_map(self, func: Any, output_type: object = None) -> DataStream:
        """One record in, any number out: a callable that returns an iterable (or yields), or a FlatMapFunction."""
        callable_of(func, "flat_map", "flat_map()")
        return self._then("Flat Map", OperatorSpec("flat_map", func, keys=self._keys), output_type)

    def filter(self, func: Any) -> DataStream:
        """Keep the records for which the callable or FilterFunction is true."""
        callable_of(func, "filter", "filter()")
        return self._then("Filter", OperatorSpec("filter", func, keys=self._keys), self._type)

    def map_batches(self, func: Callable[[Any], Any], output_type: object = None) -> DataStream:
        """Vectorised: `pyarrow.RecordBatch` in, `pyarrow.RecordBatch` (or an iterable of them, or None) out.

        The stream must be typed. Without `output_type` the output has the input's type.
        """
        if not self._type.is_typed:
            raise GraphError(
                f"map_batches() at {call_site()} needs a typed stream: give the operator before it an output_type, "
                "for example output_type='word string, n bigint'"
            )
        callable_of(func, "map_batches", "map_batches()")
        return self._then("Map Batches", OperatorSpec("map_batches", func), output_type or self._type)

    def process(self, func: Any, output_type: object = None) -> DataStream:
        """The general function: a ProcessFunction."""
        callable_of(func, "process_element", "process()")
        return self._then("Process", OperatorSpec("process", func), output_type)

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

    def broadcast(self, *descriptors: Any) -> Any:
        """Every record to every subtask; with state descriptors: a stream to connect for broadcast state."""
        spread = self._partitioned(Partitioning("broadcast"))
        return BroadcastStream(spread, descriptors) if descriptors else spread

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
                    f"union() at {call_site()} of streams with different types: {self._type} and {stream.get_type()}"
                )
        inlets = [inlet for stream in (self, *streams) for inlet in stream._inlets]
        return DataStream(self._pipeline, self._executor, inlets, self._type)

    def connect(self, other: DataStream | BroadcastStream) -> ConnectedStreams:
        """Two streams into one operator that tells them apart."""
        _check_one_program(self, other._stream if isinstance(other, BroadcastStream) else other, "connect()")
        return ConnectedStreams(self, other)

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """The records that the operator yielded with this tag."""
        node = self._own("get_side_output()")
        of_source = getattr(node.operator.function, "side_outputs", ())
        if output_tag not in of_source and not node.operator.kind.endswith("process"):
            raise GraphError(
                f"get_side_output({output_tag.name!r}): {node.where} has no side outputs; process(...) does, "
                "and a source that was given this tag, for corrupt records"
            )
        return DataStream(self._pipeline, self._executor, [NodeInput(node.id, output_tag, None, 0)], output_tag.type)

    # --- sinks ------------------------------------------------------------------------------------------------------

    def add_sink(self, sink: Any) -> DataStreamSink:
        """Pass every record to a SinkFunction; a `Sink` (a TwoPhaseCommitSinkFunction is one) is the same as in `sink_to`."""
        if isinstance(sink, Sink):
            return self.sink_to(sink)
        callable_of(sink, "invoke", "add_sink()")
        return DataStreamSink(self._add("Sink", OperatorSpec("sink", sink), PICKLED))

    def sink_to(self, sink: Sink[Any]) -> DataStreamSink:
        """Write the records with a two-phase sink: what it writes is visible exactly once.

        >>> stream.sink_to(FileSink("/data/out"))  # doctest: +SKIP
        """
        check_sink(sink)
        sink.check(self.get_type())
        return DataStreamSink(self._add("Sink", OperatorSpec("sink_to", sink, {"type": self.get_type()}), PICKLED))

    def foreach_epoch(self, function: Callable[[Any, int], object]) -> DataStreamSink:
        """Call `function(df, commit_number)` with each completed checkpoint's records as a Spark DataFrame.

        It runs on the driver, in your session, in order, one call at a time; while more than three epochs wait, no
        checkpoint starts. After a failure it may be called again for an epoch, with the same number and the same rows.

        >>> stream.foreach_epoch(lambda df, n: df.write.mode("append").saveAsTable("orders"))  # doctest: +SKIP
        """
        return self._executor._foreach_epoch(self, function)

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Print every record on the driver, with `n>` in front when there is more than one subtask."""
        options = {"identifier": sink_identifier}
        return DataStreamSink(self._add("Print", OperatorSpec("print", None, options), PICKLED))

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
        return DataStreamSink(self._add("Collect", OperatorSpec("collect", None, {"channel": channel}), PICKLED))

    # --- building ---------------------------------------------------------------------------------------------------

    def _add(self, name: str, operator: OperatorSpec, output_type: object) -> Node:
        return self._pipeline.add(name, operator, self._inlets, as_type(output_type), call_site())

    def _then(self, name: str, operator: OperatorSpec, output_type: object) -> DataStream:
        node = self._add(name, operator, output_type)
        return DataStream(self._pipeline, self._executor, [NodeInput(node.id, None, None, 0)], node.type, node)

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

    def process(self, func: Any, output_type: object = None) -> DataStream:
        """The general keyed function: a KeyedProcessFunction."""
        callable_of(func, "process_element", "process()")
        return self._then("Keyed Process", OperatorSpec("keyed_process", func, keys=self._keys), output_type)

    def reduce(self, func: Any) -> DataStream:
        """The running combination of all records of a key: one result for each record."""
        callable_of(func, "reduce", "reduce()")
        return self._then("Reduce", OperatorSpec("reduce", func, keys=self._keys), self._type)

    def sum(self, position_to_sum: int | str = 0, emit: str = "record") -> DataStream:
        """The running sum of a field for each key; the other fields are those of the key's first record."""
        return self._aggregate("sum", position_to_sum, emit)

    def min(self, position_to_min: int | str = 0, emit: str = "record") -> DataStream:
        """The running minimum of a field for each key; the other fields are those of the key's first record."""
        return self._aggregate("min", position_to_min, emit)

    def max(self, position_to_max: int | str = 0, emit: str = "record") -> DataStream:
        """The running maximum of a field for each key; the other fields are those of the key's first record."""
        return self._aggregate("max", position_to_max, emit)

    def count(self, emit: str = "record") -> DataStream:
        """The running number of records of each key, as (key, count)."""
        return self._aggregate("count", None, emit, _count_type(self._key))

    def _aggregate(
        self, how: str, position: int | str | None, emit: str, output_type: TypeInformation | None = None
    ) -> DataStream:
        if emit not in ("record", "batch"):
            raise InvalidArgument(
                f"emit must be 'record' (one result for each record) or 'batch' (one for each key and batch), got {emit!r}"
            )
        index = None if position is None else _field_index(self._type, position, f"{how}()")
        operator = OperatorSpec("aggregate", None, {"how": how, "position": index, "emit": emit}, self._keys)
        return self._then(how.capitalize(), operator, output_type or self._type)


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
        return self._then("Co-Map", "co_map", func, ("map1", "map2"), output_type)

    def flat_map(self, func: Any, output_type: object = None) -> DataStream:
        """A CoFlatMapFunction: `flat_map1` and `flat_map2`."""
        return self._then("Co-Flat Map", "co_flat_map", func, ("flat_map1", "flat_map2"), output_type)

    def process(self, func: Any, output_type: object = None) -> DataStream:
        """A CoProcessFunction, or a (Keyed)BroadcastProcessFunction if one side is a broadcast stream."""
        if self._descriptors:
            methods = ("process_element", "process_broadcast_element")
            return self._then("Co-Process-Broadcast", "broadcast_process", func, methods, output_type)
        kind: OperatorKind = "keyed_co_process" if self._keys()[0] is not None else "co_process"
        return self._then("Co-Process", kind, func, ("process_element1", "process_element2"), output_type)

    def _keys(self) -> tuple[KeySpec | None, KeySpec | None]:
        first, second = (s._key if isinstance(s, KeyedStream) else None for s in (self._first, self._second))
        if (first is None) != (second is None) and not self._descriptors:
            raise GraphError(f"connect() at {call_site()}: key both streams or neither")
        if first is not None and second is not None:
            _check_keys_meet(self._first, first, self._second, second)
        return first, second

    def _then(
        self, name: str, kind: OperatorKind, func: Any, methods: tuple[str, str], output_type: object
    ) -> DataStream:
        missing = [m for m in methods if not callable(getattr(func, m, None))]
        if missing:
            raise InvalidArgument(f"{name} needs an object with {methods[0]}(...) and {methods[1]}(...), got {func!r}")
        operator = OperatorSpec(kind, func, {"broadcast": list(self._descriptors)}, self._keys())
        inlets = [
            NodeInput(i.node, i.tag, i.partitioning, side)
            for side, s in enumerate((self._first, self._second))
            for i in s._inlets
        ]
        both = DataStream(self._first._pipeline, self._first._executor, inlets, PICKLED)
        return both._then(name, operator, output_type)


def _check_one_program(first: DataStream, second: DataStream, call: str) -> None:
    if first._pipeline is not second._pipeline:
        raise GraphError(
            f"{call} at {call_site()} of streams of two environments: build one program with one environment"
        )


def _check_keys_meet(first: DataStream, first_key: KeySpec, second: DataStream, second_key: KeySpec) -> None:
    """Small integer columns are hashed as Java's int, all other integers as long: these differ below zero."""
    small, other = _small_columns(first, first_key), _small_columns(second, second_key)
    if small.keys() != other.keys():
        name = next(iter((small or other).values()))
        raise GraphError(
            f"connect() at {call_site()}: one key is the int column {name!r}, the other is not: negative keys would not "
            "meet; make it a bigint column, or use a callable on both sides"
        )


def _small_columns(stream: DataStream, key: KeySpec) -> dict[int, str]:
    """Place in the key -> name, of signed key columns with less than 64 bits."""
    schema = stream.get_type().schema
    if schema is None:
        return {}
    fields = [schema.field(column) for column in key.columns]
    return {i: f.name for i, f in enumerate(fields) if pa.types.is_signed_integer(f.type) and f.type.bit_width < 64}


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
            f"key_by() at {call_site()} needs a field name, a list of them, a callable or a KeySelector, got {selector!r}"
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
            f"{call} at {call_site()}: the stream is untyped, so it has no column {name!r}; use a callable, a position, "
            "or give the operator before it an output_type"
        )
    names = record_type.schema.names  # type: ignore[union-attr]
    if isinstance(name, int) and not isinstance(name, bool) and 0 <= name < len(names):
        return name
    if name in names:
        return int(names.index(name))
    raise GraphError(f"{call} at {call_site()}: unknown column {name!r}; the stream has {', '.join(names)}")


def _count_type(key: KeySpec) -> TypeInformation:
    if not key.type.is_typed:
        return PICKLED
    return TypeInformation("tuple", pa.schema([("f0", key.type.arrow_type), ("f1", pa.int64())]))
