"""Expired rows leave the disk without being read by anyone (SPEC R2.5 d).

rocksdict has no compaction filter, so a sweep looks at the stamp in front of every row and deletes the dead ones, a
bounded number of rows at a time. Deleting makes tombstones; a file with many of them is soon compacted by RocksDB's own
threads (`store.py`), and that frees the disk. Why a sweep, and what it costs: docs/design/ttl-on-rocksdb.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from headgate.state.rocksdb.rows import StateRows
from headgate.state.rocksdb.snapshots import FIRST_STAMP
from headgate.state.rocksdb.store import Store
from headgate.state.rocksdb.values import STAMP_BYTES, pack_stamp, unpack_stamp
from headgate.state.ttl import Expiry

__all__ = ["Sweeper"]

_PASSES_PER_TTL: Final = 8
_BATCH_ROWS: Final = 4096
_FLUSH_ROWS: Final = 10_000
_NEVER: Final = b"\xff" * STAMP_BYTES


class Sweeper:
    """Walks through the rows of a state with a time to live, again and again.

    A pass notes the oldest stamp it leaves behind. Until that one is dead, no row can be, so no pass is made; and no more
    than a few passes are made in the time that an entry lives.
    """

    def __init__(self, rows: StateRows, expiry: Expiry, query_entries: int) -> None:
        """`query_entries`: how many rows are checked between two looks at the clock."""
        self._rows = rows
        self._step_rows = min(query_entries, _BATCH_ROWS)
        self._expiry = expiry
        self._position: bytes | None = None  # where the pass goes on; None: there is none
        self._started = 0
        self._oldest = _NEVER
        self._complete = True
        self._due: int | None = None
        self._unflushed = 0

    @property
    def enabled(self) -> bool:
        """Whether the state's settings ask for it."""
        cleanup = self._expiry.config.cleanup
        return cleanup.background or cleanup.compact_filter is not None

    def begins(self, now: int) -> bool:
        """Whether the next step is the first of a pass."""
        return self._position is None and (self._due is None or now >= self._due)

    def step(self, store: Store, budget: int, clock: Callable[[], int], *, written: bool) -> tuple[int, int]:
        """Look at up to `budget` rows; how many were looked at, and how many entries were removed or shrank.

        `written` says that all changes made so far are in the database, so that a pass that begins now sees all rows.
        """
        checked = changed = 0
        while checked < budget:
            asked, now = min(budget - checked, self._step_rows), clock()
            seen, found = self._walk(store, asked, now, written)
            checked, changed = checked + seen, changed + found
            # When an old pass has ended, rows that it saw alive may be dead by now, and the next one follows at once.
            if seen < asked and not self.begins(now):
                break
        return checked, changed

    def _walk(self, store: Store, budget: int, now: int, written: bool) -> tuple[int, int]:
        if self._position is None:
            if not self.begins(now):
                return 0, 0
            self._position = self._rows.bounds()[0]
            self._started, self._oldest, self._complete = now, _NEVER, written
        rows = self._rows.column.scan(self._position, self._rows.bounds()[1], keep=False)
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
                self._complete = False  # its row is about to change; the next pass sees what becomes of it
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
