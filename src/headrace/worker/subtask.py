"""One subtask: the operators of a vertex, their inputs and outputs, as an object that is stepped.

It has no thread and no clock. The Spark shell, the local runtime and the simulator all drive the same object, each in
one thread: `receive` rows, `step` while there is work, `take` rows that are ready, `on_time` when `next_deadline` is due.
For checkpoints, `trigger`, `announce`, `notify_complete` and `notify_aborted` are called between two steps;
`take_snapshots` and `take_declines` return what is to be written and reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

from headrace.api.watermarks import MAX_WATERMARK, MIN_WATERMARK, WatermarkAlignment
from headrace.checkpoint.barriers import instructions as do
from headrace.checkpoint.barriers.alignment import BarrierHandler
from headrace.checkpoint.barriers.gate import InputGate
from headrace.checkpoint.barriers.tracker import BarrierTracker
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.types import Barrier, SavepointFormat, SnapshotType
from headrace.control.messages import PauseWriter
from headrace.errors import IllegalState
from headrace.graph.plan import InputEdge, Settings, TaskInfo, VertexPlan
from headrace.job.status import Status
from headrace.records.batch import Batch
from headrace.records.frames import DRAIN, IDLE, FrameKind
from headrace.records.types import TypeMismatch
from headrace.state.backend import SnapshotKind
from headrace.worker.backlog import Waiting
from headrace.worker.chain import OperatorChain
from headrace.worker.end_of_input import EndOfInput
from headrace.worker.failures import short
from headrace.worker.inputs import DATA, Channel, ChannelId, Inputs, decode, skipped
from headrace.worker.operators.base import Operator, Receiver, SubtaskServices
from headrace.worker.operators.sources import SourceOperator
from headrace.worker.output import EdgeWriter, Piece, RowBuffers, TaskPlace, end_task
from headrace.worker.output_pacing import OutputPacing
from headrace.worker.snapshots.restore import SubtaskRestore
from headrace.worker.snapshots.taken_snapshots import SnapshotInProgress, TakenSnapshots
from headrace.worker.watermarks import WatermarkValve

_FORCED_ALIGNED = ("forward", "rescale", "broadcast")
_SAMPLE_LENGTH = 500  # characters of a record that are shown


class Subtask:
    """The operators of a vertex in one subtask."""

    def __init__(
        self,
        plan: VertexPlan,
        info: TaskInfo,
        settings: Settings,
        services: SubtaskServices,
        place: TaskPlace,
        restore: SubtaskRestore | None = None,
    ) -> None:
        self.status = Status.CREATED
        self.records_in = 0
        self._settings, self._services, self._place = settings, services, place
        index = info.subtask
        channels = [channel for edge in plan.inputs for channel in _channels(edge, index)]
        self._inputs = Inputs(channels, place.tasks_before, settings.alignment_memory, settings.tmp_dir)
        restored = self._inputs.restore(restore.frames) if restore else []
        self._restored = False  # by `restore`
        self._gate = _gate(channels, restored, settings)
        finished = restore is not None and restore.finished
        self._end = EndOfInput(len(channels), settings.final_checkpoint, finished)
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
        timeout = settings.buffer_timeout if timeout is None else timeout
        self._pacing = OutputPacing(timeout, gathers=not services.lockstep)
        self._snapshots = TakenSnapshots()
        self._paused_writers: set[ChannelId] = set()  # channels whose writers have been asked to stop
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
        if self._end.restored_as_finished:
            self._end.skip_data()
            self._send_end_of_data()

    def close(self) -> None:
        """Close the operators; the first error is raised when all are closed."""
        self._inputs.close()
        self._chain.close()

    def _finish_data(self) -> None:
        """Bring time to its end, then let the operators emit what they hold: the last record was processed (SPEC R4.5)."""
        self._end.begin_finishing()
        if self._chain.living:
            self._chain.operators[0].advance(MAX_WATERMARK)
        self._finish_operators()

    def _finish_operators(self) -> None:
        """Let operators emit what they hold, in the order of the chain; one that waits for its calls is finished later."""
        for operator in self._chain.living[self._end.finished_operators :]:
            if operator.busy:
                return
            operator.finish()
            self._end.operator_finished()
        drain = self._end.finish_data()
        self._send_end_of_data()
        if drain is not None:
            self._execute(self._gate.trigger(drain, self._services.now()))

    def _send_end_of_data(self, drain: bool = True) -> None:
        for writer in self._writers:
            writer.event(FrameKind.END_OF_DATA, flags=DRAIN if drain else 0)
        self._buffers.flush()
        self._end_if_done()

    def _end_if_done(self) -> None:
        """End the channels and the task when all input ended and the final checkpoint is complete (SPEC R4.5).

        Until the driver has committed what the sinks prepared, that must be in every checkpoint: the subtask takes part.
        """
        if not self._end.may_finish or self.status is not Status.RUNNING:
            return
        if any(operator.awaits_commit for operator in self._chain.living):
            return
        self._end.finish()
        for writer in self._writers:
            writer.event(FrameKind.END_OF_PARTITION)
        end_task(self._buffers, self._place)
        self.status = Status.FINISHED

    @property
    def data_finished(self) -> bool:
        """True if no record follows: the end of the data was sent."""
        return self._end.data_finished

    @property
    def is_source(self) -> bool:
        """Whether its head is a source: checkpoints start here."""
        return self._source is not None

    @property
    def backlog(self) -> bool:
        """Whether its source processes a backlog."""
        return self._source is not None and not self._end.data_finished and self._source.reader.backlog

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
        return None if self._end.data_finished or self._source.idle else self._source.watermark

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
        running = self.status is Status.RUNNING and not self._end.data_finished
        return running and self._source is not None and self._source.wants_split

    def add_splits(self, splits: list[Any], no_more: bool) -> None:
        if self._source is not None and not self._end.data_finished:
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
        """Return True if its source may be polled now."""
        return self._may_read() and (self._pacing.poll_at is None or self._pacing.may_poll(self._services.now()))

    def _may_read(self) -> bool:
        may_read = self._source is not None and self._end.reads and self.status is Status.RUNNING
        return may_read and not self._chain.full

    def has_events(self) -> bool:
        """Whether queued frames can be processed."""
        if self.status is not Status.RUNNING or self._waits():
            return False
        return self._batch is not None or bool(self._inputs)

    def _waits(self) -> bool:
        """Return True if an operator has to emit something first."""
        return self._end.finishing or (self._end.emits and self._chain.full)

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
        count = self._source.poll(max_records, join=self._pacing.joins_polls)
        self.records_in += count
        self._pacing.polled(now, count, self._source.drained)
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
            self._end.data_ended()
            if self._end.data_finished or not frame.flags & DRAIN:
                return
            if self._end.all_data_ended:
                self._finish_data()
            else:
                self._valve.on_end(channel.id)
        elif frame.kind == FrameKind.END_OF_PARTITION:
            self._execute(self._gate.on_end_of_partition(channel.id, now))
            if not channel.restored:
                self._end.channel_ended()
                self._end_if_done()
        else:
            raise IllegalState(f"an unknown event {frame.kind} on channel {channel.edge}/{channel.writer}")

    def _watermark(self, channel: ChannelId, frame: Waiting) -> None:
        if not self._end.emits:
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
            if barrier.options.drain and not self._end.data_finished:
                self._end.drain(barrier)  # what the operators emit at the end goes before the barrier (SPEC R8.3)
                if not self._end.finishing:
                    self._finish_data()
            else:
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
        if self._end.completed(checkpoint_id):
            self._send_end_of_data(drain=False)  # operators do not finish: the job will be resumed
        else:
            self._end_if_done()

    def epoch_committed(self, operator_id: str, checkpoint_id: int) -> None:
        """The driver has committed what an operator prepared, up to a checkpoint."""
        for operator in self._chain.living:
            if operator.operator.id == operator_id:
                operator.epoch_committed(checkpoint_id)
        self._end_if_done()

    def notify_aborted(self, checkpoint_id: int) -> None:
        self._end.aborted(checkpoint_id)
        self._inputs.end_capture(checkpoint_id)
        self._snapshots.drop(checkpoint_id)
        self._execute(self._gate.on_aborted(checkpoint_id))
        for operator in self._chain.living:
            operator.notify_aborted(checkpoint_id)
        self._end_if_done()

    def take_snapshots(self) -> list[SnapshotInProgress]:
        """Return the snapshots whose synchronous part is done, each once."""
        return self._snapshots.take()

    def take_pauses(self) -> list[PauseWriter]:
        """Return the writers to pause, because the rows after their barrier fill the disk, and those that may continue."""
        if not self._paused_writers and not self._inputs.has_backlog:
            return []
        full = {one for one, size in self._inputs.spilled_bytes().items() if size > self._settings.alignment_soft}
        over = {one for one in self._paused_writers if not self._inputs.channels[one].blocked}
        changes = [(one, True) for one in sorted(full - self._paused_writers)] + [(one, False) for one in sorted(over)]
        self._paused_writers = (self._paused_writers | full) - over
        return [PauseWriter(edge, writer, paused) for (edge, writer), paused in changes]

    def take_declines(self) -> list[do.Decline]:
        """Return the checkpoints that the subtask has declined, each once."""
        return self._snapshots.take_declines()

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
                    captured = self._inputs.end_capture(checkpoint_id)
                    self._snapshots.capture_complete(checkpoint_id, captured, metrics)
                case do.Decline(checkpoint_id):
                    self._inputs.end_capture(checkpoint_id)
                    self._snapshots.decline(instruction)
                case do.SendCancelMarker(checkpoint_id):
                    for writer in self._writers:
                        writer.event(FrameKind.CANCEL_MARKER, checkpoint_id.to_bytes(8, "little"), close=True)

    def _snapshot(self, instruction: do.TakeSnapshot) -> None:
        barrier = instruction.barrier
        kind = _kind(barrier)
        started = self._services.now()
        operators = self._chain.snapshot(barrier.id, barrier.timestamp, kind, lambda: self._send_barrier(barrier))
        self._end.snapshot_taken(barrier, stops=barrier.options.type is SnapshotType.SYNC_SAVEPOINT)
        self._snapshots.add(
            SnapshotInProgress(
                barrier,
                operators,
                instruction.metrics,
                finished=self._end.data_finished,
                finished_on_restore=self._end.restored_as_finished,
                started=started,
                sync_ms=self._services.now() - started,
                capturing=instruction.unaligned,
            )
        )

    def _send_barrier(self, barrier: Barrier) -> None:
        for writer in self._writers:
            writer.event(FrameKind.BARRIER, barrier.encode(), close=True)
        self._pacing.barrier_sent()

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
        self._pacing.flushed(self._services.now())

    def flush_when_idle(self) -> None:
        """Send the records that wait, because there is nothing to do; at once if none has left for a while."""
        waits = any(writer.dirty for writer in self._writers) or self._buffers.has_open
        if waits and self._pacing.flushes_when_idle(self._services.now()):
            self.flush()

    def _flush_if_due(self) -> None:
        if self._writers and self._pacing.flushes_after_step(self._services.now()):
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
        operators = self._chain.living if self._end.emits else ()
        if self._end.finishing and not operators[self._end.finished_operators].busy:
            return self._services.now()
        times = [time for operator in operators if (time := operator.next_deadline()) is not None]
        if self._pacing.flush_at is not None:
            times.append(self._pacing.flush_at)
        if self._source is not None and self._may_read():
            poll_at = self._pacing.next_poll(self._source.ready_at())
            if poll_at is not None:
                times.append(poll_at)
        if (align := self._gate.next_deadline()) is not None:
            times.append(align)
        return min(times, default=None)

    def on_time(self, now: int) -> None:
        """Fire timers, flush buffers that are due, end alignments that took too long."""
        if self.status is not Status.RUNNING:
            return
        if self._end.emits and self._chain.on_time(now):
            self._flush_if_due()
        if self._end.finishing:
            self._finish_operators()
        if self._pacing.is_flush_due(now):
            self.flush()
        align = self._gate.next_deadline()
        if align is not None and align <= now:
            self._execute(self._gate.on_time(now))


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
