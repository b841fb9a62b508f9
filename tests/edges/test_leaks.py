"""Nothing is left behind: neither on storage nor on the workers' disks."""

import pytest
from edge_kit import (
    LedgerSink,
    Numbers,
    check_whole,
    eventually,
    fail_one_delete,
    files,
    hold_creation,
    hold_state_files,
    in_background,
    job_directory,
    local_state_directory,
    lose_reply,
    numbering,
    set_worker_clock_ahead,
    wait_ended,
    wait_running,
    was_unaligned,
)

from headrace.errors import HeadraceError

# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_being_written_when_the_job_ends_is_deleted(jobs, tap, ledger, tmp_path, monkeypatch):
    client = wait_running(jobs.start(tmp_path, numbering(tap, ledger)))
    tap.give(10)
    held = hold_creation(monkeypatch, "chk-1/_metadata")
    in_background(client.trigger_checkpoint)
    assert held.reached.wait(60)
    cancelling = in_background(client.cancel)
    eventually(lambda: client.get_job_status().is_terminal, 1)
    held.release()
    cancelling.join()
    assert wait_ended(client)[0] == "CANCELED"
    eventually(lambda: not files(tmp_path), 1)
    assert files(tmp_path) == []


def test_a_part_of_a_checkpoint_that_is_written_when_the_job_has_failed_is_deleted(
    jobs, tap, ledger, tmp_path, monkeypatch
):
    client = wait_running(jobs.start(tmp_path, numbering(tap, ledger)))
    tap.give(10)
    held = hold_state_files(monkeypatch, "/chk-1")
    in_background(client.trigger_checkpoint)
    assert held.reached.wait(60)
    tap.fail()
    eventually(lambda: client.get_job_status().is_terminal, 3)
    held.release()
    assert wait_ended(client)[0] == "FAILED"
    eventually(lambda: files(tmp_path), 1)
    eventually(lambda: not files(tmp_path), 1)
    assert files(tmp_path) == []


def test_nothing_of_a_claimed_savepoint_is_left_when_the_job_has_finished(jobs, tap, ledger, tmp_path):
    client = wait_running(jobs.start(tmp_path / "first", numbering(tap, ledger)))
    tap.give(10)
    savepoint = client.stop_with_savepoint(savepoint_directory=str(tmp_path / "savepoints"))
    options = {"execution.state-recovery.path": savepoint, "execution.state-recovery.claim-mode": "CLAIM"}
    client = jobs.start(tmp_path / "second", numbering(tap, ledger), options)
    tap.let(20)
    tap.close()
    assert wait_ended(client) == ("FINISHED", None)
    assert files(tmp_path / "second") == []
    assert files(tmp_path / "savepoints") == []


def test_one_failed_delete_leaves_one_file(jobs, tap, ledger, tmp_path, monkeypatch):
    options = {"execution.checkpointing.incremental": "true"}
    client = wait_running(jobs.start(tmp_path, numbering(tap, ledger), options, parallelism=3))
    for count in (20, 40, 60):
        tap.give(count)
        client.trigger_checkpoint()
    failed = fail_one_delete(monkeypatch, "/shared/")
    tap.close()
    assert wait_ended(client) == ("FINISHED", None)
    assert len(failed) == 1
    assert set(files(tmp_path)) <= {failed[0].removeprefix(f"{tmp_path}/")}


def test_metadata_that_may_have_been_written_names_files_that_are_there(jobs, tap, ledger, tmp_path, monkeypatch):
    options = {"execution.checkpointing.tolerable-failed-checkpoints": "10"}
    client = wait_running(jobs.start(tmp_path, numbering(tap, ledger), options))
    tap.give(10)
    assert lose_reply(monkeypatch, "chk-1/_metadata") == []
    with pytest.raises(HeadraceError):
        client.trigger_checkpoint()
    client.trigger_checkpoint()
    eventually(lambda: not (job_directory(tmp_path) / "chk-1").exists(), 1)
    for metadata in tmp_path.rglob("_metadata"):
        check_whole(metadata.parent)


# --- staged output ----------------------------------------------------------------------------------------------------


def test_staged_records_are_deleted_at_the_end_of_a_job_that_could_not_be_stopped_before(jobs, tap, tmp_path):
    epochs = []

    def build(env):
        rows = env.from_source(Numbers(tap.name)).map(lambda n: (n,), output_type="n bigint")
        rows.foreach_epoch(lambda frame, number: epochs.append(frame.num_rows))

    client = wait_running(jobs.start(tmp_path / "checkpoints", build))
    tap.give(10)
    client.trigger_checkpoint()
    (tmp_path / "a file").touch()
    with pytest.raises(HeadraceError):
        client.stop_with_savepoint(savepoint_directory=str(tmp_path / "a file"))
    (staging,) = (job_directory(tmp_path / "checkpoints") / "taskowned").iterdir()
    (staging / "part-0-left.parquet").write_bytes(b"of a worker that died before its checkpoint")
    tap.close()
    assert wait_ended(client) == ("FINISHED", None)
    assert sum(epochs) == 10
    assert files(tmp_path / "checkpoints") == []


# --- workers' disks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["FINISHED", "CANCELED", "FAILED"])
def test_no_local_state_is_left_when_the_job_has_ended(jobs, tap, ledger, tmp_path, end):
    local = tmp_path / "local"
    options = {"state.backend.type": "rocksdb", "io.tmp.dirs": str(local)}
    client = wait_running(jobs.start(tmp_path / "checkpoints", numbering(tap, ledger), options))
    tap.give(10)
    {"FINISHED": tap.close, "CANCELED": client.cancel, "FAILED": tap.fail}[end]()
    assert wait_ended(client)[0] == end
    eventually(lambda: not list(local.glob("*/*")), 1)
    assert list(local.glob("*/*")) == []


def test_local_state_of_a_dead_driver_is_removed_when_the_job_is_resumed(jobs, tap, ledger, tmp_path):
    local = tmp_path / "local"
    options = {"state.backend.type": "rocksdb", "io.tmp.dirs": str(local)}
    client = wait_running(jobs.start(tmp_path / "checkpoints", numbering(tap, ledger), options))
    tap.give(10)
    client.trigger_checkpoint()
    subtask = local_state_directory(local)
    dead = subtask.with_name(subtask.name.replace("-0", "-1"))  # of a subtask that the resumed job does not have
    dead.mkdir()
    (dead / "000012.sst").write_bytes(b"state")
    jobs.crash(client, tmp_path / "checkpoints", local)
    client = wait_running(jobs.resume(tmp_path / "checkpoints", numbering(tap, ledger), options))
    assert [path for path in local.rglob("000012.sst") if path.read_bytes() == b"state"] == []


# --- in-flight data ---------------------------------------------------------------------------------------------------


def test_a_worker_whose_clock_is_ahead_does_not_store_in_flight_data(jobs, tap, ledger, tmp_path, monkeypatch):
    set_worker_clock_ahead(monkeypatch, 3_600_000)
    options = {
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "10 min",
    }

    def build(env):
        env.from_source(Numbers(tap.name, 2)).rebalance().map(lambda n: n).sink_to(LedgerSink(ledger.name))

    client = wait_running(jobs.start(tmp_path, build, options, parallelism=2))
    tap.give(10, split=0)
    tap.give(10, split=1)
    assert not was_unaligned(client, client.trigger_checkpoint())
