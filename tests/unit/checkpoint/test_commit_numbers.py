"""Commit numbers without a log on storage, with storage 'jobmanager': as with one, no number is used again."""

import pytest

from headrace import StreamExecutionEnvironment
from headrace.checkpoint import events as ev
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.checkpoint.types import SnapshotType
from headrace.config import Configuration
from headrace.driver.job_snapshots import JobSnapshots
from headrace.driver.services import DriverIo
from headrace.ids import new_job_id
from headrace.storage.layout import AttemptId
from headrace.storage.manifest import Manifest
from headrace.storage.published_snapshots import publish
from headrace.storage.remote import open_store

PROPERTIES = CheckpointProperties.for_checkpoint(CheckpointSettings.from_configuration(Configuration()).retention)


class Rig:
    """The snapshots of a job that has just started."""

    def __init__(self, **options):
        env = StreamExecutionEnvironment.local()
        env.from_sequence(1, 3).print()
        configuration = Configuration({"execution.checkpointing.storage": "jobmanager"} | options)
        self.snapshots = JobSnapshots(env._job_plan(), new_job_id(), configuration, DriverIo())

    def complete(self, id):
        self.snapshots.publisher.publish(ev.Content(id, 1000, PROPERTIES, "", {}, {}, {}))
        return self.snapshots.publisher.claim(id, []).commit_number

    def step_back_to(self, id, number):
        return self.snapshots.step_back_to(CompletedCheckpoint(id, 0, PROPERTIES, "", "", number))


@pytest.mark.parametrize("commits", [NO_COMMITS, Commits().add(6, 11).add(7, 12)])
def test_the_committables_of_an_imported_snapshot_have_a_number_of_their_own(tmp_path, commits):
    """Else the job's first epoch would have the number of the imported one, and be taken for committed."""
    manifest = Manifest(7, SnapshotType.SAVEPOINT, new_job_id(), "job", AttemptId(1), 0, commits=commits)
    publish(open_store(), manifest, str(tmp_path / "savepoint"))
    rig = Rig(**{"execution.state-recovery.path": str(tmp_path / "savepoint")})
    imported = rig.step_back_to(7, None).number_for(7)
    assert imported == (commits.last or 1)
    assert rig.complete(8) > imported
    assert rig.snapshots.commits.number_for(7) == imported


def test_a_step_back_frees_no_number():
    rig = Rig()
    first, second = (rig.complete(id) for id in (1, 2))
    rig.step_back_to(1, first)
    assert rig.complete(3) > second
    assert rig.snapshots.commits.number_for(2) == rig.snapshots.commits.number_for(3)  # 2 did not happen
