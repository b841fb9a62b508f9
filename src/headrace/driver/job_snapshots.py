"""The snapshots of a job on storage, or in the driver's memory: the parts that start, publish, load and delete them."""

from __future__ import annotations

from headrace import config
from headrace.checkpoint import events as ev
from headrace.checkpoint.commits import Commits
from headrace.checkpoint.settings import ClaimMode
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.config import Configuration
from headrace.driver.publisher import Publisher
from headrace.driver.resume import JobStarter, Start, size_of_state
from headrace.driver.services import DriverIo
from headrace.driver.shared_files import SharedFiles
from headrace.driver.snapshot_deletion import SnapshotDeletion
from headrace.driver.snapshot_loader import SnapshotLoader
from headrace.graph.plan import JobPlan
from headrace.ids import JobId
from headrace.storage import manifest as mf
from headrace.storage.published_snapshots import Snapshot
from headrace.storage.storage_settings import StorageSettings


class JobSnapshots:
    """Starts the log of a job, and makes the parts that work on its snapshots."""

    def __init__(self, plan: JobPlan, job_id: JobId, configuration: Configuration, io: DriverIo) -> None:
        store = io.open_store(StorageSettings.of(configuration))
        self._mode = ClaimMode(configuration.get(config.RECOVERY_CLAIM_MODE))
        self.start: Start = JobStarter(plan.name, configuration, store, io).start(job_id)
        self.shared = SharedFiles()
        self.loader = SnapshotLoader(store, io)
        self.publisher = Publisher(plan, self.start, configuration, store, io, self.shared, self.loader)
        self.deletion = SnapshotDeletion(self.start, self._mode, store, self.shared, self.loader)
        for one in self.start.retained:
            if not isinstance(one.loaded, Snapshot):
                self.loader.mark_damaged(one.checkpoint.id, one.loaded)
                continue
            self.loader.prefetch(one.loaded)
            if one.claimed:
                self.shared.register_restored(one.loaded.manifest, ClaimMode.CLAIM)

    def import_named(self) -> ev.SnapshotImported | None:
        """Take over the snapshot that the user names to start from, if any (SPEC R8.4)."""
        snapshot = self.start.imported
        if snapshot is None:
            return None
        manifest, where = snapshot.manifest, snapshot.directory
        self.loader.add(snapshot)
        self.loader.prefetch(snapshot)
        self.shared.register_restored(manifest, self._mode)
        return ev.SnapshotImported(
            manifest.checkpoint_id, where, where, self._mode, size_of_state(manifest), mf.chain_length(manifest)
        )

    @property
    def commits(self) -> Commits:
        """The completions under whose numbers the committables of subtasks are committed."""
        return self.start.log.commits

    def step_back_to(self, checkpoint: CompletedCheckpoint) -> Commits:
        """Drop the completions after a checkpoint that is restored: they are history that did not happen.

        The committables in a snapshot of another job have the numbers of that job, whenever it is restored.
        """
        self.start.log.step_back_to(checkpoint.commit_number)
        return self.commits
