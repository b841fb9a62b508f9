"""Test harnesses for single functions: the subtask of a job, with input, time and snapshots under the test's control."""

from __future__ import annotations

import pickle
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Self, TypedDict, Unpack

import msgspec
import numpy as np

from headrace.api import functions as f
from headrace.api.functions import OutputTag
from headrace.api.keyed_batches import KeyedBatchFunction
from headrace.api.sink import Sink
from headrace.api.stream import DataStream, DataStreamSink
from headrace.checkpoint.types import Barrier
from headrace.config import Configuration
from headrace.control.deployment import VertexRestore, describe_tasks
from headrace.control.messages import TaskState
from headrace.environment import StreamExecutionEnvironment
from headrace.errors import IllegalState, InvalidArgument
from headrace.graph.job_graph import Edge, Vertex
from headrace.graph.plan import JobPlan, OutputEdge, VertexPlan
from headrace.job.status import Status
from headrace.records.batch import Batch
from headrace.records.frames import DRAIN, FrameKind, pack, read_frames
from headrace.worker.failures import reported
from headrace.worker.inputs import DATA, decode
from headrace.worker.output import EdgeWriter, RowBuffers
from headrace.worker.snapshots.snapshot_writer import snapshot_inline
from headrace.worker.subtask import Subtask
from headrace.worker.task import SteppedServices, make_task

__all__ = ["OneInputHarness", "TwoInputHarness"]

_UID = "harness"
_ONE_INPUT: dict[type, str] = {
    f.MapFunction: "map",
    f.FlatMapFunction: "flat_map",
    f.FilterFunction: "filter",
    f.ReduceFunction: "reduce",
    f.ProcessFunction: "process",
    f.KeyedProcessFunction: "process",
    KeyedBatchFunction: "process_batches",
    f.SinkFunction: "add_sink",
    Sink: "add_sink",
}
_TWO_INPUTS: dict[type, str] = {
    f.CoMapFunction: "map",
    f.CoFlatMapFunction: "flat_map",
    f.CoProcessFunction: "process",
    f.BroadcastProcessFunction: "process",
}


class HarnessOptions(TypedDict, total=False):
    """Options of both harnesses; `restore` takes a snapshot, or those of all subtasks of a wider run."""

    side_outputs: Iterable[OutputTag]
    parallelism: int
    max_parallelism: int | None
    subtask: int
    start_time: int
    configuration: Configuration | Mapping[str, Any] | None
    restore: bytes | Sequence[bytes] | None


class _HarnessSnapshot(msgspec.Struct, frozen=True):
    """The snapshot of one subtask: the state of each of its operators."""

    checkpoint_id: int
    operators: TaskState


class _Input:
    """Encodes elements as a writer in front of the subtask would."""

    def __init__(self, out: OutputEdge, place: int) -> None:
        self.edge, self._place = out.edge, place
        self._keyed = out.edge.partitioning.kind == "hash"
        self._first, self._readers = out.first_destination, out.readers
        self._buffers = RowBuffers(1 << 30)
        self._writer = EdgeWriter(out, 0, 1, self._buffers, Random(0))

    def rows(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> list[bytes]:
        """Return the rows that carry these elements to the subtask."""
        batch = Batch.of_rows(list(values), self.edge.type)
        batch.timestamps = None if timestamps is None else np.array(timestamps, np.int64)
        self._writer.emit(batch)
        self._writer.flush()
        self._buffers.flush()
        rows = [(target - self._first, b"".join(pieces)) for target, pieces in self._buffers.take()]
        for target, _ in rows:
            if self._keyed and target != self._place:
                raise InvalidArgument(
                    "HR-8501",
                    f"a key of {values!r} belongs to subtask {target}, but the harness runs subtask {self._place}",
                )
        broadcast = self.edge.partitioning.kind == "broadcast"
        return [row for target, row in rows if not broadcast or target == self._place]

    def event(self, kind: FrameKind, body: bytes = b"", flags: int = 0) -> bytes:
        return b"".join(pack(kind, self.edge.id, 0, body, flags=flags))


def _own_directory(parent: str | None) -> str:
    if parent is not None:
        Path(parent).mkdir(parents=True, exist_ok=True)
    return tempfile.mkdtemp(prefix="headrace-harness-", dir=parent)


class _Harness:
    """The base of both harnesses; `build` makes the program around the function."""

    def __init__(
        self,
        build: Callable[[StreamExecutionEnvironment], DataStream | DataStreamSink],
        side_outputs: Iterable[OutputTag] = (),
        parallelism: int = 1,
        max_parallelism: int | None = None,
        subtask: int = 0,
        start_time: int = 0,
        configuration: Configuration | Mapping[str, Any] | None = None,
        restore: bytes | Sequence[bytes] | None = None,
    ) -> None:
        if not 0 <= subtask < parallelism:
            raise InvalidArgument("HR-8501", f"subtask must be from 0 to {parallelism - 1}, got {subtask}")
        given = configuration if isinstance(configuration, Configuration) else Configuration(dict(configuration or {}))
        env = StreamExecutionEnvironment.local(given)
        env.set_buffer_timeout(-1)
        end = build(env).uid(_UID).set_parallelism(parallelism)
        if max_parallelism is not None:
            end.set_max_parallelism(max_parallelism)
        if isinstance(end, DataStream):
            end.rebalance().add_sink(_nowhere)
            for tag in side_outputs:
                end.get_side_output(tag).rebalance().add_sink(_nowhere)
        plan = env._job_plan(_UID)
        number = next(v.id for v in plan.graph.vertices if v.head.uid == _UID)
        self._time = start_time
        self._inputs = {edge.input: _input(plan, edge, subtask) for edge in plan.graph.inputs(number)}
        self._edges = {int(edge.id): edge for edge in plan.graph.outputs(number)}
        self._emitted: dict[str | None, list[tuple[Any, int | None]]] = {e.tag: [] for e in self._edges.values()}
        restored = {} if restore is None else {number: _vertex_restore(restore, plan.graph.vertices[number])}
        attempt = int(restore is not None)  # the job's id is fixed, so that two runs of a test are the same
        tasks = describe_tasks(plan, plan.layout.level_of[number], "0" * 32, attempt, restored)
        descriptor = next(t for t in tasks if t.vertex_id == number and t.subtask == subtask and t.vertex is not None)
        # No two harnesses share working files, in whatever processes they are.
        directory = _own_directory(descriptor.settings.tmp_dir)
        self._remove_files = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        descriptor = replace(descriptor, settings=replace(descriptor.settings, tmp_dir=directory))
        task = make_task(descriptor, SteppedServices(lambda: self._time))
        assert isinstance(task, Subtask)
        self._subtask = task
        self._checkpoint_id = restored[number].checkpoint_id if restored else 0

    # --- life -------------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Open the function; `with` does it too."""
        with reported("the harness"):
            self._subtask.open()
        self._drain()
        return self

    def end_input(self) -> None:
        """End the input: event-time timers fire, sinks finish."""
        for entry in self._inputs.values():
            self._feed(entry.event(FrameKind.END_OF_DATA, flags=DRAIN))

    def close(self) -> None:
        """Close the function; the end of `with` does it too."""
        with reported("the harness"):
            try:
                self._subtask.close()
            finally:
                self._remove_files()

    def __enter__(self) -> Self:
        return self.open() if self._subtask.status is Status.CREATED else self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def function(self) -> Any:
        """The function that runs: a copy of the given one, pickled as for workers."""
        return self._subtask.operators[0].function

    # --- input ------------------------------------------------------------------------------------------------------

    def _process(self, number: int, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        with reported("the harness"):
            rows = self._inputs[number].rows(values, timestamps)
        for row in rows:
            self._feed(row)

    def _feed(self, row: bytes) -> None:
        if self._subtask.status is Status.CREATED:
            raise IllegalState("HR-8501", "open the harness first: `with OneInputHarness(...) as harness:`")
        with reported("the harness"):
            self._subtask.receive(row)
        self._work()
        self._drain()

    def _work(self) -> None:
        with reported("the harness"):
            while self._subtask.has_events():
                self._subtask.step(1 << 16)

    def _drain(self) -> None:
        with reported("the harness"):
            self._subtask.flush()
        for _, pieces in self._subtask.take():
            for frame in read_frames(b"".join(pieces)):
                if frame.kind in DATA:
                    edge = self._edges[frame.edge]
                    batch = decode(frame, edge.type)
                    stamps = [None] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
                    self._emitted[edge.tag] += zip(batch.rows(), stamps, strict=True)

    # --- time -------------------------------------------------------------------------------------------------------

    def _watermark(self, number: int, timestamp: int) -> None:
        self._feed(self._inputs[number].event(FrameKind.WATERMARK, timestamp.to_bytes(8, "little", signed=True)))

    @property
    def watermark(self) -> int:
        """The event-time clock that the function sees."""
        return self._subtask.operators[0].watermark

    @property
    def processing_time(self) -> int:
        """The clock that the function sees, in milliseconds."""
        return self._time

    def set_processing_time(self, timestamp: int) -> None:
        """Move the clock; timers up to and including `timestamp` fire in order, each at its own time."""
        if timestamp < self._time:
            raise InvalidArgument("HR-8501", f"time does not run backwards: it is {self._time}, got {timestamp}")
        while (due := self._subtask.next_deadline()) is not None and due <= timestamp:
            self._time = max(self._time, due)
            with reported("the harness"):
                self._subtask.on_time(self._time)
            self._work()
        self._time = timestamp
        self._drain()

    # --- output -----------------------------------------------------------------------------------------------------

    def take(self) -> list[Any]:
        """Return the records that the function emitted since the last call."""
        return [value for value, _ in self._take(None)]

    def take_with_timestamps(self) -> list[tuple[Any, int | None]]:
        """Return the records since the last call, each with its event timestamp."""
        return self._take(None)

    def take_side_output(self, tag: OutputTag) -> list[Any]:
        """Return the records that the function emitted to a side output since the last call."""
        return [value for value, _ in self._take(tag.name)]

    def _take(self, tag: str | None) -> list[tuple[Any, int | None]]:
        if tag is not None and tag not in self._emitted:
            raise InvalidArgument(
                "HR-8501", f"unknown side output '{tag}': give the harness side_outputs=[OutputTag('{tag}')]"
            )
        taken, self._emitted[tag] = self._emitted.get(tag, []), []
        return taken

    # --- snapshots --------------------------------------------------------------------------------------------------

    @property
    def checkpoint_id(self) -> int:
        """The number of the last snapshot."""
        return self._checkpoint_id

    def snapshot(self) -> bytes:
        """Take a snapshot as a job does, by a barrier on every input; give it to another harness as `restore`."""
        self._checkpoint_id += 1
        barrier = Barrier(self._checkpoint_id, self._time)
        for entry in self._inputs.values():
            self._feed(entry.event(FrameKind.BARRIER, barrier.encode()))
        taken = self._subtask.take_snapshots()
        if not taken:
            raise IllegalState(
                "HR-8501",
                "the barrier waits behind records for which there is no room yet: asynchronous calls are at their capacity; "
                "move the time with set_processing_time(...), or raise the capacity",
            )
        (progress,) = taken
        return msgspec.msgpack.encode(_HarnessSnapshot(barrier.id, snapshot_inline(progress)))

    def notify_checkpoint_complete(self, checkpoint_id: int | None = None) -> None:
        """Notify the function that a snapshot (by default the last one) is complete: sinks commit."""
        with reported("the harness"):
            self._subtask.notify_complete(checkpoint_id or self._checkpoint_id)
        self._drain()

    def notify_checkpoint_aborted(self, checkpoint_id: int | None = None) -> None:
        """Notify the function that a snapshot (by default the last one) was aborted."""
        with reported("the harness"):
            self._subtask.notify_aborted(checkpoint_id or self._checkpoint_id)
        self._drain()


class OneInputHarness(_Harness):
    """A function of one input: map, flat map, filter, reduce, process, keyed process or sink.

    `key` makes the stream keyed, in any form that `key_by` takes. A plain callable needs `method`, the name of the
    DataStream method that would take it. The `options` are those of `HarnessOptions`.

    >>> from headrace import KeyedProcessFunction
    >>> class Alarm(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_processing_time_timer(value)
    ...
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    >>> with OneInputHarness(Alarm(), key=lambda n: n % 2) as harness:
    ...     harness.process_elements([30, 10, 20])
    ...     harness.set_processing_time(25)
    ...     harness.take()
    [(0, 10), (0, 20)]

    >>> with OneInputHarness(str.upper, method="map") as harness:
    ...     harness.process_element("a", timestamp=7)
    ...     harness.take_with_timestamps()
    [('A', 7)]
    """

    def __init__(
        self,
        function: Any,
        *,
        key: Any = None,
        key_type: object = None,
        input_type: object = None,
        output_type: object = None,
        method: str | None = None,
        **options: Unpack[HarnessOptions],
    ) -> None:
        call = method or _method_of(function, _ONE_INPUT)

        def build(env: StreamExecutionEnvironment) -> DataStream | DataStreamSink:
            source = env.from_collection([], input_type)
            stream: DataStream = source.global_() if key is None else source.key_by(key, key_type)
            takes_type = call not in ("filter", "reduce", "add_sink")
            given = (function, output_type) if takes_type else (function,)
            return getattr(stream, call)(*given)  # type: ignore[no-any-return]

        super().__init__(build, **options)

    @classmethod
    def of(
        cls,
        build: Callable[[DataStream], DataStream],
        input_type: object = None,
        **options: Unpack[HarnessOptions],
    ) -> Self:
        """A harness for an operator that is no function: `build` takes the input and returns what the operator gives.

        >>> with OneInputHarness.of(lambda numbers: numbers.key_by(lambda n: n).count_window(2).reduce(max)) as harness:
        ...     harness.process_elements([1, 2, 1])
        ...     harness.take()
        [1]
        """
        harness = cls.__new__(cls)
        _Harness.__init__(harness, lambda env: build(env.from_collection([], input_type).global_()), **options)
        return harness

    def process_element(self, value: Any, timestamp: int | None = None) -> None:
        """Give the function one element."""
        self._process(0, [value], None if timestamp is None else [timestamp])

    def process_watermark(self, timestamp: int) -> None:
        """Move the event-time clock: timers up to and including `timestamp` fire."""
        self._watermark(0, timestamp)

    def process_elements(self, values: Iterable[Any], timestamps: Sequence[int] | None = None) -> None:
        """Give the function several elements, as one batch."""
        self._process(0, list(values), timestamps)


class TwoInputHarness(_Harness):
    """A function of two inputs: co-map, co-flat-map, co-process, and broadcast process.

    `keys` makes both streams keyed (with a broadcast function: the first one). `broadcast` has the descriptors of the
    broadcast state; the second input is then the broadcast side. The `options` are those of `HarnessOptions`.

    >>> from headrace import CoMapFunction
    >>> class Sides(CoMapFunction):
    ...     def map1(self, value):
    ...         return f"first {value}"
    ...
    ...     def map2(self, value):
    ...         return f"second {value}"
    >>> with TwoInputHarness(Sides()) as harness:
    ...     harness.process_element2("b")
    ...     harness.process_element1("a")
    ...     harness.take()
    ['second b', 'first a']
    """

    def __init__(
        self,
        function: Any,
        *,
        keys: tuple[Any, Any] | None = None,
        key_type: object = None,
        input_types: tuple[object, object] = (None, None),
        output_type: object = None,
        broadcast: Sequence[Any] = (),
        method: str | None = None,
        **options: Unpack[HarnessOptions],
    ) -> None:
        call = method or _method_of(function, _TWO_INPUTS)

        def build(env: StreamExecutionEnvironment) -> DataStream | DataStreamSink:
            sources = [env.from_collection([], kind) for kind in input_types]
            first: DataStream = sources[0].global_() if keys is None else sources[0].key_by(keys[0], key_type)
            if broadcast:
                second: Any = sources[1].broadcast(*broadcast)
            else:
                second = sources[1].global_() if keys is None else sources[1].key_by(keys[1], key_type)
            return getattr(first.connect(second), call)(function, output_type)  # type: ignore[no-any-return]

        super().__init__(build, **options)

    @classmethod
    def of(
        cls,
        build: Callable[[DataStream, DataStream], DataStream],
        input_types: tuple[object, object] = (None, None),
        **options: Unpack[HarnessOptions],
    ) -> Self:
        """A harness for an operator that is no function: `build` takes both inputs and returns what the operator gives."""
        harness = cls.__new__(cls)
        _Harness.__init__(harness, lambda env: build(*(env.from_collection([], one) for one in input_types)), **options)
        return harness

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """Give the function one element of the first input."""
        self._process(0, [value], None if timestamp is None else [timestamp])

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """Give the function one element of the second input."""
        self._process(1, [value], None if timestamp is None else [timestamp])

    process_broadcast_element = process_element2

    def process_watermark1(self, timestamp: int) -> None:
        """Move the clock of the first input; the function sees the lesser one of both."""
        self._watermark(0, timestamp)

    def process_watermark2(self, timestamp: int) -> None:
        """Move the clock of the second input."""
        self._watermark(1, timestamp)


def _method_of(function: Any, methods: dict[type, str]) -> str:
    for kind, method in methods.items():
        if isinstance(function, kind):
            return method
    known = ", ".join(sorted(kind.__name__ for kind in methods))
    raise InvalidArgument(
        "HR-8501",
        f"the harness cannot tell what {function!r} is for: make it a subclass of one of {known}, or say "
        f"method='{next(iter(methods.values()))}'",
    )


def _input(plan: JobPlan, edge: Edge, place: int) -> _Input:
    writer: VertexPlan = pickle.loads(plan.vertices[edge.source])
    return _Input(next(out for out in writer.outputs if out.edge.id == edge.id), place)


def _vertex_restore(restore: bytes | Sequence[bytes], vertex: Vertex) -> VertexRestore:
    snapshots = [restore] if isinstance(restore, bytes) else restore
    left = [msgspec.msgpack.decode(snapshot, type=_HarnessSnapshot) for snapshot in snapshots]
    operators = {str(op.id): [one.operators.get(op.id) for one in left] for op in vertex.operators}
    newest = max(one.checkpoint_id for one in left)
    return VertexRestore(newest, vertex.parallelism, vertex.max_parallelism, operators, claim=False)


def _nowhere(value: Any) -> None:
    """Do nothing: the sink that the harness never runs."""
