"""One suite for every store: what the contract says, and what must hold when sixteen writers race."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import sys
import threading
import zlib
from pathlib import Path

import pytest
from storage_jobs import PRELOAD
from storage_race import race

from headrace.config import Configuration
from headrace.errors import ConfigError, IllegalState, InvalidArgument, StorageError
from headrace.storage import local as local_module
from headrace.storage.local import LocalStore, private_directory
from headrace.storage.objects import (
    MissingObject,
    OutcomeUnknown,
    check_create_if_absent,
    create,
    normalise,
    scheme_of,
)
from headrace.storage.remote import open_store
from headrace.storage.storage_settings import StorageSettings
from headrace.testing.storage_faults import Fault, FaultKind, FaultyStore, MemoryStore, Operation

WRITERS = 16


# ---- the contract --------------------------------------------------------------------------------------------------


def test_put_read_and_overwrite(place):
    store, directory = place
    store.put(f"{directory}/a/b", b"0123456789")
    assert store.read(f"{directory}/a/b") == b"0123456789"
    assert store.read(f"{directory}/a/b", 3, 4) == b"3456"
    assert store.read(f"{directory}/a/b", 8) == b"89"
    assert store.read(f"{directory}/a/b", 8, 100) == b"89"
    assert store.read(f"{directory}/a/b", 10, 5) == b""
    assert store.read(f"{directory}/a/b", 50, 5) == b""
    store.put(f"{directory}/a/b", b"new")
    assert store.read(f"{directory}/a/b") == b"new"
    assert store.size(f"{directory}/a/b") == 3


def test_empty_object(place):
    store, directory = place
    store.put(f"{directory}/a", b"")
    assert store.read(f"{directory}/a") == b""
    assert store.size(f"{directory}/a") == 0
    assert store.exists(f"{directory}/a")


def test_missing_object(place):
    store, directory = place
    for call in (store.read, store.size):
        with pytest.raises(MissingObject, match=f"'{directory}/nothing': FileNotFound"):
            call(f"{directory}/nothing")
    assert not store.exists(f"{directory}/nothing")
    assert issubclass(MissingObject, StorageError)
    assert issubclass(MissingObject, FileNotFoundError)


def test_a_directory_is_no_object(place):
    store, directory = place
    store.put(f"{directory}/a/b", b"1")
    assert not store.exists(f"{directory}/a")


def test_listing(place):
    store, directory = place
    assert store.list_objects(directory) == []
    assert store.list_names(f"{directory}/nothing") == []
    for name in ("b", "a/x", "a/y/z", "ab"):
        store.put(f"{directory}/{name}", name.encode())
    found = [(info.path, info.size) for info in store.list_objects(directory)]
    assert found == [(f"{directory}/{n}", len(n)) for n in sorted(["b", "a/x", "a/y/z", "ab"])]
    assert [info.path for info in store.list_objects(f"{directory}/a")] == [f"{directory}/a/x", f"{directory}/a/y/z"]
    assert store.list_names(directory) == ["a", "ab", "b"]


def test_a_listing_is_never_stale(place):
    store, directory = place
    for number in range(5):
        store.put(f"{directory}/{number}", b"")
        assert store.list_names(directory) == [str(n) for n in range(number + 1)]


def test_delete_is_idempotent(place):
    store, directory = place
    store.put(f"{directory}/a", b"1")
    store.delete(f"{directory}/a")
    store.delete(f"{directory}/a")
    store.delete(f"{directory}/nowhere/a")
    assert store.list_objects(directory) == []


def test_writer_has_a_running_checksum(place):
    store, directory = place
    with store.writer(f"{directory}/sub") as writer:
        for piece in (b"head", b"", memoryview(b"race")):
            writer.write(piece)
        assert store.list_objects(f"{directory}/sub") == [] or store.list_names(f"{directory}/sub")[0].startswith(
            ".tmp-"
        )
        written = writer.finish("name")
    assert (written.path, written.size, written.crc32) == (f"{directory}/sub/name", 8, zlib.crc32(b"headrace"))
    assert store.read(written.path) == b"headrace"
    assert store.list_names(f"{directory}/sub") == ["name"]


def test_an_aborted_writer_leaves_nothing(place):
    store, directory = place
    with store.writer(directory) as writer:
        writer.write(b"x" * 100_000)
    assert store.list_objects(directory) == []
    with pytest.raises(IllegalState, match="the writer is aborted"):
        writer.write(b"x")
    with pytest.raises(IllegalState, match="cannot finish"):
        writer.finish("name")
    writer.abort()


def test_large_object_through_a_writer(place):
    store, directory = place
    pieces = 4 if directory.startswith("gs:") else 12  # fake-gcs-server has no multipart uploads of the XML API
    data = os.urandom(1 << 20)
    with store.writer(directory) as writer:
        for _ in range(pieces):
            writer.write(data)
        written = writer.finish("big")
    assert store.size(written.path) == pieces << 20
    assert store.read(written.path, (3 << 20) + 5, 100) == data[5:105]


def test_directories(place):
    store, directory = place
    store.put(f"{directory}/taken/a", b"1")
    assert not store.make_directory(f"{directory}/taken")
    assert store.make_directory(f"{directory}/new")
    store.put(f"{directory}/new/a", b"1")
    store.remove_directory(f"{directory}/new")
    assert store.read(f"{directory}/new/a") == b"1", "a directory that is not empty stays"
    store.delete(f"{directory}/new/a")
    store.remove_directory(f"{directory}/new")
    store.remove_directory(f"{directory}/never")
    assert store.list_names(directory) == ["taken"]


# ---- create if absent ----------------------------------------------------------------------------------------------


def test_create_if_absent(place):
    store, directory = place
    assert store.create_if_absent(f"{directory}/log/1", b"first")
    assert not store.create_if_absent(f"{directory}/log/1", b"second")
    assert not store.create_if_absent(f"{directory}/log/1", b"first"), "equal content is still another's object"
    assert store.read(f"{directory}/log/1") == b"first"
    assert store.list_names(f"{directory}/log") == ["1"]
    check_create_if_absent(store, f"{directory}/log")
    assert store.list_names(f"{directory}/log") == ["1"], "the probe is gone"


@pytest.fixture
def eager_threads():
    # In memory, looking and writing take less time than a thread's turn: without this, a race would hardly ever show.
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_sixteen_threads_race_for_one_object(place, eager_threads):
    store, directory = place
    rounds = 300 if directory.startswith(("memory:", "/dict")) else 5  # the shorter the race, the more are needed
    start, won = threading.Barrier(WRITERS), [[] for _ in range(rounds)]

    def race_in_thread(number):
        data = f"{number:02d}".encode() * 5000
        for round_ in range(rounds):
            start.wait()
            if store.create_if_absent(f"{directory}/{round_}/entry", data):
                won[round_].append(data)

    threads = [threading.Thread(target=race_in_thread, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for round_, winners in enumerate(won):
        assert len(winners) == 1, "exactly one winner"
        assert store.read(f"{directory}/{round_}/entry") == winners[0]
        assert store.list_names(f"{directory}/{round_}") == ["entry"], "the losers leave nothing"


def test_sixteen_processes_race_for_one_local_file(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)  # imported once, not sixteen times
    path, start, results = str(tmp_path / "log" / "entry"), context.Barrier(WRITERS), context.Queue()
    arguments = [(path, number, start, results) for number in range(WRITERS)]
    processes = [context.Process(target=race, args=each) for each in arguments]
    for process in processes:
        process.start()
    outcome = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    won = [number for number, created in outcome if created]
    assert len(won) == 1
    assert Path(path).read_bytes() == f"{won[0]:02d}".encode() * 5000
    assert [found.name for found in Path(path).parent.iterdir()] == ["entry"]


def test_a_link_whose_reply_was_lost_is_known_by_its_second_name(tmp_path, monkeypatch):
    # Over NFS the server may have made the link although the client repeats the call and is told that it exists.
    real = Path.hardlink_to

    def twice(self, target):
        real(self, target)
        real(self, target)

    monkeypatch.setattr(Path, "hardlink_to", twice)
    assert LocalStore().create_if_absent(f"{tmp_path}/a", b"1")


def test_no_hard_links_is_a_clear_error(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(StorageError, match="no hard links, which create-if-absent needs"):
        LocalStore().create_if_absent(f"{tmp_path}/a", b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_ignores_the_condition_is_found_out():
    class Careless(MemoryStore):
        def create_if_absent(self, path, data):
            self.put(path, data)
            return True

    store = Careless()
    with pytest.raises(StorageError, match="does not honour create-if-absent"):
        check_create_if_absent(store, "/log")
    assert store.objects == {}


# ---- schemes -------------------------------------------------------------------------------------------------------


def test_other_schemes_are_refused():
    with pytest.raises(StorageError, match=r"no atomic create-if-absent on 'hdfs://'.*use a local .*webhdfs://"):
        open_store().read("hdfs://host/x")
    options = {"execution.checkpointing.dir": "/data", "execution.checkpointing.savepoint-dir": "ftp://host/x"}
    with pytest.raises(ConfigError, match=r"execution.checkpointing.savepoint-dir is 'ftp://host/x': .* on 'ftp://'"):
        StorageSettings.of(Configuration(options))


def test_an_option_that_the_library_does_not_know_is_named_without_its_value():
    store = open_store({"s3": {"key": "k", "secret": "hunter2", "no_such_option": "hunter3"}})
    with pytest.raises(StorageError, match=r"cannot open 's3://bucket' with the options .*no_such_option") as caught:
        store.read("s3://bucket/x")
    assert "hunter" not in str(caught.value)


def test_spelling_of_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert normalise("chk") == f"{tmp_path}/chk"
    assert normalise("file:///a/b/") == "/a/b"
    assert normalise("s3n://bucket/a//") == "s3://bucket/a"
    assert normalise("memory:///a") == normalise("memory://a")
    assert scheme_of("HDFS://host:8020/a") == "hdfs"
    with pytest.raises(InvalidArgument, match="an empty path"):
        normalise("")


# ---- errors --------------------------------------------------------------------------------------------------------


def test_full_disk_is_named(tmp_path, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_module, "_flush", full)
    store = LocalStore()
    with pytest.raises(
        StorageError, match=rf"cannot write '{tmp_path}/a': the disk is full \(ENOSPC\); free some space"
    ) as caught:
        store.put(f"{tmp_path}/a", b"1")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(StorageError, match="the disk is full"):
        store.create_if_absent(f"{tmp_path}/a", b"1")
    assert list(tmp_path.iterdir()) == [], "nothing half-written stays"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_really_full_disk(tmp_path, monkeypatch):
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *args, **kwargs: real(Path("/dev/full"), "wb", buffering=2))
    with pytest.raises(StorageError, match="the disk is full"):
        LocalStore().put(f"{tmp_path}/a", b"x" * 100)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="permission denied"):
        LocalStore().put(f"{tmp_path}/a", b"1")


def test_a_file_where_a_directory_should_be(tmp_path):
    store = LocalStore()
    store.put(f"{tmp_path}/a", b"1")
    with pytest.raises(StorageError, match=f"'{tmp_path}/a"):
        store.put(f"{tmp_path}/a/b", b"1")
    assert store.list_names(f"{tmp_path}/a") == []


def test_a_crash_leaves_only_a_temporary_file(tmp_path):
    store = LocalStore()
    writer = store.writer(str(tmp_path), "e1r0")
    writer.write(b"x")
    (left,) = store.list_names(str(tmp_path))
    assert left.startswith(".tmp-e1r0-")
    writer.abort()


# ---- injected faults -----------------------------------------------------------------------------------------------


def test_fail_the_nth_write():
    store = FaultyStore([Fault(FaultKind.FAIL, 2)])
    store.put("a", b"1")
    with pytest.raises(StorageError, match="injected fault"):
        store.put("b", b"2")
    store.put("c", b"3")
    assert sorted(store.objects) == ["a", "c"]
    assert store.history == [(Operation.WRITE, path) for path in "abc"]


def test_torn_write():
    store = FaultyStore([Fault(FaultKind.TORN, None, within="b", amount=3)])
    with pytest.raises(StorageError):
        store.put("b", b"12345")
    assert store.read("b") == b"123"
    with pytest.raises(StorageError):
        store.create_if_absent("bb", b"12345")
    assert not store.exists("bb"), "an atomic create is whole or not at all"


def test_lost_reply():
    store = FaultyStore([Fault(FaultKind.LOST_REPLY)])
    with pytest.raises(OutcomeUnknown):
        store.create_if_absent("a", b"1")
    assert store.read("a") == b"1"


def test_create_looks_again_after_a_lost_reply():
    store = FaultyStore([Fault(FaultKind.LOST_REPLY)])
    assert create(store, "a", b"1")
    store.inject(Fault(FaultKind.LOST_REPLY))
    with pytest.raises(OutcomeUnknown):
        create(store, "a", b"2")


def test_flipped_byte_on_write_and_read():
    store = FaultyStore([Fault(FaultKind.FLIP, amount=1), Fault(FaultKind.FLIP, operation=Operation.READ, amount=0)])
    store.put("a", b"abc")
    assert store.objects["a"] == b"a`c"
    assert store.read("a") == b"``c"
    assert store.read("a") == b"a`c"


def test_slow_write_uses_the_given_clock():
    waited = []
    store = FaultyStore([Fault(FaultKind.SLOW, amount=700)], waited.append)
    store.put("a", b"1")
    assert (waited, store.read("a")) == ([700], b"1")


def test_failing_read_and_delete_and_healing():
    store = FaultyStore([Fault(FaultKind.FAIL, None, operation) for operation in (Operation.READ, Operation.DELETE)])
    store.put("a", b"1")
    for call in (store.read, store.delete):
        with pytest.raises(StorageError):
            call("a")
    store.heal()
    assert store.read("a") == b"1"
    store.truncate("a", 0)
    store.flip("a", 0)
    assert store.read("a") == b""


def test_a_private_directory_is_closed_to_others_also_if_it_was_there(tmp_path):
    directory = tmp_path / "private"
    directory.mkdir(mode=0o755)
    assert stat.S_IMODE(private_directory(directory).stat().st_mode) == 0o700
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(StorageError, match="is not a directory of user"):
        private_directory(link)


@pytest.mark.parametrize("error", [FileExistsError(17, "File exists"), FileNotFoundError(2, "No such directory")])
def test_a_directory_that_is_removed_at_any_step_of_opening_a_file(tmp_path, monkeypatch, error):
    real, failures = os.mkdir, [error]

    def mkdir(path, mode=0o777):
        if failures:
            raise failures.pop()
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert LocalStore().create_if_absent(str(tmp_path / "new" / "file"), b"x")
    assert (tmp_path / "new" / "file").read_bytes() == b"x"
    assert not failures
