"""User functions, in PyFlink's spelling: what a program subclasses, and the contexts it is handed."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from headrace.api.metrics import MetricGroup
from headrace.api.raw_state import RawKeyedStateOutput, RawOperatorStateOutput
from headrace.errors import InvalidArgument
from headrace.graph.job_graph import OutputTag
from headrace.graph.plan import TaskInfo

__all__ = [
    "AggregateFunction",
    "BroadcastProcessFunction",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "OutputTag",
    "Partitioner",
    "ProcessFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SinkFunction",
    "SourceFunction",
    "TimerService",
]


class StateAccess(Protocol):
    """The source of a function's state; the runtime passes one that knows the operator and its backend."""

    def state(self, descriptor: Any) -> Any: ...

    def raw_streams(self) -> Mapping[int, bytes]: ...


class KeyedStateStore:
    """Gives handles for keyed state."""

    def __init__(self, state: StateAccess) -> None:
        self._state = state

    def get_state(self, state_descriptor: Any) -> Any:
        """The keyed state of a descriptor."""
        return self._state.state(state_descriptor)

    get_list_state = get_map_state = get_reducing_state = get_aggregating_state = get_state


class RuntimeContext(KeyedStateStore):
    """The context of a rich function, passed to `open`."""

    def __init__(
        self,
        info: TaskInfo,
        state: StateAccess,
        metrics: MetricGroup | None = None,
        job_parameters: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(state)
        self._info = info
        self._metrics = metrics or MetricGroup(info.task_name, {}, lambda: 0)
        self._job_parameters = job_parameters or {}

    def get_task_name(self) -> str:
        """The operator's name."""
        return self._info.task_name

    def get_task_name_with_subtasks(self) -> str:
        """For example `count (2/4)#0`: name, number of the subtask, parallelism, attempt."""
        info = self._info
        return f"{info.task_name} ({info.subtask + 1}/{info.parallelism})#{info.attempt}"

    def get_index_of_this_subtask(self) -> int:
        """0 .. parallelism - 1."""
        return self._info.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """The operator's parallelism."""
        return self._info.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The operator's max parallelism, the number of key groups."""
        return self._info.max_parallelism

    def get_attempt_number(self) -> int:
        """Return the number of restarts of the job."""
        return self._info.attempt

    def get_job_id(self) -> str:
        """The job's id, 32 hex digits."""
        return self._info.job_id

    def get_metrics_group(self) -> MetricGroup:
        """Return the group in which the function registers counters, gauges, meters and distributions."""
        return self._metrics

    def get_job_parameter(self, key: str, default_value: str | None = None) -> str | None:
        """A value of pipeline.global-job-parameters."""
        return self._job_parameters.get(key, default_value)


class Function:
    """Base of all user functions: `open` before the first record, `close` at the end, also after a failure."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once in every subtask before the first record."""

    def close(self) -> None:
        """Called once when the subtask ends, also when it failed."""

    def __class_getitem__(cls, _: Any) -> type[Self]:
        """`MapFunction[int, str]` is the class itself: types of records are not checked."""
        return cls


class MapFunction(Function, ABC):
    """One record in, one out."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """The record that takes the place of `value`."""


class FlatMapFunction(Function, ABC):
    """One record in, any number out."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """Yield or return the records that take the place of `value`."""


class FilterFunction(Function, ABC):
    """Keeps or drops a record."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Return True to keep `value`."""


class ReduceFunction(Function, ABC):
    """Combines two records of a key into one."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """The combination of the running result and the next record."""


class AggregateFunction(Function, ABC):
    """Folds records of a key into an accumulator."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """A fresh accumulator."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with `value` in it."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """The result for an accumulator."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Both accumulators as one."""


class KeySelector(Function, ABC):
    """Gives the key of a record."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key: a number, a text, bytes, a date, ..., or a tuple, list, dict or row of these; the same for equal records."""


class Partitioner(Function, ABC):
    """Chooses the subtask for a key in `partition_custom`."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """0 .. num_partitions - 1."""


class TimerService(Protocol):
    """Time and timers of the current key."""

    def current_processing_time(self) -> int:
        """Milliseconds since the epoch."""

    def current_watermark(self) -> int:
        """The event-time clock of this operator."""

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the clock reaches `timestamp`; the same timer twice fires once."""

    def register_event_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the watermark reaches `timestamp`."""

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Forget a timer; nothing happens if there is none."""

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Forget a timer; nothing happens if there is none."""


class ProcessFunction(Function, ABC):
    """The general function on a stream; `yield tag, value` goes to a side output."""

    class Context(Protocol):
        """The context of a record."""

        def timestamp(self) -> int | None:
            """The record's event timestamp in milliseconds, or None."""

        def timer_service(self) -> TimerService:
            """Time, and timers on keyed streams."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Yield or return any number of records."""


class KeyedProcessFunction(Function, ABC):
    """The general function on a keyed stream: state, timers, side outputs."""

    class Context(ProcessFunction.Context, Protocol):
        """The context of a record, with its key."""

        def get_current_key(self) -> Any:
            """The key of the record."""

    class OnTimerContext(Context, Protocol):
        """The context of a firing timer."""

        def time_domain(self) -> str:
            """`processing` or `event`."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Yield or return any number of records."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """A timer of the current key fired."""
        return None


class CoMapFunction(Function, ABC):
    """A map over two connected streams."""

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """For a record of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """For a record of the second stream."""


class CoFlatMapFunction(Function, ABC):
    """A flat map over two connected streams."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """For a record of the first stream."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """For a record of the second stream."""


class CoProcessFunction(Function, ABC):
    """The general function on two connected streams."""

    Context = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """For a record of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """For a record of the second stream."""


class KeyedCoProcessFunction(CoProcessFunction, ABC):
    """The general function on two connected keyed streams: shared state, timers, side outputs."""

    Context = KeyedProcessFunction.Context
    OnTimerContext = KeyedProcessFunction.OnTimerContext

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """A timer of the current key fired."""
        return None


class BroadcastProcessFunction(Function, ABC):
    """A stream connected with a broadcast stream: the first reads the broadcast state, the second changes it."""

    class ReadOnlyContext(ProcessFunction.Context, Protocol):
        """The context of a record of the first stream."""

        def get_broadcast_state(self, state_descriptor: Any) -> Any:
            """The broadcast state, to be read."""

    class Context(Protocol):
        """The context of a broadcast record."""

        def timestamp(self) -> int | None:
            """The record's event timestamp in milliseconds, or None."""

        def get_broadcast_state(self, state_descriptor: Any) -> Any:
            """The broadcast state, to be changed."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """For a record of the first stream; `ctx.get_broadcast_state(descriptor)` is read-only here."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """For a broadcast record: every subtask gets it and must make the same change to the broadcast state."""


class KeyedBroadcastProcessFunction(BroadcastProcessFunction, ABC):
    """A keyed stream connected with a broadcast stream: keyed state and timers on the keyed side.

    `ctx.apply_to_keyed_state(descriptor, function)` on the broadcast side reaches the state of every key.
    """

    class ReadOnlyContext(KeyedProcessFunction.Context, BroadcastProcessFunction.ReadOnlyContext, Protocol):
        """The context of a record of the keyed stream."""

    class OnTimerContext(KeyedProcessFunction.OnTimerContext, BroadcastProcessFunction.ReadOnlyContext, Protocol):
        """The context of a firing timer."""

    class Context(BroadcastProcessFunction.Context, Protocol):
        """The context of a broadcast record."""

        def apply_to_keyed_state(self, descriptor: Any, function: Callable[[Any, Any], None]) -> None:
            """Call `function(key, state)` for every key of this subtask."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """A timer of the current key fired."""
        return None


class CheckpointedFunction(ABC):
    """A function with operator state, beside its other base class (SPEC R4.1)."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Before `open`, at the start and at a restore: register state, take over what was restored."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """At each checkpoint: bring the state up to date."""


@dataclass(frozen=True, slots=True)
class FunctionSnapshotContext:
    """Which checkpoint is taken."""

    checkpoint_id: int
    timestamp: int
    raw_keyed: RawKeyedStateOutput | None = None
    raw_operator: RawOperatorStateOutput = field(default_factory=RawOperatorStateOutput)

    def get_checkpoint_id(self) -> int:
        """The checkpoint's id."""
        return self.checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """Return the time at which the checkpoint was triggered, in milliseconds."""
        return self.timestamp

    def get_raw_keyed_state_output(self) -> RawKeyedStateOutput:
        """Return the output for raw keyed state of a function on a keyed stream (see `headrace.api.raw_state`)."""
        if self.raw_keyed is None:
            raise InvalidArgument(
                "HR-2001", "raw keyed state can only be used on a keyed stream: call key_by(...) before"
            )
        return self.raw_keyed

    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        """Return the output for raw operator state (see `headrace.api.raw_state`)."""
        return self.raw_operator


class FunctionInitializationContext:
    """The state a function starts with."""

    def __init__(self, operator_state: Any, keyed_state: StateAccess, restored_id: int | None) -> None:
        self._operator_state, self._keyed_state, self._restored_id = operator_state, keyed_state, restored_id

    def is_restored(self) -> bool:
        """Return True if the task continues from a checkpoint or savepoint."""
        return self._restored_id is not None

    def get_restored_checkpoint_id(self) -> int | None:
        """The checkpoint it continues from."""
        return self._restored_id

    def get_operator_state_store(self) -> Any:
        """get_list_state, get_union_list_state, get_broadcast_state."""
        return self._operator_state

    def get_keyed_state_store(self) -> KeyedStateStore:
        """get_state, get_list_state, get_map_state, ... on keyed streams."""
        return KeyedStateStore(self._keyed_state)

    def get_raw_keyed_state_inputs(self) -> Iterator[tuple[int, io.BytesIO]]:
        """The key group and the stream of each restored key group with raw state."""
        return ((group, io.BytesIO(stream)) for group, stream in self._keyed_state.raw_streams().items())

    def get_raw_operator_state_inputs(self) -> Iterator[io.BytesIO]:
        """The restored raw operator streams of this subtask."""
        return map(io.BytesIO, self._operator_state.raw_streams())


class SourceFunction(Function, ABC):
    """A source written as a loop; `run` has its own thread and ends when it returns."""

    @abstractmethod
    def run(self, ctx: Any) -> None:
        """Emit records until the input ends or `cancel` was called.

        `ctx.collect(value)` and `ctx.collect_with_timestamp(value, milliseconds)` emit, and block while the job cannot
        take more; hold `ctx.get_checkpoint_lock()` to emit and change state as one step.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Make `run` return soon."""


class SinkFunction(Function, ABC):
    """Takes each record out of the job; at-least-once unless it does better itself."""

    class Context(Protocol):
        """The context of a record; the same object for all records of a subtask."""

        def timestamp(self) -> int | None:
            """The record's event timestamp in milliseconds, or None."""

        def current_processing_time(self) -> int:
            """Milliseconds since the epoch."""

        def current_watermark(self) -> int:
            """The event-time clock of this operator."""

    @abstractmethod
    def invoke(self, value: Any, context: Any) -> None:
        """Called for every record."""


def callable_of(function: Any, method: str, what: str) -> Callable[..., Any]:
    """The callable behind a plain function or a function object; a clear error for anything else."""
    bound = getattr(function, method, None)
    # A class that has the method was meant to be an instance; any other class, such as str, is a callable.
    forgotten = isinstance(function, type) and (bound is not None or issubclass(function, Function))
    if callable(bound) and not forgotten:
        return bound  # type: ignore[no-any-return]
    if callable(function) and not forgotten:
        return function  # type: ignore[no-any-return]
    hint = f" (did you forget to make an instance: {function.__name__}()?)" if forgotten else ""
    raise InvalidArgument(
        "HR-1204",
        f"{what} needs a callable or an object with {method}(...), got {type(function).__name__} {function!r}{hint}",
    )


class NoState:
    """State access of an operator that has none; says why."""

    def __init__(self, operator: str) -> None:
        self._operator = operator

    def state(self, descriptor: Any) -> Any:
        kind = type(descriptor).__name__.removesuffix("Descriptor")
        raise InvalidArgument(
            "HR-2001",
            f"keyed state '{getattr(descriptor, 'name', descriptor)}' ({kind}) can only be used on a keyed stream: "
            f"call key_by(...) before '{self._operator}'",
        )

    def raw_streams(self) -> Mapping[int, bytes]:
        raise InvalidArgument(
            "HR-2001", f"raw keyed state can only be used on a keyed stream: call key_by(...) before '{self._operator}'"
        )
