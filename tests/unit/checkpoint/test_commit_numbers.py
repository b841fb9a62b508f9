"""Commit numbers without a log, with storage 'jobmanager': as with one, they never come again."""

import pytest

from headrace import StreamExecutionEnvironment
from headrace.checkpoint.commits import NO_COMMITS, Commits
from headrace.checkpoint.settings import CheckpointProperties, CheckpointSettings
from headrace.checkpoint.store import CompletedCheckpoint
from headrace.checkpoint.types import SnapshotType
from headrace.config import Configuration
from headrace.driver.services import DriverIo
from headrace.driver.snapshots import JobSnapshots
from headrace.ids import new_job_id
from headrace.storage.checkpoints import publish
from headrace.storage.layout import AttemptId
from headrace.storage.manifest import Manifest
from headrace.storage.remote import open_store


def snapshots_of_job(**options):
    env = StreamExecutionEnvironment.local()
    env.from_sequence(1, 3).print()
    configuration = Configuration({"execution.checkpointing.storage": "jobmanager"} | options)
    return JobSnapshots(env._job_plan(), new_job_id(), configuration, DriverIo())


@pytest.fixture
def snapshots():
    return snapshots_of_job()


def checkpoint(id, number):
    retention = CheckpointSettings.from_configuration(Configuration()).retention
    return CompletedCheckpoint(id, 0, CheckpointProperties.for_checkpoint(retention), "", "", number)


@pytest.mark.parametrize("commits", [NO_COMMITS, Commits().add(6, 11).add(7, 12)])
def test_what_an_imported_snapshot_holds_has_a_number_of_its_own(tmp_path, commits):
    """Else the job's first epoch would have the number of the imported one, and be taken for committed."""
    manifest = Manifest(7, SnapshotType.SAVEPOINT, new_job_id(), "job", AttemptId(1), 0, commits=commits)
    publish(open_store(), manifest, str(tmp_path / "savepoint"))
    snapshots = snapshots_of_job(**{"execution.state-recovery.path": str(tmp_path / "savepoint")})
    imported = snapshots.step_back_to(checkpoint(7, None)).number_for(7)
    assert imported == (commits.last or 1)
    assert snapshots.claim(8, []).commit_number > imported
    assert snapshots.commits.number_for(7) == imported


def test_a_step_back_frees_no_number(snapshots):
    first, second = (snapshots.claim(id, []).commit_number for id in (1, 2))
    snapshots.step_back_to(checkpoint(1, first))
    assert snapshots.claim(3, []).commit_number > second
    assert snapshots.commits.number_for(2) == snapshots.commits.number_for(3)  # 2 did not happen
