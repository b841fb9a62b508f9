"""Operators without keys: map, flat map, filter, vectorised map and process, of one input or of two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.api.specs import CoMapSpec
from headrace.errors import UserCodeError
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.records.kernel import detached, take_each
from headrace.worker.operators.base import ElementContext, Operator, OperatorContext, Outputs, Receiver, without_none


class Map(Operator):
    """One record in, one out."""

    def receiver(self, input: int) -> Receiver:
        function = self.method("map", input)
        of_two = isinstance(self.operator.spec, CoMapSpec)
        if self.detaches:
            loop = lambda rows: [detached(function(row)) for row in rows]  # noqa: E731
        else:
            loop = lambda rows: [function(row) for row in rows]  # noqa: E731

        def receive(batch: Batch) -> None:
            mapped = self.each(batch.rows(), loop)
            stamps = batch.timestamps
            if of_two:
                mapped, stamps = without_none(mapped, stamps)
            self.emit_any(mapped, stamps)

        return receive


class FlatMap(Operator):
    """One record in, any number out."""

    def receiver(self, input: int) -> Receiver:
        function = self.method("flat_map", input)

        def receive(batch: Batch) -> None:
            outputs = Outputs(batch.timestamps)
            out, ends, detach = outputs.rows, outputs.ends, self.detaches
            self.each(batch.rows(), lambda rows: take_each(function, rows, out, ends, detach), "flat_map")
            self.emit_any(outputs.rows, outputs.timestamps())

        return receive


class Filter(Operator):
    """Keeps some records."""

    def receiver(self, input: int) -> Receiver:
        function = self.method("filter", input)

        def receive(batch: Batch) -> None:
            rows, stamps = batch.rows(), batch.timestamps
            if stamps is None:
                kept = self.each(rows, lambda rows: [row for row in rows if function(row)])
            else:
                places = self.each(rows, lambda rows: [index for index, row in enumerate(rows) if function(row)])
                kept, stamps = [rows[index] for index in places], stamps[places]
            if len(kept) == len(rows):
                self.emit(batch)
            elif kept:
                output = Batch.of_output(kept, self.type, self.origin)
                output.timestamps = stamps
                self.emit(output)

        return receive


_END = object()


class MapBatches(Operator):
    """Whole Arrow batches in and out."""

    def receiver(self, input: int) -> Receiver:
        function = self.method("map_batches", input)

        def receive(batch: Batch) -> None:
            for arrow in self._batches(self.guard(function, batch.arrow())):
                if arrow.num_rows:
                    output = Batch.of_arrow(self.guard(self.type.fit, arrow), self.type)
                    # Which row came from which is not known, unless there are as many: then they are the same ones.
                    output.timestamps = batch.timestamps if len(output) == len(batch) else None
                    self.emit(output)

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
        raise self.failure(
            UserCodeError("HR-5002", f"map_batches() must give pyarrow.RecordBatch, got {type(result).__name__}")
        )

    def _each(self, result: Iterable[Any]) -> Iterable[pa.RecordBatch]:
        iterator = iter(result)
        while (item := self.guard(next, iterator, _END)) is not _END:
            yield from self._batches(item)


class Process(Operator):
    """The general function without key."""

    context_type: type[ElementContext] = ElementContext

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self.element = self.context_type(self)

    def receiver(self, input: int) -> Receiver:
        return self.process_with(self.method("process_element", input), self.element, "process_element")
