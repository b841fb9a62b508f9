"""`headrace gc` leaves files of one job that another job needs."""

import pytest
import typer.testing
from edge_kit import counted, files_below

from headrace.cli.main import app as command_line
from headrace.storage.published_snapshots import load_snapshot, require_intact
from headrace.storage.remote import open_store

INCREMENTAL = {
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}


# SPEC R8.4
@pytest.mark.parametrize("stopped", [[], ["--stopped"]])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("mode", ["CLAIM", "LEGACY"])
def test_files_of_a_claimed_checkpoint_that_increments_build_on_stay(cluster, mode, backend, stopped):
    options = INCREMENTAL | {"state.backend.type": backend}
    first = cluster.start(options=options)
    first.feed(100)
    first.checkpoint()
    first.cancel()
    assert first.wait() == "CANCELED"
    (old,) = cluster.checkpoints.iterdir()
    (checkpoint,) = old.glob("chk-*")
    second = cluster.start_from(checkpoint, options=options | {"execution.state-recovery.claim-mode": mode})
    for _ in range(3):
        second.feed(1)
        second.checkpoint()
    assert second.has_cleaned_up()
    second.kill_driver()
    (new,) = [path for path in cluster.checkpoints.iterdir() if path != old]
    (newest,) = new.glob("chk-*")
    typer.testing.CliRunner().invoke(command_line, ["gc", str(cluster.checkpoints), *stopped])
    require_intact(open_store(), load_snapshot(open_store(), str(newest)))
    resumed = cluster.resume(options=options)
    resumed.feed_rest()
    assert resumed.wait() == "FINISHED", resumed.error


# SPEC R8.1
@pytest.mark.parametrize("format", ["CANONICAL", "NATIVE"])
def test_a_savepoint_inside_the_directory_of_the_job_stays(cluster, format):
    job = cluster.start()
    job.feed(100)
    job.checkpoint()
    (directory,) = cluster.checkpoints.iterdir()
    savepoint = job.stop(directory, format=format)
    files = files_below(savepoint)
    resumed = cluster.resume()
    resumed.feed(10)
    resumed.checkpoint()
    typer.testing.CliRunner().invoke(command_line, ["gc", str(cluster.checkpoints)])
    resumed.feed_rest()
    assert resumed.wait() == "FINISHED"
    typer.testing.CliRunner().invoke(command_line, ["gc", str(cluster.checkpoints), "--stopped"])
    assert files_below(savepoint) == files


def test_gc_without_subdirectories(cluster):
    options = {"execution.checkpointing.create-subdir": "false"}
    job = cluster.start(options=options)
    job.feed(100)
    job.checkpoint()
    job.kill_driver()
    orphan = cluster.checkpoints / "chk-9" / "e1r0-v0-s0.state"
    orphan.parent.mkdir()
    orphan.write_bytes(b"left by a checkpoint that failed")
    typer.testing.CliRunner().invoke(command_line, ["gc", str(cluster.checkpoints), "--stopped"])
    assert not orphan.exists()


@pytest.mark.parametrize("stopped", [[], ["--stopped"]])
def test_gc_while_the_job_runs_harms_nothing(cluster, stopped):
    """Without --stopped; with it only what is complete must stay."""
    job = cluster.start(options=INCREMENTAL | {"execution.checkpointing.num-retained": "3"})
    for _ in range(5):
        job.feed(20)
        job.checkpoint()
        done = typer.testing.CliRunner().invoke(command_line, ["gc", str(cluster.checkpoints), *stopped])
        assert done.exit_code == 0, done.stdout
    job.kill_worker()
    job.feed_rest()
    assert job.wait() == "FINISHED", job.error
    assert cluster.visible() == counted(range(400))
