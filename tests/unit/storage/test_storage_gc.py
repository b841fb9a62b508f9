"""What gc keeps and what it deletes: first every verdict, then any deletion."""

from __future__ import annotations

import pytest
from storage_jobs import JOB, LAYOUT, take, write_pieces

from headrace.errors import StorageError
from headrace.ids import JobId
from headrace.storage.gc import GcVerdict, collect, plan_gc
from headrace.storage.layout import AttemptId, JobLayout
from headrace.storage.log import JobLog, read_log
from headrace.storage.manifest import FORMAT_VERSION, MAGIC
from headrace.storage.published_snapshots import load_snapshot, require_intact
from headrace.storage.sealed import seal
from headrace.testing.storage_faults import Fault, FaultKind, FaultyStore, MemoryStore, Operation


def start(store, layout=LAYOUT, restored=None):
    return JobLog.start(store, layout, "wordcount", clock=lambda: 0, restored=restored)


def verdicts(plan, layout=LAYOUT):
    """{path below the job: verdict}, without the log."""
    found = {finding.path.removeprefix(f"{layout.job}/"): finding.verdict for finding in plan.findings}
    return {path: verdict for path, verdict in found.items() if not path.startswith("log/")}


def paths(plan, verdict):
    return [finding.path for finding in plan.findings if finding.verdict is verdict]


def files_of(store, checkpoint_id, layout=LAYOUT):
    """The files that carry the number of a checkpoint."""
    found = (info.path for info in store.list_objects(layout.job))
    return {path for path in found if layout.parse(path).checkpoint_id == checkpoint_id}


@pytest.fixture
def store():
    return FaultyStore()


def test_a_healthy_job_has_no_orphans(store):
    log = start(store)
    log.complete(take(store, 1))
    for live in (log.attempt(0), None):
        plan = plan_gc(store, LAYOUT, live=live)
        assert plan.orphans == []
        assert set(verdicts(plan).values()) == {GcVerdict.IN_USE}
        assert paths(plan, GcVerdict.LOG) == [LAYOUT.log_entry(1), LAYOUT.log_entry(2)]


def test_work_under_way_is_kept_while_the_attempt_may_live(store):
    log = start(store)
    log.complete(take(store, 1))
    write_pieces(store, 2, AttemptId(1), 0)
    temporary = f"{LAYOUT.shared}/.tmp-e1r0-{'0' * 16}"
    store.put(temporary, b"half")
    under_way = files_of(store, 2) | {temporary}
    assert set(paths(plan_gc(store, LAYOUT, live=AttemptId(1)), GcVerdict.IN_FLIGHT)) == under_way
    for later in (None, AttemptId(1, 1), AttemptId(2)):
        assert {finding.path for finding in plan_gc(store, LAYOUT, live=later).orphans} == under_way


def test_a_temporary_file_of_the_driver_is_kept_while_it_may_live(store):
    start(store).complete(take(store, 1))
    temporary = f"{LAYOUT.shared}/.tmp-{'0' * 16}"
    store.put(temporary, b"half")
    assert paths(plan_gc(store, LAYOUT, live=AttemptId(1)), GcVerdict.IN_FLIGHT) == [temporary]
    assert [finding.path for finding in plan_gc(store, LAYOUT, live=None).orphans] == [temporary]


@pytest.mark.parametrize("checkpoint_id", [2, 6])
def test_an_older_gc_does_not_touch_a_newer_attempt(store, checkpoint_id):
    """Its checkpoints may have lower numbers: the new driver may have started from an older one."""
    log = start(store)
    log.complete(take(store, 5))
    write_pieces(store, checkpoint_id, AttemptId(2), 0)
    assert plan_gc(store, LAYOUT, live=AttemptId(1)).orphans == []


def test_shared_files_of_a_checkpoint_whose_metadata_is_gone_are_uncertain(store):
    """Another job has claimed it: it deletes the metadata, and its own checkpoints still need the files."""
    log = start(store)
    log.complete(take(store, 1))
    store.delete(LAYOUT.metadata(1))
    for live in (AttemptId(1), None):
        found = verdicts(plan_gc(store, LAYOUT, live=live))
        shared = {verdict for path, verdict in found.items() if path.startswith("shared/")}
        assert shared == {GcVerdict.UNCERTAIN}


def test_what_an_aborted_checkpoint_left_goes_when_a_newer_one_completes(store):
    log = start(store)
    write_pieces(store, 1, AttemptId(1), 0)
    assert plan_gc(store, LAYOUT, live=AttemptId(1)).orphans == []
    log.complete(take(store, 2))
    assert {finding.path for finding in plan_gc(store, LAYOUT, live=AttemptId(1)).orphans} == files_of(store, 1)


def test_a_subsumed_checkpoint_that_was_not_deleted(store):
    log = start(store)
    first = log.complete(take(store, 1))
    log.complete(take(store, 2), subsumed=[first.commit])
    plan = plan_gc(store, LAYOUT, live=AttemptId(1))
    assert {finding.path for finding in plan.orphans} == files_of(store, 1)
    result = collect(store, LAYOUT, plan)
    assert (result.deleted, result.failed) == (5, ())
    assert result.bytes == sum(finding.size for finding in plan.orphans)
    require_intact(store, load_snapshot(store, LAYOUT.checkpoint(2)))
    assert plan_gc(store, LAYOUT, live=AttemptId(1)).orphans == []


def test_published_but_never_completed(store):
    # The driver died between the metadata and the log: no task was notified, so it is not complete.
    log = start(store)
    first = log.complete(take(store, 1))
    take(store, 2)
    assert set(paths(plan_gc(store, LAYOUT, live=AttemptId(1)), GcVerdict.IN_USE)) >= files_of(store, 2) - {
        LAYOUT.metadata(2)
    }
    start(store, restored=first)
    orphans = {finding.path for finding in plan_gc(store, LAYOUT, live=AttemptId(2)).orphans}
    assert orphans == files_of(store, 2)


def test_shared_files_of_an_old_attempt_stay_as_long_as_they_are_used(store):
    log = start(store)
    first = log.complete(take(store, 1))
    start(store, restored=first)
    assert plan_gc(store, LAYOUT, live=AttemptId(2)).orphans == []


def test_damaged_metadata_makes_everything_it_may_need_uncertain(store):
    log = start(store)
    for number in (1, 2):
        log.complete(take(store, number))
    write_pieces(store, 3, AttemptId(1), 0)
    store.flip(LAYOUT.metadata(1), 50)
    plan = plan_gc(store, LAYOUT, live=None)
    assert plan.damaged == (LAYOUT.metadata(1),)
    assert set(paths(plan, GcVerdict.UNCERTAIN)) == files_of(store, 1) | {
        p for p in files_of(store, 3) if "shared" in p
    }
    assert {finding.path for finding in plan.orphans} == {f"{LAYOUT.checkpoint(3)}/e1r0-v0-s0.state"}


def test_torn_metadata_that_was_never_completed(store):
    log = start(store)
    log.complete(take(store, 1))
    take(store, 2)
    store.truncate(LAYOUT.metadata(2), 30)
    assert {finding.path for finding in plan_gc(store, LAYOUT, live=None).orphans} == files_of(store, 2)
    assert plan_gc(store, LAYOUT, live=AttemptId(1)).orphans == []


def test_without_a_log_every_checkpoint_counts(store):
    take(store, 1)
    take(store, 2)
    write_pieces(store, 3, AttemptId(1), 0)
    plan = plan_gc(store, LAYOUT, live=None)
    assert {finding.path for finding in plan.orphans} == files_of(store, 3)
    store.flip(LAYOUT.metadata(1), 50)
    assert LAYOUT.metadata(1) in paths(plan_gc(store, LAYOUT, live=None), GcVerdict.UNCERTAIN)


def test_what_is_not_ours_stays(store):
    start(store)
    for name in ("notes.txt", "chk-1/readme", "shared/x.sst", "taskowned/deep/file"):
        store.put(f"{LAYOUT.job}/{name}", b"x")
    plan = plan_gc(store, LAYOUT, live=None)
    assert plan.orphans == []
    assert verdicts(plan)["notes.txt"] is GcVerdict.FOREIGN
    assert verdicts(plan)["taskowned/deep/file"] is GcVerdict.TASK_OWNED


def test_jobs_that_share_a_directory():
    # create-subdir = false: an earlier job's retained checkpoint lies beside ours, and is not in our log.
    store = FaultyStore()
    old, new = (JobLayout.of("/data", JobId(c * 32), create_subdir=False) for c in "ab")
    start(store, old).complete(take(store, 1, layout=old))
    start(store, new).complete(take(store, 2, AttemptId(2), new))
    for live in (None, AttemptId(2)):
        assert plan_gc(store, new, live=live).orphans == []
    store.flip(new.metadata(1), 50)
    assert plan_gc(store, new, live=None).orphans == []


def test_newer_formats_and_errors_end_it(store):
    start(store)
    store.put(LAYOUT.metadata(1), seal(MAGIC, FORMAT_VERSION + 1, b"x"))
    with pytest.raises(StorageError, match="format version 2"):
        plan_gc(store, LAYOUT, live=None)
    store.delete(LAYOUT.metadata(1))
    take(store, 1)
    store.inject(Fault(FaultKind.FAIL, None, Operation.READ, within="_metadata"))
    with pytest.raises(StorageError, match="injected fault"):
        plan_gc(store, LAYOUT, live=None)


def test_a_checkpoint_that_goes_while_we_look():
    class Vanishing(MemoryStore):
        def read(self, path, offset=0, length=None):
            if path == LAYOUT.metadata(1):
                self.delete(path)
            return super().read(path, offset, length)

    store = Vanishing()
    take(store, 1)
    assert LAYOUT.metadata(1) not in {finding.path for finding in plan_gc(store, LAYOUT, live=None).findings}


def test_deleting_is_restartable(store):
    log = start(store)
    first = log.complete(take(store, 1))
    log.complete(take(store, 2), subsumed=[first.commit])
    store.inject(Fault(FaultKind.FAIL, 1, Operation.DELETE))
    plan = plan_gc(store, LAYOUT, live=None)
    result = collect(store, LAYOUT, plan)
    assert result.deleted == 0, "metadata goes first: if it does not, nothing does"
    assert set(result.failed) == files_of(store, 1)
    require_intact(store, load_snapshot(store, LAYOUT.checkpoint(1)))
    store.inject(Fault(FaultKind.FAIL, 3, Operation.DELETE))
    assert len(collect(store, LAYOUT, plan_gc(store, LAYOUT, live=None)).failed) == 1
    assert [number for number in (1, 2) if store.exists(LAYOUT.metadata(number))] == [2]
    assert collect(store, LAYOUT, plan_gc(store, LAYOUT, live=None)).failed == ()
    assert plan_gc(store, LAYOUT, live=None).orphans == []
    assert files_of(store, 1) == set()


def test_on_every_store(place):
    store, directory = place
    layout = JobLayout.of(directory, JOB)
    log = start(store, layout)
    first = log.complete(take(store, 1, layout=layout))
    log.complete(take(store, 2, layout=layout), subsumed=[first.commit])
    plan = plan_gc(store, layout, live=None)
    assert len(plan.orphans) == 5
    assert plan.orphans[0].verdict.value == "no completed checkpoint refers to it"
    collect(store, layout, plan)
    assert store.list_names(layout.job) == ["chk-2", "log", "shared"]
    assert read_log(store, layout).retained[0].checkpoint_id == 2
