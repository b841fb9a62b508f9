"""The operator that gives a stream its timestamps and watermarks."""

from __future__ import annotations

from headrace.api.specs import TimestampsSpec
from headrace.api.watermarks import MAX_WATERMARK, WatermarkStrategy
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.worker.operators.base import Operator, OperatorContext, Receiver
from headrace.worker.watermarks import Stamper, TimeReceiver


class TimestampsAndWatermarks(Operator):
    """Follows its own watermarks from here on; those of the operators before it end here, but for the last one."""

    makes_watermarks = True

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        self._strategy = TimestampsSpec.of(operator).watermarks
        self._stamper: Stamper | None = None

    def open(self) -> None:
        self._stamper = make_stamper(self, self._strategy, self.emit, _Behind(self))

    def receiver(self, input: int) -> Receiver:
        def receive(batch: Batch) -> None:
            assert self._stamper is not None
            self.guard(self._stamper.receive, batch)

        return receive

    def advance(self, watermark: int) -> None:
        if watermark == MAX_WATERMARK:
            super().advance(watermark)

    def set_idle(self, idle: bool) -> None:
        """The strategy decides whether this stream is idle."""

    def pause(self, paused: bool) -> None:
        if self._stamper is not None:
            self._stamper.pause(paused)

    def next_deadline(self) -> int | None:
        return None if self._stamper is None else self._stamper.next_deadline()

    def on_time(self, now: int) -> None:
        assert self._stamper is not None
        self.guard(self._stamper.on_time, now)


class _Behind:
    """The receivers behind an operator, for watermarks that the operator makes itself."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def advance(self, watermark: int) -> None:
        Operator.advance(self._operator, watermark)

    def set_idle(self, idle: bool) -> None:
        Operator.set_idle(self._operator, idle)


def make_stamper(operator: Operator, strategy: WatermarkStrategy, emit: Receiver, receiver: TimeReceiver) -> Stamper:
    """Make the stamper of an operator that has a watermark strategy."""
    settings, now = operator.context.settings, operator.context.services.now
    interval = 0 if settings.batch else settings.watermark_interval  # in batch mode time stands still until the end
    stamper: Stamper = operator.guard(Stamper, strategy, emit, receiver, now, interval)
    return stamper
