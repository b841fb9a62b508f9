"""The interval join: records of two keyed streams whose times are close enough. Runs in the subtask's thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.api.specs import IntervalJoinSpec
from headrace.errors import UserCodeError
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.records.kernel import detached
from headrace.state.api import MapStateDescriptor
from headrace.state.timers import TimeDomain
from headrace.worker.operators.base import OperatorContext, Receiver, spread
from headrace.worker.operators.keyed import KeyedOperator


class IntervalJoinOperator(KeyedOperator):
    """Keeps the records of both sides by timestamp, until the watermark says that no partner can come."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        spec = IntervalJoinSpec.of(operator)
        lower, upper = spec.bounds
        # A record of the first side meets those of the second from stamp + lower to stamp + upper, and the other way.
        self._reach = ((lower, upper), (-upper, -lower))
        self._late_tags = spec.late_tags
        self._pair = _Pair()

    def open(self) -> None:
        super().open()
        self._kept = [self.backend.state(MapStateDescriptor(name, "bigint")) for name in ("left", "right")]

    def receiver(self, input: int) -> Receiver:
        own, others = input, 1 - input
        earliest, latest = self._reach[input]
        copies = not self.context.settings.object_reuse

        def receive(batch: Batch) -> None:
            if batch.timestamps is None:
                raise self.failure(
                    UserCodeError(
                        "HR-1406",
                        "an interval join needs timestamps: give both sources a watermark strategy with a timestamp assigner",
                    )
                )
            addresses, groups = self.keys_of(batch, input)
            current, pair, join = self.backend.context, self._pair, self.function.process_element
            out: list[Any] = []
            times: list[int] = []
            ends: list[int] = []
            late: list[int] = []

            def loop(rows: Iterable[Any]) -> None:
                stamped = zip(rows, batch.timestamps.tolist(), addresses, groups, strict=True)  # type: ignore[union-attr]
                for place, (row, stamp, current.address, current.group) in enumerate(stamped):
                    if stamp < self.watermark:
                        late.append(place)
                        continue
                    kept = self._kept[own]
                    kept.put(stamp, [*(kept.get(stamp) or ()), detached(row) if copies else row])
                    for time, partners in sorted(self._kept[others].items()):
                        if not stamp + earliest <= time <= stamp + latest:
                            continue
                        for partner in partners:
                            left, right = (row, partner) if own == 0 else (partner, row)
                            pair.left, pair.right = (stamp, time) if own == 0 else (time, stamp)
                            self.take(join(left, right, pair), out)
                            times.append(max(stamp, time))
                            ends.append(len(out))
                    self.backend.timers.register(
                        TimeDomain.EVENT, max(stamp, stamp + latest), current.address, current.group, (own, stamp)
                    )

            self.each(batch.rows(), loop, "process_element")
            self.end_batch()
            self.emit_tagged(out, spread(times, ends))
            self.late_records += len(late)
            tag = self._late_tags[own]
            if late and tag is not None:
                rows = batch.rows()
                self.emit_side(tag, [rows[place] for place in late], batch.timestamps[late])

        return receive

    def on_watermark(self, watermark: int) -> None:
        timers, current = self.backend.timers, self.backend.context
        if (due := timers.next_deadline(TimeDomain.EVENT)) is None or due >= watermark:
            return
        # Below the watermark, not at it: a partner may still have the timestamp of the watermark itself.
        while (timer := timers.pop_due(TimeDomain.EVENT, watermark - 1)) is not None:
            current.address, current.group = timer.address, timer.group
            side, stamp = timer.namespace
            self._kept[side].remove(stamp)
        self.end_batch()


class _Pair:
    """The context of a ProcessJoinFunction."""

    left = right = 0

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_timestamp(self) -> int:
        return max(self.left, self.right)
