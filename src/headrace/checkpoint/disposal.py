"""The deletion of a job's checkpoints (SPEC R5.8, R7.5). Part of the coordinator: pure, on the driver.

The files of a checkpoint that is not complete are deleted once all of this is true:

    it was aborted                            before, it may still become complete
    no write to it is under way               deleting would race with the write
    tasks that leave have left                they may write files after the abort
    it is not kept                            its metadata or its log entry may exist after a write without an answer

Those of a completed checkpoint stay while it is in the store. Then its properties decide whether they are deleted or kept
for the user; the folder of an imported snapshot is deleted when no checkpoint uses a file in it any more. Shared files
are released: deleted when no checkpoint from a certain id on uses them.

The coordinator reports facts; each method returns the instructions that have become possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.checkpoint import events as ev
from headrace.checkpoint.plan import TaskId
from headrace.checkpoint.settings import EndStatus
from headrace.checkpoint.store import CheckpointStore, CompletedCheckpoint
from headrace.checkpoint.types import SnapshotType


@dataclass(slots=True)
class _Incomplete:
    """The files of a checkpoint that is not complete."""

    type: SnapshotType
    attempt: int | None
    location: str | None = None
    snapshot: Any = None  # of the metadata, once they are written
    writing: bool = True  # the directory or the metadata
    aborted: bool = False
    tasks_leave: bool = False

    @property
    def may_go(self) -> bool:
        return self.aborted and not self.writing and not self.tasks_leave


class Disposal:
    """Decides what is deleted of the checkpoints of one job.

    >>> from headrace.checkpoint.store import CheckpointStore
    >>> disposal = Disposal(CheckpointStore(num_retained=1))
    >>> disposal.begin(7, SnapshotType.CHECKPOINT, attempt=0)
    >>> disposal.abort(7, tasks_leave=False)  # its directory is being made
    []
    >>> [discard.location for discard in disposal.location_ready(7, "chk-7")]
    ['chk-7']
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._incomplete: dict[int, _Incomplete] = {}
        self._kept: set[int] = set()  # not the job's to delete any more: savepoints above all
        self._folders: dict[int, CompletedCheckpoint] = {}  # imported and given up, perhaps with files still in use
        self._deleting: set[int] = set()
        self._released: int | None = None
        self._release_at_end: ev.ReleaseShared | None = None

    @property
    def cleaning(self) -> int:
        """The number of checkpoints whose files are being deleted."""
        return len(self._deleting)

    def is_protected(self, checkpoint_id: int) -> bool:
        """Return True if this job or its user may still need files of the checkpoint."""
        incomplete = self._incomplete.get(checkpoint_id)
        return (
            checkpoint_id in self._kept
            or checkpoint_id in self._folders
            or (incomplete is not None and not incomplete.aborted)
            or self._store.find(checkpoint_id) is not None
        )

    # ---- a checkpoint that is not complete -------------------------------------------------------------------------

    def begin(self, checkpoint_id: int, type: SnapshotType, attempt: int | None) -> None:
        """The directory of a new checkpoint is being made."""
        self._incomplete[checkpoint_id] = _Incomplete(type, attempt)

    def location_ready(self, checkpoint_id: int, location: str) -> list[ev.Instruction]:
        """The directory is there."""
        incomplete = self._incomplete.get(checkpoint_id)
        if incomplete is not None:
            incomplete.writing, incomplete.location = False, location
        return self._discard_incomplete()

    def write_metadata(self, checkpoint_id: int) -> None:
        """The metadata are being written."""
        self._incomplete[checkpoint_id].writing = True

    def metadata_written(self, checkpoint_id: int, snapshot: Any) -> list[ev.Instruction]:
        """The metadata are on storage."""
        incomplete = self._incomplete.get(checkpoint_id)
        if incomplete is not None:
            incomplete.writing, incomplete.snapshot = False, snapshot
        return self._discard_incomplete()

    def step_failed(self, checkpoint_id: int, *, outcome_unknown: bool) -> list[ev.Instruction]:
        """A write or a claim failed; if the outcome is unknown, what it was to create may exist, and the files are kept."""
        incomplete = self._incomplete.get(checkpoint_id)
        if incomplete is not None:
            incomplete.writing = False
            if outcome_unknown:
                self.keep([checkpoint_id])
        return self._discard_incomplete()

    def abort(self, checkpoint_id: int, *, tasks_leave: bool) -> list[ev.Instruction]:
        """The checkpoint will not be completed; `tasks_leave`: tasks that end write to it until they have left."""
        incomplete = self._incomplete.get(checkpoint_id)
        if incomplete is not None:
            incomplete.aborted, incomplete.tasks_leave = True, tasks_leave
        return self._discard_incomplete()

    def tasks_left(self) -> list[ev.Instruction]:
        """The tasks of an attempt have left and write no more."""
        for incomplete in self._incomplete.values():
            incomplete.tasks_leave = False
        return self._discard_incomplete()

    def late_part(self, checkpoint_id: int, task: TaskId, state: Any) -> list[ev.Instruction]:
        """A task has written its part of a checkpoint that was over."""
        if self.is_protected(checkpoint_id):
            return []
        discard = ev.DiscardFiles(checkpoint_id, task, state)
        # The job may have released its shared files for the last time: those of this part came afterwards.
        return [discard] if self._release_at_end is None else [discard, self._release_at_end]

    def _discard_incomplete(self) -> list[ev.Instruction]:
        found: list[ev.Instruction] = []
        for checkpoint_id, incomplete in [item for item in self._incomplete.items() if item[1].may_go]:
            del self._incomplete[checkpoint_id]
            if incomplete.location is not None:  # otherwise no directory was made
                type, attempt, snapshot = incomplete.type, incomplete.attempt, incomplete.snapshot
                discard = ev.DiscardCheckpoint(checkpoint_id, incomplete.location, type, False, attempt, snapshot)
                found.append(self._discard(discard))
        return found

    # ---- a completed checkpoint ------------------------------------------------------------------------------------

    def complete(self, checkpoint_id: int, *, savepoint: bool) -> None:
        """The checkpoint is complete: in the store, or a savepoint, which belongs to the user."""
        self._incomplete.pop(checkpoint_id, None)
        if savepoint:
            self.keep([checkpoint_id])

    def keep(self, checkpoint_ids: Iterable[int]) -> None:
        """Never delete these checkpoints."""
        for checkpoint_id in checkpoint_ids:
            self._kept.add(checkpoint_id)
            self._incomplete.pop(checkpoint_id, None)

    def subsume(self, checkpoints: Iterable[CompletedCheckpoint]) -> list[ev.Instruction]:
        """These checkpoints have left the store because of a newer one."""
        found: list[ev.Instruction] = []
        for checkpoint in checkpoints:
            if checkpoint.properties.discard_subsumed:
                found += self._discard_completed(checkpoint)
            else:
                self.keep([checkpoint.id])
        return found

    def release(self, bases: Iterable[int]) -> list[ev.Instruction]:
        """Release the shared files that neither the store nor a checkpoint that builds on one of `bases` can need."""
        # A pending checkpoint may use files of its base which its acknowledgements have yet to name.
        lowest = min([*bases, *(checkpoint.id for checkpoint in self._store.checkpoints)])
        if self._released is not None and lowest <= self._released:
            return []
        self._released = lowest
        return [ev.ReleaseShared(lowest)]

    def end(
        self, status: EndStatus, discard: Sequence[CompletedCheckpoint], retained: Sequence[CompletedCheckpoint]
    ) -> list[ev.Instruction]:
        """The job has ended, and the store is closed: these checkpoints were to be deleted, those outlive the job."""
        self.keep(checkpoint.id for checkpoint in retained)
        found = [instruction for checkpoint in discard for instruction in self._discard_completed(checkpoint)]
        if status.is_terminal:  # otherwise another driver may resume the job
            self._release_at_end = ev.ReleaseShared(min((checkpoint.id for checkpoint in retained), default=None))
            found.append(self._release_at_end)
        return found

    def _discard_completed(self, checkpoint: CompletedCheckpoint) -> list[ev.Instruction]:
        if checkpoint.imported:
            self._folders[checkpoint.id] = checkpoint
            return []
        return [self._discard(_discard_of(checkpoint))]

    # ---- answers ---------------------------------------------------------------------------------------------------

    def discarded(self, checkpoint_id: int) -> None:
        """The files are deleted, or left for `headrace gc`."""
        self._deleting.discard(checkpoint_id)

    def shared_released(self, still_in_use: frozenset[int]) -> list[ev.Instruction]:
        """Shared files were released: delete the folders of imported snapshots of which no file is used any more."""
        free = [checkpoint_id for checkpoint_id in self._folders if checkpoint_id not in still_in_use]
        return [self._discard(_discard_of(self._folders.pop(checkpoint_id))) for checkpoint_id in free]

    def _discard(self, instruction: ev.DiscardCheckpoint) -> ev.Instruction:
        assert not self.is_protected(instruction.checkpoint_id), instruction
        self._deleting.add(instruction.checkpoint_id)
        return instruction


def _discard_of(checkpoint: CompletedCheckpoint) -> ev.DiscardCheckpoint:
    return ev.DiscardCheckpoint(checkpoint.id, checkpoint.location, checkpoint.properties.type, completed=True)
