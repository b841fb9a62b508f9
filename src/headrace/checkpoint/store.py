"""Which completed checkpoints are kept when a newer one completes and when the job ends (SPEC R5.8). Pure, on the driver.

The store only decides: the coordinator has the files deleted later, and shared files by the rule of R7.5.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.checkpoint.settings import CheckpointProperties, EndStatus
from headrace.errors import IllegalState, InvalidArgument


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that a job can be restored from; its content is where `pointer` says.

    `commit_number` is its place in the job log, None if it belongs to another job. `chain_length` is the number of
    checkpoints whose files it needs, itself included. `imported`: the job was started from it, another one made it.
    """

    id: int
    timestamp: int
    properties: CheckpointProperties
    location: str
    pointer: str
    commit_number: int | None = None
    state_size: int = 0
    chain_length: int = 1
    imported: bool = False


class CheckpointStore:
    """The newest completed checkpoints, oldest first.

    >>> from headrace.checkpoint.settings import RetentionPolicy
    >>> properties = CheckpointProperties.for_checkpoint(RetentionPolicy.RETAIN_ON_FAILURE)
    >>> store = CheckpointStore(num_retained=1)
    >>> [store.add(CompletedCheckpoint(i, 0, properties, "", "")) for i in (1, 2)][1][0].id
    1
    """

    def __init__(self, num_retained: int, recovered: Sequence[CompletedCheckpoint] = ()) -> None:
        """`recovered` are those that an earlier driver of the job left; superfluous ones are subsumed by the next one added."""
        if num_retained < 1:
            raise InvalidArgument("HR-1001", f"at least one completed checkpoint must be retained, got {num_retained}")
        self._num_retained = num_retained
        self._checkpoints = sorted(recovered, key=lambda checkpoint: checkpoint.id)
        self._ended = False

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        """Oldest first."""
        return tuple(self._checkpoints)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The one to restore from."""
        return self._checkpoints[-1] if self._checkpoints else None

    def find(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        """The checkpoint of this id, if it is kept."""
        return next((c for c in self._checkpoints if c.id == checkpoint_id), None)

    def subsumed_by(self, properties: CheckpointProperties) -> list[CompletedCheckpoint]:
        """Return the checkpoints that a new one with these properties would subsume, oldest first.

        The newest always stays, and so does the newest that is no savepoint, because the next increment builds on it;
        unless the job stops with the new one.
        """
        all_properties = [*(checkpoint.properties for checkpoint in self._checkpoints), properties]
        base = max((place for place, p in enumerate(all_properties) if not p.is_savepoint), default=None)
        excess = max(0, len(all_properties) - self._num_retained)
        superfluous = (c for place, c in enumerate(self._checkpoints) if place != base or properties.is_synchronous)
        return list(itertools.islice(superfluous, excess))

    def add(self, checkpoint: CompletedCheckpoint) -> list[CompletedCheckpoint]:
        """Keep a checkpoint; returns those that it subsumes. Their properties decide whether their files are deleted."""
        if self._ended:
            raise IllegalState("the checkpoint store is closed: the job has ended")
        subsumed = self.subsumed_by(checkpoint.properties)
        self._checkpoints = [c for c in self._checkpoints if c not in subsumed]
        self._checkpoints.append(checkpoint)
        return subsumed

    def step_back(self, checkpoint_id: int) -> list[CompletedCheckpoint]:
        """Drop everything newer than this one, which the job was restored from; returns what was dropped."""
        place = next((i for i, c in enumerate(self._checkpoints) if c.id == checkpoint_id), None)
        if place is None:
            kept = ", ".join(str(c.id) for c in self._checkpoints) or "none"
            raise InvalidArgument("HR-3010", f"checkpoint {checkpoint_id} is not kept any more; kept are: {kept}")
        newer = self._checkpoints[place + 1 :]
        del self._checkpoints[place + 1 :]
        return newer

    def end(self, status: EndStatus) -> tuple[list[CompletedCheckpoint], list[CompletedCheckpoint]]:
        """Close the store; returns the checkpoints that are deleted, and those that outlive the job."""
        self._ended = True
        discard = [c for c in self._checkpoints if status in c.properties.discard_at]
        retained = [c for c in self._checkpoints if c not in discard]
        self._checkpoints = []
        return discard, retained
