"""The job log of a job that stores nothing in files (storage 'jobmanager'): it ends with the driver's process."""

from __future__ import annotations

from collections.abc import Collection

from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.storage.layout import AttemptId
from headrace.storage.log import CommitNumber, CompletedRef
from headrace.storage.published_snapshots import Snapshot


class MemoryLog:
    """The interface of `JobLog` without a store: no other driver can take the job over, and no claim gets lost.

    As in a `JobLog`, a commit number is never used again, whatever is stepped back over.

    >>> log = MemoryLog(Commits().add(7, 12), numbers_after=12)
    >>> log.next_number, log.commits.number_for(7)
    (13, 12)
    """

    def __init__(self, commits: Commits = NO_COMMITS, numbers_after: int = 0) -> None:
        """`commits` are the completions of the job that an imported snapshot is from; its numbers end at `numbers_after`."""
        self._commits, self._numbers_after, self._last_number = commits, numbers_after, numbers_after

    def attempt(self, restart: int) -> AttemptId:
        """Return the attempt after this number of restarts."""
        return AttemptId(1, restart)

    @property
    def commits(self) -> Commits:
        """The last completions, without those dropped by a step back."""
        return self._commits

    @property
    def next_number(self) -> CommitNumber:
        """The commit number of the next completion."""
        return CommitNumber(self._last_number + 1)

    def step_back_to(self, number: int | None) -> None:
        """Drop completions after a number; None: keep only those of the imported snapshot."""
        self._commits = self._commits.up_to(self._numbers_after if number is None else number)

    def complete(self, snapshot: Snapshot, subsumed: Collection[CommitNumber] = ()) -> CompletedRef:
        """Complete a checkpoint; its `commit` is the commit number."""
        ref = CompletedRef(snapshot.manifest.checkpoint_id, self.next_number, snapshot.directory, snapshot.crc32)
        self._last_number = ref.commit
        self._commits = self._commits.add(ref.checkpoint_id, ref.commit)
        return ref

    def end(self, status: str, discarded: Collection[int]) -> None:
        """Record nothing: no driver resumes this job."""

    def settle(self) -> CompletedRef | None:
        """Return None: no claim gets lost."""

    def check_leading(self) -> None:
        """Return: no other driver knows this job."""
