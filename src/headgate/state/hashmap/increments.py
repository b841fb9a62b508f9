"""Which checkpoint the next one may build on, and what changed since (SPEC R7.4, for tables instead of files).

Each snapshot freezes the tables, so the layer that is frozen holds exactly what changed since the snapshot before: a
*generation*. An increment on checkpoint c is all generations after c, newest first. Confirming a checkpoint drops the
generations up to it; aborting one drops nothing, so its changes are simply part of the next increment.

The base must be confirmed, and every undecided checkpoint in between must hold on to the base's segments too: otherwise
its completion could free them before the new checkpoint is registered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headgate.checkpoint.handles import KeyedStateHandle, Segment
from headgate.records.key_groups import KeyGroupRange
from headgate.state.hashmap.tables import Table

__all__ = ["Generation", "History", "Taken"]


@dataclass(slots=True)
class Taken:
    """A checkpoint that was taken: its place in the sequence of snapshots and the payloads it consists of."""

    checkpoint_id: int
    sequence: int
    payloads: frozenset[str]
    segments: list[Segment] | None = None  # None until its run is done


@dataclass(slots=True)
class Generation:
    """What changed between two freezes: by state, the frozen dict of each key group."""

    sequence: int
    layers: dict[Any, Any] = field(default_factory=dict)

    def size(self) -> int:
        """How many entries it holds."""
        return sum(len(table) for tables in self.layers.values() for table in tables)


class History:
    """The checkpoints of one backend: the confirmed one, the undecided ones, and the changes since."""

    def __init__(self) -> None:
        self.confirmed: Taken | None = None
        self.undecided: dict[int, Taken] = {}
        self.generations: list[Generation] = []
        self.sequence = 0

    @property
    def tracking(self) -> bool:
        """Whether changes must be kept apart: some checkpoint is, or may become, a base."""
        return self.confirmed is not None or bool(self.undecided)

    def outgrown(self, live_entries: int) -> bool:
        """Whether the changes that are kept outnumber the state itself, so that an increment makes no sense."""
        return sum(generation.size() for generation in self.generations) > live_entries

    def base_for(self, live_entries: int) -> Taken | None:
        """The checkpoint that the next may build on; None: it must be full."""
        base = self.confirmed
        if base is None or base.segments is None:
            return None
        if any(not base.payloads <= taken.payloads for taken in self.undecided.values()):
            return None
        sizes = {segment.payload.id: (segment.increment, segment.payload.size) for segment in base.segments}
        full = sum(size for increment, size in sizes.values() if not increment)
        deltas = sum(size for increment, size in sizes.values() if increment)
        return None if deltas > full or self.outgrown(live_entries) else base

    def changes_since(self, base: Taken) -> list[Generation]:
        """The generations after a checkpoint, newest first."""
        return [generation for generation in reversed(self.generations) if generation.sequence > base.sequence]

    def add(self, checkpoint_id: int, payloads: frozenset[str]) -> Taken:
        """A checkpoint was taken now; it may become a base."""
        taken = self.undecided[checkpoint_id] = Taken(checkpoint_id, self.sequence, payloads)
        return taken

    def confirm(self, checkpoint_id: int) -> None:
        """A checkpoint is complete; what is not ours, or older than the last one, is ignored."""
        taken = self.undecided.get(checkpoint_id)
        if taken is None or taken.segments is None:
            return
        self.confirmed = taken
        self.undecided = {key: one for key, one in self.undecided.items() if one.sequence > taken.sequence}
        self.generations = [one for one in self.generations if one.sequence > taken.sequence]

    def abort(self, checkpoint_id: int) -> None:
        """A checkpoint will not be complete."""
        self.undecided.pop(checkpoint_id, None)

    def adopt(self, handles: list[KeyedStateHandle], groups: KeyGroupRange) -> None:
        """Take a restored checkpoint for a confirmed one: of every old chain the part that lies in our groups."""
        chain = []
        for handle in handles:
            first, last = max(handle.first_group, groups.start), min(handle.last_group, groups.end)
            parts = [segment.clip(first, last) for segment in handle.segments] if first <= last else []
            chain += [part for part in parts if part is not None]
        payloads = frozenset(segment.payload.id for segment in chain)
        self.confirmed = Taken(handles[0].checkpoint_id, self.sequence, payloads, chain)

    def forget(self) -> None:
        """Give up every base: the next checkpoint is full."""
        self.confirmed = None
        self.undecided.clear()
        self.generations.clear()


def changed_entries(layers: list[Table]) -> Iterator[tuple[Any, Any]]:
    """The entries of a group's layers, newest first; the newest of each address counts, None is a removal."""
    if len(layers) == 1:
        return iter(layers[0].items())
    return _newest(layers)


def _newest(layers: list[Table]) -> Iterator[tuple[Any, Any]]:
    for depth, layer in enumerate(layers):
        newer = layers[:depth]
        for address, stored in layer.items():
            if not any(address in other for other in newer):
                yield address, stored
