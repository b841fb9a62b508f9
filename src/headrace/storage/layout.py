"""The paths of all durable files; only this module builds or parses them.

    <dir>/<job>/                                    without <job>/ if create-subdir is false
        chk-<id>/_metadata                          written last: with it the checkpoint exists
        chk-<id>/<attempt>-<owner>.state            private state, one file per subtask
        shared/<attempt>-c<id>-<owner>-<digest>.shared   used by several checkpoints
        taskowned/                                  never deleted by the coordinator
        log/<seq>                                   the job log
    <target>/savepoint-<first 6 of job>-<random>/   a savepoint: everything it needs is inside

A shared file's name holds the checkpoint that wrote it: the same content written again by a later checkpoint is another
file, since the first one may be about to be deleted.
"""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from headrace.checkpoint.handles import CorruptState
from headrace.errors import IllegalState, InvalidArgument, StorageError
from headrace.ids import JobId
from headrace.storage.objects import MissingObject, ObjectStore, normalise

METADATA: Final = "_metadata"
_SHARED: Final = "shared"
_TASK_OWNED: Final = "taskowned"
_LOG: Final = "log"
_SAVEPOINT_ATTEMPTS: Final = 10
_NAME: Final = 100  # characters of a name in a path; file systems allow 255 bytes in each part of it

_ATTEMPT: Final = r"e(?P<epoch>\d+)r(?P<restart>\d+)"
_OWNER: Final = r"(?P<owner>[a-z0-9]+(?:-[a-z0-9]+)*)"
_OWNER_TEXT: Final = re.compile(_OWNER)
_JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
_CHECKPOINT_DIR: Final = re.compile(r"chk-(?P<id>[1-9]\d*|0)")
_PRIVATE_NAME: Final = re.compile(rf"{_ATTEMPT}-{_OWNER}\.state")
_SHARED_NAME: Final = re.compile(rf"{_ATTEMPT}-c(?P<id>\d+)-{_OWNER}-(?P<digest>[0-9a-f]{{32}})\.shared")
_LOG_NAME: Final = re.compile(r"\d{12}")
_SIBLINGS: Final = (f"../{_SHARED}/", f"../{_TASK_OWNED}/")
_NO_NAME: Final = re.compile(r"/\.{0,2}/")
_TEMPORARY_NAME: Final = re.compile(rf"\.tmp-(?:{_ATTEMPT}-)?[0-9a-f]{{16}}")


class AttemptId(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """One run of a job's tasks: the driver's epoch (from the job log) and the number of restarts within it.

    It is part of the name of every state file, so that no attempt overwrites a file of another.

    >>> str(AttemptId(2, 1)), AttemptId(2, 1) < AttemptId(3)
    ('e2r1', True)
    """

    epoch: int
    restart: int = 0

    def __str__(self) -> str:
        return f"e{self.epoch}r{self.restart}"


def _attempt_of(found: re.Match[str]) -> AttemptId:
    return AttemptId(int(found["epoch"]), int(found["restart"]))


def subtask_owner(vertex: int, subtask: int) -> str:
    """Return a subtask's part of a file name.

    >>> subtask_owner(3, 0)
    'v3-s0'
    """
    return f"v{vertex}-s{subtask}"


class JobLayout(msgspec.Struct, frozen=True):
    """The paths of one job below a checkpoint directory.

    >>> layout = JobLayout.of("/data", JobId("a" * 32))
    >>> layout.metadata(7)
    '/data/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/chk-7/_metadata'
    >>> JobLayout.of("/data", JobId("a" * 32), create_subdir=False).shared
    '/data/shared'
    """

    directory: str
    job_id: JobId
    create_subdir: bool = True

    @classmethod
    def of(cls, directory: str, job_id: JobId, *, create_subdir: bool = True) -> JobLayout:
        """Return the layout below a directory as the user wrote it."""
        return cls(normalise(directory), job_id, create_subdir)

    @property
    def job(self) -> str:
        """The directory of everything of this job."""
        return f"{self.directory}/{self.job_id}" if self.create_subdir else self.directory

    @property
    def shared(self) -> str:
        return f"{self.job}/{_SHARED}"

    @property
    def task_owned(self) -> str:
        """Files that tasks delete themselves."""
        return f"{self.job}/{_TASK_OWNED}"

    @property
    def log(self) -> str:
        return f"{self.job}/{_LOG}"

    def checkpoint(self, checkpoint_id: int) -> str:
        return f"{self.job}/chk-{checkpoint_id}"

    def metadata(self, checkpoint_id: int) -> str:
        """Return the file that makes a checkpoint exist."""
        return metadata_path(self.checkpoint(checkpoint_id))

    def log_entry(self, seq: int) -> str:
        """Entry number `seq` of the job log; the names sort as the numbers do."""
        return f"{self.log}/{seq:012d}"

    def create_directories(self, store: ObjectStore) -> None:
        """Make shared/ and taskowned/: at the start if there are periodic checkpoints, else at the first (SPEC R5.9)."""
        store.make_directory(self.shared)
        store.make_directory(self.task_owned)

    def parse(self, path: str) -> ParsedPath:
        """Parse the path of an object below the job's directory.

        >>> layout = JobLayout.of("/data", JobId("a" * 32), create_subdir=False)
        >>> layout.parse("/data/chk-7/e1r0-v3-s0.state").kind
        <PathKind.PRIVATE: 'private'>
        """
        folders, _, name = path.removeprefix(f"{self.job}/").rpartition("/")
        if not is_inside(path, self.job):
            return ParsedPath(PathKind.FOREIGN)
        if found := _TEMPORARY_NAME.fullmatch(name):
            return ParsedPath(PathKind.TEMPORARY, None, _attempt_of(found) if found["epoch"] else None)
        if folders == _SHARED and (found := _SHARED_NAME.fullmatch(name)):
            return ParsedPath(PathKind.SHARED, int(found["id"]), _attempt_of(found))
        if folders == _LOG and _LOG_NAME.fullmatch(name):
            return ParsedPath(PathKind.LOG, seq=int(name))
        if folders.split("/")[0] == _TASK_OWNED:
            return ParsedPath(PathKind.TASK_OWNED)
        checkpoint = _CHECKPOINT_DIR.fullmatch(folders)
        if checkpoint and name == METADATA:
            return ParsedPath(PathKind.METADATA, int(checkpoint["id"]))
        if checkpoint and (found := _PRIVATE_NAME.fullmatch(name)):
            return ParsedPath(PathKind.PRIVATE, int(checkpoint["id"]), _attempt_of(found))
        return ParsedPath(PathKind.FOREIGN)

    def checkpoint_ids(self, store: ObjectStore) -> list[int]:
        """Return the ids that have a directory, complete or not, newest first."""
        found = (_CHECKPOINT_DIR.fullmatch(name) for name in store.list_names(self.job))
        return sorted((int(match["id"]) for match in found if match), reverse=True)

    def next_checkpoint_id(self, store: ObjectStore, restored: int) -> int:
        """The first id of a new epoch: one more than the restored one (SPEC R8.4), but none that has a directory.

        After a step back, or while a replaced driver still writes, the next id may already have a directory. Using it would
        need a conditional delete, which no store has, so it is skipped.
        """
        return max([restored, *self.checkpoint_ids(store)]) + 1


class PathKind(enum.Enum):
    """The kind of an object, by its path."""

    METADATA = "metadata"
    PRIVATE = "private"
    SHARED = "shared"
    TASK_OWNED = "task owned"
    LOG = "log"
    TEMPORARY = "temporary"
    FOREIGN = "foreign"


class ParsedPath(msgspec.Struct, frozen=True):
    """The fields of a path; None where it has none."""

    kind: PathKind
    checkpoint_id: int | None = None
    attempt: AttemptId | None = None
    seq: int | None = None


# ---- names of state files ------------------------------------------------------------------------------------------


def private_file(attempt: AttemptId, owner: str) -> str:
    """Return the name of a private file in a checkpoint's directory.

    >>> private_file(AttemptId(1), subtask_owner(3, 0))
    'e1r0-v3-s0.state'
    """
    return f"{attempt}-{_checked_owner(owner)}.state"


def shared_file(attempt: AttemptId, checkpoint_id: int, owner: str, digest: str) -> str:
    """Return the name of a file in shared/; `digest` is of its content.

    >>> shared_file(AttemptId(1), 7, "v3-s0", "0" * 32)
    'e1r0-c7-v3-s0-00000000000000000000000000000000.shared'
    """
    return f"{attempt}-c{checkpoint_id}-{_checked_owner(owner)}-{digest}.shared"


def _checked_owner(owner: str) -> str:
    if not _OWNER_TEXT.fullmatch(owner):
        raise InvalidArgument(
            "HR-1226", f"'{owner}' cannot be part of a file name; use small letters, digits and single dashes"
        )
    return owner


def attempt_of(name: str) -> AttemptId | None:
    """Return the attempt that wrote a private or temporary file, by its name; None for other names.

    >>> attempt_of("e2r0-v3-s0.state"), attempt_of("_metadata")
    (AttemptId(epoch=2, restart=0), None)
    """
    found = _PRIVATE_NAME.fullmatch(name) or _TEMPORARY_NAME.fullmatch(name)
    return _attempt_of(found) if found and found["epoch"] else None


def creator_of(path: str) -> int | None:
    """Return the checkpoint that wrote a file, by its path; None for other paths.

    >>> (
    ...     creator_of("/data/job/shared/e1r0-c7-v3-s0-" + "0" * 32 + ".shared"),
    ...     creator_of("/data/job/chk-9/e1r0-v3-s0.state"),
    ... )
    (7, 9)
    """
    folder, _, name = path.rpartition("/")
    if found := _SHARED_NAME.fullmatch(name):
        return int(found["id"])
    checkpoint = _CHECKPOINT_DIR.fullmatch(folder.rpartition("/")[2])
    return int(checkpoint["id"]) if checkpoint else None


# ---- references ----------------------------------------------------------------------------------------------------


def metadata_path(directory: str) -> str:
    """Return the metadata of the snapshot in a directory.

    >>> metadata_path("/data/savepoint-aaaaaa-1")
    '/data/savepoint-aaaaaa-1/_metadata'
    """
    return f"{directory}/{METADATA}"


def is_shared_file(path: str) -> bool:
    """Return True if a file is one that several checkpoints of a job may use.

    >>> (
    ...     is_shared_file(f"/data/job/shared/{shared_file(AttemptId(1), 7, 'v3-s0', '0' * 32)}"),
    ...     is_shared_file("/chk-1/a"),
    ... )
    (True, False)
    """
    return _SHARED_NAME.fullmatch(path.rpartition("/")[2]) is not None


def is_inside(path: str, directory: str) -> bool:
    """Return True if a path lies below a directory.

    >>> is_inside("/data/a/b", "/data/a"), is_inside("/data/ab", "/data/a")
    (True, False)
    """
    return path.startswith(f"{directory}/")


def make_ref(path: str, directory: str) -> str:
    """Return the reference to a file in the metadata of `directory`: relative, unless the file belongs to another job.

    >>> make_ref("/data/job/shared/f", "/data/job/chk-7"), make_ref("/old/chk-1/f", "/data/job/chk-7")
    ('../shared/f', '/old/chk-1/f')
    """
    if is_inside(path, directory):
        return path.removeprefix(f"{directory}/")
    parent, _, name = directory.rpartition("/")
    if _CHECKPOINT_DIR.fullmatch(name):
        for sibling in (_SHARED, _TASK_OWNED):
            if is_inside(path, f"{parent}/{sibling}"):
                return f"../{path.removeprefix(f'{parent}/')}"
    return path


def resolve_ref(ref: str, directory: str) -> str:
    """Return the path of a reference in the metadata of `directory`; one that leaves the job's directory is refused.

    >>> resolve_ref("../shared/f", "/moved/job/chk-7")
    '/moved/job/shared/f'
    """
    if ref.startswith("/") or "://" in ref:
        path, names = ref, ref.partition("://")[2] or ref[1:]
    elif ref.startswith(_SIBLINGS):
        names = ref[3:]
        path = f"{directory.rpartition('/')[0]}/{names}"
    else:
        path, names = f"{directory}/{ref}", ref
    if _NO_NAME.search(f"/{names}/"):
        raise CorruptState(
            f"the metadata in '{directory}' refers to '{ref}', which is not a path that Headrace writes; "
            "it is damaged, use an older checkpoint or savepoint"
        )
    return path


# ---- pointers and savepoints ---------------------------------------------------------------------------------------


def resolve_pointer(store: ObjectStore, pointer: str) -> str:
    """Return the directory of a pointer, which names the directory or its `_metadata` (SPEC R5.9).

    StorageError (FileNotFound) if there is no metadata.
    """
    path = normalise(pointer)
    directory = path.removesuffix(f"/{METADATA}")
    if not store.exists(metadata_path(directory)):
        raise MissingObject(
            "HR-3005",
            f"cannot find a checkpoint or savepoint '{pointer}' (FileNotFound): there is no '{metadata_path(directory)}'; "
            "give its directory, for example .../chk-7 or .../savepoint-1a2b3c-..., or the _metadata file in it",
        )
    return directory


def savepoint_target(target: str | None, default: str | None) -> str:
    """The directory below which a savepoint is made; IllegalState before anything is triggered if there is none (R8.1).

    >>> savepoint_target(None, "/savepoints/")
    '/savepoints'
    """
    chosen = target or default
    if not chosen:
        raise IllegalState(
            "HR-3004", "no savepoint directory: give a target directory, or set execution.checkpointing.savepoint-dir"
        )
    return normalise(chosen)


def make_savepoint_directory(
    store: ObjectStore, target: str, job_id: JobId, token: Callable[[], str] = lambda: secrets.token_hex(6)
) -> str:
    """Return a new directory for a savepoint; up to ten names are tried (SPEC R5.9)."""
    for _ in range(_SAVEPOINT_ATTEMPTS):
        directory = f"{target}/savepoint-{job_id[:6]}-{token()}"
        if store.make_directory(directory):
            return directory
    raise StorageError(
        "HR-3004",
        f"cannot make a savepoint directory below '{target}': {_SAVEPOINT_ATTEMPTS} names all exist; "
        "give another target directory",
    )


def is_job_id(name: str) -> bool:
    """Return True if a directory's name is a job's.

    >>> is_job_id("0" * 32)
    True
    """
    return _JOB_ID.fullmatch(name) is not None


def table_directory(operator: str, operator_id: str) -> str:
    """Return the directory of an operator's tables below a canonical savepoint; its name shows which operator it is.

    >>> table_directory("Keyed Process", "0123456789abcdef")
    'keyed-process-01234567'
    """
    return f"{_plain(operator)}-{operator_id[:8]}"


def table_file(directory: str, state: str, subtask: int, *, keyed: bool = True) -> str:
    """Return the file with a subtask's part of a keyed or operator state, below a canonical savepoint.

    >>> table_file("count-01234567", "total", 3)
    'count-01234567/total/part-00003.parquet'
    """
    return f"{state_directory(directory, state, keyed=keyed)}/part-{subtask:05d}.parquet"


def state_directory(directory: str, state: str, *, keyed: bool = True) -> str:
    """Return the directory with the files of a state; no two states of an operator have the same.

    >>> state_directory("count-01234567", "a/b")
    'count-01234567/a-b-c14cddc0'
    """
    plain = _plain(state)
    if plain != state:
        plain = f"{plain}-{hashlib.sha256(state.encode()).hexdigest()[:8]}"
    return f"{directory}/{'' if keyed else 'operator-state/'}{plain}"


def _plain(name: str) -> str:
    """Return the beginning of a name in small letters, digits, dashes and underscores."""
    return re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:_NAME].strip("-") or "state"
