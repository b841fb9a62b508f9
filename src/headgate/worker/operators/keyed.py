"""Operators on keyed streams: state and timers of the record's key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headgate.api.functions import FunctionSnapshotContext, StateAccess, callable_of
from headgate.api.raw_state import RawKeyedStateOutput
from headgate.checkpoint.commits import Commits
from headgate.graph.job_graph import ChainedOperator
from headgate.records.batch import Batch
from headgate.state.addresses import NO_KEY
from headgate.state.backend import KeyedStateBackend, SnapshotKind, SnapshotRun
from headgate.state.parquet.keyed import CanonicalRun
from headgate.state.timers import TimeDomain
from headgate.storage.layout import table_directory, table_file
from headgate.worker.failures import NO_KEY as UNKNOWN
from headgate.worker.failures import OperatorFailure
from headgate.worker.keys import KeyReader
from headgate.worker.operators.base import Operator, OperatorContext, Receiver, explain

_CLEANUP_ENTRIES = 10_000  # in one go: a few milliseconds

Keys = tuple[list[Any], list[int]]  # addresses and key groups of a batch


class BackendState:
    """Gives a function its keyed state."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend

    def keyed(self, descriptor: Any) -> Any:
        """The handle of a descriptor."""
        return self._backend.state(descriptor)

    def raw_streams(self) -> Mapping[int, bytes]:
        return self._backend.raw_streams()


class KeyedOperator(Operator):
    """The base of keyed operators: the backend and the keys of a batch."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self._readers = [
            None if key is None else KeyReader(key, context.info.max_parallelism) for key in operator.spec.keys
        ]
        keys = [key for key in operator.spec.keys if key is not None]
        self._key_type = keys[0].type
        self._backend: KeyedStateBackend | None = None

    @property
    def backend(self) -> KeyedStateBackend:
        assert self._backend is not None, "the operator was not opened"
        return self._backend

    def open(self) -> None:
        reader = next(reader for reader in self._readers if reader is not None)
        self._backend = self.context.keyed_backend(self._key_type, reader.group_of)
        super().open()

    def keyed_state(self) -> StateAccess:
        return BackendState(self.backend)

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

    def keys_of(self, batch: Batch, input: int) -> Keys:
        """Addresses and key groups of the records; prepares the backend for them."""
        reader = self._readers[input]
        assert reader is not None
        keys, groups = self.guard(reader.keys_and_groups, batch)
        addresses = self.backend.prepare_keys(keys)
        self.backend.begin_batch(addresses, groups)
        return addresses, groups

    def end_batch(self) -> None:
        """Called after the last record of a batch: no key is selected any more."""
        self.backend.context.address = NO_KEY
        self.guard(self.backend.end_batch)

    def keyed_failure(self, error: Exception, record: Any = UNKNOWN, method: str = "") -> OperatorFailure:
        """A failure of the user's function with the current key."""
        address = self.backend.context.address
        key = UNKNOWN if address is NO_KEY else self.backend.current_key()
        return self.failure(explain(error, method) if method else error, record, key)


class KeyedMapOperator(KeyedOperator):
    """A map that may use state."""

    def receiver(self, input: int) -> Receiver:
        return self._map_with(callable_of(self.function, "map", "map()"), input)

    def _map_with(self, function: Callable[[Any], Any], input: int) -> Receiver:
        def receive(batch: Batch) -> None:
            rows = batch.rows()
            addresses, groups = self.keys_of(batch, input)
            current = self.backend.context
            row: Any = UNKNOWN
            out: list[Any] = []
            append = out.append
            try:
                # The loop stores key and group where state handles read them: one step for each, no call.
                for row, current.address, current.group in zip(rows, addresses, groups, strict=True):
                    append(function(row))
            except Exception as error:
                raise self.keyed_failure(error, row) from error
            self.end_batch()
            self.emit_rows(out)

        return receive


class KeyedFlatMapOperator(KeyedOperator):
    """A flat map that may use state."""

    def receiver(self, input: int) -> Receiver:
        return self._flat_map_with(callable_of(self.function, "flat_map", "flat_map()"), input)

    def _flat_map_with(self, function: Callable[[Any], Iterable[Any] | None], input: int) -> Receiver:
        def receive(batch: Batch) -> None:
            rows = batch.rows()
            addresses, groups = self.keys_of(batch, input)
            current = self.backend.context
            row: Any = UNKNOWN
            out: list[Any] = []
            extend = out.extend
            try:
                for row, current.address, current.group in zip(rows, addresses, groups, strict=True):
                    result = function(row)
                    if result is not None:
                        extend(result)
            except Exception as error:
                raise self.keyed_failure(error, row, "flat_map") from error
            self.end_batch()
            self.emit_rows(out)

        return receive


class KeyedFilterOperator(KeyedOperator):
    """A filter that may use state."""

    def receiver(self, input: int) -> Receiver:
        function = callable_of(self.function, "filter", "filter()")

        def receive(batch: Batch) -> None:
            rows = batch.rows()
            addresses, groups = self.keys_of(batch, input)
            current = self.backend.context
            row: Any = UNKNOWN
            kept: list[Any] = []
            try:
                for row, current.address, current.group in zip(rows, addresses, groups, strict=True):
                    if function(row):
                        kept.append(row)
            except Exception as error:
                raise self.keyed_failure(error, row) from error
            self.end_batch()
            self.emit_rows(kept)

        return receive


class KeyedElementContext:
    """The context of a keyed process function: key, timestamp, time and timers."""

    def __init__(self, operator: KeyedProcessOperator) -> None:
        self._operator = operator
        self.stamp: int | None = None
        self.domain: TimeDomain | None = None

    def timestamp(self) -> int | None:
        """The record's event timestamp, or the time of the timer that fires."""
        return self.stamp

    def timer_service(self) -> KeyedElementContext:
        """Time and timers."""
        return self

    def get_current_key(self) -> Any:
        """The key of the record or timer."""
        return self._operator.backend.current_key()

    def time_domain(self) -> TimeDomain | None:
        """Which clock fired the timer."""
        return self.domain

    def current_processing_time(self) -> int:
        """Milliseconds since the epoch."""
        return self._operator.context.clock()

    def current_watermark(self) -> int:
        """The event-time clock of this operator."""
        return self._operator.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the clock reaches the time."""
        self._timers(True, TimeDomain.PROCESSING, timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the watermark reaches the time."""
        self._timers(True, TimeDomain.EVENT, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._timers(False, TimeDomain.PROCESSING, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers(False, TimeDomain.EVENT, timestamp)

    def _timers(self, register: bool, domain: TimeDomain, timestamp: int) -> None:
        backend = self._operator.backend
        current = backend.context
        call = backend.timers.register if register else backend.timers.delete
        call(domain, timestamp, current.address, current.group)


MIN_WATERMARK = -(1 << 63)
MAX_WATERMARK = (1 << 63) - 1


class KeyedProcessOperator(KeyedOperator):
    """The general keyed function, with timers."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self.element = KeyedElementContext(self)
        self.watermark = MIN_WATERMARK

    def receiver(self, input: int) -> Receiver:
        return self._process_with(callable_of(self.function, "process_element", "process()"), input, "process_element")

    def _process_with(self, function: Callable[[Any, Any], Iterable[Any] | None], input: int, method: str) -> Receiver:
        element = self.element

        def receive(batch: Batch) -> None:
            if batch.timestamps is not None:
                receive_stamped(batch)
                return
            rows = batch.rows()
            addresses, groups = self.keys_of(batch, input)
            current = self.backend.context
            row: Any = UNKNOWN
            out: list[Any] = []
            extend = out.extend
            try:
                for row, current.address, current.group in zip(rows, addresses, groups, strict=True):
                    result = function(row, element)
                    if result is not None:
                        extend(result)
            except Exception as error:
                raise self.keyed_failure(error, row, method) from error
            self.end_batch()
            self.emit_tagged(out)

        def receive_stamped(batch: Batch) -> None:
            rows = batch.rows()
            stamps = batch.timestamps.tolist()  # type: ignore[union-attr]
            addresses, groups = self.keys_of(batch, input)
            current = self.backend.context
            row: Any = UNKNOWN
            out: list[Any] = []
            try:
                for row, element.stamp, current.address, current.group in zip(
                    rows, stamps, addresses, groups, strict=True
                ):
                    result = function(row, element)
                    if result is not None:
                        out.extend(result)
            except Exception as error:
                raise self.keyed_failure(error, row, method) from error
            element.stamp = None
            self.end_batch()
            self.emit_tagged(out)

        return receive

    # --- timers -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return self.backend.timers.next_deadline(TimeDomain.PROCESSING)

    def on_time(self, now: int) -> None:
        self._fire(TimeDomain.PROCESSING, now)

    def finish(self) -> None:
        """The input has ended: every event-time timer fires, processing-time timers do not."""
        self.watermark = MAX_WATERMARK
        self._fire(TimeDomain.EVENT, MAX_WATERMARK)

    def _fire(self, domain: TimeDomain, until: int) -> None:
        on_timer = getattr(self.function, "on_timer", None)
        timers, current, element = self.backend.timers, self.backend.context, self.element
        out: list[Any] = []
        try:
            while (timer := timers.pop_due(domain, until)) is not None:
                current.address, current.group = timer.address, timer.group
                element.stamp, element.domain = timer.timestamp, domain
                result = None if on_timer is None else on_timer(timer.timestamp, element)
                if result is not None:
                    out.extend(result)
        except Exception as error:
            raise self.keyed_failure(error, method="on_timer") from error
        element.stamp = element.domain = None
        self.end_batch()
        self.emit_tagged(out)


class KeyedCoMapOperator(KeyedMapOperator):
    """A map of two keyed inputs that share state."""

    def receiver(self, input: int) -> Receiver:
        return self._map_with(self.function.map1 if input == 0 else self.function.map2, input)


class KeyedCoFlatMapOperator(KeyedFlatMapOperator):
    """A flat map of two keyed inputs that share state."""

    def receiver(self, input: int) -> Receiver:
        return self._flat_map_with(self.function.flat_map1 if input == 0 else self.function.flat_map2, input)


class KeyedCoProcessOperator(KeyedProcessOperator):
    """The general function of two keyed inputs that share state and timers."""

    def receiver(self, input: int) -> Receiver:
        method = f"process_element{input + 1}"
        return self._process_with(getattr(self.function, method), input, method)
