"""One subtask: the operators of a vertex, their inputs and outputs, as an object that is stepped.

There is no thread, sleep or clock in here. The Spark shell, the local runtime and the simulator all drive the same
object: `receive` rows, `step` while there is work, `take` rows that are ready, `on_time` when `next_deadline` is due.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headgate.batch import Batch
from headgate.errors import IllegalState
from headgate.functions import TaskInfo
from headgate.keygroups import key_group_range
from headgate.protocol.frames import DRAIN, STAMPED, Frame, Kind, pack, read_frames
from headgate.runtime.failures import OperatorFailure
from headgate.runtime.operators.base import Operator, OperatorContext, Receiver
from headgate.runtime.operators.ends import SourceOperator
from headgate.runtime.operators.registry import make_operator
from headgate.runtime.output import EdgeWriter, Outbox, Piece
from headgate.runtime.plan import InputEdge, Settings, VertexPlan
from headgate.runtime.snapshot import SnapshotInProgress, SubtaskRestore
from headgate.state.backend import BackendSetup, KeyedStateBackend, SnapshotKind
from headgate.state.hashmap import HashMapBackend
from headgate.state.operator import OperatorStateBackend
from headgate.types import TypeInformation

__all__ = ["Relay", "Status", "Subtask", "SubtaskServices", "Task"]


class Status(Enum):
    """Where a task is in its life."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


class SubtaskServices(Protocol):
    """What a subtask needs of the world; each runtime has its own."""

    lockstep: bool

    def now(self) -> int:
        """Milliseconds."""
        ...

    def to_driver(self, channel: str, payload: bytes, records: int) -> None:
        """Send printed lines or collected records."""
        ...

    def wake(self) -> None:
        """Called from another thread: there is something to do."""
        ...


class Task(Protocol):
    """What a runtime drives: a subtask or a relay."""

    status: Status

    def open(self) -> None: ...
    def receive(self, row: bytes | memoryview) -> None: ...
    def step(self, max_records: int) -> int: ...
    def has_work(self) -> bool: ...
    def flush(self) -> None: ...
    def take(self) -> list[tuple[int, list[Piece]]]: ...
    def next_deadline(self) -> int | None: ...
    def on_time(self, now: int) -> None: ...
    def close(self) -> None: ...
    def all_input_ended(self) -> bool: ...


class _Ends:
    """Counts the physical ends: one from every task of the level before."""

    def __init__(self, writers: int) -> None:
        self._missing = set(range(writers))

    def add(self, writer: int) -> None:
        if writer not in self._missing:
            raise IllegalState(f"task {writer} of the level before sent its end twice, or does not exist")
        self._missing.discard(writer)

    @property
    def all(self) -> bool:
        return not self._missing


@dataclass(slots=True)
class Channel:
    """Records and events of one writer on one edge."""

    edge: int
    writer: int
    input: int
    type: TypeInformation
    data_ended: bool = False
    ended: bool = False


class Subtask:
    """The operators of a vertex for one place in its parallelism."""

    def __init__(
        self,
        plan: VertexPlan,
        index: int,
        settings: Settings,
        services: SubtaskServices,
        info: TaskInfo,
        task: tuple[int, int, int],
        restore: SubtaskRestore | None = None,
    ) -> None:
        """`task` = (own number in the level, tasks in the level before, tasks in the level after)."""
        self.status = Status.CREATED
        self.records_in = 0
        self.bytes_in = 0
        self.queued_bytes = 0
        self._plan, self._index, self._settings, self._services = plan, index, settings, services
        self._restore = restore
        self._number, previous, self._next_width = task
        self._ends = _Ends(previous)
        self._channels = {(c.edge, c.writer): c for edge in plan.inputs for c in _channels(edge, index)}
        self._open_channels = len(self._channels)
        self._open_data = len(self._channels)
        self._arrived: deque[tuple[Channel, Frame]] = deque()
        self._batch: tuple[Batch, Receiver] | None = None  # what is being worked off, in slices
        self._at = 0
        self._outbox = Outbox(settings.buffer_size)
        self._random = Random(f"{info.job_id}/{plan.vertex.id}/{index}")
        self._writers = [self._writer(edge) for edge in range(len(plan.outputs))]
        self._operators = [self._operator(position, info) for position in range(len(plan.vertex.operators))]
        self._receivers = self._wire()
        head = self._operators[0]
        self._source = head if isinstance(head, SourceOperator) else None
        timeout = plan.vertex.buffer_timeout
        self._buffer_timeout = settings.buffer_timeout if timeout is None else timeout
        self._flush_at: int | None = None

    # --- wiring -----------------------------------------------------------------------------------------------------

    def _writer(self, number: int) -> EdgeWriter:
        out = self._plan.outputs[number]
        first = out.first_destination
        return EdgeWriter(
            out.edge,
            self._index,
            self._plan.vertex.parallelism,
            out.readers,
            out.reader_max_parallelism,
            lambda reader: first + reader,
            self._outbox,
            self._random,
        )

    def _operator(self, position: int, info: TaskInfo) -> Operator:
        chained = self._plan.vertex.operators[position]
        services = self._services
        own = TaskInfo(
            chained.name, chained.id, info.subtask, info.parallelism, info.max_parallelism, info.attempt, info.job_id
        )
        restored = self._restore.operators.get(chained.id) if self._restore else None
        context = OperatorContext(
            info=own,
            clock=services.now,
            to_driver=services.to_driver,
            wake=services.wake,
            operator_state=OperatorStateBackend(chained.name, restored.operator if restored else None),
            restored_id=self._restore.checkpoint_id if self._restore else None,
            keyed_backend=partial(self._keyed_backend, own),
            lockstep=services.lockstep,
        )
        return make_operator(chained, context)

    def _keyed_backend(
        self, info: TaskInfo, key_type: TypeInformation, group_of: Callable[[Any], int]
    ) -> KeyedStateBackend:
        settings = self._settings
        setup = BackendSetup(
            operator=info.task_name,
            key_groups=key_group_range(info.subtask, info.max_parallelism, info.parallelism),
            max_parallelism=info.max_parallelism,
            clock=self._services.now,
            key_type=key_type,
            object_reuse=settings.object_reuse,
            instance=f"{info.job_id[:8]}-{info.attempt}",
            group_of=group_of,
        )
        backend = HashMapBackend(setup)
        restored = self._restore.operators.get(info.operator_id) if self._restore else None
        if restored is not None and restored.keyed:
            backend.restore(restored.keyed)
        return backend

    def _wire(self) -> dict[int, Receiver]:
        """Connect the operators, last first; the receivers of the head's inputs."""
        writers = {out.edge.id: writer for out, writer in zip(self._plan.outputs, self._writers, strict=True)}
        for position in reversed(range(len(self._operators))):
            operator = self._operators[position]
            by_tag: dict[str | None, list[Receiver]] = {}
            for output in operator.operator.outputs:
                if output.edge is not None:
                    receiver = _guarded(writers[output.edge].emit, operator)
                else:
                    assert output.operator is not None
                    receiver = self._operators[output.operator].receiver(output.input)
                by_tag.setdefault(output.tag, []).append(receiver)
            for tag, receivers in by_tag.items():
                if tag is None:
                    operator.emit = _all(receivers)
                else:
                    operator.side[tag] = _all(receivers)
        inputs = sorted({edge.input for edge in self._plan.inputs})
        return {number: self._operators[0].receiver(number) for number in inputs}

    # --- life -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the operators, the last of the chain first."""
        for operator in reversed(self._operators):
            operator.open()
        self.status = Status.RUNNING

    def close(self) -> None:
        """Close every operator; the first error is raised when all are closed."""
        first: Exception | None = None
        for operator in self._operators:
            try:
                operator.close()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def _finish(self) -> None:
        """The input ended: (1) finish the operators, (2) end the data, (3) end the channels, (4) end the task."""
        for operator in self._operators:  # (1)
            operator.finish()
        for writer in self._writers:  # (2)
            writer.event(Kind.END_OF_DATA, flags=DRAIN)
        for writer in self._writers:  # (3)
            writer.event(Kind.END_OF_PARTITION)
        _end_task(self._outbox, self._number, self._next_width)  # (4)
        self.status = Status.FINISHED

    def all_input_ended(self) -> bool:
        """Whether every task of the level before has sent its physical end."""
        return self._ends.all

    # --- snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self, checkpoint_id: int, timestamp: int, kind: SnapshotKind) -> SnapshotInProgress:
        """The synchronous part of a snapshot of all operators, as one step with respect to records and timers."""
        with ExitStack() as locks:
            for operator in self._operators:
                locks.enter_context(operator.checkpoint_lock())
            for operator in self._operators:
                operator.before_barrier()
            done = [operator.snapshot(checkpoint_id, timestamp, kind) for operator in self._operators]
        return SnapshotInProgress(checkpoint_id, done)

    # --- input ------------------------------------------------------------------------------------------------------

    def receive(self, row: bytes | memoryview) -> None:
        """Take a row; its frames wait for their turn."""
        for frame in read_frames(row):
            if frame.kind == Kind.END:
                self._ends.add(frame.writer)
                continue
            channel = self._channels.get((frame.edge, frame.writer))
            if channel is None:
                raise IllegalState(f"a frame for channel {frame.edge}/{frame.writer}, which this subtask does not have")
            if channel.ended:
                raise IllegalState(f"a frame behind the end of channel {frame.edge}/{frame.writer}")
            self.bytes_in += len(frame.body)
            self.queued_bytes += len(frame.body)
            self._arrived.append((channel, frame))

    def has_work(self) -> bool:
        """Whether `step` can do something now."""
        if self.status is not Status.RUNNING:
            return False
        return self._batch is not None or bool(self._arrived) or self._source is not None

    def has_events(self) -> bool:
        """Whether frames wait that `step` can work off."""
        return self.status is Status.RUNNING and (self._batch is not None or bool(self._arrived))

    def step(self, max_records: int) -> int:
        """Work off at most so many records, or one event; the number of records worked off."""
        done = self._step(max_records)
        if done:
            self._flush_if_due()
        return done

    def _step(self, max_records: int) -> int:
        if self._batch is not None:
            return self._slice(max_records)
        if self._arrived:
            channel, frame = self._arrived.popleft()
            if frame.kind in (Kind.ARROW, Kind.PICKLE):
                self._batch, self._at = (_decode(frame, channel.type), self._receivers[channel.input]), 0
                self.queued_bytes -= len(frame.body)
                return self._slice(max_records)
            self._event(channel, frame)
            return 0
        if self._source is not None and self.status is Status.RUNNING:
            return self._poll(max_records)
        return 0

    def _slice(self, max_records: int) -> int:
        assert self._batch is not None
        batch, receiver = self._batch
        part = batch.slice(self._at, max_records)
        self._at += len(part)
        if self._at >= len(batch):
            self._batch = None
        self.records_in += len(part)
        receiver(part)
        return len(part)

    def _poll(self, max_records: int) -> int:
        assert self._source is not None
        count = self._source.poll(max_records)
        self.records_in += count
        if self._source.finished:
            self._finish()
        return count

    def _event(self, channel: Channel, frame: Frame) -> None:
        if frame.kind == Kind.END_OF_DATA:
            channel.data_ended = True
            self._open_data -= 1
        elif frame.kind == Kind.END_OF_PARTITION:
            if not channel.data_ended:
                raise IllegalState(f"channel {channel.edge}/{channel.writer} ended without END_OF_DATA")
            channel.ended = True
            self._open_channels -= 1
            if self._open_channels == 0:
                self._finish()
        else:
            raise IllegalState(f"an unknown event {frame.kind} on channel {channel.edge}/{channel.writer}")

    # --- output -----------------------------------------------------------------------------------------------------

    @property
    def records_out(self) -> int:
        return sum(writer.records_out for writer in self._writers)

    @property
    def bytes_out(self) -> int:
        return self._outbox.bytes_out

    def take(self) -> list[tuple[int, list[Piece]]]:
        """Rows that are ready to leave: (task of the next level, pieces)."""
        return self._outbox.take()

    def flush(self) -> None:
        """Let everything that waits for its buffer to fill leave now."""
        for writer in self._writers:
            writer.flush()
        self._outbox.flush()
        self._flush_at = None

    def _flush_if_due(self) -> None:
        if self._buffer_timeout == 0:
            self.flush()
        elif self._buffer_timeout > 0 and self._writers:
            now = self._services.now()
            if self._flush_at is None:
                self._flush_at = now + self._buffer_timeout
            elif now >= self._flush_at:
                self.flush()

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """The next time (ms) at which `on_time` has work."""
        if self.status is not Status.RUNNING:
            return None
        times = [t for operator in self._operators if (t := operator.next_deadline()) is not None]
        if self._flush_at is not None:
            times.append(self._flush_at)
        if self._source is not None and (ready := self._source.ready_at()) is not None:
            times.append(ready)
        return min(times, default=None)

    def on_time(self, now: int) -> None:
        """Fire timers, flush buffers that are due."""
        if self.status is not Status.RUNNING:
            return
        for operator in self._operators:
            deadline = operator.next_deadline()
            if deadline is not None and deadline <= now:
                operator.on_time(now)
                self._flush_if_due()
        if self._flush_at is not None and now >= self._flush_at:
            self.flush()


class Relay:
    """Passes rows on to the next level, unchanged and in order."""

    def __init__(self, destination: int, task: tuple[int, int, int], buffer_size: int) -> None:
        self.status = Status.CREATED
        self.records_in = self.records_out = self.bytes_in = self.queued_bytes = 0
        self._destination = destination
        self._number, previous, self._next_width = task
        self._ends = _Ends(previous)
        self._outbox = Outbox(buffer_size)

    @property
    def bytes_out(self) -> int:
        return self._outbox.bytes_out

    def open(self) -> None:
        self.status = Status.RUNNING
        self._finish_if_ended()

    def receive(self, row: bytes | memoryview) -> None:
        first = next(read_frames(row))
        if first.kind == Kind.END:  # ends come in rows of their own
            self._ends.add(first.writer)
            self._finish_if_ended()
        else:
            self.bytes_in += len(row)
            self._outbox.add(self._destination, [row], close=True)

    def _finish_if_ended(self) -> None:
        if self._ends.all and self.status is Status.RUNNING:
            _end_task(self._outbox, self._number, self._next_width)
            self.status = Status.FINISHED

    def all_input_ended(self) -> bool:
        return self._ends.all

    def has_work(self) -> bool:
        return False

    def step(self, max_records: int) -> int:
        return 0

    def flush(self) -> None:
        self._outbox.flush()

    def take(self) -> list[tuple[int, list[Piece]]]:
        return self._outbox.take()

    def next_deadline(self) -> int | None:
        return None

    def on_time(self, now: int) -> None:
        """A relay has no timers."""

    def close(self) -> None:
        """A relay holds nothing."""


def _channels(edge: InputEdge, index: int) -> list[Channel]:
    return [Channel(edge.id, writer, edge.input, edge.type) for writer in edge.writers_of[index]]


def _end_task(outbox: Outbox, number: int, next_width: int) -> None:
    outbox.flush()
    for target in range(next_width):
        outbox.add(target, pack(Kind.END, 0, number), close=True)


def _decode(frame: Frame, type: TypeInformation) -> Batch:
    body, stamps = frame.body, None
    if frame.flags & STAMPED:
        count = int.from_bytes(body[:8], "little")
        stamps = np.frombuffer(body[8 : 8 + 8 * count], np.int64)
        body = body[8 + 8 * count :]
    if frame.kind == Kind.ARROW:
        batch = Batch.of_arrow(pa.ipc.read_record_batch(pa.py_buffer(body), type.schema), type)
    else:
        batch = Batch.of_rows(pickle.loads(body), type)
    batch.timestamps = stamps
    return batch


def _all(receivers: list[Receiver]) -> Receiver:
    if len(receivers) == 1:
        return receivers[0]

    def fan_out(batch: Batch) -> None:
        for receiver in receivers:
            receiver(batch)

    return fan_out


def _guarded(emit: Receiver, operator: Operator) -> Receiver:
    """Key selectors and partitioners run at the writer: their errors name the operator before the edge."""

    def guarded(batch: Batch) -> None:
        try:
            emit(batch)
        except OperatorFailure:
            raise
        except Exception as error:
            raise _edge_failure(operator, error) from error

    return guarded


def _edge_failure(operator: Operator, error: Exception) -> Exception:
    return error if getattr(error, "origin", None) is not None else operator.failure(error)
