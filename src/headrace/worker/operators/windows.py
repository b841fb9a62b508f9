"""The window operator: assigns records to windows, keeps them as keyed state by window, and computes windows that fire.

A window is the namespace of its state and timers (SPEC R1.9). Runs in the subtask's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

from headrace.api.functions import KeyedStateStore, RuntimeContext, callable_of
from headrace.api.metrics import MetricGroup
from headrace.api.specs import AggregatedContents, ReducedContents, WindowComputation, WindowSpec
from headrace.api.watermarks import MAX_WATERMARK, MIN_WATERMARK
from headrace.api.windows import MergingWindowAssigner, TriggerResult
from headrace.errors import InvalidArgument, UserCodeError
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.state.addresses import VOID, in_namespace, split_address
from headrace.state.api import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.timers import TimeDomain
from headrace.worker.operators.base import OperatorContext, Receiver, explain, spread
from headrace.worker.operators.keyed import KeyedOperator

_MERGED = ValueStateDescriptor("merging-windows")  # of a key: for each window the one whose state it uses


class WindowOperator(KeyedOperator):
    """Windows of a keyed stream, with any assigner, trigger, evictor and function."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        spec = WindowSpec.of(operator)
        self._assigner, self._trigger, self._evictor = spec.assigner, spec.trigger, spec.evictor
        self._lateness, self._late_tag = spec.lateness, spec.late_tag
        self._of_function = WindowView(self)
        self._contents = _contents(spec)
        self._folds = spec.contents is not None
        self._compute = self._computer(spec)
        self._make: Callable[..., Any] = self._assigner.window_type
        self.stored: Callable[[Any], tuple[Any, ...]] = tuple  # a window as the namespace of its state
        if (serializer := self._assigner.get_window_serializer()) is not None:
            windows = _OwnWindows(serializer, self._make)
            self._make, self.stored = windows.make, windows.stored
        self.event_time = self._assigner.is_event_time()
        self.merging = isinstance(self._assigner, MergingWindowAssigner)
        self._clear_function = getattr(self.function, "clear", None)
        self._out: list[Any] = []
        self._times: list[int] = []
        self._ends: list[int] = []
        self.window: Any = None  # whose trigger or function is called
        self.merged_from: list[Any] = []  # in `on_merge`
        self._of_trigger = TriggerView(self)

    def open(self) -> None:
        super().open()
        self._state = self.backend.state(self._contents)
        if self.merging:
            self._sessions = self.backend.state(_MERGED)

    # --- records ----------------------------------------------------------------------------------------------------

    def receiver(self, input: int) -> Receiver:
        def receive(batch: Batch) -> None:
            if self.event_time and batch.timestamps is None and len(batch):
                raise self.failure(
                    UserCodeError(
                        "HR-1406",
                        "windows by event time need timestamps: give the source a watermark strategy with a timestamp assigner, "
                        "or call assign_timestamps_and_watermarks(...) before key_by(...)",
                    )
                )
            addresses, groups = self.keys_of(batch, input)
            stamps = [MIN_WATERMARK] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
            late: list[int] = []
            current = self.backend.context

            def loop(rows: Iterable[Any]) -> None:
                for place, (row, stamp, address, current.group) in enumerate(
                    zip(rows, stamps, addresses, groups, strict=True)
                ):
                    current.address = address
                    if not self._add(row, stamp, address):
                        late.append(place)

            self.each(batch.rows(), loop, "the window function")
            self.end_batch()
            self._emit_fired()
            if late:
                self._emit_late(batch, late)

        return receive

    def _computer(self, spec: WindowSpec) -> Callable[[Any, Any], Iterable[Any] | None]:
        """Return the function that computes a window of its key and its contents."""
        view, function, how, of_all, type = (
            self._of_function,
            self.function,
            spec.computation,
            spec.of_all,
            spec.input_type,
        )
        if how is WindowComputation.CONTENTS:
            return lambda _, contents: (contents,)
        if how is WindowComputation.MAP_BATCHES:
            whole = callable_of(function, "map_batches", "map_batches()")
            if of_all:
                return lambda _, contents: self._rows_of(whole(self.window, type.to_batch(contents)))
            return lambda key, contents: self._rows_of(whole(key, self.window, type.to_batch(contents)))
        call = function.process if how is WindowComputation.PROCESS else callable_of(function, "apply", "apply()")
        inputs = (lambda contents: [contents]) if self._folds else (lambda contents: contents)
        if how is WindowComputation.PROCESS:
            if of_all:
                return lambda _, contents: call(view, inputs(contents))
            return lambda key, contents: call(key, view, inputs(contents))
        if of_all:
            return lambda _, contents: call(self.window, inputs(contents))
        return lambda key, contents: call(key, self.window, inputs(contents))

    def _rows_of(self, batch: Any) -> Iterable[Any]:
        return () if batch is None else self.type.to_rows(self.type.fit(batch))

    def _add(self, row: Any, stamp: int, address: Any) -> bool:
        """Put a record into its windows; False if it is too late for all of them."""
        taken = False
        for window in self._assigner.assign_windows(row, stamp, self._of_trigger):
            state_window = window
            if self.merging:
                window, state_window = self._merge(window, address)
                if state_window is None:
                    continue
            elif self._is_late(window):
                continue
            taken = True
            self.backend.context.address = in_namespace(address, self.stored(state_window))
            self._state.add(row if self._evictor is None else (row, stamp))
            self.window = window
            self._act(self._trigger.on_element(row, stamp, window, self._of_trigger), address, window, state_window)
            self._register_cleanup(address, window)
            self.backend.context.address = address
        return taken or not (self.event_time and stamp + self._lateness <= self.watermark)

    def _is_late(self, window: Any) -> bool:
        return self.event_time and self.cleanup_time(window) <= self.watermark

    def cleanup_time(self, window: Any) -> int:
        end: int = window.max_timestamp()
        return min(end + self._lateness, MAX_WATERMARK) if self.event_time else end

    def _register_cleanup(self, address: Any, window: Any) -> None:
        time = self.cleanup_time(window)
        if time < MAX_WATERMARK:
            domain = TimeDomain.EVENT if self.event_time else TimeDomain.PROCESSING
            self.backend.timers.register(domain, time, address, self.backend.context.group, self.stored(window))

    def _emit_late(self, batch: Batch, places: list[int]) -> None:
        self.late_records += len(places)
        if self._late_tag is not None:
            rows = batch.rows()
            stamps = None if batch.timestamps is None else batch.timestamps[places]
            self.emit_side(self._late_tag, [rows[place] for place in places], stamps)

    # --- windows that merge -----------------------------------------------------------------------------------------

    def _merge(self, window: Any, address: Any) -> tuple[Any, Any]:
        """Add a window to those of the key: the window it is part of now, and the one whose state that uses.

        The state window is None if the record is late.
        """
        sessions = self._sessions_of()
        merges: list[tuple[list[Any], Any]] = []
        self._assigner.merge_windows({*sessions, window}, _Merges(merges))  # type: ignore[attr-defined]
        result, state_window = window, sessions.get(window, window)
        for members, cover in merges:
            if window not in members and window != cover:
                continue
            old = [member for member in members if member in sessions]
            result = cover
            if self._is_late(result):
                return result, None
            if not old:
                break
            state_window, *others = [sessions.pop(member) for member in old]
            self.backend.context.address = address
            if others:
                self.backend.merge_namespaces(self._contents, self.stored(state_window), map(self.stored, others))
            if old != [cover]:
                self.merged_from, self.window = old, cover
                self._trigger.on_merge(cover, self._of_trigger)
                for member in old:
                    if member != cover:
                        self.window = member
                        self._trigger.clear(member, self._of_trigger)
                        self._delete_cleanup(address, member)
                self.merged_from = []
        if result == window and self._is_late(window):
            return result, None
        sessions[result] = state_window
        self._keep_sessions(address, sessions)
        return result, state_window

    def _sessions_of(self) -> dict[Any, Any]:
        """The windows of the current key, each with the one whose state it uses."""
        make = self._make
        return {make(*window): make(*used) for window, used in self._sessions.value() or ()}

    def _keep_sessions(self, address: Any, sessions: dict[Any, Any]) -> None:
        self.backend.context.address = address
        if sessions:
            self._sessions.update([(self.stored(window), self.stored(used)) for window, used in sessions.items()])
        else:
            self._sessions.clear()

    def _delete_cleanup(self, address: Any, window: Any) -> None:
        domain = TimeDomain.EVENT if self.event_time else TimeDomain.PROCESSING
        self.backend.timers.delete(
            domain, self.cleanup_time(window), address, self.backend.context.group, self.stored(window)
        )

    def _state_window(self, address: Any, window: Any) -> Any:
        """The window whose state a window uses; None if the key has no such window any more."""
        if not self.merging:
            return window
        self.backend.context.address = address
        return self._sessions_of().get(window)

    # --- firing -----------------------------------------------------------------------------------------------------

    def _act(self, result: TriggerResult, address: Any, window: Any, state_window: Any) -> None:
        if result is TriggerResult.CONTINUE:
            return
        if result.is_fire():
            self._fire(address, window, state_window)
        if result.is_purge():
            self.backend.context.address = in_namespace(address, self.stored(state_window))
            self._state.clear()

    def _fire(self, address: Any, window: Any, state_window: Any) -> None:
        context = self.backend.context
        context.address = in_namespace(address, self.stored(state_window))
        contents = self._state.get()
        if contents is None or not (self._folds or contents):
            return
        self.window = window
        elements = contents
        if self._evictor is not None:
            kept = self._evictor.evict_before(contents, window, self._of_trigger)
            elements = [row for row, _ in kept]
        context.address = address
        result = self._compute(self.backend.key_at(address), elements)
        if result is not None:
            self.take(result, self._out)
            self._times.append(window.max_timestamp())
            self._ends.append(len(self._out))
        if self._evictor is not None:
            context.address = in_namespace(address, self.stored(state_window))
            self._state.update(self._evictor.evict_after(kept, window, self._of_trigger))

    def _emit_fired(self) -> None:
        out, times, ends = self._out, self._times, self._ends
        self._out, self._times, self._ends = [], [], []
        if out:
            self.emit_tagged(out, spread(times, ends))

    def _on_timers(self, domain: TimeDomain, until: int) -> None:
        timers, context = self.backend.timers, self.backend.context
        if (due := timers.next_deadline(domain)) is None or due > until:
            return
        make = self._make
        try:
            while (timer := timers.pop_due(domain, until)) is not None:
                context.address, context.group = timer.address, timer.group
                self._on_timer(domain, timer.timestamp, timer.address, make(*timer.namespace))
        except Exception as error:
            raise self.failure(explain(error, "the window function"), key=self.current_key()) from error
        self.end_batch()
        self._emit_fired()

    def _on_timer(self, domain: TimeDomain, time: int, address: Any, window: Any) -> None:
        state_window = self._state_window(address, window)
        if state_window is None:
            return
        self.window = window
        self.backend.context.address = in_namespace(address, self.stored(state_window))
        call = self._trigger.on_event_time if domain is TimeDomain.EVENT else self._trigger.on_processing_time
        self._act(call(time, window, self._of_trigger), address, window, state_window)
        own = TimeDomain.EVENT if self.event_time else TimeDomain.PROCESSING
        if domain is own and time == self.cleanup_time(window):
            self._drop(address, window, state_window)

    def _drop(self, address: Any, window: Any, state_window: Any) -> None:
        """The window is over."""
        context = self.backend.context
        context.address = in_namespace(address, self.stored(state_window))
        self._state.clear()
        self.window = window
        self._trigger.clear(window, self._of_trigger)
        context.address = address
        if self._clear_function is not None:
            self._clear_function(self._of_function)
        if self.merging:
            context.address = address
            sessions = self._sessions_of()
            sessions.pop(window, None)
            self._keep_sessions(address, sessions)

    # --- time -------------------------------------------------------------------------------------------------------

    def own_metrics(self) -> dict[str, float]:
        late = "numLateRecordsDropped" if self._late_tag is None else "numLateRecordsToSideOutput"
        return {**super().own_metrics(), late: self.late_records}

    def on_watermark(self, watermark: int) -> None:
        self._on_timers(TimeDomain.EVENT, watermark)

    def next_deadline(self) -> int | None:
        return self.backend.timers.next_deadline(TimeDomain.PROCESSING)

    def on_time(self, now: int) -> None:
        self._on_timers(TimeDomain.PROCESSING, now)

    def in_window(self, handle: Any, namespace: Any) -> Any:
        """A state handle of the current key in a namespace, whatever is selected when it is used."""
        return Pinned(handle, self.backend.context, split_address(self.backend.context.address)[0], namespace)


class _OwnWindows:
    """Windows of a class that is no tuple are stored as the bytes of their serializer."""

    def __init__(self, serializer: Any, window_type: Callable[..., Any]) -> None:
        self._serializer, self._window_type = serializer, window_type

    def stored(self, window: Any) -> tuple[Any, ...]:
        if isinstance(window, tuple):
            return tuple(window)
        stream = BytesIO()
        self._serializer.serialize(window, stream)
        return (stream.getvalue(),)

    def make(self, *stored: Any) -> Any:
        if len(stored) == 1 and isinstance(stored[0], bytes):
            return self._serializer.deserialize(BytesIO(stored[0]))
        return self._window_type(*stored)


class _Merges:
    """The callback of `merge_windows`."""

    def __init__(self, merges: list[tuple[list[Any], Any]]) -> None:
        self._merges = merges

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self._merges.append((list(to_be_merged), merge_result))


class TriggerView:
    """The context of triggers, assigners and evictors: time, timers and state of the current key and window."""

    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator
        self._numbers: dict[str, Any] = {}  # handles, by name

    def get_current_processing_time(self) -> int:
        return self._operator.context.services.now()

    def get_runtime_context(self) -> RuntimeContext:
        """For assigners: state of the current key, without a window."""
        return self._operator.runtime_context()

    def get_metric_group(self) -> MetricGroup:
        return self._operator.runtime_context().get_metrics_group()

    def get_current_watermark(self) -> int:
        return self._operator.watermark

    def register_processing_time_timer(self, time: int) -> None:
        self._timer("register", TimeDomain.PROCESSING, time)

    def register_event_time_timer(self, time: int) -> None:
        self._timer("register", TimeDomain.EVENT, time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._timer("delete", TimeDomain.PROCESSING, time)

    def delete_event_time_timer(self, time: int) -> None:
        self._timer("delete", TimeDomain.EVENT, time)

    def _timer(self, call: str, domain: TimeDomain, time: int) -> None:
        one = self._operator
        context = one.backend.context
        if call == "delete" and time == one.cleanup_time(one.window) and one.event_time is (domain is TimeDomain.EVENT):
            return  # the timer that ends the window is not the trigger's to delete
        getattr(one.backend.timers, call)(
            domain, time, split_address(context.address)[0], context.group, one.stored(one.window)
        )

    def get_partitioned_state(self, state_descriptor: Any) -> Any:
        one = self._operator
        return one.in_window(one.backend.state(state_descriptor), one.stored(one.window))

    def number_of_key(self, name: str) -> Any:
        """A number of this key, of all its windows, for our own assigners, which cannot name descriptors."""
        handle = self._numbers.get(name)
        if handle is None:
            handle = self._numbers[name] = self._operator.backend.state(ValueStateDescriptor(name, "bigint"))
        return handle

    def folded_state(self, name: str, function: Callable[[int, int], int]) -> Any:
        """A number of this key and window, for our own triggers, which cannot name descriptors."""
        return self.get_partitioned_state(ReducingStateDescriptor(name, function, "bigint"))

    def merge_folded_state(self, name: str, function: Callable[[int, int], int]) -> None:
        self.merge_partitioned_state(ReducingStateDescriptor(name, function, "bigint"))

    def value_state(self, name: str) -> Any:
        return self.get_partitioned_state(ValueStateDescriptor(name))

    def merge_partitioned_state(self, state_descriptor: Any) -> None:
        one = self._operator
        if not one.merged_from:
            raise InvalidArgument("HR-1408", "merge_partitioned_state() is for on_merge()")
        one.backend.merge_namespaces(state_descriptor, one.stored(one.window), map(one.stored, one.merged_from))


class WindowView:
    """The context of window functions."""

    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator

    def window(self) -> Any:
        return self._operator.window

    def current_processing_time(self) -> int:
        return self._operator.context.services.now()

    def current_watermark(self) -> int:
        return self._operator.watermark

    def window_state(self) -> KeyedStateStore:
        """State of this key and window; it would be lost when windows merge."""
        if self._operator.merging:
            raise InvalidArgument(
                "HR-1408",
                "window_state() is not kept when windows merge, as sessions do: use global_state(), or a trigger's state",
            )
        return KeyedStateStore(_WindowStore(self._operator, self._operator.stored(self._operator.window)))

    def global_state(self) -> KeyedStateStore:
        """State of this key over all windows."""
        return KeyedStateStore(_WindowStore(self._operator, VOID))


class _WindowStore:
    def __init__(self, operator: WindowOperator, namespace: Any) -> None:
        self._operator, self._namespace = operator, namespace

    def state(self, descriptor: Any) -> Any:
        return self._operator.in_window(self._operator.backend.state(descriptor), self._namespace)

    def raw_streams(self) -> Any:
        return self._operator.backend.raw_streams()


class Pinned:
    """A state handle at one address; the methods of the handle read the address from the context."""

    def __init__(self, handle: Any, context: Any, address: Any, namespace: Any) -> None:
        self._handle, self._context = handle, context
        self._address = in_namespace(address, namespace)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._handle, name)

        def call(*args: Any) -> Any:
            context = self._context
            before, context.address = context.address, self._address
            try:
                return method(*args)
            finally:
                context.address = before

        return call


def _contents(spec: WindowSpec) -> StateDescriptor:
    """The state of a window: all records, or the one value that they are folded into."""
    match spec.contents:
        case ReducedContents(function, type):
            return ReducingStateDescriptor("window-contents", function, type)
        case AggregatedContents(function, type):
            return AggregatingStateDescriptor("window-contents", function, type)
    return ListStateDescriptor("window-contents", None if spec.evictor is not None else spec.input_type)
