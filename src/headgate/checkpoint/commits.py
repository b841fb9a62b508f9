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

    def up_to(self, number: int | None) -> Commits:
        """Those up to a number: later ones were dropped by a step back. None: none at all."""
        return Commits(tuple(pair for pair in self.pairs if number is not None and pair[1] <= number))

    def number_for(self, checkpoint_id: int) -> int | None:
        """The number for what was prepared for a checkpoint; None if no such checkpoint is complete yet."""
        return next((number for done, number in self.pairs if done >= checkpoint_id), None)


NO_COMMITS = Commits()
