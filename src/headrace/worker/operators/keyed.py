"""Operators on keyed streams: state and timers of the record's key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from headrace.api.functions import FunctionSnapshotContext, StateAccess
from headrace.api.raw_state import RawKeyedStateOutput
from headrace.api.specs import CoMapSpec
from headrace.checkpoint.commits import Commits
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.records.kernel import KeyContext, filter_each, flat_map_each, map_each, process_each
from headrace.state.addresses import NO_KEY
from headrace.state.backend import KeyedStateBackend, SnapshotKind, SnapshotRun
from headrace.state.parquet.keyed import CanonicalRun
from headrace.state.timers import TimeDomain
from headrace.storage.layout import table_directory, table_file
from headrace.worker.failures import NO_KEY as UNKNOWN
from headrace.worker.keys import KeyReader
from headrace.worker.operators.base import (
    ElementContext,
    Operator,
    OperatorContext,
    Outputs,
    Receiver,
    explain,
    spread,
)

_CLEANUP_ENTRIES = 10_000  # in one go: a few milliseconds

Keys = tuple[list[Any], list[int]]  # addresses and key groups of a batch
Loop = Callable[[Batch, Iterable[Any], list[Any], list[int], KeyContext, Outputs], None]


class KeyedOperator(Operator):
    """The base of keyed operators: the backend and the keys of a batch."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self._readers = {
            input: KeyReader(key, context.info.max_parallelism)
            for input, key in enumerate(operator.spec.keys)
            if key is not None
        }
        self._backend: KeyedStateBackend | None = None

    @property
    def backend(self) -> KeyedStateBackend:
        assert self._backend is not None, "the operator was not opened"
        return self._backend

    def open(self) -> None:
        reader = next(iter(self._readers.values()))
        self._backend = self.context.keyed_backend(reader.type, reader.group_of)
        super().open()

    def keyed_state(self) -> StateAccess:
        return self.backend

    def raw_keyed_output(self) -> RawKeyedStateOutput | None:
        return RawKeyedStateOutput(self.backend.setup.key_groups, self.backend.key_group_of)

    def store_raw_state(self, output: FunctionSnapshotContext) -> None:
        super().store_raw_state(output)
        assert output.raw_keyed is not None
        self.backend.clear_raw_streams()
        for group, stream in output.raw_keyed.streams.items():
            self.backend.put_raw_stream(group, bytes(stream))

    def keyed_run(self, checkpoint_id: int, kind: SnapshotKind) -> SnapshotRun | None:
        if kind is SnapshotKind.CANONICAL:
            directory, subtask = table_directory(self.operator.label, self.operator.id), self.context.info.subtask
            return CanonicalRun(self.backend, checkpoint_id, lambda state: table_file(directory, state, subtask))
        return self.backend.snapshot(checkpoint_id, kind)

    def close(self) -> None:
        super().close()
        if self._backend is not None:
            self._backend.dispose()
            self._backend = None

    def notify_complete(self, checkpoint_id: int, commits: Commits) -> None:
        self.backend.notify_complete(checkpoint_id)
        super().notify_complete(checkpoint_id, commits)

    def notify_aborted(self, checkpoint_id: int) -> None:
        self.backend.notify_aborted(checkpoint_id)
        super().notify_aborted(checkpoint_id)

    def upkeep(self) -> None:
        """Drop expired state, and clean up after snapshots."""
        self.backend.background_cleanup(_CLEANUP_ENTRIES)
        self.backend.maintain(_CLEANUP_ENTRIES)

    def own_metrics(self) -> dict[str, float]:
        return self.backend.figures()

    def keys_of(self, batch: Batch, input: int) -> Keys:
        """Addresses and key groups of the records; prepares the backend for them."""
        keys, groups, arrays = self.guard(self._readers[input].keys_and_groups, batch)
        addresses = keys if arrays is not None else self.backend.prepare_keys(keys)
        self.backend.begin_batch(addresses, groups, arrays)
        return addresses, groups

    def end_batch(self) -> None:
        """Called after the last record of a batch: no key is selected any more."""
        self.backend.context.address = NO_KEY
        self.guard(self.backend.end_batch)

    def current_key(self) -> Any:
        return UNKNOWN if self.backend.context.address is NO_KEY else self.backend.current_key()

    def receive_with(self, input: int, loop: Loop, method: str = "", *, tagged: bool = False) -> Receiver:
        """Call a loop of the kernel for each batch; `tagged`: what it gives may be for side outputs."""
        emit = self.emit_tagged if tagged else self.emit_any

        def receive(batch: Batch) -> None:
            addresses, groups = self.keys_of(batch, input)
            rows, current, outputs = batch.each(), self.backend.context, Outputs(batch.timestamps)
            try:
                loop(batch, rows, addresses, groups, current, outputs)
            except Exception as error:
                record = batch.rows()[current.position]
                raise self.failure(explain(error, method), record, self.current_key()) from error
            self.end_batch()
            emit(outputs.rows, outputs.timestamps())

        return receive


class KeyedMapOperator(KeyedOperator):
    """A map that may use state."""

    def receiver(self, input: int) -> Receiver:
        function, skips_none = self.method("map", input), isinstance(self.operator.spec, CoMapSpec)

        def loop(_: Batch, rows: Iterable[Any], keys: list[Any], groups: list[int], key: Any, outputs: Outputs) -> None:
            map_each(function, skips_none, rows, keys, groups, key, outputs.rows, outputs.ends, self.detaches)

        return self.receive_with(input, loop)


class KeyedFlatMapOperator(KeyedOperator):
    """A flat map that may use state."""

    def receiver(self, input: int) -> Receiver:
        function = self.method("flat_map", input)

        def loop(_: Batch, rows: Iterable[Any], keys: list[Any], groups: list[int], key: Any, outputs: Outputs) -> None:
            flat_map_each(function, rows, keys, groups, key, outputs.rows, outputs.ends, self.detaches)

        return self.receive_with(input, loop, "flat_map")


class KeyedFilterOperator(KeyedOperator):
    """A filter that may use state."""

    def receiver(self, input: int) -> Receiver:
        function = self.method("filter", input)

        def loop(_: Batch, rows: Iterable[Any], keys: list[Any], groups: list[int], key: Any, outputs: Outputs) -> None:
            filter_each(function, rows, keys, groups, key, outputs.rows, outputs.ends)

        return self.receive_with(input, loop)


class KeyedElementContext(ElementContext):
    """The context of a keyed process function: key, timestamp, time and timers."""

    _operator: KeyedProcessOperator
    domain: TimeDomain | None = None

    def get_current_key(self) -> Any:
        """The key of the record or timer."""
        return self._operator.backend.current_key()

    def time_domain(self) -> TimeDomain | None:
        """Which clock fired the timer."""
        return self.domain

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the clock reaches the time."""
        self._change(self._operator.backend.timers.register, TimeDomain.PROCESSING, timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the watermark reaches the time."""
        self._change(self._operator.backend.timers.register, TimeDomain.EVENT, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._change(self._operator.backend.timers.delete, TimeDomain.PROCESSING, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._change(self._operator.backend.timers.delete, TimeDomain.EVENT, timestamp)

    def _change(self, call: Callable[..., object], domain: TimeDomain, timestamp: int) -> None:
        current = self._operator.backend.context
        if isinstance(timestamp, float) and self.float_times and math.isfinite(timestamp):
            timestamp = int(timestamp)
        call(domain, timestamp, current.address, current.group)


class KeyedProcessOperator(KeyedOperator):
    """The general keyed function, with timers."""

    context_type: type[KeyedElementContext] = KeyedElementContext

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self.element = self.context_type(self)
        self._on_timer = getattr(self.function, "on_timer", None)

    def receiver(self, input: int) -> Receiver:
        function, element = self.method("process_element", input), self.element

        def loop(
            batch: Batch, rows: Iterable[Any], keys: list[Any], groups: list[int], key: Any, outputs: Outputs
        ) -> None:
            stamps = None if batch.timestamps is None else batch.timestamps.tolist()
            process_each(function, element, rows, stamps, keys, groups, key, outputs.rows, outputs.ends, self.detaches)

        method = "process_element" if len(self._readers) == 1 else f"process_element{input + 1}"
        return self.receive_with(input, loop, method, tagged=True)

    # --- timers -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return self.backend.timers.next_deadline(TimeDomain.PROCESSING)

    def on_time(self, now: int) -> None:
        self._fire(TimeDomain.PROCESSING, now)

    def on_watermark(self, watermark: int) -> None:
        self._fire(TimeDomain.EVENT, watermark)

    def _fire(self, domain: TimeDomain, until: int) -> None:
        on_timer = self._on_timer
        timers, current, element = self.backend.timers, self.backend.context, self.element
        if (due := timers.next_deadline(domain)) is None or due > until:
            return
        out: list[Any] = []
        times: list[int] = []
        ends: list[int] = []
        try:
            while (timer := timers.pop_due(domain, until)) is not None:
                current.address, current.group = timer.address, timer.group
                element.stamp, element.domain = timer.timestamp, domain
                if on_timer is not None:
                    self.take(on_timer(timer.timestamp, element), out)
                times.append(timer.timestamp)
                ends.append(len(out))
        except Exception as error:
            raise self.failure(explain(error, "on_timer"), key=self.current_key()) from error
        element.stamp = element.domain = None
        self.end_batch()
        self.emit_tagged(out, spread(times, ends) if domain is TimeDomain.EVENT else None)
