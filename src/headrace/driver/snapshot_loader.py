"""The metadata of snapshots, and what it refers to, as the driver reads them. Called by its I/O threads."""

from __future__ import annotations

from collections.abc import Callable

from headrace.api.sink import Prepared
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.control.operator_state import operator_state_of, prepared_in
from headrace.driver.services import DriverIo
from headrace.errors import StorageError
from headrace.ids import OperatorId
from headrace.state.operator import OperatorStateBackend, rescale
from headrace.storage import manifest as mf
from headrace.storage.objects import MissingObject, ObjectStore
from headrace.storage.published_snapshots import Snapshot, load_snapshot
from headrace.storage.reader import SnapshotReader

_TRIES = 5
_PAUSE_SECONDS = 1.0


class SnapshotLoader:
    """The snapshots of one job: those that this driver has published or imported, and those on storage."""

    def __init__(self, store: ObjectStore, io: DriverIo) -> None:
        self._store, self._io = store, io
        self._known: dict[int, Snapshot] = {}
        self._prefetched: dict[int, Snapshot] = {}
        self._damaged: dict[int, StorageError] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Remember a snapshot that this driver has published or imported."""
        self._known[snapshot.manifest.checkpoint_id] = snapshot

    def remove(self, checkpoint_id: int) -> Snapshot | None:
        """Forget a snapshot, which is returned if it was remembered."""
        return self._known.pop(checkpoint_id, None)

    def published(self, checkpoint_id: int) -> Snapshot:
        """Return a snapshot that this driver has published or imported."""
        return self._known[checkpoint_id]

    def prefetch(self, snapshot: Snapshot) -> None:
        """Keep a snapshot that was read at the start of the job until the first `load`."""
        self._prefetched[snapshot.manifest.checkpoint_id] = snapshot

    # --- choosing the snapshot to restore ---------------------------------------------------------------------------

    def mark_damaged(self, checkpoint_id: int, damage: StorageError) -> None:
        """Let `load` refuse a checkpoint from now on."""
        self._damaged[checkpoint_id] = damage

    def is_damaged(self, checkpoint_id: int) -> bool:
        """Return True if a checkpoint is known to be damaged: it is not restored any more."""
        return checkpoint_id in self._damaged

    def load(self, checkpoint: CompletedCheckpoint) -> Snapshot:
        """Load the metadata of a completed checkpoint; CorruptState or MissingObject if it, or a file of it, is damaged.

        Files are not read here: a checkpoint may have hundreds of thousands of them. Workers verify what they restore.
        """
        prefetched = self._prefetched.get(checkpoint.id)
        self._prefetched.clear()
        if checkpoint.id not in self._damaged:
            if prefetched is not None:
                return prefetched
            if not checkpoint.location:
                return self._known[checkpoint.id]
            try:
                return load_patiently(lambda: load_snapshot(self._store, checkpoint.pointer), self._io)
            except (CorruptState, MissingObject) as error:
                self._damaged[checkpoint.id] = error
        raise self._damaged[checkpoint.id]

    def look_up(self, checkpoint: CompletedCheckpoint) -> Snapshot:
        """Return the metadata of a completed checkpoint; may be called by any thread, which may have to wait."""
        found = self._known.get(checkpoint.id)
        return load_snapshot(self._store, checkpoint.pointer) if found is None else found

    # --- reading the content of a snapshot --------------------------------------------------------------------------

    def driver_states(self, manifest: mf.Manifest) -> dict[OperatorId, bytes]:
        """Read the state of the parts of operators that run on the driver."""
        reader = SnapshotReader(self._store)
        return {op.id: reader.read(op.coordinator) for op in manifest.operators if op.coordinator is not None}

    def prepared(self, manifest: mf.Manifest, operator_id: str) -> list[Prepared]:
        """Read the committables that the subtasks of a sink had prepared at a checkpoint, the oldest first."""
        return prepared_of(self._store, manifest, operator_id)


def load_patiently(load: Callable[[], Snapshot], io: DriverIo) -> Snapshot:
    """Load a snapshot, and try again before giving up: storage that does not answer says nothing about a checkpoint."""
    for _ in range(_TRIES - 1):
        try:
            return load()
        except (CorruptState, MissingObject):
            raise
        except StorageError:
            io.pause(_PAUSE_SECONDS)
    return load()


def prepared_of(store: ObjectStore, manifest: mf.Manifest, operator_id: str) -> list[Prepared]:
    """Read the committables that the subtasks of a sink had prepared at a checkpoint, the oldest first."""
    reader = SnapshotReader(store)
    for operator in manifest.operators:
        if operator.id == operator_id:
            left = [operator_state_of(reader, subtask.pieces) for subtask in operator.subtasks]
            return prepared_in(OperatorStateBackend(operator.name, rescale(left, 1)[0]))
    return []
