"""Built-in aggregations over tumbling and sliding windows by event time, on whole batches. Runs in the subtask's thread.

There is no timer: a window fires when the watermark passes its end, so the open windows are known from the state itself. They
are indexed by their end in memory, and the index is made anew from the state after a restore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.specs import Aggregation, WindowColumnsSpec
from headrace.api.watermarks import MIN_WATERMARK
from headrace.api.windowed_stream import greatest, least
from headrace.errors import UserCodeError
from headrace.graph.job_graph import ChainedOperator
from headrace.records.batch import Batch
from headrace.records.key_groups import hash_column, key_groups_of
from headrace.state.addresses import in_namespace, split_address
from headrace.state.api import ValueStateDescriptor
from headrace.state.tables import BatchTable
from headrace.worker.operators.base import OperatorContext, Receiver
from headrace.worker.operators.keyed import KeyedOperator

Ints = npt.NDArray[np.int64]
_CONTENTS = "window-contents"
_FIRED = "window-fired"  # of windows that stay for late records


class WindowColumns(KeyedOperator):
    """sum, count, min, max or mean of a column for each key and window: rows (key, window_start, window_end, value)."""

    def __init__(self, operator: ChainedOperator, context: OperatorContext) -> None:
        super().__init__(operator, context)
        spec = WindowColumnsSpec.of(operator)
        self._panes, self._how, self._position = spec.panes, spec.how, spec.position
        self._lateness, self._late_tag = spec.lateness, spec.late_tag
        self._of_value = "double" if spec.floating else "bigint"
        key = spec.keys[0]
        assert key is not None
        self._key_column = key.columns[0]
        self._fired_before: set[Any] = (
            set()
        )  # windows that had fired before a restore: the clock has not passed them again
        self._open_windows: dict[int, dict[Any, int]] = {}  # by end: address with namespace -> key group

    def open(self) -> None:
        super().open()
        kind = f"total {self._of_value}, count bigint" if self._how is Aggregation.MEAN else self._of_value
        self._table: BatchTable = self.backend.value_table(ValueStateDescriptor(_CONTENTS, kind))
        self._fired: BatchTable = self.backend.value_table(ValueStateDescriptor(_FIRED, "boolean"))
        for group, address in self.backend.addresses(_CONTENTS):
            _, (_, end) = split_address(address)
            self._open_windows.setdefault(end, {})[address] = group
        self._fired_before = {address for _, address in self.backend.addresses(_FIRED)}

    @property
    def _schema(self) -> pa.Schema:
        assert self.type.schema is not None
        return self.type.schema

    # --- records ----------------------------------------------------------------------------------------------------

    def receiver(self, input: int) -> Receiver:
        return self._receive

    def _receive(self, batch: Batch) -> None:
        if batch.timestamps is None:
            raise self.failure(
                UserCodeError(
                    "HR-1406",
                    "windows by event time need timestamps: give the source a watermark strategy with a timestamp assigner, or "
                    "call assign_timestamps_and_watermarks(...) before key_by(...)",
                )
            )
        arrow, stamps = batch.arrow(), batch.timestamps
        rows, starts = self._assign(stamps)
        in_time = starts > max(self.watermark - self._panes.size + 1 - self._lateness, MIN_WATERMARK)
        rows, starts = rows[in_time], starts[in_time]
        self._set_late_aside(batch, stamps, rows)
        if not len(rows):
            return
        column = arrow.column(self._key_column)
        if column.null_count:
            self.guard(hash_column, column)  # says what is wrong with null keys
        encoded = pc.dictionary_encode(column)
        codes: Ints = encoded.indices.to_numpy().astype(np.int64)[rows]
        pane_starts, panes = np.unique(starts, return_inverse=True)
        cells, places = np.unique(codes * len(pane_starts) + panes, return_inverse=True)
        values = None if self._position is None else self._values(arrow)[rows]
        partial = self._reduce(places, values, len(cells))
        keys = encoded.dictionary
        self._store(keys, cells // len(pane_starts), pane_starts[cells % len(pane_starts)], partial)

    def _assign(self, stamps: Ints) -> tuple[Ints, Ints]:
        """For each record and window: the place of the record, and the start of the window."""
        spec = self._panes
        last = stamps - (stamps - spec.offset) % spec.slide
        everywhere = np.arange(len(stamps))
        all_rows, all_starts = [], []
        for back in range(0, spec.size, spec.slide):
            starts = last - back
            holds = starts > stamps - spec.size
            all_rows.append(everywhere[holds])
            all_starts.append(starts[holds])
        return np.concatenate(all_rows), np.concatenate(all_starts)

    def _set_late_aside(self, batch: Batch, stamps: Ints, taken: Ints) -> None:
        """Records that are in no window any more; a record between windows of a gap is not late."""
        missing = np.ones(len(batch), bool)
        missing[taken] = False
        late = np.flatnonzero(missing & (stamps <= max(self.watermark - self._lateness, MIN_WATERMARK)))
        if not len(late):
            return
        self.late_records += len(late)
        if self._late_tag is not None:
            rows = batch.rows()
            self.emit_side(self._late_tag, [rows[place] for place in late.tolist()], stamps[late])

    def _values(self, arrow: pa.RecordBatch) -> npt.NDArray[Any]:
        assert self._position is not None
        column = arrow.column(self._position)
        if column.null_count:
            name = arrow.schema.names[self._position]
            raise self.failure(
                UserCodeError("HR-5003", f"{self._how}() met a null in column '{name}': filter nulls out first")
            )
        values: npt.NDArray[Any] = column.to_numpy()
        return values

    def _reduce(self, places: Ints, values: npt.NDArray[Any] | None, count: int) -> list[Any]:
        """The records of this batch, combined for each key and window."""
        if values is None:
            return np.bincount(places, minlength=count).tolist()  # type: ignore[no-any-return]
        if self._how in (Aggregation.MIN, Aggregation.MAX):
            ufunc = np.minimum if self._how is Aggregation.MIN else np.maximum
            order = np.argsort(places, kind="stable")
            firsts = np.searchsorted(places[order], np.arange(count))
            return ufunc.reduceat(values[order], firsts).tolist()  # type: ignore[no-any-return]
        wide = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
        sums = np.zeros(count, wide.dtype)
        np.add.at(sums, places, wide)
        if self._how is Aggregation.SUM:
            return sums.tolist()
        return list(zip(sums.tolist(), np.bincount(places, minlength=count).tolist(), strict=True))

    def _store(self, keys: pa.Array, owners: Ints, starts: Ints, partial: list[Any]) -> None:
        groups_of_keys = key_groups_of(hash_column(keys), self.context.info.max_parallelism)
        plain = self.backend.prepare_keys(keys.to_pylist())
        size = self._panes.size
        bounds = [(start, start + size) for start in starts.tolist()]
        addresses = [in_namespace(plain[owner], window) for owner, window in zip(owners.tolist(), bounds, strict=True)]
        groups = groups_of_keys[owners].tolist()
        self.backend.begin_batch(addresses, groups)
        old = self._table.get_many(addresses, groups)
        combine = _COMBINE[self._how]
        new = [part if had is None else combine(had, part) for had, part in zip(old, partial, strict=True)]
        self._table.put_many(addresses, groups, new)
        for address, group, (_, end), had in zip(addresses, groups, bounds, old, strict=True):
            if had is None:
                self._open_windows.setdefault(end, {})[address] = group
        again = [place for place, (_, end) in enumerate(bounds) if end - 1 <= self.watermark]
        late = [addresses[place] for place in again], [groups[place] for place in again]
        if again:  # late, but not too late
            self._fired.put_many(*late, [True] * len(again))
        if self._fired_before:
            self._fire_again(addresses, groups)
        self.end_batch()
        if again:
            self._emit(*late)

    def _fire_again(self, addresses: list[Any], groups: list[int]) -> None:
        """After a restore the clock starts anew: a window that had fired fires again if it gets a record before that."""
        changed = [place for place, address in enumerate(addresses) if address in self._fired_before]
        if changed:
            reset = [addresses[place] for place in changed]
            self._fired.put_many(reset, [groups[place] for place in changed], [None] * len(changed))
            self._fired_before.difference_update(reset)

    # --- firing -----------------------------------------------------------------------------------------------------

    def own_metrics(self) -> dict[str, float]:
        late = "numLateRecordsDropped" if self._late_tag is None else "numLateRecordsToSideOutput"
        return {**super().own_metrics(), late: self.late_records}

    def on_watermark(self, watermark: int) -> None:
        for end in sorted(end for end in self._open_windows if end - 1 <= watermark):
            entries = self._open_windows[end]
            self._fired_before.difference_update(entries)
            addresses, groups = list(entries), list(entries.values())
            self.backend.begin_batch(addresses, groups)
            fired = self._fired.get_many(addresses, groups) if self._lateness else [None] * len(addresses)
            due = [place for place, done in enumerate(fired) if not done]
            over = end - 1 + self._lateness <= watermark
            if due:
                self._emit([addresses[place] for place in due], [groups[place] for place in due])
            if over:
                nothing = [None] * len(addresses)
                self._table.put_many(addresses, groups, nothing)
                if self._lateness:
                    self._fired.put_many(addresses, groups, nothing)
                del self._open_windows[end]
            elif due:
                self._fired.put_many(addresses, groups, [True] * len(addresses))
            self.end_batch()

    def _emit(self, addresses: list[Any], groups: list[int]) -> None:
        values = self._table.get_many(addresses, groups)
        if self._how is Aggregation.MEAN:
            values = [total / count for total, count in values]
        keys, windows = zip(*map(split_address, addresses), strict=True)
        schema = self._schema
        columns = [
            pa.array([self.backend.key_at(key) for key in keys], schema.field(0).type),
            pa.array([start for start, _ in windows], pa.int64()),
            pa.array([end for _, end in windows], pa.int64()),
            pa.array(values, schema.field(3).type),
        ]
        stamps = np.array([end - 1 for _, end in windows], np.int64)
        self.emit(Batch(self.type, None, pa.RecordBatch.from_arrays(columns, schema=schema), stamps))


def _add(one: Any, other: Any) -> Any:
    return one + other


def _add_pair(one: tuple[Any, int], other: tuple[Any, int]) -> tuple[Any, int]:
    return one[0] + other[0], one[1] + other[1]


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": _add,
    "count": _add,
    "min": least,
    "max": greatest,
    "mean": _add_pair,
}
