"""Other users of the same machine: they neither read a job's state, nor stop a job, nor make it write elsewhere."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from edge_kit import announce_rest_server, announcement, numbering, wait_running

from headrace.checkpoint.types import SavepointFormat
from headrace.errors import HeadraceError

OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def shared_tmp(tmp_path, monkeypatch):
    """A temporary directory that all users may write to; pytest's own are closed to others.

    pytest makes its own base directory with the first `tmp_path`: before `tempfile` is redirected.
    """
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield path


@needs_root
def test_the_rest_server_is_not_announced_in_a_directory_of_another_user(shared_tmp, tmp_path):
    victim = tmp_path / "authorized_keys"
    victim.write_text("mine")
    trap = announcement()
    trap.parent.mkdir()
    trap.symlink_to(victim)
    os.chown(trap.parent, OTHER_USER, OTHER_USER)
    announce_rest_server("http://127.0.0.1:8081")
    assert victim.read_text() == "mine"


BACKENDS = pytest.mark.parametrize(
    "options",
    [{"state.backend.type": "rocksdb"}, {"execution.checkpointing.local-backup.enabled": "true"}],
    ids=["rocksdb", "local backup"],
)


@BACKENDS
def test_no_other_user_can_read_local_state(jobs, tap, ledger, tmp_path, shared_tmp, options):
    client = wait_running(jobs.start(tmp_path / "checkpoints", numbering(tap, ledger), options))
    tap.give(10)
    client.trigger_checkpoint()
    found = list(shared_tmp.iterdir())
    assert found
    assert [oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077] == []


@needs_root
@BACKENDS
def test_no_state_is_put_into_a_directory_of_another_user(jobs, tap, ledger, tmp_path, shared_tmp, options):
    def run(number):
        client = wait_running(jobs.start(tmp_path / f"checkpoints-{number}", numbering(tap, ledger), options))
        tap.give(10 * number)
        client.trigger_checkpoint()
        names = {path.name for path in shared_tmp.iterdir()}
        client.cancel()
        return names

    for name in run(1):
        (shared_tmp / name).chmod(0o777)
        os.chown(shared_tmp / name, OTHER_USER, OTHER_USER)
    theirs = [path for path in shared_tmp.iterdir() if path.stat().st_uid == OTHER_USER]
    before = {found for path in theirs for found in path.rglob("*")}
    with suppress(HeadraceError):  # to refuse is right as well
        run(2)
    assert {found for path in theirs for found in path.rglob("*")} - before == set()


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_the_files_of_checkpoints_are_private_by_option(jobs, tap, ledger, tmp_path, backend, private):
    options = {
        "state.backend.type": backend,
        "execution.checkpointing.incremental": "true",
        "headrace.storage.private-files": str(private),
    }
    usual = os.umask(0o022)
    try:
        client = wait_running(jobs.start(tmp_path / "checkpoints", numbering(tap, ledger), options))
        for count in (10, 20):
            tap.give(count)
            client.trigger_checkpoint()
        for format in SavepointFormat:
            client.trigger_savepoint(str(tmp_path / "savepoints"), format)
    finally:
        os.umask(usual)
    made = [path for name in ("checkpoints", "savepoints") for path in (tmp_path / name, *(tmp_path / name).rglob("*"))]
    kinds = {path.parent.name.split("-")[0] for path in made if path.is_file()}
    assert {"log", "shared", "chk", "savepoint"} <= kinds
    modes = {(path.is_dir(), oct(path.stat().st_mode & 0o777)) for path in made}
    assert modes == ({(True, "0o700"), (False, "0o600")} if private else {(True, "0o755"), (False, "0o644")})


SECOND_USER = """
import os, sys, tempfile
import edge_kit
directory, uid = sys.argv[1], int(sys.argv[2])
tempfile.tempdir = directory
edge_kit.use_local_state("a" * 32)
os.setgid(uid)
os.setuid(uid)
edge_kit.use_local_state("b" * 32)
"""


@needs_root
def test_two_users_of_a_machine_can_both_use_rocksdb(shared_tmp):
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    command = [sys.executable, "-c", SECOND_USER, str(shared_tmp), str(OTHER_USER)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
