"""Expired rows are deleted from the disk without a read by the user (SPEC R2.5 d).

rocksdict has no compaction filter, so a sweep in the subtask's thread reads the stamp at the start of every row and deletes
expired ones, a bounded number of rows at a time. Deleting makes tombstones; a file with many of them is soon compacted by
RocksDB's own threads (`store.py`), and that frees the disk. Reasons and costs: docs/design/ttl-on-rocksdb.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from headrace.state.rocksdb.codec import STAMP_BYTES, pack_stamp, unpack_stamp
from headrace.state.rocksdb.increments import FIRST_STAMP
from headrace.state.rocksdb.store import Store
from headrace.state.rocksdb.tables import LayeredRows
from headrace.state.ttl import Expiry

_PASSES_PER_TTL: Final = 8
_BATCH_ROWS: Final = 4096
_FLUSH_ROWS: Final = 10_000
_NEVER: Final = b"\xff" * STAMP_BYTES


class Sweeper:
    """Iterates over the rows of a state with a time to live, again and again.

    A pass records the oldest stamp of the rows that stay. Until that one is expired, no row is, so no pass is made; and
    no more than a few passes are made within the time to live.
    """

    def __init__(self, rows: LayeredRows, expiry: Expiry, query_entries: int) -> None:
        """The clock is read after every `query_entries` rows."""
        self._rows = rows
        self._step_rows = min(query_entries, _BATCH_ROWS)
        self._expiry = expiry
        self._position: bytes | None = None  # where the pass continues; None: there is none
        self._started = 0
        self._oldest = _NEVER
        self._complete = True
        self._due: int | None = None
        self._unflushed = 0

    @property
    def enabled(self) -> bool:
        cleanup = self._expiry.config.cleanup
        return cleanup.background or cleanup.compact_filter is not None

    def begins(self, now: int) -> bool:
        """Return True if the next step is the first of a pass."""
        return self._position is None and (self._due is None or now >= self._due)

    def step(self, store: Store, budget: int, clock: Callable[[], int], *, written: bool) -> tuple[int, int]:
        """Check up to `budget` rows; returns how many were checked, and how many entries were removed or shrank.

        `written`: all changes made so far are in the database, so that a pass that begins now reads all rows.
        """
        checked = changed = 0
        while checked < budget:
            rows, now = min(budget - checked, self._step_rows), clock()
            seen, found = self._check_rows(store, rows, now, written)
            checked, changed = checked + seen, changed + found
            # When a pass ends, rows that were live when it read them may be expired, and the next pass begins at once.
            if seen < rows and not self.begins(now):
                break
        return checked, changed

    def _check_rows(self, store: Store, budget: int, now: int, written: bool) -> tuple[int, int]:
        if self._position is None:
            if not self.begins(now):
                return 0, 0
            self._position = self._rows.space.bounds()[0]
            self._started, self._oldest, self._complete = now, _NEVER, written
        rows = self._rows.column.scan(self._position, self._rows.space.bounds()[1], keep=False)
        stamps = [(key, data[:STAMP_BYTES]) for key, data in islice(rows, budget)]
        changed = self._remove_dead(store, stamps, now)
        ended = len(stamps) < budget
        if ended:
            self._end_pass()
        else:
            self._position = stamps[-1][0] + b"\0"
        if self._unflushed >= _FLUSH_ROWS or (ended and self._unflushed):
            self._rows.column.flush(wait=False)
            self._unflushed = 0
        return len(stamps), changed

    def _remove_dead(self, store: Store, stamps: list[tuple[bytes, bytes]], now: int) -> int:
        cutoff = now - self._expiry.ttl
        last_dead = pack_stamp(cutoff) if cutoff >= FIRST_STAMP else b""
        dead = [key for key, stamp in stamps if stamp <= last_dead]
        self._oldest = min(self._oldest, min((stamp for _, stamp in stamps if stamp > last_dead), default=_NEVER))
        if not dead:
            return 0
        batch = self._rows.column.batch()
        changed = 0
        previous: tuple[int, Any] | None = None
        for key in dead:
            group, address, _ = self._rows.keys.split(key)
            if self._rows.is_pending(group, address):
                self._complete = False  # its row is about to change; the next pass checks it again
                continue
            batch.delete(key)
            if (group, address) != previous:
                previous = group, address
                changed += 1
                self._rows.forget(address)
        self._unflushed += len(batch)
        store.write(batch)
        return changed

    def _end_pass(self) -> None:
        self._position = None
        soonest = self._started + max(1, self._expiry.ttl // _PASSES_PER_TTL)
        if self._complete:
            # What was written during the pass is younger than its start.
            oldest = self._started if self._oldest == _NEVER else min(self._started, unpack_stamp(self._oldest))
            soonest = max(soonest, oldest + self._expiry.ttl)
        self._due = soonest
