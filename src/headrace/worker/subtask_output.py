"""The output side of a subtask: all edges that it writes to, and the rows that are ready to leave."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from headrace.checkpoint.types import Barrier
from headrace.graph.plan import TaskInfo, VertexPlan
from headrace.records.batch import Batch
from headrace.records.frames import DRAIN, FrameKind
from headrace.worker.output import EdgeWriter, Piece, RowBuffers, TaskPlace, end_task
from headrace.worker.output_pacing import OutputPacing


class SubtaskOutput:
    """The writers of a subtask's edges; `pacing` decides when records that wait for their buffer to fill leave earlier."""

    def __init__(
        self, plan: VertexPlan, info: TaskInfo, buffer_size: int, pacing: OutputPacing, clock: Callable[[], int]
    ) -> None:
        self._buffers = RowBuffers(buffer_size)
        random = Random(f"{info.job_id}/{plan.vertex.id}/{info.subtask}")
        self._writers = [
            EdgeWriter(out, info.subtask, plan.vertex.parallelism, self._buffers, random) for out in plan.outputs
        ]
        self._pacing, self._clock = pacing, clock

    @property
    def edges(self) -> dict[int, EdgeWriter]:
        """The writer of each edge, by the edge's id."""
        return {writer.edge.id: writer for writer in self._writers}

    @property
    def records_out(self) -> int:
        return sum(writer.records_out for writer in self._writers)

    @property
    def bytes_out(self) -> int:
        return self._buffers.bytes_out

    @property
    def newest(self) -> list[Batch | None]:
        """The batch that was sent last on each edge."""
        return [writer.newest for writer in self._writers]

    def take(self) -> list[tuple[int, list[Piece]]]:
        """Return rows that are ready to leave: (task of the next level, pieces)."""
        return self._buffers.take()

    # --- records ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send all records that wait for their buffer to fill."""
        for writer in self._writers:
            writer.flush()
        self._buffers.flush()
        self._pacing.flushed(self._clock())

    def flush_when_idle(self) -> None:
        """Send the records that wait, because there is nothing to do; at once if none has left for a while."""
        waits = any(writer.dirty for writer in self._writers) or self._buffers.has_open
        if waits and self._pacing.flushes_when_idle(self._clock()):
            self.flush()

    def flush_after_step(self) -> None:
        """Send the records that wait if the buffer timeout has passed; otherwise it begins now."""
        if self._writers and self._pacing.flushes_after_step(self._clock()):
            self.flush()

    def on_time(self, now: int) -> None:
        """Send the records whose deadline has passed."""
        if self._pacing.is_flush_due(now):
            self.flush()

    # --- events -----------------------------------------------------------------------------------------------------

    def send_barrier(self, barrier: Barrier) -> None:
        """Send a barrier behind all records."""
        self._send(FrameKind.BARRIER, barrier.encode(), close=True)
        self._pacing.barrier_sent()

    def send_cancel_marker(self, checkpoint_id: int) -> None:
        """Tell readers that no barrier of a checkpoint follows."""
        self._send(FrameKind.CANCEL_MARKER, checkpoint_id.to_bytes(8, "little"), close=True)

    def end_data(self, drain: bool) -> None:
        """Send the end of the data; without `drain` readers do not finish their operators, as the job will be resumed."""
        self._send(FrameKind.END_OF_DATA, flags=DRAIN if drain else 0)
        self._buffers.flush()

    def end(self, place: TaskPlace) -> None:
        """End all channels, then the task."""
        self._send(FrameKind.END_OF_PARTITION)
        end_task(self._buffers, place)

    def _send(self, kind: FrameKind, body: bytes = b"", flags: int = 0, close: bool = False) -> None:
        for writer in self._writers:
            writer.event(kind, body, flags, close)
