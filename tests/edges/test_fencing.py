"""Several drivers and one checkpoint directory: who may go on, and whom another one must not stop."""

import pytest
from edge_kit import (
    EpochLedgerSink,
    LedgerSink,
    Numbers,
    damage,
    job_directory,
    log_entries,
    numbered,
    numbering,
    wait_ended,
    wait_running,
)
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import ConfigError


@pytest.mark.parametrize("sink", [LedgerSink, EpochLedgerSink])
def test_storage_without_create_if_absent_is_refused(jobs, tap, ledger, tmp_path, sink):
    tap.let(10)
    tap.close()
    unfenced = f"local://{tmp_path}"  # fsspec's other name of local files: Headrace has no atomic create there
    with pytest.raises(
        ConfigError, match=r"no atomic create-if-absent on 'local://'.*use a local .*s3://, gs://, az://"
    ):
        jobs.start(unfenced, numbering(tap, ledger, sink)).wait(60)
    assert not ledger.visible
    assert not any(tmp_path.iterdir())


@pytest.fixture
def crashed_beside_a_damaged_log(jobs, tap, ledger, tmp_path):
    """The directory of a job 'edge' whose driver died, and of another job whose newest log entry is damaged."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    tap.let(10)
    for directory, name, build in (
        (other, "another user's", lambda env: env.from_source(Numbers(tap.name)).map(lambda n: n)),
        (mine, "edge", numbering(tap, ledger)),
    ):
        client = jobs.start(directory, build, name=name)
        wait_running(client)
        client.trigger_checkpoint()
        jobs.crash(client, directory)
    damage(log_entries(other)[-1])
    job_directory(other).rename(mine / job_directory(other).name)
    return mine


def test_a_job_is_resumed_though_the_log_of_another_one_is_damaged(jobs, tap, ledger, crashed_beside_a_damaged_log):
    tap.let(20)
    tap.close()
    client = jobs.resume(crashed_beside_a_damaged_log, numbering(tap, ledger))
    assert wait_ended(client) == ("FINISHED", None)
    assert ledger.visible == numbered(20)


def test_gc_collects_what_one_job_left_though_the_log_of_another_one_is_damaged(crashed_beside_a_damaged_log):
    directory = crashed_beside_a_damaged_log
    for job in directory.iterdir():
        (job / "chk-9").mkdir()
        (job / "chk-9" / ".tmp-e1r0-0123456789abcdef").write_bytes(b"left by a worker that died")
    result = CliRunner().invoke(app, ["gc", "--stopped", str(directory)])
    left = list(directory.rglob(".tmp-*"))
    assert len(left) == 1, result.output  # that of the damaged job stays: what it needs is not known
    assert "damaged" in result.output


def test_a_job_is_resumed_on_a_host_where_workers_of_the_old_driver_still_run(jobs, tap, ledger, tmp_path):
    options = {"state.backend.type": "rocksdb", "io.tmp.dirs": str(tmp_path / "local")}
    build = numbering(tap, ledger)
    tap.let(10)
    old = jobs.start(tmp_path / "checkpoints", build, options)
    wait_running(old)
    old.trigger_checkpoint()
    new = jobs.resume(tmp_path / "checkpoints", build, options)
    wait_running(new)
    assert new.trigger_checkpoint() == 2
