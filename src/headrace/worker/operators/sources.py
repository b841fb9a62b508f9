"""Sources in a subtask: readers that are polled, and SourceFunctions with a thread of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from headrace.api.durable import to_text, unpack
from headrace.api.functions import OutputTag
from headrace.api.sources import EMPTY_READER, UNCUT, ReaderContext, Source, SourceReader
from headrace.api.specs import SourceSpec
from headrace.api.watermarks import WatermarkAlignment
from headrace.checkpoint.commits import Commits
from headrace.errors import UserCodeError
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import FEW, Batch
from headrace.records.kernel import detached
from headrace.records.types import TypeInformation
from headrace.state.api import ListStateDescriptor
from headrace.state.backend import SnapshotKind
from headrace.worker.operators.base import Operator, OperatorContext, OperatorSnapshot, SubtaskServices
from headrace.worker.operators.time import make_stamper
from headrace.worker.watermarks import Stamper

_SPLITS = ListStateDescriptor("splits", "string")
OWN_STATES = (_SPLITS.name,)
_BURST_MS = 100
_CAPACITY = 10_000  # records that a SourceFunction may be ahead
_FEW = 32  # records that are joined with those of the next poll
_JOIN_MS = 2


class SourceOperator(Operator):
    """The head of a chain that reads from outside."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        # A program may want the records of a source in another form: rows that can be changed.
        self._retypes = self.type.is_typed and self.type != getattr(self.function, "type", self.type)
        self.reader: SourceReader[Any] = EMPTY_READER  # until it is open
        self._given: dict[int, list[Any]] = {}  # the splits in checkpoints that may become complete
        spec = SourceSpec.of(operator)
        rate, self._strategy = spec.rate, spec.watermarks
        self._limit = None if rate is None else RateLimit(rate / context.info.parallelism, context.services.now)
        self._stamper: Stamper | None = None
        self.alignment: WatermarkAlignment | None = None if self._strategy is None else self._strategy.alignment
        self.makes_watermarks = self._strategy is not None
        self.idle = False
        self._failed: Exception | None = None  # what a joined poll has raised
        self.drained = False  # whether the reader had no more records when it was polled last
        self._split_names: Collection[Hashable] | None = None

    def open(self) -> None:
        info = self.context.info
        if self._strategy is not None:
            self._stamper = make_stamper(self, self._strategy, self.emit, self)
        if isinstance(self.function, Source):
            where = ReaderContext(info.subtask, info.parallelism, self.context.services.now)
            left = self.context.restored_names
            if left is None or _SPLITS.name in left:
                splits = list(map(unpack, self.context.operator_state.get_list_state(_SPLITS).get()))
            else:  # the checkpoint, if there is one, has not seen this source
                splits = self.guard(self.function.first_splits, where)
            self.reader = self.guard(self.function.reader, where, splits)
        else:
            super().open()
            self.reader = FunctionReader(self.function, self.type, self.context.services, detaches=self.detaches)

    def check(self) -> None:
        """Raise what a joined poll has raised, before it is read or stored: its position may be behind records not given."""
        if self._failed is not None:
            raise self._failed

    @property
    def finished(self) -> bool:
        """Return True if the reader has given all; one that has failed has not."""
        return self.reader.finished and self._failed is None

    @property
    def wants_split(self) -> bool:
        """Return True if the reader of a dynamic source has too little to read."""
        return not self.reader.finished and self.reader.wants_split

    def add_splits(self, splits: list[Any], no_more: bool) -> None:
        """Something to read, found by the enumerator."""
        if splits:
            self.guard(self.reader.add_splits, splits)
        if no_more:
            self.guard(self.reader.no_more_splits)

    def poll(self, max_records: int, join: bool = False) -> int:
        """Read and emit at most `max_records`; return their number. `join`: a few records may wait for the next poll's."""
        self.drained = False
        if self._limit is not None and max_records < UNCUT:  # a barrier may wait for what must not be cut
            max_records = min(max_records, self._limit.allowed())
            if not max_records:
                self.drained = True
                return 0
        self.check()
        begun = self.context.services.now()
        batch = self.guard(self.reader.poll, max_records)
        if self._stamper is not None:
            self._split_names = self.guard(self.reader.ordered_splits)
            if self._split_names is not None:
                self._stamper.set_splits(self._split_names)
        if self._limit is not None:
            self._limit.spend(0 if batch is None else len(batch))
        aside = list(self.reader.take_side())
        batches = [] if batch is None or not len(batch) else [_kept(batch)]
        if join and batches and self._stamper is None and self._limit is None:
            batches = self._joined(batches, max_records, aside, begun)
        if aside:
            self.emit_tagged(aside)
        for batch in batches:
            self._emit(batch)
        if not batches:
            self.drained = not aside
        return sum(map(len, batches)) + len(aside)

    def _emit(self, batch: Batch) -> None:
        if self._retypes:
            batch = batch.retyped(self.type)
        if batch.origin is None:
            batch.origin = self.origin
        if self._stamper is None:
            self.emit(batch)
        else:
            self.guard(self._stamper.receive, batch, None if self._split_names is None else self.reader.split_of_each())

    def _joined(
        self, parts: list[Batch], max_records: int, aside: list[tuple[OutputTag, Any]], begun: int
    ) -> list[Batch]:
        """A few records and those that came since: a batch takes nearly the same time with one record and with twenty."""
        reader, limit, now = self.reader, min(_FEW, max_records), self.context.services.now
        # A reader whose polls take long is not polled again: what it has given must not wait for it, nor a barrier.
        while (count := sum(map(len, parts))) < limit and not reader.finished and 0 <= now() - begun <= _JOIN_MS:
            try:
                more = self.guard(reader.poll, max_records - count)
                beside = reader.take_side()
            except Exception as error:  # after the records before it
                self._failed = error
                break
            aside += beside
            if more is None or not len(more):
                self.drained = not beside
                break
            parts.append(_kept(more))
        for part in parts:
            part.origin = part.origin or self.origin
        alike = len({part.timestamps is None for part in parts}) == 1
        return [Batch.joined(parts)] if alike else parts

    def next_deadline(self) -> int | None:
        return None if self._stamper is None else self._stamper.next_deadline()

    def on_time(self, now: int) -> None:
        assert self._stamper is not None
        self.guard(self._stamper.on_time, now)

    def pause(self, paused: bool) -> None:
        if self._stamper is not None:
            self._stamper.pause(paused)

    def set_idle(self, idle: bool) -> None:
        self.idle = idle
        super().set_idle(idle)

    def ready_at(self) -> int | None:
        """The time at which the next poll makes sense, if it is known."""
        limited = None if self._limit is None else self._limit.ready_at()
        return self.reader.ready_at() if limited is None else limited

    def checkpoint_lock(self) -> AbstractContextManager[Any]:
        reader = self.reader
        return reader.get_checkpoint_lock() if isinstance(reader, FunctionReader) else nullcontext()

    def before_barrier(self) -> None:
        """Send records that the source's thread has emitted, or that must not be cut, before the barrier."""
        while self.reader.holds_barrier and self.poll(UNCUT):
            pass

    def snapshot(self, checkpoint_id: int, timestamp: int, kind: SnapshotKind) -> OperatorSnapshot:
        if isinstance(self.function, Source):
            splits = self._given[checkpoint_id] = self.reader.snapshot()
            self.context.operator_state.get_list_state(_SPLITS).update([self.guard(to_text, split) for split in splits])
        return super().snapshot(checkpoint_id, timestamp, kind)

    def notify_complete(self, checkpoint_id: int, commits: Commits) -> None:
        super().notify_complete(checkpoint_id, commits)
        splits = self._given.pop(checkpoint_id, None)
        self._given = {one: given for one, given in self._given.items() if one > checkpoint_id}
        if splits is not None:
            self.guard(self.reader.notify_complete, splits)

    def close(self) -> None:
        self.guard(self.reader.close)
        if not isinstance(self.function, Source):
            super().close()


def _kept(batch: Batch) -> Batch:
    """A few records wait as they are to be sent: they are not in the reader's list, should it use that again."""
    return batch if batch.has_columns or len(batch) > FEW else batch.copied(lambda row: row)


class RateLimit:
    """Limits the records of one subtask per second; after a pause, it allows at most those of a tenth of a second."""

    def __init__(self, rate: float, clock: Callable[[], int]) -> None:
        self._rate, self._clock = rate, clock
        self._credit, self._at = 0.0, clock()

    def allowed(self) -> int:
        """The number of records that may be read now."""
        now = self._clock()
        most = max(1.0, self._rate * _BURST_MS / 1000)
        self._credit, self._at = min(most, self._credit + (now - self._at) * self._rate / 1000), now
        return int(self._credit)

    def spend(self, records: int) -> None:
        """Count records that were read."""
        self._credit -= records

    def ready_at(self) -> int | None:
        """The time of the next record, if the limit holds it back."""
        return None if self._credit >= 1 else self._at + max(1, round((1 - self._credit) * 1000 / self._rate))


class FunctionReader(SourceReader[Any]):
    """Runs a SourceFunction in its own thread and hands its records over."""

    def __init__(
        self, function: Any, type: TypeInformation, services: SubtaskServices, *, detaches: bool = False
    ) -> None:
        self._function, self._type, self._detaches = function, type, detaches
        self._wake, self._lockstep = services.wake, services.lockstep
        self._asked = not self._lockstep  # in lockstep a record is taken only while a poll waits for it
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._rows: deque[Any] = deque()
        self._stamped = False  # whether a record with a timestamp was ever emitted
        self._ended = False
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-source", daemon=True)
        self._thread.start()

    # --- the source's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._function.run(self)
        except _SourceClosed:
            pass
        except Exception as error:
            self._error = error
        except BaseException as error:  # sys.exit() ends the thread only, and the job would wait without end
            self._error = UserCodeError(f"run() ended with {error!r}").with_traceback(error.__traceback__)
        with self._lock:
            self._ended = True
            self._changed.notify_all()
        self._wake()

    def collect(self, value: Any) -> None:
        """Emit a record; waits while the job cannot take more.

        The wait gives the checkpoint lock away, but before the record is there: a checkpoint taken meanwhile has
        neither the record nor what follows it.
        """
        with self._lock:
            while (len(self._rows) >= _CAPACITY or not self._asked) and not self._closed:
                self._changed.wait()
            if self._closed:
                raise _SourceClosed
            self._rows.append(detached(value) if self._detaches else value)
            self._asked = not self._lockstep
            self._stamped = self._stamped or value.__class__ is _Stamped
            if self._lockstep:
                self._changed.notify_all()
            first = len(self._rows) == 1
        if first:
            self._wake()

    def collect_with_timestamp(self, value: Any, timestamp: int) -> None:
        """Emit a record with its event timestamp in milliseconds."""
        self.collect(_Stamped((detached(value) if self._detaches else value, timestamp)))

    def get_checkpoint_lock(self) -> Any:
        """Hold it to emit and change state as one step."""
        return self._lock

    @property
    def holds_barrier(self) -> bool:  # type: ignore[override]
        """Return True if emitted records wait to be polled."""
        return bool(self._rows)

    def snapshot(self) -> list[Any]:
        """A SourceFunction keeps its position itself, as a CheckpointedFunction."""
        return []

    # --- the subtask's thread ---------------------------------------------------------------------------------------

    def poll(self, max_records: int) -> Batch | None:
        with self._lock:
            if self._lockstep:
                self._asked = True
                self._changed.notify_all()
            while self._lockstep and not self._rows and not self._ended:
                self._changed.wait()
            rows = self._take(min(max_records, len(self._rows)))
            # In lockstep not together with the last record: whether run() has returned by now is a matter of chance.
            self.finished = self._ended and not self._rows and not (self._lockstep and rows)
            if rows:
                self._changed.notify_all()
        if self._error is not None and not rows:
            raise self._error
        if self._error is not None:
            self.finished = False
        return self._batch(rows) if rows else None

    def _take(self, count: int) -> list[Any]:
        """At most `count` of the next records; once timestamps are used, either all of them have one or none has."""
        if not self._stamped:
            return [self._rows.popleft() for _ in range(count)]
        taken: list[Any] = []
        while len(taken) < count and (not taken or _is_stamped(self._rows[0]) == _is_stamped(taken[0])):
            taken.append(self._rows.popleft())
        return taken

    def _batch(self, rows: list[Any]) -> Batch:
        if not _is_stamped(rows[0]):
            return Batch.of_output(rows, self._type, None)
        batch = Batch.of_output([value for value, _ in rows], self._type, None)
        batch.timestamps = np.array([stamp for _, stamp in rows], np.int64)
        return batch

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._function.cancel()
            self._thread.join(timeout=5)


class _Stamped(tuple[Any, int]):
    """A record and its timestamp."""

    __slots__ = ()


def _is_stamped(row: Any) -> bool:
    return row.__class__ is _Stamped


class _SourceClosed(BaseException):
    """Unwinds a source function whose job is over; not an Exception, so that user code does not swallow it."""
