"""From the write-back cache to the database, in slices.

A *cut* freezes the changes of all states at one moment. Cuts are written oldest first, and a cut that a snapshot waits
for holds everything newer back until the native checkpoint is made: so the checkpoint holds exactly the state at the
barrier, while the barrier itself costs only the freezing. The subtask's thread and the threads of snapshots write.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from rocksdict import WriteBatch

from headrace.state.rocksdb.numbers import ColumnLayer, NumberRows
from headrace.state.rocksdb.store import MemoryBudget, Store
from headrace.state.rocksdb.tables import Layer, LayeredRows, StateRows, WritePortion

BATCH_ROWS: Final = 4096  # written at once, with the GIL held: about 5 ms
_BATCH_BYTES: Final = 4 << 20
_MIN_ENTRIES: Final = 1024
_MAX_CUTS: Final = 3


class Cut:
    """The changes up to one moment, which are being written to the database.

    `resolve` makes the native checkpoint of a snapshot before anything newer is written; None: no snapshot waits.
    """

    def __init__(self, store: Store, parts: list[_Part], resolve: Callable[[], None] | None) -> None:
        self.resolve = resolve
        self.written = self.failed = False
        self.parts = parts
        self._store = store
        self._slices = _write(store, parts)

    def write(self, rows: int) -> int:
        """Write about `rows` rows; returns the rest of them when all is written, else 0.

        It may fail, for example if a value does not fit its type; then `retry` comes before the next call.
        """
        while rows > 0 and not self.written:
            try:
                done = next(self._slices, None)
            except BaseException:
                self.failed = True
                raise
            if done is None:
                self.written = True
            else:
                rows -= done
        return max(0, rows) if self.written else 0

    def retry(self, newer: list[Cut], *, tables: bool) -> None:
        """Begin again, without changes that these cuts replace, or, with `tables`, changes that are in no cut yet."""
        if self.resolve is None:
            for part in self.parts:
                part.drop_replaced([one for cut in newer for one in cut.parts], tables=tables)
        self._slices = _write(self._store, self.parts)
        self.failed = False


def _write(store: Store, parts: list[_Part]) -> Iterator[int]:
    for part in parts:
        yield from part.write(store)


class _Part(Protocol):
    """The changes of one state."""

    def write(self, store: Store) -> Iterator[int]:
        """Write what is not written yet, a batch of rows for each step."""
        ...

    def drop_replaced(self, newer: Sequence[_Part], *, tables: bool) -> None:
        """Drop changes that newer ones of the same state replace, or changes in its tables."""
        ...


def _freeze(rows: StateRows) -> _Part | None:
    """Return the changes of a state since the last cut; None if there are none."""
    if isinstance(rows, NumberRows):
        frozen = rows.freeze()
        return None if frozen is None else _NumberPart(rows, frozen)
    assert isinstance(rows, LayeredRows)
    layer = rows.freeze()
    return _TablePart(rows, layer) if layer else None


class _TablePart:
    """Written changes leave their layer in the same step."""

    def __init__(self, rows: LayeredRows, layer: Layer) -> None:
        self.rows, self.layer = rows, layer

    def write(self, store: Store) -> Iterator[int]:
        batch = _LayerBatch(store, self.rows, self.layer)
        for group in list(self.layer):
            while not batch.add(group):
                yield batch.commit()
            if batch.rows >= batch.limit:
                yield batch.commit()
        yield batch.commit()
        self.rows.thaw(self.layer)

    def drop_replaced(self, newer: Sequence[_Part], *, tables: bool) -> None:
        layers = [one.layer for one in newer if isinstance(one, _TablePart) and one.rows is self.rows]
        self.rows.drop_replaced(self.layer, layers, tables=tables)


class _NumberPart:
    """Numbers fit their column, so writing fails only if the database does: no change is dropped."""

    def __init__(self, rows: NumberRows, layer: ColumnLayer) -> None:
        self._rows, self._layer = rows, layer

    def write(self, store: Store) -> Iterator[int]:
        return self._rows.write_layer(store, self._layer, BATCH_ROWS)

    def drop_replaced(self, newer: Sequence[_Part], *, tables: bool) -> None:
        pass


class _LayerBatch:
    """Rows of one layer that are written together."""

    def __init__(self, store: Store, rows: LayeredRows, layer: Layer) -> None:
        self._store = store
        self._state = rows
        self._layer = layer
        self._batch: WriteBatch | None = None  # created by the thread that fills it
        self._whole: list[int] = []  # groups whose changes are all in the batch
        self._parts: list[tuple[int, WritePortion]] = []
        self.limit = max(1, min(BATCH_ROWS, _BATCH_BYTES // rows.sampled_bytes))
        self.rows = 0

    def add(self, group: int) -> bool:
        """Add changes of a group; returns whether these are all of them."""
        table = self._layer[group]
        portion = self._state.portion(table, self.limit)
        if self._batch is None:
            self._batch = self._state.column.batch()
        self.rows += self._state.write(self._batch, group, portion.entries)
        whole = len(portion.entries) == len(table) and not portion.rests
        if whole:
            self._whole.append(group)
        else:
            self._parts.append((group, portion))
        return whole

    def commit(self) -> int:
        """Write the rows and make their changes clean."""
        if self._batch is not None:
            with self._state.guard:
                self._store.write(self._batch)
                self._settle()
        count, self.rows, self._batch = self.rows, 0, None
        self._whole, self._parts = [], []
        return count

    def _settle(self) -> None:
        for group, portion in self._parts:
            self._state.settle(dict(portion.entries))
            table = self._layer[group]
            for address, _ in portion.entries:
                if address in portion.rests:
                    table[address] = portion.rests[address]
                else:
                    del table[address]
        for group in self._whole:
            self._state.settle(self._layer[group])
            del self._layer[group]


class WriteBack:
    """The cuts of one backend, and when to make them.

    `writing` is held by the thread that writes, for one step at a time; the guard of the states (`tables.py`) only while a
    batch is applied. Where both are needed, `writing` comes first.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._cuts: deque[Cut] = deque()
        self.writing = threading.RLock()

    @property
    def pending(self) -> bool:
        """Return True if there are unwritten frozen layers."""
        return bool(self._cuts)

    @property
    def held(self) -> bool:
        """Return True if a snapshot keeps newer changes from being written."""
        return any(cut.resolve is not None for cut in list(self._cuts))

    def cut(self, store: Store, states: Sequence[StateRows], resolve: Callable[[], None] | None = None) -> Cut:
        if len(self._cuts) >= _MAX_CUTS:
            self.finish_oldest()
        parts = [part for rows in states if (part := _freeze(rows)) is not None]
        cut = Cut(store, parts, resolve)
        if parts or resolve is not None:
            self._cuts.append(cut)
        return cut

    def step(self, rows: int) -> bool:
        """Write about `rows` rows of the oldest cuts, unless another thread writes; returns whether more remains."""
        if not self.writing.acquire(blocking=False):
            return True
        try:
            while self._cuts and rows > 0:
                head = self._cuts[0]
                rows = self._write(head, rows)
                if head.written:
                    if head.resolve is not None:
                        return False
                    self._cuts.popleft()
            return bool(self._cuts)
        finally:
            self.writing.release()

    def write_up_to(self, cut: Cut, rows: int) -> bool:
        """Write about `rows` rows of a cut and those before it; returns whether the cut is written."""
        with self.writing:
            while rows > 0 and not cut.written:
                head = self._cuts[0]
                rows = self._write(head, rows)
                if head.written and head is not cut:
                    self._remove(head)
            return cut.written

    def finish_oldest(self) -> None:
        """Write the oldest cut, and make the native checkpoint of a snapshot that waits for it."""
        with self.writing:
            if self._cuts:
                head = self._cuts[0]
                while not head.written:
                    self._write(head, BATCH_ROWS)
                self._remove(head)

    def _write(self, head: Cut, rows: int) -> int:
        """Write some of the oldest cut; what the next snapshot must have is replaced only by what that has too."""
        if head.failed:
            newer = list(self._cuts)[1:]
            held = next((index for index, cut in enumerate(newer) if cut.resolve is not None), None)
            head.retry(newer if held is None else newer[: held + 1], tables=held is None)
        return head.write(rows)

    def finish_all(self) -> None:
        """Write everything that is frozen."""
        while self._cuts:
            self.finish_oldest()

    def _remove(self, head: Cut) -> None:
        if head.resolve is not None:
            head.resolve()  # releases it
        if self._cuts and self._cuts[0] is head:
            self._cuts.popleft()

    def release(self, cut: Cut) -> None:
        """No snapshot waits for a cut any more; if it is not written yet, writing continues as usual."""
        with self.writing:
            cut.resolve = None
            if cut.written and cut in self._cuts:
                self._cuts.remove(cut)

    def adjust(self, states: Sequence[StateRows]) -> bool:
        """Fit the caches to the memory budget; returns whether it is exceeded and a cut is due."""
        share = self._budget.cache_share()
        total = sum(rows.change_bytes() for rows in states)
        left = max(share // 2, share - total)  # for clean entries, in two generations
        for rows in states:
            rows.limit = max(_MIN_ENTRIES, left // (2 * rows.clean_bytes() * len(states)))
        return total > share // 2 or any(rows.is_full() for rows in states)
