"""Asynchronous calls: records wait in a queue while coroutines run for them, and leave it with their results.

The queue is worked on in the subtask's thread. Coroutines run in an event loop: on Spark in a thread of its own, which
wakes the subtask when a call is done; where time is virtual in the same thread, step by step, so that a run can be repeated.

The queue also holds the watermarks and the idleness that came between records: they leave it in their place, so no record
is later than it came. Unordered results overtake each other only between two of these.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from headrace.api.specs import AsyncSpec
from headrace.errors import UserCodeError
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.state.api import ListStateDescriptor
from headrace.state.backend import SnapshotKind
from headrace.worker.event_loops import EventLoop, make_loop
from headrace.worker.operators.base import Operator, OperatorContext, OperatorSnapshot, Receiver, spread

_IN_FLIGHT = ListStateDescriptor("in-flight")
OWN_STATES = (_IN_FLIGHT.name,)


class _Call:
    """A record in the queue, and the calls that are made for it."""

    __slots__ = ("attempts", "deadline", "done", "error", "result", "stamp", "task", "value")

    def __init__(self, value: Any, stamp: int | None) -> None:
        self.value, self.stamp = value, stamp
        self.attempts = 0
        self.deadline: int | None = None  # of all its calls together
        self.task: Any = None
        self.done = False
        self.result: list[Any] = []
        self.error: Exception | None = None


class _Mark:
    """A watermark, or (None) a change of idleness, between records."""

    __slots__ = ("idle", "watermark")

    def __init__(self, watermark: int | None, idle: bool = False) -> None:
        self.watermark, self.idle = watermark, idle


class AsyncWait(Operator):
    """Calls an AsyncFunction for each record."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        spec = AsyncSpec.of(operator)
        self._ordered, self._capacity, self._timeout, self._retry = (
            spec.ordered,
            spec.capacity,
            spec.timeout,
            spec.retry,
        )
        predicate = self._retry.get_retry_predicate()
        self._of_result, self._of_error = predicate.result_predicate(), predicate.exception_predicate()
        self._queue: deque[_Call | _Mark] = deque()  # all that has not left, in the order in which it came
        self._waiting: deque[_Call] = deque()  # of these, the calls that have not begun
        self._running = 0
        self._again: list[tuple[int, int, _Call]] = []  # a heap: when to call again
        self._count = 0
        self._loop: EventLoop[_Call] | None = None
        self._started = False

    # --- life -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        super().open()
        self._loop = make_loop(self.context.services)
        for value, stamp in self.context.operator_state.get_list_state(_IN_FLIGHT).get():
            self._put(_Call(value, stamp))

    def start(self) -> None:
        """Calls of a restored checkpoint are made again, now that every subtask has restored its state."""
        self._started = True
        self._begin()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
        super().close()

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    @property
    def full(self) -> bool:
        return self._running + len(self._waiting) >= self._capacity

    # --- records ----------------------------------------------------------------------------------------------------

    def receiver(self, input: int) -> Receiver:
        def receive(batch: Batch) -> None:
            stamps = [None] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
            for row, stamp in zip(batch.rows(), stamps, strict=True):
                self._put(_Call(row, stamp))
            self._begin()
            self._take_results()

        return receive

    def _put(self, call: _Call) -> None:
        self._queue.append(call)
        self._waiting.append(call)

    def _begin(self) -> None:
        """Begin calls as far as the capacity allows."""
        free = min(self._capacity - self._running, len(self._waiting))
        if free > 0 and self._started:
            now = self.context.services.now()
            calls = [self._waiting.popleft() for _ in range(free)]
            for call in calls:
                call.deadline = None if self._timeout is None else now + self._timeout
            self._running += free
            self._call(calls)

    def _call(self, calls: list[_Call]) -> None:
        assert self._loop is not None
        for call in calls:
            call.attempts += 1
        self._loop.run([(self.function, call) for call in calls])

    # --- results ----------------------------------------------------------------------------------------------------

    def _take_results(self) -> None:
        """Take what is done, and emit what may leave the queue."""
        assert self._loop is not None
        while done := self._loop.take(self.next_deadline):
            for call, result, error in done:
                if call.task is not None and not call.done:  # else it took too long
                    call.task = None
                    self._on_result(call, result, error)
            self._emit_done()
            self._begin()

    def _on_result(self, call: _Call, result: Any, error: Exception | None) -> None:
        if error is None:
            again = self._of_result is not None and isinstance(result, Iterable) and self.guard(self._of_result, result)
        else:
            again = self._of_error is not None and self.guard(self._of_error, error)
        if again and self.guard(self._retry.can_retry, call.attempts):
            pause = self.guard(self._retry.get_backoff_time_millis, call.attempts)
            self._count += 1
            heapq.heappush(self._again, (self.context.services.now() + pause, self._count, call))
        elif error is not None:
            raise self.failure(error, call.value) from error
        else:
            self._complete(call, result, "async_invoke")

    def _complete(self, call: _Call, result: Any, method: str) -> None:
        if not isinstance(result, Iterable):
            found = "nothing" if result is None else type(result).__name__
            raise self.failure(
                UserCodeError(
                    "HR-5002", f"{method} must return a list of records, got {found}; return [] for no record"
                ),
                call.value,
            )
        self.take(result, call.result)
        call.done = True
        self._running -= 1

    def _emit_done(self) -> None:
        """Emit results in order, up to a call that is not done; if the order is free, also those between two marks."""
        out: list[_Call] = []
        queue = self._queue
        while queue:
            first = queue[0]
            if isinstance(first, _Mark):
                self._emit_results(out)
                out = []
                queue.popleft()
                self._pass(first)
            elif first.done:
                out.append(first)
                queue.popleft()
            else:
                break
        if queue and not self._ordered:
            kept: deque[_Call | _Mark] = deque()
            while queue and not isinstance(queue[0], _Mark):
                call = queue.popleft()
                assert isinstance(call, _Call)
                (out if call.done else kept).append(call)
            kept.extend(queue)
            self._queue = kept
        self._emit_results(out)

    def _emit_results(self, calls: list[_Call]) -> None:
        """Emit the results of calls, in batches of records that all have a timestamp or all have none."""
        start = 0
        for end in range(1, len(calls) + 1):
            if end < len(calls) and (calls[end].stamp is None) == (calls[start].stamp is None):
                continue
            part, start = calls[start:end], end
            rows = [row for call in part for row in call.result]
            stamps = None
            if part[0].stamp is not None:
                ends = np.cumsum([len(call.result) for call in part]).tolist()
                stamps = spread([call.stamp or 0 for call in part], ends)
            self.emit_rows(rows, stamps)

    # --- time -------------------------------------------------------------------------------------------------------

    def advance(self, watermark: int) -> None:
        self._mark(_Mark(watermark))

    def set_idle(self, idle: bool) -> None:
        self._mark(_Mark(None, idle))

    def _mark(self, mark: _Mark) -> None:
        if self._queue:
            self._queue.append(mark)
        else:
            self._pass(mark)

    def _pass(self, mark: _Mark) -> None:
        if mark.watermark is None:
            super().set_idle(mark.idle)
        else:
            super().advance(mark.watermark)

    def next_deadline(self) -> int | None:
        if self._loop is None or not self._queue:
            return None
        now = self.context.services.now()
        if self._loop.has_results():
            return now
        times = [] if not self._again else [self._again[0][0]]
        if (own := self._loop.next_time()) is not None:
            times.append(own)
        if self._timeout is not None:
            # All calls have the same time, so the first that is not done is the first that is due.
            first = next((call for call in self._queue if isinstance(call, _Call) and not call.done), None)
            if first is not None and first.deadline is not None:
                times.append(first.deadline)
        return min(times, default=None)

    def on_time(self, now: int) -> None:
        self._take_results()
        due: list[_Call] = []
        while self._again and self._again[0][0] <= now:
            call = heapq.heappop(self._again)[2]
            if not call.done and (call.deadline is None or now < call.deadline):
                due.append(call)
        if due:
            self._call(due)
        if self._timeout is not None:
            self._end_late_calls(now)
        self._take_results()

    def _end_late_calls(self, now: int) -> None:
        late = False
        for call in self._queue:
            if isinstance(call, _Mark) or call.done:
                continue
            if call.deadline is None or call.deadline > now:
                break
            assert self._loop is not None
            self._loop.cancel(call)
            call.task = None
            late = True
            try:
                result = self.function.timeout(call.value)
            except Exception as error:
                raise self.failure(error, call.value) from error
            self._complete(call, result, "timeout")
        if late:
            self._emit_done()
            self._begin()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def before_barrier(self) -> None:
        """Emit completed calls before the barrier, so that they are not repeated after a restore."""
        self._take_results()

    def snapshot(self, checkpoint_id: int, timestamp: int, kind: SnapshotKind) -> OperatorSnapshot:
        held = [(call.value, call.stamp) for call in self._queue if isinstance(call, _Call)]
        self.context.operator_state.get_list_state(_IN_FLIGHT).update(held)
        return super().snapshot(checkpoint_id, timestamp, kind)
