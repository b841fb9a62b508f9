"""Paths, references, pointers and options of storage (SPEC R5.9, R5.10, R8.1).

T names are Flink's: FsCheckpointStorageAccessTest and its base AbstractFileCheckpointStorageAccessTestBase.
"""

from __future__ import annotations

import re

import pytest

from headrace.checkpoint.handles import CorruptState
from headrace.config import Configuration
from headrace.errors import ConfigError, IllegalState, InvalidArgument, StorageError
from headrace.ids import JobId
from headrace.storage.layout import (
    AttemptId,
    JobLayout,
    PathKind,
    attempt_of,
    make_ref,
    make_savepoint_directory,
    private_file,
    resolve_pointer,
    resolve_ref,
    savepoint_target,
    shared_file,
    state_directory,
    subtask_owner,
    table_directory,
    table_file,
)
from headrace.storage.local import LocalStore
from headrace.storage.storage_settings import StorageKind, StorageSettings
from headrace.testing.storage_faults import MemoryStore

JOB = JobId("0123456789abcdef" * 2)
DIGEST = "ab" * 16


def test_directories_of_a_job():
    # T testDirectoriesForExclusiveAndSharedState: <dir>/<job>/{shared,taskowned,chk-id}
    layout = JobLayout.of("/data/", JOB)
    assert layout.job == f"/data/{JOB}"
    assert layout.shared == f"/data/{JOB}/shared"
    assert layout.task_owned == f"/data/{JOB}/taskowned"
    assert layout.checkpoint(12) == f"/data/{JOB}/chk-12"
    assert layout.metadata(12) == f"/data/{JOB}/chk-12/_metadata"
    assert layout.log_entry(3) == f"/data/{JOB}/log/000000000003"


def test_without_a_directory_per_job():
    layout = JobLayout.of("s3a://bucket/chk", JOB, create_subdir=False)
    assert layout.metadata(1) == "s3://bucket/chk/chk-1/_metadata"
    assert layout.log == "s3://bucket/chk/log"


def test_log_names_sort_as_their_numbers():
    layout = JobLayout.of("/data", JOB)
    assert sorted(layout.log_entry(n) for n in (10, 9, 100)) == [layout.log_entry(n) for n in (9, 10, 100)]


def test_shared_and_task_owned_are_made_on_demand(tmp_path):
    # T testStorageLocationMkdirs, testStorageLocationDoesNotMkdirs
    store, layout = LocalStore(), JobLayout.of(str(tmp_path), JOB)
    assert store.list_names(layout.job) == []
    layout.create_directories(store)
    layout.create_directories(store)
    assert store.list_names(layout.job) == ["shared", "taskowned"]


@pytest.mark.parametrize("create_subdir", [True, False])
def test_every_name_is_parsed_back(create_subdir):
    layout, attempt, owner = (
        JobLayout.of("/data", JOB, create_subdir=create_subdir),
        AttemptId(3, 12),
        subtask_owner(4, 5),
    )

    def parsed(path):
        found = layout.parse(path)
        return found.kind, found.checkpoint_id, found.attempt, found.seq

    private = f"{layout.checkpoint(7)}/{private_file(attempt, owner)}"
    shared = f"{layout.shared}/{shared_file(attempt, 9, owner, DIGEST)}"
    temporary = f"{layout.shared}/.tmp-e3r12-{'0' * 16}"
    assert parsed(private) == (PathKind.PRIVATE, 7, attempt, None)
    assert parsed(shared) == (PathKind.SHARED, 9, attempt, None)
    assert parsed(layout.metadata(7)) == (PathKind.METADATA, 7, None, None)
    assert parsed(layout.log_entry(8)) == (PathKind.LOG, None, None, 8)
    assert parsed(temporary) == (PathKind.TEMPORARY, None, attempt, None)
    assert parsed(f"{layout.log}/.tmp-{'0' * 16}") == (PathKind.TEMPORARY, None, None, None)
    assert layout.parse(f"{layout.task_owned}/some/thing").kind is PathKind.TASK_OWNED


@pytest.mark.parametrize(
    "path",
    [
        "/data/x/notes.txt",
        "/elsewhere/chk-1/_metadata",
        f"/data/{JOB}/chk-01/_metadata",
        f"/data/{JOB}/chk-1/sub/_metadata",
        f"/data/{JOB}/chk-1/state",
        f"/data/{JOB}/shared/e1r0-v0-s0.state",
        f"/data/{JOB}/shared/e1r0-c1-v0-s0-abc.shared",
        f"/data/{JOB}/log/1",
        f"/data/{JOB}/_metadata",
        f"/data/{JOB}",
    ],
)
def test_what_we_did_not_write_is_foreign(path):
    assert JobLayout.of("/data", JOB).parse(path).kind is PathKind.FOREIGN


def test_names_carry_the_attempt_and_shared_ones_a_checksum():
    first, second = AttemptId(1, 0), AttemptId(1, 1)
    assert private_file(first, "v0-s0") != private_file(second, "v0-s0")
    assert DIGEST in shared_file(first, 1, "v0-s0", DIGEST)
    assert shared_file(first, 1, "v0-s0", DIGEST) != shared_file(first, 2, "v0-s0", DIGEST)
    with pytest.raises(InvalidArgument, match="cannot be part of a file name"):
        private_file(first, "../../etc")


def test_attempts_are_ordered():
    assert AttemptId(1, 9) < AttemptId(2, 0) < AttemptId(2, 1)
    assert attempt_of(private_file(AttemptId(10, 11), "driver")) == AttemptId(10, 11)


def test_next_id_leaves_out_ids_that_have_a_directory():
    store, layout = MemoryStore(), JobLayout.of("/data", JOB)
    assert layout.next_checkpoint_id(store, 0) == 1
    assert layout.next_checkpoint_id(store, 41) == 42, "R8.4: restored id + 1"
    store.put(f"{layout.checkpoint(7)}/e1r0-v0-s0.state", b"x")
    store.put(layout.metadata(6), b"x")
    assert layout.checkpoint_ids(store) == [7, 6]
    assert layout.next_checkpoint_id(store, 5) == 8


# ---- references ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["/data", "s3://bucket/data", "memory://data"])
def test_references_move_with_the_directory(root):
    directory = f"{root}/job/chk-7"
    for path in (
        f"{directory}/a",
        f"{directory}/state/part-0.parquet",
        f"{root}/job/shared/x",
        f"{root}/job/taskowned/y",
    ):
        ref = make_ref(path, directory)
        assert not ref.startswith("/")
        assert "://" not in ref
        assert resolve_ref(ref, directory) == path
        assert resolve_ref(ref, "/moved/chk-7").startswith("/moved/")


def test_files_of_another_job_keep_their_absolute_path():
    for path in ("/old/job/shared/x", "s3://bucket/sp/x"):
        assert make_ref(path, "/data/job/chk-7") == path
        assert resolve_ref(path, "/moved/chk-7") == path
    assert make_ref("/data/shared/x", "/data/savepoint-1") == "/data/shared/x", "a savepoint has no siblings"


@pytest.mark.parametrize(
    "ref", ["../x", "../../etc/passwd", "../shared/../../x", "", "a//b", "./a", "a/..", "/a/../b", "s3://b/../c"]
)
def test_references_that_lead_elsewhere_are_refused(ref):
    with pytest.raises(CorruptState, match="which is not a path that Headrace writes"):
        resolve_ref(ref, "/data/job/chk-7")


# ---- pointers ------------------------------------------------------------------------------------------------------


def test_a_pointer_is_the_directory_or_its_metadata(tmp_path):
    # T testPersistMultipleMetadataOnlyCheckpoints: resolved by either
    store = LocalStore()
    store.put(f"{tmp_path}/chk-7/_metadata", b"x")
    for pointer in (f"{tmp_path}/chk-7", f"{tmp_path}/chk-7/", f"file://{tmp_path}/chk-7/_metadata"):
        assert resolve_pointer(store, pointer) == f"{tmp_path}/chk-7"


def test_failing_pointers(tmp_path):
    # T testFailingPointerPathResolution
    store = LocalStore()
    with pytest.raises(InvalidArgument):
        resolve_pointer(store, "")
    for pointer in ("this-is_not/a#filepath.at.all", f"{tmp_path}", f"file://{tmp_path}/_metadata"):
        with pytest.raises(StorageError, match=r"cannot find a checkpoint or savepoint .*\(FileNotFound\)") as caught:
            resolve_pointer(store, pointer)
        assert isinstance(caught.value, FileNotFoundError)


# ---- savepoint directories -----------------------------------------------------------------------------------------


def test_where_a_savepoint_goes():
    # T testSavepointPathConfiguredAndTarget, ...ConfiguredNoTarget, testNoSavepointPathConfiguredAndTarget, ...NoTarget
    assert savepoint_target("/mine", "/default") == "/mine"
    assert savepoint_target(None, "/default") == "/default"
    assert savepoint_target("/mine", None) == "/mine"
    with pytest.raises(IllegalState, match=r"no savepoint directory: .*execution\.checkpointing\.savepoint-dir"):
        savepoint_target(None, None)


def test_name_of_a_savepoint(tmp_path):
    # T testSavepointsInOneDirectoryDefaultLocation
    directory = make_savepoint_directory(LocalStore(), str(tmp_path), JOB)
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/savepoint-012345-[0-9a-f]{{12}}", directory)
    assert LocalStore().list_names(str(tmp_path)) == [directory.rpartition("/")[2]]


def test_ten_names_are_tried(tmp_path):
    store, tokens = LocalStore(), iter("a" * 9 + "b")
    store.make_directory(f"{tmp_path}/savepoint-012345-a")
    assert make_savepoint_directory(store, str(tmp_path), JOB, lambda: next(tokens)) == f"{tmp_path}/savepoint-012345-b"
    with pytest.raises(StorageError, match="10 names all exist"):
        make_savepoint_directory(store, str(tmp_path), JOB, lambda: "a")


# ---- options -------------------------------------------------------------------------------------------------------


def settings(**options):
    return StorageSettings.of(
        Configuration({f"execution.checkpointing.{k.replace('_', '-')}": v for k, v in options.items()})
    )


def test_which_storage():
    # R5.10: unset, filesystem if a dir is set, else jobmanager; jobmanager may have a dir for its metadata
    assert settings().kind is StorageKind.JOBMANAGER
    assert settings().layout(JOB) is None
    assert settings(dir="/data").kind is StorageKind.FILESYSTEM
    assert settings(dir="/data", storage="jobmanager").layout(JOB) == JobLayout("/data", JOB)
    with pytest.raises(ConfigError, match=r"filesystem, but execution\.checkpointing\.dir is not set"):
        settings(storage="filesystem")


def test_defaults_and_bounds():
    # T FsStateBackend: the threshold may be at most 1 MB
    found = settings(dir="/data/", savepoint_dir="s3a://b/sp/", create_subdir="false")
    assert (found.directory, found.savepoint_directory, found.create_subdir) == ("/data", "s3://b/sp", False)
    assert (found.inline_threshold, found.write_buffer) == (20 * 1024, 4096)
    assert found.layout(JOB).job == "/data"
    assert settings(data_inline_threshold="1 mb").inline_threshold == 1 << 20
    with pytest.raises(ConfigError, match="may be at most 1048576"):
        settings(data_inline_threshold=(1 << 20) + 1)


NAMES = [
    "a",
    "A",
    "a/b",
    "a b",
    "a-b",
    "a_b",
    "..",
    ".",
    "",
    " ",
    "ü" * 150,
    "x" * 300,
    "x" * 301,
    "u\u0308",
    "ü",
    "nul\0x",
]


@pytest.mark.parametrize("keyed", [True, False])
def test_every_state_has_a_directory_of_its_own_that_any_file_system_allows(keyed):
    found = [state_directory("op", name, keyed=keyed) for name in NAMES]
    assert found == [state_directory("op", name, keyed=keyed) for name in NAMES]
    assert len({path.lower() for path in found}) == len(NAMES)
    for path in found:
        assert all(re.fullmatch(r"[a-z0-9_-]{1,120}", part) for part in path.split("/"))
    assert table_file("op", "total", 3) == "op/total/part-00003.parquet"


@pytest.mark.parametrize("name", NAMES)
def test_the_directory_of_an_operator_has_a_short_name(name):
    assert re.fullmatch(r"[a-z0-9_-]{1,100}-01234567", table_directory(name, "0123456789abcdef"))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda file: resolve_pointer(LocalStore(), file),
            "[HR-3103] cannot look at '{}/_metadata': NotADirectoryError",
        ),
        (
            lambda file: make_savepoint_directory(LocalStore(), file, JOB, lambda: "x"),
            "[HR-3103] cannot make directory '{}/savepoint-012345-x': FileExistsError",
        ),
    ],
)
def test_a_file_in_place_of_a_directory(tmp_path, use, message):
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(StorageError) as caught:
        use(str(file))
    assert str(caught.value) == (
        f"{message.format(file)}: a part of this path is a file, but a directory is needed: that of a checkpoint or savepoint "
        "to read it, or one below which files can be written"
    )
