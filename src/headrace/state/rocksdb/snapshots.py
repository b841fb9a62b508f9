"""Snapshots of the rocksdb backend: files of a native checkpoint, and which of them need not be stored again (R7.4).

    sync     freeze the content of the write-back cache (a few microseconds per key group), in the subtask's thread
    next()   in the thread that writes the snapshot: write that content to the database, flush, link the files into the
             snapshot's own directory, and yield the bytes of the files that no confirmed checkpoint has

Files of rows never change, so a snapshot refers to those of a confirmed checkpoint. MANIFEST and CURRENT belong to one
snapshot. OPTIONS is left out: a database is opened with the options of the program that opens it.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.checkpoint.handles import FileRef, KeyedStateHandle, Payload
from headrace.state.backend import SnapshotRun
from headrace.state.rocksdb.increments import Files
from headrace.state.rocksdb.store import Store
from headrace.state.rocksdb.tables import StateRows
from headrace.state.rocksdb.writeback import BATCH_ROWS, Cut, WriteBack

_CHUNK: Final = 1 << 20  # the most bytes of a step
_FLUSH_POLLS: Final = 20  # before the flush is waited for, without the GIL


class RocksDBSnapshot(SnapshotRun):
    """A running snapshot of the states below a cut that is made now.

    `description` is the handle without files; `base` are the files to refer to; `done` is called with the files when
    all are yielded, None: no later snapshot may refer to them. `extra` is called when all of the cut is written.
    """

    def __init__(
        self,
        description: KeyedStateHandle,
        prefix: str,
        base: Files,
        done: Callable[[Files], None] | None,
        extra: Callable[[], dict[str, Any]],
        directory: Path,
        store: Store,
        writeback: WriteBack,
        states: Sequence[StateRows],
    ) -> None:
        super().__init__(description.checkpoint_id)
        self._description, self._prefix, self._base, self._done = description, prefix, base, done
        self._read_extra, self._directory, self._store, self._writeback = extra, directory, store, writeback
        self._cut: Cut | None = writeback.cut(store, states, self.materialise)
        self._steps = self._work()

    def __next__(self) -> tuple[str, bytes]:
        try:
            return super().__next__()
        except StopIteration:
            raise
        except BaseException:
            if self.status == "cancelled":  # another thread has removed the files
                raise StopIteration from None
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop; the content of the cache is written to the database as usual."""
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
        """Make the native checkpoint now, because newer changes must be written."""
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
        nothing = f"{self._prefix}-MANIFEST", b""  # a step without bytes goes under the id of the next payload
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
        (manifest,) = self._directory.glob("MANIFEST-*")
        for path in (manifest, self._directory / "CURRENT"):
            own.append((yield from self._own_file(path)))  # noqa: PERF401 - no comprehension can yield
        files: Files = {}
        last = own[-1].payload.id
        for path in sorted(self._directory.glob("*.sst")):
            files[path.name] = yield from self._shared_file(path, last)
            last = files[path.name].payload.id if files[path.name].created_by == self.checkpoint_id else last
        with self._writeback.writing:
            if self.status != "running":
                return
            self._handle = msgspec.structs.replace(self._description, files=[*files.values(), *own], extra=self._extra)
            if self._done is not None:
                self._done(files)
            self.status = "done"
            shutil.rmtree(self._directory, ignore_errors=True)

    def _own_file(self, path: Path) -> Generator[tuple[str, bytes], None, FileRef]:
        name = f"{self._prefix}-{path.name.partition('-')[0]}"
        size = crc32 = 0
        for data in _chunks(path):
            size += len(data)
            crc32 = zlib.crc32(data, crc32)
            yield name, data
        return FileRef(path.name, Payload(name, size, crc32), shared=False, created_by=self.checkpoint_id)

    def _shared_file(self, path: Path, last: str) -> Generator[tuple[str, bytes], None, FileRef]:
        """Yield a file of rows; steps without bytes go under the id of the payload that was written last."""
        size = path.stat().st_size
        known = self._base.get(path.name)
        if known is not None and known.payload.size == size:
            return known
        crc32 = 0  # part of the name, so it must be known before the first byte is yielded
        for data in _chunks(path):
            crc32 = zlib.crc32(data, crc32)
            yield last, b""
        payload = Payload(f"{self._prefix}-{path.stem}-{crc32:08x}.sst", size, crc32)
        for data in _chunks(path):
            yield payload.id, data
        return FileRef(path.name, payload, shared=self._done is not None, created_by=self.checkpoint_id)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            yield data
