"""The commit numbers of the last completed checkpoints, which the driver sends to every subtask that commits.

A subtask may be notified of a completed checkpoint late, or only of the next one; after a failure it commits again what
the restored checkpoint holds. What was prepared for checkpoint c is always committed under the number of the first
completed checkpoint from c on, so a committer needs the last completions, not only the newest.
"""

from __future__ import annotations

import msgspec

_REMEMBERED = 64


class Commits(msgspec.Struct, frozen=True, array_like=True):
    """The last completed checkpoints, oldest first: (checkpoint id, commit number).

    >>> commits = Commits().add(1, 2).add(3, 5)
    >>> commits.number_for(1), commits.number_for(2), commits.number_for(4)
    (2, 5, None)
    """

    pairs: tuple[tuple[int, int], ...] = ()

    def add(self, checkpoint_id: int, number: int) -> Commits:
        """A copy with one more."""
        return Commits((*self.pairs, (checkpoint_id, number))[-_REMEMBERED:])

    def including(self, checkpoint_id: int, number: int) -> Commits:
        """Those before a checkpoint, and itself under the number for what it holds: this one, if none is complete yet."""
        earlier = tuple(pair for pair in self.pairs if pair[0] < checkpoint_id)
        return Commits(earlier).add(checkpoint_id, self.number_for(checkpoint_id) or number)

    @property
    def last(self) -> int:
        """The highest number; 0 if there is none."""
        return self.pairs[-1][1] if self.pairs else 0

    def up_to(self, number: int) -> Commits:
        """Those up to a number: later ones were dropped by a step back."""
        return Commits(tuple(pair for pair in self.pairs if pair[1] <= number))

    def number_for(self, checkpoint_id: int) -> int | None:
        """The number for what was prepared for a checkpoint; None if no such checkpoint is complete yet."""
        return next((number for done, number in self.pairs if done >= checkpoint_id), None)


NO_COMMITS = Commits()
