"""The job log: one winner for every number, old drivers fenced, commit numbers that never repeat."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from storage_jobs import JOB, LAYOUT, take, take_savepoint

from headrace.checkpoint.commits import Commits
from headrace.checkpoint.handles import CorruptState
from headrace.checkpoint.types import SnapshotType
from headrace.errors import IllegalState, StorageError
from headrace.ids import JobId
from headrace.storage.layout import AttemptId, JobLayout
from headrace.storage.log import (
    KEPT_ENTRIES,
    CheckpointCompleted,
    CompletedRef,
    EpochStarted,
    JobEndClaimed,
    JobLog,
    LogEntry,
    LogMoved,
    LogStatus,
    SupersededError,
    decode_entry,
    encode_entry,
    load_completed,
    newest_job,
    read_log,
    read_logs,
)
from headrace.storage.objects import OutcomeUnknown
from headrace.storage.published_snapshots import discard_checkpoint
from headrace.testing.storage_faults import Fault, FaultKind, FaultyStore, MemoryStore, Operation


def start(store, layout=LAYOUT, name="wordcount", now=1000, **arguments):
    return JobLog.start(store, layout, name, clock=lambda: now, **arguments)


def resume(store, layout=LAYOUT, **arguments):
    """A new driver that restores the newest completed checkpoint."""
    refs = read_log(store, layout).newest_first()
    return start(store, layout, restored=refs[0] if refs else None, **arguments)


def numbers(store, layout=LAYOUT):
    return [int(name) for name in store.list_names(layout.log)]


# ---- the life of a job ---------------------------------------------------------------------------------------------


def test_epochs_and_completed_checkpoints(place):
    store, directory = place
    layout = JobLayout.of(directory, JOB)
    assert read_log(store, layout) is None
    log = start(store, layout)
    assert (log.attempt(0), log.attempt(2)) == (AttemptId(1, 0), AttemptId(1, 2))
    assert log.state.event == EpochStarted(None)
    first = log.complete(take(store, 1, layout=layout))
    second = log.complete(take(store, 2, layout=layout), subsumed=[first.commit])
    assert (first.commit, second.commit) == (2, 3), "the commit number is the number of the entry"
    found = read_log(store, layout)
    assert found == log.state
    assert (found.epoch, found.event, found.retained) == (1, CheckpointCompleted(second), (second,))
    assert load_completed(store, layout, second).manifest.checkpoint_id == 2

    again = resume(store, layout)
    assert again.attempt(0) == AttemptId(2, 0)
    assert again.state.event == EpochStarted("chk-2")
    assert again.complete(take(store, 3, AttemptId(2), layout)).commit == 5


def test_an_old_driver_is_superseded_before_it_completes_anything():
    store = MemoryStore()
    old = start(store)
    old.complete(take(store, 1))
    new = resume(store)
    old_snapshot = take(store, 2)
    with pytest.raises(
        SupersededError, match=r"another driver has taken over job .*entry 3 .* stops without committing"
    ):
        old.complete(old_snapshot)
    assert old._status is LogStatus.SUPERSEDED
    with pytest.raises(SupersededError):
        old.complete(take(store, 3))
    with pytest.raises(SupersededError):
        old.check_leading()
    new.check_leading()
    assert [ref.checkpoint_id for ref in read_log(store, LAYOUT).retained] == [1]
    assert new.complete(take(store, 4, AttemptId(2))).commit == 4


def test_check_leading_finds_out_without_writing():
    store = MemoryStore()
    old = start(store)
    old.check_leading()
    resume(store)
    with pytest.raises(SupersededError):
        old.check_leading()
    assert old._status is LogStatus.LEADING


def test_check_leading_finds_out_after_the_new_driver_has_deleted_old_entries():
    store = MemoryStore()
    old = start(store)
    new = resume(store)
    for number in range(1, 2 * KEPT_ENTRIES):
        new.complete(take(store, number, AttemptId(2)))
    assert old.state.seq + 1 not in numbers(store)
    with pytest.raises(SupersededError):
        old.check_leading()


def test_of_many_drivers_one_takes_the_job_over(place):
    store, directory = place
    layout = JobLayout.of(directory, JOB)
    start(store, layout)
    begin, won, lost = threading.Barrier(16), [], []

    def race():
        begin.wait()
        try:
            won.append(resume(store, layout).state.epoch)
        except SupersededError:
            lost.append(1)

    threads = [threading.Thread(target=race) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Some may come so late that they take over from the first winner: then in another epoch.
    assert len(won) == len(set(won))
    assert len(won) + len(lost) == 16
    assert max(won) == read_log(store, layout).epoch


def test_a_step_back_leaves_later_checkpoints_out_and_goes_on_counting():
    store = MemoryStore()
    log = start(store)
    refs = [log.complete(take(store, number)) for number in (1, 2, 3)]
    back = start(store, restored=refs[1])
    assert [ref.checkpoint_id for ref in back.state.retained] == [1, 2]
    assert back.state.event == EpochStarted("chk-2")
    number = LAYOUT.next_checkpoint_id(store, 2)
    again = back.complete(take(store, number, AttemptId(2)))
    assert again.commit == 6, "larger than the commit number of the checkpoint that was stepped over"
    assert number == 4


def test_what_a_driver_stepped_back_over_is_not_retained_any_more():
    store = MemoryStore()
    log = start(store)
    first, second, third = [log.complete(take(store, number)) for number in (1, 2, 3)]
    log.step_back_to(second.commit)
    fourth = log.complete(take(store, 4))
    assert read_log(store, LAYOUT).retained == (first, second, fourth)
    log.step_back_to(first.commit)
    log.end("FAILED", [])
    assert read_log(store, LAYOUT).retained == (first,)
    assert third not in log.state.retained


def test_a_savepoint_the_job_was_stopped_with_is_resumed_from():
    store = MemoryStore()
    log = start(store)
    log.complete(take(store, 1))
    stopped = log.complete(take_savepoint(store, 2, "/sp/savepoint-1", SnapshotType.SYNC_SAVEPOINT))
    assert stopped.pointer == "/sp/savepoint-1"
    newest, older = read_log(store, LAYOUT).newest_first()
    assert (newest, older.checkpoint_id) == (stopped, 1)
    assert load_completed(store, LAYOUT, newest).directory == "/sp/savepoint-1"


def test_newest_is_by_commit_number_not_by_checkpoint_id():
    refs = (CompletedRef(9, 2, "chk-9", 0), CompletedRef(3, 5, "chk-3", 0))
    entry = LogEntry(5, 0, JOB, "j", 0, 1, "d", 0, EpochStarted(None), refs)
    assert [ref.checkpoint_id for ref in entry.newest_first()] == [3, 9]


def test_the_snapshot_a_job_began_with_is_remembered():
    store = MemoryStore()
    start(store, origin="/sp/savepoint-1")
    log = resume(store)
    assert (log.state.origin, log.state.retained) == ("/sp/savepoint-1", ())
    assert start(store, JobLayout.of("/data", JobId("f" * 32))).state.origin is None


def test_another_file_in_place_of_the_completed_one():
    store = MemoryStore()
    log = start(store)
    ref = log.complete(take(store, 1))
    discard_checkpoint(store, LAYOUT, 1)
    take(store, 1, AttemptId(1, 5))
    with pytest.raises(CorruptState, match="it is not the file that completed checkpoint 1 as number 2"):
        load_completed(store, LAYOUT, ref)


# ---- old entries ---------------------------------------------------------------------------------------------------


def test_the_log_stays_short():
    store = MemoryStore()
    log = start(store)
    before = None
    for number in range(1, 101):
        before = log.complete(take(store, number), subsumed=[before.commit] if before else [])
        discard_checkpoint(store, LAYOUT, number - 1)
    assert numbers(store) == list(range(102 - KEPT_ENTRIES, 102))
    assert read_log(store, LAYOUT).retained == (before,)
    assert resume(store).state.seq == 102


@pytest.mark.parametrize("late", [1, 5, 40])
def test_a_number_that_was_tidied_away_is_not_free_again(late):
    store = MemoryStore()
    log = start(store)
    for number in range(1, late):
        log.complete(take(store, number))
    zombie, log = log, resume(store)
    for number in range(100, 200):
        log.complete(take(store, number, AttemptId(2)), subsumed=[ref.commit for ref in log.state.retained])
    assert zombie._next_seq() not in numbers(store)
    state = read_log(store, LAYOUT)
    with pytest.raises(SupersededError):
        zombie.complete(take(store, 50))
    assert read_log(store, LAYOUT) == state
    assert zombie._next_seq() not in numbers(store), "it takes its stale entry back"


def test_a_stale_entry_left_by_one_zombie_does_not_help_another():
    store = FaultyStore()
    first = start(store)
    second = resume(store)
    log = resume(store)
    for number in range(1, 40):
        log.complete(take(store, number, AttemptId(3)), subsumed=[ref.commit for ref in log.state.retained])
    store.inject(Fault(FaultKind.FAIL, None, Operation.DELETE))
    with pytest.raises(SupersededError):
        first.complete(take(store, 90))
    assert 2 in numbers(store)
    with pytest.raises(SupersededError):
        second.complete(take(store, 91, AttemptId(2)))


def test_a_new_job_does_not_begin_where_a_log_was_tidied():
    store = MemoryStore()
    ghost = JobLog(store, LAYOUT, None, lambda: 0)
    log = start(store)
    for number in range(1, 30):
        log.complete(take(store, number))
    entry = LogEntry(1, 0, JOB, "j", 0, 1, ghost._driver, 0, EpochStarted(None))
    with pytest.raises(SupersededError):
        ghost._claim(entry)
    assert 1 not in numbers(store)


def test_entries_are_deleted_without_gaps():
    store = FaultyStore()
    log = start(store)
    for number in range(1, 17):
        log.complete(take(store, number))
    assert numbers(store)[0] == 2
    store.inject(Fault(FaultKind.FAIL, None, Operation.DELETE, within=LAYOUT.log_entry(2)))
    for number in range(17, 25):
        log.complete(take(store, number))
    assert numbers(store) == list(range(2, 26)), "the first failure ends it"
    store.heal()
    log.complete(take(store, 25))
    assert numbers(store) == list(range(11, 27))


# ---- faults --------------------------------------------------------------------------------------------------------


def test_a_failed_claim_is_no_claim():
    store = FaultyStore()
    log = start(store)
    store.inject(Fault(FaultKind.FAIL, within="/log/"))
    with pytest.raises(StorageError) as caught:
        log.complete(take(store, 1))
    assert not isinstance(caught.value, OutcomeUnknown)
    assert log.complete(take(store, 2)).commit == 2


def test_a_lost_reply_is_looked_up():
    store = FaultyStore()
    log = start(store)
    store.inject(Fault(FaultKind.LOST_REPLY, within="/log/"))
    assert log.complete(take(store, 1)).commit == 2
    assert numbers(store) == [1, 2]


def lose_an_answer(store, log, number=1):
    """Complete a checkpoint with an unknown outcome."""
    store.inject(Fault(FaultKind.LOST_REPLY, within="/log/"))
    store.inject(Fault(FaultKind.FAIL, None, Operation.READ, within="/log/"))
    with pytest.raises(OutcomeUnknown):
        log.complete(take(store, number))
    assert log._status is LogStatus.UNCERTAIN


def test_a_claim_thought_lost_that_was_made():
    # With an unknown outcome the files are kept, and settle() comes before anything else.
    store = FaultyStore()
    log = start(store)
    lose_an_answer(store, log)
    with pytest.raises(IllegalState, match=r"call settle\(\) first"):
        log.complete(take(store, 2))
    with pytest.raises(OutcomeUnknown):
        log.settle()
    store.heal()
    assert log.settle() == read_log(store, LAYOUT).retained[0]
    assert (log._status, log.settle(), numbers(store)) == (LogStatus.LEADING, None, [1, 2])
    assert log.complete(take(store, 3)).commit == 3


def test_a_claim_thought_lost_that_was_not_made():
    store = FaultyStore()
    log = start(store)
    lose_an_answer(store, log)
    store.heal()
    late = store.objects.pop(LAYOUT.log_entry(2))  # the request is still on its way
    assert log.settle() is None
    assert not store.create_if_absent(LAYOUT.log_entry(2), late), "and comes to nothing"
    assert read_log(store, LAYOUT).retained == ()
    assert log.complete(take(store, 2)).commit == 3


def test_settling_can_itself_get_no_answer():
    store = FaultyStore()
    log = start(store)
    lose_an_answer(store, log)
    store.heal()
    del store.objects[LAYOUT.log_entry(2)]
    store.inject(Fault(FaultKind.LOST_REPLY, within="/log/"))
    store.inject(Fault(FaultKind.FAIL, 1, Operation.READ, within="/log/"))
    with pytest.raises(OutcomeUnknown):
        log.settle()
    assert log.settle() is None
    assert log.complete(take(store, 2)).commit == 3


def test_the_end_comes_behind_a_completion_whose_outcome_was_not_known():
    store = FaultyStore()
    log = start(store)
    lose_an_answer(store, log)
    store.heal()
    log.end("FINISHED", [])
    assert log.state.event == JobEndClaimed("FINISHED")
    assert [ref.commit for ref in log.state.retained] == [2]
    assert read_log(store, LAYOUT) == log.state


def test_settling_finds_that_another_driver_was_faster():
    store = FaultyStore()
    log = start(store)
    lose_an_answer(store, log)
    store.heal()
    del store.objects[LAYOUT.log_entry(2)]
    resume(store)
    with pytest.raises(SupersededError):
        log.settle()


def test_a_claim_that_cannot_be_checked_is_unknown_not_failed():
    store = FaultyStore()
    log = start(store)
    snapshot = take(store, 1)
    store.inject(Fault(FaultKind.FAIL, 1, Operation.READ, within="/log/"))
    with pytest.raises(OutcomeUnknown, match=r"cannot tell whether .* is valid"):
        log.complete(snapshot)
    assert log.settle().commit == 2


def test_damage_to_the_newest_entry_is_reported():
    store = FaultyStore()
    start(store)
    store.flip(LAYOUT.log_entry(1), 30)
    with pytest.raises(CorruptState, match=f"the log entry '{LAYOUT.log_entry(1)}' is damaged"):
        read_log(store, LAYOUT)


@pytest.mark.parametrize("at", [16, 19, 20, 60])  # the checksum itself, the content
def test_damage_to_an_old_entry_does_no_harm(at):
    store = FaultyStore()
    log = start(store)
    log.complete(take(store, 1))
    store.flip(LAYOUT.log_entry(1), 30)
    store.flip(LAYOUT.log_entry(2), at)
    assert log.complete(take(store, 2)).commit == 3
    assert read_log(store, LAYOUT) == log.state


def test_a_copied_entry_is_refused():
    store = MemoryStore()
    start(store)
    store.put(LAYOUT.log_entry(7), store.read(LAYOUT.log_entry(1)))
    with pytest.raises(CorruptState, match="says that it is number 1"):
        read_log(store, LAYOUT)


# ---- finding jobs --------------------------------------------------------------------------------------------------


def test_the_newest_job_of_a_name(place):
    store, directory = place
    for number, (name, now) in enumerate([("a", 10), ("b", 40), ("a", 30), ("a", 20)]):
        start(store, JobLayout.of(directory, JobId(f"{number:032x}")), name, now)
    store.put(f"{directory}/notes.txt", b"")
    assert [int(entry.job_id, 16) for entry in read_logs(store, directory)[0]] == [1, 2, 3, 0]
    assert int(newest_job(store, directory, "a").job_id, 16) == 2
    with pytest.raises(StorageError, match=r"there is no job named 'c' in .* 'a', 'b'"):
        newest_job(store, directory, "c")
    with pytest.raises(StorageError, match="jobs there: none"):
        newest_job(store, f"{directory}/empty", "c")


def flip(store, path):
    data = bytearray(store.read(path))
    data[-1] ^= 0xFF
    store.put(path, bytes(data))


def test_a_damaged_log_of_another_job_is_skipped_with_a_warning():
    store, warnings = MemoryStore(), []
    other, unknown = JobLayout.of("/data", JobId("a" * 32)), JobLayout.of("/data", JobId("b" * 32))
    start(store, other, "other", now=30).complete(take(store, 1, layout=other))
    start(store, unknown, "unknown", now=40)
    mine = start(store, JobLayout.of("/data", JobId("c" * 32)), "mine", now=20)
    flip(store, other.log_entry(2))
    flip(store, unknown.log_entry(1))
    assert newest_job(store, "/data", "mine", warnings.append) == mine.state
    assert [job_id * 32 in text and "DAMAGED" in text for job_id, text in zip("ab", warnings, strict=True)] == [
        True
    ] * 2
    with pytest.raises(StorageError, match=r"no job named 'c' .*'mine'; damaged logs: 2"):
        newest_job(store, "/data", "c", warnings.append)


def test_a_damaged_log_of_the_job_itself_is_an_error():
    store, warnings = MemoryStore(), []
    old, new = JobLayout.of("/data", JobId("a" * 32)), JobLayout.of("/data", JobId("b" * 32))
    for layout, now in ((old, 10), (new, 20)):
        start(store, layout, now=now).complete(take(store, 1, layout=layout))
    flip(store, new.log_entry(2))
    with pytest.raises(CorruptState, match=f"cannot resume job {'b' * 32} .* its log is damaged"):
        newest_job(store, "/data", "wordcount", warnings.append)
    start(store, JobLayout.of("/data", JobId("c" * 32)), now=30)
    assert newest_job(store, "/data", "wordcount", warnings.append).job_id == "c" * 32
    assert len(warnings) == 1


def test_resuming_does_not_make_a_job_newer():
    store = MemoryStore()
    old, new = JobLayout.of("/data", JobId("a" * 32)), JobLayout.of("/data", JobId("b" * 32))
    start(store, old, now=10)
    start(store, new, now=20)
    resume(store, old, now=30)
    assert newest_job(store, "/data", "wordcount").job_id == new.job_id


def test_jobs_that_share_a_directory_supersede_each_other():
    store = MemoryStore()
    one = start(store, JobLayout.of("/data", JobId("a" * 32), create_subdir=False))
    two = start(store, JobLayout.of("/data", JobId("b" * 32), create_subdir=False), now=2000)
    assert two.attempt(0) == AttemptId(2)
    assert (two.state.started_ms, newest_job(store, "/data", "wordcount").job_id) == (2000, "b" * 32)
    with pytest.raises(SupersededError):
        one.check_leading()


# ---- bytes ---------------------------------------------------------------------------------------------------------


def test_golden_bytes():
    ref = CompletedRef(7, 12, "chk-7", 0xDEADBEEF)
    entry = LogEntry(12, 5, JOB, "wordcount", 1000, 2, "d" * 16, 2000, CheckpointCompleted(ref), (ref,), "/sp")
    entry = msgspec.structs.replace(entry, commits=Commits().add(6, 11).add(7, 12), numbers_after=5)
    golden = bytes.fromhex((Path(__file__).parent / "golden" / "log-entry-v1.hex").read_text())
    assert decode_entry(golden, "x") == entry
    assert encode_entry(entry) == golden


# ---- numbers of another job ----------------------------------------------------------------------------------------


def test_numbers_continue_those_of_the_job_that_a_snapshot_is_of():
    """What it holds keeps its numbers, over resumes and steps back, and no number comes again."""
    store = MemoryStore()
    commits = Commits().add(3, 8).add(4, 9)
    log = start(store, origin="/sp", commits=commits, numbers_after=12)
    assert (log.commits, log.next_number) == (commits, 14)
    resumed = start(store)
    assert (resumed.commits, resumed.next_number) == (commits, 15)
    ref = resumed.complete(take(store, 5))
    assert (ref.commit, resumed.commits.number_for(4), resumed.commits.number_for(5)) == (15, 9, 15)
    resumed.step_back_to(None)
    assert resumed.commits == commits
    assert start(store, restored=ref).commits.number_for(5) == 15


def test_decoding_is_strict():
    from headrace.storage.log import FORMAT_VERSION, MAGIC
    from headrace.storage.sealed import seal

    with pytest.raises(StorageError, match="the log entry 'x' cannot be read"):
        decode_entry(seal(MAGIC, FORMAT_VERSION, msgspec.msgpack.encode({"seq": 1})), "x")
    with pytest.raises(StorageError, match="the log entry 'x' has format version 2"):
        decode_entry(seal(MAGIC, FORMAT_VERSION + 1, b""), "x")


def test_a_resume_built_on_an_entry_that_is_not_the_newest_any_more_has_to_choose_again():
    store = MemoryStore()
    old = start(store)
    read = read_log(store, LAYOUT)
    old.complete(take(store, 1))
    with pytest.raises(LogMoved, match="has written to"):
        start(store, resumed=read)
    read = read_log(store, LAYOUT)
    assert start(store, resumed=read, restored=read.retained[0]).state.retained == read.retained


def test_of_two_resumes_that_read_the_same_entry_one_wins():
    store = MemoryStore()
    start(store)
    read = read_log(store, LAYOUT)
    winner = start(store, resumed=read)
    with pytest.raises(SupersededError, match=r"another driver resumes job .* at the same time"):
        start(store, resumed=read)
    assert read_log(store, LAYOUT) == winner.state


def test_an_entry_that_the_old_driver_claims_in_the_last_moment_moves_the_log(monkeypatch):
    store = MemoryStore()
    old = start(store)
    read = read_log(store, LAYOUT)
    claim = JobLog._claim

    def late(log, entry):
        if log is not old and numbers(store) == [1]:
            old.complete(take(store, 1))
        return claim(log, entry)

    monkeypatch.setattr(JobLog, "_claim", late)
    with pytest.raises(LogMoved):
        start(store, resumed=read)


def test_a_resume_from_an_older_checkpoint_forgets_the_numbers_of_later_ones():
    store = MemoryStore()
    log = start(store)
    first, second = [log.complete(take(store, number)) for number in (1, 2)]
    back = start(store, restored=first)
    assert back.state.commits.number_for(1) == first.commit
    assert back.state.commits.number_for(2) is None, "what is prepared for a new checkpoint 2 is other output"
    again = back.complete(take(store, 3, AttemptId(2)))
    assert back.state.commits.number_for(2) == again.commit > second.commit
