"""A relay forwards rows to the next level, for edges that skip a level. Runs in the worker, in place of a subtask."""

from __future__ import annotations

from headrace.control.messages import Metrics
from headrace.job.status import Status
from headrace.records.frames import FrameKind, read_frames
from headrace.worker.inputs import Ends
from headrace.worker.output import Piece, RowBuffers, TaskPlace, end_task


class Relay:
    """Forwards rows unchanged and in order; it has no operators and takes no part in checkpoints."""

    def __init__(self, destination: int, place: TaskPlace, buffer_size: int) -> None:
        self.status = Status.CREATED
        self.bytes_in = self.queued_bytes = 0
        self._destination = destination
        self._place = place
        self._ends = Ends(place.tasks_before)
        self._buffers = RowBuffers(buffer_size)

    @property
    def processed_bytes(self) -> int:
        return self.bytes_in

    @property
    def bytes_out(self) -> int:
        return self._buffers.bytes_out

    def metrics(self) -> Metrics:
        """Return the counters of its work; rows are not opened, so it knows no records."""
        return Metrics(bytes_in=self.bytes_in, bytes_out=self.bytes_out)

    def restore(self) -> None:
        """A relay has no state."""

    def open(self) -> None:
        self.status = Status.RUNNING
        self._finish_if_ended()

    def receive(self, row: bytes | memoryview) -> None:
        first = next(read_frames(row))
        if first.kind == FrameKind.END:  # ends come in rows of their own
            self._ends.add(first.writer)
            self._finish_if_ended()
        else:
            self.bytes_in += len(row)
            self._buffers.add(self._destination, [row], close=True)

    def _finish_if_ended(self) -> None:
        if self._ends.all and self.status is Status.RUNNING:
            end_task(self._buffers, self._place)
            self.status = Status.FINISHED

    def all_input_ended(self) -> bool:
        return self._ends.all

    def has_work(self) -> bool:
        return False

    def has_events(self) -> bool:
        return False

    def step(self, max_records: int) -> int:
        return 0

    def flush_when_idle(self) -> None:
        self._buffers.flush()

    def take(self) -> list[tuple[int, list[Piece]]]:
        return self._buffers.take()

    def next_deadline(self) -> int | None:
        return None

    def on_time(self, now: int) -> None:
        """A relay has no timers."""

    def close(self) -> None:
        """A relay holds nothing."""
