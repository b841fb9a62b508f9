"""Snapshots of the rocksdb backend: files of a native checkpoint, and which of them need not be stored again (R7.4).

    sync     freeze what the write-back cache holds (a few microseconds per key group)
    next()   write that to the database, flush, link the files into a directory of the snapshot's own, and hand out the
             bytes of the files that no confirmed checkpoint has

Files of rows never change, so those of a confirmed checkpoint are referred to. MANIFEST and CURRENT are the snapshot's own.
OPTIONS is left out: a database is opened with the options of the program that opens it.
"""

from __future__ import annotations

import shutil
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headgate.checkpoint.handles import FileRef, KeyedStateHandle, Payload
from headgate.errors import IllegalState
from headgate.state.backend import SnapshotRun
from headgate.state.rocksdb.store import Store
from headgate.state.rocksdb.writeback import BATCH_ROWS, Cut, WriteBack

__all__ = ["CHUNK", "FIRST_STAMP", "RocksDBSnapshot", "Span", "Taken", "Uploads"]

CHUNK: Final = 1 << 20
"""Bytes that a step hands out at most."""
_FLUSH_POLLS: Final = 20  # then it is waited for, without the GIL

Files = dict[str, FileRef]
Span = tuple[int, int]
"""Stamps that count as expired: after the first, up to the second."""
FIRST_STAMP: Final = -(1 << 63)


@dataclass(slots=True)
class Taken:
    """A checkpoint that later ones may build on: its files, its time, and by column what it leaves out (R2.5 b)."""

    time: int
    files: Files = field(default_factory=dict)
    dead: dict[str, list[Span]] = field(default_factory=dict)

    def spans(self, column: str, cutoff: int) -> list[Span]:
        """What a checkpoint on this one leaves out: the same, and what is dead of that which came since."""
        known = self.dead.get(column, [])
        return [*known, (self.time, cutoff)] if cutoff > self.time else known


class Uploads:
    """Which checkpoint has which files, and what the next one may refer to; snapshots add to it from their threads."""

    def __init__(self) -> None:
        self._taken: dict[int, Taken] = {}
        self._completed: int | None = None
        self._lock = threading.Lock()

    def base(self) -> Taken | None:
        """The last confirmed checkpoint, with those of its files that later ones have not stored anew."""
        if self._completed is None:
            return None
        base = self._taken[self._completed]
        with self._lock:
            later = [taken.files for checkpoint, taken in self._taken.items() if checkpoint > self._completed]
        files = {
            name: file for name, file in base.files.items() if all(files.get(name, file) == file for files in later)
        }
        return Taken(base.time, files, base.dead) if files else None

    def add(self, checkpoint_id: int, taken: Taken) -> None:
        """A checkpoint is stored, but not confirmed."""
        with self._lock:
            self._taken[checkpoint_id] = taken

    def complete(self, checkpoint_id: int) -> None:
        """A checkpoint is confirmed; ids that are not ours, savepoints among them, are ignored."""
        with self._lock:
            if checkpoint_id in self._taken and checkpoint_id > (self._completed or -1):
                self._completed = checkpoint_id
                self._taken = {one: taken for one, taken in self._taken.items() if one >= checkpoint_id}

    def abort(self, checkpoint_id: int) -> None:
        """A checkpoint will not be confirmed."""
        with self._lock:
            if checkpoint_id != self._completed:
                self._taken.pop(checkpoint_id, None)


class RocksDBSnapshot(SnapshotRun):
    """A running snapshot.

    `describe` is the handle without files, None if there is no state at all; `base` are the files to refer to; `done`
    is told the files when all are handed out, and None says that no later snapshot may refer to them.
    """

    def __init__(
        self,
        describe: KeyedStateHandle | None,
        checkpoint_id: int,
        prefix: str,
        base: Files,
        done: Callable[[Files], None] | None,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.status = "running"
        self._describe = describe
        self._handle: KeyedStateHandle | None = None
        self._prefix = prefix
        self._base = base
        self._done = done
        self._cut: Cut | None = None
        self._steps: Iterator[tuple[str, bytes]] = iter(())

    def start(
        self, store: Store, writeback: WriteBack, cut: Cut, directory: Path, extra: Callable[[], dict[str, Any]]
    ) -> None:
        """Take the state below a cut; without this call there is none. `extra` is asked when all of it is written."""
        self._store = store
        self._writeback = writeback
        self._cut = cut
        self._directory = directory
        self._read_extra = extra
        self._steps = self._work()

    @property
    def handle(self) -> KeyedStateHandle | None:
        """What the snapshot left; None if there is no state at all."""
        if self.status != "done":
            raise IllegalState(f"snapshot {self.checkpoint_id} is {self.status}: iterate it to its end first")
        return self._handle

    def __next__(self) -> tuple[str, bytes]:
        try:
            return next(self._steps)
        except StopIteration:
            if self.status == "running":
                self.status = "done"  # nothing to store
            raise
        except BaseException:
            if self.status == "cancelled":  # by another thread, which has removed the files
                raise StopIteration from None
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop; what the cache held is written to the database as usual."""
        if self._describe is None:
            self.status = "cancelled" if self.status == "running" else self.status
            return
        with self._writeback.writing:
            if self.status == "running":
                self.status = "cancelled"
                self._steps = iter(())
                self._release()
                shutil.rmtree(self._directory, ignore_errors=True)

    def _release(self) -> None:
        if self._cut is not None:
            self._writeback.release(self._cut)
            self._cut = None

    def materialise(self) -> None:
        """Make the native checkpoint at once, because newer changes have to be written."""
        with self._writeback.writing:
            if self._cut is not None:
                while not self._writeback.write_up_to(self._cut, BATCH_ROWS):
                    pass
                self._store.flush(wait=True)
                self._store.checkpoint(self._directory)
                self._extra = self._read_extra()
                self._release()

    # --- the steps ---

    def _work(self) -> Generator[tuple[str, bytes], None, None]:
        nothing = (
            f"{self._prefix}-MANIFEST",
            b"",
        )  # what a step yields that only prepares: of the payload that comes next
        while (cut := self._cut) is not None and not self._writeback.write_up_to(cut, BATCH_ROWS):
            yield nothing
        if self._cut is not None:
            self._store.flush(wait=False)
        polls = 0
        while self._cut is not None and self._store.in_memory() and polls < _FLUSH_POLLS:
            polls += 1
            yield nothing
        if self._cut is not None:
            self._store.flush(wait=True)  # without the lock, and without the GIL
            self.materialise()
        own = []
        for path in self._own_paths():
            own.append((yield from self._own_file(path)))  # noqa: PERF401 - no comprehension can yield
        files: Files = {}
        last = own[-1].payload.id
        for path in sorted(self._directory.glob("*.sst")):
            files[path.name] = yield from self._shared_file(path, last)
            last = files[path.name].payload.id if files[path.name].created_by == self.checkpoint_id else last
        with self._writeback.writing:
            if self.status == "running":
                self._finish(files, own)

    def _own_paths(self) -> list[Path]:
        (manifest,) = self._directory.glob("MANIFEST-*")
        return [manifest, self._directory / "CURRENT"]

    def _own_file(self, path: Path) -> Generator[tuple[str, bytes], None, FileRef]:
        name = f"{self._prefix}-{path.name.partition('-')[0]}"
        size = crc32 = 0
        for data in _chunks(path):
            size += len(data)
            crc32 = zlib.crc32(data, crc32)
            yield name, data
        return FileRef(path.name, Payload(name, size, crc32), shared=False, created_by=self.checkpoint_id)

    def _shared_file(self, path: Path, last: str) -> Generator[tuple[str, bytes], None, FileRef]:
        """A file of rows; steps that yield nothing go under the id of the payload that was written last."""
        size = path.stat().st_size
        known = self._base.get(path.name)
        if known is not None and known.payload.size == size:
            return known
        crc32 = 0  # part of the name, so it has to be known before the first byte is handed out
        for data in _chunks(path):
            crc32 = zlib.crc32(data, crc32)
            yield last, b""
        payload = Payload(f"{self._prefix}-{path.stem}-{crc32:08x}.sst", size, crc32)
        for data in _chunks(path):
            yield payload.id, data
        return FileRef(path.name, payload, shared=self._done is not None, created_by=self.checkpoint_id)

    def _finish(self, files: Files, own: list[FileRef]) -> None:
        described = self._describe
        assert described is not None
        self._handle = KeyedStateHandle(
            described.backend,
            described.checkpoint_id,
            described.max_parallelism,
            described.first_group,
            described.last_group,
            described.key_type,
            files=[*files.values(), *own],
            extra=self._extra,
        )
        if self._done is not None:
            self._done(files)
        self.status = "done"
        shutil.rmtree(self._directory, ignore_errors=True)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            yield data
