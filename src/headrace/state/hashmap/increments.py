"""Which checkpoint the next one may build on, and what changed since (SPEC R7.4, for tables instead of files).

Each snapshot freezes the tables, so the layer that is frozen holds exactly what changed since the snapshot before: a
*generation*. An increment on checkpoint c is all generations after c, newest first. Confirming a checkpoint drops the
generations up to it; aborting one drops nothing, so its changes become part of the next increment.

The base must be confirmed, and every undecided checkpoint in between must refer to the base's segments too: otherwise
its completion could free them before the new checkpoint is registered. All of it runs in the subtask's thread, except
that a snapshot's thread sets `SegmentCheckpoint.segments`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.checkpoint.handles import KeyedStateHandle, Segment
from headrace.records.key_groups import KeyGroupRange
from headrace.state.hashmap.columns import TableChanges


@dataclass(slots=True)
class SegmentCheckpoint:
    """A checkpoint of this backend: its place in the sequence of snapshots and the payloads it consists of."""

    checkpoint_id: int
    sequence: int
    payloads: frozenset[str]
    segments: list[Segment] | None = None  # None until its run is done


@dataclass(slots=True)
class Generation:
    """The changes between two freezes, by state."""

    sequence: int
    layers: dict[Any, TableChanges] = field(default_factory=dict)

    def size(self) -> int:
        return sum(changes.size() for changes in self.layers.values())


class History:
    """The checkpoints of one backend: the confirmed one, the undecided ones, and the changes since."""

    def __init__(self) -> None:
        self.confirmed: SegmentCheckpoint | None = None
        self.undecided: dict[int, SegmentCheckpoint] = {}
        self.generations: list[Generation] = []
        self.sequence = 0

    @property
    def tracking(self) -> bool:
        """Return True if changes must be kept apart: some checkpoint is, or may become, a base."""
        return self.confirmed is not None or bool(self.undecided)

    def outgrown(self, live_entries: int) -> bool:
        """Return True if the changes that are kept outnumber the state itself, so that an increment makes no sense."""
        return sum(generation.size() for generation in self.generations) > live_entries

    def base_for(self, live_entries: int) -> SegmentCheckpoint | None:
        """Return the checkpoint that the next may build on; None: it must be full."""
        base = self.confirmed
        if base is None or base.segments is None:
            return None
        if any(not base.payloads <= checkpoint.payloads for checkpoint in self.undecided.values()):
            return None
        sizes = {segment.payload.id: (segment.increment, segment.payload.size) for segment in base.segments}
        full = sum(size for increment, size in sizes.values() if not increment)
        deltas = sum(size for increment, size in sizes.values() if increment)
        return None if deltas > full or self.outgrown(live_entries) else base

    def add(self, checkpoint_id: int, payloads: frozenset[str]) -> SegmentCheckpoint:
        """Record a checkpoint that is taken now; it may become a base."""
        checkpoint = self.undecided[checkpoint_id] = SegmentCheckpoint(checkpoint_id, self.sequence, payloads)
        return checkpoint

    def confirm(self, checkpoint_id: int) -> None:
        """Confirm a complete checkpoint; ids of other snapshots, and older ones, are ignored."""
        checkpoint = self.undecided.get(checkpoint_id)
        if checkpoint is None or checkpoint.segments is None:
            return
        self.confirmed = checkpoint
        self.undecided = {key: one for key, one in self.undecided.items() if one.sequence > checkpoint.sequence}
        self.generations = [one for one in self.generations if one.sequence > checkpoint.sequence]

    def abort(self, checkpoint_id: int) -> None:
        self.undecided.pop(checkpoint_id, None)

    def adopt(self, handles: list[KeyedStateHandle], groups: KeyGroupRange) -> None:
        """Treat a restored checkpoint as confirmed: of every old chain the part in this subtask's key groups."""
        chain = []
        for handle in handles:
            first, last = max(handle.first_group, groups.start), min(handle.last_group, groups.end)
            parts = [segment.clip(first, last) for segment in handle.segments] if first <= last else []
            chain += [part for part in parts if part is not None]
        payloads = frozenset(segment.payload.id for segment in chain)
        self.confirmed = SegmentCheckpoint(handles[0].checkpoint_id, self.sequence, payloads, chain)

    def forget(self) -> None:
        """Drop every base: the next checkpoint is full."""
        self.confirmed = None
        self.undecided.clear()
        self.generations.clear()
