"""The base of all operators: batches in, batches out, snapshots, timers, and errors that name the operator."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from headrace.api import functions
from headrace.api.metrics import Metric, MetricGroup
from headrace.api.raw_state import RawKeyedStateOutput
from headrace.api.specs import TwoInputSpec
from headrace.api.watermarks import MIN_WATERMARK
from headrace.checkpoint.commits import Commits
from headrace.errors import InvalidArgument, UserCodeError
from headrace.graph.job_graph import ChainedOperator, OutputTag
from headrace.graph.plan import Settings, TaskInfo
from headrace.records.batch import Batch
from headrace.records.copying import copier
from headrace.records.kernel import places_of_tagged, take, take_detached
from headrace.records.types import TypeInformation
from headrace.state.backend import KeyedStateBackend, SnapshotKind, SnapshotRun
from headrace.state.operator import OperatorStateBackend, OperatorStateSnapshot
from headrace.worker.failures import NO_KEY, OperatorFailure
from headrace.worker.watermarks import Stamps, TimeReceiver

Receiver = Callable[[Batch], None]
R = TypeVar("R")
_LOOPS = (__package__, "headrace.records.kernel")  # where the user's functions are called


class SubtaskServices(Protocol):
    """The services that a subtask needs of its runtime: the Spark shell, the local runtime and tests have their own."""

    lockstep: bool
    """Whether sources with a thread of their own hand over record by record, so that a run can be repeated."""

    def now(self) -> int:
        """Milliseconds since the epoch; virtual in the local runtime and the simulator."""

    def to_driver(self, channel: str, payload: bytes, records: int) -> None:
        """Send printed lines or collected records."""

    def wake(self) -> None:
        """There is something to do; called from any thread."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """The context that an operator gets from its subtask."""

    info: TaskInfo
    services: SubtaskServices
    settings: Settings
    operator_state: OperatorStateBackend
    keyed_backend: Callable[[TypeInformation, Callable[[Any], int]], KeyedStateBackend]  # key type, key -> group
    restored_id: int | None  # the checkpoint this task continues from
    restored_commits: Commits  # under which numbers of the job log it and those before it were completed
    restored_names: frozenset[str] | None  # of the operator states that it has of this operator; None: it had finished


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """An operator's snapshot whose synchronous part is done."""

    operator: ChainedOperator
    subtask: int
    operator_state: Callable[[], OperatorStateSnapshot]
    keyed: SnapshotRun | None


class Operator:
    """Base of all operators; one object for each subtask."""

    watermark = MIN_WATERMARK  # the event-time clock
    late_records = 0  # that came behind the clock and are not part of any result
    makes_watermarks = False

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        self.operator = operator
        self.context = context
        self.type = operator.type
        self.origin = (operator.name, operator.call_site)
        self.function: Any = operator.spec.function
        self.emit: Receiver = _nowhere  # the main output
        self.side: dict[str, Receiver] = {}
        self.behind: list[TimeReceiver] = []  # what follows its event-time clock
        self.metrics: dict[str, Metric] = {}  # of the user's function, by name
        # Results of a type with plain values cannot be changed after they were emitted.
        plain = copier(operator.type) is None and all(output.tag is None for output in operator.outputs)
        self.detaches = not (context.settings.object_reuse or plain)
        self.take = take_detached if self.detaches else take  # appends what the user's function gave for a record

    def has_mutable_output(self, tag: str | None) -> bool:
        """Return True if the receivers of an output could change its records."""
        return tag is not None or copier(self.type) is not None

    # --- life -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Called before the first record: operator state first, then the user's `open` (SPEC R4.1)."""
        initialize = getattr(self.function, "initialize_state", None)
        if initialize is not None:
            state, restored_id = self.context.operator_state, self.context.restored_id
            self.guard(initialize, functions.FunctionInitializationContext(state, self.keyed_state(), restored_id))
        if isinstance(self.function, functions.Function) or hasattr(self.function, "open"):
            self.guard(self.function.open, self.runtime_context())

    def runtime_context(self) -> functions.RuntimeContext:
        group = MetricGroup(self.operator.name, self.metrics, self.context.services.now)
        return functions.RuntimeContext(
            self.context.info, self.keyed_state(), group, self.context.settings.job_parameters
        )

    def start(self) -> None:
        """Every subtask has restored its state: what is visible outside may change from now on."""

    def keyed_state(self) -> functions.StateAccess:
        return functions.NoState(self.operator.name)

    def receiver(self, input: int) -> Receiver:
        """Return the receiver of an input's batches."""
        raise UserCodeError("HR-9001", f"operator '{self.operator.name}' takes no input {input}")

    def finish(self) -> None:
        """All inputs have ended: emit what is held."""

    @property
    def busy(self) -> bool:
        """Return True if it holds records that it will emit by itself: it is finished only after that."""
        return False

    @property
    def full(self) -> bool:
        """Return True if it holds so much that its subtask takes no more records."""
        return False

    def close(self) -> None:
        """Called at the end, also after a failure."""
        if isinstance(self.function, functions.Function) or hasattr(self.function, "close"):
            self.guard(self.function.close)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def checkpoint_lock(self) -> AbstractContextManager[Any]:
        """Held from before the barrier until the synchronous part of the snapshot is done."""
        return nullcontext()

    def before_barrier(self) -> None:
        """Emit what must precede the barrier."""

    def snapshot(self, checkpoint_id: int, timestamp: int, kind: SnapshotKind) -> OperatorSnapshot:
        """The synchronous part of a snapshot (SPEC R6.1)."""
        update = getattr(self.function, "snapshot_state", None)
        output = functions.FunctionSnapshotContext(checkpoint_id, timestamp, self.raw_keyed_output())
        if update is not None:
            self.guard(update, output)
        self.store_raw_state(output)
        return OperatorSnapshot(
            self.operator,
            self.context.info.subtask,
            self.context.operator_state.snapshot(),
            self.keyed_run(checkpoint_id, kind),
        )

    def raw_keyed_output(self) -> RawKeyedStateOutput | None:
        """Return the output for raw keyed state, if the function has any."""
        return None

    def store_raw_state(self, output: functions.FunctionSnapshotContext) -> None:
        """Put the raw state that the function wrote into the snapshot."""
        for stream in output.raw_operator.streams:
            self.context.operator_state.write_raw_stream(bytes(stream))

    def keyed_run(self, checkpoint_id: int, kind: SnapshotKind) -> SnapshotRun | None:
        """The synchronous part for keyed state."""
        return None

    def notify_complete(self, checkpoint_id: int, commits: Commits) -> None:
        """A checkpoint is complete (SPEC R5.7)."""
        self._notify("notify_checkpoint_complete", checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        self._notify("notify_checkpoint_aborted", checkpoint_id)

    def _notify(self, method: str, checkpoint_id: int) -> None:
        listener = getattr(self.function, method, None)
        if listener is not None:
            self.guard(listener, checkpoint_id)

    @property
    def awaits_commit(self) -> bool:
        """Return True if the driver has yet to commit what this operator prepared: its subtask does not end before."""
        return False

    def epoch_committed(self, checkpoint_id: int) -> None:
        """The driver has committed what this operator prepared, up to a checkpoint."""

    def upkeep(self) -> None:
        """Bounded background work, called about once a second."""

    def own_metrics(self) -> dict[str, float]:
        """Return the metrics that only this operator has; called about once a second."""
        return {}

    # --- time -------------------------------------------------------------------------------------------------------

    def advance(self, watermark: int) -> None:
        """The event-time clock moves on: what is due here is emitted before operators behind this one learn of it."""
        if watermark <= self.watermark:  # the end of time comes with the last watermark and with the end of the data
            return
        self.watermark = watermark
        self.on_watermark(watermark)
        for receiver in self.behind:
            receiver.advance(watermark)

    def on_watermark(self, watermark: int) -> None:
        """Fire what is due by event time."""

    def set_idle(self, idle: bool) -> None:
        for receiver in self.behind:
            receiver.set_idle(idle)

    def pause(self, paused: bool) -> None:
        """The subtask must not read records for now, or may again: meanwhile nothing is idle."""

    def next_deadline(self) -> int | None:
        """The next processing time (ms) at which `on_time` has work."""
        return None

    def on_time(self, now: int) -> None:
        """Fire what is due."""

    # --- errors -----------------------------------------------------------------------------------------------------

    def guard(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call the user's code; an error becomes an OperatorFailure with this operator's name."""
        try:
            return call(*args)
        except OperatorFailure:
            raise
        except Exception as error:
            raise self.failure(error) from error

    def failure(self, error: BaseException, record: Any = NO_KEY, key: Any = NO_KEY) -> OperatorFailure:
        """The error of a user's function as a failure of this operator."""
        if isinstance(error, OperatorFailure):
            return error
        return OperatorFailure(self.operator.name, self.operator.call_site, error, key, record)

    def each(self, rows: list[Any], loop: Callable[[Iterator[Any]], R], method: str = "") -> R:
        """Call `loop` with an iterator over the records; a failure names the record that was taken last."""
        iterator: Any = iter(rows)
        try:
            return loop(iterator)
        except Exception as error:
            index = len(rows) - iterator.__length_hint__() - 1
            record = rows[index] if 0 <= index < len(rows) else NO_KEY
            raise self.failure(explain(error, method), record, self.current_key()) from error

    def current_key(self) -> Any:
        """The key whose record or timer is being processed."""
        return NO_KEY

    # --- user functions ---------------------------------------------------------------------------------------------

    def method(self, name: str, input: int) -> Callable[..., Any]:
        """The user's function for an input: `map` of one input, `map1` and `map2` of two."""
        spec = self.operator.spec
        if isinstance(spec, TwoInputSpec):
            return getattr(self.function, f"{name}{input + 1}")  # type: ignore[no-any-return]
        return functions.callable_of(self.function, name, f"{spec.kind.removeprefix('keyed_')}()")

    def process_with(self, function: Callable[..., Any], context: ElementContext, method: str) -> Receiver:
        """Call a process function with each record and a context that has its timestamp."""

        def receive(batch: Batch) -> None:
            stamps: Iterable[Any] = repeat(None) if batch.timestamps is None else batch.timestamps.tolist()
            outputs = Outputs(batch.timestamps)
            out, take = outputs.rows, self.take

            def loop(rows: Iterator[Any]) -> None:
                for row, context.stamp in outputs.of(zip(rows, stamps, strict=False)):
                    take(function(row, context), out)

            self.each(batch.rows(), loop, method)
            self.emit_tagged(out, outputs.timestamps())

        return receive

    # --- output -----------------------------------------------------------------------------------------------------

    def emit_rows(self, rows: list[Any], stamps: Stamps | None = None) -> None:
        """Emit the rows that a function returned."""
        if rows:
            output = Batch.of_output(rows, self.type, self.origin)
            output.timestamps = stamps
            self.emit(output)

    def emit_any(self, rows: list[Any], stamps: Stamps | None = None) -> None:
        """Emit the rows of a function that is not a process function: only if a side output is read, it may have tags."""
        if self.side:
            self.emit_tagged(rows, stamps)
        else:
            self.emit_rows(rows, stamps)

    def emit_tagged(self, rows: list[Any], stamps: Stamps | None = None) -> None:
        """Emit what a process function yielded; `(tag, value)` goes to that side output."""
        places = places_of_tagged(rows, OutputTag)
        if not places:
            self.emit_rows(rows, stamps)
            return
        by_tag: dict[OutputTag, list[int]] = {}
        for place in places:
            row = rows[place]
            if len(row) != 2:
                raise self.failure(
                    UserCodeError("HR-5002", f"a side output takes one value, `yield tag, value`, got {row!r}")
                )
            by_tag.setdefault(row[0], []).append(place)
        tagged = set(places)
        main = [i for i in range(len(rows)) if i not in tagged]
        self.emit_rows([rows[i] for i in main], None if stamps is None else stamps[main])
        for tag, places in by_tag.items():
            self.emit_side(tag, [rows[i][1] for i in places], None if stamps is None else stamps[places])

    def emit_side(self, tag: OutputTag, values: list[Any], stamps: Stamps | None) -> None:
        """Emit records to a side output; without a consumer they are dropped."""
        receiver = self.side.get(tag.name)
        if receiver is not None:
            output = Batch.of_output(values, tag.type, self.origin)
            output.timestamps = stamps
            receiver(output)


def without_none(rows: list[Any], stamps: Stamps | None) -> tuple[list[Any], Stamps | None]:
    """The results of a CoMapFunction that are to be emitted: None is not."""
    places = [place for place, row in enumerate(rows) if row is not None]
    if len(places) == len(rows):
        return rows, stamps
    return [rows[place] for place in places], None if stamps is None else stamps[places]


class Outputs:
    """The records that a function gives for a batch, and their timestamps: each has the one of the record it came from.

    For a batch with timestamps `ends` takes the number of records so far after each record of the batch; else it is None.
    """

    __slots__ = ("_stamps", "ends", "rows")

    def __init__(self, stamps: Stamps | None) -> None:
        self.rows: list[Any] = []
        self._stamps = stamps
        self.ends: list[int] | None = None if stamps is None else []

    def of(self, records: Iterable[R]) -> Iterable[R]:
        """The records, for a loop that appends to `rows` what each one gives."""
        return records if self.ends is None else self._counted(records, self.ends.append)

    def _counted(self, records: Iterable[R], end: Callable[[int], None]) -> Iterator[R]:
        rows = self.rows
        for record in records:
            yield record
            end(len(rows))

    def timestamps(self) -> Stamps | None:
        return None if self._stamps is None or self.ends is None else spread(self._stamps, self.ends)


def spread(stamps: Stamps | Sequence[int], ends: Sequence[int]) -> Stamps:
    """Repeat each timestamp for the records that it stands for, whose places end at `ends`."""
    places = np.array([0, *ends])
    return np.repeat(np.asarray(stamps, np.int64), places[1:] - places[:-1])


class ElementContext:
    """The context of a process function: timestamp and time, no key."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.stamp: int | None = None
        self._no_timestamp: int | None = getattr(operator.function, "no_timestamp", None)
        self.float_times: bool = getattr(operator.function, "float_times", False)

    def timestamp(self) -> int | None:
        """The record's event timestamp, or the time of the timer that fires."""
        return self._no_timestamp if self.stamp is None else self.stamp

    def timer_service(self) -> Self:
        """Time and timers."""
        return self

    def current_processing_time(self) -> int:
        """Milliseconds since the epoch."""
        return self._operator.context.services.now()

    def current_watermark(self) -> int:
        """The event-time clock of this operator."""
        return self._operator.watermark

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("register_", "delete_", "get_current_key")):
            raise InvalidArgument(
                "HR-2001",
                f"{name}: timers and keys need a keyed stream: call key_by(...) before '{self._operator.operator.name}'",
            )
        raise AttributeError(name)


def explain(error: Exception, method: str) -> Exception:
    """A clear error in place of `TypeError: 'int' object is not iterable` for a function that returned an int."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    ours = frame.f_globals.get("__name__", "").startswith(_LOOPS)  # it was not raised inside the user's function
    if method and ours and isinstance(error, TypeError) and str(error).endswith("object is not iterable"):
        kind = str(error).split("'")[1]
        return UserCodeError(
            "HR-5002", f"{method} must yield records or return a list of them, got {kind}"
        ).with_traceback(None)
    return error


def _nowhere(batch: Batch) -> None:
    """The output of an operator without consumers."""
