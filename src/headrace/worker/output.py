"""The output side of a subtask: records are partitioned over targets, collected in buffers, and leave as rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.api.functions import callable_of
from headrace.errors import UserCodeError
from headrace.graph.plan import OutputEdge
from headrace.records.batch import Batch
from headrace.records.frames import IDLE, NARROW_TIMES, NARROWED, STAMPED, FrameKind, pack, pickle_rows
from headrace.records.key_groups import owners_of
from headrace.records.narrowing import MIN_ROWS, narrow, narrow_times
from headrace.worker.failures import OperatorFailure
from headrace.worker.keys import KeyReader

Piece = bytes | memoryview
Stamps = np.ndarray[Any, np.dtype[np.int64]]
_MAX_ROW = 4 << 20  # Spark never splits a row: keep them well below what its buffers are made for


class RowBuffers:
    """Rows that are ready to leave, and the open row of every target."""

    def __init__(self, buffer_size: int) -> None:
        self.buffer_size = buffer_size
        self.rows: list[tuple[int, list[Piece]]] = []
        self.bytes_out = 0
        self._open: dict[int, list[Piece]] = {}
        self._size: dict[int, int] = {}

    def add(self, target: int, pieces: list[Piece], close: bool = False) -> None:
        """Append a frame to the open row of a target; `close` ends the row, as does a full buffer."""
        size = sum(map(len, pieces))
        self.bytes_out += size
        row = self._open.setdefault(target, [])
        row += pieces
        self._size[target] = self._size.get(target, 0) + size
        if close or self._size[target] >= self.buffer_size:
            self._close(target)

    @property
    def has_open(self) -> bool:
        return bool(self._open)

    def flush(self) -> None:
        """End every open row."""
        for target in list(self._open):
            self._close(target)

    def _close(self, target: int) -> None:
        self.rows.append((target, self._open.pop(target)))
        self._size[target] = 0

    def take(self) -> list[tuple[int, list[Piece]]]:
        """The rows that are ready, each as the pieces it is made of."""
        rows, self.rows = self.rows, []
        return rows


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The place of a task in its level, and the number of tasks in the levels beside it."""

    index: int
    tasks_before: int
    tasks_after: int


def end_task(buffers: RowBuffers, place: TaskPlace) -> None:
    """Send the END frame of a task to every task of the next level."""
    buffers.flush()
    for target in range(place.tasks_after):
        buffers.add(target, pack(FrameKind.END, 0, place.index), close=True)


class _Builder:
    """Records of one channel that wait for their buffer to fill."""

    __slots__ = ("bytes", "parts")

    def __init__(self) -> None:
        self.parts: list[Batch] = []
        self.bytes = 0.0


class EdgeWriter:
    """Writes one subtask's records of one edge."""

    def __init__(self, out: OutputEdge, writer: int, writers: int, buffers: RowBuffers, random: Random) -> None:
        self.edge = edge = out.edge
        self.records_out = 0
        self.newest: Batch | None = None  # what was sent last
        self._writer = writer
        self._buffers = buffers
        self._channels = list(edge.partitioning.targets(writer, writers, out.readers))
        self._destination = {target: out.first_destination + target for target in self._channels}
        self._builders = {target: _Builder() for target in self._channels}
        self._bytes_per_record = 64.0  # of untyped records; learnt from every pickle
        self.dirty = False  # whether records wait
        self._spread = self._spreader(out.readers, out.reader_max_parallelism, random)

    # --- choosing targets -------------------------------------------------------------------------------------------

    def _spreader(self, readers: int, max_parallelism: int, random: Random) -> Callable[[Batch], None]:
        kind, key = self.edge.partitioning.kind, self.edge.partitioning.key
        if kind == "broadcast":
            return self._to_all
        if kind == "global" or len(self._channels) == 1:
            only = 0 if kind == "global" else self._channels[0]
            return lambda batch: self._add(only, batch)
        if kind in ("rebalance", "rescale"):
            # Writers start at different targets, so that few records do not all go to the first one.
            self._next = random.randrange(len(self._channels)) if kind == "rebalance" else 0
            return self._round_robin
        if kind == "shuffle":
            generator = np.random.default_rng(random.randrange(1 << 32))
            return lambda batch: self._split(batch, generator.integers(0, readers, len(batch)))
        assert key is not None
        keys = KeyReader(key, max_parallelism)
        if kind == "hash":
            return partial(self._by_key, keys, max_parallelism, readers)
        choose = callable_of(self.edge.partitioning.partitioner, "partition", "partition_custom()")
        return lambda batch: self._split(batch, self._custom(choose, keys.keys(batch), readers))

    def _to_all(self, batch: Batch) -> None:
        for target in self._channels:
            self._add(target, batch)

    def _round_robin(self, batch: Batch) -> None:
        """Contiguous parts, so that columns are shared and not copied; the next batch continues at the next target."""
        channels, count = self._channels, len(batch)
        share, rest = divmod(count, len(channels))
        at = 0
        for i in range(len(channels)):
            size = share + (1 if i < rest else 0)
            if size:
                self._add(channels[(self._next + i) % len(channels)], batch.slice(at, size))
                at += size
        self._next = (self._next + rest) % len(channels)

    def _custom(self, choose: Callable[[Any, int], int], keys: list[Any], readers: int) -> np.ndarray[Any, Any]:
        targets = [choose(key, readers) for key in keys]
        for key, target in zip(keys, targets, strict=True):
            if not isinstance(target, int | np.integer) or not 0 <= target < readers:
                raise UserCodeError(
                    "HR-5002",
                    f"partition_custom() chose subtask {target!r} for key {key!r}: it must be an integer from 0 to {readers - 1}",
                )
        return np.array(targets, np.int64)

    def _by_key(self, keys: KeyReader, max_parallelism: int, readers: int, batch: Batch) -> None:
        if not batch.is_small or batch.timestamps is not None:
            self._split(batch, owners_of(keys.groups(batch), max_parallelism, readers))
            return
        rows: dict[int, list[Any]] = {}
        for row, group in zip(batch.plain_rows(), keys.keys_and_groups(batch)[1], strict=True):
            rows.setdefault(group * readers // max_parallelism, []).append(row)
        for target in sorted(rows):
            self._add(target, batch.small_part(rows[target]))

    def _split(self, batch: Batch, targets: np.ndarray[Any, Any]) -> None:
        counts = np.bincount(targets)
        if counts.max() == len(targets):
            self._add(int(targets[0]), batch)
            return
        # One stable sort and one gather for all targets; each target's part is then a slice. uint16 sorts by radix.
        ordered = batch.select(np.argsort(targets.astype(np.uint16), kind="stable"))
        at = 0
        for target, count in enumerate(counts.tolist()):
            if count:
                self._add(target, ordered.slice(at, count))
                at += count

    # --- building buffers -------------------------------------------------------------------------------------------

    def emit(self, batch: Batch) -> None:
        """Take a batch of records."""
        if not len(batch):
            return
        self.records_out += len(batch)
        self.dirty = True
        self._spread(batch)
        self.newest = batch.in_one_form()

    def _add(self, target: int, batch: Batch) -> None:
        builder = self._builders[target]
        count = len(batch)
        per_record = batch.nbytes / max(count, 1) if self.edge.type.is_typed else self._bytes_per_record
        if count > 1 and count * per_record > _MAX_ROW:
            step = self._step(per_record)
            for at in range(0, count, step):
                self._add(target, batch.slice(at, step))
            return
        if builder.parts and (builder.parts[0].timestamps is None) != (batch.timestamps is None):
            self._build(target)  # a frame has timestamps for all of its records or for none
        builder.parts.append(batch)
        builder.bytes += count * per_record
        if builder.bytes >= self._buffers.buffer_size:
            self._build(target)

    def _build(self, target: int) -> None:
        """Turn the waiting records of a target into a frame."""
        builder = self._builders[target]
        if not builder.parts:
            return
        parts = builder.parts
        builder.parts, builder.bytes = [], 0.0
        stamped = [part.timestamps for part in parts if part.timestamps is not None]
        stamps = np.concatenate(stamped) if stamped else None
        if self.edge.type.is_typed:
            batch = Batch.joined(parts)
            if batch.is_small:
                self._send(target, FrameKind.PICKLE, [pickle.dumps(batch.plain_rows(), 5)], stamps)
            else:
                self._send_arrow(target, batch.arrow(), stamps)
        else:
            rows = parts[0].rows() if len(parts) == 1 else [row for part in parts for row in part.rows()]
            origin = next((part.origin for part in parts if part.origin is not None), None)
            self._send_pickled(target, rows, stamps, origin)

    def _send_arrow(self, target: int, batch: pa.RecordBatch, stamps: Stamps | None) -> None:
        narrowed = narrow(batch) if batch.num_rows >= MIN_ROWS else None
        if narrowed is None:
            self._send(target, FrameKind.ARROW, [memoryview(batch.serialize())], stamps)
        else:
            head, batch = narrowed
            self._send(target, FrameKind.ARROW, [head, memoryview(batch.serialize())], stamps, NARROWED)

    def _send_pickled(self, target: int, rows: list[Any], stamps: Stamps | None, origin: Any) -> None:
        body, flags = self._pickle(rows, origin)
        self._bytes_per_record = max(1.0, len(body) / len(rows))
        if len(body) <= _MAX_ROW or len(rows) == 1:
            self._send(target, FrameKind.PICKLE, [body], stamps, flags)
            return
        # The records were larger than estimated: now that their size is known, they are split.
        step = self._step(self._bytes_per_record)
        for at in range(0, len(rows), step):
            part = None if stamps is None else stamps[at : at + step]
            self._send_pickled(target, rows[at : at + step], part, origin)

    def _step(self, per_record: float) -> int:
        """Return the number of records of this size that fit into one buffer."""
        return max(1, int(min(self._buffers.buffer_size, _MAX_ROW) / per_record))

    def _send(self, target: int, kind: FrameKind, pieces: list[Piece], stamps: Stamps | None, flags: int = 0) -> None:
        if stamps is not None:
            narrowed = narrow_times(stamps) if len(stamps) >= MIN_ROWS else None
            flags |= STAMPED if narrowed is None else STAMPED | NARROW_TIMES
            pieces = [*(narrowed or (len(stamps).to_bytes(8, "little"), stamps.tobytes())), *pieces]
        frame = pack(kind, self.edge.id, self._writer, *pieces, flags=flags)
        self._buffers.add(self._destination[target], frame)

    def _pickle(self, rows: list[Any], origin: Any) -> tuple[bytes, int]:
        """The records, and the flags of their frame."""
        try:
            return pickle_rows(rows)
        except Exception as error:
            reason = UserCodeError(
                "HR-5005",
                f"a record cannot be sent to the next operator: {_unpicklable(rows)} cannot be pickled ({error}); "
                "emit plain values, or give the operator an output_type",
            )
            if origin is None:
                raise reason from error
            # Records wait in buffers: only the batch still knows which operator made them.
            operator, call_site = origin
            raise OperatorFailure(operator, call_site, reason) from error

    def flush(self) -> None:
        """Turn all waiting records into frames."""
        if self.dirty:
            for target in self._channels:
                self._build(target)
            self.dirty = False

    def advance(self, watermark: int) -> None:
        """Send a watermark behind the records."""
        self.event(FrameKind.WATERMARK, watermark.to_bytes(8, "little", signed=True))

    def set_idle(self, idle: bool) -> None:
        self.event(FrameKind.WATERMARK, flags=IDLE if idle else 0)

    def event(self, kind: FrameKind, body: bytes = b"", flags: int = 0, close: bool = False) -> None:
        """Send an event on every channel, after all records that were emitted before."""
        self.flush()
        for target in self._channels:
            frame = pack(kind, self.edge.id, self._writer, body, flags=flags)
            self._buffers.add(self._destination[target], frame, close)


def _unpicklable(rows: list[Any]) -> str:
    for row in rows:
        try:
            pickle_rows([row])
        except Exception:
            return f"a {type(row).__name__}"
    return "a batch"
