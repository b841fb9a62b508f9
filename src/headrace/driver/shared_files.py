"""The registry of shared files of one job, for the threads of its driver."""

from __future__ import annotations

import threading

from headrace.checkpoint.settings import ClaimMode
from headrace.control.messages import TaskState
from headrace.storage import manifest as mf
from headrace.storage.shared import SharedStateRegistry, Unregistered


class SharedFiles:
    """A `SharedStateRegistry` behind a lock."""

    def __init__(self) -> None:
        self._registry = SharedStateRegistry()
        self._lock = threading.Lock()

    def register(self, checkpoint_id: int, state: TaskState) -> TaskState:
        """Note that a checkpoint uses the shared files of a subtask; return its state with placeholders replaced."""
        with self._lock:
            return {op: self._registry.register_pieces(op, pieces, checkpoint_id) for op, pieces in state.items()}

    def register_restored(self, manifest: mf.Manifest, mode: ClaimMode) -> None:
        """Register a retained checkpoint, or the snapshot that the job starts from."""
        with self._lock:
            self._registry.register_restored(manifest, mode)

    def has_keyed_parts(self, manifest: mf.Manifest) -> bool:
        """Return True if all keyed state of a snapshot is registered, so that increments may build on it."""
        with self._lock:
            return self._registry.has_keyed_parts(manifest)

    def unregister_unused(self, lowest_retained: int | None) -> Unregistered:
        """Drop the files that no checkpoint from this one on uses; None: that no checkpoint uses."""
        with self._lock:
            return self._registry.unregister_unused(1 << 62 if lowest_retained is None else lowest_retained)
