"""One subtask: the operators of a vertex, their inputs and outputs, as an object that is stepped.

It has no thread and no clock. The Spark shell, the local runtime and the simulator all drive the same object, each in
one thread: `receive` rows, `step` while there is work, `take` rows that are ready, `on_time` when `next_deadline` is due.
For checkpoints, `trigger`, `announce`, `notify_complete` and `notify_aborted` are called between two steps;
`take_snapshots` and `take_declines` return what is to be written and reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from headrace.api.watermarks import MAX_WATERMARK, MIN_WATERMARK, WatermarkAlignment
from headrace.checkpoint.barriers import instructions as do
from headrace.checkpoint.barriers.alignment import BarrierHandler
from headrace.checkpoint.barriers.gate import InputGate
from headrace.checkpoint.barriers.tracker import BarrierTracker
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.types import Barrier, SavepointFormat, SnapshotType
from headrace.control.messages import HoldWriter
from headrace.errors import IllegalState
from headrace.graph.plan import InputEdge, Settings, TaskInfo, VertexPlan
from headrace.job.status import Status
from headrace.records.batch import Batch
from headrace.records.frames import DRAIN, IDLE, FrameKind
from headrace.records.types import TypeMismatch
from headrace.state.backend import SnapshotKind
from headrace.worker.backlog import CapturedFrame, Waiting
from headrace.worker.chain import OperatorChain
from headrace.worker.failures import short
from headrace.worker.inputs import DATA, Channel, ChannelId, Inputs, decode, skipped
from headrace.worker.operators.base import Operator, OperatorSnapshot, Receiver, SubtaskServices
from headrace.worker.operators.sources import SourceOperator
from headrace.worker.output import EdgeWriter, Piece, RowBuffers
from headrace.worker.relay import end_task
from headrace.worker.restore import SubtaskRestore
from headrace.worker.watermarks import WatermarkValve

_FORCED_ALIGNED = ("forward", "rescale", "broadcast")
_LONGEST_PAUSE = 45  # ms
_SAMPLE_LENGTH = 500  # characters of a record that are shown


@dataclass(slots=True)
class SnapshotInProgress:
    """A snapshot whose synchronous part is done; of an unaligned one, in-flight data is still being captured.

    The rest, serialising and writing, is done outside the subtask, while records go on.
    """

    barrier: Barrier
    operators: list[OperatorSnapshot]
    metrics: do.AlignmentMetrics
    finished: bool = False  # the subtask had seen its last record
    finished_on_restore: bool = False  # it was restored as finished: it has no state and never ran
    started: int = 0  # when the synchronous part began; ms since the epoch
    sync_ms: int = 0
    queued: float = 0.0  # when the rest was queued; seconds of the monotonic clock
    capturing: bool = False
    captured: list[CapturedFrame] = field(default_factory=list)
    cancelled: bool = False

    def capture_complete(self, frames: list[CapturedFrame], metrics: do.AlignmentMetrics) -> None:
        """All in-flight data has been captured."""
        self.captured, self.capturing = frames, False
        stored = sum(len(frame.body) for frame in frames)
        self.metrics = msgspec.structs.replace(metrics, persisted_bytes=stored)

    def cancel(self) -> None:
        """Release what the snapshot holds."""
        self.cancelled = True
        for operator in self.operators:
            if operator.keyed is not None:
                operator.keyed.cancel()


class Subtask:
    """The operators of a vertex in one subtask."""

    def __init__(
        self,
        plan: VertexPlan,
        info: TaskInfo,
        settings: Settings,
        services: SubtaskServices,
        place: tuple[int, int, int],
        restore: SubtaskRestore | None = None,
    ) -> None:
        """`place` = (own number in the level, tasks in the level before, tasks in the level after)."""
        self.status = Status.CREATED
        self.records_in = 0
        self.data_finished = False  # the last record has been processed, and the operators have been finished
        self._settings, self._services = settings, services
        self._number, previous, self._next_width = place
        index = info.subtask
        channels = [channel for edge in plan.inputs for channel in _channels(edge, index)]
        self._inputs = Inputs(channels, previous, settings.alignment_memory, settings.tmp_dir)
        restored = self._inputs.restore(restore.frames) if restore else []
        self._restored = False  # by `restore`
        self._restored_finished = restore is not None and restore.finished
        self._gate = _gate(channels, restored, settings)
        self._open_channels = self._open_data = len(channels)
        self._batch: tuple[Channel, Waiting, Batch] | None = None  # being processed, in slices
        self._at = 0
        self._buffers = RowBuffers(settings.buffer_size)
        random = Random(f"{info.job_id}/{plan.vertex.id}/{index}")
        self._writers = [EdgeWriter(out, index, plan.vertex.parallelism, self._buffers, random) for out in plan.outputs]
        edges: dict[int, EdgeWriter] = {writer.edge.id: writer for writer in self._writers}
        self._chain = OperatorChain(plan.vertex, info, settings, services, edges, restore)
        head = self._chain.operators[0]
        self._receivers: dict[int, Receiver] = {i: head.receiver(i) for i in sorted({c.input for c in channels})}
        self._source = head if isinstance(head, SourceOperator) else None
        self._makes_watermarks = any(operator.makes_watermarks for operator in self._chain.operators)
        self._paused = False
        self._valve = WatermarkValve([channel.id for channel in channels], head)
        timeout = plan.vertex.buffer_timeout
        self._buffer_timeout = settings.buffer_timeout if timeout is None else timeout
        self._pause = 0 if services.lockstep else _pause(self._buffer_timeout)
        self._gathered = False  # the source was read, which happens once in a pause: its records need not wait again
        self._flush_at: int | None = None
        self._flushed_at = 0
        self._read_at: int | None = None  # the first poll that gave records since the source last had none
        self._poll_at: int | None = None  # the source gathers records until then
        self._snapshots: list[SnapshotInProgress] = []
        self._capturing: SnapshotInProgress | None = None
        self._declines: list[do.Decline] = []
        self._held: set[ChannelId] = set()  # channels whose writers have been asked to stop
        self._final_checkpoint: int | None = None  # the first checkpoint after the last record
        self._committed = not settings.final_checkpoint
        self._stopping: int | None = None  # the savepoint that the job stops with: no record is read after it
        self._finishing: int | None = None  # the operator to finish next, when it holds nothing any more
        self._drained_by: Barrier | None = None  # the savepoint that waits for that
        self._received: Batch | None = None  # the newest, for `sample`
        self.figures: dict[str, dict[str, float]] = {}  # what operators measure, by their ids

    # --- life -------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Open the operators: all state that the subtask starts from is read and verified."""
        self._chain.open()
        self._restored = True

    def open(self) -> None:
        """Commit what the checkpoint holds, and take records from now on; `restore` first, if that was not done.

        On a cluster this is called when every subtask has restored its state: until then damage may be found, and the job
        steps back to an older checkpoint (SPEC R5.11). A subtask that had finished before the checkpoint only sends its
        ends (SPEC R4.5).
        """
        if not self._restored:
            self.restore()
        self._chain.start()
        self.status = Status.RUNNING
        if self._restored_finished:
            self._committed = True
            self._send_end_of_data()

    def close(self) -> None:
        """Close the operators; the first error is raised when all are closed."""
        self._inputs.close()
        self._chain.close()

    def _finish_data(self) -> None:
        """Everything is due (SPEC R4.5): time comes to its end, then the operators emit what they hold."""
        self._finishing = 0
        if self._chain.living:
            self._chain.operators[0].advance(MAX_WATERMARK)
        self._finish_operators()

    def _finish_operators(self) -> None:
        """Operators emit what they hold, the first of the chain first; one that waits for something outside comes later."""
        assert self._finishing is not None
        for operator in self._chain.living[self._finishing :]:
            if operator.busy:
                return
            operator.finish()
            self._finishing += 1
        self._finishing = None
        self._send_end_of_data()
        if self._drained_by is not None:
            barrier, self._drained_by = self._drained_by, None
            self._execute(self._gate.trigger(barrier, self._services.now()))

    def _send_end_of_data(self, drain: bool = True) -> None:
        for writer in self._writers:
            writer.event(FrameKind.END_OF_DATA, flags=DRAIN if drain else 0)
        self._buffers.flush()
        self.data_finished = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        """End the channels and the task when all input ended and the final checkpoint is complete (SPEC R4.5).

        What the driver has yet to commit must be in every checkpoint until then, so the subtask takes part in them.
        """
        if self.status is not Status.RUNNING or not self.data_finished or self._open_channels or not self._committed:
            return
        if any(operator.awaits_commit for operator in self._chain.living):
            return
        for writer in self._writers:
            writer.event(FrameKind.END_OF_PARTITION)
        end_task(self._buffers, self._number, self._next_width)
        self.status = Status.FINISHED

    @property
    def is_source(self) -> bool:
        """Whether its head is a source: checkpoints start here."""
        return self._source is not None

    @property
    def backlog(self) -> bool:
        """Whether its source processes a backlog."""
        return self._source is not None and not self.data_finished and self._source.reader.backlog

    @property
    def corrupt_records(self) -> int:
        return 0 if self._source is None else self._source.reader.corrupt

    def user_metrics(self) -> dict[str, float]:
        """The metrics of the users' functions; another thread may ask for them."""
        return self._chain.user_metrics()

    @property
    def late_records(self) -> int:
        return sum(operator.late_records for operator in self._chain.operators)

    @property
    def alignment(self) -> WatermarkAlignment | None:
        """Of a source that is aligned with others."""
        return None if self._source is None else self._source.alignment

    @property
    def aligned_watermark(self) -> int | None:
        """What is aligned; None while nothing is to be waited for."""
        assert self._source is not None
        return None if self.data_finished or self._source.idle else self._source.watermark

    def pause(self, paused: bool) -> None:
        """Records must not be read for now, or may be again."""
        self._paused = paused
        self._pause_clocks()

    def _pause_clocks(self) -> None:
        """While no record can come, because the subtask must not read or all channels wait for a barrier, nothing is idle."""
        if not self._makes_watermarks:
            return
        channels = self._inputs.channels.values()
        paused = self._paused or (bool(channels) and all(channel.blocked for channel in channels))
        for operator in self._chain.living:
            operator.pause(paused)

    def now(self) -> int:
        return self._services.now()

    @property
    def watermark(self) -> int | None:
        """The event-time clock behind its last operator, which may make its own watermarks; None before the first."""
        clock = self._chain.operators[-1].watermark
        return None if clock == MIN_WATERMARK else clock

    @property
    def wants_split(self) -> bool:
        """Whether its source requests a split."""
        running = self.status is Status.RUNNING and not self.data_finished
        return running and self._source is not None and self._source.wants_split

    def add_splits(self, splits: list[Any], no_more: bool) -> None:
        if self._source is not None and not self.data_finished:
            self._source.add_splits(splits, no_more)

    @property
    def operators(self) -> list[Operator]:
        return self._chain.operators

    def all_input_ended(self) -> bool:
        """Whether every task of the level before has sent its physical end."""
        return self._inputs.ends.all

    # --- input ------------------------------------------------------------------------------------------------------

    @property
    def bytes_in(self) -> int:
        return self._inputs.bytes_read

    @property
    def queued_bytes(self) -> int:
        return self._inputs.queued_bytes

    @property
    def processed_bytes(self) -> int:
        """Bytes of input that were processed; of a batch that is processed in slices, the share of its records."""
        done = self._inputs.bytes_read - self._inputs.queued_bytes
        if self._batch is None:
            return done
        _, frame, batch = self._batch
        return done - len(frame.body) * (len(batch) - self._at) // len(batch)

    @property
    def spilled_bytes(self) -> int:
        """Bytes of blocked channels that wait on disk."""
        return self._inputs.bytes_on_disk

    @property
    def needs_reading(self) -> bool:
        """Whether to read although the queues are full, because the barrier that alignment waits for has not been read."""
        return self._gate.needs_reading

    def receive(self, row: bytes | memoryview) -> None:
        """Queue the frames of a row."""
        now = self._services.now()
        for channel, frame in self._inputs.read(row):
            if frame.kind == FrameKind.BARRIER:
                self._execute(self._gate.on_barrier_read(channel.id, Barrier.decode(frame.body), now))
            elif frame.kind == FrameKind.CANCEL_MARKER:
                self._execute(self._gate.on_cancel_marker_read(channel.id, _checkpoint_id(frame), now))
            elif frame.kind == FrameKind.END_OF_PARTITION:
                self._execute(self._gate.on_end_of_partition_read(channel.id, now))
        if self._inputs.has_backlog and self._inputs.blocked_bytes > self._settings.alignment_limit:
            self._execute(self._gate.on_limit_exceeded())

    def has_work(self) -> bool:
        """Whether `step` can do something now."""
        return self.has_events() or self._reads()

    def _reads(self) -> bool:
        """Whether its source may be polled now."""
        if not self._may_read():
            return False
        # A clock that was set back must not make the source wait.
        return self._poll_at is None or not 0 < self._poll_at - self._services.now() <= self._pause

    def _may_read(self) -> bool:
        may_read = self._source is not None and self.status is Status.RUNNING
        return may_read and not self.data_finished and self._stopping is None and not self._waits()

    def has_events(self) -> bool:
        """Whether queued frames can be processed."""
        if self.status is not Status.RUNNING or self._waits():
            return False
        return self._batch is not None or bool(self._inputs)

    def _waits(self) -> bool:
        """Whether an operator has to emit something first."""
        return self._timers_fire() and (self._finishing is not None or self._chain.full)

    def step(self, max_records: int) -> int:
        """Process at most `max_records` records, or one event; returns the number of records."""
        done = self._step(max_records)
        if done:
            self._flush_if_due()
        return done

    def _step(self, max_records: int) -> int:
        if self._batch is not None and not self._batch[0].blocked:
            return self._slice(max_records)
        reached = self._inputs.next()
        if reached is not None:
            channel, frame = reached
            if frame.kind in DATA:
                self._batch, self._at = (channel, frame, decode(frame, channel.type)), skipped(frame)
                self._gate.on_data(channel.id, len(frame.body))
                return self._slice(max_records)
            self._event(channel, frame)
            return 0
        return self._poll(max_records) if self._reads() else 0

    def _slice(self, max_records: int) -> int:
        assert self._batch is not None
        channel, _, batch = self._batch
        part = batch.slice(self._at, max_records)
        self._at += len(part)
        if self._at >= len(batch):
            self._batch = None
        self.records_in += len(part)
        self._received = part.in_one_form()
        self._receivers[channel.input](part)
        return len(part)

    def _poll(self, max_records: int) -> int:
        assert self._source is not None
        now = self._services.now()
        count = self._source.poll(max_records, join=self._pause > 0)
        self.records_in += count
        self._poll_at = None
        if count:
            self._gathered = True
            self._read_at = now if self._read_at is None else self._read_at
        if self._source.drained and self._read_at is not None and self._pause:
            # At the same times in all subtasks: the second row that a reader gets at once finds its code in the CPU's caches.
            self._poll_at, self._read_at = (self._read_at // self._pause + 1) * self._pause, None
        if self._source.finished:
            self._finish_data()
        return count

    def _event(self, channel: Channel, frame: Waiting) -> None:
        now = self._services.now()
        if frame.kind == FrameKind.BARRIER:
            self._execute(self._gate.on_barrier(channel.id, Barrier.decode(frame.body), now))
        elif frame.kind == FrameKind.CANCEL_MARKER:
            self._execute(self._gate.on_cancel_marker(channel.id, _checkpoint_id(frame), now))
        elif frame.kind == FrameKind.WATERMARK:
            self._watermark(channel.id, frame)
        elif frame.kind == FrameKind.END_OF_DATA:
            self._open_data -= 1
            if self.data_finished or not frame.flags & DRAIN:
                return
            if self._open_data == 0:
                self._finish_data()
            else:
                self._valve.on_end(channel.id)
        elif frame.kind == FrameKind.END_OF_PARTITION:
            self._execute(self._gate.on_end_of_partition(channel.id, now))
            if not channel.restored:
                self._open_channels -= 1
                self._end_if_done()
        else:
            raise IllegalState(f"an unknown event {frame.kind} on channel {channel.edge}/{channel.writer}")

    def _watermark(self, channel: ChannelId, frame: Waiting) -> None:
        if not self._timers_fire():
            return
        if len(frame.body):
            self._valve.on_watermark(channel, int.from_bytes(frame.body, "little", signed=True))
        else:
            self._valve.on_status(channel, bool(frame.flags & IDLE))
        self._flush_if_due()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def trigger(self, barrier: Barrier) -> None:
        """The coordinator starts a checkpoint here: this is a source, or all its writers have ended."""
        if self._source is not None:
            self._source.check()
        if self.status is Status.RUNNING:
            if barrier.options.drain and not self.data_finished:
                if self._finishing is None:
                    self._finish_data()  # what the operators emit at the end goes before the barrier (SPEC R8.3)
                if self._finishing is not None:
                    self._drained_by = barrier
                    return
            self._execute(self._gate.trigger(barrier, self._services.now()))
        elif self.status is Status.CREATED:
            self._execute(self._gate.not_ready(barrier.id))

    def announce(self, barrier: Barrier) -> None:
        """A checkpoint is unaligned, or its aligned timeout has passed."""
        if self.status is Status.RUNNING:
            self._execute(self._gate.on_announced(barrier, self._services.now()))

    def notify_complete(self, checkpoint_id: int, commits: Commits = NO_COMMITS) -> None:
        """A checkpoint is complete; `commits` has its number in the job log."""
        for operator in self._chain.living:
            operator.notify_complete(checkpoint_id, commits)
        if self._stopping == checkpoint_id:
            self._committed = True
            if not self.data_finished:
                self._send_end_of_data(drain=False)  # operators do not finish: the job will be resumed
        elif self._final_checkpoint is not None and checkpoint_id >= self._final_checkpoint:
            self._committed = True
        self._end_if_done()

    def epoch_committed(self, operator_id: str, checkpoint_id: int) -> None:
        """The driver has committed what an operator prepared, up to a checkpoint."""
        for operator in self._chain.living:
            if operator.operator.id == operator_id:
                operator.epoch_committed(checkpoint_id)
        self._end_if_done()

    def notify_aborted(self, checkpoint_id: int) -> None:
        if self._drained_by is not None and self._drained_by.id == checkpoint_id:
            self._drained_by = None
        if self._stopping == checkpoint_id:  # the job continues
            self._stopping = None
            self._committed = not self._settings.final_checkpoint
        self._drop(checkpoint_id)
        self._execute(self._gate.on_aborted(checkpoint_id))
        for operator in self._chain.living:
            operator.notify_aborted(checkpoint_id)

    def take_snapshots(self) -> list[SnapshotInProgress]:
        """Snapshots whose synchronous part is done."""
        taken, self._snapshots = self._snapshots, []
        return taken

    def take_holds(self) -> list[HoldWriter]:
        """Writers to stop, because the rows after their barrier fill the disk, and writers that may continue."""
        if not self._held and not self._inputs.has_backlog:
            return []
        full = {one for one, size in self._inputs.spilled_bytes().items() if size > self._settings.alignment_soft}
        over = {one for one in self._held if not self._inputs.channels[one].blocked}
        changes = [(one, True) for one in sorted(full - self._held)] + [(one, False) for one in sorted(over)]
        self._held = (self._held | full) - over
        return [HoldWriter(edge, writer, hold) for (edge, writer), hold in changes]

    def take_declines(self) -> list[do.Decline]:
        taken, self._declines = self._declines, []
        return taken

    def _execute(self, instructions: Iterable[do.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.Block(channel):
                    self._inputs.block(channel)  # type: ignore[arg-type]
                    self._pause_clocks()
                case do.Unblock(channels):
                    self._inputs.unblock(channels)  # type: ignore[arg-type]
                    self._pause_clocks()
                case do.TakeSnapshot():
                    self._snapshot(instruction)
                case do.StartCapture(checkpoint_id, channels):
                    current = None if self._batch is None else (*self._batch[:2], self._at)
                    self._inputs.start_capture(checkpoint_id, channels, current)  # type: ignore[arg-type]
                case do.StopCapture(checkpoint_id, channels):
                    self._inputs.stop_capture(checkpoint_id, channels)  # type: ignore[arg-type]
                case do.CaptureComplete(checkpoint_id, metrics):
                    assert self._capturing is not None
                    assert self._capturing.barrier.id == checkpoint_id
                    self._capturing.capture_complete(self._inputs.end_capture(checkpoint_id), metrics)
                    self._capturing = None
                case do.Decline(checkpoint_id):
                    self._drop(checkpoint_id)
                    self._declines.append(instruction)
                case do.SendCancelMarker(checkpoint_id):
                    for writer in self._writers:
                        writer.event(FrameKind.CANCEL_MARKER, checkpoint_id.to_bytes(8, "little"), close=True)

    def _snapshot(self, instruction: do.TakeSnapshot) -> None:
        barrier = instruction.barrier
        kind = _kind(barrier)
        started = self._services.now()
        operators = self._chain.snapshot(barrier.id, barrier.timestamp, kind, lambda: self._send_barrier(barrier))
        if barrier.options.type is SnapshotType.SYNC_SAVEPOINT:
            self._stopping, self._committed = barrier.id, False
        elif self.data_finished and self._final_checkpoint is None and not barrier.options.type.is_savepoint:
            self._final_checkpoint = barrier.id
        progress = SnapshotInProgress(
            barrier, operators, instruction.metrics, self.data_finished, self._restored_finished
        )
        progress.started, progress.sync_ms = started, self._services.now() - started
        progress.capturing = instruction.unaligned
        if instruction.unaligned:
            self._capturing = progress
        self._snapshots.append(progress)

    def _send_barrier(self, barrier: Barrier) -> None:
        for writer in self._writers:
            writer.event(FrameKind.BARRIER, barrier.encode(), close=True)
        self._flush_at = None

    def _drop(self, checkpoint_id: int) -> None:
        """Release what is held for an aborted checkpoint."""
        self._inputs.end_capture(checkpoint_id)
        if self._capturing is not None and self._capturing.barrier.id == checkpoint_id:
            self._capturing.cancel()
            self._capturing = None

    # --- output -----------------------------------------------------------------------------------------------------

    @property
    def records_out(self) -> int:
        return sum(writer.records_out for writer in self._writers)

    @property
    def bytes_out(self) -> int:
        return self._buffers.bytes_out

    def take(self) -> list[tuple[int, list[Piece]]]:
        """Rows that are ready to leave: (task of the next level, pieces)."""
        return self._buffers.take()

    def flush(self) -> None:
        """Send all records that wait for their buffer to fill."""
        for writer in self._writers:
            writer.flush()
        self._buffers.flush()
        self._flush_at, self._flushed_at, self._gathered = None, self._services.now(), False

    def settle(self) -> None:
        """There is nothing to do now: send the records that wait, at once if none has left for a while.

        A row costs a millisecond of CPU on its way, with one record or with a thousand: a stream of single records is
        gathered.
        """
        waits = any(writer.dirty for writer in self._writers) or self._buffers.has_open
        if waits and self._buffer_timeout >= 0:
            due = self._flushed_at + self._pause
            if self._gathered or not self._flushed_at <= self._services.now() < due:  # later, or the clock was set back
                self.flush()
            else:
                self._flush_at = due if self._flush_at is None else min(due, self._flush_at)

    def _flush_if_due(self) -> None:
        if self._buffer_timeout == 0:
            self.flush()
        elif self._buffer_timeout > 0 and self._writers:
            now = self._services.now()
            if self._flush_at is None:
                self._flush_at = now + self._buffer_timeout
            elif now >= self._flush_at:
                self.flush()

    def upkeep(self) -> None:
        """Background work such as dropping expired state; called about once a second."""
        if self.status is Status.RUNNING:
            for operator in self._chain.living:
                operator.upkeep()
            figures = {operator.operator.id: operator.figures() for operator in self._chain.living}
            self.figures = {id: found for id, found in figures.items() if found}

    def sample(self, count: int) -> list[str]:
        """The records that were sent last, as text; of a vertex that sends nothing, those that it received.

        Called by any thread: batches do not change once they are made.
        """
        newest = [writer.newest for writer in self._writers] if self._writers else [self._received]
        rows: list[Any] = []
        for batch in newest:
            if batch is not None:
                with suppress(TypeMismatch):  # the subtask itself is about to report it
                    rows += batch.slice(max(0, len(batch) - count), count).rows()
        return [short(row, _SAMPLE_LENGTH) for row in rows[-count:]]

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """The next time (ms) at which `on_time` has work."""
        if self.status is not Status.RUNNING:
            return None
        operators = self._chain.living if self._timers_fire() else ()
        if operators and self._finishing is not None and not operators[self._finishing].busy:
            return self._services.now()
        times = [time for operator in operators if (time := operator.next_deadline()) is not None]
        if self._flush_at is not None:
            times.append(self._flush_at)
        if self._source is not None and self._may_read():
            ready = self._source.ready_at()
            if self._poll_at is not None:
                times.append(max(self._poll_at, ready or 0))
            elif ready is not None:
                times.append(ready)
        if (align := self._gate.next_deadline()) is not None:
            times.append(align)
        return min(times, default=None)

    def _timers_fire(self) -> bool:
        """Not after the last record, nor after the savepoint that the job stops with: what they emit would be lost."""
        return self._stopping is None and not self.data_finished

    def on_time(self, now: int) -> None:
        """Fire timers, flush buffers that are due, end alignments that took too long."""
        if self.status is not Status.RUNNING:
            return
        if self._timers_fire() and self._chain.on_time(now):
            self._flush_if_due()
        if self._finishing is not None and self._timers_fire():
            self._finish_operators()
        if self._flush_at is not None and now >= self._flush_at:
            self.flush()
        align = self._gate.next_deadline()
        if align is not None and align <= now:
            self._execute(self._gate.on_time(now))


def _pause(buffer_timeout: int) -> int:
    """The time (ms) for which records are gathered: well below the buffer timeout, so that latency is too."""
    return _LONGEST_PAUSE if buffer_timeout < 0 else min(_LONGEST_PAUSE, buffer_timeout * 9 // 20)


def _kind(barrier: Barrier) -> SnapshotKind:
    options = barrier.options
    if not options.type.is_savepoint:
        return SnapshotKind.FULL if options.type is SnapshotType.FULL_CHECKPOINT else SnapshotKind.CHECKPOINT
    return SnapshotKind.CANONICAL if options.format is SavepointFormat.CANONICAL else SnapshotKind.SAVEPOINT


def _channels(edge: InputEdge, index: int) -> list[Channel]:
    forced = edge.ship in _FORCED_ALIGNED
    return [Channel(edge.id, writer, edge.input, edge.type, forced) for writer in edge.writers_of[index]]


def _gate(channels: list[Channel], restored: list[Channel], settings: Settings) -> InputGate:
    ids = [channel.id for channel in (*channels, *restored)]
    rest = [channel.id for channel in restored]
    if not settings.exactly_once:
        return BarrierTracker(ids, restored=rest, after_finish=settings.checkpoints_after_finish)
    forced = [channel.id for channel in channels if channel.forced_aligned]
    return BarrierHandler(
        ids,
        forced_aligned=forced,
        restored=rest,
        after_finish=settings.checkpoints_after_finish,
        deadlines=False,  # the driver announces the end of an alignment: clocks of hosts differ
    )


def _checkpoint_id(frame: Waiting) -> int:
    return int.from_bytes(frame.body, "little")
