"""One subtask: the operators of a vertex, their inputs and outputs, as an object that is stepped.

It has no thread and no clock. The Spark shell, the local runtime and the simulator all drive the same object, each in
one thread: `receive` rows, `step` while there is work, `take` rows that are ready, `on_time` when `next_deadline` is due.
For checkpoints, `trigger`, `announce`, `notify_complete` and `notify_aborted` are called between two steps;
`take_snapshots` and `take_declines` return what is to be written and reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from headrace.api.watermarks import MAX_WATERMARK, MIN_WATERMARK
from headrace.checkpoint.barriers import instructions as do
from headrace.checkpoint.barriers.alignment import BarrierHandler
from headrace.checkpoint.barriers.gate import InputGate
from headrace.checkpoint.barriers.tracker import BarrierTracker
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.types import Barrier, SavepointFormat, SnapshotType
from headrace.control.messages import Metrics, PauseWriter
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
from headrace.worker.inputs import DATA, Channel, ChannelId, Inputs
from headrace.worker.operators.base import Operator, Receiver, SubtaskServices
from headrace.worker.operators.sources import SourceOperator
from headrace.worker.output import Piece, TaskPlace
from headrace.worker.output_pacing import OutputPacing
from headrace.worker.snapshots.restore import SubtaskRestore
from headrace.worker.snapshots.taken_snapshots import SnapshotInProgress, TakenSnapshots
from headrace.worker.subtask_output import SubtaskOutput
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
        timeout = settings.buffer_timeout if plan.vertex.buffer_timeout is None else plan.vertex.buffer_timeout
        self._pacing = OutputPacing(timeout, gathers=not services.lockstep)
        self._output = SubtaskOutput(plan, info, settings.buffer_size, self._pacing, services.now)
        self._chain = OperatorChain(plan.vertex, info, settings, services, self._output.edges, restore)
        head = self._chain.operators[0]
        self._receivers: dict[int, Receiver] = {i: head.receiver(i) for i in sorted({c.input for c in channels})}
        self.source = head if isinstance(head, SourceOperator) else None  # checkpoints start there
        self._makes_watermarks = any(operator.makes_watermarks for operator in self._chain.operators)
        self._paused = False
        self._valve = WatermarkValve([channel.id for channel in channels], head)
        self._snapshots = TakenSnapshots()
        self._received: Batch | None = None  # the newest, for `sample`
        self._operator_metrics: dict[str, dict[str, float]] = {}  # by operator: what only it measures

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
        self._output.end_data(drain)
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
        self._output.end(self._place)
        self.status = Status.FINISHED

    @property
    def data_finished(self) -> bool:
        """True if no record follows: the end of the data was sent."""
        return self._end.data_finished

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
    def wants_split(self) -> bool:
        """Return True if its source requests a split."""
        running = self.status is Status.RUNNING and not self._end.data_finished
        return running and self.source is not None and self.source.wants_split

    def add_splits(self, splits: list[Any], no_more: bool) -> None:
        if self.source is not None and not self._end.data_finished:
            self.source.add_splits(splits, no_more)

    @property
    def operators(self) -> list[Operator]:
        return self._chain.operators

    def all_input_ended(self) -> bool:
        """Return True if every task of the level before has sent its physical end."""
        return self._inputs.ends.all

    # --- input ------------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        return self._inputs.queued_bytes

    @property
    def processed_bytes(self) -> int:
        return self._inputs.processed_bytes

    @property
    def needs_reading(self) -> bool:
        """Return True if reading must go on with full queues: the barrier that alignment waits for is not read yet."""
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
        """Return True if `step` can do something now."""
        return self.has_events() or self._reads()

    def _reads(self) -> bool:
        """Return True if its source may be polled now."""
        return self._may_read() and (self._pacing.poll_at is None or self._pacing.may_poll(self._services.now()))

    def _may_read(self) -> bool:
        may_read = self.source is not None and self._end.reads and self.status is Status.RUNNING
        return may_read and not self._chain.full

    def has_events(self) -> bool:
        """Return True if queued frames can be processed."""
        if self.status is not Status.RUNNING or self._waits():
            return False
        return bool(self._inputs)

    def _waits(self) -> bool:
        """Return True if an operator has to emit something first."""
        return self._end.finishing or (self._end.emits and self._chain.full)

    def step(self, max_records: int) -> int:
        """Process at most `max_records` records, or one event; returns the number of records."""
        done = self._step(max_records)
        if done:
            self._output.flush_after_step()
        return done

    def _step(self, max_records: int) -> int:
        if self._inputs.in_batch:
            return self._slice(max_records)
        reached = self._inputs.next()
        if reached is not None:
            channel, frame = reached
            if frame.kind in DATA:
                self._inputs.begin(channel, frame)
                self._gate.on_data(channel.id, len(frame.body))
                return self._slice(max_records)
            self._event(channel, frame)
            return 0
        return self._poll(max_records) if self._reads() else 0

    def _slice(self, max_records: int) -> int:
        channel, part = self._inputs.slice(max_records)
        self.records_in += len(part)
        self._received = part.in_one_form()
        self._receivers[channel.input](part)
        return len(part)

    def _poll(self, max_records: int) -> int:
        assert self.source is not None
        now = self._services.now()
        count = self.source.poll(max_records, join=self._pacing.joins_polls)
        self.records_in += count
        self._pacing.polled(now, count, self.source.drained)
        if self.source.finished:
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
        self._output.flush_after_step()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def trigger(self, barrier: Barrier) -> None:
        """The coordinator starts a checkpoint here: this is a source, or all its writers have ended."""
        if self.source is not None:
            self.source.check()
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
        changes = self._inputs.take_pauses(self._settings.alignment_soft)
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
                    self._inputs.start_capture(checkpoint_id, channels)  # type: ignore[arg-type]
                case do.StopCapture(checkpoint_id, channels):
                    self._inputs.stop_capture(checkpoint_id, channels)  # type: ignore[arg-type]
                case do.CaptureComplete(checkpoint_id, metrics):
                    captured = self._inputs.end_capture(checkpoint_id)
                    self._snapshots.capture_complete(checkpoint_id, captured, metrics)
                case do.Decline(checkpoint_id):
                    self._inputs.end_capture(checkpoint_id)
                    self._snapshots.decline(instruction)
                case do.SendCancelMarker(checkpoint_id):
                    self._output.send_cancel_marker(checkpoint_id)

    def _snapshot(self, instruction: do.TakeSnapshot) -> None:
        barrier = instruction.barrier
        kind = _kind(barrier)
        started = self._services.now()
        operators = self._chain.snapshot(
            barrier.id, barrier.timestamp, kind, lambda: self._output.send_barrier(barrier)
        )
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

    # --- output -----------------------------------------------------------------------------------------------------

    @property
    def bytes_out(self) -> int:
        return self._output.bytes_out

    def take(self) -> list[tuple[int, list[Piece]]]:
        """Return rows that are ready to leave: (task of the next level, pieces)."""
        return self._output.take()

    def flush(self) -> None:
        """Send all records that wait for their buffer to fill."""
        self._output.flush()

    def flush_when_idle(self) -> None:
        """Send the records that wait, because there is nothing to do; at once if none has left for a while."""
        self._output.flush_when_idle()

    # --- metrics ----------------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """Return the counters of its work; called by any thread."""
        clock = self._chain.operators[-1].watermark  # behind the last operator, which may make its own watermarks
        return Metrics(
            records_in=self.records_in,
            records_out=self._output.records_out,
            bytes_in=self._inputs.bytes_read,
            bytes_out=self._output.bytes_out,
            queued_bytes=self._inputs.queued_bytes,
            corrupt_records=0 if self.source is None else self.source.reader.corrupt,
            late_records=sum(operator.late_records for operator in self._chain.operators),
            watermark=None if clock == MIN_WATERMARK else clock,
            spilled_bytes=self._inputs.bytes_on_disk,
            operators=self._operator_metrics,
            user=self._chain.user_metrics(),
        )

    def upkeep(self) -> None:
        """Background work such as dropping expired state; called about once a second."""
        if self.status is Status.RUNNING:
            for operator in self._chain.living:
                operator.upkeep()
            measured = {operator.operator.id: operator.own_metrics() for operator in self._chain.living}
            self._operator_metrics = {id: found for id, found in measured.items() if found}

    def sample(self, count: int) -> list[str]:
        """Return the records that were sent last, as text; of a vertex that sends nothing, those that it received.

        Called by any thread: batches do not change once they are made.
        """
        return _texts(self._output.newest or [self._received], count)

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
        if self.source is not None and self._may_read():
            poll_at = self._pacing.next_poll(self.source.ready_at())
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
            self._output.flush_after_step()
        if self._end.finishing:
            self._finish_operators()
        self._output.on_time(now)
        align = self._gate.next_deadline()
        if align is not None and align <= now:
            self._execute(self._gate.on_time(now))


def _texts(batches: list[Batch | None], count: int) -> list[str]:
    rows: list[Any] = []
    for batch in batches:
        if batch is not None:
            with suppress(TypeMismatch):  # the subtask itself is about to report it
                rows += batch.slice(max(0, len(batch) - count), count).rows()
    return [short(row, _SAMPLE_LENGTH) for row in rows[-count:]]


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
