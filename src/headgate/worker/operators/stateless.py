"""Operators without keys: map, flat map, filter, vectorised map, process, and their two-input forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from headgate.api.functions import callable_of
from headgate.errors import InvalidArgument, UserCodeError
from headgate.graph.job_graph import ChainedOperator
from headgate.records.batch import Batch
from headgate.worker.failures import NO_KEY
from headgate.worker.operators.base import Operator, OperatorContext, Receiver, explain


class Map(Operator):
    """One record in, one out."""

    def receiver(self, input: int) -> Receiver:
        return self._map_with(callable_of(self.function, "map", "map()"))

    def _map_with(self, function: Callable[[Any], Any]) -> Receiver:
        def receive(batch: Batch) -> None:
            rows = batch.rows()
            iterator = iter(rows)
            try:
                mapped = [function(row) for row in iterator]
            except Exception as error:
                raise self.failed_at(error, rows, iterator) from error
            output = Batch.of_output(mapped, self.type, self.origin)
            output.timestamps = batch.timestamps
            self.emit(output)

        return receive


class FlatMap(Operator):
    """One record in, any number out."""

    def receiver(self, input: int) -> Receiver:
        return self._flat_map_with(callable_of(self.function, "flat_map", "flat_map()"))

    def _flat_map_with(self, function: Callable[[Any], Iterable[Any] | None]) -> Receiver:
        def receive(batch: Batch) -> None:
            rows = batch.rows()
            iterator = iter(rows)
            out: list[Any] = []
            extend = out.extend
            try:
                for row in iterator:
                    result = function(row)
                    if result is not None:
                        extend(result)
            except Exception as error:
                raise self.failed_at(explain(error, "flat_map"), rows, iterator) from error
            self.emit_rows(out)

        return receive


class Filter(Operator):
    """Keeps some records."""

    def receiver(self, input: int) -> Receiver:
        function = callable_of(self.function, "filter", "filter()")

        def receive(batch: Batch) -> None:
            rows = batch.rows()
            iterator = iter(rows)
            try:
                if batch.timestamps is None:
                    kept = [row for row in iterator if function(row)]
                    places = None
                else:
                    places = [index for index, row in enumerate(iterator) if function(row)]
                    kept = [rows[index] for index in places]
            except Exception as error:
                raise self.failed_at(error, rows, iterator) from error
            if len(kept) == len(rows):
                self.emit(batch)
            elif kept:
                output = Batch.of_output(kept, self.type, self.origin)
                output.timestamps = None if batch.timestamps is None else batch.timestamps[places]
                self.emit(output)

        return receive


_END = object()


class MapBatches(Operator):
    """Whole Arrow batches in and out."""

    def receiver(self, input: int) -> Receiver:
        function = callable_of(self.function, "map_batches", "map_batches()")

        def receive(batch: Batch) -> None:
            for arrow in self._batches(self.guard(function, batch.arrow())):
                if arrow.num_rows:
                    self.emit(Batch.of_arrow(self.guard(self.type.fit, arrow), self.type))

        return receive

    def _batches(self, result: Any) -> Iterable[pa.RecordBatch]:
        if result is None:
            return []
        if isinstance(result, pa.RecordBatch):
            return [result]
        if isinstance(result, pa.Table):
            return result.combine_chunks().to_batches()  # type: ignore[no-any-return]
        if isinstance(result, Iterable) and not isinstance(result, str | bytes | dict):
            return self._each(result)
        raise self.failure(UserCodeError(f"map_batches() must give pyarrow.RecordBatch, got {type(result).__name__}"))

    def _each(self, result: Iterable[Any]) -> Iterable[pa.RecordBatch]:
        iterator = iter(result)
        while (item := self.guard(next, iterator, _END)) is not _END:
            yield from self._batches(item)


class ElementContext:
    """The context of a process function: timestamp and time, no key."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.stamp: int | None = None

    def timestamp(self) -> int | None:
        return self.stamp

    def timer_service(self) -> ElementContext:
        return self

    def current_processing_time(self) -> int:
        return self._operator.context.clock()

    def current_watermark(self) -> int:
        return -(1 << 63)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("register_", "delete_", "get_current_key")):
            raise InvalidArgument(
                f"{name}: timers and keys need a keyed stream: call key_by(...) before '{self._operator.operator.name}'"
            )
        raise AttributeError(name)


class Process(Operator):
    """The general function without key."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self.element: Any = ElementContext(self)

    def receiver(self, input: int) -> Receiver:
        return self._process_with(callable_of(self.function, "process_element", "process()"))

    def _process_with(self, function: Callable[[Any, Any], Iterable[Any] | None]) -> Receiver:
        context = self.element

        def receive(batch: Batch) -> None:
            rows = batch.rows()
            stamps = batch.timestamps.tolist() if batch.timestamps is not None else None
            out: list[Any] = []
            row: Any = NO_KEY
            try:
                context.stamp = None
                for index, row in enumerate(rows):
                    if stamps is not None:
                        context.stamp = stamps[index]
                    result = function(row, context)
                    if result is not None:
                        out.extend(result)
            except Exception as error:
                raise self.failure(explain(error, "process_element"), row) from error
            self.emit_tagged(out)

        return receive


class CoMap(Map):
    """A map of two inputs."""

    def receiver(self, input: int) -> Receiver:
        return self._map_with(self.function.map1 if input == 0 else self.function.map2)


class CoFlatMap(FlatMap):
    """A flat map of two inputs."""

    def receiver(self, input: int) -> Receiver:
        return self._flat_map_with(self.function.flat_map1 if input == 0 else self.function.flat_map2)


class CoProcess(Process):
    """The general function of two inputs."""

    def receiver(self, input: int) -> Receiver:
        return self._process_with(self.function.process_element1 if input == 0 else self.function.process_element2)
