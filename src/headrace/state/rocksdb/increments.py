"""Which checkpoint the next one may build on, and which files it need not store again (SPEC R7.4).

The subtask's thread asks for a base and confirms or aborts checkpoints; snapshots add theirs from their own threads.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from headrace.checkpoint.handles import FileRef

Files = dict[str, FileRef]
Span = tuple[int, int]
"""Stamps that count as expired: after the first, up to the second."""
FIRST_STAMP: Final = -(1 << 63)


@dataclass(slots=True)
class FileCheckpoint:
    """A checkpoint that later ones may build on; `dead` are, by column, the stamps that it leaves out (R2.5 b)."""

    time: int
    files: Files = field(default_factory=dict)
    dead: dict[str, list[Span]] = field(default_factory=dict)

    def spans(self, column: str, cutoff: int) -> list[Span]:
        """Return the stamps that a checkpoint on this one leaves out: the same, and what expired of later writes."""
        known = self.dead.get(column, [])
        return [*known, (self.time, cutoff)] if cutoff > self.time else known


class Uploads:
    """The files of each checkpoint, and those that the next one may refer to."""

    def __init__(self) -> None:
        self._checkpoints: dict[int, FileCheckpoint] = {}
        self._running: dict[int, Files] = {}  # by checkpoint, the files that it refers to
        self._completed: int | None = None
        self._lock = threading.Lock()

    def base(self) -> FileCheckpoint | None:
        """Return the last confirmed checkpoint, with those of its files that later ones do not store again.

        When a later one is confirmed, what only this one has is deleted.
        """
        if self._completed is None:
            return None
        base = self._checkpoints[self._completed]
        with self._lock:
            later = [one.files for number, one in self._checkpoints.items() if number > self._completed]
            running = list(self._running.values())
        files = {
            name: file
            for name, file in base.files.items()
            if all(files.get(name, file) == file for files in later)
            and all(files.get(name) == file for files in running)
        }
        return FileCheckpoint(base.time, files, base.dead) if files else None

    def begin(self, checkpoint_id: int, base: FileCheckpoint | None) -> None:
        """Begin a checkpoint, which stores all files that its base does not have."""
        with self._lock:
            self._running[checkpoint_id] = {} if base is None else base.files

    def add(self, checkpoint_id: int, checkpoint: FileCheckpoint) -> None:
        """Add a checkpoint that is stored, but not confirmed."""
        with self._lock:
            self._running.pop(checkpoint_id, None)
            self._checkpoints[checkpoint_id] = checkpoint

    def complete(self, checkpoint_id: int) -> None:
        """Confirm a checkpoint; ids of other snapshots, savepoints among them, are ignored."""
        with self._lock:
            if checkpoint_id in self._checkpoints and checkpoint_id > (self._completed or -1):
                self._completed = checkpoint_id
                self._checkpoints = {key: one for key, one in self._checkpoints.items() if key >= checkpoint_id}
                self._running = {key: files for key, files in self._running.items() if key > checkpoint_id}

    def abort(self, checkpoint_id: int) -> None:
        with self._lock:
            self._running.pop(checkpoint_id, None)
            if checkpoint_id != self._completed:
                self._checkpoints.pop(checkpoint_id, None)
