"""Which files in a job's directory no checkpoint needs any more (`headrace gc`, in the process of the command line).

Everything is classified before anything is deleted. Uncertain files stay: files of other programs, files of an attempt
that may still run, and everything that damaged metadata might refer to. Deleting can be interrupted and repeated.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from headrace.checkpoint.handles import CorruptState
from headrace.storage.layout import AttemptId, JobLayout, ParsedPath, PathKind
from headrace.storage.log import CompletedRef, LogEntry, read_log
from headrace.storage.objects import MissingObject, ObjectInfo, ObjectStore
from headrace.storage.published_snapshots import Snapshot, delete_each, load_snapshot


class GcVerdict(enum.Enum):
    """Why an object is kept or deleted."""

    IN_USE = "part of a completed checkpoint"
    IN_FLIGHT = "may belong to a checkpoint under way"
    LOG = "part of the job log"
    TASK_OWNED = "owned by tasks"
    FOREIGN = "not written by Headrace"
    UNCERTAIN = "metadata that is damaged or missing may refer to it"
    ORPHAN = "no completed checkpoint refers to it"


class Finding(msgspec.Struct, frozen=True):
    path: str
    size: int
    verdict: GcVerdict


class GcPlan(msgspec.Struct, frozen=True):
    """Everything below a job's directory, classified; `damaged` names metadata that could not be read."""

    findings: tuple[Finding, ...]
    damaged: tuple[str, ...] = ()

    @property
    def orphans(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is GcVerdict.ORPHAN]


class Facts(msgspec.Struct, frozen=True):
    """The input of the decision.

    `snapshots` has the checkpoint of every `_metadata` by id, None where it is damaged. `live` is the attempt that may be
    running; None if the job is known to be stopped.
    """

    layout: JobLayout
    objects: tuple[ObjectInfo, ...]
    log: LogEntry | None
    snapshots: dict[int, Snapshot | None]
    live: AttemptId | None


def plan_gc(store: ObjectStore, layout: JobLayout, *, live: AttemptId | None) -> GcPlan:
    """Classify everything below a job's directory. Nothing is deleted.

    `live` is the attempt that is running, or may be: its unfinished work is kept. Pass None only if the job is stopped.
    """
    # The log first: a checkpoint that is completed meanwhile is newer than the entry, and so counts as in flight.
    log = read_log(store, layout)
    while True:
        objects = tuple(store.list_objects(layout.job))
        snapshots = _load_all(store, layout, objects)
        if snapshots is not None:
            return classify(Facts(layout, objects, log, snapshots, live))


def _load_all(
    store: ObjectStore, layout: JobLayout, objects: Iterable[ObjectInfo]
) -> dict[int, Snapshot | None] | None:
    """The snapshot of each metadata; None instead of a dict if one disappeared, since the listing is then outdated."""
    found: dict[int, Snapshot | None] = {}
    for info in objects:
        parsed = layout.parse(info.path)
        if parsed.kind is not PathKind.METADATA or parsed.checkpoint_id is None:
            continue
        try:
            found[parsed.checkpoint_id] = load_snapshot(store, info.path)
        except MissingObject:
            return None
        except CorruptState:
            found[parsed.checkpoint_id] = None
        # Any other error, such as a newer format or an unreachable store, propagates: too little is known.
    return found


# ---- deciding, without I/O -----------------------------------------------------------------------------------------


def classify(facts: Facts) -> GcPlan:
    roots = {number: _verdict_on_metadata(facts, number) for number in facts.snapshots}
    kept = [number for number, verdict in roots.items() if verdict is not GcVerdict.ORPHAN]
    needed: set[str] = set()
    for number in kept:
        snapshot = facts.snapshots[number]
        if snapshot is not None:
            needed |= snapshot.files().keys()
    unreadable = {number for number in kept if facts.snapshots[number] is None} | _missing(facts)

    def verdict(path: str) -> GcVerdict:
        parsed = facts.layout.parse(path)
        if parsed.kind is PathKind.METADATA and parsed.checkpoint_id is not None:
            return roots[parsed.checkpoint_id]
        if path in needed:
            return GcVerdict.IN_USE
        return _verdict_on_unneeded(facts, parsed, unreadable)

    damaged = tuple(facts.layout.metadata(number) for number, found in sorted(facts.snapshots.items()) if found is None)
    return GcPlan(tuple(Finding(info.path, info.size, verdict(info.path)) for info in facts.objects), damaged)


def _missing(facts: Facts) -> set[int]:
    """Checkpoints that the log retains and whose metadata is gone.

    Another job that has claimed such a checkpoint deletes its metadata when it has newer ones, which still build on the
    shared files (SPEC R8.4). That job may be in another directory, so it cannot be asked.
    """
    retained = () if facts.log is None else facts.log.retained
    own = {ref.checkpoint_id for ref in retained if ref.pointer == f"chk-{ref.checkpoint_id}"}
    return own - facts.snapshots.keys()


def _verdict_on_metadata(facts: Facts, checkpoint_id: int) -> GcVerdict:
    snapshot = facts.snapshots[checkpoint_id]
    if facts.log is None:
        # Without a log every checkpoint counts as completed.
        return GcVerdict.UNCERTAIN if snapshot is None else GcVerdict.IN_USE
    ref = _retained(facts.log, checkpoint_id)
    if snapshot is None:
        if ref is not None or not facts.layout.create_subdir:  # it may also belong to another job
            return GcVerdict.UNCERTAIN
        return GcVerdict.IN_FLIGHT if facts.live is not None and checkpoint_id > _newest(facts) else GcVerdict.ORPHAN
    if snapshot.manifest.job_id != facts.layout.job_id or (ref is not None and ref.crc32 == snapshot.crc32):
        return GcVerdict.IN_USE  # with create-subdir = false, checkpoints of an earlier job are in the same directory
    if ref is not None:
        return GcVerdict.UNCERTAIN
    return GcVerdict.IN_FLIGHT if _under_way(facts, snapshot.manifest.attempt, checkpoint_id) else GcVerdict.ORPHAN


def _retained(log: LogEntry, checkpoint_id: int) -> CompletedRef | None:
    found = (ref for ref in log.retained if ref.pointer == f"chk-{checkpoint_id}")
    return next(found, None)


def _verdict_on_unneeded(facts: Facts, parsed: ParsedPath, unreadable: set[int]) -> GcVerdict:
    match parsed.kind:
        case PathKind.LOG:
            return GcVerdict.LOG
        case PathKind.TASK_OWNED:
            return GcVerdict.TASK_OWNED
        case PathKind.TEMPORARY:
            # Without an attempt it is the driver's; it cannot be distinguished from one that is just being written.
            alive = facts.live is not None and (parsed.attempt is None or parsed.attempt >= facts.live)
            return GcVerdict.IN_FLIGHT if alive else GcVerdict.ORPHAN
        case PathKind.PRIVATE | PathKind.SHARED:
            assert parsed.attempt is not None
            assert parsed.checkpoint_id is not None
            if parsed.checkpoint_id in unreadable or (unreadable and parsed.kind is PathKind.SHARED):
                return GcVerdict.UNCERTAIN
            under_way = _under_way(facts, parsed.attempt, parsed.checkpoint_id)
            return GcVerdict.IN_FLIGHT if under_way else GcVerdict.ORPHAN
        case _:
            return GcVerdict.FOREIGN


def _under_way(facts: Facts, attempt: AttemptId, checkpoint_id: int) -> bool:
    """Return True if a file that no completed checkpoint needs may become part of one.

    Only of a checkpoint that is newer than every completed one: a completed checkpoint aborts all older ones, and
    increments build on completed checkpoints only.
    """
    if facts.live is None or attempt < facts.live:
        return False
    return attempt > facts.live or checkpoint_id > _newest(facts)


def _newest(facts: Facts) -> int:
    return -1 if facts.log is None else max((ref.checkpoint_id for ref in facts.log.retained), default=-1)


# ---- deleting ------------------------------------------------------------------------------------------------------


class Collected(msgspec.Struct, frozen=True):
    """The result of a collection; `failed` could not be deleted."""

    deleted: int
    bytes: int
    failed: tuple[str, ...]


def collect(store: ObjectStore, layout: JobLayout, plan: GcPlan) -> Collected:
    """Delete the orphans of a plan, metadata first, so that no half-deleted checkpoint looks whole."""
    orphans = sorted(plan.orphans, key=lambda finding: layout.parse(finding.path).kind is not PathKind.METADATA)
    first = [finding.path for finding in orphans if layout.parse(finding.path).kind is PathKind.METADATA]
    failed = set(delete_each(store, first))
    rest = [finding.path for finding in orphans[len(first) :]]
    failed |= set(rest if failed else delete_each(store, rest))
    deleted = [finding for finding in orphans if finding.path not in failed]
    for directory in sorted({finding.path.rpartition("/")[0] for finding in deleted}):
        if directory not in {layout.shared, layout.log, layout.task_owned, layout.job}:
            store.remove_directory(directory)
    return Collected(len(deleted), sum(finding.size for finding in deleted), tuple(sorted(failed)))
