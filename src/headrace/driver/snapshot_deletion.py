"""Deletes the files of checkpoints that the coordinator has released. Called by the I/O threads of the driver.

Before each deletion the job log is asked if this driver still leads: another one that has taken the job over may need
the files. SupersededError is raised then.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.checkpoint import events as ev
from headrace.checkpoint.settings import ClaimMode
from headrace.control.messages import TaskState
from headrace.driver.resume import Start
from headrace.driver.shared_files import SharedFiles
from headrace.driver.snapshot_loader import SnapshotLoader
from headrace.storage.byte_handles import FileSegment
from headrace.storage.layout import is_inside
from headrace.storage.objects import ObjectStore
from headrace.storage.published_snapshots import (
    delete_each,
    discard_checkpoint,
    discard_claimed,
    discard_pending,
    load_snapshot,
)


class SnapshotDeletion:
    """Deletes files of one job; `mode` says if the files of the snapshot that it began with belong to it."""

    def __init__(
        self, start: Start, mode: ClaimMode, store: ObjectStore, shared: SharedFiles, loader: SnapshotLoader
    ) -> None:
        self._start, self._mode, self._store, self._shared, self._loader = start, mode, store, shared, loader
        self._lock = threading.Lock()
        self._undeleted: list[str] = []  # shared files that are not needed any more, but could not be deleted yet

    def discard_part(self, state: TaskState) -> None:
        """Delete the private files of the state that one subtask has written."""
        self._start.log.check_leading()
        parts = (part for pieces in state.values() for piece in pieces for part in piece.parts)
        private = (p.handle.path for p in parts if isinstance(p.handle, FileSegment) and not p.shared)
        delete_each(self._store, dict.fromkeys(private))

    def discard(self, do: ev.DiscardCheckpoint) -> ev.Discarded:
        """Delete a checkpoint, completed or not; shared files stay until they are released."""
        published, layout = self._loader.remove(do.checkpoint_id), self._start.layout
        if not do.location:
            return ev.Discarded(do.checkpoint_id)
        self._start.log.check_leading()
        if do.completed and layout is not None and do.location == layout.checkpoint(do.checkpoint_id):
            discard_checkpoint(self._store, layout, do.checkpoint_id)
        elif do.completed:
            discard_claimed(self._store, published or load_snapshot(self._store, do.location))
        elif do.type.is_savepoint:
            discard_pending(self._store, do.location, None)
        else:
            assert do.attempt is not None, "an aborted checkpoint has the attempt that wrote it"
            discard_pending(self._store, do.location, self._start.log.attempt(do.attempt), do.snapshot)
        return ev.Discarded(do.checkpoint_id)

    def release(self, lowest_retained: int | None) -> tuple[tuple[str, ...], frozenset[int]]:
        """Return the shared files that no retained checkpoint needs any more, and the claimed savepoints that are needed.

        Files of other jobs stay, unless CLAIM gave them to this one.
        """
        freed, layout = self._shared.unregister_unused(lowest_retained), self._start.layout
        paths = freed.delete
        if layout is not None and self._mode is not ClaimMode.CLAIM:
            paths = tuple(path for path in paths if is_inside(path, layout.job))
        with self._lock:
            paths, self._undeleted = (*self._undeleted, *paths), []
        return paths, freed.in_use

    def delete(self, paths: Sequence[str], in_use: frozenset[int]) -> frozenset[int]:
        """Delete shared files; give `in_use` back. A file that cannot be deleted is tried again with the next release."""
        self._start.log.check_leading()
        failed = delete_each(self._store, paths)
        with self._lock:
            self._undeleted += failed
        return in_use
